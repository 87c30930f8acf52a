//! One pass over the events: who the sessions are, what was requested and what is known of its execution. Judges what
//! the acks alone show; deliveries are judged elsewhere, from what is kept here.

use std::collections::{HashMap, HashSet};

use crate::acks::{AckId, Answer};
use crate::event::{Acked, Event, Membership, Opened, Publish, Quiesced, UserEvent};
use crate::findings::Findings;
use crate::history::{Name, Place};
use crate::session::Session;
use crate::verdict::ViolationKind;

/// No index.
pub(crate) const NONE: u32 = u32::MAX;

/// What a history says, by session and by request.
pub(crate) struct Ledger {
    pub(crate) sessions: Vec<Session>,
    pub(crate) requests: Vec<Request>,
    /// Per connection name: its session.
    session_of: Vec<u32>,
    /// Per message name: the last of its requests, chained by [`Request::same_message`].
    last_request_of: Vec<u32>,
    /// Per recorder: its first `quiesced`, or [`NONE`].
    first_quiesced: Vec<u32>,
    /// Messages that event handlers gave back.
    pub(crate) replies: HashSet<Name>,
    ack_ids: Vec<AckId>,
    ack_id_of: HashMap<(u32, u64), u32>,
    hubs: HashMap<String, u32>,
    streams: HashMap<(u32, Name, Option<Name>), u32>,
}

/// One request: a join, a leave, a publish or a user event, with all its tries.
pub(crate) struct Request {
    pub(crate) session: u32,
    pub(crate) content: Content,
    /// The first try that can have been executed.
    pub(crate) lo: u32,
    /// The last try that can have been executed.
    pub(crate) hi: u32,
    /// The ack that says that it was executed.
    pub(crate) acked: Option<u32>,
    /// Whether that ack said success, and it and all tries belong to one socket.
    pub(crate) acked_on_one_socket: bool,
    /// The first delivery of its message, if no other request has the same.
    pub(crate) delivered: Option<Place>,
    /// Whether it can't have been executed.
    pub(crate) refused: bool,
    /// The publisher's ordered stream that it belongs to.
    pub(crate) stream: u32,
    /// Another request with the same message, or [`NONE`].
    pub(crate) same_message: u32,
    pub(crate) at_ms: Option<u64>,
    /// The socket of the first try.
    pub(crate) socket: Option<u32>,
    /// What else belongs to its ack id, or [`NONE`].
    pub(crate) ack_id: u32,
    same_ack_id: u32,
    pub(crate) attempts: u32,
    /// Whether this pass has met a delivery of its message. In another recorder than the publisher's that happens before
    /// the first try or after the last, and so dates none.
    delivered_by_now: bool,
}

/// What a request asks for; the same content under the same ack id is a resend.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) action: Action,
    pub(crate) group: Name,
    pub(crate) no_echo: bool,
    pub(crate) ttl_seconds: u32,
}

/// The kind of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Join,
    Leave,
    Publish(Name),
    Event(Name),
}

impl Ledger {
    pub(crate) fn new(findings: &mut Findings<'_>) -> Self {
        let names = findings.history.name_count();
        let mut ledger = Self {
            sessions: Vec::new(),
            requests: Vec::new(),
            session_of: vec![NONE; names],
            last_request_of: vec![NONE; names],
            first_quiesced: vec![NONE; findings.history.recorder_count() as usize],
            replies: HashSet::new(),
            ack_ids: Vec::new(),
            ack_id_of: HashMap::new(),
            hubs: HashMap::new(),
            streams: HashMap::new(),
        };
        for recorder in 0..findings.history.recorder_count() {
            for (index, event) in (0..).zip(findings.history.events(recorder)) {
                ledger.take(findings, Place { recorder, index }, event);
            }
        }
        ledger.learn_from_deliveries(findings);
        ledger.rule_out_refused();
        findings.statistics.requests = ledger.requests.len() as u64;
        let count = |f: fn(&Session) -> bool| ledger.sessions.iter().filter(|s| f(s)).count() as u64;
        findings.statistics.sessions_live_at_quiesce = count(|s| s.quiesced.is_some());
        findings.statistics.sessions_acking_ahead = count(|s| s.acks_ahead);
        ledger
    }

    /// The session of an event's connection, if this recorder opened it before.
    pub(crate) fn session(&self, at: Place, connection: Name) -> Option<u32> {
        let id = self.session_of[connection.0 as usize];
        let session = self.sessions.get(id as usize)?;
        (session.recorder == at.recorder && session.opened < at.index).then_some(id)
    }

    /// The session of a connection, whoever opened it.
    pub(crate) fn session_anywhere(&self, connection: Name) -> Option<u32> {
        let id = self.session_of[connection.0 as usize];
        (id != NONE).then_some(id)
    }

    /// The requests that published a message, or sent it to an event handler.
    pub(crate) fn requests_of(&self, message: Name) -> impl Iterator<Item = u32> + '_ {
        let some = |id: u32| (id != NONE).then_some(id);
        std::iter::successors(some(self.last_request_of[message.0 as usize]), move |id| {
            some(self.requests[*id as usize].same_message)
        })
    }

    /// The request that published a message, if there is exactly one.
    pub(crate) fn only_request_of(&self, message: Name) -> Option<u32> {
        let id = self.last_request_of[message.0 as usize];
        (self.requests.get(id as usize)?.same_message == NONE).then_some(id)
    }

    /// Where an index of a session's recorder lies.
    pub(crate) fn place(&self, session: u32, index: u32) -> Place {
        Place { recorder: self.sessions[session as usize].recorder, index }
    }

    /// A recorder's first `quiesced`, or a larger index than any.
    pub(crate) fn first_quiesced(&self, recorder: u32) -> u32 {
        self.first_quiesced[recorder as usize]
    }

    /// How many publisher's streams there are.
    pub(crate) fn stream_count(&self) -> usize {
        self.streams.len()
    }

    fn take(&mut self, findings: &mut Findings<'_>, at: Place, event: &Event<Name>) {
        let counts = &mut findings.statistics;
        counts.events += 1;
        let (counter, connection) = match event {
            Event::Opened(e) => return self.open(findings, at, e),
            Event::Quiesced(e) => return self.quiesce(findings, at, e),
            Event::Signal(_) => return counts.signals += 1,
            Event::Awaited(_) | Event::Note(_) => return,
            // Whoever sees the handlers need not see the clients.
            Event::Called(_) => return counts.called += 1,
            Event::Notified(_) => return counts.notified += 1,
            Event::Handled(e) => {
                counts.handled += 1;
                return self.replies.extend(e.reply);
            }
            Event::Dropped(e) => (&mut counts.dropped, e.connection),
            Event::Resumed(e) => (&mut counts.resumed, e.connection),
            Event::Closed(e) => (&mut counts.closed, e.connection),
            Event::Join(e) => (&mut counts.join, e.connection),
            Event::Leave(e) => (&mut counts.leave, e.connection),
            Event::Publish(e) => (&mut counts.publish, e.connection),
            Event::UserEvent(e) => (&mut counts.user_events, e.connection),
            Event::Acked(e) => (&mut counts.acked, e.connection),
            Event::Received(e) => (&mut counts.received, e.connection),
            Event::Delivered(e) => (&mut counts.delivered, e.connection),
            Event::SequenceAck(e) => (&mut counts.sequence_acks, e.connection),
        };
        *counter += 1;
        let Some(id) = self.session(at, connection) else {
            return findings.malformed(at, "this connection was not opened before in this recorder");
        };
        let session = &mut self.sessions[id as usize];
        match event {
            Event::Dropped(_) => session.detach(),
            Event::Resumed(_) => session.resume(findings, at),
            Event::Closed(e) => {
                session.detach();
                session.closed.get_or_insert((at.index, e.by));
            }
            Event::Join(e) => self.membership(findings, at, id, Action::Join, e),
            Event::Leave(e) => self.membership(findings, at, id, Action::Leave, e),
            Event::Publish(e) => self.publish(findings, at, id, e),
            Event::UserEvent(e) => self.user_event(findings, at, id, e),
            Event::Acked(e) => self.acked(findings, at, id, e),
            Event::Received(e) => {
                session.sequence_id_seen = session.sequence_id_seen.max(e.sequence_id.unwrap_or(0));
                if !session.observes_sockets {
                    findings.malformed(at, "`received` belongs to connections with `observes_sockets`");
                }
            }
            Event::Delivered(e) => {
                session.sequence_id_seen = session.sequence_id_seen.max(e.sequence_id.unwrap_or(0));
                session.delivered.push(at.index);
                let mut request = self.last_request_of[e.message.0 as usize];
                while let Some(r) = self.requests.get_mut(request as usize) {
                    r.delivered_by_now = true;
                    request = r.same_message;
                }
            }
            Event::SequenceAck(e) => session.acks_ahead |= e.sequence_id > session.sequence_id_seen,
            Event::Opened(_)
            | Event::Quiesced(_)
            | Event::Signal(_)
            | Event::Awaited(_)
            | Event::Note(_)
            | Event::Called(_)
            | Event::Handled(_)
            | Event::Notified(_) => {}
        }
    }

    fn open(&mut self, findings: &mut Findings<'_>, at: Place, e: &Opened<Name>) {
        findings.statistics.opened += 1;
        let slot = &mut self.session_of[e.connection.0 as usize];
        if *slot != NONE {
            return findings.malformed(at, "this connection was opened before");
        }
        *slot = self.sessions.len() as u32;
        let hubs = self.hubs.len() as u32;
        let hub = *self.hubs.entry(findings.history.text(e.hub).to_lowercase()).or_insert(hubs);
        self.sessions.push(Session::new(at, hub, e));
    }

    fn quiesce(&mut self, findings: &mut Findings<'_>, at: Place, e: &Quiesced<Name>) {
        findings.statistics.quiesced += 1;
        let first = &mut self.first_quiesced[at.recorder as usize];
        *first = at.index.min(*first);
        if let Some(connections) = &e.connections {
            for connection in connections {
                match self.session(at, *connection) {
                    Some(id) if self.sessions[id as usize].closed.is_none() => {
                        self.sessions[id as usize].quiesce(findings, at, &self.ack_ids);
                    }
                    _ => {
                        findings.malformed(at, "`connections` names one that this recorder doesn't hold open")
                    }
                }
            }
            return;
        }
        for session in &mut self.sessions {
            if session.recorder == at.recorder && session.attached {
                session.quiesce(findings, at, &self.ack_ids);
            }
        }
    }

    fn membership(
        &mut self,
        findings: &mut Findings<'_>,
        at: Place,
        session: u32,
        action: Action,
        e: &Membership<Name>,
    ) {
        let content = Content { action, group: e.group, no_echo: false, ttl_seconds: 0 };
        self.attempt(findings, at, session, e.ack_id, content);
    }

    fn publish(&mut self, findings: &mut Findings<'_>, at: Place, session: u32, e: &Publish<Name>) {
        let ttl_seconds = e.ttl_seconds.unwrap_or(0);
        let content =
            Content { action: Action::Publish(e.message), group: e.group, no_echo: e.no_echo, ttl_seconds };
        let Some(id) = self.attempt(findings, at, session, e.ack_id, content) else { return };
        let streams = self.streams.len() as u32;
        let request = &mut self.requests[id as usize];
        request.at_ms = e.at_ms;
        request.stream = *self.streams.entry((session, e.group, e.lane)).or_insert(streams);
        request.same_message = std::mem::replace(&mut self.last_request_of[e.message.0 as usize], id);
    }

    fn user_event(&mut self, findings: &mut Findings<'_>, at: Place, session: u32, e: &UserEvent<Name>) {
        let action = Action::Event(e.message);
        let content = Content { action, group: e.message, no_echo: false, ttl_seconds: 0 };
        let Some(id) = self.attempt(findings, at, session, e.ack_id, content) else { return };
        self.requests[id as usize].same_message =
            std::mem::replace(&mut self.last_request_of[e.message.0 as usize], id);
    }

    /// Notes a try, and returns the request if it is a new one.
    fn attempt(
        &mut self,
        findings: &mut Findings<'_>,
        at: Place,
        session: u32,
        ack_id: Option<u64>,
        content: Content,
    ) -> Option<u32> {
        let new = self.requests.len() as u32;
        let state = &mut self.sessions[session as usize];
        let socket = state.attached.then_some(state.socket);
        let mut request = Request {
            session,
            content,
            lo: at.index,
            hi: at.index,
            acked: None,
            acked_on_one_socket: false,
            delivered: None,
            refused: false,
            stream: NONE,
            same_message: NONE,
            at_ms: None,
            socket,
            ack_id: NONE,
            same_ack_id: NONE,
            attempts: 1,
            delivered_by_now: false,
        };
        let Some(number) = ack_id else {
            self.requests.push(request);
            return Some(new);
        };
        let slots = self.ack_ids.len() as u32;
        let slot_id = *self.ack_id_of.entry((session, number)).or_insert(slots);
        if slot_id == slots {
            self.ack_ids.push(AckId::new(new, socket));
        }
        let slot = &mut self.ack_ids[slot_id as usize];
        if slot.socket != socket {
            slot.socket = None;
        }
        if state.observes_sockets && state.attached {
            slot.tried_on(state.socket);
            state.ask(slot_id, number, at.index, slot.socket.is_some());
        }
        let all_refused = slot.all_refused();
        slot.attempts += 1;
        let mut known = slot.first;
        let mut last = NONE;
        while let Some(r) = self.requests.get_mut(known as usize) {
            if r.content == content {
                findings.statistics.resends += 1;
                r.attempts += 1;
                if all_refused {
                    r.lo = at.index;
                }
                if r.acked.is_none() && !r.delivered_by_now {
                    r.hi = at.index;
                }
                return None;
            }
            last = known;
            known = r.same_ack_id;
        }
        if let Some(r) = self.requests.get_mut(last as usize) {
            r.same_ack_id = new;
        }
        slot.contents += 1;
        request.ack_id = slot_id;
        self.requests.push(request);
        Some(new)
    }

    fn acked(&mut self, findings: &mut Findings<'_>, at: Place, session: u32, e: &Acked<Name>) {
        let error = e.error.map(|name| findings.history.text(name));
        let counts = &mut findings.statistics;
        let (counter, answer) = match (e.success, error) {
            (true, None) => (&mut counts.acked_success, Answer::Success),
            (false, Some("Duplicate")) => (&mut counts.acked_duplicate, Answer::Duplicate),
            (false, Some("PayloadMismatch")) => (&mut counts.acked_mismatch, Answer::Mismatch),
            (false, Some(name)) if e.definite.unwrap_or(name == "Forbidden") => {
                (&mut counts.acked_error, Answer::Refused)
            }
            (false, Some(_)) => (&mut counts.acked_error, Answer::Uncertain),
            (true, Some(_)) | (false, None) => {
                return findings.malformed(at, "an ack has either success or the name of an error");
            }
        };
        *counter += 1;
        let Some(slot_id) = self.ack_id_of.get(&(session, e.ack_id)).copied() else {
            return findings.violation(ViolationKind::AckUnrequested, [at], |_| {
                format!("ack id {} was never used on this connection", e.ack_id)
            });
        };
        let slot = &mut self.ack_ids[slot_id as usize];
        findings.statistics.mismatches_judged += u64::from(slot.contents > 1);
        let state = &mut self.sessions[session as usize];
        if state.attached {
            slot.answered();
        }
        let one_socket = state.attached && slot.socket == Some(state.socket);
        if state.observes_sockets && one_socket {
            state.judge_ack_order(findings, at, e.ack_id);
        }
        let tries_max = match slot.executed {
            Some(request) => self.requests[request as usize].attempts,
            None => {
                let next = |id: &u32| {
                    let next = self.requests[*id as usize].same_ack_id;
                    (next != NONE).then_some(next)
                };
                let all = std::iter::successors(Some(slot.first), next);
                all.map(|id| self.requests[id as usize].attempts).max().unwrap_or(0)
            }
        };
        if let Some(kind) = slot.answer(answer, tries_max) {
            let first = self.ack_ids[slot_id as usize].first;
            let tried = self.place(session, self.requests[first as usize].lo);
            return findings.violation(kind, [tried, at], |history| {
                let (attempts, contents) =
                    (self.ack_ids[slot_id as usize].attempts, self.ack_ids[slot_id as usize].contents);
                let connection = history.text(e.connection);
                format!("{connection}, ack id {}: {attempts} tries of {contents} requests", e.ack_id)
            });
        }
        if matches!(answer, Answer::Success | Answer::Duplicate)
            && let Some(request) = slot.executed
        {
            let request = &mut self.requests[request as usize];
            request.acked.get_or_insert(at.index);
            request.acked_on_one_socket |= answer == Answer::Success && one_socket;
        }
    }

    /// A delivery shows that a request was executed, where only one can have caused it.
    fn learn_from_deliveries(&mut self, findings: &Findings<'_>) {
        for session in &self.sessions {
            let events = findings.history.events(session.recorder);
            for index in &session.delivered {
                let Event::Delivered(e) = &events[*index as usize] else { continue };
                let id = self.last_request_of[e.message.0 as usize];
                let Some(request) = self.requests.get_mut(id as usize) else { continue };
                let hub = self.sessions[request.session as usize].hub;
                if request.same_message == NONE && request.content.group == e.group && hub == session.hub {
                    request.delivered.get_or_insert(Place { recorder: session.recorder, index: *index });
                }
            }
        }
    }

    /// A request is out when all tries under its ack id were refused, or another request under the same ack id was
    /// executed.
    fn rule_out_refused(&mut self) {
        let mut executed: Vec<Option<u32>> = self.ack_ids.iter().map(|slot| slot.executed).collect();
        for (id, request) in (0..).zip(&self.requests) {
            if request.delivered.is_some() && request.ack_id != NONE {
                executed[request.ack_id as usize].get_or_insert(id);
            }
        }
        for (id, request) in (0..).zip(&mut self.requests) {
            if request.ack_id != NONE {
                let winner = executed[request.ack_id as usize];
                request.refused =
                    self.ack_ids[request.ack_id as usize].all_refused() || winner.is_some_and(|w| w != id);
            }
        }
    }
}
