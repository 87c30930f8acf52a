//! A WebSocket handshake, with everything about it that a scenario wants to say itself.

use std::net::SocketAddr;

use tokio::net::TcpSocket;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::error::Error;
use tokio_tungstenite::tungstenite::http::{HeaderValue, Request, Response};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use url::form_urlencoded;

use super::{HUB, Identity, Socket, TlsClient, Token, Wire, soon};

/// A handshake that was answered by a status.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused(pub u16);

/// A handshake in the making.
#[derive(Clone)]
pub struct Connector {
    address: SocketAddr,
    host: String,
    path: String,
    hub: String,
    query: Vec<(String, String)>,
    headers: Vec<(&'static str, String)>,
    receive_buffer_bytes: Option<u32>,
    frame_bytes_max: Option<usize>,
    tls: Option<TlsClient>,
}

impl Connector {
    /// To the usual hub, with neither token nor offer.
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            host: address.to_string(),
            path: format!("/client/hubs/{HUB}"),
            hub: HUB.to_owned(),
            query: Vec::new(),
            headers: Vec::new(),
            receive_buffer_bytes: None,
            frame_bytes_max: None,
            tls: None,
        }
    }

    /// Another hub, named in the path.
    pub fn hub(mut self, hub: &str) -> Self {
        self.path = format!("/client/hubs/{hub}");
        self.hub = hub.to_owned();
        self
    }

    /// Another path, query and all; tokens are still made for the hub.
    pub fn path(mut self, path: &str) -> Self {
        self.path = path.to_owned();
        self
    }

    /// Another `Host` than the address.
    pub fn host(mut self, host: &str) -> Self {
        self.host = host.to_owned();
        self
    }

    /// A query parameter.
    pub fn query(mut self, name: &str, value: &str) -> Self {
        self.query.push((name.to_owned(), value.to_owned()));
        self
    }

    /// A header.
    pub fn header(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }

    /// The access token, in the query.
    pub fn token(self, token: &Token) -> Self {
        let signed = self.signed(token);
        self.query("access_token", &signed)
    }

    /// The access token, in the header.
    pub fn bearer(self, token: &Token) -> Self {
        let signed = self.signed(token);
        self.header("Authorization", &format!("Bearer {signed}"))
    }

    /// The session to recover.
    pub fn recover(self, identity: &Identity) -> Self {
        self.query("awps_connection_id", &identity.connection_id)
            .query("awps_reconnection_token", &identity.reconnection_token)
    }

    /// The subprotocols to offer.
    pub fn offer(self, names: &str) -> Self {
        self.header("Sec-WebSocket-Protocol", names)
    }

    /// How much the kernel takes in for a client that does not read.
    pub fn receive_buffer_bytes(mut self, bytes: u32) -> Self {
        self.receive_buffer_bytes = Some(bytes);
        self
    }

    /// Inside TLS.
    pub fn inside(mut self, tls: &TlsClient) -> Self {
        self.tls = Some(tls.clone());
        self
    }

    fn signed(&self, token: &Token) -> String {
        token.sign(&format!("http://{}/client/hubs/{}", self.host, self.hub))
    }

    /// Shakes hands.
    pub async fn open(self) -> Result<Socket, Refused> {
        self.answered().await.map(|(socket, _)| socket)
    }

    /// Shakes hands and tells which subprotocol was selected.
    pub async fn selected(self) -> Result<(Socket, Option<String>), Refused> {
        let (socket, response) = self.answered().await?;
        let name = response.headers().get("Sec-WebSocket-Protocol");
        Ok((socket, name.map(|name| name.to_str().unwrap().to_owned())))
    }

    /// Shakes hands and expects a status instead of an upgrade.
    pub async fn status(self) -> u16 {
        match self.open().await {
            Ok(_) => 101,
            Err(Refused(status)) => status,
        }
    }

    /// Closes at a larger frame, as Netty does.
    pub fn frame_bytes_max(mut self, bytes: usize) -> Self {
        self.frame_bytes_max = Some(bytes);
        self
    }

    /// Dials another address than the URL names, such as a proxy's.
    pub fn through(mut self, address: SocketAddr) -> Self {
        self.address = address;
        self
    }

    /// Shakes hands; `None` when that does not succeed, whatever the reason.
    pub async fn stream(self) -> Option<WebSocketStream<Wire>> {
        let request = self.request();
        let wire = self.dial().await.ok()?;
        tokio_tungstenite::client_async(request, wire).await.ok().map(|(stream, _)| stream)
    }

    async fn answered(self) -> Result<(Socket, Response<Option<Vec<u8>>>), Refused> {
        let request = self.request();
        let wire = soon(self.dial()).await.unwrap();
        let config = WebSocketConfig::default().max_frame_size(self.frame_bytes_max);
        match soon(tokio_tungstenite::client_async_with_config(request, wire, Some(config))).await {
            Ok((stream, response)) => Ok((Socket::new(stream), response)),
            Err(Error::Http(response)) => Err(Refused(response.status().as_u16())),
            Err(other) => panic!("the handshake failed: {other}"),
        }
    }

    async fn dial(&self) -> std::io::Result<Wire> {
        let socket = TcpSocket::new_v4()?;
        if let Some(bytes) = self.receive_buffer_bytes {
            socket.set_recv_buffer_size(bytes)?;
        }
        let stream = socket.connect(self.address).await?;
        stream.set_nodelay(true)?;
        Ok(match &self.tls {
            None => Wire::Plain(stream),
            Some(tls) => Wire::Tls(Box::new(tls.inside(stream).await?)),
        })
    }

    fn request(&self) -> Request<()> {
        let query: String =
            form_urlencoded::Serializer::new(String::new()).extend_pairs(&self.query).finish();
        let separator = match (query.is_empty(), self.path.contains('?')) {
            (true, _) => "",
            (false, true) => "&",
            (false, false) => "?",
        };
        let target = format!("ws://{}{}{separator}{query}", self.host, self.path);
        let mut request = target.into_client_request().unwrap();
        for (name, value) in &self.headers {
            request.headers_mut().append(*name, HeaderValue::from_str(value).unwrap());
        }
        request
    }
}
