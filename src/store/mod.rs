//! The log of each hub: append, tail, trim, checkpoints, durability.
//!
//! A store knows records and offsets. It does not know sessions, groups, JSON or sockets. All implementations pass
//! one conformance suite (`conformance.rs`); the doc comments of [`Log`] are the contract that it tests.

#[cfg(test)]
pub(crate) mod conformance;
mod embedded;
#[cfg(feature = "fault-injection")]
mod faulty;
mod intercepted;
mod memory;

pub use embedded::{
    CONTROL_SOCKET, EmbeddedStore, Found, HubCopied, HubReport, OfflineStore, SegmentReport, new_epoch,
    remove_hub,
};
#[cfg(feature = "fault-injection")]
pub use faulty::{FaultPlan, FaultPlanError, FaultyStore};
pub use intercepted::{Interception, intercept};
pub use memory::MemoryStore;

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt, ready};
use futures_util::stream::BoxStream;
use oncewire_protocol::log::{Certainty, LogEpoch, Offset, Record, Time};
use oncewire_protocol::wire::HubName;
use tokio::sync::watch;

/// Where the logs of all hubs are.
pub trait Store: Send + Sync + 'static {
    /// Opens a hub's log, made anew if there is none. Asked again for the same hub, it gives the same log.
    fn open(&self, hub: &HubName) -> BoxFuture<'_, Result<Arc<dyn Log>, StoreError>>;

    /// Closes a hub's log in good order, of which no use is made any more: it takes no thread and no descriptor then, and
    /// opening it again reads it again. What was appended before is settled first; what comes later is refused.
    /// `empty_since` tells since when the hub has had no session and no use, for [`Log::empty_since`]. A log that
    /// goes with the process stays as it is.
    fn close_hub(&self, hub: &HubName, empty_since: Time) -> BoxFuture<'_, Result<(), StoreError>> {
        let _ = (hub, empty_since);
        ready(Ok(())).boxed()
    }

    /// Removes a hub's log and checkpoints, of which no use is made any more. One that is not there is no error. After a
    /// failure or a crash the hub is there as it was or gone, and never comes back by itself once this has returned `Ok`.
    fn remove(&self, hub: &HubName) -> BoxFuture<'_, Result<(), StoreError>>;

    /// The hubs whose logs were kept from an earlier start.
    fn hubs(&self) -> BoxFuture<'_, Result<Vec<HubName>, StoreError>> {
        ready(Ok(Vec::new())).boxed()
    }

    /// Closes all logs in good order: what was appended before is settled first, what comes later is refused. A store
    /// that is dropped, or whose process is killed, loses nothing that it promised either.
    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        ready(Ok(())).boxed()
    }
}

/// One hub's log: a totally ordered sequence of records.
pub trait Log: Send + Sync + 'static {
    /// Appends records in the order given, after those of all earlier calls. A tail tells their offsets, which increase
    /// strictly but may have gaps; other writers' records may fall between.
    ///
    /// When it returns `Ok`, the records are as durable as this log ever makes them. A failure says whether they may be in
    /// the log all the same ([`StoreError::certainty`]); a crash may leave any prefix of them. A log that is shared answers
    /// `Ok`, or `Definite` when no attempt can have happened: it repeats an attempt in doubt until its fate is known.
    ///
    /// A wrong `Ok` loses acknowledged messages; a wrong `Definite` lets a retry publish twice.
    fn append(&self, records: Vec<Arc<Record>>) -> BoxFuture<'static, Result<(), StoreError>>;

    /// All records from an offset on, in order, none left out, then those appended later as they become durable;
    /// in portions of at least one. It fails when the offset has been trimmed.
    ///
    /// Records become visible here no later than their append returns.
    fn tail(&self, from: Offset) -> Tail;

    /// Where the log begins and ends, as far as this process knows.
    fn bounds(&self) -> BoxFuture<'static, Result<Bounds, StoreError>>;

    /// Where the log ends now: everything that anybody was told of before the call, by whichever writer, is before it.
    fn end_now(&self) -> BoxFuture<'static, Result<Offset, StoreError>>;

    /// Whether other processes append to it too.
    fn is_shared(&self) -> bool;

    /// How well the log can be reached, now and whenever it changes.
    fn health(&self) -> watch::Receiver<LogHealth>;

    /// Lets the log forget records before an offset; one past the end lets it forget all. It may keep some, and a
    /// tail from where [`Log::bounds`] says that the log begins finds them.
    fn trim(&self, before: Offset) -> BoxFuture<'static, Result<(), StoreError>>;

    /// Changes checkpoints, in the order given and all or none: when it returns `Ok`, all changes are as durable as
    /// this log ever makes them; after a failure or a crash none or all of them are there.
    fn checkpoint(&self, changes: Vec<CheckpointChange>) -> BoxFuture<'static, Result<(), StoreError>>;

    /// The checkpoints whose keys begin with a prefix, sorted by key, all as they were at one moment during the call;
    /// in portions of at least one. Made for reading hundreds of thousands of them.
    fn load_all(&self, prefix: &str) -> Checkpoints;

    /// Whether the log outlives the process. If not, checkpoints of it are of no use.
    fn outlives_process(&self) -> bool;

    /// The log's epoch: another one whenever history may have been lost (R12).
    fn epoch(&self) -> BoxFuture<'static, Result<LogEpoch, StoreError>>;

    /// Whether the log was copied from another one, which may have gone on since: before anything else its sessions have to
    /// be ended, and then [`Log::begin_epoch`] called.
    fn is_copy(&self) -> bool {
        false
    }

    /// Begins another epoch, and lets the log be a copy no more, both or neither. To be called before the epoch has been
    /// told to anybody.
    fn begin_epoch(&self) -> BoxFuture<'static, Result<(), StoreError>> {
        ready(Ok(())).boxed()
    }

    /// Since when the hub has had no session and no use, as [`Store::close_hub`] was told; none if anything was appended
    /// since.
    fn empty_since(&self) -> Option<Time> {
        None
    }
}

/// Records from a log, in portions of at least one.
pub type Tail = BoxStream<'static, Result<Portion, StoreError>>;

/// Records that follow one another in a log, each at its offset.
pub type Portion = Vec<(Offset, Arc<Record>)>;

/// Checkpoints with their keys, in portions of at least one.
pub type Checkpoints = BoxStream<'static, Result<Vec<(String, Checkpoint)>, StoreError>>;

/// Where a log begins and ends; equal for an empty one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// No record before it is kept.
    pub first: Offset,
    /// Right behind the last record that there is or was, trimmed ones included: a start has folded everything once it has
    /// folded the one before it.
    pub end: Offset,
}

/// How well a log can be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogHealth {
    /// Whether it can be asked at all.
    pub is_connected: bool,
    /// When it last confirmed something; none before it first did, and for a log of this process, which needs to confirm
    /// nothing.
    pub last_confirmed: Option<Instant>,
    /// Records that it has and this process has not read yet, as far as is known.
    pub lag_records: u64,
}

impl LogHealth {
    /// That of a log in this process: nothing is between.
    pub const LOCAL: Self = Self { is_connected: true, last_confirmed: None, lag_records: 0 };

    /// The same, as [`Log::health`] tells it. It never changes.
    pub fn local() -> watch::Receiver<Self> {
        watch::channel(Self::LOCAL).1
    }
}

/// An opaque summary of the log up to an offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// The last offset that it covers.
    pub covers: Offset,
    /// Its content.
    pub bytes: Bytes,
}

/// One change of a log's checkpoints, under the keys that [`Log::load_all`] finds them by.
pub type CheckpointChange = oncewire_protocol::log::CheckpointChange<String>;

/// Why a store did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{cause}{}", doubt(.certainty))]
pub struct StoreError {
    /// Whether it may have happened all the same.
    pub certainty: Certainty,
    /// What went wrong.
    pub cause: StoreErrorCause,
}

/// A failure that changed nothing needs no word of it.
fn doubt(certainty: &Certainty) -> &'static str {
    match certainty {
        Certainty::Definite => "",
        Certainty::Indefinite => " (it may have been done all the same)",
    }
}

impl StoreError {
    /// Whether the store is of no use any more and the process has to end: what is on the disk can only be told by a
    /// start that reads it again. After any other failure the store goes on working.
    pub fn is_fatal(&self) -> bool {
        matches!(self.cause, StoreErrorCause::Fatal(_))
    }
}

/// What went wrong in a store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreErrorCause {
    /// A tail from an offset that is no longer kept.
    #[error("the log begins at offset {first}")]
    Trimmed {
        /// Where the log begins now.
        first: u64,
    },
    /// There is no room on the disk. Nothing has changed; it works again when there is room.
    #[error("the disk is full: {0}")]
    Full(String),
    /// The operating system refused something and nothing has changed.
    #[error("{0}")]
    Io(String),
    /// The operating system failed in a way that leaves open what is on the disk, or the store found itself in a
    /// state that it cannot have.
    #[error("the store cannot go on: {0}")]
    Fatal(String),
    /// Stored bytes are not what was written.
    #[error("{place}: {what}")]
    Damaged {
        /// The file, and the place in it where it is known.
        place: String,
        /// What is wrong there.
        what: String,
    },
    /// Stored by a version that this build does not read.
    #[error("{place}: format version {found} is unknown; this build reads version {known}")]
    UnknownVersion {
        /// The file.
        place: String,
        /// The version that it says.
        found: u64,
        /// The version that this build reads.
        known: u64,
    },
    /// There is no hub of this name.
    #[error("there is no hub {hub} in {directory}")]
    NoSuchHub {
        /// The name.
        hub: String,
        /// The data directory.
        directory: String,
    },
    /// There is nothing that could be looked at.
    #[error("there is no data directory {0}: it is what --data-dir of a gateway names")]
    NoDirectory(String),
    /// There is a directory, which no gateway has used.
    #[error(
        "{0} is there, but it is no data directory, since no gateway has begun one in it: a data directory is what \
         --data-dir of a gateway names"
    )]
    NoDataInDirectory(String),
    /// A file stands where the data directory should be.
    #[error("the data directory {0} is a file")]
    DirectoryIsFile(String),
    /// A copy that was not finished.
    #[error("{0} is a copy that was not finished: it can't be used. Remove it, and make it again")]
    UnfinishedCopy(String),
    /// A place that no copy can be made in.
    #[error("no copy can be made in {place}: {what}")]
    BadTarget {
        /// The place.
        place: String,
        /// Why not.
        what: String,
    },
    /// Another copy is being made.
    #[error("another copy is being made")]
    CopyUnderWay,
    /// Whoever asked for a copy has gone, or the gateway stops.
    #[error("the copy was given up")]
    CopyGivenUp,
    /// Another process uses the data directory.
    #[error("{0} is in use by another process; oncewire log copy makes a copy of it that can be looked at")]
    Locked(String),
    /// The data directory cannot be written to.
    #[error("{0} cannot be written to")]
    ReadOnly(String),
    /// More is waiting for the disk than the store takes. Nothing has changed.
    #[error("too much is waiting for the disk")]
    Overloaded,
    /// One record is larger than the store takes. Nothing has changed.
    #[error("a record of {bytes} bytes is too large")]
    TooLarge {
        /// Its encoded size.
        bytes: usize,
    },
    /// The store has been closed.
    #[error("the store has been closed")]
    Closed,
    /// A fault that a test asked for.
    #[error("a fault was injected")]
    Injected,
}
