//! The effects of a record on one session after the other, in portions between which others are served (R15).
//!
//! A record that puts many sessions into many groups, takes them out or closes them would hold up everybody else. Nothing
//! else is folded meanwhile, and until its last portion it does not count as applied.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::folding::{INDEXING_STEPS, LOOK_UP_STEPS};
use super::{SessionKey, Shard};
use crate::log::{Body, Offset, Record};
use crate::wire::GroupName;

/// A record of which some sessions have the effect, and others not yet.
#[derive(Debug)]
pub struct Effect {
    pub(super) record: Arc<Record>,
    /// The last offset before it.
    pub(super) before: Option<Offset>,
    /// Sessions whose turn has not come.
    chosen: std::vec::IntoIter<SessionKey>,
    /// The session whose turn it is, and the groups that it has yet to enter or to leave.
    at: Option<(SessionKey, std::vec::IntoIter<GroupName>)>,
    /// The record's groups.
    groups: BTreeSet<GroupName>,
}

impl Effect {
    /// None if the record is of another kind, whose effect is not divided.
    pub(super) fn of(
        record: &Arc<Record>,
        before: Option<Offset>,
        chosen: &mut Vec<SessionKey>,
    ) -> Option<Self> {
        let groups = match &record.body {
            Body::Added { groups, .. } | Body::Removed { groups, .. } => groups.iter().cloned().collect(),
            Body::Closed { .. } => BTreeSet::new(),
            _ => return None,
        };
        let chosen = std::mem::take(chosen);
        Some(Self { record: Arc::clone(record), before, chosen: chosen.into_iter(), at: None, groups })
    }
}

impl Shard {
    /// Goes on with an effect for so many steps; tells whether it is complete.
    pub(super) fn go_on_with(&mut self, effect: &mut Effect, steps: &mut usize) -> bool {
        let adds = matches!(effect.record.body, Body::Added { .. });
        loop {
            let Some((key, groups)) = &mut effect.at else {
                let Some(key) = effect.chosen.next() else { return true };
                let groups = self.groups_to_change(key, effect, adds);
                *steps = steps.saturating_sub(1 + LOOK_UP_STEPS * groups.len());
                effect.at = Some((key, groups.into_iter()));
                continue;
            };
            let key = *key;
            while *steps > 0
                && let Some(group) = groups.next()
            {
                if adds {
                    self.add_member(key, &group)
                } else {
                    self.remove_member(key, &group)
                }
                *steps = steps.saturating_sub(std::mem::take(&mut self.folding.spent));
            }
            if groups.len() > 0 {
                return false;
            }
            effect.at = None;
            if let Body::Closed { reason, takes_disconnected, .. } = &effect.record.body {
                self.close(key, reason, *takes_disconnected);
                *steps = steps.saturating_sub(INDEXING_STEPS);
            }
            if *steps == 0 && effect.chosen.len() > 0 {
                return false;
            }
        }
    }

    /// The groups that a session enters or leaves by the effect.
    fn groups_to_change(&self, key: SessionKey, effect: &Effect, adds: bool) -> Vec<GroupName> {
        let Some(session) = self.sessions.get(key) else { return Vec::new() };
        let (its_own, named) = (&session.groups, &effect.groups);
        if adds {
            return named.iter().filter(|group| !its_own.contains(*group)).cloned().collect();
        }
        if named.is_empty() {
            return its_own.iter().cloned().collect();
        }
        its_own.among(named).into_iter().cloned().collect()
    }
}
