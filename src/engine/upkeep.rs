//! Keeps a hub's log as short as its sessions allow: rounds of checkpoints, and trims.
//!
//! A log that dies with the process needs no checkpoints: all that its shards have read can go, since sessions hold what
//! they still need.

use std::sync::Arc;
use std::time::Instant;

use futures_util::future::FutureExt;
use oncewire_protocol::hub::{Checkpointer, Shard, Step};
use oncewire_protocol::log::{CheckpointChange, Offset, Time};
use oncewire_protocol::wire::HubName;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{Failures, HubClock};
use crate::store::{Log, StoreError};
use crate::telemetry::Episode;

/// Shared by a hub's shards.
pub(super) struct Upkeep {
    log: Arc<dyn Log>,
    kind: Kind,
    trims: Mutex<Trims>,
    /// Counts rounds, for shards that have nothing else to do when one begins.
    rounds: watch::Sender<u64>,
    failures: Failures,
    clock: HubClock,
    write_failures: Episode,
    trim_failures: Episode,
}

enum Kind {
    /// For a log that outlives the process.
    Checkpoints(Box<Checkpointer>),
    /// For one that does not: how far each shard has read.
    Read(Mutex<Vec<Option<Offset>>>),
}

/// One trim at a time.
#[derive(Default)]
struct Trims {
    is_under_way: bool,
    wanted: Option<Offset>,
    /// As far as was asked for so far.
    last: Option<Offset>,
}

impl Upkeep {
    pub(super) fn new(
        log: Arc<dyn Log>,
        checkpointer: Checkpointer,
        shards: u16,
        failures: Failures,
        clock: HubClock,
        hub: &HubName,
    ) -> Arc<Self> {
        let kind = if log.outlives_process() {
            Kind::Checkpoints(Box::new(checkpointer))
        } else {
            Kind::Read(Mutex::new(vec![None; usize::from(shards)]))
        };
        let rounds = watch::Sender::new(0);
        let of = || format!("hub {hub}");
        let write_failures = Episode::new("checkpoints could not be written", of());
        let trim_failures = Episode::new("the log could not be trimmed", of());
        let trims = Mutex::default();
        Arc::new(Self { log, kind, trims, rounds, failures, clock, write_failures, trim_failures })
    }

    /// The hub's clock.
    pub(super) fn clock(&self) -> &HubClock {
        &self.clock
    }

    /// Changes when a round begins.
    pub(super) fn rounds(&self) -> watch::Receiver<u64> {
        self.rounds.subscribe()
    }

    /// After each turn of a shard: what it has to do for the log.
    pub(super) fn step(self: &Arc<Self>, shard: &Shard) -> Step {
        match &self.kind {
            // The hub's time has not begun yet.
            Kind::Checkpoints(_) if !shard.is_live() => Step::Idle,
            Kind::Checkpoints(checkpointer) => {
                let was_in_round = checkpointer.is_in_round();
                let step = checkpointer.step(self.clock.now(), shard);
                if checkpointer.is_in_round() && !was_in_round {
                    self.rounds.send_modify(|rounds| *rounds += 1);
                }
                step
            }
            Kind::Read(read) => {
                let mut read = read.lock();
                read[usize::from(shard.id().index)] = shard.applied();
                let slowest = read.iter().min().copied().flatten();
                drop(read);
                if let Some(slowest) = slowest {
                    self.trim(slowest);
                }
                Step::Idle
            }
        }
    }

    /// Stores what a step wants written.
    pub(super) async fn write(self: Arc<Self>, shard: u16, changes: Vec<CheckpointChange>) {
        let changes = changes.into_iter().map(CheckpointChange::with_text_key).collect();
        let outcome = self.log.checkpoint(changes).await;
        if let Err(error) = &outcome {
            if self.write_failures.is_news(Instant::now()) {
                tracing::warn!(%error, "a hub's checkpoint could not be written");
            }
            self.failures.report(error);
        }
        let Kind::Checkpoints(checkpointer) = &self.kind else { return };
        let trim = checkpointer.written(self.clock.now(), shard, outcome.is_ok());
        if outcome.is_err() {
            // The others let go of what they were about to write.
            self.rounds.send_modify(|rounds| *rounds += 1);
        }
        if let Some(before) = trim {
            self.trim(before);
        }
    }

    /// When a step is due although nothing happens.
    pub(super) fn poll_timeout(&self, shard: &Shard) -> Option<Time> {
        match &self.kind {
            Kind::Checkpoints(checkpointer) => checkpointer.poll_timeout(shard),
            Kind::Read(_) => None,
        }
    }

    /// Whether the log is as short as it is made, as far as is known, and no trim is under way.
    pub(super) fn is_at_rest(&self, shard: &Shard) -> bool {
        let is_trimmed = !self.trims.lock().is_under_way;
        let has_no_round = match &self.kind {
            Kind::Checkpoints(checkpointer) => !checkpointer.is_in_round(),
            Kind::Read(_) => true,
        };
        is_trimmed && has_no_round && self.poll_timeout(shard).is_none()
    }

    fn trim(self: &Arc<Self>, before: Offset) {
        let mut trims = self.trims.lock();
        if trims.last.is_some_and(|last| before <= last) {
            return;
        }
        trims.last = Some(before);
        trims.wanted = Some(before);
        if !std::mem::replace(&mut trims.is_under_way, true) {
            drop(trims);
            self.trim_all();
        }
    }

    /// Trims until nothing further is wanted.
    fn trim_all(self: &Arc<Self>) {
        loop {
            let mut trims = self.trims.lock();
            let Some(before) = trims.wanted.take() else {
                trims.is_under_way = false;
                return;
            };
            drop(trims);
            let mut trim = self.log.trim(before);
            match trim.as_mut().now_or_never() {
                Some(outcome) => self.trimmed(outcome),
                None => {
                    let upkeep = Arc::clone(self);
                    tokio::spawn(async move {
                        upkeep.trimmed(trim.await);
                        upkeep.trim_all();
                    });
                    return;
                }
            }
        }
    }

    fn trimmed(&self, outcome: Result<(), StoreError>) {
        if let Err(error) = outcome {
            if self.trim_failures.is_news(Instant::now()) {
                tracing::warn!(%error, "a hub's log could not be trimmed");
            }
            self.failures.report(&error);
        }
    }
}
