//! Keys and times for the records that one shard proposes in one boot.

use std::collections::BTreeSet;

use super::{AckKey, BootId, BootKey, Key, Time};

/// Hands out keys that are never used twice and times that never decrease.
#[derive(Debug)]
pub struct Proposer {
    boot: BootId,
    shard: u16,
    next_counter: u64,
    /// Counters whose append has no known outcome yet.
    unsettled: BTreeSet<u64>,
    last_time: Time,
}

impl Proposer {
    /// The proposer of a shard in a boot. Counter 0 of a boot is the record that begins it.
    pub fn new(boot: BootId, shard: u16) -> Self {
        Self { boot, shard, next_counter: 1, unsettled: BTreeSet::new(), last_time: Time(0) }
    }

    /// The key of the record that begins a boot.
    pub fn first_key(boot: BootId) -> Key {
        Key { boot: BootKey { boot, shard: 0, counter: 0, settled_below: 0 }, ack: None, request: None }
    }

    /// The boot that it proposes in.
    pub fn boot(&self) -> BootId {
        self.boot
    }

    /// A new key and the time to stamp beside it.
    pub fn next(&mut self, now: Time, ack: Option<AckKey>) -> (Key, Time) {
        let counter = self.next_counter;
        self.next_counter += 1;
        self.unsettled.insert(counter);
        let settled_below = self.unsettled.first().copied().unwrap_or(counter);
        self.observe(now);
        let boot = BootKey { boot: self.boot, shard: self.shard, counter, settled_below };
        (Key { boot, ack, request: None }, self.last_time)
    }

    /// Takes note that time has come this far, here or in the log.
    pub fn observe(&mut self, time: Time) {
        self.last_time = self.last_time.max(time);
    }

    /// The latest time that it has seen or stamped.
    pub fn last_time(&self) -> Time {
        self.last_time
    }

    /// Takes note that the outcome of a record is known.
    pub fn settle(&mut self, counter: u64) {
        self.unsettled.remove(&counter);
    }

    /// Whether this is the key of the record that begins its boot.
    pub fn made_first(&self, key: &BootKey) -> bool {
        key.boot == self.boot && key.counter == 0
    }

    /// Whether it made this key.
    pub fn made(&self, key: &BootKey) -> bool {
        key.boot == self.boot && key.shard == self.shard
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_says_below_which_counter_all_outcomes_are_known() {
        let mut proposer = Proposer::new(BootId(7), 0);
        let mut next = || proposer.next(Time(5), None).0.boot;
        assert_eq!((next().counter, next().settled_below), (1, 1));
        proposer.settle(2);
        assert_eq!(proposer.next(Time(5), None).0.boot.settled_below, 1);
        proposer.settle(1);
        assert_eq!(proposer.next(Time(5), None).0.boot.settled_below, 3);
    }

    #[test]
    fn times_never_decrease_when_the_clock_does() {
        let mut proposer = Proposer::new(BootId(7), 0);
        assert_eq!(proposer.next(Time(100), None).1, Time(100));
        assert_eq!(proposer.next(Time(40), None).1, Time(100));
        proposer.observe(Time(200));
        assert_eq!(proposer.next(Time(150), None).1, Time(200));
    }
}
