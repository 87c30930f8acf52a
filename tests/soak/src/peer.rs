//! A client that publishes, joins and leaves at random, and writes down all that it asks for and sees.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use futures_util::{SinkExt as _, StreamExt as _};
use oncewire_checker::{ClosedBy, Event, History, RecorderId};
use oncewire_protocol::client::{
    Client, ClientSettings, ClientTime, Frame, Input, Outcome, Output, Recovery, SocketId,
};
use oncewire_protocol::wire::{
    Downstream, FrameKind, GroupName, Metadata, Payload, PayloadKind, Received, Upstream, decode_downstream,
    decode_upstream,
};
use oncewire_recorder::{acked, closed, dropped, message, opened, request, resumed};
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::http::HeaderValue;

/// The group that everybody is in from the start; the last message of each client goes there.
pub const EVERYBODY: &str = "everybody";
/// Groups that clients join and leave.
const GROUPS: [&str; 4] = ["g0", "g1", "g2", "g3"];
/// Requests that one client has pending at most.
const PENDING_MAX: usize = 16;
/// Between two requests of one client, in milliseconds, at most.
const PAUSE_MS_MAX: u64 = 12;
/// How long one connection attempt may take.
const CONNECT_WAIT: Duration = Duration::from_secs(20);

/// What all clients of a run share.
#[derive(Clone)]
pub struct Run {
    /// Where all write what they see; the runtime has one thread, so the order is that of observation.
    pub history: Rc<RefCell<History>>,
    /// Its one recorder.
    pub recorder: RecorderId,
    /// What has been seen.
    pub counts: Rc<RefCell<Counts>>,
    /// What clients are to do.
    pub stage: watch::Receiver<Stage>,
    /// How many clients there are.
    pub clients: usize,
    /// Their hub.
    pub hub: &'static str,
}

/// Counts over a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Publishes with a success or a duplicate as their outcome.
    pub published: u64,
    /// Messages delivered to applications.
    pub delivered: u64,
    /// Sockets that resumed a session.
    pub resumed: u64,
    /// Requests that were sent again and answered as duplicates.
    pub duplicates: u64,
}

/// What clients are to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Publish, join and leave.
    Storm,
    /// Ask for nothing more, except for one message to everybody; end when everybody's has come.
    Heal,
}

/// See the module.
pub struct Peer {
    name: String,
    run: Run,
    random: SmallRng,
    client: Client,
    settings: ClientSettings,
    url: String,
    address: SocketAddr,
    started: Instant,
    next_act: Instant,
    socket: Option<(SocketId, WebSocketStream<TcpStream>)>,
    session: Option<String>,
    markers: u64,
    has_said_last: bool,
    last_heard: BTreeSet<String>,
}

impl Peer {
    /// A client that dials `address` with the URL of its access token.
    pub fn new(name: String, url: String, address: SocketAddr, run: Run, seed: u64) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let habits =
            if random.random() { ClientSettings::like_javascript() } else { ClientSettings::like_python() };
        let settings = ClientSettings {
            // Whatever happens, it comes back to its session, and asks until it has an answer.
            recovery_window_ms: 600_000,
            connect_timeout_ms: 30_000,
            connect_retry_ms: 50,
            request_retry_ms: 50,
            request_retries_max: u32::MAX,
            sequence_ack_ms: 200,
            requests_before_connected: false,
            auto_rejoin: false,
            ..habits
        };
        let now = Instant::now();
        Self {
            name,
            run,
            random,
            client: Client::new(settings.clone()),
            settings,
            url,
            address,
            started: now,
            next_act: now,
            socket: None,
            session: None,
            markers: 0,
            has_said_last: false,
            last_heard: BTreeSet::new(),
        }
    }

    /// Runs until everybody's last message has arrived.
    ///
    /// # Errors
    /// When the gateway breaks its promise in a way that needs no checker: a session is lost, a frame can't be read, a
    /// request is refused.
    pub async fn run(mut self) -> Result<()> {
        let name = self.name.clone();
        self.follow().await.map_err(|error| error.context(format!("client {name}")))
    }

    async fn follow(&mut self) -> Result<()> {
        self.handle(Input::Start);
        while !self.is_done() {
            while let Some(output) = self.client.poll_output() {
                self.obey(output).await?;
            }
            self.wait().await?;
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.has_said_last && self.client.pending_requests() == 0 && self.last_heard.len() == self.run.clients
    }

    /// Until something arrives, a timer is due or it is time for another request.
    async fn wait(&mut self) -> Result<()> {
        let due = self.client.poll_timeout().map(|due| self.started + Duration::from_millis(due.0));
        let timeout = async {
            match due {
                Some(due) => sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        let heard = async {
            match &mut self.socket {
                Some((socket, stream)) => (*socket, stream.next().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = timeout => self.handle(Input::Timeout),
            (socket, heard) = heard => self.heard(socket, heard)?,
            () = sleep_until(self.next_act) => self.act(),
        }
        Ok(())
    }

    fn heard(
        &mut self,
        socket: SocketId,
        heard: Option<Result<Message, tokio_tungstenite::tungstenite::Error>>,
    ) -> Result<()> {
        match heard {
            Some(Ok(Message::Text(text))) => {
                let frame = Frame { kind: FrameKind::Text, data: text.into() };
                self.note_frame(&frame)?;
                self.handle(Input::Frame { socket, frame });
            }
            Some(Ok(Message::Close(close))) => {
                let code = close.map(|close| close.code.into());
                self.leave_socket();
                self.handle(Input::Closed { socket, code });
            }
            Some(Ok(_)) => {}
            Some(Err(_)) | None => {
                self.leave_socket();
                self.handle(Input::Closed { socket, code: None });
            }
        }
        Ok(())
    }

    fn note_frame(&mut self, frame: &Frame) -> Result<()> {
        let received = decode_downstream(self.settings.subprotocol.encoding(), frame.kind, &frame.data)
            .map_err(|error| anyhow!("a frame that can't be read: {error}"))?;
        let Some(session) = &self.session else { return Ok(()) };
        let event = match &received {
            Received::Message { message: body, sequence_id } => {
                Event::Received(message(session, body, *sequence_id))
            }
            Received::Control(Downstream::Ack { ack_id, error }) => acked(session, *ack_id, error.as_ref()),
            Received::Control(_) | Received::Unknown => return Ok(()),
        };
        self.record(event);
        Ok(())
    }

    async fn obey(&mut self, output: Output) -> Result<()> {
        match output {
            Output::Connect { socket, recovery } => self.connect(socket, recovery).await,
            Output::Send { socket, frame } => self.send(socket, &frame).await?,
            Output::CloseSocket { .. } => self.leave_socket(),
            Output::Connected { connection_id, .. } => {
                let groups = [GroupName::new(EVERYBODY)?];
                self.record(opened(connection_id.as_str(), self.run.hub, true, &groups, true));
                self.session = Some(connection_id.as_str().to_owned());
            }
            Output::Deliver { message: body, sequence_id } => {
                let Some(session) = &self.session else { bail!("a message before the session's name") };
                let delivered = message(session, &body, sequence_id);
                if let Some(name) = delivered.message.strip_prefix("last-") {
                    self.last_heard.insert(name.to_owned());
                }
                self.record(Event::Delivered(delivered));
                self.run.counts.borrow_mut().delivered += 1;
            }
            Output::Outcome { ack_id, outcome } => {
                let mut counts = self.run.counts.borrow_mut();
                match outcome {
                    Outcome::Done => {}
                    Outcome::Duplicate => counts.duplicates += 1,
                    Outcome::Unknown => bail!("request {ack_id} has no outcome: its session is lost"),
                    other => bail!("request {ack_id}: {other:?}"),
                }
                counts.published += 1;
            }
            Output::SessionLost { connection_id } => {
                self.record(closed(connection_id.as_str(), None, ClosedBy::Server));
                bail!("session {connection_id} is lost");
            }
            Output::Recovered => self.run.counts.borrow_mut().resumed += 1,
            other => bail!("unexpected: {other:?}"),
        }
        Ok(())
    }

    async fn connect(&mut self, socket: SocketId, recovery: Option<Recovery>) {
        match tokio::time::timeout(CONNECT_WAIT, self.dial(recovery)).await {
            Ok(Ok(stream)) => {
                self.socket = Some((socket, stream));
                if let Some(session) = &self.session {
                    self.record(resumed(session));
                }
                self.handle(Input::Opened { socket });
            }
            // While the gateway is down, or the proxy cuts.
            Ok(Err(_)) | Err(_) => self.handle(Input::ConnectFailed { socket }),
        }
    }

    async fn dial(&self, recovery: Option<Recovery>) -> Result<WebSocketStream<TcpStream>> {
        let mut url = self.url.clone();
        if let Some(recovery) = recovery {
            let id = recovery.connection_id.as_str();
            let token = &recovery.reconnection_token.0;
            url = format!("{url}&awps_connection_id={id}&awps_reconnection_token={token}");
        }
        let mut request = url.into_client_request()?;
        let name = self.settings.subprotocol.name().context("a subprotocol with a name")?;
        request.headers_mut().insert("Sec-WebSocket-Protocol", HeaderValue::from_str(name)?);
        let tcp = TcpStream::connect(self.address).await?;
        tcp.set_nodelay(true)?;
        Ok(tokio_tungstenite::client_async(request, tcp).await?.0)
    }

    async fn send(&mut self, socket: SocketId, frame: &Frame) -> Result<()> {
        let Some((_, stream)) = &mut self.socket else { return Ok(()) };
        let text = std::str::from_utf8(&frame.data)?.to_owned();
        let asked = decode_upstream(self.settings.subprotocol.encoding(), frame.kind, &frame.data)
            .map_err(|error| anyhow!("wrote what can't be read: {error}"))?;
        if let Some(session) = &self.session
            && let Some(event) = request(session, &asked, None)
        {
            self.run.history.borrow_mut().push(self.run.recorder, event);
        }
        if stream.send(Message::text(text)).await.is_err() {
            self.leave_socket();
            self.handle(Input::Closed { socket, code: None });
        }
        Ok(())
    }

    fn act(&mut self) {
        self.next_act = Instant::now() + Duration::from_millis(self.random.random_range(0..PAUSE_MS_MAX));
        let stage = *self.run.stage.borrow();
        if self.session.is_none() || self.client.pending_requests() >= PENDING_MAX {
            return;
        }
        match stage {
            Stage::Storm => {
                let group = GROUPS[self.random.random_range(0..GROUPS.len())];
                match self.random.random_range(0..20) {
                    0..2 => {
                        self.ask(|ack_id| Ok(Upstream::JoinGroup { group: GroupName::new(group)?, ack_id }))
                    }
                    2 => {
                        self.ask(|ack_id| Ok(Upstream::LeaveGroup { group: GroupName::new(group)?, ack_id }))
                    }
                    3..6 => self.publish(EVERYBODY, None),
                    _ => self.publish(group, None),
                }
            }
            Stage::Heal if !self.has_said_last => {
                self.has_said_last = true;
                self.publish(EVERYBODY, Some(format!("last-{}", self.name)));
            }
            Stage::Heal => {}
        }
    }

    fn publish(&mut self, group: &str, marker: Option<String>) {
        self.markers += 1;
        let is_last = marker.is_some();
        let marker = marker.unwrap_or_else(|| format!("{}-{}", self.name, self.markers));
        let padding = "x".repeat(self.random.random_range(0..400));
        let no_echo = !is_last && self.random.random_bool(0.1);
        self.ask(|ack_id| {
            Ok(Upstream::SendToGroup {
                group: GroupName::new(group)?,
                payload: Payload { kind: PayloadKind::Text, bytes: format!("#{marker}#{padding}").into() },
                metadata: Metadata::default(),
                ack_id,
                no_echo,
                ttl_seconds: 0,
            })
        });
    }

    fn ask(&mut self, request: impl FnOnce(Option<u64>) -> Result<Upstream>) {
        let ack_id = Some(self.client.fresh_ack_id());
        let now = self.now();
        if let Ok(request) = request(ack_id) {
            // Refused only beyond the client's own bounds, which are far above this one's.
            let _ = self.client.request(now, request);
        }
    }

    fn leave_socket(&mut self) {
        if self.socket.take().is_some()
            && let Some(session) = &self.session
        {
            self.record(dropped(session));
        }
    }

    fn record(&self, event: Event) {
        self.run.history.borrow_mut().push(self.run.recorder, event);
    }

    fn handle(&mut self, input: Input) {
        let now = self.now();
        self.client.handle(now, input);
    }

    fn now(&self) -> ClientTime {
        ClientTime(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX))
    }
}
