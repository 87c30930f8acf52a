//! Dialogues: the driver, the gateway and the application speak; the client's outputs are expected as text.

mod keepalive;
mod recovery;
mod requests;
mod sequence;

use bytes::Bytes;

use super::{Client, ClientSettings, ClientTime, Frame, Input, Outcome, Output, RequestError, SocketId};
use crate::wire::{AckId, FrameKind, GroupName, Metadata, Payload, PayloadKind, Upstream};

/// A client and the newest of its sockets.
struct Scene {
    client: Client,
    now: ClientTime,
    socket: SocketId,
    /// What [`Scene::wait_ms`] met on its way.
    heard: Vec<String>,
}

impl Scene {
    fn new(settings: ClientSettings) -> Self {
        Self {
            client: Client::new(settings),
            now: ClientTime(5_000_000),
            socket: SocketId(0),
            heard: Vec::new(),
        }
    }

    /// A client of default habits, without pings, in session `c1`.
    fn connected() -> Self {
        Self::connected_with(quiet())
    }

    fn connected_with(settings: ClientSettings) -> Self {
        let mut scene = Self::new(settings);
        scene.input(Input::Start);
        scene.expect(&["connect"]);
        scene.opens();
        scene.gets(&connected("c1"));
        scene.expect(&["connected c1"]);
        scene
    }

    fn input(&mut self, input: Input) {
        self.client.handle(self.now, input);
    }

    fn opens(&mut self) {
        self.input(Input::Opened { socket: self.socket });
    }

    fn fails_to_open(&mut self) {
        self.input(Input::ConnectFailed { socket: self.socket });
    }

    fn gets(&mut self, text: &str) {
        self.gets_on(self.socket, text);
    }

    fn gets_on(&mut self, socket: SocketId, text: &str) {
        let frame = Frame { kind: FrameKind::Text, data: Bytes::copy_from_slice(text.as_bytes()) };
        self.input(Input::Frame { socket, frame });
    }

    fn is_cut(&mut self) {
        self.input(Input::Closed { socket: self.socket, code: None });
    }

    fn is_closed(&mut self, code: u16) {
        self.input(Input::Closed { socket: self.socket, code: Some(code) });
    }

    fn asks(&mut self, request: Upstream) {
        assert_eq!(self.tries(request), Ok(()));
    }

    fn tries(&mut self, request: Upstream) -> Result<(), RequestError> {
        self.client.request(self.now, request)
    }

    /// Lets time pass, firing each timer when it is due.
    fn wait_ms(&mut self, ms: u64) {
        let end = self.now.plus_ms(ms);
        while let Some(due) = self.client.poll_timeout().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.input(Input::Timeout);
            self.drain();
        }
        self.now = end;
    }

    /// All outputs since the last call, no more and no less.
    #[track_caller]
    fn expect(&mut self, expected: &[&str]) {
        self.drain();
        assert_eq!(std::mem::take(&mut self.heard), expected);
    }

    fn drain(&mut self) {
        while let Some(output) = self.client.poll_output() {
            if let Output::Connect { socket, .. } = &output {
                self.socket = *socket;
            }
            self.heard.push(shown(output));
        }
    }

    /// Cuts the socket and opens the one that recovers.
    fn is_cut_and_recovers(&mut self) {
        self.is_cut();
        self.expect(&["connect to recover c1 with token-c1"]);
        self.opens();
    }
}

fn quiet() -> ClientSettings {
    ClientSettings { ping_ms: None, silence_ms_max: None, ..ClientSettings::default() }
}

fn shown(output: Output) -> String {
    match output {
        Output::Connect { recovery: None, .. } => "connect".into(),
        Output::Connect { recovery: Some(recovery), .. } => {
            format!("connect to recover {} with {}", recovery.connection_id, recovery.reconnection_token.0)
        }
        Output::Send { frame, .. } => format!("send {}", String::from_utf8_lossy(&frame.data)),
        Output::CloseSocket { code: Some(code), .. } => format!("close {code}"),
        Output::CloseSocket { code: None, .. } => "close".into(),
        Output::Connected { connection_id, .. } => format!("connected {connection_id}"),
        Output::Recovered => "recovered".into(),
        Output::SessionLost { connection_id } => format!("lost {connection_id}"),
        Output::Deliver { message, sequence_id: Some(id) } => {
            format!("deliver {id} {}", String::from_utf8_lossy(&message.payload.bytes))
        }
        Output::Deliver { message, sequence_id: None } => {
            format!("deliver {}", String::from_utf8_lossy(&message.payload.bytes))
        }
        Output::Outcome { ack_id, outcome } => match outcome {
            Outcome::Refused { error, may_have_happened } => {
                let doubt = if may_have_happened { " perhaps" } else { "" };
                format!("{ack_id} refused{doubt}: {}", error.name.as_str())
            }
            other => format!("{ack_id} {other:?}").to_lowercase(),
        },
        Output::RejoinFailed { group, error } => {
            format!("not rejoined {group}: {}", error.map_or("no answer", |error| error.name.as_str()))
        }
        Output::Disconnected { message } => format!("told: {message}"),
        Output::Answer(answer) => format!("{answer:?}"),
        Output::Undecodable(error) => format!("undecodable: {error}"),
    }
}

fn connected(id: &str) -> String {
    format!(
        r#"{{"type":"system","event":"connected","userId":null,"connectionId":"{id}","reconnectionToken":"token-{id}"}}"#
    )
}

fn message(sequence_id: u64, text: &str) -> String {
    format!(
        r#"{{"type":"message","from":"group","group":"g","dataType":"text","data":"{text}","sequenceId":{sequence_id}}}"#
    )
}

fn success(ack_id: AckId) -> String {
    format!(r#"{{"type":"ack","ackId":{ack_id},"success":true}}"#)
}

fn failure(ack_id: AckId, name: &str) -> String {
    format!(r#"{{"type":"ack","ackId":{ack_id},"success":false,"error":{{"name":"{name}","message":"m"}}}}"#)
}

fn group(name: &str) -> GroupName {
    GroupName::new(name).unwrap()
}

fn join(name: &str, ack_id: AckId) -> Upstream {
    Upstream::JoinGroup { group: group(name), ack_id: Some(ack_id) }
}

fn leave(name: &str, ack_id: AckId) -> Upstream {
    Upstream::LeaveGroup { group: group(name), ack_id: Some(ack_id) }
}

fn publish(text: &str, ack_id: impl Into<Option<AckId>>) -> Upstream {
    Upstream::SendToGroup {
        group: group("g"),
        payload: Payload { kind: PayloadKind::Text, bytes: Bytes::copy_from_slice(text.as_bytes()) },
        metadata: Metadata::default(),
        ack_id: ack_id.into(),
        no_echo: false,
        ttl_seconds: 0,
    }
}

fn sent_join(name: &str, ack_id: AckId) -> String {
    format!(r#"send {{"type":"joinGroup","group":"{name}","ackId":{ack_id}}}"#)
}

fn sent(text: &str, ack_id: AckId) -> String {
    format!(r#"send {{"type":"sendToGroup","group":"g","ackId":{ack_id},"dataType":"text","data":"{text}"}}"#)
}

fn acked(sequence_id: u64) -> String {
    format!(r#"send {{"type":"sequenceAck","sequenceId":{sequence_id}}}"#)
}
