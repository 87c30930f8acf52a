//! A shard's dealings with the application's event handlers: calls under way, and ends that are still to be told.
//!
//! Each runs in a task of its own, so that no handler holds up the shard. An end that could not be told goes to the back of
//! the line, so that it holds up no other, and the line rests for a while.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::FutureExt;
use oncewire_protocol::hub::{CallId, Connected, EventError, Handled, Input, UserEvent};
use oncewire_protocol::log::Disconnected;
use oncewire_protocol::wire::{ConnectionId, HubName};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::EventHandlers;

/// Ends that are being told at a time; the others wait for their turn, without a task.
pub(super) const TELLING_MAX: usize = 256;
/// How long nothing more is told after an attempt that failed; twice as long after each further one ...
const REST_MIN: Duration = Duration::from_secs(1);
/// ... up to this.
const REST_MAX: Duration = Duration::from_secs(60);

/// See the module.
pub(super) struct Calls {
    hub: HubName,
    handlers: Arc<dyn EventHandlers>,
    changes: watch::Receiver<u64>,
    to_tell: VecDeque<Disconnected>,
    telling: usize,
    /// Set after an attempt that failed: for how long nothing more is told, and until when.
    rest: Option<(Duration, Instant)>,
    /// As many as there are tasks, at most.
    answers: mpsc::UnboundedReceiver<Answer>,
    answer_to: mpsc::UnboundedSender<Answer>,
}

/// What a task has come to.
pub(super) enum Answer {
    Called(CallId, Result<Handled, EventError>),
    Told(ConnectionId),
    NotTold(Box<Disconnected>),
}

impl Calls {
    pub(super) fn new(hub: HubName, handlers: Arc<dyn EventHandlers>) -> Self {
        let (answer_to, answers) = mpsc::unbounded_channel();
        let mut changes = handlers.changes();
        // The configuration of the moment is news to the shard.
        changes.mark_changed();
        Self { hub, handlers, changes, to_tell: VecDeque::new(), telling: 0, rest: None, answers, answer_to }
    }

    /// Waits until something has to be put into the shard or told, and adds so many answers at most.
    pub(super) async fn next(&mut self, answers: &mut Vec<Answer>, count_max: usize) {
        let rests_until = self.rest.map(|(_, until)| until).filter(|_| !self.to_tell.is_empty());
        tokio::select! {
            _ = self.answers.recv_many(answers, count_max) => {}
            Ok(()) = self.changes.changed() => self.changes.mark_changed(),
            () = tokio::time::sleep_until(rests_until.unwrap_or_else(Instant::now)), if rests_until.is_some() => {}
        }
    }

    /// What the shard has to know of a changed configuration.
    pub(super) fn changed(&mut self) -> Option<Input> {
        if !self.changes.has_changed().unwrap_or(false) {
            return None;
        }
        self.changes.mark_unchanged();
        self.rest = None;
        Some(Input::TakesDisconnected(self.handlers.takes_disconnected(&self.hub)))
    }

    /// Turns answers, up to so many, into inputs, and goes on with what waited for them.
    pub(super) fn take(&mut self, answers: &mut Vec<Answer>, count_max: usize) -> Vec<Input> {
        // In each turn: while a shard's inbox never runs empty, answers do not get their own.
        while answers.len() < count_max
            && let Ok(answer) = self.answers.try_recv()
        {
            answers.push(answer);
        }
        let mut inputs = Vec::new();
        let mut told = Vec::new();
        for answer in answers.drain(..) {
            match answer {
                Answer::Called(call, answer) => inputs.push(Input::Called { call, answer }),
                Answer::Told(connection_id) => {
                    self.telling -= 1;
                    self.rest = None;
                    told.push(connection_id);
                }
                Answer::NotTold(disconnected) => {
                    self.telling -= 1;
                    self.to_tell.push_back(*disconnected);
                    self.rest_longer();
                }
            }
        }
        if !told.is_empty() {
            inputs.push(Input::Told(told));
        }
        self.tell();
        inputs
    }

    /// Attempts that were under way together count as one.
    fn rest_longer(&mut self) {
        let now = Instant::now();
        let rest = match self.rest {
            Some((_, until)) if now < until => return,
            Some((last, _)) => (last * 2).min(REST_MAX),
            None => REST_MIN,
        };
        self.rest = Some((rest, now + rest));
    }

    pub(super) fn call(&self, call: CallId, event: UserEvent) {
        let handled = AssertUnwindSafe(self.handlers.user_event(&self.hub, event)).catch_unwind();
        let answer_to = self.answer_to.clone();
        tokio::spawn(async move {
            // A handler's fault must not leave its session waiting for ever.
            let answer = handled.await.unwrap_or(Err(EventError::Failed));
            let _ = answer_to.send(Answer::Called(call, answer));
        });
    }

    pub(super) fn connected(&self, connected: Connected) {
        self.handlers.connected(&self.hub, connected);
    }

    pub(super) fn disconnected(&mut self, disconnected: Disconnected) {
        self.to_tell.push_back(disconnected);
        self.tell();
    }

    fn tell(&mut self) {
        if self.rest.is_some_and(|(_, until)| Instant::now() < until) {
            return;
        }
        while self.telling < TELLING_MAX
            && let Some(disconnected) = self.to_tell.pop_front()
        {
            self.telling += 1;
            let telling = self.handlers.disconnected(&self.hub, disconnected.clone());
            let telling = AssertUnwindSafe(telling).catch_unwind();
            let answer_to = self.answer_to.clone();
            tokio::spawn(async move {
                let answer = if telling.await.unwrap_or(false) {
                    Answer::Told(disconnected.subject.identity.connection_id)
                } else {
                    Answer::NotTold(Box::new(disconnected))
                };
                let _ = answer_to.send(answer);
            });
        }
    }
}
