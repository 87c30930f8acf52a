//! JSON text to messages, both directions.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;

use super::data_type;
use super::object::{Object, Property, unescape, unescape_lossy};
use crate::wire::limits::{CLIENT_OPERATION_ID_BYTES_MAX, TTL_SECONDS_MAX};
use crate::wire::payload::shares_frame;
use crate::wire::{
    AckError, ConnectionId, DecodeError, Downstream, ErrorName, EventName, GroupName, Message, Metadata,
    Payload, PayloadKind, Received, ReconnectionToken, Sender, Upstream, UserId,
};

pub(in crate::wire) fn decode_upstream(frame: &Bytes) -> Result<Upstream, DecodeError> {
    let object = Object::parse(frame).ok_or(DecodeError::NotAMessage)?;
    let kind = object.string(Property::Type).ok().flatten().ok_or(DecodeError::NotAMessage)?;
    match Request::from_type(&kind).ok_or(DecodeError::UnknownType)? {
        Request::JoinGroup => Ok(Upstream::JoinGroup { group: group(&object)?, ack_id: ack_id(&object)? }),
        Request::LeaveGroup => Ok(Upstream::LeaveGroup { group: group(&object)?, ack_id: ack_id(&object)? }),
        Request::SendToGroup => send_to_group(frame, &object),
        Request::Event => event(frame, &object),
        Request::SequenceAck => sequence_ack(&object),
        // An early draft of the reliable subprotocol called the sequence ack so.
        Request::Ack if object.present(Property::AckId).is_none() => sequence_ack(&object),
        Request::Ack => Err(DecodeError::UnknownType),
        Request::Ping => Ok(Upstream::Ping),
        Request::Invoke => invoke(frame, &object),
        Request::CancelInvocation => {
            Ok(Upstream::CancelInvocation { invocation_id: operation_id(&object, Property::InvocationId)? })
        }
        Request::Stream => Ok(Upstream::Stream {
            stream_id: operation_id(&object, Property::StreamId)?,
            group: None,
            ack_id: None,
        }),
        Request::GroupState => Ok(Upstream::GroupState { group: group(&object)?, ack_id: ack_id(&object)? }),
    }
}

pub(in crate::wire) fn decode_downstream(frame: &Bytes) -> Result<Received, DecodeError> {
    let object = Object::parse(frame).ok_or(DecodeError::NotAMessage)?;
    let kind = object.string(Property::Type).ok().flatten().ok_or(DecodeError::NotAMessage)?;
    match &*kind {
        "message" => message(frame, &object),
        "system" => system(&object),
        "ack" => Ok(Received::Control(Downstream::Ack {
            ack_id: object.required_integer(Property::AckId)?,
            error: if succeeded(&object)? { None } else { Some(required_error(&object)?) },
        })),
        "pong" => Ok(Received::Control(Downstream::Pong)),
        "invokeResponse" if !succeeded(&object)? => Ok(Received::Control(Downstream::InvokeFailed {
            invocation_id: object.required_string(Property::InvocationId)?.into_owned(),
            error: required_error(&object)?,
        })),
        "streamClosed" => Ok(Received::Control(Downstream::StreamClosed {
            stream_id: object.required_string(Property::StreamId)?.into_owned(),
            error: required_error(&object)?,
        })),
        _ => Ok(Received::Unknown),
    }
}

/// A request by its `type`.
#[derive(Clone, Copy)]
enum Request {
    JoinGroup,
    LeaveGroup,
    SendToGroup,
    Event,
    SequenceAck,
    Ack,
    Ping,
    Invoke,
    CancelInvocation,
    Stream,
    GroupState,
}

impl Request {
    fn from_type(name: &str) -> Option<Self> {
        const TYPES: [(&str, Request); 14] = [
            ("sendToGroup", Request::SendToGroup),
            ("sequenceAck", Request::SequenceAck),
            ("joinGroup", Request::JoinGroup),
            ("leaveGroup", Request::LeaveGroup),
            ("event", Request::Event),
            ("ping", Request::Ping),
            ("ack", Request::Ack),
            ("invoke", Request::Invoke),
            ("cancelInvocation", Request::CancelInvocation),
            ("streamData", Request::Stream),
            ("streamEnd", Request::Stream),
            ("setGroupState", Request::GroupState),
            ("subscribeGroupState", Request::GroupState),
            ("unsubscribeGroupState", Request::GroupState),
        ];
        TYPES.into_iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, request)| request)
    }
}

fn send_to_group(frame: &Bytes, object: &Object<'_>) -> Result<Upstream, DecodeError> {
    let group = group(object)?;
    let ack_id = ack_id(object)?;
    if let Some(stream) = object.object(Property::Stream)? {
        let stream_id = operation_id(&stream, Property::StreamId)?;
        return Ok(Upstream::Stream { stream_id, group: Some(group), ack_id });
    }
    let (payload, metadata) = content(frame, object)?;
    let ttl_seconds = object.integer(Property::TtlSeconds)?.unwrap_or(0);
    if ttl_seconds > u64::from(TTL_SECONDS_MAX) {
        return Err(Property::TtlSeconds.invalid());
    }
    Ok(Upstream::SendToGroup {
        group,
        payload,
        metadata,
        ack_id,
        no_echo: object.boolean(Property::NoEcho)?.unwrap_or(false),
        ttl_seconds: ttl_seconds as u16,
    })
}

fn event(frame: &Bytes, object: &Object<'_>) -> Result<Upstream, DecodeError> {
    let (payload, metadata) = content(frame, object)?;
    Ok(Upstream::Event { event: event_name(object)?, payload, metadata, ack_id: ack_id(object)? })
}

fn sequence_ack(object: &Object<'_>) -> Result<Upstream, DecodeError> {
    Ok(Upstream::SequenceAck { sequence_id: object.required_integer(Property::SequenceId)? })
}

fn invoke(frame: &Bytes, object: &Object<'_>) -> Result<Upstream, DecodeError> {
    if object.required_string(Property::Target)? != "event" {
        return Err(Property::Target.invalid());
    }
    Ok(Upstream::Invoke {
        invocation_id: operation_id(object, Property::InvocationId)?,
        event: event_name(object)?,
        payload: payload(frame, object)?,
        metadata: object.metadata(Property::Metadata)?.unwrap_or_default(),
    })
}

fn message(frame: &Bytes, object: &Object<'_>) -> Result<Received, DecodeError> {
    let user_id = user_id(object, Property::FromUserId)?;
    let sender = match &*object.required_string(Property::From)? {
        "group" => Sender::Group { group: group(object)?, user_id },
        "server" => Sender::Server,
        _ => return Ok(Received::Unknown),
    };
    let message = Message {
        sender,
        payload: payload(frame, object)?.ok_or(Property::Data.invalid())?,
        metadata: object.metadata(Property::Metadata)?.unwrap_or_default(),
    };
    Ok(Received::Message { message, sequence_id: object.integer(Property::SequenceId)? })
}

fn system(object: &Object<'_>) -> Result<Received, DecodeError> {
    let message = match &*object.required_string(Property::Event)? {
        "connected" => Downstream::Connected {
            connection_id: ConnectionId::new(&object.required_string(Property::ConnectionId)?),
            user_id: user_id(object, Property::UserId)?,
            reconnection_token: object
                .string(Property::ReconnectionToken)?
                .map(|token| ReconnectionToken(token.into_owned())),
        },
        "disconnected" => Downstream::Disconnected {
            message: object.string(Property::Message)?.unwrap_or_default().into_owned(),
        },
        _ => return Ok(Received::Unknown),
    };
    Ok(Received::Control(message))
}

fn group(object: &Object<'_>) -> Result<GroupName, DecodeError> {
    Ok(GroupName::new(&object.required_string(Property::Group)?)?)
}

fn event_name(object: &Object<'_>) -> Result<EventName, DecodeError> {
    Ok(EventName::new(&object.required_string(Property::Event)?)?)
}

/// No user is written as null, as an empty text, or not at all.
fn user_id(object: &Object<'_>, property: Property) -> Result<Option<UserId>, DecodeError> {
    let user_id = object.string(property)?.filter(|user_id| !user_id.is_empty());
    Ok(user_id.map(|user_id| UserId::new(&user_id)))
}

fn ack_id(object: &Object<'_>) -> Result<Option<u64>, DecodeError> {
    object.integer(Property::AckId)
}

fn operation_id(object: &Object<'_>, property: Property) -> Result<String, DecodeError> {
    let id = object.required_string(property)?;
    if id.is_empty() || id.len() > CLIENT_OPERATION_ID_BYTES_MAX {
        return Err(property.invalid());
    }
    Ok(id.into_owned())
}

fn succeeded(object: &Object<'_>) -> Result<bool, DecodeError> {
    object.boolean(Property::Success)?.ok_or(Property::Success.invalid())
}

fn required_error(object: &Object<'_>) -> Result<AckError, DecodeError> {
    let error = object.object(Property::Error)?.ok_or(Property::Error.invalid())?;
    let name = error.required_string(Property::Name)?;
    Ok(AckError {
        name: ErrorName::from_wire(&name),
        message: error.string(Property::Message)?.unwrap_or_default().into_owned(),
    })
}

/// The payload and metadata of a request that has to have one of them; metadata alone stands beside an empty text.
fn content(frame: &Bytes, object: &Object<'_>) -> Result<(Payload, Metadata), DecodeError> {
    match (payload(frame, object)?, object.metadata(Property::Metadata)?) {
        (Some(payload), metadata) => Ok((payload, metadata.unwrap_or_default())),
        (None, Some(metadata)) => Ok((Payload::empty_text(), metadata)),
        (None, None) => Err(Property::Data.invalid()),
    }
}

/// A JSON `null` is refused: the official JavaScript client drops such messages on arrival.
fn payload(frame: &Bytes, object: &Object<'_>) -> Result<Option<Payload>, DecodeError> {
    let kind = match object.string(Property::DataType)? {
        Some(name) => kind_from_name(&name).ok_or(Property::DataType.invalid())?,
        None => PayloadKind::Json,
    };
    let Some(data) = object.text(Property::Data) else { return Ok(None) };
    let invalid = Property::Data.invalid();
    let bytes = match kind {
        PayloadKind::Json if data == "null" => return Err(invalid),
        PayloadKind::Json => kept(frame, data),
        PayloadKind::Text => match unescape_lossy(data).ok_or(invalid)? {
            Cow::Borrowed(text) => kept(frame, text),
            Cow::Owned(text) => text.into(),
        },
        PayloadKind::Binary | PayloadKind::Any => {
            let text = unescape(data).ok_or(invalid.clone())?;
            STANDARD.decode(&*text).map_err(|_| invalid)?.into()
        }
    };
    Ok(Some(Payload { kind, bytes }))
}

fn kind_from_name(name: &str) -> Option<PayloadKind> {
    [PayloadKind::Text, PayloadKind::Json, PayloadKind::Binary, PayloadKind::Any]
        .into_iter()
        .find(|kind| data_type(*kind).eq_ignore_ascii_case(name))
}

/// A part of the frame that outlives it.
fn kept(frame: &Bytes, part: &str) -> Bytes {
    if shares_frame(part.len(), frame.len()) {
        frame.slice_ref(part.as_bytes())
    } else {
        Bytes::copy_from_slice(part.as_bytes())
    }
}
