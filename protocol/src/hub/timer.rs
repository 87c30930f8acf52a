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
}

/// Timers by time, then in a fixed order.
#[derive(Debug, Default)]
pub struct Timers(BTreeSet<(Time, Timer)>);

impl Timers {
    pub fn set(&mut self, at: Time, timer: Timer) {
        self.0.insert((at, timer));
    }

    pub fn cancel(&mut self, at: Time, timer: Timer) {
        self.0.remove(&(at, timer));
    }

    pub fn next(&self) -> Option<Time> {
        self.0.first().map(|(at, _)| *at)
    }

    pub fn pop_due(&mut self, now: Time) -> Option<Timer> {
        self.0.first().filter(|(at, _)| *at <= now)?;
        self.0.pop_first().map(|(_, timer)| timer)
    }
}
