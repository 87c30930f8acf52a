//! A socket as tests see it: pulls from an outbox like a writer and reads like a client.

use std::sync::Arc;
use std::task::{Wake, Waker};

use bytes::{Bytes, BytesMut};

use super::{AttachEpoch, MemoryBudget, Outbox, Progress, SharedMessage};
use crate::log::{MessageRef, Time};
use crate::wire::limits::FRAME_PAYLOAD_BYTES_MAX;
use crate::wire::{
    Downstream, Encoding, FrameKind, GroupName, Message, Metadata, Payload, PayloadKind, Received, Sender,
    decode_downstream,
};

/// A text to the group `g`.
pub(crate) fn text(payload: &str) -> Message {
    Message {
        sender: Sender::Group { group: GroupName::new("g").unwrap(), user_id: None },
        payload: Payload { kind: PayloadKind::Text, bytes: Bytes::copy_from_slice(payload.as_bytes()) },
        metadata: Metadata::default(),
    }
}

/// A text in memory, with no limit to its time or to memory.
pub(crate) fn shared(payload: &str) -> Arc<SharedMessage> {
    SharedMessage::new(MessageRef::default(), text(payload), None, &Arc::new(MemoryBudget::new(usize::MAX)))
}

/// A text in memory that need not be sent from a time on.
pub(crate) fn expiring(payload: &str, at: Time) -> Arc<SharedMessage> {
    SharedMessage::new(
        MessageRef::default(),
        text(payload),
        Some(at),
        &Arc::new(MemoryBudget::new(usize::MAX)),
    )
}

/// Pulls and writes until nothing is left to write; returns what the client reads.
pub(crate) fn drain(outbox: &mut Outbox, epoch: AttachEpoch, now: Time) -> (Vec<String>, Progress) {
    let mut read = Vec::new();
    loop {
        let mut out = BytesMut::new();
        let progress = outbox.transmit(epoch, now, 1 << 16, &mut out, &mut Vec::new(), Waker::noop());
        read.extend(read_frames(&out));
        if !matches!(progress, Progress::Frames | Progress::LastFrames) {
            return (read, progress);
        }
    }
}

/// [`drain`], when there is nothing to do afterwards.
pub(crate) fn read(outbox: &mut Outbox, epoch: AttachEpoch, now: Time) -> Vec<String> {
    let (read, progress) = drain(outbox, epoch, now);
    assert_eq!(progress, Progress::Idle);
    read
}

/// Whole frames, each in short: `7 hi` for a message with sequence id 7, `hi` for one without, `ack 3`,
/// `ack 3 Forbidden`, `pong`, `connected`.
pub(crate) fn read_frames(mut bytes: &[u8]) -> Vec<String> {
    let mut read = Vec::new();
    while !bytes.is_empty() {
        let (first, payload, mut rest) = split_frame(bytes);
        let kind = match first & 0x7f {
            1 => FrameKind::Text,
            2 => FrameKind::Binary,
            other => panic!("a message that begins with opcode {other}"),
        };
        let (mut message, mut is_last) = (payload.to_vec(), first & 0x80 != 0);
        while !is_last {
            let (more, payload, behind) = split_frame(rest);
            assert_eq!(more & 0x7f, 0, "a fragment");
            message.extend_from_slice(payload);
            (is_last, rest) = (more & 0x80 != 0, behind);
        }
        read.push(short(kind, &message));
        bytes = rest;
    }
    read
}

/// The first frame's first byte and payload, and what follows it.
fn split_frame(bytes: &[u8]) -> (u8, &[u8], &[u8]) {
    let (header, payload) = match bytes[1] {
        126 => (4, usize::from(u16::from_be_bytes([bytes[2], bytes[3]]))),
        127 => (10, u64::from_be_bytes(bytes[2..10].try_into().unwrap()) as usize),
        short => (2, usize::from(short)),
    };
    assert!(payload <= FRAME_PAYLOAD_BYTES_MAX, "a frame that Netty would not take");
    (bytes[0], &bytes[header..header + payload], &bytes[header + payload..])
}

fn short(kind: FrameKind, payload: &[u8]) -> String {
    if kind == FrameKind::Binary || !payload.starts_with(b"{\"") {
        return String::from_utf8_lossy(payload).into_owned();
    }
    match decode_downstream(Encoding::Json, kind, &Bytes::copy_from_slice(payload)).unwrap() {
        Received::Message { message, sequence_id } => {
            let text = String::from_utf8_lossy(&message.payload.bytes).into_owned();
            sequence_id.map_or(text.clone(), |id| format!("{id} {text}"))
        }
        Received::Control(Downstream::Ack { ack_id, error }) => {
            error.map_or(format!("ack {ack_id}"), |error| format!("ack {ack_id} {}", error.name.as_str()))
        }
        Received::Control(Downstream::Pong) => "pong".to_owned(),
        Received::Control(Downstream::Connected { .. }) => "connected".to_owned(),
        Received::Control(Downstream::Disconnected { message }) => format!("disconnected {message}"),
        other => format!("{other:?}"),
    }
}

/// A waker that counts.
#[derive(Debug, Default)]
pub(crate) struct Wakes(std::sync::atomic::AtomicUsize);

impl Wakes {
    pub(crate) fn new() -> (Arc<Self>, Waker) {
        let wakes = Arc::new(Self::default());
        (Arc::clone(&wakes), Waker::from(wakes))
    }

    pub(crate) fn count(&self) -> usize {
        self.0.load(std::sync::atomic::Ordering::Relaxed)
    }
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}
