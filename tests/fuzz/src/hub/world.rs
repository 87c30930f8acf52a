//! One process after another with the same log, and the sockets of its clients.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::task::{Context, Waker};

use bytes::{Bytes, BytesMut};
use oncewire_protocol::hub::{
    Action, AppendId, Attachment, Command, CommandId, HubSettings, Input, NewSession, OpenError, OpenId,
    Opening, Output, Resuming, Shard, ShardId, SocketEnd,
};
use oncewire_protocol::log::{
    Audience, Body, BootId, Certainty, EndReason, HandlerState, Permission, Record, Selection,
    SessionIdentity, Time,
};
use oncewire_protocol::session::{
    MemoryBudget, OutboxLimits, Progress, Request, RequestBounds, SessionLimits,
};
use oncewire_protocol::wire::{
    AckId, ConnectionId, EventName, GroupName, Metadata, Payload, PayloadKind, ReconnectionToken,
    Subprotocol, Upstream, UserId,
};

use super::handlers::Handlers;
use super::socket::Socket;
use super::steps::{Ask, Bounds, Step, USER};
use super::truth::Truth;
use crate::frames::hear;

/// The groups that there are.
pub const GROUPS: [&str; 3] = ["g", "h", "i"];
/// Sessions in one run: what is checked at the end takes its time for each.
const SESSIONS_MAX: usize = 12;
const RETENTION_SECONDS: u32 = 60;
/// Rounds of appending after which everything has to be at rest.
const HEALING_ROUNDS_MAX: usize = 10_000;
/// Failed appends are tried again long before this.
const HEALING_ROUND_MS: u64 = 1_000;

enum Waiting {
    Open { name: String, subprotocol: Subprotocol },
    Resume { name: String, subprotocol: Subprotocol },
}

pub struct World {
    pub truth: Truth,
    shard: Shard,
    budget: Arc<MemoryBudget>,
    settings: HubSettings,
    now: Time,
    latest: Time,
    /// How far the wall clock has gone back since the boot.
    clock_back_ms: u64,
    boots: u128,
    /// How much of the log has come back to the shard.
    applied: usize,
    appends: VecDeque<(AppendId, Vec<Arc<Record>>)>,
    late: VecDeque<Vec<Arc<Record>>>,
    waiting: BTreeMap<OpenId, Waiting>,
    commands: Vec<CommandId>,
    pub(super) handlers: Handlers,
    sockets: Vec<Socket>,
    /// Of each session, its subprotocol; also of those that have not been opened yet.
    names: Vec<(String, Subprotocol)>,
    published: BTreeMap<AckId, Upstream>,
    texts: u64,
    next_id: u64,
}

impl World {
    pub fn new(bounds: &Bounds) -> Self {
        let settings = HubSettings {
            outbox: OutboxLimits {
                messages_max: bounds.messages.pick([2, 200, 10_000]),
                bytes_max: bounds.bytes.pick([200, 20_000, 1 << 24]),
            },
            requests: RequestBounds { requests_max: 16, request_bytes_max: 1000, reply_bytes_max: 1000 },
            ack_window_ids: bounds.ack_window.pick([1, 4, 1000]) as u32,
            session_retention_seconds: RETENTION_SECONDS,
            sessions: SessionLimits::default(),
            groups_per_session_max: bounds.groups.pick([1, 2, 100]),
            closes_on_event_failure: bounds.closes_on_event_failure,
        };
        let budget = Arc::new(MemoryBudget::new(bounds.budget.pick([1000, 100_000, usize::MAX])));
        let now = Time(1_000_000);
        let truth = Truth::new(settings.groups_per_session_max);
        let mut world = Self {
            truth,
            shard: Shard::new(settings.clone(), ShardId::WHOLE, BootId(0), Arc::clone(&budget)),
            budget,
            settings,
            now,
            latest: now,
            clock_back_ms: 0,
            boots: 0,
            applied: 0,
            appends: VecDeque::new(),
            late: VecDeque::new(),
            waiting: BTreeMap::new(),
            commands: Vec::new(),
            handlers: Handlers::default(),
            sockets: Vec::new(),
            names: Vec::new(),
            published: BTreeMap::new(),
            texts: 0,
            next_id: 0,
        };
        world.restart();
        world
    }

    /// Lets go of everything but the budget.
    pub fn into_budget(self) -> Arc<MemoryBudget> {
        self.budget
    }

    pub fn take(&mut self, step: Step) {
        match step {
            Step::Open { subprotocol, groups, roles_left_out } => {
                self.open(subprotocol, groups, roles_left_out);
            }
            Step::Resume { session, other_subprotocol } => {
                if let Some((name, subprotocol)) = pick(&self.names, session).cloned() {
                    self.resume(name, if other_subprotocol { Subprotocol::Json } else { subprotocol });
                }
            }
            Step::Requests { socket, asks } => {
                if let Some(socket) = index(&self.sockets, socket) {
                    self.request(socket, asks);
                }
            }
            Step::Read { socket, budget, written } => {
                if let Some(socket) = index(&self.sockets, socket) {
                    self.read(socket, usize::from(budget), written.map(usize::from));
                }
            }
            Step::Close { socket, end } => {
                if let Some(socket) = index(&self.sockets, socket) {
                    self.close(socket, end);
                }
            }
            Step::ChangeRule { session, join_leave, group, allow } => {
                let Some((name, _)) = pick(&self.names, session) else { return };
                let connection_id = ConnectionId::new(name);
                let permission =
                    if join_leave { Permission::JoinLeaveGroup } else { Permission::SendToGroup };
                let group = group_of(group);
                self.command(Action::ChangeRule { connection_id, permission, group, allow });
            }
            Step::ChangeMembership { whose, session, group, add } => {
                let Some((name, _)) = pick(&self.names, session) else { return };
                let selection = whose.selection(name, group_of(session));
                let groups = group.map(group_of).into_iter().collect();
                self.command(if add {
                    Action::Add { selection, groups }
                } else {
                    Action::Remove { selection, groups }
                });
            }
            Step::CloseSession { session } => {
                let Some((name, _)) = pick(&self.names, session) else { return };
                let selection = Selection::whole(Audience::Connection(ConnectionId::new(name)));
                self.command(Action::Close { selection, reason: String::new() });
            }
            Step::Answer { call, form } => self.answer(call, form),
            Step::Tell { ends } => self.tell(usize::from(ends)),
            Step::TakeDisconnected { takes } => self.take_disconnected(takes),
            Step::Land { appends } => (0..appends).for_each(|_| self.land()),
            Step::Refuse => {
                if let Some((append, _)) = self.appends.pop_front() {
                    self.handle(Input::AppendFailed { append, certainty: Certainty::Definite });
                }
            }
            Step::Doubt { landing, later } => {
                if let Some((append, mut records)) = self.appends.pop_front() {
                    records.truncate(usize::from(landing) % (records.len() + 1));
                    if later {
                        self.late.push_back(records);
                    } else {
                        records.iter().for_each(|record| self.truth.land(record));
                    }
                    self.handle(Input::AppendFailed { append, certainty: Certainty::Indefinite });
                }
            }
            Step::LandLate => {
                let records = self.late.pop_front().unwrap_or_default();
                records.iter().for_each(|record| self.truth.land(record));
            }
            Step::Apply { records, again } => self.apply(usize::from(records), usize::from(again)),
            Step::Settle => {
                self.apply(usize::MAX, 0);
                while !self.appends.is_empty() {
                    self.land();
                    self.apply(usize::MAX, 0);
                }
            }
            Step::Wait { ms } => self.wait(u64::from(ms)),
            Step::ClockBack { ms } => self.clock_back_ms += u64::from(ms),
            Step::Restart => self.restart(),
        }
    }

    fn command(&mut self, action: Action) {
        let command = CommandId(self.id());
        self.commands.push(command);
        self.handle(Input::Command(Box::new(Command { command, request: None, is_strict: false, action })));
    }

    /// Everything lands and comes back; then nothing waits any more, and each session gets what it is owed.
    pub fn heal(&mut self) {
        for records in std::mem::take(&mut self.late) {
            records.iter().for_each(|record| self.truth.land(record));
        }
        for _ in 0..HEALING_ROUNDS_MAX {
            self.heal_handlers();
            while !self.appends.is_empty() {
                self.land();
            }
            self.apply(usize::MAX, 0);
            if !self.appends.is_empty() || self.handlers.is_busy() {
                continue;
            }
            if self.shard.poll_timeout().is_none_or(|at| at.0 > self.now.0 + HEALING_ROUND_MS) {
                break;
            }
            self.wait(HEALING_ROUND_MS);
        }
        assert!(self.appends.is_empty(), "appends without end");
        assert!(self.waiting.is_empty() && self.commands.is_empty(), "somebody waits for ever");
        assert_eq!(self.shard.sessions(), self.truth.sessions.len());
        assert_eq!((self.shard.untold(), self.truth.untold.len()), (0, 0), "ends that nobody is told");
        for socket in 0..self.sockets.len() {
            self.read_all(socket);
            self.check_acks(socket);
            self.sockets[socket].check_reading();
        }
        for (name, subprotocol) in self.names.clone() {
            let is_there = self.truth.sessions.contains_key(&name) && subprotocol.is_reliable();
            let sockets = self.sockets.len();
            self.resume(name.clone(), subprotocol);
            assert_eq!(self.sockets.len() > sockets, is_there, "{name} can be resumed");
            if is_there {
                self.read_all(sockets);
                let latest = self.latest;
                let missed = self.truth.sessions[&name].owed().find(|delivery| {
                    delivery.id > self.sockets[sockets].last_id
                        && delivery.expires_at.is_none_or(|at| at > latest)
                });
                assert_eq!(missed, None, "{name} never gets it");
            } else if self.truth.sessions.contains_key(&name) {
                let socket = self.sockets.iter().find(|socket| socket.name == name);
                let read = socket.map(|socket| (socket.read, socket.is_closed));
                let owed = self.truth.sessions[&name].deliveries.len();
                assert_eq!(read, Some((owed, false)), "{name} reads all that it is owed");
            }
        }
    }

    // The log.

    fn land(&mut self) {
        if let Some((_, records)) = self.appends.pop_front() {
            records.iter().for_each(|record| self.truth.land(record));
        }
    }

    fn apply(&mut self, records: usize, again: usize) {
        let to = self.applied.saturating_add(records).min(self.truth.log.len());
        let from = self.applied.saturating_sub(again);
        self.applied = to;
        self.handle(Input::Records(self.truth.log[from..to].to_vec()));
        while self.shard.has_waiting() {
            self.handle(Input::GoOn);
        }
    }

    fn wait(&mut self, ms: u64) {
        self.now = self.now.plus_ms(ms);
        self.latest = self.latest.max(self.now);
        if self.shard.poll_timeout().is_some_and(|at| at <= self.now) {
            self.handle(Input::Timeout);
            assert!(self.shard.poll_timeout().is_none_or(|at| at > self.now), "a timer that is never done");
        }
    }

    fn restart(&mut self) {
        self.boots += 1;
        self.appends.clear();
        self.late.clear();
        self.waiting.clear();
        self.commands.clear();
        self.handlers.restart();
        self.sockets.clear();
        self.applied = 0;
        self.truth.forget_acknowledged();
        let wall = Time(self.now.0.saturating_sub(std::mem::take(&mut self.clock_back_ms)));
        self.now = wall.max(self.truth.last_time());
        let boot = BootId(self.boots);
        self.shard = Shard::new(self.settings.clone(), ShardId::WHOLE, boot, Arc::clone(&self.budget));
        self.handle(Input::TakesDisconnected(self.handlers.takes_disconnected));
        self.truth.land(&Arc::new(Shard::booted(boot, self.now, self.handlers.takes_disconnected)));
        self.apply(usize::MAX, 0);
        assert!(self.shard.is_live());
        self.handlers.check_restored(&self.truth);
    }

    pub(super) fn handle(&mut self, input: Input) {
        self.shard.handle(self.now, input);
        let mut context = Context::from_waker(Waker::noop());
        if self.shard.poll_acknowledged(&mut context).is_ready() {
            self.shard.handle(self.now, Input::Acknowledged);
        }
        while let Some(output) = self.shard.poll_output() {
            match output {
                Output::Append { append, records } => {
                    assert!(!records.is_empty());
                    records.iter().for_each(|record| self.check_end(record));
                    self.appends.push_back((append, records));
                }
                Output::Opened { open, outcome } => self.opened(open, outcome),
                Output::CommandDone { command, .. } => {
                    let waits = self.commands.iter().position(|waits| *waits == command);
                    assert!(waits.map(|at| self.commands.swap_remove(at)).is_some(), "answered twice");
                }
                Output::Call { call, event } => self.handlers.call(&self.truth, call, &event),
                Output::Connected(connected) => self.handlers.connected(&self.truth, &connected),
                Output::Disconnected(ended) => self.handlers.disconnected(&self.truth, &ended),
                Output::Ended(_) => {}
                Output::StartTooLate | Output::Gone => unreachable!("one gateway alone writes the log"),
            }
        }
        self.shard.wake_writers();
    }

    /// Nobody whose socket is there is taken for gone.
    fn check_end(&self, record: &Record) {
        let Body::Ended { connection_id, reason: EndReason::Expired, .. } = &record.body else { return };
        let is_there = |socket: &Socket| {
            socket.name == connection_id.as_str() && !socket.is_closed && socket.is_current()
        };
        assert!(!self.sockets.iter().any(is_there), "{connection_id} expires while it is attached");
    }

    // Sockets.

    fn open(&mut self, subprotocol: Subprotocol, groups: u8, roles_left_out: u8) {
        if self.names.len() >= SESSIONS_MAX {
            return;
        }
        let name = format!("session-{}", self.names.len());
        self.names.push((name.clone(), subprotocol));
        let all = ["joinLeaveGroup", "sendToGroup", "sendToGroup.g", "joinLeaveGroups.?", "sendToGroups.**"];
        let session = NewSession {
            identity: SessionIdentity {
                connection_id: ConnectionId::new(&name),
                user_id: roles_left_out.is_multiple_of(2).then(|| UserId::new(USER)),
                subprotocol,
                custom_subprotocol: None,
            },
            roles: chosen(&all, !roles_left_out).map(|role| format!("webpubsub.{role}")).collect(),
            groups: chosen(&GROUPS, groups).filter_map(|name| GroupName::new(name).ok()).collect(),
            reconnection_token: subprotocol.is_reliable().then(|| ReconnectionToken("token".to_owned())),
            state: (roles_left_out % 4 == 3).then(|| HandlerState(Bytes::copy_from_slice(name.as_bytes()))),
        };
        let open = OpenId(self.id());
        self.waiting.insert(open, Waiting::Open { name, subprotocol });
        self.handle(Opening { open, session }.into());
    }

    fn resume(&mut self, name: String, subprotocol: Subprotocol) {
        let open = OpenId(self.id());
        let connection_id = ConnectionId::new(&name);
        self.waiting.insert(open, Waiting::Resume { name, subprotocol });
        self.handle(Input::Resume(Resuming { open, connection_id, subprotocol, has_waited: true }));
        assert!(!self.waiting.contains_key(&open), "a resume is answered at once");
    }

    fn opened(&mut self, open: OpenId, outcome: Result<Attachment, OpenError>) {
        let waiting = self.waiting.remove(&open);
        assert!(waiting.is_some(), "answered twice");
        let Some(Waiting::Open { name, subprotocol } | Waiting::Resume { name, subprotocol }) = &waiting
        else {
            return;
        };
        let is_first = matches!(waiting, Some(Waiting::Open { .. }));
        let Ok(attachment) = outcome else { return };
        // The log may know of the session's end, too, before the shard does.
        assert!(self.truth.has_opened(name), "{name} is not in the log");
        for older in self.sockets.iter().filter(|socket| socket.name == *name) {
            assert!(!older.is_current(), "two sockets at once");
        }
        self.sockets.push(Socket {
            name: name.clone(),
            subprotocol: *subprotocol,
            attachment,
            is_first,
            is_closed: false,
            last_id: 0,
            read: 0,
            asked: Vec::new(),
            acked: Vec::new(),
        });
    }

    fn close(&mut self, socket: usize, end: SocketEnd) {
        let socket = &mut self.sockets[socket];
        socket.is_closed = true;
        let session = socket.attachment.session;
        self.handle(Input::SocketClosed { session, end });
    }

    fn request(&mut self, socket: usize, asks: Vec<Ask>) {
        let mut requests = Vec::new();
        for ask in asks {
            let times = if let Ask::Publish { times, .. } = ask { 1 + usize::from(times) } else { 1 };
            for again in 0..times {
                let Some(message) = self.message(socket, &ask, again) else { continue };
                let from = &self.sockets[socket];
                let Socket { name, subprotocol, attachment, is_closed, .. } = from;
                let is_raw = *subprotocol == Subprotocol::Raw;
                if is_raw && !matches!(message, Upstream::SendToGroup { .. } | Upstream::Event { .. }) {
                    continue;
                }
                if let Upstream::SequenceAck { sequence_id } = message
                    && from.is_current()
                {
                    self.truth.acknowledge(name, sequence_id, self.applied);
                }
                if *is_closed {
                    continue;
                }
                let Some(message) = attachment.receive(message) else { continue };
                self.sockets[socket].asked.extend(message.ack_id());
                requests.push(Request { message, bytes: 10 });
            }
        }
        let Socket { attachment, is_closed, .. } = &self.sockets[socket];
        if *is_closed {
            return;
        }
        let session = attachment.session;
        let mut outbox = attachment.outbox.lock();
        let _ = outbox.may_read(session.epoch, Waker::noop());
        outbox.add_requests(requests.len(), 10 * requests.len());
        drop(outbox);
        self.handle(Input::Requests { session, requests });
    }

    fn message(&mut self, socket: usize, ask: &Ask, again: usize) -> Option<Upstream> {
        let is_raw = self.sockets[socket].subprotocol == Subprotocol::Raw;
        let ack_id =
            |ack_id: Option<u8>| ack_id.filter(|_| !is_raw).map(|id| AckId::from(id) + 256 * again as u64);
        Some(match *ask {
            Ask::Join { group, ack_id: id } => {
                Upstream::JoinGroup { group: group_of(group), ack_id: ack_id(id) }
            }
            Ask::Leave { group, ack_id: id } => {
                Upstream::LeaveGroup { group: group_of(group), ack_id: ack_id(id) }
            }
            Ask::Publish { group, ack_id: id, padding, no_echo, ttl_seconds, .. } => {
                let text = self.fresh_text(usize::from(padding));
                let message = Upstream::SendToGroup {
                    group: group_of(group),
                    payload: Payload { kind: PayloadKind::Text, bytes: text.into() },
                    metadata: Metadata::default(),
                    ack_id: ack_id(id),
                    no_echo,
                    ttl_seconds: u16::from(ttl_seconds),
                };
                self.published.extend(message.ack_id().map(|id| (id, message.clone())));
                message
            }
            Ask::Again { ack_id } => self.published.get(&AckId::from(ack_id)).filter(|_| !is_raw)?.clone(),
            Ask::Event { ack_id: id } => {
                let message = Upstream::Event {
                    event: EventName::raw(),
                    payload: Payload { kind: PayloadKind::Binary, bytes: Bytes::new() },
                    metadata: Metadata::default(),
                    ack_id: ack_id(id),
                };
                self.published.extend(message.ack_id().map(|id| (id, message.clone())));
                message
            }
            Ask::Invoke => Upstream::Invoke {
                invocation_id: "1".to_owned(),
                event: EventName::raw(),
                payload: None,
                metadata: Metadata::default(),
            },
            Ask::Stream { ack_id: id } => {
                Upstream::Stream { stream_id: "1".to_owned(), group: None, ack_id: ack_id(id) }
            }
            Ask::GroupState { ack_id: id } => Upstream::GroupState { group: group_of(0), ack_id: ack_id(id) },
            Ask::Ping => Upstream::Ping,
            Ask::SequenceAck { off } => Upstream::SequenceAck {
                sequence_id: self.sockets[socket].last_id.saturating_add_signed(i64::from(off)),
            },
            Ask::SequenceAckAny { id } => Upstream::SequenceAck { sequence_id: id },
        })
    }

    /// A text that nothing else has.
    pub(super) fn fresh_text(&mut self, padding: usize) -> String {
        self.texts += 1;
        format!("text {}{}", self.texts, ".".repeat(padding))
    }

    fn read_all(&mut self, socket: usize) {
        while self.read(socket, 1 << 16, None) == Progress::Frames {}
    }

    /// A writer pulls up to `budget` bytes and writes so many of the frames, or all.
    fn read(&mut self, socket: usize, budget: usize, written: Option<usize>) -> Progress {
        let Self { sockets, truth, now, latest, .. } = self;
        let newest = sockets.iter().rposition(|other| other.name == sockets[socket].name);
        let socket_at = socket;
        let socket = &mut sockets[socket_at];
        let session = socket.attachment.session;
        let (mut out, mut sent) = (BytesMut::new(), Vec::new());
        let mut outbox = socket.attachment.outbox.lock();
        let progress = outbox.transmit(session.epoch, *now, budget, &mut out, &mut sent, Waker::noop());
        // What a session that is over leaves behind is nobody's business once its client has gone.
        let is_left = socket.is_closed && truth.sessions.contains_key(&socket.name);
        if newest != Some(socket_at) || is_left {
            let is_over = matches!(progress, Progress::Cut | Progress::Close(_));
            assert!(is_over, "an older socket is sent something");
        }
        let kept = written.map_or(sent.len(), |written| written.min(sent.len()));
        let end = if kept == 0 { 0 } else { sent[kept - 1].end };
        if kept < sent.len() {
            outbox.rewind(session.epoch, &sent[kept..]);
        }
        drop(outbox);
        if matches!(progress, Progress::Cut | Progress::Close(_)) {
            socket.is_closed = true;
        }
        for heard in hear(socket.subprotocol.encoding(), &out[..end]) {
            socket.hears(heard, truth, *latest);
        }
        progress
    }

    /// Acks come once for each request and in the requests' order, as long as nothing was cut off.
    fn check_acks(&self, socket: usize) {
        let socket = &self.sockets[socket];
        let Socket { name, is_first, is_closed, asked, acked, .. } = socket;
        if *is_first && !is_closed && socket.is_current() && self.truth.sessions.contains_key(name) {
            assert_eq!(acked, asked, "the acks of {name}");
        }
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}

fn pick<T>(items: &[T], number: u8) -> Option<&T> {
    items.get(index(items, number)?)
}

fn index<T>(items: &[T], number: u8) -> Option<usize> {
    usize::from(number).checked_rem(items.len())
}

fn chosen<'a>(items: &'a [&'a str], bits: u8) -> impl Iterator<Item = &'a str> {
    items.iter().enumerate().filter(move |(at, _)| bits >> at & 1 == 1).map(|(_, item)| *item)
}

#[expect(clippy::unwrap_used, reason = "these names are valid")]
fn group_of(number: u8) -> GroupName {
    GroupName::new(GROUPS[usize::from(number) % GROUPS.len()]).unwrap()
}
