//! Drives one shard, in turns.
//!
//! ```text
//! turn: what the log has brought, what others have sent --> serve
//!           --> poll_output: outputs, at last one append of them all --> do it --> until there is none
//!           --> end_turn: looks are answered before it, writers woken in it --> step of a checkpoint
//! next: when something comes, at poll_timeout, or at once if wants_turn
//! ```

use std::sync::Arc;
use std::task::{Context, Poll};

use crate::hub::{
    AppendId, Attachment, CallId, CommandError, CommandId, Connected, Done, Input, OpenError, OpenId, Output,
    SessionEnded, Shard, Step, UserEvent,
};
use crate::log::{Certainty, CheckpointChange, Disconnected, Offset, Record, Time};

/// Owns a shard and decides what happens to it when. See the module.
#[derive(Debug)]
pub struct ShardDriver {
    shard: Shard,
    starting: Starting,
    outlives_process: bool,
    /// Whether records waited when the turn began.
    waits: bool,
    /// What the turn has appended so far.
    ids: Vec<AppendId>,
    records: Vec<Arc<Record>>,
    /// Appends under way.
    appends: usize,
    /// Whether a round of checkpoints has more to do here.
    has_more: bool,
    /// Whether checkpoints of this shard are being written.
    is_writing: bool,
    /// Set when the process is about to end.
    is_draining: bool,
}

/// What is left of a start: all that was in the log before is folded; then the record that begins this boot comes back, and
/// with that the shard is live.
#[derive(Debug)]
struct Starting {
    from: Offset,
    end: Offset,
    is_folded: bool,
    is_live: bool,
}

impl Starting {
    /// What the shard has come to since the last look.
    fn poll(&mut self, shard: &Shard) -> Option<ShardOutput> {
        if !self.is_folded {
            let next = shard.applied().map_or(self.from, |applied| Offset(applied.0 + 1));
            self.is_folded = next >= self.end;
            let folded = Folded { time: shard.time(), untold: shard.untold() };
            return self.is_folded.then_some(ShardOutput::Folded(folded));
        }
        if !self.is_live && shard.is_live() {
            self.is_live = true;
            return Some(ShardOutput::Live);
        }
        None
    }
}

/// Who is in an append that is under way.
#[derive(Debug)]
pub struct Appending(Vec<AppendId>);

impl Appending {
    /// What the append is made of.
    pub fn ids(&self) -> &[AppendId] {
        &self.0
    }
}

/// What folding the log from before has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Folded {
    /// The latest time in it.
    pub time: Time,
    /// Sessions of whose end the application has not been told.
    pub untold: usize,
}

/// One thing to be done for a shard.
#[derive(Debug)]
pub enum ShardOutput {
    /// All that was in the log before is folded. When that holds for all shards of the hub, the hub's time begins and
    /// the record is appended that begins this boot.
    Folded(Folded),
    /// The shard takes sockets.
    Live,
    /// Append these records, in this order, after all earlier ones, and say with [`ShardDriver::append_done`] how that
    /// has ended.
    Append(Appending, Vec<Arc<Record>>),
    /// A socket was attached, or was not. If whoever asked has gone meanwhile, the shard is to be told that the socket is
    /// lost.
    Opened(OpenId, Result<Attachment, OpenError>),
    /// A command was carried out, or was not.
    CommandDone(CommandId, Result<Done, CommandError>),
    /// Have a user event handled; answered by [`Input::Called`].
    Call(CallId, Box<UserEvent>),
    /// Tell the application that a session has begun.
    Connected(Box<Connected>),
    /// Tell the application that a session is over; answered by [`Input::Told`], whenever that is.
    Disconnected(Box<Disconnected>),
    /// Tell those who watch over the gateway that a session is over.
    Ended(Box<SessionEnded>),
    /// The record that begins this boot has come to nothing; each shard of the hub says so. Another one is to be appended,
    /// which has seen the log up to now.
    StartTooLate,
    /// This boot is gone, by the log: the process has to end at once, and answers nobody any more.
    Gone,
}

impl ShardDriver {
    /// Drives a shard that is to fold the log from `from` on; all records from before its boot are in front of `end`.
    /// `outlives_process` tells whether the log is there after the process.
    pub fn new(shard: Shard, from: Offset, end: Offset, outlives_process: bool) -> Self {
        Self {
            shard,
            starting: Starting { from, end, is_folded: false, is_live: false },
            outlives_process,
            waits: false,
            ids: Vec::new(),
            records: Vec::new(),
            appends: 0,
            has_more: false,
            is_writing: false,
            is_draining: false,
        }
    }

    /// The shard as it is now.
    pub fn shard(&self) -> &Shard {
        &self.shard
    }

    /// Whether it takes records now: none while others wait to be folded, which bounds what waits.
    pub fn takes_records(&self) -> bool {
        !self.shard.has_waiting()
    }

    /// Takes an input. In each turn records go first: what the others are judged by should be as late as can be.
    pub fn handle(&mut self, now: Time, input: Input) {
        self.shard.handle(now, input);
    }

    /// Completes when clients have acknowledged something that [`Input::Acknowledged`] has to be handled for.
    pub fn poll_acknowledged(&self, context: &mut Context<'_>) -> Poll<()> {
        self.shard.poll_acknowledged(context)
    }

    /// An append has ended. The records of one that has succeeded come back from the log.
    pub fn append_done(&mut self, now: Time, appending: Appending, outcome: Result<(), Certainty>) {
        self.appends -= 1;
        let Err(certainty) = outcome else { return };
        for append in appending.0 {
            self.shard.handle(now, Input::AppendFailed { append, certainty });
        }
    }

    /// The process is about to end, and everything that came before is to be settled. No step of a checkpoint is taken from
    /// now on: a store that is closed refuses at once, and would be asked again and again.
    pub fn drain(&mut self, now: Time) {
        self.is_draining = true;
        self.shard.handle(now, if self.outlives_process { Input::Leave } else { Input::Stop });
    }

    /// Behind a turn's inputs: sees to what would wait for ever while the log and the others always bring something.
    pub fn serve(&mut self, now: Time) {
        if self.shard.poll_timeout().is_some_and(|at| at <= now) {
            self.shard.handle(now, Input::Timeout);
        }
        if self.waits {
            self.shard.handle(now, Input::GoOn);
        }
    }

    /// The next thing to be done. All records that a turn makes are appended together, behind its other outputs; what
    /// they bring at once, if they do, is handled, and makes further outputs.
    pub fn poll_output(&mut self) -> Option<ShardOutput> {
        while let Some(output) = self.shard.poll_output() {
            return Some(match output {
                Output::Append { append, records } => {
                    self.ids.push(append);
                    self.records.extend(records);
                    continue;
                }
                Output::Opened { open, outcome } => ShardOutput::Opened(open, outcome),
                Output::CommandDone { command, outcome } => ShardOutput::CommandDone(command, outcome),
                Output::Call { call, event } => ShardOutput::Call(call, event),
                Output::Connected(connected) => ShardOutput::Connected(connected),
                Output::Disconnected(disconnected) => ShardOutput::Disconnected(disconnected),
                Output::Ended(ended) => ShardOutput::Ended(ended),
                Output::StartTooLate => ShardOutput::StartTooLate,
                Output::Gone => ShardOutput::Gone,
            });
        }
        if !self.records.is_empty() {
            self.appends += 1;
            let appending = Appending(std::mem::take(&mut self.ids));
            return Some(ShardOutput::Append(appending, std::mem::take(&mut self.records)));
        }
        self.starting.poll(&self.shard)
    }

    /// Whether it shows itself to those who want to see the log applied up to an offset.
    pub fn has_applied(&self, not_before: Option<Offset>) -> bool {
        let applied = self.shard.applied().filter(|_| self.shard.is_live());
        applied.is_some() && applied >= not_before
    }

    /// The outputs are carried out, and looks are answered: wakes the writers of all sockets that have got something to
    /// write, each once for all that the turn has brought.
    pub fn end_turn(&mut self) {
        self.waits = self.shard.has_waiting();
        self.shard.wake_writers();
    }

    /// Between two turns: has a step of a round of checkpoints taken, if it is time for one. Returns what is to be written;
    /// [`ShardDriver::written`] is called once it is, or can't be.
    pub fn step(&mut self, step: impl FnOnce(&Shard) -> Step) -> Option<Vec<CheckpointChange>> {
        self.has_more = false;
        if self.is_draining {
            return None;
        }
        match step(&self.shard) {
            Step::Idle => None,
            Step::More => {
                self.has_more = true;
                None
            }
            Step::Write(changes) => {
                self.is_writing = true;
                Some(changes)
            }
        }
    }

    /// A write of checkpoints has ended.
    pub fn written(&mut self) {
        self.is_writing = false;
    }

    /// Whether the next turn begins at once, behind all others who have something to do.
    pub fn wants_turn(&self) -> bool {
        self.has_more || self.shard.has_waiting()
    }

    /// When the next turn is due although nothing comes; `step` is when a step of a checkpoint is.
    pub fn poll_timeout(&self, step: Option<Time>) -> Option<Time> {
        let step = step.filter(|_| !self.is_draining);
        [self.shard.poll_timeout(), step].into_iter().flatten().min()
    }

    /// After [`ShardDriver::drain`]: whether all is settled, and the process may end.
    pub fn is_drained(&self) -> bool {
        // What a log that goes with the process says of ends, no later start could tell.
        let is_told = self.outlives_process || self.shard.untold() == 0;
        self.is_draining
            && self.appends == 0
            && !self.shard.has_waiting()
            && self.shard.is_marked()
            && is_told
    }

    /// Whether nobody is there and nothing is under way: the hub may be closed, as far as this shard knows.
    pub fn is_idle(&self) -> bool {
        self.shard.is_idle() && self.appends == 0 && !self.is_writing && !self.has_more
    }
}

#[cfg(test)]
#[path = "shard_tests.rs"]
mod tests;
