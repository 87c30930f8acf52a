//! Clients without a subprotocol: frames are bare payloads, with no envelope around them.
//!
//! What a frame asks for is the socket's choice when it connects, not the frame's: an event named `message`, or a
//! publish to one fixed group.

use bytes::Bytes;

use super::payload::shares_frame;
use super::{
    DecodeError, EventName, FrameKind, GroupName, Message, Metadata, Opcode, Payload, PayloadKind, Received,
    Sender, SharedBody, Upstream,
};

/// Where the frames of a raw client go that publishes; all to the same group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawTarget {
    /// The group.
    pub group: GroupName,
    /// Whether the client gets none of its own messages.
    pub no_echo: bool,
}

/// Makes one frame of a raw client that sends events the event that it is.
pub fn decode_event(kind: FrameKind, data: &Bytes) -> Result<Upstream, DecodeError> {
    Ok(Upstream::Event {
        event: EventName::raw(),
        payload: payload(kind, data)?,
        metadata: Metadata::default(),
        ack_id: None,
    })
}

/// Makes one frame of a raw client that publishes the publish that it is.
pub fn decode_send_to_group(
    target: &RawTarget,
    kind: FrameKind,
    data: &Bytes,
) -> Result<Upstream, DecodeError> {
    Ok(Upstream::SendToGroup {
        group: target.group.clone(),
        payload: payload(kind, data)?,
        metadata: Metadata::default(),
        ack_id: None,
        no_echo: target.no_echo,
        ttl_seconds: 0,
    })
}

/// What a raw client makes of a frame: it can't tell the group, nor JSON from text.
pub(super) fn decode_downstream(kind: FrameKind, data: &Bytes) -> Result<Received, DecodeError> {
    let payload = payload(kind, data)?;
    let message = Message { sender: Sender::Server, payload, metadata: Metadata::default() };
    Ok(Received::Message { message, sequence_id: None })
}

/// The bare payload of a request; a raw client has no way to say anything else.
pub(super) fn encode_upstream(message: &Upstream) -> Bytes {
    match message {
        Upstream::SendToGroup { payload, .. } | Upstream::Event { payload, .. } => payload.bytes.clone(),
        _ => Bytes::new(),
    }
}

pub(super) fn encode_message(message: &Message) -> SharedBody {
    let opcode = match message.payload.kind {
        PayloadKind::Text | PayloadKind::Json => Opcode::Text,
        PayloadKind::Binary | PayloadKind::Any => Opcode::Binary,
    };
    SharedBody::raw(opcode, message.payload.bytes.clone())
}

fn payload(kind: FrameKind, data: &Bytes) -> Result<Payload, DecodeError> {
    let kind = match kind {
        FrameKind::Text => {
            std::str::from_utf8(data).map_err(|_| DecodeError::NotAMessage)?;
            PayloadKind::Text
        }
        FrameKind::Binary => PayloadKind::Binary,
    };
    // A frame may be a part of a larger buffer.
    let is_shared = shares_frame(data.len(), data.len());
    Ok(Payload { kind, bytes: if is_shared { data.clone() } else { Bytes::copy_from_slice(data) } })
}
