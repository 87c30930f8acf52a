//! Which appends were applied already, so that the second copy of a retried one is passed over (R8).

use std::collections::{BTreeMap, BTreeSet};

use crate::log::{AppliedAppends, BootId, BootKey};

/// Applied counters for each boot and shard. What is remembered is bounded by the appends in flight: each key says
/// below which counter nothing new can come.
#[derive(Debug, Default)]
pub struct Repeats {
    proposers: BTreeMap<(BootId, u16), Applied>,
}

#[derive(Debug, Default)]
struct Applied {
    settled_below: u64,
    counters: BTreeSet<u64>,
}

impl Repeats {
    /// What a checkpoint keeps.
    pub fn to_checkpoint(&self) -> Vec<AppliedAppends> {
        let proposers = self.proposers.iter().map(|((boot, shard), applied)| AppliedAppends {
            boot: *boot,
            shard: *shard,
            settled_below: applied.settled_below,
            counters: applied.counters.iter().copied().collect(),
        });
        proposers.collect()
    }

    /// Knows again what a checkpoint kept.
    pub fn restore(stored: &[AppliedAppends]) -> Self {
        let proposers = stored.iter().map(|known| {
            let counters = known.counters.iter().copied().collect();
            ((known.boot, known.shard), Applied { settled_below: known.settled_below, counters })
        });
        Self { proposers: proposers.collect() }
    }

    /// Notes a key; tells whether it is new.
    pub fn insert(&mut self, key: &BootKey) -> bool {
        let applied = self.proposers.entry((key.boot, key.shard)).or_default();
        let is_late = key.counter < applied.settled_below;
        if is_late || !applied.counters.insert(key.counter) {
            return false;
        }
        if key.settled_below > applied.settled_below {
            applied.settled_below = key.settled_below;
            applied.counters = applied.counters.split_off(&key.settled_below);
        }
        true
    }

    /// Forgets a boot that is gone: whatever of its still arrives is passed over for that.
    pub fn forget(&mut self, boot: BootId) {
        self.proposers.retain(|(known, _), _| *known != boot);
    }

    /// Forgets earlier boots: nothing of theirs can still arrive.
    pub fn forget_all_but(&mut self, boot: BootId) {
        self.proposers.retain(|(known, _), _| *known == boot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(counter: u64, settled_below: u64) -> BootKey {
        BootKey { boot: BootId(1), shard: 0, counter, settled_below }
    }

    #[test]
    fn a_copy_is_recognised_at_once_and_long_after() {
        let mut repeats = Repeats::default();
        assert!(repeats.insert(&key(5, 1)));
        assert!(!repeats.insert(&key(5, 1)));
        assert!(repeats.insert(&key(9, 9)));
        assert!(!repeats.insert(&key(5, 1)));
        assert!(!repeats.insert(&key(8, 1)), "everything below the floor had its outcome");
    }

    #[test]
    fn shards_and_boots_count_for_themselves() {
        let mut repeats = Repeats::default();
        assert!(repeats.insert(&key(5, 1)));
        assert!(repeats.insert(&BootKey { shard: 1, ..key(5, 1) }));
        assert!(repeats.insert(&BootKey { boot: BootId(2), ..key(5, 1) }));
        repeats.forget_all_but(BootId(2));
        assert!(!repeats.insert(&BootKey { boot: BootId(2), ..key(5, 1) }));
        assert_eq!(repeats.proposers.len(), 1);
    }

    #[test]
    fn memory_is_bounded_by_what_is_in_flight() {
        let mut repeats = Repeats::default();
        for counter in 1..10_000 {
            assert!(repeats.insert(&key(counter, counter.saturating_sub(3).max(1))));
        }
        assert!(repeats.proposers.values().all(|applied| applied.counters.len() <= 4));
    }
}
