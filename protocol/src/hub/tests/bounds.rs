//! R9: everything that grows has a bound, and what was used is given back.

use super::harness::*;
use crate::hub::{CommandError, Done, HubSettings, Input, MARK_MS, NewSession, OpenError};
use crate::log::{Certainty, EndReason, Permission};
use crate::session::{OutboxLimits, PermissionError, Request, SessionLimits, UserSessions};
use crate::wire::limits::{GROUP_NAMES_BYTES_MAX, PERMISSION_LITERALS_MAX};
use crate::wire::{GroupName, Subprotocol};

fn with_outbox(messages_max: usize, bytes_max: usize) -> World {
    World::with(HubSettings { outbox: OutboxLimits { messages_max, bytes_max }, ..settings() }, usize::MAX)
}

fn with_groups(groups_per_session_max: usize) -> World {
    World::with(HubSettings { groups_per_session_max, ..settings() }, usize::MAX)
}

#[test]
fn scenario_13_with_a_bound_of_1000_the_1001st_unacknowledged_message_ends_the_session() {
    let mut world = with_outbox(1000, usize::MAX);
    let alice = world.open("alice");
    let bob = world.open_in("bob", &["g"]);
    world.send(&alice, (1..=1000).map(|n| publish(n, "g", "m")));
    world.settle();
    assert_eq!(world.reads(&bob).len(), 1000);
    world.send(&alice, [publish(1001, "g", "one more")]);
    world.store();
    world.apply();
    assert_eq!(world.reads(&bob), ["close 1008"]);
    assert_eq!(world.reads(&alice).last().unwrap(), "ack 1001", "the publisher's ack is a success");
    world.settle();
    assert_eq!(world.bodies().last().unwrap(), &ended("bob", EndReason::OutboxFull));
    assert_eq!(world.refusal(&bob), OpenError::Refused);
}

#[test]
fn acknowledged_messages_do_not_count() {
    let mut world = with_outbox(10, usize::MAX);
    let alice = world.open_in("alice", &["g"]);
    for n in 1..=100 {
        world.ask_for(&alice, publish(n, "g", "m"));
        if n % 10 == 0 {
            world.send(&alice, [acknowledge(n)]);
        }
    }
    assert_eq!((world.shard.sessions(), world.reads(&alice)), (1, vec![]));
}

#[test]
fn the_bound_on_bytes_holds_on_both_sides_and_while_detached() {
    let mut world = with_outbox(usize::MAX, 100);
    let alice = world.open("alice");
    let bob = world.open_in("bob", &["g"]);
    world.lose(&bob);
    world.ask_for(&alice, publish(1, "g", &"x".repeat(100)));
    assert_eq!(world.shard.sessions(), 2);
    assert_eq!(world.ask_for(&alice, publish(2, "g", "x")), ["ack 2"]);
    assert_eq!(world.bodies().last().unwrap(), &ended("bob", EndReason::OutboxFull));
    assert_eq!((world.refusal(&bob), world.shard.poll_timeout()), (OpenError::Refused, None));
}

#[test]
fn a_publisher_whose_own_messages_overflow_its_outbox_is_ended_too() {
    let mut world = with_outbox(1, usize::MAX);
    let alice = world.open_in("alice", &["g"]);
    world.send(&alice, [publish(1, "g", "a"), publish(2, "g", "b")]);
    world.send(&alice, [publish(3, "g", "not yet appended")]);
    world.settle();
    assert_eq!(world.reads(&alice), ["close 1008"]);
    assert_eq!(world.bodies().last().unwrap(), &ended("alice", EndReason::OutboxFull));
    assert_eq!((world.shard.sessions(), world.budget.used_bytes()), (0, 0));
}

#[test]
fn a_slow_client_that_is_not_reliable_is_closed() {
    let mut world = with_outbox(2, usize::MAX);
    let alice = world.open("alice");
    let opening = NewSession { groups: vec![group("g")], ..opening_on("plain", Subprotocol::Json, "u") };
    let plain = world.open_with(opening);
    for n in 0..10 {
        world.ask_for(&alice, publish(None, "g", "m"));
        assert!(!world.reads(&plain).is_empty(), "one that reads is not, message {n}");
    }
    for _ in 0..3 {
        world.ask_for(&alice, publish(None, "g", "m"));
    }
    assert_eq!(world.reads(&plain), ["close 1008"]);
    assert_eq!(world.bodies().last().unwrap(), &ended("plain", EndReason::OutboxFull));
}

#[test]
fn a_message_is_charged_to_the_budget_once_and_given_back_when_nobody_needs_it() {
    let mut world = World::new();
    let alice = world.open("alice");
    let members: Vec<Client> = (0..10).map(|n| world.open_in(&format!("m{n}"), &["g"])).collect();
    world.ask_for(&alice, publish(1, "g", &"x".repeat(100_000)));
    assert!((100_000..110_000).contains(&world.budget.used_bytes()), "{}", world.budget.used_bytes());
    for member in &members {
        assert_eq!(world.reads(member).len(), 1);
    }
    let encoded = world.budget.used_bytes();
    assert!((200_000..220_000).contains(&encoded), "{encoded}: the frame that they share counts, once");
    for member in &members {
        assert_eq!(world.budget.used_bytes(), encoded);
        world.send(member, [acknowledge(1)]);
    }
    assert_eq!(world.budget.used_bytes(), 0);
}

#[test]
fn over_the_budget_the_session_with_the_most_waiting_is_shed() {
    let mut world = World::with(settings(), 10_000);
    let alice = world.open("alice");
    let large = world.open_in("large", &["g", "h"]);
    let small = world.open_in("small", &["h"]);
    world.ask_for(&alice, publish(1, "h", &"x".repeat(100)));
    world.ask_for(&alice, publish(2, "g", &"x".repeat(8_000)));
    assert_eq!(world.shard.sessions(), 3, "within the budget");
    world.ask_for(&alice, publish(3, "g", &"x".repeat(2_000)));
    assert_eq!(world.reads(&large), ["close 1008"]);
    assert_eq!(world.bodies().last().unwrap(), &ended("large", EndReason::Shed));
    assert_eq!(world.refusal(&large), OpenError::Refused);
    assert_eq!(world.reads(&small).len(), 1);
    assert_eq!(world.shard.sessions(), 2);
}

#[test]
fn readers_whose_messages_grow_when_they_are_encoded_were_never_shed() {
    const BUDGET_BYTES: usize = 1_000_000;
    let mut world = World::with(settings(), BUDGET_BYTES);
    let alice = world.open("alice");
    let groups: Vec<String> = (0..8).map(|n| format!("g{n}")).collect();
    let readers: Vec<Client> = groups
        .iter()
        .flat_map(|group| [(group, 0), (group, 1)])
        .map(|(group, n)| world.open_in(&format!("{group}-{n}"), &[group]))
        .collect();
    // Six times as long in JSON.
    let text = "\u{1}".repeat(10_000);
    for n in 0..20 {
        for (at, group) in groups.iter().enumerate() {
            world.ask_for(&alice, publish(n * 8 + at as u64 + 1, group, &text));
            world.reads(&alice);
        }
        for reader in &readers {
            world.reads(reader);
        }
        assert!(world.budget.used_bytes() < 2 * BUDGET_BYTES, "{}", world.budget.used_bytes());
    }
    let shed = |n: &str| ended(n, EndReason::Shed);
    assert!(world.bodies().contains(&shed("g0-0")));
}

#[test]
fn readers_of_messages_with_long_names_were_never_shed() {
    const BUDGET_BYTES: usize = 1_000_000;
    let mut world = World::with(settings(), BUDGET_BYTES);
    let alice = world.open_with(opening_on("alice", Subprotocol::JsonReliable, &"a".repeat(30_000)));
    for n in 0..8 {
        world.open_in(&format!("reader-{n}"), &[&format!("g{n}")]);
    }
    for n in 0..400 {
        world.ask_for(&alice, publish(n + 1, &format!("g{}", n % 8), "x"));
        world.reads(&alice);
        assert!(world.budget.used_bytes() < 2 * BUDGET_BYTES, "{}", world.budget.used_bytes());
    }
    let shed = |n: &str| ended(n, EndReason::Shed);
    assert!(world.bodies().contains(&shed("reader-0")));
}

#[test]
fn of_two_that_hold_much_the_one_without_encodings_was_shed_first() {
    let mut world = World::with(settings(), 200_000);
    let alice = world.open("alice");
    let innocent = world.open_in("innocent", &["g"]);
    let reader = world.open_in("reader", &["h"]);
    world.ask_for(&alice, publish(1, "g", &"x".repeat(60_000)));
    world.lose(&innocent);
    // Half of what the reader makes the gateway hold is its own encoding, which it has read.
    world.ask_for(&alice, publish(2, "h", &"x".repeat(50_000)));
    world.reads(&reader);
    world.ask_for(&alice, publish(3, "h", &"x".repeat(5_000)));
    world.reads(&reader);
    world.ask_for(&alice, publish(4, "k", &"x".repeat(60_000)));
    let more = world.open_in("more", &["k"]);
    world.ask_for(&alice, publish(5, "k", &"x".repeat(40_000)));
    assert_eq!(world.shard.sessions(), 3, "{:?}", world.bodies().last());
    assert!(world.bodies().contains(&ended("reader", EndReason::Shed)));
    world.resume(&innocent);
    world.leave(&more);
}

#[test]
fn while_the_log_stood_still_nobody_was_shed_for_what_waits_behind_it() {
    const BUDGET_BYTES: usize = 100_000;
    let mut world = World::with(settings(), BUDGET_BYTES);
    let clients: Vec<Client> = (0..40).map(|n| world.open(&format!("c{n}"))).collect();
    for client in &clients {
        world.send(client, [publish(1, "g", "small")]);
    }
    let large = |n| Request { message: publish(n, "g", &"x".repeat(10_000)), bytes: 10_000 };
    for client in &clients {
        // One is in flight for ever; these wait behind it.
        let outbox = &client.attachment.outbox;
        outbox.lock().add_requests(2, 20_000);
        world.handle(Input::Requests {
            session: client.attachment.session,
            requests: vec![large(2), large(3)],
        });
        assert!(world.budget.used_bytes() < 2 * BUDGET_BYTES, "{}", world.budget.used_bytes());
    }
    assert_eq!(world.reads(&clients[0]), ["close 1008"]);
    world.settle();
    let published = world.bodies().iter().filter(|body| body.ends_with("published small")).count();
    assert_eq!(published, clients.len(), "what is in flight is executed");
}

#[test]
fn entries_and_ack_ids_counted_for_nothing() {
    let mut world = World::new();
    let alice = world.open("alice");
    let bob = world.open_in("bob", &["g"]);
    let before = world.budget.state_bytes();
    for n in 1..=900 {
        world.ask_for(&alice, publish(n, "g", ""));
        world.reads(&alice);
    }
    let entries = 900 * 16;
    assert!(world.budget.used_bytes() > entries + 900 * size_of::<crate::session::SharedMessage>());
    assert!(world.budget.state_bytes() >= before + 900 * 16, "ids with fingerprints");
    world.send(&bob, [acknowledge(1 << 50)]);
    assert_eq!(world.budget.used_bytes(), 0);
    world.send(&alice, (0..100).map(|n| join(1_000 + n, &format!("{n:0>200}"))));
    let state = world.budget.state_bytes();
    world.settle();
    assert!(world.budget.state_bytes() >= state + 100 * 200, "names of groups");
    world.leave(&alice);
    world.leave(&bob);
    assert_eq!((world.budget.state_bytes(), world.budget.sessions()), (0, 0));
}

#[test]
fn over_the_memory_budget_new_sessions_are_refused_and_recoveries_are_not() {
    let mut world = World::with(settings(), 50_000);
    let alice = world.open("alice");
    let bob = world.open_in("bob", &["g"]);
    world.lose(&bob);
    world.send(&alice, (0..90).map(|n| join(n, &format!("{n:0>500}"))));
    world.settle();
    assert!(world.budget.state_bytes() > 50_000, "{}", world.budget.state_bytes());
    assert_eq!(world.try_open(opening("carol")).map(|_| ()), Err(OpenError::Full));
    let bob = world.resume(&bob);
    world.ask_for(&alice, publish(200, "g", "m"));
    assert_eq!(world.reads(&bob).len(), 1, "there is room for messages still");
    let refused = world.ask_for(&alice, join(300, "one more"));
    assert!(refused.concat().contains("InternalServerError"), "{refused:?}");
    world.leave(&alice);
    assert!(world.try_open(opening("carol")).is_ok());
}

#[test]
fn a_session_with_next_to_nothing_was_ended_for_what_waited_from_others() {
    let mut world = World::with(settings(), 100_000);
    let victim = world.open_in("victim", &["g"]);
    let alice = world.open("alice");
    world.ask_for(&alice, publish(1, "g", "m"));
    let many: Vec<Client> = (0..10).map(|n| world.open(&format!("many-{n}"))).collect();
    for client in &many {
        // Each waits for its handler, which does not answer.
        world.send(client, [super::events::event(1, &"x".repeat(20_000))]);
    }
    world.settle();
    (2..=20).for_each(|n| drop(world.ask_for(&alice, publish(n, "h", "m"))));
    assert_eq!(world.reads(&victim).len(), 1, "it lives");
    let ended = world.bodies().into_iter().filter(|body| body.contains("Shed")).count();
    assert!(ended > 0 && ended < 10, "{ended}");
}

#[test]
fn there_are_as_many_sessions_as_there_may_be_and_those_are_recovered() {
    let sessions = SessionLimits { sessions_max: 2, per_user: None };
    let mut world = World::with(HubSettings { sessions, ..settings() }, usize::MAX);
    let alice = world.open("alice");
    let bob = world.open("bob");
    world.lose(&bob);
    assert_eq!(world.try_open(opening("carol")).map(|_| ()), Err(OpenError::Full));
    let bob = world.resume(&bob);
    world.restart();
    let (_, bob) = (world.resume(&alice), world.resume(&bob));
    assert_eq!(world.try_open(opening("carol")).map(|_| ()), Err(OpenError::Full));
    world.leave(&bob);
    let carol = world.try_open(opening("carol"));
    assert!(carol.is_ok());
}

#[test]
fn one_that_is_being_opened_has_its_place_already() {
    let sessions = SessionLimits { sessions_max: 1, per_user: None };
    let mut world = World::with(HubSettings { sessions, ..settings() }, usize::MAX);
    let first = world.ask(opening("alice"));
    let second = world.ask(opening("bob"));
    assert_eq!(world.opened.remove(&second).unwrap().map(|_| ()), Err(OpenError::Full));
    world.fail(Certainty::Definite);
    assert_eq!(world.opened.remove(&first).unwrap().map(|_| ()), Err(OpenError::Unavailable));
    assert!(world.try_open(opening("bob")).is_ok(), "what failed has given its place back");
}

#[test]
fn a_user_has_as_many_sessions_as_it_may_have() {
    let sessions = SessionLimits { per_user: Some(UserSessions::new(2)), ..SessionLimits::default() };
    let mut world = World::with(HubSettings { sessions, ..settings() }, usize::MAX);
    let of = |id: &str, user: &str| opening_on(id, Subprotocol::JsonReliable, user);
    let first = world.try_open(of("a1", "ada")).unwrap();
    assert!(world.try_open(of("a2", "ada")).is_ok());
    assert_eq!(world.try_open(of("a3", "ada")).map(|_| ()), Err(OpenError::Full));
    assert!(world.try_open(of("b1", "bob")).is_ok());
    world.leave(&first);
    assert!(world.try_open(of("a3", "ada")).is_ok());
}

#[test]
fn forty_sessions_in_many_groups_that_expired_together_held_everybody_up() {
    let mut world = with_groups(10_000);
    let names: Vec<String> = (0..3_000).map(|n| format!("g{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let clients: Vec<Client> = (0..12).map(|n| world.open_in(&format!("c{n}"), &names)).collect();
    clients.iter().for_each(|client| world.lose(client));
    let back = world.resume(&clients[7]);
    world.now = world.now.plus_ms(RETENTION_MS);
    world.handle(Input::Timeout);
    let mut portions = Vec::new();
    while !world.appends.is_empty() {
        portions.push(world.appends.len());
        while !world.appends.is_empty() {
            world.store();
        }
        world.apply();
    }
    assert_eq!(portions, [3, 3, 3, 2], "others are served between them");
    assert_eq!(world.shard.sessions(), 1);
    assert_eq!(world.ask_for(&back, publish(1, "g1", "still here")), ["1 still here", "ack 1"]);
}

#[test]
fn one_that_comes_back_while_its_end_waits_for_others_lives_on() {
    let mut world = with_groups(10_000);
    let names: Vec<String> = (0..9_000).map(|n| format!("g{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let clients: Vec<Client> = (0..3).map(|n| world.open_in(&format!("c{n}"), &names)).collect();
    clients.iter().for_each(|client| world.lose(client));
    world.now = world.now.plus_ms(RETENTION_MS);
    world.handle(Input::Timeout);
    assert_eq!(world.appends.len(), 1);
    let back = world.resume(&clients[1]);
    let again = world.resume(&clients[2]);
    world.lose(&again);
    world.settle();
    assert_eq!(world.shard.sessions(), 2, "the third waits for its client anew");
    assert_eq!(world.ask_for(&back, join(1, "g1")), ["ack 1"]);
}

#[test]
fn a_session_may_be_in_as_many_groups_as_the_bound_says() {
    let mut world = with_groups(3);
    let alice = world.open_in("alice", &["a"]);
    world.send(&alice, [join(1, "b"), join(2, "c"), join(3, "d")]);
    world.settle();
    assert_eq!(world.reads(&alice), ["ack 1", "ack 2", "ack 3 BadRequest"]);
    assert_eq!(world.ask_for(&alice, join(4, "d")), ["ack 4 BadRequest"]);
    assert_eq!(world.ask_for(&alice, join(5, "a")), ["ack 5"], "it is in that one already");
    world.send(&alice, [leave(6, "a"), join(3, "d"), join(7, "a")]);
    world.settle();
    assert_eq!(world.reads(&alice), ["ack 6", "ack 3", "ack 7 BadRequest"]);
    world.send(&alice, [join(8, "b"), join(9, "b"), leave(10, "x"), join(11, "x")]);
    world.settle();
    assert_eq!(world.reads(&alice), ["ack 8", "ack 9", "ack 10", "ack 11 BadRequest"]);
}

#[test]
fn a_session_may_begin_in_as_many_groups_as_the_bound_says() {
    let mut world = with_groups(2);
    let begin = |id, groups: [&str; 3]| NewSession { groups: groups.map(group).to_vec(), ..opening(id) };
    let open = world.ask(begin("alice", ["a", "b", "c"]));
    assert_eq!(world.opened[&open].as_ref().unwrap_err(), &OpenError::TooManyGroups);
    assert_eq!(world.waiting(), 0);
    let bob = world.open_with(begin("bob", ["a", "b", "a"]));
    assert_eq!(world.reads(&bob), ["connected"]);
    assert_eq!(world.ask_for(&bob, publish(1, "a", "once")), ["1 once", "ack 1"]);
}

#[test]
fn a_session_takes_a_thousand_literal_rules_even_if_they_come_at_once() {
    let mut world = World::new();
    world.open_with(opening_as("alice", &[]));
    let grant = |world: &mut World, n: usize| {
        world.change_rule("alice", Permission::SendToGroup, &format!("g{n}"), true)
    };
    let commands: Vec<_> = (0..PERMISSION_LITERALS_MAX).map(|n| grant(&mut world, n)).collect();
    let one_more = grant(&mut world, PERMISSION_LITERALS_MAX);
    let too_many = Err(CommandError::Permission(PermissionError::TooManyRules));
    assert_eq!(world.done[&one_more], too_many);
    world.settle();
    assert!(commands.iter().all(|command| world.done[command] == Ok(Done::Executed)));
    let one_more = grant(&mut world, PERMISSION_LITERALS_MAX);
    assert_eq!(world.done[&one_more], too_many);
}

#[test]
fn nothing_grows_over_ten_thousand_sessions() {
    let mut world = World::new();
    let watcher = world.open_in("watcher", &["everybody"]);
    let mut remembered = Vec::new();
    for n in 0..10_000u64 {
        let id = format!("c{n}");
        let client = world.open_in(&id, &["everybody", &id]);
        world.send(&client, [publish(1, "everybody", "hi"), join(2, "h"), leave(3, "h")]);
        match n % 4 {
            0 => world.settle(),
            1 => {
                world.fail(Certainty::Definite);
            }
            2 => {
                world.fail_but_store();
                world.apply();
            }
            _ => {
                world.fail(Certainty::Indefinite);
            }
        }
        world.lose(&client);
        let client = world.resume(&client);
        let end = if n % 2 == 0 { crate::hub::SocketEnd::ClosedForGood } else { crate::hub::SocketEnd::Lost };
        world.close(&client, end);
        world.wait_ms(RETENTION_MS);
        if n % 3 == 0 {
            world.fail(Certainty::Definite);
            world.wait_ms(1_000);
        }
        world.settle();
        world.reads(&watcher);
        world.send(&watcher, [acknowledge(u64::MAX)]);
        world.handle(Input::Acknowledged);
        remembered.push(format!("{:?}", world.shard.state).len());
    }
    world.wait_ms(MARK_MS);
    world.settle();
    let hub = &world.shard;
    assert_eq!((hub.sessions(), hub.by_connection_id.len(), hub.groups.len()), (1, 1, 1));
    assert_eq!((hub.by_number.len(), hub.is_marked()), (1, true));
    assert_eq!((hub.proposals.len(), hub.poll_timeout(), hub.overflowed.len()), (0, None, 0));
    assert_eq!((world.budget.used_bytes(), hub.woken.len(), hub.outputs.len()), (0, 0, 0));
    let most = remembered.iter().max().unwrap();
    assert!(*most < 1_000, "{most} characters about applied appends");
    assert_eq!(hub.groups.keys().collect::<Vec<_>>(), [&GroupName::new("everybody").unwrap()]);
}

#[test]
fn the_names_of_a_sessions_groups_are_bounded_together() {
    let mut world = with_groups(10_000);
    // As long as names get: 1,024 UTF-16 units of three bytes each.
    let longest = |n: usize| format!("{}{n:03}", "\u{2026}".repeat(1021));
    let longest_bytes = longest(0).len();
    let count = GROUP_NAMES_BYTES_MAX / longest_bytes;
    let filler = "f".repeat(GROUP_NAMES_BYTES_MAX - count * longest_bytes);
    assert!((1..=1024).contains(&filler.len()));
    let alice = world.open("alice");
    world.send(&alice, (0..count).map(|n| join(None, &longest(n))));
    world.settle();
    assert_eq!(world.ask_for(&alice, join(1, &filler)), ["ack 1"], "at the limit");
    assert_eq!(world.ask_for(&alice, join(2, "x")), ["ack 2 BadRequest"]);
    assert_eq!(world.ask_for(&alice, join(3, &longest(0))), ["ack 3"], "it is in that group already");
    world.send(&alice, [leave(4, &longest(0)), join(5, "x"), join(6, &longest(0))]);
    world.settle();
    assert_eq!(world.reads(&alice), ["ack 4", "ack 5", "ack 6 BadRequest"]);

    let names: Vec<String> = (0..count).map(longest).chain([filler]).collect();
    let at_the_limit: Vec<&str> = names.iter().map(String::as_str).collect();
    world.open_in("bob", &at_the_limit);
    let groups = at_the_limit.iter().chain(&["x"]).map(|name| group(name)).collect();
    let open = world.ask(NewSession { groups, ..opening("carol") });
    assert_eq!(world.opened[&open].as_ref().unwrap_err(), &OpenError::TooManyGroups);
}
