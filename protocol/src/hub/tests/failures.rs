//! R7, R8 and R9: appends that fail, or may have.

use super::harness::*;
use crate::hub::{CommandError, Done, OpenError, SocketEnd};
use crate::log::Certainty::{Definite, Indefinite};
use crate::log::{EndReason, Permission};

/// Longer than a failed append waits before it is tried again.
const RETRIED_MS: u64 = 1_000;

#[test]
fn a_definite_failure_is_answered_and_the_same_request_may_be_sent_again() {
    let mut world = World::new();
    let alice = world.open_in("alice", &["g"]);
    world.send(&alice, [publish(1, "g", "hi"), join(2, "h"), publish(None, "g", "lost")]);
    world.fail(Definite);
    assert_eq!(world.reads(&alice), ["ack 1 InternalServerError", "ack 2 InternalServerError"]);
    world.wait_ms(RETRIED_MS);
    assert_eq!(world.waiting(), 0, "nobody but the client tries again");
    world.send(&alice, [publish(1, "g", "hi"), join(2, "h")]);
    world.settle();
    assert_eq!(world.reads(&alice), ["1 hi", "ack 1", "ack 2"]);
}

#[test]
fn r7_after_an_indefinite_failure_nothing_later_is_appended_before_it_is_settled() {
    let mut world = World::new();
    let alice = world.open_in("alice", &["g"]);
    world.send(&alice, [publish(1, "g", "a"), publish(2, "g", "b")]);
    world.send(&alice, [publish(3, "g", "c")]);
    let (_, first) = world.fail(Indefinite);
    assert_eq!((world.reads(&alice), world.waiting()), (vec![], 0));
    world.send(&alice, [publish(4, "g", "d")]);
    world.wait_ms(RETRIED_MS);
    assert_eq!(world.appends.len(), 1);
    assert_eq!(world.appends[0].1, first, "the same records under the same keys");
    world.settle();
    let expected = ["1 a", "ack 1", "2 b", "ack 2", "3 c", "ack 3", "4 d", "ack 4"];
    assert_eq!(world.reads(&alice), expected);
}

#[test]
fn r7_after_a_definite_failure_what_waited_is_appended() {
    let mut world = World::new();
    let alice = world.open_in("alice", &["g"]);
    world.send(&alice, [publish(1, "g", "a")]);
    world.send(&alice, [publish(2, "g", "b")]);
    world.fail(Definite);
    world.settle();
    assert_eq!(world.reads(&alice), ["ack 1 InternalServerError", "1 b", "ack 2"]);
}

#[test]
fn r8_the_second_copy_of_a_retried_append_is_passed_over() {
    let mut world = World::new();
    let alice = world.open("alice");
    let bob = world.open_in("bob", &["g"]);
    world.send(&alice, [publish(1, "g", "hi"), publish(None, "g", "no ack id")]);
    world.fail_but_store();
    world.wait_ms(RETRIED_MS);
    world.store();
    assert_eq!(world.bodies()[3..], ["alice published hi", "alice published no ack id"].repeat(2));
    world.apply();
    assert_eq!(
        (world.reads(&alice), world.reads(&bob)),
        (vec!["ack 1".into()], texts(["1 hi", "2 no ack id"]))
    );
    world.restart();
    let bob = world.resume(&bob);
    assert_eq!(world.reads(&bob), ["1 hi", "2 no ack id"], "the fold after a restart does the same");
}

#[test]
fn r8_a_first_copy_that_lands_long_after_the_retry_is_passed_over() {
    let mut world = World::new();
    let alice = world.open("alice");
    let bob = world.open_in("bob", &["g"]);
    world.send(&alice, [publish(None, "g", "hi")]);
    let (_, late) = world.fail(Indefinite);
    world.wait_ms(RETRIED_MS);
    world.settle();
    for n in 0..300 {
        world.ask_for(&alice, publish(n, "h", ""));
    }
    world.log.extend(late);
    world.apply();
    assert_eq!(world.reads(&bob), ["1 hi"]);
}

#[test]
fn r8_records_that_come_back_settle_an_append_whatever_was_said_of_it() {
    let mut world = World::new();
    let alice = world.open_in("alice", &["g"]);
    world.send(&alice, [publish(1, "g", "hi")]);
    let (append, _) = world.store();
    world.apply();
    assert_eq!(world.reads(&alice), ["1 hi", "ack 1"]);
    for certainty in [Indefinite, Definite] {
        world.handle(crate::hub::Input::AppendFailed { append, certainty });
        world.wait_ms(RETRIED_MS);
    }
    assert_eq!((world.reads(&alice), world.waiting()), (vec![], 0));
    assert_eq!(world.ask_for(&alice, publish(2, "g", "ho")), ["2 ho", "ack 2"]);
}

#[test]
fn r8_only_what_has_no_known_outcome_is_tried_again() {
    let mut world = World::new();
    let alice = world.open_in("alice", &["g"]);
    world.send(&alice, [publish(1, "g", "a"), publish(2, "g", "b"), publish(3, "g", "c")]);
    let (_, records) = world.appends[0].clone();
    world.log.push(records[0].clone());
    world.apply();
    world.fail(Indefinite);
    assert_eq!(world.reads(&alice), ["1 a", "ack 1"]);
    world.wait_ms(RETRIED_MS);
    assert_eq!(world.appends[0].1, records[1..]);
    world.settle();
    assert_eq!(world.reads(&alice), ["2 b", "ack 2", "3 c", "ack 3"]);
}

/// The first attempt may have happened: that a later one certainly has not says nothing about it. Taken for a
/// failure, the client would be told that its request did not happen, and a later request would overtake it.
#[test]
fn r8_once_in_doubt_a_batch_stays_in_doubt() {
    let mut world = World::new();
    let alice = world.open("alice");
    let bob = world.open_in("bob", &["g"]);
    world.send(&alice, [publish(1, "g", "first")]);
    world.send(&alice, [publish(2, "g", "second")]);
    let (_, late) = world.fail(Indefinite);
    for _ in 0..3 {
        world.wait_ms(RETRIED_MS);
        world.fail(Definite);
        assert_eq!((world.reads(&alice), world.waiting()), (vec![], 0));
    }
    world.log.extend(late);
    world.apply();
    assert_eq!(world.reads(&alice), ["ack 1"]);
    world.settle();
    assert_eq!((world.reads(&alice), world.reads(&bob)), (texts(["ack 2"]), texts(["1 first", "2 second"])));
    world.send(&alice, [publish(3, "g", "third")]);
    world.fail(Definite);
    assert_eq!(world.reads(&alice), ["ack 3 InternalServerError"], "the next batch has no doubt of its own");
}

#[test]
fn an_open_that_certainly_failed_is_refused_for_now_and_leaves_nothing() {
    let mut world = World::new();
    let open = world.ask(opening("alice"));
    world.fail(Definite);
    assert_eq!(world.opened[&open].as_ref().unwrap_err(), &OpenError::Unavailable);
    assert_eq!((world.shard.sessions(), world.shard.poll_timeout()), (0, None));
}

#[test]
fn r8_an_open_in_doubt_is_tried_again_until_it_is_known() {
    let mut world = World::new();
    let open = world.ask(opening("alice"));
    world.fail_but_store();
    world.wait_ms(RETRIED_MS);
    world.fail(Definite);
    assert!(!world.opened.contains_key(&open));
    world.wait_ms(RETRIED_MS);
    world.store();
    world.apply();
    assert!(world.opened[&open].is_ok(), "and it is answered once");
    assert_eq!((world.shard.sessions(), world.bodies()[1..].to_vec()), (1, texts(["alice opened"; 2])));
}

#[test]
fn r8_a_second_copy_of_an_opening_does_not_begin_the_session_anew() {
    let mut world = World::new();
    let open = world.ask(opening("alice"));
    world.fail_but_store();
    world.apply();
    let attachment = world.opened.remove(&open).unwrap().unwrap();
    let alice = Client { id: crate::wire::ConnectionId::new("alice"), attachment };
    assert_eq!(world.reads(&alice), ["connected"]);
    assert_eq!(world.ask_for(&alice, join(1, "g")), ["ack 1"]);
    let twin = world.log[1].clone();
    world.log.push(twin);
    world.apply();
    assert_eq!(world.ask_for(&alice, publish(2, "g", "hi")), ["1 hi", "ack 2"]);
    world.wait_ms(RETENTION_MS);
    assert_eq!(world.shard.sessions(), 1, "nor is it taken for detached");
    assert_eq!(world.reads(&alice), Vec::<String>::new());
}

#[test]
fn commands_are_answered_once_their_outcome_is_known() {
    let mut world = World::new();
    world.open("alice");
    let failed = world.change_rule("alice", Permission::SendToGroup, "g", false);
    world.fail(Definite);
    assert_eq!(world.done[&failed], Err(CommandError::Unavailable));
    let in_doubt = world.change_rule("alice", Permission::SendToGroup, "g", false);
    world.fail(Indefinite);
    world.wait_ms(RETRIED_MS);
    world.fail(Definite);
    world.wait_ms(RETRIED_MS);
    assert_eq!(world.done.get(&in_doubt), None);
    world.settle();
    assert_eq!(world.done[&in_doubt], Ok(Done::Executed));
}

#[test]
fn r9_a_session_whose_end_cannot_be_stored_is_doomed_until_it_is() {
    let limits = crate::session::OutboxLimits { messages_max: 2, bytes_max: 1000 };
    let mut world = World::with(crate::hub::HubSettings { outbox: limits, ..settings() }, usize::MAX);
    let alice = world.open("alice");
    let bob = world.open_in("bob", &["g"]);
    for ack_id in 1..=3 {
        assert_eq!(world.appends.len(), 0);
        world.send(&alice, [publish(ack_id, "g", "hi")]);
        world.store();
        world.apply();
    }
    assert_eq!(world.reads(&bob), ["close 1008"], "closed at once");
    let used = world.budget.used_bytes();
    assert_eq!(used, 0, "and freed at once");
    for certainty in [Definite, Indefinite, Definite] {
        world.fail(certainty);
        assert_eq!(world.refusal(&bob), OpenError::Unavailable, "undecided, so that the client keeps trying");
        world.wait_ms(RETRIED_MS);
    }
    world.settle();
    assert_eq!(world.refusal(&bob), OpenError::Refused);
    assert_eq!(world.bodies().last().unwrap(), &ended("bob", EndReason::OutboxFull));
    assert_eq!(world.shard.poll_timeout(), None);
}

#[test]
fn a_client_that_closed_for_good_is_refused_even_while_its_end_is_not_stored() {
    let mut world = World::new();
    let alice = world.open("alice");
    world.close(&alice, SocketEnd::ClosedForGood);
    world.fail(Definite);
    assert_eq!(world.refusal(&alice), OpenError::Refused);
    world.wait_ms(RETRIED_MS);
    world.settle();
    assert_eq!((world.shard.sessions(), world.refusal(&alice)), (0, OpenError::Refused));
}

#[test]
fn the_end_of_an_expired_session_is_tried_again() {
    let mut world = World::new();
    let alice = world.open("alice");
    world.lose(&alice);
    world.wait_ms(RETENTION_MS);
    world.fail(Indefinite);
    assert_eq!(world.refusal(&alice), OpenError::Unavailable);
    world.wait_ms(RETRIED_MS);
    world.settle();
    assert_eq!(world.refusal(&alice), OpenError::Refused);
}

#[test]
fn a_batch_in_doubt_survives_its_socket_and_its_ack_goes_to_the_next() {
    let mut world = World::new();
    let alice = world.open_in("alice", &["g"]);
    world.send(&alice, [publish(1, "g", "hi")]);
    world.fail_but_store();
    world.lose(&alice);
    let alice = world.resume(&alice);
    world.send(&alice, [publish(1, "g", "hi")]);
    assert_eq!(world.reads(&alice), Vec::<String>::new(), "the resend waits for its original");
    world.apply();
    world.settle();
    assert_eq!(world.reads(&alice), ["1 hi", "ack 1", "ack 1 Duplicate"]);
    world.wait_ms(RETRIED_MS);
    assert_eq!(world.waiting(), 0);
}

#[test]
fn a_batch_of_a_session_that_has_ended_is_not_tried_again() {
    let mut world = World::new();
    let alice = world.open_in("alice", &["g"]);
    world.send(&alice, [publish(1, "g", "hi")]);
    world.fail(Indefinite);
    world.lose(&alice);
    world.wait_ms(RETENTION_MS);
    assert_eq!(world.appends.len(), 2, "the batch once more, and the end");
    world.fail(Indefinite);
    world.settle();
    assert_eq!(world.shard.sessions(), 0);
    world.wait_ms(RETRIED_MS);
    assert_eq!((world.waiting(), world.shard.poll_timeout()), (0, None));
    world.open("bob");
    let key = world.log.last().unwrap().key.boot;
    assert_eq!(key.settled_below, key.counter, "nobody waits for its outcome");
}

#[test]
fn a_hub_that_has_not_folded_its_own_boot_is_not_available() {
    let mut world = World::new();
    let alice = world.open("alice");
    world.start();
    assert!(!world.shard.is_live());
    let open = world.ask(opening("bob"));
    assert_eq!(world.opened[&open].as_ref().unwrap_err(), &OpenError::Unavailable);
    assert_eq!(world.refusal(&alice), OpenError::Unavailable);
    let command = world.change_rule("alice", Permission::SendToGroup, "g", true);
    assert_eq!(world.done[&command], Err(CommandError::Unavailable));
    world.apply();
    assert_eq!(world.refusal(&alice), OpenError::Unavailable, "an earlier boot's record is not its own");
    assert_eq!(world.waiting(), 0);
    world.boot();
    assert!(world.shard.is_live());
    world.resume(&alice);
}

fn texts<const N: usize>(texts: [&str; N]) -> Vec<String> {
    texts.map(str::to_owned).to_vec()
}
