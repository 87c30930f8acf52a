//! The stable encoding of records.
//!
//! ```text
//! byte 0     format version
//! byte 1..   one protobuf message, `StoredRecord`; its field numbers are below and are never reused
//! ```
//! A reader refuses a version, a body or an enumeration value that it does not know: a record that cannot be
//! understood must not be passed over, since sequence ids depend on every record. Fields that it does not know it
//! does pass over: a field that changes what a record means needs a new version.
//!
//! These numbers are taken for what is planned, so that nothing else gets them:
//!
//! | message | number | field |
//! |---|---|---|
//! | record | 6 | the publisher's own id of a message, as the key of a request |
//! | request key | 8 | whether another request under a remembered id is passed over |
//! | `Opened` | 10, 11 | from where on in the past a group is read; who is told of its members |
//! | `Joined`, `Left` | 3, 4 | the same |
//! | `Published` | 9 | how much of its group is kept |
//! | `Sent` | 6, 7, 8 | how much of its group is kept; what it was read from; who is told |
//! | `Added`, `Removed` | 3, 4 | as `Joined` |
//! | bodies | 29, 30 | checkpoints and beats of a cluster |
//! | bodies | 40 to 53 | invocations, streams, transactions, subscriptions, readers |

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message as _;

use super::application_encoding::{StoredIdempotencyKey, StoredRefused, StoredSelection};
use super::handler_encoding::{StoredHandled, StoredTold};
use super::mark_encoding::StoredAcked;
use super::node_encoding::{StoredAttached, StoredNodeGone, StoredNodeStarted, StoredReleased};
use super::numbers::{
    kind_number, kind_of, permission_number, permission_of, reason_number, reason_of, refusal_number,
    refusal_of, subprotocol_number, subprotocol_of,
};
use super::{
    AckKey, Body, BootId, BootKey, Fingerprint, HandlerState, Key, Offset, Opened, Permission, Published,
    Record, Sent, SessionIdentity, Time,
};
use crate::wire::{ConnectionId, GroupName, Metadata, Payload, UserId};

/// The latest version that this build knows. A record says the earliest that has all of what is in it, so that others can
/// read what they know.
///
/// | version | has |
/// |---|---|
/// | 1 | what one gateway writes |
/// | 2 | nodes, attachments, releases; an end that counts only while its attachment is the last |
pub const RECORD_VERSION: u8 = 2;

/// Why stored bytes are not a record of a version that this build knows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Nothing at all.
    #[error("an empty record")]
    Empty,
    /// Written by another version.
    #[error("record version {0} is unknown; this build reads versions 1 to {RECORD_VERSION}")]
    UnknownVersion(u8),
    /// The bytes are no record of their version.
    #[error("a damaged record: {0}")]
    Damaged(String),
    /// A required part is missing or has a value that this build does not know.
    #[error("a record without a valid {0}")]
    Invalid(&'static str),
}

impl Record {
    /// The record's bytes in the log.
    pub fn encode(&self) -> Bytes {
        let message = StoredRecord::from(self);
        let mut out = BytesMut::with_capacity(1 + message.encoded_len());
        out.put_u8(self.version());
        message.encode_raw(&mut out);
        out.freeze()
    }

    /// The earliest version that has all of what is in it.
    pub fn version(&self) -> u8 {
        match &self.body {
            Body::NodeStarted(_) | Body::NodeGone(_) | Body::Attached { .. } | Body::Released { .. } => 2,
            Body::Ended { attached: Some(_), .. } => 2,
            _ => 1,
        }
    }

    /// Reads a record; payload bytes are shared with `stored`, not copied.
    pub fn decode(stored: Bytes) -> Result<Self, RecordError> {
        let version = *stored.first().ok_or(RecordError::Empty)?;
        if !(1..=RECORD_VERSION).contains(&version) {
            return Err(RecordError::UnknownVersion(version));
        }
        let message = StoredRecord::decode(stored.slice(1..));
        message.map_err(|error| RecordError::Damaged(error.to_string()))?.try_into()
    }
}

#[derive(Clone, PartialEq, prost::Message)]
struct StoredRecord {
    #[prost(uint64, tag = "1")]
    time: u64,
    #[prost(uint64, optional, tag = "2")]
    sequence_ack: Option<u64>,
    #[prost(message, optional, tag = "3")]
    ack_key: Option<StoredAckKey>,
    #[prost(message, optional, tag = "4")]
    boot_key: Option<StoredBootKey>,
    #[prost(message, optional, tag = "5")]
    idempotency_key: Option<StoredIdempotencyKey>,
    #[prost(
        oneof = "StoredBody",
        tags = "10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31"
    )]
    body: Option<StoredBody>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StoredAckKey {
    #[prost(uint64, tag = "1")]
    ack_id: u64,
    #[prost(fixed64, tag = "2")]
    fingerprint: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StoredBootKey {
    #[prost(fixed64, tag = "1")]
    boot_high: u64,
    #[prost(fixed64, tag = "2")]
    boot_low: u64,
    #[prost(uint32, tag = "3")]
    shard: u32,
    #[prost(uint64, tag = "4")]
    counter: u64,
    #[prost(uint64, tag = "5")]
    settled_below: u64,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum StoredBody {
    #[prost(message, tag = "10")]
    Booted(StoredBooted),
    #[prost(message, tag = "11")]
    Opened(StoredOpened),
    #[prost(message, tag = "12")]
    Joined(StoredMembership),
    #[prost(message, tag = "13")]
    Left(StoredMembership),
    #[prost(message, tag = "14")]
    Published(StoredPublished),
    #[prost(message, tag = "15")]
    Granted(StoredPermission),
    #[prost(message, tag = "16")]
    Revoked(StoredPermission),
    #[prost(message, tag = "17")]
    Ended(StoredEnded),
    #[prost(message, tag = "18")]
    Sent(StoredSent),
    #[prost(message, tag = "19")]
    Added(StoredMembers),
    #[prost(message, tag = "20")]
    Removed(StoredMembers),
    #[prost(message, tag = "21")]
    Closed(StoredClosed),
    #[prost(message, tag = "22")]
    Handled(StoredHandled),
    #[prost(message, tag = "23")]
    Told(StoredTold),
    #[prost(message, tag = "24")]
    NodeStarted(StoredNodeStarted),
    #[prost(message, tag = "25")]
    NodeGone(StoredNodeGone),
    #[prost(message, tag = "26")]
    Attached(StoredAttached),
    #[prost(message, tag = "27")]
    Released(StoredReleased),
    #[prost(message, tag = "28")]
    Acked(StoredAcked),
    #[prost(message, tag = "31")]
    Refused(StoredRefused),
}

#[derive(Clone, PartialEq, prost::Message)]
struct StoredBooted {
    #[prost(bool, tag = "1")]
    takes_disconnected: bool,
    #[prost(bool, tag = "2")]
    ends_all: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StoredOpened {
    #[prost(string, tag = "1")]
    connection_id: String,
    #[prost(string, optional, tag = "2")]
    user_id: Option<String>,
    #[prost(uint32, tag = "3")]
    subprotocol: u32,
    #[prost(string, repeated, tag = "4")]
    roles: Vec<String>,
    #[prost(string, repeated, tag = "5")]
    groups: Vec<String>,
    #[prost(uint32, tag = "6")]
    ack_window_ids: u32,
    #[prost(uint32, tag = "7")]
    retention_seconds: u32,
    #[prost(bytes = "bytes", optional, tag = "8")]
    state: Option<Bytes>,
    #[prost(string, optional, tag = "9")]
    custom_subprotocol: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StoredMembership {
    #[prost(string, tag = "1")]
    connection_id: String,
    #[prost(string, repeated, tag = "2")]
    groups: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StoredPublished {
    #[prost(string, optional, tag = "1")]
    publisher: Option<String>,
    #[prost(string, optional, tag = "2")]
    user_id: Option<String>,
    #[prost(string, repeated, tag = "3")]
    groups: Vec<String>,
    #[prost(bool, tag = "4")]
    no_echo: bool,
    #[prost(uint32, tag = "5")]
    ttl_seconds: u32,
    #[prost(uint32, tag = "6")]
    payload_kind: u32,
    #[prost(bytes = "bytes", tag = "7")]
    payload: Bytes,
    #[prost(message, repeated, tag = "8")]
    metadata: Vec<StoredMetadataEntry>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct StoredMetadataEntry {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StoredPermission {
    #[prost(string, tag = "1")]
    connection_id: String,
    #[prost(uint32, tag = "2")]
    permission: u32,
    #[prost(string, tag = "3")]
    group: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StoredEnded {
    #[prost(string, tag = "1")]
    connection_id: String,
    #[prost(uint32, tag = "2")]
    reason: u32,
    #[prost(uint64, optional, tag = "3")]
    disconnected: Option<u64>,
    #[prost(uint64, optional, tag = "4")]
    attached: Option<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StoredSent {
    #[prost(message, optional, tag = "1")]
    selection: Option<StoredSelection>,
    #[prost(uint32, tag = "2")]
    ttl_seconds: u32,
    #[prost(uint32, tag = "3")]
    payload_kind: u32,
    #[prost(bytes = "bytes", tag = "4")]
    payload: Bytes,
    #[prost(message, repeated, tag = "5")]
    metadata: Vec<StoredMetadataEntry>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StoredMembers {
    #[prost(message, optional, tag = "1")]
    selection: Option<StoredSelection>,
    #[prost(string, repeated, tag = "2")]
    groups: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StoredClosed {
    #[prost(message, optional, tag = "1")]
    selection: Option<StoredSelection>,
    #[prost(string, tag = "2")]
    reason: String,
    #[prost(bool, tag = "3")]
    takes_disconnected: bool,
}

/// Who a stored session is; none when its subprotocol has no such number.
pub(super) fn identity_of(
    connection_id: &str,
    user_id: Option<&str>,
    subprotocol: u32,
    custom_subprotocol: Option<String>,
) -> Option<SessionIdentity> {
    Some(SessionIdentity {
        connection_id: ConnectionId::new(connection_id),
        user_id: user_id.map(UserId::new),
        subprotocol: subprotocol_of(subprotocol)?,
        custom_subprotocol,
    })
}

impl From<&Record> for StoredRecord {
    fn from(record: &Record) -> Self {
        let BootKey { boot, shard, counter, settled_below } = record.key.boot;
        let boot_key = StoredBootKey {
            boot_high: (boot.0 >> 64) as u64,
            boot_low: boot.0 as u64,
            shard: u32::from(shard),
            counter,
            settled_below,
        };
        let ack_key = record
            .key
            .ack
            .map(|AckKey { ack_id, fingerprint }| StoredAckKey { ack_id, fingerprint: fingerprint.to_log() });
        Self {
            time: record.time.0,
            sequence_ack: record.sequence_ack,
            ack_key,
            boot_key: Some(boot_key),
            idempotency_key: record.key.request.map(Into::into),
            body: Some((&record.body).into()),
        }
    }
}

impl From<&Body> for StoredBody {
    fn from(body: &Body) -> Self {
        let membership = |connection_id: &ConnectionId, groups: &[GroupName]| StoredMembership {
            connection_id: connection_id.to_string(),
            groups: texts(groups),
        };
        let rule =
            |connection_id: &ConnectionId, permission: Permission, group: &GroupName| StoredPermission {
                connection_id: connection_id.to_string(),
                permission: permission_number(permission),
                group: group.to_string(),
            };
        match body {
            Body::Booted { takes_disconnected, ends_all } => {
                Self::Booted(StoredBooted { takes_disconnected: *takes_disconnected, ends_all: *ends_all })
            }
            Body::Opened(opened) => Self::Opened(StoredOpened {
                connection_id: opened.identity.connection_id.to_string(),
                user_id: opened.identity.user_id.as_ref().map(ToString::to_string),
                subprotocol: subprotocol_number(opened.identity.subprotocol),
                custom_subprotocol: opened.identity.custom_subprotocol.clone(),
                roles: opened.roles.clone(),
                groups: texts(&opened.groups),
                ack_window_ids: opened.ack_window_ids,
                retention_seconds: opened.retention_seconds,
                state: opened.state.as_ref().map(|state| state.0.clone()),
            }),
            Body::Joined { connection_id, groups } => Self::Joined(membership(connection_id, groups)),
            Body::Left { connection_id, groups } => Self::Left(membership(connection_id, groups)),
            Body::Published(published) => Self::Published(StoredPublished {
                publisher: published.publisher.as_ref().map(ToString::to_string),
                user_id: published.user_id.as_ref().map(ToString::to_string),
                groups: texts(&published.groups),
                no_echo: published.no_echo,
                ttl_seconds: u32::from(published.ttl_seconds),
                payload_kind: kind_number(published.payload.kind),
                payload: published.payload.bytes.clone(),
                metadata: metadata_entries(&published.metadata),
            }),
            Body::Granted { connection_id, permission, group } => {
                Self::Granted(rule(connection_id, *permission, group))
            }
            Body::Revoked { connection_id, permission, group } => {
                Self::Revoked(rule(connection_id, *permission, group))
            }
            Body::Ended { connection_id, reason, disconnected, attached } => Self::Ended(StoredEnded {
                connection_id: connection_id.to_string(),
                reason: reason_number(*reason),
                disconnected: *disconnected,
                attached: attached.map(|attached| attached.0),
            }),
            Body::Sent(sent) => Self::Sent(StoredSent {
                selection: Some((&sent.selection).into()),
                ttl_seconds: u32::from(sent.ttl_seconds),
                payload_kind: kind_number(sent.payload.kind),
                payload: sent.payload.bytes.clone(),
                metadata: metadata_entries(&sent.metadata),
            }),
            Body::Added { selection, groups } => {
                Self::Added(StoredMembers { selection: Some(selection.into()), groups: texts(groups) })
            }
            Body::Removed { selection, groups } => {
                Self::Removed(StoredMembers { selection: Some(selection.into()), groups: texts(groups) })
            }
            Body::Closed { selection, reason, takes_disconnected } => Self::Closed(StoredClosed {
                selection: Some(selection.into()),
                reason: reason.clone(),
                takes_disconnected: *takes_disconnected,
            }),
            Body::Handled { connection_id, reply, state } => {
                Self::Handled(StoredHandled::new(connection_id, reply.as_ref(), state.as_ref()))
            }
            Body::Acked { marks } => Self::Acked(StoredAcked::new(marks)),
            Body::Told { connection_ids } => Self::Told(StoredTold {
                connection_ids: connection_ids.iter().map(ToString::to_string).collect(),
            }),
            Body::NodeStarted(started) => Self::NodeStarted(started.into()),
            Body::NodeGone(gone) => Self::NodeGone((*gone).into()),
            Body::Attached { connection_id, subprotocol } => {
                Self::Attached(StoredAttached::new(connection_id, *subprotocol))
            }
            Body::Released { releases } => Self::Released(releases.as_slice().into()),
            Body::Refused(refusal) => Self::Refused(StoredRefused { refusal: refusal_number(*refusal) }),
        }
    }
}

impl TryFrom<StoredRecord> for Record {
    type Error = RecordError;

    fn try_from(stored: StoredRecord) -> Result<Self, RecordError> {
        let boot = stored.boot_key.ok_or(RecordError::Invalid("key"))?;
        let key = Key {
            boot: BootKey {
                boot: BootId(u128::from(boot.boot_high) << 64 | u128::from(boot.boot_low)),
                shard: u16::try_from(boot.shard).map_err(|_| RecordError::Invalid("shard"))?,
                counter: boot.counter,
                settled_below: boot.settled_below,
            },
            ack: stored.ack_key.map(|StoredAckKey { ack_id, fingerprint }| AckKey {
                ack_id,
                fingerprint: Fingerprint::from_log(fingerprint),
            }),
            request: stored.idempotency_key.map(Into::into),
        };
        let body = stored.body.ok_or(RecordError::Invalid("body"))?.try_into()?;
        Ok(Self { key, time: Time(stored.time), sequence_ack: stored.sequence_ack, body })
    }
}

impl TryFrom<StoredBody> for Body {
    type Error = RecordError;

    fn try_from(stored: StoredBody) -> Result<Self, RecordError> {
        Ok(match stored {
            StoredBody::Booted(StoredBooted { takes_disconnected, ends_all }) => {
                Self::Booted { takes_disconnected, ends_all }
            }
            StoredBody::Opened(opened) => Self::Opened(Opened {
                identity: identity_of(
                    &opened.connection_id,
                    opened.user_id.as_deref(),
                    opened.subprotocol,
                    opened.custom_subprotocol,
                )
                .ok_or(RecordError::Invalid("subprotocol"))?,
                roles: opened.roles,
                groups: group_names(&opened.groups)?,
                ack_window_ids: opened.ack_window_ids,
                retention_seconds: opened.retention_seconds,
                state: opened.state.map(HandlerState),
            }),
            StoredBody::Joined(StoredMembership { connection_id, groups }) => Self::Joined {
                connection_id: ConnectionId::new(&connection_id),
                groups: group_names(&groups)?,
            },
            StoredBody::Left(StoredMembership { connection_id, groups }) => {
                Self::Left { connection_id: ConnectionId::new(&connection_id), groups: group_names(&groups)? }
            }
            StoredBody::Published(published) => Self::Published(published.try_into()?),
            StoredBody::Granted(rule) => {
                let (connection_id, permission, group) = rule.parts()?;
                Self::Granted { connection_id, permission, group }
            }
            StoredBody::Revoked(rule) => {
                let (connection_id, permission, group) = rule.parts()?;
                Self::Revoked { connection_id, permission, group }
            }
            StoredBody::Ended(StoredEnded { connection_id, reason, disconnected, attached }) => Self::Ended {
                connection_id: ConnectionId::new(&connection_id),
                reason: reason_of(reason).ok_or(RecordError::Invalid("reason"))?,
                disconnected,
                attached: attached.map(Offset),
            },
            StoredBody::Sent(sent) => Self::Sent(sent.try_into()?),
            StoredBody::Added(StoredMembers { selection, groups }) => {
                Self::Added { selection: StoredSelection::read(selection)?, groups: group_names(&groups)? }
            }
            StoredBody::Removed(StoredMembers { selection, groups }) => {
                Self::Removed { selection: StoredSelection::read(selection)?, groups: group_names(&groups)? }
            }
            StoredBody::Closed(StoredClosed { selection, reason, takes_disconnected }) => {
                Self::Closed { selection: StoredSelection::read(selection)?, reason, takes_disconnected }
            }
            StoredBody::Handled(handled) => handled.try_into()?,
            StoredBody::Acked(acked) => acked.try_into()?,
            StoredBody::Told(StoredTold { connection_ids }) => {
                Self::Told { connection_ids: connection_ids.iter().map(|id| ConnectionId::new(id)).collect() }
            }
            StoredBody::NodeStarted(started) => started.try_into()?,
            StoredBody::NodeGone(gone) => gone.into(),
            StoredBody::Attached(attached) => attached.try_into()?,
            StoredBody::Released(released) => released.try_into()?,
            StoredBody::Refused(StoredRefused { refusal }) => {
                Self::Refused(refusal_of(refusal).ok_or(RecordError::Invalid("refusal"))?)
            }
        })
    }
}

impl TryFrom<StoredPublished> for Published {
    type Error = RecordError;

    fn try_from(stored: StoredPublished) -> Result<Self, RecordError> {
        let kind = kind_of(stored.payload_kind).ok_or(RecordError::Invalid("payload kind"))?;
        Ok(Self {
            publisher: stored.publisher.as_deref().map(ConnectionId::new),
            user_id: stored.user_id.as_deref().map(UserId::new),
            groups: group_names(&stored.groups)?,
            no_echo: stored.no_echo,
            ttl_seconds: u16::try_from(stored.ttl_seconds).map_err(|_| RecordError::Invalid("ttl"))?,
            payload: Payload { kind, bytes: stored.payload },
            metadata: metadata_of(&stored.metadata)?,
        })
    }
}

impl TryFrom<StoredSent> for Sent {
    type Error = RecordError;

    fn try_from(stored: StoredSent) -> Result<Self, RecordError> {
        let kind = kind_of(stored.payload_kind).ok_or(RecordError::Invalid("payload kind"))?;
        Ok(Self {
            selection: StoredSelection::read(stored.selection)?,
            ttl_seconds: u16::try_from(stored.ttl_seconds).map_err(|_| RecordError::Invalid("ttl"))?,
            payload: Payload { kind, bytes: stored.payload },
            metadata: metadata_of(&stored.metadata)?,
        })
    }
}

impl StoredPermission {
    fn parts(&self) -> Result<(ConnectionId, Permission, GroupName), RecordError> {
        let permission = permission_of(self.permission).ok_or(RecordError::Invalid("permission"))?;
        let group = GroupName::new(&self.group).map_err(|_| RecordError::Invalid("group"))?;
        Ok((ConnectionId::new(&self.connection_id), permission, group))
    }
}

pub(super) fn metadata_entries(metadata: &Metadata) -> Vec<StoredMetadataEntry> {
    let entry =
        |(key, value): (&str, &str)| StoredMetadataEntry { key: key.to_owned(), value: value.to_owned() };
    metadata.iter().map(entry).collect()
}

pub(super) fn metadata_of(stored: &[StoredMetadataEntry]) -> Result<Metadata, RecordError> {
    let entries = stored.iter().map(|entry| (&entry.key, &entry.value));
    Metadata::new(entries).map_err(|_| RecordError::Invalid("metadata"))
}

pub(super) fn texts(groups: &[GroupName]) -> Vec<String> {
    groups.iter().map(ToString::to_string).collect()
}

pub(super) fn group_names(stored: &[String]) -> Result<Vec<GroupName>, RecordError> {
    stored.iter().map(|name| GroupName::new(name).map_err(|_| RecordError::Invalid("group"))).collect()
}

#[cfg(test)]
#[path = "encoding_tests.rs"]
mod tests;
