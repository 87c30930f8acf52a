//! The protocol's own client over real sockets.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use oncewire_protocol::client::{
    Client, ClientSettings, ClientTime, Frame, Input, Output, Recovery, RequestError, SocketId,
};
use oncewire_protocol::wire::{AckId, FrameKind, Upstream};
use tokio::time::Instant;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;

use super::{Connector, Identity, Wire, soon};

/// One client: its state machine, its clock and its socket.
pub struct Driver {
    client: Client,
    connector: Connector,
    started: Instant,
    socket: Option<(SocketId, WebSocketStream<Wire>)>,
}

impl Driver {
    /// A client that has been told to start. `connector` holds the URL with the access token; recoveries go to the
    /// same URL, as those of the official clients do.
    pub fn start(connector: Connector, settings: ClientSettings) -> Self {
        let name = settings.subprotocol.name().unwrap();
        let connector = connector.offer(name);
        let mut driver =
            Self { client: Client::new(settings), connector, started: Instant::now(), socket: None };
        driver.input(Input::Start);
        driver
    }

    /// Dials another address from now on.
    pub fn dial(&mut self, address: SocketAddr) {
        self.connector = self.connector.clone().through(address);
    }

    /// The state machine.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// An ack id that was not used before.
    pub fn fresh_ack_id(&mut self) -> AckId {
        self.client.fresh_ack_id()
    }

    /// Takes a request of the application.
    ///
    /// # Errors
    /// As the client says.
    pub fn request(&mut self, request: Upstream) -> Result<(), RequestError> {
        let now = self.now();
        self.client.request(now, request)
    }

    /// What the client has to tell next. Sockets are opened, written and closed on the way.
    pub async fn next(&mut self) -> Output {
        soon(self.run()).await
    }

    async fn run(&mut self) -> Output {
        loop {
            while let Some(output) = self.client.poll_output() {
                match output {
                    Output::Connect { socket, recovery } => self.connect(socket, recovery).await,
                    Output::Send { socket, frame } => self.send(socket, frame).await,
                    Output::CloseSocket { code, .. } => self.close(code).await,
                    told => return told,
                }
            }
            self.wait().await;
        }
    }

    /// Until something arrives or a timer is due.
    async fn wait(&mut self) {
        let due = self.client.poll_timeout().map(|due| self.started + Duration::from_millis(due.0));
        let timeout = async {
            match due {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        let heard = async {
            match &mut self.socket {
                Some((socket, stream)) => (*socket, stream.next().await),
                None => std::future::pending().await,
            }
        };
        let input = tokio::select! {
            () = timeout => Input::Timeout,
            (socket, heard) = heard => match heard {
                Some(Ok(Message::Text(text))) => {
                    let frame = Frame { kind: FrameKind::Text, data: text.into() };
                    Input::Frame { socket, frame }
                }
                Some(Ok(Message::Close(frame))) => {
                    Input::Closed { socket, code: frame.map(|frame| frame.code.into()) }
                }
                Some(Ok(_)) => return,
                Some(Err(_)) | None => Input::Closed { socket, code: None },
            },
        };
        if matches!(input, Input::Closed { .. }) {
            self.socket = None;
        }
        self.input(input);
    }

    async fn connect(&mut self, socket: SocketId, recovery: Option<Recovery>) {
        let mut connector = self.connector.clone();
        if let Some(recovery) = recovery {
            connector = connector.recover(&Identity {
                connection_id: recovery.connection_id.as_str().to_owned(),
                reconnection_token: recovery.reconnection_token.0,
            });
        }
        match connector.stream().await {
            Some(stream) => {
                self.socket = Some((socket, stream));
                self.input(Input::Opened { socket });
            }
            None => self.input(Input::ConnectFailed { socket }),
        }
    }

    async fn send(&mut self, socket: SocketId, frame: Frame) {
        let Some((open, stream)) = &mut self.socket else { return };
        let text = String::from_utf8(frame.data.to_vec()).unwrap();
        if stream.send(Message::text(text)).await.is_err() {
            debug_assert_eq!(*open, socket);
            self.socket = None;
            self.input(Input::Closed { socket, code: None });
        }
    }

    async fn close(&mut self, code: Option<u16>) {
        let Some((_, mut stream)) = self.socket.take() else { return };
        let frame = code.map(|code| CloseFrame { code: code.into(), reason: Default::default() });
        let _ = stream.send(Message::Close(frame)).await;
    }

    fn input(&mut self, input: Input) {
        let now = self.now();
        self.client.handle(now, input);
    }

    fn now(&self) -> ClientTime {
        ClientTime(self.started.elapsed().as_millis() as u64)
    }
}
