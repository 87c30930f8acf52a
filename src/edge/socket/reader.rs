//! The task that reads one socket.

use std::future::{Future, poll_fn};
use std::io::ErrorKind;
use std::pin::pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::FutureExt;
use oncewire_protocol::driver::socket::{Batch, End, Link, PeerClose, SocketReader, Telling};
use oncewire_protocol::wire::{Close, DecodeError, FrameKind};
use tokio::io::AsyncRead;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role};
use tokio_tungstenite::tungstenite::{Error, Message, WebSocket};

use super::boundary::Boundary;
use super::ends;
use super::half_messages::{HALF_MESSAGE_BYTES_MIN, HalfMessage};
use super::inbound::{Inbound, drain, frame_reader};
use super::{Name, Settings, unless_cut};
use crate::engine;

/// Messages that are taken from a socket before others have their turn.
const TURN_MESSAGES_MAX: usize = 128;

/// Reads frames, and hands the requests that the driver makes of each read to the engine.
pub(super) struct Reader<R> {
    io: R,
    websocket: WebSocket<Inbound>,
    socket: engine::AttachedSocket,
    link: Link,
    name: Box<Name>,
    driver: SocketReader,
    /// Tells when the frame reader has nothing left in it.
    boundary: Boundary,
    /// Counted, while there is enough of it.
    half_message: Option<Box<HalfMessage>>,
    /// Set when the last read had more messages than are taken in a turn.
    has_more_frames: bool,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    /// `read_ahead` is what came behind the upgrade request.
    pub(super) fn new(
        io: R,
        read_ahead: &[u8],
        socket: engine::AttachedSocket,
        link: Link,
        name: Box<Name>,
        settings: Settings,
    ) -> Self {
        let websocket = frame_reader(read_ahead, settings.read_buffer_bytes, settings.message_bytes_max);
        Self {
            io,
            websocket,
            socket,
            link,
            name,
            driver: SocketReader { encoding: settings.encoding, publishes_to: settings.publishes_to },
            boundary: Boundary::default(),
            half_message: None,
            has_more_frames: false,
        }
    }

    /// Runs until the socket has ended and the engine knows how.
    #[expect(clippy::manual_async_fn, reason = "an async fn has room for its arguments twice, in each task")]
    pub(super) fn run(mut self) -> impl Future<Output = ()> {
        async move {
            let _guard = self.link.reader_guard();
            tracing::debug!(hub = %self.name.hub, connection_id = %self.name.connection_id, "socket attached");
            let end = self.read().await;
            Box::pin(self.finish(end)).await;
        }
    }

    async fn read(&mut self) -> End {
        let mut batch = self.take_frames();
        loop {
            if !batch.requests.is_empty() {
                self.socket.submit(batch.requests).await;
            }
            if let Some(end) = batch.end {
                return end;
            }
            if self.half_message.is_some() || self.has_more_frames {
                // One that is told to give up holds its part until it is scheduled: that may take a turn of all sockets,
                // and meanwhile each of them reads once, not all that there is. Nor does one that has sent many small frames
                // hold up the others.
                tokio::task::yield_now().await;
            }
            if !self.may_read().await {
                return self.stopped();
            }
            let link = self.link.clone();
            let Some(next) = unless_cut(&link, poll_fn(|context| self.poll_batch(context))).await else {
                return self.stopped();
            };
            batch = next;
        }
    }

    /// The end when reading may not go on.
    fn stopped(&self) -> End {
        if self.link.take_giving_up() { End::GivenUp } else { End::Lost }
    }

    /// Reads once, and takes all frames that are complete then.
    fn poll_batch(&mut self, context: &mut Context<'_>) -> Poll<Batch> {
        if self.has_more_frames {
            return Poll::Ready(self.take_frames());
        }
        let filled = self.websocket.get_mut().poll_fill(&mut self.io, context);
        match filled {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(1..)) => {
                self.link.heard();
                Poll::Ready(self.take_frames())
            }
            Poll::Ready(_) => Poll::Ready(Batch { requests: Vec::new(), end: Some(End::Lost) }),
        }
    }

    fn take_frames(&mut self) -> Batch {
        let mut batch = Batch::default();
        if !std::mem::take(&mut self.has_more_frames) {
            self.boundary.follow(self.websocket.get_ref().waiting());
        }
        let mut messages = 0;
        while batch.end.is_none() {
            if messages == TURN_MESSAGES_MAX {
                self.has_more_frames = true;
                return batch;
            }
            messages += 1;
            match self.websocket.read() {
                Ok(message) => {
                    self.boundary.note_message(message.len());
                    self.take(message, &mut batch);
                }
                Err(Error::Io(error)) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => batch.end = Some(self.broken(&error)),
            }
        }
        self.websocket.get_mut().clear();
        self.count_half_message();
        if batch.end.is_none() && self.boundary.is_end_of_large() {
            let config = *self.websocket.get_config();
            self.websocket = WebSocket::from_raw_socket(Inbound::new(&[]), Role::Server, Some(config));
            self.boundary.forget_buffer();
        }
        batch
    }

    /// Says how much has come of a message that has not come in whole.
    fn count_half_message(&mut self) {
        let bytes = self.boundary.held_bytes();
        if bytes < HALF_MESSAGE_BYTES_MIN {
            self.half_message = None;
            return;
        }
        let (all, link) = (&self.name.half_messages, &self.link);
        self.half_message.get_or_insert_with(|| Box::new(all.begin(link))).set(bytes);
    }

    /// Waits until the bounds on what is pending allow another read; false when the writer is gone.
    async fn may_read(&self) -> bool {
        let mut ready = pin!(self.socket.ready_to_read());
        if ready.as_mut().now_or_never().is_some() {
            return true;
        }
        self.link.set_reading_paused(true);
        let is_ready = unless_cut(&self.link, ready).await.is_some();
        self.link.set_reading_paused(false);
        is_ready
    }

    fn take(&self, message: Message, batch: &mut Batch) {
        let (kind, data) = match message {
            Message::Text(text) => (FrameKind::Text, Bytes::from(text)),
            Message::Binary(data) => (FrameKind::Binary, data),
            Message::Ping(content) => return self.link.pong(&content),
            Message::Pong(_) | Message::Frame(_) => return,
            Message::Close(frame) => {
                batch.end = Some(match frame {
                    Some(frame) if is_stand_in(&frame) => End::Violation(Close::BROKEN_FRAMING),
                    frame => End::PeerClosed(PeerClose(frame.map(|frame| frame.code.into()))),
                });
                return;
            }
        };
        tracing::trace!(connection_id = %self.name.connection_id, bytes = data.len(), "message received");
        if let Err(error) = self.driver.take(self.socket.attachment(), kind, &data, batch) {
            tracing::debug!(connection_id = %self.name.connection_id, %error, "message refused");
        }
    }

    fn broken(&self, error: &Error) -> End {
        match error {
            Error::Capacity(_) => End::Violation(Close::MESSAGE_TOO_LARGE),
            Error::Utf8(_) => End::Violation(DecodeError::NotAMessage.close(self.driver.encoding)),
            Error::Protocol(_) => End::Violation(Close::BROKEN_FRAMING),
            _ => End::Lost,
        }
    }

    async fn finish(mut self, end: End) {
        let user = self.socket.user_id().map(|user| user.as_str());
        ends::tell(&self.name, user, end, self.link.gateway_end());
        // Nothing is read any more, and an end can take its time.
        self.half_message = None;
        self.websocket = WebSocket::from_raw_socket(Inbound::new(&[]), Role::Server, None);
        self.link.take_giving_up();
        if end == End::GivenUp {
            self.name.half_messages.tell(&self.name, user);
        }
        let (end, telling) = end.begin(self.socket.attachment(), &self.link);
        match telling {
            Telling::Now => self.socket.close(end).await,
            Telling::BeforeTheRest => {
                self.socket.close(end).await;
                unless_cut(&self.link, pin!(drain(&mut self.io))).await;
            }
            Telling::BehindTheRest => {
                unless_cut(&self.link, pin!(drain(&mut self.io))).await;
                self.socket.close(end).await;
            }
        }
    }
}

/// Whether this is not what the client sent but what the frame reader puts in place of a close frame with a code that
/// must not be in one (RFC 6455, section 7.4). A client that says just this itself has no more to say either.
fn is_stand_in(frame: &CloseFrame) -> bool {
    frame.code == CloseCode::Protocol && frame.reason == "Protocol violation"
}
