//! The floor: the least that any server could do for the same traffic, which the gateway is measured against.
//!
//! One thread, epoll, and no library between it and the sockets. A publish is one body; per subscriber it writes frame
//! header, sequence id and that body into one reused buffer and hands it to the kernel with one nonblocking write. All
//! publishes of one read share that write. There is no queue, no log, no redelivery, no check of tokens and no parsing
//! beyond what the load generator of this benchmark sends; sequence acks are read and ignored.

use std::convert::Infallible;
use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};

use anyhow::{Context as _, Result, bail, ensure};
use memchr::memmem;
use rustix::net::SocketFlags;
use slab::Slab;

use crate::frame::{self, Opcode, Sender};
use crate::handshake;
use crate::message::GROUP;
use crate::poll::{Poller, ReadBuffer, Received, is_peer_gone};
use crate::token;

/// Listens on an address, prints the line that says so, and serves until the first error.
#[derive(clap::Args)]
pub struct FloorArgs {
    /// Address to listen on; port 0 picks one.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Repeated in the ready line. The floor checks no tokens.
    #[arg(long, default_value = "unchecked")]
    access_key: String,
}

/// Runs the `floor` command.
///
/// # Errors
/// The address cannot be bound; or any that ends [`serve`].
pub fn run(args: &FloorArgs) -> Result<Infallible> {
    let listener = TcpListener::bind(args.listen)?;
    let address = listener.local_addr()?;
    writeln!(
        io::stdout(),
        "connection string: Endpoint=http://{address};AccessKey={};Version=1.0;",
        args.access_key
    )?;
    serve(listener)
}

/// Serves until the first error: a peer that breaks the protocol, or a subscriber that does not read. (The load
/// generator keeps one burst in flight, so a socket that takes only a part of a write is a mistake of the benchmark.)
///
/// # Errors
/// Always, in the end.
pub fn serve(listener: TcpListener) -> Result<Infallible> {
    listener.set_nonblocking(true)?;
    let poller = Poller::new()?;
    poller.add(&listener, LISTENER)?;
    let mut floor = Floor {
        listener,
        poller,
        connections: Slab::new(),
        buffer: ReadBuffer::new(),
        batch: Batch::default(),
        out: Vec::new(),
    };
    let mut ready = Vec::new();
    loop {
        floor.poller.wait(None, &mut ready)?;
        for &token in &ready {
            match token {
                LISTENER => floor.accept()?,
                key => floor.read(key)?,
            }
        }
    }
}

const LISTENER: usize = usize::MAX;

struct Floor {
    listener: TcpListener,
    poller: Poller,
    connections: Slab<Connection>,
    buffer: ReadBuffer,
    batch: Batch,
    out: Vec<u8>,
}

struct Connection {
    socket: TcpStream,
    remainder: Vec<u8>,
    stage: Stage,
}

enum Stage {
    Upgrading,
    Publisher,
    Subscriber { sequence_id: u64 },
}

/// The publishes of one read.
#[derive(Default)]
struct Batch {
    /// What follows the sequence id in each delivery.
    bodies: Vec<Vec<u8>>,
    /// How many of `bodies` are in use; the others only keep their memory for the next batch.
    len: usize,
    /// The ack frames for the publisher.
    acks: Vec<u8>,
}

impl Floor {
    fn accept(&mut self) -> Result<()> {
        loop {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let socket = match rustix::net::accept_with(&self.listener, flags) {
                Ok(socket) => TcpStream::from(socket),
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Err(rustix::io::Errno::CONNABORTED) => continue,
                Err(error) => return Err(error.into()),
            };
            socket.set_nodelay(true)?;
            let entry = self.connections.vacant_entry();
            self.poller.add(&socket, entry.key())?;
            entry.insert(Connection { socket, remainder: Vec::new(), stage: Stage::Upgrading });
        }
    }

    fn read(&mut self, key: usize) -> Result<()> {
        let connection = &mut self.connections[key];
        let bytes = match self.buffer.receive(&connection.socket, &mut connection.remainder)? {
            Received::Bytes(bytes) => bytes,
            Received::Nothing => return Ok(()),
            Received::Closed => {
                self.connections.remove(key);
                return Ok(());
            }
        };
        if matches!(connection.stage, Stage::Upgrading) {
            return connection.upgrade(bytes);
        }
        self.batch.clear();
        let mut closing = false;
        let taken = frame::decode(bytes, Sender::Client, |opcode, payload| {
            match opcode {
                Opcode::Text if payload.starts_with(br#"{"type":"sendToGroup""#) => {
                    self.batch.push(payload)?
                }
                Opcode::Text | Opcode::Pong => {}
                Opcode::Close => closing = true,
                Opcode::Binary | Opcode::Ping => bail!("the load generator sends no {opcode:?} frames"),
            }
            Ok(())
        })?;
        connection.remainder.extend_from_slice(&bytes[taken..]);
        if closing {
            self.connections.remove(key);
        } else if self.batch.len > 0 {
            self.fan_out()?;
            write_once(&self.connections[key].socket, &self.batch.acks)?;
        }
        Ok(())
    }

    fn fan_out(&mut self) -> Result<()> {
        for (_, connection) in &mut self.connections {
            let Stage::Subscriber { sequence_id } = &mut connection.stage else { continue };
            self.out.clear();
            for body in &self.batch.bodies[..self.batch.len] {
                *sequence_id += 1;
                push_delivery(*sequence_id, body, &mut self.out);
            }
            write_once(&connection.socket, &self.out)?;
        }
        Ok(())
    }
}

impl Connection {
    fn upgrade(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(upgrade) = handshake::parse_request(bytes)? else {
            self.remainder.extend_from_slice(bytes);
            return Ok(());
        };
        ensure!(
            upgrade.head_bytes == bytes.len(),
            "the load generator waits for the answer before it sends more"
        );
        let subscribes = token::names_a_group(&upgrade.target);
        self.stage = if subscribes { Stage::Subscriber { sequence_id: 0 } } else { Stage::Publisher };
        let mut answer = handshake::response(&upgrade).into_bytes();
        let connected = br#"{"type":"system","event":"connected","userId":null,"connectionId":"floor"}"#;
        frame::push_server_text_header(connected.len(), &mut answer);
        answer.extend_from_slice(connected);
        write_once(&self.socket, &answer)
    }
}

impl Batch {
    fn clear(&mut self) {
        self.len = 0;
        self.acks.clear();
    }

    /// Takes a publish as [`crate::message::write_publish`] writes it: `data` is the last field.
    fn push(&mut self, publish: &[u8]) -> Result<()> {
        let ack_id = after(publish, br#""ackId":"#)?;
        let ack_id = &ack_id[..ack_id.iter().take_while(|byte| byte.is_ascii_digit()).count()];
        let data_to_end = after(publish, br#""data":"#)?;

        if self.len == self.bodies.len() {
            self.bodies.push(Vec::new());
        }
        let body = &mut self.bodies[self.len];
        self.len += 1;
        body.clear();
        body.extend_from_slice(br#","type":"message","from":"group","group":""#);
        body.extend_from_slice(GROUP.as_bytes());
        body.extend_from_slice(br#"","fromUserId":null,"dataType":"text","data":"#);
        body.extend_from_slice(data_to_end);

        let ack = [br#"{"type":"ack","ackId":"#, ack_id, br#","success":true}"#];
        frame::push_server_text_header(ack.iter().map(|part| part.len()).sum(), &mut self.acks);
        ack.iter().for_each(|part| self.acks.extend_from_slice(part));
        Ok(())
    }
}

fn push_delivery(sequence_id: u64, body: &[u8], out: &mut Vec<u8>) {
    const PREFIX: &[u8] = br#"{"sequenceId":"#;
    let mut buffer = itoa::Buffer::new();
    let digits = buffer.format(sequence_id).as_bytes();
    frame::push_server_text_header(PREFIX.len() + digits.len() + body.len(), out);
    out.extend_from_slice(PREFIX);
    out.extend_from_slice(digits);
    out.extend_from_slice(body);
}

fn write_once(mut socket: &TcpStream, bytes: &[u8]) -> Result<()> {
    match socket.write(bytes) {
        Ok(written) => {
            ensure!(
                written == bytes.len(),
                "a socket took {written} of {} bytes: its peer is too slow",
                bytes.len()
            );
            Ok(())
        }
        // Its readiness will tell, and then it is removed.
        Err(error) if is_peer_gone(&error) => Ok(()),
        Err(error) => Err(error).context("a socket took no bytes"),
    }
}

fn after<'a>(text: &'a [u8], marker: &[u8]) -> Result<&'a [u8]> {
    let start = memmem::find(text, marker).context("a publish that is not from the load generator")?;
    Ok(&text[start + marker.len()..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{self, Downstream, Stamp};

    #[test]
    fn a_delivery_carries_the_publish_and_an_ack_its_id() {
        let stamp = Stamp { publisher: 1, number: 9 };
        let mut publish = Vec::new();
        message::write_publish(41, stamp, 128, &mut publish);
        let mut batch = Batch::default();
        batch.push(&publish).unwrap();
        batch.push(&publish).unwrap();

        let mut out = Vec::new();
        push_delivery(5, &batch.bodies[0], &mut out);
        out.append(&mut batch.acks.clone());
        let mut messages = Vec::new();
        frame::decode(&mut out, Sender::Server, |_, text| {
            serde_json::from_slice::<serde_json::Value>(text)?;
            messages.push(Downstream::parse(text)?);
            Ok(())
        })
        .unwrap();
        let ack = || Downstream::Ack { ack_id: 41 };
        assert_eq!(messages, [Downstream::Delivery { sequence_id: 5, stamp }, ack(), ack()]);
    }
}
