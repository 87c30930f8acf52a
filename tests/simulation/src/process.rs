//! The gateway's process: its shards, their inboxes, and the driver that appends, tails and keeps the timers. What it
//! does is what the real engine does, with plain calls.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use oncewire_protocol::hub::{
    AppendId, Attachment, CommandId, Hub, Input, OpenError, OpenId, Output, RuleChange, Shard,
};
use oncewire_protocol::log::{Body, BootId, Certainty, EndReason, Permission, Record};
use oncewire_protocol::session::{MemoryBudget, SharedOutbox};
use oncewire_protocol::wire::{ConnectionId, GroupName};

use crate::coverage::Path;
use crate::log::{Append, Appender, Fate, Log};
use crate::world::{Event, World};
use crate::{DriverMutation, Failure};

/// One hub: its log, which stays, and its shards, which die with the process.
pub struct HubNode {
    /// Its name.
    pub name: &'static str,
    /// Its log.
    pub log: Log,
    /// Its shards.
    pub shards: Vec<ShardNode>,
    boot: BootId,
    booted: Option<Arc<Record>>,
    shard_count: u16,
    last_append_us: u64,
    in_doubt: BTreeSet<(usize, AppendId)>,
    /// Sessions that were opened, for the application's commands.
    pub known: Vec<ConnectionId>,
}

/// One shard with its driver's state.
pub struct ShardNode {
    hub: Hub,
    inbox: VecDeque<Item>,
    is_run_scheduled: bool,
    is_tail_scheduled: bool,
    /// How many records of the log have been put into the inbox.
    cursor: usize,
    timer_us: Option<u64>,
}

/// An input, with the outbox of the socket that it comes from.
struct Item {
    input: Input,
    outbox: Option<SharedOutbox>,
}

impl HubNode {
    /// A hub without history.
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            log: Log::default(),
            shards: Vec::new(),
            boot: BootId(0),
            booted: None,
            shard_count: 0,
            last_append_us: 0,
            in_doubt: BTreeSet::new(),
            known: Vec::new(),
        }
    }

    /// The shard of a session.
    pub fn shard_of(&self, connection_id: &ConnectionId) -> usize {
        usize::from(Shard::of(connection_id, self.shard_count))
    }

    /// What the hub still has to do, if anything.
    pub fn unsettled(&self) -> Option<String> {
        if !self.log.queue.is_empty() || self.log.needs_sync() {
            return Some(format!("{}: appends under way", self.name));
        }
        self.shards.iter().enumerate().find_map(|(index, shard)| {
            let at = || format!("{} shard {index}", self.name);
            if !shard.hub.is_live() {
                Some(format!("{}: does not live", at()))
            } else if shard.cursor < self.log.durable() || !shard.inbox.is_empty() {
                Some(format!("{}: behind", at()))
            } else {
                None
            }
        })
    }
}

impl World {
    pub(crate) fn start_process(&mut self) {
        self.process += 1;
        self.is_up = true;
        self.budget = Arc::new(MemoryBudget::new(self.weather.budget_bytes));
        self.trace.line(self.now_us, || "gateway starts".to_owned());
        for index in 0..self.hubs.len() {
            let boot = BootId(u128::from(self.random.number()) << 64 | u128::from(self.random.number()));
            // Another number of shards folds the same log.
            let count = if self.random.permille(150) { 3 - self.weather.shards[index] } else { self.weather.shards[index] };
            let settings = self.weather.settings[index].clone();
            let booted = Arc::new(Hub::booted(boot, self.gateway_time()));
            let node = &mut self.hubs[index];
            if let Err(error) = node.log.reopen() {
                self.failure = Some(Failure::Unreadable(error.to_string()));
                return;
            }
            node.boot = boot;
            node.booted = Some(booted);
            node.shard_count = count;
            node.in_doubt.clear();
            node.last_append_us = self.now_us;
            node.shards = (0..count)
                .map(|shard| ShardNode {
                    hub: Hub::new(settings.clone(), Shard { index: shard, count }, boot, Arc::clone(&self.budget)),
                    inbox: VecDeque::new(),
                    is_run_scheduled: false,
                    is_tail_scheduled: false,
                    cursor: 0,
                    timer_us: None,
                })
                .collect();
            self.append_booted(index);
            self.schedule_tails(index);
        }
    }

    /// The process is gone. `kept` says how much of each log is left.
    pub(crate) fn stop_process(&mut self, kept: impl Fn(&mut Self, usize) -> usize) {
        self.process += 1;
        self.is_up = false;
        self.commands.clear();
        for hub in 0..self.hubs.len() {
            let kept = kept(self, hub);
            let log = &self.hubs[hub].log;
            let (landed, durable, busy) = (log.landed(), log.durable(), !log.queue.is_empty());
            if kept < landed {
                self.note(Path::CrashLostRecords);
            }
            if kept > durable {
                self.note(Path::CrashKeptUnsynced);
            }
            if busy {
                self.note(Path::CrashWithBatches);
            }
            self.hubs[hub].log.crash(kept);
            self.hubs[hub].shards.clear();
        }
        self.drop_all_sockets();
        self.schedule_in((1, 1500), Event::Start);
    }

    pub(crate) fn append_booted(&mut self, hub: usize) {
        if let Some(booted) = self.hubs[hub].booted.clone() {
            self.append(hub, Appender::Boot, vec![booted]);
        }
    }

    pub(crate) fn append(&mut self, hub: usize, by: Appender, records: Vec<Arc<Record>>) {
        let fate = self.draw_fate(records.len());
        if let Appender::Shard(shard, append) = by {
            let doubts = &mut self.hubs[hub].in_doubt;
            match fate.failure() {
                Some(Certainty::Indefinite) => {
                    doubts.insert((shard, append));
                }
                Some(Certainty::Definite) if doubts.contains(&(shard, append)) => self.note(Path::RetryRefused),
                _ => {}
            }
        }
        let delay_us = self.random.within((self.weather.append_ms.0 * 1000, self.weather.append_ms.1 * 1000 + 50));
        let at_us = self.hubs[hub].last_append_us.max(self.now_us + delay_us);
        self.hubs[hub].last_append_us = at_us;
        self.trace.line(self.now_us, || format!("  append by {by:?}: {fate:?} {}", summary(&records)));
        self.hubs[hub].log.queue.push_back(Append { by, records, fate });
        self.schedule_at(at_us, Event::Append { hub, process: self.process });
    }

    fn draw_fate(&mut self, records: usize) -> Fate {
        let landing = self.random.below(records as u64 + 1) as usize;
        if self.now_us < self.outage_until {
            return match self.random.below(4) {
                0 => Fate::InDoubt(0),
                1 => Fate::Late(landing, self.random.within((1, 2_000))),
                _ => Fate::Refused,
            };
        }
        let draw = self.random.below(1000);
        if draw < self.weather.append_refused {
            Fate::Refused
        } else if draw < self.weather.append_refused + self.weather.append_in_doubt {
            if self.random.permille(self.weather.append_late) {
                Fate::Late(landing, self.random.within((1, 900)))
            } else {
                Fate::InDoubt(landing)
            }
        } else {
            Fate::Lands
        }
    }

    pub(crate) fn append_done(&mut self, hub: usize) {
        let Some(Append { by, records, fate }) = self.hubs[hub].log.queue.pop_front() else { return };
        match fate {
            Fate::Lands => self.land(hub, &records),
            Fate::Refused => self.note(Path::AppendRefused),
            Fate::InDoubt(landing) => {
                self.note(match landing {
                    0 => Path::AppendInDoubtNothing,
                    all if all == records.len() => Path::AppendInDoubtAll,
                    _ => Path::AppendInDoubtPrefix,
                });
                self.land(hub, &records[..landing]);
            }
            Fate::Late(landing, after_ms) => {
                let late = records[..landing].to_vec();
                let event = Event::LateLanding { hub, process: self.process, records: late };
                self.schedule_in((after_ms, after_ms), event);
            }
        }
        let Some(certainty) = fate.failure() else { return };
        match by {
            Appender::Boot => {
                if certainty == Certainty::Indefinite {
                    self.note(Path::BootInDoubt);
                }
                self.schedule_in((20, 100), Event::Boot { hub, process: self.process });
            }
            Appender::Shard(shard, append) => {
                let ends = matches!(records.first().map(|record| &record.body), Some(Body::Ended { .. }));
                if ends && certainty == Certainty::Definite {
                    self.note(Path::Doomed);
                }
                self.send(hub, shard, Input::AppendFailed { append, certainty }, None);
            }
        }
    }

    pub(crate) fn land_late(&mut self, hub: usize, records: &[Arc<Record>]) {
        if records.is_empty() {
            return;
        }
        self.note(Path::AppendLate);
        if records.iter().any(|record| self.hubs[hub].log.has_later(record)) {
            self.note(Path::AppendLateAfterOthers);
        }
        self.land(hub, records);
    }

    fn land(&mut self, hub: usize, records: &[Arc<Record>]) {
        for record in records {
            let gap = if self.random.permille(50) { self.random.below(5) } else { 0 };
            if self.hubs[hub].log.land(record, gap) {
                self.note(Path::Twin);
            }
        }
        if !records.is_empty() {
            self.trace.line(self.now_us, || format!("  landed {}", summary(records)));
        }
        let log = &mut self.hubs[hub].log;
        if log.needs_sync() && !log.is_syncing {
            log.is_syncing = true;
            self.schedule_in(self.weather.sync_ms, Event::Sync { hub, process: self.process });
        }
        if self.driver_mutation == Some(DriverMutation::LiveBeforeDurable) {
            self.schedule_tails(hub);
        }
    }

    pub(crate) fn sync_done(&mut self, hub: usize) {
        self.hubs[hub].log.sync();
        self.schedule_tails(hub);
    }

    fn schedule_tails(&mut self, hub: usize) {
        for shard in 0..self.hubs[hub].shards.len() {
            self.schedule_tail(hub, shard);
        }
    }

    fn readable(&self, hub: usize) -> usize {
        let log = &self.hubs[hub].log;
        match self.driver_mutation {
            Some(DriverMutation::LiveBeforeDurable) => log.landed(),
            _ => log.durable(),
        }
    }

    fn schedule_tail(&mut self, hub: usize, shard: usize) {
        let readable = self.readable(hub);
        let node = &mut self.hubs[hub].shards[shard];
        if node.cursor < readable && !node.is_tail_scheduled {
            node.is_tail_scheduled = true;
            self.schedule_in(self.weather.tail_ms, Event::Tail { hub, shard, process: self.process });
        }
    }

    pub(crate) fn tail(&mut self, hub: usize, shard: usize) {
        let most = self.random.pick(&[1, 3, 20, 200]);
        let readable = self.readable(hub);
        let node = &mut self.hubs[hub];
        let state = &mut node.shards[shard];
        state.is_tail_scheduled = false;
        let records = node.log.read(state.cursor, readable.min(state.cursor + most));
        state.cursor += records.len();
        for (_, record) in &records {
            if let Body::Ended { reason, .. } = &record.body {
                let path = match reason {
                    EndReason::ClientClosed => Path::EndedByClient,
                    EndReason::ProtocolViolation => Path::EndedByViolation,
                    EndReason::OutboxFull => Path::EndedByOverflow,
                    EndReason::Expired => Path::EndedByExpiry,
                    EndReason::Shed => Path::EndedByShedding,
                    EndReason::ClosedByApplication => continue,
                };
                self.note(path);
            }
        }
        self.send(hub, shard, Input::Records(records), None);
        self.schedule_tail(hub, shard);
    }

    /// Puts an input into a shard's inbox.
    pub(crate) fn send(&mut self, hub: usize, shard: usize, input: Input, outbox: Option<SharedOutbox>) {
        let Some(node) = self.hubs[hub].shards.get_mut(shard) else { return };
        node.inbox.push_back(Item { input, outbox });
        if !node.is_run_scheduled {
            node.is_run_scheduled = true;
            self.schedule_in(self.weather.shard_ms, Event::Run { hub, shard, process: self.process });
        }
    }

    pub(crate) fn run_shard(&mut self, hub: usize, shard: usize) {
        let node = &mut self.hubs[hub].shards[shard];
        node.is_run_scheduled = false;
        for _ in 0..self.random.within((1, 8)) {
            let Some(Item { input, outbox }) = self.hubs[hub].shards[shard].inbox.pop_front() else { break };
            self.look_at(hub, &input, outbox.as_ref());
            self.trace.line(self.now_us, || format!("  {hub}/{shard} <- {}", describe(&input)));
            let is_resume = matches!(input, Input::Resume(_));
            let now = self.gateway_time();
            self.hubs[hub].shards[shard].hub.handle(now, input);
            self.drain(hub, shard, is_resume);
        }
        let node = &mut self.hubs[hub].shards[shard];
        node.hub.wake_writers();
        if !node.inbox.is_empty() {
            node.is_run_scheduled = true;
            self.schedule_in(self.weather.shard_ms, Event::Run { hub, shard, process: self.process });
        }
        self.set_timer(hub, shard);
    }

    fn drain(&mut self, hub: usize, shard: usize, is_resume: bool) {
        while let Some(output) = self.hubs[hub].shards[shard].hub.poll_output() {
            match output {
                Output::Append { append, records } => self.append(hub, Appender::Shard(shard, append), records),
                Output::Opened { open: OpenId(conn), outcome } => {
                    self.count_opened(hub, shard, is_resume, &outcome);
                    let event = Event::Attached { hub, shard, conn, process: self.process, outcome };
                    self.schedule_in((0, 1), event);
                }
                Output::CommandDone { command: CommandId(command), .. } => {
                    self.commands.remove(&command);
                }
            }
        }
    }

    fn count_opened(&mut self, hub: usize, shard: usize, is_resume: bool, outcome: &Result<Attachment, OpenError>) {
        let is_live = self.hubs[hub].shards[shard].hub.is_live();
        self.note(match (outcome, is_resume) {
            (Ok(_), true) => Path::Resumed,
            (Ok(_), false) => Path::Opened,
            (Err(OpenError::Refused), _) => Path::ResumeRefused,
            (Err(_), true) if is_live => Path::ResumeUnavailable,
            (Err(_), true) => Path::ResumeNotLive,
            (Err(_), false) => Path::OpenUnavailable,
        });
    }

    /// Counts what an input is about to meet.
    fn look_at(&mut self, hub: usize, input: &Input, outbox: Option<&SharedOutbox>) {
        let is_stale = |epoch| outbox.is_some_and(|outbox| !outbox.lock().is_current(epoch));
        match input {
            Input::Requests { session, requests } => {
                if is_stale(session.epoch) {
                    self.note(Path::StaleRequests);
                }
                let mut ids: Vec<_> = requests.iter().filter_map(|request| request.message.ack_id()).collect();
                ids.sort_unstable();
                if ids.windows(2).any(|pair| pair[0] == pair[1]) {
                    self.note(Path::RepeatInRead);
                }
            }
            Input::SocketClosed { session, .. } if is_stale(session.epoch) => self.note(Path::StaleClose),
            Input::Resume(resuming) => {
                let Some(key) = self.attached_session(hub, &resuming.connection_id) else { return };
                self.note(Path::Takeover);
                let is_busy = self.hubs[hub].log.queue.iter().any(|append| {
                    matches!(append.by, Appender::Shard(_, AppendId::Batch { session, .. }) if session == key)
                });
                if is_busy {
                    self.note(Path::TakeoverWithRequests);
                }
            }
            _ => {}
        }
    }

    fn set_timer(&mut self, hub: usize, shard: usize) {
        let now = self.gateway_time();
        let node = &mut self.hubs[hub].shards[shard];
        let timeout = node.hub.poll_timeout();
        let timer_us = timeout
            .map(|at| ((self.now_us / 1000 + at.0.saturating_sub(now.0)) * 1000).max(self.now_us));
        if node.timer_us != timer_us {
            node.timer_us = timer_us;
            if let Some(at_us) = timer_us {
                self.schedule_at(at_us, Event::Timer { hub, shard, process: self.process });
            }
        }
    }

    pub(crate) fn fire_timer(&mut self, hub: usize, shard: usize) {
        let node = &mut self.hubs[hub].shards[shard];
        if node.timer_us == Some(self.now_us) {
            node.timer_us = None;
            self.send(hub, shard, Input::Timeout, None);
        }
    }

    /// The application changes a permission of some session.
    pub(crate) fn change_rule(&mut self) {
        let hub = self.random.index(self.hubs.len());
        if self.hubs[hub].known.is_empty() || !self.is_up {
            return;
        }
        let recent = self.hubs[hub].known.len().min(8);
        let at = self.hubs[hub].known.len() - 1 - self.random.index(recent);
        let connection_id = self.hubs[hub].known[at].clone();
        let allow = self.random.permille(600);
        self.note(if allow { Path::RuleGranted } else { Path::RuleRevoked });
        let permission = self.random.pick(&[Permission::JoinLeaveGroup, Permission::SendToGroup]);
        let Ok(group) = GroupName::new(&self.random_group()) else { return };
        self.next_command += 1;
        self.commands.insert(self.next_command);
        let command = CommandId(self.next_command);
        let shard = self.hubs[hub].shard_of(&connection_id);
        let change = RuleChange { command, connection_id, permission, group, allow };
        self.send(hub, shard, Input::ChangeRule(change), None);
    }
}

fn summary(records: &[Arc<Record>]) -> String {
    let one = |record: &Arc<Record>| {
        let what = match &record.body {
            Body::Booted => "booted",
            Body::Opened(_) => "opened",
            Body::Joined { .. } => "joined",
            Body::Left { .. } => "left",
            Body::Published(_) => "published",
            Body::Granted { .. } => "granted",
            Body::Revoked { .. } => "revoked",
            Body::Ended { .. } => "ended",
        };
        let session = record.body.connection_id().map_or("", |id| id.as_str());
        let ack = record.key.ack.map_or(String::new(), |ack| format!("!{}", ack.ack_id));
        format!("{what} {session} {}.{}{ack}", record.key.boot.shard, record.key.boot.counter)
    };
    records.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn describe(input: &Input) -> String {
    match input {
        Input::Open(opening) => format!("open {}", opening.connection_id),
        Input::Resume(resuming) => format!("resume {}", resuming.connection_id),
        Input::Requests { session, requests } => {
            let ids: Vec<_> = requests.iter().map(|request| request.message.ack_id()).collect();
            format!("requests {:?} {ids:?}", session)
        }
        Input::Records(records) => {
            summary(&records.iter().map(|(_, record)| Arc::clone(record)).collect::<Vec<_>>())
        }
        other => format!("{other:?}"),
    }
}
