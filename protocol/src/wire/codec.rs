//! One place that picks the codec for an encoding.

use bytes::{Bytes, BytesMut};

use super::{
    DecodeError, Downstream, Encoding, Message, Opcode, Received, SharedBody, Upstream, json, protobuf, raw,
    write_frame_header,
};

/// The kind of a WebSocket data frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// UTF-8 text.
    Text,
    /// Bytes.
    Binary,
}

/// Decodes one message from a client. A raw client's frame is taken as an event; for those that publish instead see
/// [`raw::decode_send_to_group`].
pub fn decode_upstream(encoding: Encoding, kind: FrameKind, data: &Bytes) -> Result<Upstream, DecodeError> {
    match (encoding, kind) {
        (Encoding::Json, FrameKind::Text) => json::decode_upstream(data),
        (Encoding::Json, FrameKind::Binary) => Err(DecodeError::JsonWantsText),
        (Encoding::Protobuf, FrameKind::Binary) => protobuf::decode_upstream(data),
        (Encoding::Protobuf, FrameKind::Text) => Err(DecodeError::ProtobufWantsBinary),
        (Encoding::Raw, kind) => raw::decode_event(kind, data),
    }
}

/// Decodes one message from the gateway, as clients do. Raw clients can't tell where a message comes from: to them
/// all come from [`Sender::Server`](super::Sender::Server).
pub fn decode_downstream(encoding: Encoding, kind: FrameKind, data: &Bytes) -> Result<Received, DecodeError> {
    match (encoding, kind) {
        (Encoding::Json, FrameKind::Text) => json::decode_downstream(data),
        (Encoding::Json, FrameKind::Binary) => Err(DecodeError::JsonWantsText),
        (Encoding::Protobuf, FrameKind::Binary) => protobuf::decode_downstream(data),
        (Encoding::Protobuf, FrameKind::Text) => Err(DecodeError::ProtobufWantsBinary),
        (Encoding::Raw, kind) => raw::decode_downstream(kind, data),
    }
}

/// Encodes a request, as clients do. A raw client's frame is the payload alone, and empty for a request without.
pub fn encode_upstream(encoding: Encoding, message: &Upstream) -> Bytes {
    match encoding {
        Encoding::Json => json::encode_upstream(message),
        Encoding::Protobuf => protobuf::encode_upstream(message),
        Encoding::Raw => raw::encode_upstream(message),
    }
}

/// Appends one whole frame with a message that has no sequence id. Raw clients get none: nothing is appended.
pub fn encode_downstream(encoding: Encoding, message: &Downstream, out: &mut BytesMut) {
    let (opcode, payload) = match encoding {
        Encoding::Json => (Opcode::Text, json::encode_downstream(message)),
        Encoding::Protobuf => (Opcode::Binary, protobuf::encode_downstream(message)),
        Encoding::Raw => return,
    };
    write_frame_header(opcode, payload.len(), out);
    out.extend_from_slice(&payload);
}

/// Encodes the part of a message that all its receivers of one encoding share.
pub fn encode_message(encoding: Encoding, message: &Message) -> SharedBody {
    match encoding {
        Encoding::Json => json::encode_message(message),
        Encoding::Protobuf => protobuf::encode_message(message),
        Encoding::Raw => raw::encode_message(message),
    }
}
