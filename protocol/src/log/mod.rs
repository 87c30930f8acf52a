//! What a record is, and its stable encoding.
//!
//! A hub's log is a sequence of [`Record`]s, each at an [`Offset`]. A checkpoint sums up what folding it gave so far.
//! This module does not know where either is stored or who folds.

mod application_encoding;
mod checkpoint;
mod checkpoint_encoding;
mod encoding;
mod fingerprint;
mod handler;
mod handler_encoding;
mod hold;
mod hub_time;
mod idempotency_key;
mod identity;
mod mark_encoding;
mod node;
mod node_encoding;
mod numbers;
mod proposer;
mod record;
mod record_size;
mod request_encoding;
mod selection;

pub use checkpoint::{
    AppliedAppends, CHUNKS, CheckpointChange, CheckpointKey, ChunkCheckpoint, HubCheckpoint,
    MessageCheckpoint, MessageRef, NodeCheckpoint, RulesCheckpoint, SequenceIdsCheckpoint, SessionCheckpoint,
    chunk_of,
};
pub use checkpoint_encoding::{CHECKPOINT_VERSION, CheckpointError};
pub use encoding::{RECORD_VERSION, RecordError};
pub use fingerprint::Fingerprint;
pub use handler::{Disconnected, EventId, EventSubject, HandlerReply, HandlerState};
pub use hold::Hold;
pub use hub_time::HubTime;
pub use idempotency_key::{
    ExecutedRequest, IdempotencyKey, REQUESTS_PER_PAGE, Refusal, RequestKind, RequestName, RequestNumbers,
    RequestPage, RequestParts, RequestsCheckpoint,
};
pub use identity::SessionIdentity;
pub use node::{NodeGone, NodeName, NodeNameError, NodeStarted, Release};
pub use proposer::Proposer;
pub use record::{
    AckKey, Body, BootKey, EndReason, Key, Opened, Permission, Published, Record, Sent, SequenceMark,
};
pub use request_encoding::{decode_requests, encode_requests};
pub use selection::{Audience, Selection};

use std::fmt;

/// Position of a record in its log: strictly increasing, may have gaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Offset(pub u64);

/// Milliseconds since 1970-01-01 UTC, by a wall clock or by a hub's own (see [`HubTime`]). The caller brings it in; nothing here reads a clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub u64);

impl Time {
    /// Whole seconds since 1970-01-01 UTC, as tokens count.
    pub fn unix_seconds(self) -> u64 {
        self.0 / 1000
    }

    /// The time this many milliseconds later.
    pub fn plus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// The time this many seconds later.
    pub fn plus_seconds(self, seconds: u64) -> Self {
        self.plus_ms(seconds.saturating_mul(1000))
    }
}

/// Names one history of a log. It changes when history may have been lost, and reconnection tokens carry it (R12).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LogEpoch(pub u128);

impl fmt::Debug for LogEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LogEpoch({:032x})", self.0)
    }
}

/// Names one start of the gateway, chosen at random.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootId(pub u128);

impl fmt::Debug for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BootId({:032x})", self.0)
    }
}

/// Whether an append that failed may have happened all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Certainty {
    /// None of its records is in the log, now or later.
    Definite,
    /// Any prefix of its records may be, or may come to be.
    Indefinite,
}
