//! Writes one socket.
//!
//! ```text
//! poll --Progress::Idle--> flush, wait for: outbox, link, tick
//!      --bytes--> one write --all taken--> poll, or if these were the last: wait for: outbox, link, tick
//!                           --a part taken--> the rest of the begun message is kept, later ones go back --> poll
//!                           --nothing taken or flushed--> wait for: connection, order to close, link, tick
//!      --Progress::Close--> close frame, wait for the client to close, end
//!      --Progress::Cut, client silent or gone--> end
//! ```

use std::io::{self, IoSlice};
use std::ops::Range;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, Bytes, BytesMut};

use super::frames::{self, Pongs};
use super::link::{GatewayEnd, Link, PeerClose};
use crate::hub::Attachment;
use crate::log::Time;
use crate::session::{AttachEpoch, Progress, SentItem, SharedOutbox};
use crate::wire::MessageRest;

/// A connection as its writer sees it. What takes or does nothing now is pending, and the task is woken when that changes.
pub trait Connection {
    /// Takes the beginning of some bytes, and tells how many.
    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>>;

    /// Takes the beginning of some bytes that are in several pieces, and tells how many.
    fn poll_write_vectored(
        &mut self,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>>;

    /// Ready when the connection keeps nothing back of what it has taken.
    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Ends this direction of the connection.
    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
}

/// How long a client may take to answer a close frame, and to take what stands before it, in milliseconds.
pub const CLOSE_WAIT_MS: u64 = 5_000;

/// What one write takes at most, one message more at its end.
pub const WRITE_BYTES_MAX: usize = 256 * 1024;
/// Pieces of a begun message that one write takes.
const BEGUN_SLICES_MAX: usize = 16;
/// A scratch buffer that one huge message has grown beyond this is not kept.
const SCRATCH_BYTES_MAX: usize = 4 * WRITE_BYTES_MAX;
/// Writes before other tasks get their turn.
const WRITES_PER_TURN_MAX: usize = 16;
/// Ping intervals without any byte from the client, after which it counts as lost.
const SILENT_INTERVALS_MAX: u8 = 3;

/// Where frames are put together; between writes nothing is in it. One is enough for all sockets that are written one after
/// the other.
#[derive(Debug)]
pub struct Scratch {
    out: BytesMut,
    sent: Vec<SentItem>,
    /// What one write takes at most, one message more at its end.
    write_bytes_max: usize,
}

impl Default for Scratch {
    fn default() -> Self {
        Self::for_writes_of(WRITE_BYTES_MAX)
    }
}

impl Scratch {
    /// One that makes a write take so many bytes at most, and one message more at its end, instead of [`WRITE_BYTES_MAX`].
    pub fn for_writes_of(write_bytes_max: usize) -> Self {
        Self { out: BytesMut::new(), sent: Vec::new(), write_bytes_max }
    }
}

/// Pulls what waits for the client and writes it.
#[derive(Debug)]
pub struct SocketWriter {
    outbox: SharedOutbox,
    epoch: AttachEpoch,
    link: Link,
    /// What the connection has not taken of what it has taken the beginning of.
    begun: MessageRest,
    /// Set while the last write took nothing, or the last flush did not come to its end.
    is_blocked: bool,
    /// Set when there was nothing more to write while the connection still had bytes of its own to pass on, as it may
    /// have inside TLS.
    is_unflushed: bool,
    pongs: Pongs,
    is_ping_due: bool,
    silent_intervals: u8,
    /// Set until the link knows the task.
    is_new_task: bool,
    /// Who is registered with the link and the tick: the task, always the same one.
    registered: Option<Waker>,
}

/// How writing ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Ending {
    /// With this close frame.
    Close(Bytes),
    /// At once.
    Cut,
}

/// What one turn of writing came to.
enum Step {
    Wrote,
    Blocked,
    /// There is nothing more to write, and the task is woken when there is.
    Idle,
    Ended(Ending),
}

impl SocketWriter {
    /// The writer of a socket that has just been attached.
    pub fn new(attachment: Attachment, link: Link) -> Self {
        Self {
            outbox: attachment.outbox,
            epoch: attachment.session.epoch,
            link,
            begun: MessageRest::default(),
            is_blocked: false,
            is_unflushed: false,
            pongs: Pongs::default(),
            is_ping_due: false,
            silent_intervals: 0,
            is_new_task: true,
            registered: None,
        }
    }

    /// What it shares with the reader.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// Whether the connection has taken nothing when it was last asked.
    pub fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Takes note of the task that runs the writer. Tells whether it is another one than before, which has to register
    /// wherever it waits.
    pub fn is_new_task(&mut self, waker: &Waker) -> bool {
        let is_registered = self.registered.as_ref().is_some_and(|registered| registered.will_wake(waker));
        if !is_registered {
            self.registered = Some(waker.clone());
            self.is_new_task = true;
        }
        !is_registered
    }

    /// An interval of pings is over: a ping is due, or the client counts as lost. A client that may not be heard, since too
    /// much of its own is pending, is not silent, unless it does not read either.
    pub fn tick(&mut self) -> Option<Ending> {
        let is_excused = self.link.is_reading_paused() && !self.is_blocked;
        let is_alive = self.link.take_heard() || is_excused;
        self.silent_intervals = if is_alive { 0 } else { self.silent_intervals + 1 };
        self.is_ping_due = true;
        (self.silent_intervals >= SILENT_INTERVALS_MAX).then_some(Ending::Cut)
    }

    /// Writes as much as the connection takes, up to a bound; then others have their turn. Ready when the socket is to be
    /// closed, with [`SocketWriter::end`].
    pub fn poll(
        &mut self,
        now: Time,
        io: &mut impl Connection,
        scratch: &mut Scratch,
        context: &mut Context<'_>,
    ) -> Poll<Ending> {
        for _ in 0..WRITES_PER_TURN_MAX {
            let is_told = std::mem::take(&mut self.is_new_task) || self.link.has_news();
            if is_told && self.link.poll_reader(context, &mut self.pongs).is_ready() {
                return Poll::Ready(self.without_session());
            }
            match self.poll_write(now, io, scratch, context) {
                Step::Wrote => {}
                Step::Idle => return Poll::Pending,
                Step::Ended(ending) => return Poll::Ready(ending),
                Step::Blocked => {
                    if !self.outbox.lock().is_write_over(self.epoch, context.waker()) {
                        return Poll::Pending;
                    }
                    return Poll::Ready(self.ordered_ending(now, context));
                }
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// The ending for a socket that the session has let go of: a client's close is answered still.
    fn without_session(&self) -> Ending {
        match self.link.peer_close() {
            Some(PeerClose(code)) => Ending::Close(frames::close_echo(code)),
            None => Ending::Cut,
        }
    }

    /// How the session has ordered the socket to close at once.
    fn ordered_ending(&self, now: Time, context: &Context<'_>) -> Ending {
        // Having given the order, the outbox gives no frames.
        let (mut out, mut sent) = (BytesMut::new(), Vec::new());
        match self.outbox.lock().transmit(self.epoch, now, 0, &mut out, &mut sent, context.waker()) {
            Progress::Close(close) => Ending::Close(frames::close(&close)),
            Progress::Cut | Progress::Idle | Progress::Frames | Progress::LastFrames => {
                self.without_session()
            }
        }
    }

    /// Writes once: first what is left of begun frames, else new ones.
    fn poll_write(
        &mut self,
        now: Time,
        io: &mut impl Connection,
        scratch: &mut Scratch,
        context: &mut Context<'_>,
    ) -> Step {
        if self.is_unflushed {
            return match self.poll_rest(io, context) {
                Step::Idle => self.wrote(),
                step => step,
            };
        }
        if !self.begun.has_remaining() {
            let step = self.poll_new_frames(now, io, scratch, context);
            scratch.out.clear();
            scratch.sent.clear();
            if scratch.out.capacity() > SCRATCH_BYTES_MAX {
                scratch.out = BytesMut::new();
            }
            return step;
        }
        match self.poll_begun(io, context) {
            Poll::Pending => self.blocked(),
            Poll::Ready(Ok(())) => self.wrote(),
            Poll::Ready(Err(_)) => Step::Ended(Ending::Cut),
        }
    }

    /// Writes once of what has been begun.
    fn poll_begun(&mut self, io: &mut impl Connection, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut slices = [IoSlice::new(&[]); BEGUN_SLICES_MAX];
        let count = self.begun.chunks_vectored(&mut slices);
        match ready!(io.poll_write_vectored(context, &slices[..count]))? {
            0 => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            written => {
                self.begun.advance(written);
                Poll::Ready(Ok(()))
            }
        }
    }

    fn poll_new_frames(
        &mut self,
        now: Time,
        io: &mut impl Connection,
        scratch: &mut Scratch,
        context: &mut Context<'_>,
    ) -> Step {
        let Scratch { out, sent, write_bytes_max } = scratch;
        if std::mem::take(&mut self.is_ping_due) {
            frames::write_ping(out);
        }
        self.pongs.write(out);
        let control_bytes = out.len();
        let transmitted =
            self.outbox.lock().transmit(self.epoch, now, *write_bytes_max, out, sent, context.waker());
        match transmitted {
            Progress::Frames | Progress::LastFrames => {}
            Progress::Idle => return self.poll_rest(io, context),
            Progress::Close(close) => return Step::Ended(Ending::Close(frames::close(&close))),
            Progress::Cut => return Step::Ended(self.without_session()),
        }
        let (written, step) = match io.poll_write(context, out) {
            Poll::Pending => (0, self.blocked()),
            Poll::Ready(Ok(written @ 1..)) => (written, self.wrote()),
            Poll::Ready(_) => return Step::Ended(Ending::Cut),
        };
        if written == out.len() && transmitted == Progress::LastFrames {
            return self.poll_rest(io, context);
        }
        let (begun, unwritten) = divide(written, control_bytes, sent);
        if !begun.is_empty() {
            let index = sent.len().checked_sub(unwritten.len() + 1);
            self.keep_begun(&out[begun], index.and_then(|index| sent.get(index)));
        }
        if !unwritten.is_empty() {
            self.outbox.lock().rewind(self.epoch, unwritten);
        }
        step
    }

    /// Sees to it that the connection keeps nothing back before the task goes idle.
    fn poll_rest(&mut self, io: &mut impl Connection, context: &mut Context<'_>) -> Step {
        let flushed = io.poll_flush(context);
        self.is_unflushed = flushed.is_pending();
        match flushed {
            Poll::Ready(Ok(())) => Step::Idle,
            Poll::Pending => self.blocked(),
            Poll::Ready(Err(_)) => Step::Ended(Ending::Cut),
        }
    }

    /// Keeps the rest of what was begun. A message's is not copied: a thousand slow clients share it.
    fn keep_begun(&mut self, rest: &[u8], item: Option<&SentItem>) {
        let shared = item.and_then(|item| self.outbox.lock().rest_of_message(item, rest.len()));
        self.begun = shared.unwrap_or_else(|| Bytes::copy_from_slice(rest).into());
    }

    fn blocked(&mut self) -> Step {
        self.is_blocked = true;
        Step::Blocked
    }

    fn wrote(&mut self) -> Step {
        if std::mem::take(&mut self.is_blocked) {
            // The connection had taken all that it could; somebody has read some of it.
            self.link.heard();
        }
        Step::Wrote
    }

    /// Writing has ended in this way. Leaves word of how the gateway ends the socket; that the connection is lost, the reader
    /// sees too. Returns what is left to do before the connection is let go of.
    pub fn end(self, ending: Ending) -> Option<Goodbye> {
        let end = match &ending {
            Ending::Close(frame) => Some(GatewayEnd::Closed(frame.clone())),
            Ending::Cut if self.silent_intervals >= SILENT_INTERVALS_MAX => Some(GatewayEnd::Silent),
            Ending::Cut if !self.outbox.lock().is_current(self.epoch) => Some(GatewayEnd::LetGo),
            Ending::Cut => None,
        };
        if let Some(end) = end {
            self.link.gateway_ends(end);
        }
        match ending {
            Ending::Close(close) => Some(Goodbye { writer: self, close, is_shut: false }),
            Ending::Cut => None,
        }
    }
}

/// The end of a socket that is closed in good order: what has been begun, the close frame, the end of the stream; then the
/// client has some time to read it and to close too, [`CLOSE_WAIT_MS`].
#[derive(Debug)]
pub struct Goodbye {
    writer: SocketWriter,
    close: Bytes,
    is_shut: bool,
}

impl Goodbye {
    /// Ready when the client has closed too, or is gone.
    pub fn poll(&mut self, io: &mut impl Connection, context: &mut Context<'_>) -> Poll<()> {
        let Self { writer, close, is_shut } = self;
        if !*is_shut {
            if ready!(Self::poll_last(writer, close, io, context)).is_err() {
                return Poll::Ready(());
            }
            *is_shut = true;
        }
        writer.link.poll_reader(context, &mut Pongs::default())
    }

    fn poll_last(
        writer: &mut SocketWriter,
        close: &mut Bytes,
        io: &mut impl Connection,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while writer.begun.has_remaining() {
            ready!(writer.poll_begun(io, context))?;
        }
        while close.has_remaining() {
            match ready!(io.poll_write(context, close))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => close.advance(written),
            }
        }
        io.poll_shutdown(context)
    }
}

/// Divides what a write has not taken: the rest of what it has begun, to be kept, and the items after that. The
/// control frames before the first item count as one that is begun in any case: nobody else has them.
fn divide(written: usize, control_bytes: usize, sent: &[SentItem]) -> (Range<usize>, &[SentItem]) {
    if written < control_bytes {
        return (written..control_bytes, sent);
    }
    let first = sent.partition_point(|item| item.end <= written);
    let (whole, rest) = sent.split_at(first);
    let start = whole.last().map_or(control_bytes, |item| item.end);
    match rest.split_first() {
        Some((begun, unwritten)) if start < written => (written..begun.end, unwritten),
        _ => (written..written, rest),
    }
}

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
