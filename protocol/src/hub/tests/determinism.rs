//! R11: folding the same log in any portions, at any time and in any number of shards gives what a naive fold gives.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::super::*;
use super::harness::{group, settings};
use crate::log::{AckKey, Body, BootKey, EndReason, Fingerprint, Key, Opened, Permission, Published};
use crate::session::testing::read;
use crate::wire::{Metadata, Payload, PayloadKind, Subprotocol, Upstream};

const SESSIONS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const GROUPS: [&str; 3] = ["g", "h", "i"];

type Log = Vec<Arc<Record>>;
/// For each session what its client would be sent, as `<sequence id> <payload>`; the groups that it is in; and whether
/// it may publish to the first of [`GROUPS`].
type Outcome = BTreeMap<String, (Vec<String>, BTreeSet<GroupName>, bool)>;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn r11_any_portions_any_clock_and_any_shards_fold_alike(
        steps in vec(step(), 1..300),
        cuts in vec(any::<Index>(), 0..10),
        clock in any::<u64>(),
    ) {
        let log = log_of(&steps);
        let at_once = outcome(&[fold(&log, &[], Shard::WHOLE, Time(0))]);
        prop_assert_eq!(&at_once, &naive(&log));
        prop_assert_eq!(&at_once, &outcome(&[fold(&log, &cuts, Shard::WHOLE, Time(clock))]));
        let shards: Vec<Hub> =
            (0..3).map(|index| fold(&log, &cuts, Shard { index, count: 3 }, Time(clock))).collect();
        prop_assert_eq!(&at_once, &outcome(&shards));
    }
}

#[derive(Debug, Clone)]
enum Step {
    Open(&'static str, Subprotocol, Vec<&'static str>),
    Join(&'static str, Vec<&'static str>),
    Leave(&'static str, Vec<&'static str>),
    Publish(Option<&'static str>, Vec<&'static str>, bool),
    ChangeRule(&'static str, bool),
    SequenceAck(&'static str, u64),
    End(&'static str),
    Boot,
    /// A retried append has happened twice.
    Twin(Index),
    /// A proposal whose outcome stays unknown for long.
    Doubt,
}

fn step() -> impl Strategy<Value = Step> {
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
        2 => (session(), 0u64..500).prop_map(|(id, sequence_id)| Step::SequenceAck(id, sequence_id)),
        1 => session().prop_map(Step::End),
        1 => Just(Step::Boot),
        4 => any::<Index>().prop_map(Step::Twin),
        1 => Just(Step::Doubt),
    ]
}

/// A log as proposers write it: each key is new or a twin's, and says what was known when it was made.
fn log_of(steps: &[Step]) -> Log {
    let mut log: Log = Vec::new();
    let mut boot = 1;
    let mut proposers = [Proposer::new(BootId(1), 0), Proposer::new(BootId(1), 1)];
    let mut opened = BTreeSet::new();
    let mut first_of_boot = 0;
    for (n, step) in steps.iter().enumerate() {
        let n = n as u64;
        let id = |id: &str| ConnectionId::new(id);
        let groups = |names: &[&str]| names.iter().map(|name| group(name)).collect::<Vec<_>>();
        let proposer = &mut proposers[n as usize % 2];
        let mut sequence_ack = None;
        let (ack, body) = match step {
            // A connection id is never used again.
            Step::Open(name, ..) if !opened.insert(*name) => continue,
            Step::Open(name, subprotocol, names) => (
                false,
                Body::Opened(Opened {
                    connection_id: id(name),
                    user_id: None,
                    subprotocol: *subprotocol,
                    roles: vec![],
                    groups: groups(names),
                    ack_window_ids: 1000,
                    retention_seconds: 60,
                }),
            ),
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
            Step::SequenceAck(name, sequence_id) => {
                sequence_ack = Some(*sequence_id);
                (false, Body::Left { connection_id: id(name), groups: groups(&["elsewhere"]) })
            }
            Step::End(name) => (false, Body::Ended { connection_id: id(name), reason: EndReason::Expired }),
            Step::Boot => {
                boot += 1;
                first_of_boot = log.len();
                proposers = [Proposer::new(BootId(boot), 0), Proposer::new(BootId(boot), 1)];
                log.push(Arc::new(Hub::booted(BootId(boot), Time(n))));
                continue;
            }
            // Nothing of an earlier boot arrives after a boot.
            Step::Twin(_) if log.len() == first_of_boot => continue,
            Step::Twin(which) => {
                log.push(Arc::clone(&log[first_of_boot + which.index(log.len() - first_of_boot)]));
                continue;
            }
            Step::Doubt => {
                proposer.next(Time(n), None);
                continue;
            }
        };
        let fingerprint = Fingerprint::of(&Upstream::JoinGroup { group: group("g"), ack_id: Some(n) });
        let ack = ack.then_some(AckKey { ack_id: n, fingerprint });
        let (key, time) = proposer.next(Time(n), ack);
        proposer.settle(key.boot.counter);
        log.push(Arc::new(Record { key, time, sequence_ack, body }));
    }
    log
}

fn fold(log: &Log, cuts: &[Index], shard: Shard, now: Time) -> Hub {
    let budget = Arc::new(MemoryBudget::new(usize::MAX));
    let mut hub = Hub::new(settings(), shard, BootId(u128::MAX), budget);
    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(log.len() + 1)).collect();
    ends.push(log.len());
    ends.sort_unstable();
    let mut from = 0;
    for end in ends {
        let portion = (from..end).map(|n| (Offset(n as u64 * 3), Arc::clone(&log[n]))).collect();
        from = end;
        hub.handle(now, Input::Records(portion));
        hub.handle(now, Input::Timeout);
        assert!(hub.poll_output().is_none(), "one that is not live decides nothing");
    }
    hub
}

fn outcome(shards: &[Hub]) -> Outcome {
    let mut outcome = Outcome::new();
    for session in shards.iter().flat_map(|hub| hub.sessions.values()) {
        let mut outbox = session.outbox.lock();
        let epoch = outbox.attach();
        let mut deliveries = read(&mut outbox, epoch, Time(0));
        if !session.subprotocol.is_reliable() {
            // The naive fold counts for everybody.
            let counted = deliveries.iter().zip(1..).map(|(text, place)| format!("{} {text}", id_of(place)));
            deliveries = counted.collect();
        }
        let may_publish = session.permissions.allows(Permission::SendToGroup, &group(GROUPS[0]));
        let state = (deliveries, session.groups.clone(), may_publish);
        assert_eq!(outcome.insert(session.connection_id.to_string(), state), None);
    }
    outcome
}

/// The id of a session's n-th small delivery.
fn id_of(place: usize) -> u64 {
    let place = place as u64;
    place + 300 * ((place - 1) / 128)
}

#[derive(Default)]
struct Naive {
    is_reliable: bool,
    groups: BTreeSet<GroupName>,
    deliveries: Vec<String>,
    acknowledged: usize,
    may_publish: bool,
}

fn naive(log: &Log) -> Outcome {
    let mut seen: Vec<BootKey> = Vec::new();
    let mut sessions: BTreeMap<String, Naive> = BTreeMap::new();
    for record in log {
        let Record { key: Key { boot, .. }, sequence_ack, body, .. } = &**record;
        if seen
            .iter()
            .any(|known| (known.boot, known.shard, known.counter) == (boot.boot, boot.shard, boot.counter))
        {
            continue;
        }
        seen.push(*boot);
        let name = body.connection_id().map(ToString::to_string).unwrap_or_default();
        match body {
            Body::Booted => sessions.retain(|_, session| session.is_reliable),
            Body::Opened(opened) => {
                let groups = opened.groups.iter().cloned().collect();
                let is_reliable = opened.subprotocol.is_reliable();
                sessions.insert(name, Naive { is_reliable, groups, ..Naive::default() });
            }
            Body::Joined { groups, .. } => {
                sessions.entry(name).and_modify(|session| session.groups.extend(groups.iter().cloned()));
            }
            Body::Left { groups, .. } => {
                let id = sequence_ack.unwrap_or_default();
                sessions.entry(name).and_modify(|session| {
                    session.groups.retain(|group| !groups.contains(group));
                    let acknowledged =
                        (1..=session.deliveries.len()).filter(|place| id_of(*place) <= id).count();
                    session.acknowledged = session.acknowledged.max(acknowledged);
                });
            }
            Body::Published(published) => {
                for group in &published.groups {
                    for (member, session) in &mut sessions {
                        let is_left_out = published.no_echo && *member == name && !name.is_empty();
                        if session.groups.contains(group) && !is_left_out {
                            let text = String::from_utf8_lossy(&published.payload.bytes);
                            session
                                .deliveries
                                .push(format!("{} {text}", id_of(session.deliveries.len() + 1)));
                        }
                    }
                }
            }
            Body::Granted { .. } | Body::Revoked { .. } => {
                let allow = matches!(body, Body::Granted { .. });
                sessions.entry(name).and_modify(|session| session.may_publish = allow);
            }
            Body::Ended { .. } => {
                sessions.remove(&name);
            }
        }
    }
    let outcome = sessions.into_iter().map(|(name, session)| {
        let acknowledged = if session.is_reliable { session.acknowledged } else { 0 };
        (name, (session.deliveries[acknowledged..].to_vec(), session.groups, session.may_publish))
    });
    outcome.collect()
}
