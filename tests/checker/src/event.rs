//! What a recorder can write down. The meaning of every field for authors of recorders is in the crate documentation;
//! this module is the shape alone, and judges nothing.

use serde::{Deserialize, Serialize};

/// One observation. `T` is the type of its strings: `String` outside, an index inside a [`crate::History`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event<T = String> {
    /// A new session.
    Opened(Opened<T>),
    /// The session's socket is gone; that says nothing about the session.
    Dropped(Socket<T>),
    /// The session goes on over another socket.
    Resumed(Socket<T>),
    /// The session is over for good.
    Closed(Closed<T>),
    /// A request to join a group, about to be sent (or sent again).
    Join(Membership<T>),
    /// A request to leave a group, about to be sent (or sent again).
    Leave(Membership<T>),
    /// A request to send to a group, about to be sent (or sent again).
    Publish(Publish<T>),
    /// A user event, about to be sent (or sent again).
    UserEvent(UserEvent<T>),
    /// An event handler is called with a user event.
    Called(Called<T>),
    /// An event handler has answered a call, or has failed.
    Handled(Handled<T>),
    /// An event handler is told of a system event, of which the service wants to know no more than that it was heard.
    Notified(Notified<T>),
    /// An ack was read.
    Acked(Acked<T>),
    /// A message frame was read, before the client drops repeated sequence ids.
    Received(Message<T>),
    /// The application got a message, after the client dropped repeated sequence ids.
    Delivered(Message<T>),
    /// A sequence ack, about to be sent.
    SequenceAck(SequenceAck<T>),
    /// From here on everything that has to arrive has arrived.
    Quiesced(Quiesced<T>),
    /// Everything before this happened before everything after an [`Event::Awaited`] of the same name.
    Signal(Signal<T>),
    /// See [`Event::Signal`].
    Awaited(Signal<T>),
    /// Free text for the human reader.
    Note(Note<T>),
}

/// See [`Event::Opened`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Opened<T = String> {
    /// The connection id.
    pub connection: T,
    /// The hub, compared without regard to case.
    pub hub: T,
    /// Whether the session can outlive its socket and has sequence ids.
    pub reliable: bool,
    /// Groups of which the session certainly is a member by now.
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<T>,
    /// Whether the recorder sees every change of socket and the frames in their order.
    #[serde(default, skip_serializing_if = "is_false")]
    pub observes_sockets: bool,
    /// Whether the order of `delivered` lines may differ from the order of arrival.
    #[serde(default, skip_serializing_if = "is_false")]
    pub unordered_callbacks: bool,
}

/// See [`Event::Dropped`] and [`Event::Resumed`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Socket<T = String> {
    /// The connection id.
    pub connection: T,
}

/// See [`Event::Closed`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Closed<T = String> {
    /// The connection id.
    pub connection: T,
    /// The WebSocket close code, where there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<u16>,
    /// The close reason, where there was one.
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    pub reason: Option<T>,
    /// Who ended it, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<ClosedBy>,
}

/// Who ended a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClosedBy {
    /// The service sent a close frame that ends the session: it can't be resumed any more.
    Server,
    /// The client closed or gave up. Its close frame may have been lost, so the service may not know.
    Client,
}

/// See [`Event::Join`] and [`Event::Leave`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Membership<T = String> {
    /// The connection id.
    pub connection: T,
    /// The group.
    pub group: T,
    /// The ack id, if an ack is wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ack_id: Option<u64>,
}

/// See [`Event::Publish`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Publish<T = String> {
    /// The publisher's connection id.
    pub connection: T,
    /// The group.
    pub group: T,
    /// The marker in the payload, unique in the history.
    pub message: T,
    /// The ack id, if an ack is wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ack_id: Option<u64>,
    /// Whether the publishing connection itself is left out.
    #[serde(default, skip_serializing_if = "is_false")]
    pub no_echo: bool,
    /// Seconds after which the message may be dropped; `None` and 0: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u32>,
    /// Which of the publisher's concurrent threads made the request.
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    pub lane: Option<T>,
    /// Milliseconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_ms: Option<u64>,
}

/// See [`Event::UserEvent`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserEvent<T = String> {
    /// The connection id of the client that sends it.
    pub connection: T,
    /// The marker in the payload, unique in the history.
    pub message: T,
    /// The ack id, if an ack is wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ack_id: Option<u64>,
}

/// See [`Event::Called`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Called<T = String> {
    /// The connection id.
    pub connection: T,
    /// The marker in the user event's payload.
    pub message: T,
    /// The event's id (`ce-id`).
    pub id: T,
    /// What the handler is told that handlers have noted about the session (`ce-connectionState`).
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    pub state: Option<T>,
}

/// See [`Event::Handled`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Handled<T = String> {
    /// The connection id.
    pub connection: T,
    /// The marker in the user event's payload.
    pub message: T,
    /// Whether the handler took the event.
    pub success: bool,
    /// The marker in the message that it gives back.
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    pub reply: Option<T>,
    /// What it notes about the session; absent leaves that as it is.
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    pub state: Option<T>,
}

/// See [`Event::Notified`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Notified<T = String> {
    /// The connection id.
    pub connection: T,
    /// `connected` or `disconnected`.
    pub name: T,
    /// The event's id (`ce-id`).
    pub id: T,
    /// See [`Called::state`].
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    pub state: Option<T>,
}

/// See [`Event::Acked`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Acked<T = String> {
    /// The connection id.
    pub connection: T,
    /// The request's ack id.
    pub ack_id: u64,
    /// Whether the request was executed by this very attempt.
    pub success: bool,
    /// The error's name, when `success` is false.
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    pub error: Option<T>,
    /// Whether the error means that the request was certainly not executed; `None`: judged by its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub definite: Option<bool>,
}

/// See [`Event::Received`] and [`Event::Delivered`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Message<T = String> {
    /// The receiver's connection id.
    pub connection: T,
    /// The group in the message.
    pub group: T,
    /// The marker in the payload.
    pub message: T,
    /// The sequence id; a reliable session's messages always have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence_id: Option<u64>,
}

/// See [`Event::SequenceAck`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SequenceAck<T = String> {
    /// The connection id.
    pub connection: T,
    /// The largest sequence id that the client says it has seen.
    pub sequence_id: u64,
}

/// See [`Event::Quiesced`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quiesced<T = String> {
    /// The sessions of which completeness is demanded; `None`: all of this recorder that are open and attached.
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    pub connections: Option<Vec<T>>,
    /// Milliseconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_ms: Option<u64>,
}

/// See [`Event::Signal`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Signal<T = String> {
    /// The signal's name, unique in the history.
    pub name: T,
}

/// See [`Event::Note`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Note<T = String> {
    /// Any text.
    pub text: T,
}

impl<T> Event<T> {
    /// The same event with its strings in another representation.
    pub(crate) fn map<U>(&self, f: &mut impl FnMut(&T) -> U) -> Event<U> {
        match self {
            Self::Opened(e) => Event::Opened(Opened {
                connection: f(&e.connection),
                hub: f(&e.hub),
                reliable: e.reliable,
                groups: e.groups.iter().map(f).collect(),
                observes_sockets: e.observes_sockets,
                unordered_callbacks: e.unordered_callbacks,
            }),
            Self::Dropped(e) => Event::Dropped(Socket { connection: f(&e.connection) }),
            Self::Resumed(e) => Event::Resumed(Socket { connection: f(&e.connection) }),
            Self::Closed(e) => Event::Closed(Closed {
                connection: f(&e.connection),
                code: e.code,
                reason: e.reason.as_ref().map(f),
                by: e.by,
            }),
            Self::Join(e) => Event::Join(e.map(f)),
            Self::Leave(e) => Event::Leave(e.map(f)),
            Self::Publish(e) => Event::Publish(Publish {
                connection: f(&e.connection),
                group: f(&e.group),
                message: f(&e.message),
                ack_id: e.ack_id,
                no_echo: e.no_echo,
                ttl_seconds: e.ttl_seconds,
                lane: e.lane.as_ref().map(f),
                at_ms: e.at_ms,
            }),
            Self::UserEvent(e) => Event::UserEvent(UserEvent {
                connection: f(&e.connection),
                message: f(&e.message),
                ack_id: e.ack_id,
            }),
            Self::Called(e) => Event::Called(Called {
                connection: f(&e.connection),
                message: f(&e.message),
                id: f(&e.id),
                state: e.state.as_ref().map(f),
            }),
            Self::Handled(e) => Event::Handled(Handled {
                connection: f(&e.connection),
                message: f(&e.message),
                success: e.success,
                reply: e.reply.as_ref().map(&mut *f),
                state: e.state.as_ref().map(f),
            }),
            Self::Notified(e) => Event::Notified(Notified {
                connection: f(&e.connection),
                name: f(&e.name),
                id: f(&e.id),
                state: e.state.as_ref().map(f),
            }),
            Self::Acked(e) => Event::Acked(Acked {
                connection: f(&e.connection),
                ack_id: e.ack_id,
                success: e.success,
                error: e.error.as_ref().map(f),
                definite: e.definite,
            }),
            Self::Received(e) => Event::Received(e.map(f)),
            Self::Delivered(e) => Event::Delivered(e.map(f)),
            Self::SequenceAck(e) => {
                Event::SequenceAck(SequenceAck { connection: f(&e.connection), sequence_id: e.sequence_id })
            }
            Self::Quiesced(e) => Event::Quiesced(Quiesced {
                connections: e.connections.as_ref().map(|all| all.iter().map(f).collect()),
                at_ms: e.at_ms,
            }),
            Self::Signal(e) => Event::Signal(Signal { name: f(&e.name) }),
            Self::Awaited(e) => Event::Awaited(Signal { name: f(&e.name) }),
            Self::Note(e) => Event::Note(Note { text: f(&e.text) }),
        }
    }
}

impl<T> Membership<T> {
    fn map<U>(&self, f: &mut impl FnMut(&T) -> U) -> Membership<U> {
        Membership { connection: f(&self.connection), group: f(&self.group), ack_id: self.ack_id }
    }
}

impl<T> Message<T> {
    fn map<U>(&self, f: &mut impl FnMut(&T) -> U) -> Message<U> {
        Message {
            connection: f(&self.connection),
            group: f(&self.group),
            message: f(&self.message),
            sequence_id: self.sequence_id,
        }
    }
}

fn none<T>() -> Option<T> {
    None
}

fn is_false(value: &bool) -> bool {
    !*value
}
