//! One socket: a task that reads and a task that writes, joined by a small shared state.
//!
//! What they do is up to the protocol crate's [driver](oncewire_protocol::driver::socket); here are the connection, its
//! frames, timers and what they hold of memory.
//!
//! Two tasks, since a writer that is woken must not look at the read side, and the other way round. Both are kept
//! small: an idle session costs a read buffer, two tasks, and what the engine keeps of it.

mod boundary;
mod disturbed;
mod ends;
mod half_messages;
mod inbound;
mod lost_ack;
mod reader;
mod tls_halves;
mod write_half;
mod writer;

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use oncewire_protocol::driver::socket::{CLOSE_WAIT_MS, Link, SocketWriter, frames};
use oncewire_protocol::wire::raw::RawTarget;
use oncewire_protocol::wire::{Close, ConnectionId, Encoding, HubName};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::all_sockets::Place;
use super::faults::Faults;
use super::listener::Present;
use super::tls;
use crate::engine;
use crate::telemetry::Counters;
use disturbed::DisturbedSocket;
pub(super) use half_messages::HalfMessages;
use reader::Reader;
use write_half::WriteHalf;
use writer::Writer;

/// How long a client may take to answer a close frame, and to take what stands before it.
const CLOSE_WAIT: Duration = Duration::from_millis(CLOSE_WAIT_MS);

/// What one socket needs of the configuration.
pub(super) struct Settings {
    /// What its messages look like.
    pub encoding: Encoding,
    /// Where its messages go, if it is raw and publishes.
    pub publishes_to: Option<RawTarget>,
    /// How often it is sent a ping.
    pub ping_seconds: u64,
    /// First size of its read buffer.
    pub read_buffer_bytes: usize,
    /// Largest message that it may send.
    pub message_bytes_max: usize,
    /// Who may make faults on it.
    pub faults: Option<Arc<Faults>>,
    /// Counts its connection.
    pub presence: Option<Present>,
}

/// What a socket is called in the log, and where it is counted.
pub(super) struct Name {
    pub hub: HubName,
    pub connection_id: ConnectionId,
    /// Who has connected, if that is known.
    pub peer: Option<SocketAddr>,
    /// Where its end is counted.
    pub counters: Arc<Counters>,
    /// Where messages are counted that it has sent the beginning of.
    pub half_messages: Arc<HalfMessages>,
}

/// An upgraded connection.
pub(super) enum Stream {
    /// In the clear.
    Plain(TcpStream),
    /// Inside TLS.
    Tls(Box<tls::Stream>),
}

/// Starts the two tasks. `read_ahead` is what came behind the upgrade request.
pub(super) fn start(
    tasks: &TaskTracker,
    stream: Stream,
    read_ahead: &[u8],
    socket: engine::AttachedSocket,
    place: Place,
    name: Box<Name>,
    settings: Settings,
) {
    let start = Start { tasks, read_ahead, socket, place, name, settings, link: Link::new() };
    match stream {
        Stream::Plain(stream) => {
            let (read_half, write_half) = stream.into_split();
            start.on(read_half, WriteHalf(write_half));
        }
        Stream::Tls(stream) => {
            let (read_half, write_half) = tls_halves::split(*stream);
            start.on(read_half, write_half);
        }
    }
}

/// A socket that has all it needs but its connection.
struct Start<'a> {
    tasks: &'a TaskTracker,
    read_ahead: &'a [u8],
    socket: engine::AttachedSocket,
    place: Place,
    name: Box<Name>,
    settings: Settings,
    link: Link,
}

impl Start<'_> {
    fn on<R, W>(mut self, read_half: R, write_half: W)
    where
        R: AsyncRead + Unpin + Send + Sync + 'static,
        W: AsyncWrite + Unpin + Send + 'static,
    {
        let attachment = self.socket.attachment();
        self.place.fill(&attachment.outbox, self.settings.presence.take());
        let Some(faults) = self.settings.faults.take() else { return self.run(read_half, write_half) };
        let socket = DisturbedSocket {
            connection_id: self.name.connection_id.clone(),
            outbox: Arc::clone(&attachment.outbox),
            link: self.link.clone(),
            encoding: self.settings.encoding,
            message_bytes_max: self.settings.message_bytes_max,
        };
        let epoch = attachment.session.epoch;
        let (read_half, write_half) =
            socket.halves(Box::new(read_half), Box::new(write_half), self.read_ahead, &faults, epoch);
        self.run(read_half, write_half);
    }

    fn run<R, W>(self, read_half: R, write_half: W)
    where
        R: AsyncRead + Unpin + Send + Sync + 'static,
        W: AsyncWrite + Unpin + Send + 'static,
    {
        let Self { tasks, read_ahead, socket, place, name, settings, link } = self;
        let ping_interval = Duration::from_secs(settings.ping_seconds);
        let driver = SocketWriter::new(socket.attachment().clone(), link.clone());
        let writer = Writer::new(write_half, driver, socket.clock().clone(), ping_interval);
        tasks.spawn(writer.run(place));
        tasks.spawn(Reader::new(read_half, read_ahead, socket, link, name, settings).run());
    }
}

/// Tells a client on a fresh connection that its session can't be recovered.
pub(super) async fn refuse_recovery(stream: Stream) {
    match stream {
        Stream::Plain(stream) => refuse_recovery_on(stream).await,
        Stream::Tls(stream) => refuse_recovery_on(*stream).await,
    }
}

async fn refuse_recovery_on(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let goodbye = async {
        stream.write_all(&frames::close(&Close::RECOVERY_REFUSED)).await?;
        stream.shutdown().await?;
        inbound::drain(&mut stream).await
    };
    // A client that is gone, or stays too long, is of no interest any more.
    let _ = timeout(CLOSE_WAIT, goodbye).await;
}

/// Waits for something, but not longer than the writer is there, nor beyond an order to give up. No async fn, which has room
/// for its arguments twice, in each task.
fn unless_cut<T>(
    link: &Link,
    mut future: impl Future<Output = T> + Unpin,
) -> impl Future<Output = Option<T>> {
    poll_fn(move |context| {
        if link.is_over() {
            return Poll::Ready(None);
        }
        if let Poll::Ready(output) = Pin::new(&mut future).poll(context) {
            return Poll::Ready(Some(output));
        }
        link.poll_over(context).map(|()| None)
    })
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use oncewire_protocol::log::{BootId, SessionIdentity};
    use oncewire_protocol::wire::Subprotocol;
    use tokio::net::TcpListener;

    use super::*;
    use crate::config::Config;
    use crate::edge::all_sockets::Sockets;
    use crate::engine::{Engine, NewSession};
    use crate::store::MemoryStore;

    #[tokio::test(start_paused = true)]
    async fn the_reader_learns_that_the_writer_is_gone() {
        let link = Link::new();
        let guard = link.writer_guard();
        let mut waiting = unless_cut(&link, std::future::pending::<()>());
        assert!((&mut waiting).now_or_never().is_none());
        drop(guard);
        assert_eq!(waiting.await, None);
        assert_eq!(unless_cut(&link, std::future::ready(1)).await, None);
    }

    /// Every idle session pays for these; a variable more that lives across an `await` shows here.
    #[tokio::test]
    async fn the_tasks_of_a_socket_are_small() {
        let engine = Engine::new(Arc::new(Config::default()), Arc::new(MemoryStore::default()), BootId(1));
        let hub = HubName::new("chat").unwrap();
        let connection_id = ConnectionId::new("c");
        let new = NewSession {
            identity: SessionIdentity {
                connection_id: connection_id.clone(),
                user_id: None,
                subprotocol: Subprotocol::JsonReliable,
                custom_subprotocol: None,
            },
            roles: Vec::new(),
            groups: Vec::new(),
            reconnection_token: None,
            state: None,
        };
        let socket = engine.hub_to_join(&hub).await.unwrap().open(new).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (read_half, write_half) = stream.into_split();
        let settings = Settings {
            encoding: Encoding::Json,
            publishes_to: None,
            ping_seconds: 20,
            read_buffer_bytes: 1024,
            message_bytes_max: 1024,
            faults: None,
            presence: None,
        };
        let link = Link::new();
        let driver = SocketWriter::new(socket.attachment().clone(), link.clone());
        let writer = Writer::new(WriteHalf(write_half), driver, socket.clock().clone(), CLOSE_WAIT);
        let place = Sockets::new(None).reserve().unwrap();
        let half_messages = HalfMessages::new(Arc::clone(engine.memory_budget()));
        let name = Box::new(Name { hub, connection_id, peer: None, counters: Arc::default(), half_messages });
        let reader = Reader::new(read_half, &[], socket, link, name, settings);
        let (reader_bytes, writer_bytes) = (size_of_val(&reader.run()), size_of_val(&writer.run(place)));
        // The writer's with the hub's clock, by which it judges what has expired.
        assert!(reader_bytes <= 656 && writer_bytes <= 360, "{reader_bytes}, {writer_bytes}");
    }
}
