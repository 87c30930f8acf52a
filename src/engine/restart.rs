//! From a hub's log and its checkpoints to shards that fold the rest.

use std::sync::Arc;

use futures_util::stream::StreamExt;
use oncewire_protocol::hub::{CheckpointBounds, HubSettings, Restored, Restoring};
use oncewire_protocol::log::BootId;
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
    let mut resolving = restoring.resolve(settings, shards, boot, budget, log.bounds().end)?;
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
    Ok(resolving.finish(bounds)?)
}
