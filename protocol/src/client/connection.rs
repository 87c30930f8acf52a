//! A client's sockets: attempts, recovery, keepalive, and what arrives on them.
//!
//! ```text
//!                    +-------------- pause over ---------------+
//!                    v                                         |
//! Idle --Start--> Connecting --failed, timeout--> Waiting -----+
//!                    |  ^                            ^
//!                    |  +--lost, of use: at once--+  | lost, of no use
//!                    |                            |  |
//!                    +--opened--> Open -----------+--+
//! ```
//!
//! An attempt recovers while there is a session, and opens a new one otherwise. A socket was of use if something
//! arrived on it, or if it stayed open for as long as the pause between attempts.

use super::sequence::{Arrival, Sequence};
use super::{Client, ClientTime, Frame, Output, Recovery, SocketId};
use crate::wire::{
    CloseCode, ConnectionId, Downstream, Received, ReconnectionToken, SequenceId, Upstream, UserId,
    decode_downstream,
};

#[derive(Debug)]
pub(super) enum State {
    /// Not started, or stopped.
    Idle,
    /// Between attempts.
    Waiting { until: ClientTime },
    /// An attempt is under way.
    Connecting { socket: SocketId, until: ClientTime },
    /// A socket is open.
    Open(Open),
}

#[derive(Debug)]
pub(super) struct Open {
    socket: SocketId,
    opened_at: ClientTime,
    /// When something arrived last; the opening counts.
    heard_at: ClientTime,
    has_heard: bool,
    ping_at: Option<ClientTime>,
    /// When the socket of a new session is given up because the session has got no name.
    connected_until: Option<ClientTime>,
}

#[derive(Debug)]
pub(super) struct Session {
    connection_id: ConnectionId,
    reconnection_token: Option<ReconnectionToken>,
    began_at: ClientTime,
    sequence: Sequence,
}

impl Session {
    pub(super) fn connection_id(&self) -> &ConnectionId {
        &self.connection_id
    }

    pub(super) fn largest_sequence_id(&self) -> SequenceId {
        self.sequence.largest()
    }

    fn recovery(&self) -> Option<Recovery> {
        let reconnection_token = self.reconnection_token.clone()?;
        Some(Recovery { connection_id: self.connection_id.clone(), reconnection_token })
    }
}

impl Client {
    pub(super) fn open_socket(&self) -> Option<SocketId> {
        match &self.state {
            State::Open(open) => Some(open.socket),
            State::Idle | State::Waiting { .. } | State::Connecting { .. } => None,
        }
    }

    /// Whether a request can go out now.
    pub(super) fn can_send(&self) -> bool {
        self.open_socket().is_some() && (self.session.is_some() || self.settings.requests_before_connected)
    }

    pub(super) fn start(&mut self, now: ClientTime) {
        if matches!(self.state, State::Idle) {
            self.connect(now);
        }
    }

    pub(super) fn stop(&mut self) {
        if let Some(socket) = self.current_socket() {
            self.outputs.push_back(Output::CloseSocket { socket, code: self.settings.stop_code });
        }
        self.state = State::Idle;
        self.recovery_until = None;
        self.give_up_requests();
        if let Some(session) = self.session.take() {
            self.outputs.push_back(Output::SessionLost { connection_id: session.connection_id });
        }
    }

    pub(super) fn opened(&mut self, now: ClientTime, socket: SocketId) {
        let State::Connecting { socket: awaited, until } = self.state else { return };
        if socket != awaited {
            return;
        }
        self.state = State::Open(Open {
            socket,
            opened_at: now,
            heard_at: now,
            has_heard: false,
            ping_at: self.settings.ping_ms.map(|ms| now.plus_ms(ms)),
            connected_until: self.session.is_none().then_some(until),
        });
        if let Some(session) = self.session.as_mut() {
            if self.settings.sequence_ack_anew {
                session.sequence.wait_anew(now, self.settings.sequence_ack_ms);
            }
            self.outputs.push_back(Output::Recovered);
            self.resend_requests(now);
        } else if self.can_send() {
            self.send_unsent_requests(now);
        }
    }

    pub(super) fn closed(&mut self, now: ClientTime, socket: SocketId, code: Option<u16>) {
        if self.current_socket() == Some(socket) {
            self.lose_socket(now, code == Some(CloseCode::PolicyViolation as u16));
        }
    }

    pub(super) fn frame(&mut self, now: ClientTime, socket: SocketId, frame: &Frame) {
        if self.open_socket() != Some(socket) {
            return;
        }
        match decode_downstream(self.encoding(), frame.kind, &frame.data) {
            Ok(received) => self.received(now, socket, received),
            Err(error) => {
                self.received(now, socket, Received::Unknown);
                self.outputs.push_back(Output::Undecodable(error));
            }
        }
    }

    pub(super) fn received(&mut self, now: ClientTime, socket: SocketId, received: Received) {
        match &mut self.state {
            State::Open(open) if open.socket == socket => {
                open.heard_at = now;
                open.has_heard = true;
            }
            _ => return,
        }
        self.recovery_until = None;
        match received {
            Received::Message { message, sequence_id } => {
                let arrival = sequence_id.and_then(|id| self.arrive(now, id));
                if arrival.is_none_or(|arrival| arrival.is_new) {
                    self.outputs.push_back(Output::Deliver { message, sequence_id });
                }
                if self.settings.quick_ack && arrival.is_some_and(|arrival| arrival.is_jump) {
                    self.send_sequence_ack();
                }
            }
            Received::Control(Downstream::Connected { connection_id, user_id, reconnection_token }) => {
                self.connected(now, connection_id, user_id, reconnection_token);
            }
            Received::Control(Downstream::Ack { ack_id, error }) => self.acked(now, ack_id, error),
            Received::Control(Downstream::Disconnected { message }) => {
                self.outputs.push_back(Output::Disconnected { message });
            }
            Received::Control(
                answer @ (Downstream::InvokeFailed { .. } | Downstream::StreamClosed { .. }),
            ) => self.outputs.push_back(Output::Answer(answer)),
            Received::Control(Downstream::Pong) | Received::Unknown => {}
        }
    }

    /// A socket or an attempt ends, and nothing of it counts any more.
    fn lose_socket(&mut self, now: ClientTime, is_final: bool) {
        let retry_ms = self.settings.connect_retry_ms;
        let was_of_use = match &self.state {
            State::Open(open) => open.has_heard || now >= open.opened_at.plus_ms(retry_ms),
            State::Idle | State::Waiting { .. } | State::Connecting { .. } => false,
        };
        self.requests.stop_timers();
        let is_recoverable = self.session.as_ref().is_some_and(|session| session.recovery().is_some());
        if !is_recoverable || is_final {
            self.lose_session(now);
            return;
        }
        let until = match self.recovery_until.filter(|_| !was_of_use) {
            Some(until) => until,
            None => now.plus_ms(self.settings.recovery_window_ms),
        };
        self.recovery_until = Some(until);
        if was_of_use {
            self.connect(now);
        } else if now >= until {
            self.lose_session(now);
        } else {
            self.state = State::Waiting { until: now.plus_ms(retry_ms) };
        }
    }

    /// Goes on to a new session: at once, unless this one was so short that another would be no better.
    fn lose_session(&mut self, now: ClientTime) {
        let retry_ms = self.settings.connect_retry_ms;
        self.recovery_until = None;
        self.requests_lost_session();
        let was_of_use = self.session.take().is_some_and(|session| {
            self.outputs.push_back(Output::SessionLost { connection_id: session.connection_id });
            now >= session.began_at.plus_ms(retry_ms)
        });
        if was_of_use {
            self.connect(now);
        } else {
            self.state = State::Waiting { until: now.plus_ms(retry_ms) };
        }
    }

    fn connect(&mut self, now: ClientTime) {
        self.last_socket += 1;
        let socket = SocketId(self.last_socket);
        let recovery = self.session.as_ref().and_then(Session::recovery);
        self.state = State::Connecting { socket, until: now.plus_ms(self.settings.connect_timeout_ms) };
        self.outputs.push_back(Output::Connect { socket, recovery });
    }

    fn connected(
        &mut self,
        now: ClientTime,
        connection_id: ConnectionId,
        user_id: Option<UserId>,
        reconnection_token: Option<ReconnectionToken>,
    ) {
        match &mut self.session {
            // A gateway may send it again, with a token that replaces the old one.
            Some(session) if session.connection_id == connection_id => {
                session.reconnection_token = reconnection_token.or(session.reconnection_token.take());
                return;
            }
            Some(session) => {
                let lost = std::mem::replace(&mut session.connection_id, connection_id.clone());
                self.requests_lost_session();
                self.outputs.push_back(Output::SessionLost { connection_id: lost });
            }
            None => {}
        }
        let reconnection_token = reconnection_token.filter(|_| self.settings.subprotocol.is_reliable());
        self.session = Some(Session {
            connection_id: connection_id.clone(),
            reconnection_token,
            began_at: now,
            sequence: Sequence::default(),
        });
        if let State::Open(open) = &mut self.state {
            open.connected_until = None;
        }
        self.outputs.push_back(Output::Connected { connection_id, user_id });
        self.rejoin(now);
    }

    fn arrive(&mut self, now: ClientTime, id: SequenceId) -> Option<Arrival> {
        let ack_ms = self.settings.sequence_ack_ms;
        self.session.as_mut().map(|session| session.sequence.arrive(now, id, ack_ms))
    }

    fn send_sequence_ack(&mut self) {
        if let Some(session) = &mut self.session {
            let sequence_id = session.sequence.take_ack();
            self.send_message(&Upstream::SequenceAck { sequence_id });
        }
    }

    pub(super) fn connection_timeout(&self) -> Option<ClientTime> {
        match &self.state {
            State::Idle => None,
            State::Waiting { until } | State::Connecting { until, .. } => Some(*until),
            State::Open(open) => {
                let sequence_ack = self.session.as_ref().and_then(|session| session.sequence.due());
                [open.ping_at, self.silent_until(open), open.connected_until, sequence_ack]
                    .into_iter()
                    .flatten()
                    .min()
            }
        }
    }

    pub(super) fn fire_connection_timers(&mut self, now: ClientTime) {
        match &self.state {
            State::Idle => {}
            State::Waiting { until } if now < *until => {}
            State::Waiting { .. } => {
                if self.recovery_until.is_some_and(|until| now >= until) {
                    self.lose_session(now);
                } else {
                    self.connect(now);
                }
            }
            State::Connecting { until, .. } if now < *until => {}
            State::Connecting { .. } => self.abandon_socket(now),
            State::Open(open) => {
                let is_due = |due: Option<ClientTime>| due.is_some_and(|due| now >= due);
                if is_due(self.silent_until(open)) || is_due(open.connected_until) {
                    self.abandon_socket(now);
                    return;
                }
                if is_due(open.ping_at) {
                    self.send_ping(now);
                }
                if is_due(self.session.as_ref().and_then(|session| session.sequence.due())) {
                    self.send_sequence_ack();
                }
            }
        }
    }

    fn send_ping(&mut self, now: ClientTime) {
        if let State::Open(open) = &mut self.state {
            open.ping_at = self.settings.ping_ms.map(|ms| now.plus_ms(ms));
        }
        self.send_message(&Upstream::Ping);
    }

    /// Gives up a socket or an attempt that does not answer.
    fn abandon_socket(&mut self, now: ClientTime) {
        if let Some(socket) = self.current_socket() {
            self.outputs.push_back(Output::CloseSocket { socket, code: None });
            self.lose_socket(now, false);
        }
    }

    fn silent_until(&self, open: &Open) -> Option<ClientTime> {
        self.settings.silence_ms_max.map(|ms| open.heard_at.plus_ms(ms))
    }

    fn current_socket(&self) -> Option<SocketId> {
        match &self.state {
            State::Connecting { socket, .. } => Some(*socket),
            State::Open(open) => Some(open.socket),
            State::Idle | State::Waiting { .. } => None,
        }
    }
}
