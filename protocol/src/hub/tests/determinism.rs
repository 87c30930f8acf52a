//! R11: folding the same log in any portions, at any time and in any number of shards gives what a naive fold gives.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use super::super::*;
use super::harness::{group, settings};
use super::random_log::{GROUPS, Log, LogWriter, offset_of, step};
use crate::log::{Audience, Body, BootKey, CHUNKS, HandlerState, Key, Permission, RequestName, Selection};
use crate::session::testing::read;

/// For each session what its client would be sent, as `<sequence id> <payload>`; the groups that it is in; and whether
/// it may publish to the first of [`GROUPS`]; and what event handlers have noted. For each that the application is to be told
/// of, the number of its last event, and that note.
type Outcome = BTreeMap<String, (Vec<String>, BTreeSet<GroupName>, bool, String)>;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn r11_any_portions_any_clock_and_any_shards_fold_alike(
        steps in vec(step(), 1..300),
        cuts in vec(any::<Index>(), 0..10),
        clock in any::<u64>(),
        portion in 1usize..200,
    ) {
        let log = LogWriter::new(1000).write(&steps);
        let at_once = outcome(&[fold(&log, &[], ShardId::WHOLE, Time(0), FOLD_STEPS_MAX)]);
        prop_assert_eq!(&at_once, &naive(&log));
        prop_assert_eq!(&at_once, &outcome(&[fold(&log, &cuts, ShardId::WHOLE, Time(clock), portion)]));
        let shards: Vec<Shard> =
            (0..3).map(|index| fold(&log, &cuts, ShardId { index, count: 3 }, Time(clock), portion)).collect();
        prop_assert_eq!(&at_once, &outcome(&shards));
    }
}

fn fold(log: &Log, cuts: &[Index], shard: ShardId, now: Time, portion_steps: usize) -> Shard {
    let budget = Arc::new(MemoryBudget::new(usize::MAX));
    let mut hub = Shard::new(settings(), shard, BootId(u128::MAX), budget);
    hub.fold_in_portions_of(portion_steps);
    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(log.len() + 1)).collect();
    ends.push(log.len());
    ends.sort_unstable();
    let mut from = 0;
    for end in ends {
        let portion = (from..end).map(|n| (offset_of(n), Arc::clone(&log[n]))).collect();
        from = end;
        hub.handle(now, Input::Records(portion));
        while hub.has_waiting() {
            // Others are served in between, and see nothing by halves.
            hub.handle(now, Input::Timeout);
            hub.handle(now, Input::GoOn);
        }
        hub.handle(now, Input::Timeout);
        assert!(hub.poll_output().is_none(), "one that is not live decides nothing");
    }
    hub
}

fn outcome(shards: &[Shard]) -> Outcome {
    let mut outcome = Outcome::new();
    for session in shards.iter().flat_map(|hub| hub.sessions.values()) {
        let mut outbox = session.outbox.lock();
        let epoch = outbox.attach();
        let deliveries = read(&mut outbox, epoch, Time(0));
        let may_publish = session.permissions.allows(Permission::SendToGroup, &group(GROUPS[0]));
        let noted = session.events.state.as_ref().map(text_of).unwrap_or_default();
        let state = (deliveries, (*session.groups).clone(), may_publish, noted);
        assert_eq!(outcome.insert(session.identity.connection_id.to_string(), state), None);
    }
    let of_chunks = |shard: &Shard| {
        (0..CHUNKS).flat_map(|chunk| shard.untold.of_chunk(chunk)).cloned().collect::<Vec<_>>()
    };
    for disconnected in shards.iter().flat_map(of_chunks) {
        let noted = disconnected.subject.state.as_ref().map(text_of).unwrap_or_default();
        let told = (vec![disconnected.number.to_string()], BTreeSet::new(), false, noted);
        let name = format!("untold {}", disconnected.subject.identity.connection_id);
        assert_eq!(outcome.insert(name, told), None);
    }
    outcome
}

fn text_of(state: &HandlerState) -> String {
    String::from_utf8_lossy(&state.0).into_owned()
}

/// The id of a session's n-th small delivery.
fn id_of(place: usize) -> u64 {
    let place = place as u64;
    place + 300 * ((place - 1) / 128)
}

/// The random logs' filters ask only whether a session is in the first of [`GROUPS`].
fn naively_selected(
    sessions: &mut BTreeMap<String, Naive>,
    selection: &Selection,
    mut visit: impl FnMut(&mut Naive),
) {
    for (name, session) in sessions {
        let is_in_audience = match &selection.audience {
            Audience::All => true,
            Audience::Group(group) => session.groups.contains(group),
            Audience::User(user_id) => session.user.as_deref() == Some(user_id.as_str()),
            Audience::Connection(id) => name == id.as_str(),
        };
        let is_excluded = selection.excluded.iter().any(|id| id.as_str() == name);
        let passes = selection.filter.is_none() || session.groups.contains(&group(GROUPS[0]));
        if is_in_audience && !is_excluded && passes {
            visit(session);
        }
    }
}

#[derive(Default)]
struct Naive {
    is_reliable: bool,
    user: Option<String>,
    is_closed: bool,
    groups: BTreeSet<GroupName>,
    deliveries: Vec<String>,
    acknowledged: usize,
    may_publish: bool,
    state: String,
    boots: u64,
    number: Offset,
}

impl Naive {
    fn acknowledge(&mut self, id: u64) {
        let acknowledged = (1..=self.deliveries.len()).filter(|place| id_of(*place) <= id).count();
        self.acknowledged = self.acknowledged.max(acknowledged);
    }

    /// What stays of a session whose last record does not say the number of its last event.
    fn untold(&self) -> (Vec<String>, BTreeSet<GroupName>, bool, String) {
        let last = self.boots * 1_000_000_000 + 999_999_999;
        (vec![last.to_string()], BTreeSet::new(), false, self.state.clone())
    }
}

fn naive(log: &Log) -> Outcome {
    let mut seen: Vec<BootKey> = Vec::new();
    let mut requests: BTreeSet<RequestName> = BTreeSet::new();
    let mut sessions: BTreeMap<String, Naive> = BTreeMap::new();
    let mut untold = Outcome::new();
    for (index, record) in log.iter().enumerate() {
        let Record { key: Key { boot, request, .. }, sequence_ack, body, .. } = &**record;
        if seen
            .iter()
            .any(|known| (known.boot, known.shard, known.counter) == (boot.boot, boot.shard, boot.counter))
        {
            continue;
        }
        seen.push(*boot);
        if request.is_some_and(|request| !requests.insert(request.name)) {
            continue;
        }
        let name = body.connection_id().map(ToString::to_string).unwrap_or_default();
        match body {
            Body::Booted { takes_disconnected, ends_all } => sessions.retain(|name, session| {
                let lives_on = session.is_reliable && !ends_all;
                if !lives_on && *takes_disconnected {
                    untold.insert(format!("untold {name}"), session.untold());
                }
                session.boots += 1;
                lives_on
            }),
            Body::Opened(opened) => {
                let groups = opened.groups.iter().cloned().collect();
                let is_reliable = opened.identity.subprotocol.is_reliable();
                let user = opened.identity.user_id.as_ref().map(ToString::to_string);
                let naive = Naive { is_reliable, groups, user, number: offset_of(index), ..Naive::default() };
                sessions.insert(name, naive);
            }
            Body::Joined { groups, .. } => {
                sessions.entry(name).and_modify(|session| session.groups.extend(groups.iter().cloned()));
            }
            Body::Left { groups, .. } => {
                let id = sequence_ack.unwrap_or_default();
                sessions.entry(name).and_modify(|session| {
                    session.groups.retain(|group| !groups.contains(group));
                    session.acknowledge(id);
                });
            }
            Body::Acked { marks } => {
                for mark in marks {
                    let named = sessions.values_mut().find(|session| session.number == mark.session);
                    named.into_iter().for_each(|session| session.acknowledge(mark.sequence_id));
                }
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
            Body::Ended { disconnected, .. } => {
                let ended = sessions.remove(&name);
                if let (Some(session), Some(number)) = (ended, disconnected) {
                    let told = (vec![number.to_string()], BTreeSet::new(), false, session.state);
                    untold.insert(format!("untold {name}"), told);
                }
            }
            Body::Handled { reply, state, .. } => {
                sessions.entry(name).and_modify(|session| {
                    if let Some(state) = state {
                        session.state = text_of(state);
                    }
                    if let Some(reply) = reply {
                        let text = String::from_utf8_lossy(&reply.payload.bytes);
                        let id = id_of(session.deliveries.len() + 1);
                        session.deliveries.push(format!("{id} {text}"));
                    }
                });
            }
            // Of logs that several write there are tests of their own.
            Body::NodeStarted(_) | Body::NodeGone(_) | Body::Attached { .. } | Body::Released { .. } => {}
            Body::Refused(_) => {}
            Body::Told { connection_ids } => {
                for id in connection_ids {
                    untold.remove(&format!("untold {id}"));
                }
            }
            Body::Sent(sent) => {
                let text = String::from_utf8_lossy(&sent.payload.bytes).into_owned();
                naively_selected(&mut sessions, &sent.selection, |session| {
                    session.deliveries.push(format!("{} {text}", id_of(session.deliveries.len() + 1)));
                });
            }
            Body::Added { selection, groups } => {
                naively_selected(&mut sessions, selection, |session| {
                    session.groups.extend(groups.iter().cloned())
                });
            }
            Body::Removed { selection, groups } => naively_selected(&mut sessions, selection, |session| {
                session.groups.retain(|group| !groups.is_empty() && !groups.contains(group));
            }),
            Body::Closed { selection, takes_disconnected, .. } => {
                naively_selected(&mut sessions, selection, |session| session.is_closed = true);
                sessions.retain(|name, session| {
                    if session.is_closed && *takes_disconnected {
                        untold.insert(format!("untold {name}"), session.untold());
                    }
                    !session.is_closed
                });
            }
        }
    }
    let outcome = sessions.into_iter().map(|(name, session)| {
        // One that is not reliable ends with the start of a gateway that holds it, which is another one here.
        let acknowledged = if session.is_reliable { session.acknowledged } else { session.deliveries.len() };
        (
            name,
            (session.deliveries[acknowledged..].to_vec(), session.groups, session.may_publish, session.state),
        )
    });
    outcome.chain(untold).collect()
}
