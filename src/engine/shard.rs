//! The task that owns one shard.
//!
//! ```text
//! inbox --inputs--> Shard --records--> Log --tail--> Shard --pushes--> outboxes --wakes--> writers
//!                    ^---- failed appends, timers ----'
//! ```
//! A log that appends within the call is served without a task switch: its records are folded in the same turn.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{FuturesUnordered, StreamExt};
use oncewire_protocol::hub::{
    self, AppendId, Attachment, CommandError, CommandId, Done, Input, OpenError, OpenId, Output, Shard,
    SocketEnd, Step, UNTOLD_MAX,
};
use oncewire_protocol::log::{Certainty, Disconnected, Offset, Time};
use oncewire_protocol::wire::UserId;
use tokio::sync::{mpsc, oneshot, watch};

use super::calls::Calls;
use super::counts::LiveCounts;
use super::ends::Ends;
use super::upkeep::Upkeep;
use super::{Failures, HubClock};
use crate::store::{Log, StoreError, Tail};
use crate::telemetry::{AppendFailure, Episode};

/// Inputs taken from the inbox in one turn, before writers are woken.
pub(super) const TURN_INPUTS_MAX: usize = 256;

/// What others send to a shard.
pub(super) enum Command {
    Input(Input),
    Open(OpenId, Input, oneshot::Sender<Result<Attached, OpenError>>),
    Ask(hub::Command, oneshot::Sender<Asked>),
    Look(Look),
    /// Whether nobody is there and nothing is under way, behind all that came before.
    IsIdle(oneshot::Sender<bool>),
    /// The hub is closed: it is idle, and nobody has a handle of it. What is sent is dropped when the shard is gone.
    Quit(oneshot::Sender<Infallible>),
    /// The process ends. Answered when all that came before is settled.
    Drain(oneshot::Sender<()>),
}

/// A socket that was attached, and whom its session acts for.
pub(super) struct Attached {
    pub(super) attachment: Attachment,
    pub(super) user_id: Option<UserId>,
}

/// How a command ended, and up to which offset the shard had applied the log by then.
pub(super) type Asked = (Result<Done, CommandError>, Option<Offset>);

/// A look at a shard that has applied the log up to an offset.
pub(super) struct Look {
    pub(super) not_before: Option<Offset>,
    pub(super) look: Box<dyn FnOnce(&Shard) + Send>,
}

/// How a shard starts. It folds what was in the log before; then `Booted` is appended, and with that it is live.
pub(super) struct Start {
    /// All records from before are in front of it.
    pub(super) end: Offset,
    /// Told once these are folded, or why they can't be.
    pub(super) folded: oneshot::Sender<Result<Folded, StoreError>>,
    /// Told when the shard takes sockets, and how many sessions it has then, or why it never will.
    pub(super) live: oneshot::Sender<Result<usize, StoreError>>,
}

/// What folding the log from before has come to.
pub(super) struct Folded {
    /// The latest time in it.
    pub(super) time: Time,
    /// Sessions of whose end the application has not been told.
    pub(super) untold: usize,
}

/// What is left of a start.
struct Starting {
    from: Offset,
    end: Offset,
    folded: Option<oneshot::Sender<Result<Folded, StoreError>>>,
    live: Option<oneshot::Sender<Result<usize, StoreError>>>,
}

impl Starting {
    /// Tells what the shard has come to since the last look.
    fn look(&mut self, shard: &Shard) {
        let next = shard.applied().map_or(self.from, |applied| Offset(applied.0 + 1));
        if let Some(folded) = self.folded.take_if(|_| next >= self.end) {
            let _ = folded.send(Ok(Folded { time: shard.time(), untold: shard.untold() }));
        }
        if let Some(live) = self.live.take_if(|_| shard.is_live()) {
            let _ = live.send(Ok(shard.sessions()));
        }
    }

    /// Tells why the start fails; false when it was over.
    fn fail(&mut self, error: &StoreError) -> bool {
        let Some(live) = self.live.take() else { return false };
        let _ = match self.folded.take() {
            Some(folded) => folded.send(Err(error.clone())).is_ok(),
            None => live.send(Err(error.clone())).is_ok(),
        };
        true
    }
}

/// Who was in an append, and how it ended.
type AppendDone = (Vec<AppendId>, Result<(), StoreError>);

/// What a hub's shards tell together.
pub(super) struct Telling {
    pub(super) ends: Arc<Ends>,
    pub(super) counts: Arc<LiveCounts>,
    pub(super) append_failures: Episode,
}

/// Owns a shard and everything that happens to it.
pub(super) struct Driver {
    shard: Shard,
    calls: Calls,
    log: Arc<dyn Log>,
    tail: Tail,
    /// Where the tail began.
    from: Offset,
    inbox: mpsc::Receiver<Command>,
    upkeep: Arc<Upkeep>,
    clock: HubClock,
    /// Checkpoints of this shard that are being written.
    write: Option<BoxFuture<'static, ()>>,
    /// Whether a round of checkpoints has more to do here.
    has_more: bool,
    rounds: watch::Receiver<u64>,
    failures: Failures,
    telling: Telling,
    /// Sessions that are among the hub's counts.
    sessions_counted: usize,
    untold_full: Episode,
    appends: FuturesUnordered<BoxFuture<'static, AppendDone>>,
    opening: HashMap<OpenId, oneshot::Sender<Result<Attached, OpenError>>>,
    commands: HashMap<CommandId, oneshot::Sender<Asked>>,
    /// Looks that have come too early.
    looks: Vec<Look>,
    draining: Vec<oneshot::Sender<()>>,
    /// Set when the process is about to end: no round of checkpoints begins or goes on.
    is_closing: bool,
    /// Set when the hub is closed. The last field: dropped when the log has been let go of.
    quitting: Option<oneshot::Sender<Infallible>>,
}

impl Driver {
    #[expect(clippy::too_many_arguments, reason = "each is a part of the shard")]
    pub(super) fn new(
        shard: Shard,
        calls: Calls,
        log: Arc<dyn Log>,
        from: Offset,
        inbox: mpsc::Receiver<Command>,
        upkeep: Arc<Upkeep>,
        failures: Failures,
        telling: Telling,
    ) -> Self {
        Self {
            shard,
            calls,
            tail: log.tail(from),
            from,
            log,
            inbox,
            rounds: upkeep.rounds(),
            clock: upkeep.clock().clone(),
            upkeep,
            write: None,
            has_more: false,
            failures,
            telling,
            sessions_counted: 0,
            untold_full: Episode::new("ends that the application was not told of", ""),
            appends: FuturesUnordered::new(),
            opening: HashMap::new(),
            commands: HashMap::new(),
            looks: Vec::new(),
            draining: Vec::new(),
            is_closing: false,
            quitting: None,
        }
    }

    /// Runs until the hub is closed, all senders to the inbox are gone, or the log fails for good. `start` is told how the
    /// start goes; whoever asked for it says so if it fails.
    pub(super) async fn run(mut self, start: Start) {
        let Start { end, folded, live } = start;
        let mut starting = Starting { from: self.from, end, folded: Some(folded), live: Some(live) };
        let _guard = self.failures.panic_guard();
        if let Err(error) = self.drive(&mut starting).await
            && !starting.fail(&error)
        {
            tracing::error!(%error, "a hub's log cannot be read any more");
            // Its sessions are gone with it, and only a start brings them back.
            self.failures.end(error);
        }
    }

    async fn drive(&mut self, starting: &mut Starting) -> Result<(), StoreError> {
        starting.look(&self.shard);
        self.take_changed();
        let mut commands = Vec::with_capacity(TURN_INPUTS_MAX);
        let mut answers = Vec::new();
        loop {
            let step_due = self.upkeep.poll_timeout(&self.shard).filter(|_| !self.is_closing);
            let due = [self.shard.poll_timeout(), step_due];
            let due = due.into_iter().flatten().min();
            let timeout = due.map(|at| Duration::from_millis(at.0.saturating_sub(self.clock.now().0)));
            let writing = async {
                match &mut self.write {
                    Some(write) => write.await,
                    None => std::future::pending().await,
                }
            };
            let waits = self.shard.has_waiting();
            // Records first: what a command is judged by should be as late as can be.
            tokio::select! {
                biased;
                Some(portion) = self.tail.next(), if !waits => {
                    self.shard.handle(self.clock.now(), Input::Records(portion?));
                }
                Some(done) = self.appends.next() => self.append_done(done),
                () = writing => self.write = None,
                received = self.inbox.recv_many(&mut commands, TURN_INPUTS_MAX) => {
                    if received == 0 {
                        return Ok(());
                    }
                }
                () = self.calls.next(&mut answers, TURN_INPUTS_MAX) => {}
                () = poll_fn(|context| self.shard.poll_acknowledged(context)) => {
                    self.shard.handle(self.clock.now(), Input::Acknowledged);
                }
                Ok(()) = self.rounds.changed() => {}
                () = tokio::time::sleep(timeout.unwrap_or_default()), if timeout.is_some() && !self.has_more => {}
                // Only when there is nothing else to do; otherwise each turn takes a step with it.
                () = tokio::task::yield_now(), if self.has_more || waits => {}
            }
            // In each turn: while the log never runs empty, the inbox does not get its own.
            while commands.len() < TURN_INPUTS_MAX
                && let Ok(command) = self.inbox.try_recv()
            {
                commands.push(command);
            }
            commands.drain(..).for_each(|command| self.take(command));
            self.take_changed();
            for input in self.calls.take(&mut answers, TURN_INPUTS_MAX) {
                self.shard.handle(self.clock.now(), input);
            }
            // The same holds for the sleep while the inbox never runs empty.
            if self.shard.poll_timeout().is_some_and(|at| at <= self.clock.now()) {
                self.shard.handle(self.clock.now(), Input::Timeout);
            }
            if waits {
                self.shard.handle(self.clock.now(), Input::GoOn);
            }
            self.settle()?;
            self.answer_looks();
            self.shard.wake_writers();
            self.step_checkpoint();
            // What a log that goes with the process says of ends, no later start could tell.
            let is_told = self.log.outlives_process() || self.shard.untold() == 0;
            if self.appends.is_empty() && !self.shard.has_waiting() && self.shard.is_marked() && is_told {
                for drained in self.draining.drain(..) {
                    let _ = drained.send(());
                }
            }
            starting.look(&self.shard);
            if self.quitting.is_some() {
                return Ok(());
            }
        }
    }

    /// Tells the hub of a changed configuration; of the first one before it decides anything.
    fn take_changed(&mut self) {
        if let Some(changed) = self.calls.changed() {
            self.shard.handle(self.clock.now(), changed);
        }
    }

    /// Takes a step of a round of checkpoints, if one is under way or due.
    fn step_checkpoint(&mut self) {
        // While the log never runs empty, a write does not get a turn of its own.
        if self.write.as_mut().is_some_and(|write| write.now_or_never().is_some()) {
            self.write = None;
        }
        if self.is_closing {
            // A store that is closed refuses at once, and would be asked again and again.
            self.has_more = false;
            return;
        }
        let step = self.upkeep.step(&self.shard);
        self.has_more = matches!(step, Step::More);
        if let Step::Write(changes) = step {
            let shard = self.shard.id().index;
            self.write = Some(Arc::clone(&self.upkeep).write(shard, changes).boxed());
        }
    }

    /// Lets those look that have waited for enough of the log to be applied.
    fn answer_looks(&mut self) {
        let applied = self.shard.applied().filter(|_| self.shard.is_live());
        let is_due = |look: &mut Look| applied.is_some() && applied >= look.not_before;
        for Look { look, .. } in self.looks.extract_if(.., is_due) {
            look(&self.shard);
        }
    }

    fn take(&mut self, command: Command) {
        let input = match command {
            Command::Input(input) => input,
            Command::Open(open, input, reply) => {
                self.opening.insert(open, reply);
                input
            }
            Command::Ask(command, reply) => {
                self.commands.insert(command.command, reply);
                Input::Command(Box::new(command))
            }
            Command::Look(look) => return self.looks.push(look),
            Command::IsIdle(reply) => {
                let _ = reply.send(self.is_idle());
                return;
            }
            Command::Quit(quitting) => {
                self.quitting = Some(quitting);
                return;
            }
            Command::Drain(drained) => {
                self.draining.push(drained);
                self.is_closing = true;
                if self.log.outlives_process() { Input::Leave } else { Input::Stop }
            }
        };
        self.shard.handle(self.clock.now(), input);
    }

    /// A log that holds more than it needs is made shorter first: nobody would do it later.
    fn is_idle(&self) -> bool {
        self.shard.is_idle()
            && self.appends.is_empty()
            && self.write.is_none()
            && !self.has_more
            && self.upkeep.is_at_rest(&self.shard)
    }

    /// Carries out what the hub asks for until it asks for nothing more. All its appends go to the log in one call.
    fn settle(&mut self) -> Result<(), StoreError> {
        loop {
            // Before anybody is answered who could ask.
            self.count_sessions();
            let mut ids = Vec::new();
            let mut records = Vec::new();
            while let Some(output) = self.shard.poll_output() {
                match output {
                    Output::Append { append, records: more } => {
                        ids.push(append);
                        records.extend(more);
                    }
                    Output::Opened { open, outcome } => self.opened(open, outcome),
                    Output::Call { call, event } => self.calls.call(call, *event),
                    Output::Connected(connected) => self.calls.connected(*connected),
                    Output::Disconnected(disconnected) => self.disconnected(*disconnected),
                    Output::Ended(ended) => self.telling.ends.tell(&ended),
                    Output::CommandDone { command, outcome } => {
                        if let Some(reply) = self.commands.remove(&command) {
                            let _ = reply.send((outcome, self.shard.applied()));
                        }
                    }
                }
            }
            if ids.is_empty() {
                return Ok(());
            }
            let mut append = self.log.append(records);
            match append.as_mut().now_or_never() {
                Some(outcome) => self.append_done((ids, outcome)),
                None => self.appends.push(append.map(move |outcome| (ids, outcome)).boxed()),
            }
            while !self.shard.has_waiting()
                && let Some(Some(portion)) = self.tail.next().now_or_never()
            {
                self.shard.handle(self.clock.now(), Input::Records(portion?));
            }
        }
    }

    fn count_sessions(&mut self) {
        let sessions = self.shard.sessions();
        if sessions != self.sessions_counted {
            self.telling.counts.sessions_changed(self.sessions_counted, sessions);
            self.sessions_counted = sessions;
        }
    }

    fn disconnected(&mut self, disconnected: Disconnected) {
        if self.shard.untold() >= UNTOLD_MAX && self.untold_full.is_news(Instant::now()) {
            tracing::warn!(
                untold = UNTOLD_MAX,
                "the application does not take `disconnected` events: it is not told of sessions that end from now on"
            );
        }
        self.calls.disconnected(disconnected);
    }

    fn opened(&mut self, open: OpenId, outcome: Result<Attachment, OpenError>) {
        let Some(reply) = self.opening.remove(&open) else { return };
        let outcome = outcome.map(|attachment| {
            let user_id = self.shard.user_of(attachment.session);
            Attached { attachment, user_id }
        });
        if let Err(Ok(Attached { attachment, .. })) = reply.send(outcome) {
            // Whoever asked has gone meanwhile.
            self.shard.handle(
                self.clock.now(),
                Input::SocketClosed { session: attachment.session, end: SocketEnd::Lost },
            );
        }
    }

    fn append_done(&mut self, (ids, outcome): AppendDone) {
        let Err(error) = outcome else { return };
        self.failures.report(&error);
        let certainty = error.certainty;
        self.telling.ends.counters().appends_failed.count(match certainty {
            Certainty::Definite => AppendFailure::Definite,
            Certainty::Indefinite => AppendFailure::Indefinite,
        });
        if self.telling.append_failures.is_news(Instant::now()) {
            tracing::warn!(%error, ?certainty, "appends fail; those that may have succeeded are tried again");
        } else {
            tracing::debug!(%error, ?certainty, "an append failed");
        }
        for append in ids {
            self.shard.handle(self.clock.now(), Input::AppendFailed { append, certainty });
        }
    }
}
