//! From a hub's log and its checkpoints to shards that fold the rest.

use std::sync::Arc;

use futures_util::stream::StreamExt;
use oncewire_protocol::hub::{CheckpointBounds, HubSettings, Restored, Restoring};
use oncewire_protocol::log::{BootId, CheckpointError};
use oncewire_protocol::session::MemoryBudget;

use super::HubUnavailable;
use crate::store::Log;

/// Restores a hub's shards. What the checkpoints hold is as good as folded; messages that sessions keep are read from the
/// log.
pub(super) async fn restore(
    log: &dyn Log,
    settings: &HubSettings,
    shards: u16,
    boot: BootId,
    budget: &Arc<MemoryBudget>,
    bounds: CheckpointBounds,
) -> Result<Restored, HubUnavailable> {
    let mut restoring = Restoring::default();
    let mut checkpoints = log.load_all("");
    while let Some(portion) = checkpoints.next().await {
        for (key, checkpoint) in portion? {
            restoring.load(&key, checkpoint.covers, checkpoint.bytes)?;
        }
    }
    let (settings, budget, end) = (settings.clone(), Arc::clone(budget), log.end_now().await?);
    let mut resolving =
        off_the_runtime(move || restoring.resolve(&settings, shards, boot, &budget, end)).await?;
    if let Some(first) = resolving.next() {
        let mut tail = log.tail(first);
        while let Some(missing) = resolving.next() {
            let Some(portion) = tail.next().await else { break };
            let portion = portion?;
            portion.iter().for_each(|(offset, record)| resolving.read(*offset, record));
            let is_passed = portion.last().is_some_and(|(last, _)| *last >= missing);
            if is_passed && resolving.next() == Some(missing) {
                // Nothing further on can be it.
                break;
            }
        }
    }
    off_the_runtime(move || resolving.finish(bounds)).await
}

/// With many sessions this takes seconds, in which others have to be answered.
async fn off_the_runtime<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, CheckpointError> + Send + 'static,
) -> Result<T, HubUnavailable> {
    let done = tokio::task::spawn_blocking(work).await;
    Ok(done.map_err(|_| HubUnavailable::Starting)??)
}
