//! The one fold (R11): how a record from the log takes effect.
//!
//! Nothing here reads a clock, enforces a bound or refuses (R4, R5); sessions that went over a bound are only noted.
//! The one use of `now` is to send answers for this owner's own requests and to form their next batch.

use std::sync::Arc;
use std::task::Waker;

use super::folding::{DELIVERY_STEPS, INDEXING_STEPS};
use super::handling::{LOST_WITH_GATEWAY, reason_text};
use super::owner::Purpose;
use super::request_window::Known;
use super::timer::Timer;
use super::{Attachment, Connected, Hub, OpenId, Output, SessionEnded, SessionHandle, SessionKey};
use crate::log::{
    Audience, Body, EndReason, EventId, HandlerReply, HandlerState, MessageRef, Offset, Opened, Published,
    Record, RequestKey, Sent, Time, chunk_of,
};
use crate::session::{Closing, Marking, MemoryBudget, Outcome, Session, SharedMessage, SharedOutbox};
use crate::wire::{Close, ConnectionId, Downstream, GroupName, Message, ReconnectionToken, Sender};

impl Hub {
    /// Whether a record of this offset has taken effect already.
    pub(super) fn is_applied(&self, offset: Offset) -> bool {
        self.applied.is_some_and(|applied| offset <= applied)
    }

    /// Applies a record and settles the request that it came from. `chosen` are the sessions of its selection, chosen before
    /// anything changes for one of them.
    pub(super) fn apply(
        &mut self,
        now: Time,
        offset: Offset,
        record: &Arc<Record>,
        mut chosen: Vec<SessionKey>,
    ) {
        if self.is_applied(offset) {
            return;
        }
        self.applied = Some(offset);
        self.applied_bytes += record.encoded_bytes() as u64;
        self.covered.take_if(|covered| covered.is_behind(offset));
        self.proposer.observe(record.time);
        if self.is_new(offset, record) {
            // Those that were restored with the record's effect have it.
            chosen.retain(|key| !self.is_covered(*key, offset));
            self.take_effect(offset, record, chosen);
            if let Some(request) = &record.key.request {
                self.requests.insert(request, record.time, record.body.refusal());
            }
        }
        if self.proposer.made(&record.key.boot) {
            self.settle(now, record);
        }
    }

    /// Whether no copy of the record, and no other execution of its request, was applied before. A session that was
    /// restored with the record's effect has the request in its window: that says nothing, and no log holds two
    /// executions of a request, since the first is settled or remembered before another is appended (R7).
    fn is_new(&mut self, offset: Offset, record: &Record) -> bool {
        if !self.repeats.insert(&record.key.boot) {
            return false;
        }
        let is_repetition = |request: &RequestKey| {
            matches!(self.requests.look_up(request, record.time), Known::Repetition(_))
        };
        if record.key.request.as_ref().is_some_and(is_repetition) {
            return false;
        }
        let session = self.session_of(record);
        match (record.key.ack, session) {
            (Some(ack), Some(key)) => {
                self.is_covered(key, offset) || !self.sessions[key].window.contains(ack.ack_id)
            }
            _ => true,
        }
    }

    /// Whether a session was restored with the effects of this offset.
    pub(super) fn is_covered(&self, key: SessionKey, offset: Offset) -> bool {
        self.covered.as_ref().is_some_and(|covered| covered.has(self.sessions[key].chunk, offset))
    }

    fn session_of(&self, record: &Record) -> Option<SessionKey> {
        self.by_connection_id.get(record.body.connection_id()?).copied()
    }

    fn take_effect(&mut self, offset: Offset, record: &Record, chosen: Vec<SessionKey>) {
        let publisher = self.session_of(record);
        let session = publisher.filter(|key| !self.is_covered(*key, offset));
        match &record.body {
            Body::Booted { takes_disconnected, ends_all } => {
                self.apply_booted(offset, record, *takes_disconnected, *ends_all);
            }
            Body::Opened(opened) => self.apply_opened(offset, record, opened),
            Body::Acked { marks } => self.apply_acked(offset, marks),
            Body::Joined { groups, .. } => {
                if let Some(key) = session {
                    groups.iter().for_each(|group| self.add_member(key, group));
                }
            }
            Body::Left { groups, .. } => {
                if let Some(key) = session {
                    groups.iter().for_each(|group| self.remove_member(key, group));
                }
            }
            Body::Published(published) => self.fan_out(offset, record.time, published, publisher),
            Body::Granted { permission, group, .. } => {
                if let Some(key) = session {
                    self.sessions[key].permissions.grant(*permission, group);
                }
            }
            Body::Revoked { permission, group, .. } => {
                if let Some(key) = session {
                    self.sessions[key].permissions.revoke(*permission, group);
                }
            }
            Body::Ended { reason, disconnected, .. } => {
                if let Some(key) = session {
                    if let Some(number) = disconnected {
                        self.keep_untold(key, *number, record.time, reason_text(*reason).to_owned());
                    }
                    if self.is_live {
                        self.tell_end(key, Some(*reason));
                    }
                    self.remove(key);
                }
            }
            Body::Handled { reply, state, .. } => {
                if let Some(key) = session {
                    self.apply_handled(key, MessageRef { offset, part: 0 }, reply.as_ref(), state.as_ref());
                }
            }
            Body::Told { connection_ids } => self.forget_told(offset, connection_ids),
            Body::Refused(_) => {}
            Body::Sent(sent) => self.send(offset, record.time, sent, &chosen),
            Body::Added { groups, .. } => {
                for key in chosen {
                    groups.iter().for_each(|group| self.add_member(key, group));
                }
            }
            Body::Removed { groups, .. } => {
                for key in chosen {
                    self.remove_from(key, groups);
                }
            }
            Body::Closed { reason, takes_disconnected, .. } => {
                for key in chosen {
                    self.close(key, reason, record.time, *takes_disconnected);
                }
            }
        }
        // `Ended` has removed its session, `Opened` has none before it.
        if let Some(session) = session.and_then(|key| self.sessions.get_mut(key)) {
            if let Some(ack) = record.key.ack {
                session.window.insert(ack.ack_id, ack.fingerprint);
            }
            if let Some(id) = record.sequence_ack {
                session.outbox.lock().acknowledge(id);
            }
            session.charge_state();
        }
    }

    /// A boot ends the sessions of earlier boots that are not reliable and detaches the others: their retention starts
    /// anew at the time that the log has come to, which is later than the record's own where the clock that stamped it
    /// was behind the log. One from a copy ends all.
    fn apply_booted(&mut self, offset: Offset, record: &Record, takes_disconnected: bool, ends_all: bool) {
        let time = self.time();
        self.repeats.forget_all_but(record.key.boot.boot);
        let keys: Vec<SessionKey> = self.sessions.keys().collect();
        for key in keys {
            if self.is_covered(key, offset) {
                continue;
            }
            if self.sessions[key].subprotocol.is_reliable() && !ends_all {
                let mut outbox = self.sessions[key].outbox.lock();
                outbox.let_go_of_socket();
                outbox.restored();
                drop(outbox);
                self.sessions[key].events.live_on();
                self.wait_for_client(key, time);
            } else {
                if takes_disconnected {
                    let number = EventId::last_number(self.sessions[key].events.boots);
                    self.keep_untold(key, number, time, LOST_WITH_GATEWAY.to_owned());
                }
                if record.key.boot.boot == self.proposer.boot() {
                    self.tell_end(key, None);
                }
                self.remove(key);
            }
        }
        let was_live = self.is_live;
        self.is_live = record.key.boot.boot == self.proposer.boot();
        if self.is_live && !was_live {
            self.tell_restored();
        }
    }

    fn apply_opened(&mut self, offset: Offset, record: &Record, opened: &Opened) {
        // A session that is covered is there, or has ended already.
        let is_covered =
            self.covered.as_ref().is_some_and(|covered| covered.has(chunk_of(&opened.connection_id), offset));
        if !self.shard.owns(&opened.connection_id)
            || self.by_connection_id.contains_key(&opened.connection_id)
            || is_covered
        {
            return;
        }
        let (outbox, requests) = (self.settings.outbox, self.settings.requests);
        let key = self.insert(Session::new(opened, offset, outbox, requests, &self.budget));
        self.wait_for_client(key, record.time);
    }

    /// Takes a session into everything.
    pub(super) fn insert(&mut self, mut session: Session) -> SessionKey {
        if let (Some(users), Some(user_id)) = (&self.settings.sessions.per_user, &session.user_id) {
            session.user_place = Some(users.take(user_id));
        }
        let (id, number, chunk) = (session.connection_id.clone(), session.number, session.chunk);
        if session.subprotocol.is_reliable() {
            let marking = Marking::new(number, Arc::clone(&self.marks.unmarked));
            session.outbox.lock().set_marking(marking);
        }
        let groups: Vec<GroupName> = session.groups.iter().cloned().collect();
        let user_id = session.user_id.clone();
        let is_reliable = session.subprotocol.is_reliable();
        let key = self.sessions.insert(session);
        self.by_connection_id.insert(id, key);
        if is_reliable {
            self.by_number.insert(number, key);
        }
        if let Some(user_id) = user_id {
            self.users.entry(user_id).or_default().insert(key);
        }
        self.by_chunk.entry(chunk).or_default().insert(key);
        groups.iter().for_each(|group| self.index_member(key, group));
        key
    }

    fn send(&mut self, offset: Offset, time: Time, sent: &Sent, receivers: &[SessionKey]) {
        if receivers.is_empty() {
            return;
        }
        let message = message_sent(MessageRef { offset, part: 0 }, time, sent, &self.budget);
        receivers.iter().for_each(|key| self.deliver_to(*key, &message));
    }

    fn deliver_to(&mut self, key: SessionKey, message: &Arc<SharedMessage>) {
        self.folding.spent += DELIVERY_STEPS;
        let (woken, is_now_over_limits) = deliver(&self.sessions[key].outbox, message);
        self.woken.extend(woken);
        self.overflowed.extend(is_now_over_limits.then_some(key));
    }

    fn fan_out(&mut self, offset: Offset, time: Time, published: &Published, publisher: Option<SessionKey>) {
        let left_out = publisher.filter(|_| published.no_echo);
        for (group, part) in published.groups.iter().zip(0..) {
            let Some(members) = self.groups.get(group) else { continue };
            let name = MessageRef { offset, part };
            let message = message_for(name, group, time, published, &self.budget);
            self.folding.spent += DELIVERY_STEPS * members.len();
            for (&key, outbox) in members {
                if left_out == Some(key) || self.is_covered(key, offset) {
                    continue;
                }
                let (woken, is_now_over_limits) = deliver(outbox, &message);
                self.woken.extend(woken);
                self.overflowed.extend(is_now_over_limits.then_some(key));
            }
        }
    }

    fn add_member(&mut self, key: SessionKey, group: &GroupName) {
        if self.sessions[key].groups.insert(group.clone()) {
            self.sessions[key].charge_state();
            self.index_member(key, group);
        }
    }

    fn index_member(&mut self, key: SessionKey, group: &GroupName) {
        self.folding.spent += INDEXING_STEPS;
        let outbox = Arc::clone(&self.sessions[key].outbox);
        self.groups.entry(group.clone()).or_default().insert(key, outbox);
    }

    fn remove_member(&mut self, key: SessionKey, group: &GroupName) {
        if self.sessions[key].groups.remove(group) {
            self.sessions[key].charge_state();
            self.unindex_member(key, group);
        }
    }

    fn unindex_member(&mut self, key: SessionKey, group: &GroupName) {
        self.folding.spent += INDEXING_STEPS;
        if let Some(members) = self.groups.get_mut(group) {
            members.swap_remove(&key);
            if members.is_empty() {
                self.groups.remove(group);
            }
        }
    }

    fn remove_from(&mut self, key: SessionKey, groups: &[GroupName]) {
        let left: Vec<GroupName> = match groups {
            [] => self.sessions[key].groups.iter().cloned().collect(),
            some => some.to_vec(),
        };
        left.iter().for_each(|group| self.remove_member(key, group));
    }

    /// The handler's answer goes the way of any message, so that its ack comes behind it and a client that was away gets
    /// it too.
    fn apply_handled(
        &mut self,
        key: SessionKey,
        name: MessageRef,
        reply: Option<&HandlerReply>,
        state: Option<&HandlerState>,
    ) {
        if let Some(state) = state {
            self.sessions[key].events.state = Some(state.clone());
        }
        if let Some(reply) = reply {
            self.deliver_to(key, &message_replied(name, reply, &self.budget));
        }
    }

    /// Takes out a session that the application closes. Its client is sent what was there before, and told why.
    fn close(&mut self, key: SessionKey, reason: &str, time: Time, takes_disconnected: bool) {
        let reason = if reason.is_empty() { String::new() } else { format!(" Reason: {reason}") };
        let message = format!("Application server closed the connection.{reason}");
        let mut outbox = self.sessions[key].outbox.lock();
        self.woken.extend(outbox.reply(Downstream::Disconnected { message: message.clone() }));
        self.woken.extend(outbox.close(Closing::AfterFlush(Close::NORMAL)));
        drop(outbox);
        if takes_disconnected {
            let number = EventId::last_number(self.sessions[key].events.boots);
            self.keep_untold(key, number, time, message);
        }
        if self.is_live {
            self.tell_end(key, Some(EndReason::ClosedByApplication));
        }
        self.remove(key);
    }

    fn tell_end(&mut self, key: SessionKey, reason: Option<EndReason>) {
        let session = &self.sessions[key];
        let (connection_id, user_id) = (session.connection_id.clone(), session.user_id.clone());
        let ended = SessionEnded { connection_id, user_id, reason };
        self.outputs.push_back(Output::Ended(Box::new(ended)));
    }

    /// Takes a session out of everything. A socket that is still attached is closed.
    fn remove(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.remove(key) else { return };
        self.expired.removed(key);
        self.by_connection_id.remove(&session.connection_id);
        self.by_number.remove(&session.number);
        if let Some(keys) = self.by_chunk.get_mut(&session.chunk) {
            keys.remove(&key);
            if keys.is_empty() {
                self.by_chunk.remove(&session.chunk);
            }
        }
        for group in session.groups.iter() {
            self.unindex_member(key, group);
        }
        if let Some(user_id) = &session.user_id
            && let Some(keys) = self.users.get_mut(user_id)
        {
            keys.remove(&key);
            if keys.is_empty() {
                self.users.remove(user_id);
            }
        }
        if let Some(at) = session.expires_at {
            self.timers.cancel(at, Timer::Expire(key));
        }
        for record in session.requests.unsettled() {
            self.proposer.settle(record.key.boot.counter);
        }
        self.woken.extend(session.outbox.lock().end());
    }

    /// Settles what this owner was waiting for.
    fn settle(&mut self, now: Time, record: &Record) {
        let counter = record.key.boot.counter;
        self.proposer.settle(counter);
        if self.marks_settled(now, counter) {
            return;
        }
        if let Some(proposal) = self.proposals.remove(&counter) {
            match proposal.purpose {
                Purpose::Open { open, reconnection_token, .. } => {
                    if let Some(id) = record.body.connection_id() {
                        let id = id.clone();
                        self.attach_new(&id, open, reconnection_token, record.time);
                    }
                }
                Purpose::End(_) | Purpose::Told => {}
                Purpose::Command(command) => {
                    let outcome = record.body.refusal().map_or(Ok(()), |refusal| Err(refusal.into()));
                    self.command_settled(command, record.key.request, outcome);
                }
            }
            return;
        }
        if let Some(key) = self.session_of(record)
            && self.sessions[key].requests.note(&record.key.boot, Outcome::Applied)
        {
            self.answer_settled(now, key);
        }
    }

    fn attach_new(
        &mut self,
        connection_id: &ConnectionId,
        open: OpenId,
        reconnection_token: Option<ReconnectionToken>,
        time: Time,
    ) {
        let Some(&key) = self.by_connection_id.get(connection_id) else { return };
        let attachment = self.attach(key);
        let session = &self.sessions[key];
        let connected = Downstream::Connected {
            connection_id: connection_id.clone(),
            user_id: session.user_id.clone(),
            reconnection_token,
        };
        // No writer waits yet, so there is none to wake.
        let _ = session.outbox.lock().reply(connected);
        self.outputs.push_back(Output::Opened { open, outcome: Ok(attachment) });
        let number = self.sessions[key].events.next_number();
        let connected =
            Connected { subject: self.sessions[key].subject(), id: EventId::Counted(number), time };
        self.outputs.push_back(Output::Connected(Box::new(connected)));
    }

    /// Attaches a new socket to a session and lets go of the old one.
    pub(super) fn attach(&mut self, key: SessionKey) -> Attachment {
        let session = &mut self.sessions[key];
        if let Some(at) = session.expires_at.take() {
            self.timers.cancel(at, Timer::Expire(key));
        }
        let epoch = session.outbox.lock().attach();
        Attachment { session: SessionHandle { key, epoch }, outbox: Arc::clone(&session.outbox) }
    }

    /// Starts a detached session's retention.
    pub(super) fn wait_for_client(&mut self, key: SessionKey, since: Time) {
        let session = &mut self.sessions[key];
        let at = since.plus_seconds(u64::from(session.retention_seconds));
        if let Some(earlier) = session.expires_at.replace(at) {
            self.timers.cancel(earlier, Timer::Expire(key));
        }
        self.timers.set(at, Timer::Expire(key));
    }
}

/// Delivers a message to a session; returns a writer to wake, and whether the session went over its limits.
fn deliver(outbox: &SharedOutbox, message: &Arc<SharedMessage>) -> (Option<Waker>, bool) {
    let mut outbox = outbox.lock();
    let was_over_limits = outbox.is_over_limits();
    let woken = outbox.deliver(message);
    (woken, outbox.is_over_limits() && !was_over_limits)
}

/// The message of a publish to one of its groups.
fn message_for(
    name: MessageRef,
    group: &GroupName,
    time: Time,
    published: &Published,
    budget: &Arc<MemoryBudget>,
) -> Arc<SharedMessage> {
    let message = Message {
        sender: Sender::Group { group: group.clone(), user_id: published.user_id.clone() },
        payload: published.payload.clone(),
        metadata: published.metadata.clone(),
    };
    SharedMessage::new(name, message, expiry(time, published.ttl_seconds), budget)
}

/// The message of the application.
fn message_sent(name: MessageRef, time: Time, sent: &Sent, budget: &Arc<MemoryBudget>) -> Arc<SharedMessage> {
    let sender = match &sent.selection.audience {
        Audience::Group(group) => Sender::Group { group: group.clone(), user_id: None },
        Audience::All | Audience::User(_) | Audience::Connection(_) => Sender::Server,
    };
    let message = Message { sender, payload: sent.payload.clone(), metadata: sent.metadata.clone() };
    SharedMessage::new(name, message, expiry(time, sent.ttl_seconds), budget)
}

fn message_replied(name: MessageRef, reply: &HandlerReply, budget: &Arc<MemoryBudget>) -> Arc<SharedMessage> {
    let HandlerReply { payload, metadata } = reply.clone();
    SharedMessage::new(name, Message { sender: Sender::Server, payload, metadata }, None, budget)
}

fn expiry(time: Time, ttl_seconds: u16) -> Option<Time> {
    (ttl_seconds > 0).then(|| time.plus_seconds(u64::from(ttl_seconds)))
}

/// The message that a checkpoint names, made from its record again; none if it is no message of this record.
pub(super) fn message_of(
    name: MessageRef,
    record: &Record,
    budget: &Arc<MemoryBudget>,
) -> Option<Arc<SharedMessage>> {
    match &record.body {
        Body::Published(published) => {
            let group = published.groups.get(name.part as usize)?;
            Some(message_for(name, group, record.time, published, budget))
        }
        Body::Sent(sent) if name.part == 0 => Some(message_sent(name, record.time, sent, budget)),
        Body::Handled { reply: Some(reply), .. } if name.part == 0 => {
            Some(message_replied(name, reply, budget))
        }
        _ => None,
    }
}
