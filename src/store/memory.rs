//! The log in memory: nothing survives the process.
//!
//! Appending completes within the call, so that a hub on this store never waits for a task switch.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures_util::future::{BoxFuture, FutureExt, ready};
use futures_util::stream::{Stream, StreamExt};
use oncewire_protocol::log::{Certainty, LogEpoch, Offset, Record};
use oncewire_protocol::wire::HubName;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{
    Bounds, Checkpoint, CheckpointChange, Checkpoints, Log, LogHealth, Portion, Store, StoreError,
    StoreErrorCause, Tail,
};

/// Records that a tail hands out at once.
const TAIL_PORTION_RECORDS: usize = 1024;

/// A log in memory for each hub.
#[derive(Default)]
pub struct MemoryStore {
    logs: Mutex<HashMap<HubName, Arc<MemoryLog>>>,
}

impl Store for MemoryStore {
    fn open(&self, hub: &HubName) -> BoxFuture<'_, Result<Arc<dyn Log>, StoreError>> {
        let log = Arc::clone(self.logs.lock().entry(hub.clone()).or_default());
        ready(Ok(log as Arc<dyn Log>)).boxed()
    }

    fn remove(&self, hub: &HubName) -> BoxFuture<'_, Result<(), StoreError>> {
        self.logs.lock().remove(hub);
        ready(Ok(())).boxed()
    }
}

struct MemoryLog {
    epoch: LogEpoch,
    state: Arc<Mutex<State>>,
}

impl Default for MemoryLog {
    fn default() -> Self {
        Self { epoch: LogEpoch(rand::random()), state: Arc::default() }
    }
}

#[derive(Default)]
struct State {
    records: VecDeque<Arc<Record>>,
    /// Offset of the first record that is kept.
    first: u64,
    checkpoints: BTreeMap<String, Checkpoint>,
    /// Tails that have read everything.
    waiting: Vec<Waker>,
}

impl State {
    fn end(&self) -> u64 {
        self.first + self.records.len() as u64
    }
}

impl Log for MemoryLog {
    fn append(&self, records: Vec<Arc<Record>>) -> BoxFuture<'static, Result<(), StoreError>> {
        let mut state = self.state.lock();
        state.records.extend(records);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
        ready(Ok(())).boxed()
    }

    fn tail(&self, from: Offset) -> Tail {
        MemoryTail { state: Arc::clone(&self.state), next: from.0 }.boxed()
    }

    fn bounds(&self) -> BoxFuture<'static, Result<Bounds, StoreError>> {
        let state = self.state.lock();
        ready(Ok(Bounds { first: Offset(state.first), end: Offset(state.end()) })).boxed()
    }

    fn end_now(&self) -> BoxFuture<'static, Result<Offset, StoreError>> {
        ready(Ok(Offset(self.state.lock().end()))).boxed()
    }

    fn is_shared(&self) -> bool {
        false
    }

    fn health(&self) -> watch::Receiver<LogHealth> {
        LogHealth::local()
    }

    fn trim(&self, before: Offset) -> BoxFuture<'static, Result<(), StoreError>> {
        let mut state = self.state.lock();
        let records = before.0.min(state.end()).saturating_sub(state.first);
        state.records.drain(..records as usize);
        state.first += records;
        ready(Ok(())).boxed()
    }

    fn checkpoint(&self, changes: Vec<CheckpointChange>) -> BoxFuture<'static, Result<(), StoreError>> {
        let mut state = self.state.lock();
        for change in changes {
            match change {
                CheckpointChange::Save { key, covers, bytes } => {
                    state.checkpoints.insert(key, Checkpoint { covers, bytes })
                }
                CheckpointChange::Delete { key } => state.checkpoints.remove(&key),
            };
        }
        ready(Ok(())).boxed()
    }

    fn load_all(&self, prefix: &str) -> Checkpoints {
        let state = self.state.lock();
        let all: Vec<_> = state
            .checkpoints
            .range::<str, _>((std::ops::Bound::Included(prefix), std::ops::Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(prefix))
            .map(|(key, checkpoint)| (key.clone(), checkpoint.clone()))
            .collect();
        futures_util::stream::iter((!all.is_empty()).then_some(Ok(all))).boxed()
    }

    fn outlives_process(&self) -> bool {
        false
    }

    fn epoch(&self) -> BoxFuture<'static, Result<LogEpoch, StoreError>> {
        ready(Ok(self.epoch)).boxed()
    }
}

struct MemoryTail {
    state: Arc<Mutex<State>>,
    next: u64,
}

impl Stream for MemoryTail {
    type Item = Result<Portion, StoreError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let shared = Arc::clone(&self.state);
        let mut state = shared.lock();
        let Some(skip) = self.next.checked_sub(state.first) else {
            let cause = StoreErrorCause::Trimmed { first: state.first };
            return Poll::Ready(Some(Err(StoreError { certainty: Certainty::Definite, cause })));
        };
        let portion: Vec<_> = state
            .records
            .iter()
            .skip(skip as usize)
            .take(TAIL_PORTION_RECORDS)
            .zip(self.next..)
            .map(|(record, offset)| (Offset(offset), Arc::clone(record)))
            .collect();
        if portion.is_empty() {
            if !state.waiting.iter().any(|known| known.will_wake(context.waker())) {
                state.waiting.push(context.waker().clone());
            }
            return Poll::Pending;
        }
        self.next += portion.len() as u64;
        Poll::Ready(Some(Ok(portion)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_memory_store_keeps_the_contract() {
        crate::store::conformance::run(|| async { Arc::new(MemoryStore::default()) as Arc<dyn Store> }).await;
    }
}
