//! The gateway's end of a socket: the upgrade, and how it lets go.

use std::task::Waker;

use oncewire_protocol::driver::socket::frames;
use oncewire_protocol::hub::{
    Attachment, Input, NewSession, OpenError, OpenId, Opening, Resuming, SessionKey, SocketEnd,
};
use oncewire_protocol::log::SessionIdentity;
use oncewire_protocol::session::Closing;
use oncewire_protocol::wire::{Close, ConnectionId, ReconnectionToken};

use crate::coverage::Path;
use crate::network::{Answer, Upgrade};
use crate::socket::Serving;
use crate::world::{Event, World};

/// Where the gateway stands.
pub enum GatewayEnd {
    /// The upgrade request has not arrived.
    Away,
    /// A shard decides.
    Deciding,
    /// The socket is attached, or was.
    Serving(Box<Serving>),
    /// The gateway has let go of the socket.
    Gone,
}

impl GatewayEnd {
    /// Whether there is nothing to write.
    pub fn is_quiet(&self) -> bool {
        match self {
            Self::Away | Self::Deciding => false,
            Self::Serving(serving) => serving.is_quiet(),
            Self::Gone => true,
        }
    }
}

/// A token names its session and its log's epoch. The real one is signed; here nobody can forge.
pub fn token(connection_id: &str, epoch: u64) -> ReconnectionToken {
    ReconnectionToken(format!("{connection_id}|{epoch}"))
}

impl World {
    pub(crate) fn upgrade(&mut self, conn: u64) {
        let Some(state) = self.conns.get_mut(&conn).filter(|state| matches!(state.gateway, GatewayEnd::Away))
        else {
            return;
        };
        if !self.is_accepting {
            state.gateway = GatewayEnd::Gone;
            self.answer(conn, Answer::Failed);
            return self.reap(conn);
        }
        state.gateway = GatewayEnd::Deciding;
        let (hub, open, upgrade) = (state.hub, OpenId(conn), state.upgrade.clone());
        let epoch = self.hubs[hub].log.epoch;
        match upgrade {
            Upgrade::Open { subprotocol, roles, groups, publishes_to: _ } => {
                let connection_id = ConnectionId::new(&session_name(self.hubs[hub].name, conn));
                self.hubs[hub].known.push(connection_id.clone());
                let reconnection_token =
                    subprotocol.is_reliable().then(|| token(connection_id.as_str(), epoch));
                let shard = self.hubs[hub].shard_of(&connection_id);
                let state = self.accept(hub, &connection_id);
                let session = NewSession {
                    identity: SessionIdentity {
                        connection_id,
                        user_id: None,
                        subprotocol,
                        custom_subprotocol: None,
                    },
                    roles,
                    groups,
                    reconnection_token,
                    state,
                };
                self.send(hub, shard, Opening { open, session }.into(), None);
            }
            Upgrade::Resume { connection_id, token: proof, subprotocol } => {
                let is_old = proof != token(&connection_id, epoch);
                let is_bad = !proof.0.starts_with(&format!("{connection_id}|"));
                if is_bad {
                    self.note(Path::ResumeBadProof);
                    return self.refuse(conn);
                }
                if is_old {
                    self.note(Path::ResumeOldEpoch);
                    return self.refuse(conn);
                }
                let connection_id = ConnectionId::new(&connection_id);
                let shard = self.hubs[hub].shard_of(&connection_id);
                // Cut off again and again, honest clients come back in vain; here none is made to wait.
                let resuming = Resuming { open, connection_id, subprotocol, has_waited: true };
                self.send(hub, shard, Input::Resume(resuming), None);
            }
        }
    }

    /// A recovery that can never succeed: 101, then 1008.
    fn refuse(&mut self, conn: u64) {
        self.answer(conn, Answer::Switched);
        self.gateway_writes(conn, &frames::close(&Close::RECOVERY_REFUSED));
        self.gateway_leaves(conn);
    }

    pub(crate) fn attached(
        &mut self,
        (hub, shard): (usize, usize),
        conn: u64,
        outcome: Result<Attachment, OpenError>,
    ) {
        let is_waiting =
            self.conns.get(&conn).is_some_and(|state| matches!(state.gateway, GatewayEnd::Deciding));
        match outcome {
            Ok(attachment) if is_waiting => {
                let bound = self.weather.settings[hub].outbox.messages_max;
                if attachment.outbox.lock().messages() > bound {
                    self.note(Path::RestoredOverBound);
                }
                self.begin_to_serve(conn, shard, attachment);
            }
            Ok(Attachment { session, outbox }) => {
                // The socket went away while its session was being opened.
                self.send(hub, shard, Input::SocketClosed { session, end: SocketEnd::Lost }, Some(outbox));
            }
            Err(_) if !is_waiting => {}
            Err(OpenError::Refused) => self.refuse(conn),
            Err(
                OpenError::Unavailable
                | OpenError::Full
                | OpenError::TooEarly { .. }
                | OpenError::TooManyGroups,
            ) => {
                self.answer(conn, Answer::Failed);
                self.gateway_leaves(conn);
            }
        }
    }

    fn begin_to_serve(&mut self, conn: u64, shard: usize, attachment: Attachment) {
        let Some(state) = self.conns.get(&conn) else { return };
        let hub = &self.hubs[state.hub];
        let name = match &state.upgrade {
            Upgrade::Open { subprotocol, publishes_to, .. } => {
                let connection_id = ConnectionId::new(&session_name(hub.name, conn));
                (connection_id, *subprotocol, publishes_to.clone())
            }
            Upgrade::Resume { connection_id, subprotocol, .. } => {
                (ConnectionId::new(connection_id), *subprotocol, None)
            }
        };
        self.serve(conn, shard, attachment, name);
        self.answer(conn, Answer::Switched);
    }

    /// The session that a socket is attached to, if any socket is.
    pub(crate) fn attached_session(&self, hub: usize, connection_id: &ConnectionId) -> Option<SessionKey> {
        self.conns.values().filter(|state| state.hub == hub).find_map(|state| {
            let GatewayEnd::Serving(serving) = &state.gateway else { return None };
            let Attachment { session, outbox } = &serving.attachment;
            let is_it = serving.connection_id == *connection_id && outbox.lock().is_current(session.epoch);
            is_it.then_some(session.key)
        })
    }

    /// The gateway finds a socket dead.
    pub(crate) fn gateway_notices(&mut self, conn: u64) {
        match self.conns.get(&conn).map(|state| &state.gateway) {
            Some(GatewayEnd::Serving(_)) => self.break_socket(conn),
            Some(_) => self.gateway_leaves(conn),
            None => {}
        }
    }

    /// The gateway's end is gone; what it has written may still arrive.
    pub(crate) fn gateway_leaves(&mut self, conn: u64) {
        let Some(state) = self.conns.get_mut(&conn) else { return };
        if matches!(state.gateway, GatewayEnd::Gone) {
            return;
        }
        state.gateway = GatewayEnd::Gone;
        state.up.cut(0);
        state.down.finish();
        self.pump(conn, false);
        self.reap(conn);
    }

    /// The gateway shuts down: everybody gets what waits and a close frame, and nobody comes in any more.
    pub(crate) fn close_all_sockets(&mut self) {
        self.is_accepting = false;
        for state in self.conns.values() {
            if let GatewayEnd::Serving(serving) = &state.gateway {
                let writer = serving.attachment.outbox.lock().close(Closing::AfterFlush(Close::GOING_AWAY));
                writer.into_iter().for_each(Waker::wake);
            }
        }
    }

    /// The process is gone. Clients notice soon, or late if the whole machine is gone.
    pub(crate) fn drop_all_sockets(&mut self) {
        let all: Vec<u64> = self.conns.keys().copied().collect();
        // A client that notices late would not keep up.
        let is_machine = self.random.permille(200) && !self.weather.is_fast;
        for conn in all {
            let Some(state) = self.conns.get_mut(&conn) else { continue };
            if matches!(state.gateway, GatewayEnd::Away | GatewayEnd::Gone) {
                continue;
            }
            state.gateway = GatewayEnd::Gone;
            let down = self.random.below(200) as usize;
            self.sever(conn, 0, down);
            let noticed_ms = if is_machine { (500, 9_000) } else { (1, 50) };
            self.schedule_in(noticed_ms, Event::ClientNotices { conn });
            self.reap(conn);
        }
    }
}

/// The name of the session that a socket opens.
pub fn session_name(hub: &str, conn: u64) -> String {
    format!("{hub}-{conn}")
}
