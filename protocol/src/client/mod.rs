//! The client's half of the protocol: recovery, sequence acks, resend.
//!
//! A state machine without sockets, clock or randomness: the driver calls [`Client::handle`] with one input or
//! [`Client::request`] with one request, then drains [`Client::poll_output`], and calls back at
//! [`Client::poll_timeout`]. It knows the messages of the wire; it does not know hubs, tokens' insides or URLs.
//!
//! | file | holds |
//! |---|---|
//! | `input.rs` | what goes in and comes out |
//! | `settings.rs` | settings, and the official clients' habits in terms of them |
//! | `connection.rs` | sockets: attempts, recovery, keepalive, what arrives |
//! | `requests.rs` | requests that wait for their outcome |
//! | `sequence.rs` | which sequence ids have come, and when to acknowledge |
//!
//! What it promises, together with a gateway that keeps rules R1 to R13:
//!
//! * A message is delivered once, in the order of its sequence ids, within a session.
//! * A request with an ack id gets exactly one [`Outcome`]. It is sent again under the same ack id after a timeout, a
//!   passing failure and on the socket of a recovery, in the original order, so that the gateway executes it at most
//!   once. Only when its session is lost can it end as [`Outcome::Unknown`].

mod connection;
mod input;
mod requests;
mod sequence;
mod settings;
#[cfg(test)]
mod tests;

pub use input::{ClientTime, Frame, Input, Outcome, Output, Recovery, RequestError, SocketId};
pub use settings::{ClientSettings, QUICK_ACK_JUMP};

use std::collections::{BTreeSet, VecDeque};

use connection::{Session, State};
use requests::{Awaiting, Membership, Order, Pending, Requests};

use crate::wire::{
    AckError, AckId, ConnectionId, Encoding, ErrorName, FrameKind, GroupName, SequenceId, Upstream,
    encode_upstream,
};

/// One client. See the module.
#[derive(Debug)]
pub struct Client {
    settings: ClientSettings,
    state: State,
    last_socket: u64,
    session: Option<Session>,
    /// When recovery of the session is given up. Unset while its socket has proved to be of use.
    recovery_until: Option<ClientTime>,
    next_ack_id: AckId,
    requests: Requests,
    /// Groups to join again in a new session.
    groups: BTreeSet<GroupName>,
    outputs: VecDeque<Output>,
}

impl Client {
    /// A client that does nothing before [`Input::Start`].
    pub fn new(settings: ClientSettings) -> Self {
        Self {
            settings,
            state: State::Idle,
            last_socket: 0,
            session: None,
            recovery_until: None,
            next_ack_id: 1,
            requests: Requests::default(),
            groups: BTreeSet::new(),
            outputs: VecDeque::new(),
        }
    }

    /// Takes one input.
    pub fn handle(&mut self, now: ClientTime, input: Input) {
        match input {
            Input::Start => self.start(now),
            Input::Stop => self.stop(),
            Input::Opened { socket } => self.opened(now, socket),
            Input::ConnectFailed { socket } => self.closed(now, socket, None),
            Input::Frame { socket, frame } => self.frame(now, socket, &frame),
            Input::Received { socket, received } => self.received(now, socket, received),
            Input::Closed { socket, code } => self.closed(now, socket, code),
            Input::Timeout => {
                self.fire_connection_timers(now);
                self.fire_request_timers(now);
            }
        }
    }

    /// An ack id that no request of this client has used. Ids go on counting over sessions.
    pub fn fresh_ack_id(&mut self) -> AckId {
        let ack_id = self.next_ack_id;
        self.next_ack_id += 1;
        ack_id
    }

    /// Takes one request. With an ack id it waits for a session if need be and ends in an [`Output::Outcome`];
    /// without one it is sent now, and that is all.
    ///
    /// # Errors
    /// The request was not taken and leaves no trace.
    pub fn request(&mut self, now: ClientTime, request: Upstream) -> Result<(), RequestError> {
        let Some(ack_id) = request.ack_id() else {
            if !self.can_send() {
                return Err(RequestError::NotConnected);
            }
            self.send_message(&request);
            return Ok(());
        };
        let data = encode_upstream(self.encoding(), &request);
        if self.requests.contains(ack_id) {
            return Err(RequestError::AckIdPending);
        }
        if self.requests.len() >= self.settings.pending_requests_max
            || self.requests.bytes() + data.len() > self.settings.pending_bytes_max
        {
            return Err(RequestError::TooManyPending);
        }
        let membership = match request {
            Upstream::JoinGroup { group, .. } => Membership::Joins(group),
            Upstream::LeaveGroup { group, .. } => Membership::Leaves(group),
            _ => Membership::Unchanged,
        };
        if let Membership::Joins(group) = &membership
            && self.settings.auto_rejoin
            && self.groups.len() >= self.settings.rejoin_groups_max
            && !self.groups.contains(group)
        {
            return Err(RequestError::TooManyGroups);
        }
        // A chosen id never meets a counted one that comes later.
        self.next_ack_id = self.next_ack_id.max(ack_id.saturating_add(1));
        let order = self.requests.push(Pending::new(ack_id, data, membership, false));
        if self.can_send() {
            self.send_pending(now, order);
        }
        Ok(())
    }

    /// The next thing to do or to know.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`Input::Timeout`] is due.
    pub fn poll_timeout(&self) -> Option<ClientTime> {
        [self.connection_timeout(), self.requests.next_due()].into_iter().flatten().min()
    }

    /// The session at hand, attached or being recovered.
    pub fn connection_id(&self) -> Option<&ConnectionId> {
        self.session.as_ref().map(Session::connection_id)
    }

    /// The largest sequence id that the session at hand has delivered; 0 before the first.
    pub fn largest_sequence_id(&self) -> SequenceId {
        self.session.as_ref().map_or(0, Session::largest_sequence_id)
    }

    /// Requests that wait for their outcome.
    pub fn pending_requests(&self) -> usize {
        self.requests.len()
    }

    fn encoding(&self) -> Encoding {
        self.settings.subprotocol.encoding()
    }

    fn send_message(&mut self, message: &Upstream) {
        let data = encode_upstream(self.encoding(), message);
        self.send(data);
    }

    fn send(&mut self, data: bytes::Bytes) {
        let Some(socket) = self.open_socket() else { return };
        let kind = match self.encoding() {
            Encoding::Json | Encoding::Raw => FrameKind::Text,
        };
        self.outputs.push_back(Output::Send { socket, frame: Frame { kind, data } });
    }

    /// Sends one request and waits for its answer.
    fn send_pending(&mut self, now: ClientTime, order: Order) {
        let Some(pending) = self.requests.get_mut(order) else { return };
        pending.is_sent = true;
        pending.awaiting = Awaiting::Answer;
        let data = pending.data.clone();
        let due = self.settings.ack_timeout_ms.map(|ms| now.plus_ms(ms));
        self.requests.set_due(order, due);
        self.send(data);
    }

    /// All that has no outcome goes to the new socket of the same session, in the original order.
    fn resend_requests(&mut self, now: ClientTime) {
        for order in self.requests.orders() {
            self.send_pending(now, order);
        }
    }

    fn send_unsent_requests(&mut self, now: ClientTime) {
        for order in self.requests.unsent() {
            self.send_pending(now, order);
        }
    }

    /// Joins the client's groups in a new session, before anything that has not been sent yet.
    fn rejoin(&mut self, now: ClientTime) {
        if self.settings.auto_rejoin && !self.groups.is_empty() {
            let (sent, unsent): (Vec<_>, Vec<_>) =
                self.requests.drain().into_iter().partition(|pending| pending.is_sent);
            sent.into_iter().for_each(|pending| drop(self.requests.push(pending)));
            for group in self.groups.clone() {
                let ack_id = self.fresh_ack_id();
                let join = Upstream::JoinGroup { group: group.clone(), ack_id: Some(ack_id) };
                let data = encode_upstream(self.encoding(), &join);
                self.requests.push(Pending::new(ack_id, data, Membership::Joins(group), true));
            }
            unsent.into_iter().for_each(|pending| drop(self.requests.push(pending)));
        }
        self.send_unsent_requests(now);
    }

    fn acked(&mut self, now: ClientTime, ack_id: AckId, error: Option<AckError>) {
        let Some(order) = self.requests.sent_with(ack_id) else { return };
        let outcome = match error {
            None => Outcome::Done,
            Some(error) => match error.name {
                ErrorName::Duplicate => Outcome::Duplicate,
                ErrorName::InternalServerError if self.may_retry(order) => {
                    let due = now.plus_ms(self.settings.request_retry_ms);
                    if let Some(pending) = self.requests.get_mut(order) {
                        pending.awaiting = Awaiting::Retry;
                    }
                    self.requests.set_due(order, Some(due));
                    return;
                }
                ErrorName::InternalServerError
                | ErrorName::Forbidden
                | ErrorName::PayloadMismatch
                | ErrorName::BadRequest => Outcome::Refused(error),
            },
        };
        self.settle(order, outcome);
    }

    /// Uses up one of the request's retries.
    fn may_retry(&mut self, order: Order) -> bool {
        let retries_max = self.settings.request_retries_max;
        let Some(pending) = self.requests.get_mut(order) else { return false };
        let may = pending.retries < retries_max;
        pending.retries += u32::from(may);
        may
    }

    fn settle(&mut self, order: Order, outcome: Outcome) {
        let Some(pending) = self.requests.remove(order) else { return };
        let succeeded = matches!(outcome, Outcome::Done | Outcome::Duplicate);
        match pending.membership {
            Membership::Joins(group) if pending.is_rejoin => {
                if !succeeded {
                    self.groups.remove(&group);
                    let error = if let Outcome::Refused(error) = outcome { Some(error) } else { None };
                    self.outputs.push_back(Output::RejoinFailed { group, error });
                }
                return;
            }
            Membership::Joins(group) if succeeded && self.settings.auto_rejoin => {
                self.groups.insert(group);
            }
            Membership::Leaves(group) if succeeded => {
                self.groups.remove(&group);
            }
            _ => {}
        }
        self.outputs.push_back(Output::Outcome { ack_id: pending.ack_id, outcome });
    }

    fn fire_request_timers(&mut self, now: ClientTime) {
        for order in self.requests.due_by(now) {
            let is_retry =
                self.requests.get_mut(order).is_some_and(|pending| pending.awaiting == Awaiting::Retry);
            if is_retry || self.may_retry(order) {
                self.send_pending(now, order);
            } else {
                self.settle(order, Outcome::Unknown);
            }
        }
    }

    /// The session that requests were sent to is gone, and its memory of ack ids with it.
    fn requests_lost_session(&mut self) {
        for mut pending in self.requests.drain() {
            if let Membership::Leaves(group) = &pending.membership {
                self.groups.remove(group);
            }
            if pending.is_rejoin {
                continue;
            }
            if !pending.is_sent || self.settings.resend_to_new_session {
                pending.is_sent = false;
                self.requests.push(pending);
            } else {
                self.outputs.push_back(Output::Outcome { ack_id: pending.ack_id, outcome: Outcome::Unknown });
            }
        }
        self.requests.stop_timers();
    }

    /// The application stops: whatever waits gets its outcome.
    fn give_up_requests(&mut self) {
        for pending in self.requests.drain() {
            if !pending.is_rejoin {
                let outcome = if pending.is_sent { Outcome::Unknown } else { Outcome::NotSent };
                self.outputs.push_back(Output::Outcome { ack_id: pending.ack_id, outcome });
            }
        }
    }
}
