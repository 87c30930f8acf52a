//! The gateway's process: its shards, their inboxes, and the driver that appends, tails and keeps the timers. What it
//! does is what the real engine does, with plain calls.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::task::{Context, Waker};

use oncewire_protocol::hub::{
    AppendId, Checkpointer, CommandId, HubSettings, Input, OpenId, Output, Shard, ShardId,
};
use oncewire_protocol::log::{BootId, Record};
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

/// One shard with its driver's state.
pub struct ShardNode {
    pub(crate) shard: Shard,
    inbox: VecDeque<Item>,
    is_run_scheduled: bool,
    pub(crate) is_tail_scheduled: bool,
    /// How many records of the log have been put into the inbox.
    pub(crate) cursor: usize,
    timer_us: Option<u64>,
    /// When it takes a step of a round, at the latest.
    pub(crate) step_us: Option<u64>,
    /// Checkpoints that are being written.
    pub(crate) write: Option<Write>,
}

/// What a turn of a shard wants to have appended.
type Appends = Vec<(Appender, Vec<Arc<Record>>)>;

/// An input, with the outbox of the socket that it comes from.
struct Item {
    input: Input,
    outbox: Option<SharedOutbox>,
}

impl ShardNode {
    /// A shard that folds the log from the record at this index on, so many steps before others are served.
    pub fn new(mut shard: Shard, cursor: usize, fold_steps: usize) -> Self {
        shard.fold_in_portions_of(fold_steps);
        Self {
            shard,
            inbox: VecDeque::new(),
            is_run_scheduled: false,
            is_tail_scheduled: false,
            cursor,
            timer_us: None,
            step_us: None,
            write: None,
        }
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
        self.shards.iter().map(|shard| shard.shard.sessions()).sum()
    }

    /// Whether it waits for some time to come.
    pub fn has_timers(&self) -> bool {
        self.shards.iter().any(|shard| shard.shard.poll_timeout().is_some())
    }

    /// What the hub still has to do, if anything.
    pub fn unsettled(&self) -> Option<String> {
        if !self.log.queue.is_empty() || self.log.needs_sync() {
            return Some(format!("{}: appends under way", self.name));
        }
        self.shards.iter().enumerate().find_map(|(index, shard)| {
            let at = || format!("{} shard {index}", self.name);
            if !shard.shard.is_live() {
                Some(format!("{}: does not live", at()))
            } else if shard.cursor < self.log.durable()
                || !shard.inbox.is_empty()
                || shard.shard.has_waiting()
            {
                Some(format!("{}: behind", at()))
            } else if !shard.shard.is_marked() {
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
            self.open_hub_clock(index);
            let Some((shards, checkpointer)) = self.restore(index, &settings, count, boot) else { return };
            let node = &mut self.hubs[index];
            node.shards = shards;
            node.checkpointer = Some(checkpointer);
            for shard in 0..usize::from(count) {
                let takes = self.weather.takes_disconnected[index];
                self.send(index, shard, Input::TakesDisconnected(takes), None);
            }
            self.begin_hub(index);
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
                    self.send(hub, shard, Input::Leave, None);
                }
            }
            return self.schedule_in((1, 20), Event::Stop { process: self.process });
        };
        let is_done = self.hubs.iter().all(|hub| {
            let is_marked = |shard: &ShardNode| {
                shard.inbox.is_empty() && !shard.shard.has_waiting() && shard.shard.is_marked()
            };
            hub.log.queue.is_empty() && hub.shards.iter().all(is_marked)
        });
        if is_done || self.now_ms() - since_ms > LEAVE_MS {
            self.stop_process(|world, hub| world.hubs[hub].log.landed());
        } else {
            self.schedule_in((1, 20), Event::Stop { process: self.process });
        }
    }

    pub(crate) fn append_booted(&mut self, hub: usize) {
        if let Some(booted) = self.hubs[hub].booted.clone() {
            self.append(hub, vec![Appender::Boot], vec![booted]);
        }
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
        let mut appends = Appends::new();
        let waits = self.hubs[hub].shards[shard].shard.has_waiting();
        for _ in 0..self.random.within((1, 8)) {
            let Some(Item { input, outbox }) = self.hubs[hub].shards[shard].inbox.pop_front() else { break };
            self.look_at(hub, &input, outbox.as_ref());
            self.trace.line(self.now_us, || format!("  {hub}/{shard} <- {}", describe(&input)));
            let is_resume = matches!(input, Input::Resume(_));
            let now = self.hub_time(hub);
            self.hubs[hub].shards[shard].shard.handle(now, input);
            self.drain(hub, shard, is_resume, &mut appends);
        }
        if waits {
            // What comes meanwhile is judged before the records that wait.
            self.note(Path::RecordsWaited);
            let now = self.hub_time(hub);
            self.hubs[hub].shards[shard].shard.handle(now, Input::GoOn);
            self.drain(hub, shard, false, &mut appends);
        }
        self.append_all(hub, appends);
        let node = &mut self.hubs[hub].shards[shard];
        node.shard.wake_writers();
        if !node.inbox.is_empty() || node.shard.has_waiting() {
            node.is_run_scheduled = true;
            self.schedule_in(self.weather.shard_ms, Event::Run { hub, shard, process: self.process });
        }
        self.begin_hub(hub);
        self.set_timer(hub, shard);
        self.step_checkpoint(hub, shard);
    }

    fn drain(&mut self, hub: usize, shard: usize, is_resume: bool, appends: &mut Appends) {
        while let Some(output) = self.hubs[hub].shards[shard].shard.poll_output() {
            match output {
                Output::Append { append, records } => appends.push((Appender::Shard(shard, append), records)),
                Output::Opened { open: OpenId(conn), outcome } => {
                    let is_live = self.hubs[hub].shards[shard].shard.is_live();
                    self.count_opened(is_live, is_resume, &outcome);
                    if is_resume && outcome.is_ok() {
                        self.look_at_resumed(hub, conn);
                    }
                    let event = Event::Attached { hub, shard, conn, process: self.process, outcome };
                    self.schedule_in((0, 1), event);
                }
                Output::CommandDone { command: CommandId(command), outcome } => {
                    self.command_done(hub, shard, command, outcome);
                }
                Output::Call { call, event } => self.call_handler(hub, shard, call, *event),
                Output::Connected(connected) => self.connected(*connected),
                Output::Disconnected(disconnected) => self.disconnected(hub, shard, &disconnected),
                Output::Ended(_) => {}
            }
        }
    }

    /// Hands a turn's appends to the log, in one call or in several.
    fn append_all(&mut self, hub: usize, appends: Appends) {
        if self.weather.appends_by_turn && !appends.is_empty() {
            let (by, records): (Vec<_>, Vec<_>) = appends.into_iter().unzip();
            self.append(hub, by, records.concat());
        } else {
            for (by, records) in appends {
                self.append(hub, vec![by], records);
            }
        }
    }

    /// Tells shards that clients have acknowledged something.
    pub(crate) fn hear_acknowledged(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        for hub in 0..self.hubs.len() {
            for shard in 0..self.hubs[hub].shards.len() {
                if self.hubs[hub].shards[shard].shard.poll_acknowledged(&mut context).is_ready() {
                    self.send(hub, shard, Input::Acknowledged, None);
                }
            }
        }
    }

    fn set_timer(&mut self, hub: usize, shard: usize) {
        let now = self.hub_time(hub);
        let node = &mut self.hubs[hub].shards[shard];
        let timeout = node.shard.poll_timeout();
        let timer_us =
            timeout.map(|at| ((self.now_us / 1000 + at.0.saturating_sub(now.0)) * 1000).max(self.now_us));
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
}

fn describe(input: &Input) -> String {
    match input {
        Input::Open(opening) => format!("open {}", opening.session.connection_id),
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
