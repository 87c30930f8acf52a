//! Reads one socket: from frames to requests, and what its end means.

use bytes::Bytes;

use super::link::{Link, PeerClose};
use crate::hub::{Attachment, Input, SocketEnd};
use crate::session::{Closing, Request};
use crate::wire::raw::{self, RawTarget};
use crate::wire::{Close, CloseCode, DecodeError, Encoding, FrameKind, decode_upstream};

/// What a client's frames are.
#[derive(Debug)]
pub struct SocketReader {
    /// What its messages look like.
    pub encoding: Encoding,
    /// Where its messages go, if it is raw and publishes.
    pub publishes_to: Option<RawTarget>,
}

/// What one read has brought.
#[derive(Debug, Default)]
pub struct Batch {
    /// For the shard, in order.
    pub requests: Vec<Request>,
    /// Set when it was the last.
    pub end: Option<End>,
}

/// Why reading ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The connection broke, or the writer has given up.
    Lost,
    /// The client sent a close frame.
    PeerClosed(PeerClose),
    /// The client broke the protocol; this is what it is told.
    Violation(Close),
    /// Memory was short, and what had come of a message was given up.
    GivenUp,
}

/// When a shard is told of an end, where the client may still send something. That is read and forgotten until the writer is
/// gone: closing a connection with unread bytes would reset it, and the client might lose the close frame that it has not
/// read yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Telling {
    /// At once, and nothing more is read.
    Now,
    /// Before the rest is read.
    BeforeTheRest,
    /// Behind it.
    BehindTheRest,
}

impl SocketReader {
    /// Takes a message of the client, in one frame or put together of several.
    ///
    /// # Errors
    /// It is none; the batch ends with that.
    pub fn take(
        &self,
        attachment: &Attachment,
        kind: FrameKind,
        data: &Bytes,
        batch: &mut Batch,
    ) -> Result<(), DecodeError> {
        let decoded = match &self.publishes_to {
            Some(target) => raw::decode_send_to_group(target, kind, data),
            None => decode_upstream(self.encoding, kind, data),
        };
        match decoded {
            Ok(message) => {
                let request = attachment.receive(message);
                batch.requests.extend(request.map(|message| Request { message, bytes: data.len() }));
                Ok(())
            }
            Err(error) => {
                batch.end = Some(End::Violation(error.close(self.encoding)));
                Err(error)
            }
        }
    }
}

/// Counts requests against their socket's bounds until they are settled, and makes them the input that they are.
pub fn submit(attachment: &Attachment, requests: Vec<Request>) -> Input {
    let bytes = requests.iter().map(|request| request.bytes).sum();
    attachment.outbox.lock().add_requests(requests.len(), bytes);
    Input::Requests { session: attachment.session, requests }
}

impl End {
    /// Reading has ended in this way: has the socket closed accordingly. Tells what the shard is told, and when.
    pub fn begin(self, attachment: &Attachment, link: &Link) -> (SocketEnd, Telling) {
        match self {
            Self::Lost => (SocketEnd::Lost, Telling::Now),
            Self::PeerClosed(close) => {
                link.peer_closed(close);
                let is_for_good = close.0 == Some(CloseCode::Normal as u16);
                // Before the answer goes out, so that a client that has it can't find its session still open.
                (if is_for_good { SocketEnd::ClosedForGood } else { SocketEnd::Closed }, Telling::Now)
            }
            Self::GivenUp => {
                // The session stays as it is, and may have gone on to another socket.
                let mut outbox = attachment.outbox.lock();
                let is_current = outbox.is_current(attachment.session.epoch);
                let closing = Closing::Now(Close::NO_ROOM_FOR_MESSAGE);
                let writer = is_current.then(|| outbox.close(closing)).flatten();
                drop(outbox);
                if let Some(writer) = writer {
                    writer.wake();
                }
                (SocketEnd::Lost, Telling::BehindTheRest)
            }
            Self::Violation(close) => (SocketEnd::Violation(close), Telling::BeforeTheRest),
        }
    }
}
