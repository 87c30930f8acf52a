//! Reader and writer of an attached socket: when each of them runs, and what becomes of what they read and write. What they
//! do is up to the driver that the gateway uses too.

use std::io::{self, IoSlice};
use std::task::{Context, Poll, Waker};

use bytes::{Buf, Bytes, BytesMut};
use oncewire_protocol::driver::socket::{
    Batch, CLOSE_WAIT_MS, Connection, End, Ending, Goodbye, Link, PeerClose, ReaderGuard, Scratch,
    SocketReader, SocketWriter, Telling, WriterGuard, submit,
};
use oncewire_protocol::hub::{Attachment, Input, SocketEnd};
use oncewire_protocol::wire::raw::RawTarget;
use oncewire_protocol::wire::{Close, CloseCode, ConnectionId, FrameKind, Opcode, Subprotocol};

use crate::Failure;
use crate::coverage::Path;
use crate::edge::GatewayEnd;
use crate::network::{Conn, Upgrade};
use crate::pipe::{Pipe, close_code, message_bytes, take_frame};
use crate::random::Random;
use crate::world::{Event, Task, World};

/// Reader and writer of a socket.
pub struct Serving {
    pub(crate) attachment: Attachment,
    pub(crate) connection_id: ConnectionId,
    shard: usize,
    subprotocol: Subprotocol,
    link: Link,
    reader: SocketReader,
    reader_waker: Waker,
    reading: Reading,
    is_read_scheduled: bool,
    /// Bytes of a frame that is not whole.
    partial: BytesMut,
    writer_waker: Waker,
    writing: Writing,
    is_write_scheduled: bool,
    /// What the network has not taken of a message that it has taken the beginning of.
    rest: BytesMut,
    /// The gateway's machine has found out that the connection is dead.
    is_broken: bool,
}

/// How far the reader is.
enum Reading {
    /// It reads.
    On(ReaderGuard),
    /// It forgets what it reads; behind that it has something to tell the shard, perhaps.
    Forgets {
        _guard: ReaderGuard,
        told: Option<SocketEnd>,
    },
    Done,
}

/// How far the writer is.
enum Writing {
    On(Box<SocketWriter>, WriterGuard),
    Goodbye { goodbye: Box<Goodbye>, _guard: WriterGuard },
    Done,
}

impl Serving {
    /// A socket that has just been attached.
    pub fn new(
        attachment: Attachment,
        connection_id: ConnectionId,
        shard: usize,
        subprotocol: Subprotocol,
        publishes_to: Option<RawTarget>,
        [reader_waker, writer_waker]: [Waker; 2],
    ) -> Self {
        let link = Link::new();
        let writer = SocketWriter::new(attachment.clone(), link.clone());
        Self {
            attachment,
            connection_id,
            shard,
            subprotocol,
            reader: SocketReader { encoding: subprotocol.encoding(), publishes_to },
            reader_waker,
            reading: Reading::On(link.reader_guard()),
            is_read_scheduled: false,
            partial: BytesMut::new(),
            writer_waker,
            writing: Writing::On(Box::new(writer), link.writer_guard()),
            is_write_scheduled: false,
            rest: BytesMut::new(),
            is_broken: false,
            link,
        }
    }

    /// What it speaks.
    pub fn subprotocol(&self) -> Subprotocol {
        self.subprotocol
    }

    /// Whether there is nothing to write.
    pub fn is_quiet(&self) -> bool {
        !self.is_write_scheduled && !matches!(&self.writing, Writing::On(writer, _) if writer.is_blocked())
    }
}

/// The gateway's end of the direction towards a client.
struct Wire<'a> {
    pipe: &'a mut Pipe,
    random: &'a mut Random,
    /// Writes that are only taken in part, of a thousand.
    partial: u64,
    is_broken: bool,
    rest: &'a mut BytesMut,
    seen: Seen,
}

/// What there was to be seen at a wire.
#[derive(Default)]
struct Seen {
    has_written: bool,
    is_partial: bool,
    /// A part was taken, and whole messages behind it were not.
    is_rewound: bool,
    /// What was left of a message was finished with other bytes.
    is_other: bool,
}

impl Wire<'_> {
    /// Takes as much as there is room for.
    fn take(&mut self, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.is_broken {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let all = bytes.len();
        let most = if self.random.permille(self.partial) { self.random.index(all) + 1 } else { all };
        match self.pipe.write(&bytes[..most]) {
            0 => Poll::Pending,
            taken => {
                self.seen.has_written = true;
                self.seen.is_partial |= taken < all;
                Poll::Ready(Ok(taken))
            }
        }
    }

    /// Takes what a message that was begun goes on with.
    fn take_rest(&mut self, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.seen.is_other |= !self.rest.starts_with(bytes);
        let taken = self.take(bytes);
        if let Poll::Ready(Ok(taken)) = taken {
            self.rest.advance(taken.min(self.rest.len()));
        }
        taken
    }
}

impl Connection for Wire<'_> {
    fn poll_write(&mut self, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if !self.rest.is_empty() {
            return self.take_rest(bytes);
        }
        let polled = self.take(bytes);
        if let Poll::Ready(Ok(taken)) = polled {
            let mut end = 0;
            while end < taken {
                end += message_bytes(&bytes[end..]);
            }
            self.rest.extend_from_slice(&bytes[taken..end]);
            self.seen.is_rewound |= end < bytes.len();
        }
        polled
    }

    fn poll_write_vectored(
        &mut self,
        _: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.iter().copied()).collect();
        self.take_rest(&bytes)
    }

    fn poll_flush(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.pipe.finish();
        Poll::Ready(Ok(()))
    }
}

impl World {
    pub(crate) fn serve(
        &mut self,
        conn: u64,
        shard: usize,
        attachment: Attachment,
        (connection_id, subprotocol, publishes_to): (ConnectionId, Subprotocol, Option<RawTarget>),
    ) {
        let wakers = [Task::Reader, Task::Writer].map(|task| self.waker(conn, task));
        let serving = Serving::new(attachment, connection_id, shard, subprotocol, publishes_to, wakers);
        if let Some(state) = self.conns.get_mut(&conn) {
            state.gateway = GatewayEnd::Serving(Box::new(serving));
            self.schedule_read(conn);
            self.schedule_write(conn);
        }
    }

    fn serving(&mut self, conn: u64) -> Option<&mut Serving> {
        match &mut self.conns.get_mut(&conn)?.gateway {
            GatewayEnd::Serving(serving) => Some(serving),
            _ => None,
        }
    }

    pub(crate) fn schedule_read(&mut self, conn: u64) {
        if let Some(serving) = self.serving(conn)
            && !std::mem::replace(&mut serving.is_read_scheduled, true)
        {
            self.schedule_in((0, 1), Event::Read { conn });
        }
    }

    pub(crate) fn schedule_write(&mut self, conn: u64) {
        if let Some(serving) = self.serving(conn)
            && !std::mem::replace(&mut serving.is_write_scheduled, true)
        {
            self.schedule_in((0, 1), Event::Write { conn });
        }
    }

    /// The socket has room again, perhaps.
    pub(crate) fn schedule_blocked_write(&mut self, conn: u64) {
        let is_blocked = self.serving(conn).is_some_and(|serving| match &serving.writing {
            Writing::On(writer, _) => writer.is_blocked(),
            Writing::Goodbye { .. } => true,
            Writing::Done => false,
        });
        if is_blocked {
            self.schedule_write(conn);
        }
    }

    /// The gateway's machine finds a connection dead.
    pub(crate) fn break_socket(&mut self, conn: u64) {
        if let Some(serving) = self.serving(conn) {
            serving.is_broken = true;
            self.schedule_read(conn);
            self.schedule_write(conn);
        }
    }

    pub(crate) fn run_reader(&mut self, conn: u64) {
        let most = self.random.pick(&[1, 100, 5_000, usize::MAX]);
        let Some(Conn { hub, gateway: GatewayEnd::Serving(serving), up, .. }) = self.conns.get_mut(&conn)
        else {
            return;
        };
        let (hub, shard) = (*hub, serving.shard);
        serving.is_read_scheduled = false;
        let mut context = Context::from_waker(&serving.reader_waker);
        let is_over = serving.link.poll_over(&mut context).is_ready() || serving.is_broken;
        match &mut serving.reading {
            Reading::On(_) if is_over => return self.end_reading(conn, End::Lost),
            Reading::On(_) => {}
            Reading::Forgets { told, .. } => {
                up.read(usize::MAX);
                if is_over || up.is_at_end() {
                    let told = told.take();
                    serving.reading = Reading::Done;
                    self.tell_end(conn, told);
                }
                return self.refill(conn);
            }
            Reading::Done => return,
        }
        let Attachment { session, outbox } = &serving.attachment;
        if !outbox.lock().may_read(session.epoch, &serving.reader_waker) {
            self.note(Path::ReadingStopped);
            return;
        }
        let bytes = up.read(most);
        if !bytes.is_empty() {
            serving.link.heard();
        }
        serving.partial.unsplit(bytes);
        let mut batch = Batch::default();
        while batch.end.is_none()
            && let Some(frame) = take_frame(&mut serving.partial)
        {
            if frame.opcode == Opcode::Close as u8 {
                batch.end = Some(End::PeerClosed(PeerClose(close_code(&frame.payload))));
                break;
            }
            let kind = if frame.opcode == Opcode::Text as u8 { FrameKind::Text } else { FrameKind::Binary };
            // What is none ends the batch.
            let _ = serving.reader.take(&serving.attachment, kind, &frame.payload, &mut batch);
        }
        let Batch { requests, mut end } = batch;
        if up.is_at_end() {
            end.get_or_insert(End::Lost);
        }
        let is_more = up.readable() > 0;
        if !requests.is_empty() {
            let outbox = serving.attachment.outbox.clone();
            let input = submit(&serving.attachment, requests);
            self.send(hub, shard, input, Some(outbox));
        }
        self.refill(conn);
        match end {
            Some(end) => self.end_reading(conn, end),
            None if is_more => self.schedule_read(conn),
            None => {}
        }
    }

    fn end_reading(&mut self, conn: u64, end: End) {
        let Some(serving) = self.serving(conn) else { return };
        let Reading::On(guard) = std::mem::replace(&mut serving.reading, Reading::Done) else { return };
        let (told, telling) = end.begin(&serving.attachment, &serving.link);
        match telling {
            Telling::Now => {
                self.tell_end(conn, Some(told));
                // Only now: the writer has to find the shard told.
                drop(guard);
            }
            Telling::BeforeTheRest => {
                serving.reading = Reading::Forgets { _guard: guard, told: None };
                self.tell_end(conn, Some(told));
                self.schedule_read(conn);
            }
            Telling::BehindTheRest => {
                serving.reading = Reading::Forgets { _guard: guard, told: Some(told) };
                self.schedule_read(conn);
            }
        }
    }

    /// Tells the shard of an end, if there is something to tell, and lets go of a socket that is done with.
    fn tell_end(&mut self, conn: u64, end: Option<SocketEnd>) {
        let Some(state) = self.conns.get(&conn) else { return };
        let GatewayEnd::Serving(serving) = &state.gateway else { return };
        let is_over = matches!((&serving.reading, &serving.writing), (Reading::Done, Writing::Done));
        let (hub, shard) = (state.hub, serving.shard);
        let Attachment { session, outbox } = serving.attachment.clone();
        if let Some(end) = end {
            self.send(hub, shard, Input::SocketClosed { session, end }, Some(outbox));
        }
        if is_over {
            self.gateway_leaves(conn);
        }
    }

    pub(crate) fn run_writer(&mut self, conn: u64) {
        let write_bytes_max = self.random.within(self.weather.write_budget_bytes) as usize;
        let Some(hub) = self.conns.get(&conn).map(|state| state.hub) else { return };
        let now = self.hub_time(hub);
        let Some(Conn { gateway: GatewayEnd::Serving(serving), down, .. }) = self.conns.get_mut(&conn) else {
            return;
        };
        serving.is_write_scheduled = false;
        let mut context = Context::from_waker(&serving.writer_waker);
        let (random, partial) = (&mut self.random, self.weather.partial_write);
        let (rest, is_broken) = (&mut serving.rest, serving.is_broken);
        let mut wire = Wire { pipe: down, random, partial, is_broken, rest, seen: Seen::default() };
        let mut was_blocked = false;
        let mut ending = None;
        let mut is_done = false;
        match &mut serving.writing {
            Writing::On(writer, _) => {
                was_blocked = writer.is_blocked();
                writer.is_new_task(&serving.writer_waker);
                let mut scratch = Scratch::for_writes_of(write_bytes_max);
                if let Poll::Ready(ended) = writer.poll(now, &mut wire, &mut scratch, &mut context) {
                    ending = Some(ended);
                }
            }
            Writing::Goodbye { goodbye, .. } => is_done = goodbye.poll(&mut wire, &mut context).is_ready(),
            Writing::Done => {}
        }
        let Seen { has_written, is_partial, is_rewound, is_other } = wire.seen;
        if is_other {
            self.fail(Failure::Driver("the rest of a frame is another than what was left of it".to_owned()));
        }
        if is_partial {
            self.note(Path::PartialWrite);
        }
        if is_rewound {
            self.note(Path::PartialWriteRewound);
        }
        if was_blocked && !has_written && ending.is_some() {
            self.note(Path::WriteGivenUp);
        }
        self.pump(conn, false);
        if let Some(ending) = ending {
            self.end_writing(conn, ending);
        } else if is_done {
            self.goodbye_over(conn);
        }
    }

    fn end_writing(&mut self, conn: u64, ending: Ending) {
        if let Ending::Close(frame) = &ending {
            self.note_close(conn, frame);
        }
        let Some(serving) = self.serving(conn) else { return };
        let Writing::On(writer, guard) = std::mem::replace(&mut serving.writing, Writing::Done) else {
            return;
        };
        match writer.end(ending) {
            Some(goodbye) => {
                serving.writing = Writing::Goodbye { goodbye: Box::new(goodbye), _guard: guard };
                self.schedule_in((CLOSE_WAIT_MS, CLOSE_WAIT_MS), Event::GoodbyeOver { conn });
                self.schedule_write(conn);
            }
            None => {
                drop(guard);
                self.tell_end(conn, None);
            }
        }
    }

    /// The client has closed as well, or has had its time.
    pub(crate) fn goodbye_over(&mut self, conn: u64) {
        if let Some(serving) = self.serving(conn)
            && matches!(serving.writing, Writing::Goodbye { .. })
        {
            serving.writing = Writing::Done;
            self.tell_end(conn, None);
        }
    }

    /// Counts the ways in which the gateway closes a socket.
    fn note_close(&mut self, conn: u64, frame: &Bytes) {
        let Some(frame) = take_frame(&mut BytesMut::from(&frame[..])) else { return };
        let sent = close_code(&frame.payload);
        let reason = frame.payload.get(2..).filter(|reason| !reason.is_empty());
        let is = |code: CloseCode| sent == Some(code as u16) && reason.is_some();
        if is(CloseCode::PolicyViolation) {
            let is_raw = reason == Some(Close::RAW_SEND_FORBIDDEN.reason.as_bytes());
            self.note(if is_raw { Path::RawForbidden } else { Path::DroppedAsSlow });
        } else if is(CloseCode::InvalidMessage) {
            self.note(Path::Garbage);
        } else if is(CloseCode::WrongFrameType) {
            self.note(Path::WrongFrame);
        } else if is(CloseCode::InternalError) {
            self.note(match self.conns.get(&conn).map(|state| &state.upgrade) {
                Some(Upgrade::Open { publishes_to: Some(_), .. }) => Path::RawNotStored,
                Some(Upgrade::Open { subprotocol: Subprotocol::Raw, .. }) => Path::RawEventFailed,
                _ => Path::ClosedOnEventFailure,
            });
        }
    }
}
