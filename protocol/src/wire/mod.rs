//! Bytes to typed messages and back, limits, error names and close codes.
//!
//! Messages are modelled once ([`Upstream`], [`Downstream`], [`Message`]); each encoding is a further codec over
//! them. This module does not know sessions, or who is connected.
//!
//! Source of the facts: the Web PubSub client specification, its JSON and protobuf subprotocol references, and the
//! behaviour of the official clients.

mod close;
mod codec;
mod error;
mod frame;
mod json;
pub mod limits;
mod memory;
mod message;
mod names;
mod payload;
mod protobuf;
pub mod raw;
mod shared_body;
mod subprotocol;

pub use close::{Close, CloseCode};
pub use codec::{
    FrameKind, decode_downstream, decode_upstream, encode_downstream, encode_message, encode_upstream,
};
pub use error::{AckError, DecodeError, ErrorName};
pub use frame::{Opcode, frame_header_bytes, write_frame_header};
pub use memory::allocated;
pub use message::{AckId, Downstream, Message, Received, ReconnectionToken, Sender, SequenceId, Upstream};
#[cfg(test)]
pub use names::names_read;
pub use names::{ConnectionId, EventName, GroupName, HubName, NameError, UserId};
pub use payload::{Metadata, MetadataBuilder, MetadataError, Payload, PayloadKind};
pub use shared_body::{MessageRest, SharedBody};
pub use subprotocol::{Encoding, Subprotocol, negotiate};
