//! The application's event handlers: they answer after a while, fail, or are lost with the gateway's process, and hear of
//! sessions that begin and end. What they were called with and gave back goes to the checker; that every end is heard of,
//! and none too early or too late, is judged here, where the log can be seen.

use std::collections::{BTreeMap, BTreeSet};

use oncewire_checker::{Called, Event as Seen, Handled as Answered, Notified};
use oncewire_protocol::hub::{CallId, Connected, EventError, Handled, Input, UserEvent};
use oncewire_protocol::log::{Disconnected, EventId, EventSubject, HandlerReply, HandlerState};
use oncewire_protocol::wire::{ConnectionId, Metadata};
use oncewire_recorder::marker_in;

use crate::Failure;
use crate::coverage::Path;
use crate::honest::payload;
use crate::network::Upgrade;
use crate::process::HubNode;
use crate::world::{Event, World};

/// What there is of handlers in a world.
#[derive(Default)]
pub struct Handlers {
    /// Calls under way.
    calls: BTreeMap<u64, Calling>,
    last_call: u64,
    /// What the `connect` handler was asked.
    begun: BTreeMap<ConnectionId, Begun>,
    /// Events that were called, for the count of those that are called again.
    called: BTreeSet<String>,
    /// Ends that a handler has been sent and has not confirmed, with their shards.
    telling: BTreeMap<ConnectionId, (usize, usize)>,
    /// Sessions of whose end a handler was sent word, with the log's epoch.
    ended: BTreeSet<(ConnectionId, u64)>,
    /// Sessions of whose end the application has heard.
    heard: BTreeSet<ConnectionId>,
}

/// A call under way.
struct Calling {
    hub: usize,
    shard: usize,
    call: CallId,
    connection_id: ConnectionId,
    /// The event's.
    marker: String,
}

/// A session that `connect` has accepted.
struct Begun {
    state: Option<HandlerState>,
    /// The log's.
    epoch: u64,
    is_connected: bool,
}

impl World {
    /// The `connect` handler accepts a session; returns what it notes.
    pub(crate) fn accept(&mut self, hub: usize, connection_id: &ConnectionId) -> Option<HandlerState> {
        let state = self.random.permille(300).then(|| self.fresh_state());
        let begun = Begun { state: state.clone(), epoch: self.hubs[hub].log.epoch, is_connected: false };
        self.handlers.begun.insert(connection_id.clone(), begun);
        state
    }

    fn fresh_state(&mut self) -> HandlerState {
        let text = if self.random.permille(200) { String::new() } else { self.fresh_marker() };
        HandlerState(text.into())
    }

    /// A shard calls the handler of an event.
    pub(crate) fn call_handler(&mut self, hub: usize, shard: usize, call: CallId, event: UserEvent) {
        let UserEvent { subject: EventSubject { identity, state }, id, payload, .. } = event;
        let connection_id = identity.connection_id;
        let Some(marker) = marker_in(&payload) else {
            return self.fail(Failure::Handlers(format!("{connection_id}: an event that nobody has sent")));
        };
        self.note(Path::EventCalled);
        if !self.handlers.called.insert(marker.clone()) {
            self.note(Path::EventCalledAgain);
        }
        if self.handlers.calls.values().any(|other| other.connection_id == connection_id) {
            self.fail(Failure::Handlers(format!("{connection_id}: two calls at a time")));
        }
        self.record(Seen::Called(Called {
            connection: connection_id.to_string(),
            message: marker.clone(),
            id: id.to_string(),
            state: text(state.as_ref()),
        }));
        self.handlers.last_call += 1;
        let number = self.handlers.last_call;
        self.handlers.calls.insert(number, Calling { hub, shard, call, connection_id, marker });
        self.schedule_in(self.weather.handler_ms, Event::HandlerAnswers { number });
    }

    pub(crate) fn handler_answers(&mut self, number: u64) {
        let Some(calling) = self.handlers.calls.remove(&number) else { return };
        let Calling { hub, shard, call, connection_id, marker } = calling;
        let answer = self.draw_answer();
        if self.exists(hub, &connection_id) {
            self.note(match &answer {
                Ok(Handled { reply: None, state: None }) => Path::HandledWithNothing,
                Ok(Handled { reply: Some(_), state: None }) => Path::HandledWithReply,
                Ok(Handled { reply: None, state: Some(_) }) => Path::HandledWithState,
                Ok(Handled { reply: Some(_), state: Some(_) }) => Path::HandledWithBoth,
                Err(EventError::Failed) => Path::EventFailed,
                Err(EventError::Busy) => Path::HandlerBusy,
                Err(EventError::NoHandler) => Path::NoHandler,
            });
        } else {
            self.note(Path::AnswerForNobody);
        }
        let given = answer.as_ref().ok();
        self.record(Seen::Handled(Answered {
            connection: connection_id.to_string(),
            message: marker,
            success: answer.is_ok(),
            reply: given.and_then(|given| marker_in(&given.reply.as_ref()?.payload)),
            state: text(given.and_then(|given| given.state.as_ref())),
        }));
        self.send(hub, shard, Input::Called { call, answer }, None);
    }

    fn draw_answer(&mut self) -> Result<Handled, EventError> {
        if self.random.permille(self.weather.handler_failed) {
            let errors = [EventError::Failed, EventError::Failed, EventError::Busy, EventError::NoHandler];
            return Err(self.random.pick(&errors));
        }
        let reply = self.random.permille(600).then(|| {
            let padding = self.random.pick(&[0, 10, 200, 1500]);
            let marker = self.fresh_marker();
            let payload = payload(&mut self.random, &marker, padding);
            HandlerReply { payload, metadata: Metadata::default() }
        });
        let state = self.random.permille(400).then(|| self.fresh_state());
        Ok(Handled { reply, state })
    }

    /// A shard tells that a session has begun.
    pub(crate) fn connected(&mut self, connected: Connected) {
        let Connected { subject, id, .. } = connected;
        self.note(Path::BeginningTold);
        let begun = self.handlers.begun.get_mut(&subject.identity.connection_id);
        let is_first = begun.is_some_and(|begun| {
            begun.state == subject.state && !std::mem::replace(&mut begun.is_connected, true)
        });
        if !is_first {
            self.fail(Failure::Handlers(format!("{}: told anew or wrongly", subject.identity.connection_id)));
        }
        self.notified("connected", &subject, id);
    }

    fn notified(&mut self, name: &str, subject: &EventSubject, id: EventId) {
        self.record(Seen::Notified(Notified {
            connection: subject.identity.connection_id.to_string(),
            name: name.to_owned(),
            id: id.to_string(),
            state: text(subject.state.as_ref()),
        }));
    }

    /// A shard tells that a session is over.
    pub(crate) fn disconnected(&mut self, hub: usize, shard: usize, disconnected: &Disconnected) {
        let id = disconnected.subject.identity.connection_id.clone();
        let node = &self.hubs[hub];
        let state = node.shards[shard].shard();
        let wrong = if !self.weather.takes_disconnected[hub] {
            Some("nobody wants to know of its end")
        } else if self.exists(hub, &id) {
            Some("its end is told, and it is there")
        } else if state.applied().is_none_or(|applied| node.log.has_told(&id, applied)) {
            Some("its end is told although that was confirmed")
        } else {
            None
        };
        if let Some(wrong) = wrong {
            self.fail(Failure::Handlers(format!("{id}: {wrong}")));
        }
        self.note(if self.handlers.heard.contains(&id) { Path::EndToldAgain } else { Path::EndTold });
        // An older log has forgotten what was told before.
        let epoch = self.hubs[hub].log.epoch;
        self.handlers.ended.insert((id.clone(), epoch));
        if self.handlers.begun.get(&id).is_some_and(|begun| begun.epoch == epoch) {
            self.notified("disconnected", &disconnected.subject, disconnected.id());
        }
        self.handlers.telling.insert(id.clone(), (hub, shard));
        if self.weather.is_over || self.random.permille(700) {
            self.schedule_in(self.weather.told_ms, Event::EndHeard { connection_id: id });
        }
    }

    /// A session goes on over another socket.
    pub(crate) fn look_at_resumed(&mut self, hub: usize, conn: u64) {
        let Some(Upgrade::Resume { connection_id, .. }) = self.conns.get(&conn).map(|state| &state.upgrade)
        else {
            return;
        };
        let session = (ConnectionId::new(connection_id), self.hubs[hub].log.epoch);
        if self.handlers.ended.contains(&session) {
            self.fail(Failure::Handlers(format!("{}: resumed after its end was told", session.0)));
        }
    }

    /// The application has heard of an end, and perhaps of others by then.
    pub(crate) fn end_heard(&mut self, connection_id: ConnectionId) {
        let Some((hub, shard)) = self.handlers.telling.remove(&connection_id) else { return };
        let mut told = vec![connection_id];
        if self.random.permille(300) {
            self.handlers.telling.retain(|id, at| {
                let is_another = *at != (hub, shard);
                if !is_another {
                    told.push(id.clone());
                }
                is_another
            });
        }
        self.handlers.heard.extend(told.iter().cloned());
        self.send(hub, shard, Input::Told(told), None);
    }

    /// With the process all that is under way is lost.
    pub(crate) fn lose_calls(&mut self) {
        if !self.handlers.calls.is_empty() {
            self.note(Path::CallLost);
        }
        if !self.handlers.telling.is_empty() {
            self.note(Path::EndUnconfirmed);
        }
        self.handlers.calls.clear();
        self.handlers.telling.clear();
    }

    /// From now on handlers confirm whatever they are told.
    pub(crate) fn heal_handlers(&mut self) {
        let waiting: Vec<_> = self.handlers.telling.keys().cloned().collect();
        for connection_id in waiting {
            self.schedule_in(self.weather.told_ms, Event::EndHeard { connection_id });
        }
    }

    /// What handlers still have to do, or to be told, if anything.
    pub(crate) fn unsettled_handlers(&self) -> Option<String> {
        if let Some(calling) = self.handlers.calls.values().next() {
            return Some(format!("{}: a handler is at work", calling.connection_id));
        }
        let untold = |hub: &HubNode| hub.shards.iter().map(|shard| shard.shard().untold()).sum::<usize>();
        let node = self.hubs.iter().find(|hub| untold(hub) > 0)?;
        Some(format!("{}: {} ends are not told", node.name, untold(node)))
    }

    /// A session that is over and of whose end the application has never heard.
    pub(crate) fn never_told(&self) -> Option<String> {
        let hubs = self.hubs.iter().enumerate().filter(|(index, _)| self.weather.takes_disconnected[*index]);
        let mut over =
            hubs.flat_map(|(index, hub)| hub.log.opened().filter(move |id| !self.exists(index, id)));
        over.find(|id| !self.handlers.heard.contains(*id))
            .map(|id| format!("{id} is over, and nobody was told"))
    }
}

fn text(state: Option<&HandlerState>) -> Option<String> {
    state.map(|state| String::from_utf8_lossy(&state.0).into_owned())
}
