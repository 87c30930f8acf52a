//! All timers of a shard.

use std::collections::BTreeSet;

use super::{AppendId, SessionKey};
use crate::log::Time;
use crate::mutation::{Mutation, is_on};

/// What a timer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// A detached session's client has not come back.
    Expire(SessionKey),
    /// A failed append is to be tried again.
    Retry(AppendId),
    /// What clients have acknowledged is to go into the log.
    Marks,
    /// What this boot has brought back counts against the memory budget again.
    Budget,
}

/// How long a failed append waits before it is tried again, in milliseconds.
pub const APPEND_RETRY_MS: u64 = 100;

/// Timers by time, then in a fixed order.
#[derive(Debug, Default)]
pub struct Timers {
    set: BTreeSet<(Time, Timer)>,
    now: Time,
}

impl Timers {
    /// Takes note of the time. When the clock goes back, a session waits longer for its client, but a failed append is
    /// tried again after its usual pause, since clients wait for it, and sequence acks do not wait for the clock either.
    pub fn observe(&mut self, now: Time) {
        if now < std::mem::replace(&mut self.now, now) && !is_on(Mutation::RetryWaitsForClock) {
            let latest = now.plus_ms(APPEND_RETRY_MS);
            let is_of_appends = |timer| matches!(timer, Timer::Retry(_) | Timer::Marks);
            let is_late = |(at, timer): &&(Time, Timer)| *at > latest && is_of_appends(*timer);
            for (at, timer) in self.set.iter().filter(is_late).copied().collect::<Vec<_>>() {
                self.cancel(at, timer);
                self.set(latest, timer);
            }
        }
    }

    pub fn set(&mut self, at: Time, timer: Timer) {
        self.set.insert((at, timer));
    }

    pub fn cancel(&mut self, at: Time, timer: Timer) {
        self.set.remove(&(at, timer));
    }

    #[cfg(test)]
    pub fn has(&self, at: Time, timer: Timer) -> bool {
        self.set.contains(&(at, timer))
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.set.len()
    }

    pub fn next(&self) -> Option<Time> {
        self.set.first().map(|(at, _)| *at)
    }

    pub fn pop_due(&mut self, now: Time) -> Option<Timer> {
        self.set.first().filter(|(at, _)| *at <= now)?;
        self.set.pop_first().map(|(_, timer)| timer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_went_back_does_not_hold_up_a_failed_append() {
        let retry = Timer::Retry(AppendId::Proposal(1));
        let mut timers = Timers::default();
        timers.observe(Time(3_600_000));
        timers.set(Time(3_600_000 + APPEND_RETRY_MS), retry);
        timers.set(Time(3_660_000), Timer::Expire(SessionKey::default()));
        timers.observe(Time(1_000));
        assert_eq!(timers.next(), Some(Time(1_000 + APPEND_RETRY_MS)));
        assert_eq!(timers.pop_due(Time(1_000 + APPEND_RETRY_MS)), Some(retry));
        assert_eq!(timers.next(), Some(Time(3_660_000)), "a session only waits longer");
    }
}
