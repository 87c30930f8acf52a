//! R3, R4 and R7: what becomes of a client's requests.

use super::harness::*;
use crate::hub::{CommandError, Done, NewSession, SocketEnd};
use crate::log::{Certainty, Permission};
use crate::wire::{EventName, Metadata, Subprotocol, Upstream};

#[test]
fn r3_nothing_is_acknowledged_or_delivered_before_its_record_came_back() {
    let mut world = World::new();
    let alice = world.open("alice");
    let bob = world.open_in("bob", &["g"]);
    world.send(&alice, [join(1, "g"), publish(2, "g", "hi")]);
    assert_eq!((world.reads(&alice), world.reads(&bob)), (vec![], vec![]));
    world.store();
    assert_eq!((world.reads(&alice), world.reads(&bob)), (vec![], vec![]), "stored is not applied");
    world.apply();
    assert_eq!(world.reads(&alice), ["ack 1", "1 hi", "ack 2"]);
    assert_eq!(world.reads(&bob), ["1 hi"]);
}

#[test]
fn r3_a_session_that_is_not_reliable_gets_its_acks_and_messages_no_earlier() {
    let mut world = World::new();
    let opening = NewSession { groups: vec![group("g")], ..opening_on("plain", Subprotocol::Json, "u") };
    let plain = world.open_with(opening);
    assert_eq!(world.reads(&plain), ["connected"]);
    world.send(&plain, [publish(1, "g", "hi")]);
    world.store();
    assert_eq!(world.reads(&plain), Vec::<String>::new());
    world.apply();
    assert_eq!(world.reads(&plain), ["hi", "ack 1"]);
}

#[test]
fn r4_what_is_refused_is_not_appended_and_changes_nothing() {
    let mut world = World::new();
    let eve = world.open_with(opening_as("eve", &[]));
    let bob = world.open_in("bob", &["g"]);
    assert_eq!(world.reads(&eve), ["connected"]);
    let stored = world.log.len();
    world.send(
        &eve,
        [join(1, "g"), leave(2, "g"), publish(3, "g", "hi"), join(None, "g"), publish(None, "g", "hi")],
    );
    assert_eq!((world.waiting(), world.log.len()), (0, stored));
    assert_eq!(world.reads(&eve), ["ack 1 Forbidden", "ack 2 Forbidden", "ack 3 Forbidden"]);
    world.ask_for(&bob, publish(1, "g", "for members"));
    assert_eq!(world.reads(&eve), Vec::<String>::new());
}

#[test]
fn what_is_not_offered_yet_is_answered_and_does_not_cost_the_session() {
    let mut world = World::new();
    let alice = world.open("alice");
    let invoke = Upstream::Invoke {
        invocation_id: "i".to_owned(),
        event: EventName::new("e").unwrap(),
        payload: None,
        metadata: Metadata::default(),
    };
    let stream = Upstream::Stream { stream_id: "s".to_owned(), group: Some(group("g")), ack_id: None };
    let cancel = Upstream::CancelInvocation { invocation_id: "i".to_owned() };
    let state = Upstream::GroupState { group: group("g"), ack_id: Some(2) };
    world.send(&alice, [state, invoke, cancel, stream, Upstream::Ping]);
    assert_eq!(world.waiting(), 0);
    let answers = world.reads(&alice).join("\n");
    let in_order = ["pong", "ack 2 BadRequest", "InvokeFailed", "StreamClosed"];
    let mut places = in_order.map(|answer| answers.find(answer).expect(answer));
    places[0] = 0; // A pong may overtake.
    assert!(places.is_sorted(), "{answers}");
    assert_eq!(answers.lines().count(), 4);
    assert_eq!(world.ask_for(&alice, join(1, "g")), ["ack 1"]);
}

#[test]
fn a_stream_start_with_an_ack_id_was_never_acknowledged() {
    let mut world = World::new();
    let alice = world.open("alice");
    for group in [Some(group("g")), None] {
        let start = Upstream::Stream { stream_id: "s".to_owned(), group, ack_id: Some(7) };
        assert_eq!(world.ask_for(&alice, start), ["ack 7 BadRequest"]);
    }
}

#[test]
fn r7_one_batch_is_in_flight_and_what_arrives_meanwhile_goes_as_one() {
    let mut world = World::new();
    let alice = world.open_in("alice", &["g"]);
    world.send(&alice, [publish(1, "g", "a")]);
    world.send(&alice, [publish(2, "g", "b")]);
    world.send(&alice, [publish(3, "g", "c"), publish(4, "g", "d")]);
    assert_eq!(world.appends.len(), 1);
    world.store();
    assert_eq!(world.appends.len(), 0, "stored is not applied");
    world.apply();
    assert_eq!(world.appends.len(), 1);
    assert_eq!(world.store().1.len(), 3);
    world.apply();
    assert_eq!(world.reads(&alice), ["1 a", "ack 1", "2 b", "ack 2", "3 c", "ack 3", "4 d", "ack 4"]);
}

#[test]
fn r7_sessions_do_not_wait_for_each_other() {
    let mut world = World::new();
    let (alice, bob) = (world.open("alice"), world.open("bob"));
    world.send(&alice, [join(1, "g")]);
    world.send(&bob, [join(1, "g")]);
    assert_eq!(world.appends.len(), 2);
}

#[test]
fn r7_answers_come_in_the_order_of_the_requests() {
    let mut world = World::new();
    let alice = world.open_with(opening_as("alice", &["webpubsub.sendToGroup"]));
    world.reads(&alice);
    world.send(&alice, [publish(1, "g", "a"), join(2, "g"), publish(3, "g", "b"), leave(4, "g")]);
    assert_eq!(world.waiting(), 2);
    world.settle();
    assert_eq!(world.reads(&alice), ["ack 1", "ack 2 Forbidden", "ack 3", "ack 4 Forbidden"]);
}

#[test]
fn r7_a_duplicate_waits_for_its_original() {
    let mut world = World::new();
    let alice = world.open("alice");
    let bob = world.open_in("bob", &["g"]);
    world.send(&alice, [publish(1, "g", "hi"), publish(1, "g", "hi")]);
    world.send(&alice, [publish(1, "g", "hi")]);
    assert_eq!((world.waiting(), world.reads(&alice)), (1, vec![]));
    world.settle();
    assert_eq!(world.reads(&alice), ["ack 1", "ack 1 Duplicate", "ack 1 Duplicate"]);
    assert_eq!(world.reads(&bob), ["1 hi"]);
}

#[test]
fn r7_a_repeat_of_a_failed_request_is_not_taken_for_a_duplicate() {
    let mut world = World::new();
    let alice = world.open("alice");
    let bob = world.open_in("bob", &["g"]);
    world.send(&alice, [publish(1, "g", "hi"), publish(1, "g", "hi")]);
    world.fail(Certainty::Definite);
    assert_eq!(world.reads(&alice), ["ack 1 InternalServerError", "ack 1 InternalServerError"]);
    assert_eq!(world.ask_for(&alice, publish(1, "g", "hi")), ["ack 1"]);
    assert_eq!(world.reads(&bob), ["1 hi"]);
}

#[test]
fn another_request_under_a_known_ack_id_is_a_mismatch_and_is_not_executed() {
    let mut world = World::new();
    let alice = world.open("alice");
    let bob = world.open_in("bob", &["g"]);
    world.send(&alice, [publish(1, "g", "hi"), publish(1, "g", "ho")]);
    world.settle();
    assert_eq!(world.reads(&alice), ["ack 1", "ack 1 PayloadMismatch"]);
    assert_eq!(world.ask_for(&alice, publish(1, "h", "hi")), ["ack 1 PayloadMismatch"]);
    assert_eq!(world.ask_for(&alice, publish(1, "g", "hi")), ["ack 1 Duplicate"]);
    assert_eq!(world.reads(&bob), ["1 hi"]);
}

#[test]
fn scenario_1_the_same_ack_id_twice() {
    let mut world = World::new();
    let alice = world.open("alice");
    let bob = world.open_in("bob", &["g"]);
    assert_eq!(world.ask_for(&alice, publish(1, "g", "hi")), ["ack 1"]);
    assert_eq!(world.ask_for(&alice, publish(1, "g", "hi")), ["ack 1 Duplicate"]);
    assert_eq!(world.reads(&bob), ["1 hi"]);
}

#[test]
fn scenario_2_a_forbidden_request_does_not_use_up_its_ack_id() {
    let mut world = World::new();
    let alice = world.open_with(opening_as("alice", &[]));
    let bob = world.open_in("bob", &["g"]);
    world.reads(&alice);
    assert_eq!(world.ask_for(&alice, publish(1, "g", "hi")), ["ack 1 Forbidden"]);
    let command = world.change_rule("alice", Permission::SendToGroup, "g", true);
    assert_eq!(world.done.get(&command), None, "not before its record came back");
    world.settle();
    assert_eq!(world.done[&command], Ok(Done::Executed));
    assert_eq!(world.ask_for(&alice, publish(1, "g", "hi")), ["ack 1"]);
    assert_eq!(world.reads(&bob), ["1 hi"]);
}

#[test]
fn scenario_3_a_leave_under_the_ack_id_of_a_join_is_not_executed() {
    let mut world = World::new();
    let alice = world.open("alice");
    assert_eq!(world.ask_for(&alice, join(5, "g")), ["ack 5"]);
    // Another request under a known id: where the reference says `Duplicate`, the gateway tells the difference.
    assert_eq!(world.ask_for(&alice, leave(5, "g")), ["ack 5 PayloadMismatch"]);
    assert_eq!(world.ask_for(&alice, publish(6, "g", "still a member")), ["1 still a member", "ack 6"]);
}

#[test]
fn scenario_4_an_ack_id_is_known_after_a_recovery_and_after_a_restart() {
    let mut world = World::new();
    let alice = world.open_in("alice", &["g"]);
    assert_eq!(world.ask_for(&alice, publish(5, "g", "hi")), ["1 hi", "ack 5"]);
    world.lose(&alice);
    let alice = world.resume(&alice);
    assert_eq!(world.ask_for(&alice, publish(5, "g", "hi")), ["1 hi", "ack 5 Duplicate"]);
    world.restart();
    let alice = world.resume(&alice);
    assert_eq!(world.ask_for(&alice, publish(5, "g", "hi")), ["1 hi", "ack 5 Duplicate"]);
}

#[test]
fn scenario_19_no_echo_leaves_out_the_sending_session_only() {
    let mut world = World::new();
    let in_g =
        |id| NewSession { groups: vec![group("g")], ..opening_on(id, Subprotocol::JsonReliable, "ada") };
    let (first, second) = (world.open_with(in_g("first")), world.open_with(in_g("second")));
    world.reads(&second);
    world.send(&first, [without_echo(publish(1, "g", "hi"))]);
    world.settle();
    assert_eq!(world.reads(&first), ["connected", "ack 1"]);
    assert_eq!(world.reads(&second), ["1 hi"]);
}

#[test]
fn scenarios_20_and_21_roles_are_literal_or_patterns() {
    let mut world = World::new();
    let roles = ["webpubsub.sendToGroup.*", "webpubsub.sendToGroups.a.*"];
    let alice = world.open_with(opening_as("alice", &roles));
    world.reads(&alice);
    world.send(
        &alice,
        [publish(1, "x", ""), publish(2, "*", ""), publish(3, "a.b", ""), publish(4, "a.b.c", "")],
    );
    world.settle();
    assert_eq!(world.reads(&alice), ["ack 1 Forbidden", "ack 2", "ack 3", "ack 4 Forbidden"]);
}

#[test]
fn ack_ids_may_be_0_and_in_any_order_and_requests_without_one_are_never_duplicates() {
    let mut world = World::new();
    let alice = world.open_in("alice", &["g"]);
    world.send(&alice, [publish(u64::MAX, "g", "a"), publish(0, "g", "b"), publish(0, "g", "b")]);
    world.send(&alice, [publish(None, "g", "c"), publish(None, "g", "c")]);
    world.settle();
    let last = format!("ack {}", u64::MAX);
    assert_eq!(world.reads(&alice), ["1 a", &last, "2 b", "ack 0", "ack 0 Duplicate", "3 c", "4 c"]);
}

#[test]
fn the_ack_window_forgets_the_oldest_id_at_its_bound() {
    let mut world = World::with(crate::hub::HubSettings { ack_window_ids: 2, ..settings() }, usize::MAX);
    let alice = world.open("alice");
    for ack_id in [1, 2] {
        world.ask_for(&alice, join(ack_id, "g"));
    }
    assert_eq!(world.ask_for(&alice, join(1, "g")), ["ack 1 Duplicate"]);
    world.ask_for(&alice, join(3, "g"));
    assert_eq!(world.ask_for(&alice, join(1, "g")), ["ack 1"], "executed anew");
    assert_eq!(world.ask_for(&alice, join(3, "g")), ["ack 3 Duplicate"]);
}

#[test]
fn joins_and_leaves_are_idempotent_and_take_effect_before_their_acks() {
    let mut world = World::new();
    let (alice, bob) = (world.open("alice"), world.open("bob"));
    world.send(&alice, [leave(1, "g"), join(2, "g"), join(3, "g")]);
    world.settle();
    assert_eq!(world.reads(&alice), ["ack 1", "ack 2", "ack 3"]);
    world.ask_for(&bob, publish(1, "g", "for members"));
    assert_eq!(world.ask_for(&alice, leave(4, "g")), ["1 for members", "ack 4"]);
    world.ask_for(&bob, publish(2, "g", "too late"));
    assert_eq!(world.reads(&alice), Vec::<String>::new());
}

#[test]
fn a_sender_need_not_be_a_member_and_a_group_without_members_swallows_the_message() {
    let mut world = World::new();
    let alice = world.open("alice");
    assert_eq!(world.ask_for(&alice, publish(1, "nobody", "hi")), ["ack 1"]);
    let bob = world.open_in("bob", &["nobody"]);
    assert_eq!(world.reads(&bob), Vec::<String>::new());
}

#[test]
fn a_revocation_holds_from_its_record_on_and_takes_nobody_out_of_a_group() {
    let mut world = World::new();
    let alice = world.open_in("alice", &["g"]);
    let command = world.change_rule("alice", Permission::JoinLeaveGroup, "g", false);
    world.send(&alice, [join(1, "g")]);
    world.settle();
    assert_eq!((world.done[&command], world.reads(&alice)), (Ok(Done::Executed), vec!["ack 1".to_owned()]));
    assert_eq!(world.ask_for(&alice, leave(2, "g")), ["ack 2 Forbidden"]);
    assert_eq!(world.ask_for(&alice, publish(3, "g", "still in")), ["1 still in", "ack 3"]);
    world.restart();
    let alice = world.resume(&alice);
    assert_eq!(world.ask_for(&alice, join(4, "g")), ["1 still in", "ack 4 Forbidden"]);
}

#[test]
fn a_command_for_nobody_is_refused() {
    let mut world = World::new();
    let command = world.change_rule("nobody", Permission::SendToGroup, "g", true);
    assert_eq!((world.done[&command], world.waiting()), (Err(CommandError::UnknownConnection), 0));
}

#[test]
fn requests_that_a_client_sent_before_it_closed_for_good_are_executed_before_its_end() {
    let mut world = World::new();
    let alice = world.open("alice");
    let bob = world.open_in("bob", &["g"]);
    world.send(&alice, [publish(1, "g", "a")]);
    world.send(&alice, [publish(2, "g", "b"), join(3, "g")]);
    world.close(&alice, SocketEnd::ClosedForGood);
    assert_eq!(world.waiting(), 1);
    world.settle();
    assert_eq!(world.reads(&bob), ["1 a", "2 b"]);
    let expected = ["alice published a", "alice published b", "alice joined g", "alice ended ClientClosed"];
    assert_eq!(world.bodies()[3..], expected);
    assert_eq!(world.shard.sessions(), 1);
}
