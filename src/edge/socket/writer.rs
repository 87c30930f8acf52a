//! The task that writes one socket.
//!
//! ```text
//! poll --Progress::Idle--> flush, wait for: outbox, link, tick
//!      --bytes--> one write --all taken--> poll, or if these were the last: wait for: outbox, link, tick
//!                           --a part taken--> the rest of the begun message is kept, later ones go back --> poll
//!                           --nothing taken or flushed--> wait for: connection, order to close, link, tick
//!      --Progress::Close--> close frame, wait for the client to close, end
//!      --Progress::Cut, client silent or gone--> end
//! ```

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io::IoSlice;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use oncewire_protocol::hub::Attachment;
use oncewire_protocol::session::{AttachEpoch, Progress, SentItem, SharedOutbox};
use oncewire_protocol::wire::MessageRest;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, Sleep, timeout};

use super::ends::{GatewayEnd, PeerClose};
use super::frames::Pongs;
use super::link::Link;
use super::{CLOSE_WAIT, frames};
use crate::edge::sockets::Place;
use crate::engine::HubClock;

/// What one write takes at most, one message more at its end.
const WRITE_BYTES_MAX: usize = 256 * 1024;
/// Pieces of a begun message that one write takes.
const BEGUN_SLICES_MAX: usize = 16;
/// A scratch buffer that one huge message has grown beyond this is not kept.
const SCRATCH_BYTES_MAX: usize = 4 * WRITE_BYTES_MAX;
/// Writes before other tasks get their turn.
const WRITES_PER_TURN_MAX: usize = 16;
/// Ping intervals without any byte from the client, after which it counts as lost.
const SILENT_INTERVALS_MAX: u8 = 3;

/// Where frames are put together; between writes nothing is in it.
#[derive(Default)]
struct Scratch {
    out: BytesMut,
    sent: Vec<SentItem>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Pulls what waits for the client and writes it.
pub(super) struct Writer<W> {
    io: W,
    outbox: SharedOutbox,
    epoch: AttachEpoch,
    clock: HubClock,
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
    ping_interval: Duration,
    silent_intervals: u8,
    /// Who is registered with the link and the tick: the task, always the same one.
    registered: Option<Waker>,
}

/// How writing ended.
#[derive(Debug, PartialEq, Eq)]
enum Ending {
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

impl<W: AsyncWrite + Unpin> Writer<W> {
    pub(super) fn new(
        io: W,
        attachment: Attachment,
        clock: HubClock,
        link: Link,
        ping_interval: Duration,
    ) -> Self {
        Self {
            io,
            outbox: attachment.outbox,
            epoch: attachment.session.epoch,
            clock,
            link,
            begun: MessageRest::default(),
            is_blocked: false,
            is_unflushed: false,
            pongs: Pongs::default(),
            is_ping_due: false,
            ping_interval,
            silent_intervals: 0,
            registered: None,
        }
    }

    /// Runs until the socket is closed. `place` is kept as long.
    #[expect(clippy::manual_async_fn, reason = "an async fn has room for its arguments twice, in each task")]
    pub(super) fn run(mut self, place: Place) -> impl Future<Output = ()> {
        async move {
            let _place = place;
            let _guard = self.link.writer_guard();
            let mut tick = pin!(tokio::time::sleep(self.ping_interval));
            let ending = poll_fn(|context| self.poll_ending(tick.as_mut(), context)).await;
            self.note_ending(&ending);
            if let Ending::Close(frame) = ending {
                Box::pin(self.say_goodbye(frame)).await;
            }
        }
    }

    fn poll_ending(&mut self, mut tick: Pin<&mut Sleep>, context: &mut Context<'_>) -> Poll<Ending> {
        let is_registered = self.registered.as_ref().is_some_and(|waker| waker.will_wake(context.waker()));
        if !is_registered {
            self.registered = Some(context.waker().clone());
        }
        if !is_registered || tick.is_elapsed() {
            while tick.as_mut().poll(context).is_ready() {
                if self.is_client_silent() {
                    return Poll::Ready(Ending::Cut);
                }
                self.is_ping_due = true;
                tick.as_mut().reset(Instant::now() + self.ping_interval);
            }
        }
        for _ in 0..WRITES_PER_TURN_MAX {
            let is_told = !is_registered || self.link.has_news();
            if is_told && self.link.poll_reader(context, &mut self.pongs).is_ready() {
                return Poll::Ready(self.without_session());
            }
            match self.poll_write(context) {
                Step::Wrote => {}
                Step::Idle => return Poll::Pending,
                Step::Ended(ending) => return Poll::Ready(ending),
                Step::Blocked => {
                    if !self.outbox.lock().is_write_over(self.epoch, context.waker()) {
                        return Poll::Pending;
                    }
                    return Poll::Ready(self.ordered_ending(context));
                }
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Counts an interval. A client that may not be heard, since too much of its own is pending, is not silent, unless
    /// it does not read either.
    fn is_client_silent(&mut self) -> bool {
        let is_excused = self.link.is_reading_paused() && !self.is_blocked;
        let is_alive = self.link.take_heard() || is_excused;
        self.silent_intervals = if is_alive { 0 } else { self.silent_intervals + 1 };
        self.silent_intervals >= SILENT_INTERVALS_MAX
    }

    /// The ending for a socket that the session has let go of: a client's close is answered still.
    fn without_session(&self) -> Ending {
        match self.link.peer_close() {
            Some(PeerClose(code)) => Ending::Close(frames::close_echo(code)),
            None => Ending::Cut,
        }
    }

    /// How the session has ordered the socket to close at once.
    fn ordered_ending(&self, context: &Context<'_>) -> Ending {
        // Having given the order, the outbox gives no frames.
        let (mut out, mut sent) = (BytesMut::new(), Vec::new());
        match self.outbox.lock().transmit(
            self.epoch,
            self.clock.now(),
            0,
            &mut out,
            &mut sent,
            context.waker(),
        ) {
            Progress::Close(close) => Ending::Close(frames::close(&close)),
            Progress::Cut | Progress::Idle | Progress::Frames | Progress::LastFrames => {
                self.without_session()
            }
        }
    }

    /// Writes once: first what is left of begun frames, else new ones.
    fn poll_write(&mut self, context: &mut Context<'_>) -> Step {
        if self.is_unflushed {
            return match self.poll_rest(context) {
                Step::Idle => self.wrote(),
                step => step,
            };
        }
        if !self.begun.has_remaining() {
            return self.poll_new_frames(context);
        }
        let mut slices = [IoSlice::new(&[]); BEGUN_SLICES_MAX];
        let count = self.begun.chunks_vectored(&mut slices);
        match Pin::new(&mut self.io).poll_write_vectored(context, &slices[..count]) {
            Poll::Pending => self.blocked(),
            Poll::Ready(Ok(written @ 1..)) => {
                self.begun.advance(written);
                self.wrote()
            }
            Poll::Ready(_) => Step::Ended(Ending::Cut),
        }
    }

    fn poll_new_frames(&mut self, context: &mut Context<'_>) -> Step {
        SCRATCH.with_borrow_mut(|scratch| {
            let step = self.poll_frames_in(scratch, context);
            scratch.out.clear();
            scratch.sent.clear();
            if scratch.out.capacity() > SCRATCH_BYTES_MAX {
                scratch.out = BytesMut::new();
            }
            step
        })
    }

    fn poll_frames_in(&mut self, scratch: &mut Scratch, context: &mut Context<'_>) -> Step {
        let Scratch { out, sent } = scratch;
        if std::mem::take(&mut self.is_ping_due) {
            frames::write_ping(out);
        }
        self.pongs.write(out);
        let control_bytes = out.len();
        let transmitted = self.outbox.lock().transmit(
            self.epoch,
            self.clock.now(),
            WRITE_BYTES_MAX,
            out,
            sent,
            context.waker(),
        );
        match transmitted {
            Progress::Frames | Progress::LastFrames => {}
            Progress::Idle => return self.poll_rest(context),
            Progress::Close(close) => return Step::Ended(Ending::Close(frames::close(&close))),
            Progress::Cut => return Step::Ended(self.without_session()),
        }
        let (written, step) = match Pin::new(&mut self.io).poll_write(context, out) {
            Poll::Pending => (0, self.blocked()),
            Poll::Ready(Ok(written @ 1..)) => (written, self.wrote()),
            Poll::Ready(_) => return Step::Ended(Ending::Cut),
        };
        if written == out.len() && transmitted == Progress::LastFrames {
            return self.poll_rest(context);
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
    fn poll_rest(&mut self, context: &mut Context<'_>) -> Step {
        let flushed = Pin::new(&mut self.io).poll_flush(context);
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

    /// Leaves word of how the gateway ends the socket; that the connection is lost, the reader sees too.
    fn note_ending(&self, ending: &Ending) {
        let end = match ending {
            Ending::Close(frame) => GatewayEnd::Closed(frame.clone()),
            Ending::Cut if self.silent_intervals >= SILENT_INTERVALS_MAX => GatewayEnd::Silent,
            Ending::Cut if !self.outbox.lock().is_current(self.epoch) => GatewayEnd::LetGo,
            Ending::Cut => return,
        };
        self.link.gateway_ends(end);
    }

    /// Ends the stream behind a close frame, and leaves the client some time to read it and to close too.
    async fn say_goodbye(mut self, close: Bytes) {
        let goodbye = async {
            self.io.write_all_buf(&mut self.begun).await?;
            self.io.write_all(&close).await?;
            self.io.shutdown().await?;
            let mut late_pongs = Pongs::default();
            poll_fn(|context| self.link.poll_reader(context, &mut late_pongs)).await;
            Ok::<(), std::io::Error>(())
        };
        // A client that is gone, or stays too long, is of no interest any more.
        let _ = timeout(CLOSE_WAIT, goodbye).await;
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
