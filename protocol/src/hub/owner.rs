//! What the live owner of a shard decides: who is attached, what is proposed, who has to go.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::timer::{APPEND_RETRY_MS, Timer};
use super::{
    AppendId, CommandError, CommandId, Input, NewSession, OpenError, OpenId, Opening, Output, Resuming,
    SessionHandle, SessionKey, Shard, SocketEnd,
};
use crate::log::{Body, Certainty, EndReason, IdempotencyKey, Key, Offset, Opened, Record, Time};
use crate::session::{
    Closing, GroupRoom, NextBatch, Outcome, Phase, Request, Session, SessionCharge, SessionLimits, UserPlace,
    may_be_in,
};
use crate::wire::{Close, ConnectionId, Encoding, GroupName, ReconnectionToken, UserId};

/// Groups that sessions which are being ended, since their clients did not come back, may be in all together; others are
/// ended when these are. Taking a session out of its groups takes a microsecond for each, and until then nobody else is
/// served.
const EXPIRING_GROUPS_MAX: usize = 10_000;
/// Sessions whose retention is over.
#[derive(Debug, Default)]
pub struct Expired {
    /// To be ended, in this order.
    waiting: VecDeque<SessionKey>,
    /// Being ended, with the groups that they were in then.
    ending: BTreeMap<SessionKey, usize>,
    /// Groups of all that are being ended.
    groups: usize,
}

impl Expired {
    fn has_room(&self, groups: usize) -> bool {
        self.ending.is_empty() || self.groups + groups <= EXPIRING_GROUPS_MAX
    }

    fn end(&mut self, key: SessionKey, groups: usize) {
        self.groups += groups;
        self.ending.insert(key, groups);
    }

    /// The session is gone.
    pub(super) fn removed(&mut self, key: SessionKey) {
        self.groups -= self.ending.remove(&key).unwrap_or_default();
    }
}

/// A record beside the sessions' batches whose append has no known outcome.
#[derive(Debug)]
pub struct Proposal {
    pub(super) record: Arc<Record>,
    pub(super) purpose: Purpose,
    /// Set once an attempt has failed indefinitely: no later failure settles it.
    may_have_happened: bool,
}

/// The place of a session that is being opened.
#[derive(Debug)]
pub struct Reserved {
    _charge: SessionCharge,
    _user_place: Option<UserPlace>,
}

/// What becomes of a proposal when its outcome is known.
#[derive(Debug)]
pub enum Purpose {
    /// A socket waits to be attached to the session that it opens.
    Open {
        /// The driver's name for the socket.
        open: OpenId,
        /// For the `connected` message.
        reconnection_token: Option<ReconnectionToken>,
        /// Counts as the session until there is one.
        _reserved: Reserved,
    },
    /// The session is over as soon as it is applied; until then it is tried again and again.
    End(SessionKey),
    /// A socket waits for the session to be held here.
    Attach(ConnectionId),
    /// A command waits for it.
    Command(CommandId),
    /// Nobody waits, but it is tried until it is there.
    Told,
}

impl Proposal {
    pub(super) fn body(&self) -> &Body {
        &self.record.body
    }
}

impl Shard {
    pub(super) fn open(&mut self, now: Time, opening: Opening) {
        let Opening { open, session } = opening;
        let NewSession { identity, roles, groups, reconnection_token, state } = session;
        if !self.is_live {
            return self.refuse(open, OpenError::Unavailable);
        }
        let groups: BTreeSet<GroupName> = groups.into_iter().collect();
        if !may_be_in(groups.iter(), self.settings.groups_per_session_max) {
            return self.refuse(open, OpenError::TooManyGroups);
        }
        let Some(reserved) = self.reserve(identity.user_id.as_ref()) else {
            return self.refuse(open, OpenError::Full);
        };
        let body = Body::Opened(Opened {
            identity,
            roles,
            groups: groups.into_iter().collect(),
            ack_window_ids: self.settings.ack_window_ids,
            retention_seconds: self.settings.session_retention_seconds,
            state,
        });
        self.propose(now, body, None, Purpose::Open { open, reconnection_token, _reserved: reserved });
    }

    /// Takes a place for a new session, unless a bound on sessions or the memory budget has been reached.
    fn reserve(&self, user_id: Option<&UserId>) -> Option<Reserved> {
        let SessionLimits { sessions_max, per_user } = &self.settings.sessions;
        if self.budget.sessions() >= *sessions_max || self.budget.is_full() {
            return None;
        }
        let user_place = match per_user.as_ref().zip(user_id) {
            Some((users, user_id)) => Some(users.reserve(user_id)?),
            None => None,
        };
        Some(Reserved { _charge: SessionCharge::new(&self.budget), _user_place: user_place })
    }

    /// A resume appends nothing where this boot holds the session already: attaching is the holder's own business.
    pub(super) fn resume(&mut self, now: Time, resuming: Resuming) {
        let Resuming { open, subprotocol, has_waited, .. } = resuming;
        if !self.is_live {
            return self.refuse(open, OpenError::Unavailable);
        }
        let Some(&key) = self.by_connection_id.get(&resuming.connection_id) else {
            if self.state.is_shared() {
                // Others may have begun it already (R10).
                return self.attach_here(now, resuming);
            }
            return self.refuse(open, OpenError::Refused);
        };
        let session = &self.sessions[key];
        if !session.identity.subprotocol.is_reliable() || session.identity.subprotocol != subprotocol {
            return self.refuse(open, OpenError::Refused);
        }
        match session.phase {
            Phase::Live => {}
            // The client itself made the end: whatever becomes of the record, it has nothing to come back to.
            Phase::Finishing(reason) | Phase::Ending(reason) if is_by_client(reason) => {
                return self.refuse(open, OpenError::Refused);
            }
            Phase::Finishing(_) | Phase::Ending(_) => return self.refuse(open, OpenError::Unavailable),
        }
        if !session.hold.is_held_by(self.proposer.boot()) {
            return self.attach_here(now, resuming);
        }
        if !has_waited && let Some(wait) = self.must_wait(key) {
            return self.refuse(open, wait);
        }
        if self.sessions[key].outbox.lock().is_attached() {
            self.socket_over(now, key, false);
        }
        let attachment = self.attach(key);
        let session = &mut self.sessions[key];
        let first = session.outbox.lock().first_unacknowledged().map(|(id, _)| id);
        session.recoveries.recovered(now, first);
        self.outputs.push_back(Output::Opened { open, outcome: Ok(attachment) });
    }

    /// Whether a recovery has to wait since those before it came to nothing. Its retention does not run meanwhile.
    fn must_wait(&mut self, key: SessionKey) -> Option<OpenError> {
        let session = &mut self.sessions[key];
        let (ms, is_first) = session.recoveries.wait()?;
        let bytes = session.outbox.lock().first_unacknowledged().map(|(_, message)| message.content_bytes());
        if let Some(at) = &mut session.expires_at {
            self.timers.cancel(*at, Timer::Expire(key));
            *at = at.plus_ms(ms);
            self.timers.set(*at, Timer::Expire(key));
        }
        Some(OpenError::TooEarly { ms, is_first, first_message_bytes: bytes.unwrap_or_default() })
    }

    fn socket_over(&mut self, now: Time, key: SessionKey, is_closed_by_client: bool) {
        let session = &mut self.sessions[key];
        let first = session.outbox.lock().first_unacknowledged().map(|(id, _)| id);
        session.recoveries.over(now, is_closed_by_client, first);
    }

    pub(super) fn refuse(&mut self, open: OpenId, error: OpenError) {
        self.outputs.push_back(Output::Opened { open, outcome: Err(error) });
    }

    pub(super) fn take_requests(&mut self, now: Time, from: SessionHandle, requests: Vec<Request>) {
        let Some(session) = self.sessions.get_mut(from.key) else { return };
        if session.phase != Phase::Live || !session.is_attached_to(from.epoch) {
            // They were counted when they were read, and the session's next socket has the same count.
            let bytes = requests.iter().map(|request| request.bytes).sum();
            return session.outbox.lock().settle_requests(requests.len(), bytes);
        }
        requests.into_iter().for_each(|request| session.requests.push(request));
        self.append_next_batch(now, from.key);
        if self.sessions.get(from.key).is_some_and(|session| session.requests.has_waiting()) {
            // While the log stands still nothing else comes that asks for it.
            self.shed_messages(now);
        }
    }

    pub(super) fn socket_closed(&mut self, now: Time, from: SessionHandle, end: SocketEnd) {
        let Some(session) = self.sessions.get_mut(from.key) else { return };
        let mut outbox = session.outbox.lock();
        if !outbox.is_current(from.epoch) {
            return;
        }
        if let SocketEnd::Violation(close) = end {
            self.woken.extend(outbox.close(Closing::Now(close)));
        } else {
            outbox.detach(from.epoch);
        }
        if matches!(session.phase, Phase::Ending(_)) && !self.state.is_shared() {
            outbox.free();
        }
        drop(outbox);
        if session.phase != Phase::Live {
            return;
        }
        let reason = match end {
            SocketEnd::Lost | SocketEnd::Closed if session.identity.subprotocol.is_reliable() => {
                self.socket_over(now, from.key, end == SocketEnd::Closed);
                return self.wait_for_client(from.key, now);
            }
            SocketEnd::Lost | SocketEnd::Closed | SocketEnd::ClosedForGood => EndReason::ClientClosed,
            SocketEnd::Violation(_) => EndReason::ProtocolViolation,
        };
        session.phase = Phase::Finishing(reason);
        self.end_behind_call(now, from.key);
        self.append_next_batch(now, from.key);
    }

    pub(super) fn propose(
        &mut self,
        now: Time,
        body: Body,
        request: Option<IdempotencyKey>,
        purpose: Purpose,
    ) {
        let (key, time) = self.proposer.next(now, None);
        let key = Key { request, ..key };
        let record = Arc::new(Record { key, time, sequence_ack: None, body });
        let counter = key.boot.counter;
        let proposal = Proposal { record: Arc::clone(&record), purpose, may_have_happened: false };
        self.proposals.insert(counter, proposal);
        let append = AppendId::Proposal(counter);
        self.outputs.push_back(Output::Append { append, records: vec![record] });
    }

    /// Appends what the session has waiting, unless a batch of it is not settled yet (R7).
    pub(super) fn append_next_batch(&mut self, now: Time, key: SessionKey) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        if session.requests.has_batch() || matches!(session.phase, Phase::Ending(_)) {
            return;
        }
        let (me, hold) = (self.proposer.boot(), session.hold);
        if !hold.is_all_of(me) {
            if hold.is_spoken_for_by(me) && hold.holder.is_some() {
                self.release(key);
            }
            return;
        }
        if session.requests.is_empty() {
            if let Phase::Finishing(reason) = session.phase {
                self.end(now, key, reason, None);
            }
            return;
        }
        let groups_max = self.settings.groups_per_session_max;
        let room = GroupRoom { groups_max, has_memory: !self.budget.has_too_much_state() };
        let NextBatch { records, call, close } = session.next_batch(now, &mut self.proposer, room);
        if !records.is_empty() {
            let append = AppendId::Batch { session: key, number: session.requests.batch_number() };
            self.outputs.push_back(Output::Append { append, records });
        }
        if let Some(call) = call {
            self.call(now, key, call);
            self.end_behind_call(now, key);
        }
        if let Some(close) = close {
            self.close_for_refusal(key, Closing::Now(close));
        }
        // Those at the front that need no record wait for none.
        self.answer_settled(now, key);
    }

    /// Answers the requests at the front of the batch whose outcome is known; goes on with the next batch when that
    /// was the last.
    pub(super) fn answer_settled(&mut self, now: Time, key: SessionKey) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        let mut outbox = session.outbox.lock();
        while let Some(settled) = session.requests.settle_next(&session.window) {
            outbox.settle_requests(1, settled.bytes);
            if let Some(answer) = settled.answer {
                self.woken.extend(outbox.reply(answer));
            }
        }
        drop(outbox);
        if !session.requests.has_batch() {
            self.append_next_batch(now, key);
        }
    }

    /// Tells a client by closing that a request of its was not executed, as a raw one has to be told: it has no acks. What
    /// waits behind that request is not executed either.
    pub(super) fn close_for_refusal(&mut self, key: SessionKey, closing: Closing) {
        self.drop_waiting(key);
        let Some(session) = self.sessions.get_mut(key) else { return };
        self.woken.extend(session.outbox.lock().close(closing));
        if session.phase == Phase::Live {
            session.phase = Phase::Finishing(EndReason::ProtocolViolation);
        }
    }

    pub(super) fn drop_waiting(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        let mut outbox = session.outbox.lock();
        for request in session.requests.drop_waiting() {
            outbox.settle_requests(1, request.bytes);
        }
    }

    /// A session whose client has gone does not wait for a handler, which may take long and can reach nobody any more: the
    /// call runs to its end, and what waits behind it is not executed.
    fn end_behind_call(&mut self, now: Time, key: SessionKey) {
        let Some(session) = self.sessions.get(key) else { return };
        if let Phase::Finishing(reason) = session.phase
            && session.requests.is_calling()
        {
            self.end(now, key, reason, None);
        }
    }

    /// Proposes a session's end. From now on it takes no socket and no request, and what waits is not executed; its outbox is freed at once, or when its
    /// socket has been told to write what waits and then to close.
    pub(super) fn end(&mut self, now: Time, key: SessionKey, reason: EndReason, close: Option<Close>) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        if matches!(session.phase, Phase::Ending(_)) {
            return;
        }
        session.phase = Phase::Ending(reason);
        self.drop_waiting(key);
        let Some(session) = self.sessions.get_mut(key) else { return };
        let mut outbox = session.outbox.lock();
        let is_told = outbox.is_attached() || is_by_client(reason);
        self.woken.extend(match (close, self.state.is_shared()) {
            (None, false) => outbox.end(),
            (None, true) => outbox.close(Closing::Cut),
            (Some(close), is_shared) => {
                // Where others may bring the session back before its end, it has to be whole.
                if !is_shared {
                    outbox.free();
                }
                outbox.close(Closing::Now(close))
            }
        });
        drop(outbox);
        let attached = session.hold.attached;
        self.propose_end(now, key, reason, Some(attached).filter(|_| self.state.is_shared() && !is_told));
    }

    pub(super) fn stop(&mut self, now: Time) {
        if !self.is_live {
            return;
        }
        for key in self.sessions.keys().collect::<Vec<_>>() {
            self.end(now, key, EndReason::Stopped, None);
        }
    }

    /// `attached` is the only attachment that it ends, should there be another one before the record.
    fn propose_end(&mut self, now: Time, key: SessionKey, reason: EndReason, attached: Option<Offset>) {
        let connection_id = self.sessions[key].identity.connection_id.clone();
        let disconnected = self.end_number(key);
        let body = Body::Ended { connection_id, reason, disconnected, attached };
        self.propose(now, body, None, Purpose::End(key));
    }

    /// Goes on with ends that an earlier boot had decided and that are not in the log.
    pub(super) fn end_restored(&mut self, now: Time) {
        let is_ending = |session: &Session| match session.phase {
            Phase::Ending(reason) => Some(reason),
            Phase::Live | Phase::Finishing(_) => None,
        };
        let ends = self.sessions.iter().filter_map(|(key, session)| Some((key, is_ending(session)?)));
        for (key, reason) in ends.collect::<Vec<_>>() {
            self.propose_end(now, key, reason, None);
        }
    }

    pub(super) fn append_failed(&mut self, now: Time, append: AppendId, certainty: Certainty) {
        let is_settled = match append {
            AppendId::Batch { session, number } => self.batch_failed(now, session, number, certainty),
            AppendId::Proposal(counter) => self.proposal_failed(now, counter, certainty),
            AppendId::Marks(counter) => {
                self.marks_failed(now, counter);
                true
            }
        };
        if !is_settled {
            self.timers.set(now.plus_ms(APPEND_RETRY_MS), Timer::Retry(append));
        }
    }

    /// Settles a batch that is certainly not in the log; tells whether that, or its records, is the end of the matter.
    fn batch_failed(&mut self, now: Time, key: SessionKey, number: u64, certainty: Certainty) -> bool {
        let Some(session) = self.sessions.get_mut(key) else { return true };
        if session.requests.batch_number() != number {
            return true;
        }
        if !session.requests.has_certainly_failed(certainty) {
            return false;
        }
        if session.requests.unsettled().any(|record| record.sequence_ack.is_some()) {
            session.outbox.lock().mark_lost();
        }
        let failed: Vec<_> = session.requests.unsettled().map(|record| record.key).collect();
        for key in failed {
            session.requests.note(&key.boot, Outcome::Failed);
            self.proposer.settle(key.boot.counter);
        }
        if session.identity.subprotocol.encoding() == Encoding::Raw {
            // What came after it must not arrive without it.
            self.close_for_refusal(key, Closing::Now(Close::NOT_STORED));
        }
        self.answer_settled(now, key);
        true
    }

    /// Settles a proposal that is certainly not in the log; tells whether that, or its record, is the end of the
    /// matter.
    fn proposal_failed(&mut self, now: Time, counter: u64, certainty: Certainty) -> bool {
        let Some(proposal) = self.proposals.get_mut(&counter) else { return true };
        proposal.may_have_happened |= certainty == Certainty::Indefinite;
        // Doomed: what the client was told stands, so the end has to be stored some time.
        let is_doomed = match proposal.purpose {
            Purpose::End(key) => self.sessions.contains_key(key),
            Purpose::Told => true,
            Purpose::Open { .. } | Purpose::Attach(_) | Purpose::Command(_) => false,
        };
        if proposal.may_have_happened || is_doomed {
            return false;
        }
        self.proposer.settle(counter);
        match self.proposals.remove(&counter) {
            Some(Proposal { purpose: Purpose::Open { open, .. }, .. }) => {
                self.refuse(open, OpenError::Unavailable);
            }
            Some(Proposal { purpose: Purpose::Attach(connection_id), .. }) => {
                self.attaching_settled(now, &connection_id, Err(OpenError::Unavailable));
            }
            Some(Proposal { purpose: Purpose::Command(command), record, .. }) => {
                self.command_settled(command, record.key.request, Err(CommandError::Unavailable));
            }
            Some(Proposal { purpose: Purpose::End(_) | Purpose::Told, .. }) | None => {}
        }
        true
    }

    pub(super) fn fire_timers(&mut self, now: Time) {
        while let Some(timer) = self.timers.pop_due(now) {
            match timer {
                Timer::Expire(key) => self.expire(now, key),
                Timer::Retry(append) => self.retry(append),
                Timer::Marks => self.marks_due(now),
                Timer::Budget => self.take_back_budget(now),
            }
        }
    }

    fn expire(&mut self, now: Time, key: SessionKey) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        session.expires_at = None;
        if !self.decides_for(key) {
            return;
        }
        self.expired.waiting.push_back(key);
        self.end_expired(now);
    }

    /// Ends sessions whose clients did not come back in time, as many at once as others can wait for.
    pub(super) fn end_expired(&mut self, now: Time) {
        while let Some(&key) = self.expired.waiting.front() {
            let has_no_client = |session: &&Session| {
                let is_detached = session.expires_at.is_none() && !session.outbox.lock().is_attached();
                session.phase == Phase::Live && is_detached
            };
            let session = self.sessions.get(key).filter(|_| self.decides_for(key));
            let groups = session.filter(has_no_client).map(|session| session.groups.len());
            if groups.is_some_and(|groups| !self.expired.has_room(groups)) {
                return;
            }
            self.expired.waiting.pop_front();
            if let Some(groups) = groups {
                self.expired.end(key, groups);
                self.end(now, key, EndReason::Expired, None);
            }
        }
    }

    /// Appends under the same keys what has no known outcome yet.
    fn retry(&mut self, append: AppendId) {
        let records: Vec<_> = match append {
            AppendId::Batch { session, number } => match self.sessions.get(session) {
                Some(session) if session.requests.batch_number() == number => {
                    session.requests.unsettled().cloned().collect()
                }
                _ => return,
            },
            AppendId::Proposal(counter) => self
                .proposals
                .get(&counter)
                .map(|proposal| Arc::clone(&proposal.record))
                .into_iter()
                .collect(),
            AppendId::Marks(_) => return,
        };
        if !records.is_empty() {
            self.outputs.push_back(Output::Append { append, records });
        }
    }
}

/// Whether an end is the client's own doing, whatever becomes of its record.
fn is_by_client(reason: EndReason) -> bool {
    matches!(reason, EndReason::ClientClosed | EndReason::ProtocolViolation)
}

impl From<Opening> for Input {
    fn from(opening: Opening) -> Self {
        Self::Open(Box::new(opening))
    }
}
