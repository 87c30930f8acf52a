//! Many clients on one thread.
//!
//! Knows the handshake, frames, pings and which messages come from whom. Does not know what is being measured.

use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use slab::Slab;
use socket2::{Domain, SockRef, Socket, Type};

use crate::endpoint::Endpoint;
use crate::frame::{self, Opcode, Sender};
use crate::handshake;
use crate::message::Downstream;
use crate::poll::{Poller, ReadBuffer, Received};

/// How long a server may take to do anything at all before the benchmark gives up.
pub const STALL: Duration = Duration::from_secs(30);
/// How many handshakes are under way at once while the clients of a benchmark are opened.
const HANDSHAKES_IN_FLIGHT_MAX: usize = 64;
/// How many loopback addresses the clients connect from: one has only some 28,000 ports by default.
pub const SOURCES: usize = 8;

/// The clients of a benchmark. Their keys count up from 0 for as long as none is closed.
pub struct Clients {
    poller: Poller,
    ready: Vec<usize>,
    buffer: ReadBuffer,
    clients: Slab<Client>,
    replies: Vec<u8>,
}

struct Client {
    socket: TcpStream,
    remainder: Vec<u8>,
    subprotocol: &'static str,
    upgraded: bool,
}

impl Clients {
    /// No clients yet.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn new() -> Result<Self> {
        Ok(Self {
            poller: Poller::new()?,
            ready: Vec::new(),
            buffer: ReadBuffer::new(),
            clients: Slab::new(),
            replies: Vec::new(),
        })
    }

    /// Connects a client and sends its handshake. [`Downstream::Connected`] tells when it is through.
    ///
    /// # Errors
    /// The server does not listen, or out of ports or descriptors.
    pub fn open(&mut self, endpoint: &Endpoint, target: &str, subprotocol: &'static str) -> Result<usize> {
        let entry = self.clients.vacant_entry();
        let key = entry.key();
        // Blocking: on loopback the kernel accepts at once.
        let mut socket = connect_from(key % SOURCES, endpoint.address)?;
        socket.set_nodelay(true)?;
        socket
            .write_all(handshake::request(&endpoint.address.to_string(), target, subprotocol).as_bytes())?;
        socket.set_nonblocking(true)?;
        self.poller.add(&socket, key)?;
        entry.insert(Client { socket, remainder: Vec::new(), subprotocol, upgraded: false });
        Ok(key)
    }

    /// Opens `count` clients and waits until all are connected.
    ///
    /// # Errors
    /// A handshake fails, or none succeeds for [`STALL`].
    pub fn open_all(
        &mut self,
        count: usize,
        endpoint: &Endpoint,
        target: &str,
        subprotocol: &'static str,
    ) -> Result<()> {
        let (mut opened, mut connected) = (0, 0);
        let mut progress = Instant::now();
        while connected < count {
            while opened < count && opened - connected < HANDSHAKES_IN_FLIGHT_MAX {
                self.open(endpoint, target, subprotocol)?;
                opened += 1;
            }
            let before = connected;
            self.turn(Duration::from_millis(100), |_, message| {
                connected += usize::from(message == Downstream::Connected);
                Ok(())
            })?;
            if connected > before {
                progress = Instant::now();
            }
            ensure!(progress.elapsed() < STALL, "only {connected} of {count} clients were connected");
        }
        Ok(())
    }

    /// Waits up to `timeout` for sockets to be readable, reads each of them once and hands over every message with
    /// its client's key. Answers pings.
    ///
    /// # Errors
    /// The server closes a socket or breaks the protocol; or what `each` returned.
    pub fn turn(
        &mut self,
        timeout: Duration,
        mut each: impl FnMut(usize, Downstream) -> Result<()>,
    ) -> Result<()> {
        self.poller.wait(Some(timeout), &mut self.ready)?;
        for &key in &self.ready {
            let client = &mut self.clients[key];
            let mut bytes = match self.buffer.receive(&client.socket, &mut client.remainder)? {
                Received::Bytes(bytes) => bytes,
                Received::Nothing => continue,
                Received::Closed => bail!("the server cut client {key} off"),
            };
            if !client.upgraded {
                match handshake::parse_response(bytes, client.subprotocol)? {
                    Some(head_bytes) => bytes = &mut bytes[head_bytes..],
                    None => {
                        client.remainder.extend_from_slice(bytes);
                        continue;
                    }
                }
                client.upgraded = true;
            }
            self.replies.clear();
            let taken = frame::decode(bytes, Sender::Server, |opcode, payload| match opcode {
                Opcode::Text => each(key, Downstream::parse(payload)?),
                Opcode::Ping => {
                    frame::push_client_frame(Opcode::Pong, payload, &mut self.replies);
                    Ok(())
                }
                Opcode::Pong => Ok(()),
                Opcode::Close => bail!("the server closed client {key}: {}", close_reason(payload)),
                Opcode::Binary => bail!("a binary frame in a JSON subprotocol"),
            })?;
            client.remainder.extend_from_slice(&bytes[taken..]);
            if !self.replies.is_empty() {
                write_all(&client.socket, &self.replies)?;
            }
        }
        Ok(())
    }

    /// Sends whole frames, and waits for room in the socket if need be.
    ///
    /// # Errors
    /// The server is gone, or takes nothing for [`STALL`].
    pub fn send(&self, key: usize, frames: &[u8]) -> Result<()> {
        write_all(&self.clients[key].socket, frames)
    }

    /// Cuts a client off by a reset, which leaves no port waiting.
    ///
    /// # Errors
    /// The socket is broken.
    pub fn reset(&mut self, key: usize) -> Result<()> {
        let client = self.clients.remove(key);
        Ok(SockRef::from(&client.socket).set_linger(Some(Duration::ZERO))?)
    }
}

/// Connects from one of [`SOURCES`] addresses.
///
/// # Errors
/// Nobody listens, or out of ports or descriptors.
pub fn connect_from(source: usize, server: SocketAddr) -> Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(server), Type::STREAM.cloexec(), None)?;
    if server.ip() == IpAddr::V4(Ipv4Addr::LOCALHOST) {
        // The cast is exact: sources are few.
        socket.bind(&SocketAddr::from(([127, 0, 0, 1 + source as u8], 0)).into())?;
    }
    socket.connect(&server.into()).with_context(|| format!("cannot connect to {server}"))?;
    Ok(socket.into())
}

fn write_all(mut socket: &TcpStream, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        match socket.write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let timeout = Timespec::try_from(STALL)?;
                let writable = poll(&mut [PollFd::new(&socket, PollFlags::OUT)], Some(&timeout))?;
                ensure!(writable > 0, "the server has taken nothing for {STALL:?}");
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn close_reason(payload: &[u8]) -> String {
    match payload.split_first_chunk::<2>() {
        Some((code, reason)) => {
            format!("{} {}", u16::from_be_bytes(*code), String::from_utf8_lossy(reason))
        }
        None => "without a code".to_owned(),
    }
}
