use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::*;
use crate::hub::{SessionHandle, SessionKey};
use crate::log::MessageRef;
use crate::session::{Closing, MemoryBudget, Outbox, OutboxLimits, RequestBounds, SharedMessage};
use crate::wire::{Close, Downstream, Message, Metadata, Payload, PayloadKind, Sender, Subprotocol};

/// A connection that takes at most so many bytes at a time, and now and then none.
#[derive(Default)]
struct Pipe {
    written: Vec<u8>,
    bytes_per_write: usize,
    /// How many bytes it takes before it takes no more.
    room: usize,
    is_shut: bool,
    /// How much each write that it took brought.
    offered: Vec<usize>,
    /// Bytes that it takes before it passes on those before them, as a connection inside TLS does; none that does not.
    held_max: usize,
    held: Vec<u8>,
}

impl Pipe {
    /// Passes on what is held, as far as there is room.
    fn pass_on(&mut self) {
        let passed = self.held.len().min(self.room);
        self.room -= passed;
        self.written.extend(self.held.drain(..passed));
    }
}

impl Connection for Pipe {
    fn poll_write(&mut self, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.held_max > 0 {
            self.pass_on();
            let taken = bytes.len().min(self.held_max - self.held.len());
            if taken == 0 {
                return Poll::Pending;
            }
            self.held.extend_from_slice(&bytes[..taken]);
            self.pass_on();
            return Poll::Ready(Ok(taken));
        }
        let taken = bytes.len().min(self.bytes_per_write).min(self.room);
        if taken == 0 {
            return Poll::Pending;
        }
        self.room -= taken;
        self.offered.push(bytes.len());
        self.written.extend_from_slice(&bytes[..taken]);
        Poll::Ready(Ok(taken))
    }

    fn poll_write_vectored(
        &mut self,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let first = pieces.iter().find(|piece| !piece.is_empty());
        first.map_or(Poll::Ready(Ok(0)), |piece| self.poll_write(context, piece))
    }

    fn poll_flush(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.pass_on();
        if self.held.is_empty() { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_flush(context))?;
        self.is_shut = true;
        Poll::Ready(Ok(()))
    }
}

/// A writer, what it has written, and the session's side of it.
struct Bench {
    writer: SocketWriter,
    pipe: Pipe,
    scratch: Scratch,
    outbox: SharedOutbox,
    link: Link,
    budget: Arc<MemoryBudget>,
}

impl Bench {
    fn new(bytes_per_write: usize) -> Self {
        let limits = OutboxLimits { messages_max: 100, bytes_max: 1 << 20 };
        let bounds = RequestBounds { requests_max: 10, request_bytes_max: 1000, reply_bytes_max: 1000 };
        let mut outbox = Outbox::new(Subprotocol::JsonReliable, limits, bounds);
        let epoch = outbox.attach();
        let outbox = Arc::new(Mutex::new(outbox));
        let session = SessionHandle { key: SessionKey::default(), epoch };
        let attachment = Attachment { session, outbox: Arc::clone(&outbox) };
        let link = Link::new();
        Self {
            writer: SocketWriter::new(attachment, link.clone()),
            pipe: Pipe { bytes_per_write, room: usize::MAX, ..Pipe::default() },
            scratch: Scratch::default(),
            outbox,
            link,
            budget: Arc::new(MemoryBudget::new(usize::MAX)),
        }
    }

    fn deliver(&self, text: &str) {
        let message = Message {
            sender: Sender::Server,
            payload: Payload { kind: PayloadKind::Text, bytes: Bytes::copy_from_slice(text.as_bytes()) },
            metadata: Metadata::default(),
        };
        self.outbox.lock().deliver(&SharedMessage::new(MessageRef::default(), message, None, &self.budget));
    }

    fn reply(&self, ack_id: u64) {
        self.outbox.lock().reply(Downstream::Ack { ack_id, error: None });
    }

    fn close(&self, closing: Closing) {
        self.outbox.lock().close(closing);
    }

    /// Polls the writer once.
    fn run_once(&mut self) -> Option<Ending> {
        match self.poll(Waker::noop()) {
            Poll::Ready(ending) => Some(ending),
            Poll::Pending => None,
        }
    }

    fn poll(&mut self, waker: &Waker) -> Poll<Ending> {
        let mut context = Context::from_waker(waker);
        self.writer.is_new_task(waker);
        self.writer.poll(Time(0), &mut self.pipe, &mut self.scratch, &mut context)
    }

    /// An interval of pings passes.
    fn tick(&mut self) -> Option<Ending> {
        self.writer.tick().or_else(|| self.run())
    }

    /// Ends the socket in this way, whose reader is done; what has been written by then.
    fn say_goodbye(self, ending: Ending) -> Vec<u8> {
        drop(self.link.reader_guard());
        let Self { writer, mut pipe, .. } = self;
        let mut goodbye = writer.end(ending).unwrap();
        assert!(goodbye.poll(&mut pipe, &mut Context::from_waker(Waker::noop())).is_ready());
        assert!(pipe.is_shut);
        pipe.written
    }

    /// Polls until the writer waits for something.
    fn run(&mut self) -> Option<Ending> {
        for _ in 0..10_000 {
            if let Some(ending) = self.run_once() {
                return Some(ending);
            }
            let is_written = !self.writer.begun.has_remaining() && self.pipe.held.is_empty();
            if is_written && self.is_drained() || self.writer.is_blocked {
                return None;
            }
        }
        panic!("the writer does not come to rest");
    }

    /// Whether nothing is left to transmit; whatever is, goes back.
    fn is_drained(&self) -> bool {
        let (mut out, mut sent) = (BytesMut::new(), Vec::new());
        let mut outbox = self.outbox.lock();
        let epoch = self.writer.epoch;
        outbox.transmit(epoch, Time(0), 1, &mut out, &mut sent, Waker::noop());
        outbox.rewind(epoch, &sent);
        sent.is_empty()
    }

    fn take_written(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.pipe.written)
    }
}

/// What the client gets when the connection takes everything at once.
fn whole(fill: impl Fn(&Bench)) -> Vec<u8> {
    let mut bench = Bench::new(usize::MAX);
    fill(&bench);
    assert_eq!(bench.run(), None);
    bench.take_written()
}

fn several(bench: &Bench) {
    bench.reply(1);
    bench.deliver("first");
    bench.deliver(&"long".repeat(40));
    bench.reply(2);
    bench.link.pong(b"ping");
    bench.deliver("last");
}

/// Splits into frames from server to client.
fn frames_of(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    while let [_, length, rest @ ..] = bytes {
        let (header, length) = match length {
            126 => (4, usize::from(u16::from_be_bytes([rest[0], rest[1]]))),
            length => (2, usize::from(*length)),
        };
        frames.push(bytes[..header + length].to_vec());
        bytes = &bytes[header + length..];
    }
    assert!(bytes.is_empty());
    frames
}

#[test]
fn every_size_of_partial_write_gives_the_same_bytes() {
    let expected = whole(several);
    assert_eq!(frames_of(&expected).len(), 6);
    for bytes_per_write in 1..=expected.len() {
        let mut bench = Bench::new(bytes_per_write);
        several(&bench);
        assert_eq!(bench.run(), None);
        assert_eq!(bench.take_written(), expected, "{bytes_per_write} at a time");
    }
}

#[test]
fn a_write_that_stops_anywhere_goes_on_there() {
    let expected = whole(several);
    for room in 0..expected.len() {
        let mut bench = Bench::new(usize::MAX);
        bench.pipe.room = room;
        several(&bench);
        assert_eq!(bench.run(), None);
        assert!(bench.writer.is_blocked);
        bench.pipe.room = usize::MAX;
        bench.writer.is_blocked = false;
        assert_eq!(bench.run(), None);
        assert_eq!(bench.take_written(), expected, "stopped after {room}");
    }
}

#[test]
fn only_the_begun_frame_is_kept_while_the_connection_is_blocked() {
    let expected = whole(several);
    let ends: Vec<_> = frames_of(&expected)
        .iter()
        .scan(0, |end, frame| {
            *end += frame.len();
            Some(*end)
        })
        .collect();
    for room in 1..expected.len() {
        let mut bench = Bench::new(usize::MAX);
        bench.pipe.room = room;
        several(&bench);
        bench.run();
        let end = ends.iter().copied().find(|end| *end >= room).unwrap();
        assert_eq!(bench.writer.begun.remaining(), end - room, "after {room}");
    }
}

/// However much of it the connection holds, and wherever it gets stuck.
#[test]
fn nothing_stays_in_a_connection_that_holds_bytes_back() {
    let expected = whole(several);
    for held_max in [1, 7, expected.len()] {
        for room in 0..expected.len() {
            let mut bench = Bench::new(usize::MAX);
            bench.pipe.held_max = held_max;
            bench.pipe.room = room;
            several(&bench);
            assert_eq!(bench.run(), None);
            assert!(bench.writer.is_blocked, "{room} of room, {held_max} held");
            bench.link.take_heard();
            bench.pipe.room = usize::MAX;
            bench.run_once();
            assert!(bench.link.take_heard(), "that it has been read is a sign of life");
            assert_eq!(bench.run(), None);
            assert_eq!(bench.take_written(), expected, "{room} of room, {held_max} held");
            assert!(!bench.writer.is_blocked && !bench.writer.is_unflushed);
        }
    }
}

#[test]
fn what_is_delivered_while_bytes_are_held_back_follows_them_and_a_close_is_not_held_up() {
    let mut bench = Bench::new(usize::MAX);
    bench.pipe.held_max = usize::MAX;
    bench.pipe.room = 3;
    bench.deliver("one");
    assert_eq!(bench.run(), None);
    bench.deliver("two");
    assert_eq!(bench.run(), None);
    bench.close(Closing::Now(Close::OUTBOX_FULL));
    let close = frames::close(&Close::OUTBOX_FULL);
    assert_eq!(bench.run(), Some(Ending::Close(close.clone())));
    bench.pipe.room = usize::MAX;
    let first = whole(|bench| bench.deliver("one"));
    assert_eq!(bench.say_goodbye(Ending::Close(close.clone())), [&first[..], &close].concat());
}

#[test]
fn what_is_delivered_while_blocked_follows_the_begun_frame() {
    let mut bench = Bench::new(usize::MAX);
    bench.pipe.room = 3;
    bench.deliver("one");
    bench.run();
    bench.deliver("two");
    bench.pipe.room = usize::MAX;
    bench.writer.is_blocked = false;
    bench.run();
    let together = whole(|bench| {
        bench.deliver("one");
        bench.deliver("two");
    });
    assert_eq!(bench.take_written(), together);
}

#[test]
fn a_close_comes_behind_the_begun_frame_and_before_everything_else() {
    let first = whole(|bench| bench.deliver("one"));
    for room in 1..first.len() {
        let mut bench = Bench::new(usize::MAX);
        bench.pipe.room = room;
        bench.deliver("one");
        bench.deliver("two");
        bench.run();
        bench.close(Closing::Now(Close::OUTBOX_FULL));
        let close = frames::close(&Close::OUTBOX_FULL);
        assert_eq!(bench.run(), Some(Ending::Close(close.clone())));
        bench.pipe.room = usize::MAX;
        assert_eq!(bench.say_goodbye(Ending::Close(close.clone())), [&first[..], &close].concat());
    }
}

#[test]
fn a_blocked_socket_is_cut_at_once() {
    let cut = |outbox: &SharedOutbox| drop(outbox.lock().close(Closing::Cut));
    let take_over = |outbox: &SharedOutbox| {
        outbox.lock().attach();
    };
    for let_go in [cut as fn(&SharedOutbox), take_over] {
        let mut bench = Bench::new(usize::MAX);
        bench.pipe.room = 3;
        bench.deliver("one");
        assert_eq!(bench.run(), None);
        let_go(&bench.outbox);
        assert_eq!(bench.run(), Some(Ending::Cut));
        assert_eq!(bench.take_written().len(), 3);
    }
}

#[test]
fn closing_after_flush_writes_what_waits_first() {
    let mut bench = Bench::new(usize::MAX);
    bench.deliver("one");
    bench.reply(1);
    bench.close(Closing::AfterFlush(Close::GOING_AWAY));
    let mut endings = VecDeque::new();
    while endings.is_empty() {
        endings.extend(bench.run());
    }
    assert_eq!(endings[0], Ending::Close(frames::close(&Close::GOING_AWAY)));
    let expected = whole(|bench| {
        bench.deliver("one");
        bench.reply(1);
    });
    assert_eq!(bench.take_written(), expected);
}

#[test]
fn the_clients_close_is_answered_once_the_reader_is_done() {
    for code in [None, Some(1000), Some(4000)] {
        let mut bench = Bench::new(usize::MAX);
        let guard = bench.link.reader_guard();
        bench.link.peer_closed(PeerClose(code));
        assert_eq!(bench.run(), None);
        drop(guard);
        assert_eq!(bench.run(), Some(Ending::Close(frames::close_echo(code))));
    }
}

/// The session lets go of the socket before the reader has said that it is done.
#[test]
fn the_clients_close_is_answered_also_when_the_session_is_quicker() {
    let mut bench = Bench::new(usize::MAX);
    let _guard = bench.link.reader_guard();
    bench.link.peer_closed(PeerClose(Some(1000)));
    let epoch = bench.writer.epoch;
    assert!(bench.outbox.lock().detach(epoch));
    assert_eq!(bench.run(), Some(Ending::Close(frames::close_echo(Some(1000)))));
}

#[test]
fn a_reader_that_is_gone_ends_the_writer() {
    let mut bench = Bench::new(usize::MAX);
    drop(bench.link.reader_guard());
    assert_eq!(bench.run(), Some(Ending::Cut));
}

#[test]
fn each_ping_is_answered_in_order() {
    let mut bench = Bench::new(usize::MAX);
    for content in [&b"1"[..], b"2", b"3"] {
        bench.link.pong(content);
    }
    bench.deliver("x");
    bench.run();
    assert_eq!(frames_of(&bench.take_written())[..3], [b"\x8a\x011", b"\x8a\x012", b"\x8a\x013"]);
}

#[test]
fn a_silent_client_is_pinged_and_then_cut() {
    let mut bench = Bench::new(usize::MAX);
    for interval in 0..=SILENT_INTERVALS_MAX {
        bench.deliver("x");
        let ending = bench.tick();
        if interval < SILENT_INTERVALS_MAX {
            assert_eq!(ending, None);
            assert!(bench.take_written().starts_with(b"\x89\x00"));
        } else {
            assert_eq!(ending, Some(Ending::Cut));
        }
    }
}

#[test]
fn any_byte_keeps_a_client_and_so_does_not_being_read() {
    let mut bench = Bench::new(usize::MAX);
    for interval in 0..20 {
        if interval < 10 {
            bench.link.heard();
        } else {
            bench.link.set_reading_paused(true);
        }
        assert_eq!(bench.tick(), None, "{interval}");
    }
}

#[test]
fn a_client_that_neither_reads_nor_may_be_read_is_cut_and_one_that_reads_slowly_is_not() {
    let mut bench = Bench::new(1);
    bench.link.set_reading_paused(true);
    bench.pipe.room = 0;
    bench.deliver(&"x".repeat(100));
    for _ in 0..10 {
        bench.pipe.room = 1;
        assert_eq!(bench.tick(), None);
    }
    let mut ending = None;
    for _ in 0..=SILENT_INTERVALS_MAX {
        ending = bench.tick();
    }
    assert_eq!(ending, Some(Ending::Cut));
}

#[test]
fn a_goodbye_that_the_connection_does_not_take_goes_on_and_waits_for_the_client_to_close() {
    let mut bench = Bench::new(1);
    let guard = bench.link.reader_guard();
    bench.close(Closing::Now(Close::NORMAL));
    let ending = bench.run().unwrap();
    let Bench { writer, mut pipe, link, .. } = bench;
    let mut goodbye = writer.end(ending).unwrap();
    assert!(matches!(link.gateway_end(), Some(GatewayEnd::Closed(_))));
    let mut context = Context::from_waker(Waker::noop());
    for room in [3, 1] {
        assert!(!pipe.is_shut);
        pipe.room = room;
        assert!(goodbye.poll(&mut pipe, &mut context).is_pending());
    }
    assert!(pipe.is_shut);
    assert_eq!(pipe.written, frames::close(&Close::NORMAL));
    drop(guard);
    assert!(goodbye.poll(&mut pipe, &mut context).is_ready());
}

#[test]
fn a_write_takes_so_many_bytes_and_one_message_more_at_its_end() {
    const MESSAGE_BYTES: usize = 30_000;
    let mut bench = Bench::new(usize::MAX);
    (0..40).for_each(|_| bench.deliver(&"x".repeat(MESSAGE_BYTES)));
    assert_eq!(bench.run(), None);
    let offered = &bench.pipe.offered;
    let (_, full) = offered.split_last().unwrap();
    assert!(full.len() >= 3, "{offered:?}");
    for bytes in full {
        assert!((WRITE_BYTES_MAX..WRITE_BYTES_MAX + MESSAGE_BYTES + 100).contains(bytes), "{offered:?}");
    }
}

#[test]
fn a_scratch_buffer_is_kept_unless_one_huge_message_has_grown_it() {
    for (bytes, is_kept) in [(SCRATCH_BYTES_MAX / 2, true), (SCRATCH_BYTES_MAX + 1, false)] {
        let mut bench = Bench::new(usize::MAX);
        bench.deliver(&"x".repeat(bytes));
        assert_eq!(bench.run(), None);
        let capacity = bench.scratch.out.capacity();
        assert_eq!(capacity >= bytes, is_kept, "{bytes} bytes: {capacity}");
        assert!(capacity <= SCRATCH_BYTES_MAX);
    }
}

#[test]
fn after_so_many_writes_other_tasks_get_their_turn() {
    for (writes, is_interrupted) in [(WRITES_PER_TURN_MAX - 1, false), (WRITES_PER_TURN_MAX + 1, true)] {
        let frame_bytes = whole(|bench| bench.deliver(&"x".repeat(1000))).len();
        let mut bench = Bench::new(frame_bytes.div_ceil(writes));
        bench.deliver(&"x".repeat(1000));
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        assert!(bench.poll(&waker).is_pending());
        assert_eq!(bench.pipe.offered.len(), writes.min(WRITES_PER_TURN_MAX));
        assert_eq!(wakes.0.load(Ordering::Relaxed) > 0, is_interrupted, "it goes on by itself");
    }
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl std::task::Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
