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
use oncewire_protocol::driver::{Appending, Folded, ShardDriver, ShardOutput};
use oncewire_protocol::hub::{
    self, Attachment, CommandError, CommandId, Done, Input, OpenError, OpenId, Shard, SocketEnd,
};
use oncewire_protocol::log::{Certainty, Disconnected, Offset, Record};
use oncewire_protocol::wire::UserId;
use tokio::sync::{mpsc, oneshot, watch};

use super::calls::Calls;
use super::counts::LiveCounts;
use super::ends::Ends;
use super::upkeep::Upkeep;
use super::{Failures, HubClock};
use crate::store::{Log, StoreError, StoreErrorCause, Tail};
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

/// Those who wait for a shard's start, until they are told.
pub(super) struct Start {
    /// Told once what was in the log before is folded, or why it can't be.
    pub(super) folded: Option<oneshot::Sender<Result<Folded, StoreError>>>,
    /// Told when the shard takes sockets, and how many sessions it has then, or why it never will.
    pub(super) live: Option<oneshot::Sender<Result<usize, StoreError>>>,
}

impl Start {
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
type AppendDone = (Appending, Result<(), StoreError>);

/// What a hub's shards tell together.
pub(super) struct Telling {
    pub(super) ends: Arc<Ends>,
    pub(super) counts: Arc<LiveCounts>,
    pub(super) append_failures: Episode,
}

/// The task of one shard: the driver decides, the task moves bytes and time.
pub(super) struct ShardTask {
    driver: ShardDriver,
    start: Start,
    calls: Calls,
    log: Arc<dyn Log>,
    tail: Tail,
    inbox: mpsc::Receiver<Command>,
    upkeep: Arc<Upkeep>,
    clock: HubClock,
    /// Checkpoints of this shard that are being written.
    write: Option<BoxFuture<'static, ()>>,
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
    /// Set when the hub is closed. The last field: dropped when the log has been let go of.
    quitting: Option<oneshot::Sender<Infallible>>,
}

impl ShardTask {
    /// For a shard that folds the log from `from` on; all records from before are in front of `end`.
    #[expect(clippy::too_many_arguments, reason = "each is a part of the shard")]
    pub(super) fn new(
        shard: Shard,
        (from, end): (Offset, Offset),
        start: Start,
        calls: Calls,
        log: Arc<dyn Log>,
        inbox: mpsc::Receiver<Command>,
        upkeep: Arc<Upkeep>,
        failures: Failures,
        telling: Telling,
    ) -> Self {
        Self {
            driver: ShardDriver::new(shard, from, end, log.outlives_process()),
            start,
            calls,
            tail: log.tail(from),
            log,
            inbox,
            rounds: upkeep.rounds(),
            clock: upkeep.clock().clone(),
            upkeep,
            write: None,
            failures,
            telling,
            sessions_counted: 0,
            untold_full: Episode::new("ends that the application was not told of", ""),
            appends: FuturesUnordered::new(),
            opening: HashMap::new(),
            commands: HashMap::new(),
            looks: Vec::new(),
            draining: Vec::new(),
            quitting: None,
        }
    }

    /// Runs until the hub is closed, all senders to the inbox are gone, or the log fails for good. Those who wait for the
    /// start are told how it goes; whoever asked for it says so if it fails.
    pub(super) async fn run(mut self) {
        let _guard = self.failures.panic_guard();
        if let Err(error) = self.drive().await
            && !self.start.fail(&error)
        {
            tracing::error!(%error, "a hub's log cannot be read any more");
            // Its sessions are gone with it, and only a start brings them back.
            self.failures.end(error);
        }
    }

    async fn drive(&mut self) -> Result<(), StoreError> {
        self.take_changed();
        self.carry_out()?;
        let mut commands = Vec::with_capacity(TURN_INPUTS_MAX);
        let mut answers = Vec::new();
        loop {
            let due = self.driver.poll_timeout(self.upkeep.poll_timeout(self.driver.shard()));
            let timeout = due.map(|at| Duration::from_millis(at.0.saturating_sub(self.clock.now().0)));
            let wants_turn = self.driver.wants_turn();
            let writing = async {
                match &mut self.write {
                    Some(write) => write.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                Some(portion) = self.tail.next(), if self.driver.takes_records() => {
                    self.driver.handle(self.clock.now(), Input::Records(portion?));
                }
                Some(done) = self.appends.next() => self.append_done(done),
                () = writing => self.written(),
                received = self.inbox.recv_many(&mut commands, TURN_INPUTS_MAX) => {
                    if received == 0 {
                        return Ok(());
                    }
                }
                () = self.calls.next(&mut answers, TURN_INPUTS_MAX) => {}
                () = poll_fn(|context| self.driver.poll_acknowledged(context)) => {
                    self.driver.handle(self.clock.now(), Input::Acknowledged);
                }
                Ok(()) = self.rounds.changed() => {}
                () = tokio::time::sleep(timeout.unwrap_or_default()), if timeout.is_some() && !wants_turn => {}
                // Only when there is nothing else to do.
                () = tokio::task::yield_now(), if wants_turn => {}
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
                self.driver.handle(self.clock.now(), input);
            }
            self.driver.serve(self.clock.now());
            self.carry_out()?;
            self.answer_looks();
            self.driver.end_turn();
            self.step_checkpoint();
            if self.driver.is_drained() {
                for drained in self.draining.drain(..) {
                    let _ = drained.send(());
                }
            }
            if self.quitting.is_some() {
                return Ok(());
            }
        }
    }

    /// Tells the hub of a changed configuration; of the first one before it decides anything.
    fn take_changed(&mut self) {
        if let Some(changed) = self.calls.changed() {
            self.driver.handle(self.clock.now(), changed);
        }
    }

    /// Takes a step of a round of checkpoints, if one is under way or due.
    fn step_checkpoint(&mut self) {
        // While the log never runs empty, a write does not get a turn of its own.
        if self.write.as_mut().is_some_and(|write| write.now_or_never().is_some()) {
            self.written();
        }
        if let Some(changes) = self.driver.step(|shard| self.upkeep.step(shard)) {
            let shard = self.driver.shard().id().index;
            self.write = Some(Arc::clone(&self.upkeep).write(shard, changes).boxed());
        }
    }

    fn written(&mut self) {
        self.write = None;
        self.driver.written();
    }

    /// Lets those look that have waited for enough of the log to be applied.
    fn answer_looks(&mut self) {
        let driver = &self.driver;
        let is_due = |look: &mut Look| driver.has_applied(look.not_before);
        for Look { look, .. } in self.looks.extract_if(.., is_due) {
            look(driver.shard());
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
                // A log that holds more than it needs is made shorter first: nobody would do it later.
                let is_idle = self.driver.is_idle() && self.upkeep.is_at_rest(self.driver.shard());
                let _ = reply.send(is_idle);
                return;
            }
            Command::Quit(quitting) => {
                self.quitting = Some(quitting);
                return;
            }
            Command::Drain(drained) => {
                self.draining.push(drained);
                return self.driver.drain(self.clock.now());
            }
        };
        self.driver.handle(self.clock.now(), input);
    }

    /// Does what the driver asks for, until it asks for nothing more.
    fn carry_out(&mut self) -> Result<(), StoreError> {
        loop {
            // Before anybody is answered who could ask.
            self.count_sessions();
            let Some(output) = self.driver.poll_output() else { return Ok(()) };
            match output {
                ShardOutput::Folded(folded) => {
                    if let Some(told) = self.start.folded.take() {
                        let _ = told.send(Ok(folded));
                    }
                }
                ShardOutput::Live => {
                    if let Some(told) = self.start.live.take() {
                        let _ = told.send(Ok(self.driver.shard().sessions()));
                    }
                }
                ShardOutput::Append(appending, records) => self.append(appending, records)?,
                ShardOutput::Opened(open, outcome) => self.opened(open, outcome),
                ShardOutput::Call(call, event) => self.calls.call(call, *event),
                ShardOutput::Connected(connected) => self.calls.connected(*connected),
                ShardOutput::Disconnected(disconnected) => self.disconnected(*disconnected),
                ShardOutput::Ended(ended) => self.telling.ends.tell(&ended),
                ShardOutput::CommandDone(command, outcome) => {
                    if let Some(reply) = self.commands.remove(&command) {
                        let _ = reply.send((outcome, self.driver.shard().applied()));
                    }
                }
                ShardOutput::StartTooLate | ShardOutput::Gone => return Err(taken_over()),
            }
        }
    }

    fn append(&mut self, appending: Appending, records: Vec<Arc<Record>>) -> Result<(), StoreError> {
        let mut append = self.log.append(records);
        match append.as_mut().now_or_never() {
            Some(outcome) => self.append_done((appending, outcome)),
            None => self.appends.push(append.map(move |outcome| (appending, outcome)).boxed()),
        }
        while self.driver.takes_records()
            && let Some(Some(portion)) = self.tail.next().now_or_never()
        {
            self.driver.handle(self.clock.now(), Input::Records(portion?));
        }
        Ok(())
    }

    fn count_sessions(&mut self) {
        let sessions = self.driver.shard().sessions();
        if sessions != self.sessions_counted {
            self.telling.counts.sessions_changed(self.sessions_counted, sessions);
            self.sessions_counted = sessions;
        }
    }

    fn disconnected(&mut self, disconnected: Disconnected) {
        let shard = self.driver.shard();
        if !shard.has_room_for_untold() && self.untold_full.is_news(Instant::now()) {
            tracing::warn!(
                untold = shard.untold(),
                "the application does not take `disconnected` events: it is not told of sessions that end from now on"
            );
        }
        self.calls.disconnected(disconnected);
    }

    fn opened(&mut self, open: OpenId, outcome: Result<Attachment, OpenError>) {
        let Some(reply) = self.opening.remove(&open) else { return };
        let outcome = outcome.map(|attachment| {
            let user_id = self.driver.shard().user_of(attachment.session);
            Attached { attachment, user_id }
        });
        if let Err(Ok(Attached { attachment, .. })) = reply.send(outcome) {
            // Whoever asked has gone meanwhile.
            let lost = Input::SocketClosed { session: attachment.session, end: SocketEnd::Lost };
            self.driver.handle(self.clock.now(), lost);
        }
    }

    fn append_done(&mut self, (appending, outcome): AppendDone) {
        if let Err(error) = &outcome {
            self.tell_append_failed(error);
        }
        let outcome = outcome.map_err(|error| error.certainty);
        self.driver.append_done(self.clock.now(), appending, outcome);
    }

    fn tell_append_failed(&self, error: &StoreError) {
        self.failures.report(error);
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
    }
}
/// The log of one gateway says that another one has taken its place.
fn taken_over() -> StoreError {
    let what = "the log says that another gateway has taken the place of this one".to_owned();
    StoreError { certainty: Certainty::Definite, cause: StoreErrorCause::Fatal(what) }
}
