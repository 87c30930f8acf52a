//! Requests of an application, over HTTP connections that stay open, and what clients get of them.
//!
//! Each connection sends one request, then the answers are read, then what is owed to clients; then comes the next turn.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::clients::{Clients, STALL};
use super::{Measurement, Meter, Subject, Window};
use crate::endpoint::Endpoint;
use crate::frame::{self, Opcode};
use crate::message::{self, Downstream};

/// Deliveries after which a client acknowledges: far below what a gateway keeps for it.
const ACKNOWLEDGE_EVERY: u32 = 256;
const HEAD_BYTES_MAX: usize = 4096;
const HEADERS_MAX: usize = 16;

/// One kind of request.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: &'static str,
    /// Behind the hub; percent-encoded.
    pub path: &'static str,
    /// Percent-encoded; may be empty.
    pub query: &'static str,
    /// A text to send; none for an operation without a body.
    pub body: Option<String>,
    /// The status of success.
    pub status: u16,
    /// How many clients get a message.
    pub deliveries: u64,
}

/// The load: these requests in turn.
#[derive(Clone, Debug)]
pub struct RequestPlan<'a> {
    pub hub: &'static str,
    pub requests: &'a [Request],
    pub connections: u16,
    pub window: Window,
}

/// Applies the load to `subject` and counts requests. `clients` are connected, `count` of them, with keys from 0.
///
/// # Errors
/// The server refuses or stalls, or a client gets more or less than it should.
pub fn run(
    subject: &Subject,
    clients: &mut Clients,
    count: usize,
    plan: &RequestPlan<'_>,
) -> Result<Measurement> {
    let endpoint = &subject.endpoint;
    let connect = |_| Connection::open(endpoint);
    let mut connections = (0..plan.connections).map(connect).collect::<Result<Vec<_>>>()?;
    let prepared = plan.requests.iter().map(|request| Prepared::new(request, plan.hub, endpoint));
    let prepared = prepared.collect::<Result<Vec<_>>>()?;
    let mut meter = Meter::new(subject, plan.window);
    let mut inboxes = vec![Inbox::default(); count];
    let (mut operations, mut owed) = (0_u64, 0_u64);
    loop {
        // Of one turn all requests are of one kind: the next kind may depend on what this one did.
        let prepared = &prepared[(operations / u64::from(plan.connections)) as usize % prepared.len()];
        for connection in &mut connections {
            connection.send(prepared, operations)?;
            operations += 1;
            owed += prepared.deliveries;
        }
        for connection in &mut connections {
            connection.receive(prepared.status)?;
        }
        let began = Instant::now();
        while owed > 0 {
            let mut due = Vec::new();
            clients.turn(Duration::from_millis(100), |key, message| {
                let Downstream::Delivery { sequence_id, .. } = message else {
                    bail!("client {key} got {message:?}")
                };
                owed = owed.checked_sub(1).context("a client got what was not sent")?;
                if inboxes[key].takes() {
                    due.push((key, sequence_id));
                }
                Ok(())
            })?;
            for (key, sequence_id) in due {
                let mut frames = Vec::new();
                frame::push_client_frame(
                    Opcode::Text,
                    message::sequence_ack(sequence_id).as_bytes(),
                    &mut frames,
                );
                clients.send(key, &frames)?;
            }
            ensure!(began.elapsed() < STALL, "{owed} deliveries are missing");
        }
        if let Some(measurement) = meter.observe(operations)? {
            return Ok(measurement);
        }
    }
}

/// What a client has not acknowledged.
#[derive(Clone, Copy, Default)]
struct Inbox {
    unacknowledged: u32,
}

impl Inbox {
    /// Counts a delivery; tells whether it is time to acknowledge.
    fn takes(&mut self) -> bool {
        self.unacknowledged = (self.unacknowledged + 1) % ACKNOWLEDGE_EVERY;
        self.unacknowledged == 0
    }
}

/// A request up to its id, and what follows.
struct Prepared {
    head: String,
    tail: String,
    status: u16,
    deliveries: u64,
}

impl Prepared {
    fn new(request: &Request, hub: &str, endpoint: &Endpoint) -> Result<Self> {
        let Request { method, path, query, body, status, deliveries } = request;
        let path = format!("/api/hubs/{hub}/{path}");
        let token = endpoint.rest_token(&path)?;
        let head = format!(
            "{method} {path}?api-version=2024-12-01&{query} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\n\
             Accept: application/json\r\nx-ms-client-request-id: ",
            endpoint.address
        );
        let tail = match body {
            Some(body) => {
                format!("\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n{body}", body.len())
            }
            None => "\r\nContent-Length: 0\r\n\r\n".to_owned(),
        };
        Ok(Self { head, tail, status: *status, deliveries: *deliveries })
    }
}

/// An HTTP connection.
struct Connection {
    socket: TcpStream,
    sent: Vec<u8>,
    received: Vec<u8>,
}

impl Connection {
    fn open(endpoint: &Endpoint) -> Result<Self> {
        let socket = TcpStream::connect(endpoint.address)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(STALL))?;
        Ok(Self { socket, sent: Vec::new(), received: Vec::new() })
    }

    fn send(&mut self, request: &Prepared, number: u64) -> Result<()> {
        self.sent.clear();
        write!(self.sent, "{}{number:032x}{}", request.head, request.tail)?;
        Ok(self.socket.write_all(&self.sent)?)
    }

    /// Reads an answer. None of the requests here has one with a body, unless it is refused.
    fn receive(&mut self, expected: u16) -> Result<()> {
        self.received.clear();
        loop {
            let mut buffer = [0; 1024];
            let read = self.socket.read(&mut buffer)?;
            ensure!(read > 0, "the server closed an HTTP connection");
            self.received.extend_from_slice(&buffer[..read]);
            ensure!(self.received.len() <= HEAD_BYTES_MAX, "an answer of more than {HEAD_BYTES_MAX} bytes");
            if let Some(status) = parse_status(&self.received)? {
                ensure!(status == expected, "{}", String::from_utf8_lossy(&self.received));
                return Ok(());
            }
        }
    }
}

/// The status of an answer without a body; none while it is incomplete.
fn parse_status(bytes: &[u8]) -> Result<Option<u16>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    if response.parse(bytes)?.is_partial() {
        return Ok(None);
    }
    response.code.context("an answer without a status").map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_when_its_head_is_whole() {
        let answer = b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n";
        for cut in [0, 1, answer.len() - 1] {
            assert_eq!(parse_status(&answer[..cut]).unwrap(), None);
        }
        assert_eq!(parse_status(answer).unwrap(), Some(202));
        assert!(parse_status(b"no http\r\n\r\n").is_err());
    }

    #[test]
    fn a_client_acknowledges_now_and_then() {
        let mut inbox = Inbox::default();
        let acks = (0..3 * ACKNOWLEDGE_EVERY).filter(|_| inbox.takes()).count();
        assert_eq!(acks, 3);
    }
}
