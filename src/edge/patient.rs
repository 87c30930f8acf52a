//! A connection whose client may take its time, but not for ever: until it is upgraded.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until};

use super::pool::{Guest, Stage, Turn};
use super::tls;
use super::turned_away::TurnedAway;
use crate::config::Config;

/// What the kernel keeps of answers that a client does not take, in bytes; it counts twice as much. One that is upgraded at
/// its first request is not concerned.
const SEND_BUFFER_BYTES: usize = 64 * 1024;

/// How long a client may take for what.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// For a request head.
    pub head: Duration,
    /// Until the next request begins.
    pub idle: Duration,
    /// To take something of an answer.
    pub answer: Duration,
}

impl Patience {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            head: Duration::from_secs(config.header_read_timeout_seconds),
            idle: Duration::from_secs(config.http_keep_alive_seconds),
            answer: Duration::from_secs(config.http_write_timeout_seconds),
        }
    }

    /// How long nothing may come in a stage, and what it is when nothing has come; none while the client waits for the
    /// gateway.
    fn of(&self, stage: Stage) -> Option<(Duration, TurnedAway)> {
        match stage {
            Stage::Arriving | Stage::Reading => Some((self.head, TurnedAway::HeadTooSlow)),
            Stage::Idle => Some((self.idle, TurnedAway::Idle)),
            Stage::Upgrading | Stage::Unbound | Stage::Asking => None,
        }
    }
}

/// What is below it.
pub(super) trait OverTcp {
    /// The TCP connection.
    fn tcp(&self) -> &TcpStream;
}

impl OverTcp for TcpStream {
    fn tcp(&self) -> &TcpStream {
        self
    }
}

impl OverTcp for tls::Stream {
    fn tcp(&self) -> &TcpStream {
        self.get_ref().0
    }
}

/// A connection, with the time that its client has. What takes too long is an error that says what it was.
pub(super) struct Patient<S> {
    stream: S,
    guest: Arc<Guest>,
    patience: Patience,
    /// The turn for which something has to come by then.
    reading: Option<(Turn, Pin<Box<Sleep>>)>,
    /// By when something of what is written has to be taken.
    writing: Option<Pin<Box<Sleep>>>,
    has_small_buffer: bool,
}

impl<S> Patient<S> {
    pub(super) fn new(stream: S, guest: Arc<Guest>, patience: Patience) -> Self {
        Self { stream, guest, patience, reading: None, writing: None, has_small_buffer: false }
    }

    /// The connection alone.
    pub(super) fn into_inner(self) -> S {
        self.stream
    }

    /// Nothing has come.
    fn poll_heard_nothing(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        // Also where it is not the gateway's turn yet: it may become so without another look here.
        self.guest.wake_at_rest(context.waker());
        let turn = self.guest.turn();
        let Some((limit, reason)) = self.patience.of(turn.stage()) else { return Poll::Pending };
        let deadline = || Instant::now() + limit;
        let (of, sleep) = self.reading.get_or_insert_with(|| (turn, Box::pin(sleep_until(deadline()))));
        if *of != turn {
            *of = turn;
            sleep.as_mut().reset(deadline());
        }
        sleep.as_mut().poll(context).map(|()| took_too_long(&self.guest, reason))
    }

    /// Looks at what has come of writing.
    fn after_write<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.writing = None;
            return written;
        }
        let limit = self.patience.answer;
        let sleep = self.writing.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + limit)));
        sleep.as_mut().poll(context).map(|()| Err(took_too_long(&self.guest, TurnedAway::AnswerUnread)))
    }
}

impl<S: OverTcp> Patient<S> {
    /// Before something is written.
    fn before_write(&mut self) {
        if !self.has_small_buffer && matches!(self.guest.turn().stage(), Stage::Asking | Stage::Idle) {
            self.has_small_buffer = true;
            if let Err(error) = SockRef::from(self.stream.tcp()).set_send_buffer_size(SEND_BUFFER_BYTES) {
                tracing::debug!(%error, "a send buffer is as large as the system likes");
            }
        }
    }
}

/// Leaves the reason with the guest: HTTP does not hand on every error of a connection.
fn took_too_long(guest: &Guest, reason: TurnedAway) -> io::Error {
    guest.give_up(reason);
    io::Error::new(io::ErrorKind::TimedOut, reason)
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        match Pin::new(&mut this.stream).poll_read(context, buffer) {
            Poll::Ready(read) => {
                if buffer.filled().len() > before {
                    this.guest.heard();
                }
                Poll::Ready(read)
            }
            Poll::Pending => this.poll_heard_nothing(context).map(Err),
        }
    }
}

impl<S: AsyncWrite + OverTcp + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.before_write();
        let written = Pin::new(&mut this.stream).poll_write(context, bytes);
        this.after_write(context, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.before_write();
        let written = Pin::new(&mut this.stream).poll_write_vectored(context, parts);
        this.after_write(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.stream).poll_flush(context);
        this.after_write(context, flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let shut = Pin::new(&mut this.stream).poll_shutdown(context);
        this.after_write(context, shut)
    }
}
