//! Bytes from the connection to the frame reader.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};
use tokio_tungstenite::tungstenite::WebSocket;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

/// How much one read takes from the connection, and so how much becomes one batch of requests.
const READ_BYTES: usize = 16 * 1024;

thread_local! {
    /// One large buffer for all sockets of a thread: none of them keeps it between two reads.
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// What one read has brought, handed out to the frame reader in the portions that it asks for. Between two reads it
/// is empty, and the frame reader holds no more than the beginning of a frame.
///
/// Writes go nowhere: the frame reader would answer pings and closes by itself, but here the writer does.
#[derive(Default)]
pub(super) struct Inbound {
    bytes: Vec<u8>,
    at: usize,
    end: usize,
}

impl Inbound {
    /// Begins with what came behind the upgrade request.
    pub(super) fn new(read_ahead: &[u8]) -> Self {
        Self { bytes: read_ahead.to_vec(), at: 0, end: read_ahead.len() }
    }

    /// Reads once from the connection; tells how many bytes came, none at its end.
    pub(super) fn poll_fill(
        &mut self,
        io: &mut (impl AsyncRead + Unpin),
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let mut bytes = SCRATCH.take();
        bytes.resize(READ_BYTES, 0);
        let mut buffer = ReadBuf::new(&mut bytes);
        let read = Pin::new(io).poll_read(context, &mut buffer).map_ok(|()| buffer.filled().len());
        if let Poll::Ready(Ok(end @ 1..)) = read {
            *self = Self { bytes, at: 0, end };
        } else {
            SCRATCH.set(bytes);
        }
        Poll::Ready(ready!(read))
    }

    /// What was not handed out yet.
    pub(super) fn waiting(&self) -> &[u8] {
        &self.bytes[self.at..self.end]
    }

    /// Gives the large buffer back. What was not handed out is forgotten.
    pub(super) fn clear(&mut self) {
        let Self { bytes, .. } = std::mem::take(self);
        if bytes.capacity() >= READ_BYTES {
            SCRATCH.set(bytes);
        }
    }
}

impl io::Read for Inbound {
    fn read(&mut self, portion: &mut [u8]) -> io::Result<usize> {
        let waiting = self.waiting();
        if waiting.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let taken = waiting.len().min(portion.len());
        portion[..taken].copy_from_slice(&waiting[..taken]);
        self.at += taken;
        Ok(taken)
    }
}

impl io::Write for Inbound {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads the frames of a client. `read_ahead` is what has come before, `buffer_bytes` the first size of its buffer.
pub(super) fn frame_reader(
    read_ahead: &[u8],
    buffer_bytes: usize,
    message_bytes_max: usize,
) -> WebSocket<Inbound> {
    let config = WebSocketConfig::default()
        .read_buffer_size(buffer_bytes)
        .write_buffer_size(0)
        .max_message_size(Some(message_bytes_max))
        .max_frame_size(Some(message_bytes_max));
    WebSocket::from_raw_socket(Inbound::new(read_ahead), Role::Server, Some(config))
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
    use std::future::poll_fn;
    use std::io::{ErrorKind, Read, Write};

    use super::*;

    /// Takes everything in portions of this size.
    fn take(inbound: &mut Inbound, portion_bytes: usize) -> Vec<u8> {
        let mut taken = Vec::new();
        let mut portion = vec![0; portion_bytes];
        loop {
            match inbound.read(&mut portion) {
                Ok(read) => taken.extend_from_slice(&portion[..read]),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    return taken;
                }
            }
        }
    }

    #[tokio::test]
    async fn large_reads_are_handed_out_in_small_portions_and_nothing_is_lost() {
        let sent: Vec<u8> = (0..50_000u32).map(|n| n as u8).collect();
        let mut io = &sent[7..];
        let mut inbound = Inbound::new(&sent[..7]);
        let mut received = take(&mut inbound, 3);
        inbound.clear();
        let mut reads = 0;
        while poll_fn(|context| inbound.poll_fill(&mut io, context)).await.unwrap() > 0 {
            received.extend(take(&mut inbound, 100));
            inbound.clear();
            assert_eq!(inbound.bytes.capacity(), 0, "an idle socket keeps no buffer");
            reads += 1;
        }
        assert!(received == sent);
        assert_eq!(reads, sent.len().div_ceil(READ_BYTES));
    }

    #[test]
    fn the_frame_readers_own_answers_go_nowhere() {
        let mut inbound = Inbound::new(b"x");
        assert_eq!(inbound.write(b"pong").unwrap(), 4);
        assert_eq!(take(&mut inbound, 10), b"x");
    }
}
