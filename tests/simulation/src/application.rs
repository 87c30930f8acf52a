//! The application: what it asks the gateway for, with the habits of its SDKs. A request whose answer is lost, or that
//! could not be stored, is sent again under the same id; and so is, now and then, one that was answered. Half of its
//! requests are repeatable: such a one has to be answered each time as the first time, as long as it is remembered.
//!
//! To the checker a request that sends is a publisher of its own. What goes to the sessions in a group is a publish to
//! the group, whether the group was named or a filter selected it.
//!
//! One group of each hub is the application's: clients neither join nor leave it. What it does to their memberships is a
//! request without an ack to the checker, which can't tell when it was executed; so that it was is looked up as well.

use oncewire_checker::{Event as Seen, Membership};
use oncewire_protocol::filter::Filter;
use oncewire_protocol::hub::{Action, Command, CommandError, CommandId, Done, Input};
use oncewire_protocol::log::{Audience, IdempotencyKey, Permission, Selection, Sent};
use oncewire_protocol::wire::{
    ConnectionId, GroupName, Message, Metadata, Payload, PayloadKind, Sender, Upstream,
};
use oncewire_recorder::{acked, opened};

use crate::Failure;
use crate::coverage::Path;
use crate::honest::payload;
use crate::world::{Event, World};

/// The group of each hub that the application puts sessions into.
const LOUNGE: &str = "lounge";
/// Sessions that it means at once, at most.
const MEANT_MAX: usize = 3;

/// The only ack id of a publisher.
const ACK_ID: u64 = 1;

/// A request that is not answered, or is going to be sent once more.
pub struct Asked {
    hub: usize,
    action: Action,
    key: IdempotencyKey,
    /// The publisher and its publish, as the checker sees them.
    publish: Option<(String, Upstream)>,
    /// The sessions whose membership it changes.
    meant: Vec<String>,
    /// How it was answered the first time.
    first: Option<Result<(), CommandError>>,
}

impl Asked {
    fn new(hub: usize, action: Action, key: IdempotencyKey) -> Self {
        Self { hub, action, key, publish: None, meant: Vec::new(), first: None }
    }
}

impl World {
    /// The application asks for something new.
    pub(crate) fn ask_application(&mut self) {
        let hub = self.random.index(self.hubs.len());
        self.next_asked += 1;
        let number = self.next_asked;
        if self.random.permille(200) {
            return self.change_membership(hub, number);
        }
        let (action, publish) = if self.random.permille(120) {
            // Names are known before sessions are opened, and closing nobody says nothing.
            let Some(connection_id) = self.recent_session(hub).filter(|id| self.exists(hub, id)) else {
                return;
            };
            self.closed_by_application.insert(connection_id.to_string());
            let selection = Selection::whole(Audience::Connection(connection_id));
            (Action::Close { selection, reason: "weather".to_owned() }, None)
        } else {
            let (sent, publish) = self.message_of_application();
            let name = format!("application-{number}");
            let event = opened(&name, self.hubs[hub].name, false, &[], false);
            self.record(event);
            (Action::Send(sent), Some((name, publish)))
        };
        let key = self.new_idempotency_key(hub, number, number.is_multiple_of(2));
        self.ask(number, Asked { publish, ..Asked::new(hub, action, key) });
    }

    /// Puts some sessions into the application's group, or takes them out. One such request at a time: what comes of it
    /// can be looked up then.
    fn change_membership(&mut self, hub: usize, number: u64) {
        let is_open = |asked: &Asked| !asked.meant.is_empty() && asked.first.is_none();
        let Ok(lounge) = GroupName::new(LOUNGE) else { return };
        if self.asked.values().any(is_open) {
            return;
        }
        let known: Vec<String> =
            self.actors.iter().flatten().filter_map(|actor| actor.session_in(hub)).collect();
        let mut meant: Vec<String> = (0..MEANT_MAX)
            .filter_map(|_| known.get(self.random.index(known.len().max(1))).cloned())
            .collect();
        meant.sort_unstable();
        meant.dedup();
        let Some(first) = meant.first() else { return };
        let selection = if meant.len() == 1 && self.random.permille(500) {
            Selection::whole(Audience::Connection(ConnectionId::new(first)))
        } else {
            let filter = format!("connectionId in ('{}')", meant.join("', '"));
            Selection { filter: Filter::parse(&filter).ok(), ..Selection::whole(Audience::All) }
        };
        let action = if self.random.permille(600) {
            Action::Add { selection, groups: vec![lounge] }
        } else {
            Action::Remove { selection, groups: vec![lounge] }
        };
        let key = self.new_idempotency_key(hub, number, number.is_multiple_of(2));
        self.ask(number, Asked { meant, ..Asked::new(hub, action, key) });
    }

    fn ask(&mut self, number: u64, asked: Asked) {
        self.asked.insert(number, asked);
        self.ask_again(number);
    }

    fn message_of_application(&mut self) -> (Sent, Upstream) {
        let lounge = GroupName::new(LOUNGE).ok().filter(|_| self.random.permille(300));
        let group = lounge.unwrap_or_else(|| self.random_group());
        let marker = self.fresh_marker();
        let mut payload = payload(&mut self.random, &marker, 10);
        let selection = if self.random.permille(500) {
            Selection::whole(Audience::Group(group.clone()))
        } else {
            self.note(Path::Filtered);
            // Its receivers see no group, so the recorder has to find it in the message.
            let text = format!("#{marker}#{group}");
            payload = Payload { kind: PayloadKind::Text, bytes: text.into() };
            let filter = Filter::parse(&format!("'{group}' in groups and not (connectionId eq null)")).ok();
            Selection { filter, ..Selection::whole(Audience::All) }
        };
        let ttl_seconds = if self.random.permille(100) { self.random.within((1, 5)) as u16 } else { 0 };
        let publish = Upstream::SendToGroup {
            group,
            payload: payload.clone(),
            metadata: Metadata::default(),
            ack_id: Some(ACK_ID),
            no_echo: false,
            ttl_seconds,
        };
        (Sent { selection, ttl_seconds, payload, metadata: Metadata::default() }, publish)
    }

    /// Sends a request, for the first time or again.
    pub(crate) fn ask_again(&mut self, number: u64) {
        let Some(asked) = self.asked.get(&number) else { return };
        if !self.is_up {
            return self.schedule_in((50, 1_000), Event::AskAgain { number });
        }
        let (hub, action, key, asked_of) = (asked.hub, asked.action.clone(), asked.key, asked.meant.clone());
        if let Some((name, publish)) = &asked.publish
            && let Some(event) = self.recorder.request(self.checker_us(), name, publish)
        {
            self.record(event);
        }
        for connection in asked_of {
            let change = Membership { connection, group: LOUNGE.to_owned(), ack_id: None };
            let is_add = matches!(action, Action::Add { .. });
            self.record(if is_add { Seen::Join(change) } else { Seen::Leave(change) });
        }
        let shard = match &action {
            Action::Close { selection: Selection { audience: Audience::Connection(id), .. }, .. }
            | Action::Add { selection: Selection { audience: Audience::Connection(id), .. }, .. }
            | Action::Remove { selection: Selection { audience: Audience::Connection(id), .. }, .. } => {
                self.hubs[hub].shard_of(id)
            }
            Action::ChangeRule { connection_id, .. } => self.hubs[hub].shard_of(connection_id),
            _ => number as usize % self.hubs[hub].shards.len(),
        };
        self.command(hub, shard, Some(number), Some(key), action);
    }

    /// The application changes a permission of some session.
    pub(crate) fn change_rule(&mut self) {
        let hub = self.random.index(self.hubs.len());
        let Some(connection_id) = self.recent_session(hub).filter(|_| self.is_up) else { return };
        let allow = self.random.permille(600);
        self.note(if allow { Path::RuleGranted } else { Path::RuleRevoked });
        let permission = self.random.pick(&[Permission::JoinLeaveGroup, Permission::SendToGroup]);
        let group = self.random_group();
        let shard = self.hubs[hub].shard_of(&connection_id);
        let action = Action::ChangeRule { connection_id, permission, group, allow };
        if self.random.permille(500) {
            return self.command(hub, shard, None, None, action);
        }
        self.next_asked += 1;
        let number = self.next_asked;
        let key = self.new_idempotency_key(hub, number, true);
        self.ask(number, Asked::new(hub, action, key));
    }

    pub(crate) fn exists(&self, hub: usize, connection_id: &ConnectionId) -> bool {
        let shard = self.hubs[hub].shards.get(self.hubs[hub].shard_of(connection_id));
        shard.is_some_and(|shard| shard.shard().has(&Audience::Connection(connection_id.clone())))
    }

    fn recent_session(&mut self, hub: usize) -> Option<ConnectionId> {
        let known = self.hubs[hub].known.len();
        let back = self.random.index(known.clamp(1, 8));
        self.hubs[hub].known.get(known.checked_sub(1 + back)?).cloned()
    }

    fn command(
        &mut self,
        hub: usize,
        shard: usize,
        asked: Option<u64>,
        request: Option<IdempotencyKey>,
        action: Action,
    ) {
        self.next_command += 1;
        self.commands.insert(self.next_command, asked);
        let command = Command { command: CommandId(self.next_command), request, is_strict: false, action };
        self.send(hub, shard, Input::Command(Box::new(command)), None);
    }

    /// A shard has answered a command.
    pub(crate) fn command_done(
        &mut self,
        hub: usize,
        shard: usize,
        command: u64,
        outcome: Result<Done, CommandError>,
    ) {
        let Some(number) = self.commands.remove(&command).flatten() else { return };
        let Some(asked) = self.asked.get_mut(&number) else { return };
        let answer = outcome.map(|_| ());
        match outcome {
            Err(CommandError::Unavailable) => return self.schedule_in((20, 500), Event::AskAgain { number }),
            Err(CommandError::PerhapsForgotten) if asked.key.is_repeatable() => {
                self.coverage.note(Path::RequestForgotten);
                self.asked.remove(&number);
                return;
            }
            Err(CommandError::OtherRequest | CommandError::PerhapsForgotten) => {
                return self.fail(Failure::Driver(format!("request {number} was answered {outcome:?}")));
            }
            Err(_) if !asked.key.is_repeatable() => {
                self.asked.remove(&number);
                return;
            }
            Err(_) if asked.first == Some(answer) => self.coverage.note(Path::RefusalRepeated),
            Err(_) | Ok(Done::Executed) => {}
            Ok(Done::Repeated) => self.coverage.note(Path::RequestRepeated),
        }
        let is_first = asked.first.is_none();
        let first = *asked.first.get_or_insert(answer);
        if first != answer {
            let failure = format!("request {number} was answered {first:?}, and then {answer:?}");
            return self.fail(Failure::Driver(failure));
        }
        let closed = match &asked.action {
            Action::Close { selection, .. } if outcome == Ok(Done::Executed) => {
                Some(selection.audience.clone())
            }
            _ => None,
        };
        let meant = if outcome == Ok(Done::Executed) { asked.meant.clone() } else { Vec::new() };
        let is_add = matches!(asked.action, Action::Add { .. });
        let publisher = asked.publish.as_ref().map(|(name, _)| name.clone());
        let publisher = publisher.filter(|_| is_first && answer.is_ok());
        if let Some(audience) = closed {
            self.note(Path::ClosedByApplication);
            if self.hubs[hub].shards[shard].shard().has(&audience) {
                self.fail(Failure::Driver(format!("{audience:?} is there after it was closed")));
            }
        }
        if !meant.is_empty() {
            self.note(if is_add { Path::AddedByApplication } else { Path::RemovedByApplication });
            self.check_membership(hub, shard, &meant, is_add);
        }
        if let Some(name) = publisher {
            let event = acked(&name, ACK_ID, None);
            self.record(event);
        }
        if self.random.permille(300) {
            self.schedule_in((0, 3_000), Event::AskAgain { number });
        } else {
            self.asked.remove(&number);
        }
    }

    /// The sessions of this shard are in the application's group now, or not.
    fn check_membership(&mut self, hub: usize, shard: usize, meant: &[String], is_in: bool) {
        let Ok(lounge) = GroupName::new(LOUNGE) else { return };
        let shard = self.hubs[hub].shards[shard].shard();
        let members = shard.members(&lounge, None, usize::MAX);
        let is_wrong = |name: &&String| {
            let id = ConnectionId::new(name);
            let is_member = members.iter().any(|member| member.connection_id == id);
            shard.has(&Audience::Connection(id)) && is_member != is_in
        };
        if let Some(name) = meant.iter().find(is_wrong) {
            let failure = format!("{name} is in the application's group: {}", !is_in);
            self.fail(Failure::Driver(failure));
        }
    }

    /// Answers that the process owed are lost with it.
    pub(crate) fn lose_answers(&mut self) {
        for number in std::mem::take(&mut self.commands).into_values().flatten() {
            self.schedule_in((50, 1_000), Event::AskAgain { number });
        }
    }

    /// With the history it may be forgotten that something was done: a repetition would do it again.
    pub(crate) fn repeat_nothing(&mut self) {
        self.asked.clear();
    }
}

/// A message as a publish to a group, also where the application has selected the group by a filter.
pub(crate) fn as_published(mut message: Message) -> Message {
    if message.sender == Sender::Server {
        let name = message
            .payload
            .bytes
            .rsplit(|byte| *byte == b'#')
            .next()
            .and_then(|n| std::str::from_utf8(n).ok());
        if let Some(group) = name.and_then(|name| GroupName::new(name).ok()) {
            message.sender = Sender::Group { group, user_id: None };
        }
    }
    message
}
