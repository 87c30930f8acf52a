//! Event handlers: what they are asked and told, and what becomes of their answers.

use bytes::Bytes;

use super::super::*;
use super::harness::*;
use crate::log::{Audience, Certainty, Disconnected, EndReason, HandlerReply, HandlerState, Selection};
use crate::session::RequestBounds;
use crate::wire::{EventName, Metadata, Payload, PayloadKind, Subprotocol, Upstream, UserId};

pub(super) fn event(ack_id: impl Into<Option<u64>>, text: &str) -> Upstream {
    Upstream::Event {
        event: EventName::new("say").unwrap(),
        payload: Payload { kind: PayloadKind::Text, bytes: Bytes::copy_from_slice(text.as_bytes()) },
        metadata: Metadata::default(),
        ack_id: ack_id.into(),
    }
}

fn replies(text: &str) -> Handled {
    let payload = Payload { kind: PayloadKind::Text, bytes: Bytes::copy_from_slice(text.as_bytes()) };
    Handled { reply: Some(HandlerReply { payload, metadata: Metadata::default() }), state: None }
}

fn notes(state: &'static str) -> Handled {
    Handled { reply: None, state: Some(HandlerState(Bytes::from_static(state.as_bytes()))) }
}

fn no_answer() -> Vec<String> {
    Vec::new()
}

/// What a handler is told has been noted.
fn state_of(event: &UserEvent) -> Option<&[u8]> {
    event.subject.state.as_ref().map(|state| &state.0[..])
}

impl World {
    /// One whose application wants to know of each end.
    fn that_is_told() -> Self {
        let mut world = Self::new();
        world.takes_disconnected = true;
        world.handle(Input::TakesDisconnected(true));
        world
    }

    /// The handler of the oldest event answers; what it has to keep is stored.
    fn answer(&mut self, answer: Result<Handled, EventError>) -> UserEvent {
        let (call, event) = self.calls.pop_front().expect("a call");
        self.handle(Input::Called { call, answer });
        self.settle();
        event
    }

    fn tells(&mut self) -> Disconnected {
        assert_eq!(self.disconnected.len(), 1, "{:?}", self.disconnected);
        self.disconnected.remove(0)
    }
}

#[test]
fn the_reply_comes_before_the_ack_and_the_event_is_not_handled_twice() {
    let mut world = World::new();
    let alice = world.open("alice");
    world.send(&alice, [event(1, "hi")]);
    assert_eq!((world.waiting(), world.reads(&alice)), (0, no_answer()), "the handler is awaited");
    let called = world.answer(Ok(replies("hello")));
    assert_eq!((called.event.as_str(), &called.payload.bytes[..]), ("say", &b"hi"[..]));
    assert_eq!(world.reads(&alice), ["1 hello", "ack 1"]);
    assert_eq!(world.bodies().last().unwrap(), "alice handled hello");
    assert_eq!(world.ask_for(&alice, event(1, "hi")), ["ack 1 Duplicate"]);
    assert_eq!(world.ask_for(&alice, event(1, "other")), ["ack 1 PayloadMismatch"]);
    assert!(world.calls.is_empty());
}

#[test]
fn an_event_that_failed_may_be_sent_again_and_has_the_same_id() {
    let mut world = World::new();
    let alice = world.open("alice");
    for error in [EventError::Failed, EventError::Busy, EventError::NoHandler] {
        world.send(&alice, [event(7, "hi")]);
        assert_eq!(world.answer(Err(error)).id.to_string(), "1000000000000007");
        assert_eq!(world.reads(&alice), ["ack 7 InternalServerError"]);
    }
    world.send(&alice, [event(7, "hi")]);
    assert_eq!(world.answer(Ok(Handled::default())).id.to_string(), "1000000000000007");
    assert_eq!(world.reads(&alice), ["ack 7"]);
}

#[test]
fn an_event_under_way_is_waited_for_by_its_resend() {
    let mut world = World::new();
    let alice = world.open("alice");
    world.send(&alice, [event(1, "hi"), event(1, "hi")]);
    world.send(&alice, [event(1, "hi")]);
    assert_eq!(world.calls.len(), 1);
    world.answer(Ok(Handled::default()));
    assert_eq!(world.reads(&alice), ["ack 1", "ack 1 Duplicate", "ack 1 Duplicate"]);
    assert!(world.calls.is_empty());
    world.send(&alice, [event(2, "hi"), event(2, "hi")]);
    world.answer(Err(EventError::Failed));
    assert_eq!(world.calls.len(), 1, "its original failed, so the resend counts");
    world.answer(Ok(Handled::default()));
    assert_eq!(world.reads(&alice), ["ack 2 InternalServerError", "ack 2"]);
}

#[test]
fn requests_keep_their_order_around_an_event_and_nobody_else_waits() {
    let mut world = World::new();
    let alice = world.open_in("alice", &["g"]);
    let bob = world.open_in("bob", &["g"]);
    world.send(&alice, [publish(1, "g", "before"), event(2, "x"), publish(3, "g", "after"), event(4, "y")]);
    world.settle();
    assert_eq!(world.reads(&alice), ["1 before", "ack 1"]);
    assert_eq!(world.ask_for(&bob, publish(1, "g", "meanwhile")), ["1 before", "2 meanwhile", "ack 1"]);
    world.send(&alice, [Upstream::Ping, acknowledge(1)]);
    assert_eq!(world.reads(&alice), ["pong", "2 meanwhile"], "deliveries and pings do not wait");
    world.answer(Ok(Handled::default()));
    assert_eq!(world.reads(&alice), ["ack 2", "3 after", "ack 3"]);
    world.answer(Ok(Handled::default()));
    assert_eq!(world.reads(&alice), ["ack 4"]);
}

#[test]
fn what_waits_for_a_handler_counts_as_pending() {
    let requests = RequestBounds { requests_max: 3, ..settings().requests };
    let mut world = World::with(HubSettings { requests, ..settings() }, usize::MAX);
    let alice = world.open("alice");
    let may_read = |world: &World| {
        let Attachment { session, outbox } = &alice.attachment;
        let may_read = outbox.lock().may_read(session.epoch, std::task::Waker::noop());
        (may_read, world.calls.len())
    };
    world.send(&alice, [event(1, "x"), event(2, "x")]);
    assert_eq!(may_read(&world), (true, 1));
    world.send(&alice, [event(3, "x")]);
    assert_eq!(may_read(&world), (false, 1), "at the bound");
    world.answer(Ok(Handled::default()));
    assert_eq!(may_read(&world), (true, 1));
}

#[test]
fn a_reply_is_redelivered_and_the_handler_is_not_called_again() {
    let mut world = World::new();
    let alice = world.open("alice");
    world.send(&alice, [event(1, "hi")]);
    world.lose(&alice);
    let alice = world.resume(&alice);
    world.send(&alice, [event(1, "hi")]);
    assert_eq!(world.calls.len(), 1);
    world.answer(Ok(replies("hello")));
    assert_eq!(world.reads(&alice), ["1 hello", "ack 1", "ack 1 Duplicate"]);
    world.lose(&alice);
    let alice = world.resume(&alice);
    assert_eq!(world.reads(&alice), ["1 hello"]);
    world.restart();
    let alice = world.resume(&alice);
    assert_eq!(world.reads(&alice), ["1 hello"], "also by another process");
    assert!(world.calls.is_empty());
}

#[test]
fn a_call_that_a_crash_interrupts_is_made_again_under_the_same_id() {
    let mut world = World::new();
    let alice = world.open("alice");
    world.send(&alice, [event(5, "hi")]);
    let first = world.calls[0].1.id;
    world.restart();
    let alice = world.resume(&alice);
    world.send(&alice, [event(5, "hi"), event(None, "uncounted before")]);
    assert_eq!(world.answer(Ok(Handled::default())).id, first);
    let counted = world.answer(Ok(Handled::default())).id.to_string();
    assert_eq!(counted, "1000000001", "no number of an earlier boot comes again");
}

#[test]
fn an_answer_that_can_not_be_stored_is_no_success() {
    let mut world = World::new();
    let alice = world.open("alice");
    world.send(&alice, [event(1, "hi")]);
    let (call, _) = world.calls.pop_front().unwrap();
    world.handle(Input::Called { call, answer: Ok(replies("hello")) });
    world.fail(Certainty::Definite);
    assert_eq!(world.reads(&alice), ["ack 1 InternalServerError"]);
    world.send(&alice, [event(1, "hi")]);
    let (call, _) = world.calls.pop_front().unwrap();
    world.handle(Input::Called { call, answer: Ok(replies("hello")) });
    world.fail_but_store();
    world.wait_ms(1000);
    world.settle();
    assert_eq!(world.reads(&alice), ["1 hello", "ack 1"], "stored twice, it takes effect once");
}

#[test]
fn state_is_kept_changed_and_emptied_by_successes_alone() {
    let mut world = World::new();
    let state = Some(HandlerState(Bytes::from_static(b"from connect")));
    let alice = world.open_with(NewSession { state, ..opening("alice") });
    assert_eq!(world.connected[0].subject.state, Some(HandlerState(Bytes::from_static(b"from connect"))));
    let ask = |world: &mut World, answer| {
        world.send(&alice, [event(None, "x")]);
        let event = world.answer(answer);
        state_of(&event).map(<[u8]>::to_vec)
    };
    assert_eq!(ask(&mut world, Ok(Handled::default())).as_deref(), Some(&b"from connect"[..]));
    assert_eq!(ask(&mut world, Ok(notes("second"))).as_deref(), Some(&b"from connect"[..]));
    assert_eq!(ask(&mut world, Err(EventError::Failed)).as_deref(), Some(&b"second"[..]));
    assert_eq!(ask(&mut world, Ok(notes(""))).as_deref(), Some(&b"second"[..]));
    assert_eq!(ask(&mut world, Ok(notes("third"))).as_deref(), Some(&b""[..]), "empty is a state");
    world.restart();
    let alice = world.try_resume("alice", Subprotocol::JsonReliable).unwrap();
    world.send(&alice, [event(None, "x")]);
    assert_eq!(state_of(&world.calls[0].1), Some(&b"third"[..]));
}

#[test]
fn events_are_counted_across_kinds_from_connected_on() {
    let mut world = World::that_is_told();
    let alice = world.open_with(opening_on("alice", Subprotocol::Json, "ann"));
    assert_eq!(world.connected.len(), 1);
    let Connected { subject, id, time } = &world.connected[0];
    assert_eq!((id.to_string().as_str(), *time), ("1", START));
    assert_eq!(
        (subject.identity.connection_id.as_str(), subject.identity.user_id.as_ref()),
        ("alice", Some(&UserId::new("ann")))
    );
    world.send(&alice, [event(None, "x")]);
    assert_eq!(world.answer(Ok(Handled::default())).id.to_string(), "2");
    world.close(&alice, SocketEnd::ClosedForGood);
    world.settle();
    assert_eq!(world.tells().id().to_string(), "3");
}

#[test]
fn a_recovery_is_no_event() {
    let mut world = World::that_is_told();
    let alice = world.open("alice");
    world.lose(&alice);
    world.wait_ms(RETENTION_MS / 2);
    let alice = world.resume(&alice);
    world.settle();
    assert_eq!((world.connected.len(), world.disconnected.len()), (1, 0));
    world.lose(&alice);
    world.wait_ms(RETENTION_MS);
    world.settle();
    let told = world.tells();
    assert_eq!(told.reason, "The connection recovery timeout expired.");
    assert_eq!(told.subject.identity.connection_id.as_str(), "alice");
}

#[test]
fn an_end_is_told_until_the_application_has_heard_of_it_under_one_id() {
    let mut world = World::that_is_told();
    let alice = world.open("alice");
    world.close(&alice, SocketEnd::ClosedForGood);
    assert!(world.disconnected.is_empty(), "not before it is in the log");
    world.settle();
    let first = world.tells();
    world.restart();
    let second = world.tells();
    assert_eq!(first, second);
    world.handle(Input::Told(vec![second.subject.identity.connection_id]));
    world.fail(Certainty::Definite);
    world.wait_ms(1000);
    world.settle();
    assert_eq!(world.bodies().last().unwrap(), "told alice");
    world.restart();
    assert!(world.disconnected.is_empty());
    assert_eq!(world.shard.untold(), 0);
}

#[test]
fn sessions_that_a_crash_ends_are_told_by_the_next_boot() {
    let mut world = World::that_is_told();
    world.open("reliable");
    world.open_with(opening_on("simple", Subprotocol::Json, "ann"));
    world.restart();
    let told = world.tells();
    assert_eq!((told.subject.identity.connection_id.as_str(), told.number), ("simple", 999_999_999));
    assert_eq!(told.reason, "The gateway was restarted.");
    world.restart();
    assert_eq!(world.tells(), told, "however many boots it takes");
}

#[test]
fn each_session_that_the_application_closes_is_told() {
    let mut world = World::that_is_told();
    let alice = world.open("alice");
    world.lose(&alice);
    world.open("bob");
    let reason = "maintenance".to_owned();
    world.command(Action::Close { selection: Selection::whole(Audience::All), reason });
    world.settle();
    let told: Vec<_> =
        world.disconnected.iter().map(|told| told.subject.identity.connection_id.to_string()).collect();
    assert_eq!(told.len(), 2);
    assert!(told.contains(&"alice".to_owned()) && told.contains(&"bob".to_owned()));
    assert_eq!(world.disconnected[0].reason, "Application server closed the connection. Reason: maintenance");
}

#[test]
fn sessions_that_a_stop_ends_are_told() {
    let mut world = World::that_is_told();
    world.open("reliable");
    world.handle(Input::Stop);
    world.settle();
    assert_eq!(world.tells().reason, "The gateway was stopped.");
    assert_eq!(world.shard.sessions(), 0);
}

#[test]
fn without_a_handler_for_it_nothing_is_kept_of_an_end() {
    let mut world = World::new();
    let alice = world.open("alice");
    world.open_with(opening_on("simple", Subprotocol::Json, "ann"));
    world.close(&alice, SocketEnd::ClosedForGood);
    world.settle();
    world.restart();
    assert!(world.disconnected.is_empty());
    assert_eq!(world.shard.untold(), 0);
}

#[test]
fn beyond_the_bound_an_end_is_not_told() {
    let mut world = World::that_is_told();
    let [alice, bob] = ["alice", "bob"].map(|id| world.open(id));
    world.close(&alice, SocketEnd::ClosedForGood);
    world.settle();
    let told = world.tells();
    for n in 2..UNTOLD_MAX {
        let mut other = told.clone();
        other.subject.identity.connection_id = ConnectionId::new(&n.to_string());
        world.shard.insert_untold(other);
    }
    world.close(&bob, SocketEnd::ClosedForGood);
    world.settle();
    assert_eq!(
        (world.tells().subject.identity.connection_id.as_str(), world.shard.untold()),
        ("bob", UNTOLD_MAX)
    );
    let carol = world.open("carol");
    world.close(&carol, SocketEnd::ClosedForGood);
    world.settle();
    assert!(world.disconnected.is_empty());
    assert_eq!(world.shard.untold(), UNTOLD_MAX);
}

#[test]
fn ends_that_nobody_took_were_kept_whatever_they_held() {
    const BUDGET_BYTES: usize = 20_000_000;
    let mut world = World::with(settings(), BUDGET_BYTES);
    world.takes_disconnected = true;
    world.handle(Input::TakesDisconnected(true));
    let user = "u".repeat(30_000);
    let mut ended = 0;
    while world.budget.has_room_for_untold() {
        let client = world.open_with(opening_on(&format!("c{ended}"), Subprotocol::JsonReliable, &user));
        world.close(&client, SocketEnd::ClosedForGood);
        world.settle();
        ended += 1;
    }
    assert_eq!(world.shard.untold(), ended);
    assert!((160..=167).contains(&ended), "{ended}: a quarter of the budget, and one beyond it");
    let client = world.open_with(opening_on("last", Subprotocol::JsonReliable, &user));
    world.close(&client, SocketEnd::ClosedForGood);
    world.settle();
    assert_eq!(world.shard.untold(), ended, "the application is not told of it");
    let tellings: Vec<_> = std::iter::from_fn(|| world.disconnected.pop()).collect();
    let ids = tellings.iter().map(|told| told.subject.identity.connection_id.clone()).collect();
    world.handle(Input::Told(ids));
    world.settle();
    assert!(world.shard.untold() == 0 && world.budget.has_room_for_untold());
}

#[test]
fn a_raw_client_learns_of_a_failure_by_1011() {
    let mut world = World::new();
    let raw = world.open_with(opening_on("raw", Subprotocol::Raw, "u"));
    world.send(&raw, [event(None, "x")]);
    world.answer(Ok(replies("hello")));
    assert_eq!(world.reads(&raw), ["hello"]);
    world.send(&raw, [event(None, "x"), event(None, "behind")]);
    world.answer(Err(EventError::Failed));
    assert_eq!((world.reads(&raw), world.calls.len()), (vec!["close 1011".to_owned()], 0));
}

#[test]
fn a_client_that_has_gone_for_good_waits_for_no_handler_and_its_event_is_handled_all_the_same() {
    for (subprotocol, end) in [
        (Subprotocol::Raw, SocketEnd::Lost),
        (Subprotocol::Json, SocketEnd::Lost),
        (Subprotocol::JsonReliable, SocketEnd::ClosedForGood),
    ] {
        let mut world = World::that_is_told();
        let gone = world.open_with(opening_on("gone", subprotocol, "u"));
        world.send(&gone, [publish(None, "g", "before"), event(None, "x"), event(None, "behind")]);
        world.close(&gone, end);
        assert!(world.calls.is_empty(), "what came before is not stored");
        world.settle();
        assert_eq!(world.calls.len(), 1);
        assert_eq!(world.bodies().last().unwrap(), &ended("gone", EndReason::ClientClosed));
        world.tells();
        let stored = world.log.len();
        world.answer(Ok(replies("late")));
        assert_eq!((world.log.len(), world.calls.len()), (stored, 0));
    }
}

#[test]
fn a_reply_that_could_only_end_the_session_is_a_failure() {
    let outbox = OutboxLimits { bytes_max: 5, ..settings().outbox };
    let mut world = World::with(HubSettings { outbox, ..settings() }, usize::MAX);
    let alice = world.open("alice");
    world.send(&alice, [event(1, "x")]);
    world.answer(Ok(replies("123456")));
    assert_eq!(world.reads(&alice), ["ack 1 InternalServerError"]);
    world.send(&alice, [event(1, "x")]);
    world.answer(Ok(replies("12345")));
    assert_eq!(world.reads(&alice), ["1 12345", "ack 1"]);
}

#[test]
fn where_a_hub_wants_it_a_failure_closes_after_the_ack() {
    let settings = HubSettings { closes_on_event_failure: true, ..settings() };
    let mut world = World::with(settings, usize::MAX);
    let alice = world.open("alice");
    world.send(&alice, [event(1, "x"), publish(2, "g", "behind")]);
    world.answer(Err(EventError::Failed));
    assert_eq!(world.reads(&alice), ["ack 1 InternalServerError", "close 1011"]);
    assert_eq!(world.bodies().last().unwrap(), &ended("alice", EndReason::ProtocolViolation));
    assert_eq!(world.refusal(&alice), OpenError::Refused);
}

#[test]
fn an_answer_for_a_session_that_is_over_changes_nothing() {
    let mut world = World::new();
    let alice = world.open("alice");
    world.send(&alice, [event(1, "x")]);
    let selection = Selection::whole(Audience::All);
    world.command(Action::Close { selection, reason: String::new() });
    world.settle();
    let stored = world.log.len();
    world.answer(Ok(replies("late")));
    assert_eq!(world.log.len(), stored);
    let bob = world.open("bob");
    world.send(&bob, [event(1, "x")]);
    world.close(&bob, SocketEnd::ClosedForGood);
    world.settle();
    world.answer(Ok(notes("late")));
    assert_eq!(world.bodies()[stored + 1..], ["bob ended ClientClosed"]);
}
