//! A log whose appends and tails go through other hands: injected faults, and tests that hold appends back.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use oncewire_protocol::log::{LogEpoch, Offset, Record, Time};
use tokio::sync::watch;

use super::{Bounds, CheckpointChange, Checkpoints, Log, LogHealth, StoreError, Tail};

/// What becomes of appends and tails on their way to a log.
pub trait Interception: Send + Sync + 'static {
    /// In place of [`Log::append`] of the log.
    fn append(
        &self,
        log: &Arc<dyn Log>,
        records: Vec<Arc<Record>>,
    ) -> BoxFuture<'static, Result<(), StoreError>>;

    /// In place of [`Log::tail`] of the log.
    fn tail(&self, log: &Arc<dyn Log>, from: Offset) -> Tail {
        log.tail(from)
    }
}

/// The same log, whose appends and tails go through `interception`.
pub fn intercept(log: Arc<dyn Log>, interception: impl Interception) -> Arc<dyn Log> {
    Arc::new(Intercepted { log, interception })
}

struct Intercepted<I> {
    log: Arc<dyn Log>,
    interception: I,
}

impl<I: Interception> Log for Intercepted<I> {
    fn append(&self, records: Vec<Arc<Record>>) -> BoxFuture<'static, Result<(), StoreError>> {
        self.interception.append(&self.log, records)
    }

    fn tail(&self, from: Offset) -> Tail {
        self.interception.tail(&self.log, from)
    }

    fn bounds(&self) -> BoxFuture<'static, Result<Bounds, StoreError>> {
        self.log.bounds()
    }

    fn end_now(&self) -> BoxFuture<'static, Result<Offset, StoreError>> {
        self.log.end_now()
    }

    fn is_shared(&self) -> bool {
        self.log.is_shared()
    }

    fn health(&self) -> watch::Receiver<LogHealth> {
        self.log.health()
    }

    fn trim(&self, before: Offset) -> BoxFuture<'static, Result<(), StoreError>> {
        self.log.trim(before)
    }

    fn checkpoint(&self, changes: Vec<CheckpointChange>) -> BoxFuture<'static, Result<(), StoreError>> {
        self.log.checkpoint(changes)
    }

    fn load_all(&self, prefix: &str) -> Checkpoints {
        self.log.load_all(prefix)
    }

    fn outlives_process(&self) -> bool {
        self.log.outlives_process()
    }

    fn epoch(&self) -> BoxFuture<'static, Result<LogEpoch, StoreError>> {
        self.log.epoch()
    }

    fn is_copy(&self) -> bool {
        self.log.is_copy()
    }

    fn begin_epoch(&self) -> BoxFuture<'static, Result<(), StoreError>> {
        self.log.begin_epoch()
    }

    fn empty_since(&self) -> Option<Time> {
        self.log.empty_since()
    }
}
