//! What the application asks for.

use super::harness::*;
use crate::filter::Filter;
use crate::hub::{
    Action, CommandError, Done, HubSettings, MEMBERSHIPS_PER_REQUEST_MAX, NewSession, OpenError,
};
use crate::log::{Audience, Certainty, IdempotencyKey, Permission, Refusal, RequestName, Selection, Sent};
use crate::session::OutboxLimits;
use crate::wire::{ConnectionId, GroupName, Subprotocol, UserId};

fn all() -> Selection {
    Selection::whole(Audience::All)
}

fn to_group(name: &str) -> Selection {
    Selection::whole(Audience::Group(group(name)))
}

fn to_user(id: &str) -> Selection {
    Selection::whole(Audience::User(UserId::new(id)))
}

fn to_connection(id: &str) -> Selection {
    Selection::whole(Audience::Connection(ConnectionId::new(id)))
}

fn filtered(selection: Selection, filter: &str) -> Selection {
    Selection { filter: Some(Filter::parse(filter).unwrap()), ..selection }
}

fn without(selection: Selection, ids: &[&str]) -> Selection {
    Selection { excluded: ids.iter().map(|id| ConnectionId::new(id)).collect(), ..selection }
}

fn add(selection: Selection, names: &[&str]) -> Action {
    Action::Add { selection, groups: names.iter().map(|name| group(name)).collect() }
}

fn remove(selection: Selection, names: &[&str]) -> Action {
    Action::Remove { selection, groups: names.iter().map(|name| group(name)).collect() }
}

fn close(selection: Selection, reason: &str) -> Action {
    Action::Close { selection, reason: reason.to_owned() }
}

fn request(id: u128, fingerprint: u128) -> Option<IdempotencyKey> {
    let name = RequestName { id, fingerprint };
    Some(IdempotencyKey { name, window_seconds: 60, window_requests: 100, first_sent: None })
}

/// A request that is the same each time, and has one answer.
fn repeatable(id: u128, first_sent: u64) -> Option<IdempotencyKey> {
    request(id, 1).map(|key| IdempotencyKey { first_sent: Some(first_sent), ..key })
}

/// Opens sessions of users, each in some groups.
fn open_all(world: &mut World, sessions: &[(&str, &str, &[&str])]) -> Vec<Client> {
    let open = |(id, user, groups): &(&str, &str, &[&str])| {
        let new = NewSession {
            groups: groups.iter().map(|name| group(name)).collect(),
            ..opening_on(id, Subprotocol::JsonReliable, user)
        };
        let client = world.open_with(new);
        assert_eq!(world.reads(&client), ["connected"]);
        client
    };
    sessions.iter().map(open).collect()
}

fn three(world: &mut World) -> [Client; 3] {
    let sessions = open_all(world, &[("a", "ann", &["g"]), ("b", "bob", &["g", "h"]), ("c", "ann", &[])]);
    sessions.try_into().ok().unwrap()
}

fn read_by(world: &World, clients: &[Client]) -> Vec<String> {
    let mut read = Vec::new();
    for client in clients {
        read.extend(world.reads(client).iter().map(|text| format!("{} {text}", client.id)));
    }
    read
}

#[test]
fn a_message_reaches_the_audience_that_the_filter_selects_without_the_excluded() {
    let mut world = World::new();
    let clients = three(&mut world);
    for (selection, receivers) in [
        (all(), "abc"),
        (to_group("g"), "ab"),
        (to_group("none"), ""),
        (to_user("ann"), "ac"),
        (to_user("nobody"), ""),
        (to_connection("b"), "b"),
        (to_connection("nobody"), ""),
        (without(all(), &["b", "b", "nobody"]), "ac"),
        (without(to_connection("b"), &["b"]), ""),
        (filtered(all(), "userId eq 'ann'"), "ac"),
        (filtered(to_group("g"), "'h' in groups"), "b"),
        (filtered(to_user("ann"), "length(groups) eq 0"), "c"),
        (without(filtered(all(), "startswith(protocol,'json.')"), &["c"]), "ab"),
    ] {
        world.sends(selection.clone(), "m");
        let read = read_by(&world, &clients);
        let got: String = read.iter().map(|line| line.split(' ').next().unwrap()).collect();
        assert_eq!(got, receivers, "{selection:?}");
    }
}

#[test]
fn r11_messages_of_the_application_have_sequence_ids_and_come_back_after_a_restart() {
    let mut world = World::new();
    let clients = three(&mut world);
    world.sends(all(), "one");
    world.sends(filtered(to_user("ann"), "'g' in groups"), "two");
    world.sends(to_group("g"), "three");
    let before = read_by(&world, &clients);
    assert_eq!(before, ["a 1 one", "a 2 two", "a 3 three", "b 1 one", "b 2 three", "c 1 one"]);
    world.restart();
    let clients: Vec<Client> = clients.iter().map(|client| world.resume(client)).collect();
    assert_eq!(read_by(&world, &clients), before);
}

#[test]
fn r3_nobody_gets_a_message_before_it_is_in_the_log() {
    let mut world = World::new();
    let clients = three(&mut world);
    let command = world.command(send(all(), "m"));
    assert_eq!((world.done.get(&command), read_by(&world, &clients)), (None, vec![]));
    world.settle();
    assert_eq!(world.done[&command], Ok(Done::Executed));
    assert_eq!(read_by(&world, &clients).len(), 3);
}

#[test]
fn a_message_that_is_certainly_not_stored_is_unavailable_and_one_in_doubt_is_tried_again() {
    let mut world = World::new();
    let clients = three(&mut world);
    let failed = world.command(send(all(), "lost"));
    world.fail(Certainty::Definite);
    assert_eq!(world.done[&failed], Err(CommandError::Unavailable));
    let in_doubt = world.command(send(to_connection("a"), "twice"));
    world.fail_but_store();
    world.wait_ms(1_000);
    world.settle();
    assert_eq!(world.done[&in_doubt], Ok(Done::Executed));
    assert_eq!(read_by(&world, &clients), ["a 1 twice"]);
}

#[test]
fn a_full_outbox_ends_its_session_whoever_filled_it() {
    let limits = OutboxLimits { messages_max: 2, bytes_max: 1000 };
    let mut world = World::with(HubSettings { outbox: limits, ..settings() }, usize::MAX);
    let client = world.open("a");
    (0..3).for_each(|_| world.sends(all(), "m"));
    assert_eq!(world.reads(&client).last().unwrap(), "close 1008");
    assert_eq!(world.shard.sessions(), 0);
}

#[test]
fn membership_changes_for_all_that_are_selected_at_that_time() {
    let mut world = World::new();
    let clients = three(&mut world);
    let groups_of = |world: &World, client: &Client| -> Vec<String> {
        let session = &world.shard.sessions[world.shard.by_connection_id[&client.id]];
        session.groups.iter().map(GroupName::to_string).collect()
    };
    let all_groups =
        |world: &World| clients.iter().map(|client| groups_of(world, client).concat()).collect::<Vec<_>>();
    for (action, expected) in [
        (add(filtered(all(), "length(groups) lt 2"), &["x", "y"]), ["gxy", "gh", "xy"]),
        (add(to_connection("b"), &["x", "g"]), ["gxy", "ghx", "xy"]),
        (remove(filtered(all(), "'x' in groups"), &["x", "h", "none"]), ["gy", "g", "y"]),
        (add(to_user("ann"), &["z"]), ["gyz", "g", "yz"]),
        (remove(to_connection("a"), &[]), ["", "g", "yz"]),
        (remove(to_user("ann"), &[]), ["", "g", ""]),
        (remove(to_connection("nobody"), &["g"]), ["", "g", ""]),
    ] {
        let command = world.command(action.clone());
        world.settle();
        assert_eq!(world.done[&command], Ok(Done::Executed), "{action:?}");
        assert_eq!(all_groups(&world), expected, "{action:?}");
    }
    assert!(!world.shard.has(&Audience::Group(group("x"))) && world.shard.has(&Audience::Group(group("g"))));
    world.restart();
    assert_eq!(all_groups(&world), ["", "g", ""]);
    assert_eq!(read_by(&world, &clients), [] as [&str; 0], "nothing is sent to the clients");
}

#[test]
fn r4_more_groups_than_a_session_may_be_in_are_refused_before() {
    let mut world = World::with(HubSettings { groups_per_session_max: 3, ..settings() }, usize::MAX);
    let _clients = three(&mut world);
    let done = |world: &mut World, action| {
        let command = world.command(action);
        world.settle();
        world.done[&command]
    };
    assert_eq!(
        done(&mut world, add(all(), &["g", "u", "v", "w", "x", "y"])),
        Err(CommandError::TooManyGroups),
        "b would have seven"
    );
    assert!(!world.shard.has(&Audience::Group(group("x"))), "nobody was added");
    assert_eq!(done(&mut world, add(all(), &["g", "h", "u", "v", "w", "x"])), Ok(Done::Executed));
    assert_eq!(done(&mut world, add(to_connection("b"), &["y"])), Err(CommandError::TooManyGroups));
    assert_eq!(done(&mut world, add(to_connection("nobody"), &["y"])), Err(CommandError::UnknownConnection));
}

#[test]
fn whether_there_is_room_is_asked_only_of_those_whom_the_filter_selects() {
    let mut world = World::with(HubSettings { groups_per_session_max: 2, ..settings() }, usize::MAX);
    let sessions: [(&str, &str, &[&str]); 3] =
        [("full", "ann", &["g", "h"]), ("half", "bob", &["g"]), ("empty", "cleo", &[])];
    open_all(&mut world, &sessions);
    let names = ["g", "x", "y", "z"];
    for (filter, expected) in [
        ("userId eq 'ann'", Err(CommandError::TooManyGroups)),
        ("length(groups) gt 1", Err(CommandError::TooManyGroups)),
        ("true", Err(CommandError::TooManyGroups)),
        ("userId ne 'ann'", Ok(Done::Executed)),
        ("not ('h' in groups)", Ok(Done::Executed)),
        ("false", Ok(Done::Executed)),
    ] {
        let command = world.command(add(filtered(all(), filter), &names));
        world.settle();
        assert_eq!(world.done[&command], expected, "{filter}");
    }
    let command = world.command(add(without(all(), &["full"]), &names));
    world.settle();
    assert_eq!(world.done[&command], Ok(Done::Executed));
}

#[test]
fn one_request_for_many_groups_and_all_sessions_took_all_memory_and_the_hub() {
    let names: Vec<String> = (0..1_000).map(|n| format!("g{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let settings = HubSettings { groups_per_session_max: 1_000_000, ..settings() };
    let mut world = World::with(settings, 10_000_000);
    open_all(&mut world, &[("a", "u", &[]), ("b", "u", &[]), ("c", "v", &[])]);
    let mut ask = |selection: Selection, names: &[&str]| {
        let command = world.command(add(selection, names));
        world.settle();
        world.done[&command]
    };
    assert_eq!(ask(all(), &names), Ok(Done::Executed));
    // A third of a million for each of three: the bound on one request, whoever is selected.
    let many = vec!["g"; MEMBERSHIPS_PER_REQUEST_MAX / 3 + 1];
    assert_eq!(ask(all(), &many), Err(CommandError::TooManyMemberships));
    assert_eq!(ask(filtered(all(), "userId eq 'v'"), &names), Ok(Done::Executed));
    // Within that bound, but not within memory.
    let long: Vec<String> = (0..1_000).map(|n| format!("{n:0>1000}")).collect();
    let long: Vec<&str> = long.iter().map(String::as_str).collect();
    assert_eq!(ask(filtered(all(), "userId eq 'v'"), &long), Ok(Done::Executed));
    let larger: Vec<String> = (0..8_000).map(|n| format!("{n:0>1020}")).collect();
    let larger: Vec<&str> = larger.iter().map(String::as_str).collect();
    assert_eq!(ask(all(), &larger), Err(CommandError::Unavailable));
    assert!(world.budget.state_bytes() < 10_000_000);
}

#[test]
fn a_closed_client_gets_what_was_sent_before_then_the_reason_and_can_never_resume() {
    let mut world = World::new();
    let [a, b, c] = three(&mut world);
    world.lose(&c);
    world.sends(all(), "last");
    let command = world.command(close(without(all(), &["b"]), "maintenance"));
    world.settle();
    assert_eq!(world.done[&command], Ok(Done::Executed));
    let told = "disconnected Application server closed the connection. Reason: maintenance";
    assert_eq!(world.reads(&a), ["1 last", told, "close 1000"]);
    assert_eq!(world.reads(&b), ["1 last"]);
    assert_eq!((world.refusal(&a), world.refusal(&c)), (OpenError::Refused, OpenError::Refused));
    world.restart();
    assert_eq!((world.refusal(&c), world.shard.sessions()), (OpenError::Refused, 1));
}

#[test]
fn a_close_without_a_reason_and_of_a_raw_client() {
    let mut world = World::new();
    let a = world.open("a");
    let raw = world.open_with(opening_on("raw", Subprotocol::Raw, "u"));
    let before = world.open("late");
    world.command(close(without(all(), &["late"]), ""));
    world.settle();
    assert_eq!(world.reads(&a), ["disconnected Application server closed the connection.", "close 1000"]);
    assert_eq!(world.reads(&raw), ["close 1000"]);
    assert_eq!(world.reads(&before), [] as [&str; 0]);
}

#[test]
fn r8_a_repeated_request_is_executed_once_also_after_a_restart() {
    let mut world = World::new();
    let clients = three(&mut world);
    let ask = |world: &mut World, key, text| {
        let command = world.request(send(to_connection("a"), text), key, false);
        world.settle();
        world.done[&command]
    };
    assert_eq!(ask(&mut world, request(1, 1), "one"), Ok(Done::Executed));
    assert_eq!(ask(&mut world, request(1, 1), "one"), Ok(Done::Repeated));
    assert_eq!(ask(&mut world, request(1, 2), "other body"), Ok(Done::Executed));
    assert_eq!(ask(&mut world, None, "no id"), Ok(Done::Executed));
    world.restart();
    assert_eq!(ask(&mut world, request(1, 1), "one"), Ok(Done::Repeated));
    let a = world.resume(&clients[0]);
    assert_eq!(world.reads(&a), ["1 one", "2 other body", "3 no id"]);
    world.now = world.now.plus_ms(59_999);
    assert_eq!(ask(&mut world, request(1, 1), "one"), Ok(Done::Repeated));
    world.now = world.now.plus_ms(1);
    assert_eq!(ask(&mut world, request(1, 1), "one"), Ok(Done::Executed), "its time is over");
    assert_eq!(world.reads(&a), ["4 one"]);
}

#[test]
fn r7_a_repetition_waits_for_the_outcome_of_its_original() {
    let mut world = World::new();
    let clients = three(&mut world);
    let [first, second] = [0, 1].map(|_| world.request(send(to_connection("a"), "m"), request(1, 1), false));
    assert_eq!((world.done.get(&first), world.done.get(&second), world.waiting()), (None, None, 1));
    world.fail(Certainty::Definite);
    assert_eq!([world.done[&first], world.done[&second]], [Err(CommandError::Unavailable); 2]);
    let [third, fourth] = [0, 1].map(|_| world.request(send(to_connection("a"), "m"), request(1, 1), false));
    world.settle();
    assert_eq!([world.done[&third], world.done[&fourth]], [Ok(Done::Executed), Ok(Done::Repeated)]);
    assert_eq!(read_by(&world, &clients), ["a 1 m"]);
}

#[test]
fn another_request_under_a_used_id_is_refused_where_that_is_strict() {
    let mut world = World::new();
    let _clients = three(&mut world);
    let pending = world.request(send(all(), "m"), request(1, 1), true);
    let too_early = world.request(send(all(), "n"), request(1, 2), true);
    assert_eq!(world.done[&too_early], Err(CommandError::OtherRequest));
    world.settle();
    let late = world.request(send(all(), "n"), request(1, 2), true);
    assert_eq!(
        (world.done[&pending], world.done[&late]),
        (Ok(Done::Executed), Err(CommandError::OtherRequest))
    );
    let repeated = world.request(send(all(), "m"), request(1, 1), true);
    assert_eq!((world.done[&repeated], world.waiting()), (Ok(Done::Repeated), 0));
}

#[test]
fn a_refused_command_is_not_remembered_under_its_id() {
    let mut world = World::new();
    let refused = world.request(add(to_connection("a"), &["g"]), request(1, 1), false);
    assert_eq!(world.done[&refused], Err(CommandError::UnknownConnection));
    world.open("a");
    let again = world.request(add(to_connection("a"), &["g"]), request(1, 1), false);
    world.settle();
    assert_eq!(world.done[&again], Ok(Done::Executed));
}

#[test]
fn r8_a_repeatable_request_has_its_first_answer_whatever_became_true_also_after_a_restart() {
    let mut world = World::new();
    let put = |world: &mut World| world.request(add(to_connection("a"), &["g"]), repeatable(1, 5), false);
    let [first, second] = [put(&mut world), put(&mut world)];
    assert_eq!((world.done.get(&first), world.done.get(&second), world.waiting()), (None, None, 1));
    world.settle();
    let refused = Err(CommandError::UnknownConnection);
    assert_eq!([world.done[&first], world.done[&second]], [refused; 2]);
    world.open("a");
    let grant = |world: &mut World| {
        let (connection_id, permission) = (ConnectionId::new("a"), Permission::SendToGroup);
        let rule = Action::ChangeRule { connection_id, permission, group: group("g"), allow: true };
        world.request(rule, repeatable(2, 5), false)
    };
    let granted = grant(&mut world);
    world.settle();
    assert_eq!(world.done[&granted], Ok(Done::Executed));
    for restarts in 0..2 {
        let (put, granted) = (put(&mut world), grant(&mut world));
        let done = (world.done[&put], world.done[&granted], world.waiting());
        assert_eq!(done, (refused, Ok(Done::Repeated), 0), "after {restarts} restarts");
        assert!(!world.shard.has(&Audience::Group(group("g"))));
        world.restart();
    }
}

#[test]
fn another_request_under_the_id_of_a_repeatable_one_is_always_refused() {
    let mut world = World::new();
    let other = || {
        repeatable(1, 5).map(|key| IdempotencyKey { name: RequestName { fingerprint: 2, ..key.name }, ..key })
    };
    let first = world.request(send(all(), "m"), repeatable(1, 5), false);
    let early = world.request(send(all(), "n"), other(), false);
    world.settle();
    let late = world.request(send(all(), "n"), other(), false);
    assert_eq!(world.done[&first], Ok(Done::Executed));
    assert_eq!([world.done[&early], world.done[&late]], [Err(CommandError::OtherRequest); 2]);
    let of_the_other_kind = world.request(send(all(), "n"), request(1, 1), true);
    world.settle();
    assert_eq!(world.done[&of_the_other_kind], Ok(Done::Executed));
}

#[test]
fn r8_a_repeatable_request_that_was_forgotten_is_not_executed_again_whatever_the_clock_says() {
    let mut world = World::new();
    let ask = |world: &mut World, id, first_sent| {
        let key = repeatable(id, first_sent).map(|key| IdempotencyKey { window_requests: 2, ..key });
        let command = world.request(send(all(), "m"), key, false);
        world.settle();
        world.done[&command]
    };
    for (id, first_sent) in [(1, 10), (2, 12), (3, 11)] {
        assert_eq!(ask(&mut world, id, first_sent), Ok(Done::Executed));
    }
    for _ in 0..2 {
        assert_eq!(ask(&mut world, 1, 10), Err(CommandError::PerhapsForgotten));
        assert_eq!(ask(&mut world, 2, 12), Ok(Done::Repeated));
        assert_eq!(ask(&mut world, 3, 11), Ok(Done::Repeated));
        world.restart();
    }
    // Its time is over by far, and the clock goes back.
    world.now = world.now.plus_ms(1_000_000);
    assert_eq!(ask(&mut world, 4, 11), Ok(Done::Executed));
    world.now = crate::log::Time(world.now.0 - 900_000);
    assert_eq!(ask(&mut world, 2, 12), Err(CommandError::PerhapsForgotten));
    assert_eq!(ask(&mut world, 5, 13), Ok(Done::Executed));
}

#[test]
fn r7_what_is_refused_elsewhere_is_answered_as_the_first_time_if_it_is_a_repetition() {
    let mut world = World::new();
    world.open("a");
    let first = world.request(add(to_connection("a"), &["g"]), request(1, 1), false);
    let waiting = world.request(Action::Refuse(Refusal::UnknownUser), request(1, 1), false);
    let new = world.request(Action::Refuse(Refusal::UnknownUser), request(2, 1), false);
    assert_eq!(world.done.get(&waiting), None);
    assert_eq!(world.done[&new], Err(CommandError::UnknownUser));
    world.settle();
    let late = world.request(Action::Refuse(Refusal::UnknownUser), request(1, 1), false);
    assert_eq!(
        [world.done[&first], world.done[&waiting], world.done[&late]],
        [Ok(Done::Executed), Ok(Done::Repeated), Ok(Done::Repeated)]
    );
    let remembered = world.request(Action::Refuse(Refusal::UnknownUser), repeatable(3, 1), false);
    world.settle();
    let again = world.request(add(to_connection("a"), &["g"]), repeatable(3, 1), false);
    assert_eq!([world.done[&remembered], world.done[&again]], [Err(CommandError::UnknownUser); 2]);
}

#[test]
fn sessions_without_a_socket_exist_and_those_about_to_end_do_not() {
    let mut world = World::new();
    let [a, b, _c] = three(&mut world);
    world.lose(&a);
    let id = |id: &str| Audience::Connection(ConnectionId::new(id));
    let user = |id: &str| Audience::User(UserId::new(id));
    for (audience, exists) in [(id("a"), true), (user("ann"), true), (user("bob"), true), (id("x"), false)] {
        assert_eq!(world.shard.has(&audience), exists, "{audience:?}");
    }
    world.close(&b, crate::hub::SocketEnd::ClosedForGood);
    assert!(
        !world.shard.has(&id("b"))
            && !world.shard.has(&user("bob"))
            && !world.shard.has(&Audience::Group(group("h")))
    );
    let refused = world.command(add(to_connection("b"), &["x"]));
    assert_eq!(world.done[&refused], Err(CommandError::UnknownConnection));
}

#[test]
fn members_are_listed_by_their_ids_behind_any_id() {
    let mut world = World::new();
    let ids: Vec<String> = (0..10).map(|n| format!("c{}", (n * 7) % 10)).collect();
    for id in &ids {
        world.open_in(id, &["g"]);
    }
    world.open("other");
    let page = |behind: Option<&str>, count| -> Vec<String> {
        let behind = behind.map(ConnectionId::new);
        let members = world.shard.members(&group("g"), behind.as_ref(), count);
        members.iter().map(|member| member.connection_id.to_string()).collect()
    };
    assert_eq!(page(None, 3), ["c0", "c1", "c2"]);
    assert_eq!(page(Some("c2"), 3), ["c3", "c4", "c5"]);
    assert_eq!(page(Some("c55"), 100), ["c6", "c7", "c8", "c9"]);
    assert_eq!(page(Some("c9"), 3), [] as [&str; 0]);
    assert!(world.shard.members(&group("none"), None, 3).is_empty());
}

#[test]
fn permissions_are_told_with_roles_and_rules_together() {
    let mut world = World::new();
    world.open_with(opening_as("a", &["webpubsub.sendToGroups.g*"]));
    let id = ConnectionId::new("a");
    let may = |world: &World, name| world.shard.allows(&id, Permission::SendToGroup, &group(name));
    assert!(may(&world, "g1") && !may(&world, "h"));
    for (name, allow) in [("g1", false), ("h", true)] {
        world.change_rule("a", Permission::SendToGroup, name, allow);
    }
    world.settle();
    assert!(!may(&world, "g1") && may(&world, "g2") && may(&world, "h"));
    assert!(!world.shard.allows(&ConnectionId::new("nobody"), Permission::SendToGroup, &group("h")));
}

#[test]
fn what_is_asked_before_the_boot_is_unavailable() {
    let mut world = World::new();
    world.start();
    let command = world.request(send(all(), "m"), request(1, 1), false);
    assert_eq!(world.done[&command], Err(CommandError::Unavailable));
}

#[test]
fn r5_a_message_lives_until_its_time_is_over_for_a_slow_reader_a_detached_one_and_after_a_restart() {
    let mut world = World::new();
    let [slow, detached, _c] = three(&mut world);
    world.lose(&detached);
    let with_ttl = |ttl_seconds, text| match send(to_group("g"), text) {
        Action::Send(sent) => Action::Send(Sent { ttl_seconds, ..sent }),
        other => other,
    };
    for (ttl_seconds, text) in [(10, "ten"), (11, "eleven"), (0, "for ever")] {
        world.command(with_ttl(ttl_seconds, text));
        world.settle();
    }
    world.now = world.now.plus_ms(9_999);
    let early = world.resume(&detached);
    assert_eq!(world.reads(&early), ["1 ten", "2 eleven", "3 for ever"]);
    world.now = world.now.plus_ms(1);
    assert_eq!(world.reads(&slow), ["2 eleven", "3 for ever"]);
    world.restart();
    let detached = world.resume(&detached);
    assert_eq!(world.reads(&detached), ["2 eleven", "3 for ever"]);
    world.now = world.now.plus_ms(1_000);
    let detached = world.resume(&detached);
    assert_eq!(world.reads(&detached), ["3 for ever"]);
}
