//! Sessions that end for memory: what waits for their clients is more than it may be, or the process is short of it (R9).

use std::cmp::Reverse;

use super::timer::Timer;
use super::{SessionKey, Shard};
use crate::log::{EndReason, Time};
use crate::session::{Phase, Session};
use crate::wire::Close;

/// Sessions that are ended at once since memory is short; more when the next record or request comes.
const SHED_AT_ONCE_MAX: usize = 16;

impl Shard {
    /// What this boot has brought back was within the budget before: for one retention it does not count against it, so that
    /// clients can come and acknowledge it.
    pub(super) fn lend_budget(&mut self, now: Time) {
        let restored_bytes = self.budget.used_bytes();
        if restored_bytes == 0 {
            return;
        }
        self.budget.lend(restored_bytes);
        let retention = u64::from(self.settings.session_retention_seconds);
        self.timers.set(now.plus_seconds(retention), Timer::Budget);
    }

    pub(super) fn take_back_budget(&mut self, now: Time) {
        self.budget.take_back();
        self.end_overflowed(now);
    }

    /// Ends sessions that went over a bound since the last look, where this boot decides about them.
    pub(super) fn end_overflowed(&mut self, now: Time) {
        let mut overflowed = std::mem::take(&mut self.overflowed);
        for key in overflowed.drain(..) {
            if self.decides_for(key) && self.sessions[key].outbox.lock().is_over_limits() {
                self.end_for_memory(now, key, EndReason::OutboxFull);
            }
        }
        self.overflowed = overflowed;
        self.shed_messages(now);
        self.shed_state(now);
    }

    /// Ends the sessions that hold most of what waits for clients and from them, until memory is no longer short or
    /// [`SHED_AT_ONCE_MAX`] have been ended. What a session holds is free at once, unless others hold it too; what it has in
    /// flight is free when it is gone, and is not asked of others meanwhile.
    pub(super) fn shed_messages(&mut self, now: Time) {
        if !self.is_live || !self.budget.is_exceeded() {
            return;
        }
        let is_ending = |session: &&Session| matches!(session.phase, Phase::Ending(_));
        let ending = self.sessions.values().filter(is_ending);
        let mut leaving = ending.map(|session| session.outbox.lock().held_bytes()).sum();
        if !self.budget.is_exceeded_without(leaving) {
            return;
        }
        // Each receiver's encoding goes with the message that it is of.
        let bytes = self.budget.used_bytes_before_encoding();
        let mut most =
            self.that_hold_most(SHED_AT_ONCE_MAX, bytes, |session| session.outbox.lock().held_bytes());
        // Among these few the encodings count too.
        most.sort_by_cached_key(|key| Reverse(self.sessions[*key].outbox.lock().held_bytes_with_encodings()));
        for key in most {
            if !self.budget.is_exceeded_without(leaving) {
                return;
            }
            self.end_for_memory(now, key, EndReason::Shed);
            leaving += self.sessions.get(key).map_or(0, |session| session.outbox.lock().held_bytes());
        }
    }

    /// Ends the session that keeps most for as long as it lives. One at a time: what it keeps is free when it is gone.
    fn shed_state(&mut self, now: Time) {
        let is_waiting = self.shedding.is_some_and(|key| self.sessions.contains_key(key));
        if !self.is_live || is_waiting || !self.budget.must_free_state() {
            return;
        }
        if let Some(key) = self.that_hold_most(1, self.budget.state_bytes(), Session::state_bytes).pop() {
            self.shedding = Some(key);
            self.end_for_memory(now, key, EndReason::Shed);
        }
    }

    /// So many sessions at most that hold most of so many bytes. Where one holds less than half of what sessions here hold on
    /// average, the memory is not with the sessions, and ending it would free nothing.
    fn that_hold_most(
        &self,
        count_max: usize,
        bytes: usize,
        held: impl Fn(&Session) -> usize,
    ) -> Vec<SessionKey> {
        let own = self.sessions.iter().filter(|(key, _)| self.decides_for(*key));
        let live = own.filter(|(_, session)| !matches!(session.phase, Phase::Ending(_)));
        let much = live.map(|(key, session)| (Reverse(held(session)), key));
        let mut much: Vec<_> =
            much.filter(|(held, _)| held.0.saturating_mul(2 * self.sessions.len()) > bytes).collect();
        if much.len() > count_max {
            much.select_nth_unstable(count_max - 1);
            much.truncate(count_max);
        }
        much.sort_unstable();
        much.into_iter().map(|(_, key)| key).collect()
    }

    /// Ends a session because of what waits for its client.
    fn end_for_memory(&mut self, now: Time, key: SessionKey, reason: EndReason) {
        let Some(session) = self.sessions.get(key) else { return };
        let close = match (reason, session.identity.subprotocol.is_reliable()) {
            (EndReason::Shed, _) => Close::SHORT_OF_MEMORY,
            (_, true) => Close::OUTBOX_FULL,
            (_, false) => Close::SLOW_CONSUMER,
        };
        self.end(now, key, reason, Some(close));
    }
}
