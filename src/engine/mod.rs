//! Drives hub shards: appends what they propose, feeds them what the log brings, fires their timers, wakes writers.
//!
//! One task owns one shard (`shard.rs`); everybody else talks to it through its inbox. The only other state that is
//! shared is each session's outbox, which its socket's writer pulls from.
//!
//! The engine does not know WebSocket frames, HTTP types or file formats.

mod application;
mod calls;
mod clock;
mod counts;
mod event_handlers;
mod failures;
mod kept;
mod restart;
mod shard;
mod socket;
mod upkeep;

pub use application::Request;
pub use clock::{HubClock, wall_clock};
pub use counts::HubCounts;
pub use event_handlers::{Accepted, ConnectRefused, Connecting, EventHandlers, NoEventHandlers};
pub use kept::KeptHubs;
pub use oncewire_protocol::hub::{
    Action, CommandError, Connected, Done, EventError, Handled, Member, NewSession, UserEvent,
};
pub use socket::Socket;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use oncewire_protocol::hub::{
    Attachment, CheckpointBounds, Hub, HubSettings, Input, OpenError, OpenId, Opening, Restored, Resuming,
    Shard, UNTOLD_MAX,
};
use oncewire_protocol::log::{BootId, CheckpointError, LogEpoch, Offset, Time};
use oncewire_protocol::session::{MemoryBudget, OutboxLimits, RequestBounds};
use oncewire_protocol::wire::{ConnectionId, HubName, Subprotocol};
use parking_lot::Mutex;
use tokio::sync::{OnceCell, mpsc, oneshot};

use crate::config::{Config, EventFailure};
use crate::store::{Bounds, Store, StoreError};
use calls::Calls;
use clock::BootClock;
use failures::Failures;
use kept::StartFailure;
use shard::{Command, Folded};
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
    hubs: Mutex<HashMap<HubName, Arc<HubEntry>>>,
    failures: Failures,
    event_handlers: Arc<dyn EventHandlers>,
}

/// A hub that exists; its handle is there once it has started.
#[derive(Default)]
struct HubEntry {
    handle: OnceCell<HubHandle>,
    /// A task is at work on it.
    is_starting: AtomicBool,
    failure: StartFailure,
}

/// Held by the task that is at work on a hub, however it ends.
struct Starting(Arc<HubEntry>);

impl Drop for Starting {
    fn drop(&mut self) {
        self.0.is_starting.store(false, Ordering::Relaxed);
    }
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
    /// It exists, and its sessions are not there yet.
    #[error("the hub is starting")]
    Starting,
}

impl Engine {
    /// An engine without hubs; they come into being on first use. `boot` names this start of the process.
    pub fn new(config: Arc<Config>, store: Arc<dyn Store>, boot: BootId) -> Self {
        Self::with_checkpoints(config, store, boot, CheckpointBounds::default())
    }

    /// One whose application has event handlers.
    pub fn with_event_handlers(
        config: Arc<Config>,
        store: Arc<dyn Store>,
        boot: BootId,
        event_handlers: Arc<dyn EventHandlers>,
    ) -> Self {
        Self::with_all(config, store, boot, wall_clock(), CheckpointBounds::default(), event_handlers)
    }

    /// One whose hubs make checkpoints within these bounds.
    pub fn with_checkpoints(
        config: Arc<Config>,
        store: Arc<dyn Store>,
        boot: BootId,
        checkpoints: CheckpointBounds,
    ) -> Self {
        let event_handlers = Arc::new(NoEventHandlers::default());
        Self::with_all(config, store, boot, wall_clock(), checkpoints, event_handlers)
    }

    /// `clock` is what the wall clock says at this start.
    fn with_all(
        config: Arc<Config>,
        store: Arc<dyn Store>,
        boot: BootId,
        clock: Time,
        checkpoints: CheckpointBounds,
        event_handlers: Arc<dyn EventHandlers>,
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
            hubs: Mutex::default(),
            failures: Failures::default(),
            event_handlers,
        }))
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
        let entries: Vec<_> = self.0.hubs.lock().values().cloned().collect();
        let shards = entries.iter().filter_map(|entry| entry.handle.get()).flat_map(|hub| &hub.0.shards);
        let drains = shards.map(|shard| async move {
            let (drained, is_drained) = oneshot::channel();
            if shard.send(Command::Drain(drained)).await.is_ok() {
                let _ = is_drained.await;
            }
        });
        if tokio::time::timeout(DRAIN_WAIT, join_all(drains)).await.is_err() {
            tracing::warn!(
                "not everything that was asked for last could be written, or ends told to the application"
            );
        }
        self.0.store.close().await
    }

    /// A hub that exists; none if there is none. Recoveries use it: a token alone must not bring hubs into being.
    ///
    /// # Errors
    /// When it exists and is not in use yet. It is being started then, unless that can't succeed.
    pub fn find(&self, hub: &HubName) -> Result<Option<HubHandle>, HubUnavailable> {
        let Some(entry) = self.0.hubs.lock().get(hub).cloned() else { return Ok(None) };
        if let Some(handle) = entry.handle.get() {
            return Ok(Some(handle.clone()));
        }
        entry.failure.check()?;
        self.start_in_background(hub, entry);
        Err(HubUnavailable::Starting)
    }

    /// A hub that exists, when it has started; none if there is none.
    ///
    /// # Errors
    /// When it exists and cannot be used now.
    pub async fn existing_hub(&self, hub: &HubName) -> Result<Option<HubHandle>, HubUnavailable> {
        if !self.0.hubs.lock().contains_key(hub) {
            return Ok(None);
        }
        self.hub(hub).await.map(Some)
    }

    /// A hub, brought into being if need be.
    pub async fn hub(&self, hub: &HubName) -> Result<HubHandle, HubUnavailable> {
        let entry = self.entry(hub);
        if let Some(handle) = entry.handle.get() {
            return Ok(handle.clone());
        }
        // A task of its own: whoever asks may go away, and a start must not be left half done.
        let (engine, hub) = (self.clone(), hub.clone());
        let started = tokio::spawn(async move { engine.started(&hub, &entry).await });
        started.await.unwrap_or(Err(HubUnavailable::Starting))
    }

    async fn started(&self, hub: &HubName, entry: &HubEntry) -> Result<HubHandle, HubUnavailable> {
        let start = || async {
            entry.failure.check()?;
            let started = self.start(hub).await;
            entry.failure.note(hub, started.as_ref().err());
            started
        };
        entry.handle.get_or_try_init(start).await.cloned()
    }

    fn entry(&self, hub: &HubName) -> Arc<HubEntry> {
        Arc::clone(self.0.hubs.lock().entry(hub.clone()).or_default())
    }

    fn start_in_background(&self, hub: &HubName, entry: Arc<HubEntry>) {
        if entry.is_starting.swap(true, Ordering::Relaxed) {
            return;
        }
        let (engine, hub, starting) = (self.clone(), hub.clone(), Starting(entry));
        // The entry holds how it ended.
        tokio::spawn(async move { drop(engine.started(&hub, &starting.0).await) });
    }

    async fn start(&self, name: &HubName) -> Result<HubHandle, HubUnavailable> {
        let EngineState { config, store, boot, clock, budget, checkpoints, failures, .. } = &*self.0;
        let began = Instant::now();
        let report = |error: &StoreError| failures.report(error);
        let log = store.open(name).await.inspect_err(report)?;
        let count = config.hub_shards;
        let Restored { shards, checkpointer, applied } =
            restart::restore(&*log, &hub_settings(config, name), count, *boot, budget, *checkpoints).await?;
        let Bounds { first, end } = log.bounds();
        let from = applied.map_or(first, |applied| Offset(applied.0 + 1));
        let clock = clock.hub(name);
        let upkeep = Upkeep::new(Arc::clone(&log), checkpointer, count, failures.clone(), clock.clone());
        let mut inboxes = Vec::with_capacity(shards.len());
        let (mut folding, mut starting) = (Vec::new(), Vec::new());
        for hub in shards {
            let (inbox, inputs) = mpsc::channel(INBOX_INPUTS_MAX);
            let ((folded, is_folded), (live, is_live)) = (oneshot::channel(), oneshot::channel());
            let (log, upkeep) = (Arc::clone(&log), Arc::clone(&upkeep));
            let calls = Calls::new(name.clone(), Arc::clone(&self.0.event_handlers));
            let (failures, clock) = (failures.clone(), clock.clone());
            let driver = shard::Driver::new(hub, calls, log, from, inputs, upkeep, failures, clock);
            tokio::spawn(driver.run(shard::Start { end, folded, live }));
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
        let takes_disconnected = untold < UNTOLD_MAX && self.0.event_handlers.takes_disconnected(name);
        let booted = Arc::new(Hub::booted(*boot, clock.begin(last), takes_disconnected));
        log.append(vec![booted]).await.inspect_err(report)?;
        // Whoever came earlier would be turned away.
        let mut sessions = 0;
        for is_live in starting {
            let live = is_live.await.map_err(|_| HubUnavailable::Starting)?;
            sessions += live.inspect_err(report)?;
        }
        let elapsed_ms = began.elapsed().as_millis() as u64;
        tracing::info!(hub = %name, shards = count, sessions, elapsed_ms, "hub started");
        Ok(HubHandle(Arc::new(HubState {
            epoch: log.epoch(),
            clock,
            shards: inboxes,
            next_id: AtomicU64::new(1),
            answered: AtomicU64::new(0),
            requests_repeated: AtomicU64::new(0),
        })))
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
    shards: Vec<mpsc::Sender<Command>>,
    next_id: AtomicU64,
    /// The application has been told of what happened up to here in the log.
    answered: AtomicU64,
    /// Requests of the application that came again and were not executed again, since the hub was started.
    requests_repeated: AtomicU64,
}

impl HubHandle {
    /// The epoch of the hub's log, which reconnection tokens name.
    pub fn epoch(&self) -> LogEpoch {
        self.0.epoch
    }

    /// Begins a session with a socket attached. Returns when the session is in the log.
    pub async fn open(&self, session: NewSession) -> Result<Socket, OpenError> {
        let shard = self.shard_of(&session.connection_id);
        let open = OpenId(self.next_id());
        attach(shard, &self.0.clock, open, Input::from(Opening { open, session })).await
    }

    /// Attaches a socket to a session; one that is attached is cut. The caller has verified the reconnection token.
    pub async fn resume(
        &self,
        connection_id: ConnectionId,
        subprotocol: Subprotocol,
    ) -> Result<Socket, OpenError> {
        let shard = self.shard_of(&connection_id);
        let open = OpenId(self.next_id());
        let resuming = Resuming { open, connection_id, subprotocol };
        attach(shard, &self.0.clock, open, Input::Resume(resuming)).await
    }

    fn shard_of(&self, connection_id: &ConnectionId) -> &mpsc::Sender<Command> {
        let count = self.0.shards.len() as u16;
        &self.0.shards[usize::from(Shard::of(connection_id, count))]
    }

    fn next_id(&self) -> u64 {
        self.0.next_id.fetch_add(1, Ordering::Relaxed)
    }
}

async fn attach(
    shard: &mpsc::Sender<Command>,
    clock: &HubClock,
    open: OpenId,
    input: Input,
) -> Result<Socket, OpenError> {
    let (reply, outcome) = oneshot::channel();
    shard.send(Command::Open(open, input, reply)).await.map_err(|_| OpenError::Unavailable)?;
    let mut waiting = Waiting { outcome, shard, clock };
    let attachment = (&mut waiting.outcome).await.unwrap_or(Err(OpenError::Unavailable))?;
    Ok(Socket::new(attachment, shard.clone(), clock.clone()))
}

/// A caller that waits for its socket. One that stops waiting may have been answered already: that socket is lost,
/// and its session must not stay attached to nobody.
struct Waiting<'a> {
    outcome: oneshot::Receiver<Result<Attachment, OpenError>>,
    shard: &'a mpsc::Sender<Command>,
    clock: &'a HubClock,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.outcome.close();
        if let Ok(Ok(attachment)) = self.outcome.try_recv() {
            drop(Socket::new(attachment, self.shard.clone(), self.clock.clone()));
        }
    }
}

#[cfg(test)]
mod tests;
