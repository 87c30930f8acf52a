//! A naive fold over the log: what each session is owed, and what it may be told.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use oncewire_protocol::filter::Filter;
use oncewire_protocol::log::{Audience, Body, EventId, HandlerState, Offset, Record, Selection, Time};
use oncewire_protocol::wire::{AckId, SequenceId, Subprotocol};

use super::steps::{FILTER, FILTERED_GROUP};

/// A message that a session is owed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    pub id: SequenceId,
    pub text: String,
    /// Where the log holds it.
    pub index: usize,
    pub expires_at: Option<Time>,
}

/// One session as the log has it.
#[derive(Debug)]
pub struct Session {
    pub subprotocol: Subprotocol,
    user: Option<String>,
    pub groups: BTreeSet<String>,
    /// The application has put it into groups, which is checked against what had come back before only.
    is_added: bool,
    pub deliveries: Vec<Delivery>,
    /// Its client has acknowledged everything up to this id, as far as its records or its socket said.
    pub acknowledged: SequenceId,
    /// The same as far as the log says.
    pub marked: SequenceId,
    /// The offset of its first record.
    number: Offset,
    /// What event handlers have noted.
    pub state: Option<HandlerState>,
    /// Boots after the one that opened it.
    boots: u32,
    window: VecDeque<AckId>,
    window_ids: usize,
}

impl Session {
    /// What its client has not acknowledged.
    pub fn owed(&self) -> impl Iterator<Item = &Delivery> {
        self.deliveries.iter().filter(|delivery| delivery.id > self.acknowledged)
    }

    /// Whether it remembers that a request with this ack id was executed.
    pub fn has_in_window(&self, ack_id: AckId) -> bool {
        self.window.contains(&ack_id)
    }

    fn mark(&mut self, id: SequenceId) {
        self.marked = self.marked.max(id);
        self.acknowledged = self.acknowledged.max(id);
    }

    fn owe(&mut self, text: String, index: usize, expires_at: Option<Time>) {
        let id = id_of(self.deliveries.len() + 1);
        self.deliveries.push(Delivery { id, text, index, expires_at });
    }
}

/// The log, and what follows from it.
#[derive(Debug, Default)]
pub struct Truth {
    pub log: Vec<(Offset, Arc<Record>)>,
    pub sessions: BTreeMap<String, Session>,
    /// All that ever were, with what they spoke.
    pub names: Vec<(String, Subprotocol)>,
    /// Sessions that are over and of which the application is to be told: the number of the event, and the state.
    pub untold: BTreeMap<String, (u64, Option<HandlerState>)>,
    /// Of each session that ever was, the ack ids of requests that were executed.
    executed: BTreeMap<String, BTreeSet<AckId>>,
    keys: BTreeSet<(u128, u16, u64)>,
    /// For each boot and shard, below which counter nothing more is awaited.
    settled_below: BTreeMap<(u128, u16), u64>,
    ended: BTreeSet<String>,
    groups_max: usize,
}

/// Each delivery's id, as long as all payloads together are small.
fn id_of(place: usize) -> SequenceId {
    let place = place as u64;
    place + 300 * ((place - 1) / 128)
}

impl Truth {
    /// An empty log of sessions that may be in so many groups.
    pub fn new(groups_max: usize) -> Self {
        Self { groups_max, ..Self::default() }
    }

    /// The latest time in the log.
    pub fn last_time(&self) -> Time {
        self.log.iter().map(|(_, record)| record.time).max().unwrap_or_default()
    }

    /// A record lands in the log, with a gap now and then.
    pub fn land(&mut self, record: &Arc<Record>) {
        let next = self.log.last().map_or(0, |(offset, _)| offset.0 + 1);
        let gap = u64::from(self.log.len() % 5 == 4) * 3;
        self.log.push((Offset(next + gap), Arc::clone(record)));
        let key = record.key.boot;
        let is_first = self.keys.insert((key.boot.0, key.shard, key.counter));
        let floor = self.settled_below.entry((key.boot.0, key.shard)).or_default();
        let is_late = key.counter < *floor;
        *floor = (*floor).max(key.settled_below);
        if is_first && is_late {
            // Its proposer had given it up with the session; nobody was told that it happened.
            let name = record.body.connection_id().map(|id| id.as_str());
            let is_of_marks = matches!(record.body, Body::Acked { .. });
            let is_over = name.is_some_and(|name| self.ended.contains(name));
            assert!(is_of_marks || is_over, "a record that nobody waits for");
        } else if is_first {
            self.fold(record);
        }
    }

    fn fold(&mut self, record: &Record) {
        let index = self.log.len() - 1;
        let name = record.body.connection_id().map(|id| id.as_str().to_owned()).unwrap_or_default();
        if let (Some(ack), Some(session)) = (record.key.ack, self.sessions.get_mut(&name)) {
            assert!(!session.window.contains(&ack.ack_id), "{name} has executed {} twice", ack.ack_id);
            session.window.push_back(ack.ack_id);
            let surplus = session.window.len().saturating_sub(session.window_ids);
            session.window.drain(..surplus);
        }
        if let Some(ack) = record.key.ack {
            self.executed.entry(name.clone()).or_default().insert(ack.ack_id);
        }
        if let (Some(id), Some(session)) = (record.sequence_ack, self.sessions.get_mut(&name)) {
            session.mark(id);
        }
        match &record.body {
            Body::Acked { marks } => {
                for mark in marks {
                    let named = self.sessions.values_mut().find(|session| session.number == mark.session);
                    named.into_iter().for_each(|session| session.mark(mark.sequence_id));
                }
            }
            Body::Booted { takes_disconnected, ends_all } => {
                for session in self.sessions.values_mut() {
                    session.boots += 1;
                }
                self.end(
                    |_, session| *ends_all || !session.subprotocol.is_reliable(),
                    |session| takes_disconnected.then(|| EventId::last_number(session.boots - 1)),
                );
            }
            Body::Opened(opened) => {
                self.names.push((name.clone(), opened.identity.subprotocol));
                let session = Session {
                    subprotocol: opened.identity.subprotocol,
                    user: opened.identity.user_id.as_ref().map(ToString::to_string),
                    is_added: false,
                    groups: opened.groups.iter().map(ToString::to_string).collect(),
                    deliveries: Vec::new(),
                    acknowledged: 0,
                    marked: 0,
                    number: self.log[index].0,
                    state: opened.state.clone(),
                    boots: 0,
                    window: VecDeque::new(),
                    window_ids: opened.ack_window_ids as usize,
                };
                assert!(self.sessions.insert(name.clone(), session).is_none(), "{name} is opened twice");
            }
            Body::Joined { groups, .. } => {
                if let Some(session) = self.sessions.get_mut(&name) {
                    session.groups.extend(groups.iter().map(ToString::to_string));
                }
            }
            Body::Left { groups, .. } => {
                if let Some(session) = self.sessions.get_mut(&name) {
                    session.groups.retain(|group| !groups.iter().any(|left| left.as_str() == group));
                }
            }
            Body::Published(published) => {
                let text = String::from_utf8_lossy(&published.payload.bytes);
                let ttl = u64::from(published.ttl_seconds);
                let expires_at = (ttl > 0).then(|| Time(record.time.0 + 1000 * ttl));
                for group in &published.groups {
                    for (member, session) in &mut self.sessions {
                        if session.groups.contains(group.as_str()) && !(published.no_echo && *member == name)
                        {
                            session.owe(text.clone().into_owned(), index, expires_at);
                        }
                    }
                }
            }
            Body::Granted { .. } | Body::Revoked { .. } => {}
            Body::Handled { reply, state, .. } => {
                if let Some(session) = self.sessions.get_mut(&name) {
                    if let Some(reply) = reply {
                        let text = String::from_utf8_lossy(&reply.payload.bytes).into_owned();
                        session.owe(text, index, None);
                    }
                    if state.is_some() {
                        session.state.clone_from(state);
                    }
                }
            }
            Body::Told { connection_ids } => {
                for id in connection_ids {
                    self.untold.remove(id.as_str());
                }
            }
            Body::Closed { selection, takes_disconnected, .. } => {
                let Audience::Connection(closed) = &selection.audience else {
                    unreachable!("no step of this target asks for it")
                };
                self.end(
                    |name, _| name == closed.as_str(),
                    |session| takes_disconnected.then(|| EventId::last_number(session.boots)),
                );
            }
            Body::Added { selection, groups } => {
                for session in self.selected(selection) {
                    session.is_added = true;
                    session.groups.extend(groups.iter().map(ToString::to_string));
                }
            }
            Body::Removed { selection, groups } => {
                for session in self.selected(selection) {
                    session.groups.retain(|group| {
                        !groups.is_empty() && !groups.iter().any(|left| left.as_str() == group)
                    });
                }
            }
            Body::Refused(_) => {}
            // One gateway alone writes these logs.
            Body::NodeStarted(_) | Body::NodeGone(_) | Body::Attached { .. } | Body::Released { .. } => {}
            Body::Sent(_) => {
                unreachable!("no step of this target asks for it");
            }
            Body::Ended { disconnected, .. } => self.end(|other, _| other == name, |_| *disconnected),
        }
        if let Some(session) = self.sessions.get(&name) {
            let is_few = session.groups.len() <= self.groups_max;
            assert!(is_few || session.is_added, "{name} is in too many groups");
        }
    }

    /// Some sessions are over; `number` is the one by which the application is told, if it is.
    fn end(&mut self, is_over: impl Fn(&str, &Session) -> bool, number: impl Fn(&Session) -> Option<u64>) {
        let Self { sessions, untold, ended, .. } = self;
        sessions.retain(|name, session| {
            let is_over = is_over(name, session);
            if is_over {
                ended.insert(name.clone());
                untold.extend(number(session).map(|number| (name.clone(), (number, session.state.clone()))));
            }
            !is_over
        });
    }

    /// Whom the application means.
    fn selected(&mut self, selection: &Selection) -> impl Iterator<Item = &mut Session> {
        let is_meant = |name: &str, session: &Session| {
            let is_in_audience = match &selection.audience {
                Audience::All => true,
                Audience::Group(group) => session.groups.contains(group.as_str()),
                Audience::User(user) => session.user.as_deref() == Some(user.as_str()),
                Audience::Connection(id) => id.as_str() == name,
            };
            // The only filter of this target.
            let is_selected = match selection.filter.as_ref().map(Filter::as_str) {
                Some(filter) => filter == FILTER && session.groups.contains(FILTERED_GROUP),
                None => true,
            };
            is_in_audience && is_selected && !selection.excluded.iter().any(|id| id.as_str() == name)
        };
        self.sessions.iter_mut().filter_map(move |(name, session)| is_meant(name, session).then_some(session))
    }

    /// A client acknowledges up to `id`, when this many records had come back.
    pub fn acknowledge(&mut self, name: &str, id: SequenceId, applied: usize) {
        let Some(session) = self.sessions.get_mut(name).filter(|session| session.subprotocol.is_reliable())
        else {
            return;
        };
        let given =
            session.deliveries.iter().filter(|delivery| delivery.index < applied && delivery.id <= id);
        session.acknowledged = session.acknowledged.max(given.map(|delivery| delivery.id).max().unwrap_or(0));
    }

    /// Sequence acks that no record carries do not outlive the process.
    pub fn forget_acknowledged(&mut self) {
        for session in self.sessions.values_mut() {
            session.acknowledged = session.marked;
        }
    }

    /// Whether the log has a session, or had it.
    pub fn has_opened(&self, name: &str) -> bool {
        self.names.iter().any(|(known, _)| known == name)
    }

    /// Whether a session's request with this ack id is in the log.
    pub fn has_executed(&self, name: &str, ack_id: AckId) -> bool {
        self.executed.get(name).is_some_and(|executed| executed.contains(&ack_id))
    }
}
