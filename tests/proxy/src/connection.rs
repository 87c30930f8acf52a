//! One connection: two pumps, the faults that wait in each direction, and what is left after one struck.
//!
//! ```text
//!              bytes flow, stall, resume
//!                    +------+
//!                    v      |
//! accepted ----> forwarding-+---- both peers closed / one failed / cut ----> ended
//!                    |                                                        ^
//!                    +---- client dies / server dies ----> half-open ---------+
//!                                              (the survivor closed, or a cut)
//! ```
//!
//! A pump never forwards a byte past the next fault of its direction: what it has read beyond is dropped by a cut and kept
//! by a stall. Everything that may interrupt a pump goes through one watched value, so that no wake-up is lost.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::fault::{Action, Direction, Fault};
use crate::report::{ConnectionReport, Ending, State};

/// What one read may take, and so what a stalled direction holds back.
const READ_BYTES_MAX: usize = 16 * 1024;

/// What a connection tells its proxy.
pub(crate) trait Observer: Send + Sync + 'static {
    /// Bytes were handed to the receiving socket.
    fn forwarded(&self, direction: Direction, bytes: u64);
    /// A fault struck, a stall included.
    fn fault_struck(&self);
    /// The connection forwards no more.
    fn stopped_forwarding(&self);
}

pub(crate) struct Connection<O> {
    number: u64,
    observer: Arc<O>,
    flow: watch::Sender<Flow>,
}

struct Flow {
    state: State,
    ending: Option<Ending>,
    survivor_closed: bool,
    /// The last fault that struck.
    fault: Option<Fault>,
    /// The fault whose action ends the forwarding or a half-open state, until it has been carried out.
    struck: Option<Fault>,
    pipes: [Pipe; 2],
}

#[derive(Default)]
struct Pipe {
    /// Bytes for which a write has begun; the offset that "from now" means.
    claimed: u64,
    /// Bytes that the receiving socket has taken.
    forwarded: u64,
    stalled: bool,
    waiting: Vec<Fault>,
}

enum Stop {
    Struck(Fault),
    Ended(Ending),
}

impl<O: Observer> Connection<O> {
    pub(crate) fn new(number: u64, observer: Arc<O>, faults: Vec<Fault>, stalled: [bool; 2]) -> Self {
        let mut pipes = [Pipe::default(), Pipe::default()];
        for fault in faults {
            pipes[fault.direction.index()].waiting.push(fault);
        }
        for direction in Direction::BOTH {
            pipes[direction.index()].stalled = stalled[direction.index()];
        }
        let flow = Flow {
            state: State::Forwarding,
            ending: None,
            survivor_closed: false,
            fault: None,
            struck: None,
            pipes,
        };
        Self { number, observer, flow: watch::Sender::new(flow) }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn state(&self) -> State {
        self.flow.borrow().state
    }

    pub(crate) fn report(&self) -> ConnectionReport {
        let flow = self.flow.borrow();
        ConnectionReport {
            number: self.number,
            state: flow.state,
            client_to_server_bytes: flow.pipe(Direction::ClientToServer).forwarded,
            server_to_client_bytes: flow.pipe(Direction::ServerToClient).forwarded,
            fault: flow.fault,
            ending: flow.ending,
            survivor_closed: flow.survivor_closed,
        }
    }

    /// Adds a fault whose offset counts from now.
    pub(crate) fn fault_after(&self, fault: Fault) {
        self.flow.send_modify(|flow| {
            let pipe = &mut flow.pipes[fault.direction.index()];
            let after_bytes = pipe.claimed.saturating_add(fault.after_bytes);
            pipe.waiting.push(Fault { after_bytes, ..fault });
        });
    }

    /// Lets an action strike at once, whatever the pumps are waiting for. A half-open connection can only be cut.
    pub(crate) fn strike(&self, action: Action, direction: Direction) {
        let struck = self.flow.send_if_modified(|flow| {
            let possible = match flow.state {
                State::Forwarding => true,
                State::HalfOpen => action.is_cut(),
                State::Ended => false,
            };
            if possible {
                let after_bytes = flow.pipe(direction).forwarded;
                flow.strike(Fault { direction, after_bytes, action });
            }
            possible
        });
        if struck {
            self.observer.fault_struck();
        }
    }

    /// Sets or lifts the stall of a direction.
    pub(crate) fn set_stalled(&self, direction: Direction, stalled: bool) {
        self.flow.send_modify(|flow| flow.pipes[direction.index()].stalled = stalled);
    }

    /// Serves the connection from its acceptance to the last byte.
    pub(crate) async fn run(&self, client: TcpStream, upstream: SocketAddr) {
        let Ok(server) = TcpStream::connect(upstream).await else {
            self.end(Ending::Unreachable);
            reset(client);
            return;
        };
        for stream in [&client, &server] {
            // Without it Nagle's algorithm would time the offsets' arrival; a failure costs latency alone.
            let _ = stream.set_nodelay(true);
        }
        let (mut client, mut server) = (client, server);
        match self.forward(&mut client, &mut server).await {
            Stop::Struck(fault) => self.carry_out(fault.action, client, server).await,
            Stop::Ended(ending) => {
                self.end(ending);
                match ending {
                    Ending::ClientFailed => reset(server),
                    Ending::ServerFailed => reset(client),
                    _ => {}
                }
            }
        }
    }

    async fn forward(&self, client: &mut TcpStream, server: &mut TcpStream) -> Stop {
        let (client_reader, client_writer) = client.split();
        let (server_reader, server_writer) = server.split();
        let mut changes = self.flow.subscribe();
        let mut upward = pin!(self.pump(Direction::ClientToServer, client_reader, server_writer));
        let mut downward = pin!(self.pump(Direction::ServerToClient, server_reader, client_writer));
        let (mut upward_open, mut downward_open) = (true, true);
        while upward_open || downward_open {
            let finished = tokio::select! {
                biased;
                fault = struck(&mut changes) => return Stop::Struck(fault),
                finished = &mut upward, if upward_open => { upward_open = false; finished }
                finished = &mut downward, if downward_open => { downward_open = false; finished }
            };
            if let Err(ending) = finished {
                return Stop::Ended(ending);
            }
        }
        Stop::Ended(Ending::Closed)
    }

    /// Forwards one direction until its end of stream, which it passes on.
    async fn pump(
        &self,
        direction: Direction,
        mut reader: impl AsyncRead + Unpin,
        mut writer: impl AsyncWrite + Unpin,
    ) -> Result<(), Ending> {
        let (reading_failed, writing_failed) = match direction {
            Direction::ClientToServer => (Ending::ClientFailed, Ending::ServerFailed),
            Direction::ServerToClient => (Ending::ServerFailed, Ending::ClientFailed),
        };
        let mut changes = self.flow.subscribe();
        let mut buffer = vec![0; READ_BYTES_MAX];
        loop {
            // The mark is set before the look, so that a change in between still wakes the wait below.
            changes.mark_unchanged();
            let read = if self.claim(direction, usize::MAX, false) == 0 {
                change(&mut changes).await;
                continue;
            } else {
                tokio::select! {
                    biased;
                    () = change(&mut changes) => continue,
                    read = reader.read(&mut buffer) => read.map_err(|_| reading_failed)?,
                }
            };
            if read == 0 {
                return writer.shutdown().await.map_err(|_| writing_failed);
            }
            let mut rest = &buffer[..read];
            while !rest.is_empty() {
                changes.mark_unchanged();
                let allowed = self.claim(direction, rest.len(), true);
                if allowed == 0 {
                    change(&mut changes).await;
                    continue;
                }
                writer.write_all(&rest[..allowed]).await.map_err(|_| writing_failed)?;
                self.count_forwarded(direction, allowed);
                rest = &rest[allowed..];
            }
        }
    }

    /// How many of `wanted` bytes may be forwarded now: none while the direction is stalled or after a fault struck, and
    /// none past the next fault, which strikes here when its offset has been reached.
    fn claim(&self, direction: Direction, wanted: usize, take: bool) -> usize {
        let mut allowed = 0;
        let mut strikes = 0;
        self.flow.send_if_modified(|flow| {
            while let Some(fault) = flow.due(direction) {
                flow.strike(fault);
                strikes += 1;
            }
            let pipe = &mut flow.pipes[direction.index()];
            if flow.struck.is_none() && !pipe.stalled {
                let room = pipe.waiting.iter().map(|fault| fault.after_bytes - pipe.claimed).min();
                allowed = room.map_or(wanted, |room| wanted.min(usize::try_from(room).unwrap_or(usize::MAX)));
                if take {
                    pipe.claimed += allowed as u64;
                }
            }
            strikes > 0
        });
        for _ in 0..strikes {
            self.observer.fault_struck();
        }
        allowed
    }

    fn count_forwarded(&self, direction: Direction, bytes: usize) {
        self.flow.send_if_modified(|flow| {
            flow.pipes[direction.index()].forwarded += bytes as u64;
            false
        });
        self.observer.forwarded(direction, bytes as u64);
    }

    async fn carry_out(&self, action: Action, client: TcpStream, server: TcpStream) {
        match action {
            Action::CutRst => {
                reset(client);
                reset(server);
                self.end(Ending::Fault);
            }
            Action::CutFin => {
                self.end(Ending::Fault);
                tokio::join!(finish(client), finish(server));
            }
            Action::ClientDies => {
                reset(client);
                self.hold(server, Direction::ServerToClient).await;
            }
            Action::ServerDies => {
                reset(server);
                self.hold(client, Direction::ClientToServer).await;
            }
            // A stall never stops the forwarding, so it never comes here.
            Action::Stall => {}
        }
    }

    /// Keeps the survivor of a half-open connection in the belief that all is well.
    async fn hold(&self, mut survivor: TcpStream, direction: Direction) {
        let mut changes = self.flow.subscribe();
        self.flow.send_modify(|flow| {
            flow.state = State::HalfOpen;
            flow.ending = Some(Ending::Fault);
            // A cut that struck since then must not be lost.
            flow.struck = flow.struck.filter(|fault| fault.action.is_cut());
        });
        self.observer.stopped_forwarding();
        let mut swallowed = vec![0; READ_BYTES_MAX];
        let cut = loop {
            let (stalled, struck) = {
                let flow = changes.borrow_and_update();
                (flow.pipe(direction).stalled, flow.struck)
            };
            if let Some(fault) = struck {
                break Some(fault.action);
            }
            tokio::select! {
                biased;
                () = change(&mut changes) => {}
                read = survivor.read(&mut swallowed), if !stalled => {
                    if matches!(read, Ok(0) | Err(_)) {
                        break None;
                    }
                }
            }
        };
        self.flow.send_modify(|flow| {
            flow.state = State::Ended;
            flow.survivor_closed = cut.is_none();
        });
        match cut {
            Some(Action::CutRst) => reset(survivor),
            Some(_) => finish(survivor).await,
            None => {}
        }
    }

    fn end(&self, ending: Ending) {
        self.flow.send_modify(|flow| {
            flow.state = State::Ended;
            flow.ending = Some(ending);
        });
        self.observer.stopped_forwarding();
    }
}

impl Flow {
    fn pipe(&self, direction: Direction) -> &Pipe {
        &self.pipes[direction.index()]
    }

    /// Takes the next fault of a direction whose offset has been reached, with all bytes before it forwarded.
    fn due(&mut self, direction: Direction) -> Option<Fault> {
        if self.struck.is_some() {
            return None;
        }
        let pipe = &mut self.pipes[direction.index()];
        let due = pipe.waiting.iter().position(|fault| fault.after_bytes <= pipe.forwarded)?;
        Some(pipe.waiting.swap_remove(due))
    }

    fn strike(&mut self, fault: Fault) {
        self.fault = Some(fault);
        if fault.action == Action::Stall {
            self.pipes[fault.direction.index()].stalled = true;
        } else {
            self.struck = Some(fault);
        }
    }
}

async fn struck(changes: &mut watch::Receiver<Flow>) -> Fault {
    loop {
        if let Some(fault) = changes.borrow_and_update().struck {
            return fault;
        }
        change(changes).await;
    }
}

/// Waits for a change. The sender lives in the connection that waits here, so it can't be gone.
async fn change(changes: &mut watch::Receiver<Flow>) {
    if changes.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Closes with RST instead of FIN.
fn reset(stream: TcpStream) {
    // Fails only on a socket that is gone already.
    let _ = stream.set_zero_linger();
    drop(stream);
}

/// Closes with FIN and reads on until the peer has closed too: a close with unread bytes would turn into a reset.
async fn finish(mut stream: TcpStream) {
    let _: io::Result<()> = stream.shutdown().await;
    let mut swallowed = vec![0; READ_BYTES_MAX];
    while matches!(stream.read(&mut swallowed).await, Ok(read) if read > 0) {}
}
