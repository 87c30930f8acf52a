//! Clocks: the world's own, the gateway's wall clock, which jumps, and each hub's time, which must not. And what is
//! promised in terms of time: a message is neither sent after its time-to-live nor left out before; a detached session is
//! kept as long as its retention and no longer (`heal.rs` looks); a request is remembered for its window and no longer.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use oncewire_protocol::driver::Folded;
use oncewire_protocol::hub::Shard;
use oncewire_protocol::log::{Body, HubTime, IdempotencyKey, Record, RequestName, Time};

use crate::Failure;
use crate::coverage::Path;
use crate::weather::Fault;
use crate::world::World;

/// The wall clock when the world begins, in milliseconds since 1970.
const WALL_START_MS: u64 = 1_700_000_000_000;
/// How long requests of the application are remembered. They are repeated for a much shorter time, and the world rests for
/// a longer one.
const WINDOW_SECONDS: u32 = 90;
/// The same where a boot may find the wall clock far ahead.
const LONG_WINDOW_SECONDS: u32 = 1_000_000;

/// When the time of a message is over, for the key of each record that holds it, in microseconds.
type OverByRecord = BTreeMap<(u128, u16, u64), u64>;

/// The gateway's clocks, and what is judged by them.
#[derive(Default)]
pub struct Clocks {
    /// How far the wall clock is off.
    pub skew_ms: i64,
    /// The wall clock at the process's start, and when that was.
    boot: (Time, u64),
    /// By how much hubs' times were further than the world's when they began anew, all together: for so much the wall clock
    /// had jumped ahead, which can't be told from a long stop.
    leaps_ms: u64,
    /// When the times of each hub's messages are over at the latest, by the world's clock; for each payload the records
    /// that hold it, since a client may have published it again.
    ttl_over_us: Vec<BTreeMap<Bytes, OverByRecord>>,
    /// Requests of the application, with their hubs.
    requests: Vec<(usize, IdempotencyKey)>,
}

/// A hub's time in one process.
#[derive(Debug, Default)]
pub struct HubBoot {
    time: Option<HubTime>,
    /// Shards that have not folded what was in the log: with that it begins.
    folding: u16,
    /// The latest time in the log, as far as they have.
    last: Time,
    /// What the hub's time was at the end of the process before, and when that was.
    before: Option<(Time, u64)>,
}

impl World {
    /// A process starts: it looks at the wall clock, once.
    pub(crate) fn start_clock(&mut self) {
        self.clocks.boot = (self.wall_clock(), self.now_us);
        self.clocks.ttl_over_us.resize(self.hubs.len(), BTreeMap::new());
    }

    /// A hub is opened by a new process.
    pub(crate) fn open_hub_clock(&mut self, hub: usize, shards: u16) {
        let HubBoot { before, .. } = self.hubs[hub].clock;
        self.hubs[hub].clock = HubBoot { time: None, folding: shards, last: Time::default(), before };
    }

    /// The process is gone.
    pub(crate) fn stop_hub_clock(&mut self, hub: usize) {
        let now = self.hub_time(hub);
        let (now_us, clock) = (self.now_us, &mut self.hubs[hub].clock);
        if clock.time.take().is_some() {
            clock.before = Some((now, now_us));
        }
    }

    fn wall_clock(&self) -> Time {
        Time((WALL_START_MS + self.now_us / 1000).saturating_add_signed(self.clocks.skew_ms))
    }

    fn boot_time(&self) -> Time {
        let (wall, at_us) = self.clocks.boot;
        wall.plus_ms((self.now_us - at_us) / 1000)
    }

    /// A hub's time, of use once it has begun.
    pub(crate) fn hub_time(&self, hub: usize) -> Time {
        self.hubs[hub].clock.time.unwrap_or_default().at(self.boot_time())
    }

    /// The clock for the checker: no hub's time runs faster.
    pub(crate) fn checker_us(&self) -> u64 {
        self.now_us + self.clocks.leaps_ms * 1000
    }

    /// A shard has folded all that was in the log. With the last of them the hub's time begins and its boot is appended.
    pub(crate) fn shard_folded(&mut self, hub: usize, folded: Folded) {
        let HubBoot { folding, last, .. } = &mut self.hubs[hub].clock;
        *folding -= 1;
        *last = folded.time.max(*last);
        if *folding == 0 {
            let last = *last;
            self.begin_hub(hub, last);
        }
    }

    fn begin_hub(&mut self, hub: usize, last: Time) {
        let time = HubTime::begin(self.boot_time(), last);
        if last > self.boot_time() {
            self.note(Path::BootBehindLog);
        }
        self.hubs[hub].clock.time = Some(time);
        let now = self.hub_time(hub);
        if let Some((before, at_us)) = self.hubs[hub].clock.before {
            let expected = before.plus_ms((self.now_us - at_us) / 1000);
            if now > expected {
                self.note(Path::BootAhead);
                self.clocks.leaps_ms += now.0 - expected.0;
            }
            let lost_us = expected.0.saturating_sub(now.0) * 1000;
            let over_us = self.clocks.ttl_over_us[hub].values_mut().flat_map(BTreeMap::values_mut);
            over_us.for_each(|over_us| *over_us += lost_us);
        }
        let node = &mut self.hubs[hub];
        let takes_disconnected = self.weather.takes_disconnected[hub];
        node.booted = Some(Arc::new(Shard::booted(node.boot, now, takes_disconnected)));
        self.append_booted(hub);
    }

    /// Takes note of a message whose record comes back from the log.
    pub(crate) fn note_ttl(&mut self, hub: usize, record: &Record) {
        let (ttl_seconds, payload) = match &record.body {
            Body::Published(published) => (published.ttl_seconds, &published.payload),
            Body::Sent(sent) => (sent.ttl_seconds, &sent.payload),
            _ => return,
        };
        if ttl_seconds > 0 {
            let key = (record.key.boot.boot.0, record.key.boot.shard, record.key.boot.counter);
            let over_us = self.now_us + u64::from(ttl_seconds) * 1_000_000;
            // When it is read again, its time goes on.
            self.clocks.ttl_over_us[hub]
                .entry(payload.bytes.clone())
                .or_default()
                .entry(key)
                .or_insert(over_us);
        }
    }

    /// A client has got a message over a socket: it must not have been made after the message's time was over.
    pub(crate) fn judge_ttl(&mut self, hub: usize, conn: u64, payload: &Bytes) {
        let made_us = self.conns.get(&conn).map(|state| state.made_us);
        let records = self.clocks.ttl_over_us[hub].get(payload);
        let over_us = records.and_then(|records| records.values().max().copied());
        if let (Some(made_us), Some(over_us)) = (made_us, over_us) {
            self.note(Path::TtlJudged);
            if made_us > over_us {
                let late_ms = (made_us - over_us) / 1000;
                self.fail(Failure::Clock(format!("a message was sent {late_ms} ms after its time or later")));
            }
        }
    }

    /// The name of a request of the application, and for how long it is to be remembered. Of repeatable ones so few are
    /// remembered that some are forgotten before they come again.
    pub(crate) fn new_idempotency_key(
        &mut self,
        hub: usize,
        number: u64,
        is_repeatable: bool,
    ) -> IdempotencyKey {
        let has_leaps = self.weather.has(Fault::ClockForward);
        let key = IdempotencyKey {
            name: RequestName { id: u128::from(number), fingerprint: 0 },
            window_seconds: if has_leaps { LONG_WINDOW_SECONDS } else { WINDOW_SECONDS },
            window_requests: if is_repeatable { 6 } else { 10_000 },
            first_sent: is_repeatable.then_some(self.now_us / 1_000_000),
        };
        self.clocks.requests.push((hub, key));
        key
    }

    /// The world has rested: a request that is remembered although its window is over, if there is one.
    pub(crate) fn remembered_too_long(&self) -> Option<String> {
        let is_known = |(hub, key): &&(usize, IdempotencyKey)| {
            let now = self.hub_time(*hub);
            self.hubs[*hub].shards.iter().any(|shard| shard.shard().knows(key, now))
        };
        // Repeatable ones are forgotten for their number, not for their time.
        let is_short = |(_, key): &&(usize, IdempotencyKey)| {
            key.window_seconds == WINDOW_SECONDS && !key.is_repeatable()
        };
        let mut requests = self.clocks.requests.iter().filter(is_short);
        let (hub, key) = requests.find(is_known)?;
        Some(format!("{}: request {} after its window", self.hubs[*hub].name, key.name.id))
    }
}
