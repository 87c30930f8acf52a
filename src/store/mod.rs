//! The log of each hub: append, tail, trim, checkpoints, durability.
//!
//! A store knows records and offsets. It does not know sessions, groups, JSON or sockets. All implementations pass
//! one conformance suite (`conformance.rs`); the doc comments of [`Log`] are the contract that it tests.

#[cfg(test)]
mod conformance;
#[cfg(feature = "fault-injection")]
mod faulty;
mod memory;

#[cfg(feature = "fault-injection")]
pub use faulty::{FaultPlan, FaultPlanError, FaultyStore};
pub use memory::MemoryStore;

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use oncewire_protocol::log::{Certainty, LogEpoch, Offset, Record};
use oncewire_protocol::wire::HubName;

/// Where the logs of all hubs are.
pub trait Store: Send + Sync + 'static {
    /// Opens a hub's log, made anew if there is none. Asked again for the same hub, it gives the same log.
    fn open(&self, hub: &HubName) -> BoxFuture<'_, Result<Arc<dyn Log>, StoreError>>;
}

/// One hub's log: a totally ordered sequence of records.
pub trait Log: Send + Sync + 'static {
    /// Appends records in the order given, after those of all earlier calls, and returns their offsets.
    ///
    /// Offsets increase strictly but may have gaps, and other writers' records may fall between. When it returns
    /// `Ok`, the records are as durable as this log ever makes them. A failure says whether they may be in the log
    /// all the same ([`StoreError::certainty`]); a crash may leave any prefix of them.
    ///
    /// A wrong `Ok` loses acknowledged messages; a wrong `Definite` lets a retry publish twice.
    fn append(&self, records: Vec<Arc<Record>>) -> BoxFuture<'static, Result<Vec<Offset>, StoreError>>;

    /// All records from an offset on, in order, none left out, then those appended later as they become durable;
    /// in portions of at least one. It fails when the offset has been trimmed.
    ///
    /// Records become visible here no later than their append returns.
    fn tail(&self, from: Offset) -> Tail;

    /// Where the log begins and ends.
    fn bounds(&self) -> Bounds;

    /// Lets the log forget records before an offset. It may keep some; one past the end forgets all.
    fn trim(&self, before: Offset) -> BoxFuture<'static, Result<(), StoreError>>;

    /// Keeps a checkpoint under a key, with the offset up to which it covers the log; an earlier one is replaced as
    /// a whole. Its content means nothing to the store.
    fn save(&self, key: &str, checkpoint: Checkpoint) -> BoxFuture<'static, Result<(), StoreError>>;

    /// The checkpoint under a key.
    fn load(&self, key: &str) -> BoxFuture<'static, Result<Option<Checkpoint>, StoreError>>;

    /// The keys of all checkpoints, sorted.
    fn list(&self) -> BoxFuture<'static, Result<Vec<String>, StoreError>>;

    /// Forgets a checkpoint; one that does not exist is no error.
    fn delete(&self, key: &str) -> BoxFuture<'static, Result<(), StoreError>>;

    /// The log's epoch: another one whenever history may have been lost (R12).
    fn epoch(&self) -> LogEpoch;
}

/// Records from a log, in portions of at least one.
pub type Tail = BoxStream<'static, Result<Portion, StoreError>>;

/// Records that follow one another in a log, each at its offset.
pub type Portion = Vec<(Offset, Arc<Record>)>;

/// Where a log begins and ends; equal for an empty one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// No record before it is kept.
    pub first: Offset,
    /// All records are before it.
    pub end: Offset,
}

/// An opaque summary of the log up to an offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// The last offset that it covers.
    pub covers: Offset,
    /// Its content.
    pub bytes: Bytes,
}

/// Why a store did not do what it was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{cause} ({certainty:?} failure)")]
pub struct StoreError {
    /// Whether it may have happened all the same.
    pub certainty: Certainty,
    /// What went wrong.
    pub cause: StoreErrorCause,
}

/// What went wrong in a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StoreErrorCause {
    /// A tail from an offset that is no longer kept.
    #[error("the log begins at offset {first}")]
    Trimmed {
        /// Where the log begins now.
        first: u64,
    },
    /// A fault that a test asked for.
    #[error("a fault was injected")]
    Injected,
}
