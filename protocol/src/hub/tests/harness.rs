//! A shard with a vector for a log and clients that read what they are sent.
//!
//! Nothing happens by itself: the test says when an append is stored or fails and when records come back.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use super::super::*;
use crate::log::{
    Body, Certainty, Disconnected, EndReason, IdempotencyKey, Permission, Record, Selection, Sent,
    SessionIdentity,
};
use crate::session::testing::drain;
use crate::session::{Progress, Request};
use crate::wire::{Metadata, Payload, PayloadKind, ReconnectionToken, Subprotocol, Upstream, UserId};

pub(super) const RETENTION_MS: u64 = 60_000;
pub(super) const START: Time = Time(1_000_000);

pub(super) fn settings() -> HubSettings {
    HubSettings {
        outbox: OutboxLimits { messages_max: 10_000, bytes_max: 1 << 24 },
        requests: RequestBounds { requests_max: 1024, request_bytes_max: 4 << 20, reply_bytes_max: 64 << 10 },
        ack_window_ids: 1000,
        session_retention_seconds: RETENTION_MS as u32 / 1000,
        sessions: SessionLimits::default(),
        groups_per_session_max: 100,
        closes_on_event_failure: false,
    }
}

/// A socket that was attached.
pub(super) struct Client {
    pub id: ConnectionId,
    pub attachment: Attachment,
}

pub(super) struct World {
    pub now: Time,
    pub shard: Shard,
    pub budget: Arc<MemoryBudget>,
    pub log: Vec<Arc<Record>>,
    /// What the hub wants appended and nobody has decided about, oldest first.
    pub appends: VecDeque<(AppendId, Vec<Arc<Record>>)>,
    pub opened: BTreeMap<OpenId, Result<Attachment, OpenError>>,
    pub done: BTreeMap<CommandId, Result<Done, CommandError>>,
    /// Events that wait for their handler, oldest first.
    pub calls: VecDeque<(CallId, UserEvent)>,
    pub connected: Vec<Connected>,
    pub disconnected: Vec<Disconnected>,
    pub ended: Vec<SessionEnded>,
    /// Whether the log has said that this boot is gone.
    pub is_gone: bool,
    /// How often the record that begins this boot has come to nothing.
    pub starts_too_late: usize,
    /// Whether its application wants to know of ends.
    pub takes_disconnected: bool,
    settings: HubSettings,
    applied: usize,
    boots: u128,
    next_name: u64,
}

/// About what the frame of a request takes.
fn frame_bytes(message: &Upstream) -> usize {
    match message {
        Upstream::Event { payload, .. } => 10 + payload.bytes.len(),
        _ => 10,
    }
}

impl World {
    pub fn new() -> Self {
        Self::with(settings(), usize::MAX)
    }

    pub fn with(settings: HubSettings, budget_bytes: usize) -> Self {
        let mut world = Self::before_first_start(settings, budget_bytes);
        world.restart();
        world
    }

    /// No process has started.
    pub fn before_first_start(settings: HubSettings, budget_bytes: usize) -> Self {
        let budget = Arc::new(MemoryBudget::new(budget_bytes));
        Self {
            now: START,
            shard: Shard::new(settings.clone(), ShardId::WHOLE, BootId(0), Arc::clone(&budget)),
            budget,
            log: Vec::new(),
            appends: VecDeque::new(),
            opened: BTreeMap::new(),
            done: BTreeMap::new(),
            calls: VecDeque::new(),
            connected: Vec::new(),
            disconnected: Vec::new(),
            ended: Vec::new(),
            is_gone: false,
            starts_too_late: 0,
            takes_disconnected: false,
            settings,
            applied: 0,
            boots: 0,
            next_name: 0,
        }
    }

    /// A new process folds what is in the log, then its own boot. What was not stored is lost.
    pub fn restart(&mut self) {
        self.start();
        self.boot();
    }

    /// A new process that has not folded anything.
    pub fn start(&mut self) {
        self.start_as(self.boots + 1);
    }

    /// The same, with a boot of this number.
    pub fn start_as(&mut self, boot: u128) {
        self.boots = boot;
        self.appends.clear();
        self.calls.clear();
        self.disconnected.clear();
        self.ended.clear();
        self.applied = 0;
        let budget = Arc::clone(&self.budget);
        self.shard = Shard::new(self.settings.clone(), ShardId::WHOLE, BootId(self.boots), budget);
    }

    /// The boot of the process.
    pub fn shard_boot(&self) -> BootId {
        BootId(self.boots)
    }

    /// The process's own boot is stored and everything folded.
    pub fn boot(&mut self) {
        self.handle(Input::TakesDisconnected(self.takes_disconnected));
        self.log.push(Arc::new(Shard::booted(BootId(self.boots), self.now, self.takes_disconnected)));
        self.apply();
    }

    pub fn handle(&mut self, input: Input) {
        self.shard.handle(self.now, input);
        while self.shard.has_waiting() {
            self.shard.handle(self.now, Input::GoOn);
        }
        while let Some(output) = self.shard.poll_output() {
            match output {
                Output::Append { append, records } => self.appends.push_back((append, records)),
                Output::Opened { open, outcome } => assert!(self.opened.insert(open, outcome).is_none()),
                Output::CommandDone { command, outcome } => {
                    assert!(self.done.insert(command, outcome).is_none());
                }
                Output::Call { call, event } => self.calls.push_back((call, *event)),
                Output::Connected(connected) => self.connected.push(*connected),
                Output::Disconnected(disconnected) => self.disconnected.push(*disconnected),
                Output::Ended(ended) => self.ended.push(*ended),
                Output::StartTooLate => self.starts_too_late += 1,
                Output::Gone => self.is_gone = true,
            }
        }
        self.shard.wake_writers();
    }

    // The log.

    /// Stores the oldest append; its records have not come back yet.
    pub fn store(&mut self) -> (AppendId, Vec<Arc<Record>>) {
        let append = self.appends.pop_front().expect("nothing is to be appended");
        self.log.extend(append.1.iter().cloned());
        append
    }

    /// The records stored so far come back.
    pub fn apply(&mut self) {
        self.apply_some(usize::MAX);
    }

    /// So many of the records stored so far come back.
    pub fn apply_some(&mut self, count_max: usize) {
        let records = self.log.iter().enumerate().skip(self.applied).take(count_max);
        let portion: Vec<_> =
            records.map(|(offset, record)| (Offset(offset as u64), Arc::clone(record))).collect();
        self.applied += portion.len();
        self.handle(Input::Records(portion));
    }

    /// Everything that is to be appended is stored and comes back, until nothing is left.
    pub fn settle(&mut self) {
        while !self.appends.is_empty() {
            self.store();
            self.apply();
        }
    }

    /// The oldest append fails and has not happened.
    pub fn fail(&mut self, certainty: Certainty) -> (AppendId, Vec<Arc<Record>>) {
        let append = self.appends.pop_front().expect("nothing is to be appended");
        self.handle(Input::AppendFailed { append: append.0, certainty });
        append
    }

    /// The oldest append fails but has happened.
    pub fn fail_but_store(&mut self) -> (AppendId, Vec<Arc<Record>>) {
        let append = self.store();
        self.handle(Input::AppendFailed { append: append.0, certainty: Certainty::Indefinite });
        append
    }

    /// Time passes; timers that are due go off.
    pub fn wait_ms(&mut self, ms: u64) {
        self.now = self.now.plus_ms(ms);
        if self.shard.poll_timeout().is_some_and(|at| at <= self.now) {
            self.handle(Input::Timeout);
        }
    }

    /// Records to append that wait for the test.
    pub fn waiting(&self) -> usize {
        self.appends.iter().map(|(_, records)| records.len()).sum()
    }

    pub fn bodies(&self) -> Vec<String> {
        self.log.iter().map(|record| body_name(record)).collect()
    }

    // Sockets.

    /// Asks for a new session; nothing is stored yet.
    pub fn ask(&mut self, session: NewSession) -> OpenId {
        let open = self.name();
        self.handle(Opening { open: OpenId(open), session }.into());
        OpenId(open)
    }

    /// A new session, attached.
    pub fn open_with(&mut self, session: NewSession) -> Client {
        self.try_open(session).expect("an attachment")
    }

    /// A new session, attached unless it is refused.
    pub fn try_open(&mut self, session: NewSession) -> Result<Client, OpenError> {
        let id = session.identity.connection_id.clone();
        let open = self.ask(session);
        self.settle();
        let attachment = self.opened.remove(&open).expect("an answer")?;
        Ok(Client { id, attachment })
    }

    /// Its client ends the session.
    pub fn leave(&mut self, client: &Client) {
        self.close(client, SocketEnd::ClosedForGood);
        self.settle();
    }

    /// A new reliable session that may do everything and whose client has read `connected`.
    pub fn open(&mut self, id: &str) -> Client {
        let client = self.open_with(opening(id));
        assert_eq!(self.reads(&client), ["connected"]);
        client
    }

    /// [`World::open`] with groups from the token.
    pub fn open_in(&mut self, id: &str, groups: &[&str]) -> Client {
        let client =
            self.open_with(NewSession { groups: groups.iter().map(|g| group(g)).collect(), ..opening(id) });
        assert_eq!(self.reads(&client), ["connected"]);
        client
    }

    pub fn try_resume(&mut self, id: &str, subprotocol: Subprotocol) -> Result<Client, OpenError> {
        self.resume_with(id, subprotocol, false)
    }

    /// A resume by a socket that has waited as it was told to.
    pub fn resume_after_wait(&mut self, client: &Client) -> Client {
        self.resume_with(client.id.as_str(), Subprotocol::JsonReliable, true).expect("an attachment")
    }

    fn resume_with(
        &mut self,
        id: &str,
        subprotocol: Subprotocol,
        has_waited: bool,
    ) -> Result<Client, OpenError> {
        let open = self.ask_to_resume(id, subprotocol, has_waited);
        let outcome = self.opened.remove(&open).expect("a resume is answered at once");
        outcome.map(|attachment| Client { id: ConnectionId::new(id), attachment })
    }

    /// A socket wants a session; nothing is stored yet.
    pub fn ask_to_resume(&mut self, id: &str, subprotocol: Subprotocol, has_waited: bool) -> OpenId {
        let open = OpenId(self.name());
        let connection_id = ConnectionId::new(id);
        self.handle(Input::Resume(Resuming { open, connection_id, subprotocol, has_waited }));
        open
    }

    pub fn resume(&mut self, client: &Client) -> Client {
        self.try_resume(client.id.as_str(), Subprotocol::JsonReliable).expect("an attachment")
    }

    /// Why a resume is refused.
    pub fn refusal(&mut self, client: &Client) -> OpenError {
        self.try_resume(client.id.as_str(), Subprotocol::JsonReliable).map(|_| "attached").unwrap_err()
    }

    pub fn close(&mut self, client: &Client, end: SocketEnd) {
        self.handle(Input::SocketClosed { session: client.attachment.session, end });
    }

    pub fn lose(&mut self, client: &Client) {
        self.close(client, SocketEnd::Lost);
    }

    /// One read of the socket hands over so many requests.
    pub fn send(&mut self, client: &Client, requests: impl IntoIterator<Item = Upstream>) {
        let requests: Vec<Request> = requests
            .into_iter()
            .filter_map(|message| client.attachment.receive(message))
            .map(|message| Request { bytes: frame_bytes(&message), message })
            .collect();
        let bytes = requests.iter().map(|request| request.bytes).sum();
        client.attachment.outbox.lock().add_requests(requests.len(), bytes);
        self.handle(Input::Requests { session: client.attachment.session, requests });
    }

    /// [`World::send`], stored and applied.
    pub fn ask_for(&mut self, client: &Client, request: Upstream) -> Vec<String> {
        self.send(client, [request]);
        self.settle();
        self.reads(client)
    }

    /// What the client has not read before; how its socket was closed, if it was.
    pub fn reads(&self, client: &Client) -> Vec<String> {
        let Attachment { session, outbox } = &client.attachment;
        let (mut read, progress) = drain(&mut outbox.lock(), session.epoch, self.now);
        match progress {
            Progress::Close(close) => read.push(format!("close {}", close.code as u16)),
            Progress::Cut => read.push("cut".to_owned()),
            Progress::Idle | Progress::Frames | Progress::LastFrames => {}
        }
        read
    }

    pub fn change_rule(&mut self, id: &str, permission: Permission, name: &str, allow: bool) -> CommandId {
        let connection_id = ConnectionId::new(id);
        self.command(Action::ChangeRule { connection_id, permission, group: group(name), allow })
    }

    /// The application asks for something; nothing is stored yet.
    pub fn command(&mut self, action: Action) -> CommandId {
        self.request(action, None, false)
    }

    /// [`World::command`] with a request key.
    pub fn request(&mut self, action: Action, request: Option<IdempotencyKey>, is_strict: bool) -> CommandId {
        let command = CommandId(self.name());
        self.handle(Input::Command(Box::new(Command { command, request, is_strict, action })));
        command
    }

    /// The application sends a text to a selection; it is stored and applied.
    pub fn sends(&mut self, selection: Selection, text: &str) {
        let command = self.command(send(selection, text));
        self.settle();
        assert_eq!(self.done[&command], Ok(Done::Executed));
    }

    fn name(&mut self) -> u64 {
        self.next_name += 1;
        self.next_name
    }
}

/// A reliable session that may do everything.
pub(super) fn opening(id: &str) -> NewSession {
    NewSession {
        identity: SessionIdentity {
            connection_id: ConnectionId::new(id),
            user_id: None,
            subprotocol: Subprotocol::JsonReliable,
            custom_subprotocol: None,
        },
        roles: vec!["webpubsub.joinLeaveGroup".to_owned(), "webpubsub.sendToGroup".to_owned()],
        groups: Vec::new(),
        reconnection_token: Some(ReconnectionToken("secret".to_owned())),
        state: None,
    }
}

/// A session that may do nothing but what the roles say.
pub(super) fn opening_as(id: &str, roles: &[&str]) -> NewSession {
    NewSession { roles: roles.iter().map(|role| (*role).to_owned()).collect(), ..opening(id) }
}

pub(super) fn opening_on(id: &str, subprotocol: Subprotocol, user: &str) -> NewSession {
    let mut new = opening(id);
    new.identity.subprotocol = subprotocol;
    new.identity.user_id = Some(UserId::new(user));
    new
}

pub(super) fn group(name: &str) -> GroupName {
    GroupName::new(name).unwrap()
}

pub(super) fn join(ack_id: impl Into<Option<u64>>, name: &str) -> Upstream {
    Upstream::JoinGroup { group: group(name), ack_id: ack_id.into() }
}

pub(super) fn leave(ack_id: impl Into<Option<u64>>, name: &str) -> Upstream {
    Upstream::LeaveGroup { group: group(name), ack_id: ack_id.into() }
}

pub(super) fn publish(ack_id: impl Into<Option<u64>>, name: &str, text: &str) -> Upstream {
    Upstream::SendToGroup {
        group: group(name),
        payload: Payload { kind: PayloadKind::Text, bytes: Bytes::copy_from_slice(text.as_bytes()) },
        metadata: Metadata::default(),
        ack_id: ack_id.into(),
        no_echo: false,
        ttl_seconds: 0,
    }
}

pub(super) fn without_echo(mut request: Upstream) -> Upstream {
    if let Upstream::SendToGroup { no_echo, .. } = &mut request {
        *no_echo = true;
    }
    request
}

pub(super) fn send(selection: Selection, text: &str) -> Action {
    let payload = Payload { kind: PayloadKind::Text, bytes: Bytes::copy_from_slice(text.as_bytes()) };
    Action::Send(Sent { selection, ttl_seconds: 0, payload, metadata: Metadata::default() })
}

pub(super) fn acknowledge(sequence_id: u64) -> Upstream {
    Upstream::SequenceAck { sequence_id }
}

/// A record in short, with its session where it has one.
pub(super) fn body_name(record: &Record) -> String {
    let what = match &record.body {
        Body::Booted { .. } => "booted".to_owned(),
        Body::Opened(_) => "opened".to_owned(),
        Body::Joined { groups, .. } => format!("joined {}", groups[0]),
        Body::Left { groups, .. } => format!("left {}", groups[0]),
        Body::Published(published) => {
            format!("published {}", String::from_utf8_lossy(&published.payload.bytes))
        }
        Body::Granted { group, .. } => format!("granted {group}"),
        Body::Revoked { group, .. } => format!("revoked {group}"),
        Body::Ended { reason, .. } => format!("ended {reason:?}"),
        Body::Sent(sent) => format!("sent {}", String::from_utf8_lossy(&sent.payload.bytes)),
        Body::Added { groups, .. } => format!("added {}", groups[0]),
        Body::Removed { .. } => "removed".to_owned(),
        Body::Closed { .. } => "closed".to_owned(),
        Body::Handled { reply, .. } => {
            let text =
                reply.as_ref().map_or("".into(), |reply| String::from_utf8_lossy(&reply.payload.bytes));
            format!("handled {text}")
        }
        Body::Acked { marks } => format!("acked {}", marks.len()),
        Body::Told { connection_ids } => format!("told {}", connection_ids[0]),
        Body::NodeStarted(started) => format!("started {}", started.node),
        Body::NodeGone(gone) => format!("gone {}", gone.boot.0),
        Body::Attached { .. } => "attached".to_owned(),
        Body::Released { releases } => format!("released {}", releases[0].connection_id),
        Body::Refused(refusal) => format!("refused {refusal:?}"),
    };
    match record.body.connection_id() {
        Some(id) => format!("{id} {what}"),
        None => what,
    }
}

pub(super) fn ended(id: &str, reason: EndReason) -> String {
    format!("{id} ended {reason:?}")
}
