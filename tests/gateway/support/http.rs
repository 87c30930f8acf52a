//! Plain HTTP, letter by letter: a request with just the headers that a scenario names.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{TlsClient, soon};

/// A request in the making.
#[derive(Clone)]
pub struct Ask {
    address: SocketAddr,
    method: &'static str,
    path: String,
    headers: Vec<(String, String)>,
    body: String,
    tls: Option<TlsClient>,
}

/// What came back.
#[derive(Debug)]
pub struct Answer {
    /// The status.
    pub status: u16,
    headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl Ask {
    /// A request with a `Host` of the address, and nothing else.
    pub fn new(address: SocketAddr, method: &'static str, path: &str) -> Self {
        let headers = vec![("host".to_owned(), address.to_string())];
        Self { address, method, path: path.to_owned(), headers, body: String::new(), tls: None }
    }

    /// A header, in place of one of this name.
    pub fn header(self, name: &str, value: &str) -> Self {
        let mut ask = self.without(name);
        ask.headers.push((name.to_owned(), value.to_owned()));
        ask
    }

    /// No header of this name.
    pub fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(known, _)| known != name);
        self
    }

    /// A body.
    pub fn body(mut self, body: impl Into<String>) -> Self {
        self.body = body.into();
        let bytes = self.body.len().to_string();
        self.header("content-length", &bytes)
    }

    /// Over TLS.
    pub fn inside(self, tls: &TlsClient) -> Self {
        Self { tls: Some(tls.clone()), ..self }
    }

    /// Sends it on a connection of its own.
    pub async fn send(&self) -> Answer {
        let stream = soon(TcpStream::connect(self.address)).await.unwrap();
        match &self.tls {
            None => self.send_on(stream).await,
            Some(tls) => self.send_on(soon(tls.inside(stream)).await.unwrap()).await,
        }
    }

    /// Sends the head and this much of the body.
    pub async fn begin(&self, body_bytes: usize) -> Begun {
        let mut stream = soon(TcpStream::connect(self.address)).await.unwrap();
        let (begin, rest) = self.body.split_at(body_bytes);
        soon(stream.write_all((self.head() + begin).as_bytes())).await.unwrap();
        Begun { stream, rest: rest.to_owned() }
    }

    async fn send_on(&self, mut stream: impl AsyncRead + AsyncWrite + Unpin) -> Answer {
        soon(stream.write_all((self.head() + &self.body).as_bytes())).await.unwrap();
        soon(stream.flush()).await.unwrap();
        Answer::read(&mut stream).await
    }

    fn head(&self) -> String {
        let mut head = format!("{} {} HTTP/1.1\r\nconnection: close\r\n", self.method, self.path);
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        head
    }
}

/// A request of which the end is still to be sent.
pub struct Begun {
    stream: TcpStream,
    rest: String,
}

impl Begun {
    /// The answer, if one came before the end was sent.
    pub async fn early_answer(&mut self) -> Option<Answer> {
        let is_there = timeout(Duration::from_millis(1), self.stream.readable()).await.is_ok();
        if is_there { Some(Answer::read(&mut self.stream).await) } else { None }
    }

    /// Sends the end.
    pub async fn end(mut self) -> Answer {
        soon(self.stream.write_all(self.rest.as_bytes())).await.unwrap();
        Answer::read(&mut self.stream).await
    }
}

impl Answer {
    async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Self {
        let mut answer = Vec::new();
        soon(stream.read_to_end(&mut answer)).await.unwrap();
        Self::parse(&answer)
    }

    fn parse(bytes: &[u8]) -> Self {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a whole head");
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers = lines.map(|line| line.split_once(": ").unwrap());
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Self { status, headers, body: bytes[end + 4..].to_vec() }
    }

    /// A header that is there once.
    #[track_caller]
    pub fn header(&self, name: &str) -> &str {
        let mut values = self.headers.iter().filter(|(known, _)| known == name);
        let (_, value) = values.next().unwrap_or_else(|| panic!("no {name} in {:?}", self.headers));
        assert!(values.next().is_none(), "{name} is there twice");
        value
    }

    /// All headers, in their order.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.headers.iter().map(|(name, value)| (&**name, &**value))
    }

    /// Whether there is such a header.
    pub fn has(&self, name: &str) -> bool {
        self.headers.iter().any(|(known, _)| known == name)
    }

    /// The body, which has to be JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        assert_eq!(self.header("content-type"), "application/json");
        serde_json::from_slice(&self.body).unwrap()
    }
}
