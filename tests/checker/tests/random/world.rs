//! A tiny model of a correct service and its clients, for random histories that are right by construction. It shares
//! nothing with the checker.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use oncewire_checker::{
    Acked, Closed, ClosedBy, Event, Membership, Message, Note, Opened, Publish, Quiesced, SequenceAck,
    Signal, Socket,
};

/// splitmix64.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }

    pub fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }
}

/// What may happen in a world.
#[derive(Clone, Copy)]
pub struct Weather {
    /// Sessions join and leave, end, and begin anew.
    pub churn: bool,
    /// Each client is a recorder of its own; otherwise one sees everything.
    pub recorders: bool,
    pub steps: usize,
}

pub struct World {
    pub random: Random,
    weather: Weather,
    pub events: Vec<(usize, Event)>,
    clients: Vec<Client>,
    messages: u32,
    signals: u32,
}

const GROUPS: [&str; 2] = ["red", "blue"];

/// A group to which nobody may send, and which nobody may join.
const FORBIDDEN: &str = "black";

struct Client {
    recorder: usize,
    connection: String,
    hub: usize,
    reliable: bool,
    frames: bool,
    unordered: bool,
    // What the client knows.
    attached: bool,
    over: bool,
    next_ack_id: u64,
    unsettled: BTreeMap<u64, Request>,
    settled: Vec<(u64, Request)>,
    largest: u64,
    callbacks: Vec<Event>,
    // What is under way.
    upstream: VecDeque<(Option<u64>, Request)>,
    downstream: VecDeque<Frame>,
    // What the service knows.
    groups: BTreeSet<&'static str>,
    executed: BTreeMap<u64, Request>,
    outbox: Vec<(u64, &'static str, String, bool)>,
    last_id: u64,
    acked: u64,
    late_acks: Vec<Frame>,
}

#[derive(Clone, PartialEq)]
enum Request {
    Join(&'static str),
    Leave(&'static str),
    Publish { group: &'static str, message: String, no_echo: bool, ttl: bool },
}

enum Frame {
    Message(Option<u64>, &'static str, String),
    Ack(u64, Option<&'static str>),
}

impl World {
    pub fn run(seed: u64, weather: Weather) -> Self {
        let mut world = Self {
            random: Random(seed),
            weather,
            events: Vec::new(),
            clients: Vec::new(),
            messages: 0,
            signals: 0,
        };
        for _ in 0..3 + world.random.below(3) {
            world.open();
        }
        for _ in 0..weather.steps {
            let client = world.random.below(world.clients.len());
            world.step(client);
        }
        world.heal();
        world
    }

    fn open(&mut self) {
        let number = self.clients.len();
        let random = &mut self.random;
        let reliable = random.percent(75);
        let mut client = Client {
            recorder: if self.weather.recorders { number % 3 } else { 0 },
            connection: format!("c{number}"),
            hub: usize::from(random.percent(15)),
            reliable,
            frames: random.percent(60),
            unordered: false,
            attached: true,
            over: false,
            next_ack_id: random.below(3) as u64,
            unsettled: BTreeMap::new(),
            settled: Vec::new(),
            largest: 0,
            callbacks: Vec::new(),
            upstream: VecDeque::new(),
            downstream: VecDeque::new(),
            groups: BTreeSet::new(),
            executed: BTreeMap::new(),
            outbox: Vec::new(),
            last_id: 0,
            acked: 0,
            late_acks: Vec::new(),
        };
        client.unordered = !client.frames && random.percent(30);
        for group in GROUPS {
            if !self.weather.churn || random.percent(30) {
                client.groups.insert(group);
            }
        }
        let opened = Event::Opened(Opened {
            connection: client.connection.clone(),
            hub: ["chat", "other"][client.hub].to_string(),
            reliable,
            groups: client.groups.iter().map(ToString::to_string).collect(),
            observes_sockets: client.frames,
            unordered_callbacks: client.unordered,
        });
        self.events.push((client.recorder, opened));
        self.clients.push(client);
    }

    fn step(&mut self, c: usize) {
        match self.random.below(100) {
            0..16 => self.request(c),
            16..20 => self.resend(c),
            20..45 => self.serve(c),
            45..80 => self.read(c),
            80..84 => self.drop_socket(c),
            84..90 => self.resume(c),
            90..94 => self.sequence_ack(c),
            94..97 => self.signal(c),
            97..99 if self.weather.churn => self.close(c),
            _ => {
                let text = "nothing happened".to_string();
                self.events.push((self.clients[c].recorder, Event::Note(Note { text })));
            }
        }
    }

    fn log(&mut self, c: usize, event: Event) {
        self.events.push((self.clients[c].recorder, event));
    }

    fn request(&mut self, c: usize) {
        if self.clients[c].over || !self.clients[c].attached {
            return;
        }
        let group = if self.random.percent(6) { FORBIDDEN } else { GROUPS[self.random.below(2)] };
        let request = match self.random.below(10) {
            0 if self.weather.churn => Request::Leave(group),
            1..3 if self.weather.churn => Request::Join(group),
            _ => {
                self.messages += 1;
                let message = format!("m{}", self.messages);
                Request::Publish {
                    group,
                    message,
                    no_echo: self.random.percent(20),
                    ttl: self.random.percent(10),
                }
            }
        };
        let anonymous = self.random.percent(12);
        let client = &mut self.clients[c];
        let reused = client.settled.first().map(|(id, _)| *id).filter(|_| self.random.percent(3));
        let id = (!anonymous).then(|| {
            client.next_ack_id += 1 + self.random.below(2) as u64;
            reused.unwrap_or(client.next_ack_id)
        });
        if let Some(id) = id
            && reused.is_none()
        {
            client.unsettled.insert(id, request.clone());
        }
        self.send(c, id, request);
    }

    /// Sends an unsettled request again, or (as a client that lost count would) one that is settled.
    fn resend(&mut self, c: usize) {
        let client = &self.clients[c];
        if client.over || !client.attached {
            return;
        }
        let again = if self.random.percent(20) {
            client.settled.last().cloned()
        } else {
            let skip = self.random.below(client.unsettled.len().max(1));
            client.unsettled.iter().nth(skip).map(|(id, request)| (*id, request.clone()))
        };
        if let Some((id, request)) = again {
            self.send(c, Some(id), request);
        }
    }

    fn send(&mut self, c: usize, ack_id: Option<u64>, request: Request) {
        let connection = self.clients[c].connection.clone();
        let event = match &request {
            Request::Join(group) => Event::Join(Membership { connection, group: group.to_string(), ack_id }),
            Request::Leave(group) => {
                Event::Leave(Membership { connection, group: group.to_string(), ack_id })
            }
            Request::Publish { group, message, no_echo, ttl } => Event::Publish(Publish {
                connection,
                group: group.to_string(),
                message: message.clone(),
                ack_id,
                no_echo: *no_echo,
                ttl_seconds: ttl.then_some(1),
                ..Default::default()
            }),
        };
        self.log(c, event);
        self.clients[c].upstream.push_back((ack_id, request));
    }

    /// The service takes the next request of a connection; of a dropped one, what had come in before.
    fn serve(&mut self, c: usize) {
        let Some((id, request)) = self.clients[c].upstream.pop_front() else { return };
        let group = match &request {
            Request::Join(group) | Request::Leave(group) | Request::Publish { group, .. } => *group,
        };
        let known = id.and_then(|id| self.clients[c].executed.get(&id));
        let error = match known {
            Some(before) if *before == request => Some("Duplicate"),
            Some(_) => Some("PayloadMismatch"),
            None if group == FORBIDDEN => Some("Forbidden"),
            None if self.random.percent(8) => Some("InternalServerError"),
            None => None,
        };
        if error.is_none() {
            if let Some(id) = id {
                self.clients[c].executed.insert(id, request.clone());
            }
            self.execute(c, &request);
        }
        // A failure that may have happened after all: the record is there, the answer is an error.
        let error =
            if error.is_none() && self.random.percent(3) { Some("InternalServerError") } else { error };
        let Some(id) = id else { return };
        let client = &mut self.clients[c];
        if client.attached {
            client.downstream.push_back(Frame::Ack(id, error));
        } else if self.random.percent(50) {
            client.late_acks.push(Frame::Ack(id, error));
        }
    }

    fn execute(&mut self, c: usize, request: &Request) {
        match request {
            Request::Join(group) => drop(self.clients[c].groups.insert(group)),
            Request::Leave(group) => drop(self.clients[c].groups.remove(group)),
            Request::Publish { group, message, no_echo, ttl } => {
                let hub = self.clients[c].hub;
                let jump = if self.random.percent(5) { 301 } else { 1 };
                for (index, client) in self.clients.iter_mut().enumerate() {
                    if client.over
                        || client.hub != hub
                        || !client.groups.contains(group)
                        || (*no_echo && index == c)
                    {
                        continue;
                    }
                    client.last_id += jump;
                    let id = client.reliable.then_some(client.last_id);
                    if client.reliable {
                        client.outbox.push((client.last_id, group, message.clone(), *ttl));
                    }
                    if client.attached {
                        client.downstream.push_back(Frame::Message(id, group, message.clone()));
                    }
                }
            }
        }
    }

    fn read(&mut self, c: usize) {
        if !self.clients[c].callbacks.is_empty() && self.random.percent(50) {
            let pick = self.random.below(self.clients[c].callbacks.len());
            let event = self.clients[c].callbacks.swap_remove(pick);
            self.log(c, event);
        }
        let connection = self.clients[c].connection.clone();
        match self.clients[c].downstream.pop_front() {
            None => {}
            Some(Frame::Ack(ack_id, error)) => {
                let error = error.map(str::to_string);
                // `InternalServerError` leaves open what happened, so the client goes on trying.
                let is_final = error.as_deref() != Some("InternalServerError");
                if is_final && let Some(request) = self.clients[c].unsettled.remove(&ack_id) {
                    self.clients[c].settled.push((ack_id, request));
                }
                self.log(
                    c,
                    Event::Acked(Acked {
                        connection,
                        ack_id,
                        success: error.is_none(),
                        error,
                        definite: None,
                    }),
                );
            }
            Some(Frame::Message(sequence_id, group, message)) => {
                let event = Message { connection, group: group.to_string(), message, sequence_id };
                if self.clients[c].frames {
                    self.log(c, Event::Received(event.clone()));
                }
                let client = &mut self.clients[c];
                if sequence_id.is_some_and(|id| id <= client.largest) {
                    return;
                }
                client.largest = sequence_id.unwrap_or(0);
                if client.unordered {
                    client.callbacks.push(Event::Delivered(event));
                } else {
                    self.log(c, Event::Delivered(event));
                }
            }
        }
    }

    fn drop_socket(&mut self, c: usize) {
        let client = &self.clients[c];
        let socket = Socket { connection: client.connection.clone() };
        if client.over || !client.attached {
            return;
        }
        if !client.reliable {
            return self.close(c);
        }
        if client.frames {
            self.log(c, Event::Dropped(socket));
        }
        let arrived = self.random.below(self.clients[c].upstream.len() + 1);
        let client = &mut self.clients[c];
        client.attached = false;
        client.upstream.truncate(arrived);
        client.downstream.clear();
    }

    fn resume(&mut self, c: usize) {
        let client = &mut self.clients[c];
        if client.over || client.attached {
            return;
        }
        client.attached = true;
        client.upstream.clear();
        let acked = client.acked;
        let random = &mut self.random;
        client.outbox.retain(|(id, _, _, ttl)| *id > acked && !(*ttl && random.percent(50)));
        let again = client
            .outbox
            .iter()
            .map(|(id, group, message, _)| Frame::Message(Some(*id), group, message.clone()));
        client.downstream.extend(again);
        client.downstream.extend(std::mem::take(&mut client.late_acks));
        if client.frames {
            let socket = Socket { connection: client.connection.clone() };
            self.log(c, Event::Resumed(socket));
        }
    }

    fn sequence_ack(&mut self, c: usize) {
        let client = &self.clients[c];
        let (connection, sequence_id) = (client.connection.clone(), client.largest);
        if client.over || !client.attached || !client.frames || sequence_id == 0 {
            return;
        }
        self.log(c, Event::SequenceAck(SequenceAck { connection, sequence_id }));
        if self.random.percent(70) {
            self.clients[c].acked = sequence_id;
        }
    }

    fn close(&mut self, c: usize) {
        let client = &mut self.clients[c];
        if std::mem::replace(&mut client.over, true) {
            return;
        }
        client.attached = false;
        client.downstream.clear();
        let closed = Closed {
            connection: client.connection.clone(),
            code: Some(1000),
            reason: None,
            by: Some(ClosedBy::Client),
        };
        self.log(c, Event::Closed(closed));
        self.open();
        let left = std::mem::take(&mut self.clients[c].unsettled);
        // The new session publishes what the old one never saw acked, so that two copies are permitted.
        let c = self.clients.len() - 1;
        for (_, request) in left {
            if self.weather.churn && matches!(request, Request::Publish { .. }) {
                let client = &mut self.clients[c];
                client.next_ack_id += 1;
                let id = client.next_ack_id;
                client.unsettled.insert(id, request.clone());
                self.send(c, Some(id), request);
            }
        }
    }

    fn signal(&mut self, c: usize) {
        let name = format!("signal {}", self.signals);
        self.signals += 1;
        self.log(c, Event::Signal(Signal { name: name.clone() }));
        let other = self.random.below(self.clients.len());
        self.log(other, Event::Awaited(Signal { name }));
    }

    fn heal(&mut self) {
        while self.clients.iter().any(|client| !client.is_quiet()) {
            for c in 0..self.clients.len() {
                self.resume(c);
                if self.clients[c].upstream.is_empty() && self.clients[c].downstream.is_empty() {
                    let unsettled = std::mem::take(&mut self.clients[c].unsettled);
                    for (id, request) in unsettled {
                        if !self.clients[c].over {
                            self.clients[c].unsettled.insert(id, request.clone());
                            self.send(c, Some(id), request);
                        }
                    }
                }
                self.serve(c);
                self.read(c);
            }
        }
        let recorders = if self.weather.recorders { 3 } else { 1 };
        self.events.extend((0..recorders).map(|recorder| (recorder, Event::Quiesced(Quiesced::default()))));
    }
}

impl Client {
    fn is_quiet(&self) -> bool {
        let under_way =
            self.upstream.len() + self.downstream.len() + self.callbacks.len() + self.unsettled.len();
        under_way == 0 && (self.attached || self.over)
    }
}
