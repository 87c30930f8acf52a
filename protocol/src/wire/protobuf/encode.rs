//! Messages to protobuf bytes, both directions.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message as _;

use super::generated::{self as schema, downstream_message, message_data, system_message, upstream_message};
use super::is_any;
use crate::wire::{
    AckError, Downstream, Message, Metadata, Payload, PayloadKind, Sender, SharedBody, Upstream,
};

pub(in crate::wire) fn encode_message(message: &Message) -> SharedBody {
    let (from, group) = match &message.sender {
        Sender::Group { group, user_id: _ } => ("group", Some(group.to_string())),
        Sender::Server => ("server", None),
    };
    let data = schema::DataMessage {
        from: from.into(),
        group,
        data: Some(data(&message.payload)),
        sequence_id: None,
        metadata: metadata(&message.metadata),
        stream: None,
    };
    SharedBody::protobuf(data.encode_to_vec().into())
}

pub(in crate::wire) fn encode_downstream(message: &Downstream) -> Bytes {
    use downstream_message::Message as Sent;
    use system_message::Message as System;
    let sent = match message {
        Downstream::Connected { connection_id, user_id, reconnection_token } => {
            Sent::System(schema::SystemMessage {
                message: Some(System::Connected(schema::system_message::Connected {
                    connection_id: connection_id.to_string(),
                    user_id: user_id.as_ref().map(ToString::to_string).unwrap_or_default(),
                    reconnection_token: reconnection_token.as_ref().map(|token| token.0.clone()),
                })),
            })
        }
        Downstream::Disconnected { message } => Sent::System(schema::SystemMessage {
            message: Some(System::Disconnected(schema::system_message::Disconnected {
                reason: message.clone(),
            })),
        }),
        Downstream::Ack { ack_id, error: ack_error } => Sent::Ack(schema::Ack {
            ack_id: *ack_id,
            success: ack_error.is_none(),
            error: ack_error.as_ref().map(error),
        }),
        Downstream::Pong => Sent::Pong(schema::Pong {}),
        Downstream::InvokeFailed { invocation_id, error: failure } => {
            Sent::InvokeResponse(schema::InvokeResponse {
                invocation_id: invocation_id.clone(),
                error: Some(error(failure)),
                ..schema::InvokeResponse::default()
            })
        }
        Downstream::StreamClosed { stream_id, error: cause } => Sent::StreamClosed(schema::StreamClosed {
            stream_id: stream_id.clone(),
            error: Some(error(cause)),
        }),
    };
    schema::DownstreamMessage { message: Some(sent) }.encode_to_vec().into()
}

pub(in crate::wire) fn encode_upstream(message: &Upstream) -> Bytes {
    use upstream_message::Message as Request;
    let request = match message {
        Upstream::JoinGroup { group, ack_id } => {
            Request::JoinGroup(schema::JoinGroup { group: group.to_string(), ack_id: *ack_id })
        }
        Upstream::LeaveGroup { group, ack_id } => {
            Request::LeaveGroup(schema::LeaveGroup { group: group.to_string(), ack_id: *ack_id })
        }
        Upstream::SendToGroup { group, payload, metadata: entries, ack_id, no_echo, ttl_seconds } => {
            Request::SendToGroup(schema::SendToGroup {
                group: group.to_string(),
                ack_id: *ack_id,
                data: Some(data(payload)),
                no_echo: no_echo.then_some(true),
                ttl_seconds: (*ttl_seconds != 0).then_some(u32::from(*ttl_seconds)),
                metadata: metadata(entries),
                stream: None,
            })
        }
        Upstream::Event { event, payload, metadata: entries, ack_id } => Request::Event(schema::Event {
            event: event.to_string(),
            data: Some(data(payload)),
            ack_id: *ack_id,
            metadata: metadata(entries),
            stream: None,
        }),
        Upstream::SequenceAck { sequence_id } => {
            Request::SequenceAck(schema::SequenceAck { sequence_id: *sequence_id })
        }
        Upstream::Ping => Request::Ping(schema::Ping {}),
        Upstream::Invoke { invocation_id, event, payload, metadata: entries } => {
            Request::InvokeEvent(schema::InvokeEvent {
                event: event.to_string(),
                invocation_id: invocation_id.clone(),
                data: payload.as_ref().map(data),
                metadata: metadata(entries),
                stream: None,
            })
        }
        Upstream::CancelInvocation { invocation_id } => {
            Request::CancelInvocation(schema::CancelInvocation { invocation_id: invocation_id.clone() })
        }
        Upstream::Stream { stream_id, group, ack_id } => match group {
            Some(group) => Request::SendToGroup(schema::SendToGroup {
                group: group.to_string(),
                ack_id: *ack_id,
                stream: Some(schema::StreamStart { stream_id: stream_id.clone(), idle_timeout_ms: None }),
                ..schema::SendToGroup::default()
            }),
            None => Request::StreamEnd(schema::StreamEnd { stream_id: stream_id.clone(), error: None }),
        },
        Upstream::GroupState { group, ack_id } => Request::SubscribeGroupState(schema::SubscribeGroupState {
            group: group.to_string(),
            ack_id: *ack_id,
        }),
    };
    schema::UpstreamMessage { message: Some(request) }.encode_to_vec().into()
}

/// A JSON client may have published bytes as an `Any` that are none. Receivers could not decode the whole message if
/// they stood in the place of one, so they go out as what they are.
fn data(payload: &Payload) -> schema::MessageData {
    use message_data::Data;
    let bytes = payload.bytes.clone();
    let data = match payload.kind {
        PayloadKind::Text => Data::Text(bytes),
        PayloadKind::Json => Data::Json(bytes),
        PayloadKind::Any if is_any(&bytes) => Data::Any(bytes),
        PayloadKind::Any | PayloadKind::Binary => Data::Binary(bytes),
    };
    schema::MessageData { data: Some(data) }
}

fn metadata(metadata: &Metadata) -> BTreeMap<String, String> {
    metadata.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn error(error: &AckError) -> schema::Error {
    schema::Error { name: error.name.as_str().into(), message: error.message.clone() }
}
