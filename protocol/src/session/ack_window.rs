//! Ack ids that a session has executed.

use std::collections::{BTreeMap, VecDeque};

use crate::log::{AckKey, Fingerprint};
use crate::wire::AckId;

/// What the window knows of an ack id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// Never executed, or so long ago that it is forgotten.
    New,
    /// The same request was executed.
    Duplicate,
    /// Another request was executed under this id.
    Mismatch,
}

/// What an executed ack id takes in memory, in bytes, about: id and fingerprint in a tree that is two thirds full, and the
/// id in a queue.
const EXECUTED_BYTES: usize = 40;

/// The last executed ack ids with their fingerprints, oldest insertion dropped first. Only successful requests are
/// in it: a failed one may be tried again.
#[derive(Debug)]
pub struct AckWindow {
    capacity: usize,
    fingerprints: BTreeMap<AckId, Fingerprint>,
    oldest_first: VecDeque<AckId>,
}

impl AckWindow {
    /// An empty window for this many ids.
    pub fn new(capacity: usize) -> Self {
        Self { capacity, fingerprints: BTreeMap::new(), oldest_first: VecDeque::new() }
    }

    /// A window that remembers these, oldest first.
    pub fn restore(capacity: usize, executed: &[AckKey]) -> Self {
        let mut window = Self::new(capacity);
        for AckKey { ack_id, fingerprint } in executed {
            window.insert(*ack_id, *fingerprint);
        }
        window
    }

    /// How many ids it remembers at most.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// About what it takes in memory, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.fingerprints.len() * EXECUTED_BYTES
    }

    /// What it remembers, oldest first.
    pub fn executed(&self) -> impl Iterator<Item = AckKey> {
        self.oldest_first.iter().filter_map(|ack_id| {
            let fingerprint = *self.fingerprints.get(ack_id)?;
            Some(AckKey { ack_id: *ack_id, fingerprint })
        })
    }

    /// Compares a request with what was executed under its id.
    pub fn look_up(&self, ack_id: AckId, fingerprint: Fingerprint) -> Seen {
        match self.fingerprints.get(&ack_id) {
            None => Seen::New,
            Some(known) if *known == fingerprint => Seen::Duplicate,
            Some(_) => Seen::Mismatch,
        }
    }

    /// Whether anything was executed under the id.
    pub fn contains(&self, ack_id: AckId) -> bool {
        self.fingerprints.contains_key(&ack_id)
    }

    /// Remembers an executed request. An id that is known keeps its place and its fingerprint.
    pub fn insert(&mut self, ack_id: AckId, fingerprint: Fingerprint) {
        if self.capacity == 0 || self.contains(ack_id) {
            return;
        }
        if self.oldest_first.len() == self.capacity
            && let Some(oldest) = self.oldest_first.pop_front()
        {
            self.fingerprints.remove(&oldest);
        }
        self.fingerprints.insert(ack_id, fingerprint);
        self.oldest_first.push_back(ack_id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{GroupName, Upstream};
    use proptest::prelude::*;

    fn fingerprint(of: u8) -> Fingerprint {
        let group = GroupName::new(&format!("g{of}")).unwrap();
        Fingerprint::of(&Upstream::JoinGroup { group, ack_id: None })
    }

    #[test]
    fn an_id_under_another_fingerprint_is_a_mismatch() {
        let mut window = AckWindow::new(4);
        window.insert(0, fingerprint(1));
        assert_eq!(window.look_up(0, fingerprint(1)), Seen::Duplicate);
        assert_eq!(window.look_up(0, fingerprint(2)), Seen::Mismatch);
        assert_eq!(window.look_up(u64::MAX, fingerprint(1)), Seen::New);
    }

    #[test]
    fn the_oldest_inserted_id_leaves_at_the_capacity() {
        let mut window = AckWindow::new(3);
        for id in [9, 1, 5] {
            window.insert(id, fingerprint(0));
        }
        window.insert(9, fingerprint(0));
        assert!(window.contains(9));
        window.insert(7, fingerprint(0));
        assert!(!window.contains(9), "inserting it again did not renew its place");
        assert!(window.contains(1) && window.contains(5) && window.contains(7));
    }

    proptest! {
        #[test]
        fn a_window_equals_the_naive_list(ids in proptest::collection::vec((0u64..30, 0u8..3), 0..200)) {
            let mut window = AckWindow::new(8);
            let mut naive: Vec<(u64, Fingerprint)> = Vec::new();
            for (id, of) in ids {
                let expected = match naive.iter().find(|(known, _)| *known == id) {
                    None => Seen::New,
                    Some((_, known)) if *known == fingerprint(of) => Seen::Duplicate,
                    Some(_) => Seen::Mismatch,
                };
                prop_assert_eq!(window.look_up(id, fingerprint(of)), expected);
                window.insert(id, fingerprint(of));
                if expected == Seen::New {
                    naive.push((id, fingerprint(of)));
                    if naive.len() > 8 {
                        naive.remove(0);
                    }
                }
            }
        }
    }
}
