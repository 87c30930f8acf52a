//! The stable encoding of records.
//!
//! ```text
//! byte 0     format version, 1 to 4: the first one that can hold the record
//! byte 1..   one protobuf message, `RecordV1`; its field numbers are below and are never reused
//! ```
//! Version 2 has what applications ask for: bodies 18 to 21, and the key of their requests. Version 3 has what their event
//! handlers take part in: bodies 22 and 23, and fields that say so. Version 4 has sequence acks (body 28), repeatable
//! requests (body 31 and a field of their key) and boots of copies. The names of messages end with the version that brought
//! them.
//!
//! A reader refuses a version, a body or an enumeration value that it does not know: a record that cannot be
//! understood must not be passed over, since sequence ids depend on every record. Fields that it does not know it
//! does pass over: a field that changes what a record means needs a new version.

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message as _;

use super::application_encoding::{RefusedV4, RequestKeyV2, SelectionV2};
use super::handler_encoding::{HandledV3, ToldV3};
use super::mark_encoding::AckedV4;
use super::{
    AckKey, Body, BootId, BootKey, EndReason, Fingerprint, HandlerState, Key, Opened, Permission, Published,
    Record, Refusal, Sent, Time,
};
use crate::wire::{ConnectionId, GroupName, Metadata, Payload, PayloadKind, Subprotocol, UserId};

/// The latest version that this build knows.
pub const RECORD_VERSION: u8 = 4;

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
        let message = RecordV1::from(self);
        let mut out = BytesMut::with_capacity(1 + message.encoded_len());
        out.put_u8(message.version());
        message.encode_raw(&mut out);
        out.freeze()
    }

    /// Reads a record; payload bytes are shared with `stored`, not copied.
    pub fn decode(stored: Bytes) -> Result<Self, RecordError> {
        let version = *stored.first().ok_or(RecordError::Empty)?;
        if !(1..=RECORD_VERSION).contains(&version) {
            return Err(RecordError::UnknownVersion(version));
        }
        let message = RecordV1::decode(stored.slice(1..));
        let message = message.map_err(|error| RecordError::Damaged(error.to_string()))?;
        if message.version() > version {
            return Err(RecordError::Invalid("body"));
        }
        message.try_into()
    }
}

#[derive(Clone, PartialEq, prost::Message)]
struct RecordV1 {
    #[prost(uint64, tag = "1")]
    time: u64,
    #[prost(uint64, optional, tag = "2")]
    sequence_ack: Option<u64>,
    #[prost(message, optional, tag = "3")]
    ack_key: Option<AckKeyV1>,
    #[prost(message, optional, tag = "4")]
    boot_key: Option<BootKeyV1>,
    #[prost(message, optional, tag = "5")]
    request_key: Option<RequestKeyV2>,
    #[prost(oneof = "BodyV1", tags = "10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 28, 31")]
    body: Option<BodyV1>,
}

impl RecordV1 {
    /// The first version that can hold it.
    fn version(&self) -> u8 {
        let of_body = match &self.body {
            Some(BodyV1::Acked(_) | BodyV1::Refused(_) | BodyV1::Booted(BootedV1 { ends_all: true, .. })) => {
                4
            }
            Some(
                BodyV1::Handled(_)
                | BodyV1::Told(_)
                | BodyV1::Booted(BootedV1 { takes_disconnected: true, .. }),
            ) => 3,
            Some(BodyV1::Opened(opened)) if opened.is_of_3() => 3,
            Some(BodyV1::Ended(EndedV1 { disconnected, reason, .. }))
                if disconnected.is_some() || *reason == reason_number(EndReason::Stopped) =>
            {
                3
            }
            Some(BodyV1::Closed(ClosedV2 { takes_disconnected: true, .. })) => 3,
            Some(BodyV1::Sent(_) | BodyV1::Added(_) | BodyV1::Removed(_) | BodyV1::Closed(_)) => 2,
            _ => 1,
        };
        let of_request = self.request_key.as_ref().map_or(1, |key| if key.is_repeatable() { 4 } else { 2 });
        of_body.max(of_request)
    }
}

#[derive(Clone, PartialEq, prost::Message)]
struct AckKeyV1 {
    #[prost(uint64, tag = "1")]
    ack_id: u64,
    #[prost(fixed64, tag = "2")]
    fingerprint: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct BootKeyV1 {
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
enum BodyV1 {
    #[prost(message, tag = "10")]
    Booted(BootedV1),
    #[prost(message, tag = "11")]
    Opened(OpenedV1),
    #[prost(message, tag = "12")]
    Joined(MembershipV1),
    #[prost(message, tag = "13")]
    Left(MembershipV1),
    #[prost(message, tag = "14")]
    Published(PublishedV1),
    #[prost(message, tag = "15")]
    Granted(PermissionV1),
    #[prost(message, tag = "16")]
    Revoked(PermissionV1),
    #[prost(message, tag = "17")]
    Ended(EndedV1),
    #[prost(message, tag = "18")]
    Sent(SentV2),
    #[prost(message, tag = "19")]
    Added(MembersV2),
    #[prost(message, tag = "20")]
    Removed(MembersV2),
    #[prost(message, tag = "21")]
    Closed(ClosedV2),
    #[prost(message, tag = "22")]
    Handled(HandledV3),
    #[prost(message, tag = "23")]
    Told(ToldV3),
    #[prost(message, tag = "28")]
    Acked(AckedV4),
    #[prost(message, tag = "31")]
    Refused(RefusedV4),
}

#[derive(Clone, PartialEq, prost::Message)]
struct BootedV1 {
    /// From version 3 on.
    #[prost(bool, tag = "1")]
    takes_disconnected: bool,
    /// From version 4 on.
    #[prost(bool, tag = "2")]
    ends_all: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct OpenedV1 {
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
    /// From version 3 on, and so is the next one.
    #[prost(bytes = "bytes", optional, tag = "8")]
    state: Option<Bytes>,
    #[prost(string, optional, tag = "9")]
    custom_subprotocol: Option<String>,
}

impl OpenedV1 {
    fn is_of_3(&self) -> bool {
        self.state.is_some() || self.custom_subprotocol.is_some()
    }
}

#[derive(Clone, PartialEq, prost::Message)]
struct MembershipV1 {
    #[prost(string, tag = "1")]
    connection_id: String,
    #[prost(string, repeated, tag = "2")]
    groups: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PublishedV1 {
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
    metadata: Vec<MetadataEntryV1>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct MetadataEntryV1 {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PermissionV1 {
    #[prost(string, tag = "1")]
    connection_id: String,
    #[prost(uint32, tag = "2")]
    permission: u32,
    #[prost(string, tag = "3")]
    group: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct EndedV1 {
    #[prost(string, tag = "1")]
    connection_id: String,
    #[prost(uint32, tag = "2")]
    reason: u32,
    /// From version 3 on.
    #[prost(uint64, optional, tag = "3")]
    disconnected: Option<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SentV2 {
    #[prost(message, optional, tag = "1")]
    selection: Option<SelectionV2>,
    #[prost(uint32, tag = "2")]
    ttl_seconds: u32,
    #[prost(uint32, tag = "3")]
    payload_kind: u32,
    #[prost(bytes = "bytes", tag = "4")]
    payload: Bytes,
    #[prost(message, repeated, tag = "5")]
    metadata: Vec<MetadataEntryV1>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct MembersV2 {
    #[prost(message, optional, tag = "1")]
    selection: Option<SelectionV2>,
    #[prost(string, repeated, tag = "2")]
    groups: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ClosedV2 {
    #[prost(message, optional, tag = "1")]
    selection: Option<SelectionV2>,
    #[prost(string, tag = "2")]
    reason: String,
    /// From version 3 on.
    #[prost(bool, tag = "3")]
    takes_disconnected: bool,
}

/// Numbers of the stored enumerations: explicit, never reused, 0 never used.
macro_rules! stored_numbers {
    ($to:ident, $from:ident, $type:ident { $($variant:ident = $number:literal),+ $(,)? }) => {
        pub(super) fn $to(value: $type) -> u32 {
            match value { $($type::$variant => $number),+ }
        }

        pub(super) fn $from(number: u32) -> Option<$type> {
            match number { $($number => Some($type::$variant),)+ _ => None }
        }
    };
}

stored_numbers!(subprotocol_number, subprotocol_of, Subprotocol {
    Json = 1,
    JsonReliable = 2,
    Raw = 3,
    Protobuf = 4,
    ProtobufReliable = 5,
});
stored_numbers!(kind_number, kind_of, PayloadKind { Text = 1, Json = 2, Binary = 3, Any = 4 });
stored_numbers!(permission_number, permission_of, Permission { JoinLeaveGroup = 1, SendToGroup = 2 });
stored_numbers!(reason_number, reason_of, EndReason {
    ClientClosed = 1,
    ProtocolViolation = 2,
    OutboxFull = 3,
    Expired = 4,
    Shed = 5,
    ClosedByApplication = 6,
    Stopped = 7,
});
stored_numbers!(refusal_number, refusal_of, Refusal {
    UnknownConnection = 1,
    UnknownUser = 2,
    TooManyRules = 3,
    TooManyGroups = 4,
});

impl From<&Record> for RecordV1 {
    fn from(record: &Record) -> Self {
        let BootKey { boot, shard, counter, settled_below } = record.key.boot;
        let boot_key = BootKeyV1 {
            boot_high: (boot.0 >> 64) as u64,
            boot_low: boot.0 as u64,
            shard: u32::from(shard),
            counter,
            settled_below,
        };
        let ack_key = record
            .key
            .ack
            .map(|AckKey { ack_id, fingerprint }| AckKeyV1 { ack_id, fingerprint: fingerprint.to_log() });
        Self {
            time: record.time.0,
            sequence_ack: record.sequence_ack,
            ack_key,
            boot_key: Some(boot_key),
            request_key: record.key.request.map(Into::into),
            body: Some((&record.body).into()),
        }
    }
}

impl From<&Body> for BodyV1 {
    fn from(body: &Body) -> Self {
        let membership = |connection_id: &ConnectionId, groups: &[GroupName]| MembershipV1 {
            connection_id: connection_id.to_string(),
            groups: texts(groups),
        };
        let rule = |connection_id: &ConnectionId, permission: Permission, group: &GroupName| PermissionV1 {
            connection_id: connection_id.to_string(),
            permission: permission_number(permission),
            group: group.to_string(),
        };
        match body {
            Body::Booted { takes_disconnected, ends_all } => {
                Self::Booted(BootedV1 { takes_disconnected: *takes_disconnected, ends_all: *ends_all })
            }
            Body::Opened(opened) => Self::Opened(OpenedV1 {
                connection_id: opened.connection_id.to_string(),
                user_id: opened.user_id.as_ref().map(ToString::to_string),
                subprotocol: subprotocol_number(opened.subprotocol),
                roles: opened.roles.clone(),
                groups: texts(&opened.groups),
                ack_window_ids: opened.ack_window_ids,
                retention_seconds: opened.retention_seconds,
                state: opened.state.as_ref().map(|state| state.0.clone()),
                custom_subprotocol: opened.custom_subprotocol.clone(),
            }),
            Body::Joined { connection_id, groups } => Self::Joined(membership(connection_id, groups)),
            Body::Left { connection_id, groups } => Self::Left(membership(connection_id, groups)),
            Body::Published(published) => Self::Published(PublishedV1 {
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
            Body::Ended { connection_id, reason, disconnected } => Self::Ended(EndedV1 {
                connection_id: connection_id.to_string(),
                reason: reason_number(*reason),
                disconnected: *disconnected,
            }),
            Body::Sent(sent) => Self::Sent(SentV2 {
                selection: Some((&sent.selection).into()),
                ttl_seconds: u32::from(sent.ttl_seconds),
                payload_kind: kind_number(sent.payload.kind),
                payload: sent.payload.bytes.clone(),
                metadata: metadata_entries(&sent.metadata),
            }),
            Body::Added { selection, groups } => {
                Self::Added(MembersV2 { selection: Some(selection.into()), groups: texts(groups) })
            }
            Body::Removed { selection, groups } => {
                Self::Removed(MembersV2 { selection: Some(selection.into()), groups: texts(groups) })
            }
            Body::Closed { selection, reason, takes_disconnected } => Self::Closed(ClosedV2 {
                selection: Some(selection.into()),
                reason: reason.clone(),
                takes_disconnected: *takes_disconnected,
            }),
            Body::Handled { connection_id, reply, state } => {
                Self::Handled(HandledV3::new(connection_id, reply.as_ref(), state.as_ref()))
            }
            Body::Acked { marks } => Self::Acked(AckedV4::new(marks)),
            Body::Told { connection_ids } => Self::Told(ToldV3 {
                connection_ids: connection_ids.iter().map(ToString::to_string).collect(),
            }),
            Body::Refused(refusal) => Self::Refused(RefusedV4 { refusal: refusal_number(*refusal) }),
        }
    }
}

impl TryFrom<RecordV1> for Record {
    type Error = RecordError;

    fn try_from(stored: RecordV1) -> Result<Self, RecordError> {
        let boot = stored.boot_key.ok_or(RecordError::Invalid("key"))?;
        let key = Key {
            boot: BootKey {
                boot: BootId(u128::from(boot.boot_high) << 64 | u128::from(boot.boot_low)),
                shard: u16::try_from(boot.shard).map_err(|_| RecordError::Invalid("shard"))?,
                counter: boot.counter,
                settled_below: boot.settled_below,
            },
            ack: stored.ack_key.map(|AckKeyV1 { ack_id, fingerprint }| AckKey {
                ack_id,
                fingerprint: Fingerprint::from_log(fingerprint),
            }),
            request: stored.request_key.map(Into::into),
        };
        let body = stored.body.ok_or(RecordError::Invalid("body"))?.try_into()?;
        Ok(Self { key, time: Time(stored.time), sequence_ack: stored.sequence_ack, body })
    }
}

impl TryFrom<BodyV1> for Body {
    type Error = RecordError;

    fn try_from(stored: BodyV1) -> Result<Self, RecordError> {
        Ok(match stored {
            BodyV1::Booted(BootedV1 { takes_disconnected, ends_all }) => {
                Self::Booted { takes_disconnected, ends_all }
            }
            BodyV1::Opened(opened) => Self::Opened(Opened {
                connection_id: ConnectionId::new(&opened.connection_id),
                user_id: opened.user_id.as_deref().map(UserId::new),
                subprotocol: subprotocol_of(opened.subprotocol).ok_or(RecordError::Invalid("subprotocol"))?,
                roles: opened.roles,
                groups: group_names(&opened.groups)?,
                ack_window_ids: opened.ack_window_ids,
                retention_seconds: opened.retention_seconds,
                state: opened.state.map(HandlerState),
                custom_subprotocol: opened.custom_subprotocol,
            }),
            BodyV1::Joined(MembershipV1 { connection_id, groups }) => Self::Joined {
                connection_id: ConnectionId::new(&connection_id),
                groups: group_names(&groups)?,
            },
            BodyV1::Left(MembershipV1 { connection_id, groups }) => {
                Self::Left { connection_id: ConnectionId::new(&connection_id), groups: group_names(&groups)? }
            }
            BodyV1::Published(published) => Self::Published(published.try_into()?),
            BodyV1::Granted(rule) => {
                let (connection_id, permission, group) = rule.parts()?;
                Self::Granted { connection_id, permission, group }
            }
            BodyV1::Revoked(rule) => {
                let (connection_id, permission, group) = rule.parts()?;
                Self::Revoked { connection_id, permission, group }
            }
            BodyV1::Ended(EndedV1 { connection_id, reason, disconnected }) => Self::Ended {
                connection_id: ConnectionId::new(&connection_id),
                reason: reason_of(reason).ok_or(RecordError::Invalid("reason"))?,
                disconnected,
            },
            BodyV1::Sent(sent) => Self::Sent(sent.try_into()?),
            BodyV1::Added(MembersV2 { selection, groups }) => {
                Self::Added { selection: SelectionV2::read(selection)?, groups: group_names(&groups)? }
            }
            BodyV1::Removed(MembersV2 { selection, groups }) => {
                Self::Removed { selection: SelectionV2::read(selection)?, groups: group_names(&groups)? }
            }
            BodyV1::Closed(ClosedV2 { selection, reason, takes_disconnected }) => {
                Self::Closed { selection: SelectionV2::read(selection)?, reason, takes_disconnected }
            }
            BodyV1::Handled(handled) => handled.try_into()?,
            BodyV1::Acked(acked) => acked.try_into()?,
            BodyV1::Told(ToldV3 { connection_ids }) => {
                Self::Told { connection_ids: connection_ids.iter().map(|id| ConnectionId::new(id)).collect() }
            }
            BodyV1::Refused(RefusedV4 { refusal }) => {
                Self::Refused(refusal_of(refusal).ok_or(RecordError::Invalid("refusal"))?)
            }
        })
    }
}

impl TryFrom<PublishedV1> for Published {
    type Error = RecordError;

    fn try_from(stored: PublishedV1) -> Result<Self, RecordError> {
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

impl TryFrom<SentV2> for Sent {
    type Error = RecordError;

    fn try_from(stored: SentV2) -> Result<Self, RecordError> {
        let kind = kind_of(stored.payload_kind).ok_or(RecordError::Invalid("payload kind"))?;
        Ok(Self {
            selection: SelectionV2::read(stored.selection)?,
            ttl_seconds: u16::try_from(stored.ttl_seconds).map_err(|_| RecordError::Invalid("ttl"))?,
            payload: Payload { kind, bytes: stored.payload },
            metadata: metadata_of(&stored.metadata)?,
        })
    }
}

impl PermissionV1 {
    fn parts(&self) -> Result<(ConnectionId, Permission, GroupName), RecordError> {
        let permission = permission_of(self.permission).ok_or(RecordError::Invalid("permission"))?;
        let group = GroupName::new(&self.group).map_err(|_| RecordError::Invalid("group"))?;
        Ok((ConnectionId::new(&self.connection_id), permission, group))
    }
}

pub(super) fn metadata_entries(metadata: &Metadata) -> Vec<MetadataEntryV1> {
    let entry = |(key, value): (&str, &str)| MetadataEntryV1 { key: key.to_owned(), value: value.to_owned() };
    metadata.iter().map(entry).collect()
}

pub(super) fn metadata_of(stored: &[MetadataEntryV1]) -> Result<Metadata, RecordError> {
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
