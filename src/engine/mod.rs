//! Drives hub shards: appends what they propose, feeds them what the log brings, fires their timers, wakes writers.
//!
//! One task owns one shard (`shard.rs`); what happens in it in which order is up to the protocol crate's
//! [`ShardDriver`](oncewire_protocol::driver::ShardDriver), and the task moves bytes and time. Everybody else talks to it
//! through its inbox. The only other state that is
//! shared is each session's outbox, which its socket's writer pulls from. `hubs.rs` knows which hubs there are, and starts,
//! closes and removes them.
//!
//! The engine does not know WebSocket frames, HTTP types or file formats.

mod application;
mod attached_socket;
mod calls;
mod clock;
mod counts;
mod ends;
mod event_handlers;
mod failures;
mod hubs;
mod kept;
mod restart;
mod shard;
mod upkeep;

pub use application::Request;
pub use attached_socket::AttachedSocket;
pub use clock::{HubClock, wall_clock};
pub use counts::HubCounts;
pub use event_handlers::{Accepted, ConnectRefused, Connecting, EventHandlers, NoEventHandlers};
pub use hubs::{Commanded, HUBS_PER_ROUND_MAX, HubBounds, TOO_MANY_HUBS_RETRY_SECONDS};
pub use kept::KeptHubs;
pub use oncewire_protocol::hub::{
    Action, CommandError, Connected, Done, EventError, Handled, MEMBERSHIPS_PER_REQUEST_MAX, Member,
    NewSession, UserEvent,
};

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use oncewire_protocol::driver::Folded;
use oncewire_protocol::hub::{
    CheckpointBounds, HubSettings, Input, OpenError, OpenId, Opening, Restored, Resuming, Shard, ShardId,
    UNTOLD_MAX,
};
use oncewire_protocol::log::{BootId, CheckpointError, LogEpoch, Offset, Time};
use oncewire_protocol::session::{MemoryBudget, OutboxLimits, RequestBounds, SessionLimits, UserSessions};
use oncewire_protocol::wire::{ConnectionId, HubName, Subprotocol};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use crate::config::{Config, EventFailure};
use crate::store::{Store, StoreError};
use crate::telemetry::{Counters, Episode};
use calls::Calls;
use clock::BootClock;
use counts::LiveCounts;
use ends::Ends;
use failures::Failures;
use hubs::Hubs;
use shard::{Command, ShardTask};
use upkeep::Upkeep;

/// Inputs that wait for a shard; at the bound their senders wait.
const INBOX_INPUTS_MAX: usize = 1024;
/// How long what was asked for last may take when the engine is closed.
const DRAIN_WAIT: Duration = Duration::from_secs(5);

/// All hubs of a process. Cheap to clone.
#[derive(Clone)]
pub struct Engine(Arc<EngineState>);

struct EngineState {
    config: Arc<Config>,
    store: Arc<dyn Store>,
    boot: BootId,
    clock: BootClock,
    budget: Arc<MemoryBudget>,
    checkpoints: CheckpointBounds,
    hub_bounds: HubBounds,
    hubs: Mutex<Hubs>,
    failures: Failures,
    event_handlers: Arc<dyn EventHandlers>,
    counters: Arc<Counters>,
    /// Of sessions that end since memory is short.
    shedding: Episode,
    /// Of new hubs that can't be started.
    start_failures: Episode,
}

/// A hub cannot be used now; the same request may be tried again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HubUnavailable {
    /// Its log cannot be used.
    #[error("the hub's log is not available: {0}")]
    Log(#[from] StoreError),
    /// Its checkpoints cannot be used.
    #[error("the hub cannot be restored: {0}")]
    Checkpoint(#[from] CheckpointError),
    /// It does not exist, and there are as many as there may be.
    #[error("there are {0} hubs, as many as there may be")]
    TooMany(usize),
    /// It exists, and its sessions are not there yet.
    #[error("the hub is starting")]
    Starting,
}

impl Engine {
    /// An engine without hubs; they come into being on first use. `boot` names this start of the process.
    pub fn new(config: Arc<Config>, store: Arc<dyn Store>, boot: BootId) -> Self {
        Self::with_checkpoints(config, store, boot, CheckpointBounds::default())
    }

    /// One whose application has event handlers, and that counts here.
    pub fn with_event_handlers(
        config: Arc<Config>,
        store: Arc<dyn Store>,
        boot: BootId,
        event_handlers: Arc<dyn EventHandlers>,
        counters: Arc<Counters>,
    ) -> Self {
        let (checkpoints, bounds) = (CheckpointBounds::default(), HubBounds::default());
        Self::with_all(config, store, boot, wall_clock(), checkpoints, bounds, event_handlers, counters)
    }

    /// One whose hubs make checkpoints within these bounds.
    pub fn with_checkpoints(
        config: Arc<Config>,
        store: Arc<dyn Store>,
        boot: BootId,
        checkpoints: CheckpointBounds,
    ) -> Self {
        Self::with_bounds(config, store, boot, checkpoints, HubBounds::default())
    }

    /// The same, and whose hubs are kept within these bounds.
    pub fn with_bounds(
        config: Arc<Config>,
        store: Arc<dyn Store>,
        boot: BootId,
        checkpoints: CheckpointBounds,
        hub_bounds: HubBounds,
    ) -> Self {
        let (handlers, counters) = (Arc::new(NoEventHandlers::default()), Arc::default());
        Self::with_all(config, store, boot, wall_clock(), checkpoints, hub_bounds, handlers, counters)
    }

    /// `clock` is what the wall clock says at this start.
    #[expect(clippy::too_many_arguments, reason = "all that an engine is made of, for tests")]
    fn with_all(
        config: Arc<Config>,
        store: Arc<dyn Store>,
        boot: BootId,
        clock: Time,
        checkpoints: CheckpointBounds,
        hub_bounds: HubBounds,
        event_handlers: Arc<dyn EventHandlers>,
        counters: Arc<Counters>,
    ) -> Self {
        let bytes_max = usize::try_from(config.message_memory_bytes_max).unwrap_or(usize::MAX);
        let budget = Arc::new(MemoryBudget::new(bytes_max));
        Self(Arc::new(EngineState {
            config,
            store,
            boot,
            clock: BootClock::begin(clock),
            budget,
            checkpoints,
            hub_bounds,
            hubs: Mutex::default(),
            failures: Failures::default(),
            event_handlers,
            counters,
            shedding: Episode::new("sessions ended since memory was short", ""),
            start_failures: Episode::new("hubs could not be started", ""),
        }))
    }

    /// What is counted, by the engine and by all around it.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.0.counters
    }

    /// What clients let the process hold, all hubs together.
    pub fn memory_budget(&self) -> &Arc<MemoryBudget> {
        &self.0.budget
    }

    /// The application's event handlers.
    pub fn event_handlers(&self) -> &Arc<dyn EventHandlers> {
        &self.0.event_handlers
    }

    /// Completes when the store can't go on: the process has to end then, since only a start that reads the disk again can
    /// tell what is on it.
    pub async fn failed(&self) -> StoreError {
        self.0.failures.first().await
    }

    /// Settles what was asked for before, and closes the logs. What comes later is refused.
    ///
    /// # Errors
    /// When one can't be closed in good order; a later start finds everything that was acknowledged all the same.
    pub async fn close(&self) -> Result<(), StoreError> {
        let drained = async {
            let hubs = self.close_hubs().await;
            let drains = hubs.iter().flat_map(|hub| &hub.0.shards).map(|shard| async move {
                let (drained, is_drained) = oneshot::channel();
                if shard.send(Command::Drain(drained)).await.is_ok() {
                    let _ = is_drained.await;
                }
            });
            join_all(drains).await;
        };
        if tokio::time::timeout(DRAIN_WAIT, drained).await.is_err() {
            tracing::warn!(
                "not everything that was asked for last could be written, or ends told to the application"
            );
        }
        self.0.store.close().await
    }

    /// Starts a hub; also returns since when it has been empty, if that is known. `boot` names this start in its log.
    async fn start(
        &self,
        name: &HubName,
        boot: BootId,
        requests_repeated: Arc<AtomicU64>,
    ) -> Result<(HubHandle, Option<Time>), HubUnavailable> {
        let EngineState { config, store, clock, budget, checkpoints, failures, .. } = &*self.0;
        let began = Instant::now();
        let report = |error: &StoreError| failures.report(error);
        let log = store.open(name).await.inspect_err(report)?;
        let count = config.hub_shards;
        let Restored { shards, checkpointer, applied } =
            restart::restore(&*log, &hub_settings(config, name), count, boot, budget, *checkpoints).await?;
        let first = log.bounds().await.inspect_err(report)?.first;
        let end = log.end_now().await.inspect_err(report)?;
        let from = applied.map_or(first, |applied| Offset(applied.0 + 1));
        let empty_since = log.empty_since();
        let clock = clock.hub(name);
        let upkeep =
            Upkeep::new(Arc::clone(&log), checkpointer, count, failures.clone(), clock.clone(), name);
        let ends = Ends::new(name.clone(), Arc::clone(&self.0.counters), self.0.shedding.clone());
        let (ends, counts) = (Arc::new(ends), Arc::<LiveCounts>::default());
        let append_failures = Episode::new("appends to the log failed", format!("hub {name}"));
        let mut inboxes = Vec::with_capacity(shards.len());
        let (mut folding, mut starting) = (Vec::new(), Vec::new());
        for hub in shards {
            let (inbox, inputs) = mpsc::channel(INBOX_INPUTS_MAX);
            let ((folded, is_folded), (live, is_live)) = (oneshot::channel(), oneshot::channel());
            let (log, upkeep) = (Arc::clone(&log), Arc::clone(&upkeep));
            let calls = Calls::new(name.clone(), Arc::clone(&self.0.event_handlers));
            let telling = shard::Telling {
                ends: Arc::clone(&ends),
                counts: Arc::clone(&counts),
                append_failures: append_failures.clone(),
            };
            let start = shard::Start { folded: Some(folded), live: Some(live) };
            let (bounds, failures) = ((from, end), failures.clone());
            let task = ShardTask::new(hub, bounds, start, calls, log, inputs, upkeep, failures, telling);
            tokio::spawn(task.run());
            inboxes.push(inbox);
            folding.push(is_folded);
            starting.push(is_live);
        }
        let (mut last, mut untold) = (Time::default(), 0);
        for is_folded in folding {
            let folded = is_folded.await.map_err(|_| HubUnavailable::Starting)?;
            let Folded { time, untold: more } = folded.inspect_err(report)?;
            (last, untold) = (last.max(time), untold + more);
        }
        let has_room = untold < UNTOLD_MAX && self.memory_budget().has_room_for_untold();
        let takes_disconnected = has_room && self.0.event_handlers.takes_disconnected(name);
        let booted = if log.is_copy() { Shard::booted_from_copy } else { Shard::booted };
        let booted = Arc::new(booted(boot, clock.begin(last), takes_disconnected));
        log.append(vec![booted]).await.inspect_err(report)?;
        if log.is_copy() {
            // Behind the end of its sessions: interrupted in between, the next start ends them again.
            log.begin_epoch().await.inspect_err(report)?;
            tracing::info!(hub = %name, "a copy: its sessions are over, and another epoch has begun");
        }
        // Whoever came earlier would be turned away.
        let mut sessions = 0;
        for is_live in starting {
            let live = is_live.await.map_err(|_| HubUnavailable::Starting)?;
            sessions += live.inspect_err(report)?;
        }
        let elapsed_ms = began.elapsed().as_millis() as u64;
        tracing::info!(hub = %name, shards = count, sessions, elapsed_ms, "hub started");
        let handle = HubHandle(Arc::new(HubState {
            epoch: log.epoch().await.inspect_err(report)?,
            clock,
            outlives_process: log.outlives_process(),
            shards: inboxes,
            next_id: AtomicU64::new(1),
            answered: AtomicU64::new(0),
            requests_repeated,
            counts,
        }));
        Ok((handle, empty_since))
    }
}

/// What the core needs to know of a hub's configuration.
pub fn hub_settings(config: &Config, name: &HubName) -> HubSettings {
    let own = config.hub(name.as_str());
    let u32_of = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    HubSettings {
        outbox: OutboxLimits { messages_max: own.outbox_messages_max, bytes_max: own.outbox_bytes_max },
        requests: RequestBounds {
            requests_max: config.pending_requests_max,
            request_bytes_max: config.pending_request_bytes_max,
            reply_bytes_max: config.pending_reply_bytes_max,
        },
        ack_window_ids: u32_of(own.ack_window_ids as u64),
        session_retention_seconds: u32_of(own.session_retention_seconds),
        sessions: SessionLimits {
            sessions_max: config.sessions_max.unwrap_or(usize::MAX),
            per_user: config.sessions_per_user_max.map(UserSessions::new),
        },
        groups_per_session_max: config.groups_per_session_max,
        closes_on_event_failure: own.on_event_failure == EventFailure::Close,
    }
}

/// One hub. Cheap to clone.
#[derive(Clone)]
pub struct HubHandle(Arc<HubState>);

struct HubState {
    epoch: LogEpoch,
    clock: HubClock,
    /// Whether its log does.
    outlives_process: bool,
    shards: Vec<mpsc::Sender<Command>>,
    next_id: AtomicU64,
    /// The application has been told of what happened up to here in the log.
    answered: AtomicU64,
    /// Requests of the application that came again and were not executed again.
    requests_repeated: Arc<AtomicU64>,
    counts: Arc<LiveCounts>,
}

impl HubHandle {
    /// The epoch of the hub's log, which reconnection tokens name.
    pub fn epoch(&self) -> LogEpoch {
        self.0.epoch
    }

    /// Begins a session with a socket attached. Returns when the session is in the log.
    pub async fn open(&self, session: NewSession) -> Result<AttachedSocket, OpenError> {
        let shard = self.shard_of(&session.identity.connection_id);
        let open = OpenId(self.next_id());
        attach(shard, &self.0, open, Input::from(Opening { open, session })).await
    }

    /// Attaches a socket to a session; one that is attached is cut. The caller has verified the reconnection token.
    pub async fn resume(
        &self,
        connection_id: ConnectionId,
        subprotocol: Subprotocol,
    ) -> Result<AttachedSocket, OpenError> {
        self.resume_with(connection_id, subprotocol, false).await
    }

    /// The same for a socket that has waited as [`OpenError::TooEarly`] told it to.
    pub async fn resume_after_wait(
        &self,
        connection_id: ConnectionId,
        subprotocol: Subprotocol,
    ) -> Result<AttachedSocket, OpenError> {
        self.resume_with(connection_id, subprotocol, true).await
    }

    async fn resume_with(
        &self,
        connection_id: ConnectionId,
        subprotocol: Subprotocol,
        has_waited: bool,
    ) -> Result<AttachedSocket, OpenError> {
        let shard = self.shard_of(&connection_id);
        let open = OpenId(self.next_id());
        let resuming = Resuming { open, connection_id, subprotocol, has_waited };
        attach(shard, &self.0, open, Input::Resume(resuming)).await
    }

    /// The hub's time now.
    fn time(&self) -> Time {
        self.0.clock.now()
    }

    /// Whether nobody else has a handle.
    fn is_alone(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    fn outlives_process(&self) -> bool {
        self.0.outlives_process
    }

    /// Whether nobody is there and nothing is under way. It may be over when this returns, unless nobody has a handle.
    async fn is_idle(&self) -> bool {
        let asks = self.0.shards.iter().map(|shard| async move {
            let (reply, is_idle) = oneshot::channel();
            shard.send(Command::IsIdle(reply)).await.is_ok() && is_idle.await.unwrap_or(false)
        });
        join_all(asks).await.into_iter().all(|is_idle| is_idle)
    }

    /// Ends the shards of a hub that is idle, and of which nobody else has a handle. Nothing of them uses the log when it
    /// returns.
    async fn quit(self) {
        let quits = self.0.shards.iter().map(|shard| async move {
            let (quitting, has_quit) = oneshot::channel();
            if shard.send(Command::Quit(quitting)).await.is_ok() {
                // It is dropped with the shard.
                let _ = has_quit.await;
            }
        });
        join_all(quits).await;
    }

    fn shard_of(&self, connection_id: &ConnectionId) -> &mpsc::Sender<Command> {
        let count = self.0.shards.len() as u16;
        &self.0.shards[usize::from(ShardId::of(connection_id, count))]
    }

    fn next_id(&self) -> u64 {
        self.0.next_id.fetch_add(1, Ordering::Relaxed)
    }
}

async fn attach(
    shard: &mpsc::Sender<Command>,
    hub: &HubState,
    open: OpenId,
    input: Input,
) -> Result<AttachedSocket, OpenError> {
    let (reply, outcome) = oneshot::channel();
    shard.send(Command::Open(open, input, reply)).await.map_err(|_| OpenError::Unavailable)?;
    let mut waiting = Waiting { outcome, shard, hub };
    let attached = (&mut waiting.outcome).await.unwrap_or(Err(OpenError::Unavailable))?;
    Ok(AttachedSocket::new(attached, shard.clone(), hub.clock.clone(), &hub.counts))
}

/// A caller that waits for its socket. One that stops waiting may have been answered already: that socket is lost,
/// and its session must not stay attached to nobody.
struct Waiting<'a> {
    outcome: oneshot::Receiver<Result<shard::Attached, OpenError>>,
    shard: &'a mpsc::Sender<Command>,
    hub: &'a HubState,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.outcome.close();
        if let Ok(Ok(attached)) = self.outcome.try_recv() {
            let HubState { clock, counts, .. } = self.hub;
            drop(AttachedSocket::new(attached, self.shard.clone(), clock.clone(), counts));
        }
    }
}

#[cfg(test)]
mod tests;
