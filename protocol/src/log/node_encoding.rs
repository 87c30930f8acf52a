//! How records store nodes, attachments and releases, and checkpoints nodes.

use super::checkpoint_encoding::{differences, sums};
use super::numbers::{subprotocol_number, subprotocol_of};
use super::{Body, BootId, NodeCheckpoint, NodeGone, NodeName, NodeStarted, Offset, RecordError, Release};
use crate::wire::{ConnectionId, Subprotocol};

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct StoredNodeStarted {
    #[prost(string, tag = "1")]
    node: String,
    #[prost(uint64, tag = "2")]
    seen: u64,
    #[prost(uint32, tag = "3")]
    record_version: u32,
    #[prost(bool, tag = "4")]
    takes_disconnected: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct StoredNodeGone {
    #[prost(fixed64, tag = "1")]
    boot_high: u64,
    #[prost(fixed64, tag = "2")]
    boot_low: u64,
    #[prost(bool, tag = "3")]
    is_stopped: bool,
    #[prost(bool, tag = "4")]
    takes_disconnected: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct StoredAttached {
    #[prost(string, tag = "1")]
    connection_id: String,
    #[prost(uint32, tag = "2")]
    subprotocol: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct StoredReleased {
    #[prost(string, repeated, tag = "1")]
    connection_ids: Vec<String>,
    /// Offsets, each as its difference from the one before.
    #[prost(uint64, repeated, tag = "2")]
    attached: Vec<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct StoredNode {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(fixed64, tag = "2")]
    boot_high: u64,
    #[prost(fixed64, tag = "3")]
    boot_low: u64,
    #[prost(uint64, tag = "4")]
    since: u64,
    #[prost(uint64, tag = "5")]
    changed: u64,
    #[prost(bool, tag = "6")]
    is_live: bool,
    #[prost(uint32, tag = "7")]
    record_version: u32,
}

impl From<&NodeCheckpoint> for StoredNode {
    fn from(node: &NodeCheckpoint) -> Self {
        Self {
            name: node.name.to_string(),
            boot_high: (node.boot.0 >> 64) as u64,
            boot_low: node.boot.0 as u64,
            since: node.since.0,
            changed: node.changed.0,
            is_live: node.is_live,
            record_version: u32::from(node.record_version),
        }
    }
}

impl TryFrom<StoredNode> for NodeCheckpoint {
    type Error = RecordError;

    fn try_from(stored: StoredNode) -> Result<Self, RecordError> {
        Ok(Self {
            name: node_name(&stored.name)?,
            boot: boot_of(stored.boot_high, stored.boot_low),
            since: Offset(stored.since),
            changed: Offset(stored.changed),
            is_live: stored.is_live,
            record_version: record_version(stored.record_version)?,
        })
    }
}

fn boot_of(high: u64, low: u64) -> BootId {
    BootId(u128::from(high) << 64 | u128::from(low))
}

fn node_name(stored: &str) -> Result<NodeName, RecordError> {
    NodeName::new(stored).map_err(|_| RecordError::Invalid("node"))
}

fn record_version(stored: u32) -> Result<u8, RecordError> {
    let version = u8::try_from(stored).ok().filter(|version| *version > 0);
    version.ok_or(RecordError::Invalid("record version"))
}

impl StoredAttached {
    pub(super) fn new(connection_id: &ConnectionId, subprotocol: Subprotocol) -> Self {
        Self { connection_id: connection_id.to_string(), subprotocol: subprotocol_number(subprotocol) }
    }
}

impl From<&NodeStarted> for StoredNodeStarted {
    fn from(NodeStarted { node, seen, record_version, takes_disconnected }: &NodeStarted) -> Self {
        Self {
            node: node.to_string(),
            seen: seen.0,
            record_version: u32::from(*record_version),
            takes_disconnected: *takes_disconnected,
        }
    }
}

impl From<NodeGone> for StoredNodeGone {
    fn from(NodeGone { boot, is_stopped, takes_disconnected }: NodeGone) -> Self {
        Self { boot_high: (boot.0 >> 64) as u64, boot_low: boot.0 as u64, is_stopped, takes_disconnected }
    }
}

impl From<&[Release]> for StoredReleased {
    fn from(releases: &[Release]) -> Self {
        Self {
            connection_ids: releases.iter().map(|release| release.connection_id.to_string()).collect(),
            attached: differences(releases.iter().map(|release| release.attached.0)),
        }
    }
}

impl TryFrom<StoredNodeStarted> for Body {
    type Error = RecordError;

    fn try_from(stored: StoredNodeStarted) -> Result<Self, RecordError> {
        Ok(Self::NodeStarted(NodeStarted {
            node: node_name(&stored.node)?,
            seen: Offset(stored.seen),
            record_version: record_version(stored.record_version)?,
            takes_disconnected: stored.takes_disconnected,
        }))
    }
}

impl From<StoredNodeGone> for Body {
    fn from(stored: StoredNodeGone) -> Self {
        Self::NodeGone(NodeGone {
            boot: boot_of(stored.boot_high, stored.boot_low),
            is_stopped: stored.is_stopped,
            takes_disconnected: stored.takes_disconnected,
        })
    }
}

impl TryFrom<StoredAttached> for Body {
    type Error = RecordError;

    fn try_from(stored: StoredAttached) -> Result<Self, RecordError> {
        Ok(Self::Attached {
            connection_id: ConnectionId::new(&stored.connection_id),
            subprotocol: subprotocol_of(stored.subprotocol).ok_or(RecordError::Invalid("subprotocol"))?,
        })
    }
}

impl TryFrom<StoredReleased> for Body {
    type Error = RecordError;

    fn try_from(stored: StoredReleased) -> Result<Self, RecordError> {
        if stored.connection_ids.is_empty() || stored.connection_ids.len() != stored.attached.len() {
            return Err(RecordError::Invalid("list of releases"));
        }
        let releases = stored.connection_ids.iter().zip(sums(&stored.attached));
        let release = |(connection_id, attached): (&String, u64)| Release {
            connection_id: ConnectionId::new(connection_id),
            attached: Offset(attached),
        };
        Ok(Self::Released { releases: releases.map(release).collect() })
    }
}
