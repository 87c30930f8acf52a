//! Records on their way from the committer to those who tail the log, kept in memory until all tails have them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;

use oncewire_protocol::log::{Offset, Record};

use crate::store::Portion;

/// What is kept for the slowest tail; one that is further behind reads from the disk.
pub(super) const KEPT_RECORDS_MAX: usize = 16 * 1024;
/// The same in bytes.
pub(super) const KEPT_BYTES_MAX: usize = 8 * 1024 * 1024;

/// What a tail hands out at once.
const PORTION_RECORDS_MAX: usize = 1024;

/// The newest records, and who reads them.
#[derive(Debug, Default)]
pub(super) struct Unread {
    end: Offset,
    /// The newest records up to the end.
    kept: VecDeque<Arc<Record>>,
    kept_bytes: usize,
    tails: HashMap<TailId, TailState>,
    next_tail: u64,
}

/// Names a tail within its log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct TailId(u64);

#[derive(Debug)]
struct TailState {
    next: Offset,
    waiting: Option<Waker>,
}

/// What there is for a tail.
#[derive(Debug)]
pub(super) enum Next {
    /// These records.
    Records(Portion),
    /// Nothing yet; its waker will be woken.
    Nothing,
    /// What is no longer kept in memory: from an offset on and before another.
    OnDisk(Offset, Offset),
}

impl Unread {
    pub(super) fn new(end: Offset) -> Self {
        Self { end, ..Self::default() }
    }

    /// The offset after the last record.
    pub(super) fn end(&self) -> Offset {
        self.end
    }

    /// Takes records that have become durable, and returns who waits for them.
    pub(super) fn push(&mut self, records: impl Iterator<Item = Arc<Record>>) -> Vec<Waker> {
        for record in records {
            self.kept_bytes += record.memory_bytes();
            self.kept.push_back(record);
            self.end.0 += 1;
        }
        self.shrink();
        self.tails.values_mut().filter_map(|tail| tail.waiting.take()).collect()
    }

    /// A new reader.
    pub(super) fn add_tail(&mut self, from: Offset) -> TailId {
        let id = TailId(self.next_tail);
        self.next_tail += 1;
        self.tails.insert(id, TailState { next: from, waiting: None });
        id
    }

    /// A reader that is gone.
    pub(super) fn remove_tail(&mut self, id: TailId) {
        self.tails.remove(&id);
        self.shrink();
    }

    /// Which record a reader wants next.
    pub(super) fn position(&self, id: TailId) -> Offset {
        self.tails.get(&id).map_or(self.end, |tail| tail.next)
    }

    /// Takes note that a reader has got what is before an offset from the disk.
    pub(super) fn advance(&mut self, id: TailId, next: Offset) {
        if let Some(tail) = self.tails.get_mut(&id) {
            tail.next = next;
        }
        self.shrink();
    }

    /// What there is for a reader.
    pub(super) fn next(&mut self, id: TailId, waker: &Waker) -> Next {
        let kept_first = self.kept_first();
        let Some(tail) = self.tails.get_mut(&id) else { return Next::Nothing };
        if tail.next < kept_first {
            return Next::OnDisk(tail.next, kept_first);
        }
        let skip = usize::try_from(tail.next.0 - kept_first.0).unwrap_or(usize::MAX);
        let records = self.kept.iter().skip(skip).take(PORTION_RECORDS_MAX);
        let portion: Portion =
            records.zip(tail.next.0..).map(|(record, offset)| (Offset(offset), Arc::clone(record))).collect();
        if portion.is_empty() {
            tail.waiting = Some(waker.clone());
            return Next::Nothing;
        }
        tail.next.0 += portion.len() as u64;
        self.shrink();
        Next::Records(portion)
    }

    fn kept_first(&self) -> Offset {
        Offset(self.end.0 - self.kept.len() as u64)
    }

    fn shrink(&mut self) {
        let slowest = self.tails.values().map(|tail| tail.next).min().unwrap_or(self.end);
        while !self.kept.is_empty()
            && (self.kept_first() < slowest
                || self.kept.len() > KEPT_RECORDS_MAX
                || self.kept_bytes > KEPT_BYTES_MAX)
        {
            if let Some(record) = self.kept.pop_front() {
                self.kept_bytes -= record.memory_bytes();
            }
        }
        if self.kept.is_empty() {
            self.kept.shrink_to(PORTION_RECORDS_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use oncewire_protocol::hub::Shard;
    use oncewire_protocol::log::{Body, BootId, Time};
    use oncewire_protocol::wire::ConnectionId;

    use super::*;

    fn records(count: u64) -> impl Iterator<Item = Arc<Record>> {
        (0..count).map(|n| Arc::new(Shard::booted(BootId(1), Time(n), false)))
    }

    fn next(unread: &mut Unread, tail: TailId) -> (u64, usize) {
        match unread.next(tail, Waker::noop()) {
            Next::Records(portion) => (portion[0].0.0, portion.len()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn nothing_is_kept_without_a_tail_and_after_the_slowest() {
        let mut unread = Unread::new(Offset(10));
        unread.push(records(5));
        assert_eq!((unread.end(), unread.kept.len()), (Offset(15), 0));
        let (one, other) = (unread.add_tail(Offset(15)), unread.add_tail(Offset(15)));
        unread.push(records(3));
        assert_eq!(next(&mut unread, one), (15, 3));
        assert_eq!(unread.kept.len(), 3, "the other has not read them");
        assert_eq!(next(&mut unread, other), (15, 3));
        assert_eq!((unread.kept.len(), unread.kept_bytes), (0, 0));
        unread.push(records(2));
        unread.remove_tail(one);
        assert_eq!(next(&mut unread, other), (18, 2));
    }

    #[test]
    fn a_tail_too_far_behind_reads_the_oldest_from_the_disk() {
        let mut unread = Unread::new(Offset(0));
        let tail = unread.add_tail(Offset(0));
        unread.push(records(KEPT_RECORDS_MAX as u64 + 100));
        assert_eq!(unread.kept.len(), KEPT_RECORDS_MAX);
        assert!(matches!(unread.next(tail, Waker::noop()), Next::OnDisk(Offset(0), Offset(100))));
        unread.advance(tail, Offset(60));
        assert!(matches!(unread.next(tail, Waker::noop()), Next::OnDisk(Offset(60), Offset(100))));
        unread.advance(tail, Offset(100));
        assert_eq!(next(&mut unread, tail), (100, PORTION_RECORDS_MAX));
    }

    #[test]
    fn kept_bytes_are_bounded_too() {
        let mut unread = Unread::new(Offset(0));
        unread.add_tail(Offset(0));
        let connection_ids = vec![ConnectionId::new(&"x".repeat(10_000))];
        let booted = Shard::booted(BootId(1), Time(0), false);
        let record = Arc::new(Record { body: Body::Told { connection_ids }, ..booted });
        let count = KEPT_BYTES_MAX / record.memory_bytes();
        unread.push(std::iter::repeat_n(record, count + 1));
        assert!(unread.kept_bytes <= KEPT_BYTES_MAX && unread.kept.len() == count);
    }
}
