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
//!   once. It ends as [`Outcome::Unknown`] only when its session is lost, the client is stopped, or no answer comes
//!   although its retries are used up ([`ClientSettings::request_retries_max`]).

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
use requests::{Membership, Pending, Requests};

use crate::wire::{
    AckId, ConnectionId, Encoding, FrameKind, GroupName, SequenceId, Upstream, encode_upstream,
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
        self.next_ack_id = ack_id.wrapping_add(1);
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
        let frame = self.encode(&request);
        if self.requests.contains(ack_id) {
            return Err(RequestError::AckIdPending);
        }
        if self.requests.len() >= self.settings.pending_requests_max
            || self.requests.bytes() + frame.data.len() > self.settings.pending_bytes_max
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
            && !self.may_remember(group)
        {
            return Err(RequestError::TooManyGroups);
        }
        // A chosen id never meets a counted one that comes later.
        self.next_ack_id = self.next_ack_id.max(ack_id.wrapping_add(1));
        let order = self.requests.push(Pending::new(ack_id, frame, membership, false));
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

    /// Whether there is room to remember a group. Those that are being joined take room already.
    fn may_remember(&self, group: &GroupName) -> bool {
        let groups: BTreeSet<&GroupName> = self.groups.iter().chain(self.requests.joining()).collect();
        groups.contains(group) || groups.len() < self.settings.rejoin_groups_max
    }

    fn encoding(&self) -> Encoding {
        self.settings.subprotocol.encoding()
    }

    fn encode(&self, message: &Upstream) -> Frame {
        let encoding = self.encoding();
        let kind = match encoding {
            Encoding::Json | Encoding::Raw => FrameKind::Text,
            Encoding::Protobuf => FrameKind::Binary,
        };
        Frame { kind, data: encode_upstream(encoding, message) }
    }

    fn send_message(&mut self, message: &Upstream) {
        let frame = self.encode(message);
        self.send(frame);
    }

    fn send(&mut self, frame: Frame) {
        if let Some(socket) = self.open_socket() {
            self.outputs.push_back(Output::Send { socket, frame });
        }
    }
}
