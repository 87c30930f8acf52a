//! The application's event handlers: what a shard asks and tells them, against what the log says.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use oncewire_protocol::hub::{CallId, Connected, EventError, Handled, Input, UserEvent};
use oncewire_protocol::log::{Disconnected, EventId, HandlerReply, HandlerState};
use oncewire_protocol::wire::{ConnectionId, Metadata, Payload, PayloadKind};

use super::truth::Truth;
use super::world::World;

/// What handlers have to do.
#[derive(Default)]
pub struct Handlers {
    /// Calls under way, with the sessions that they are of.
    calls: VecDeque<(CallId, String)>,
    /// Ends that a handler was sent.
    telling: VecDeque<ConnectionId>,
    /// Whether they want to hear of ends.
    pub takes_disconnected: bool,
    /// Ids of events that have no ack id, of all sessions that ever were.
    counted: BTreeSet<(String, String)>,
    /// Ids of ends that were told.
    ends: BTreeMap<String, EventId>,
}

impl Handlers {
    /// Whether something is under way.
    pub fn is_busy(&self) -> bool {
        !self.calls.is_empty() || !self.telling.is_empty()
    }

    /// With the process all that is under way is lost.
    pub fn restart(&mut self) {
        self.calls.clear();
        self.telling.clear();
    }

    /// The ends that this process has told are those that the log has not as heard of.
    pub fn check_restored(&self, truth: &Truth) {
        let told: BTreeSet<&str> = self.telling.iter().map(ConnectionId::as_str).collect();
        let untold: BTreeSet<&str> = truth.untold.keys().map(String::as_str).collect();
        assert_eq!(told, untold, "what a new process tells");
    }

    /// A handler is called.
    pub fn call(&mut self, truth: &Truth, call: CallId, event: &UserEvent) {
        let name = event.subject.identity.connection_id.as_str();
        assert!(self.calls.iter().all(|(_, other)| other != name), "{name} has two calls at a time");
        self.calls.push_back((call, name.to_owned()));
        // The log may know that the session is over before the shard does.
        let session = truth.sessions.get(name);
        assert!(session.is_none_or(|session| session.state == event.subject.state), "the state of {name}");
        match event.id {
            EventId::Counted(_) => self.count(name, event.id),
            EventId::OfAck(ack_id) => {
                let is_executed = session.is_some_and(|session| session.has_in_window(ack_id));
                assert!(!is_executed, "{name}: the event {ack_id} is handled again");
            }
        }
    }

    /// A handler is told that a session has begun.
    pub fn connected(&mut self, truth: &Truth, connected: &Connected) {
        let name = connected.subject.identity.connection_id.as_str();
        assert!(truth.has_opened(name), "{name} has not begun");
        self.count(name, connected.id);
    }

    /// A handler is told that a session is over.
    pub fn disconnected(&mut self, truth: &Truth, disconnected: &Disconnected) {
        let Disconnected { subject, number, .. } = disconnected;
        let name = subject.identity.connection_id.as_str();
        assert!(!truth.sessions.contains_key(name), "{name} is not over");
        let untold = truth.untold.get(name);
        assert_eq!(untold, Some(&(*number, subject.state.clone())), "the end of {name}");
        match self.ends.get(name) {
            Some(known) => assert_eq!(*known, disconnected.id(), "{name}: the end has one id"),
            None => {
                self.count(name, disconnected.id());
                self.ends.insert(name.to_owned(), disconnected.id());
            }
        }
        self.telling.push_back(subject.identity.connection_id.clone());
    }

    fn count(&mut self, name: &str, id: EventId) {
        let is_new = self.counted.insert((name.to_owned(), id.to_string()));
        assert!(is_new, "{name} has two events {id}");
    }
}

impl World {
    /// One of the calls under way is answered.
    pub fn answer(&mut self, call: u8, form: u8) {
        let Some(at) = usize::from(call).checked_rem(self.handlers.calls.len()) else { return };
        let Some((call, _)) = self.handlers.calls.remove(at) else { return };
        let text = self.fresh_text(if form >= 248 { 100 } else { 0 });
        let reply = || {
            let payload = Payload { kind: PayloadKind::Text, bytes: text.clone().into() };
            HandlerReply { payload, metadata: Metadata::default() }
        };
        let state = |is_empty| HandlerState(if is_empty { Bytes::new() } else { text.clone().into() });
        let answer = match form % 8 {
            0 => Ok(Handled::default()),
            1 | 2 => Ok(Handled { reply: Some(reply()), state: None }),
            3 => Ok(Handled { reply: None, state: Some(state(form % 16 == 3)) }),
            4 => Ok(Handled { reply: Some(reply()), state: Some(state(false)) }),
            5 => Err(EventError::Busy),
            6 => Err(EventError::NoHandler),
            _ => Err(EventError::Failed),
        };
        self.handle(Input::Called { call, answer });
    }

    /// The application has heard of so many ends.
    pub fn tell(&mut self, ends: usize) {
        let ends = ends.min(self.handlers.telling.len());
        if ends > 0 {
            let told = self.handlers.telling.drain(..ends).collect();
            self.handle(Input::Told(told));
        }
    }

    /// Whether the application wants to hear of ends from now on.
    pub fn take_disconnected(&mut self, takes_disconnected: bool) {
        self.handlers.takes_disconnected = takes_disconnected;
        self.handle(Input::TakesDisconnected(takes_disconnected));
    }

    /// Handlers do all that they have to do.
    pub fn heal_handlers(&mut self) {
        while !self.handlers.calls.is_empty() {
            self.answer(0, 1);
        }
        self.tell(usize::MAX);
    }
}
