//! One client's line to a gateway: the protocol's client half, its socket and its clock. All that it asks for and sees is
//! written down.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
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
    AckId, Downstream, FrameKind, GroupName, Metadata, Payload, PayloadKind, Received, SequenceId, Upstream,
    decode_downstream, decode_upstream,
};
use oncewire_recorder::{acked, closed, dropped, message, opened, request, resumed};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::{self, Message};

/// The group that everybody is in from the start; the last message of each client goes there.
pub const EVERYBODY: &str = "everybody";
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
}

/// Counts over a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests with a success or a duplicate as their outcome.
    pub published: u64,
    /// Messages delivered to applications.
    pub delivered: u64,
    /// Sockets that resumed a session.
    pub resumed: u64,
    /// Requests that were sent again and answered as duplicates.
    pub duplicates: u64,
    /// Upgrades that the gateway answered with an error.
    pub refused: u64,
    /// Sockets that the gateway closed.
    pub closed: u64,
}

impl Counts {
    /// Adds those of another run.
    pub fn add(&mut self, other: &Self) {
        self.published += other.published;
        self.delivered += other.delivered;
        self.resumed += other.resumed;
        self.duplicates += other.duplicates;
        self.refused += other.refused;
        self.closed += other.closed;
    }
}

/// What clients are to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Go about their business.
    Storm,
    /// Ask for nothing more, except for one message to everybody; end when everybody's has come.
    Heal,
}

/// Who a client is, and where.
#[derive(Debug, Clone)]
pub struct Place {
    /// Its name, unique in the run.
    pub name: String,
    /// Its hub.
    pub hub: &'static str,
    /// The groups of its access token.
    pub groups: Vec<&'static str>,
    /// The URL with that token.
    pub url: String,
    /// Where to dial.
    pub address: SocketAddr,
    /// How many clients the hub has, who all say their last.
    pub clients: usize,
}

/// What a line has to tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// The session has begun.
    Connected,
    /// A message came, perhaps again.
    Received(SequenceId),
    /// The application got a message with this marker.
    Delivered(String),
    /// A request succeeded.
    Done(AckId),
    /// A sequence ack was written to the socket.
    Acknowledged(SequenceId),
    /// A ping was written to the socket.
    Pinged,
    /// A ping was answered.
    Ponged,
    /// The socket is gone.
    Left,
}

/// See the module.
pub struct Line {
    place: Place,
    run: Run,
    client: Client,
    settings: ClientSettings,
    started: Instant,
    socket: Option<(SocketId, WebSocketStream<TcpStream>)>,
    session: Option<String>,
    told: VecDeque<Told>,
    has_said_last: bool,
    last_heard: BTreeSet<String>,
}

impl Line {
    /// A line with these habits, which comes back to its session whatever happens, and asks until it has an answer.
    pub fn new(place: Place, run: Run, habits: ClientSettings) -> Self {
        let settings = ClientSettings {
            recovery_window_ms: 600_000,
            connect_timeout_ms: 30_000,
            connect_retry_ms: 50,
            request_retry_ms: 50,
            request_retries_max: u32::MAX,
            requests_before_connected: false,
            auto_rejoin: false,
            ..habits
        };
        let mut line = Self {
            place,
            run,
            client: Client::new(settings.clone()),
            settings,
            started: Instant::now(),
            socket: None,
            session: None,
            told: VecDeque::new(),
            has_said_last: false,
            last_heard: BTreeSet::new(),
        };
        line.handle(Input::Start);
        line
    }

    /// Its client's name.
    pub fn name(&self) -> &str {
        &self.place.name
    }

    /// What clients are to do now.
    pub fn stage(&self) -> Stage {
        *self.run.stage.borrow()
    }

    /// Whether there is a session, and room for another request if no more than `pending_max` may be pending.
    pub fn may_ask(&self, pending_max: usize) -> bool {
        self.session.is_some() && self.client.pending_requests() < pending_max
    }

    /// Whether everybody's last message has come, and an answer to everything.
    pub fn is_done(&self) -> bool {
        self.has_said_last
            && self.client.pending_requests() == 0
            && self.last_heard.len() == self.place.clients
    }

    /// What comes next, or nothing until then.
    ///
    /// # Errors
    /// When the gateway breaks its promise in a way that needs no checker: a session is lost, a frame can't be read, a
    /// request is refused.
    pub async fn next(&mut self, until: Instant) -> Result<Option<Told>> {
        loop {
            if let Some(told) = self.told.pop_front() {
                return Ok(Some(told));
            }
            while let Some(output) = self.client.poll_output() {
                self.obey(output).await?;
            }
            if !self.told.is_empty() {
                continue;
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            self.wait(until).await?;
        }
    }

    /// Until something arrives, a timer is due or it is so late.
    async fn wait(&mut self, until: Instant) -> Result<()> {
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
            () = sleep_until(until) => {}
        }
        Ok(())
    }

    fn heard(&mut self, socket: SocketId, heard: Option<Result<Message, tungstenite::Error>>) -> Result<()> {
        match heard {
            Some(Ok(Message::Text(text))) => {
                let frame = Frame { kind: FrameKind::Text, data: text.into() };
                self.note_frame(&frame)?;
                self.handle(Input::Frame { socket, frame });
            }
            Some(Ok(Message::Close(close))) => {
                let code = close.map(|close| close.code.into());
                self.run.counts.borrow_mut().closed += 1;
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
                self.told.extend(sequence_id.map(Told::Received));
                Event::Received(message(session, body, *sequence_id))
            }
            Received::Control(Downstream::Ack { ack_id, error }) => acked(session, *ack_id, error.as_ref()),
            Received::Control(Downstream::Pong) => {
                self.told.push_back(Told::Ponged);
                return Ok(());
            }
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
                let groups = self
                    .place
                    .groups
                    .iter()
                    .map(|group| GroupName::new(group))
                    .collect::<Result<Vec<_>, _>>()?;
                self.record(opened(connection_id.as_str(), self.place.hub, true, &groups, true));
                self.session = Some(connection_id.as_str().to_owned());
                self.told.push_back(Told::Connected);
            }
            Output::Deliver { message: body, sequence_id } => {
                let Some(session) = &self.session else { bail!("a message before the session's name") };
                let delivered = message(session, &body, sequence_id);
                if let Some(name) = delivered.message.strip_prefix("last-") {
                    self.last_heard.insert(name.to_owned());
                }
                self.told.push_back(Told::Delivered(delivered.message.clone()));
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
                self.told.push_back(Told::Done(ack_id));
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
            Ok(Err(error)) => {
                if error.downcast_ref().is_some_and(|error| matches!(error, tungstenite::Error::Http(_))) {
                    self.run.counts.borrow_mut().refused += 1;
                }
                self.handle(Input::ConnectFailed { socket });
            }
            Err(_) => self.handle(Input::ConnectFailed { socket }),
        }
    }

    async fn dial(&self, recovery: Option<Recovery>) -> Result<WebSocketStream<TcpStream>> {
        let mut url = self.place.url.clone();
        if let Some(recovery) = recovery {
            let id = recovery.connection_id.as_str();
            let token = &recovery.reconnection_token.0;
            url = format!("{url}&awps_connection_id={id}&awps_reconnection_token={token}");
        }
        let mut request = url.into_client_request()?;
        let name = self.settings.subprotocol.name().context("a subprotocol with a name")?;
        request.headers_mut().insert("Sec-WebSocket-Protocol", HeaderValue::from_str(name)?);
        let tcp = TcpStream::connect(self.place.address).await?;
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
            return Ok(());
        }
        match asked {
            Upstream::SequenceAck { sequence_id } => self.told.push_back(Told::Acknowledged(sequence_id)),
            Upstream::Ping => self.told.push_back(Told::Pinged),
            _ => {}
        }
        Ok(())
    }

    /// Publishes a text with this marker; tells the request's ack id, or none if it was not taken.
    pub fn publish(&mut self, group: &str, marker: &str, padding: usize, no_echo: bool) -> Option<AckId> {
        let padding = "x".repeat(padding);
        self.ask(|ack_id| {
            Ok(Upstream::SendToGroup {
                group: GroupName::new(group)?,
                payload: Payload { kind: PayloadKind::Text, bytes: format!("#{marker}#{padding}").into() },
                metadata: Metadata::default(),
                ack_id,
                no_echo,
                ttl_seconds: 0,
            })
        })
    }

    /// Says its last, once.
    pub fn say_last(&mut self) {
        if !self.has_said_last {
            let marker = format!("last-{}", self.place.name);
            self.has_said_last = self.publish(EVERYBODY, &marker, 0, false).is_some();
        }
    }

    /// Makes a request; tells its ack id, or none if it was not taken.
    pub fn ask(&mut self, request: impl FnOnce(Option<AckId>) -> Result<Upstream>) -> Option<AckId> {
        let ack_id = self.client.fresh_ack_id();
        let now = self.now();
        // Refused only beyond the client's own bounds, which are far above this one's.
        request(Some(ack_id)).ok().filter(|request| self.client.request(now, request.clone()).is_ok())?;
        Some(ack_id)
    }

    /// Pings, if there is a socket.
    pub fn ping(&mut self) {
        let now = self.now();
        let _ = self.client.request(now, Upstream::Ping);
    }

    fn leave_socket(&mut self) {
        if self.socket.take().is_some() {
            self.told.push_back(Told::Left);
            if let Some(session) = &self.session {
                self.record(dropped(session));
            }
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
