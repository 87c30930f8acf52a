//! Who acts in a world: honest clients, a malicious one and raw ones. An actor sees its sockets and nothing of the gateway.

use oncewire_protocol::client::ClientSettings;
use oncewire_protocol::wire::{GroupName, Subprotocol};

use crate::honest::{Honest, Role};
use crate::malicious::Malicious;
use crate::pipe::RawFrame;
use crate::raw::Raw;
use crate::world::{Event, World};

/// How many groups each hub has. They have the same names in both, so that a message that crosses is seen.
pub const GROUPS: usize = 5;

/// See the module.
pub enum Actor {
    /// Keeps the protocol.
    Honest(Box<Honest>),
    /// Does not.
    Malicious(Box<Malicious>),
    /// Has no subprotocol.
    Raw(Box<Raw>),
}

impl Actor {
    /// A socket of its is open.
    pub fn opened(&mut self, world: &mut World, conn: u64) {
        match self {
            Self::Honest(client) => client.opened(world, conn),
            Self::Malicious(client) => client.opened(world, conn),
            Self::Raw(client) => client.opened(world, conn),
        }
    }

    /// An attempt of its failed.
    pub fn failed(&mut self, world: &mut World, conn: u64) {
        match self {
            Self::Honest(client) => client.failed(world, conn),
            Self::Malicious(client) => client.failed(world, conn),
            Self::Raw(client) => client.failed(world, conn),
        }
    }

    /// A frame arrived.
    pub fn frame(&mut self, world: &mut World, conn: u64, frame: &RawFrame) {
        match self {
            Self::Honest(client) => client.frame(world, conn, frame),
            Self::Malicious(client) => client.frame(world, conn, frame),
            Self::Raw(client) => client.frame(world, conn, frame),
        }
    }

    /// A socket of its is gone.
    pub fn ended(&mut self, world: &mut World, conn: u64, code: Option<u16>) {
        match self {
            Self::Honest(client) => client.ended(world, conn, code),
            Self::Malicious(client) => client.ended(world, conn, code),
            Self::Raw(client) => client.ended(world, conn, code),
        }
    }

    /// The session that a client has in this hub, as far as it keeps the protocol.
    pub fn session_in(&self, hub: usize) -> Option<String> {
        match self {
            Self::Honest(client) if client.hub == hub => client.session().map(str::to_owned),
            Self::Honest(_) | Self::Malicious(_) | Self::Raw(_) => None,
        }
    }

    /// Its timer fires.
    pub fn timer(&mut self, world: &mut World) {
        if let Self::Honest(client) = self {
            client.timer(world);
        }
    }

    /// It is time to do something.
    pub fn act(&mut self, world: &mut World) {
        match self {
            Self::Honest(client) => client.act(world),
            Self::Malicious(client) => client.act(world),
            Self::Raw(client) => client.act(world),
        }
    }
}

impl World {
    /// Brings in all actors.
    pub(crate) fn settle_in(&mut self) {
        for hub in 0..self.hubs.len() {
            for number in 0..self.weather.clients {
                let mut settings = match number {
                    // One of each in a world where they have to keep up.
                    1 if self.weather.is_fast => ClientSettings::like_javascript(),
                    2 if self.weather.is_fast => ClientSettings::like_python(),
                    3 if self.weather.is_fast => ClientSettings::like_java(),
                    _ => match self.random.below(10) {
                        0..5 => ClientSettings::like_javascript(),
                        5..8 => ClientSettings::like_python(),
                        _ => ClientSettings::like_java(),
                    },
                };
                let is_reliable = number > 0 || !self.weather.has_unreliable;
                settings.subprotocol = match (is_reliable, self.random.permille(300)) {
                    (true, false) => Subprotocol::JsonReliable,
                    (true, true) => Subprotocol::ProtobufReliable,
                    (false, false) => Subprotocol::Json,
                    (false, true) => Subprotocol::Protobuf,
                };
                let actor = self.actors.len();
                let mut client = Honest::new(&mut self.random, &self.groups, actor, hub, settings);
                if self.weather.is_fast {
                    let role = if number == 0 { Role::Publishes } else { Role::Listens };
                    client.take_role(role, &self.groups[0]);
                }
                self.actors.push(Some(Actor::Honest(Box::new(client))));
                self.schedule_in((0, 300), Event::Act { actor });
            }
            if self.weather.has_malice {
                let actor = self.actors.len();
                self.actors.push(Some(Actor::Malicious(Box::new(Malicious::new(
                    actor,
                    hub,
                    self.groups[0].clone(),
                )))));
                self.schedule_in((0, 500), Event::Act { actor });
            }
            if self.has_raw {
                let actor = self.actors.len();
                let group = self.groups[hub].clone();
                self.actors.push(Some(Actor::Raw(Box::new(Raw::new(actor, hub, group)))));
                self.schedule_in((0, 500), Event::Act { actor });
            }
        }
    }

    pub(crate) fn random_group(&mut self) -> GroupName {
        let index = self.random.index(self.groups.len());
        self.groups[index].clone()
    }
}
