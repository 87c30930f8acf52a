//! How records and checkpoints store what event handlers take part in.

use bytes::Bytes;

use super::encoding::{StoredMetadataEntry, identity_of, metadata_entries, metadata_of};
use super::numbers::{kind_number, kind_of, subprotocol_number};
use super::{Body, Disconnected, EventSubject, HandlerReply, HandlerState, RecordError, Time};
use crate::wire::{ConnectionId, Payload};

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct StoredHandled {
    #[prost(string, tag = "1")]
    connection_id: String,
    #[prost(message, optional, tag = "2")]
    reply: Option<StoredReply>,
    #[prost(bytes = "bytes", optional, tag = "3")]
    state: Option<Bytes>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StoredReply {
    #[prost(uint32, tag = "1")]
    payload_kind: u32,
    #[prost(bytes = "bytes", tag = "2")]
    payload: Bytes,
    #[prost(message, repeated, tag = "3")]
    metadata: Vec<StoredMetadataEntry>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct StoredTold {
    #[prost(string, repeated, tag = "1")]
    pub(super) connection_ids: Vec<String>,
}

/// A part of chunks.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct StoredDisconnected {
    #[prost(string, tag = "1")]
    connection_id: String,
    #[prost(string, optional, tag = "2")]
    user_id: Option<String>,
    #[prost(uint32, tag = "3")]
    subprotocol: u32,
    #[prost(string, optional, tag = "4")]
    custom_subprotocol: Option<String>,
    #[prost(bytes = "bytes", optional, tag = "5")]
    state: Option<Bytes>,
    #[prost(uint64, tag = "6")]
    number: u64,
    #[prost(uint64, tag = "7")]
    time: u64,
    #[prost(string, tag = "8")]
    reason: String,
}

impl StoredHandled {
    pub(super) fn new(
        connection_id: &ConnectionId,
        reply: Option<&HandlerReply>,
        state: Option<&HandlerState>,
    ) -> Self {
        let reply = reply.map(|HandlerReply { payload, metadata }| StoredReply {
            payload_kind: kind_number(payload.kind),
            payload: payload.bytes.clone(),
            metadata: metadata_entries(metadata),
        });
        Self { connection_id: connection_id.to_string(), reply, state: state.map(|state| state.0.clone()) }
    }
}

impl TryFrom<StoredHandled> for Body {
    type Error = RecordError;

    fn try_from(stored: StoredHandled) -> Result<Self, RecordError> {
        let reply = stored.reply.map(|reply| {
            let kind = kind_of(reply.payload_kind).ok_or(RecordError::Invalid("payload kind"))?;
            let payload = Payload { kind, bytes: reply.payload };
            Ok(HandlerReply { payload, metadata: metadata_of(&reply.metadata)? })
        });
        Ok(Self::Handled {
            connection_id: ConnectionId::new(&stored.connection_id),
            reply: reply.transpose()?,
            state: stored.state.map(HandlerState),
        })
    }
}

impl StoredDisconnected {
    pub(super) fn new(disconnected: &Disconnected) -> Self {
        let Disconnected { subject, number, time, reason } = disconnected;
        Self {
            connection_id: subject.identity.connection_id.to_string(),
            user_id: subject.identity.user_id.as_ref().map(ToString::to_string),
            subprotocol: subprotocol_number(subject.identity.subprotocol),
            custom_subprotocol: subject.identity.custom_subprotocol.clone(),
            state: subject.state.as_ref().map(|state| state.0.clone()),
            number: *number,
            time: time.0,
            reason: reason.clone(),
        }
    }
}

impl TryFrom<StoredDisconnected> for Disconnected {
    type Error = RecordError;

    fn try_from(stored: StoredDisconnected) -> Result<Self, RecordError> {
        Ok(Self {
            subject: EventSubject {
                identity: identity_of(
                    &stored.connection_id,
                    stored.user_id.as_deref(),
                    stored.subprotocol,
                    stored.custom_subprotocol,
                )
                .ok_or(RecordError::Invalid("subprotocol"))?,
                state: stored.state.map(HandlerState),
            },
            number: stored.number,
            time: Time(stored.time),
            reason: stored.reason,
        })
    }
}
