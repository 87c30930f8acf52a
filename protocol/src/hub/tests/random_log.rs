//! Random logs.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::option;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::super::*;
use super::harness::group;
use crate::filter::Filter;
use crate::log::{
    AckKey, Audience, Body, EndReason, Fingerprint, HandlerReply, HandlerState, IdempotencyKey, Key, Opened,
    Permission, Published, Refusal, RequestName, Selection, Sent, SequenceMark, SessionIdentity,
};
use crate::wire::{Metadata, Payload, PayloadKind, Subprotocol, Upstream};

pub(super) const SESSIONS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
pub(super) const GROUPS: [&str; 3] = ["g", "h", "i"];

const USER: &str = "u";

pub(super) type Log = Vec<Arc<Record>>;

#[derive(Debug, Clone)]
pub(super) enum Step {
    Open(&'static str, Subprotocol, Vec<&'static str>),
    Join(&'static str, Vec<&'static str>),
    Leave(&'static str, Vec<&'static str>),
    Publish(Option<&'static str>, Vec<&'static str>, bool),
    ChangeRule(&'static str, bool),
    /// By whom, under which request id, and what.
    Ask(Whom, Option<u8>, Asked),
    SequenceAck(&'static str, u64),
    Acked(Vec<&'static str>, u64),
    /// Whose, and whether the application is to be told.
    End(&'static str, bool),
    /// Whose, and whether the handler gave back a message and a state.
    Handled(&'static str, bool, bool),
    Told(&'static str),
    Boot,
    /// A retried append has happened twice.
    Twin(Index),
    /// A proposal whose outcome stays unknown for long.
    Doubt,
}

/// A selection in short.
#[derive(Debug, Clone)]
pub(super) struct Whom {
    audience: usize,
    excluded: Option<&'static str>,
    is_filtered: bool,
}

#[derive(Debug, Clone)]
pub(super) enum Asked {
    Send,
    Add(Vec<&'static str>),
    Remove(Vec<&'static str>),
    Close,
    Refused,
}

impl Whom {
    fn selection(&self) -> Selection {
        let audience = match self.audience {
            0 => Audience::All,
            1..=3 => Audience::Group(group(GROUPS[self.audience - 1])),
            4 => Audience::User(UserId::new(USER)),
            other => Audience::Connection(ConnectionId::new(SESSIONS[other - 5])),
        };
        let filter = self.is_filtered.then(|| Filter::parse("'g' in groups").unwrap());
        Selection { audience, excluded: self.excluded.map(ConnectionId::new).into_iter().collect(), filter }
    }
}

fn asked() -> impl Strategy<Value = Step> {
    let groups = || prop::sample::subsequence(GROUPS.to_vec(), 0..=3);
    let whom = (0..5 + SESSIONS.len(), option::weighted(0.3, select(SESSIONS.to_vec())), any::<bool>())
        .prop_map(|(audience, excluded, is_filtered)| Whom { audience, excluded, is_filtered });
    let what = prop_oneof![
        6 => Just(Asked::Send),
        2 => groups().prop_map(Asked::Add),
        2 => groups().prop_map(Asked::Remove),
        1 => Just(Asked::Close),
        1 => Just(Asked::Refused),
    ];
    (whom, option::weighted(0.5, 0u8..24), what)
        .prop_map(|(whom, request, what)| Step::Ask(whom, request, what))
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    let session = || select(SESSIONS.to_vec());
    let groups = || prop::sample::subsequence(GROUPS.to_vec(), 1..=3);
    let subprotocol = select(vec![Subprotocol::JsonReliable, Subprotocol::JsonReliable, Subprotocol::Json]);
    prop_oneof![
        4 => (session(), subprotocol, prop::sample::subsequence(GROUPS.to_vec(), 0..=2))
            .prop_map(|(id, subprotocol, groups)| Step::Open(id, subprotocol, groups)),
        4 => (session(), groups()).prop_map(|(id, groups)| Step::Join(id, groups)),
        2 => (session(), groups()).prop_map(|(id, groups)| Step::Leave(id, groups)),
        12 => (option::weighted(0.8, session()), groups(), any::<bool>())
            .prop_map(|(id, groups, no_echo)| Step::Publish(id, groups, no_echo)),
        1 => (session(), any::<bool>()).prop_map(|(id, allow)| Step::ChangeRule(id, allow)),
        6 => asked(),
        2 => (session(), 0u64..500).prop_map(|(id, sequence_id)| Step::SequenceAck(id, sequence_id)),
        2 => (prop::sample::subsequence(SESSIONS.to_vec(), 1..=3), 0u64..500)
            .prop_map(|(ids, sequence_id)| Step::Acked(ids, sequence_id)),
        1 => (session(), any::<bool>()).prop_map(|(id, is_told)| Step::End(id, is_told)),
        2 => (session(), any::<bool>(), any::<bool>())
            .prop_map(|(id, has_reply, has_state)| Step::Handled(id, has_reply, has_state)),
        1 => session().prop_map(Step::Told),
        1 => Just(Step::Boot),
        4 => any::<Index>().prop_map(Step::Twin),
        1 => Just(Step::Doubt),
    ]
}

/// Where a record of a random log is. Offsets may have gaps.
pub(super) fn offset_of(index: usize) -> Offset {
    Offset(index as u64 * 3)
}

/// Writes a log as proposers do: each key is new or a twin's, and says what was known when it was made.
pub(super) struct LogWriter {
    pub log: Log,
    /// The current boot.
    pub boot: BootId,
    ack_window_ids: u32,
    /// Requests of each kind that are remembered.
    pub window_requests: u32,
    proposers: [Proposer; 2],
    /// The number of each session.
    opened: BTreeMap<&'static str, Offset>,
    first_of_boot: usize,
    steps: u64,
}

impl Whom {
    pub fn everybody() -> Self {
        Self { audience: 0, excluded: None, is_filtered: false }
    }
}

impl LogWriter {
    pub fn new(ack_window_ids: u32) -> Self {
        Self {
            log: Vec::new(),
            boot: BootId(1),
            ack_window_ids,
            window_requests: 1000,
            proposers: [Proposer::new(BootId(1), 0), Proposer::new(BootId(1), 1)],
            opened: BTreeMap::new(),
            first_of_boot: 0,
            steps: 0,
        }
    }

    pub fn write(mut self, steps: &[Step]) -> Log {
        steps.iter().for_each(|step| self.take(step));
        self.log
    }

    /// Appends at most one record.
    pub fn take(&mut self, step: &Step) {
        let n = self.steps;
        self.steps += 1;
        let id = |id: &str| ConnectionId::new(id);
        let groups = |names: &[&str]| names.iter().map(|name| group(name)).collect::<Vec<_>>();
        let mut sequence_ack = None;
        let mut request = None;
        let (ack, body) = match step {
            // A connection id is never used again.
            Step::Open(name, ..) if self.opened.contains_key(name) => return,
            Step::Open(name, subprotocol, names) => {
                self.opened.insert(*name, offset_of(self.log.len()));
                (
                    false,
                    Body::Opened(Opened {
                        identity: SessionIdentity {
                            connection_id: id(name),
                            user_id: n.is_multiple_of(2).then(|| UserId::new(USER)),
                            subprotocol: *subprotocol,
                            custom_subprotocol: n.is_multiple_of(5).then(|| "chat".to_owned()),
                        },
                        roles: vec!["webpubsub.joinLeaveGroups.x*".to_owned()],
                        groups: groups(names),
                        ack_window_ids: self.ack_window_ids,
                        retention_seconds: 60,
                        state: None,
                    }),
                )
            }
            Step::Join(name, names) => {
                (true, Body::Joined { connection_id: id(name), groups: groups(names) })
            }
            Step::Leave(name, names) => (true, Body::Left { connection_id: id(name), groups: groups(names) }),
            Step::Publish(publisher, names, no_echo) => (
                publisher.is_some(),
                Body::Published(Published {
                    publisher: publisher.map(id),
                    user_id: None,
                    groups: groups(names),
                    no_echo: *no_echo,
                    ttl_seconds: 0,
                    payload: Payload { kind: PayloadKind::Text, bytes: format!("m{n}").into() },
                    metadata: Metadata::default(),
                }),
            ),
            Step::ChangeRule(name, allow) => {
                let (connection_id, permission, group) =
                    (id(name), Permission::SendToGroup, group(GROUPS[0]));
                let granted =
                    Body::Granted { connection_id: connection_id.clone(), permission, group: group.clone() };
                (false, if *allow { granted } else { Body::Revoked { connection_id, permission, group } })
            }
            Step::Ask(whom, id, what) => {
                request = id.map(|id| IdempotencyKey {
                    name: RequestName { id: u128::from(id), fingerprint: 0 },
                    window_seconds: 3600,
                    window_requests: self.window_requests,
                    first_sent: id.is_multiple_of(2).then_some(n),
                });
                let selection = whom.selection();
                let body = match what {
                    Asked::Send => Body::Sent(Sent {
                        selection,
                        ttl_seconds: 0,
                        payload: Payload { kind: PayloadKind::Text, bytes: format!("m{n}").into() },
                        metadata: Metadata::default(),
                    }),
                    Asked::Add(names) => Body::Added { selection, groups: groups(names) },
                    Asked::Remove(names) => Body::Removed { selection, groups: groups(names) },
                    Asked::Refused => Body::Refused(Refusal::UnknownUser),
                    Asked::Close => {
                        let takes_disconnected = n.is_multiple_of(2);
                        Body::Closed { selection, reason: String::new(), takes_disconnected }
                    }
                };
                (false, body)
            }
            Step::SequenceAck(name, sequence_id) => {
                sequence_ack = Some(*sequence_id);
                (false, Body::Left { connection_id: id(name), groups: groups(&["elsewhere"]) })
            }
            Step::Acked(names, sequence_id) => {
                let numbers = names.iter().filter_map(|name| self.opened.get(name));
                let mark = |session: &Offset| SequenceMark { session: *session, sequence_id: *sequence_id };
                let mut marks: Vec<_> = numbers.map(mark).collect();
                marks.sort_unstable();
                if marks.is_empty() {
                    return;
                }
                (false, Body::Acked { marks })
            }
            Step::End(name, is_told) => {
                let (reason, disconnected) = (EndReason::Expired, is_told.then_some(n));
                (false, Body::Ended { connection_id: id(name), reason, disconnected, attached: None })
            }
            Step::Handled(name, has_reply, has_state) => {
                let reply = has_reply.then(|| HandlerReply {
                    payload: Payload { kind: PayloadKind::Text, bytes: format!("m{n}").into() },
                    metadata: Metadata::default(),
                });
                let state = has_state.then(|| HandlerState(format!("s{n}").into()));
                (true, Body::Handled { connection_id: id(name), reply, state })
            }
            Step::Told(name) => (false, Body::Told { connection_ids: vec![id(name)] }),
            Step::Boot => {
                self.boot = BootId(self.boot.0 + 1);
                self.first_of_boot = self.log.len();
                self.proposers = [Proposer::new(self.boot, 0), Proposer::new(self.boot, 1)];
                let booted = if n.is_multiple_of(7) { Shard::booted_from_copy } else { Shard::booted };
                return self.log.push(Arc::new(booted(self.boot, Time(n), n.is_multiple_of(3))));
            }
            // Nothing of an earlier boot arrives after a boot.
            Step::Twin(_) if self.log.len() == self.first_of_boot => return,
            Step::Twin(which) => {
                let first = self.first_of_boot;
                return self.log.push(Arc::clone(&self.log[first + which.index(self.log.len() - first)]));
            }
            Step::Doubt => {
                self.proposers[n as usize % 2].next(Time(n), None);
                return;
            }
        };
        let fingerprint = Fingerprint::of(&Upstream::JoinGroup { group: group("g"), ack_id: Some(n) });
        let ack = ack.then_some(AckKey { ack_id: n, fingerprint });
        let proposer = &mut self.proposers[n as usize % 2];
        let (key, time) = proposer.next(Time(n), ack);
        proposer.settle(key.boot.counter);
        self.log.push(Arc::new(Record { key: Key { request, ..key }, time, sequence_ack, body }));
    }
}
