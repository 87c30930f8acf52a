//! The task that writes one socket: it moves what the driver writes, and its time.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use oncewire_protocol::driver::socket::{Connection, Ending, Goodbye, Scratch, SocketWriter};
use tokio::io::AsyncWrite;
use tokio::time::{Instant, Sleep, timeout};

use super::CLOSE_WAIT;
use crate::edge::all_sockets::Place;
use crate::engine::HubClock;

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Writes what waits for the client.
pub(super) struct Writer<W> {
    io: Io<W>,
    driver: SocketWriter,
    clock: HubClock,
    ping_interval: Duration,
}

/// A connection of the runtime's.
struct Io<W>(W);

impl<W: AsyncWrite + Unpin> Connection for Io<W> {
    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        &mut self,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, pieces)
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

impl<W: AsyncWrite + Unpin> Writer<W> {
    pub(super) fn new(io: W, driver: SocketWriter, clock: HubClock, ping_interval: Duration) -> Self {
        Self { io: Io(io), driver, clock, ping_interval }
    }

    /// Runs until the socket is closed. `place` is kept as long.
    #[expect(clippy::manual_async_fn, reason = "an async fn has room for its arguments twice, in each task")]
    pub(super) fn run(mut self, place: Place) -> impl Future<Output = ()> {
        async move {
            let _place = place;
            let _guard = self.driver.link().writer_guard();
            let mut tick = pin!(tokio::time::sleep(self.ping_interval));
            let ending = poll_fn(|context| self.poll_ending(tick.as_mut(), context)).await;
            if let Some(goodbye) = self.end(ending) {
                goodbye.await;
            }
        }
    }

    /// What is left to do. Boxed, since every socket's task would have to be larger for it.
    fn end(self, ending: Ending) -> Option<Pin<Box<impl Future<Output = ()>>>> {
        self.driver.end(ending).map(|goodbye| Box::pin(say_goodbye(goodbye, self.io)))
    }

    fn poll_ending(&mut self, mut tick: Pin<&mut Sleep>, context: &mut Context<'_>) -> Poll<Ending> {
        if self.driver.is_new_task(context.waker()) || tick.is_elapsed() {
            while tick.as_mut().poll(context).is_ready() {
                if let Some(ending) = self.driver.tick() {
                    return Poll::Ready(ending);
                }
                tick.as_mut().reset(Instant::now() + self.ping_interval);
            }
        }
        let now = self.clock.now();
        SCRATCH.with_borrow_mut(|scratch| self.driver.poll(now, &mut self.io, scratch, context))
    }
}

/// Closes in good order. A client that is gone, or stays too long, is of no interest any more.
async fn say_goodbye<W: AsyncWrite + Unpin>(mut goodbye: Goodbye, mut io: Io<W>) {
    let _ = timeout(CLOSE_WAIT, poll_fn(|context| goodbye.poll(&mut io, context))).await;
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use oncewire_protocol::driver::socket::Link;
    use oncewire_protocol::hub::{Attachment, SessionHandle, SessionKey};
    use oncewire_protocol::session::{Closing, Outbox, OutboxLimits, RequestBounds, SharedOutbox};
    use oncewire_protocol::wire::{Close, Subprotocol};
    use parking_lot::Mutex;
    use tokio::io::AsyncReadExt;

    use super::*;
    use crate::edge::all_sockets::Sockets;

    const PING_INTERVAL: Duration = Duration::from_secs(20);

    /// A writer, and its session's side.
    fn writer<W: AsyncWrite + Unpin>(io: W) -> (Writer<W>, Link, SharedOutbox) {
        let limits = OutboxLimits { messages_max: 100, bytes_max: 1 << 20 };
        let bounds = RequestBounds { requests_max: 10, request_bytes_max: 1000, reply_bytes_max: 1000 };
        let mut outbox = Outbox::new(Subprotocol::JsonReliable, limits, bounds);
        let epoch = outbox.attach();
        let outbox = Arc::new(Mutex::new(outbox));
        let session = SessionHandle { key: SessionKey::default(), epoch };
        let attachment = Attachment { session, outbox: Arc::clone(&outbox) };
        let link = Link::new();
        let driver = SocketWriter::new(attachment, link.clone());
        (Writer::new(io, driver, HubClock::for_test(), PING_INTERVAL), link, outbox)
    }

    fn place() -> Place {
        Sockets::new(None).reserve().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_says_nothing_is_pinged_and_cut_after_some_intervals() {
        let (mut client, io) = tokio::io::duplex(100);
        let (writer, link, _outbox) = writer(io);
        let _guard = link.reader_guard();
        let begin = Instant::now();
        writer.run(place()).await;
        // The upgrade itself was a sign of life.
        assert_eq!(begin.elapsed(), 4 * PING_INTERVAL);
        let mut written = Vec::new();
        client.read_to_end(&mut written).await.unwrap();
        assert_eq!(written, b"\x89\x00".repeat(3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_never_closes_is_left_after_a_while() {
        let (mut client, io) = tokio::io::duplex(100);
        let (writer, link, outbox) = writer(io);
        let _guard = link.reader_guard();
        outbox.lock().close(Closing::Now(Close::NORMAL));
        let begin = Instant::now();
        writer.run(place()).await;
        assert_eq!(begin.elapsed(), CLOSE_WAIT);
        let mut written = Vec::new();
        client.read_to_end(&mut written).await.unwrap();
        assert_eq!(written, b"\x88\x02\x03\xe8");
    }
}
