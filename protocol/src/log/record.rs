//! The records of a hub's log.

use super::{
    BootId, Fingerprint, HandlerReply, HandlerState, IdempotencyKey, NodeGone, NodeStarted, Offset, Refusal,
    Release, Selection, SessionIdentity, Time,
};
use crate::wire::{AckId, ConnectionId, GroupName, Metadata, Payload, SequenceId, Subprotocol, UserId};

/// One change of shared state. It takes effect when it comes back from the log with its offset.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Makes a repeated append recognisable (R8).
    pub key: Key,
    /// Stamped by the proposer; among the records of one shard and boot it never decreases.
    pub time: Time,
    /// A mark for the session: its client needs no more of what was delivered up to this id.
    pub sequence_ack: Option<SequenceId>,
    /// What happened.
    pub body: Body,
}

/// Names a record, so that the fold passes over its second copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// Names the append: a retry of it carries the same.
    pub boot: BootKey,
    /// Names the request that the record executes, when it had an ack id: a resend by the client carries the same.
    pub ack: Option<AckKey>,
    /// Names the request of the application that the record executes, when it had an id: a repetition carries the same.
    pub request: Option<IdempotencyKey>,
}

/// A request with an ack id; unique within the body's session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AckKey {
    /// The publisher's name for the request.
    pub ack_id: AckId,
    /// Tells a resend of the request from another request under the same id.
    pub fingerprint: Fingerprint,
}

/// A counter of one boot and shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BootKey {
    /// The gateway's start.
    pub boot: BootId,
    /// The proposing shard.
    pub shard: u16,
    /// Never used twice by that shard in that boot.
    pub counter: u64,
    /// When the record was proposed, the outcome of every smaller counter was known. It bounds what the fold has to
    /// remember: a counter below is a late copy.
    pub settled_below: u64,
}

/// What a record says.
#[derive(Debug, Clone, PartialEq)]
pub enum Body {
    /// The gateway started. Ends the sessions of earlier boots that are not reliable and detaches the others.
    Booted {
        /// Whether the application is to be told of each that ends.
        takes_disconnected: bool,
        /// Whether all sessions end: the log is a copy, and they may have gone on elsewhere (R12).
        ends_all: bool,
    },
    /// A session begins.
    Opened(Opened),
    /// A session joins groups.
    Joined {
        /// The session.
        connection_id: ConnectionId,
        /// At least one.
        groups: Vec<GroupName>,
    },
    /// A session leaves groups.
    Left {
        /// The session.
        connection_id: ConnectionId,
        /// At least one.
        groups: Vec<GroupName>,
    },
    /// A message is published.
    Published(Published),
    /// A session may do something with a group from now on.
    Granted {
        /// The session.
        connection_id: ConnectionId,
        /// What it may do.
        permission: Permission,
        /// With which group, taken literally.
        group: GroupName,
    },
    /// A session may no longer do something with a group.
    Revoked {
        /// The session.
        connection_id: ConnectionId,
        /// What it may not do.
        permission: Permission,
        /// With which group, taken literally.
        group: GroupName,
    },
    /// A session is over, for ever.
    Ended {
        /// The session.
        connection_id: ConnectionId,
        /// Why.
        reason: EndReason,
        /// The number of its `disconnected` event, when the application is to be told.
        disconnected: Option<u64>,
        /// Of an end that no client was told of, in a log that several share: the session's last attachment. It counts only
        /// while that is the last one.
        attached: Option<Offset>,
    },
    /// The application sends a message.
    Sent(Sent),
    /// The application puts sessions into groups.
    Added {
        /// The sessions.
        selection: Selection,
        /// At least one.
        groups: Vec<GroupName>,
    },
    /// The application takes sessions out of groups.
    Removed {
        /// The sessions.
        selection: Selection,
        /// All that they are in when there is none.
        groups: Vec<GroupName>,
    },
    /// The application closes sessions: they are over, for ever.
    Closed {
        /// The sessions.
        selection: Selection,
        /// Why, for their clients; may be empty.
        reason: String,
        /// Whether the application is to be told of each.
        takes_disconnected: bool,
    },
    /// An event handler has handled a user event of a session.
    Handled {
        /// The session.
        connection_id: ConnectionId,
        /// What it gave back to the session, if anything.
        reply: Option<HandlerReply>,
        /// What it notes about the session from now on; none leaves it as it is.
        state: Option<HandlerState>,
    },
    /// What sessions' clients need no more of what was delivered to them.
    Acked {
        /// At least one, sorted by session.
        marks: Vec<SequenceMark>,
    },
    /// The application has been told that sessions are over.
    Told {
        /// The sessions, at least one.
        connection_ids: Vec<ConnectionId>,
    },
    /// A gateway takes part in the log from here on.
    NodeStarted(NodeStarted),
    /// A start of a gateway is over.
    NodeGone(NodeGone),
    /// The proposer holds a session from here on. Of no effect if there is none, or it can't be resumed so.
    Attached {
        /// The session.
        connection_id: ConnectionId,
        /// What its socket speaks; must be the session's own.
        subprotocol: Subprotocol,
    },
    /// The proposer, who spoke for these sessions until here, has nothing in flight for them.
    Released {
        /// At least one.
        releases: Vec<Release>,
    },
    /// A repeatable request of the application was refused. Nothing changes but that its repetition is answered so too.
    Refused(Refusal),
}

/// A sequence ack in the log: all that was delivered to a session up to this id was acknowledged, or expired unsent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SequenceMark {
    /// The session's number: the offset of its `Opened` record.
    pub session: Offset,
    /// The id before its first unacknowledged message.
    pub sequence_id: SequenceId,
}

/// Everything a session starts with. Bounds that the fold depends on are part of it, so that a changed
/// configuration never changes what an old log means.
#[derive(Debug, Clone, PartialEq)]
pub struct Opened {
    /// Who it is.
    pub identity: SessionIdentity,
    /// Roles as the access token spells them.
    pub roles: Vec<String>,
    /// Groups it is in from the start.
    pub groups: Vec<GroupName>,
    /// How many executed ack ids the session remembers.
    pub ack_window_ids: u32,
    /// How long it waits for its client while detached, in seconds.
    pub retention_seconds: u32,
    /// What the application's `connect` handler has noted about it.
    pub state: Option<HandlerState>,
}

/// A message and whom it is for.
#[derive(Debug, Clone, PartialEq)]
pub struct Published {
    /// The publishing session; none when the application publishes.
    pub publisher: Option<ConnectionId>,
    /// The publisher's user.
    pub user_id: Option<UserId>,
    /// Groups that receive it; a session in several of them receives it once for each.
    pub groups: Vec<GroupName>,
    /// Whether the publishing session is left out.
    pub no_echo: bool,
    /// From the record's time on, in seconds; 0 is no limit.
    pub ttl_seconds: u16,
    /// What is published.
    pub payload: Payload,
    /// Travels beside the payload.
    pub metadata: Metadata,
}

/// A message of the application.
#[derive(Debug, Clone, PartialEq)]
pub struct Sent {
    /// Who receives it.
    pub selection: Selection,
    /// From the record's time on, in seconds; 0 is no limit.
    pub ttl_seconds: u16,
    /// What is sent.
    pub payload: Payload,
    /// Travels beside the payload.
    pub metadata: Metadata,
}

/// What a session may do with a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Permission {
    /// Join and leave it.
    JoinLeaveGroup,
    /// Publish to it.
    SendToGroup,
}

/// Why a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    /// Its client closed for good, or the socket of a session that is not reliable went away.
    ClientClosed,
    /// Its client broke the protocol, or something of its was not executed that it can only be told by closing.
    ProtocolViolation,
    /// Too much was waiting for its client.
    OutboxFull,
    /// Its client did not come back in time.
    Expired,
    /// The process had to free memory and this session held most of it.
    Shed,
    /// The application closed it.
    ClosedByApplication,
    /// The gateway stopped, and its log with it.
    Stopped,
}

impl Body {
    /// Why a request was refused, where the record says so.
    pub fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::Refused(refusal) => Some(*refusal),
            _ => None,
        }
    }

    /// The session that a record belongs to; none for what concerns the whole hub or a selection.
    pub fn connection_id(&self) -> Option<&ConnectionId> {
        match self {
            Self::Booted { .. }
            | Self::Sent(_)
            | Self::Added { .. }
            | Self::Removed { .. }
            | Self::Closed { .. }
            | Self::Acked { .. }
            | Self::Told { .. }
            | Self::NodeStarted(_)
            | Self::NodeGone(_)
            | Self::Released { .. }
            | Self::Refused(_) => None,
            Self::Opened(opened) => Some(&opened.identity.connection_id),
            Self::Published(published) => published.publisher.as_ref(),
            Self::Joined { connection_id, .. }
            | Self::Left { connection_id, .. }
            | Self::Granted { connection_id, .. }
            | Self::Revoked { connection_id, .. }
            | Self::Handled { connection_id, .. }
            | Self::Attached { connection_id, .. }
            | Self::Ended { connection_id, .. } => Some(connection_id),
        }
    }
}
