//! What goes into a shard and what comes out.

use std::sync::Arc;

use super::commands::MEMBERSHIPS_PER_REQUEST_MAX;
use super::{CallId, Command, Connected, Done, EventError, Handled, SessionKey, UserEvent};
use crate::log::{
    BootId, Certainty, Disconnected, EndReason, HandlerState, Offset, Record, Refusal, SessionIdentity,
};
use crate::session::{AttachEpoch, PermissionError, Request, SharedOutbox};
use crate::wire::{Close, ConnectionId, GroupName, ReconnectionToken, Subprotocol, Upstream, UserId};

/// The driver's name for a socket that waits to be attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpenId(pub u64);

/// The driver's name for a command of the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(pub u64);

/// Names an append while its outcome is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AppendId {
    /// A session's batch of requests.
    Batch {
        /// The session.
        session: SessionKey,
        /// The batch's number within the session.
        number: u64,
    },
    /// A single record of the owner, by its counter.
    Proposal(u64),
    /// A record of marks, by its counter.
    Marks(u64),
}

/// A session as one socket holds it. Once another socket is attached it means nothing any more (R6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionHandle {
    /// The session.
    pub key: SessionKey,
    /// The socket's place in the line of the session's sockets.
    pub epoch: AttachEpoch,
}

/// What a socket gets when it is attached.
#[derive(Debug, Clone)]
pub struct Attachment {
    /// For further inputs.
    pub session: SessionHandle,
    /// To pull from.
    pub outbox: SharedOutbox,
}

impl Attachment {
    /// Handles at once what needs no log: pings and sequence acks. Gives everything else back for
    /// [`Input::Requests`].
    pub fn receive(&self, message: Upstream) -> Option<Upstream> {
        match message {
            Upstream::Ping => {
                let writer = self.outbox.lock().pong(self.session.epoch);
                if let Some(writer) = writer {
                    writer.wake();
                }
                None
            }
            Upstream::SequenceAck { sequence_id } => {
                self.outbox.lock().sequence_ack(self.session.epoch, sequence_id);
                None
            }
            request => Some(request),
        }
    }
}

/// A socket that begins a session.
#[derive(Debug)]
pub struct Opening {
    /// The driver's name for it.
    pub open: OpenId,
    /// The session.
    pub session: NewSession,
}

/// What a socket brings that begins a session.
#[derive(Debug)]
pub struct NewSession {
    /// Who it is.
    pub identity: SessionIdentity,
    /// Roles as the access token spells them.
    pub roles: Vec<String>,
    /// Groups to be in from the start.
    pub groups: Vec<GroupName>,
    /// Proof for recoveries; for reliable subprotocols.
    pub reconnection_token: Option<ReconnectionToken>,
    /// What the application's `connect` handler has noted.
    pub state: Option<HandlerState>,
}

/// A socket that resumes a session. Its reconnection token has been verified.
#[derive(Debug)]
pub struct Resuming {
    /// The driver's name for it.
    pub open: OpenId,
    /// The session.
    pub connection_id: ConnectionId,
    /// What the socket would speak; must be the session's own.
    pub subprotocol: Subprotocol,
    /// Whether it has waited as it was told to.
    pub has_waited: bool,
}

/// How a socket ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketEnd {
    /// Dropped or silent: the client may come back.
    Lost,
    /// Closed by the client with any code but 1000, or with none: it may come back.
    Closed,
    /// Closed by the client with code 1000.
    ClosedForGood,
    /// The client broke the protocol; the socket is to be closed in this way.
    Violation(Close),
}

/// One thing that happens to a shard.
#[derive(Debug)]
pub enum Input {
    /// A socket begins a session; answered by [`Output::Opened`].
    Open(Box<Opening>),
    /// A socket resumes a session; answered by [`Output::Opened`].
    Resume(Resuming),
    /// All requests of one read, in order.
    Requests {
        /// From whom.
        session: SessionHandle,
        /// What [`Attachment::receive`] gave back.
        requests: Vec<Request>,
    },
    /// A socket ended.
    SocketClosed {
        /// Whose.
        session: SessionHandle,
        /// How.
        end: SocketEnd,
    },
    /// The application asks for something; answered by [`Output::CommandDone`].
    Command(Box<Command>),
    /// An event handler has answered, or failed.
    Called {
        /// What [`Output::Call`] named.
        call: CallId,
        /// The answer.
        answer: Result<Handled, EventError>,
    },
    /// The application has been told that these sessions are over.
    Told(Vec<ConnectionId>),
    /// Whether a handler of the application takes `disconnected` events from now on.
    TakesDisconnected(bool),
    /// [`Shard::poll_acknowledged`](super::Shard::poll_acknowledged) has completed.
    Acknowledged,
    /// The process is about to end, and the log with it: every session is over.
    Stop,
    /// The process is about to end, and the log outlives it: what clients have acknowledged is to be there.
    Leave,
    /// Records from the log, in its order, none left out. They go behind those that wait. A driver brings none while some do
    /// (see [`Shard::has_waiting`](super::Shard::has_waiting)): that bounds what waits.
    Records(Vec<(Offset, Arc<Record>)>),
    /// Others have been served: the records that wait may go on.
    GoOn,
    /// An append failed. One that succeeds is not reported: its records come back.
    AppendFailed {
        /// Which.
        append: AppendId,
        /// Whether it may have happened.
        certainty: Certainty,
    },
    /// Another boot is gone, as far as can be told: it is to be so for everybody. Of no effect if it is not live.
    Gone(BootId),
    /// The time of [`Shard::poll_timeout`](super::Shard::poll_timeout) has come.
    Timeout,
}

/// Why a socket was not attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The recovery can never succeed (R10).
    #[error("the connection cannot be recovered")]
    Refused,
    /// It cannot be decided or stored now; the client may try again.
    #[error("the hub is not available now")]
    Unavailable,
    /// There are as many sessions as there may be, or they fill the memory that they may; a client may try again.
    #[error("there is no room for another session")]
    Full,
    /// The client has come back in vain several times in a row: it has to wait, and is to be asked for again then.
    #[error("the client has to wait for {ms} ms")]
    TooEarly {
        /// How long, in milliseconds. The session is kept by as much longer.
        ms: u64,
        /// Whether it is the first of this row that has to wait.
        is_first: bool,
        /// Payload and metadata of the first message that it has not acknowledged, in bytes.
        first_message_bytes: usize,
    },
    /// More groups than a session may be in, or longer names.
    #[error("too many groups")]
    TooManyGroups,
}

/// Why a command was not carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// No such session.
    #[error("no such connection")]
    UnknownConnection,
    /// A user without a session.
    #[error("no such user")]
    UnknownUser,
    /// The session's rules are at their bound.
    #[error(transparent)]
    Permission(#[from] PermissionError),
    /// A session would be in more groups than it may be in, or in groups with longer names.
    #[error("a connection would be in too many groups")]
    TooManyGroups,
    /// It would put more sessions into more groups than one request may.
    #[error("more than {MEMBERSHIPS_PER_REQUEST_MAX} memberships by one request")]
    TooManyMemberships,
    /// Another request was executed under the same id.
    #[error("another request was executed under this id")]
    OtherRequest,
    /// The request was first sent so long ago that it may have been executed and forgotten.
    #[error("it may have been executed before, which is forgotten")]
    PerhapsForgotten,
    /// It could not be stored; it may be tried again.
    #[error("the hub is not available now")]
    Unavailable,
}

impl From<Refusal> for CommandError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::UnknownConnection => Self::UnknownConnection,
            Refusal::UnknownUser => Self::UnknownUser,
            Refusal::TooManyRules => Self::Permission(PermissionError::TooManyRules),
            Refusal::TooManyGroups => Self::TooManyGroups,
        }
    }
}

/// That a session of this shard is over, for those who watch over the gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionEnded {
    /// The session.
    pub connection_id: ConnectionId,
    /// Whom it acted for.
    pub user_id: Option<UserId>,
    /// Why; none when this boot has found it as one that can't be resumed.
    pub reason: Option<EndReason>,
}

/// One thing for the driver to do.
#[derive(Debug)]
pub enum Output {
    /// Append these records, in this order, after all earlier ones.
    Append {
        /// For [`Input::AppendFailed`].
        append: AppendId,
        /// At least one.
        records: Vec<Arc<Record>>,
    },
    /// A socket was attached, or was not.
    Opened {
        /// The driver's name for it.
        open: OpenId,
        /// The outcome.
        outcome: Result<Attachment, OpenError>,
    },
    /// Have a user event handled; answered by [`Input::Called`].
    Call {
        /// Names the call.
        call: CallId,
        /// The event.
        event: Box<UserEvent>,
    },
    /// Tell the application that a session has begun.
    Connected(Box<Connected>),
    /// Tell the application that a session is over; answered by [`Input::Told`], whenever that is.
    Disconnected(Box<Disconnected>),
    /// The record that begins this boot has come back without effect: somebody else has taken the node's name meanwhile, or
    /// given it up. Another one has to be appended, which has seen that.
    StartTooLate,
    /// This boot is gone, by the log: nothing that it appends counts any more. The process has to end.
    Gone,
    /// Tell that a session is over. A log that is folded again does not tell it again.
    Ended(Box<SessionEnded>),
    /// A command was carried out, or was not.
    CommandDone {
        /// The driver's name for it.
        command: CommandId,
        /// The outcome.
        outcome: Result<Done, CommandError>,
    },
}
