//! The task that reads one socket.

use std::future::Future;

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use oncewire_protocol::hub::SocketEnd;
use oncewire_protocol::session::Request;
use oncewire_protocol::wire::{Close, DecodeError, Encoding, FrameKind, decode_upstream};
use tokio::io::AsyncRead;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};

use super::inbound::{Inbound, drain};
use super::link::{Link, PeerClose};
use super::{Name, Settings};
use crate::engine;

/// Frames that are handed over together; what else the read brought follows in the next round.
const FRAMES_PER_BATCH_MAX: usize = 256;

/// The close code with which a client ends its session for good.
const NORMAL_CLOSE: u16 = 1000;

/// Reads frames, decodes them, and hands the requests of each read to the engine.
pub(super) struct Reader<R> {
    websocket: WebSocketStream<Inbound<R>>,
    socket: engine::Socket,
    link: Link,
    name: Name,
    encoding: Encoding,
}

/// Why reading ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The connection broke, or the writer has given up.
    Lost,
    /// The client sent a close frame.
    PeerClosed(PeerClose),
    /// The client broke the protocol; this is what it is told.
    Violation(Close),
}

impl<R: AsyncRead + Unpin> Reader<R> {
    pub(super) async fn new(
        inbound: Inbound<R>,
        socket: engine::Socket,
        link: Link,
        name: Name,
        settings: &Settings,
    ) -> Self {
        let config = WebSocketConfig::default()
            .read_buffer_size(settings.read_buffer_bytes)
            .write_buffer_size(0)
            .max_message_size(Some(settings.message_bytes_max))
            .max_frame_size(Some(settings.message_bytes_max));
        let websocket = WebSocketStream::from_raw_socket(inbound, Role::Server, Some(config)).await;
        Self { websocket, socket, link, name, encoding: settings.encoding }
    }

    /// Runs until the socket has ended and the engine knows how.
    // No `async fn`: that would reserve the reader's place twice in every socket's task.
    pub(super) fn run(mut self) -> impl Future<Output = ()> {
        async move {
            let _guard = self.link.reader_guard();
            tracing::debug!(hub = %self.name.hub, connection_id = %self.name.connection_id, "socket attached");
            let end = self.read().await;
            Box::pin(self.finish(end)).await;
        }
    }

    async fn read(&mut self) -> End {
        loop {
            if !self.may_read().await {
                return End::Lost;
            }
            let Some(first) = self.link.unless_cut(self.websocket.next()).await else { return End::Lost };
            let mut batch = Vec::new();
            let mut end = self.take(first, &mut batch);
            self.websocket.get_mut().hold(true);
            for _ in 1..FRAMES_PER_BATCH_MAX {
                if end.is_some() {
                    break;
                }
                let Some(next) = self.websocket.next().now_or_never() else { break };
                end = self.take(next, &mut batch);
            }
            self.websocket.get_mut().hold(false);
            if !batch.is_empty() {
                self.socket.submit(batch).await;
            }
            if let Some(end) = end {
                return end;
            }
        }
    }

    /// Waits until the bounds on what is pending allow another read; false when the writer is gone.
    async fn may_read(&self) -> bool {
        let mut ready = std::pin::pin!(self.socket.ready_to_read());
        if ready.as_mut().now_or_never().is_some() {
            return true;
        }
        self.link.set_reading_paused(true);
        let is_ready = self.link.unless_cut(ready).await.is_some();
        self.link.set_reading_paused(false);
        is_ready
    }

    /// Takes one message from the frame reader; tells when it was the last.
    fn take(&self, item: Option<Result<Message, Error>>, batch: &mut Vec<Request>) -> Option<End> {
        let (kind, data) = match item {
            Some(Ok(Message::Text(text))) => (FrameKind::Text, Bytes::from(text)),
            Some(Ok(Message::Binary(data))) => (FrameKind::Binary, data),
            Some(Ok(Message::Ping(content))) => {
                self.link.pong(&content);
                return None;
            }
            Some(Ok(Message::Pong(_) | Message::Frame(_))) => return None,
            Some(Ok(Message::Close(frame))) => {
                return Some(End::PeerClosed(PeerClose(frame.map(|frame| frame.code.into()))));
            }
            Some(Err(error)) => return Some(self.broken(&error)),
            None => return Some(End::Lost),
        };
        let bytes = data.len();
        tracing::trace!(connection_id = %self.name.connection_id, bytes, "message received");
        match decode_upstream(self.encoding, kind, &data) {
            Ok(message) => {
                let request = self.socket.attachment().receive(message);
                batch.extend(request.map(|message| Request { message, bytes }));
                None
            }
            Err(error) => {
                tracing::debug!(connection_id = %self.name.connection_id, %error, "message refused");
                Some(End::Violation(error.close(self.encoding)))
            }
        }
    }

    fn broken(&self, error: &Error) -> End {
        match error {
            Error::Capacity(_) => End::Violation(Close::MESSAGE_TOO_LARGE),
            Error::Utf8(_) => End::Violation(DecodeError::NotAMessage.close(self.encoding)),
            Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => End::Lost,
            Error::Protocol(_) => End::Violation(Close::BROKEN_FRAMING),
            _ => End::Lost,
        }
    }

    async fn finish(mut self, end: End) {
        tracing::debug!(
            hub = %self.name.hub, connection_id = %self.name.connection_id, ?end, "socket ended"
        );
        match end {
            End::Lost => self.socket.close(SocketEnd::Lost).await,
            End::PeerClosed(close) => {
                self.link.peer_closed(close);
                let is_final = close.0 == Some(NORMAL_CLOSE);
                let end = if is_final { SocketEnd::ClosedForGood } else { SocketEnd::Lost };
                // Before the answer goes out, so that a client that has it can't find its session still open.
                self.socket.close(end).await;
            }
            End::Violation(close) => {
                self.socket.close(SocketEnd::Violation(close)).await;
                let drained = drain(self.websocket.get_mut().connection());
                self.link.unless_cut(drained).await;
            }
        }
    }
}
