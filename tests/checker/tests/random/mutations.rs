//! Single changes to a right history, each of which breaks a promise. A change looks for a place where the break is
//! certain.

use std::collections::{BTreeMap, BTreeSet};

use oncewire_checker::{Event, Message, Publish, ViolationKind as Kind};

use crate::world::Random;

pub type Events = Vec<(usize, Event)>;
type Mutation = (&'static str, Kind, fn(&mut Random, &Events) -> Option<Events>);

pub const ALL: &[Mutation] = &[
    ("lose a delivery", Kind::Lost, lose),
    ("deliver twice", Kind::Duplicated, duplicate),
    ("swap two of one publisher", Kind::OutOfOrder, swap),
    ("invent a message", Kind::Phantom, |r, e| change_delivery(r, e, |m| m.message.push('?'))),
    ("deliver to another group", Kind::Phantom, |r, e| change_delivery(r, e, |m| m.group.push('?'))),
    ("deliver a refused message", Kind::RefusedDelivered, deliver_refused),
    ("deliver to the publisher in spite of no_echo", Kind::Echo, echo),
    ("move the publisher to another hub", Kind::HubCrossed, cross_hubs),
    ("deliver without membership", Kind::NotMember, forget_groups),
    ("leave before publishing", Kind::AfterLeave, leave_early),
    ("forget a sequence id", Kind::SequenceIdMissing, |r, e| change_id(r, e, |_| None)),
    ("send id zero", Kind::SequenceIdZero, |r, e| change_id(r, e, |_| Some(0))),
    ("send an id too large", Kind::SequenceIdTooLarge, |r, e| change_id(r, e, |id| Some(id + (1 << 53)))),
    ("number a session that isn't reliable", Kind::SequenceIdUnexpected, number_plain),
    ("repeat an id", Kind::SequenceIdNotIncreasing, repeat_id),
    ("rename an id on redelivery", Kind::SequenceIdRenamed, rename),
    ("skip one on redelivery", Kind::RedeliverySkipped, skip_redelivery),
    ("fill a gap late", Kind::SequenceIdInGap, forget_first_frame),
    ("answer nobody", Kind::AckUnrequested, answer_nobody),
    ("answer twice", Kind::AckUnrequested, answer_twice),
    ("say success again", Kind::SuccessRepeated, |r, e| change_ack(r, e, "Duplicate", None)),
    ("say duplicate at once", Kind::DuplicateOfNothing, duplicate_at_once),
    ("accept another payload", Kind::MismatchAccepted, |r, e| {
        change_ack(r, e, "PayloadMismatch", Some("Duplicate"))
    }),
    ("accept another payload as new", Kind::MismatchAccepted, |r, e| {
        change_ack(r, e, "PayloadMismatch", None)
    }),
    ("refuse the same payload", Kind::MismatchUnfounded, |r, e| {
        change_ack(r, e, "Duplicate", Some("PayloadMismatch"))
    }),
    ("swap two acks", Kind::AckOutOfOrder, swap_acks),
    ("drop the last ack", Kind::Unanswered, drop_ack),
    ("ack before the own message", Kind::AckBeforeOwnMessage, ack_first),
];

/// What the mutations need to know, gathered naively.
struct Facts {
    /// Per message: its publishes.
    publishes: BTreeMap<String, Vec<Publish>>,
    /// Per connection and ack id: tries.
    tries: BTreeMap<(String, u64), Vec<usize>>,
    /// Per connection and ack id: the first ack that says executed.
    executed: BTreeMap<(String, u64), usize>,
    frames: BTreeSet<String>,
    unordered: BTreeSet<String>,
    reliable: BTreeSet<String>,
    closed: BTreeSet<String>,
    opened: BTreeMap<String, usize>,
}

fn facts(events: &Events) -> Facts {
    let mut facts = Facts {
        publishes: BTreeMap::new(),
        tries: BTreeMap::new(),
        executed: BTreeMap::new(),
        frames: BTreeSet::new(),
        unordered: BTreeSet::new(),
        reliable: BTreeSet::new(),
        closed: BTreeSet::new(),
        opened: BTreeMap::new(),
    };
    for (index, (_, event)) in events.iter().enumerate() {
        match event {
            Event::Opened(e) => {
                facts.opened.insert(e.connection.clone(), index);
                let mut note = |yes: bool, set: fn(&mut Facts) -> &mut BTreeSet<String>| {
                    if yes {
                        set(&mut facts).insert(e.connection.clone());
                    }
                };
                note(e.observes_sockets, |f| &mut f.frames);
                note(e.unordered_callbacks, |f| &mut f.unordered);
                note(e.reliable, |f| &mut f.reliable);
            }
            Event::Closed(e) => drop(facts.closed.insert(e.connection.clone())),
            Event::Publish(e) => {
                facts.publishes.entry(e.message.clone()).or_default().push(e.clone());
                if let Some(id) = e.ack_id {
                    facts.tries.entry((e.connection.clone(), id)).or_default().push(index);
                }
            }
            Event::Acked(e) if e.success || e.error.as_deref() == Some("Duplicate") => {
                facts.executed.entry((e.connection.clone(), e.ack_id)).or_insert(index);
            }
            _ => {}
        }
    }
    facts
}

impl Facts {
    /// The only try to publish a message, under an ack id of its own.
    fn single(&self, message: &str) -> Option<&Publish> {
        let [only] = self.publishes.get(message)?.as_slice() else { return None };
        let alone = only.ack_id.is_none_or(|id| self.tries[&(only.connection.clone(), id)].len() == 1);
        alone.then_some(only)
    }

    fn acked(&self, publish: &Publish) -> Option<usize> {
        self.executed.get(&(publish.connection.clone(), publish.ack_id?)).copied()
    }
}

fn pick<T: Clone>(random: &mut Random, all: &[T]) -> Option<T> {
    (!all.is_empty()).then(|| all[random.below(all.len())].clone())
}

fn deliveries(events: &Events) -> Vec<(usize, Message)> {
    let all = events.iter().enumerate();
    all.filter_map(|(i, (_, e))| if let Event::Delivered(m) = e { Some((i, m.clone())) } else { None })
        .collect()
}

fn lose(random: &mut Random, events: &Events) -> Option<Events> {
    let facts = facts(events);
    let mut candidates = deliveries(events);
    candidates.retain(|(_, m)| {
        let certain = facts.publishes.get(&m.message).is_some_and(|all| {
            all.iter()
                .all(|p| p.ttl_seconds.is_none() && facts.acked(p).is_some() && p.ack_id == all[0].ack_id)
        });
        certain && !facts.closed.contains(&m.connection)
    });
    let (index, lost) = pick(random, &candidates)?;
    // Under an ack id that was used for something else too, nothing is certain.
    let publish = &facts.publishes[&lost.message][0];
    let tries = &facts.tries[&(publish.connection.clone(), publish.ack_id?)];
    let certain =
        tries.len() == facts.publishes[&lost.message].len() && facts.opened[&lost.connection] < tries[0];
    certain.then(|| {
        let mut changed = events.clone();
        changed.remove(index);
        changed
    })
}

fn duplicate(random: &mut Random, events: &Events) -> Option<Events> {
    let (index, _) = pick(random, &deliveries(events))?;
    let mut changed = events.clone();
    let later = index + 1 + random.below(events.len() - index);
    changed.insert(later, events[index].clone());
    Some(changed)
}

fn swap(random: &mut Random, events: &Events) -> Option<Events> {
    let facts = facts(events);
    let all = deliveries(events);
    let mut pairs = Vec::new();
    for (n, (i, a)) in all.iter().enumerate() {
        let Some(p) = facts.single(&a.message) else { continue };
        let next = all[n + 1..].iter().find(|(_, b)| {
            let same =
                facts.single(&b.message).is_some_and(|q| q.connection == p.connection && q.group == p.group);
            same && b.connection == a.connection
        });
        let plain_unordered = facts.unordered.contains(&a.connection);
        pairs.extend(next.filter(|_| !plain_unordered).map(|(j, _)| (*i, *j)));
    }
    let (i, j) = pick(random, &pairs)?;
    let mut changed = events.clone();
    let message = |index: usize| match &events[index].1 {
        Event::Delivered(m) => m.message.clone(),
        _ => String::new(),
    };
    for (at, from) in [(i, j), (j, i)] {
        if let Event::Delivered(m) = &mut changed[at].1 {
            m.message = message(from);
        }
    }
    Some(changed)
}

fn change_delivery(random: &mut Random, events: &Events, change: fn(&mut Message)) -> Option<Events> {
    let (index, _) = pick(random, &deliveries(events))?;
    let mut changed = events.clone();
    if let Event::Delivered(m) = &mut changed[index].1 {
        change(m);
    }
    Some(changed)
}

/// Adds a delivery that nobody should have got, with the next free sequence id of that session, at the end.
fn deliver(events: &Events, connection: &str, publish: &Publish) -> Events {
    let largest = deliveries(events).into_iter().filter(|(_, m)| m.connection == connection);
    let sequence_id = largest.filter_map(|(_, m)| m.sequence_id).max().map(|id| id + 1);
    let message = Message {
        connection: connection.to_string(),
        group: publish.group.clone(),
        message: publish.message.clone(),
        sequence_id,
    };
    let mut changed = events.clone();
    changed.push((0, Event::Delivered(message)));
    changed
}

fn deliver_refused(random: &mut Random, events: &Events) -> Option<Events> {
    let facts = facts(events);
    let refused: Vec<(String, u64)> = events
        .iter()
        .filter_map(|(_, e)| match e {
            Event::Acked(e) if e.error.as_deref() == Some("Forbidden") => {
                Some((e.connection.clone(), e.ack_id))
            }
            _ => None,
        })
        .filter(|key| facts.tries.get(key).is_some_and(|tries| tries.len() == 1))
        .collect();
    let key = pick(random, &refused)?;
    let Event::Publish(publish) = &events[facts.tries[&key][0]].1 else { return None };
    Some(deliver(events, &key.0, publish))
}

fn echo(random: &mut Random, events: &Events) -> Option<Events> {
    let facts = facts(events);
    let silent: Vec<Publish> = facts
        .publishes
        .values()
        .filter_map(|all| facts.single(&all[0].message))
        .filter(|p| p.no_echo && p.group != "black")
        .cloned()
        .collect();
    let publish = pick(random, &silent)?;
    Some(deliver(events, &publish.connection, &publish))
}

fn cross_hubs(random: &mut Random, events: &Events) -> Option<Events> {
    let facts = facts(events);
    let mut foreign = deliveries(events);
    foreign.retain(|(_, m)| facts.publishes[&m.message].iter().all(|p| p.connection != m.connection));
    let (_, m) = pick(random, &foreign)?;
    let publisher = &facts.publishes[&m.message][0].connection;
    let mut changed = events.clone();
    for (_, event) in &mut changed {
        match event {
            Event::Opened(e) if e.connection == *publisher => e.hub = "elsewhere".to_string(),
            _ => {}
        }
    }
    Some(changed)
}

fn forget_groups(random: &mut Random, events: &Events) -> Option<Events> {
    let (_, m) = pick(random, &deliveries(events))?;
    let mut changed = events.clone();
    for (_, event) in &mut changed {
        match event {
            Event::Opened(e) if e.connection == m.connection => e.groups.retain(|group| *group != m.group),
            _ => {}
        }
    }
    Some(changed)
}

fn leave_early(random: &mut Random, events: &Events) -> Option<Events> {
    let (_, m) = pick(random, &deliveries(events))?;
    let opened = |e: &Event| matches!(e, Event::Opened(e) if e.connection == m.connection);
    let published = |e: &Event| matches!(e, Event::Publish(e) if e.message == m.message);
    let start = events.iter().position(|(_, e)| opened(e))?;
    let first = events.iter().position(|(_, e)| published(e)).filter(|first| *first > start)?;
    let connection = m.connection;
    let leave = oncewire_checker::Membership {
        connection: connection.clone(),
        group: m.group,
        ack_id: Some(u64::MAX),
    };
    let acked = oncewire_checker::Acked { connection, ack_id: u64::MAX, success: true, ..Default::default() };
    let mut changed = events.clone();
    changed.insert(first, (0, Event::Acked(acked)));
    changed.insert(first, (0, Event::Leave(leave)));
    Some(changed)
}

fn change_id(random: &mut Random, events: &Events, change: fn(u64) -> Option<u64>) -> Option<Events> {
    let mut candidates = deliveries(events);
    candidates.retain(|(_, m)| m.sequence_id.is_some());
    let (index, _) = pick(random, &candidates)?;
    let mut changed = events.clone();
    if let Event::Delivered(m) = &mut changed[index].1 {
        m.sequence_id = m.sequence_id.and_then(change);
    }
    Some(changed)
}

fn number_plain(random: &mut Random, events: &Events) -> Option<Events> {
    let mut candidates = deliveries(events);
    candidates.retain(|(_, m)| m.sequence_id.is_none());
    let (index, _) = pick(random, &candidates)?;
    let mut changed = events.clone();
    if let Event::Delivered(m) = &mut changed[index].1 {
        m.sequence_id = Some(1);
    }
    Some(changed)
}

fn repeat_id(random: &mut Random, events: &Events) -> Option<Events> {
    let facts = facts(events);
    let all = deliveries(events);
    let mut pairs = Vec::new();
    for (n, (_, a)) in all.iter().enumerate() {
        if a.sequence_id.is_some() && !facts.unordered.contains(&a.connection) {
            let next = all[n + 1..].iter().find(|(_, b)| b.connection == a.connection);
            pairs.extend(next.map(|(j, _)| (*j, a.sequence_id)));
        }
    }
    let (index, id) = pick(random, &pairs)?;
    let mut changed = events.clone();
    if let Event::Delivered(m) = &mut changed[index].1 {
        m.sequence_id = id;
    }
    Some(changed)
}

/// A frame that came again after a resume: its index, its earlier index, and whether a larger id follows on the same
/// socket.
struct Again {
    earlier: usize,
    later: usize,
    owed: bool,
}

fn redelivered(events: &Events) -> Vec<Again> {
    let facts = facts(events);
    let mut again = Vec::new();
    for connection in &facts.frames {
        let mut first: BTreeMap<u64, usize> = BTreeMap::new();
        let mut acked = 0;
        for (index, (_, event)) in events.iter().enumerate() {
            match event {
                Event::SequenceAck(e) if e.connection == *connection => acked = e.sequence_id,
                Event::Received(m) if m.connection == *connection => {
                    let Some(id) = m.sequence_id else { continue };
                    let earlier = *first.entry(id).or_insert(index);
                    if earlier < index {
                        let mut rest = events[index + 1..].iter().map(|(_, e)| e);
                        let larger = rest.find(|e| match e {
                            Event::Received(m) => m.connection == *connection,
                            Event::Dropped(e) => e.connection == *connection,
                            Event::SequenceAck(e) => e.connection == *connection,
                            _ => false,
                        });
                        let owed = id > acked
                            && matches!(larger, Some(Event::Received(_)))
                            && facts.publishes[&m.message][0].ttl_seconds.is_none();
                        again.push(Again { earlier, later: index, owed });
                    }
                }
                _ => {}
            }
        }
    }
    again
}

fn rename(random: &mut Random, events: &Events) -> Option<Events> {
    let all: Vec<usize> = redelivered(events).iter().map(|again| again.later).collect();
    let index = pick(random, &all)?;
    let mut changed = events.clone();
    if let Event::Received(m) = &mut changed[index].1 {
        m.message.push('?');
    }
    Some(changed)
}

fn skip_redelivery(random: &mut Random, events: &Events) -> Option<Events> {
    let all: Vec<usize> =
        redelivered(events).iter().filter(|again| again.owed).map(|again| again.later).collect();
    let index = pick(random, &all)?;
    let mut changed = events.clone();
    changed.remove(index);
    Some(changed)
}

/// Takes away the first of the frames with one id, where a larger id came before the second.
fn forget_first_frame(random: &mut Random, events: &Events) -> Option<Events> {
    let facts = facts(events);
    let mut indexes = Vec::new();
    for Again { earlier, later, .. } in redelivered(events) {
        let Event::Received(first) = &events[earlier].1 else { continue };
        if facts.publishes[&first.message].iter().any(|publish| publish.ttl_seconds.is_some()) {
            continue;
        }
        let between = || {
            events[earlier + 1..later].iter().filter_map(|(_, e)| match e {
                Event::Received(m) if m.connection == first.connection => Some(m.sequence_id),
                _ => None,
            })
        };
        if between().all(|id| id != first.sequence_id) && between().any(|id| id > first.sequence_id) {
            indexes.push(earlier);
        }
    }
    let index = pick(random, &indexes)?;
    let mut changed = events.clone();
    changed.remove(index);
    Some(changed)
}

fn acks(events: &Events) -> Vec<(usize, oncewire_checker::Acked)> {
    let all = events.iter().enumerate();
    all.filter_map(|(i, (_, e))| if let Event::Acked(a) = e { Some((i, a.clone())) } else { None }).collect()
}

fn answer_nobody(random: &mut Random, events: &Events) -> Option<Events> {
    let (index, _) = pick(random, &acks(events))?;
    let mut changed = events.clone();
    if let Event::Acked(a) = &mut changed[index].1 {
        a.ack_id += 1_000_000;
    }
    Some(changed)
}

fn answer_twice(random: &mut Random, events: &Events) -> Option<Events> {
    let facts = facts(events);
    let mut all = acks(events);
    all.retain(|(_, a)| facts.tries[&(a.connection.clone(), a.ack_id)].len() == 1);
    let (index, _) = pick(random, &all)?;
    let mut changed = events.clone();
    changed.insert(index + 1, events[index].clone());
    Some(changed)
}

/// Changes the error of an ack whose request had been acked as a success before.
fn change_ack(random: &mut Random, events: &Events, from: &str, to: Option<&str>) -> Option<Events> {
    let facts = facts(events);
    let mut all = acks(events);
    all.retain(|(i, a)| {
        let key = (a.connection.clone(), a.ack_id);
        let first = facts.executed.get(&key).copied();
        // All tries before the first ack are of one request, so that it is known which one was executed.
        let same = |index: &usize| match (&events[*index].1, &events[facts.tries[&key][0]].1) {
            (Event::Publish(p), Event::Publish(q)) => p == q,
            _ => false,
        };
        let tries = &facts.tries[&key];
        let clear = first.is_some_and(|first| first < *i && tries.iter().filter(|t| **t < first).all(same));
        let expects_other = from == "PayloadMismatch";
        let originals = tries.iter().filter(|t| **t < *i && same(t)).count();
        clear
            && a.error.as_deref() == Some(from)
            && if expects_other { originals == 1 } else { originals == tries.len() }
    });
    let (index, _) = pick(random, &all)?;
    let mut changed = events.clone();
    if let Event::Acked(a) = &mut changed[index].1 {
        a.success = to.is_none();
        a.error = to.map(str::to_string);
    }
    Some(changed)
}

fn duplicate_at_once(random: &mut Random, events: &Events) -> Option<Events> {
    let facts = facts(events);
    let mut all = acks(events);
    all.retain(|(_, a)| a.success && facts.tries[&(a.connection.clone(), a.ack_id)].len() == 1);
    let (index, _) = pick(random, &all)?;
    let mut changed = events.clone();
    if let Event::Acked(a) = &mut changed[index].1 {
        a.success = false;
        a.error = Some("Duplicate".to_string());
    }
    Some(changed)
}

/// The acks of one connection that answer the only try of their request, and no drop or resume lies around.
fn swap_acks(random: &mut Random, events: &Events) -> Option<Events> {
    let facts = facts(events);
    let all = acks(events);
    let mut pairs = Vec::new();
    for (n, (i, a)) in all.iter().enumerate() {
        let Some((j, b)) = all[n + 1..].iter().find(|(_, b)| b.connection == a.connection) else { continue };
        let tries = [a, b].map(|a| facts.tries[&(a.connection.clone(), a.ack_id)].as_slice());
        let ([first], [second]) = (tries[0], tries[1]) else { continue };
        let changes_socket = |e: &Event| match e {
            Event::Dropped(e) | Event::Resumed(e) => e.connection == a.connection,
            _ => false,
        };
        let calm = !events[*first..*j].iter().any(|(_, e)| changes_socket(e));
        if calm && facts.frames.contains(&a.connection) && second < i {
            pairs.push((*i, *j));
        }
    }
    let (i, j) = pick(random, &pairs)?;
    let mut changed = events.clone();
    changed.swap(i, j);
    Some(changed)
}

fn drop_ack(random: &mut Random, events: &Events) -> Option<Events> {
    let facts = facts(events);
    let open: Vec<&String> = facts.frames.iter().filter(|c| !facts.closed.contains(*c)).collect();
    let connection = pick(random, &open)?;
    let (index, ack) = acks(events).into_iter().rfind(|(_, a)| a.connection == **connection)?;
    let tries = &facts.tries[&(ack.connection.clone(), ack.ack_id)];
    let calm = !events[tries[0]..].iter().any(|(_, e)| match e {
        Event::Dropped(e) | Event::Resumed(e) => e.connection == ack.connection,
        _ => false,
    });
    calm.then(|| {
        let mut changed = events.clone();
        changed.remove(index);
        changed
    })
}

fn ack_first(random: &mut Random, events: &Events) -> Option<Events> {
    let facts = facts(events);
    let mut own = deliveries(events);
    own.retain(|(i, m)| {
        let Some(publish) = facts.single(&m.message).filter(|p| p.connection == m.connection) else {
            return false;
        };
        let Some(acked) = facts.acked(publish) else { return false };
        let start = facts.tries[&(publish.connection.clone(), publish.ack_id.unwrap_or(0))][0];
        let changes_socket = |e: &Event| match e {
            Event::Dropped(e) | Event::Resumed(e) => e.connection == m.connection,
            _ => false,
        };
        let calm = !events[start..acked.max(start)].iter().any(|(_, e)| changes_socket(e));
        let success = matches!(&events[acked].1, Event::Acked(a) if a.success);
        let stays = publish.ttl_seconds.is_none();
        success && calm && stays && *i < acked && facts.frames.contains(&m.connection)
    });
    let (index, m) = pick(random, &own)?;
    let acked = facts.acked(facts.single(&m.message)?)?;
    let mut changed = events.clone();
    let delivery = changed.remove(index);
    changed.insert(acked, delivery);
    Some(changed)
}
