//! Drives hub shards: appends what they propose, feeds them what the log brings, fires their timers, wakes writers.
//!
//! One task owns one shard (`shard.rs`); everybody else talks to it through its inbox. The only other state that is
//! shared is each session's outbox, which its socket's writer pulls from.
//!
//! The engine does not know WebSocket frames, HTTP types or file formats.

mod clock;
mod shard;
mod socket;

pub use clock::now;
pub use oncewire_protocol::hub::NewSession;
pub use socket::Socket;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use oncewire_protocol::hub::{
    Attachment, CommandError, CommandId, Hub, HubSettings, Input, OpenError, OpenId, Opening, Resuming,
    RuleChange, Shard,
};
use oncewire_protocol::log::{BootId, LogEpoch, Permission};
use oncewire_protocol::session::{MemoryBudget, OutboxLimits, RequestBounds};
use oncewire_protocol::wire::{ConnectionId, GroupName, HubName, Subprotocol};
use parking_lot::Mutex;
use tokio::sync::{OnceCell, mpsc, oneshot};

use crate::config::Config;
use crate::store::{Store, StoreError};
use shard::{Command, Trimmer};

/// Inputs that wait for a shard; at the bound their senders wait.
const INBOX_INPUTS_MAX: usize = 1024;

/// All hubs of a process. Cheap to clone.
#[derive(Clone)]
pub struct Engine(Arc<EngineState>);

struct EngineState {
    config: Arc<Config>,
    store: Arc<dyn Store>,
    boot: BootId,
    budget: Arc<MemoryBudget>,
    hubs: Mutex<HashMap<HubName, Arc<OnceCell<HubHandle>>>>,
}

/// A hub cannot be used now; the same request may be tried again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the hub's log is not available: {0}")]
pub struct HubUnavailable(#[from] StoreError);

impl Engine {
    /// An engine without hubs; they come into being on first use. `boot` names this start of the process.
    pub fn new(config: Arc<Config>, store: Arc<dyn Store>, boot: BootId) -> Self {
        let bytes_max = usize::try_from(config.message_memory_bytes_max).unwrap_or(usize::MAX);
        let budget = Arc::new(MemoryBudget::new(bytes_max));
        Self(Arc::new(EngineState { config, store, boot, budget, hubs: Mutex::default() }))
    }

    /// A hub that is in use already. Recoveries use it: a token alone must not bring hubs into being.
    pub fn find(&self, hub: &HubName) -> Option<HubHandle> {
        self.0.hubs.lock().get(hub)?.get().cloned()
    }

    /// A hub, brought into being if need be.
    pub async fn hub(&self, hub: &HubName) -> Result<HubHandle, HubUnavailable> {
        let cell = Arc::clone(self.0.hubs.lock().entry(hub.clone()).or_default());
        let handle = cell.get_or_try_init(|| self.start(hub)).await?;
        Ok(handle.clone())
    }

    async fn start(&self, name: &HubName) -> Result<HubHandle, HubUnavailable> {
        let EngineState { config, store, boot, budget, .. } = &*self.0;
        let log = store.open(name).await?;
        let from = log.bounds().first;
        log.append(vec![Arc::new(Hub::booted(*boot, now()))]).await?;
        let count = config.hub_shards;
        let trimmer = Arc::new(Trimmer::new(Arc::clone(&log), count));
        let shards = (0..count)
            .map(|index| {
                let shard = Shard { index, count };
                let hub = Hub::new(settings(config, name), shard, *boot, Arc::clone(budget));
                let (inbox, inputs) = mpsc::channel(INBOX_INPUTS_MAX);
                let driver = shard::Driver::new(hub, Arc::clone(&log), from, inputs, Arc::clone(&trimmer));
                tokio::spawn(driver.run());
                inbox
            })
            .collect();
        tracing::info!(hub = %name, shards = count, "hub started");
        Ok(HubHandle(Arc::new(HubState { epoch: log.epoch(), shards, next_id: AtomicU64::new(1) })))
    }
}

fn settings(config: &Config, name: &HubName) -> HubSettings {
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
    }
}

/// One hub. Cheap to clone.
#[derive(Clone)]
pub struct HubHandle(Arc<HubState>);

struct HubState {
    epoch: LogEpoch,
    shards: Vec<mpsc::Sender<Command>>,
    next_id: AtomicU64,
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
        attach(shard, open, Input::from(Opening { open, session })).await
    }

    /// Attaches a socket to a session; one that is attached is cut. The caller has verified the reconnection token.
    pub async fn resume(
        &self,
        connection_id: ConnectionId,
        subprotocol: Subprotocol,
    ) -> Result<Socket, OpenError> {
        let shard = self.shard_of(&connection_id);
        let open = OpenId(self.next_id());
        attach(shard, open, Input::Resume(Resuming { open, connection_id, subprotocol })).await
    }

    /// Allows a session something with a group, from the next request on. Returns when it is in the log.
    pub async fn grant(
        &self,
        connection_id: ConnectionId,
        permission: Permission,
        group: GroupName,
    ) -> Result<(), CommandError> {
        self.change_rule(connection_id, permission, group, true).await
    }

    /// Forbids a session something with a group, from the next request on. Returns when it is in the log.
    pub async fn revoke(
        &self,
        connection_id: ConnectionId,
        permission: Permission,
        group: GroupName,
    ) -> Result<(), CommandError> {
        self.change_rule(connection_id, permission, group, false).await
    }

    async fn change_rule(
        &self,
        connection_id: ConnectionId,
        permission: Permission,
        group: GroupName,
        allow: bool,
    ) -> Result<(), CommandError> {
        let shard = self.shard_of(&connection_id);
        let command = CommandId(self.next_id());
        let (reply, outcome) = oneshot::channel();
        let change = RuleChange { command, connection_id, permission, group, allow };
        let sent = shard.send(Command::ChangeRule(change, reply)).await;
        sent.map_err(|_| CommandError::Unavailable)?;
        outcome.await.unwrap_or(Err(CommandError::Unavailable))
    }

    fn shard_of(&self, connection_id: &ConnectionId) -> &mpsc::Sender<Command> {
        let count = self.0.shards.len() as u16;
        &self.0.shards[usize::from(Shard::of(connection_id, count))]
    }

    fn next_id(&self) -> u64 {
        self.0.next_id.fetch_add(1, Ordering::Relaxed)
    }
}

async fn attach(shard: &mpsc::Sender<Command>, open: OpenId, input: Input) -> Result<Socket, OpenError> {
    let (reply, outcome) = oneshot::channel();
    shard.send(Command::Open(open, input, reply)).await.map_err(|_| OpenError::Unavailable)?;
    let mut waiting = Waiting { outcome, shard };
    let attachment = (&mut waiting.outcome).await.unwrap_or(Err(OpenError::Unavailable))?;
    Ok(Socket::new(attachment, shard.clone()))
}

/// A caller that waits for its socket. One that stops waiting may have been answered already: that socket is lost,
/// and its session must not stay attached to nobody.
struct Waiting<'a> {
    outcome: oneshot::Receiver<Result<Attachment, OpenError>>,
    shard: &'a mpsc::Sender<Command>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.outcome.close();
        if let Ok(Ok(attachment)) = self.outcome.try_recv() {
            drop(Socket::new(attachment, self.shard.clone()));
        }
    }
}

#[cfg(test)]
mod tests;
