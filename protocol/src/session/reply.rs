//! What is answered to a session's client: an ack, a pong, the first message of a session.

use crate::wire::Downstream;

/// A reply that waits to be written.
#[derive(Debug)]
pub(super) struct Reply {
    /// Position among the deliveries that goes out before this reply.
    pub(super) due: u64,
    pub(super) message: Downstream,
}

impl Reply {
    /// What it takes in memory, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        let text_bytes = match &self.message {
            Downstream::Ack { error, .. } => error.as_ref().map_or(0, |error| error.message.len()),
            Downstream::InvokeFailed { invocation_id, error } => invocation_id.len() + error.message.len(),
            Downstream::StreamClosed { stream_id, error } => stream_id.len() + error.message.len(),
            Downstream::Disconnected { message } => message.len(),
            Downstream::Connected { .. } | Downstream::Pong => 0,
        };
        size_of::<Self>() + text_bytes
    }
}
