use bytes::BytesMut;

use super::super::testing::{Wakes, drain, expiring, read, read_frames, shared};
use super::*;
use crate::log::{MessageRef, Time};
use crate::session::kept_capacity::KEPT_CAPACITY;
use crate::wire::{AckError, ConnectionId, ErrorName, Metadata};

const NOW: Time = Time(1_000);

const LIMITS: OutboxLimits = OutboxLimits { messages_max: 3, bytes_max: 10 };
const BOUNDS: RequestBounds =
    RequestBounds { requests_max: 3, request_bytes_max: 100, reply_bytes_max: 3 * size_of::<Reply>() };

#[test]
fn bookkeeping_takes_16_bytes_for_a_message() {
    assert!(size_of::<Entry>() <= 16);
}

#[test]
fn r1_redelivery_repeats_ids_and_bytes_in_order() {
    let mut outbox = reliable();
    let epoch = outbox.attach();
    deliver(&mut outbox, ["a", "b", "c"]);
    let first = bytes(&mut outbox, epoch, NOW);
    assert_eq!(read_frames(&first), ["1 a", "2 b", "3 c"]);
    outbox.detach(epoch);
    deliver(&mut outbox, ["d"]);
    let epoch = outbox.attach();
    let again = bytes(&mut outbox, epoch, NOW);
    assert_eq!(again[..first.len()], first[..]);
    assert_eq!(read_frames(&again), ["1 a", "2 b", "3 c", "4 d"]);
}

#[test]
fn scenario_5_ten_messages_ack_4_drop_three_more_recover() {
    let mut outbox = reliable();
    let epoch = outbox.attach();
    deliver(&mut outbox, ["m"; 10]);
    assert_eq!(read(&mut outbox, epoch, NOW).len(), 10);
    outbox.sequence_ack(epoch, 4);
    outbox.detach(epoch);
    deliver(&mut outbox, ["n"; 3]);
    let epoch = outbox.attach();
    let replayed = ["5 m", "6 m", "7 m", "8 m", "9 m", "10 m", "11 n", "12 n", "13 n"];
    assert_eq!(read(&mut outbox, epoch, NOW), replayed);
    deliver(&mut outbox, ["live"]);
    assert_eq!(read(&mut outbox, epoch, NOW), ["14 live"]);
}

#[test]
fn scenario_14_acks_of_0_of_an_older_id_and_of_a_future_one() {
    let mut outbox = reliable();
    let epoch = outbox.attach();
    deliver(&mut outbox, ["a", "b", "c"]);
    outbox.sequence_ack(epoch, 0);
    assert_eq!(outbox.messages(), 3);
    outbox.sequence_ack(epoch, 2);
    outbox.sequence_ack(epoch, 1);
    outbox.sequence_ack(epoch, 2);
    assert_eq!(outbox.messages(), 1);
    outbox.sequence_ack(epoch, u64::MAX);
    assert_eq!((outbox.messages(), outbox.content_bytes()), (0, 0));
    deliver(&mut outbox, ["d"]);
    assert_eq!(outbox.messages(), 1);
    assert_eq!(read(&mut outbox, epoch, NOW), ["4 d"]);
}

#[test]
fn an_ack_in_the_middle_of_a_replay_skips_what_it_names() {
    let mut outbox = reliable();
    let epoch = outbox.attach();
    deliver(&mut outbox, ["a", "b", "c", "d"]);
    assert_eq!(pull(&mut outbox, epoch, 1), ["1 a"]);
    outbox.sequence_ack(epoch, 3);
    assert_eq!(read(&mut outbox, epoch, NOW), ["4 d"]);
}

#[test]
fn limits_hold_on_both_sides() {
    let mut outbox = Outbox::new(Subprotocol::JsonReliable, LIMITS, BOUNDS);
    deliver(&mut outbox, ["1", "2", "3"]);
    assert!(!outbox.is_over_limits());
    deliver(&mut outbox, [""]);
    assert!(outbox.is_over_limits());

    let mut outbox = Outbox::new(Subprotocol::JsonReliable, LIMITS, BOUNDS);
    deliver(&mut outbox, ["1234", "567890"]);
    assert!(!outbox.is_over_limits());
    deliver(&mut outbox, ["1"]);
    assert!(outbox.is_over_limits());
    outbox.acknowledge(1);
    assert!(!outbox.is_over_limits());
}

#[test]
fn metadata_counts_as_content() {
    let mut message = super::super::testing::text("12345");
    message.metadata = Metadata::new([("key", "va")]).unwrap();
    let budget = Arc::new(super::super::MemoryBudget::new(0));
    let message = SharedMessage::new(MessageRef::default(), message, None, &budget);
    let mut outbox = reliable();
    let _ = outbox.deliver(&message);
    assert_eq!(outbox.content_bytes(), 10);
}

#[test]
fn own_message_before_own_ack() {
    let mut outbox = reliable();
    let epoch = outbox.attach();
    let _ = outbox.reply(ack(1));
    deliver(&mut outbox, ["a", "b"]);
    let _ = outbox.reply(ack(2));
    deliver(&mut outbox, ["c"]);
    let _ = outbox.reply(ack(3));
    let mut got = Vec::new();
    for _ in 0..6 {
        got.extend(pull(&mut outbox, epoch, 1));
    }
    assert_eq!(got, ["ack 1", "1 a", "2 b", "ack 2", "3 c", "ack 3"]);
}

#[test]
fn an_ack_waits_for_the_whole_replay_before_it() {
    let mut outbox = reliable();
    let epoch = outbox.attach();
    deliver(&mut outbox, ["a", "b"]);
    assert_eq!(read(&mut outbox, epoch, NOW), ["1 a", "2 b"]);
    let epoch = outbox.attach();
    let _ = outbox.reply(ack(1));
    assert_eq!(read(&mut outbox, epoch, NOW), ["1 a", "2 b", "ack 1"]);
}

#[test]
fn an_ack_does_not_wait_for_messages_that_the_client_has_acknowledged() {
    let mut outbox = reliable();
    let epoch = outbox.attach();
    deliver(&mut outbox, ["a", "b"]);
    let _ = outbox.reply(ack(1));
    outbox.sequence_ack(epoch, 2);
    assert_eq!(read(&mut outbox, epoch, NOW), ["ack 1"]);
}

#[test]
fn a_pong_overtakes_what_waits_but_not_the_first_message_of_a_session() {
    let mut outbox = reliable();
    let epoch = outbox.attach();
    let _ = outbox.pong(epoch);
    assert_eq!(read(&mut outbox, epoch, NOW), ["pong"], "after a resume nothing is first");
    let epoch = outbox.attach();
    let _ = outbox.reply(connected());
    deliver(&mut outbox, ["a", "b"]);
    let _ = outbox.reply(ack(1));
    let _ = outbox.pong(epoch);
    let _ = outbox.pong(epoch);
    assert_eq!(read(&mut outbox, epoch, NOW), ["connected", "pong", "pong", "1 a", "2 b", "ack 1"]);
}

#[test]
fn a_pong_that_comes_between_two_writes_keeps_the_rest_in_order() {
    let mut outbox = reliable();
    let epoch = outbox.attach();
    let _ = outbox.reply(connected());
    deliver(&mut outbox, ["a", "b"]);
    let (mut out, mut sent) = (BytesMut::new(), Vec::new());
    outbox.transmit(epoch, NOW, usize::MAX, &mut out, &mut sent, Waker::noop());
    let _ = outbox.pong(epoch);
    outbox.rewind(epoch, &sent);
    assert_eq!(read(&mut outbox, epoch, NOW), ["connected", "pong", "1 a", "2 b"]);
}

#[test]
fn r6_an_older_socket_changes_nothing_and_is_cut() {
    let mut outbox = reliable();
    let old = outbox.attach();
    deliver(&mut outbox, ["a", "b"]);
    let (mut out, mut sent) = (BytesMut::new(), Vec::new());
    outbox.transmit(old, NOW, usize::MAX, &mut out, &mut sent, Waker::noop());
    let new = outbox.attach();
    assert!(!outbox.is_current(old) && outbox.is_current(new));
    assert_eq!(read(&mut outbox, new, NOW), ["1 a", "2 b"]);
    outbox.rewind(old, &sent);
    outbox.sequence_ack(old, 2);
    assert!(outbox.pong(old).is_none());
    assert!(!outbox.detach(old));
    assert_eq!(drain(&mut outbox, old, NOW), (vec![], Progress::Cut));
    assert!(outbox.is_write_over(old, Waker::noop()));
    assert_eq!(read(&mut outbox, new, NOW), Vec::<String>::new());
    assert_eq!(outbox.messages(), 2);
    outbox.detach(new);
    assert_eq!(drain(&mut outbox, new, NOW), (vec![], Progress::Cut));
}

#[test]
fn r6_an_older_socket_does_not_take_the_place_of_the_new_reader() {
    let mut outbox = Outbox::new(Subprotocol::JsonReliable, LIMITS, BOUNDS);
    let old = outbox.attach();
    outbox.add_requests(3, 3);
    let (old_wakes, old_waker) = Wakes::new();
    assert!(!outbox.may_read(old, &old_waker));
    let new = outbox.attach();
    assert_eq!(old_wakes.count(), 1, "so that it sees that it is cut");
    let (new_wakes, new_waker) = Wakes::new();
    assert!(!outbox.may_read(new, &new_waker));
    assert!(!outbox.may_read(old, &old_waker));
    outbox.settle_requests(1, 1);
    assert_eq!((old_wakes.count(), new_wakes.count()), (1, 1));
}

#[test]
fn replies_without_a_socket_are_lost_and_so_are_unwritten_ones() {
    let mut outbox = reliable();
    assert!(outbox.reply(ack(1)).is_none());
    let epoch = outbox.attach();
    let _ = outbox.reply(ack(2));
    let _ = outbox.pong(epoch);
    let epoch = outbox.attach();
    assert_eq!(read(&mut outbox, epoch, NOW), Vec::<String>::new());
    assert_eq!(outbox.reply_bytes, 0);
}

#[test]
fn a_reader_stops_at_each_bound_and_is_woken_below_it() {
    for (requests, bytes) in [(3, 0), (0, 100)] {
        let mut outbox = Outbox::new(Subprotocol::JsonReliable, LIMITS, BOUNDS);
        let epoch = outbox.attach();
        let (wakes, waker) = Wakes::new();
        outbox.add_requests(requests - requests.min(1), bytes - bytes.min(1));
        assert!(outbox.may_read(epoch, &waker));
        outbox.add_requests(requests.min(1), bytes.min(1));
        assert!(!outbox.may_read(epoch, &waker));
        assert_eq!(wakes.count(), 0);
        outbox.settle_requests(requests.min(1), bytes.min(1));
        assert_eq!(wakes.count(), 1);
        assert!(outbox.may_read(epoch, &waker));
    }
}

#[test]
fn a_reader_stops_at_the_bound_on_replies_until_they_are_written() {
    let mut outbox = Outbox::new(Subprotocol::JsonReliable, LIMITS, BOUNDS);
    let epoch = outbox.attach();
    let (wakes, waker) = Wakes::new();
    let _ = outbox.pong(epoch);
    let _ = outbox.reply(ack(1));
    assert!(outbox.may_read(epoch, &waker));
    let _ = outbox.pong(epoch);
    assert!(!outbox.may_read(epoch, &waker));
    assert_eq!(pull(&mut outbox, epoch, usize::MAX), ["pong", "ack 1", "pong"]);
    assert_eq!(wakes.count(), 0, "not before the next pull tells that they are written");
    assert_eq!(read(&mut outbox, epoch, NOW), Vec::<String>::new());
    assert_eq!(wakes.count(), 1);
    assert!(outbox.may_read(epoch, &waker));
}

#[test]
fn the_text_of_a_reply_counts() {
    let mut outbox = Outbox::new(Subprotocol::JsonReliable, LIMITS, BOUNDS);
    let epoch = outbox.attach();
    let message = "x".repeat(BOUNDS.reply_bytes_max);
    let error = AckError { name: ErrorName::Forbidden, message };
    let _ = outbox.reply(Downstream::Ack { ack_id: 1, error: Some(error) });
    assert!(!outbox.may_read(epoch, Waker::noop()));
}

#[test]
fn a_client_that_is_not_reliable_has_what_was_written_and_no_ids() {
    let mut outbox = outbox(Subprotocol::Json);
    let epoch = outbox.attach();
    let (a, b) = (shared("a"), shared("b"));
    let _ = outbox.deliver(&a);
    let _ = outbox.deliver(&b);
    assert_eq!(pull(&mut outbox, epoch, 1), ["a"]);
    assert_eq!(outbox.messages(), 2, "not before the next pull tells that it is written");
    outbox.sequence_ack(epoch, 2);
    assert_eq!(outbox.messages(), 2, "its acks mean nothing");
    assert_eq!(pull(&mut outbox, epoch, 1), ["b"]);
    assert_eq!((outbox.messages(), outbox.content_bytes(), Arc::strong_count(&a)), (1, 1, 1));
    assert_eq!(read(&mut outbox, epoch, NOW), Vec::<String>::new());
    assert_eq!((outbox.messages(), outbox.content_bytes(), Arc::strong_count(&b)), (0, 0, 1));
}

#[test]
fn what_was_not_written_is_kept_for_a_client_that_is_not_reliable() {
    let mut outbox = outbox(Subprotocol::Json);
    let epoch = outbox.attach();
    deliver(&mut outbox, ["a", "b", "c"]);
    let (mut out, mut sent) = (BytesMut::new(), Vec::new());
    outbox.transmit(epoch, NOW, usize::MAX, &mut out, &mut sent, Waker::noop());
    outbox.rewind(epoch, &sent[1..]);
    assert_eq!(read(&mut outbox, epoch, NOW), ["b", "c"]);
}

#[test]
fn raw_clients_get_bare_messages_and_no_replies() {
    let mut outbox = outbox(Subprotocol::Raw);
    let epoch = outbox.attach();
    let _ = outbox.reply(connected());
    let _ = outbox.pong(epoch);
    deliver(&mut outbox, ["a", ""]);
    let _ = outbox.reply(ack(1));
    assert_eq!(read(&mut outbox, epoch, NOW), ["a", ""]);
}

#[test]
fn a_message_past_its_time_is_skipped_and_freed_and_its_id_stays_its_own() {
    let mut outbox = reliable();
    let epoch = outbox.attach();
    let late = expiring("late", NOW);
    let _ = outbox.deliver(&late);
    let _ = outbox.deliver(&expiring("in time", NOW.plus_ms(1)));
    deliver(&mut outbox, ["c"]);
    assert_eq!(read(&mut outbox, epoch, NOW), ["2 in time", "3 c"]);
    assert_eq!((Arc::strong_count(&late), outbox.content_bytes()), (1, 8));

    let epoch = outbox.attach();
    assert_eq!(read(&mut outbox, epoch, NOW.plus_ms(1)), ["3 c"], "judged again at each transmission");
    assert_eq!((outbox.messages(), outbox.content_bytes()), (1, 1), "nothing of the skipped ones is kept");
    deliver(&mut outbox, ["d"]);
    assert_eq!(read(&mut outbox, epoch, NOW), ["4 d"]);
}

#[test]
fn expired_messages_behind_an_unacknowledged_one_leave_with_it() {
    let mut outbox = reliable();
    let epoch = outbox.attach();
    deliver(&mut outbox, ["a"]);
    for _ in 0..3 {
        let _ = outbox.deliver(&expiring("late", NOW));
    }
    assert_eq!(read(&mut outbox, epoch, NOW), ["1 a"]);
    outbox.sequence_ack(epoch, 1);
    assert_eq!(outbox.messages(), 0);
}

#[test]
fn an_ack_waits_for_no_skipped_message() {
    let mut outbox = reliable();
    let epoch = outbox.attach();
    let _ = outbox.deliver(&expiring("late", NOW));
    let _ = outbox.reply(ack(1));
    assert_eq!(read(&mut outbox, epoch, NOW), ["ack 1"]);
    assert_eq!((outbox.messages(), outbox.content_bytes()), (0, 0));
}

#[test]
fn time_to_live_concerns_reliable_clients_only() {
    let mut outbox = outbox(Subprotocol::Json);
    let epoch = outbox.attach();
    let _ = outbox.deliver(&expiring("late", NOW));
    assert_eq!(read(&mut outbox, epoch, NOW), ["late"]);
}

#[test]
fn a_message_larger_than_the_budget_goes_out_alone() {
    let mut outbox = reliable();
    let epoch = outbox.attach();
    let large = "x".repeat(70_000);
    deliver(&mut outbox, ["a", &large, "b"]);
    assert_eq!(pull(&mut outbox, epoch, 10), ["1 a"]);
    assert_eq!(pull(&mut outbox, epoch, 10), [format!("2 {large}")]);
    assert_eq!(pull(&mut outbox, epoch, 10), ["3 b"]);
}

#[test]
fn after_flush_everything_that_waits_is_written_and_no_reply_is_added() {
    let mut outbox = reliable();
    let epoch = outbox.attach();
    deliver(&mut outbox, ["a"]);
    let _ = outbox.reply(ack(1));
    let _ = outbox.close(Closing::AfterFlush(Close::GOING_AWAY));
    let _ = outbox.reply(ack(2));
    let _ = outbox.pong(epoch);
    assert!(!outbox.is_write_over(epoch, Waker::noop()));
    let expected = (vec!["1 a".to_owned(), "ack 1".to_owned()], Progress::Close(Close::GOING_AWAY));
    assert_eq!(drain(&mut outbox, epoch, NOW), expected);
    assert_eq!(outbox.messages(), 1, "the session goes on");
}

#[test]
fn a_socket_closed_now_or_cut_gets_nothing_more() {
    for (closing, progress) in [
        (Closing::Now(Close::OUTBOX_FULL), Progress::Close(Close::OUTBOX_FULL)),
        (Closing::Cut, Progress::Cut),
    ] {
        let mut outbox = reliable();
        let epoch = outbox.attach();
        deliver(&mut outbox, ["a"]);
        let _ = outbox.close(closing);
        assert_eq!(drain(&mut outbox, epoch, NOW), (vec![], progress));
        assert!(outbox.is_write_over(epoch, Waker::noop()));
        let _ = outbox.close(Closing::AfterFlush(Close::NORMAL));
        assert_eq!(drain(&mut outbox, epoch, NOW), (vec![], progress), "the first order stands");
    }
}

#[test]
fn closing_concerns_the_attached_socket_only() {
    let mut outbox = reliable();
    assert!(outbox.close(Closing::Cut).is_none());
    let epoch = outbox.attach();
    assert_eq!(read(&mut outbox, epoch, NOW), Vec::<String>::new());
    let _ = outbox.close(Closing::Cut);
    let epoch = outbox.attach();
    deliver(&mut outbox, ["a"]);
    assert_eq!(read(&mut outbox, epoch, NOW), ["1 a"]);
}

#[test]
fn an_idle_writer_is_woken_once_by_whatever_comes_first() {
    type Event = fn(&mut Outbox, AttachEpoch) -> Option<Waker>;
    let events: [Event; 4] = [
        |outbox, _| outbox.deliver(&shared("a")),
        |outbox, _| outbox.reply(ack(1)),
        |outbox, epoch| outbox.pong(epoch),
        |outbox, _| outbox.close(Closing::Cut),
    ];
    for event in events {
        let mut outbox = reliable();
        let epoch = outbox.attach();
        assert!(event(&mut outbox, epoch).is_none(), "nobody waits");
        let epoch = outbox.attach();
        let _ = drain(&mut outbox, epoch, NOW);
        assert!(event(&mut outbox, epoch).is_some());
        assert!(event(&mut outbox, epoch).is_none(), "already woken");
    }
}

#[test]
fn a_socket_that_is_let_go_is_woken_wherever_it_waits() {
    let changes: [fn(&mut Outbox, AttachEpoch); 2] = [
        |outbox, epoch| assert!(outbox.detach(epoch)),
        |outbox, _| assert!(outbox.attach() > AttachEpoch(1)),
    ];
    for change in changes {
        let mut outbox = Outbox::new(Subprotocol::JsonReliable, LIMITS, BOUNDS);
        let epoch = outbox.attach();
        let (idle, idle_waker) = Wakes::new();
        let (blocked, blocked_waker) = Wakes::new();
        let (reader, reader_waker) = Wakes::new();
        outbox.transmit(epoch, NOW, 1, &mut BytesMut::new(), &mut Vec::new(), &idle_waker);
        assert!(!outbox.is_write_over(epoch, &blocked_waker));
        outbox.add_requests(3, 0);
        assert!(!outbox.may_read(epoch, &reader_waker));
        change(&mut outbox, epoch);
        assert_eq!((idle.count(), blocked.count(), reader.count()), (1, 1, 1));
        assert!(outbox.is_write_over(epoch, Waker::noop()));
    }
}

#[test]
fn a_writer_in_the_middle_of_a_write_is_told_when_to_give_up() {
    for closing in [Closing::Cut, Closing::Now(Close::OUTBOX_FULL)] {
        let mut outbox = reliable();
        let epoch = outbox.attach();
        let (wakes, waker) = Wakes::new();
        assert!(!outbox.is_write_over(epoch, &waker));
        let _ = outbox.close(closing);
        assert_eq!(wakes.count(), 1);
        assert!(outbox.is_write_over(epoch, &waker));
    }
}

#[test]
fn r2_a_freed_outbox_keeps_nothing_and_goes_on_counting() {
    let mut outbox = reliable();
    let epoch = outbox.attach();
    let (before, after) = (shared("before"), shared("after"));
    let _ = outbox.deliver(&before);
    let _ = outbox.reply(ack(1));
    outbox.free();
    for _ in 0..200 {
        let _ = outbox.deliver(&after);
    }
    assert_eq!((outbox.messages(), outbox.content_bytes()), (0, 0));
    assert!(!outbox.is_over_limits());
    assert_eq!((Arc::strong_count(&before), Arc::strong_count(&after)), (1, 1));
    assert_eq!(outbox.ids.last(), 201 + 300, "as if all had been kept");
    assert_eq!(read(&mut outbox, epoch, NOW), ["ack 1"]);
}

#[test]
fn memory_of_a_burst_is_given_back() {
    let mut outbox = reliable();
    let epoch = outbox.attach();
    deliver(&mut outbox, ["m"; 1000]);
    (0..1000).for_each(|n| drop(outbox.reply(ack(n))));
    assert_eq!(read(&mut outbox, epoch, NOW).len(), 2000);
    outbox.sequence_ack(epoch, u64::MAX);
    assert!(outbox.entries.capacity() <= KEPT_CAPACITY && outbox.replies.capacity() <= KEPT_CAPACITY);
}

fn reliable() -> Outbox {
    outbox(Subprotocol::JsonReliable)
}

pub(super) fn outbox(subprotocol: Subprotocol) -> Outbox {
    let limits = OutboxLimits { messages_max: usize::MAX, bytes_max: usize::MAX };
    let bounds = RequestBounds {
        requests_max: usize::MAX,
        request_bytes_max: usize::MAX,
        reply_bytes_max: usize::MAX,
    };
    Outbox::new(subprotocol, limits, bounds)
}

fn deliver<'a>(outbox: &mut Outbox, payloads: impl IntoIterator<Item = &'a str>) {
    for payload in payloads {
        let _ = outbox.deliver(&shared(payload));
    }
}

/// One transmission, written as a whole.
fn pull(outbox: &mut Outbox, epoch: AttachEpoch, budget_bytes: usize) -> Vec<String> {
    let mut out = BytesMut::new();
    outbox.transmit(epoch, NOW, budget_bytes, &mut out, &mut Vec::new(), Waker::noop());
    read_frames(&out)
}

fn bytes(outbox: &mut Outbox, epoch: AttachEpoch, now: Time) -> BytesMut {
    let mut out = BytesMut::new();
    outbox.transmit(epoch, now, usize::MAX, &mut out, &mut Vec::new(), Waker::noop());
    out
}

fn ack(ack_id: u64) -> Downstream {
    Downstream::Ack { ack_id, error: None }
}

fn connected() -> Downstream {
    Downstream::Connected { connection_id: ConnectionId::new("c"), user_id: None, reconnection_token: None }
}
