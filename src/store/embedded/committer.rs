//! What appends to a hub's log, on one thread at a time.
//!
//! ```text
//! append() --queue--> encode --group--> one commit, one sync --> tails, replies
//! ```
//! Everything that waits when a commit begins is part of it, up to a bound: so one sync serves many.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use oncewire_protocol::log::{Certainty, Offset, Record};
use tokio::sync::oneshot;

use super::group;
use super::on_demand::{Next, OnDemand, Worker};
use super::redb_file::definite;
use super::segments::Segments;
use super::unread::Unread;
use crate::store::{StoreError, StoreErrorCause};

/// Bytes that may wait for the committer, about; one append of any size may wait alone.
pub(super) const QUEUE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Records that may wait for the committer.
pub(super) const QUEUE_RECORDS_MAX: usize = 256 * 1024;

/// The largest record that is taken, in bytes; a length in a group has 32 bits.
const RECORD_BYTES_MAX: usize = 1024 * 1024 * 1024;

/// What one commit takes, in bytes; one record of any size may be a commit alone.
pub(super) const COMMIT_BYTES_MAX: usize = 1024 * 1024;

/// When segments are sealed.
#[derive(Debug, Clone, Copy)]
pub(super) struct SegmentLimits {
    /// A segment with so many bytes is full.
    pub(super) bytes_max: u64,
    /// From here on, in bytes, one that has mostly been trimmed is sealed, so that its room can be given back.
    pub(super) trimmed_bytes_min: u64,
}

impl Default for SegmentLimits {
    fn default() -> Self {
        Self { bytes_max: 128 * 1024 * 1024, trimmed_bytes_min: 16 * 1024 * 1024 }
    }
}

/// What the committer shares with those who append, trim and tail.
pub(super) type Queue = OnDemand<Committer>;

/// What waits for the committer, and what those who tail wait for.
pub(super) struct Waiting {
    limits: SegmentLimits,
    appends: VecDeque<Append>,
    bytes: usize,
    records: usize,
    unread: Unread,
    /// Nobody needs what is before it.
    trimmed: Offset,
    active: ActiveSize,
    roll: bool,
    is_closing: bool,
    failed: Option<StoreErrorCause>,
}

/// The segment that is written, as far as sealing it goes.
#[derive(Debug, Clone, Copy)]
struct ActiveSize {
    base: Offset,
    bytes: u64,
}

type Reply = oneshot::Sender<Result<(), StoreError>>;

/// One call to append.
struct Append {
    records: Vec<Arc<Record>>,
    /// How many of them are committed.
    committed: usize,
    reply: Reply,
}

impl Waiting {
    pub(super) fn new(segments: &Segments, end: Offset, limits: SegmentLimits) -> Self {
        let (base, bytes) = segments.active_size();
        Self {
            limits,
            appends: VecDeque::new(),
            bytes: 0,
            records: 0,
            unread: Unread::new(end),
            trimmed: Offset(0),
            active: ActiveSize { base, bytes },
            roll: false,
            is_closing: false,
            failed: None,
        }
    }
}

impl Queue {
    /// Puts records at the end of the queue.
    pub(super) fn append(
        self: &Arc<Self>,
        records: Vec<Arc<Record>>,
    ) -> Result<oneshot::Receiver<Result<(), StoreError>>, StoreError> {
        let mut bytes = 0;
        for record in &records {
            let record_bytes = record.memory_bytes();
            if record_bytes > RECORD_BYTES_MAX {
                return Err(definite(StoreErrorCause::TooLarge { bytes: record_bytes }));
            }
            bytes += record_bytes;
        }
        let (reply, outcome) = oneshot::channel();
        self.put(|waiting| {
            waiting.check_open()?;
            let is_over = waiting.bytes + bytes > QUEUE_BYTES_MAX
                || waiting.records + records.len() > QUEUE_RECORDS_MAX;
            if is_over && !waiting.appends.is_empty() {
                return Err(definite(StoreErrorCause::Overloaded));
            }
            waiting.bytes += bytes;
            waiting.records += records.len();
            waiting.appends.push_back(Append { records, committed: 0, reply });
            Ok(outcome)
        })
    }

    /// Works with what tails share.
    pub(super) fn unread<T>(&self, work: impl FnOnce(&mut Unread) -> T) -> T {
        self.with(|waiting| work(&mut waiting.unread))
    }

    /// Takes note that nobody needs what is before an offset.
    pub(super) fn trimmed(self: &Arc<Self>, before: Offset) {
        let wants_roll = self.with(|waiting| {
            waiting.trimmed = waiting.trimmed.max(before.min(waiting.unread.end()));
            !waiting.roll && waiting.wants_roll()
        });
        if wants_roll {
            // Without a thread for it now, the next append or trim has it done.
            let _ = self.put(|waiting| {
                waiting.roll = true;
                Ok(())
            });
        }
    }

    /// Nobody needs what is before it.
    pub(super) fn trimmed_to(&self) -> Offset {
        self.with(|waiting| waiting.trimmed)
    }

    /// Whether the store can still go on.
    pub(super) fn check_not_failed(&self) -> Result<(), StoreError> {
        self.with(|waiting| waiting.check_not_failed())
    }

    /// Whether it takes nothing more.
    pub(super) fn is_closing(&self) -> bool {
        self.with(|waiting| waiting.is_closing)
    }

    /// Takes nothing more, and waits until the committer has done what waits and has ended. False if it has panicked.
    pub(super) fn close(&self) -> bool {
        self.end(|waiting| waiting.is_closing = true)
    }

    /// Takes nothing more since the store cannot go on. What waits has not been tried.
    pub(super) fn fail(&self, cause: StoreErrorCause) {
        self.with(|waiting| waiting.fail(cause));
    }
}

impl Waiting {
    fn fail(&mut self, cause: StoreErrorCause) {
        self.failed.get_or_insert(cause.clone());
        self.appends.drain(..).for_each(|append| append.refuse(definite(cause.clone())));
    }

    fn check_not_failed(&self) -> Result<(), StoreError> {
        self.failed.as_ref().map_or(Ok(()), |cause| Err(definite(cause.clone())))
    }

    fn check_open(&self) -> Result<(), StoreError> {
        self.check_not_failed()?;
        if self.is_closing { Err(definite(StoreErrorCause::Closed)) } else { Ok(()) }
    }

    fn wants_roll(&self) -> bool {
        let limits = &self.limits;
        let records = self.unread.end().0 - self.active.base.0;
        let trimmed = self.trimmed.0.saturating_sub(self.active.base.0);
        records > 0
            && (self.active.bytes >= limits.bytes_max
                || self.active.bytes >= limits.trimmed_bytes_min && trimmed >= records / 2
                || self.active.bytes >= limits.trimmed_bytes_min / 8 && trimmed == records)
    }
}

impl Append {
    fn refuse(self, mut error: StoreError) {
        if self.committed > 0 {
            error.certainty = Certainty::Indefinite;
        }
        // Whoever appended may have gone.
        let _ = self.reply.send(Err(error));
    }
}

/// What appends.
pub(super) struct Committer {
    segments: Arc<Segments>,
    /// Called when there may be segments to remove.
    rolled: Box<dyn Fn() + Send>,
    /// Another segment is to be begun at this offset.
    roll: Option<Offset>,
    appends: VecDeque<Append>,
    /// The next record in its encoding, when it did not fit into the last commit.
    encoded: Option<Bytes>,
}

impl Committer {
    pub(super) fn new(segments: Arc<Segments>, rolled: Box<dyn Fn() + Send>) -> Self {
        Self { segments, rolled, roll: None, appends: VecDeque::new(), encoded: None }
    }

    fn roll(&self, queue: &Queue, end: Offset) {
        match self.segments.roll(end) {
            Ok(()) => {
                let (base, bytes) = self.segments.active_size();
                queue.with(|waiting| waiting.active = ActiveSize { base, bytes });
                (self.rolled)();
            }
            Err(error) if error.is_fatal() => queue.fail(error.cause),
            // The old one goes on growing; the next commit tries again.
            Err(error) => tracing::warn!(%error, "a new segment of the log could not be begun"),
        }
    }

    /// Commits as much of what waits as one commit takes.
    fn commit(&mut self, queue: &Queue) {
        let mut encodings = Vec::new();
        let mut bytes = 0;
        let mut counts = VecDeque::new();
        'full: for append in &self.appends {
            let mut count = 0;
            for record in &append.records[append.committed..] {
                let encoded = self.encoded.take().unwrap_or_else(|| record.encode());
                bytes += group::stored_bytes(&encoded);
                if !encodings.is_empty() && bytes > COMMIT_BYTES_MAX {
                    self.encoded = Some(encoded);
                    counts.push_back(count);
                    break 'full;
                }
                encodings.push(encoded);
                count += 1;
            }
            counts.push_back(count);
        }
        let first = queue.unread(|unread| unread.end());
        let groups = group::build(first, &encodings);
        match self.segments.commit(&groups) {
            Ok(()) => self.committed(queue, counts, bytes as u64),
            Err(error) => self.failed(queue, counts.len(), error),
        }
    }

    fn committed(&mut self, queue: &Queue, counts: VecDeque<usize>, bytes: u64) {
        let base = self.segments.active_base();
        let records = self.appends.iter().zip(&counts).flat_map(|(append, count)| {
            append.records[append.committed..append.committed + count].iter().cloned()
        });
        let tails = queue.with(|waiting| {
            let tails = waiting.unread.push(records);
            if waiting.active.base != base {
                waiting.active = ActiveSize { base, bytes: 0 };
            }
            waiting.active.bytes += bytes;
            waiting.roll |= waiting.wants_roll();
            tails
        });
        tails.into_iter().for_each(std::task::Waker::wake);
        for count in counts {
            let Some(append) = self.appends.front_mut() else { return };
            append.committed += count;
            if append.committed < append.records.len() {
                return;
            }
            if let Some(append) = self.appends.pop_front() {
                // Whoever appended may have gone.
                let _ = append.reply.send(Ok(()));
            }
        }
    }

    /// The first appends were part of a commit that failed.
    fn failed(&mut self, queue: &Queue, appends: usize, error: StoreError) {
        self.encoded = None;
        self.appends.drain(..appends).for_each(|append| append.refuse(error.clone()));
        if error.is_fatal() {
            self.appends.drain(..).for_each(|append| append.refuse(definite(error.cause.clone())));
            queue.fail(error.cause);
        }
    }
}

impl Worker for Committer {
    type Waiting = Waiting;
    const NAME: &'static str = "log-committer";

    fn take(&mut self, waiting: &mut Waiting) -> Next {
        if waiting.failed.is_some() {
            return Next::End;
        }
        if std::mem::take(&mut waiting.roll) {
            self.roll = Some(waiting.unread.end());
            return Next::Work;
        }
        if !waiting.appends.is_empty() {
            std::mem::swap(&mut self.appends, &mut waiting.appends);
            waiting.bytes = 0;
            waiting.records = 0;
            return Next::Work;
        }
        if waiting.is_closing { Next::End } else { Next::Rest }
    }

    fn work(&mut self, queue: &Queue) {
        if let Some(end) = self.roll.take() {
            self.roll(queue, end);
        }
        while !self.appends.is_empty() {
            self.commit(queue);
        }
    }

    fn end(self) {
        self.segments.close();
    }

    fn panicked(waiting: &mut Waiting) {
        waiting.fail(StoreErrorCause::Fatal("the thread that writes the log has panicked".to_owned()));
    }
}
