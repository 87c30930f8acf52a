//! Reader and writer of an attached socket.

use std::task::Waker;

use bytes::{Buf, BytesMut};
use oncewire_protocol::hub::{Attachment, Input, SocketEnd};
use oncewire_protocol::session::{Progress, Request, SentItem};
use oncewire_protocol::wire::raw::{self, RawTarget};
use oncewire_protocol::wire::{CloseCode, ConnectionId, FrameKind, Opcode, Subprotocol, decode_upstream};

use crate::Failure;
use crate::coverage::Path;
use crate::edge::GatewayEnd;
use crate::pipe::{close_code, take_frame};
use crate::world::{Event, World};

/// Transmissions that a writer makes before others have their turn.
const TRANSMISSIONS_MAX: usize = 4;

/// Reader and writer of a socket.
pub struct Serving {
    pub(crate) attachment: Attachment,
    pub(crate) connection_id: ConnectionId,
    shard: usize,
    subprotocol: Subprotocol,
    /// Where a raw client's frames go.
    pub(crate) publishes_to: Option<RawTarget>,
    reader: Waker,
    is_read_scheduled: bool,
    /// The reader has seen the end, or a violation.
    is_reader_done: bool,
    /// Bytes of a frame that is not whole.
    partial: BytesMut,
    writer: Waker,
    is_write_scheduled: bool,
    write: Write,
    is_idle: bool,
}

impl Serving {
    /// A socket that has just been attached.
    pub fn new(
        attachment: Attachment,
        connection_id: ConnectionId,
        shard: usize,
        subprotocol: Subprotocol,
        reader: Waker,
        writer: Waker,
    ) -> Self {
        Self {
            attachment,
            connection_id,
            shard,
            subprotocol,
            publishes_to: None,
            reader,
            is_read_scheduled: false,
            is_reader_done: false,
            partial: BytesMut::new(),
            writer,
            is_write_scheduled: false,
            write: Write::default(),
            is_idle: false,
        }
    }

    /// What it speaks.
    pub fn subprotocol(&self) -> Subprotocol {
        self.subprotocol
    }

    /// Its session's shard.
    pub fn shard(&self) -> usize {
        self.shard
    }

    /// Whether there is nothing to write.
    pub fn is_quiet(&self) -> bool {
        self.is_idle && !self.is_write_scheduled
    }
}

/// A transmission that is being written.
#[derive(Default)]
struct Write {
    bytes: BytesMut,
    sent: Vec<SentItem>,
    /// How much of it has been written.
    written: usize,
}

impl Write {
    /// Index of the first frame of which nothing has been written.
    fn first_untouched(&self) -> usize {
        let mut start = 0;
        self.sent
            .iter()
            .position(|item| std::mem::replace(&mut start, item.end) >= self.written)
            .unwrap_or(self.sent.len())
    }

    /// Whether the outbox would finish the begun frame otherwise than with the bytes at hand.
    fn rest_is_other(&self, untouched: usize, Attachment { outbox, .. }: &Attachment) -> bool {
        let Some(item) = untouched.checked_sub(1).and_then(|begun| self.sent.get(begun)) else {
            return false;
        };
        let bytes = &self.bytes[..item.end - self.written];
        let rest = (!bytes.is_empty()).then(|| outbox.lock().rest_of_message(item, bytes.len())).flatten();
        rest.is_some_and(|mut rest| rest.copy_to_bytes(rest.remaining()) != bytes)
    }

    /// What is left of the frame that was begun.
    fn into_begun(mut self) -> BytesMut {
        let begun = self.first_untouched().checked_sub(1).and_then(|begun| self.sent.get(begun));
        let end = begun.map_or(0, |item| item.end.saturating_sub(self.written));
        self.bytes.split_to(end)
    }
}

impl World {
    pub(crate) fn serving(&mut self, conn: u64) -> Option<&mut Serving> {
        match &mut self.conns.get_mut(&conn)?.gateway {
            GatewayEnd::Serving(serving) => Some(serving),
            _ => None,
        }
    }

    pub(crate) fn schedule_read(&mut self, conn: u64) {
        if let Some(serving) = self.serving(conn)
            && !std::mem::replace(&mut serving.is_read_scheduled, true)
        {
            self.schedule_in((0, 1), Event::Read { conn });
        }
    }

    pub(crate) fn schedule_write(&mut self, conn: u64) {
        if let Some(serving) = self.serving(conn)
            && !std::mem::replace(&mut serving.is_write_scheduled, true)
        {
            self.schedule_in((0, 1), Event::Write { conn });
        }
    }

    /// The socket has room again, perhaps.
    pub(crate) fn schedule_blocked_write(&mut self, conn: u64) {
        if self.serving(conn).is_some_and(|serving| !serving.write.bytes.is_empty()) {
            self.schedule_write(conn);
        }
    }

    pub(crate) fn run_reader(&mut self, conn: u64) {
        let most = self.random.pick(&[1, 100, 5_000, usize::MAX]);
        let Some(state) = self.conns.get_mut(&conn) else { return };
        let hub = state.hub;
        let GatewayEnd::Serving(serving) = &mut state.gateway else { return };
        serving.is_read_scheduled = false;
        if serving.is_reader_done {
            return;
        }
        let Attachment { session, outbox } = &serving.attachment;
        if !outbox.lock().may_read(session.epoch, &serving.reader) {
            self.note(Path::ReadingStopped);
            return;
        }
        let bytes = state.up.read(most);
        serving.partial.unsplit(bytes);
        let mut requests = Vec::new();
        let mut end = None;
        while let Some(frame) = take_frame(&mut serving.partial) {
            if frame.opcode == Opcode::Close as u8 {
                let is_for_good = close_code(&frame.payload) == Some(CloseCode::Normal as u16);
                end = Some(if is_for_good { SocketEnd::ClosedForGood } else { SocketEnd::Closed });
                break;
            }
            let kind = if frame.opcode == Opcode::Text as u8 { FrameKind::Text } else { FrameKind::Binary };
            let encoding = serving.subprotocol.encoding();
            let decoded = match &serving.publishes_to {
                Some(target) => raw::decode_send_to_group(target, kind, &frame.payload),
                None => decode_upstream(encoding, kind, &frame.payload),
            };
            match decoded {
                Ok(message) => {
                    let bytes = frame.payload.len();
                    requests.extend(
                        serving.attachment.receive(message).map(|message| Request { message, bytes }),
                    );
                }
                Err(error) => {
                    end = Some(SocketEnd::Violation(error.close(encoding)));
                    break;
                }
            }
        }
        if end.is_none() && state.up.is_at_end() {
            end = Some(SocketEnd::Lost);
        }
        let is_more = state.up.readable() > 0;
        let (session, outbox, shard) =
            (serving.attachment.session, serving.attachment.outbox.clone(), serving.shard);
        serving.is_reader_done = end.is_some();
        if !requests.is_empty() {
            let bytes = requests.iter().map(|request| request.bytes).sum();
            outbox.lock().add_requests(requests.len(), bytes);
            self.send(hub, shard, Input::Requests { session, requests }, Some(outbox.clone()));
        }
        self.refill(conn);
        match end {
            // The writer has a close frame to write.
            Some(end @ SocketEnd::Violation(_)) => {
                self.send(hub, shard, Input::SocketClosed { session, end }, Some(outbox));
            }
            Some(end) => {
                self.send(hub, shard, Input::SocketClosed { session, end }, Some(outbox));
                self.gateway_leaves(conn);
            }
            None if is_more => self.schedule_read(conn),
            None => {}
        }
    }

    pub(crate) fn run_writer(&mut self, conn: u64) {
        if let Some(serving) = self.serving(conn) {
            serving.is_write_scheduled = false;
        }
        for _ in 0..TRANSMISSIONS_MAX {
            if !self.write_on(conn) {
                return;
            }
            match self.transmit(conn) {
                Progress::Frames => {}
                Progress::LastFrames => {
                    let is_done = self.write_on(conn);
                    if let Some(serving) = self.serving(conn) {
                        serving.is_idle = is_done;
                    }
                    return;
                }
                Progress::Idle | Progress::Close(_) | Progress::Cut => return,
            }
        }
        self.schedule_write(conn);
    }

    /// Goes on with a write that is under way; tells whether it is done.
    fn write_on(&mut self, conn: u64) -> bool {
        let Some(serving) = self.serving(conn) else { return false };
        if serving.write.bytes.is_empty() {
            return true;
        }
        let epoch = serving.attachment.session.epoch;
        if serving.attachment.outbox.lock().is_write_over(epoch, &serving.writer) {
            self.give_up_write(conn);
            return false;
        }
        let all = serving.write.bytes.len();
        let is_partial = self.random.permille(self.weather.partial_write);
        let most = if is_partial { self.random.index(all) + 1 } else { all };
        let Some(serving) = self.serving(conn) else { return false };
        let bytes = std::mem::take(&mut serving.write.bytes);
        let taken = self.gateway_writes(conn, &bytes[..most]);
        let may_rewind = self.random.permille(500);
        let Some(serving) = self.serving(conn) else { return false };
        serving.write.bytes = bytes;
        let _ = serving.write.bytes.split_to(taken);
        serving.write.written += taken;
        if serving.write.bytes.is_empty() {
            serving.write = Write::default();
            return true;
        }
        let write = &mut serving.write;
        let untouched = write.first_untouched();
        let is_other = write.rest_is_other(untouched, &serving.attachment);
        let is_rewound = may_rewind && untouched < write.sent.len();
        if is_rewound {
            let Attachment { session, outbox } = &serving.attachment;
            outbox.lock().rewind(session.epoch, &write.sent[untouched..]);
            write.sent.truncate(untouched);
            let end = write.sent.last().map_or(0, |item| item.end);
            write.bytes.truncate(end - write.written);
        }
        let is_done = write.bytes.is_empty();
        if is_done {
            *write = Write::default();
        }
        if is_other {
            self.fail(Failure::Driver("the rest of a frame is another than what was left of it".to_owned()));
        }
        if taken > 0 {
            self.note(if is_rewound { Path::PartialWriteRewound } else { Path::PartialWrite });
        }
        if taken == most || is_done {
            // The pipe has room; only this write was small.
            self.schedule_write(conn);
        }
        false
    }

    /// The socket is to be closed in the middle of a write: what has been begun is finished, then comes a close frame
    /// if there is to be one.
    fn give_up_write(&mut self, conn: u64) {
        self.note(Path::WriteGivenUp);
        let Some(hub) = self.conns.get(&conn).map(|state| state.hub) else { return };
        let now = self.hub_time(hub);
        let Some(serving) = self.serving(conn) else { return };
        let Serving { attachment: Attachment { session, outbox }, write, writer, .. } = serving;
        let rest = std::mem::take(write).into_begun();
        let (mut out, mut sent) = (BytesMut::new(), Vec::new());
        let ordered = outbox.lock().transmit(session.epoch, now, 0, &mut out, &mut sent, writer);
        if let Progress::Close(close) = ordered
            && self.gateway_writes(conn, &rest) == rest.len()
        {
            self.close_with(conn, close);
        }
        self.gateway_drops(conn);
    }

    /// Asks for something to write, and closes the socket if that is the answer.
    fn transmit(&mut self, conn: u64) -> Progress {
        let budget = self.random.within(self.weather.write_budget_bytes) as usize;
        let Some(hub) = self.conns.get(&conn).map(|state| state.hub) else { return Progress::Cut };
        let now = self.hub_time(hub);
        let Some(serving) = self.serving(conn) else { return Progress::Cut };
        let Serving { attachment, write, writer, .. } = serving;
        let progress = attachment.outbox.lock().transmit(
            attachment.session.epoch,
            now,
            budget,
            &mut write.bytes,
            &mut write.sent,
            writer,
        );
        serving.is_idle = progress == Progress::Idle;
        match progress {
            Progress::Frames | Progress::LastFrames => return progress,
            _ if !serving.write.bytes.is_empty() => {
                self.fail(Failure::Driver("bytes beside a progress other than frames".to_owned()));
                return Progress::Cut;
            }
            Progress::Idle => return progress,
            Progress::Close(close) => {
                if close.code == CloseCode::PolicyViolation {
                    self.note(Path::DroppedAsSlow);
                }
                self.close_with(conn, close);
            }
            Progress::Cut => {}
        }
        self.gateway_drops(conn);
        progress
    }
}
