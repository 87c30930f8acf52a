//! The JSON subprotocols.
use super::*;
use bytes::{Bytes, BytesMut};
pub(super) fn decode_upstream(_: &Bytes) -> Result<Upstream, DecodeError> {
    Err(DecodeError::NotAMessage)
}
pub(super) fn decode_downstream(_: &Bytes) -> Result<Received, DecodeError> {
    Err(DecodeError::NotAMessage)
}
pub(super) fn encode_upstream(_: &Upstream) -> Bytes {
    Bytes::new()
}
pub(super) fn encode_downstream(_: &Downstream, _: &mut BytesMut) {}
pub(super) fn encode_message(_: &Message) -> Bytes {
    Bytes::new()
}
