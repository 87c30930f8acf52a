//! The one fold (R11): how a record from the log takes effect.
//!
//! Nothing here reads a clock, enforces a bound or refuses (R4, R5); sessions that went over a bound are only noted.
//! Time is the hub's own, which [`HubState`](super::state::HubState) keeps.

use std::sync::Arc;
use std::task::Waker;

use super::effect::Effect;
use super::folding::DELIVERY_STEPS;
use super::handling::reason_text;
use super::messages::{message_for, message_replied, message_sent};
use super::state::{PassedOver, Verdict};
use super::{Output, SessionEnded, SessionKey, Shard};
use crate::log::{
    Body, BootId, EndReason, EventId, HandlerReply, HandlerState, Hold, Key, MessageRef, Offset, Opened,
    Published, Record, Sent, Time, chunk_of,
};
use crate::session::{Closing, Session, SharedMessage, SharedOutbox};
use crate::wire::{Close, Downstream};

impl Shard {
    /// Applies a record and settles what waited for it. `chosen` are the sessions of its selection, chosen before anything
    /// changes for one of them.
    pub(super) fn apply(
        &mut self,
        now: Time,
        offset: Offset,
        record: &Arc<Record>,
        mut chosen: Vec<SessionKey>,
    ) {
        if self.state.has_judged(offset) {
            return;
        }
        self.covered.take_if(|covered| covered.is_behind(offset));
        let before = self.state.applied();
        let ended = self.state.ended_by(record);
        let mut verdict = self.state.judge(offset, record);
        self.proposer.observe(self.state.time());
        let session = self.session_of(record);
        if verdict == Verdict::TakesEffect && self.knows_ack_id(offset, record, session) {
            verdict = Verdict::PassedOver(PassedOver::KnownAckId);
        }
        if verdict == Verdict::TakesEffect && !self.condition_holds(&record.body, session) {
            verdict = Verdict::PassedOver(PassedOver::Condition);
        }
        if verdict == Verdict::TakesEffect {
            // Those that were restored with the record's effect have it.
            chosen.retain(|key| !self.is_covered(*key, offset));
            if let Some(effect) = Effect::of(record, before, &mut chosen) {
                self.folding.effect = Some(Box::new(effect));
                return;
            }
            self.take_effect(offset, record, session, &chosen);
        }
        if matches!(record.body, Body::NodeStarted(_)) && self.proposer.made_first(&record.key.boot) {
            self.begun(verdict == Verdict::TakesEffect);
        }
        if let Some(gone) = ended.filter(|_| verdict == Verdict::TakesEffect) {
            self.apply_gone(offset, gone, takes_disconnected(&record.body));
        }
        // Who is gone settles nothing: what became of it is for others to tell.
        if self.proposer.made(&record.key.boot) && verdict != Verdict::PassedOver(PassedOver::GoneBoot) {
            self.settle(now, record, session, verdict);
        }
        if self.state.is_shared() {
            self.follow_holds(now);
        }
    }

    /// A record whose effect came in portions has taken effect.
    pub(super) fn finish(&mut self, now: Time, record: &Record) {
        if self.proposer.made(&record.key.boot) {
            self.settle(now, record, self.session_of(record), Verdict::TakesEffect);
        }
    }

    /// Whether the record's session has executed its ack id before. One that was restored with the record's effect has it in
    /// its window: that says nothing, and no log holds two executions, since the first is settled or remembered before
    /// another is appended (R7).
    fn knows_ack_id(&self, offset: Offset, record: &Record, session: Option<SessionKey>) -> bool {
        let (Some(ack), Some(key)) = (record.key.ack, session) else { return false };
        !self.is_covered(key, offset) && self.sessions[key].window.contains(ack.ack_id)
    }

    /// Whether what a record says about its session holds. In the shard that the session does not belong to, nothing depends
    /// on the answer.
    fn condition_holds(&self, body: &Body, session: Option<SessionKey>) -> bool {
        match body {
            Body::Attached { subprotocol, .. } => {
                session.is_some_and(|key| self.can_be_attached(key, *subprotocol))
            }
            Body::Ended { attached: Some(attached), .. } => {
                session.is_some_and(|key| self.sessions[key].hold.attached == *attached)
            }
            _ => true,
        }
    }

    /// Whether a session was restored with the effects of this offset.
    pub(super) fn is_covered(&self, key: SessionKey, offset: Offset) -> bool {
        self.covered.as_ref().is_some_and(|covered| covered.has(self.sessions[key].chunk, offset))
    }

    pub(super) fn session_of(&self, record: &Record) -> Option<SessionKey> {
        self.by_connection_id.get(record.body.connection_id()?).copied()
    }

    fn take_effect(
        &mut self,
        offset: Offset,
        record: &Record,
        publisher: Option<SessionKey>,
        chosen: &[SessionKey],
    ) {
        let session = publisher.filter(|key| !self.is_covered(*key, offset));
        match &record.body {
            Body::Booted { takes_disconnected, ends_all } => {
                self.apply_booted(offset, record, *takes_disconnected, *ends_all);
            }
            // See `begun` and `apply_gone`.
            Body::NodeStarted(_) | Body::NodeGone(_) => {}
            Body::Attached { .. } => {
                if let Some(key) = session {
                    self.apply_attached(offset, record.key.boot.boot, key);
                }
            }
            Body::Released { releases } => self.apply_released(offset, record.key.boot.boot, releases),
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
                        self.keep_untold(key, *number, reason_text(*reason).to_owned());
                    }
                    if self.decides_for(key) {
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
            Body::Sent(sent) => self.send(offset, record.time, sent, chosen),
            // In portions: see `Effect`.
            Body::Added { .. } | Body::Removed { .. } | Body::Closed { .. } => {}
        }
        // `Ended` has removed its session, `Opened` has none before it.
        if let Some(session) = session.and_then(|key| self.sessions.get_mut(key)) {
            if let Some(ack) = record.key.ack {
                session.window.insert(ack.ack_id, ack.fingerprint);
                self.woken.extend(ack_from_elsewhere(session, self.proposer.boot(), &record.key));
            }
            if let Some(id) = record.sequence_ack {
                session.outbox.lock().acknowledge(id);
            }
            session.charge_state();
        }
    }

    /// A boot ends the sessions of earlier boots that are not reliable and takes over the others: their retention starts
    /// anew. One from a copy ends all.
    fn apply_booted(&mut self, offset: Offset, record: &Record, takes_disconnected: bool, ends_all: bool) {
        let boot = record.key.boot.boot;
        let was_live = self.is_live;
        self.is_live = boot == self.proposer.boot();
        self.state.forget_boots_before(boot);
        let keys: Vec<SessionKey> = self.sessions.keys().collect();
        for key in keys {
            if self.is_covered(key, offset) {
                continue;
            }
            if self.sessions[key].identity.subprotocol.is_reliable() && !ends_all {
                self.take_over(key, Hold::new(boot, offset));
            } else {
                self.end_with_gateway(key, takes_disconnected, self.is_live);
            }
        }
        if self.is_live && !was_live {
            self.tell_restored();
        }
    }

    /// A session whose holder is gone has another one, without a socket.
    fn take_over(&mut self, key: SessionKey, hold: Hold) {
        let session = &mut self.sessions[key];
        session.hold = hold;
        session.events.live_on();
        self.lose_socket(key);
    }

    fn apply_opened(&mut self, offset: Offset, record: &Record, opened: &Opened) {
        // A session that is covered is there, or has ended already.
        let is_covered = self
            .covered
            .as_ref()
            .is_some_and(|covered| covered.has(chunk_of(&opened.identity.connection_id), offset));
        if !self.id.owns(&opened.identity.connection_id)
            || self.by_connection_id.contains_key(&opened.identity.connection_id)
            || is_covered
        {
            return;
        }
        let (outbox, requests) = (self.settings.outbox, self.settings.requests);
        let hold = Hold::new(record.key.boot.boot, offset);
        let key = self.insert(Session::new(opened, hold, outbox, requests, &self.budget));
        self.wait_for_client(key, self.state.time());
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
    pub(super) fn close(&mut self, key: SessionKey, reason: &str, takes_disconnected: bool) {
        let reason = if reason.is_empty() { String::new() } else { format!(" Reason: {reason}") };
        let message = format!("Application server closed the connection.{reason}");
        let mut outbox = self.sessions[key].outbox.lock();
        self.woken.extend(outbox.reply(Downstream::Disconnected { message: message.clone() }));
        self.woken.extend(outbox.close(Closing::AfterFlush(Close::NORMAL)));
        drop(outbox);
        if takes_disconnected {
            let number = EventId::last_number(self.sessions[key].events.boots);
            self.keep_untold(key, number, message);
        }
        if self.decides_for(key) {
            self.tell_end(key, Some(EndReason::ClosedByApplication));
        }
        self.remove(key);
    }

    pub(super) fn tell_end(&mut self, key: SessionKey, reason: Option<EndReason>) {
        let session = &self.sessions[key];
        let (connection_id, user_id) =
            (session.identity.connection_id.clone(), session.identity.user_id.clone());
        let ended = SessionEnded { connection_id, user_id, reason };
        self.outputs.push_back(Output::Ended(Box::new(ended)));
    }
}

/// Whether a record tells the application of the sessions that end with it.
fn takes_disconnected(body: &Body) -> bool {
    match body {
        Body::NodeStarted(started) => started.takes_disconnected,
        Body::NodeGone(gone) => gone.takes_disconnected,
        _ => false,
    }
}

/// What the boot that spoke for a session before had in flight was executed: the client, whose socket is here, is told (R6).
/// Returns a writer to wake.
fn ack_from_elsewhere(session: &Session, here: BootId, key: &Key) -> Option<Waker> {
    let ack = key.ack.filter(|_| key.boot.boot != here && session.hold.is_held_by(here))?;
    session.outbox.lock().reply(Downstream::Ack { ack_id: ack.ack_id, error: None })
}

/// Delivers a message to a session; returns a writer to wake, and whether the session went over its limits.
fn deliver(outbox: &SharedOutbox, message: &Arc<SharedMessage>) -> (Option<Waker>, bool) {
    let mut outbox = outbox.lock();
    let was_over_limits = outbox.is_over_limits();
    let woken = outbox.deliver(message);
    (woken, outbox.is_over_limits() && !was_over_limits)
}
