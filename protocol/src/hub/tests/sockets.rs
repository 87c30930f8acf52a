//! R6 and R10: sockets come, take over, go, and come back or not.

use super::harness::*;
use crate::hub::{NewSession, OpenError, SocketEnd};
use crate::log::EndReason;
use crate::wire::{Close, Subprotocol, Upstream};

#[test]
fn connected_is_the_first_message_of_a_session_and_of_no_other_socket() {
    let mut world = World::new();
    let bob = world.open("bob");
    let open = world.ask(NewSession { groups: vec![group("g")], ..opening("alice") });
    world.send(&bob, [publish(1, "g", "hi")]);
    world.store();
    world.store();
    world.apply();
    let attachment = world.opened.remove(&open).unwrap().unwrap();
    let alice = Client { id: crate::wire::ConnectionId::new("alice"), attachment };
    assert_eq!(world.reads(&alice), ["connected", "1 hi"]);
    let alice = world.resume(&alice);
    assert_eq!(world.reads(&alice), ["1 hi"]);
}

#[test]
fn requests_may_come_before_the_client_has_read_connected() {
    let mut world = World::new();
    let alice = world.open_with(opening("alice"));
    world.send(&alice, [Upstream::Ping, join(1, "g"), publish(2, "g", "hi")]);
    world.settle();
    assert_eq!(world.reads(&alice), ["connected", "pong", "ack 1", "1 hi", "ack 2"]);
}

#[test]
fn r1_redelivery_after_a_drop_and_after_a_restart_repeats_the_ids() {
    let mut world = World::new();
    let alice = world.open("alice");
    let bob = world.open_in("bob", &["g"]);
    for n in 1..=10 {
        world.ask_for(&alice, publish(n, "g", &format!("m{n}")));
    }
    assert_eq!(world.reads(&bob).len(), 10);
    world.send(&bob, [acknowledge(4)]);
    world.lose(&bob);
    for n in 11..=13 {
        world.ask_for(&alice, publish(n, "g", &format!("m{n}")));
    }
    let bob = world.resume(&bob);
    let replay: Vec<String> = (5..=13).map(|n| format!("{n} m{n}")).collect();
    assert_eq!(world.reads(&bob), replay);
    world.ask_for(&alice, publish(14, "g", "live"));
    assert_eq!(world.reads(&bob), ["14 live"]);
    world.restart();
    let bob = world.resume(&bob);
    let again = world.reads(&bob);
    assert_eq!(again[4..13], replay, "what the client has seen comes again under the same ids");
    assert_eq!(again[13], "14 live");
}

#[test]
fn r6_the_newest_socket_wins_at_once_and_the_older_is_cut() {
    let mut world = World::new();
    let first = world.open_in("alice", &["g"]);
    let second = world.resume(&first);
    let third = world.resume(&first);
    assert_eq!((world.reads(&first), world.reads(&second)), (vec!["cut".into()], vec!["cut".into()]));
    assert_eq!(world.ask_for(&third, publish(1, "g", "hi")), ["1 hi", "ack 1"]);
    assert_eq!(world.shard.sessions(), 1);
}

#[test]
fn r6_what_an_older_socket_says_after_a_take_over_changes_nothing() {
    let mut world = World::new();
    let old = world.open_in("alice", &["g"]);
    world.ask_for(&old, publish(1, "g", "hi"));
    let new = world.resume(&old);
    assert_eq!(world.reads(&new), ["1 hi"]);
    world.send(&old, [acknowledge(1), Upstream::Ping, publish(2, "g", "stale"), leave(3, "g")]);
    assert_eq!((world.waiting(), world.reads(&new)), (0, vec![]));
    for end in [SocketEnd::Lost, SocketEnd::ClosedForGood, SocketEnd::Violation(Close::INVALID_JSON_MESSAGE)]
    {
        world.close(&old, end);
        assert_eq!((world.waiting(), world.shard.poll_timeout(), world.reads(&new)), (0, None, vec![]));
    }
    let third = world.resume(&new);
    assert_eq!(world.reads(&third), ["1 hi"], "the stale ack freed nothing");
}

#[test]
fn r6_a_record_that_an_older_socket_had_appended_counts_and_its_ack_goes_to_the_new_one() {
    let mut world = World::new();
    let old = world.open_in("alice", &["g"]);
    world.send(&old, [publish(1, "g", "in flight")]);
    world.send(&old, [publish(2, "g", "waiting")]);
    let new = world.resume(&old);
    world.settle();
    assert_eq!(world.reads(&old), ["cut"]);
    assert_eq!(world.reads(&new), ["1 in flight", "ack 1", "2 waiting", "ack 2"]);
}

#[test]
fn r6_stale_requests_do_not_use_up_the_new_sockets_bound() {
    let mut world = World::new();
    let bounds = settings().requests;
    let old = world.open("alice");
    let new = world.resume(&old);
    for _ in 0..bounds.requests_max {
        world.send(&old, [join(1, "g")]);
    }
    let outbox = &new.attachment.outbox;
    assert!(outbox.lock().may_read(new.attachment.session.epoch, std::task::Waker::noop()));
}

#[test]
fn settled_requests_make_room_for_others() {
    let mut world = World::new();
    let bounds = settings().requests;
    let alice = world.open("alice");
    let may_read =
        || alice.attachment.outbox.lock().may_read(alice.attachment.session.epoch, std::task::Waker::noop());
    world.send(&alice, (0..bounds.requests_max as u64 - 1).map(|n| join(n, "g")));
    assert!(may_read());
    world.send(&alice, [join(None, "g")]);
    assert!(!may_read());
    world.fail(crate::log::Certainty::Indefinite);
    assert!(!may_read());
    world.wait_ms(1_000);
    world.settle();
    world.reads(&alice);
    assert!(may_read());
}

#[test]
fn r10_what_can_never_be_recovered_is_refused() {
    let mut world = World::new();
    let nobody = world.try_resume("nobody", Subprotocol::JsonReliable).map(|_| ());
    assert_eq!(nobody, Err(OpenError::Refused));
    let plain = world.open_with(opening_on("plain", Subprotocol::Json, "u"));
    for subprotocol in [Subprotocol::Json, Subprotocol::JsonReliable] {
        assert_eq!(world.try_resume("plain", subprotocol).map(|_| ()), Err(OpenError::Refused));
    }
    assert_eq!(world.reads(&plain), ["connected"], "a refused attempt does nothing to the session");
    let alice = world.open("alice");
    for subprotocol in [Subprotocol::Json, Subprotocol::Raw] {
        assert_eq!(world.try_resume("alice", subprotocol).map(|_| ()), Err(OpenError::Refused));
    }
    assert_eq!(world.reads(&alice), Vec::<String>::new());
}

#[test]
fn scenario_10_recovery_after_the_window() {
    let mut world = World::new();
    let alice = world.open("alice");
    world.lose(&alice);
    world.wait_ms(RETENTION_MS);
    assert_eq!(world.refusal(&alice), OpenError::Unavailable, "its end is not stored yet");
    world.settle();
    assert_eq!(world.refusal(&alice), OpenError::Refused);
    assert_eq!(world.bodies()[2..], [ended("alice", EndReason::Expired)], "once");
}

#[test]
fn scenario_11_recovery_after_a_close_with_1000() {
    let mut world = World::new();
    let alice = world.open("alice");
    world.close(&alice, SocketEnd::ClosedForGood);
    assert_eq!(world.refusal(&alice), OpenError::Refused);
    world.settle();
    assert_eq!(world.refusal(&alice), OpenError::Refused);
    assert_eq!(world.bodies()[2..], [ended("alice", EndReason::ClientClosed)]);
}

#[test]
fn scenario_12_recovery_after_any_other_end_of_the_socket() {
    let mut world = World::new();
    let alice = world.open_in("alice", &["g"]);
    world.lose(&alice);
    let alice = world.resume(&alice);
    assert_eq!(world.ask_for(&alice, publish(1, "g", "still a member")), ["1 still a member", "ack 1"]);
}

#[test]
fn a_violation_closes_at_once_and_ends_the_session_after_what_came_before_it() {
    let mut world = World::new();
    let alice = world.open("alice");
    let bob = world.open_in("bob", &["g"]);
    world.send(&alice, [publish(1, "g", "before")]);
    world.close(&alice, SocketEnd::Violation(Close::INVALID_JSON_MESSAGE));
    assert_eq!(world.reads(&alice), ["close 1007"]);
    assert_eq!(world.refusal(&alice), OpenError::Refused);
    world.settle();
    assert_eq!(world.reads(&alice), ["close 1007"]);
    assert_eq!(world.reads(&bob), ["1 before"]);
    assert_eq!(world.bodies().last().unwrap(), &ended("alice", EndReason::ProtocolViolation));
}

#[test]
fn a_session_that_is_not_reliable_ends_with_its_socket() {
    let mut world = World::new();
    for (id, subprotocol) in [("plain", Subprotocol::Json), ("raw", Subprotocol::Raw)] {
        let client = world.open_with(opening_on(id, subprotocol, "u"));
        world.lose(&client);
        world.settle();
        assert_eq!(world.bodies().last().unwrap(), &ended(id, EndReason::ClientClosed));
    }
    assert_eq!((world.shard.sessions(), world.shard.poll_timeout()), (0, None));
}

#[test]
fn a_session_expires_only_while_detached_and_not_before_its_retention_is_over() {
    let mut world = World::new();
    let alice = world.open("alice");
    world.wait_ms(100 * RETENTION_MS);
    assert_eq!((world.waiting(), world.shard.poll_timeout()), (0, None));
    world.lose(&alice);
    world.wait_ms(RETENTION_MS - 1);
    assert_eq!(world.waiting(), 0);
    let alice = world.resume(&alice);
    world.wait_ms(100 * RETENTION_MS);
    assert_eq!(world.waiting(), 0, "a resume stops the clock");
    world.lose(&alice);
    world.wait_ms(RETENTION_MS - 1);
    assert_eq!(world.waiting(), 0, "and it starts anew");
    world.wait_ms(1);
    assert_eq!(world.waiting(), 1);
}

#[test]
fn a_resume_at_the_last_moment_wins_over_a_timer_that_has_not_gone_off() {
    let mut world = World::new();
    let alice = world.open("alice");
    world.lose(&alice);
    world.now = world.now.plus_ms(RETENTION_MS);
    let alice = world.resume(&alice);
    world.wait_ms(0);
    assert_eq!((world.waiting(), world.shard.poll_timeout()), (0, None));
    assert_eq!(world.ask_for(&alice, join(1, "g")), ["ack 1"]);
}

#[test]
fn a_detached_session_goes_on_receiving_and_loses_unsent_replies_only() {
    let mut world = World::new();
    let alice = world.open_in("alice", &["g"]);
    world.send(&alice, [publish(1, "g", "own"), Upstream::Ping]);
    world.lose(&alice);
    world.settle();
    let alice = world.resume(&alice);
    assert_eq!(world.reads(&alice), ["1 own"]);
    assert_eq!(world.ask_for(&alice, publish(1, "g", "own")), ["ack 1 Duplicate"]);
}

#[test]
fn a_socket_that_went_while_its_session_was_opened_leaves_a_session_that_expires() {
    let mut world = World::new();
    let alice = world.open_with(opening("alice"));
    world.lose(&alice);
    world.lose(&alice);
    world.wait_ms(RETENTION_MS);
    world.settle();
    assert_eq!(world.shard.sessions(), 0);
}

#[test]
fn a_client_that_could_not_take_a_message_got_it_again_without_end() {
    let mut world = World::new();
    let alice = world.open("alice");
    let mut bob = world.open_in("bob", &["g"]);
    world.ask_for(&alice, publish(1, "g", "too large for it"));
    for _ in 0..4 {
        world.close(&bob, SocketEnd::Closed);
        bob = world.resume(&bob);
        world.now = world.now.plus_ms(10);
        assert_eq!(world.reads(&bob), ["1 too large for it"]);
    }
    world.close(&bob, SocketEnd::Closed);
    let wait = OpenError::TooEarly { ms: 500, is_first: true, first_message_bytes: 16 };
    world.now = world.now.plus_ms(RETENTION_MS - 1);
    assert_eq!(world.refusal(&bob), wait);
    world.wait_ms(499);
    bob = world.resume_after_wait(&bob);
    assert_eq!(world.reads(&bob), ["1 too large for it"], "its retention did not run while it waited");
    world.send(&bob, [acknowledge(1)]);
    world.lose(&bob);
    bob = world.resume(&bob);
    world.ask_for(&alice, publish(2, "g", "m"));
    assert_eq!(world.reads(&bob), ["2 m"], "who acknowledges does not wait");
}
