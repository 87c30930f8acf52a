//! One place that picks the codec for an encoding.

use bytes::{Bytes, BytesMut};

use super::{DecodeError, Downstream, Encoding, Message, Received, SharedBody, Upstream, json};

/// The kind of a WebSocket data frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// UTF-8 text.
    Text,
    /// Bytes.
    Binary,
}

/// Decodes one message from a client.
pub fn decode_upstream(encoding: Encoding, kind: FrameKind, data: &Bytes) -> Result<Upstream, DecodeError> {
    let _ = (encoding, kind);
    json::decode_upstream(data)
}

/// Decodes one message from the gateway, as clients do.
pub fn decode_downstream(encoding: Encoding, kind: FrameKind, data: &Bytes) -> Result<Received, DecodeError> {
    let _ = (encoding, kind);
    json::decode_downstream(data)
}

/// Encodes a request, as clients do.
pub fn encode_upstream(encoding: Encoding, message: &Upstream) -> Bytes {
    let _ = encoding;
    json::encode_upstream(message)
}

/// Appends one whole frame with a message that has no sequence id. Raw clients get none: nothing is appended.
pub fn encode_downstream(encoding: Encoding, message: &Downstream, out: &mut BytesMut) {
    let _ = encoding;
    json::encode_downstream(message, out);
}

/// Encodes the part of a message that all its receivers of one encoding share.
pub fn encode_message(encoding: Encoding, message: &Message) -> SharedBody {
    SharedBody::new(encoding, super::Opcode::Text, json::encode_message(message))
}
