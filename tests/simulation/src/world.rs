//! One world: what is in it, its time, and its loop. Everything that happens is an event at a time; the files beside this
//! one hold what the events do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};

use oncewire_protocol::hub::{Attachment, OpenError};
use oncewire_protocol::log::{Record, Time};
use oncewire_protocol::session::MemoryBudget;
use oncewire_protocol::wire::{ConnectionId, GroupName};

use crate::Failure;
use crate::actor::{Actor, GROUPS};
use crate::application::Asked;
use crate::clocks::Clocks;
use crate::coverage::{Coverage, Path};
use crate::handlers::Handlers;
use crate::heal::Stage;
use crate::network::{Answer, Conn};
use crate::process::HubNode;
use crate::random::Random;
use crate::recorder::Recorder;
use crate::trace::Trace;
use crate::weather::{Fault, Weather};

/// A world that has not come to its end after so many events never will.
const EVENTS_MAX: u64 = 5_000_000;

/// Something that is going to happen. What concerns the gateway's process names the process, since it dies with it.
#[derive(Debug)]
pub enum Event {
    /// The oldest append of a log is done.
    Append { hub: usize, process: u64 },
    /// A sync of a log is done.
    Sync { hub: usize, process: u64 },
    /// Records of an append in doubt land after all.
    LateLanding { hub: usize, process: u64, records: Vec<Arc<Record>> },
    /// The `Booted` record is appended, for the first time or again.
    Boot { hub: usize, process: u64 },
    /// Durable records come back to a shard.
    Tail { hub: usize, shard: usize, process: u64 },
    /// A shard's write of checkpoints is done.
    CheckpointWritten { hub: usize, shard: usize, process: u64 },
    /// A shard's turn.
    Run { hub: usize, shard: usize, process: u64 },
    /// A shard's timer.
    Timer { hub: usize, shard: usize, process: u64, at: Time },
    /// An upgrade request reaches the gateway.
    Upgrade { conn: u64 },
    /// A shard's answer reaches the edge.
    Attached { hub: usize, shard: usize, conn: u64, process: u64, outcome: Result<Attachment, OpenError> },
    /// An HTTP answer reaches the client.
    Answer { conn: u64, answer: Answer },
    /// Bytes arrive, at the gateway or at the client.
    Arrive { conn: u64, is_up: bool },
    /// The gateway's reader of a socket looks for bytes.
    Read { conn: u64 },
    /// The gateway's writer of a socket looks for something to write.
    Write { conn: u64 },
    /// A client that has not closed after the gateway has had its time for that.
    GoodbyeOver { conn: u64 },
    /// The gateway finds out that a socket is dead.
    GatewayNotices { conn: u64 },
    /// The client finds out that a socket is dead.
    ClientNotices { conn: u64 },
    /// A client's timer.
    ActorTimer { actor: usize },
    /// A client's application does something.
    Act { actor: usize },
    /// A fault.
    Fault(Fault),
    /// The gateway's sockets are closed, and its process is to end in order: what has landed stays.
    Stop { process: u64 },
    /// The gateway starts.
    Start,
    /// The application sends a request again.
    AskAgain { number: u64 },
    /// An event handler answers a call.
    HandlerAnswers { number: u64 },
    /// The application has heard of a session's end.
    EndHeard { connection_id: ConnectionId },
    /// A look at whether the world has settled.
    Look,
}

/// A task of a socket that can be woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Reads.
    Reader,
    /// Writes.
    Writer,
}

type Woken = Arc<Mutex<Vec<(u64, Task)>>>;

struct TaskWaker {
    conn: u64,
    task: Task,
    woken: Woken,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.woken.lock().unwrap_or_else(PoisonError::into_inner).push((self.conn, self.task));
    }
}

/// See the module.
pub struct World {
    pub(crate) now_us: u64,
    queue: BTreeMap<(u64, u64), Event>,
    scheduled: u64,
    pub(crate) random: Random,
    pub(crate) weather: Weather,
    /// Whether each hub has a raw client: in every fifth world.
    pub(crate) has_raw: bool,
    pub(crate) coverage: Coverage,
    pub(crate) trace: Trace,
    pub(crate) recorder: Recorder,
    pub(crate) clocks: Clocks,
    /// Counts the gateway's starts.
    pub(crate) process: u64,
    pub(crate) is_up: bool,
    /// Whether it takes new sockets.
    pub(crate) is_accepting: bool,
    /// When the process last ended, in milliseconds, and how long before that an ack must have been sent to be in the log;
    /// nothing where that is not certain.
    pub(crate) ended_at: Option<(u64, u64)>,
    /// Since when the process writes its last marks, in milliseconds.
    pub(crate) leaving_since_ms: Option<u64>,
    pub(crate) hubs: Vec<HubNode>,
    pub(crate) budget: Arc<MemoryBudget>,
    pub(crate) outage_until: u64,
    /// Commands without an answer, and the requests that they are.
    pub(crate) commands: BTreeMap<u64, Option<u64>>,
    /// The application's requests.
    pub(crate) asked: BTreeMap<u64, Asked>,
    pub(crate) next_asked: u64,
    /// Sessions that the application has asked to close.
    pub(crate) closed_by_application: BTreeSet<String>,
    pub(crate) next_command: u64,
    pub(crate) handlers: Handlers,
    pub(crate) conns: BTreeMap<u64, Conn>,
    pub(crate) next_conn: u64,
    /// The groups of each hub.
    pub(crate) groups: Vec<GroupName>,
    /// Empty places are those of actors at work.
    pub(crate) actors: Vec<Option<Actor>>,
    pub(crate) next_marker: u64,
    pub(crate) stage: Stage,
    pub(crate) failure: Option<Failure>,
    woken: Woken,
}

impl World {
    /// A world that is about to begin.
    pub fn new(seed: u64, trace: Trace) -> Self {
        let mut random = Random::new(seed);
        let mut weather = Weather::draw(&mut random);
        if seed % 10 == 5 {
            weather.make_fast(&mut random);
        }
        let budget = Arc::new(MemoryBudget::new(weather.budget_bytes));
        let mut world = Self {
            now_us: 0,
            queue: BTreeMap::new(),
            scheduled: 0,
            random,
            weather,
            has_raw: seed % 5 == 4,
            coverage: Coverage::default(),
            trace,
            recorder: Recorder::new(),
            clocks: Clocks::default(),
            process: 0,
            is_up: false,
            is_accepting: false,
            ended_at: None,
            leaving_since_ms: None,
            hubs: vec![HubNode::new("alpha"), HubNode::new("beta")],
            budget,
            outage_until: 0,
            commands: BTreeMap::new(),
            asked: BTreeMap::new(),
            next_asked: 0,
            closed_by_application: BTreeSet::new(),
            next_command: 0,
            handlers: Handlers::default(),
            conns: BTreeMap::new(),
            next_conn: 0,
            groups: (0..GROUPS).filter_map(|n| GroupName::new(&format!("g{n}")).ok()).collect(),
            actors: Vec::new(),
            next_marker: 0,
            stage: Stage::Storm,
            failure: None,
            woken: Woken::default(),
        };
        let weather = format!("{:?}", world.weather);
        world.trace.line(0, || weather);
        world.schedule_at(0, Event::Start);
        world.settle_in();
        for (fault, mean) in world.weather.faults.clone() {
            world.schedule_fault(fault, mean);
        }
        world.schedule_in((world.weather.storm_ms, world.weather.storm_ms), Event::Look);
        world
    }

    /// Lets everything happen, to the end.
    pub fn run(&mut self) {
        let mut events = 0;
        while self.failure.is_none() && self.stage != Stage::Over {
            let Some(((at_us, number), event)) = self.queue.pop_first() else { break };
            self.now_us = at_us;
            self.trace.step([at_us, number, events, self.recorder.events() as u64]);
            self.happen(event);
            self.wake();
            self.hear_acknowledged();
            events += 1;
            if events == EVENTS_MAX {
                self.fail(Failure::Unsettled(format!("still busy after {events} events")));
            }
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Append { hub, process } if process == self.process => self.append_done(hub),
            Event::Sync { hub, process } if process == self.process => self.sync_done(hub),
            Event::LateLanding { hub, process, records } if process == self.process => {
                self.land_late(hub, &records);
            }
            Event::Boot { hub, process } if process == self.process => self.append_booted(hub),
            Event::Tail { hub, shard, process } if process == self.process => self.tail(hub, shard),
            Event::Run { hub, shard, process } if process == self.process => self.run_shard(hub, shard),
            Event::Timer { hub, shard, process, at } if process == self.process => {
                self.fire_timer(hub, shard, at);
            }
            Event::CheckpointWritten { hub, shard, process } if process == self.process => {
                self.checkpoint_written(hub, shard);
            }
            Event::CheckpointWritten { .. }
            | Event::Append { .. }
            | Event::Sync { .. }
            | Event::LateLanding { .. }
            | Event::Boot { .. }
            | Event::Tail { .. }
            | Event::Run { .. }
            | Event::Timer { .. } => {}
            Event::Upgrade { conn } => self.upgrade(conn),
            Event::Attached { hub, shard, conn, process, outcome } => {
                if process == self.process {
                    self.attached((hub, shard), conn, outcome);
                }
            }
            Event::Answer { conn, answer } => self.answered(conn, answer),
            Event::Arrive { conn, is_up } => self.arrive(conn, is_up),
            Event::Read { conn } => self.run_reader(conn),
            Event::Write { conn } => self.run_writer(conn),
            Event::GoodbyeOver { conn } => self.goodbye_over(conn),
            Event::GatewayNotices { conn } => self.gateway_notices(conn),
            Event::ClientNotices { conn } => self.client_sees_end(conn, None),
            Event::ActorTimer { actor } => self.with_actor(actor, |actor, world| actor.timer(world)),
            Event::Act { actor } => self.with_actor(actor, |actor, world| actor.act(world)),
            Event::Fault(fault) => self.strike(fault),
            Event::Stop { process } => {
                if process == self.process {
                    self.stop_in_order();
                }
            }
            Event::Start => self.start_process(),
            Event::AskAgain { number } => self.ask_again(number),
            Event::HandlerAnswers { number } => self.handler_answers(number),
            Event::EndHeard { connection_id } => self.end_heard(connection_id),
            Event::Look => self.look(),
        }
    }

    /// Lets an actor at the world. It is out of its place meanwhile.
    pub(crate) fn with_actor(&mut self, index: usize, act: impl FnOnce(&mut Actor, &mut Self)) {
        let Some(mut actor) = self.actors.get_mut(index).and_then(Option::take) else { return };
        act(&mut actor, self);
        self.actors[index] = Some(actor);
    }

    pub(crate) fn schedule_at(&mut self, at_us: u64, event: Event) {
        self.scheduled += 1;
        self.queue.insert((at_us.max(self.now_us), self.scheduled), event);
    }

    /// Lets something happen after a while drawn from a range in milliseconds.
    pub(crate) fn schedule_in(&mut self, range_ms: (u64, u64), event: Event) {
        let delay_us = self.random.within((range_ms.0 * 1000, range_ms.1 * 1000 + 100));
        self.schedule_at(self.now_us + delay_us, event);
    }

    /// Milliseconds since the world began.
    pub(crate) fn now_ms(&self) -> u64 {
        self.now_us / 1000
    }

    pub(crate) fn note(&mut self, path: Path) {
        self.coverage.note(path);
        self.trace.line(self.now_us, || format!("  * {}", path.text()));
    }

    pub(crate) fn record(&mut self, event: oncewire_checker::Event) {
        self.recorder.push(&mut self.trace, self.now_us, event);
    }

    pub(crate) fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }

    /// A payload marker that nobody else uses.
    pub(crate) fn fresh_marker(&mut self) -> String {
        self.next_marker += 1;
        format!("m{}", self.next_marker)
    }

    pub(crate) fn waker(&self, conn: u64, task: Task) -> Waker {
        Arc::new(TaskWaker { conn, task, woken: Arc::clone(&self.woken) }).into()
    }

    fn wake(&mut self) {
        let woken = std::mem::take(&mut *self.woken.lock().unwrap_or_else(PoisonError::into_inner));
        for (conn, task) in woken {
            match task {
                Task::Reader => self.schedule_read(conn),
                Task::Writer => self.schedule_write(conn),
            }
        }
    }
}
