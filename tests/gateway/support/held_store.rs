//! A store that does what the scenario says: it holds appends back, and lets the next ones fail.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::{BoxFuture, FutureExt};
use oncewire::store::{Interception, Log, MemoryStore, Store, StoreError, StoreErrorCause, intercept};
use oncewire_protocol::log::{Body, Certainty, Record};
use oncewire_protocol::wire::HubName;
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use super::soon;

/// How an append fails.
#[derive(Debug, Clone, Copy)]
pub enum Failure {
    /// Nothing is stored, and the gateway is told so.
    Definite,
    /// Everything is stored, and the gateway can't know.
    IndefiniteStored,
    /// Nothing is stored, and the gateway can't know.
    IndefiniteLost,
}

/// Memory, with a hand on the appends. Copies share the state.
#[derive(Clone, Default)]
pub struct HeldStore {
    memory: Arc<MemoryStore>,
    control: Arc<Control>,
}

struct Control {
    is_held: watch::Sender<bool>,
    waiting: watch::Sender<usize>,
    failures: Mutex<VecDeque<Failure>>,
    refuses_endings: AtomicBool,
}

impl Default for Control {
    fn default() -> Self {
        Self {
            is_held: watch::Sender::new(false),
            waiting: watch::Sender::new(0),
            failures: Mutex::default(),
            refuses_endings: AtomicBool::default(),
        }
    }
}

impl HeldStore {
    /// Appends wait from now on.
    pub fn hold(&self) {
        self.control.is_held.send_replace(true);
    }

    /// Those that wait go through, in their order.
    pub fn release(&self) {
        self.control.is_held.send_replace(false);
    }

    /// Waits until so many appends are being held.
    pub async fn holds(&self, appends: usize) {
        let mut waiting = self.control.waiting.subscribe();
        soon(waiting.wait_for(|waiting| *waiting >= appends)).await.unwrap();
    }

    /// Whether appends that end a session fail.
    pub fn refuse_endings(&self, refuses: bool) {
        self.control.refuses_endings.store(refuses, Ordering::SeqCst);
    }

    /// Lets the next append that has no failure yet fail.
    pub fn fail_next(&self, failure: Failure) {
        self.control.failures.lock().push_back(failure);
    }
}

impl Store for HeldStore {
    fn open(&self, hub: &HubName) -> BoxFuture<'_, Result<Arc<dyn Log>, StoreError>> {
        let opening = self.memory.open(hub);
        let control = Arc::clone(&self.control);
        async move { Ok(intercept(opening.await?, HeldAppends { control, turn: Mutex::default() })) }.boxed()
    }

    fn remove(&self, hub: &HubName) -> BoxFuture<'_, Result<(), StoreError>> {
        self.memory.remove(hub)
    }
}

struct HeldAppends {
    control: Arc<Control>,
    /// Completes when the append before is done.
    turn: Mutex<Option<oneshot::Receiver<()>>>,
}

impl Interception for HeldAppends {
    fn append(
        &self,
        log: &Arc<dyn Log>,
        records: Vec<Arc<Record>>,
    ) -> BoxFuture<'static, Result<(), StoreError>> {
        let (done, turn) = oneshot::channel();
        let before = self.turn.lock().replace(turn);
        let ends = records.iter().any(|record| matches!(record.body, Body::Ended { .. }));
        let failure = if ends && self.control.refuses_endings.load(Ordering::SeqCst) {
            Some(Failure::Definite)
        } else {
            self.control.failures.lock().pop_front()
        };
        let (log, control) = (Arc::clone(log), Arc::clone(&self.control));
        async move {
            if let Some(before) = before {
                // Its sender is dropped when it is done.
                let _ = before.await;
            }
            let mut held = control.is_held.subscribe();
            if *held.borrow() {
                control.waiting.send_modify(|waiting| *waiting += 1);
                let _ = held.wait_for(|held| !held).await;
                control.waiting.send_modify(|waiting| *waiting -= 1);
            }
            let appended = match failure {
                Some(Failure::Definite) => Err(injected(Certainty::Definite)),
                Some(Failure::IndefiniteLost) => Err(injected(Certainty::Indefinite)),
                Some(Failure::IndefiniteStored) => {
                    log.append(records).await?;
                    Err(injected(Certainty::Indefinite))
                }
                None => log.append(records).await,
            };
            drop(done);
            appended
        }
        .boxed()
    }
}

fn injected(certainty: Certainty) -> StoreError {
    StoreError { certainty, cause: StoreErrorCause::Injected }
}
