//! The JSON subprotocols: one JSON object per text frame.
//!
//! Decoding never builds a tree: one pass over an object notes where the protocol's properties stand, and only what
//! the message's type asks for is looked into. JSON payloads are kept and sent verbatim.

mod decode;
mod encode;
mod object;
#[cfg(test)]
mod tests;

pub(super) use decode::{decode_downstream, decode_upstream};
pub(super) use encode::{encode_downstream, encode_message, encode_upstream};
pub(super) use object::{is_document, is_payload};

use super::PayloadKind;

/// A payload's `dataType`; upstream it is matched without regard to case.
const fn data_type(kind: PayloadKind) -> &'static str {
    match kind {
        PayloadKind::Text => "text",
        PayloadKind::Json => "json",
        PayloadKind::Binary => "binary",
        PayloadKind::Any => "protobuf",
    }
}
