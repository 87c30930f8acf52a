//! R14: what clients have acknowledged goes into the log, and a restart does not bring it back.

use super::harness::*;
use crate::hub::{HubSettings, Input, MARK_MS, MARKS_PER_RECORD_MAX, OpenError};
use crate::log::Certainty::{Definite, Indefinite};
use crate::log::{Body, EndReason, Offset, SequenceMark};
use crate::session::OutboxLimits;
use crate::wire::Upstream;

fn with_messages_max(messages_max: usize) -> World {
    let outbox = OutboxLimits { messages_max, bytes_max: usize::MAX };
    World::with(HubSettings { outbox, ..settings() }, usize::MAX)
}

/// The driver hears that clients have acknowledged something.
fn hear(world: &mut World) {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    while world.shard.poll_acknowledged(&mut context).is_ready() {
        world.handle(Input::Acknowledged);
    }
}

fn acknowledges(world: &mut World, client: &Client, id: u64) {
    world.send(client, [acknowledge(id)]);
    hear(world);
}

fn publishes(world: &mut World, client: &Client, texts: impl IntoIterator<Item = u64>) {
    for text in texts {
        world.ask_for(client, publish(None, "g", &text.to_string()));
    }
}

/// Everything that is due within the next second goes into the log.
fn mark(world: &mut World) {
    world.wait_ms(MARK_MS);
    world.settle();
}

fn marks(world: &World) -> Vec<Vec<SequenceMark>> {
    let of_record = |body: &Body| match body {
        Body::Acked { marks } => Some(marks.clone()),
        _ => None,
    };
    world.log.iter().filter_map(|record| of_record(&record.body)).collect()
}

fn texts_of(read: &[String]) -> Vec<&str> {
    read.iter().filter_map(|line| line.split_once(' ')).map(|(_, text)| text).collect()
}

#[test]
fn what_was_acknowledged_comes_back_after_no_restart() {
    let mut world = World::new();
    let alice = world.open("alice");
    let mut bob = world.open_in("bob", &["g"]);
    publishes(&mut world, &alice, 1..=5);
    acknowledges(&mut world, &bob, 3);
    mark(&mut world);
    for _ in 0..3 {
        world.restart();
        bob = world.resume(&bob);
        assert_eq!(texts_of(&world.reads(&bob)), ["4", "5"]);
        world.lose(&bob);
    }
}

#[test]
fn a_mark_waits_a_second_and_names_the_session_by_the_offset_of_its_first_record() {
    let mut world = World::new();
    let alice = world.open("alice");
    let bob = world.open_in("bob", &["g"]);
    publishes(&mut world, &alice, 1..=3);
    acknowledges(&mut world, &bob, 1);
    world.wait_ms(MARK_MS - 1);
    assert_eq!(world.waiting(), 0);
    acknowledges(&mut world, &bob, 2);
    world.wait_ms(1);
    world.settle();
    let number = world.log.iter().position(|record| body_name(record) == "bob opened");
    let session = Offset(number.expect("bob's session") as u64);
    assert_eq!(marks(&world), [[SequenceMark { session, sequence_id: 2 }]]);
    world.wait_ms(MARK_MS);
    assert_eq!((world.waiting(), world.shard.is_marked()), (0, true), "nothing has moved");
    acknowledges(&mut world, &bob, 2);
    assert_eq!(world.shard.poll_timeout(), None, "nor by an ack that frees nothing");
}

#[test]
fn an_ack_of_everything_is_the_last_id_given_not_the_clients_number() {
    let mut world = World::new();
    let alice = world.open("alice");
    let bob = world.open_in("bob", &["g"]);
    publishes(&mut world, &alice, 1..=3);
    acknowledges(&mut world, &bob, u64::MAX);
    mark(&mut world);
    assert_eq!(marks(&world)[0][0].sequence_id, 3);
    publishes(&mut world, &alice, [4]);
    world.restart();
    let bob = world.resume(&bob);
    assert_eq!(world.reads(&bob), ["4 4"], "what came later is not freed");
}

#[test]
fn what_expired_unsent_does_not_come_back() {
    let mut world = with_messages_max(8);
    let alice = world.open("alice");
    let bob = world.open_in("bob", &["g"]);
    for n in 0..100 {
        let mut request = publish(None, "g", &n.to_string());
        if let Upstream::SendToGroup { ttl_seconds, .. } = &mut request {
            *ttl_seconds = 1;
        }
        world.ask_for(&alice, request);
        world.wait_ms(2_000);
        assert_eq!(world.reads(&bob), [""; 0], "it is over when it could be sent");
        hear(&mut world);
        world.settle();
    }
    mark(&mut world);
    world.restart();
    world.settle();
    let bob = world.resume(&bob);
    assert_eq!(world.reads(&bob), [""; 0]);
    assert!(marks(&world).iter().flatten().all(|mark| mark.sequence_id < 1_000));
}

#[test]
fn a_session_that_appends_anyway_has_its_mark_in_its_own_record() {
    let mut world = World::new();
    let alice = world.open_in("alice", &["g"]);
    publishes(&mut world, &alice, 1..=3);
    acknowledges(&mut world, &alice, 2);
    world.send(&alice, [publish(1, "h", "x"), publish(2, "h", "y")]);
    let acks: Vec<_> = world.appends[0].1.iter().map(|record| record.sequence_ack).collect();
    assert_eq!(acks, [Some(2), None]);
    world.settle();
    mark(&mut world);
    assert!(marks(&world).is_empty() && world.shard.is_marked());
    world.restart();
    let alice = world.resume(&alice);
    assert_eq!(world.reads(&alice), ["3 3"]);
}

#[test]
fn an_ack_whose_batch_has_failed_goes_into_the_log_later() {
    let mut world = World::new();
    let alice = world.open_in("alice", &["g"]);
    publishes(&mut world, &alice, 1..=3);
    acknowledges(&mut world, &alice, 2);
    world.send(&alice, [publish(1, "h", "x")]);
    world.fail(Definite);
    hear(&mut world);
    mark(&mut world);
    world.restart();
    let alice = world.resume(&alice);
    assert_eq!(world.reads(&alice), ["3 3"]);
}

#[test]
fn more_than_a_quarter_of_the_bound_does_not_wait() {
    let mut world = with_messages_max(100);
    let alice = world.open("alice");
    let bob = world.open_in("bob", &["g"]);
    publishes(&mut world, &alice, 1..=60);
    acknowledges(&mut world, &bob, 25);
    assert_eq!(world.waiting(), 0);
    acknowledges(&mut world, &bob, 26);
    assert_eq!(world.waiting(), 1);
    acknowledges(&mut world, &bob, 55);
    assert_eq!(world.waiting(), 1, "one is in flight");
    world.settle();
    assert_eq!(marks(&world).len(), 2, "the next follows at once");
    assert_eq!(world.shard.poll_timeout(), None);
}

#[test]
fn one_record_is_in_flight_and_a_failed_one_is_made_anew() {
    for certainty in [Definite, Indefinite] {
        let mut world = World::new();
        let alice = world.open("alice");
        let bob = world.open_in("bob", &["g"]);
        publishes(&mut world, &alice, 1..=5);
        acknowledges(&mut world, &bob, 1);
        world.wait_ms(MARK_MS);
        acknowledges(&mut world, &bob, 3);
        world.wait_ms(10 * MARK_MS);
        assert_eq!(world.waiting(), 1, "the first has no outcome yet");
        let (_, late) = world.fail(certainty);
        world.wait_ms(MARK_MS - 1);
        assert_eq!(world.waiting(), 0, "it is not tried again");
        world.wait_ms(1);
        world.settle();
        assert_eq!(marks(&world).concat().len(), 1);
        assert_eq!(marks(&world)[0][0].sequence_id, 3, "the next one says more");
        if certainty == Indefinite {
            world.log.extend(late);
            world.apply();
        }
        world.restart();
        let bob = world.resume(&bob);
        assert_eq!(texts_of(&world.reads(&bob)), ["4", "5"]);
    }
}

#[test]
fn a_record_names_4096_sessions_at_most() {
    let mut world = World::new();
    let alice = world.open("alice");
    let count = MARKS_PER_RECORD_MAX + 1;
    let members: Vec<Client> = (0..count).map(|n| world.open_in(&format!("m{n}"), &["g"])).collect();
    publishes(&mut world, &alice, [1]);
    members.iter().for_each(|member| world.send(member, [acknowledge(1)]));
    hear(&mut world);
    world.wait_ms(MARK_MS);
    assert_eq!(world.waiting(), 1, "one portion at a time");
    world.settle();
    let lengths: Vec<usize> = marks(&world).iter().map(Vec::len).collect();
    assert_eq!(lengths, [MARKS_PER_RECORD_MAX, 1]);
    assert!(marks(&world).iter().all(|marks| marks.is_sorted()));
}

#[test]
fn at_the_end_everything_is_marked_at_once_and_a_failure_is_the_end_of_it() {
    let mut world = World::new();
    let alice = world.open("alice");
    let bob = world.open_in("bob", &["g"]);
    publishes(&mut world, &alice, 1..=5);
    acknowledges(&mut world, &bob, 1);
    world.wait_ms(MARK_MS);
    acknowledges(&mut world, &bob, 4);
    world.handle(Input::Leave);
    assert!(!world.shard.is_marked());
    world.settle();
    assert_eq!((marks(&world).len(), world.shard.is_marked()), (2, true));
    acknowledges(&mut world, &bob, 5);
    assert_eq!(world.waiting(), 1, "also what comes after that");
    world.fail(Definite);
    assert_eq!((world.waiting(), world.shard.is_marked()), (0, true));
}

#[test]
fn a_session_whose_end_is_decided_gets_no_mark() {
    let mut world = World::new();
    let alice = world.open("alice");
    let bob = world.open_in("bob", &["g"]);
    publishes(&mut world, &alice, 1..=2);
    acknowledges(&mut world, &bob, 1);
    world.close(&bob, crate::hub::SocketEnd::ClosedForGood);
    mark(&mut world);
    assert!(marks(&world).is_empty());
    assert_eq!((world.shard.sessions(), world.shard.by_number.len()), (1, 1));
}

#[test]
fn sessions_that_are_not_reliable_have_no_marks() {
    let mut world = World::new();
    let alice = world.open("alice");
    let session = opening_on("plain", crate::wire::Subprotocol::Json, "u");
    let plain = world.open_with(crate::hub::NewSession { groups: vec![group("g")], ..session });
    publishes(&mut world, &alice, 1..=5);
    assert_eq!(world.reads(&plain).len(), 6);
    world.reads(&plain);
    assert_eq!((world.shard.poll_timeout(), world.shard.by_number.len()), (None, 1));
}

/// Restarted and detached, with `kept` messages that the log does not know to be acknowledged.
fn restarted(bound: usize, kept: u64) -> (World, Client, Client) {
    let mut world = with_messages_max(bound);
    let alice = world.open("alice");
    let bob = world.open_in("bob", &["g"]);
    publishes(&mut world, &alice, 1..=kept);
    world.restart();
    let alice = world.resume(&alice);
    (world, alice, bob)
}

#[test]
fn a_restart_makes_no_session_too_large() {
    let mut world = with_messages_max(8);
    let alice = world.open("alice");
    let bob = world.open_in("bob", &["g"]);
    // What the client acknowledges is not in the log when the process is killed.
    for n in 1..=12 {
        publishes(&mut world, &alice, [n]);
        world.send(&bob, [acknowledge(n)]);
    }
    publishes(&mut world, &alice, 13..=16);
    for _ in 0..3 {
        world.restart();
        world.settle();
        assert_eq!(world.shard.sessions(), 2, "{:?}", world.bodies());
    }
    let bob = world.resume(&bob);
    assert_eq!(world.reads(&bob).len(), 16);
    acknowledges(&mut world, &bob, 16);
    let alice = world.resume(&alice);
    publishes(&mut world, &alice, 17..=24);
    assert_eq!(world.shard.sessions(), 2);
    publishes(&mut world, &alice, [25]);
    assert_eq!(world.bodies().last().unwrap(), &ended("bob", EndReason::OutboxFull), "one bound again");
}

#[test]
fn twice_the_bound_is_the_most_after_a_restart() {
    let (mut world, alice, bob) = restarted(8, 8);
    publishes(&mut world, &alice, 9..=16);
    assert_eq!(world.shard.sessions(), 2);
    publishes(&mut world, &alice, [17]);
    assert_eq!(world.bodies().last().unwrap(), &ended("bob", EndReason::OutboxFull));
    assert_eq!(world.refusal(&bob), OpenError::Refused);
}

/// A client that acknowledges each message by itself does the same for those that come again.
#[test]
fn twice_the_bound_holds_until_the_client_is_through_what_was_brought_back() {
    let (mut world, alice, bob) = restarted(8, 8);
    let bob = world.resume(&bob);
    publishes(&mut world, &alice, 9..=12);
    acknowledges(&mut world, &bob, 1);
    publishes(&mut world, &alice, [13]);
    assert_eq!(world.shard.sessions(), 2, "12 wait");
    acknowledges(&mut world, &bob, 8);
    publishes(&mut world, &alice, 14..=16);
    assert_eq!(world.shard.sessions(), 2, "8 wait");
    publishes(&mut world, &alice, [17]);
    assert_eq!(world.bodies().last().unwrap(), &ended("bob", EndReason::OutboxFull));
}

#[test]
fn what_a_restart_brings_back_is_shed_no_earlier_than_one_retention_later() {
    let begin = |budget_bytes| {
        let mut world = World::with(settings(), budget_bytes);
        let alice = world.open("alice");
        let bob = world.open_in("bob", &["g"]);
        publishes(&mut world, &alice, 1..=60);
        (world, alice, bob)
    };
    let budget_bytes = begin(usize::MAX).0.budget.used_bytes() + 1_000;
    let (mut world, ..) = begin(budget_bytes);
    world.restart();
    let [alice, bob] = ["alice", "bob"]
        .map(|id| world.try_resume(id, crate::wire::Subprotocol::JsonReliable).expect("an attachment"));
    publishes(&mut world, &alice, 61..=100);
    assert!(world.budget.used_bytes() > budget_bytes);
    assert_eq!(world.shard.sessions(), 2);
    world.wait_ms(RETENTION_MS);
    world.settle();
    assert_eq!(world.bodies().last().unwrap(), &ended("bob", EndReason::Shed));
    assert_eq!(world.reads(&bob).last().unwrap(), "close 1008");
}
