//! A shard's dealings with the application's event handlers: calls under way, and ends that are still to be told.
//!
//! Each runs in a task of its own, so that no handler holds up the shard.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use oncewire_protocol::hub::{CallId, Connected, EventError, Handled, Input, UserEvent};
use oncewire_protocol::log::Disconnected;
use oncewire_protocol::wire::{ConnectionId, HubName};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

use super::EventHandlers;

/// Ends that are being told at a time; the others wait for their turn, without a task.
pub(super) const TELLING_MAX: usize = 256;

/// See the module.
pub(super) struct Calls {
    hub: HubName,
    handlers: Arc<dyn EventHandlers>,
    changes: watch::Receiver<u64>,
    under_way: HashMap<CallId, AbortHandle>,
    telling: usize,
    to_tell: VecDeque<Disconnected>,
    /// As many as there are tasks, at most.
    answers: mpsc::UnboundedReceiver<Answer>,
    answer_to: mpsc::UnboundedSender<Answer>,
}

/// What a task has come to.
pub(super) enum Answer {
    Called(CallId, Result<Handled, EventError>),
    Told(ConnectionId),
}

impl Calls {
    pub(super) fn new(hub: HubName, handlers: Arc<dyn EventHandlers>) -> Self {
        let (answer_to, answers) = mpsc::unbounded_channel();
        let mut changes = handlers.changes();
        // The configuration of the moment is news to the shard.
        changes.mark_changed();
        Self {
            hub,
            handlers,
            changes,
            under_way: HashMap::new(),
            telling: 0,
            to_tell: VecDeque::new(),
            answers,
            answer_to,
        }
    }

    /// Waits until something has to be put into the shard, and adds so many answers at most.
    pub(super) async fn next(&mut self, answers: &mut Vec<Answer>, count_max: usize) {
        tokio::select! {
            _ = self.answers.recv_many(answers, count_max) => {}
            Ok(()) = self.changes.changed() => self.changes.mark_changed(),
        }
    }

    /// What the shard has to know of a changed configuration.
    pub(super) fn changed(&mut self) -> Option<Input> {
        if !self.changes.has_changed().unwrap_or(false) {
            return None;
        }
        self.changes.mark_unchanged();
        Some(Input::TakesDisconnected(self.handlers.takes_disconnected(&self.hub)))
    }

    /// Turns answers into inputs, and goes on with what waited for them.
    pub(super) fn take(&mut self, answers: &mut Vec<Answer>) -> Vec<Input> {
        let mut inputs = Vec::new();
        let mut told = Vec::new();
        for answer in answers.drain(..) {
            match answer {
                Answer::Called(call, answer) => {
                    self.under_way.remove(&call);
                    inputs.push(Input::Called { call, answer });
                }
                Answer::Told(connection_id) => {
                    self.telling -= 1;
                    told.push(connection_id);
                }
            }
        }
        if !told.is_empty() {
            inputs.push(Input::Told(told));
        }
        self.tell();
        inputs
    }

    pub(super) fn call(&mut self, call: CallId, event: UserEvent) {
        let handled = self.handlers.user_event(&self.hub, event);
        let answer_to = self.answer_to.clone();
        let task = tokio::spawn(async move {
            let _ = answer_to.send(Answer::Called(call, handled.await));
        });
        self.under_way.insert(call, task.abort_handle());
    }

    pub(super) fn cancel(&mut self, call: CallId) {
        if let Some(task) = self.under_way.remove(&call) {
            task.abort();
        }
    }

    pub(super) fn connected(&self, connected: Connected) {
        self.handlers.connected(&self.hub, connected);
    }

    pub(super) fn disconnected(&mut self, disconnected: Disconnected) {
        self.to_tell.push_back(disconnected);
        self.tell();
    }

    fn tell(&mut self) {
        while self.telling < TELLING_MAX
            && let Some(disconnected) = self.to_tell.pop_front()
        {
            self.telling += 1;
            let connection_id = disconnected.subject.connection_id.clone();
            let told = self.handlers.disconnected(&self.hub, disconnected);
            let answer_to = self.answer_to.clone();
            tokio::spawn(async move {
                told.await;
                let _ = answer_to.send(Answer::Told(connection_id));
            });
        }
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        self.under_way.values().for_each(AbortHandle::abort);
    }
}
