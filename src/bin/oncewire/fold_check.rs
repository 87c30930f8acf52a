//! Restores a hub from its checkpoints and folds its log, as a start of the gateway does, without serving it.

use std::sync::Arc;

use oncewire::config::Config;
use oncewire::engine::hub_settings;
use oncewire::store::{Found, OfflineStore};
use oncewire_protocol::hub::{CheckpointBounds, Input, Resolving, Restored, Restoring, Shard};
use oncewire_protocol::log::{BootId, CheckpointError, Offset, Record};
use oncewire_protocol::session::MemoryBudget;
use oncewire_protocol::wire::HubName;

/// Returns how many sessions there are after the fold. `end` is the end of the log.
///
/// # Errors
/// When a start could not use the checkpoints: one can't be read, or a message that a session keeps is neither in the log
/// nor in a copy.
pub fn sessions_after_fold(
    store: &OfflineStore,
    name: &HubName,
    end: Offset,
) -> Result<usize, CheckpointError> {
    let mut parts = Parts::Loading(Box::default());
    let mut outcome = Ok(());
    store.read(name, |found| {
        let step = match found {
            Found::Checkpoint(key, checkpoint) => parts.load(key, checkpoint.covers, checkpoint.bytes),
            Found::Record(offset, record) => parts.read(name, end, offset, &record),
            Found::Progress(_) => Ok(()),
        };
        if outcome.is_ok() {
            outcome = step;
        }
    });
    outcome?;
    let Restored { shards, applied, .. } = parts.resolving(name, end)?.finish(CheckpointBounds::default())?;
    let mut shards = shards;
    store.read(name, |found| {
        if let Found::Record(offset, record) = found
            && Some(offset) > applied
        {
            let (at, record) = (record.time, Arc::from(record));
            for shard in &mut shards {
                shard.handle(at, Input::Records(vec![(offset, Arc::clone(&record))]));
                while shard.has_waiting() {
                    shard.handle(at, Input::GoOn);
                }
            }
        }
    });
    Ok(shards.iter().map(Shard::sessions).sum())
}

/// Checkpoints come before records.
enum Parts {
    Loading(Box<Restoring>),
    Resolving(Box<Resolving>),
    /// An error has been returned.
    Failed,
}

impl Parts {
    fn load(&mut self, key: &str, covers: Offset, bytes: bytes::Bytes) -> Result<(), CheckpointError> {
        match self {
            Self::Loading(restoring) => restoring.load(key, covers, bytes),
            Self::Resolving(_) | Self::Failed => Ok(()),
        }
    }

    fn read(
        &mut self,
        name: &HubName,
        end: Offset,
        offset: Offset,
        record: &Record,
    ) -> Result<(), CheckpointError> {
        let mut resolving = match std::mem::replace(self, Self::Failed) {
            Self::Failed => return Ok(()),
            parts => parts.resolving(name, end)?,
        };
        resolving.read(offset, record);
        *self = Self::Resolving(Box::new(resolving));
        Ok(())
    }

    fn resolving(self, name: &HubName, end: Offset) -> Result<Resolving, CheckpointError> {
        let restoring = match self {
            Self::Resolving(resolving) => return Ok(*resolving),
            Self::Loading(restoring) => *restoring,
            Self::Failed => Restoring::default(),
        };
        // Bounds are for the living; a fold obeys none.
        let settings = hub_settings(&Config::default(), name);
        let budget = Arc::new(MemoryBudget::new(usize::MAX));
        restoring.resolve(&settings, 1, BootId(0), &budget, end)
    }
}
