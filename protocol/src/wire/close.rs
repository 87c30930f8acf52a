//! Close codes and the reasons beside them.

use super::limits::CLOSE_REASON_BYTES_MAX;

/// Close codes that the gateway sends. Official clients take 1008 as "no recovery, connect anew"; after every other
/// code a reliable client tries to recover first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CloseCode {
    /// Closed by the application, or the answer to the client's own close.
    Normal = 1000,
    /// The gateway shuts down; sessions stay.
    GoingAway = 1001,
    /// Broken framing.
    ProtocolError = 1002,
    /// Binary where the subprotocol wants text, or the reverse.
    WrongFrameType = 1003,
    /// Not a valid message of the subprotocol.
    InvalidMessage = 1007,
    /// Recovery refused, outbox overflow, raw publish without permission.
    PolicyViolation = 1008,
    /// A message over the size limit.
    MessageTooLarge = 1009,
    /// An event failed, or a raw client's frame could not be stored.
    InternalError = 1011,
    /// The gateway is short of memory; the client may come back at once.
    TryAgainLater = 1013,
}

/// A close frame to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Close {
    /// The code.
    pub code: CloseCode,
    /// Text for people, at most [`CLOSE_REASON_BYTES_MAX`] bytes.
    pub reason: &'static str,
}

impl Close {
    const fn new(code: CloseCode, reason: &'static str) -> Self {
        assert!(reason.len() <= CLOSE_REASON_BYTES_MAX);
        Self { code, reason }
    }

    /// The gateway shuts down; the client may resume elsewhere or later.
    pub const GOING_AWAY: Self = Self::new(CloseCode::GoingAway, "The server is shutting down.");
    /// Frames that break RFC 6455.
    pub const BROKEN_FRAMING: Self = Self::new(CloseCode::ProtocolError, "The client frame is invalid.");
    /// A binary frame on a JSON subprotocol.
    pub const JSON_WANTS_TEXT: Self =
        Self::new(CloseCode::WrongFrameType, "The JSON subprotocol requires text messages.");
    /// A text frame on a protobuf subprotocol.
    pub const PROTOBUF_WANTS_BINARY: Self = Self::new(
        CloseCode::WrongFrameType,
        "The protobuf.webpubsub.azure.v1 subprotocol requires binary messages.",
    );
    /// A message that is no valid JSON protocol message.
    pub const INVALID_JSON_MESSAGE: Self =
        Self::new(CloseCode::InvalidMessage, "The client message is not a valid JSON protocol message.");
    /// A message that is no valid protobuf protocol message.
    pub const INVALID_PROTOBUF_MESSAGE: Self = Self::new(
        CloseCode::InvalidMessage,
        "The client message is not a valid protobuf.webpubsub.azure.v1 protocol message.",
    );
    /// Text that is not UTF-8, from a client without a subprotocol.
    pub const INVALID_TEXT: Self =
        Self::new(CloseCode::InvalidMessage, "The client message is not valid UTF-8.");
    /// A recovery that can never succeed.
    pub const RECOVERY_REFUSED: Self =
        Self::new(CloseCode::PolicyViolation, "The connection could not be recovered.");
    /// Too much is waiting for the client's sequence acks.
    pub const OUTBOX_FULL: Self =
        Self::new(CloseCode::PolicyViolation, "The reliable message buffer is full.");
    /// A client that reads too slowly, on a subprotocol that cannot be recovered.
    pub const SLOW_CONSUMER: Self =
        Self::new(CloseCode::PolicyViolation, "The outbound message queue is full.");
    /// The session held most of what the gateway's memory is short of.
    pub const SHORT_OF_MEMORY: Self =
        Self::new(CloseCode::PolicyViolation, "The gateway is short of memory.");
    /// A raw client that may not publish to its group.
    pub const RAW_SEND_FORBIDDEN: Self =
        Self::new(CloseCode::PolicyViolation, "The connection is not authorized for raw sendToGroup mode.");
    /// A message over the size limit.
    pub const MESSAGE_TOO_LARGE: Self =
        Self::new(CloseCode::MessageTooLarge, "The client message is too large.");
    /// Something of a client was not executed that it can only be told by closing.
    pub const INTERNAL_ERROR: Self = Self::new(CloseCode::InternalError, "Internal server error");
    /// An event that no event handler takes.
    pub const EVENT_NOT_TAKEN: Self =
        Self::new(CloseCode::InternalError, "No event handler of the hub takes this event.");
    /// An event whose handler has too many under way.
    pub const EVENT_HANDLER_BUSY: Self =
        Self::new(CloseCode::InternalError, "The event handler is busy. The event was not handled.");
    /// An event whose handler failed.
    pub const EVENT_FAILED: Self =
        Self::new(CloseCode::InternalError, "The event handler failed. The event was not handled.");
    /// Memory is short, and the socket holds much of a message that has not come in whole.
    pub const NO_ROOM_FOR_MESSAGE: Self =
        Self::new(CloseCode::TryAgainLater, "The gateway has no room for the message now. Send it again.");
    /// A raw client's frame that is not in the log.
    pub const NOT_STORED: Self = Self::new(CloseCode::InternalError, "The message could not be stored.");
    /// The session ended for a reason of the application.
    pub const NORMAL: Self = Self::new(CloseCode::Normal, "");
}
