//! Error names on the wire, and what makes a frame undecodable.

use super::{Close, Encoding, MetadataError, NameError};

/// The `name` of an error towards a client. Clients treat `Duplicate` as success; they must not parse the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorName {
    /// This ack id was already executed on this session.
    Duplicate,
    /// A permission is missing.
    Forbidden,
    /// A failure that may pass: the same request with the same ack id may be tried again.
    InternalServerError,
    /// The ack id was used for another request; this one was not executed. Our own addition: a silent loss made
    /// visible.
    PayloadMismatch,
    /// A request that the gateway does not offer, or that breaks a limit.
    BadRequest,
}

impl ErrorName {
    /// The spelling on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Duplicate => "Duplicate",
            Self::Forbidden => "Forbidden",
            Self::InternalServerError => "InternalServerError",
            Self::PayloadMismatch => "PayloadMismatch",
            Self::BadRequest => "BadRequest",
        }
    }

    /// Reads the spelling on the wire. A name that this version does not know counts as a failure that may pass, as it
    /// does to the official clients.
    pub fn from_wire(name: &str) -> Self {
        [Self::Duplicate, Self::Forbidden, Self::PayloadMismatch, Self::BadRequest]
            .into_iter()
            .find(|known| known.as_str() == name)
            .unwrap_or(Self::InternalServerError)
    }
}

/// The error of an ack or an answer: a name for programs, a text for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AckError {
    /// For programs.
    pub name: ErrorName,
    /// For people.
    pub message: String,
}

/// Why a frame is not a message of its subprotocol. Each ends the session with [`DecodeError::close`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A binary frame on a JSON subprotocol.
    #[error("the JSON subprotocols take text frames only")]
    JsonWantsText,
    /// A text frame on a protobuf subprotocol.
    #[error("the protobuf subprotocols take binary frames only")]
    ProtobufWantsBinary,
    /// Bytes that are no message of the encoding: not protobuf, not UTF-8, or not a JSON object with a string `type`.
    #[error("not a message of the subprotocol")]
    NotAMessage,
    /// A `type` that the subprotocol does not have.
    #[error("unknown message type")]
    UnknownType,
    /// A property that is missing or of a wrong type; the name is the protocol's, never the client's text.
    #[error("property `{0}` is missing or invalid")]
    Property(&'static str),
    /// A group's or event's name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Metadata.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
}

impl DecodeError {
    /// The close frame that answers it: 1003 for a wrong frame kind, 1007 for everything else.
    pub fn close(&self, encoding: Encoding) -> Close {
        match (self, encoding) {
            (Self::JsonWantsText, _) => Close::JSON_WANTS_TEXT,
            (Self::ProtobufWantsBinary, _) => Close::PROTOBUF_WANTS_BINARY,
            (_, Encoding::Json) => Close::INVALID_JSON_MESSAGE,
            (_, Encoding::Protobuf) => Close::INVALID_PROTOBUF_MESSAGE,
            (_, Encoding::Raw) => Close::INVALID_TEXT,
        }
    }
}
