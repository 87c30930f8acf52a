//! Writes what clients ask for and see into the history that the checker judges.

use oncewire_checker::{
    Acked, Closed, ClosedBy, Event, History, Membership, Message, Opened, Publish, Quiesced, RecorderId,
    SequenceAck, Socket,
};
use oncewire_protocol::wire::{
    AckError, AckId, GroupName, Message as WireMessage, Payload, Sender, SequenceId, Upstream,
};

use crate::trace::Trace;

/// The world's one recorder: it sees all clients, so its order is the order of everything.
pub struct Recorder {
    history: History,
    id: RecorderId,
    /// Whether times may be written: only a clock that does not jump is of use to the checker.
    has_clock: bool,
}

impl Recorder {
    /// An empty history.
    pub fn new(has_clock: bool) -> Self {
        let mut history = History::new();
        let id = history.recorder("world");
        Self { history, id, has_clock }
    }

    /// What was recorded.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// How many events there are.
    pub fn events(&self) -> usize {
        self.history.len()
    }

    pub(crate) fn push(&mut self, trace: &mut Trace, now_us: u64, event: Event) {
        let text = format!("{event:?}");
        trace.bytes(text.as_bytes());
        trace.line(now_us, || format!("    {text}"));
        self.history.push(self.id, event);
    }

    pub(crate) fn at_ms(&self, now_us: u64) -> Option<u64> {
        self.has_clock.then_some(now_us / 1000)
    }

    /// The event of a request that is about to be sent; none for what the checker has no word for.
    pub(crate) fn request(&self, now_us: u64, connection: &str, message: &Upstream) -> Option<Event> {
        let connection = connection.to_owned();
        Some(match message {
            Upstream::JoinGroup { group, ack_id } => {
                Event::Join(Membership { connection, group: group.to_string(), ack_id: *ack_id })
            }
            Upstream::LeaveGroup { group, ack_id } => {
                Event::Leave(Membership { connection, group: group.to_string(), ack_id: *ack_id })
            }
            Upstream::SendToGroup { group, payload, ack_id, no_echo, ttl_seconds, .. } => {
                Event::Publish(Publish {
                    connection,
                    group: group.to_string(),
                    message: marker_in(payload)?,
                    ack_id: *ack_id,
                    no_echo: *no_echo,
                    ttl_seconds: (*ttl_seconds > 0).then_some(u32::from(*ttl_seconds)),
                    lane: None,
                    at_ms: self.at_ms(now_us),
                })
            }
            Upstream::SequenceAck { sequence_id } => {
                Event::SequenceAck(SequenceAck { connection, sequence_id: *sequence_id })
            }
            _ => return None,
        })
    }
}

pub(crate) fn opened(
    connection: &str,
    hub: &str,
    reliable: bool,
    groups: &[GroupName],
    sees_sockets: bool,
) -> Event {
    Event::Opened(Opened {
        connection: connection.to_owned(),
        hub: hub.to_owned(),
        reliable,
        groups: groups.iter().map(ToString::to_string).collect(),
        observes_sockets: sees_sockets,
        unordered_callbacks: false,
    })
}

pub(crate) fn dropped(connection: &str) -> Event {
    Event::Dropped(Socket { connection: connection.to_owned() })
}

pub(crate) fn resumed(connection: &str) -> Event {
    Event::Resumed(Socket { connection: connection.to_owned() })
}

pub(crate) fn closed(connection: &str, code: Option<u16>, by: ClosedBy) -> Event {
    Event::Closed(Closed { connection: connection.to_owned(), code, reason: None, by: Some(by) })
}

pub(crate) fn acked(connection: &str, ack_id: AckId, error: Option<&AckError>) -> Event {
    Event::Acked(Acked {
        connection: connection.to_owned(),
        ack_id,
        success: error.is_none(),
        error: error.map(|error| error.name.as_str().to_owned()),
        definite: None,
    })
}

pub(crate) fn quiesced(at_ms: Option<u64>) -> Event {
    Event::Quiesced(Quiesced { connections: None, at_ms })
}

/// A message as its receiver saw it. One that cannot be recognised gets a marker that nobody published.
pub(crate) fn message(connection: &str, message: &WireMessage, sequence_id: Option<SequenceId>) -> Message {
    let group = match &message.sender {
        Sender::Group { group, .. } => group.to_string(),
        Sender::Server => "(server)".to_owned(),
    };
    let marker = marker_in(&message.payload).unwrap_or_else(|| "(unknown)".to_owned());
    Message { connection: connection.to_owned(), group, message: marker, sequence_id }
}

/// The marker by which a payload is known again stands between two number signs.
fn marker_in(payload: &Payload) -> Option<String> {
    let mut parts = payload.bytes.split(|byte| *byte == b'#');
    parts.next()?;
    String::from_utf8(parts.next()?.to_vec()).ok()
}
