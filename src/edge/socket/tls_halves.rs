//! The two halves of a connection inside TLS.
//!
//! They share its state under a lock, which is held while one of them asks the operating system, and never longer: both
//! ask only what can be done at once. Each half's task is woken for its own direction.

use std::io::{self, Read as _};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::edge::tls::Stream;

type Shared = Arc<Mutex<Stream>>;

/// What reads.
pub(super) struct TlsReadHalf(Shared);

/// What writes. It has bytes of its own to pass on after a write: whoever has nothing more to write has to flush.
pub(super) struct TlsWriteHalf(Shared);

/// Takes a connection apart.
pub(super) fn split(stream: Stream) -> (TlsReadHalf, TlsWriteHalf) {
    let shared = Arc::new(Mutex::new(stream));
    (TlsReadHalf(Arc::clone(&shared)), TlsWriteHalf(shared))
}

impl AsyncRead for TlsReadHalf {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut stream = self.0.lock();
        ready!(Pin::new(&mut *stream).poll_read(context, buffer))?;
        // One read brings a single record, and most clients send one for each message; whatever else has arrived with
        // it becomes part of the same batch.
        let (_, session) = stream.get_mut();
        while let Ok(bytes @ 1..) = session.reader().read(buffer.initialize_unfilled()) {
            buffer.advance(bytes);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for TlsWriteHalf {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.lock()).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.lock()).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.lock()).poll_shutdown(context)
    }
}
