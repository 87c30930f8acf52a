//! All timers of a shard.

use std::collections::BTreeSet;

use super::{AppendId, SessionKey};
use crate::log::Time;

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
}

impl Timers {
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
