//! Ack ids that a session has executed.
//!
//! Clients count their ids up, so nearly all of them come in rising order: these are in a ring that is searched as it is,
//! with 24 bytes for each. An id that comes late has a place in a second ring, and in an index to find it by.

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

/// What an id that came late takes in memory beside its place, in bytes, about: an entry of a tree that is two thirds full.
const LATE_BYTES: usize = 24;

/// The last executed ack ids with their fingerprints, oldest insertion dropped first. Only successful requests are
/// in it: a failed one may be tried again.
#[derive(Debug)]
pub struct AckWindow {
    capacity: usize,
    /// Each with a larger id than those before it.
    rising: VecDeque<Executed>,
    /// Most sessions have none.
    late: Option<Box<Late>>,
    /// Executed in all: the turn of the next one.
    turns: u64,
}

/// Those that had a larger one before them when they came.
#[derive(Debug, Default)]
struct Late {
    executed: VecDeque<Executed>,
    /// Which of them has an id, by its turn.
    turns: BTreeMap<AckId, u64>,
}

#[derive(Debug, Clone, Copy)]
struct Executed {
    ack_id: AckId,
    fingerprint: Fingerprint,
    turn: u64,
}

impl AckWindow {
    /// An empty window for this many ids.
    pub fn new(capacity: usize) -> Self {
        Self { capacity, rising: VecDeque::new(), late: None, turns: 0 }
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
        let of_late = |late: &Late| {
            let places = late.executed.capacity() * size_of::<Executed>();
            size_of::<Late>() + places + late.executed.len() * LATE_BYTES
        };
        self.rising.capacity() * size_of::<Executed>() + self.late.as_deref().map_or(0, of_late)
    }

    /// What it remembers, oldest first.
    pub fn executed(&self) -> impl Iterator<Item = AckKey> {
        let late = self.late.iter().flat_map(|late| &late.executed);
        let (mut rising, mut late) = (self.rising.iter().peekable(), late.peekable());
        std::iter::from_fn(move || {
            let is_late_next = match (rising.peek(), late.peek()) {
                (Some(next), Some(late)) => late.turn < next.turn,
                (next, _) => next.is_none(),
            };
            let Executed { ack_id, fingerprint, .. } =
                *if is_late_next { late.next() } else { rising.next() }?;
            Some(AckKey { ack_id, fingerprint })
        })
    }

    /// Compares a request with what was executed under its id.
    pub fn look_up(&self, ack_id: AckId, fingerprint: Fingerprint) -> Seen {
        match self.find(ack_id) {
            None => Seen::New,
            Some(known) if known.fingerprint == fingerprint => Seen::Duplicate,
            Some(_) => Seen::Mismatch,
        }
    }

    /// Whether anything was executed under the id.
    pub fn contains(&self, ack_id: AckId) -> bool {
        self.find(ack_id).is_some()
    }

    fn find(&self, ack_id: AckId) -> Option<&Executed> {
        if self.rising.back().is_none_or(|last| last.ack_id < ack_id) && self.late.is_none() {
            return None;
        }
        if let Ok(at) = self.rising.binary_search_by_key(&ack_id, |executed| executed.ack_id) {
            return self.rising.get(at);
        }
        let late = self.late.as_ref()?;
        let turn = late.turns.get(&ack_id)?;
        let at = late.executed.binary_search_by_key(turn, |executed| executed.turn).ok()?;
        late.executed.get(at)
    }

    /// Remembers an executed request. An id that is known keeps its place and its fingerprint.
    pub fn insert(&mut self, ack_id: AckId, fingerprint: Fingerprint) {
        if self.capacity == 0 || self.contains(ack_id) {
            return;
        }
        if self.len() == self.capacity {
            self.forget_oldest();
        }
        let executed = Executed { ack_id, fingerprint, turn: self.turns };
        self.turns += 1;
        let is_late = self.rising.back().is_some_and(|last| last.ack_id > ack_id);
        let room = self.capacity - self.len();
        let ring = if is_late {
            let late = self.late.get_or_insert_default();
            late.turns.insert(ack_id, executed.turn);
            &mut late.executed
        } else {
            &mut self.rising
        };
        if ring.len() == ring.capacity() {
            // Twice as many as before, but never more than it will come to.
            ring.reserve_exact(ring.len().max(4).min(room));
        }
        ring.push_back(executed);
    }

    fn len(&self) -> usize {
        self.rising.len() + self.late.as_ref().map_or(0, |late| late.executed.len())
    }

    fn forget_oldest(&mut self) {
        let first_late = self.late.as_ref().and_then(|late| late.executed.front());
        let is_late = match (self.rising.front(), first_late) {
            (Some(first), Some(late)) => late.turn < first.turn,
            (first, _) => first.is_none(),
        };
        if !is_late {
            self.rising.pop_front();
        } else if let Some(late) = &mut self.late
            && let Some(forgotten) = late.executed.pop_front()
        {
            late.turns.remove(&forgotten.ack_id);
            if late.executed.is_empty() {
                self.late = None;
            }
        }
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

    #[test]
    fn a_full_window_of_rising_ids_takes_24_bytes_for_each() {
        let mut window = AckWindow::new(10_000);
        (1..=30_000).for_each(|id| window.insert(id, fingerprint(0)));
        assert_eq!(window.memory_bytes(), 240_000);
        assert!(window.contains(20_001) && !window.contains(20_000));
    }

    #[test]
    fn ids_in_any_order_leave_nothing_behind() {
        let mut window = AckWindow::new(100);
        (0..10_000u64).for_each(|n| window.insert(n.wrapping_mul(0x9E37_79B9_7F4A_7C15), fingerprint(0)));
        let late = window.late.as_ref().unwrap();
        assert_eq!((window.executed().count(), late.turns.len()), (100, late.executed.len()));
        let late_bytes = size_of::<Late>() + 100 * LATE_BYTES;
        assert!(window.memory_bytes() <= 100 * 2 * size_of::<Executed>() + late_bytes);
        (1..=100).for_each(|id| window.insert(u64::MAX - 100 + id, fingerprint(0)));
        assert!(window.late.is_none(), "its last id is forgotten");
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
                let executed = |window: &AckWindow| -> Vec<AckKey> { window.executed().collect() };
                let keys: Vec<AckKey> =
                    naive.iter().map(|&(ack_id, fingerprint)| AckKey { ack_id, fingerprint }).collect();
                prop_assert_eq!(executed(&window), &keys[..]);
                prop_assert_eq!(executed(&AckWindow::restore(8, &keys)), keys);
            }
        }
    }
}
