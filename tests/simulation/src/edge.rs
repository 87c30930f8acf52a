//! The gateway's end of a socket: upgrade, reader and writer. It uses the calls of the core that the real edge uses, and
//! no others.

use std::task::Waker;

use bytes::BytesMut;
use oncewire_protocol::hub::{Attachment, Input, OpenError, OpenId, Opening, Resuming, SessionKey, SocketEnd};
use oncewire_protocol::session::{Mark, Progress, Request};
use oncewire_protocol::wire::{
    Close, CloseCode, ConnectionId, FrameKind, GroupName, Opcode, ReconnectionToken, Subprotocol,
    decode_upstream,
};

use crate::coverage::Path;
use crate::network::{Answer, Upgrade};
use crate::pipe::{close_code, close_frame, take_frame};
use crate::world::{Event, Task, World};
use crate::{DriverMutation, Failure};

/// Transmissions that a writer makes before others have their turn.
const TRANSMISSIONS_MAX: usize = 4;

/// Where the gateway stands.
pub enum GatewayEnd {
    /// The upgrade request has not arrived.
    Away,
    /// A shard decides.
    Deciding,
    /// The socket is attached, or was.
    Serving(Box<Serving>),
    /// The gateway has let go of the socket.
    Gone,
}

/// Reader and writer of a socket.
pub struct Serving {
    pub(crate) attachment: Attachment,
    pub(crate) connection_id: ConnectionId,
    shard: usize,
    subprotocol: Subprotocol,
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

/// A transmission that is being written.
#[derive(Default)]
struct Write {
    bytes: BytesMut,
    marks: Vec<Mark>,
    /// How much of it has been written.
    written: usize,
}

impl Write {
    /// Index of the first frame of which nothing has been written.
    fn first_untouched(&self) -> usize {
        let mut start = 0;
        self.marks
            .iter()
            .position(|mark| std::mem::replace(&mut start, mark.end) >= self.written)
            .unwrap_or(self.marks.len())
    }

    /// Whether the last frame that was begun has been finished.
    fn is_between_frames(&self) -> bool {
        self.written == 0 || self.marks.iter().any(|mark| mark.end == self.written)
    }
}

impl GatewayEnd {
    /// Whether there is nothing to write.
    pub fn is_quiet(&self) -> bool {
        match self {
            Self::Away | Self::Deciding => false,
            Self::Serving(serving) => serving.is_idle && !serving.is_write_scheduled,
            Self::Gone => true,
        }
    }
}

/// A token names its session and its log's epoch. The real one is signed; here nobody can forge.
pub fn token(connection_id: &str, epoch: u64) -> ReconnectionToken {
    ReconnectionToken(format!("{connection_id}|{epoch}"))
}

impl World {
    pub(crate) fn upgrade(&mut self, conn: u64) {
        let Some(state) = self.conns.get_mut(&conn).filter(|state| matches!(state.gateway, GatewayEnd::Away)) else {
            return;
        };
        if !self.is_up {
            state.gateway = GatewayEnd::Gone;
            self.answer(conn, Answer::Failed);
            return self.reap(conn);
        }
        state.gateway = GatewayEnd::Deciding;
        let (hub, open, upgrade) = (state.hub, OpenId(conn), state.upgrade.clone());
        let epoch = self.hubs[hub].log.epoch;
        match upgrade {
            Upgrade::Open { subprotocol, roles, groups } => {
                let connection_id = ConnectionId::new(&session_name(self.hubs[hub].name, conn));
                self.hubs[hub].known.push(connection_id.clone());
                let reconnection_token =
                    subprotocol.is_reliable().then(|| token(connection_id.as_str(), epoch));
                let groups = groups.iter().filter_map(|group| GroupName::new(group).ok()).collect();
                let shard = self.hubs[hub].shard_of(&connection_id);
                let opening =
                    Opening { open, connection_id, user_id: None, subprotocol, roles, groups, reconnection_token };
                self.send(hub, shard, opening.into(), None);
            }
            Upgrade::Resume { connection_id, token: proof } => {
                let is_old = proof != token(&connection_id, epoch);
                let is_bad = !proof.0.starts_with(&format!("{connection_id}|"));
                if is_bad {
                    self.note(Path::ResumeBadProof);
                    return self.refuse(conn);
                }
                if is_old {
                    self.note(Path::ResumeOldEpoch);
                    if self.driver_mutation != Some(DriverMutation::EpochForgotten) {
                        return self.refuse(conn);
                    }
                }
                let connection_id = ConnectionId::new(&connection_id);
                let shard = self.hubs[hub].shard_of(&connection_id);
                let subprotocol = Subprotocol::JsonReliable;
                self.send(hub, shard, Input::Resume(Resuming { open, connection_id, subprotocol }), None);
            }
        }
    }

    /// A recovery that can never succeed: 101, then 1008.
    fn refuse(&mut self, conn: u64) {
        self.answer(conn, Answer::Switched);
        self.close_with(conn, Close::RECOVERY_REFUSED);
        self.gateway_leaves(conn);
    }

    pub(crate) fn attached(
        &mut self,
        (hub, shard): (usize, usize),
        conn: u64,
        outcome: Result<Attachment, OpenError>,
    ) {
        let is_waiting = self.conns.get(&conn).is_some_and(|state| matches!(state.gateway, GatewayEnd::Deciding));
        match outcome {
            Ok(attachment) if is_waiting => self.serve(conn, shard, attachment),
            Ok(Attachment { session, outbox }) => {
                // The socket went away while its session was being opened.
                self.send(hub, shard, Input::SocketClosed { session, end: SocketEnd::Lost }, Some(outbox));
            }
            Err(_) if !is_waiting => {}
            Err(OpenError::Refused) => self.refuse(conn),
            Err(OpenError::Unavailable | OpenError::TooManyGroups) => {
                self.answer(conn, Answer::Failed);
                self.gateway_leaves(conn);
            }
        }
    }

    fn serve(&mut self, conn: u64, shard: usize, attachment: Attachment) {
        let (reader, writer) = (self.waker(conn, Task::Reader), self.waker(conn, Task::Writer));
        let Some(state) = self.conns.get_mut(&conn) else { return };
        let hub = &self.hubs[state.hub];
        let (connection_id, subprotocol) = match &state.upgrade {
            Upgrade::Open { subprotocol, .. } => (ConnectionId::new(&session_name(hub.name, conn)), *subprotocol),
            Upgrade::Resume { connection_id, .. } => (ConnectionId::new(connection_id), Subprotocol::JsonReliable),
        };
        state.gateway = GatewayEnd::Serving(Box::new(Serving {
            attachment,
            connection_id,
            shard,
            subprotocol,
            reader,
            is_read_scheduled: false,
            is_reader_done: false,
            partial: BytesMut::new(),
            writer,
            is_write_scheduled: false,
            write: Write::default(),
            is_idle: false,
        }));
        self.answer(conn, Answer::Switched);
        self.schedule_read(conn);
        self.schedule_write(conn);
    }

    /// The session that a socket is attached to, if any socket is.
    pub(crate) fn attached_session(&self, hub: usize, connection_id: &ConnectionId) -> Option<SessionKey> {
        self.conns.values().filter(|state| state.hub == hub).find_map(|state| {
            let GatewayEnd::Serving(serving) = &state.gateway else { return None };
            let Attachment { session, outbox } = &serving.attachment;
            let is_it = serving.connection_id == *connection_id && outbox.lock().is_current(session.epoch);
            is_it.then_some(session.key)
        })
    }

    fn serving(&mut self, conn: u64) -> Option<&mut Serving> {
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
                end = Some(if is_for_good { SocketEnd::ClosedForGood } else { SocketEnd::Lost });
                break;
            }
            let kind = if frame.opcode == Opcode::Text as u8 { FrameKind::Text } else { FrameKind::Binary };
            let encoding = serving.subprotocol.encoding();
            match decode_upstream(encoding, kind, &frame.payload) {
                Ok(message) => {
                    let bytes = frame.payload.len();
                    requests.extend(serving.attachment.receive(message).map(|message| Request { message, bytes }));
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
            if !self.write_on(conn) || !self.transmit(conn) {
                return;
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
            let is_clean = serving.write.is_between_frames();
            serving.write = Write::default();
            self.note(Path::WriteGivenUp);
            if !is_clean {
                // A close frame in the middle of another frame would only be noise.
                self.gateway_drops(conn);
            }
            return is_clean;
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
        let is_rewound = may_rewind && untouched < write.marks.len();
        if is_rewound {
            let Attachment { session, outbox } = &serving.attachment;
            outbox.lock().rewind(session.epoch, &write.marks[untouched..]);
            write.marks.truncate(untouched);
            let end = write.marks.last().map_or(0, |mark| mark.end);
            write.bytes.truncate(end - write.written);
        }
        let is_done = write.bytes.is_empty();
        if is_done {
            *write = Write::default();
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

    /// Asks for something to write; tells whether there is something.
    fn transmit(&mut self, conn: u64) -> bool {
        let budget = self.random.within(self.weather.write_budget_bytes) as usize;
        let now = self.gateway_time();
        let Some(serving) = self.serving(conn) else { return false };
        let Serving { attachment, write, writer, .. } = serving;
        let progress = attachment.outbox.lock().transmit(
            attachment.session.epoch,
            now,
            budget,
            &mut write.bytes,
            &mut write.marks,
            writer,
        );
        serving.is_idle = progress == Progress::Idle;
        if progress != Progress::Frames && !serving.write.bytes.is_empty() {
            self.fail(Failure::Driver("bytes beside a progress other than frames".to_owned()));
            return false;
        }
        match progress {
            Progress::Frames => return true,
            Progress::Idle => return false,
            Progress::Close(close) => {
                if close.code == CloseCode::PolicyViolation {
                    self.note(Path::DroppedAsSlow);
                }
                self.close_with(conn, close);
            }
            Progress::Cut => {}
        }
        self.gateway_drops(conn);
        false
    }

    fn close_with(&mut self, conn: u64, close: Close) {
        match close.code {
            CloseCode::InvalidMessage => self.note(Path::Garbage),
            CloseCode::WrongFrameType => self.note(Path::WrongFrame),
            _ => {}
        }
        // A frame that does not fit is cut off by the drop that follows.
        self.gateway_writes(conn, &close_frame(Some(close.code as u16)));
    }

    /// The gateway finds a socket dead.
    pub(crate) fn gateway_notices(&mut self, conn: u64) {
        self.gateway_drops(conn);
    }

    /// The gateway drops a socket and says so to its shard.
    pub(crate) fn gateway_drops(&mut self, conn: u64) {
        let Some(state) = self.conns.get_mut(&conn) else { return };
        let hub = state.hub;
        if let GatewayEnd::Serving(serving) = &state.gateway {
            let Attachment { session, outbox } = serving.attachment.clone();
            let shard = serving.shard;
            self.send(hub, shard, Input::SocketClosed { session, end: SocketEnd::Lost }, Some(outbox));
        }
        self.gateway_leaves(conn);
    }

    /// The gateway's end is gone; what it has written may still arrive.
    fn gateway_leaves(&mut self, conn: u64) {
        let Some(state) = self.conns.get_mut(&conn) else { return };
        if matches!(state.gateway, GatewayEnd::Gone) {
            return;
        }
        state.gateway = GatewayEnd::Gone;
        state.up.cut(0);
        state.down.finish();
        self.pump(conn, false);
        self.reap(conn);
    }

    /// The gateway shuts down: a close frame for everybody.
    pub(crate) fn close_all_sockets(&mut self) {
        let all: Vec<u64> = self.conns.keys().copied().collect();
        for conn in all {
            let is_clean = self.serving(conn).is_some_and(|serving| serving.write.is_between_frames());
            if is_clean {
                self.close_with(conn, Close::GOING_AWAY);
                self.gateway_drops(conn);
            }
        }
    }

    /// The process is gone. Clients notice soon, or late if the whole machine is gone.
    pub(crate) fn drop_all_sockets(&mut self) {
        let all: Vec<u64> = self.conns.keys().copied().collect();
        let is_machine = self.random.permille(200);
        for conn in all {
            let Some(state) = self.conns.get_mut(&conn) else { continue };
            if matches!(state.gateway, GatewayEnd::Away | GatewayEnd::Gone) {
                continue;
            }
            state.gateway = GatewayEnd::Gone;
            let down = self.random.below(200) as usize;
            self.sever(conn, 0, down);
            let noticed_ms = if is_machine { (500, 9_000) } else { (1, 50) };
            self.schedule_in(noticed_ms, Event::ClientNotices { conn });
            self.reap(conn);
        }
    }
}

/// The name of the session that a socket opens.
pub fn session_name(hub: &str, conn: u64) -> String {
    format!("{hub}-{conn}")
}
