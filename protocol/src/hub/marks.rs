//! Sequence acks go into the log as marks, so that a restart does not bring back what was acknowledged (R14).
//!
//! Once a second, where clients have acknowledged anything, a record names the sessions whose first unacknowledged message
//! has moved; at once when one of them has freed much. Nothing waits for it. A session that appends anyway has its mark
//! in its own record. One record of marks is in flight at a time: many sessions are taken in portions, and what comes
//! meanwhile between them. A record that fails is not tried again: the next one says more.

use std::sync::Arc;
use std::task::{Context, Poll};

use super::timer::Timer;
use super::{AppendId, Output, Shard};
use crate::log::{Body, Offset, Record, SequenceMark, Time};
use crate::session::{Phase, Unmarked};

/// Sessions that one record names at most.
pub const MARKS_PER_RECORD_MAX: usize = 4096;
/// How long a sequence ack waits for its mark, in milliseconds.
pub const MARK_MS: u64 = 1_000;

/// What becomes of sequence acks.
#[derive(Debug, Default)]
pub(super) struct Marks {
    pub(super) unmarked: Arc<Unmarked>,
    /// When the next marks are due.
    due: Option<Time>,
    /// Sessions of this round that are still to be taken.
    left: usize,
    in_flight: Option<InFlight>,
    /// The process is about to end: nothing waits any more.
    is_stopping: bool,
}

#[derive(Debug)]
struct InFlight {
    counter: u64,
    sessions: Vec<Offset>,
}

impl Shard {
    /// Completes when clients have acknowledged something that [`Input::Acknowledged`](super::Input::Acknowledged) has to
    /// be handled for.
    pub fn poll_acknowledged(&self, context: &mut Context<'_>) -> Poll<()> {
        self.marks.unmarked.poll_news(context)
    }

    /// Whether the log says of all that clients have acknowledged, as far as it ever will.
    pub fn is_marked(&self) -> bool {
        self.marks.in_flight.is_none() && self.marks.unmarked.is_empty()
    }

    pub(super) fn acknowledged(&mut self, now: Time) {
        if self.marks.in_flight.is_none() {
            self.mark_or_wait(now);
        }
    }

    /// Everything that clients have acknowledged is to be in the log as soon as can be, and so is what they acknowledge from
    /// now on.
    pub(super) fn mark_all(&mut self, now: Time) {
        self.marks.is_stopping = true;
        self.acknowledged(now);
    }

    pub(super) fn marks_due(&mut self, now: Time) {
        self.marks.due = None;
        if self.marks.in_flight.is_none() {
            self.begin_marks(now);
        }
    }

    fn mark_or_wait(&mut self, now: Time) {
        let Marks { unmarked, due, is_stopping, .. } = &self.marks;
        if unmarked.is_empty() || !self.is_live {
            return;
        }
        if *is_stopping || unmarked.is_urgent() {
            if let Some(at) = self.marks.due.take() {
                self.timers.cancel(at, Timer::Marks);
            }
            self.begin_marks(now);
        } else if due.is_none() {
            self.wait_for_marks(now);
        }
    }

    fn wait_for_marks(&mut self, now: Time) {
        let at = now.plus_ms(MARK_MS);
        self.marks.due = Some(at);
        self.timers.set(at, Timer::Marks);
    }

    fn begin_marks(&mut self, now: Time) {
        self.marks.left = self.marks.unmarked.len();
        self.append_marks(now);
    }

    /// Appends the next portion of this round; what was noted meanwhile waits for the next one.
    fn append_marks(&mut self, now: Time) {
        while self.marks.left > 0 {
            let sessions = self.marks.unmarked.take(self.marks.left.min(MARKS_PER_RECORD_MAX));
            self.marks.left = if sessions.is_empty() { 0 } else { self.marks.left - sessions.len() };
            let mut marks: Vec<_> = sessions.iter().filter_map(|session| self.mark_of(*session)).collect();
            if marks.is_empty() {
                continue;
            }
            marks.sort_unstable();
            let sessions = marks.iter().map(|mark| mark.session).collect();
            let (key, time) = self.proposer.next(now, None);
            let counter = key.boot.counter;
            let record = Record { key, time, sequence_ack: None, body: Body::Acked { marks } };
            self.marks.in_flight = Some(InFlight { counter, sessions });
            let append = AppendId::Marks(counter);
            self.outputs.push_back(Output::Append { append, records: vec![Arc::new(record)] });
            return;
        }
        self.mark_or_wait(now);
    }

    /// The mark of a session that was taken from the list. One whose end is decided gets none.
    fn mark_of(&self, session: Offset) -> Option<SequenceMark> {
        let session_key = *self.by_number.get(&session)?;
        let found = self.sessions.get(session_key)?;
        let sequence_id = found.outbox.lock().take_listed_mark()?;
        let is_ending = matches!(found.phase, Phase::Ending(_));
        (!is_ending).then_some(SequenceMark { session, sequence_id })
    }

    /// Tells whether the record was one of marks, which has come back.
    pub(super) fn marks_settled(&mut self, now: Time, counter: u64) -> bool {
        if self.marks.in_flight.take_if(|marks| marks.counter == counter).is_none() {
            return false;
        }
        if self.marks.left > 0 {
            self.append_marks(now)
        } else {
            self.mark_or_wait(now)
        }
        true
    }

    /// The acks go into a later record. At the end of the process there is none: the next start sends their messages again.
    pub(super) fn marks_failed(&mut self, now: Time, counter: u64) {
        let Some(failed) = self.marks.in_flight.take_if(|marks| marks.counter == counter) else { return };
        self.proposer.settle(counter);
        self.marks.left = 0;
        if self.marks.is_stopping {
            self.marks.unmarked.take(usize::MAX);
            return;
        }
        for session in failed.sessions {
            if let Some(session) = self.by_number.get(&session).and_then(|key| self.sessions.get(*key)) {
                session.outbox.lock().mark_lost();
            }
        }
        if self.marks.due.is_none() && !self.marks.unmarked.is_empty() {
            self.wait_for_marks(now);
        }
    }

    pub(super) fn apply_acked(&mut self, offset: Offset, marks: &[SequenceMark]) {
        for SequenceMark { session, sequence_id } in marks {
            let Some(&key) = self.by_number.get(session) else { continue };
            if !self.is_covered(key, offset) {
                self.sessions[key].outbox.lock().acknowledge(*sequence_id);
            }
        }
    }
}
