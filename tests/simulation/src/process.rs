//! The gateway's process: its shards, their inboxes, and how they get their turns. What they do in a turn is up to the
//! driver that the gateway uses too.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::task::{Context, Waker};

use oncewire_protocol::driver::{Appending, ShardDriver, ShardOutput};
use oncewire_protocol::hub::{AppendId, Checkpointer, CommandId, HubSettings, Input, OpenId, Shard, ShardId};
use oncewire_protocol::log::{BootId, Certainty, Offset, Record, Time};
use oncewire_protocol::session::{MemoryBudget, SharedOutbox};
use oncewire_protocol::wire::ConnectionId;

use crate::Failure;
use crate::appends::summary;
use crate::checkpoints::Write;
use crate::clocks::HubBoot;
use crate::coverage::Path;
use crate::log::{Appender, Log};
use crate::weather::ack_window_ids;
use crate::world::{Event, World};

/// How long a process that is told to stop may take.
const LEAVE_MS: u64 = 5_000;

/// One hub: its log, which stays, and its shards, which die with the process.
pub struct HubNode {
    /// Its name.
    pub name: &'static str,
    /// Its log.
    pub log: Log,
    /// Its shards.
    pub shards: Vec<ShardNode>,
    /// Leads its shards through rounds of checkpoints.
    pub(crate) checkpointer: Option<Checkpointer>,
    pub(crate) clock: HubBoot,
    pub(crate) boot: BootId,
    pub(crate) booted: Option<Arc<Record>>,
    shard_count: u16,
    /// When the newest append is done.
    pub(crate) last_append_us: u64,
    /// Appends of which some attempt was in doubt.
    pub(crate) in_doubt: BTreeSet<(usize, AppendId)>,
    /// Sessions that were opened, for the application's commands.
    pub known: Vec<ConnectionId>,
}

/// One shard with all that its driver waits for.
pub struct ShardNode {
    pub(crate) driver: ShardDriver,
    inbox: VecDeque<Item>,
    is_run_scheduled: bool,
    pub(crate) is_tail_scheduled: bool,
    /// How many records of the log have been read.
    pub(crate) cursor: usize,
    /// Records that have been read and not been taken.
    pub(crate) portion: Vec<(Offset, Arc<Record>)>,
    /// Appends that have ended.
    ended: VecDeque<(Appending, Result<(), Certainty>)>,
    /// Sockets that wait to be attached, and whether they resume.
    opening: BTreeMap<u64, bool>,
    timer: Option<Time>,
    /// Checkpoints that are being written.
    pub(crate) write: Option<Write>,
    is_drained: bool,
}

/// What waits in a shard's inbox.
enum Item {
    /// An input, with the outbox of the socket that it comes from.
    Input(Input, Option<SharedOutbox>),
    /// The process is to end.
    Drain,
}

impl ShardNode {
    /// A shard that folds the log from the record at this index on, so many steps before others are served.
    pub fn new(mut shard: Shard, log: &Log, cursor: usize, fold_steps: usize) -> Self {
        shard.fold_in_portions_of(fold_steps);
        let from = shard.applied().map_or(Offset(0), |applied| Offset(applied.0 + 1));
        let last = log.landed().checked_sub(1).and_then(|index| log.offset_at(index));
        let end = last.map_or(Offset(0), |last| Offset(last.0 + 1));
        Self {
            driver: ShardDriver::new(shard, from, end, true),
            inbox: VecDeque::new(),
            is_run_scheduled: false,
            is_tail_scheduled: false,
            cursor,
            portion: Vec::new(),
            ended: VecDeque::new(),
            opening: BTreeMap::new(),
            timer: None,
            write: None,
            is_drained: false,
        }
    }

    /// The shard itself.
    pub fn shard(&self) -> &Shard {
        self.driver.shard()
    }

    /// Whether something waits to be handled.
    fn is_behind(&self) -> bool {
        !self.portion.is_empty()
            || !self.inbox.is_empty()
            || !self.ended.is_empty()
            || self.shard().has_waiting()
    }
}

impl HubNode {
    /// A hub without history.
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            log: Log::default(),
            shards: Vec::new(),
            checkpointer: None,
            clock: HubBoot::default(),
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
        usize::from(ShardId::of(connection_id, self.shard_count))
    }

    /// Sessions that it holds.
    pub fn sessions(&self) -> usize {
        self.shards.iter().map(|shard| shard.shard().sessions()).sum()
    }

    /// Whether it waits for some time to come.
    pub fn has_timers(&self) -> bool {
        self.shards.iter().any(|shard| shard.driver.poll_timeout(None).is_some())
    }

    /// What the hub still has to do, if anything.
    pub fn unsettled(&self) -> Option<String> {
        if !self.log.queue.is_empty() || self.log.needs_sync() {
            return Some(format!("{}: appends under way", self.name));
        }
        self.shards.iter().enumerate().find_map(|(index, shard)| {
            let at = || format!("{} shard {index}", self.name);
            if !shard.shard().is_live() {
                Some(format!("{}: does not live", at()))
            } else if shard.cursor < self.log.durable() || shard.is_behind() {
                Some(format!("{}: behind", at()))
            } else if !shard.shard().is_marked() {
                Some(format!("{}: has marks to write", at()))
            } else {
                None
            }
        })
    }
}

impl World {
    pub(crate) fn start_process(&mut self) {
        self.process += 1;
        self.leaving_since_ms = None;
        self.is_up = true;
        self.is_accepting = true;
        self.budget = Arc::new(MemoryBudget::new(self.weather.budget_bytes));
        self.trace.line(self.now_us, || "gateway starts".to_owned());
        self.start_clock();
        for index in 0..self.hubs.len() {
            let boot = BootId(u128::from(self.random.number()) << 64 | u128::from(self.random.number()));
            // Another number of shards folds the same log.
            let count = if self.random.permille(150) {
                3 - self.weather.shards[index]
            } else {
                self.weather.shards[index]
            };
            // Sessions that are there keep the window that they were opened with.
            let ack_window_ids = ack_window_ids(&mut self.random);
            let settings = HubSettings { ack_window_ids, ..self.weather.settings[index].clone() };
            let node = &mut self.hubs[index];
            if let Err(error) = node.log.reopen() {
                self.failure = Some(Failure::Unreadable(error.to_string()));
                return;
            }
            node.boot = boot;
            node.booted = None;
            node.shard_count = count;
            node.in_doubt.clear();
            node.last_append_us = self.now_us;
            self.open_hub_clock(index, count);
            let Some((shards, checkpointer)) = self.restore(index, &settings, count, boot) else { return };
            let node = &mut self.hubs[index];
            node.shards = shards;
            node.checkpointer = Some(checkpointer);
            for shard in 0..usize::from(count) {
                let takes = self.weather.takes_disconnected[index];
                self.send(index, shard, Input::TakesDisconnected(takes), None);
            }
            self.schedule_tails(index);
        }
    }

    /// The process is gone. `kept` says how much of each log is left.
    pub(crate) fn stop_process(&mut self, kept: impl Fn(&mut Self, usize) -> usize) {
        self.process += 1;
        self.is_up = false;
        self.is_accepting = false;
        self.lose_answers();
        self.lose_calls();
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
            self.stop_hub_clock(hub);
            self.lose_checkpoint_writes(hub);
            self.hubs[hub].log.crash(kept);
            self.hubs[hub].shards.clear();
            self.hubs[hub].checkpointer = None;
        }
        self.drop_all_sockets();
        self.schedule_in((1, 1500), Event::Start);
    }

    /// The process ends once the log says of all that clients have acknowledged, or when that takes too long.
    pub(crate) fn stop_in_order(&mut self) {
        let Some(since_ms) = self.leaving_since_ms else {
            self.leaving_since_ms = Some(self.now_ms());
            for hub in 0..self.hubs.len() {
                for shard in 0..self.hubs[hub].shards.len() {
                    self.put(hub, shard, Item::Drain);
                }
            }
            return self.schedule_in((1, 20), Event::Stop { process: self.process });
        };
        let has_ended = |shard: &ShardNode| shard.is_drained && shard.shard().is_live();
        let is_done = self.hubs.iter().all(|hub| hub.shards.iter().all(has_ended));
        if is_done || self.now_ms() - since_ms > LEAVE_MS {
            self.stop_process(|world, hub| world.hubs[hub].log.landed());
        } else {
            self.schedule_in((1, 20), Event::Stop { process: self.process });
        }
    }

    pub(crate) fn append_booted(&mut self, hub: usize) {
        if let Some(booted) = self.hubs[hub].booted.clone() {
            self.append(hub, Appender::Boot, vec![booted]);
        }
    }

    /// Puts an input into a shard's inbox.
    pub(crate) fn send(&mut self, hub: usize, shard: usize, input: Input, outbox: Option<SharedOutbox>) {
        self.put(hub, shard, Item::Input(input, outbox));
    }

    fn put(&mut self, hub: usize, shard: usize, item: Item) {
        if let Some(node) = self.hubs[hub].shards.get_mut(shard) {
            node.inbox.push_back(item);
            self.schedule_run(hub, shard);
        }
    }

    /// An append of a shard has ended.
    pub(crate) fn append_ended(
        &mut self,
        hub: usize,
        shard: usize,
        appending: Appending,
        outcome: Result<(), Certainty>,
    ) {
        self.hubs[hub].shards[shard].ended.push_back((appending, outcome));
        self.schedule_run(hub, shard);
    }

    /// Something has come for a shard: it gets a turn.
    pub(crate) fn schedule_run(&mut self, hub: usize, shard: usize) {
        self.schedule_run_in(hub, shard, self.weather.shard_ms);
    }

    fn schedule_run_in(&mut self, hub: usize, shard: usize, range_ms: (u64, u64)) {
        let node = &mut self.hubs[hub].shards[shard];
        if !std::mem::replace(&mut node.is_run_scheduled, true) {
            self.schedule_in(range_ms, Event::Run { hub, shard, process: self.process });
        }
    }

    /// A turn of a shard.
    pub(crate) fn run_shard(&mut self, hub: usize, shard: usize) {
        let now = self.hub_time(hub);
        let node = &mut self.hubs[hub].shards[shard];
        node.is_run_scheduled = false;
        if !node.driver.takes_records() {
            // What comes meanwhile is judged before the records that wait.
            self.note(Path::RecordsWaited);
        } else if !node.portion.is_empty() {
            let portion = std::mem::take(&mut node.portion);
            self.trace.line(self.now_us, || format!("  {hub}/{shard} <- {}", summary_of(&portion)));
            node.driver.handle(now, Input::Records(portion));
        }
        let node = &mut self.hubs[hub].shards[shard];
        if let Some((appending, outcome)) = node.ended.pop_front() {
            node.driver.append_done(now, appending, outcome);
        }
        for _ in 0..self.random.within((1, self.weather.turn_inputs)) {
            let Some(item) = self.hubs[hub].shards[shard].inbox.pop_front() else { break };
            self.take(hub, shard, now, item);
        }
        self.hubs[hub].shards[shard].driver.serve(now);
        self.carry_out(hub, shard);
        let node = &mut self.hubs[hub].shards[shard];
        node.driver.end_turn();
        node.is_drained |= node.driver.is_drained();
        self.step_checkpoint(hub, shard);
        self.set_timer(hub, shard);
        let node = &self.hubs[hub].shards[shard];
        if node.driver.wants_turn() {
            self.schedule_run_in(hub, shard, (0, 1));
        } else if node.is_behind() {
            self.schedule_run(hub, shard);
        }
    }

    fn take(&mut self, hub: usize, shard: usize, now: Time, item: Item) {
        let node = &mut self.hubs[hub].shards[shard];
        let Item::Input(input, outbox) = item else { return node.driver.drain(now) };
        match &input {
            Input::Open(opening) => {
                node.opening.insert(opening.open.0, false);
            }
            Input::Resume(resuming) => {
                node.opening.insert(resuming.open.0, true);
            }
            _ => {}
        }
        self.look_at(hub, &input, outbox.as_ref());
        self.trace.line(self.now_us, || format!("  {hub}/{shard} <- {}", describe(&input)));
        self.hubs[hub].shards[shard].driver.handle(now, input);
    }

    /// Does what the driver asks for.
    fn carry_out(&mut self, hub: usize, shard: usize) {
        while let Some(output) = self.hubs[hub].shards[shard].driver.poll_output() {
            match output {
                ShardOutput::Folded(folded) => self.shard_folded(hub, folded),
                ShardOutput::Live => {}
                ShardOutput::Append(appending, records) => {
                    self.append(hub, Appender::Shard(shard, appending), records);
                }
                ShardOutput::Opened(OpenId(conn), outcome) => {
                    let node = &mut self.hubs[hub].shards[shard];
                    let is_live = node.shard().is_live();
                    let is_resume = node.opening.remove(&conn).unwrap_or_default();
                    self.count_opened(is_live, is_resume, &outcome);
                    if is_resume && outcome.is_ok() {
                        self.look_at_resumed(hub, conn);
                    }
                    let event = Event::Attached { hub, shard, conn, process: self.process, outcome };
                    self.schedule_in((0, 1), event);
                }
                ShardOutput::CommandDone(CommandId(command), outcome) => {
                    self.command_done(hub, shard, command, outcome);
                }
                ShardOutput::Call(call, event) => self.call_handler(hub, shard, call, *event),
                ShardOutput::Connected(connected) => self.connected(*connected),
                ShardOutput::Disconnected(disconnected) => self.disconnected(hub, shard, &disconnected),
                ShardOutput::Ended(_) => {}
                // One gateway alone writes these logs.
                ShardOutput::StartTooLate | ShardOutput::Gone => {
                    self.failure = Some(Failure::Unreadable("a start that another has ended".to_owned()));
                }
            }
        }
    }

    /// Tells shards that clients have acknowledged something.
    pub(crate) fn hear_acknowledged(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        for hub in 0..self.hubs.len() {
            for shard in 0..self.hubs[hub].shards.len() {
                if self.hubs[hub].shards[shard].driver.poll_acknowledged(&mut context).is_ready() {
                    self.send(hub, shard, Input::Acknowledged, None);
                }
            }
        }
    }

    fn set_timer(&mut self, hub: usize, shard: usize) {
        let now = self.hub_time(hub);
        let HubNode { shards, checkpointer, .. } = &mut self.hubs[hub];
        let node = &mut shards[shard];
        let step = checkpointer.as_ref().and_then(|rounds| rounds.poll_timeout(node.driver.shard()));
        let timeout = node.driver.poll_timeout(step);
        if node.timer != timeout {
            node.timer = timeout;
            if let Some(at) = timeout {
                let at_us = self.now_us + at.0.saturating_sub(now.0) * 1000;
                self.schedule_at(at_us, Event::Timer { hub, shard, process: self.process, at });
            }
        }
    }

    pub(crate) fn fire_timer(&mut self, hub: usize, shard: usize, at: Time) {
        if self.hubs[hub].shards[shard].timer.take_if(|timer| *timer == at).is_some() {
            self.schedule_run(hub, shard);
        }
    }
}

fn describe(input: &Input) -> String {
    match input {
        Input::Open(opening) => format!("open {}", opening.session.identity.connection_id),
        Input::Resume(resuming) => format!("resume {}", resuming.connection_id),
        Input::Requests { session, requests } => {
            let ids: Vec<_> = requests.iter().map(|request| request.message.ack_id()).collect();
            format!("requests {:?} {ids:?}", session)
        }
        other => format!("{other:?}"),
    }
}

fn summary_of(portion: &[(Offset, Arc<Record>)]) -> String {
    summary(&portion.iter().map(|(_, record)| Arc::clone(record)).collect::<Vec<_>>())
}
