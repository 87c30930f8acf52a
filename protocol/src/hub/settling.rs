//! What a shard's own records have come to, for those who wait for them.

use std::sync::Arc;

use super::owner::{Proposal, Purpose};
use super::state::{PassedOver, Verdict};
use super::timer::Timer;
use super::{Attachment, Connected, Done, OpenError, OpenId, Output, SessionHandle, SessionKey, Shard};
use crate::log::{Body, EventId, Record, Time};
use crate::session::{Outcome, Phase};
use crate::wire::{ConnectionId, Downstream, ReconnectionToken};

impl Shard {
    /// Settles what waited for a record of this shard, by the fold's verdict on it. `session` is the record's, which may be over
    /// by now.
    pub(super) fn settle(
        &mut self,
        now: Time,
        record: &Record,
        session: Option<SessionKey>,
        verdict: Verdict,
    ) {
        let counter = record.key.boot.counter;
        if let Body::Released { releases } = &record.body {
            self.releases_settled(releases);
        }
        self.proposer.settle(counter);
        if verdict == Verdict::PassedOver(PassedOver::Repeated) {
            // Its first copy has settled it.
            return;
        }
        if self.marks_settled(now, counter) {
            return;
        }
        if let Some(proposal) = self.proposals.remove(&counter) {
            return self.settle_proposal(now, proposal, record, verdict);
        }
        // The ack of an id that was executed before is the same.
        if let Some(key) = session
            && let Some(session) = self.sessions.get_mut(key)
            && session.requests.note(&record.key.boot, Outcome::Applied)
        {
            self.answer_settled(now, key);
        }
    }

    fn settle_proposal(&mut self, now: Time, proposal: Proposal, record: &Record, verdict: Verdict) {
        match proposal.purpose {
            Purpose::Open { open, reconnection_token, .. } => match record.body.connection_id() {
                Some(id) if verdict == Verdict::TakesEffect => {
                    self.attach_new(&id.clone(), open, reconnection_token);
                }
                _ => self.refuse(open, OpenError::Unavailable),
            },
            Purpose::Attach(connection_id) => {
                let is_here = verdict == Verdict::TakesEffect;
                // The log's order has decided: nothing that is still to come brings such a session back.
                let outcome = if is_here { Ok(()) } else { Err(OpenError::Refused) };
                self.attaching_settled(now, &connection_id, outcome);
            }
            Purpose::End(key) if verdict == Verdict::PassedOver(PassedOver::Condition) => {
                // Its client has come back before the end.
                if let Some(session) = self.sessions.get_mut(key) {
                    session.phase = Phase::Live;
                    self.moving.changed.push(key);
                }
            }
            Purpose::End(_) | Purpose::Told => {}
            Purpose::Command(command) => {
                let (refusal, done) = match verdict {
                    Verdict::PassedOver(PassedOver::KnownRequest(refusal)) => (refusal, Done::Repeated),
                    _ => (record.body.refusal(), Done::Executed),
                };
                let outcome = refusal.map_or(Ok(done), |refusal| Err(refusal.into()));
                self.command_settled(command, record.key.request, outcome);
            }
        }
    }

    fn attach_new(
        &mut self,
        connection_id: &ConnectionId,
        open: OpenId,
        reconnection_token: Option<ReconnectionToken>,
    ) {
        let Some(&key) = self.by_connection_id.get(connection_id) else { return };
        let attachment = self.attach(key);
        let session = &self.sessions[key];
        let connected = Downstream::Connected {
            connection_id: connection_id.clone(),
            user_id: session.identity.user_id.clone(),
            reconnection_token,
        };
        // No writer waits yet, so there is none to wake.
        let _ = session.outbox.lock().reply(connected);
        self.outputs.push_back(Output::Opened { open, outcome: Ok(attachment) });
        let number = self.sessions[key].events.next_number();
        let (subject, time) = (self.sessions[key].subject(), self.state.time());
        let connected = Connected { subject, id: EventId::Counted(number), time };
        self.outputs.push_back(Output::Connected(Box::new(connected)));
    }

    /// Attaches a new socket to a session and lets go of the old one.
    pub(super) fn attach(&mut self, key: SessionKey) -> Attachment {
        self.cancel_expiry(key);
        let session = &mut self.sessions[key];
        let epoch = session.outbox.lock().attach();
        Attachment { session: SessionHandle { key, epoch }, outbox: Arc::clone(&session.outbox) }
    }

    /// A session waits for its client no longer, or not here.
    pub(super) fn cancel_expiry(&mut self, key: SessionKey) {
        if let Some(at) = self.sessions[key].expires_at.take() {
            self.timers.cancel(at, Timer::Expire(key));
        }
    }

    /// Starts a detached session's retention. Where another start of a gateway decides about the session, no time runs here.
    pub(super) fn wait_for_client(&mut self, key: SessionKey, since: Time) {
        let decides = self.decides_for(key);
        let session = &mut self.sessions[key];
        let at = decides.then(|| since.plus_seconds(u64::from(session.retention_seconds)));
        if let Some(earlier) = std::mem::replace(&mut session.expires_at, at) {
            self.timers.cancel(earlier, Timer::Expire(key));
        }
        if let Some(at) = at {
            self.timers.set(at, Timer::Expire(key));
        }
    }
}
