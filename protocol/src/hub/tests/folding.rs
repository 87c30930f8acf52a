//! R15: what costs much is folded in portions, and nobody sees a record by halves.

use super::super::*;
use super::harness::*;
use crate::filter::{FILTER_VALUES_MAX, Filter};
use crate::hub::FOLD_STEPS_MAX;
use crate::log::{Audience, Selection};
use crate::wire::Subprotocol;

fn filtered(filter: &str) -> Selection {
    Selection { filter: Some(Filter::parse(filter).unwrap()), ..Selection::whole(Audience::All) }
}

/// The records stored so far come back, and nobody lets the hub go on with them.
fn bring(world: &mut World) {
    let from = world.shard.applied().map_or(0, |applied| applied.0 as usize + 1);
    let records = world.log.iter().enumerate().skip(from);
    let records = records.map(|(offset, record)| (Offset(offset as u64), Arc::clone(record))).collect();
    world.shard.handle(world.now, Input::Records(records));
}

/// Lets the hub go on until nothing waits; returns how many portions that took.
fn go_on(world: &mut World) -> usize {
    let mut portions = 0;
    while world.shard.has_waiting() {
        world.shard.handle(world.now, Input::GoOn);
        portions += 1;
    }
    portions
}

fn clients(world: &mut World, count: usize) -> Vec<Client> {
    let open =
        |n| world.open_with(opening_on(&format!("c{n:05}"), Subprotocol::JsonReliable, &format!("u{n}")));
    let clients: Vec<Client> = (0..count).map(open).collect();
    for client in &clients {
        world.reads(client);
    }
    clients
}

#[test]
fn others_are_served_while_a_filter_looks_for_its_sessions() {
    let mut world = World::new();
    let clients = clients(&mut world, 200);
    world.shard.fold_in_portions_of(1);
    world.command(send(filtered("endswith(userId,'7')"), "to some"));
    world.send(&clients[7], [join(1, "7")]);
    world.store();
    world.store();
    bring(&mut world);
    assert!(world.shard.has_waiting());
    let applied = world.shard.applied();

    // A client comes back and another one publishes while the filter is at work.
    world.shard.handle(world.now, Input::GoOn);
    let lost = Input::SocketClosed { session: clients[3].attachment.session, end: SocketEnd::Lost };
    world.shard.handle(world.now, lost);
    let resuming = Resuming {
        open: OpenId(u64::MAX),
        connection_id: clients[3].id.clone(),
        subprotocol: Subprotocol::JsonReliable,
        has_waited: false,
    };
    world.shard.handle(world.now, Input::Resume(resuming));
    let outputs: Vec<Output> = std::iter::from_fn(|| world.shard.poll_output()).collect();
    assert!(matches!(&*outputs, [Output::Opened { outcome: Ok(_), .. }]), "{outputs:?}");
    assert_eq!((world.shard.applied(), world.shard.has_waiting()), (applied, true));
    assert!(world.reads(&clients[7]).is_empty(), "not before all are chosen");

    assert_eq!(go_on(&mut world), 4);
    for (n, client) in clients.iter().enumerate().filter(|(n, _)| *n != 3) {
        let mut expected = if n % 10 == 7 { vec!["1 to some"] } else { vec![] };
        expected.extend((n == 7).then_some("ack 1"));
        assert_eq!(world.reads(client), expected, "{n}");
    }
}

#[test]
fn whom_a_record_means_is_what_they_were_before_the_next_record() {
    let mut world = World::new();
    let clients = clients(&mut world, 130);
    world.shard.fold_in_portions_of(1);
    let add =
        |filter: &str, name: &str| Action::Add { selection: filtered(filter), groups: vec![group(name)] };
    world.command(add("userId ne 'u5'", "g"));
    world.command(add("not ('g' in groups)", "h"));
    world.command(send(filtered("'g' in groups and length(groups) eq 1 or 'h' in groups"), "all"));
    world.command(Action::Close { selection: filtered("'h' in groups"), reason: String::new() });
    world.command(send(filtered("true"), "left"));
    while !world.appends.is_empty() {
        world.store();
    }
    bring(&mut world);
    go_on(&mut world);
    assert_eq!(world.shard.sessions(), 129);
    for (n, client) in clients.iter().enumerate() {
        let expected: &[&str] = if n == 5 { &["1 all"] } else { &["1 all", "2 left"] };
        assert_eq!(&world.reads(client)[..expected.len()], expected, "{n}");
    }
}

#[test]
fn a_filter_in_the_log_that_is_over_the_bound_selects_whom_it_did() {
    let clauses = |count: usize| {
        let clauses: Vec<String> = (0..count).map(|n| format!("endswith(userId,'u{n}')")).collect();
        clauses.join(" or ")
    };
    let filter = clauses(FILTER_VALUES_MAX + 1);
    assert!(Filter::parse(&filter).is_err(), "none like it comes in any more");
    let mut world = World::new();
    let clients = clients(&mut world, FILTER_VALUES_MAX + 2);
    let selection =
        Selection { filter: Some(Filter::stored(&filter).unwrap()), ..Selection::whole(Audience::All) };
    world.command(send(selection, "m"));
    let (_, records) = world.store();
    let stored: Vec<_> = records.iter().map(|record| record.encode()).collect();
    let last = world.log.len() - 1;
    world.log[last] = Arc::new(Record::decode(stored[0].clone()).unwrap());
    world.apply();
    let got: Vec<bool> = clients.iter().map(|client| world.reads(client) == ["1 m"]).collect();
    assert_eq!(got.iter().filter(|has| **has).count(), FILTER_VALUES_MAX + 1);
    assert!(!got[FILTER_VALUES_MAX + 1], "nobody asked for the last one");
}

#[test]
fn many_messages_for_many_sessions_that_came_at_once_held_everybody_up() {
    let mut world = World::new();
    let clients = clients(&mut world, 100);
    for client in &clients {
        world.ask_for(client, join(1, "g"));
    }
    for client in &clients[..10] {
        world.command(send(Selection::whole(Audience::All), "all"));
        world.send(client, [publish(2, "g", "group")]);
    }
    while !world.appends.is_empty() {
        world.store();
    }
    // Room for the deliveries of one record.
    world.shard.fold_in_portions_of(400);
    bring(&mut world);
    assert_eq!(go_on(&mut world), 19, "others are served after each");
    let messages = clients.iter().map(|client| world.reads(client).len()).collect::<Vec<_>>();
    assert!(messages.iter().zip(0..).all(|(read, n)| *read == if n < 10 { 21 } else { 20 }), "{messages:?}");
}

/// What a portion takes about, in milliseconds; see [`FOLD_STEPS_MAX`].
const PORTION_MS: usize = 8;

#[test]
fn a_filter_of_15_kb_over_ten_thousand_sessions_held_the_hub() {
    let mut world = World::with(HubSettings { groups_per_session_max: 10_000, ..settings() }, usize::MAX);
    let clients = clients(&mut world, 9_999);
    let names: Vec<String> = (0..10_000).map(|n| format!("g{n}")).collect();
    world.open_in("in many groups", &names.iter().map(String::as_str).collect::<Vec<_>>());
    let many = |operator: &str, count: usize, clause: &dyn Fn(usize) -> String| {
        (0..count).map(clause).collect::<Vec<_>>().join(operator)
    };
    for filter in [
        many(" or ", 700, &|n| format!("userId eq 'x{n}'")),
        many(" and ", 700, &|n| format!("userId ne 'x{n}'")),
        many(" and ", 600, &|n| format!("not('g{n}' in groups)")),
        many(" or ", 330, &|n| format!("('g{n}' in groups and not (userId eq 'u{n}'))")),
        many(" or ", 100, &|n| format!("contains(userId,'x{n}')")),
        many(" or ", 49, &|n| format!("contains(toupper(userId),'x{n}')")),
        many(" or ", 49, &|n| format!("concat(userId,'x{n}') in groups")),
    ] {
        world.command(send(filtered(&filter), "m"));
        world.store();
        bring(&mut world);
        let ms = PORTION_MS * (1 + go_on(&mut world));
        assert!(ms <= 80, "about {ms} ms: {}", &filter[..60]);
        while world.shard.poll_output().is_some() {}
    }
    assert!(world.reads(&clients[0]).len() > 1);
}

#[test]
fn what_is_asked_for_by_name_is_not_looked_for_among_all() {
    let mut world = World::new();
    let clients = clients(&mut world, 2_000);
    world.ask_for(&clients[1_000], join(1, "g"));
    world.shard.fold_in_portions_of(200);
    for filter in
        ["userId eq 'u1000'", "connectionId eq 'c01000'", "'g' in groups", "'g' in groups or userId eq 'u'"]
    {
        world.command(send(filtered(filter), "m"));
        world.store();
        bring(&mut world);
        assert!(!world.shard.has_waiting(), "{filter}");
        while world.shard.poll_output().is_some() {}
    }
    assert_eq!(world.reads(&clients[1_000]), ["1 m", "2 m", "3 m", "4 m"]);
}

#[test]
fn forty_sessions_in_many_groups_that_were_closed_together_held_everybody_up() {
    const GROUPS: usize = 10_000;
    let mut world = World::with(HubSettings { groups_per_session_max: GROUPS, ..settings() }, usize::MAX);
    let names: Vec<String> = (0..GROUPS).map(|n| format!("g{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let clients: Vec<Client> = (0..12).map(|n| world.open_in(&format!("c{n}"), &names)).collect();
    clients.iter().for_each(|client| world.close(client, SocketEnd::ClosedForGood));
    while !world.appends.is_empty() {
        world.store();
    }
    bring(&mut world);
    let mut left = vec![world.shard.sessions()];
    while world.shard.has_waiting() {
        world.shard.handle(world.now, Input::GoOn);
        left.push(world.shard.sessions());
    }
    assert_eq!(left, [11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0], "others are served after each");
    const { assert!(GROUPS * 50 > FOLD_STEPS_MAX) };
}

#[test]
fn one_request_for_many_sessions_and_groups_held_everybody_up() {
    let names: Vec<String> = (0..3_000).map(|n| format!("g{n:0>5}")).collect();
    let groups: Vec<GroupName> = names.iter().map(|name| group(name)).collect();
    let mut world = World::with(HubSettings { groups_per_session_max: 10_000, ..settings() }, usize::MAX);
    let clients = clients(&mut world, 20);
    let everybody = || Selection::whole(Audience::All);
    for (action, memberships, sessions) in [
        (Action::Add { selection: everybody(), groups: groups.clone() }, 60_000, 20),
        (Action::Remove { selection: everybody(), groups: groups[..2_000].to_vec() }, 20_000, 20),
        (Action::Close { selection: everybody(), reason: String::new() }, 0, 0),
    ] {
        let before = world.shard.applied();
        let changes = all_memberships(&world).abs_diff(memberships);
        let command = world.command(action);
        world.store();
        bring(&mut world);
        let mut portions = 1;
        while world.shard.has_waiting() {
            assert_eq!(world.shard.applied(), before, "a part of it is nothing");
            assert!(!world.shard.outputs.iter().any(|output| matches!(output, Output::CommandDone { .. })));
            world.shard.handle(world.now, Input::GoOn);
            portions += 1;
        }
        assert!(portions > changes * 50 / FOLD_STEPS_MAX, "{portions} for {changes} memberships");
        assert_eq!((all_memberships(&world), world.shard.sessions()), (memberships, sessions));
        let is_its =
            |output: &Output| matches!(output, Output::CommandDone { command: done, .. } if *done == command);
        assert!(std::iter::from_fn(|| world.shard.poll_output()).any(|output| is_its(&output)));
    }
    assert!(clients.iter().all(|client| world.reads(client).last().unwrap() == "close 1000"));
}

#[test]
fn names_that_no_session_is_in_were_looked_for_in_each() {
    let mut world = World::new();
    clients(&mut world, 500);
    let groups = (0..60_000).map(|n| group(&format!("g{n}"))).collect();
    world.command(Action::Remove { selection: Selection::whole(Audience::All), groups });
    world.store();
    bring(&mut world);
    assert!(!world.shard.has_waiting(), "one portion does");
}

fn all_memberships(world: &World) -> usize {
    world.shard.groups.values().map(|members| members.len()).sum()
}

#[test]
fn a_client_in_ten_thousand_groups_paid_for_all_of_them_at_each_join() {
    let mut world = World::with(HubSettings { groups_per_session_max: 20_000, ..settings() }, usize::MAX);
    let mut looks = Vec::new();
    for count in [1, 100, 10_000] {
        let names: Vec<String> = (0..count).map(|n| format!("g{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let client = world.open_in(&format!("in {count}"), &names);
        let before = crate::wire::names_read();
        for (ack_id, request) in [join(1, "another"), leave(2, "another")].into_iter().enumerate() {
            assert_eq!(world.ask_for(&client, request), [format!("ack {}", ack_id + 1)]);
        }
        looks.push(crate::wire::names_read() - before);
    }
    assert!(looks[0] > 0 && looks[2] <= 2 * looks[0], "names read for a join and a leave: {looks:?}");
}
