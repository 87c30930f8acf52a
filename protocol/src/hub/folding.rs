//! Records one after the other, as many at once as others can wait for (R15).
//!
//! A record takes effect as a whole and in its order; one that costs much lets those behind it wait, while sockets, timers
//! and questions are served. See [`Shard::has_waiting`].

use std::collections::VecDeque;
use std::sync::Arc;

use super::Shard;
use super::choosing::Choosing;
use super::effect::Effect;
use crate::log::{Body, Offset, Record, Selection, Time};

/// Steps of one portion, each some 20 nanoseconds: about 8 ms. A burst of 64 messages for 1,000 sessions fits into it, so that
/// the writer of each is woken once for all of them.
pub const FOLD_STEPS_MAX: usize = 400_000;
/// What it takes to apply a record that reaches nobody, in steps.
const RECORD_STEPS: usize = 20;
/// What it takes to put a session into a group or to take it out, about a microsecond, in steps.
pub(super) const INDEXING_STEPS: usize = 50;
/// What it takes to look for a session's group, in steps.
pub(super) const LOOK_UP_STEPS: usize = 5;
/// What it takes to hand a message to a session, in steps.
pub(super) const DELIVERY_STEPS: usize = 5;

/// Records that have come and have not taken effect. The driver brings no more while there are some, so there is at most
/// one portion of the log.
#[derive(Debug)]
pub struct Folding {
    waiting: VecDeque<(Offset, Arc<Record>)>,
    /// Whom the first of them is for, as far as it is found.
    choosing: Option<Choosing>,
    /// The one before it, as far as it has taken effect.
    pub(super) effect: Option<Box<Effect>>,
    steps_max: usize,
    /// Steps that the effects of a record have taken.
    pub(super) spent: usize,
}

impl Default for Folding {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), choosing: None, effect: None, steps_max: FOLD_STEPS_MAX, spent: 0 }
    }
}

impl Shard {
    /// Whether records wait for their turn: what came is more than others can wait for. The driver calls
    /// [`Shard::handle`] with [`Input::GoOn`](super::Input::GoOn) when it has served the others, and brings no records
    /// meanwhile.
    pub fn has_waiting(&self) -> bool {
        !self.folding.waiting.is_empty() || self.folding.effect.is_some()
    }

    /// Folds in portions of so many steps instead of [`FOLD_STEPS_MAX`]. What comes of it is the same; tests make others be
    /// served between any two steps.
    pub fn fold_in_portions_of(&mut self, steps_max: usize) {
        self.folding.steps_max = steps_max.max(1);
    }

    pub(super) fn take_records(&mut self, now: Time, records: Vec<(Offset, Arc<Record>)>) {
        self.folding.waiting.extend(records);
        self.fold(now);
    }

    /// Goes on with the records that wait.
    pub(super) fn fold(&mut self, now: Time) {
        let was_live = self.is_live;
        let mut has_applied = false;
        let mut steps = self.folding.steps_max;
        while steps > 0 {
            if let Some(mut effect) = self.folding.effect.take() {
                if !self.go_on_with(&mut effect, &mut steps) {
                    self.folding.effect = Some(effect);
                    break;
                }
                self.finish(now, &effect.record);
                has_applied = true;
                continue;
            }
            let Some((offset, record)) = self.folding.waiting.front() else { break };
            let (offset, record) = (*offset, Arc::clone(record));
            let chosen = match selection_of(&record.body).filter(|_| !self.state.has_judged(offset)) {
                Some(selection) => {
                    let begun = self.folding.choosing.take();
                    let mut choosing = begun.unwrap_or_else(|| Choosing::new(self, selection, &mut steps));
                    if !choosing.go_on(self, &mut steps) {
                        self.folding.choosing = Some(choosing);
                        break;
                    }
                    choosing.chosen()
                }
                None => Vec::new(),
            };
            self.folding.waiting.pop_front();
            self.apply(now, offset, &record, chosen);
            has_applied |= self.folding.effect.is_none();
            steps = steps.saturating_sub(RECORD_STEPS + std::mem::take(&mut self.folding.spent));
        }
        if !has_applied {
            // Nothing has come about that asks for a decision.
            return;
        }
        if self.is_live && !was_live {
            self.lend_budget(now);
            self.end_restored(now);
        }
        self.end_overflowed(now);
        self.end_expired(now);
    }
}

/// Whom a record is for, where that has to be found.
fn selection_of(body: &Body) -> Option<&Selection> {
    match body {
        Body::Sent(sent) => Some(&sent.selection),
        Body::Added { selection, .. } | Body::Removed { selection, .. } | Body::Closed { selection, .. } => {
            Some(selection)
        }
        _ => None,
    }
}
