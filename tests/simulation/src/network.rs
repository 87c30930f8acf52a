//! The network: sockets with two pipes each, the HTTP exchange before them, and the client's end of both.

use bytes::BytesMut;
use oncewire_protocol::wire::raw::RawTarget;
use oncewire_protocol::wire::{GroupName, Opcode, ReconnectionToken, Subprotocol};

use crate::coverage::Path;
use crate::edge::GatewayEnd;
use crate::pipe::{Pipe, RawFrame, close_code, close_frame, take_frame};
use crate::world::{Event, World};

/// What a client asks for in its upgrade request.
#[derive(Debug, Clone)]
pub enum Upgrade {
    /// A new session. The gateway names it after the socket, so that the world knows the name before the client does.
    Open {
        /// What to speak.
        subprotocol: Subprotocol,
        /// From the access token.
        roles: Vec<String>,
        /// From the access token.
        groups: Vec<GroupName>,
        /// Where a raw client's frames go.
        publishes_to: Option<RawTarget>,
    },
    /// An old one.
    Resume {
        /// Its name.
        connection_id: String,
        /// The proof.
        token: ReconnectionToken,
        /// What to speak.
        subprotocol: Subprotocol,
    },
}

/// How the HTTP exchange ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// 101: the socket is open.
    Switched,
    /// No gateway, or a status that is no 101.
    Failed,
}

/// Where the client stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientEnd {
    /// Waits for the HTTP answer.
    Waiting,
    /// Has an open socket.
    Open,
    /// Has gone away.
    Gone,
}

/// A socket, from the upgrade request on.
pub struct Conn {
    /// Whose it is; nobody's when the network made a second copy of an upgrade.
    pub actor: Option<usize>,
    /// The hub that it is for.
    pub hub: usize,
    /// What was asked for.
    pub upgrade: Upgrade,
    /// When the client made it, by the world's clock.
    pub made_us: u64,
    pub(crate) client: ClientEnd,
    pub(crate) gateway: GatewayEnd,
    pub(crate) up: Pipe,
    pub(crate) down: Pipe,
    is_answer_lost: bool,
    /// What the client has written and the pipe has not taken.
    backlog: BytesMut,
    is_client_closing: bool,
    /// What the client has read of a frame that is not whole.
    partial: BytesMut,
}

impl Conn {
    /// Whether both ends have gone.
    fn is_over(&self) -> bool {
        self.client == ClientEnd::Gone && matches!(self.gateway, GatewayEnd::Gone)
    }

    /// Whether it works and nothing is under way on it.
    pub fn is_quiet(&self) -> bool {
        let is_dead = self.up.is_dead() || self.down.is_dead();
        (self.client != ClientEnd::Open || !is_dead)
            && self.up.is_empty()
            && self.down.is_empty()
            && self.backlog.is_empty()
            && self.gateway.is_quiet()
    }
}

impl World {
    /// A client begins an upgrade; answers come to its actor.
    pub(crate) fn connect(&mut self, actor: usize, hub: usize, upgrade: Upgrade) -> u64 {
        let conn = self.add_conn(Some(actor), hub, upgrade);
        let draw = self.random.below(1000);
        if draw >= self.weather.answer_lost / 2 {
            self.schedule_in(self.weather.latency_ms, Event::Upgrade { conn });
        } else {
            // The request is lost as well, or comes much later.
            self.schedule_in((1_000, 9_000), Event::Upgrade { conn });
        }
        if (self.weather.answer_lost / 2..self.weather.answer_lost).contains(&draw) {
            self.conns.entry(conn).and_modify(|state| state.is_answer_lost = true);
        }
        conn
    }

    fn add_conn(&mut self, actor: Option<usize>, hub: usize, upgrade: Upgrade) -> u64 {
        self.next_conn += 1;
        let conn = self.next_conn;
        self.trace.line(self.now_us, || {
            format!("socket {conn} of {actor:?} for hub {hub}: {}", describe(&upgrade))
        });
        let pipe = |world: &mut Self| Pipe::new(world.random.within(world.weather.pipe_bytes) as usize);
        let state = Conn {
            actor,
            hub,
            upgrade,
            made_us: self.now_us,
            client: ClientEnd::Waiting,
            gateway: GatewayEnd::Away,
            up: pipe(self),
            down: pipe(self),
            is_answer_lost: false,
            backlog: BytesMut::new(),
            is_client_closing: false,
            partial: BytesMut::new(),
        };
        self.conns.insert(conn, state);
        conn
    }

    /// The network repeats the upgrade of a session with nobody behind the new socket.
    pub(crate) fn repeat_upgrade(&mut self, hub: usize, upgrade: Upgrade) {
        let conn = self.add_conn(None, hub, upgrade);
        if let Some(state) = self.conns.get_mut(&conn) {
            state.client = ClientEnd::Gone;
            state.down.cut(0);
            state.up.cut(0);
        }
        self.schedule_in(self.weather.latency_ms, Event::Upgrade { conn });
        self.schedule_in((500, 15_000), Event::GatewayNotices { conn });
    }

    /// The gateway answers an upgrade.
    pub(crate) fn answer(&mut self, conn: u64, answer: Answer) {
        let is_lost = self.conns.get(&conn).is_none_or(|state| state.is_answer_lost);
        if is_lost {
            self.note(Path::AnswerLost);
            self.sever(conn, 0, 0);
            self.schedule_in((100, 15_000), Event::GatewayNotices { conn });
            return;
        }
        let delay_us =
            self.random.within((self.weather.latency_ms.0 * 1000, self.weather.latency_ms.1 * 1000));
        let at_us = self.now_us + delay_us;
        if let Some(state) = self.conns.get_mut(&conn) {
            state.down.stalled_until = state.down.stalled_until.max(at_us + 1);
        }
        self.schedule_at(at_us, Event::Answer { conn, answer });
    }

    pub(crate) fn answered(&mut self, conn: u64, answer: Answer) {
        let waiting = self.conns.get_mut(&conn).filter(|state| state.client == ClientEnd::Waiting);
        let Some(state) = waiting else { return self.reap(conn) };
        let actor = state.actor;
        state.client = match answer {
            Answer::Switched => ClientEnd::Open,
            Answer::Failed => ClientEnd::Gone,
        };
        let Some(actor) = actor else { return };
        self.with_actor(actor, |actor, world| match answer {
            Answer::Switched => actor.opened(world, conn),
            Answer::Failed => actor.failed(world, conn),
        });
        self.reap(conn);
    }

    /// A client writes.
    pub(crate) fn client_writes(&mut self, conn: u64, frame: &[u8]) {
        self.trace.bytes(frame);
        if let Some(state) = self.conns.get_mut(&conn)
            && state.client == ClientEnd::Open
        {
            state.backlog.extend_from_slice(frame);
            self.flush(conn);
        }
    }

    /// A client closes its socket, or gives up its attempt. It hears no more of it.
    pub(crate) fn client_closes(&mut self, conn: u64, code: Option<u16>) {
        let Some(state) = self.conns.get_mut(&conn) else { return };
        if state.client == ClientEnd::Open {
            state.backlog.extend_from_slice(&close_frame(code));
        }
        self.client_leaves(conn);
    }

    /// The client's end is gone; what it has written may still arrive.
    fn client_leaves(&mut self, conn: u64) {
        let Some(state) = self.conns.get_mut(&conn) else { return };
        state.client = ClientEnd::Gone;
        state.is_client_closing = true;
        state.down.cut(0);
        self.flush(conn);
        // A gateway that has stopped reading learns it when it writes.
        self.schedule_in((3_000, 25_000), Event::GatewayNotices { conn });
        self.reap(conn);
    }

    fn flush(&mut self, conn: u64) {
        let Some(state) = self.conns.get_mut(&conn) else { return };
        let written = state.up.write(&state.backlog);
        let _ = state.backlog.split_to(written);
        if state.is_client_closing && state.backlog.is_empty() {
            state.up.finish();
        }
        self.pump(conn, true);
    }

    /// The gateway's writer writes; tells how much the pipe took.
    pub(crate) fn gateway_writes(&mut self, conn: u64, data: &[u8]) -> usize {
        let Some(state) = self.conns.get_mut(&conn) else { return 0 };
        let written = state.down.write(data);
        self.pump(conn, false);
        written
    }

    /// Lets what has been written arrive some time.
    pub(crate) fn pump(&mut self, conn: u64, is_up: bool) {
        let Some(state) = self.conns.get_mut(&conn) else { return };
        let pipe = if is_up { &mut state.up } else { &mut state.down };
        if !pipe.has_something_to_bring() || pipe.is_arriving {
            return;
        }
        pipe.is_arriving = true;
        let stalled_until = pipe.stalled_until;
        let (low, high) = self.weather.latency_ms;
        let at_us = self.now_us + self.random.within((low * 500, high * 1000));
        self.schedule_at(at_us.max(stalled_until), Event::Arrive { conn, is_up });
    }

    pub(crate) fn arrive(&mut self, conn: u64, is_up: bool) {
        let Some(state) = self.conns.get_mut(&conn) else { return };
        let pipe = if is_up { &mut state.up } else { &mut state.down };
        pipe.is_arriving = false;
        if pipe.stalled_until <= self.now_us {
            let all = pipe.in_transit();
            let bytes =
                if self.random.permille(500) { all } else { self.random.below(all as u64 + 1) as usize };
            pipe.arrive(bytes);
        }
        if is_up {
            self.schedule_read(conn);
        } else {
            self.client_reads(conn);
        }
        let is_rest = self.conns.get(&conn).is_some_and(|state| {
            let pipe = if is_up { &state.up } else { &state.down };
            pipe.in_transit() > 0
        });
        if is_rest {
            self.pump(conn, is_up);
        }
    }

    fn client_reads(&mut self, conn: u64) {
        loop {
            let Some(state) = self.conns.get_mut(&conn).filter(|state| state.client == ClientEnd::Open)
            else {
                return;
            };
            let bytes = state.down.read(usize::MAX);
            state.partial.unsplit(bytes);
            let Some(frame) = take_frame(&mut state.partial) else { break };
            let actor = state.actor;
            if frame.opcode == Opcode::Close as u8 {
                self.client_sees_end(conn, close_code(&frame.payload));
                return;
            }
            if let Some(actor) = actor {
                self.client_takes(actor, conn, &frame);
            }
        }
        self.schedule_blocked_write(conn);
        if self.conns.get(&conn).is_some_and(|state| state.down.is_at_end()) {
            self.client_sees_end(conn, None);
        }
    }

    fn client_takes(&mut self, actor: usize, conn: u64, frame: &RawFrame) {
        self.trace.bytes(&frame.payload);
        self.trace
            .line(self.now_us, || format!("{actor} < {conn}: {}", String::from_utf8_lossy(&frame.payload)));
        self.with_actor(actor, |actor, world| actor.frame(world, conn, frame));
    }

    /// The client learns that its socket, or its attempt, is over.
    pub(crate) fn client_sees_end(&mut self, conn: u64, code: Option<u16>) {
        let Some(state) = self.conns.get(&conn).filter(|state| state.client != ClientEnd::Gone) else {
            return;
        };
        let (actor, was_open) = (state.actor, state.client == ClientEnd::Open);
        self.client_leaves(conn);
        self.trace.line(self.now_us, || format!("{actor:?} sees the end of {conn}: {code:?}"));
        let Some(actor) = actor else { return };
        self.with_actor(actor, |actor, world| {
            if was_open { actor.ended(world, conn, code) } else { actor.failed(world, conn) }
        });
    }

    /// Cuts both directions: so many bytes still arrive, and neither end is told.
    pub(crate) fn sever(&mut self, conn: u64, up_bytes: usize, down_bytes: usize) {
        let Some(state) = self.conns.get_mut(&conn) else { return };
        state.up.cut(up_bytes);
        self.schedule_read(conn);
        self.cut_down(conn, down_bytes);
    }

    /// Cuts the direction towards the client: so many bytes still arrive.
    pub(crate) fn cut_down(&mut self, conn: u64, bytes: usize) {
        let Some(state) = self.conns.get_mut(&conn) else { return };
        state.down.cut(bytes);
        self.client_reads(conn);
    }

    /// The bytes that the gateway's reader may take have been taken: there is room for more.
    pub(crate) fn refill(&mut self, conn: u64) {
        self.flush(conn);
    }

    /// Forgets a socket that both ends have left.
    pub(crate) fn reap(&mut self, conn: u64) {
        if self.conns.get(&conn).is_some_and(Conn::is_over) {
            self.conns.remove(&conn);
        }
    }
}

fn describe(upgrade: &Upgrade) -> String {
    match upgrade {
        Upgrade::Open { subprotocol, groups, .. } => format!("open {subprotocol:?} in {groups:?}"),
        Upgrade::Resume { connection_id, .. } => format!("resume {connection_id}"),
    }
}
