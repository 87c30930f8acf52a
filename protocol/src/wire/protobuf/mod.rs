//! The protobuf subprotocols: one protobuf message per binary frame.
//!
//! Users do not travel in this encoding: receivers of a message can't see who sent it.

mod decode;
mod encode;
#[rustfmt::skip]
mod generated;
#[cfg(test)]
mod tests;

pub(super) use decode::{decode_downstream, decode_upstream};
pub(super) use encode::{encode_downstream, encode_message, encode_upstream};

use bytes::Bytes;
use prost::Message as _;

/// Whether these bytes are a serialised `google.protobuf.Any`, and may stand where the schema has one.
fn is_any(bytes: &Bytes) -> bool {
    generated::Any::decode(bytes.clone()).is_ok()
}
