//! One socket: a task that reads and a task that writes, joined by a small shared state.
//!
//! Two tasks, since a writer that is woken must not look at the read side, and the other way round. Both are kept
//! small: an idle session costs a read buffer, two tasks, and what the engine keeps of it.

mod frames;
mod inbound;
mod link;
mod reader;
mod writer;

use std::time::Duration;

use oncewire_protocol::wire::{Close, ConnectionId, Encoding, HubName};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::sockets::Place;
use crate::engine;
use inbound::Inbound;
use link::Link;
use reader::Reader;
use writer::Writer;

/// How long a client may take to answer a close frame, and to take what stands before it.
const CLOSE_WAIT: Duration = Duration::from_secs(5);

/// What one socket needs of the configuration.
pub(super) struct Settings {
    /// What its messages look like.
    pub encoding: Encoding,
    /// How often it is sent a ping.
    pub ping_seconds: u64,
    /// First size of its read buffer.
    pub read_buffer_bytes: usize,
    /// Largest message that it may send.
    pub message_bytes_max: usize,
}

/// What a socket is called in the log.
pub(super) struct Name {
    pub hub: HubName,
    pub connection_id: ConnectionId,
}

/// Starts the two tasks. `read_ahead` is what came behind the upgrade request.
pub(super) async fn start(
    tasks: &TaskTracker,
    stream: TcpStream,
    read_ahead: &[u8],
    socket: engine::Socket,
    mut place: Place,
    name: Name,
    settings: &Settings,
) {
    let attachment = socket.attachment().clone();
    place.fill(&attachment.outbox);
    let link = Link::new();
    let (read_half, write_half) = stream.into_split();
    let writer =
        Writer::new(write_half, attachment, link.clone(), Duration::from_secs(settings.ping_seconds));
    tasks.spawn(writer.run(place));
    let inbound = Inbound::new(read_half, read_ahead, link.clone());
    let reader = Reader::new(inbound, socket, link, name, settings).await;
    tasks.spawn(reader.run());
}

/// Tells a client on a fresh connection that its session can't be recovered.
pub(super) async fn refuse_recovery(mut stream: TcpStream) {
    let goodbye = async {
        stream.write_all(&frames::close(&Close::RECOVERY_REFUSED)).await?;
        stream.shutdown().await?;
        inbound::drain(&mut stream).await
    };
    // A client that is gone, or stays too long, is of no interest any more.
    let _ = timeout(CLOSE_WAIT, goodbye).await;
}
