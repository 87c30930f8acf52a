//! The stable encoding of checkpoints.
//!
//! ```text
//! byte 0     format version
//! byte 1..   one protobuf message: `StoredHub`, `StoredChunk` or `StoredMessage`, as the key says; field numbers are never reused
//! ```
//!
//! Sequences of numbers hold the differences from one to the next: sequence ids, offsets and ack ids mostly grow by
//! little, so that a waiting message takes two to five bytes.
//!
//! A reader refuses a version or an enumeration value that it does not know, and what does not fit together: a session
//! that is restored in part would give sequence ids to other messages than before.

use bytes::{BufMut, Bytes, BytesMut};

use super::checkpoint::{
    AppliedAppends, CHUNKS, ChunkCheckpoint, HubCheckpoint, MessageCheckpoint, MessageRef, RulesCheckpoint,
    SequenceIdsCheckpoint, SessionCheckpoint,
};
use super::encoding::{StoredMetadataEntry, group_names, identity_of, metadata_entries, metadata_of, texts};
use super::handler_encoding::StoredDisconnected;
use super::node_encoding::StoredNode;
use super::numbers::{kind_number, kind_of, reason_number, reason_of, subprotocol_number};
use super::{
    AckKey, BootId, Disconnected, EventId, Fingerprint, HandlerState, Hold, Offset, RecordError,
    RequestNumbers, RequestsCheckpoint, Time,
};
use crate::wire::{GroupName, Message, Payload, Sender, UserId};

/// The latest version that this build knows. A part says the earliest that has all of what is in it: 2 has nodes.
pub const CHECKPOINT_VERSION: u8 = 2;

/// Why stored bytes are not a checkpoint that this build knows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// Nothing at all.
    #[error("an empty checkpoint")]
    Empty,
    /// Written by another version.
    #[error("checkpoint version {0} is unknown; this build reads versions 1 to {CHECKPOINT_VERSION}")]
    UnknownVersion(u8),
    /// The bytes are no checkpoint of their version.
    #[error("a damaged checkpoint: {0}")]
    Damaged(String),
    /// A required part is missing, has a value that this build does not know, or does not fit to another.
    #[error("a checkpoint without a valid {0}")]
    Invalid(&'static str),
    /// It covers records that the log does not have: it belongs to another log, or the log has lost its end.
    #[error("a checkpoint that covers more than the log holds")]
    AheadOfLog,
    /// A message that a session keeps is neither in the log nor in a copy.
    #[error("a message that a checkpoint names is missing")]
    MissingMessage,
}

impl HubCheckpoint {
    /// Its stored bytes; `applied` is the offset that it covers.
    pub fn encode(&self, applied: Offset) -> Bytes {
        let proposers = self.proposers.iter().map(|proposer| StoredProposer {
            boot_high: (proposer.boot.0 >> 64) as u64,
            boot_low: proposer.boot.0 as u64,
            shard: u32::from(proposer.shard),
            settled_below: proposer.settled_below,
            counters: differences(proposer.counters.iter().copied()),
        });
        let RequestsCheckpoint { plain, repeatable, forgotten_first_sent } = self.requests;
        let hub = StoredHub {
            time: self.time.0,
            proposers: proposers.collect(),
            plain_first: plain.first,
            plain_next: plain.next,
            repeatable_first: repeatable.first,
            repeatable_next: repeatable.next,
            forgotten_first_sent,
            // The chunks' offsets lie a little above the hub's, in no order.
            covers: self.covers.iter().map(|covers| covers.0.wrapping_sub(applied.0)).collect(),
            nodes: self.nodes.iter().map(Into::into).collect(),
        };
        encode_as(if self.nodes.is_empty() { 1 } else { 2 }, &hub)
    }

    /// Reads one that covers the log up to `applied`.
    pub fn decode(stored: Bytes, applied: Offset) -> Result<Self, CheckpointError> {
        let stored: StoredHub = decode(stored)?;
        let proposers = stored.proposers.iter().map(|proposer| {
            Ok(AppliedAppends {
                boot: BootId(u128::from(proposer.boot_high) << 64 | u128::from(proposer.boot_low)),
                shard: u16::try_from(proposer.shard).map_err(|_| CheckpointError::Invalid("shard"))?,
                settled_below: proposer.settled_below,
                counters: sums(&proposer.counters).collect(),
            })
        });
        if stored.covers.len() != usize::from(CHUNKS) {
            return Err(CheckpointError::Invalid("list of chunks"));
        }
        Ok(Self {
            time: Time(stored.time),
            proposers: proposers.collect::<Result<_, CheckpointError>>()?,
            requests: stored.requests(),
            covers: stored.covers.iter().map(|covers| Offset(covers.wrapping_add(applied.0))).collect(),
            nodes: stored.nodes.into_iter().map(TryInto::try_into).collect::<Result<_, _>>()?,
        })
    }
}

impl ChunkCheckpoint {
    /// Its stored bytes.
    pub fn encode(&self) -> Bytes {
        let mut boots = Boots::default();
        let chunk = StoredChunk {
            sessions: self.sessions.iter().map(|session| StoredSession::new(session, &mut boots)).collect(),
            untold: self.untold.iter().map(StoredDisconnected::new).collect(),
            boots: boots.0.iter().map(|boot| Bytes::copy_from_slice(&boot.0.to_be_bytes())).collect(),
        };
        encode(&chunk)
    }

    /// Reads one.
    pub fn decode(stored: Bytes) -> Result<Self, CheckpointError> {
        let stored: StoredChunk = decode(stored)?;
        let boots = Boots::read(&stored.boots)?;
        let sessions = stored.sessions.into_iter().map(|session| session.read(&boots));
        let untold = stored.untold.into_iter().map(Disconnected::try_from);
        Ok(Self { sessions: sessions.collect::<Result<_, _>>()?, untold: untold.collect::<Result<_, _>>()? })
    }
}

impl MessageCheckpoint {
    /// Its stored bytes.
    pub fn encode(&self) -> Bytes {
        let Message { sender, payload, metadata } = &self.message;
        let (group, user_id) = match sender {
            Sender::Group { group, user_id } => (Some(group.to_string()), user_id.as_ref()),
            Sender::Server => (None, None),
        };
        let message = StoredMessage {
            group,
            user_id: user_id.map(ToString::to_string),
            payload_kind: kind_number(payload.kind),
            payload: payload.bytes.clone(),
            metadata: metadata_entries(metadata),
            expires_at: self.expires_at.map(|at| at.0),
        };
        encode(&message)
    }

    /// Reads one; payload bytes are shared with `stored`, not copied.
    pub fn decode(stored: Bytes) -> Result<Self, CheckpointError> {
        let stored: StoredMessage = decode(stored)?;
        let sender = match &stored.group {
            Some(group) => {
                let group = GroupName::new(group).map_err(|_| CheckpointError::Invalid("group"))?;
                Sender::Group { group, user_id: stored.user_id.as_deref().map(UserId::new) }
            }
            None => Sender::Server,
        };
        let kind = kind_of(stored.payload_kind).ok_or(CheckpointError::Invalid("payload kind"))?;
        let payload = Payload { kind, bytes: stored.payload };
        let message = Message { sender, payload, metadata: metadata_of(&stored.metadata)? };
        Ok(Self { message, expires_at: stored.expires_at.map(Time) })
    }
}

pub(super) fn encode(message: &impl prost::Message) -> Bytes {
    encode_as(1, message)
}

fn encode_as(version: u8, message: &impl prost::Message) -> Bytes {
    let mut out = BytesMut::with_capacity(1 + message.encoded_len());
    out.put_u8(version);
    message.encode_raw(&mut out);
    out.freeze()
}

pub(super) fn decode<M: prost::Message + Default>(stored: Bytes) -> Result<M, CheckpointError> {
    match stored.first() {
        None => Err(CheckpointError::Empty),
        Some(1..=CHECKPOINT_VERSION) => {
            M::decode(stored.slice(1..)).map_err(|error| CheckpointError::Damaged(error.to_string()))
        }
        Some(&version) => Err(CheckpointError::UnknownVersion(version)),
    }
}

impl From<RecordError> for CheckpointError {
    fn from(error: RecordError) -> Self {
        match error {
            RecordError::Invalid(what) => Self::Invalid(what),
            other => Self::Damaged(other.to_string()),
        }
    }
}

/// Each number as its difference from the one before, the first from 0; any sequence comes back.
pub(super) fn differences(numbers: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut before = 0;
    numbers.map(|number| number.wrapping_sub(std::mem::replace(&mut before, number))).collect()
}

pub(super) fn sums(differences: &[u64]) -> impl Iterator<Item = u64> {
    differences.iter().scan(0u64, |sum, difference| {
        *sum = sum.wrapping_add(*difference);
        Some(*sum)
    })
}

#[derive(Clone, PartialEq, prost::Message)]
struct StoredHub {
    #[prost(uint64, tag = "1")]
    time: u64,
    #[prost(message, repeated, tag = "2")]
    proposers: Vec<StoredProposer>,
    #[prost(uint64, repeated, tag = "3")]
    covers: Vec<u64>,
    /// Requests that are not repeatable, by their numbers.
    #[prost(uint64, tag = "4")]
    plain_first: u64,
    #[prost(uint64, tag = "5")]
    plain_next: u64,
    /// Repeatable ones.
    #[prost(uint64, tag = "6")]
    repeatable_first: u64,
    #[prost(uint64, tag = "7")]
    repeatable_next: u64,
    #[prost(uint64, optional, tag = "8")]
    forgotten_first_sent: Option<u64>,
    #[prost(message, repeated, tag = "9")]
    nodes: Vec<StoredNode>,
}

impl StoredHub {
    fn requests(&self) -> RequestsCheckpoint {
        RequestsCheckpoint {
            plain: RequestNumbers { first: self.plain_first, next: self.plain_next },
            repeatable: RequestNumbers { first: self.repeatable_first, next: self.repeatable_next },
            forgotten_first_sent: self.forgotten_first_sent,
        }
    }
}

#[derive(Clone, PartialEq, prost::Message)]
struct StoredProposer {
    #[prost(fixed64, tag = "1")]
    boot_high: u64,
    #[prost(fixed64, tag = "2")]
    boot_low: u64,
    #[prost(uint32, tag = "3")]
    shard: u32,
    #[prost(uint64, tag = "4")]
    settled_below: u64,
    #[prost(uint64, repeated, tag = "5")]
    counters: Vec<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StoredChunk {
    #[prost(message, repeated, tag = "1")]
    sessions: Vec<StoredSession>,
    #[prost(message, repeated, tag = "2")]
    untold: Vec<StoredDisconnected>,
    /// 16 bytes each: those that sessions name by their places here.
    #[prost(bytes = "bytes", repeated, tag = "3")]
    boots: Vec<Bytes>,
}

/// Stands for nobody among the boots that sessions name.
const NOBODY: BootId = BootId(0);

/// The boots that the sessions of a chunk name, in the order in which they come up.
#[derive(Default)]
struct Boots(Vec<BootId>);

impl Boots {
    /// The place of a boot, or of nobody.
    fn place(&mut self, boot: Option<BootId>) -> u32 {
        let boot = boot.unwrap_or(NOBODY);
        let known = self.0.iter().position(|known| *known == boot);
        let place = known.unwrap_or_else(|| {
            self.0.push(boot);
            self.0.len() - 1
        });
        place as u32
    }

    fn read(stored: &[Bytes]) -> Result<Self, CheckpointError> {
        let boot = |bytes: &Bytes| bytes[..].try_into().map(u128::from_be_bytes).map(BootId);
        let boots = stored.iter().map(boot).collect::<Result<_, _>>();
        boots.map(Self).map_err(|_| CheckpointError::Invalid("boot"))
    }

    fn at(&self, place: u32) -> Result<Option<BootId>, CheckpointError> {
        let boot = self.0.get(place as usize).ok_or(CheckpointError::Invalid("boot"))?;
        Ok(Some(*boot).filter(|boot| *boot != NOBODY))
    }
}

#[derive(Clone, PartialEq, prost::Message)]
struct StoredSession {
    #[prost(string, tag = "1")]
    connection_id: String,
    #[prost(string, optional, tag = "2")]
    user_id: Option<String>,
    #[prost(uint32, tag = "3")]
    subprotocol: u32,
    #[prost(message, optional, tag = "4")]
    join_leave: Option<StoredRules>,
    #[prost(message, optional, tag = "5")]
    send: Option<StoredRules>,
    #[prost(string, repeated, tag = "6")]
    groups: Vec<String>,
    #[prost(uint32, tag = "7")]
    ack_window_ids: u32,
    #[prost(sint64, repeated, tag = "8")]
    executed_ack_ids: Vec<i64>,
    #[prost(fixed64, repeated, tag = "9")]
    executed_fingerprints: Vec<u64>,
    #[prost(uint32, tag = "10")]
    retention_seconds: u32,
    #[prost(uint64, tag = "11")]
    last_sequence_id: u64,
    #[prost(uint32, tag = "12")]
    deliveries_since_jump: u32,
    #[prost(uint64, tag = "13")]
    payload_bytes_since_jump: u64,
    #[prost(uint64, repeated, tag = "14")]
    unacknowledged_ids: Vec<u64>,
    #[prost(uint64, repeated, tag = "15")]
    unacknowledged_offsets: Vec<u64>,
    /// Empty when all are 0.
    #[prost(uint32, repeated, tag = "16")]
    unacknowledged_parts: Vec<u32>,
    /// 0 for none.
    #[prost(uint32, tag = "17")]
    ending: u32,
    #[prost(bytes = "bytes", optional, tag = "18")]
    state: Option<Bytes>,
    #[prost(string, optional, tag = "19")]
    custom_subprotocol: Option<String>,
    #[prost(uint32, tag = "20")]
    boots: u32,
    #[prost(uint64, tag = "21")]
    number: u64,
    #[prost(uint32, tag = "22")]
    holder: u32,
    #[prost(uint64, tag = "23")]
    attached: u64,
    #[prost(uint32, tag = "24")]
    speaker: u32,
    /// The difference from `attached`.
    #[prost(sint64, tag = "25")]
    speaks_since: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StoredRules {
    #[prost(bool, tag = "1")]
    all: bool,
    #[prost(string, repeated, tag = "2")]
    patterns: Vec<String>,
    #[prost(string, repeated, tag = "3")]
    allowed: Vec<String>,
    #[prost(string, repeated, tag = "4")]
    denied: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StoredMessage {
    /// The application sent it when there is none.
    #[prost(string, optional, tag = "1")]
    group: Option<String>,
    #[prost(string, optional, tag = "2")]
    user_id: Option<String>,
    #[prost(uint32, tag = "3")]
    payload_kind: u32,
    #[prost(bytes = "bytes", tag = "4")]
    payload: Bytes,
    #[prost(message, repeated, tag = "5")]
    metadata: Vec<StoredMetadataEntry>,
    #[prost(uint64, optional, tag = "6")]
    expires_at: Option<u64>,
}

impl StoredSession {
    fn new(session: &SessionCheckpoint, boots: &mut Boots) -> Self {
        let executed_ids = differences(session.executed.iter().map(|ack| ack.ack_id));
        let messages = || session.unacknowledged.iter().map(|(_, message)| message);
        let has_parts = messages().any(|message| message.part > 0);
        Self {
            connection_id: session.identity.connection_id.to_string(),
            user_id: session.identity.user_id.as_ref().map(ToString::to_string),
            subprotocol: subprotocol_number(session.identity.subprotocol),
            custom_subprotocol: session.identity.custom_subprotocol.clone(),
            join_leave: StoredRules::unless_empty(&session.join_leave),
            send: StoredRules::unless_empty(&session.send),
            groups: texts(&session.groups),
            ack_window_ids: session.ack_window_ids,
            executed_ack_ids: executed_ids.into_iter().map(|difference| difference as i64).collect(),
            executed_fingerprints: session.executed.iter().map(|ack| ack.fingerprint.to_log()).collect(),
            retention_seconds: session.retention_seconds,
            last_sequence_id: session.sequence_ids.last,
            deliveries_since_jump: session.sequence_ids.deliveries,
            payload_bytes_since_jump: session.sequence_ids.payload_bytes,
            unacknowledged_ids: differences(session.unacknowledged.iter().map(|(id, _)| *id)),
            unacknowledged_offsets: differences(messages().map(|message| message.offset.0)),
            unacknowledged_parts: messages().map(|message| message.part).filter(|_| has_parts).collect(),
            ending: session.ending.map_or(0, reason_number),
            state: session.state.as_ref().map(|state| state.0.clone()),
            boots: session.boots,
            number: session.number.0,
            holder: boots.place(session.hold.holder),
            attached: session.hold.attached.0,
            speaker: boots.place(session.hold.speaker),
            speaks_since: session.hold.speaks_since.0.wrapping_sub(session.hold.attached.0) as i64,
        }
    }
}

impl StoredRules {
    fn unless_empty(rules: &RulesCheckpoint) -> Option<Self> {
        (*rules != RulesCheckpoint::default()).then(|| Self {
            all: rules.all,
            patterns: rules.patterns.clone(),
            allowed: texts(&rules.allowed),
            denied: texts(&rules.denied),
        })
    }

    fn read(stored: Option<Self>) -> Result<RulesCheckpoint, CheckpointError> {
        let Self { all, patterns, allowed, denied } = stored.unwrap_or_default();
        Ok(RulesCheckpoint { all, patterns, allowed: group_names(&allowed)?, denied: group_names(&denied)? })
    }
}

impl StoredSession {
    fn read(self, boots: &Boots) -> Result<SessionCheckpoint, CheckpointError> {
        let executed = self.executed()?;
        let unacknowledged = self.unacknowledged()?;
        Ok(SessionCheckpoint {
            identity: identity_of(
                &self.connection_id,
                self.user_id.as_deref(),
                self.subprotocol,
                self.custom_subprotocol,
            )
            .ok_or(CheckpointError::Invalid("subprotocol"))?,
            groups: group_names(&self.groups)?,
            ack_window_ids: self.ack_window_ids,
            executed,
            retention_seconds: self.retention_seconds,
            sequence_ids: SequenceIdsCheckpoint {
                last: self.last_sequence_id,
                deliveries: self.deliveries_since_jump,
                payload_bytes: self.payload_bytes_since_jump,
            },
            unacknowledged,
            ending: match self.ending {
                0 => None,
                number => Some(reason_of(number).ok_or(CheckpointError::Invalid("reason"))?),
            },
            join_leave: StoredRules::read(self.join_leave)?,
            send: StoredRules::read(self.send)?,
            state: self.state.map(HandlerState),
            boots: self.boots.min(EventId::BOOTS_MAX),
            number: Offset(self.number),
            hold: Hold {
                holder: boots.at(self.holder)?,
                attached: Offset(self.attached),
                speaker: boots.at(self.speaker)?,
                speaks_since: Offset(self.attached.wrapping_add(self.speaks_since as u64)),
            },
        })
    }
    fn executed(&self) -> Result<Vec<AckKey>, CheckpointError> {
        let ids: Vec<u64> = self.executed_ack_ids.iter().map(|difference| *difference as u64).collect();
        if ids.len() != self.executed_fingerprints.len() || ids.len() > self.ack_window_ids as usize {
            return Err(CheckpointError::Invalid("ack window"));
        }
        let pairs = sums(&ids).zip(&self.executed_fingerprints);
        let keys =
            pairs.map(|(ack_id, stored)| AckKey { ack_id, fingerprint: Fingerprint::from_log(*stored) });
        Ok(keys.collect())
    }

    fn unacknowledged(&self) -> Result<Vec<(u64, MessageRef)>, CheckpointError> {
        let count = self.unacknowledged_ids.len();
        let parts = self.unacknowledged_parts.len();
        if self.unacknowledged_offsets.len() != count || (parts != 0 && parts != count) {
            return Err(CheckpointError::Invalid("list of messages"));
        }
        let offsets = sums(&self.unacknowledged_offsets);
        let parts = self.unacknowledged_parts.iter().copied().chain(std::iter::repeat(0));
        let messages = offsets.zip(parts).map(|(offset, part)| MessageRef { offset: Offset(offset), part });
        let all: Vec<_> = sums(&self.unacknowledged_ids).zip(messages).collect();
        let is_ascending = all.is_sorted_by(|(id, _), (next, _)| id < next);
        if !is_ascending || all.last().is_some_and(|(id, _)| *id > self.last_sequence_id) {
            return Err(CheckpointError::Invalid("sequence id"));
        }
        Ok(all)
    }
}

#[cfg(test)]
#[path = "checkpoint_encoding_tests.rs"]
mod tests;
