//! The two halves of a connection on which faults can be made.
//!
//! They lie between the socket's tasks and the connection, which need not know of them: to the tasks it looks as if the
//! connection were broken or stuck. Only sockets of a hub in which faults are allowed have them.
//!
//! | fault | what the connection does | in the log |
//! |---|---|---|
//! | cut | breaks | at once |
//! | stall | takes nothing and gives nothing until the time is over; its client's own end is noticed only then, as behind a dead network | at its end |
//! | lose-next-ack | goes on as usual up to the ack of a publish that was executed, and breaks before it | when it breaks |
//!
//! Each is one event with the fields `fault`, `connection_id` and `effect`, also where the socket ends of itself before the
//! fault had its effect.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use oncewire_protocol::driver::socket::Link;
use oncewire_protocol::session::{AttachEpoch, SharedOutbox};
use oncewire_protocol::wire::{AckId, ConnectionId, Encoding};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use super::lost_ack::{Publishes, Unacked, Written};
use crate::edge::faults::{Fault, Faults, Registration, Victim};

type ReadHalf = Box<dyn AsyncRead + Unpin + Send + Sync>;
type WriteHalf = Box<dyn AsyncWrite + Unpin + Send>;

/// Whose connection it is.
pub(super) struct DisturbedSocket {
    /// The socket's session, as it is named by whoever makes faults.
    pub connection_id: ConnectionId,
    /// What waits for its client.
    pub outbox: SharedOutbox,
    /// Where signs of life are noted.
    pub link: Link,
    /// What its messages look like.
    pub encoding: Encoding,
    /// Largest message that its client may send.
    pub message_bytes_max: usize,
}

impl DisturbedSocket {
    /// Puts the faults on top of a connection. `read_ahead` is what was read from it before.
    pub(super) fn halves(
        self,
        read_half: ReadHalf,
        write_half: WriteHalf,
        read_ahead: &[u8],
        faults: &Arc<Faults>,
        epoch: AttachEpoch,
    ) -> (DisturbedReadHalf, DisturbedWriteHalf) {
        let (encoding, message_bytes_max) = (self.encoding, self.message_bytes_max);
        let connection_id = self.connection_id.clone();
        let shared = Arc::new(Shared { socket: self, state: Mutex::default() });
        let registration = faults.register(&connection_id, epoch, Arc::clone(&shared) as Arc<dyn Victim>);
        let reading = DisturbedReadHalf {
            io: read_half,
            shared: Arc::clone(&shared),
            publishes: Publishes::new(read_ahead, encoding, message_bytes_max),
            stall: None,
        };
        let writing = DisturbedWriteHalf {
            io: write_half,
            shared,
            written: Written::new(encoding),
            stall: None,
            registration: Some(registration),
        };
        (reading, writing)
    }
}

/// What the halves share with each other and with whoever makes faults.
struct Shared {
    socket: DisturbedSocket,
    /// Held while the connection is read or written, which takes no time: once a fault is made, nothing passes.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    cut: Cut,
    stall: Option<Stall>,
    /// Set while an ack is to be lost.
    unacked: Option<Unacked>,
    reader: Option<Waker>,
    writer: Option<Waker>,
    /// Set when nothing is written any more.
    is_over: bool,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Cut {
    #[default]
    No,
    Ordered,
    Made,
}

#[derive(Clone, Copy)]
struct Stall {
    duration: Duration,
    end: Instant,
}

/// What wakes a half at the end of a stall.
type StallEnd = Option<Pin<Box<Sleep>>>;

impl Victim for Shared {
    fn suffer(&self, fault: Fault) -> bool {
        let mut state = self.state.lock();
        if state.is_over {
            return false;
        }
        match fault {
            Fault::Cut => state.cut = Cut::Ordered,
            Fault::Stall(duration) => state.stall = Some(Stall { duration, end: Instant::now() + duration }),
            Fault::LoseNextAck => {
                state.unacked.get_or_insert_default();
            }
        }
        let halves = [state.reader.take(), state.writer.take()];
        drop(state);
        halves.into_iter().flatten().for_each(Waker::wake);
        true
    }
}

impl Shared {
    /// Whether anything may pass now. A half that waits is woken when it may.
    fn poll_passing(
        &self,
        state: &mut State,
        stall_end: &mut StallEnd,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if state.cut == Cut::Ordered {
            state.cut = Cut::Made;
            let unacknowledged = self.socket.outbox.lock().messages();
            self.tell("cut", "dropped without a close frame", Some(unacknowledged));
        }
        if state.cut == Cut::Made {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let Some(stall) = state.stall else {
            *stall_end = None;
            return Poll::Ready(Ok(()));
        };
        // It is the gateway that does not hear, whatever its client does.
        self.socket.link.heard();
        let end = stall_end.get_or_insert_with(|| Box::pin(sleep_until(stall.end)));
        if end.deadline() != stall.end {
            end.as_mut().reset(stall.end);
        }
        ready!(end.as_mut().poll(context));
        *stall_end = None;
        let unacknowledged = self.socket.outbox.lock().messages();
        self.tell_stall(state, "neither read nor written", Some(unacknowledged));
        Poll::Ready(Ok(()))
    }

    fn tell(&self, fault: &str, effect: &str, unacknowledged: Option<usize>) {
        let connection_id = &self.socket.connection_id;
        tracing::info!(fault, %connection_id, effect, unacknowledged, "fault made");
    }

    fn tell_stall(&self, state: &mut State, effect: &str, unacknowledged: Option<usize>) {
        if let Some(Stall { duration, .. }) = state.stall.take() {
            let connection_id = &self.socket.connection_id;
            let milliseconds = duration.as_millis() as u64;
            tracing::info!(
                fault = "stall", %connection_id, effect, milliseconds, unacknowledged, "fault made"
            );
        }
    }

    fn tell_lost_ack(&self, ack_id: AckId) {
        let connection_id = &self.socket.connection_id;
        let effect = "executed, dropped in place of its ack";
        tracing::info!(fault = "lose-next-ack", %connection_id, effect, ack_id, "fault made");
    }

    fn tell_end(&self) {
        let mut state = self.state.lock();
        state.is_over = true;
        let effect = "none: the socket ended first";
        if state.unacked.take().is_some() {
            self.tell("lose-next-ack", effect, None);
        }
        if state.cut == Cut::Ordered {
            self.tell("cut", effect, None);
        }
        self.tell_stall(&mut state, "neither read nor written until the socket ended", None);
    }
}

/// What the reader reads from.
pub(super) struct DisturbedReadHalf {
    io: ReadHalf,
    shared: Arc<Shared>,
    publishes: Publishes,
    stall: StallEnd,
}

impl AsyncRead for DisturbedReadHalf {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { io, shared, publishes, stall } = self.get_mut();
        let state = &mut *shared.state.lock();
        register(&mut state.reader, context);
        ready!(shared.poll_passing(state, stall, context))?;
        let before = buffer.filled().len();
        ready!(Pin::new(io).poll_read(context, buffer))?;
        publishes.follow(&buffer.filled()[before..], state.unacked.as_mut());
        Poll::Ready(Ok(()))
    }
}

/// What the writer writes to. The faults end with it.
pub(super) struct DisturbedWriteHalf {
    io: WriteHalf,
    shared: Arc<Shared>,
    written: Written,
    stall: StallEnd,
    registration: Option<Registration>,
}

impl AsyncWrite for DisturbedWriteHalf {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Self { io, shared, written, stall, .. } = self.get_mut();
        let state = &mut *shared.state.lock();
        register(&mut state.writer, context);
        ready!(shared.poll_passing(state, stall, context))?;
        let passing = match written.before_lost_ack(bytes, state.unacked.as_mut()) {
            Ok(passing) => passing,
            Err(ack_id) => {
                state.cut = Cut::Made;
                state.unacked = None;
                shared.tell_lost_ack(ack_id);
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            }
        };
        let taken = Pin::new(io).poll_write(context, &bytes[..passing]);
        let count = if let Poll::Ready(Ok(count)) = taken { count } else { 0 };
        written.follow(&bytes[..count], state.unacked.as_mut());
        taken
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { io, shared, stall, .. } = self.get_mut();
        let state = &mut *shared.state.lock();
        register(&mut state.writer, context);
        ready!(shared.poll_passing(state, stall, context))?;
        Pin::new(io).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { io, shared, stall, .. } = self.get_mut();
        let state = &mut *shared.state.lock();
        register(&mut state.writer, context);
        ready!(shared.poll_passing(state, stall, context))?;
        Pin::new(io).poll_shutdown(context)
    }
}

impl Drop for DisturbedWriteHalf {
    fn drop(&mut self) {
        // First, so that nobody is promised a fault any more.
        self.registration = None;
        self.shared.tell_end();
    }
}

fn register(slot: &mut Option<Waker>, context: &Context<'_>) {
    match slot {
        Some(waker) => waker.clone_from(context.waker()),
        None => *slot = Some(context.waker().clone()),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use oncewire_protocol::session::{Outbox, OutboxLimits, RequestBounds};
    use oncewire_protocol::wire::Subprotocol;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex, split};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    struct Bench {
        faults: Arc<Faults>,
        link: Link,
        reading: DisturbedReadHalf,
        writing: DisturbedWriteHalf,
        client: DuplexStream,
    }

    impl Bench {
        fn new() -> Self {
            let limits = OutboxLimits { messages_max: 1, bytes_max: 1 };
            let bounds = RequestBounds { requests_max: 1, request_bytes_max: 1, reply_bytes_max: 1 };
            let outbox = Arc::new(Mutex::new(Outbox::new(Subprotocol::JsonReliable, limits, bounds)));
            let epoch = outbox.lock().attach();
            let (faults, link) = (Faults::new("demo"), Link::new());
            let socket = DisturbedSocket {
                connection_id: ConnectionId::new("c"),
                outbox,
                link: link.clone(),
                encoding: Encoding::Json,
                message_bytes_max: 1000,
            };
            let (gateway, client) = duplex(1000);
            let (read_half, write_half) = split(gateway);
            let (reading, writing) =
                socket.halves(Box::new(read_half), Box::new(write_half), &[], &faults, epoch);
            Self { faults, link, reading, writing, client }
        }

        fn make(&self, fault: Fault) -> bool {
            self.faults.make("c", fault)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stall_wakes_both_halves_when_it_is_over_and_so_does_a_shorter_one() {
        for seconds in [10, 1] {
            let mut bench = Bench::new();
            assert!(bench.make(Fault::Stall(10 * SECOND)));
            bench.client.write_all(b"up").await.unwrap();
            let (mut up, mut down) = ([0; 2], [0; 4]);
            let begun = Instant::now();
            assert!(bench.reading.read_exact(&mut up).now_or_never().is_none());
            assert!(bench.writing.write_all(b"down").now_or_never().is_none());
            assert!(bench.writing.flush().now_or_never().is_none());
            assert!(bench.client.read(&mut down).now_or_never().is_none());
            if seconds == 1 {
                assert!(bench.make(Fault::Stall(SECOND)));
            }
            let (read, written) =
                tokio::join!(bench.reading.read_exact(&mut up), bench.writing.write_all(b"down"));
            assert_eq!((read.unwrap(), written.unwrap(), &up), (2, (), b"up"));
            // The clock stands still meanwhile, and a timer is at most a millisecond late.
            let late = begun.elapsed() - seconds * SECOND;
            assert!(late <= Duration::from_millis(1), "{late:?}");
            bench.client.read_exact(&mut down).await.unwrap();
            assert_eq!(&down, b"down");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn while_it_is_stalled_each_write_that_waits_counts_as_a_sign_of_life() {
        let mut bench = Bench::new();
        assert!(bench.make(Fault::Stall(SECOND)));
        bench.link.take_heard();
        for _ in 0..3 {
            assert!(bench.writing.flush().now_or_never().is_none());
            assert!(bench.link.take_heard());
        }
        bench.writing.flush().await.unwrap();
        assert!(bench.link.take_heard());
        bench.writing.flush().await.unwrap();
        assert!(!bench.link.take_heard(), "the stall is over");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_is_cut_is_broken_for_both_halves_also_while_it_is_stalled() {
        let mut bench = Bench::new();
        assert!(bench.make(Fault::Stall(SECOND)));
        let mut byte = [0];
        let reading = async {
            let broken = bench.reading.read(&mut byte).await;
            assert_eq!(broken.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
        };
        let writing = async {
            let broken = bench.writing.write_all(b"x").await;
            assert_eq!(broken.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
        };
        let begun = Instant::now();
        let cutting = async { assert!(bench.faults.make("c", Fault::Cut)) };
        tokio::join!(reading, writing, cutting);
        assert_eq!(begun.elapsed(), Duration::ZERO);
        assert!(bench.writing.flush().await.is_err(), "it stays broken");
        let mut nothing = Vec::new();
        drop((bench.reading, bench.writing));
        bench.client.read_to_end(&mut nothing).await.unwrap();
        assert!(nothing.is_empty());
    }

    #[tokio::test]
    async fn a_socket_that_is_no_longer_written_suffers_nothing() {
        let bench = Bench::new();
        let shared = Arc::clone(&bench.writing.shared);
        assert!(bench.make(Fault::LoseNextAck));
        drop(bench.writing);
        for fault in [Fault::Cut, Fault::LoseNextAck, Fault::Stall(SECOND)] {
            assert!(!bench.faults.make("c", fault));
            assert!(!shared.suffer(fault), "not even through a hand that held on to it");
        }
    }
}
