//! Checkpoints: shards take steps of rounds, the store takes their writes or does not, and a process that starts goes on
//! from what is stored.

use std::sync::Arc;

use oncewire_protocol::hub::{Checkpointer, HubSettings, Restored, Restoring, Step};
use oncewire_protocol::log::{BootId, CheckpointChange, CheckpointError, CheckpointKey};
use oncewire_protocol::session::MemoryBudget;

use crate::Failure;
use crate::coverage::Path;
use crate::process::{HubNode, ShardNode};
use crate::world::{Event, World};

/// A write of checkpoints that is under way.
#[derive(Debug)]
pub struct Write {
    changes: Vec<CheckpointChange>,
    /// Whether it takes place.
    is_stored: bool,
    /// What the shard is told.
    is_ok: bool,
}

impl World {
    /// A shard takes a step of a round, if there is anything to do. When a round begins, all shards have a part in it.
    pub(crate) fn step_checkpoint(&mut self, hub: usize, shard: usize) {
        let now = self.hub_time(hub);
        let HubNode { shards, checkpointer, .. } = &mut self.hubs[hub];
        let Some(rounds) = checkpointer else { return };
        let was_in_round = rounds.is_in_round();
        let changes = shards[shard].driver.step(|shard| {
            // Before, the hub's time has not begun.
            if shard.is_live() { rounds.step(now, shard) } else { Step::Idle }
        });
        if rounds.is_in_round() && !was_in_round {
            (0..self.hubs[hub].shards.len()).for_each(|shard| self.schedule_run(hub, shard));
        }
        if let Some(changes) = changes {
            self.write_checkpoint(hub, shard, changes);
        }
    }

    fn write_checkpoint(&mut self, hub: usize, shard: usize, changes: Vec<CheckpointChange>) {
        for change in &changes {
            match change {
                CheckpointChange::Save { key: CheckpointKey::Message(_), .. } => {
                    self.note(Path::MessageCopied)
                }
                CheckpointChange::Delete { .. } => self.note(Path::CopyDeleted),
                CheckpointChange::Save { .. } => {}
            }
        }
        let is_ok = self.now_us >= self.outage_until && !self.random.permille(self.weather.checkpoint_failed);
        let is_stored = is_ok || self.random.permille(300);
        self.trace.line(self.now_us, || format!("  checkpoint by {hub}/{shard}: {} {is_ok}", keys(&changes)));
        self.hubs[hub].shards[shard].write = Some(Write { changes, is_stored, is_ok });
        let event = Event::CheckpointWritten { hub, shard, process: self.process };
        self.schedule_in(self.weather.checkpoint_ms, event);
    }

    pub(crate) fn checkpoint_written(&mut self, hub: usize, shard: usize) {
        let now = self.hub_time(hub);
        let node = &mut self.hubs[hub];
        let Some(Write { changes, is_stored, is_ok }) = node.shards[shard].write.take() else { return };
        if is_stored {
            node.log.change_checkpoints(changes);
        }
        let trim = node.checkpointer.as_mut().and_then(|state| state.written(now, shard as u16, is_ok));
        if !is_ok {
            self.note(Path::CheckpointFailed);
        }
        if let Some(before) = trim {
            self.note(Path::LogTrimmed);
            self.hubs[hub].log.trim(before);
        }
        self.hubs[hub].shards[shard].driver.written();
        self.schedule_run(hub, shard);
    }

    /// The process dies: of each write that is under way some changes are stored.
    pub(crate) fn lose_checkpoint_writes(&mut self, hub: usize) {
        for shard in 0..self.hubs[hub].shards.len() {
            let Some(Write { mut changes, .. }) = self.hubs[hub].shards[shard].write.take() else { continue };
            self.note(Path::CrashWithCheckpoint);
            let kept = self.random.pick(&[0, 1000, 500]);
            changes.retain(|_| self.random.permille(kept));
            self.hubs[hub].log.change_checkpoints(changes);
        }
    }

    /// A process starts with what is stored. Its shards fold the log from the record at the returned index on.
    pub(crate) fn restore(
        &mut self,
        hub: usize,
        settings: &HubSettings,
        shards: u16,
        boot: BootId,
    ) -> Option<(Vec<ShardNode>, Checkpointer)> {
        let budget = Arc::clone(&self.budget);
        match self.try_restore(hub, settings, shards, boot, &budget) {
            Ok((Restored { shards, checkpointer, applied }, cursor)) => {
                if applied.is_some() {
                    self.note(Path::Restored);
                }
                if cursor < self.hubs[hub].log.first() {
                    self.fail(Failure::Unrestorable("a record is trimmed that has to be folded".to_owned()));
                    return None;
                }
                let steps = self.weather.fold_steps();
                let log = &self.hubs[hub].log;
                let node = |shard| ShardNode::new(shard, log, cursor, steps);
                Some((shards.into_iter().map(node).collect(), checkpointer))
            }
            Err(error) => {
                self.fail(Failure::Unrestorable(error.to_string()));
                None
            }
        }
    }

    fn try_restore(
        &mut self,
        hub: usize,
        settings: &HubSettings,
        shards: u16,
        boot: BootId,
        budget: &Arc<MemoryBudget>,
    ) -> Result<(Restored, usize), CheckpointError> {
        let mut restoring = Restoring::default();
        let checkpoints: Vec<_> = self.hubs[hub].log.checkpoints().collect();
        let applied = checkpoints.iter().find(|(key, ..)| key == "hub").map(|(_, covers, _)| *covers);
        for (key, covers, bytes) in checkpoints {
            if key.starts_with("chunk/") && Some(covers) > applied {
                self.note(Path::RestoredWithinRound);
            }
            if key.starts_with("message/") {
                self.note(Path::CopyRestored);
            }
            restoring.load(&key, covers, bytes)?;
        }
        let log = &self.hubs[hub].log;
        let mut resolving = restoring.resolve(settings, shards, boot, budget, log.end())?;
        while let Some(offset) = resolving.next() {
            let Some(record) = log.at(offset) else { return Err(CheckpointError::MissingMessage) };
            resolving.read(offset, record);
            if resolving.next() == Some(offset) {
                return Err(CheckpointError::MissingMessage);
            }
        }
        let restored = resolving.finish(self.weather.checkpoints)?;
        let cursor = restored.applied.map_or(0, |applied| log.index_behind(applied));
        Ok((restored, cursor))
    }
}

fn keys(changes: &[CheckpointChange]) -> String {
    let name = |change: &CheckpointChange| match change {
        CheckpointChange::Save { key, covers, .. } => format!("{key}@{}", covers.0),
        CheckpointChange::Delete { key } => format!("-{key}"),
    };
    changes.iter().map(name).collect::<Vec<_>>().join(" ")
}
