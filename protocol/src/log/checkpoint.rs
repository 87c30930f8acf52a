//! What a checkpoint holds: a hub's state as plain data, in parts that are stored one by one.
//!
//! ```text
//! key                           holds
//! hub                           what belongs to no session, at the offset that it covers; up to where each chunk
//!                               covers the log
//! chunk/0000 .. chunk/1023      the sessions whose connection ids hash to this chunk
//! message/<offset>.<part>       a message that a session still needs and that the log may have forgotten; both numbers
//!                               decimal, the offset with 20 digits
//! ```
//! A session is in the same chunk for ever, whatever the number of shards. Messages that wait for a client are named,
//! not held: they are in the log, or under a key of their own once the log may forget them.
//!
//! This module does not know when parts are written, nor how they come together again.

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use super::{
    AckKey, BootId, Disconnected, EndReason, HandlerState, Hold, NodeName, Offset, RequestKind, RequestPage,
    RequestsCheckpoint, SessionIdentity, Time,
};
use crate::wire::{ConnectionId, GroupName, Message, SequenceId};

/// How many chunks sessions are divided into; part of the checkpoints' format.
pub const CHUNKS: u16 = 1024;

/// The chunk of a session.
pub fn chunk_of(connection_id: &ConnectionId) -> u16 {
    (xxh3_64(connection_id.as_str().as_bytes()) % u64::from(CHUNKS)) as u16
}

/// Names a message: its record, and its place among the record's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MessageRef {
    /// The record.
    pub offset: Offset,
    /// From 0. A record that publishes to several groups makes a message for each.
    pub part: u32,
}

/// One change of the parts of a checkpoint that are stored. The changes of a write may be stored in any order, each as a
/// whole. To a store `K` is a text that means nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckpointChange<K = CheckpointKey> {
    /// Stores a part; an earlier one is replaced as a whole.
    Save {
        /// Which.
        key: K,
        /// The last offset that it covers.
        covers: Offset,
        /// Its bytes.
        bytes: Bytes,
    },
    /// Deletes a part, which need not be there.
    Delete {
        /// Which.
        key: K,
    },
}

impl CheckpointChange {
    /// The same under the key's text.
    pub fn with_text_key(self) -> CheckpointChange<String> {
        match self {
            Self::Save { key, covers, bytes } => {
                CheckpointChange::Save { key: key.to_string(), covers, bytes }
            }
            Self::Delete { key } => CheckpointChange::Delete { key: key.to_string() },
        }
    }
}

/// Where a part of a checkpoint is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CheckpointKey {
    /// What belongs to no session.
    Hub,
    /// A chunk of sessions.
    Chunk(u16),
    /// A page of requests.
    Requests(RequestPage),
    /// A message.
    Message(MessageRef),
}

impl CheckpointKey {
    /// Reads a key; none if it is not one of this format.
    pub fn parse(key: &str) -> Option<Self> {
        let number = |text: &str, digits: usize| {
            let is_decimal = text.len() >= digits && text.bytes().all(|b| b.is_ascii_digit());
            text.parse::<u64>().ok().filter(|_| is_decimal)
        };
        if key == "hub" {
            return Some(Self::Hub);
        }
        if let Some(chunk) = key.strip_prefix("chunk/") {
            let chunk = u16::try_from(number(chunk, 4)?).ok()?;
            return (chunk < CHUNKS).then_some(Self::Chunk(chunk));
        }
        if let Some((kind, page)) = key.strip_prefix("requests/").and_then(|page| page.split_once('/')) {
            let kind = match kind {
                "plain" => RequestKind::Plain,
                "repeatable" => RequestKind::Repeatable,
                _ => return None,
            };
            return Some(Self::Requests(RequestPage { kind, number: number(page, 20)? }));
        }
        let (offset, part) = key.strip_prefix("message/")?.split_once('.')?;
        let part = u32::try_from(number(part, 1)?).ok()?;
        Some(Self::Message(MessageRef { offset: Offset(number(offset, 20)?), part }))
    }
}

impl std::fmt::Display for CheckpointKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Hub => f.write_str("hub"),
            Self::Chunk(chunk) => write!(f, "chunk/{chunk:04}"),
            Self::Requests(RequestPage { kind: RequestKind::Plain, number }) => {
                write!(f, "requests/plain/{number:020}")
            }
            Self::Requests(RequestPage { kind: RequestKind::Repeatable, number }) => {
                write!(f, "requests/repeatable/{number:020}")
            }
            Self::Message(MessageRef { offset, part }) => write!(f, "message/{:020}.{part}", offset.0),
        }
    }
}

/// What belongs to no session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HubCheckpoint {
    /// The latest time of a record.
    pub time: Time,
    /// Which appends were applied.
    pub proposers: Vec<AppliedAppends>,
    /// Requests of the application that are remembered.
    pub requests: RequestsCheckpoint,
    /// Up to where each chunk covers the log, in the order of chunks. One that is stored with a later offset covers
    /// that much.
    pub covers: Vec<Offset>,
    /// The gateways that share the log, sorted by name; none of a log that only one writes.
    pub nodes: Vec<NodeCheckpoint>,
}

/// A gateway that shares the log, or did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeCheckpoint {
    /// Its name.
    pub name: NodeName,
    /// Its last start.
    pub boot: BootId,
    /// Where that began.
    pub since: Offset,
    /// The last record that changed something here.
    pub changed: Offset,
    /// Whether it is not gone.
    pub is_live: bool,
    /// The latest version of records that it reads.
    pub record_version: u8,
}

/// Which appends of a shard in a boot were applied, as far as a copy of one may still come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppliedAppends {
    /// The boot.
    pub boot: BootId,
    /// The shard.
    pub shard: u16,
    /// All counters below had their outcome.
    pub settled_below: u64,
    /// Counters from there on that were applied, in their order.
    pub counters: Vec<u64>,
}

/// The sessions of a chunk.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ChunkCheckpoint {
    /// In the order of their connection ids.
    pub sessions: Vec<SessionCheckpoint>,
    /// Those that are over, and of which the application is still to be told; in the same order.
    pub untold: Vec<Disconnected>,
}

/// A session.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionCheckpoint {
    /// Who it is.
    pub identity: SessionIdentity,
    /// Which groups it may join and leave.
    pub join_leave: RulesCheckpoint,
    /// Which groups it may publish to.
    pub send: RulesCheckpoint,
    /// Groups that it is in, sorted.
    pub groups: Vec<GroupName>,
    /// How many executed ack ids it remembers.
    pub ack_window_ids: u32,
    /// Those it remembers, oldest first.
    pub executed: Vec<AckKey>,
    /// How long it waits for its client while detached, in seconds.
    pub retention_seconds: u32,
    /// What the next sequence id follows from.
    pub sequence_ids: SequenceIdsCheckpoint,
    /// What its client has not acknowledged, oldest first.
    pub unacknowledged: Vec<(SequenceId, MessageRef)>,
    /// Set when its end was decided but is not in the log.
    pub ending: Option<EndReason>,
    /// What event handlers have noted about it.
    pub state: Option<HandlerState>,
    /// How many boots it has lived through after its first.
    pub boots: u32,
    /// The session's number, which marks name it by: the offset of its `Opened` record.
    pub number: Offset,
    /// Who has its socket and who proposes for it.
    pub hold: Hold,
}

/// Rules of one permission.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RulesCheckpoint {
    /// Whether a role allows all groups.
    pub all: bool,
    /// Wildcard patterns of roles.
    pub patterns: Vec<String>,
    /// Literal rules that allow.
    pub allowed: Vec<GroupName>,
    /// Literal rules that forbid.
    pub denied: Vec<GroupName>,
}

/// The largest sequence id given, and what was delivered since the last jump.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SequenceIdsCheckpoint {
    /// 0 before the first.
    pub last: SequenceId,
    /// Deliveries since the last jump.
    pub deliveries: u32,
    /// Payload since the last jump, in bytes.
    pub payload_bytes: u64,
}

/// A message that waits for clients.
#[derive(Debug, Clone, PartialEq)]
pub struct MessageCheckpoint {
    /// The message.
    pub message: Message,
    /// When it need not be sent any more.
    pub expires_at: Option<Time>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_back_sorted_by_what_they_name() {
        let message = |offset, part| CheckpointKey::Message(MessageRef { offset: Offset(offset), part });
        let keys = [
            (CheckpointKey::Chunk(7), "chunk/0007"),
            (CheckpointKey::Chunk(1023), "chunk/1023"),
            (CheckpointKey::Hub, "hub"),
            (message(12, 0), "message/00000000000000000012.0"),
            (message(u64::MAX, 11), "message/18446744073709551615.11"),
        ];
        assert!(keys.is_sorted_by_key(|(_, text)| *text));
        for (key, text) in keys {
            assert_eq!((key.to_string().as_str(), CheckpointKey::parse(text)), (text, Some(key)));
        }
    }

    #[test]
    fn other_keys_are_none_of_this_format() {
        let keys = [
            "",
            "hubs",
            "chunk/",
            "chunk/1024",
            "chunk/7",
            "chunk/+007",
            "message/12.0",
            "message/00000000000000000012",
        ];
        for key in keys {
            assert_eq!(CheckpointKey::parse(key), None, "{key}");
        }
    }

    #[test]
    fn the_chunks_of_version_1_are_fixed() {
        let chunks = ["", "alice", "bob"].map(|id| chunk_of(&ConnectionId::new(id)));
        // XXH3-64 of the id modulo 1024, by the hash's reference implementation.
        assert_eq!(chunks, [194, 688, 229]);
    }
}
