//! One hub's log on the disk: puts its committer, its checkpoint thread and its readers together.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, ready};
use futures_util::stream::{self, StreamExt};
use oncewire_protocol::log::{Certainty, LogEpoch, Offset, Record, Time};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};

use super::checkpoint_thread::{self, CheckpointThread, Order, Orders};
use super::committer::{self, Committer, Queue, SegmentLimits};
use super::directory::{DataDirectory, segment_bases};
use super::disk::{Disk, io_cause, with_directory};
use super::meta::{META_FILE, Meta};
use super::redb_file::{damaged, definite};
use super::segment;
use super::segments::Segments;
use super::tail::EmbeddedTail;
use crate::store::{
    Bounds, CheckpointChange, Checkpoints, Log, LogHealth, StoreError, StoreErrorCause, Tail,
};

/// What a portion of checkpoints holds, in checkpoints and in bytes, about.
const PORTION_CHECKPOINTS_MAX: usize = 1024;
const PORTION_BYTES_MAX: usize = 1024 * 1024;
/// Portions that are read ahead.
const PORTIONS_AHEAD: usize = 2;

/// What is written while the kernel does not say which boot this is. No later start takes it for its own.
const UNKNOWN_BOOT: &str = "unknown";
/// Stands where a boot id would, of which no kernel has one like it, while a log is being removed.
const ABANDONED: &str = "abandoned";

/// How a log is opened.
#[derive(Debug, Clone)]
pub(super) struct LogOptions {
    /// Whether an append waits for the disk, or only for the operating system.
    pub(super) syncs: bool,
    /// When segments are sealed.
    pub(super) limits: SegmentLimits,
    /// After how long without work a thread ends.
    pub(super) thread_rest: Duration,
    /// Names this boot of the kernel, if that is known.
    pub(super) boot_id: Option<String>,
}

/// One hub's log on the disk.
pub(super) struct EmbeddedLog {
    queue: Arc<Queue>,
    segments: Arc<Segments>,
    meta: Arc<Meta>,
    orders: Arc<Orders>,
    syncs: bool,
    is_copy: Arc<AtomicBool>,
    empty_since: Option<Time>,
    /// Locked by whoever closes it.
    is_closed: Mutex<bool>,
    /// Nobody else may use the directory before the threads have ended.
    _directory: Arc<DataDirectory>,
}

impl EmbeddedLog {
    /// Opens the log in a hub's directory.
    pub(super) fn open(
        directory: Arc<DataDirectory>,
        disk: Arc<dyn Disk>,
        path: &Path,
        options: LogOptions,
    ) -> Result<Self, StoreError> {
        directory.remove_unfinished(path)?;
        let disk = with_directory(disk, path).map_err(|error| definite(io_cause(path, &error)))?;
        let LogOptions { syncs, limits, thread_rest, boot_id } = options;
        if !path.join(META_FILE).exists() && !segment_bases(path)?.is_empty() {
            // A new one would begin another epoch over records of this one.
            return Err(definite(damaged(
                &path.join(META_FILE),
                "the file is missing, and there are segments",
            )));
        }
        let mut meta = Meta::open(Arc::clone(&disk), path)?;
        let unsynced_boot = meta.read(|contents| contents.unsynced_boot())?;
        let is_lost = unsynced_boot.is_some() && unsynced_boot != boot_id;
        if is_lost {
            tracing::warn!(
                hub = %path.display(),
                "the machine has stopped since the log was written without syncs: it begins anew"
            );
            meta = start_anew(Arc::clone(&disk), path)?;
        }
        let bases = segment_bases(path)?;
        let has_segments = meta.read(|contents| contents.has_segments())?;
        if bases.is_empty() && has_segments {
            let what = "all segments of the log are missing".to_owned();
            return Err(definite(StoreErrorCause::Damaged { place: path.display().to_string(), what }));
        }
        if !syncs {
            // Before anything is opened for writing: opening may write already.
            let boot_id = boot_id.as_deref().unwrap_or(UNKNOWN_BOOT);
            if is_lost || unsynced_boot.as_deref() != Some(boot_id) {
                meta.set_unsynced_boot(Some(boot_id))?;
            }
        }
        let (segments, end) = Segments::open(Arc::clone(&disk), path.to_owned(), bases, syncs)?;
        if !has_segments {
            meta.set_has_segments()?;
        }
        if syncs && unsynced_boot.is_some() && !is_lost {
            segments.sync_all()?;
            meta.set_unsynced_boot(None)?;
        }
        let queue = Queue::new(committer::Waiting::new(&segments, end, limits), thread_rest);
        Self::start(directory, segments, queue, meta, syncs, thread_rest)
    }

    fn start(
        directory: Arc<DataDirectory>,
        segments: Segments,
        queue: Arc<Queue>,
        meta: Meta,
        syncs: bool,
        thread_rest: Duration,
    ) -> Result<Self, StoreError> {
        let (segments, meta) = (Arc::new(segments), Arc::new(meta));
        let is_copy = Arc::new(AtomicBool::new(meta.read(|contents| contents.is_copy())?));
        let end = queue.unread(|unread| unread.end());
        let empty_since = meta.read(|contents| contents.empty_since(end))?;
        let orders = Orders::new(checkpoint_thread::Waiting::default(), thread_rest);
        orders.begin(CheckpointThread::new(Arc::clone(&queue), Arc::clone(&segments), Arc::clone(&meta)))?;
        let rolled = {
            let orders = Arc::clone(&orders);
            Box::new(move || orders.trim_again())
        };
        if let Err(error) = queue.begin(Committer::new(Arc::clone(&segments), rolled)) {
            // Or its files would stay open, and the next start could not have them.
            orders.close();
            return Err(error);
        }
        let log = Self {
            queue,
            segments,
            meta,
            orders,
            syncs,
            is_copy,
            empty_since,
            is_closed: Mutex::new(false),
            _directory: directory,
        };
        Ok(log)
    }

    /// Finishes what waits and closes the files. Blocks.
    pub(super) fn close(&self) -> Result<(), StoreError> {
        self.close_with(None)
    }

    /// The same for a hub without sessions; it is kept since when.
    pub(super) fn close_empty(&self, since: Time) -> Result<(), StoreError> {
        self.close_with(Some(since))
    }

    fn close_with(&self, empty_since: Option<Time>) -> Result<(), StoreError> {
        let mut is_closed = self.is_closed.lock();
        if std::mem::replace(&mut *is_closed, true) {
            return Ok(());
        }
        let ended = self.queue.close() & self.orders.close();
        self.queue.check_not_failed()?;
        if !ended {
            return Err(definite(StoreErrorCause::Fatal("a thread of the log has panicked".to_owned())));
        }
        if !self.syncs {
            self.segments.sync_all()?;
            self.meta.set_unsynced_boot(None)?;
        }
        if let Some(since) = empty_since
            && let Err(error) = self.meta.set_empty(since, self.end())
        {
            // The hub is kept for longer then.
            tracing::warn!(%error, "since when a hub has been empty could not be written");
        }
        self.meta.close();
        Ok(())
    }

    /// The offset after the last record that is durable.
    pub(super) fn end(&self) -> Offset {
        self.queue.unread(|unread| unread.end())
    }

    /// What a copy is made of.
    pub(super) fn parts(&self) -> (&Meta, &Segments) {
        (&self.meta, &self.segments)
    }

    /// Removes what could not be removed while it was being copied.
    pub(super) fn trim_again(&self) {
        self.orders.trim_again();
    }

    /// Waits for the checkpoint thread's answer. One that never comes to an order which was given while the log was being closed was
    /// not carried out.
    fn kept(
        &self,
        order: impl FnOnce(checkpoint_thread::Reply) -> Order,
    ) -> BoxFuture<'static, Result<(), StoreError>> {
        let (asked, queue) = (self.orders.give(order), Arc::clone(&self.queue));
        async move {
            match asked?.await {
                Ok(outcome) => outcome,
                Err(_) if queue.is_closing() => Err(definite(StoreErrorCause::Closed)),
                Err(_) => Err(thread_has_ended()),
            }
        }
        .boxed()
    }
}

impl Drop for EmbeddedLog {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::warn!(%error, "a log was not closed in good order");
        }
    }
}

/// Makes a log a copy, as which its next start takes it.
pub(super) fn make_copy(disk: Arc<dyn Disk>, path: &Path) -> Result<(), StoreError> {
    let meta = Meta::open(disk, path)?;
    meta.set_copy()?;
    meta.close();
    Ok(())
}

/// Removes a hub's log and checkpoints and begins another epoch, whatever state they are in. Interrupted anywhere, it leaves
/// things as they were or what makes the next start begin it again.
pub(super) fn abandon(disk: Arc<dyn Disk>, path: &Path) -> Result<(), StoreError> {
    // What can't be opened is not served either.
    if let Ok(meta) = Meta::open(Arc::clone(&disk), path) {
        meta.set_unsynced_boot(Some(ABANDONED))?;
        meta.close();
    }
    start_anew(disk, path).map(drop)
}

/// The same where the epoch is marked as over already.
fn start_anew(disk: Arc<dyn Disk>, path: &Path) -> Result<Meta, StoreError> {
    for base in segment_bases(path)? {
        let segment = segment::path(path, base);
        disk.remove(&segment).map_err(|error| definite(io_cause(&segment, &error)))?;
    }
    disk.sync_directory(path).map_err(|error| definite(io_cause(path, &error)))?;
    Meta::create(disk, path)
}

/// Waits for an answer. One that never comes leaves the outcome open.
fn answered<T: Send + 'static>(
    asked: Result<oneshot::Receiver<Result<T, StoreError>>, StoreError>,
) -> BoxFuture<'static, Result<T, StoreError>> {
    match asked {
        Err(error) => ready(Err(error)).boxed(),
        Ok(outcome) => async move { outcome.await.unwrap_or_else(|_| Err(thread_has_ended())) }.boxed(),
    }
}

fn thread_has_ended() -> StoreError {
    let cause = StoreErrorCause::Fatal("a thread of the log has ended".to_owned());
    StoreError { certainty: Certainty::Indefinite, cause }
}

impl Log for EmbeddedLog {
    fn append(&self, records: Vec<Arc<Record>>) -> BoxFuture<'static, Result<(), StoreError>> {
        if records.is_empty() {
            return ready(Ok(())).boxed();
        }
        answered(self.queue.append(records))
    }

    fn tail(&self, from: Offset) -> Tail {
        EmbeddedTail::new(Arc::clone(&self.queue), Arc::clone(&self.segments), from).boxed()
    }

    fn bounds(&self) -> BoxFuture<'static, Result<Bounds, StoreError>> {
        let first = self.segments.first();
        ready(Ok(Bounds { first, end: self.end() })).boxed()
    }

    fn end_now(&self) -> BoxFuture<'static, Result<Offset, StoreError>> {
        ready(Ok(self.end())).boxed()
    }

    fn is_shared(&self) -> bool {
        false
    }

    fn health(&self) -> watch::Receiver<LogHealth> {
        LogHealth::local()
    }

    fn trim(&self, before: Offset) -> BoxFuture<'static, Result<(), StoreError>> {
        self.queue.trimmed(before);
        if !self.segments.has_before(before) {
            return ready(Ok(())).boxed();
        }
        self.kept(|reply| Order::Trim(before, reply))
    }

    fn checkpoint(&self, changes: Vec<CheckpointChange>) -> BoxFuture<'static, Result<(), StoreError>> {
        self.kept(|reply| Order::Change(changes, reply))
    }

    fn load_all(&self, prefix: &str) -> Checkpoints {
        let (meta, prefix) = (Arc::clone(&self.meta), prefix.to_owned());
        let (sender, receiver) = mpsc::channel(PORTIONS_AHEAD);
        let read = move || {
            let mut portion = Vec::new();
            let mut bytes = 0;
            let read = meta.read(|contents| {
                contents.scan_checkpoints(&prefix, |key, stored| {
                    portion.push((key.to_owned(), contents.decode(key, stored)?));
                    bytes += stored.len();
                    if portion.len() < PORTION_CHECKPOINTS_MAX && bytes < PORTION_BYTES_MAX {
                        return Ok(true);
                    }
                    bytes = 0;
                    // Nobody waits for the rest when the stream is gone.
                    Ok(sender.blocking_send(Ok(std::mem::take(&mut portion))).is_ok())
                })
            });
            let last = match read {
                Ok(()) if portion.is_empty() => return,
                Ok(()) => Ok(portion),
                Err(error) => Err(error),
            };
            let _ = sender.blocking_send(last);
        };
        stream::once(async move {
            drop(tokio::task::spawn_blocking(read));
            stream::unfold(receiver, |mut receiver| async {
                receiver.recv().await.map(|next| (next, receiver))
            })
        })
        .flatten()
        .boxed()
    }

    fn outlives_process(&self) -> bool {
        true
    }

    fn epoch(&self) -> BoxFuture<'static, Result<LogEpoch, StoreError>> {
        ready(Ok(self.meta.epoch())).boxed()
    }

    fn is_copy(&self) -> bool {
        self.is_copy.load(Ordering::Acquire)
    }

    fn begin_epoch(&self) -> BoxFuture<'static, Result<(), StoreError>> {
        let (begun, is_copy) = (self.kept(Order::BeginEpoch), Arc::clone(&self.is_copy));
        async move {
            begun.await?;
            is_copy.store(false, Ordering::Release);
            Ok(())
        }
        .boxed()
    }

    fn empty_since(&self) -> Option<Time> {
        self.empty_since
    }
}
