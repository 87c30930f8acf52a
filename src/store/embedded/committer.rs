//! The one thread that appends to a hub's log.
//!
//! ```text
//! append() --queue--> encode --group--> one commit, one sync --> tails, replies
//! ```
//! Everything that waits when a commit begins is part of it, up to a bound: so one sync serves many.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use oncewire_protocol::log::{Certainty, Offset, Record};
use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use super::group;
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
pub(super) struct Queue {
    state: Mutex<QueueState>,
    work: Condvar,
    limits: SegmentLimits,
}

struct QueueState {
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

impl Queue {
    pub(super) fn new(segments: &Segments, end: Offset, limits: SegmentLimits) -> Self {
        let (base, bytes) = segments.active_size();
        let state = QueueState {
            appends: VecDeque::new(),
            bytes: 0,
            records: 0,
            unread: Unread::new(end),
            trimmed: Offset(0),
            active: ActiveSize { base, bytes },
            roll: false,
            is_closing: false,
            failed: None,
        };
        Self { state: Mutex::new(state), work: Condvar::new(), limits }
    }

    /// Puts records at the end of the queue.
    pub(super) fn append(
        &self,
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
        let mut state = self.state.lock();
        state.check_open()?;
        let is_over =
            state.bytes + bytes > QUEUE_BYTES_MAX || state.records + records.len() > QUEUE_RECORDS_MAX;
        if is_over && !state.appends.is_empty() {
            return Err(definite(StoreErrorCause::Overloaded));
        }
        state.bytes += bytes;
        state.records += records.len();
        state.appends.push_back(Append { records, committed: 0, reply });
        drop(state);
        self.work.notify_one();
        Ok(outcome)
    }

    /// Works with what tails share.
    pub(super) fn unread<T>(&self, work: impl FnOnce(&mut Unread) -> T) -> T {
        work(&mut self.state.lock().unread)
    }

    /// Takes note that nobody needs what is before an offset.
    pub(super) fn trimmed(&self, before: Offset) {
        let mut state = self.state.lock();
        state.trimmed = state.trimmed.max(before.min(state.unread.end()));
        if !state.roll && state.wants_roll(&self.limits) {
            state.roll = true;
            drop(state);
            self.work.notify_one();
        }
    }

    /// Nobody needs what is before it.
    pub(super) fn trimmed_to(&self) -> Offset {
        self.state.lock().trimmed
    }

    /// Whether the store can still go on.
    pub(super) fn check_not_failed(&self) -> Result<(), StoreError> {
        self.state.lock().check_not_failed()
    }

    /// Whether it takes nothing more.
    pub(super) fn is_closing(&self) -> bool {
        self.state.lock().is_closing
    }

    /// Takes nothing more; the committer ends when it has done what waits.
    pub(super) fn close(&self) {
        self.state.lock().is_closing = true;
        self.work.notify_one();
    }

    /// Takes nothing more since the store cannot go on. What waits has not been tried.
    pub(super) fn fail(&self, cause: StoreErrorCause) {
        let mut state = self.state.lock();
        state.failed.get_or_insert(cause.clone());
        let appends = std::mem::take(&mut state.appends);
        drop(state);
        appends.into_iter().for_each(|append| append.refuse(definite(cause.clone())));
        self.work.notify_one();
    }
}

impl QueueState {
    fn check_not_failed(&self) -> Result<(), StoreError> {
        self.failed.as_ref().map_or(Ok(()), |cause| Err(definite(cause.clone())))
    }

    fn check_open(&self) -> Result<(), StoreError> {
        self.check_not_failed()?;
        if self.is_closing { Err(definite(StoreErrorCause::Closed)) } else { Ok(()) }
    }

    fn wants_roll(&self, limits: &SegmentLimits) -> bool {
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

/// The thread's own state.
pub(super) struct Committer {
    queue: Arc<Queue>,
    segments: Arc<Segments>,
    /// Called when there may be segments to remove.
    rolled: Box<dyn Fn() + Send>,
    appends: VecDeque<Append>,
    /// The next record in its encoding, when it did not fit into the last commit.
    encoded: Option<Bytes>,
}

impl Committer {
    pub(super) fn new(queue: Arc<Queue>, segments: Arc<Segments>, rolled: Box<dyn Fn() + Send>) -> Self {
        Self { queue, segments, rolled, appends: VecDeque::new(), encoded: None }
    }

    /// Works until the queue is closed or the store cannot go on.
    pub(super) fn run(mut self) {
        let _fails = FailsOnPanic(Arc::clone(&self.queue));
        while self.wait() {
            while !self.appends.is_empty() {
                self.commit();
            }
        }
        self.segments.close();
    }

    /// Waits for work; `false` at the end.
    fn wait(&mut self) -> bool {
        let mut state = self.queue.state.lock();
        loop {
            if state.failed.is_some() {
                return false;
            }
            if state.roll {
                state.roll = false;
                let end = state.unread.end();
                drop(state);
                self.roll(end);
                state = self.queue.state.lock();
            } else if !state.appends.is_empty() {
                std::mem::swap(&mut self.appends, &mut state.appends);
                state.bytes = 0;
                state.records = 0;
                return true;
            } else if state.is_closing {
                return false;
            } else {
                self.queue.work.wait(&mut state);
            }
        }
    }

    fn roll(&self, end: Offset) {
        match self.segments.roll(end) {
            Ok(()) => {
                let (base, bytes) = self.segments.active_size();
                self.queue.state.lock().active = ActiveSize { base, bytes };
                (self.rolled)();
            }
            Err(error) if error.is_fatal() => self.queue.fail(error.cause),
            // The old one goes on growing; the next commit tries again.
            Err(error) => tracing::warn!(%error, "a new segment of the log could not be begun"),
        }
    }

    /// Commits as much of what waits as one commit takes.
    fn commit(&mut self) {
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
        let first = self.queue.unread(|unread| unread.end());
        let groups = group::build(first, &encodings);
        match self.segments.commit(&groups) {
            Ok(()) => self.committed(counts, bytes as u64),
            Err(error) => self.failed(counts.len(), error),
        }
    }

    fn committed(&mut self, counts: VecDeque<usize>, bytes: u64) {
        let base = self.segments.active_base();
        let mut state = self.queue.state.lock();
        let records = self.appends.iter().zip(&counts).flat_map(|(append, count)| {
            append.records[append.committed..append.committed + count].iter().cloned()
        });
        let waiting = state.unread.push(records);
        if state.active.base != base {
            state.active = ActiveSize { base, bytes: 0 };
        }
        state.active.bytes += bytes;
        state.roll |= state.wants_roll(&self.queue.limits);
        drop(state);
        waiting.into_iter().for_each(std::task::Waker::wake);
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
    fn failed(&mut self, appends: usize, error: StoreError) {
        self.encoded = None;
        self.appends.drain(..appends).for_each(|append| append.refuse(error.clone()));
        if error.is_fatal() {
            self.appends.drain(..).for_each(|append| append.refuse(definite(error.cause.clone())));
            self.queue.fail(error.cause);
        }
    }
}

/// Refuses everything when the thread has panicked.
struct FailsOnPanic(Arc<Queue>);

impl Drop for FailsOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(StoreErrorCause::Fatal("the thread that writes the log has panicked".to_owned()));
        }
    }
}
