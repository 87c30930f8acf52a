//! User events, and the handler that they are brought to: it gives back what it gets.
//!
//! Each session has one event under way, and sends the next when it has the handler's answer and the ack, in this order.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::clients::{Clients, STALL};
use super::{Measurement, Meter, Subject, Window};
use crate::endpoint::Purpose;
use crate::frame::{self, Opcode};
use crate::message::{self, Downstream, RELIABLE_JSON, Stamp};

const HEADERS_MAX: usize = 64;
const REQUEST_BYTES_MAX: usize = 1 << 20;

/// The load.
#[derive(Clone, Copy, Debug)]
pub struct EventPlan {
    pub sessions: u16,
    pub payload_bytes: usize,
    pub window: Window,
}

/// Applies the load to `subject` and counts events that were handled and acknowledged.
///
/// # Errors
/// The server refuses, closes, stalls, or answers an event not with what it carried and then its ack.
pub fn run(subject: &Subject, plan: &EventPlan) -> Result<Measurement> {
    let mut sessions = Sessions::open(subject, plan.sessions, plan.payload_bytes)?;
    let mut meter = Meter::new(subject, plan.window);
    (0..plan.sessions).try_for_each(|session| sessions.send(session))?;
    let mut progress = Instant::now();
    loop {
        let before = sessions.handled;
        for session in sessions.turn()? {
            sessions.send(session)?;
        }
        if sessions.handled > before {
            progress = Instant::now();
        }
        ensure!(progress.elapsed() < STALL, "no event was acknowledged for {STALL:?}");
        if let Some(measurement) = meter.observe(sessions.handled)? {
            return Ok(measurement);
        }
    }
}

/// How long one event takes through `subject`, and one bare HTTP call with the same body to its handler, by turns.
///
/// # Errors
/// See [`run`].
pub fn latencies(
    subject: &Subject,
    handler: SocketAddr,
    payload_bytes: usize,
    count: u32,
) -> Result<(Vec<Duration>, Vec<Duration>)> {
    let mut sessions = Sessions::open(subject, 1, payload_bytes)?;
    let mut bare = BareCalls::open(handler, payload_bytes)?;
    let (mut of_events, mut of_calls) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let began = Instant::now();
        sessions.send(0)?;
        while sessions.turn()?.is_empty() {
            ensure!(began.elapsed() < STALL, "an event was not acknowledged for {STALL:?}");
        }
        of_events.push(began.elapsed());
        let began = Instant::now();
        bare.call()?;
        of_calls.push(began.elapsed());
    }
    Ok((of_events, of_calls))
}

/// Sessions with the keys from 0, each with at most one event under way.
struct Sessions {
    clients: Clients,
    payload_bytes: usize,
    /// Events that each has sent.
    sent: Vec<u64>,
    /// Whether the handler's answer to the last one has come.
    is_answered: Vec<bool>,
    handled: u64,
    text: Vec<u8>,
    frames: Vec<u8>,
}

impl Sessions {
    fn open(subject: &Subject, count: u16, payload_bytes: usize) -> Result<Self> {
        let mut clients = Clients::new()?;
        let target = subject.endpoint.client_target(Purpose::Publish)?;
        clients.open_all(usize::from(count), &subject.endpoint, &target, RELIABLE_JSON)?;
        let (sent, is_answered) = (vec![0; usize::from(count)], vec![false; usize::from(count)]);
        Ok(Self {
            clients,
            payload_bytes,
            sent,
            is_answered,
            handled: 0,
            text: Vec::new(),
            frames: Vec::new(),
        })
    }

    fn send(&mut self, session: u16) -> Result<()> {
        let sent = &mut self.sent[usize::from(session)];
        let stamp = Stamp { publisher: session, number: *sent };
        *sent += 1;
        message::write_event(*sent, stamp, self.payload_bytes, &mut self.text);
        self.frames.clear();
        frame::push_client_frame(Opcode::Text, &self.text, &mut self.frames);
        self.clients.send(usize::from(session), &self.frames)
    }

    /// Reads what is there, acknowledges it, and returns whose event is done.
    fn turn(&mut self) -> Result<Vec<u16>> {
        let (mut done, mut due) = (Vec::new(), Vec::new());
        let Self { clients, sent, is_answered, handled, .. } = self;
        clients.turn(Duration::from_millis(100), |key, message| {
            match message {
                Downstream::Delivery { sequence_id, stamp } => {
                    let expected = Stamp { publisher: u16::try_from(key)?, number: sent[key] - 1 };
                    ensure!(
                        stamp == expected && !is_answered[key],
                        "client {key} got another answer: {stamp:?}"
                    );
                    is_answered[key] = true;
                    due.push((key, sequence_id));
                }
                Downstream::Ack { ack_id } => {
                    ensure!(
                        ack_id == sent[key] && is_answered[key],
                        "client {key} got ack {ack_id} too early"
                    );
                    is_answered[key] = false;
                    *handled += 1;
                    done.push(u16::try_from(key)?);
                }
                other => bail!("client {key} got {other:?}"),
            }
            Ok(())
        })?;
        for (key, sequence_id) in due {
            self.frames.clear();
            let ack = message::sequence_ack(sequence_id);
            frame::push_client_frame(Opcode::Text, ack.as_bytes(), &mut self.frames);
            self.clients.send(key, &self.frames)?;
        }
        Ok(done)
    }
}

/// Starts the handler, which lives as long as the process. It answers each request with its body as text, a thread for
/// each connection, and a validation with what lets everybody in.
///
/// # Errors
/// It can't listen.
pub fn start_handler() -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for socket in listener.incoming().map_while(std::io::Result::ok) {
            // A connection that breaks is the gateway's to notice.
            thread::spawn(move || drop(echo(socket)));
        }
    });
    Ok(address)
}

fn echo(mut socket: TcpStream) -> Result<()> {
    socket.set_nodelay(true)?;
    let mut answer = Vec::new();
    let mut received = Vec::new();
    while let Some((head_bytes, body_bytes)) = read_request(&mut socket, &mut received)? {
        answer.clear();
        write!(
            answer,
            "HTTP/1.1 200 OK\r\nWebHook-Allowed-Origin: *\r\nContent-Type: text/plain\r\nContent-Length: {body_bytes}\r\n\r\n"
        )?;
        answer.extend_from_slice(&received[head_bytes..head_bytes + body_bytes]);
        socket.write_all(&answer)?;
        received.drain(..head_bytes + body_bytes);
    }
    Ok(())
}

/// Reads until a request is whole; none when the other side has closed.
fn read_request(socket: &mut TcpStream, received: &mut Vec<u8>) -> Result<Option<(usize, usize)>> {
    let mut buffer = [0; 16 * 1024];
    loop {
        if let Some((head_bytes, body_bytes)) = parse_request(received)?
            && received.len() >= head_bytes + body_bytes
        {
            return Ok(Some((head_bytes, body_bytes)));
        }
        ensure!(received.len() <= REQUEST_BYTES_MAX, "a request of more than {REQUEST_BYTES_MAX} bytes");
        match socket.read(&mut buffer)? {
            0 => return Ok(None),
            bytes => received.extend_from_slice(&buffer[..bytes]),
        }
    }
}

/// The bytes of a request's head and of its body; none while the head is incomplete.
fn parse_request(bytes: &[u8]) -> Result<Option<(usize, usize)>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let httparse::Status::Complete(head_bytes) = request.parse(bytes)? else { return Ok(None) };
    Ok(Some((head_bytes, content_length(request.headers)?)))
}

fn content_length(headers: &[httparse::Header<'_>]) -> Result<usize> {
    match headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length")) {
        Some(header) => Ok(std::str::from_utf8(header.value)?.parse()?),
        None => Ok(0),
    }
}

/// Calls of the handler without a gateway, over one connection.
struct BareCalls {
    socket: TcpStream,
    request: Vec<u8>,
    received: Vec<u8>,
}

impl BareCalls {
    fn open(handler: SocketAddr, payload_bytes: usize) -> Result<Self> {
        let socket = TcpStream::connect(handler)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(STALL))?;
        let head = format!(
            "POST /echo HTTP/1.1\r\nHost: {handler}\r\nContent-Type: text/plain\r\nContent-Length: {payload_bytes}\r\n\r\n"
        );
        let request = [head.as_bytes(), &vec![b'x'; payload_bytes]].concat();
        Ok(Self { socket, request, received: Vec::new() })
    }

    fn call(&mut self) -> Result<()> {
        self.socket.write_all(&self.request)?;
        self.received.clear();
        let mut buffer = [0; 16 * 1024];
        loop {
            let bytes = self.socket.read(&mut buffer)?;
            ensure!(bytes > 0, "the handler closed a connection");
            self.received.extend_from_slice(&buffer[..bytes]);
            let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
            let mut response = httparse::Response::new(&mut headers);
            if let httparse::Status::Complete(head_bytes) = response.parse(&self.received)? {
                let body_bytes = content_length(response.headers)?;
                if self.received.len() >= head_bytes + body_bytes {
                    let status = response.code.context("an answer without a status")?;
                    ensure!(status == 200, "the handler answered {status}");
                    return Ok(());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_handler_gives_back_what_it_gets() {
        let handler = start_handler().unwrap();
        let mut calls = BareCalls::open(handler, 5).unwrap();
        for _ in 0..2 {
            calls.call().unwrap();
            assert!(calls.received.ends_with(b"\r\n\r\nxxxxx"));
        }
    }
}
