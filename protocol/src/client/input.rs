//! What goes into a client and what comes out.

use bytes::Bytes;

use crate::wire::{
    AckError, AckId, ConnectionId, DecodeError, Downstream, FrameKind, GroupName, Message, Received,
    ReconnectionToken, SequenceId, UserId,
};

/// Milliseconds on the client's own clock, from any start. The caller brings it in; it must not go backwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ClientTime(pub u64);

impl ClientTime {
    /// The time this many milliseconds later.
    pub fn plus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }
}

/// One of a client's sockets, by the attempt that made it. What comes from any but the newest is ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketId(pub u64);

/// One data frame, whole. `Debug` shows the size, never the content.
#[derive(Clone, PartialEq, Eq)]
pub struct Frame {
    /// Text or binary.
    pub kind: FrameKind,
    /// The message.
    pub data: Bytes,
}

impl std::fmt::Debug for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Frame({:?}, {} bytes)", self.kind, self.data.len())
    }
}

/// What a recovery proves itself with: the query parameters `awps_connection_id` and `awps_reconnection_token`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovery {
    /// The session.
    pub connection_id: ConnectionId,
    /// Its newest token.
    pub reconnection_token: ReconnectionToken,
}

/// One thing that happens to a client.
#[derive(Debug, Clone)]
pub enum Input {
    /// The application wants to be connected. Changes nothing for a client that is, or tries to be.
    Start,
    /// The application wants to be so no longer. All requests without an outcome get one.
    Stop,
    /// The WebSocket handshake succeeded.
    Opened {
        /// Of which attempt.
        socket: SocketId,
    },
    /// The attempt failed before the socket was open. The HTTP status, if there was one, makes no difference: a
    /// recovery that can never succeed is refused with close code 1008.
    ConnectFailed {
        /// Which.
        socket: SocketId,
    },
    /// A data frame arrived.
    Frame {
        /// On which socket.
        socket: SocketId,
        /// The frame.
        frame: Frame,
    },
    /// A data frame arrived that the caller has decoded.
    Received {
        /// On which socket.
        socket: SocketId,
        /// The message.
        received: Received,
    },
    /// The socket is gone.
    Closed {
        /// Which.
        socket: SocketId,
        /// The code of the gateway's close frame; `None` without a frame, or with a frame without a code.
        code: Option<u16>,
    },
    /// The time of [`Client::poll_timeout`](super::Client::poll_timeout) has come.
    Timeout,
}

/// One thing for the driver or the application to do or to know.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// Open a socket; answered by [`Input::Opened`] or [`Input::ConnectFailed`].
    Connect {
        /// The attempt.
        socket: SocketId,
        /// Which session to recover; `None` opens a new one.
        recovery: Option<Recovery>,
    },
    /// Write a frame.
    Send {
        /// To the open socket.
        socket: SocketId,
        /// The frame.
        frame: Frame,
    },
    /// Close the socket, or give up its attempt. The client takes it as gone already.
    CloseSocket {
        /// Which.
        socket: SocketId,
        /// The code to send; `None` sends a close frame without a code.
        code: Option<u16>,
    },
    /// A new session has begun.
    Connected {
        /// Its name.
        connection_id: ConnectionId,
        /// Whom it acts for.
        user_id: Option<UserId>,
    },
    /// The socket of a recovery is open and the requests without an outcome have been sent again. A gateway that
    /// refuses the recovery closes this socket with 1008; then [`Output::SessionLost`] follows.
    Recovered,
    /// The session can't be recovered. Unless the client was stopped it goes on to open a new one.
    SessionLost {
        /// Its name.
        connection_id: ConnectionId,
    },
    /// A message, for the first time.
    Deliver {
        /// The message.
        message: Message,
        /// Its place in the session's deliveries; on reliable subprotocols only.
        sequence_id: Option<SequenceId>,
    },
    /// What became of a request with an ack id. Each such request gets exactly one outcome.
    Outcome {
        /// The request's ack id.
        ack_id: AckId,
        /// What became of it.
        outcome: Outcome,
    },
    /// A group could not be joined again in a new session; it is not tried again.
    RejoinFailed {
        /// The group.
        group: GroupName,
        /// Why; `None` when no answer came.
        error: Option<AckError>,
    },
    /// The gateway announces that it closes on purpose.
    Disconnected {
        /// Why, for people.
        message: String,
    },
    /// An answer that the client keeps no account of: to an invocation or about a stream.
    Answer(Downstream),
    /// A frame that is no message of the subprotocol; it was passed over.
    Undecodable(DecodeError),
}

/// What became of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Executed.
    Done,
    /// Executed earlier, with the same ack id; a success.
    Duplicate,
    /// Asking again in the same way is of no use, or has been tried often enough.
    Refused {
        /// Why.
        error: AckError,
        /// Whether it may have been executed all the same: it was sent more than once, and this answers only one of
        /// the copies.
        may_have_happened: bool,
    },
    /// Sent, but no answer came: it may have been executed, or may not.
    Unknown,
    /// Given up before it was sent, or while it waited to be sent again after a failure; certainly not executed.
    NotExecuted,
}

/// Why a request was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Too many requests, or too many bytes of them, wait for their outcome.
    #[error("too many requests are pending")]
    TooManyPending,
    /// A request with this ack id waits for its outcome.
    #[error("a request with this ack id is pending")]
    AckIdPending,
    /// A request without an ack id can't wait for a session.
    #[error("there is no session to send to")]
    NotConnected,
    /// More groups than the client remembers for joining them again.
    #[error("too many groups")]
    TooManyGroups,
}
