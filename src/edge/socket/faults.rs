//! The faults that are made on one socket, and what is said of them.
//!
//! | fault | what the socket does | in the log |
//! |---|---|---|
//! | cut | ends without a close frame, with whatever its client has not acknowledged | at once |
//! | stall | reads and writes nothing until the time is over; its client's own end is noticed only then, as behind a dead network | at its end |
//! | lose-next-ack | goes on as usual up to the ack of a publish that was executed, and ends before it | when it ends |
//!
//! Each is one event with the fields `fault`, `connection_id` and `effect`, also where the socket ends of itself before the
//! fault had its effect.

use std::collections::VecDeque;
use std::future::Future as _;
use std::io::Cursor;
use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use bytes::Bytes;
use oncewire_protocol::session::{Request, SentItem, SharedOutbox};
use oncewire_protocol::wire::{
    AckId, ConnectionId, Downstream, Encoding, FrameKind, Received, Upstream, decode_downstream,
};
use tokio::time::{Sleep, sleep};
use tokio_tungstenite::tungstenite::protocol::frame::FrameHeader;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};

use crate::edge::faults::{Fault, Registration};

/// The faults of one socket. Dropped with the socket.
pub(super) struct SocketFaults {
    registration: Registration,
    encoding: Encoding,
    is_cut: bool,
    stall: Option<Stall>,
    ack_to_lose: Option<AckToLose>,
}

struct Stall {
    duration: Duration,
    end: Pin<Box<Sleep>>,
}

/// The publishes that were read since the order and whose acks have not come yet. The bounds on what a socket may have
/// pending hold for them.
#[derive(Default)]
struct AckToLose {
    publishes: VecDeque<AckId>,
}

/// What the writer is to do.
pub(super) enum Effect {
    /// End without a close frame.
    Cut,
    /// Write nothing for now.
    Stalled,
}

/// An ack that is not written.
pub(super) struct Lost {
    /// Where its frame begins.
    pub begin: usize,
    ack_id: AckId,
    connection_id: ConnectionId,
}

impl SocketFaults {
    pub(super) fn new(registration: Registration, encoding: Encoding) -> Self {
        Self { registration, encoding, is_cut: false, stall: None, ack_to_lose: None }
    }

    pub(super) fn order(&mut self, fault: Fault) {
        match fault {
            Fault::Cut => self.is_cut = true,
            Fault::Stall(duration) => {
                self.stall = Some(Stall { duration, end: Box::pin(sleep(duration)) });
            }
            Fault::LoseNextAck => {
                self.ack_to_lose.get_or_insert_default();
            }
        }
    }

    /// Whether the writer has to look.
    pub(super) fn are_ordered(&self) -> bool {
        self.is_cut || self.stall.is_some() || self.ack_to_lose.is_some()
    }

    pub(super) fn is_stalled(&self) -> bool {
        self.stall.is_some()
    }

    pub(super) fn poll(&mut self, context: &mut Context<'_>, outbox: &SharedOutbox) -> Option<Effect> {
        if std::mem::take(&mut self.is_cut) {
            let connection_id = &self.registration.connection_id;
            let effect = "dropped without a close frame";
            let unacknowledged = outbox.lock().messages();
            tracing::info!(fault = "cut", %connection_id, effect, unacknowledged, "fault made");
            return Some(Effect::Cut);
        }
        let stall = self.stall.as_mut()?;
        if stall.end.as_mut().poll(context).is_pending() {
            return Some(Effect::Stalled);
        }
        self.end_stall("neither read nor written", Some(outbox.lock().messages()));
        None
    }

    /// Notes the publishes among requests that are about to be handed on.
    pub(super) fn note(&mut self, requests: &[Request]) {
        let Some(AckToLose { publishes }) = &mut self.ack_to_lose else { return };
        publishes.extend(requests.iter().filter_map(|request| match &request.message {
            Upstream::SendToGroup { ack_id, .. } => *ack_id,
            _ => None,
        }));
    }

    /// Finds the first ack of a noted publish that was executed, and has done with the order.
    pub(super) fn find_lost_ack(&mut self, out: &[u8], start: usize, sent: &[SentItem]) -> Option<Lost> {
        let AckToLose { publishes } = self.ack_to_lose.as_mut()?;
        let mut begin = start;
        for item in sent {
            let frame = &out[begin..item.end];
            if let Some((ack_id, is_executed)) = ack_in(frame, self.encoding)
                && let Some(noted) = publishes.iter().position(|noted| *noted == ack_id)
            {
                publishes.remove(noted);
                if is_executed {
                    self.ack_to_lose = None;
                    let connection_id = self.registration.connection_id.clone();
                    return Some(Lost { begin, ack_id, connection_id });
                }
            }
            begin = item.end;
        }
        None
    }

    fn end_stall(&mut self, effect: &str, unacknowledged: Option<usize>) {
        if let Some(Stall { duration, .. }) = self.stall.take() {
            let connection_id = &self.registration.connection_id;
            let milliseconds = duration.as_millis() as u64;
            tracing::info!(
                fault = "stall", %connection_id, effect, milliseconds, unacknowledged, "fault made"
            );
        }
    }
}

impl Drop for SocketFaults {
    fn drop(&mut self) {
        let connection_id = &self.registration.connection_id;
        if self.ack_to_lose.is_some() {
            let effect = "none: the socket ended first";
            tracing::info!(fault = "lose-next-ack", %connection_id, effect, "fault made");
        }
        if self.is_cut {
            let effect = "none: the socket ended first";
            tracing::info!(fault = "cut", %connection_id, effect, "fault made");
        }
        self.end_stall("neither read nor written until the socket ended", None);
    }
}

impl Lost {
    /// Says that the socket ends in place of the ack.
    pub(super) fn report(&self) {
        let Self { ack_id, connection_id, .. } = self;
        let effect = "executed, dropped in place of its ack";
        tracing::info!(fault = "lose-next-ack", %connection_id, effect, ack_id, "fault made");
    }
}

/// The ack in a frame, and whether it says that the request was executed; none in any other frame.
fn ack_in(frame: &[u8], encoding: Encoding) -> Option<(AckId, bool)> {
    let mut header = Cursor::new(frame);
    let (kind, _) = FrameHeader::parse(&mut header).ok()??;
    let kind = match kind.opcode {
        OpCode::Data(Data::Text) => FrameKind::Text,
        OpCode::Data(Data::Binary) => FrameKind::Binary,
        _ => return None,
    };
    let payload = frame.get(usize::try_from(header.position()).ok()?..)?;
    match decode_downstream(encoding, kind, &Bytes::copy_from_slice(payload)).ok()? {
        Received::Control(Downstream::Ack { ack_id, error }) => Some((ack_id, error.is_none())),
        _ => None,
    }
}
