//! The protocol's messages, the same for every encoding.

use super::{AckError, ConnectionId, EventName, GroupName, Metadata, Payload, UserId};

/// A publisher's name for one request; any `u64`, 0 included, unique within its session.
pub type AckId = u64;

/// Position of a message in one session's deliveries: from 1, strictly increasing, below 2^53.
pub type SequenceId = u64;

/// What a client sends.
#[derive(Debug, Clone, PartialEq)]
pub enum Upstream {
    /// Join a group.
    JoinGroup {
        /// The group.
        group: GroupName,
        /// Present when an ack is wanted.
        ack_id: Option<AckId>,
    },
    /// Leave a group.
    LeaveGroup {
        /// The group.
        group: GroupName,
        /// Present when an ack is wanted.
        ack_id: Option<AckId>,
    },
    /// Publish to a group.
    SendToGroup {
        /// The group.
        group: GroupName,
        /// What to publish.
        payload: Payload,
        /// Travels beside the payload.
        metadata: Metadata,
        /// Present when an ack is wanted.
        ack_id: Option<AckId>,
        /// Leave out the sending session.
        no_echo: bool,
        /// Time-to-live for receivers that have not acknowledged it, 0 to 300 s; 0 is the service's default.
        ttl_seconds: u16,
    },
    /// A user event for the application's event handler.
    Event {
        /// The event's name.
        event: EventName,
        /// Its payload.
        payload: Payload,
        /// Travels beside the payload.
        metadata: Metadata,
        /// Present when an ack is wanted.
        ack_id: Option<AckId>,
    },
    /// All messages up to this id have arrived.
    SequenceAck {
        /// The largest id seen.
        sequence_id: SequenceId,
    },
    /// Ask for a pong.
    Ping,
    /// Call the event handler and wait for its answer.
    Invoke {
        /// The client's name for the call.
        invocation_id: String,
        /// The event's name.
        event: EventName,
        /// Its payload, when there is one.
        payload: Option<Payload>,
        /// Travels beside the payload.
        metadata: Metadata,
    },
    /// Give up waiting for an invocation.
    CancelInvocation {
        /// The client's name for the call.
        invocation_id: String,
    },
    /// Start, feed or end a stream.
    Stream {
        /// The client's name for the stream.
        stream_id: String,
        /// Where it is published: named by its start only.
        group: Option<GroupName>,
        /// Set when a start carried one.
        ack_id: Option<AckId>,
    },
    /// Set, subscribe to or unsubscribe from a group's state.
    GroupState {
        /// The group.
        group: GroupName,
        /// Present when an ack is wanted.
        ack_id: Option<AckId>,
    },
}

impl Upstream {
    /// The request's ack id, when it wants an ack.
    pub fn ack_id(&self) -> Option<AckId> {
        match self {
            Self::JoinGroup { ack_id, .. }
            | Self::LeaveGroup { ack_id, .. }
            | Self::SendToGroup { ack_id, .. }
            | Self::Event { ack_id, .. }
            | Self::Stream { ack_id, .. }
            | Self::GroupState { ack_id, .. } => *ack_id,
            Self::SequenceAck { .. } | Self::Ping | Self::Invoke { .. } | Self::CancelInvocation { .. } => {
                None
            }
        }
    }
}

/// What the gateway sends to one session beside its messages; none of these has a sequence id.
#[derive(Debug, Clone, PartialEq)]
pub enum Downstream {
    /// First message of a new session.
    Connected {
        /// The session's name.
        connection_id: ConnectionId,
        /// The session's user.
        user_id: Option<UserId>,
        /// Proof for a recovery; reliable subprotocols only.
        reconnection_token: Option<ReconnectionToken>,
    },
    /// The gateway is about to close on purpose.
    Disconnected {
        /// Why, for people.
        message: String,
    },
    /// Outcome of a request with an ack id.
    Ack {
        /// The request's ack id.
        ack_id: AckId,
        /// Absent on success.
        error: Option<AckError>,
    },
    /// Answer to a ping.
    Pong,
    /// Answer to an invocation that failed.
    InvokeFailed {
        /// The client's name for the call.
        invocation_id: String,
        /// What went wrong.
        error: AckError,
    },
    /// A stream that is not, or no longer, open.
    StreamClosed {
        /// The client's name for the stream.
        stream_id: String,
        /// Why.
        error: AckError,
    },
}

/// A secret that travels to its client only: `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct ReconnectionToken(pub String);

impl std::fmt::Debug for ReconnectionToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ReconnectionToken(..)")
    }
}

/// Where a message comes from, as its receivers see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sender {
    /// Published to a group.
    Group {
        /// The group.
        group: GroupName,
        /// The publishing session's user; absent for a session without one and for the application.
        user_id: Option<UserId>,
    },
    /// Sent by the application to everybody, a user or a connection.
    Server,
}

/// A published message, the same for each of its receivers.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Where it comes from.
    pub sender: Sender,
    /// What it carries.
    pub payload: Payload,
    /// Travels beside the payload.
    pub metadata: Metadata,
}

/// What a client receives.
#[derive(Debug, Clone, PartialEq)]
pub enum Received {
    /// A message, with its sequence id on reliable subprotocols.
    Message {
        /// The message.
        message: Message,
        /// Its place in the session's deliveries.
        sequence_id: Option<SequenceId>,
    },
    /// Anything else that this client knows.
    Control(Downstream),
    /// A type that this client does not know; to be ignored.
    Unknown,
}
