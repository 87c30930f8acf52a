//! Reads a log from an offset on: from the disk until it has caught up, then what the committer hands on.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::stream::Stream;
use oncewire_protocol::log::Offset;
use tokio::task::JoinHandle;

use super::committer::Queue;
use super::redb_file::definite;
use super::segments::Segments;
use super::unread::{Next, TailId};
use crate::store::{Portion, StoreError, StoreErrorCause};

/// One reader of a log.
pub(super) struct EmbeddedTail {
    queue: Arc<Queue>,
    segments: Arc<Segments>,
    id: TailId,
    /// A read from the disk, off the runtime's own threads.
    reading: Option<JoinHandle<Result<Portion, StoreError>>>,
}

impl EmbeddedTail {
    pub(super) fn new(queue: Arc<Queue>, segments: Arc<Segments>, from: Offset) -> Self {
        let id = queue.unread(|unread| unread.add_tail(from));
        Self { queue, segments, id, reading: None }
    }
}

impl Stream for EmbeddedTail {
    type Item = Result<Portion, StoreError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(reading) = &mut self.reading {
                let read = ready!(Pin::new(reading).poll(context));
                self.reading = None;
                let read = read.unwrap_or_else(|error| {
                    let what = format!("a read of the log did not end: {error}");
                    Err(definite(StoreErrorCause::Io(what)))
                });
                if let Ok(portion) = &read
                    && let Some((last, _)) = portion.last()
                {
                    self.queue.unread(|unread| unread.advance(self.id, Offset(last.0 + 1)));
                }
                return Poll::Ready(Some(read));
            }
            let first = self.segments.first();
            if self.queue.unread(|unread| unread.position(self.id)) < first {
                let cause = StoreErrorCause::Trimmed { first: first.0 };
                return Poll::Ready(Some(Err(definite(cause))));
            }
            match self.queue.unread(|unread| unread.next(self.id, context.waker())) {
                Next::Records(portion) => return Poll::Ready(Some(Ok(portion))),
                Next::Nothing => return Poll::Pending,
                Next::OnDisk(from, end) => {
                    let segments = Arc::clone(&self.segments);
                    self.reading = Some(tokio::task::spawn_blocking(move || segments.read(from, end)));
                }
            }
        }
    }
}

impl Drop for EmbeddedTail {
    fn drop(&mut self) {
        self.queue.unread(|unread| unread.remove_tail(self.id));
    }
}
