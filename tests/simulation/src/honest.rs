//! A client that keeps the protocol: the core's client half in the habits of an official client, an application that uses
//! it, and the recorder that writes down what both see.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use oncewire_checker::{ClosedBy, Event as Seen};
use oncewire_protocol::client::{
    Client, ClientSettings, ClientTime, Frame, Input, Outcome, Output, QUICK_ACK_JUMP, SocketId,
};
use oncewire_protocol::wire::{
    AckId, CloseCode, Downstream, ErrorName, EventName, FrameKind, GroupName, Metadata, Opcode, Payload,
    PayloadKind, Received, SequenceId, Upstream, decode_downstream, decode_upstream,
};
use oncewire_recorder::{acked, closed, dropped, message, opened, resumed};

use crate::Failure;
use crate::application::as_published;
use crate::coverage::Path;
use crate::edge::session_name;
use crate::heal::Stage;
use crate::network::Upgrade;
use crate::pipe::{RawFrame, frame_bytes};
use crate::random::Random;
use crate::world::{Event, World};

/// Groups of an access token at most: fewer than any hub allows.
const TOKEN_GROUPS_MAX: usize = 3;
/// Requests with an ack id that an application has pending at most.
const PENDING_MAX: usize = 24;

/// What a client's application does in the storm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Everything, at random.
    Plays,
    /// Publishes to one group, at a steady pace.
    Publishes,
    /// Nothing: it is in that group.
    Listens,
}

/// See the module.
pub struct Honest {
    index: usize,
    /// The hub that it uses.
    pub hub: usize,
    settings: ClientSettings,
    client: Client,
    roles: Vec<String>,
    /// Those of its access token.
    groups: Vec<GroupName>,
    /// The client's newest socket.
    socket: Option<(SocketId, u64)>,
    is_open: bool,
    /// The session that the socket is for. The world knows it before the client does.
    session: Option<String>,
    /// Whether the client knows it too.
    is_known: bool,
    /// The close code of the last socket.
    last_code: Option<u16>,
    largest: SequenceId,
    timer_us: Option<u64>,
    pending: BTreeMap<AckId, Upstream>,
    /// Ack ids that went out in this session.
    sent: BTreeSet<AckId>,
    /// Requests that failed and are asked for again.
    again: Vec<Upstream>,
    role: Role,
    /// When it has sent sequence acks in this session, in milliseconds, and of what.
    acknowledged: Vec<(u64, SequenceId)>,
    /// Sessions that were lost.
    pub sessions_lost: u64,
}

impl Honest {
    /// A client that has not started.
    pub fn new(
        random: &mut Random,
        groups: &[GroupName],
        index: usize,
        hub: usize,
        settings: ClientSettings,
    ) -> Self {
        let settings = ClientSettings {
            recovery_window_ms: random.pick(&[30_000, 5_000]),
            connect_retry_ms: random.pick(&[100, 400, 1_000]),
            connect_timeout_ms: random.pick(&[800, 3_000]),
            sequence_ack_ms: match settings.sequence_ack_anew {
                true => settings.sequence_ack_ms,
                false => random.pick(&[1_000, 1_000, 200]),
            },
            ack_timeout_ms: settings.ack_timeout_ms.map(|_| random.pick(&[700, 5_000])),
            request_retry_ms: random.pick(&[50, 1_000]),
            ping_ms: settings.ping_ms.map(|_| random.within((500, 3_000))),
            requests_before_connected: random.permille(700),
            resend_to_new_session: random.permille(300),
            auto_rejoin: random.permille(800),
            silence_ms_max: settings.silence_ms_max.map(|_| 7_000),
            ..settings
        };
        let everything = ["webpubsub.joinLeaveGroup", "webpubsub.sendToGroup"];
        let something =
            ["webpubsub.joinLeaveGroups.g*", "webpubsub.sendToGroup.g0", "webpubsub.sendToGroup.g1"];
        let roles: &[&str] = if random.permille(800) { &everything } else { &something };
        let groups = groups.iter().filter(|_| random.permille(250));
        Self {
            index,
            hub,
            client: Client::new(settings.clone()),
            settings,
            roles: roles.iter().map(|role| (*role).to_owned()).collect(),
            groups: groups.take(TOKEN_GROUPS_MAX).cloned().collect(),
            socket: None,
            is_open: false,
            session: None,
            is_known: false,
            last_code: None,
            largest: 0,
            timer_us: None,
            pending: BTreeMap::new(),
            sent: BTreeSet::new(),
            again: Vec::new(),
            role: Role::Plays,
            acknowledged: Vec::new(),
            sessions_lost: 0,
        }
    }

    /// Gives it a role in a world where much is published to one group.
    pub fn take_role(&mut self, role: Role, group: &GroupName) {
        self.role = role;
        self.roles = ["webpubsub.joinLeaveGroup", "webpubsub.sendToGroup"].map(str::to_owned).to_vec();
        self.groups = if role == Role::Listens { vec![group.clone()] } else { Vec::new() };
        self.settings.sequence_ack_ms = self.settings.sequence_ack_ms.max(1_000);
        self.settings.resend_to_new_session = false;
        self.client = Client::new(self.settings.clone());
    }

    /// The socket that it uses, for faults.
    pub fn conn(&self) -> Option<u64> {
        self.socket.map(|(_, conn)| conn)
    }

    /// Its session, once it is opened.
    pub fn session(&self) -> Option<&str> {
        self.session.as_deref()
    }

    /// What it waits for, if anything.
    pub fn unsettled(&self) -> Option<String> {
        let what = match (self.is_open && self.is_known, self.pending.is_empty() && self.again.is_empty()) {
            (false, _) => "has no session",
            (true, false) => "waits for answers",
            (true, true) if self.client.pending_requests() > 0 => "waits for its groups",
            (true, true) => return None,
        };
        Some(format!("client {} {what} ({:?}, {:?})", self.index, self.session, self.pending.keys()))
    }

    pub fn opened(&mut self, world: &mut World, conn: u64) {
        let Some((socket, _)) = self.socket.filter(|(_, current)| *current == conn) else { return };
        self.is_open = true;
        self.last_code = None;
        let event = match &self.session {
            Some(session) => resumed(session),
            None => {
                let name = session_name(world.hubs[self.hub].name, conn);
                let reliable = self.settings.subprotocol.is_reliable();
                let event = opened(&name, world.hubs[self.hub].name, reliable, &self.groups, true);
                self.session = Some(name);
                self.is_known = false;
                self.largest = 0;
                self.sent.clear();
                self.acknowledged.clear();
                event
            }
        };
        world.record(event);
        self.handle(world, Input::Opened { socket });
    }

    pub fn failed(&mut self, world: &mut World, conn: u64) {
        if let Some((socket, _)) = self.socket.filter(|(_, current)| *current == conn) {
            self.handle(world, Input::ConnectFailed { socket });
        }
    }

    pub fn ended(&mut self, world: &mut World, conn: u64, code: Option<u16>) {
        let Some((socket, _)) = self.socket.filter(|(_, current)| *current == conn) else { return };
        self.last_code = code;
        self.leave_socket(world);
        self.handle(world, Input::Closed { socket, code });
    }

    pub fn frame(&mut self, world: &mut World, conn: u64, frame: &RawFrame) {
        let Some((socket, _)) = self.socket.filter(|(_, current)| *current == conn) else { return };
        let Some(session) = self.session.clone() else { return };
        let kind = if frame.opcode == Opcode::Text as u8 { FrameKind::Text } else { FrameKind::Binary };
        let encoding = self.settings.subprotocol.encoding();
        match decode_downstream(encoding, kind, &frame.payload) {
            Ok(Received::Message { message: body, sequence_id }) => {
                self.count_message(world, sequence_id);
                world.judge_ttl(self.hub, conn, &body.payload.bytes);
                world.record(Seen::Received(message(&session, &as_published(body), sequence_id)));
            }
            Ok(Received::Control(Downstream::Ack { ack_id, error })) => {
                world.note(match error.as_ref().map(|error| error.name) {
                    None => Path::Success,
                    Some(ErrorName::Duplicate) => Path::Duplicate,
                    Some(ErrorName::PayloadMismatch) => Path::Mismatch,
                    Some(ErrorName::Forbidden) => Path::Forbidden,
                    Some(ErrorName::InternalServerError) => match self.pending.get(&ack_id) {
                        Some(Upstream::Event { .. }) => Path::EventNotHandled,
                        _ => Path::NotStored,
                    },
                    Some(ErrorName::BadRequest) => Path::NoRoom,
                });
                world.record(acked(&session, ack_id, error.as_ref()));
            }
            Ok(_) => {}
            Err(error) => world.fail(Failure::Driver(format!("a client can't read a frame: {error}"))),
        }
        self.handle(world, Input::Frame { socket, frame: Frame { kind, data: frame.payload.clone() } });
    }

    fn count_message(&mut self, world: &mut World, sequence_id: Option<SequenceId>) {
        let Some(id) = sequence_id else { return };
        if id <= self.largest {
            world.note(Path::Redelivery);
            self.judge_redelivery(world, id);
            return;
        }
        match id - self.largest {
            1 => {}
            step if step > QUICK_ACK_JUMP => world.note(Path::SequenceJump),
            _ if self.largest > 0 => world.note(Path::TtlSkip),
            _ => {}
        }
        self.largest = id;
    }

    /// Nothing comes again that was acknowledged some time before the last process ended.
    fn judge_redelivery(&self, world: &mut World, id: SequenceId) {
        let Some((ended_ms, ack_ms)) = world.ended_at else { return };
        let is_early = |(at_ms, _): &&(u64, SequenceId)| at_ms + ack_ms <= ended_ms;
        let early = self.acknowledged.iter().filter(is_early).map(|(_, id)| *id).max();
        if early.is_some_and(|early| id <= early) {
            let session = self.session.as_deref().unwrap_or_default();
            world.fail(Failure::AcknowledgedAgain(format!("{id} in {session}")));
        }
    }

    pub fn timer(&mut self, world: &mut World) {
        if self.timer_us == Some(world.now_us) {
            self.timer_us = None;
            self.handle(world, Input::Timeout);
        }
    }

    /// The application stops the client and starts it again.
    pub fn restart(&mut self, world: &mut World) {
        self.handle(world, Input::Stop);
        self.handle(world, Input::Start);
    }

    pub fn act(&mut self, world: &mut World) {
        self.handle(world, Input::Start);
        self.ask_again(world);
        if world.stage != Stage::Storm {
            if !self.again.is_empty() {
                world.schedule_in((50, 200), Event::Act { actor: self.index });
            }
            return;
        }
        if self.role != Role::Plays {
            if self.role == Role::Publishes {
                let ack_id = self.ack_id(world);
                let group = world.groups[0].clone();
                let request = self.send_to(world, group, ack_id);
                self.ask(world, request);
            }
            return world.schedule_in(world.weather.pause_ms, Event::Act { actor: self.index });
        }
        match world.random.below(100) {
            0..43 => self.publish(world),
            43..55 => self.send_event(world),
            55..62 => {
                for _ in 0..world.random.within((3, 12)) {
                    if world.random.permille(850) { self.publish(world) } else { self.send_event(world) }
                }
            }
            62..78 => self.change_membership(world, true),
            78..88 => self.change_membership(world, false),
            _ => {}
        }
        world.schedule_in(world.weather.pause_ms, Event::Act { actor: self.index });
    }

    /// Publishes to every group, sends an event and waits for the answers.
    pub fn probe(&mut self, world: &mut World) {
        for group in world.groups.clone() {
            let ack_id = Some(self.client.fresh_ack_id());
            let request = self.send_to(world, group, ack_id);
            self.ask(world, request);
        }
        let ack_id = Some(self.client.fresh_ack_id());
        let request = event(world, ack_id);
        self.ask(world, request);
    }

    fn ask_again(&mut self, world: &mut World) {
        for request in std::mem::take(&mut self.again) {
            self.ask(world, request);
        }
    }

    fn publish(&mut self, world: &mut World) {
        let ack_id = self.ack_id(world);
        let group = world.random_group();
        let request = self.send_to(world, group, ack_id);
        self.ask(world, request);
    }

    fn send_event(&mut self, world: &mut World) {
        let ack_id = self.ack_id(world);
        let request = event(world, ack_id);
        self.ask(world, request);
    }

    fn send_to(&mut self, world: &mut World, group: GroupName, ack_id: Option<AckId>) -> Upstream {
        let padding = world.random.pick(&[0, 10, 10, 40, 40, 200, 1500]);
        let marker = world.fresh_marker();
        let is_storm = world.stage == Stage::Storm;
        let no_echo = is_storm && world.random.permille(200);
        let ttl_seconds =
            if is_storm && world.random.permille(150) { world.random.within((1, 5)) as u16 } else { 0 };
        if no_echo {
            world.note(Path::NoEcho);
        }
        Upstream::SendToGroup {
            group,
            payload: payload(&mut world.random, &marker, padding),
            metadata: Metadata::default(),
            ack_id,
            no_echo,
            ttl_seconds,
        }
    }

    fn change_membership(&mut self, world: &mut World, is_join: bool) {
        let ack_id = self.ack_id(world);
        let group = world.random_group();
        let request = if is_join {
            Upstream::JoinGroup { group, ack_id }
        } else {
            Upstream::LeaveGroup { group, ack_id }
        };
        self.ask(world, request);
    }

    fn ack_id(&mut self, world: &mut World) -> Option<AckId> {
        world.random.permille(850).then(|| self.client.fresh_ack_id())
    }

    fn ask(&mut self, world: &mut World, request: Upstream) {
        let ack_id = request.ack_id();
        if ack_id.is_some() && self.pending.len() >= PENDING_MAX {
            return;
        }
        if self.client.request(ClientTime(world.now_ms()), request.clone()).is_ok() {
            match ack_id {
                Some(ack_id) => drop(self.pending.insert(ack_id, request)),
                None => world.note(Path::WithoutAckId),
            }
        }
        self.drain(world);
    }

    fn handle(&mut self, world: &mut World, input: Input) {
        self.client.handle(ClientTime(world.now_ms()), input);
        self.drain(world);
    }

    fn drain(&mut self, world: &mut World) {
        while let Some(output) = self.client.poll_output() {
            self.follow(world, output);
        }
        let timer_us = self.client.poll_timeout().map(|at| (at.0 * 1000).max(world.now_us + 1));
        if self.timer_us.is_none_or(|at| at <= world.now_us) || self.timer_us != timer_us {
            self.timer_us = timer_us;
            if let Some(at_us) = timer_us {
                world.schedule_at(at_us, Event::ActorTimer { actor: self.index });
            }
        }
    }

    fn follow(&mut self, world: &mut World, output: Output) {
        match output {
            Output::Connect { socket, recovery } => {
                let upgrade = match recovery {
                    Some(recovery) => Upgrade::Resume {
                        connection_id: recovery.connection_id.to_string(),
                        token: recovery.reconnection_token,
                        subprotocol: self.settings.subprotocol,
                    },
                    None => Upgrade::Open {
                        subprotocol: self.settings.subprotocol,
                        roles: self.roles.clone(),
                        groups: self.groups.clone(),
                        publishes_to: None,
                    },
                };
                let conn = world.connect(self.index, self.hub, upgrade);
                self.socket = Some((socket, conn));
                self.is_open = false;
            }
            Output::Send { socket, frame } => self.send(world, socket, &frame),
            Output::CloseSocket { socket, code } => {
                if let Some((_, conn)) = self.socket.filter(|(current, _)| *current == socket) {
                    self.last_code = None;
                    self.leave_socket(world);
                    world.client_closes(conn, code);
                }
            }
            Output::Connected { connection_id, .. } => {
                self.is_known = true;
                if self.session.as_deref() != Some(connection_id.as_str()) {
                    world.fail(Failure::Driver(format!("{:?} was named {connection_id}", self.session)));
                }
            }
            Output::SessionLost { .. } => {
                self.sessions_lost += 1;
                self.forget_session(world);
            }
            Output::Deliver { message: body, sequence_id } => {
                if let Some(session) = &self.session {
                    world.record(Seen::Delivered(message(session, &as_published(body), sequence_id)));
                }
            }
            Output::Outcome { ack_id, outcome } => self.settled(world, ack_id, outcome),
            Output::Undecodable(error) => {
                world.fail(Failure::Driver(format!("a client can't read a frame: {error}")));
            }
            Output::Recovered
            | Output::RejoinFailed { .. }
            | Output::Disconnected { .. }
            | Output::Answer(_) => {}
        }
    }

    fn send(&mut self, world: &mut World, socket: SocketId, frame: &Frame) {
        let Some((_, conn)) = self.socket.filter(|(current, _)| *current == socket) else { return };
        let Some(session) = &self.session else { return };
        match decode_upstream(self.settings.subprotocol.encoding(), frame.kind, &frame.data) {
            Ok(message) => {
                if let Upstream::SequenceAck { sequence_id } = &message {
                    self.acknowledged.push((world.now_ms(), *sequence_id));
                }
                match (&message, message.ack_id()) {
                    (Upstream::SequenceAck { sequence_id }, _)
                        if self.settings.quick_ack && *sequence_id > QUICK_ACK_JUMP =>
                    {
                        world.note(Path::QuickAck);
                    }
                    (_, Some(ack_id)) if !self.sent.insert(ack_id) => world.note(Path::RequestResent),
                    _ => {}
                }
                let event = world.recorder.request(world.checker_us(), session, &message);
                if let Some(event) = event {
                    world.record(event);
                }
            }
            Err(error) => world.fail(Failure::Driver(format!("a client wrote what can't be read: {error}"))),
        }
        let opcode = if frame.kind == FrameKind::Text { Opcode::Text } else { Opcode::Binary };
        world.client_writes(conn, &frame_bytes(opcode, &frame.data));
    }

    fn settled(&mut self, world: &mut World, ack_id: AckId, outcome: Outcome) {
        let Some(request) = self.pending.remove(&ack_id) else { return };
        let is_lost = self.session.is_none();
        match outcome {
            Outcome::Done | Outcome::Duplicate => {}
            Outcome::Refused { error, .. } if error.name == ErrorName::InternalServerError => {
                self.again(world, request);
            }
            Outcome::Refused { .. } => {}
            // In a session that goes on, asking again under the same ack id is safe.
            Outcome::Unknown if !is_lost => self.again(world, request),
            Outcome::NotExecuted => self.again(world, request),
            Outcome::Unknown => {
                if world.random.permille(300) && world.stage == Stage::Storm {
                    let ack_id = Some(self.client.fresh_ack_id());
                    self.again(world, with_ack_id(request, ack_id));
                }
            }
        }
    }

    fn again(&mut self, world: &mut World, request: Upstream) {
        if self.again.is_empty() && world.stage != Stage::Storm {
            world.schedule_in((50, 200), Event::Act { actor: self.index });
        }
        self.again.push(request);
    }

    fn leave_socket(&mut self, world: &mut World) {
        if !std::mem::replace(&mut self.is_open, false) {
            return;
        }
        if let Some(session) = &self.session {
            world.record(dropped(session));
        }
        if !self.is_known {
            // Nobody can resume it: the client never learned its name.
            self.forget_session(world);
        }
    }

    fn forget_session(&mut self, world: &mut World) {
        let Some(session) = self.session.take() else { return };
        let by = match self.last_code {
            Some(code) if code == CloseCode::PolicyViolation as u16 => ClosedBy::Server,
            _ => ClosedBy::Client,
        };
        self.is_known = false;
        let is_kept = self.settings.subprotocol.is_reliable() && world.weather.keeps_sessions(self.hub);
        let is_closed = world.closed_by_application.contains(&session);
        if by == ClosedBy::Server && is_kept && !is_closed {
            world.fail(Failure::SessionRefused(session.clone()));
        }
        world.record(closed(&session, self.last_code, by));
    }
}

/// A payload of a random kind by which the marker is known again.
pub(crate) fn payload(random: &mut Random, marker: &str, padding: usize) -> Payload {
    let padding = "x".repeat(padding);
    let (kind, text) = match random.below(3) {
        0 => (PayloadKind::Text, format!("#{marker}#{padding}")),
        1 => (PayloadKind::Json, format!("{{\"n\": \"#{marker}#\",\"p\":\"{padding}\"}}")),
        _ => (PayloadKind::Binary, format!("\u{0}#{marker}#{padding}")),
    };
    Payload { kind, bytes: Bytes::from(text) }
}

/// A user event.
pub(crate) fn event(world: &mut World, ack_id: Option<AckId>) -> Upstream {
    world.note(Path::EventSent);
    let marker = world.fresh_marker();
    let payload = payload(&mut world.random, &marker, 10);
    Upstream::Event { event: EventName::raw(), payload, metadata: Metadata::default(), ack_id }
}

fn with_ack_id(mut request: Upstream, ack_id: Option<AckId>) -> Upstream {
    if let Upstream::JoinGroup { ack_id: slot, .. }
    | Upstream::LeaveGroup { ack_id: slot, .. }
    | Upstream::SendToGroup { ack_id: slot, .. }
    | Upstream::Event { ack_id: slot, .. } = &mut request
    {
        *slot = ack_id;
    }
    request
}
