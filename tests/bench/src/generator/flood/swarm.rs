//! Many sockets on one thread that do as a script says, whatever the server makes of it.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Result;
use memchr::memmem;
use socket2::SockRef;

use super::Load;
use crate::generator::clients::{SOURCES, connect_from};

/// A socket that the server ended comes again after this.
const REOPEN_AFTER: Duration = Duration::from_millis(5);
/// A rest when no socket could do anything.
const REST: Duration = Duration::from_millis(1);
/// Parts that one socket sends, and reads that it does, before it is the next one's turn.
const TURN_MAX: usize = 16;
/// What the kernel may keep of what is sent, so that "sent" means more than that it waits here.
const SEND_BUFFER_BYTES: usize = 64 * 1024;
const STATUS: &[u8] = b"HTTP/1.1 ";
/// A status line is found in two reads at most: so much of the one before is kept.
const STATUS_BYTES: usize = STATUS.len() + 3;
const REFUSAL: &[u8] = br#""success":false"#;

/// What sockets do.
pub struct Script {
    /// How many there are.
    pub sockets: usize,
    /// The upgrade that a socket begins with, by its index, if it begins with one; nothing else is sent before its answer.
    pub upgrade: Box<dyn Fn(usize) -> Option<String>>,
    /// What a socket sends next, by its index and how many parts it has sent. None: nothing more.
    pub part: Box<dyn Fn(usize, u64) -> Option<Part>>,
    /// Whether a socket reads what it is sent; the answer to its upgrade it reads always.
    pub reads: fn(usize) -> bool,
    /// After how long a socket is left and comes anew.
    pub lifetime: Option<Duration>,
}

/// Something to send, and how long to wait before it.
pub struct Part {
    pub bytes: Rc<[u8]>,
    pub pause: Duration,
}

impl Part {
    /// One that is sent as soon as there is room.
    pub fn now(bytes: impl Into<Rc<[u8]>>) -> Self {
        Self { bytes: bytes.into(), pause: Duration::ZERO }
    }
}

/// See the module.
pub struct Swarm {
    address: SocketAddr,
    script: Script,
    slots: Vec<Slot>,
    load: Load,
    buffer: Box<[u8]>,
}

enum Slot {
    Absent { until: Instant },
    Present(Peer),
}

struct Peer {
    socket: TcpStream,
    opened_at: Instant,
    is_upgrading: bool,
    /// The end of what was read before.
    tail: Vec<u8>,
    part: Option<Part>,
    not_before: Instant,
    written: usize,
    number: u64,
}

impl Swarm {
    /// Sockets that are all still to be opened.
    pub fn new(address: SocketAddr, script: Script) -> Self {
        let until = Instant::now();
        let slots = (0..script.sockets).map(|_| Slot::Absent { until }).collect();
        Self { address, script, slots, load: Load::default(), buffer: vec![0; 64 * 1024].into() }
    }

    /// What was done so far.
    pub fn load(self) -> Load {
        self.load
    }

    /// Gives each socket a turn.
    ///
    /// # Errors
    /// A socket of this machine can't be set up.
    pub fn sweep(&mut self) -> Result<()> {
        let mut is_busy = false;
        for index in 0..self.slots.len() {
            let slot = match &mut self.slots[index] {
                Slot::Absent { until } if Instant::now() < *until => continue,
                Slot::Absent { .. } => open(self.address, &self.script, index, &mut self.load)?,
                Slot::Present(peer) => {
                    let is_old =
                        self.script.lifetime.is_some_and(|lifetime| peer.opened_at.elapsed() > lifetime);
                    let turn = peer.turn(index, &self.script, &mut self.load, &mut self.buffer);
                    is_busy |= matches!(turn, Ok(true));
                    if turn.is_ok() && !is_old {
                        continue;
                    }
                    self.load.hung_up += u64::from(turn.is_err());
                    Slot::Absent { until: Instant::now() + REOPEN_AFTER }
                }
            };
            self.slots[index] = slot;
        }
        if !is_busy {
            std::thread::sleep(REST);
        }
        Ok(())
    }
}

fn open(address: SocketAddr, script: &Script, index: usize, load: &mut Load) -> Result<Slot> {
    let Ok(socket) = connect_from(index % SOURCES, address) else {
        load.unconnected += 1;
        return Ok(Slot::Absent { until: Instant::now() + REOPEN_AFTER });
    };
    load.opened += 1;
    socket.set_nodelay(true)?;
    socket.set_nonblocking(true)?;
    // A socket that is left is reset, which leaves no port waiting.
    SockRef::from(&socket).set_linger(Some(Duration::ZERO))?;
    SockRef::from(&socket).set_send_buffer_size(SEND_BUFFER_BYTES)?;
    let upgrade = (script.upgrade)(index);
    let now = Instant::now();
    Ok(Slot::Present(Peer {
        socket,
        opened_at: now,
        is_upgrading: upgrade.is_some(),
        tail: Vec::new(),
        part: upgrade.map(|upgrade| Part::now(upgrade.into_bytes())),
        not_before: now,
        written: 0,
        number: 0,
    }))
}

impl Peer {
    /// Reads and writes what can be; tells whether that was anything.
    fn turn(
        &mut self,
        index: usize,
        script: &Script,
        load: &mut Load,
        buffer: &mut [u8],
    ) -> io::Result<bool> {
        let mut is_busy = false;
        for _ in 0..TURN_MAX {
            if !(self.is_upgrading || (script.reads)(index)) || !self.read(load, buffer)? {
                break;
            }
            is_busy = true;
        }
        for _ in 0..TURN_MAX {
            if !self.write(index, script, load)? {
                break;
            }
            is_busy = true;
        }
        Ok(is_busy)
    }

    fn read(&mut self, load: &mut Load, buffer: &mut [u8]) -> io::Result<bool> {
        let kept = self.tail.len();
        let read = match self.socket.read(&mut buffer[kept..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        };
        buffer[..kept].copy_from_slice(&self.tail);
        let seen = &buffer[..kept + read];
        let statuses = count_statuses(seen, &mut load.answers);
        load.refusals += memmem::find_iter(&seen[kept..], REFUSAL).count() as u64;
        if self.is_upgrading && statuses > 0 {
            self.is_upgrading = false;
            if is_refused(seen) {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
        }
        // Short enough to hold no whole status line, which would be counted twice.
        let from = seen.len().saturating_sub(STATUS_BYTES - 1);
        self.tail = seen[from..].to_vec();
        Ok(true)
    }

    /// Writes some of a part; tells whether there may be room for more.
    fn write(&mut self, index: usize, script: &Script, load: &mut Load) -> io::Result<bool> {
        if self.part.is_none() {
            if self.is_upgrading {
                return Ok(false);
            }
            let Some(part) = (script.part)(index, self.number) else { return Ok(false) };
            self.not_before = Instant::now() + part.pause;
            self.part = Some(part);
        }
        let Some(part) = &self.part else { return Ok(false) };
        if Instant::now() < self.not_before {
            return Ok(false);
        }
        match self.socket.write(&part.bytes[self.written..]) {
            Ok(written) => {
                load.bytes += written as u64;
                self.written += written;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
        if self.written == part.bytes.len() {
            (self.part, self.written) = (None, 0);
            if !self.is_upgrading {
                self.number += 1;
                load.parts += 1;
            }
        }
        Ok(true)
    }
}

/// Counts the status lines in what was read; tells how many there are.
fn count_statuses(bytes: &[u8], answers: &mut BTreeMap<u16, u64>) -> usize {
    let mut count = 0;
    for at in memmem::find_iter(bytes, STATUS) {
        let digits = bytes.get(at + STATUS.len()..at + STATUS_BYTES);
        let status = digits.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
        if let Some(status) = status {
            *answers.entry(status).or_default() += 1;
            count += 1;
        }
    }
    count
}

fn is_refused(bytes: &[u8]) -> bool {
    memmem::find(bytes, b"HTTP/1.1 101").is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_status_line_is_counted_once_wherever_reads_end() {
        let answers =
            b"HTTP/1.1 202 Accepted\r\n\r\nHTTP/1.1 503 Service Unavailable\r\n\r\nHTTP/1.1 202 Accepted\r\n";
        for cut in 0..answers.len() {
            let mut counts = BTreeMap::new();
            let mut tail: Vec<u8> = Vec::new();
            for read in [&answers[..cut], &answers[cut..]] {
                let seen = [&tail, read].concat();
                count_statuses(&seen, &mut counts);
                tail = seen[seen.len().saturating_sub(STATUS_BYTES - 1)..].to_vec();
            }
            assert_eq!(counts, BTreeMap::from([(202, 2), (503, 1)]), "cut at {cut}");
        }
    }
}
