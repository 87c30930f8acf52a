//! What those who watch over the gateway hear of the ends of sessions.

use super::harness::*;
use crate::hub::{Action, EventError, Input, SessionEnded, SocketEnd};
use crate::log::{Audience, EndReason, Selection};
use crate::session::{OutboxLimits, Progress};
use crate::wire::{
    Close, ConnectionId, EventName, Metadata, Payload, PayloadKind, Subprotocol, Upstream, UserId,
};

fn ended(world: &mut World) -> Vec<(String, Option<EndReason>)> {
    let ended = std::mem::take(&mut world.ended);
    ended.into_iter().map(|ended| (ended.connection_id.as_str().to_owned(), ended.reason)).collect()
}

#[test]
fn each_end_is_told_once_with_its_reason_and_not_again_by_a_later_fold() {
    let limits = OutboxLimits { messages_max: 1, ..settings().outbox };
    let mut world = World::with(crate::hub::HubSettings { outbox: limits, ..settings() }, usize::MAX);
    let [leaves, breaks, slow, late, closed] =
        ["leaves", "breaks", "slow", "late", "closed"].map(|id| world.open(id));
    world.close(&leaves, SocketEnd::ClosedForGood);
    world.settle();
    assert_eq!(ended(&mut world), [("leaves".to_owned(), Some(EndReason::ClientClosed))]);
    world.close(&breaks, SocketEnd::Violation(Close::BROKEN_FRAMING));
    world.settle();
    assert_eq!(ended(&mut world), [("breaks".to_owned(), Some(EndReason::ProtocolViolation))]);
    for text in ["one", "two"] {
        world.sends(Selection::whole(Audience::Connection(slow.id.clone())), text);
    }
    world.settle();
    assert_eq!(ended(&mut world), [("slow".to_owned(), Some(EndReason::OutboxFull))]);
    let selection = Selection::whole(Audience::Connection(closed.id.clone()));
    world.command(Action::Close { selection, reason: String::new() });
    world.settle();
    assert_eq!(ended(&mut world), [("closed".to_owned(), Some(EndReason::ClosedByApplication))]);
    world.lose(&late);
    world.wait_ms(RETENTION_MS);
    assert_eq!(ended(&mut world), [], "it is over when its record is in the log");
    world.settle();
    assert_eq!(ended(&mut world), [("late".to_owned(), Some(EndReason::Expired))]);
    world.restart();
    assert_eq!(ended(&mut world), []);
}

#[test]
fn a_boot_tells_of_the_sessions_that_it_ends_and_whose_they_were() {
    let mut world = World::new();
    world.open_with(opening_on("plain", Subprotocol::Json, "ada"));
    world.open("reliable");
    world.restart();
    let user_id = Some(UserId::new("ada"));
    let expected = SessionEnded { connection_id: ConnectionId::new("plain"), user_id, reason: None };
    assert_eq!(std::mem::take(&mut world.ended), [expected]);
    world.restart();
    assert_eq!(ended(&mut world), []);
}

#[test]
fn a_client_without_acks_is_told_by_its_close_frame_what_is_missing() {
    for (error, expected) in [
        (EventError::NoHandler, Close::EVENT_NOT_TAKEN),
        (EventError::Busy, Close::EVENT_HANDLER_BUSY),
        (EventError::Failed, Close::EVENT_FAILED),
    ] {
        let mut world = World::new();
        let raw = world.open_with(opening_on("raw", Subprotocol::Raw, "u"));
        let event = Upstream::Event {
            event: EventName::raw(),
            payload: Payload { kind: PayloadKind::Text, bytes: "x".into() },
            metadata: Metadata::default(),
            ack_id: None,
        };
        world.send(&raw, [event]);
        world.settle();
        let (call, _) = world.calls.pop_front().unwrap();
        world.handle(Input::Called { call, answer: Err(error) });
        let (_, progress) = crate::session::testing::drain(
            &mut raw.attachment.outbox.lock(),
            raw.attachment.session.epoch,
            world.now,
        );
        assert_eq!(progress, Progress::Close(expected));
    }
}
