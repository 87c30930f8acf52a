//! The byte stream under a socket's frame reader.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use super::link::Link;

/// How much one read takes from the connection. The frame reader's own buffer is small, since each idle socket has
/// one; what does not fit is kept here until the frame reader has taken it.
const READ_BYTES: usize = 16 * 1024;

thread_local! {
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into());
}

/// Reads from a connection in large portions and hands them out in small ones. Writes go nowhere: the frame reader
/// answers pings and closes by itself, but here the writer does.
pub(super) struct Inbound<R> {
    io: R,
    /// Read and not handed out.
    ahead: Vec<u8>,
    ahead_at: usize,
    /// Set while only what was read already may be handed out.
    is_held: bool,
    link: Link,
}

impl<R> Inbound<R> {
    pub(super) fn new(io: R, read_ahead: &[u8], link: Link) -> Self {
        Self { io, ahead: read_ahead.to_vec(), ahead_at: 0, is_held: false, link }
    }

    /// Whether reading stops where another read of the connection would be needed.
    pub(super) fn hold(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    /// The connection itself. What was read ahead stays behind.
    pub(super) fn connection(&mut self) -> &mut R {
        &mut self.io
    }

    fn take_ahead(&mut self, buffer: &mut ReadBuf<'_>) {
        let waiting = &self.ahead[self.ahead_at..];
        let taken = waiting.len().min(buffer.remaining());
        buffer.put_slice(&waiting[..taken]);
        self.ahead_at += taken;
        if self.ahead_at == self.ahead.len() {
            self.ahead = Vec::new();
            self.ahead_at = 0;
        }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Inbound<R> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.ahead.is_empty() {
            if this.is_held {
                // The reader comes back without the hold, so nobody needs to be woken.
                return Poll::Pending;
            }
            SCRATCH.with_borrow_mut(|scratch| {
                let mut portion = ReadBuf::new(scratch);
                ready!(Pin::new(&mut this.io).poll_read(context, &mut portion))?;
                let read = portion.filled();
                if !read.is_empty() {
                    this.link.heard();
                }
                let fitting = read.len().min(buffer.remaining());
                buffer.put_slice(&read[..fitting]);
                this.ahead = read[fitting..].to_vec();
                Poll::Ready(Ok(()))
            })
        } else {
            this.take_ahead(buffer);
            Poll::Ready(Ok(()))
        }
    }
}

impl<R: Unpin> AsyncWrite for Inbound<R> {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(buffer.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Reads to the end and forgets it: closing a connection with unread bytes would reset it, and the client might lose
/// the close frame that it has not read yet.
pub(super) async fn drain(io: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
    let mut forgotten = [0; 256];
    while io.read(&mut forgotten).await? > 0 {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_large_portion_is_handed_out_in_small_ones_and_nothing_is_lost() {
        let sent: Vec<u8> = (0..50_000u32).map(|n| n as u8).collect();
        let mut inbound = Inbound::new(&sent[7..], &sent[..7], Link::new());
        let mut received = Vec::new();
        let mut buffer = [0; 100];
        loop {
            match inbound.read(&mut buffer).await.unwrap() {
                0 => break,
                read => received.extend_from_slice(&buffer[..read]),
            }
        }
        assert!(received == sent);
        assert_eq!(inbound.ahead.capacity(), 0);
    }

    #[tokio::test]
    async fn while_held_only_what_was_read_already_is_handed_out() {
        let sent = vec![1; READ_BYTES + 1];
        let mut inbound = Inbound::new(&sent[..], &[], Link::new());
        let mut buffer = vec![0; READ_BYTES - 10];
        assert_eq!(inbound.read(&mut buffer).await.unwrap(), READ_BYTES - 10);
        inbound.hold(true);
        assert_eq!(inbound.read(&mut buffer).now_or_never().unwrap().unwrap(), 10);
        assert!(inbound.read(&mut buffer).now_or_never().is_none());
        inbound.hold(false);
        assert_eq!(inbound.read(&mut buffer).await.unwrap(), 1);
    }

    #[tokio::test]
    async fn any_byte_is_a_sign_of_life_and_the_end_is_none() {
        let link = Link::new();
        let mut inbound = Inbound::new(&b"x"[..], &[], link.clone());
        assert!(link.take_heard(), "the upgrade counts");
        let mut buffer = [0; 8];
        assert_eq!(inbound.read(&mut buffer).await.unwrap(), 1);
        assert!(link.take_heard());
        assert_eq!(inbound.read(&mut buffer).await.unwrap(), 0);
        assert!(!link.take_heard());
    }
}
