//! What goes wrong in one world, how often, and within which bounds its gateway lives. Each seed has a weather of its
//! own: a fault that is off lets the others go deeper.

use oncewire_protocol::hub::{CheckpointBounds, HubSettings};
use oncewire_protocol::session::{OutboxLimits, RequestBounds, SessionLimits};

use crate::random::Random;

/// More than a world ever needs.
const MESSAGES_MAX: usize = 10_000;
const BYTES_MAX: usize = 16 << 20;
const BUDGET_BYTES: usize = 1 << 30;
/// Longer than a storm.
const RETENTION_SECONDS: usize = 60;

/// What a fast world's outbox holds. Its slowest client has acknowledged everything after 5 s, during which at most 200
/// messages come; in a storm many times this bound comes.
const FAST_MESSAGES_MAX: usize = 300;
/// A message each 25 ms, on average.
const FAST_PAUSE_MS: (u64, u64) = (20, 30);
/// Restarts of a fast world are so far apart, at least half of this, that each client acknowledges between them: after some 4
/// seconds without a gateway some do it after 5 seconds.
const FAST_RESTART_MS: u64 = 20_000;

/// A fault that comes again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A socket is cut; both ends notice soon.
    Cut,
    /// A socket is dead and the gateway notices late.
    GatewayHalfOpen,
    /// A socket is dead and the client notices late.
    ClientHalfOpen,
    /// Nothing arrives at the gateway for a while.
    StallUp,
    /// Nothing arrives at the client for a while.
    StallDown,
    /// An attached session is resumed once more by a socket with nobody behind it.
    SecondUpgrade,
    /// The gateway's process is killed.
    Crash,
    /// The gateway's process is killed, and a part of the log that was durable is gone with it.
    HistoryLoss,
    /// The gateway shuts down in order.
    ShutDown,
    /// All appends fail for a while.
    StoreOutage,
    /// The gateway's wall clock jumps ahead.
    ClockForward,
    /// The gateway's wall clock jumps back.
    ClockBackward,
    /// The application grants or revokes a permission.
    RuleChange,
    /// The application sends, changes memberships, or closes a session.
    Application,
    /// A client's application stops and starts again.
    ClientRestart,
}

impl Fault {
    /// Each with its mean distance in milliseconds where it is on.
    const ALL: [(Self, u64); 15] = [
        (Self::Cut, 900),
        (Self::GatewayHalfOpen, 2_500),
        (Self::ClientHalfOpen, 4_000),
        (Self::StallUp, 2_000),
        (Self::StallDown, 2_000),
        (Self::SecondUpgrade, 1_200),
        (Self::Crash, 5_000),
        (Self::HistoryLoss, 12_000),
        (Self::ShutDown, 9_000),
        (Self::StoreOutage, 5_000),
        (Self::ClockForward, 7_000),
        (Self::ClockBackward, 7_000),
        (Self::RuleChange, 1_500),
        (Self::Application, 300),
        (Self::ClientRestart, 6_000),
    ];
}

/// See the module. Times are in milliseconds, chances in a thousand.
#[derive(Debug)]
pub struct Weather {
    /// Whether nothing goes wrong any more.
    pub is_over: bool,
    /// Whether much is published, to clients that keep up: of these none may be ended, whatever is restarted.
    pub is_fast: bool,
    /// Faults that are on, with their mean distance.
    pub faults: Vec<(Fault, u64)>,
    /// How long faults go on.
    pub storm_ms: u64,
    /// One way through the network.
    pub latency_ms: (u64, u64),
    /// What a pipe holds, in bytes.
    pub pipe_bytes: (u64, u64),
    /// Bytes that a writer asks for at once.
    pub write_budget_bytes: (u64, u64),
    /// Writes that the socket takes only in part although it has room.
    pub partial_write: u64,
    /// Upgrades whose request or answer is lost.
    pub answer_lost: u64,
    /// How long an append takes.
    pub append_ms: (u64, u64),
    /// How long a sync takes.
    pub sync_ms: (u64, u64),
    /// How long a durable record takes to come back to a shard.
    pub tail_ms: (u64, u64),
    /// How long an input waits for its shard.
    pub shard_ms: (u64, u64),
    /// How many inputs a turn takes at most, beside what the log brings. What they want to have appended goes to the log in
    /// one call, and fails together.
    pub turn_inputs: u64,
    /// Appends that fail for certain.
    pub append_refused: u64,
    /// Appends that fail and may have happened.
    pub append_in_doubt: u64,
    /// Of those in doubt, the ones that land later.
    pub append_late: u64,
    /// When rounds of checkpoints begin, and how much is done at a time.
    pub checkpoints: CheckpointBounds,
    /// How long a write of checkpoints takes.
    pub checkpoint_ms: (u64, u64),
    /// Writes of checkpoints that fail; some of them are stored all the same.
    pub checkpoint_failed: u64,
    /// How long an event handler takes.
    pub handler_ms: (u64, u64),
    /// Calls of event handlers that fail.
    pub handler_failed: u64,
    /// How long the application takes to hear of an end.
    pub told_ms: (u64, u64),
    /// Whether the application wants to hear of the ends of each hub's sessions.
    pub takes_disconnected: [bool; 2],
    /// How long a client waits between two actions.
    pub pause_ms: (u64, u64),
    /// Shards of each hub.
    pub shards: [u16; 2],
    /// Settings of each hub.
    pub settings: [HubSettings; 2],
    /// What messages may take in memory.
    pub budget_bytes: usize,
    /// Honest reliable clients of each hub.
    pub clients: u64,
    /// Whether a hub has a malicious client.
    pub has_malice: bool,
    /// Whether the first client of each hub is not reliable.
    pub has_unreliable: bool,
}

impl Weather {
    /// A seed's weather.
    pub fn draw(random: &mut Random) -> Self {
        let mut faults = Vec::new();
        for (fault, mean) in Fault::ALL {
            if random.permille(450) {
                faults.push((fault, mean * random.within((4, 20)) / 10));
            }
        }
        let store_is_bad = random.permille(550);
        let often =
            |random: &mut Random, is_on: bool, most: u64| if is_on { random.within((1, most)) } else { 0 };
        let is_slow = random.permille(400);
        let turn_ms = random.pick(&[1, 2, 30, 150]);
        Self {
            is_over: false,
            is_fast: false,
            faults,
            storm_ms: random.within((8_000, 25_000)),
            latency_ms: (1, random.pick(&[2, 10, 60])),
            pipe_bytes: random.pick(&[(60, 400), (400, 4_000), (65_536, 65_536)]),
            write_budget_bytes: random.pick(&[(1, 300), (16_384, 16_384)]),
            partial_write: random.pick(&[0, 100, 600]),
            answer_lost: random.pick(&[0, 60, 250]),
            append_ms: (0, random.pick(&[1, 5, 40])),
            sync_ms: (0, if is_slow { 200 } else { 10 }),
            tail_ms: (0, random.pick(&[1, 10, 50])),
            shard_ms: (0, turn_ms),
            turn_inputs: if turn_ms > 2 { 8 } else { random.pick(&[1, 8]) },
            append_refused: often(random, store_is_bad, 120),
            append_in_doubt: often(random, store_is_bad, 350),
            append_late: random.pick(&[200, 600, 900]),
            checkpoints: checkpoints(random),
            checkpoint_ms: (0, random.pick(&[1, 20, 300])),
            checkpoint_failed: often(random, store_is_bad, 150),
            handler_ms: (0, random.pick(&[5, 200, 2_500])),
            handler_failed: random.pick(&[0, 100, 400]),
            told_ms: (0, random.pick(&[5, 500, 10_000])),
            takes_disconnected: [random.permille(700), random.permille(700)],
            pause_ms: (5, random.pick(&[100, 300, 800])),
            shards: [random.pick(&[1, 2]), random.pick(&[1, 2, 2])],
            settings: [settings(random), settings(random)],
            budget_bytes: if random.permille(850) { BUDGET_BYTES } else { 60_000 },
            clients: random.within((2, 4)),
            has_malice: random.permille(500),
            has_unreliable: random.permille(350),
        }
    }

    /// Makes it that of a fast world: the gateway is killed and stopped, and nothing else is wrong with network and clocks.
    pub fn make_fast(&mut self, random: &mut Random) {
        let restart = if random.permille(700) { Fault::Crash } else { Fault::ShutDown };
        self.is_fast = true;
        self.faults = vec![(restart, FAST_RESTART_MS)];
        self.storm_ms = random.within((40_000, 60_000));
        self.pause_ms = FAST_PAUSE_MS;
        self.pipe_bytes = (65_536, 65_536);
        self.write_budget_bytes = (16_384, 16_384);
        self.answer_lost = 0;
        self.append_refused = self.append_refused.min(50);
        self.append_in_doubt = self.append_in_doubt.min(50);
        self.shard_ms = (0, 2);
        self.budget_bytes = BUDGET_BYTES;
        self.clients = 4;
        (self.has_malice, self.has_unreliable) = (false, false);
        for settings in &mut self.settings {
            settings.outbox = OutboxLimits { messages_max: FAST_MESSAGES_MAX, bytes_max: BYTES_MAX };
            settings.requests =
                RequestBounds { requests_max: 1024, request_bytes_max: 4 << 20, reply_bytes_max: 65_536 };
            settings.session_retention_seconds = RETENTION_SECONDS as u32;
            settings.groups_per_session_max = 100;
            settings.closes_on_event_failure = false;
        }
    }

    /// Whether all that a client has acknowledged some time ago must be in the log.
    pub fn marks_surely(&self) -> bool {
        self.is_fast && self.append_refused == 0 && self.append_in_doubt == 0
    }

    /// Whether a fault is on.
    pub fn has(&self, fault: Fault) -> bool {
        self.faults.iter().any(|(on, _)| *on == fault)
    }

    /// What a shard folds before others are served, in steps: a few records. In a fast world it is some tens, since a start
    /// has to be over before outboxes are full there.
    pub fn fold_steps(&self) -> usize {
        if self.is_fast { 1_200 } else { 60 }
    }

    /// Whether a hub never has to end a session for want of room.
    pub fn has_room(&self, hub: usize) -> bool {
        let OutboxLimits { messages_max, bytes_max } = self.settings[hub].outbox;
        if self.is_fast {
            return true;
        }
        self.budget_bytes == BUDGET_BYTES && messages_max == MESSAGES_MAX && bytes_max == BYTES_MAX
    }

    /// Whether a hub has no reason to end a session whose client keeps coming back.
    pub fn keeps_sessions(&self, hub: usize) -> bool {
        let is_patient = self.settings[hub].session_retention_seconds == RETENTION_SECONDS as u32;
        let forgives = !self.settings[hub].closes_on_event_failure;
        self.has_room(hub) && is_patient && forgives && !self.has(Fault::HistoryLoss)
    }

    /// Ends everything that goes wrong.
    pub fn heal(&mut self) {
        self.is_over = true;
        self.latency_ms = (1, 5);
        self.partial_write = 0;
        self.answer_lost = 0;
        self.handler_ms = (0, 20);
        self.handler_failed = 0;
        self.told_ms = (0, 100);
        self.append_refused = 0;
        self.append_in_doubt = 0;
        self.checkpoint_failed = 0;
    }
}

fn checkpoints(random: &mut Random) -> CheckpointBounds {
    CheckpointBounds {
        // From a round in every few records to none but at rest.
        log_bytes_min: random.pick(&[500, 3_000, 20_000, u64::MAX]),
        log_bytes_per_state_byte: random.pick(&[0, 0, 2]),
        rest_log_bytes_min: random.pick(&[0, 10_000]),
        rest_ms: random.pick(&[1_000, 10_000, 60_000]),
        retry_ms: random.pick(&[10, 1_000]),
        write_bytes: random.pick(&[1, 1_000, 1 << 20]),
        step_chunks: random.pick(&[1024, 300]),
        step_bytes: random.pick(&[1, 1_000, 1 << 20]),
    }
}

/// Half of the hubs have room for everything and patience with everybody, so that whatever they lose is a fault.
fn settings(random: &mut Random) -> HubSettings {
    let is_generous = random.permille(500);
    let draw = |random: &mut Random, small: &[usize], large| {
        if is_generous || random.permille(500) { large } else { random.pick(small) }
    };
    HubSettings {
        outbox: OutboxLimits {
            messages_max: draw(random, &[150, 40, 12], MESSAGES_MAX),
            bytes_max: draw(random, &[8_000], BYTES_MAX),
        },
        requests: RequestBounds {
            requests_max: random.pick(&[1024, 3, 1]),
            request_bytes_max: random.pick(&[4 << 20, 4 << 20, 600]),
            reply_bytes_max: random.pick(&[65_536, 65_536, 400]),
        },
        ack_window_ids: ack_window_ids(random),
        session_retention_seconds: draw(random, &[8, 3], RETENTION_SECONDS) as u32,
        sessions: SessionLimits::default(),
        groups_per_session_max: random.pick(&[100, 100, 3]),
        closes_on_event_failure: random.permille(200),
    }
}

/// Enough for the requests that a client has pending.
pub fn ack_window_ids(random: &mut Random) -> u32 {
    random.pick(&[10_000, 10_000, 128])
}
