//! Raw clients: they have no acks, so what was not executed is shown by closing.

use std::task::Waker;

use super::harness::*;
use crate::hub::{Attachment, EventError, HubSettings, Input, NewSession, SocketEnd};
use crate::log::{Certainty, Permission};
use crate::session::RequestBounds;
use crate::wire::{EventName, Metadata, Payload, PayloadKind, Subprotocol, Upstream};

const SEND: &str = "webpubsub.sendToGroup";

fn raw_as(id: &str, roles: &[&str], groups: &[&str]) -> NewSession {
    NewSession {
        roles: roles.iter().map(|role| (*role).to_owned()).collect(),
        groups: groups.iter().map(|name| group(name)).collect(),
        ..opening_on(id, Subprotocol::Raw, "u")
    }
}

/// A world in which one request that is not settled keeps its socket from being read.
fn strict_world() -> World {
    let requests = RequestBounds { requests_max: 1, ..settings().requests };
    World::with(HubSettings { requests, ..settings() }, usize::MAX)
}

fn has_nothing_pending(client: &Client) -> bool {
    let Attachment { session, outbox } = &client.attachment;
    outbox.lock().may_read(session.epoch, Waker::noop())
}

fn says(text: &str) -> Upstream {
    publish(None, "g", text)
}

#[test]
fn a_raw_event_that_nobody_handles_closes_with_1011_after_what_was_sent_before_it() {
    let mut world = World::new();
    let raw = world.open_with(opening_on("raw", Subprotocol::Raw, "u"));
    let bob = world.open_in("bob", &["g"]);
    let event = Upstream::Event {
        event: EventName::raw(),
        payload: Payload { kind: PayloadKind::Text, bytes: "x".into() },
        metadata: Metadata::default(),
        ack_id: None,
    };
    world.send(&raw, [publish(None, "g", "before"), event, publish(None, "g", "after")]);
    world.settle();
    let (call, _) = world.calls.pop_front().unwrap();
    world.handle(Input::Called { call, answer: Err(EventError::NoHandler) });
    assert_eq!(world.reads(&raw), ["close 1011"]);
    world.settle();
    assert_eq!(world.reads(&bob), ["1 before"]);
    assert_eq!(world.bodies().last().unwrap(), "raw ended ProtocolViolation");
}

#[test]
fn a_raw_client_publishes_and_hears_payloads_and_nothing_else() {
    let mut world = World::new();
    let raw = world.open_with(raw_as("raw", &[SEND], &["g"]));
    let bob = world.open_in("bob", &["g"]);
    world.send(&raw, [says("a"), without_echo(says("b"))]);
    assert_eq!(world.reads(&raw), Vec::<String>::new(), "nothing before its record came back");
    world.settle();
    assert_eq!(world.reads(&raw), ["a"]);
    assert_eq!(world.reads(&bob), ["1 a", "2 b"]);
}

#[test]
fn scenario_24_a_raw_publish_without_permission_closes_with_1008_and_what_came_after_is_not_executed() {
    let mut world = strict_world();
    let bob = world.open_in("bob", &["g", "h"]);
    let raw = world.open_with(raw_as("raw", &["webpubsub.sendToGroup.g"], &[]));
    world.send(&raw, [says("before"), publish(None, "h", "forbidden"), says("after")]);
    world.send(&raw, [says("long after")]);
    assert_eq!(world.reads(&raw), ["close 1008"]);
    world.settle();
    assert_eq!(world.reads(&bob), ["1 before"]);
    assert_eq!(world.bodies().last().unwrap(), "raw ended ProtocolViolation");
    assert!(has_nothing_pending(&raw));
    assert_eq!(world.shard.sessions(), 1);
}

#[test]
fn the_permission_of_a_raw_client_is_looked_at_for_each_frame() {
    let mut world = World::new();
    let bob = world.open_in("bob", &["g"]);
    let raw = world.open_with(raw_as("raw", &[SEND], &[]));
    world.ask_for(&raw, says("1"));
    world.change_rule("raw", Permission::SendToGroup, "g", false);
    world.settle();
    assert_eq!(world.ask_for(&raw, says("2")), ["close 1008"]);
    assert_eq!(world.reads(&bob), ["1 1"]);
}

#[test]
fn a_raw_publish_that_is_not_stored_closes_with_1011_and_nothing_after_it_is_executed() {
    let mut world = strict_world();
    let bob = world.open_in("bob", &["g"]);
    let raw = world.open_with(raw_as("raw", &[SEND], &[]));
    world.send(&raw, [says("1"), says("2")]);
    world.send(&raw, [says("3")]);
    world.fail(Certainty::Definite);
    assert_eq!(world.reads(&raw), ["close 1011"]);
    world.send(&raw, [says("4")]);
    world.settle();
    assert_eq!(world.reads(&bob), Vec::<String>::new());
    assert_eq!(world.bodies().last().unwrap(), "raw ended ProtocolViolation");
    assert!(has_nothing_pending(&raw));
}

#[test]
fn a_raw_publish_in_doubt_is_retried_and_does_not_close() {
    let mut world = World::new();
    let bob = world.open_in("bob", &["g"]);
    let raw = world.open_with(raw_as("raw", &[SEND], &[]));
    world.send(&raw, [says("1")]);
    world.fail_but_store();
    world.send(&raw, [says("2")]);
    world.wait_ms(1000);
    world.settle();
    assert_eq!(world.reads(&raw), Vec::<String>::new());
    assert_eq!(world.reads(&bob), ["1 1", "2 2"]);
}

#[test]
fn what_a_raw_client_sent_just_before_it_went_away_is_executed() {
    for end in [SocketEnd::Lost, SocketEnd::ClosedForGood] {
        let mut world = World::new();
        let bob = world.open_in("bob", &["g"]);
        let raw = world.open_with(raw_as("raw", &[SEND], &[]));
        world.send(&raw, [says("1")]);
        world.send(&raw, [says("2")]);
        world.close(&raw, end);
        world.settle();
        assert_eq!(world.reads(&bob), ["1 1", "2 2"], "{end:?}");
        assert_eq!(world.bodies().last().unwrap(), "raw ended ClientClosed");
    }
}

#[test]
fn a_lost_raw_client_whose_publish_fails_leaves_nothing_behind() {
    let mut world = World::new();
    let bob = world.open_in("bob", &["g"]);
    let raw = world.open_with(raw_as("raw", &[SEND], &["g"]));
    world.send(&raw, [says("1")]);
    world.send(&raw, [says("2")]);
    world.lose(&raw);
    world.fail(Certainty::Definite);
    world.settle();
    assert_eq!(world.reads(&bob), Vec::<String>::new());
    assert_eq!(world.bodies().last().unwrap(), "raw ended ClientClosed");
    assert_eq!(world.shard.sessions(), 1);
}
