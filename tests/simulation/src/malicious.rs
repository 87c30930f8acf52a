//! A client that breaks the protocol in every way that the world can think of. Honest clients must not notice. What it
//! may expect all the same (no request executed twice, none executed that was refused) the checker judges too.

use bytes::Bytes;
use oncewire_checker::{ClosedBy, Event as Seen};
use oncewire_protocol::wire::{
    AckId, CloseCode, Downstream, Encoding, ErrorName, EventName, FrameKind, GroupName, Metadata, Opcode,
    Received, ReconnectionToken, SequenceId, Subprotocol, Upstream, decode_downstream, encode_upstream,
};
use oncewire_recorder::{acked, closed, dropped, message, opened, resumed};

use crate::Failure;
use crate::application::as_published;
use crate::coverage::Path;
use crate::edge::session_name;
use crate::heal::Stage;
use crate::honest::{event, payload};
use crate::network::Upgrade;
use crate::pipe::{RawFrame, frame_bytes};
use crate::world::{Event, World};

/// Requests that it remembers, to send them again.
const REMEMBERED_MAX: usize = 30;

/// See the module.
pub struct Malicious {
    index: usize,
    hub: usize,
    /// The group of its access token.
    group: GroupName,
    /// The session that it holds.
    session: Option<String>,
    token: Option<ReconnectionToken>,
    /// Its newest socket.
    conn: Option<u64>,
    is_open: bool,
    /// The attempt only tests whether a session that is over stays over.
    is_test: bool,
    /// The socket that the newest one took the session from.
    stale: Option<u64>,
    largest: SequenceId,
    next_ack_id: AckId,
    asked: Vec<Upstream>,
    /// Sessions that are over.
    over: Vec<(String, ReconnectionToken)>,
}

impl Malicious {
    /// A client that has not started.
    pub fn new(index: usize, hub: usize, group: GroupName) -> Self {
        Self {
            index,
            hub,
            group,
            session: None,
            token: None,
            conn: None,
            is_open: false,
            is_test: false,
            stale: None,
            largest: 0,
            next_ack_id: 0,
            asked: Vec::new(),
            over: Vec::new(),
        }
    }

    pub fn opened(&mut self, world: &mut World, conn: u64) {
        if self.conn != Some(conn) {
            return;
        }
        self.is_open = true;
        if self.is_test {
            return;
        }
        let event = match &self.session {
            Some(session) => resumed(session),
            None => {
                let session = session_name(world.hubs[self.hub].name, conn);
                let event = opened(
                    &session,
                    world.hubs[self.hub].name,
                    true,
                    std::slice::from_ref(&self.group),
                    false,
                );
                self.session = Some(session);
                self.token = None;
                self.largest = 0;
                self.asked.clear();
                event
            }
        };
        world.record(event);
        if world.random.permille(600) {
            self.write_to_stale(world);
        }
    }

    pub fn failed(&mut self, _world: &mut World, conn: u64) {
        if self.conn == Some(conn) {
            self.conn = None;
            self.is_test = false;
        }
    }

    pub fn ended(&mut self, world: &mut World, conn: u64, code: Option<u16>) {
        if self.stale == Some(conn) {
            self.stale = None;
        }
        if self.conn != Some(conn) {
            return;
        }
        self.conn = None;
        self.is_open = false;
        if std::mem::take(&mut self.is_test) {
            return;
        }
        let finals = [CloseCode::PolicyViolation, CloseCode::InvalidMessage, CloseCode::WrongFrameType];
        let is_final = finals.iter().any(|known| code == Some(*known as u16));
        if let Some(session) = &self.session {
            world.record(dropped(session));
        }
        if is_final || self.token.is_none() || world.random.permille(200) {
            self.give_up(world, code, if is_final { ClosedBy::Server } else { ClosedBy::Client });
        }
    }

    fn give_up(&mut self, world: &mut World, code: Option<u16>, by: ClosedBy) {
        let Some(session) = self.session.take() else { return };
        world.record(closed(&session, code, by));
        self.over.extend(self.token.take().map(|token| (session, token)));
    }

    pub fn frame(&mut self, world: &mut World, conn: u64, frame: &RawFrame) {
        if self.conn != Some(conn) || self.is_test {
            return;
        }
        let Some(session) = self.session.clone() else { return };
        match decode_downstream(Encoding::Json, FrameKind::Text, &frame.payload) {
            Ok(Received::Message { message: body, sequence_id }) => {
                let id = sequence_id.unwrap_or(0);
                if id > self.largest {
                    self.largest = id;
                    world.record(Seen::Delivered(message(&session, &as_published(body), sequence_id)));
                }
            }
            Ok(Received::Control(Downstream::Connected { reconnection_token, .. })) => {
                self.token = reconnection_token
            }
            Ok(Received::Control(Downstream::Ack { ack_id, error })) => {
                match error.as_ref().map(|error| error.name) {
                    Some(ErrorName::Duplicate) => world.note(Path::Duplicate),
                    Some(ErrorName::PayloadMismatch) => world.note(Path::Mismatch),
                    Some(ErrorName::Forbidden) => world.note(Path::Forbidden),
                    _ => {}
                }
                // Ack ids of requests that the checker has no word for are above all others.
                if ack_id < UNRECORDED {
                    world.record(acked(&session, ack_id, error.as_ref()));
                }
            }
            Ok(_) => {}
            Err(error) => {
                world.fail(Failure::Driver(format!("the malicious client can't read a frame: {error}")))
            }
        }
    }

    pub fn act(&mut self, world: &mut World) {
        if world.stage != Stage::Storm {
            return self.leave(world);
        }
        world.schedule_in((5, 150), Event::Act { actor: self.index });
        let Some(conn) = self.conn else { return self.connect(world) };
        if !self.is_open || self.is_test || self.session.is_none() {
            return;
        }
        match world.random.below(100) {
            0..30 => {
                let request = self.fresh(world);
                self.ask(world, conn, request);
            }
            30..45 => self.repeat(world, conn, false),
            45..58 => self.repeat(world, conn, true),
            58..66 => self.repeat_at_once(world, conn),
            66..76 => self.acknowledge(world, conn),
            76..80 => {
                world.note(Path::PingFlood);
                for _ in 0..world.random.within((5, 60)) {
                    write(world, conn, &Upstream::Ping);
                }
            }
            80..86 => self.take_over(world, conn),
            86..91 => self.write_to_stale(world),
            91..94 => self.ask_for_what_is_not_offered(world, conn),
            94..96 => {
                let garbage: &[u8] =
                    world.random.pick(&[b"{", b"{\"type\":\"nothing\"}", b"\xff\xfe", b"[]", b""]);
                world.client_writes(conn, &frame_bytes(Opcode::Text, garbage));
            }
            96..97 => world.client_writes(conn, &frame_bytes(Opcode::Binary, b"{\"type\":\"ping\"}")),
            _ => {
                let code = world.random.pick(&[Some(1000), Some(1001), Some(4000), None]);
                world.client_closes(conn, code);
                self.ended(world, conn, None);
                if code == Some(1000) {
                    self.give_up(world, code, ClosedBy::Client);
                }
            }
        }
    }

    /// The storm is over: it goes away, so that the world can settle.
    fn leave(&mut self, world: &mut World) {
        for conn in [self.conn.take(), self.stale.take()].into_iter().flatten() {
            world.client_closes(conn, Some(CloseCode::Normal as u16));
        }
        if std::mem::take(&mut self.is_open)
            && let Some(session) = &self.session
        {
            world.record(dropped(session));
        }
        self.give_up(world, Some(CloseCode::Normal as u16), ClosedBy::Client);
    }

    fn connect(&mut self, world: &mut World) {
        let upgrade = match (&self.session, &self.token) {
            (Some(session), Some(token)) => resume(session.clone(), token.clone()),
            _ if !self.over.is_empty() && world.random.permille(300) => {
                self.is_test = true;
                let (connection_id, token) = self.over[world.random.index(self.over.len())].clone();
                resume(connection_id, token)
            }
            _ if world.random.permille(150) => {
                self.is_test = true;
                self.steal(world)
            }
            _ => {
                let roles =
                    ["webpubsub.joinLeaveGroup", "webpubsub.sendToGroup.g0", "webpubsub.sendToGroup.g1"];
                Upgrade::Open {
                    subprotocol: Subprotocol::JsonReliable,
                    roles: roles.iter().map(|role| (*role).to_owned()).collect(),
                    groups: vec![self.group.clone()],
                    publishes_to: None,
                }
            }
        };
        self.is_open = false;
        self.conn = Some(world.connect(self.index, self.hub, upgrade));
    }

    /// Somebody else's session, with the wrong proof.
    fn steal(&self, world: &mut World) -> Upgrade {
        let known = &world.hubs[self.hub].known;
        let victim = match known.len() {
            0 => "nobody".to_owned(),
            len => known[world.random.index(len)].to_string(),
        };
        let token =
            self.over.first().map_or(ReconnectionToken("nothing".to_owned()), |(_, token)| token.clone());
        resume(victim, token)
    }

    fn fresh(&mut self, world: &mut World) -> Upstream {
        let ack_id = Some(self.next_ack_id);
        self.next_ack_id += world.random.within((1, 3));
        match world.random.below(6) {
            0 => Upstream::JoinGroup { group: world.random_group(), ack_id },
            1 => Upstream::LeaveGroup { group: world.random_group(), ack_id },
            2 => event(world, ack_id),
            _ => self.publish(world, ack_id),
        }
    }

    /// To any group, although it may publish to two of them only.
    fn publish(&self, world: &mut World, ack_id: Option<AckId>) -> Upstream {
        let marker = world.fresh_marker();
        Upstream::SendToGroup {
            group: world.random_group(),
            payload: payload(&mut world.random, &marker, 20),
            metadata: Metadata::default(),
            ack_id,
            no_echo: world.random.permille(300),
            ttl_seconds: 0,
        }
    }

    fn ask(&mut self, world: &mut World, conn: u64, request: Upstream) {
        let Some(session) = &self.session else { return };
        if let Some(event) = world.recorder.request(world.checker_us(), session, &request) {
            world.record(event);
        }
        write(world, conn, &request);
        if self.asked.len() == REMEMBERED_MAX {
            self.asked.remove(0);
        }
        self.asked.push(request);
    }

    /// An old request once more, or another one under its ack id.
    fn repeat(&mut self, world: &mut World, conn: u64, is_changed: bool) {
        if self.asked.is_empty() {
            return;
        }
        let old = self.asked[world.random.index(self.asked.len())].clone();
        let request = match is_changed {
            true if world.random.permille(200) => event(world, old.ack_id()),
            true => self.publish(world, old.ack_id()),
            false => old,
        };
        self.ask(world, conn, request);
    }

    /// The same request several times in one write, perhaps with another under the same ack id among them.
    fn repeat_at_once(&mut self, world: &mut World, conn: u64) {
        let request = self.fresh(world);
        self.ask(world, conn, request.clone());
        if world.random.permille(300) {
            let other = self.publish(world, request.ack_id());
            self.ask(world, conn, other);
        }
        self.ask(world, conn, request);
    }

    fn acknowledge(&mut self, world: &mut World, conn: u64) {
        let sequence_id = match world.random.below(6) {
            0 => {
                world.note(Path::FutureAck);
                world.random.pick(&[self.largest + 1, self.largest + 500, u64::MAX, 1 << 53])
            }
            1 => {
                world.note(Path::OldAck);
                world.random.below(self.largest + 1)
            }
            _ => self.largest,
        };
        let ack = Upstream::SequenceAck { sequence_id };
        if let Some(session) = &self.session
            && let Some(event) = world.recorder.request(world.checker_us(), session, &ack)
        {
            world.record(event);
        }
        write(world, conn, &ack);
    }

    /// Resumes its own session over a second socket and keeps the first one.
    fn take_over(&mut self, world: &mut World, conn: u64) {
        let (Some(session), Some(token)) = (self.session.clone(), self.token.clone()) else { return };
        if let Some(stale) = self.stale.replace(conn) {
            world.client_closes(stale, None);
        }
        world.record(dropped(&session));
        self.is_open = false;
        self.conn = Some(world.connect(self.index, self.hub, resume(session, token)));
    }

    /// Writes to the socket that lost the session. The newer one is open, so none of it may count: nothing is recorded,
    /// and whatever comes of it is a message that nobody published.
    fn write_to_stale(&mut self, world: &mut World) {
        let Some(stale) = self.stale else { return };
        world.note(Path::StaleWrite);
        match world.random.below(5) {
            0 => write(world, stale, &Upstream::SequenceAck { sequence_id: self.largest }),
            1 => {
                world.client_closes(stale, Some(CloseCode::Normal as u16));
                self.stale = None;
            }
            2 => {
                let request = event(world, Some(UNRECORDED + 4));
                write(world, stale, &request);
            }
            _ => {
                let ack_id = world.random.permille(500).then_some(UNRECORDED + 1);
                let mut request = self.publish(world, ack_id);
                if let Upstream::SendToGroup { group, .. } = &mut request {
                    *group = self.group.clone();
                }
                write(world, stale, &request);
            }
        }
    }

    fn ask_for_what_is_not_offered(&mut self, world: &mut World, conn: u64) {
        let Ok(event) = EventName::new("anything") else { return };
        let payload = payload(&mut world.random, "none", 5);
        let request = match world.random.below(2) {
            0 => {
                let invocation_id = "1".to_owned();
                Upstream::Invoke {
                    invocation_id,
                    event,
                    payload: Some(payload),
                    metadata: Metadata::default(),
                }
            }
            _ => Upstream::GroupState { group: self.group.clone(), ack_id: Some(UNRECORDED + 3) },
        };
        write(world, conn, &request);
    }
}

/// Ack ids from here on are not in the history.
const UNRECORDED: AckId = 1 << 60;

fn resume(connection_id: String, token: ReconnectionToken) -> Upgrade {
    Upgrade::Resume { connection_id, token, subprotocol: Subprotocol::JsonReliable }
}

fn write(world: &mut World, conn: u64, message: &Upstream) {
    let data: Bytes = encode_upstream(Encoding::Json, message);
    world.client_writes(conn, &frame_bytes(Opcode::Text, &data));
}
