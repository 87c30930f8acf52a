//! The task that owns one shard.
//!
//! ```text
//! inbox --inputs--> Hub --records--> Log --tail--> Hub --pushes--> outboxes --wakes--> writers
//!                    ^---- failed appends, timers ----'
//! ```
//! A log that appends within the call is served without a task switch: its records are folded in the same turn.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{FuturesUnordered, StreamExt};
use oncewire_protocol::hub::{
    AppendId, Attachment, CommandError, CommandId, Hub, Input, OpenError, OpenId, Output, RuleChange,
    SocketEnd,
};
use oncewire_protocol::log::{Certainty, Offset};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use super::now;
use crate::store::{Log, StoreError, Tail};

/// Inputs taken from the inbox in one turn, before writers are woken.
const TURN_INPUTS_MAX: usize = 256;

/// What others send to a shard.
pub(super) enum Command {
    Input(Input),
    Open(OpenId, Input, oneshot::Sender<Result<Attachment, OpenError>>),
    ChangeRule(RuleChange, oneshot::Sender<Result<(), CommandError>>),
}

/// Who was in an append, and how it ended.
type AppendDone = (Vec<AppendId>, Result<Vec<Offset>, StoreError>);

/// Owns a shard and everything that happens to it.
pub(super) struct Driver {
    hub: Hub,
    log: Arc<dyn Log>,
    tail: Tail,
    inbox: mpsc::Receiver<Command>,
    trimmer: Arc<Trimmer>,
    appends: FuturesUnordered<BoxFuture<'static, AppendDone>>,
    opening: HashMap<OpenId, oneshot::Sender<Result<Attachment, OpenError>>>,
    commands: HashMap<CommandId, oneshot::Sender<Result<(), CommandError>>>,
}

impl Driver {
    pub(super) fn new(
        hub: Hub,
        log: Arc<dyn Log>,
        from: Offset,
        inbox: mpsc::Receiver<Command>,
        trimmer: Arc<Trimmer>,
    ) -> Self {
        Self {
            hub,
            tail: log.tail(from),
            log,
            inbox,
            trimmer,
            appends: FuturesUnordered::new(),
            opening: HashMap::new(),
            commands: HashMap::new(),
        }
    }

    /// Runs until all senders to the inbox are gone or the log fails for good.
    pub(super) async fn run(mut self) {
        if let Err(error) = self.drive().await {
            tracing::error!(%error, "a hub's log cannot be read any more");
        }
    }

    async fn drive(&mut self) -> Result<(), StoreError> {
        let mut commands = Vec::with_capacity(TURN_INPUTS_MAX);
        loop {
            let timeout =
                self.hub.poll_timeout().map(|at| Duration::from_millis(at.0.saturating_sub(now().0)));
            // Records first: until this boot's own record is folded, the hub refuses everything.
            tokio::select! {
                biased;
                Some(portion) = self.tail.next() => self.hub.handle(now(), Input::Records(portion?)),
                Some(done) = self.appends.next() => self.append_done(done),
                received = self.inbox.recv_many(&mut commands, TURN_INPUTS_MAX) => {
                    if received == 0 {
                        return Ok(());
                    }
                    commands.drain(..).for_each(|command| self.take(command));
                }
                () = tokio::time::sleep(timeout.unwrap_or_default()), if timeout.is_some() => {}
            }
            // In each turn: while the inbox never runs empty, the sleep does not get its turn.
            if self.hub.poll_timeout().is_some_and(|at| at <= now()) {
                self.hub.handle(now(), Input::Timeout);
            }
            self.settle()?;
            self.hub.wake_writers();
            self.trimmer.applied(&self.hub);
        }
    }

    fn take(&mut self, command: Command) {
        let input = match command {
            Command::Input(input) => input,
            Command::Open(open, input, reply) => {
                self.opening.insert(open, reply);
                input
            }
            Command::ChangeRule(change, reply) => {
                self.commands.insert(change.command, reply);
                Input::ChangeRule(change)
            }
        };
        self.hub.handle(now(), input);
    }

    /// Carries out what the hub asks for until it asks for nothing more. All its appends go to the log in one call.
    fn settle(&mut self) -> Result<(), StoreError> {
        loop {
            let mut ids = Vec::new();
            let mut records = Vec::new();
            while let Some(output) = self.hub.poll_output() {
                match output {
                    Output::Append { append, records: more } => {
                        ids.push(append);
                        records.extend(more);
                    }
                    Output::Opened { open, outcome } => self.opened(open, outcome),
                    Output::CommandDone { command, outcome } => {
                        if let Some(reply) = self.commands.remove(&command) {
                            let _ = reply.send(outcome);
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
            while let Some(Some(portion)) = self.tail.next().now_or_never() {
                self.hub.handle(now(), Input::Records(portion?));
            }
        }
    }

    fn opened(&mut self, open: OpenId, outcome: Result<Attachment, OpenError>) {
        let Some(reply) = self.opening.remove(&open) else { return };
        if let Err(Ok(attachment)) = reply.send(outcome) {
            // Whoever asked has gone meanwhile.
            self.hub.handle(now(), Input::SocketClosed { session: attachment.session, end: SocketEnd::Lost });
        }
    }

    fn append_done(&mut self, (ids, outcome): AppendDone) {
        let Err(error) = outcome else { return };
        match error.certainty {
            Certainty::Definite => tracing::warn!(%error, "an append failed"),
            Certainty::Indefinite => tracing::warn!(%error, "an append may have failed and is tried again"),
        }
        for append in ids {
            self.hub.handle(now(), Input::AppendFailed { append, certainty: error.certainty });
        }
    }
}

/// Trims a hub's log behind its slowest shard. Sessions hold what they still need themselves.
pub(super) struct Trimmer {
    log: Arc<dyn Log>,
    state: Mutex<TrimState>,
}

struct TrimState {
    applied: Vec<Option<Offset>>,
    trimmed: Offset,
}

impl Trimmer {
    pub(super) fn new(log: Arc<dyn Log>, shards: u16) -> Self {
        let state = TrimState { applied: vec![None; usize::from(shards)], trimmed: Offset(0) };
        Self { log, state: Mutex::new(state) }
    }

    fn applied(&self, hub: &Hub) {
        let mut state = self.state.lock();
        state.applied[usize::from(hub.shard().index)] = hub.applied();
        let Some(Some(slowest)) = state.applied.iter().min().copied() else { return };
        if slowest <= state.trimmed {
            return;
        }
        state.trimmed = slowest;
        drop(state);
        let log_failure = |outcome: Result<(), StoreError>| {
            if let Err(error) = outcome {
                tracing::warn!(%error, "a hub's log could not be trimmed");
            }
        };
        let mut trim = self.log.trim(slowest);
        match trim.as_mut().now_or_never() {
            Some(outcome) => log_failure(outcome),
            None => drop(tokio::spawn(trim.map(log_failure))),
        }
    }
}
