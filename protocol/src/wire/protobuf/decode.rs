//! Protobuf bytes to messages, both directions.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message as _;

use super::generated::{self as schema, downstream_message, message_data, system_message, upstream_message};
use super::is_any;
use crate::wire::limits::{CLIENT_OPERATION_ID_BYTES_MAX, TTL_SECONDS_MAX};
use crate::wire::payload::shares_frame;
use crate::wire::{
    AckError, AckId, ConnectionId, DecodeError, Downstream, ErrorName, EventName, GroupName, Message,
    Metadata, Payload, PayloadKind, Received, ReconnectionToken, Sender, Upstream, UserId, json,
};

pub(in crate::wire) fn decode_upstream(frame: &Bytes) -> Result<Upstream, DecodeError> {
    use upstream_message::Message as Request;
    let decoded = schema::UpstreamMessage::decode(frame.clone()).map_err(|_| DecodeError::NotAMessage)?;
    match decoded.message.ok_or(DecodeError::UnknownType)? {
        Request::JoinGroup(join) => {
            Ok(Upstream::JoinGroup { group: GroupName::new(&join.group)?, ack_id: join.ack_id })
        }
        Request::LeaveGroup(leave) => {
            Ok(Upstream::LeaveGroup { group: GroupName::new(&leave.group)?, ack_id: leave.ack_id })
        }
        Request::SendToGroup(send) => send_to_group(frame, send),
        Request::Event(event) => {
            if let Some(stream) = event.stream {
                return stream_start(stream, None, event.ack_id);
            }
            let (payload, metadata) = content(frame, event.data, &event.metadata)?;
            Ok(Upstream::Event {
                event: EventName::new(&event.event)?,
                payload,
                metadata,
                ack_id: event.ack_id,
            })
        }
        Request::SequenceAck(ack) => Ok(Upstream::SequenceAck { sequence_id: ack.sequence_id }),
        Request::Ping(schema::Ping {}) => Ok(Upstream::Ping),
        Request::InvokeEvent(invoke) => {
            if let Some(stream) = invoke.stream {
                return stream_start(stream, None, None);
            }
            Ok(Upstream::Invoke {
                invocation_id: operation_id(invoke.invocation_id, "invocation_id")?,
                event: EventName::new(&invoke.event)?,
                payload: payload(frame, invoke.data)?,
                metadata: metadata(&invoke.metadata)?,
            })
        }
        Request::CancelInvocation(cancel) => Ok(Upstream::CancelInvocation {
            invocation_id: operation_id(cancel.invocation_id, "invocation_id")?,
        }),
        Request::StreamData(schema::StreamData { stream_id, .. })
        | Request::StreamEnd(schema::StreamEnd { stream_id, .. }) => Ok(Upstream::Stream {
            stream_id: operation_id(stream_id, "stream_id")?,
            group: None,
            ack_id: None,
        }),
        Request::SetGroupState(schema::SetGroupState { group, ack_id, .. })
        | Request::SubscribeGroupState(schema::SubscribeGroupState { group, ack_id })
        | Request::UnsubscribeGroupState(schema::UnsubscribeGroupState { group, ack_id }) => {
            Ok(Upstream::GroupState { group: GroupName::new(&group)?, ack_id })
        }
    }
}

pub(in crate::wire) fn decode_downstream(frame: &Bytes) -> Result<Received, DecodeError> {
    use downstream_message::Message as Sent;
    use system_message::Message as System;
    let decoded = schema::DownstreamMessage::decode(frame.clone()).map_err(|_| DecodeError::NotAMessage)?;
    let control = match decoded.message {
        Some(Sent::Data(data)) => return message(frame, data),
        Some(Sent::System(schema::SystemMessage { message: Some(System::Connected(connected)) })) => {
            let user_id = (!connected.user_id.is_empty()).then(|| UserId::new(&connected.user_id));
            Downstream::Connected {
                connection_id: ConnectionId::new(&connected.connection_id),
                user_id,
                reconnection_token: connected.reconnection_token.map(ReconnectionToken),
            }
        }
        Some(Sent::System(schema::SystemMessage { message: Some(System::Disconnected(disconnected)) })) => {
            Downstream::Disconnected { message: disconnected.reason }
        }
        Some(Sent::Ack(ack)) => Downstream::Ack {
            ack_id: ack.ack_id,
            error: if ack.success { None } else { Some(required_error(ack.error)?) },
        },
        Some(Sent::Pong(schema::Pong {})) => Downstream::Pong,
        Some(Sent::InvokeResponse(response)) if !response.success => Downstream::InvokeFailed {
            invocation_id: response.invocation_id,
            error: required_error(response.error)?,
        },
        Some(Sent::StreamClosed(closed)) => {
            Downstream::StreamClosed { stream_id: closed.stream_id, error: required_error(closed.error)? }
        }
        _ => return Ok(Received::Unknown),
    };
    Ok(Received::Control(control))
}

fn send_to_group(frame: &Bytes, send: schema::SendToGroup) -> Result<Upstream, DecodeError> {
    let group = GroupName::new(&send.group)?;
    if let Some(stream) = send.stream {
        return stream_start(stream, Some(group), send.ack_id);
    }
    let (payload, metadata) = content(frame, send.data, &send.metadata)?;
    let ttl_seconds = send.ttl_seconds.unwrap_or(0);
    if ttl_seconds > TTL_SECONDS_MAX {
        return Err(DecodeError::Property("ttl_seconds"));
    }
    Ok(Upstream::SendToGroup {
        group,
        payload,
        metadata,
        ack_id: send.ack_id,
        no_echo: send.no_echo.unwrap_or(false),
        ttl_seconds: ttl_seconds as u16,
    })
}

fn stream_start(
    stream: schema::StreamStart,
    group: Option<GroupName>,
    ack_id: Option<AckId>,
) -> Result<Upstream, DecodeError> {
    Ok(Upstream::Stream { stream_id: operation_id(stream.stream_id, "stream_id")?, group, ack_id })
}

fn message(frame: &Bytes, data: schema::DataMessage) -> Result<Received, DecodeError> {
    let sender = match data.from.as_str() {
        "group" => {
            Sender::Group { group: GroupName::new(data.group.as_deref().unwrap_or_default())?, user_id: None }
        }
        "server" => Sender::Server,
        _ => return Ok(Received::Unknown),
    };
    let message = Message {
        sender,
        payload: payload(frame, data.data)?.ok_or(DecodeError::Property("data"))?,
        metadata: metadata(&data.metadata)?,
    };
    Ok(Received::Message { message, sequence_id: data.sequence_id })
}

fn operation_id(id: String, property: &'static str) -> Result<String, DecodeError> {
    if id.is_empty() || id.len() > CLIENT_OPERATION_ID_BYTES_MAX {
        return Err(DecodeError::Property(property));
    }
    Ok(id)
}

fn required_error(error: Option<schema::Error>) -> Result<AckError, DecodeError> {
    let error = error.ok_or(DecodeError::Property("error"))?;
    Ok(AckError { name: ErrorName::from_wire(&error.name), message: error.message })
}

/// The payload and metadata of a request that has to have one of them; metadata alone stands beside an empty text.
fn content(
    frame: &Bytes,
    data: Option<schema::MessageData>,
    entries: &BTreeMap<String, String>,
) -> Result<(Payload, Metadata), DecodeError> {
    match payload(frame, data)? {
        Some(payload) => Ok((payload, metadata(entries)?)),
        None if entries.is_empty() => Err(DecodeError::Property("data")),
        None => Ok((Payload::empty_text(), metadata(entries)?)),
    }
}

fn payload(frame: &Bytes, data: Option<schema::MessageData>) -> Result<Option<Payload>, DecodeError> {
    use message_data::Data;
    let Some(data) = data else { return Ok(None) };
    let (kind, bytes) = match data.data {
        Some(Data::Text(text)) if std::str::from_utf8(&text).is_ok() => (PayloadKind::Text, text),
        Some(Data::Binary(bytes)) => (PayloadKind::Binary, bytes),
        Some(Data::Any(any)) if is_any(&any) => (PayloadKind::Any, any),
        Some(Data::Json(text)) if json::is_payload(&text) => (PayloadKind::Json, text),
        _ => return Err(DecodeError::Property("data")),
    };
    // What was decoded is a part of the frame.
    let bytes = if shares_frame(bytes.len(), frame.len()) { bytes } else { Bytes::copy_from_slice(&bytes) };
    Ok(Some(Payload { kind, bytes }))
}

fn metadata(entries: &BTreeMap<String, String>) -> Result<Metadata, DecodeError> {
    Ok(Metadata::new(entries)?)
}
