//! What the application asks a hub for: commands that go through the log, and questions.
//!
//! A question is answered from all shards that it concerns, each of which has then applied what was answered before: so
//! an application that has been told that something was done sees it done.

use std::sync::atomic::Ordering;

use futures_util::future::join_all;
use oncewire_protocol::hub::{self, Action, CommandError, CommandId, Done, Member, Shard};
use oncewire_protocol::log::{Audience, IdempotencyKey, Offset, Permission, Refusal, Selection};
use oncewire_protocol::wire::{ConnectionId, GroupName};
use tokio::sync::{mpsc, oneshot};

use super::HubHandle;
use super::shard::{Command, Look};

/// By what a request of the application is recognised when it comes again.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// The request.
    pub key: IdempotencyKey,
    /// Whether another request under the same id is refused. It always is where the request is repeatable.
    pub is_strict: bool,
}

impl HubHandle {
    /// Carries out a command of the application. Returns when it has taken effect, which a restart does not undo.
    ///
    /// # Errors
    /// When it is refused, or cannot be stored.
    pub async fn ask(&self, action: Action, request: Option<Request>) -> Result<Done, CommandError> {
        let outcome = self.carry_out(action, request).await;
        if outcome == Ok(Done::Repeated) {
            self.0.requests_repeated.fetch_add(1, Ordering::Relaxed);
        }
        outcome
    }

    async fn carry_out(&self, action: Action, request: Option<Request>) -> Result<Done, CommandError> {
        let shard = self.shard_for(&action, request.as_ref());
        let action = match &action {
            Action::Add { selection, groups } => match self.check_add(selection, groups).await? {
                None => action,
                // Its shard knows whether it is a repetition, which is answered as the first time.
                Some(refusal) => Action::Refuse(refusal),
            },
            _ => action,
        };
        let command = CommandId(self.next_id());
        let (reply, asked) = oneshot::channel();
        let command = hub::Command {
            command,
            request: request.map(|request| request.key),
            is_strict: request.is_some_and(|request| request.is_strict),
            action,
        };
        shard.send(Command::Ask(command, reply)).await.map_err(|_| CommandError::Unavailable)?;
        let (outcome, applied) = asked.await.map_err(|_| CommandError::Unavailable)?;
        if let Some(Offset(applied)) = applied {
            self.0.answered.fetch_max(applied, Ordering::AcqRel);
        }
        outcome
    }

    /// Whether there is a session of this audience. One without a socket counts.
    ///
    /// # Errors
    /// When the hub is not available.
    pub async fn has(&self, audience: Audience) -> Result<bool, CommandError> {
        let answers = match &audience {
            Audience::Connection(id) => {
                let shard = self.shard_of(id);
                vec![self.look(shard, move |shard| shard.has(&audience)).await?]
            }
            Audience::All | Audience::Group(_) | Audience::User(_) => {
                self.look_everywhere(move |shard| shard.has(&audience)).await?
            }
        };
        Ok(answers.contains(&true))
    }

    /// Whether a session may do this with a group.
    ///
    /// # Errors
    /// When the hub is not available.
    pub async fn allows(
        &self,
        connection_id: ConnectionId,
        permission: Permission,
        group: GroupName,
    ) -> Result<bool, CommandError> {
        let shard = self.shard_of(&connection_id);
        self.look(shard, move |shard| shard.allows(&connection_id, permission, &group)).await
    }

    /// The members of a group behind a connection id, in the order of their ids, so many at most.
    ///
    /// # Errors
    /// When the hub is not available.
    pub async fn members(
        &self,
        group: GroupName,
        behind: Option<ConnectionId>,
        count_max: usize,
    ) -> Result<Vec<Member>, CommandError> {
        let look = move |shard: &Shard| shard.members(&group, behind.as_ref(), count_max);
        let mut members = self.look_everywhere(look).await?.concat();
        members.sort_unstable_by(|a, b| a.connection_id.cmp(&b.connection_id));
        members.truncate(count_max);
        Ok(members)
    }

    /// Why it is refused, where one shard alone can't tell.
    async fn check_add(
        &self,
        selection: &Selection,
        groups: &[GroupName],
    ) -> Result<Option<Refusal>, CommandError> {
        let is_user = matches!(selection.audience, Audience::User(_));
        if is_user && !self.has(selection.audience.clone()).await? {
            return Ok(Some(Refusal::UnknownUser));
        }
        if self.0.shards.len() == 1 || matches!(selection.audience, Audience::Connection(_)) {
            return Ok(None);
        }
        let (selection, groups) = (selection.clone(), groups.to_vec());
        let check = move |shard: &Shard| {
            shard.check_memberships(&selection, &groups)?;
            Ok(shard.check_room(&selection, &groups).err())
        };
        let checked: Result<Vec<_>, CommandError> = self.look_everywhere(check).await?.into_iter().collect();
        Ok(checked?.into_iter().flatten().next())
    }

    /// The shard that proposes a command: the one that can check it, else the same for all repetitions of a request.
    fn shard_for(&self, action: &Action, request: Option<&Request>) -> &mpsc::Sender<Command> {
        let connection_id = match action {
            Action::ChangeRule { connection_id, .. } => Some(connection_id),
            Action::Send(sent) => connection_of(&sent.selection),
            Action::Add { selection, .. }
            | Action::Remove { selection, .. }
            | Action::Close { selection, .. } => connection_of(selection),
            Action::Refuse(_) => None,
        };
        if let Some(connection_id) = connection_id {
            return self.shard_of(connection_id);
        }
        let of_request =
            |request: &Request| (request.key.name.fingerprint % self.0.shards.len() as u128) as usize;
        &self.0.shards[request.map_or(0, of_request)]
    }

    pub(super) async fn look_everywhere<T: Send + 'static>(
        &self,
        look: impl Fn(&Shard) -> T + Clone + Send + 'static,
    ) -> Result<Vec<T>, CommandError> {
        let looks = self.0.shards.iter().map(|shard| self.look(shard, look.clone()));
        join_all(looks).await.into_iter().collect()
    }

    async fn look<T: Send + 'static>(
        &self,
        shard: &mpsc::Sender<Command>,
        look: impl FnOnce(&Shard) -> T + Send + 'static,
    ) -> Result<T, CommandError> {
        let (reply, seen) = oneshot::channel();
        let look = Box::new(move |shard: &Shard| drop(reply.send(look(shard))));
        let not_before = Some(Offset(self.0.answered.load(Ordering::Acquire)));
        let look = Command::Look(Look { not_before, look });
        shard.send(look).await.map_err(|_| CommandError::Unavailable)?;
        seen.await.map_err(|_| CommandError::Unavailable)
    }
}

fn connection_of(selection: &Selection) -> Option<&ConnectionId> {
    match &selection.audience {
        Audience::Connection(id) => Some(id),
        Audience::All | Audience::Group(_) | Audience::User(_) => None,
    }
}
