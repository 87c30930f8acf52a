//! A client without a subprotocol: each of its frames is a publish, or a user event, without an ack, and it hears bare
//! payloads. It comes
//! back as a new session whenever it has lost the old one, until the storm is over.

use oncewire_checker::{ClosedBy, Event as Seen};
use oncewire_protocol::wire::raw::RawTarget;
use oncewire_protocol::wire::{
    CloseCode, Encoding, FrameKind, GroupName, Message, Metadata, Opcode, Received, Sender, Subprotocol,
    Upstream, decode_downstream, encode_upstream,
};
use oncewire_recorder::{closed, dropped, message, opened};

use crate::Failure;
use crate::coverage::Path;
use crate::edge::session_name;
use crate::heal::Stage;
use crate::honest::{event, payload};
use crate::network::Upgrade;
use crate::pipe::{RawFrame, frame_bytes};
use crate::world::{Event, World};

/// See the module.
pub struct Raw {
    index: usize,
    hub: usize,
    /// The one group that it is in, by its access token, so that it knows where a message comes from.
    group: GroupName,
    /// Where its frames go; without it they are events.
    target: Option<RawTarget>,
    /// The session and its socket, as long as it is open.
    open: Option<(String, u64)>,
    /// The socket that is being opened.
    opening: Option<u64>,
}

impl Raw {
    /// A client that has not started.
    pub fn new(index: usize, hub: usize, group: GroupName) -> Self {
        Self { index, hub, group, target: None, open: None, opening: None }
    }

    pub fn opened(&mut self, world: &mut World, conn: u64) {
        if self.opening.take_if(|opening| *opening == conn).is_none() {
            return;
        }
        let hub = world.hubs[self.hub].name;
        let session = session_name(hub, conn);
        world.record(opened(&session, hub, false, std::slice::from_ref(&self.group), false));
        self.open = Some((session, conn));
    }

    pub fn failed(&mut self, _world: &mut World, conn: u64) {
        self.opening.take_if(|opening| *opening == conn);
    }

    pub fn ended(&mut self, world: &mut World, conn: u64, code: Option<u16>) {
        if let Some((session, _)) = self.open.take_if(|(_, open)| *open == conn) {
            world.record(dropped(&session));
            world.record(closed(&session, code, ClosedBy::Server));
        }
    }

    pub fn frame(&mut self, world: &mut World, conn: u64, frame: &RawFrame) {
        let Some((session, _)) = self.open.as_ref().filter(|(_, open)| *open == conn) else { return };
        let kind = if frame.opcode == Opcode::Text as u8 { FrameKind::Text } else { FrameKind::Binary };
        match decode_downstream(Encoding::Raw, kind, &frame.payload) {
            Ok(Received::Message { message: Message { payload, .. }, .. }) => {
                let sender = Sender::Group { group: self.group.clone(), user_id: None };
                let heard = Message { sender, payload, metadata: Metadata::default() };
                world.record(Seen::Delivered(message(session, &heard, None)));
            }
            other => world.fail(Failure::Driver(format!("a raw client can't read a frame: {other:?}"))),
        }
    }

    pub fn act(&mut self, world: &mut World) {
        if world.stage != Stage::Storm {
            return self.leave(world);
        }
        world.schedule_in((5, 200), Event::Act { actor: self.index });
        match &self.open {
            None if self.opening.is_none() => self.connect(world),
            None => {}
            Some(_) if world.random.permille(30) => self.leave(world),
            Some((session, conn)) => {
                let (session, conn) = (session.clone(), *conn);
                for _ in 0..world.random.within((1, 4)) {
                    self.write(world, &session, conn);
                }
            }
        }
    }

    fn connect(&mut self, world: &mut World) {
        // It may publish to its group only.
        let group = if world.random.permille(850) { self.group.clone() } else { world.random_group() };
        let target = RawTarget { group, no_echo: world.random.permille(300) };
        self.target = world.random.permille(600).then_some(target);
        let upgrade = Upgrade::Open {
            subprotocol: Subprotocol::Raw,
            roles: vec![format!("webpubsub.sendToGroup.{}", self.group)],
            groups: vec![self.group.clone()],
            publishes_to: self.target.clone(),
        };
        self.opening = Some(world.connect(self.index, self.hub, upgrade));
    }

    fn write(&self, world: &mut World, session: &str, conn: u64) {
        let kind = world.random.pick(&[Opcode::Text, Opcode::Binary]);
        let (request, path) = match &self.target {
            Some(RawTarget { group, no_echo }) => {
                let marker = world.fresh_marker();
                let publish = Upstream::SendToGroup {
                    group: group.clone(),
                    payload: payload(&mut world.random, &marker, 20),
                    metadata: Metadata::default(),
                    ack_id: None,
                    no_echo: *no_echo,
                    ttl_seconds: 0,
                };
                (publish, Path::RawPublish)
            }
            None => (event(world, None), Path::RawEvent),
        };
        if let Some(event) = world.recorder.request(world.checker_us(), session, &request) {
            world.record(event);
        }
        world.note(path);
        world.client_writes(conn, &frame_bytes(kind, &encode_upstream(Encoding::Raw, &request)));
    }

    fn leave(&mut self, world: &mut World) {
        if let Some(conn) = self.opening.take() {
            world.client_closes(conn, None);
        }
        if let Some((session, conn)) = self.open.take() {
            let code = world.random.pick(&[Some(CloseCode::Normal as u16), None]);
            world.client_closes(conn, code);
            world.record(dropped(&session));
            world.record(closed(&session, code, ClosedBy::Client));
        }
    }
}
