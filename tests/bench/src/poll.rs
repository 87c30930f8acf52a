//! Waiting for sockets and reading from them: level-triggered epoll and one read per readiness, for both ends.

use std::io::{self, Read as _};
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use anyhow::Result;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

use crate::frame::FRAME_BYTES_MAX;

/// How many ready sockets one wait reports at most; the others are reported by the next.
const EVENTS_MAX: usize = 1024;

/// A set of sockets, each with a token of the caller's choice.
pub struct Poller {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Poller {
    /// An empty set.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn new() -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, events: Vec::with_capacity(EVENTS_MAX) })
    }

    /// Adds a socket; it leaves the set when it is closed.
    ///
    /// # Errors
    /// Out of kernel memory.
    pub fn add(&self, socket: &impl AsFd, token: usize) -> Result<()> {
        let data = epoll::EventData::new_u64(token as u64);
        Ok(epoll::add(&self.epoll, socket, data, epoll::EventFlags::IN)?)
    }

    /// Waits until a socket is readable or closed, or until `timeout` (`None`: for ever), and puts the tokens of those
    /// sockets in `ready`, replacing what it held.
    ///
    /// # Errors
    /// The timeout is beyond the kernel's range.
    pub fn wait(&mut self, timeout: Option<Duration>, ready: &mut Vec<usize>) -> Result<()> {
        let timeout = timeout.map(Timespec::try_from).transpose()?;
        ready.clear();
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        ready.extend(self.events.drain(..).map(|event| event.data.u64() as usize));
        Ok(())
    }
}

/// One buffer for all sockets of a thread. A socket keeps only the beginning of a frame that is not complete yet.
pub struct ReadBuffer(Box<[u8]>);

/// What a read brought.
pub enum Received<'a> {
    /// Everything not yet consumed: what was left over, then what was read now.
    Bytes(&'a mut [u8]),
    /// Nothing yet.
    Nothing,
    /// The peer is gone.
    Closed,
}

impl ReadBuffer {
    /// A buffer with room for the longest frame behind the longest remainder.
    pub fn new() -> Self {
        Self(vec![0; 2 * FRAME_BYTES_MAX].into())
    }

    /// Reads once from `socket`. `remainder` is what the caller left unconsumed the last time, less than
    /// [`FRAME_BYTES_MAX`]; it is emptied when bytes are returned.
    ///
    /// # Errors
    /// Those of the socket, other than a peer that is gone.
    pub fn receive(&mut self, mut socket: &TcpStream, remainder: &mut Vec<u8>) -> Result<Received<'_>> {
        let kept = remainder.len();
        match socket.read(&mut self.0[kept..]) {
            Ok(0) => Ok(Received::Closed),
            Ok(read) => {
                self.0[..kept].copy_from_slice(remainder);
                remainder.clear();
                Ok(Received::Bytes(&mut self.0[..kept + read]))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Received::Nothing),
            Err(error) if is_peer_gone(&error) => Ok(Received::Closed),
            Err(error) => Err(error.into()),
        }
    }
}

/// Whether an error of a socket only says that its peer has gone.
pub fn is_peer_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}
