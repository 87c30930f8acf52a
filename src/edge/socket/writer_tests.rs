use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Waker, ready};

use futures_util::FutureExt;
use oncewire_protocol::hub::{SessionHandle, SessionKey};
use oncewire_protocol::log::{MessageRef, Time};
use oncewire_protocol::session::{Closing, MemoryBudget, Outbox, OutboxLimits, RequestBounds, SharedMessage};
use oncewire_protocol::wire::{
    Close, Downstream, Message, Metadata, Payload, PayloadKind, Sender, Subprotocol,
};
use parking_lot::Mutex;

use super::*;

/// A connection that takes at most so many bytes at a time, and now and then none.
#[derive(Default)]
struct Connection {
    written: Arc<Mutex<Vec<u8>>>,
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

impl Connection {
    /// Passes on what is held, as far as there is room.
    fn pass_on(&mut self) {
        let passed = self.held.len().min(self.room);
        self.room -= passed;
        self.written.lock().extend(self.held.drain(..passed));
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
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
        self.written.lock().extend_from_slice(&bytes[..taken]);
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.pass_on();
        if self.held.is_empty() { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.as_mut().poll_flush(context))?;
        self.is_shut = true;
        Poll::Ready(Ok(()))
    }
}

/// A writer, what it has written, and the session's side of it.
struct Bench {
    writer: Writer<Connection>,
    tick: Pin<Box<Sleep>>,
    written: Arc<Mutex<Vec<u8>>>,
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
        let written = Arc::default();
        let io = Connection {
            written: Arc::clone(&written),
            bytes_per_write,
            room: usize::MAX,
            ..Connection::default()
        };
        let link = Link::new();
        let interval = Duration::from_secs(20);
        Self {
            writer: Writer::new(io, attachment, HubClock::for_test(), link.clone(), interval),
            tick: Box::pin(tokio::time::sleep(interval)),
            written,
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
        let mut context = Context::from_waker(Waker::noop());
        match self.writer.poll_ending(self.tick.as_mut(), &mut context) {
            Poll::Ready(ending) => Some(ending),
            Poll::Pending => None,
        }
    }

    /// Polls until the writer waits for something.
    fn run(&mut self) -> Option<Ending> {
        for _ in 0..10_000 {
            if let Some(ending) = self.run_once() {
                return Some(ending);
            }
            let is_written = !self.writer.begun.has_remaining() && self.writer.io.held.is_empty();
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

    fn take_written(&self) -> Vec<u8> {
        std::mem::take(&mut self.written.lock())
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

#[tokio::test(start_paused = true)]
async fn every_size_of_partial_write_gives_the_same_bytes() {
    let expected = whole(several);
    assert_eq!(frames_of(&expected).len(), 6);
    for bytes_per_write in 1..=expected.len() {
        let mut bench = Bench::new(bytes_per_write);
        several(&bench);
        assert_eq!(bench.run(), None);
        assert_eq!(bench.take_written(), expected, "{bytes_per_write} at a time");
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_that_stops_anywhere_goes_on_there() {
    let expected = whole(several);
    for room in 0..expected.len() {
        let mut bench = Bench::new(usize::MAX);
        bench.writer.io.room = room;
        several(&bench);
        assert_eq!(bench.run(), None);
        assert!(bench.writer.is_blocked);
        bench.writer.io.room = usize::MAX;
        bench.writer.is_blocked = false;
        assert_eq!(bench.run(), None);
        assert_eq!(bench.take_written(), expected, "stopped after {room}");
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_begun_frame_is_kept_while_the_connection_is_blocked() {
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
        bench.writer.io.room = room;
        several(&bench);
        bench.run();
        let end = ends.iter().copied().find(|end| *end >= room).unwrap();
        assert_eq!(bench.writer.begun.remaining(), end - room, "after {room}");
    }
}

/// However much of it the connection holds, and wherever it gets stuck.
#[tokio::test(start_paused = true)]
async fn nothing_stays_in_a_connection_that_holds_bytes_back() {
    let expected = whole(several);
    for held_max in [1, 7, expected.len()] {
        for room in 0..expected.len() {
            let mut bench = Bench::new(usize::MAX);
            bench.writer.io.held_max = held_max;
            bench.writer.io.room = room;
            several(&bench);
            assert_eq!(bench.run(), None);
            assert!(bench.writer.is_blocked, "{room} of room, {held_max} held");
            bench.link.take_heard();
            bench.writer.io.room = usize::MAX;
            bench.run_once();
            assert!(bench.link.take_heard(), "that it has been read is a sign of life");
            assert_eq!(bench.run(), None);
            assert_eq!(bench.take_written(), expected, "{room} of room, {held_max} held");
            assert!(!bench.writer.is_blocked && !bench.writer.is_unflushed);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_delivered_while_bytes_are_held_back_follows_them_and_a_close_is_not_held_up() {
    let mut bench = Bench::new(usize::MAX);
    bench.writer.io.held_max = usize::MAX;
    bench.writer.io.room = 3;
    bench.deliver("one");
    assert_eq!(bench.run(), None);
    bench.deliver("two");
    assert_eq!(bench.run(), None);
    bench.close(Closing::Now(Close::OUTBOX_FULL));
    let Some(Ending::Close(close)) = bench.run() else { panic!("no close") };
    bench.writer.io.room = usize::MAX;
    drop(bench.link.reader_guard());
    let first = whole(|bench| bench.deliver("one"));
    let Bench { writer, written, .. } = bench;
    writer.say_goodbye(close.clone()).await;
    assert_eq!(*written.lock(), [&first[..], &close].concat());
}

#[tokio::test(start_paused = true)]
async fn what_is_delivered_while_blocked_follows_the_begun_frame() {
    let mut bench = Bench::new(usize::MAX);
    bench.writer.io.room = 3;
    bench.deliver("one");
    bench.run();
    bench.deliver("two");
    bench.writer.io.room = usize::MAX;
    bench.writer.is_blocked = false;
    bench.run();
    let together = whole(|bench| {
        bench.deliver("one");
        bench.deliver("two");
    });
    assert_eq!(bench.take_written(), together);
}

#[tokio::test(start_paused = true)]
async fn a_close_comes_behind_the_begun_frame_and_before_everything_else() {
    let first = whole(|bench| bench.deliver("one"));
    for room in 1..first.len() {
        let mut bench = Bench::new(usize::MAX);
        bench.writer.io.room = room;
        bench.deliver("one");
        bench.deliver("two");
        bench.run();
        bench.close(Closing::Now(Close::OUTBOX_FULL));
        let Some(Ending::Close(close)) = bench.run() else { panic!("no close") };
        assert_eq!(close, frames::close(&Close::OUTBOX_FULL));
        bench.writer.io.room = usize::MAX;
        drop(bench.link.reader_guard());
        let Bench { writer, written, .. } = bench;
        writer.say_goodbye(close.clone()).await;
        assert_eq!(*written.lock(), [&first[..], &close].concat());
    }
}

#[tokio::test(start_paused = true)]
async fn a_blocked_socket_is_cut_at_once() {
    let cut = |outbox: &SharedOutbox| drop(outbox.lock().close(Closing::Cut));
    let take_over = |outbox: &SharedOutbox| {
        outbox.lock().attach();
    };
    for let_go in [cut as fn(&SharedOutbox), take_over] {
        let mut bench = Bench::new(usize::MAX);
        bench.writer.io.room = 3;
        bench.deliver("one");
        assert_eq!(bench.run(), None);
        let_go(&bench.outbox);
        assert_eq!(bench.run(), Some(Ending::Cut));
        assert_eq!(bench.take_written().len(), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn closing_after_flush_writes_what_waits_first() {
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

#[tokio::test(start_paused = true)]
async fn the_clients_close_is_answered_once_the_reader_is_done() {
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
#[tokio::test(start_paused = true)]
async fn the_clients_close_is_answered_also_when_the_session_is_quicker() {
    let mut bench = Bench::new(usize::MAX);
    let _guard = bench.link.reader_guard();
    bench.link.peer_closed(PeerClose(Some(1000)));
    let epoch = bench.writer.epoch;
    assert!(bench.outbox.lock().detach(epoch));
    assert_eq!(bench.run(), Some(Ending::Close(frames::close_echo(Some(1000)))));
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_is_gone_ends_the_writer() {
    let mut bench = Bench::new(usize::MAX);
    drop(bench.link.reader_guard());
    assert_eq!(bench.run(), Some(Ending::Cut));
}

#[tokio::test(start_paused = true)]
async fn each_ping_is_answered_in_order() {
    let mut bench = Bench::new(usize::MAX);
    for content in [&b"1"[..], b"2", b"3"] {
        bench.link.pong(content);
    }
    bench.deliver("x");
    bench.run();
    assert_eq!(frames_of(&bench.take_written())[..3], [b"\x8a\x011", b"\x8a\x012", b"\x8a\x013"]);
}

#[tokio::test(start_paused = true)]
async fn a_silent_client_is_pinged_and_then_cut() {
    let mut bench = Bench::new(usize::MAX);
    for interval in 0..=SILENT_INTERVALS_MAX {
        tokio::time::advance(Duration::from_secs(20)).await;
        bench.deliver("x");
        let ending = bench.run();
        if interval < SILENT_INTERVALS_MAX {
            assert_eq!(ending, None);
            assert!(bench.take_written().starts_with(b"\x89\x00"));
        } else {
            assert_eq!(ending, Some(Ending::Cut));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn any_byte_keeps_a_client_and_so_does_not_being_read() {
    let mut bench = Bench::new(usize::MAX);
    for interval in 0..20 {
        tokio::time::advance(Duration::from_secs(20)).await;
        if interval < 10 {
            bench.link.heard();
        } else {
            bench.link.set_reading_paused(true);
        }
        assert_eq!(bench.run(), None, "{interval}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_neither_reads_nor_may_be_read_is_cut_and_one_that_reads_slowly_is_not() {
    let mut bench = Bench::new(1);
    bench.link.set_reading_paused(true);
    bench.writer.io.room = 0;
    bench.deliver(&"x".repeat(100));
    for _ in 0..10 {
        bench.writer.io.room = 1;
        tokio::time::advance(Duration::from_secs(20)).await;
        assert_eq!(bench.run(), None);
    }
    let mut ending = None;
    for _ in 0..=SILENT_INTERVALS_MAX {
        tokio::time::advance(Duration::from_secs(20)).await;
        ending = bench.run();
    }
    assert_eq!(ending, Some(Ending::Cut));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_never_closes_is_left_after_a_while() {
    let bench = Bench::new(usize::MAX);
    let _guard = bench.link.reader_guard();
    let begin = Instant::now();
    bench.writer.say_goodbye(frames::close(&Close::NORMAL)).await;
    assert_eq!(begin.elapsed(), CLOSE_WAIT);
}

#[tokio::test(start_paused = true)]
async fn the_reader_learns_that_the_writer_is_gone() {
    let link = Link::new();
    let guard = link.writer_guard();
    let mut waiting = pin!(link.unless_cut(std::future::pending::<()>()));
    assert!(waiting.as_mut().now_or_never().is_none());
    drop(guard);
    assert_eq!(waiting.await, None);
    assert_eq!(link.unless_cut(async { 1 }).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_write_takes_so_many_bytes_and_one_message_more_at_its_end() {
    const MESSAGE_BYTES: usize = 30_000;
    let mut bench = Bench::new(usize::MAX);
    (0..40).for_each(|_| bench.deliver(&"x".repeat(MESSAGE_BYTES)));
    assert_eq!(bench.run(), None);
    let offered = &bench.writer.io.offered;
    let (_, full) = offered.split_last().unwrap();
    assert!(full.len() >= 3, "{offered:?}");
    for bytes in full {
        assert!((WRITE_BYTES_MAX..WRITE_BYTES_MAX + MESSAGE_BYTES + 100).contains(bytes), "{offered:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_scratch_buffer_is_kept_unless_one_huge_message_has_grown_it() {
    let capacity = || SCRATCH.with_borrow(|scratch| scratch.out.capacity());
    for (bytes, is_kept) in [(SCRATCH_BYTES_MAX / 2, true), (SCRATCH_BYTES_MAX + 1, false)] {
        SCRATCH.take();
        let mut bench = Bench::new(usize::MAX);
        bench.deliver(&"x".repeat(bytes));
        assert_eq!(bench.run(), None);
        assert_eq!(capacity() >= bytes, is_kept, "{bytes} bytes: {}", capacity());
        assert!(capacity() <= SCRATCH_BYTES_MAX);
    }
}

#[tokio::test(start_paused = true)]
async fn after_so_many_writes_other_tasks_get_their_turn() {
    for (writes, is_interrupted) in [(WRITES_PER_TURN_MAX - 1, false), (WRITES_PER_TURN_MAX + 1, true)] {
        let frame_bytes = whole(|bench| bench.deliver(&"x".repeat(1000))).len();
        let mut bench = Bench::new(frame_bytes.div_ceil(writes));
        bench.deliver(&"x".repeat(1000));
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let polled = bench.writer.poll_ending(bench.tick.as_mut(), &mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        assert_eq!(bench.writer.io.offered.len(), writes.min(WRITES_PER_TURN_MAX));
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
