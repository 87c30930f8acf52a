//! The line protocol of the `oncewire-proxy` binary: commands as JSON objects on standard input, one a line, and one reply
//! line on standard output for each. The process ends with its input, and all proxies with it.
//!
//! ```text
//! > {"id":1,"do":"open","upstream":"127.0.0.1:8080"}
//! < {"id":1,"ok":true,"proxy":1,"address":"127.0.0.1:40123"}
//! > {"id":2,"do":"plan","proxy":1,"connection":2,
//!    "faults":[{"direction":"server_to_client","after_bytes":231,"action":"cut_rst"}]}
//! < {"id":2,"ok":true}
//! > {"id":3,"do":"wait","proxy":1,"reached":{"faults":1},"timeout_ms":30000}
//! > {"id":4,"do":"report","proxy":1}
//! < {"id":4,"ok":true,"report":{"accepted":2,...}}
//! < {"id":3,"ok":false,"error":"timed out"}
//! ```
//!
//! Commands are carried out in the order of the lines; only `wait` answers later. The commands and their fields are the
//! variants of [`Command`].

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::task::JoinSet;

use crate::fault::{Action, Direction, Fault, Target};
use crate::proxy::{Proxy, Reached};
use crate::random::RandomFaults;
use crate::report::Report;

/// The longest command line in bytes, its end included.
pub const LINE_BYTES_MAX: u64 = 1024 * 1024;

/// The most proxies that are open at a time.
pub const PROXIES_MAX: usize = 1_024;

/// The most `wait` commands that are unanswered at a time.
pub const WAITS_MAX: usize = 4_096;

/// How long a `wait` waits when it does not say.
pub const WAIT_TIMEOUT_MS: u64 = 30_000;

/// One line of input.
#[derive(Debug, Serialize, Deserialize)]
pub struct Request {
    /// Repeated in the reply.
    pub id: u64,
    /// What to do.
    #[serde(flatten)]
    pub command: Command,
}

/// What a line asks for. `proxy` is the number that `open` answered with.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Command {
    /// Starts a proxy; see [`Proxy::start`]. Answers with `proxy` and `address`.
    Open {
        /// Where to forward to.
        upstream: SocketAddr,
        /// Where to listen; a free port on loopback when absent.
        listen: Option<SocketAddr>,
    },
    /// Drops a proxy and all that it holds.
    Close {
        /// Which proxy.
        proxy: u64,
    },
    /// See [`Proxy::set_upstream`].
    Upstream {
        /// Which proxy.
        proxy: u64,
        /// Where later connections go.
        upstream: SocketAddr,
    },
    /// See [`Proxy::plan`] and, without `connection`, [`Proxy::plan_next`].
    Plan {
        /// Which proxy.
        proxy: u64,
        /// The connection's number; the next one when absent.
        connection: Option<u64>,
        /// Its faults.
        faults: Vec<Fault>,
    },
    /// See [`Proxy::set_random`].
    Random {
        /// Which proxy.
        proxy: u64,
        /// The schedule; null or absent ends it.
        random: Option<RandomFaults>,
    },
    /// See [`Proxy::fault_after`].
    FaultAfter {
        /// Which proxy.
        proxy: u64,
        /// The connection's number; the current one when absent.
        connection: Option<u64>,
        /// The fault, its offset counted from now.
        fault: Fault,
    },
    /// See [`Proxy::strike`] and, without `connection`, [`Proxy::strike_all`].
    Strike {
        /// Which proxy.
        proxy: u64,
        /// The connection's number; all when absent.
        connection: Option<u64>,
        /// What strikes.
        action: Action,
    },
    /// See [`Proxy::stall`].
    Stall {
        /// Which proxy.
        proxy: u64,
        /// Which direction.
        direction: Direction,
    },
    /// See [`Proxy::resume`].
    Resume {
        /// Which proxy.
        proxy: u64,
        /// Which direction.
        direction: Direction,
    },
    /// See [`Proxy::refuse`].
    Refuse {
        /// Which proxy.
        proxy: u64,
        /// How many connections; all until further notice when absent.
        count: Option<u64>,
    },
    /// See [`Proxy::report`]. Answers with `report`.
    Report {
        /// Which proxy.
        proxy: u64,
    },
    /// See [`Proxy::wait_for`]. Answers once reached, or with an error after the timeout.
    Wait {
        /// Which proxy.
        proxy: u64,
        /// What must be reached.
        reached: Reached,
        /// In milliseconds; [`WAIT_TIMEOUT_MS`] when absent.
        timeout_ms: Option<u64>,
    },
}

/// One line of output.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Reply {
    /// The request's; 0 for a line that could not be read.
    pub id: u64,
    /// Whether it was carried out.
    pub ok: bool,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The number of the proxy that was opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy: Option<u64>,
    /// Where it listens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<SocketAddr>,
    /// What was seen so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<Report>,
}

/// Serves commands until the input ends.
///
/// # Errors
/// When reading or writing fails, or a line is longer than [`LINE_BYTES_MAX`].
pub async fn serve(
    mut input: impl AsyncBufRead + Unpin,
    mut output: impl AsyncWrite + Unpin,
) -> io::Result<()> {
    let mut session = Session::default();
    let mut waits = JoinSet::new();
    let mut line = Vec::new();
    loop {
        // Reading can be interrupted by a wait's reply; what was read so far stays in `line`.
        let room = LINE_BYTES_MAX - line.len() as u64;
        let mut limited = (&mut input).take(room);
        tokio::select! {
            biased;
            Some(finished) = waits.join_next() => {
                if let Ok(reply) = finished {
                    write(&mut output, &reply).await?;
                }
                continue;
            }
            read = limited.read_until(b'\n', &mut line) => { read?; }
        }
        if !line.ends_with(b"\n") {
            if line.len() as u64 >= LINE_BYTES_MAX {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the command line is too long"));
            }
            return Ok(());
        }
        match serde_json::from_slice::<Request>(&line) {
            Ok(Request { id, command: Command::Wait { proxy, reached, timeout_ms } }) => {
                if let Some(refusal) = session.wait(id, proxy, reached, timeout_ms, &mut waits) {
                    write(&mut output, &refusal).await?;
                }
            }
            Ok(request) => {
                let reply = session.carry_out(request.command).await;
                write(&mut output, &Reply { id: request.id, ..reply }).await?;
            }
            Err(error) => write(&mut output, &failed(0, error.to_string())).await?,
        }
        line.clear();
    }
}

#[derive(Default)]
struct Session {
    opened: u64,
    proxies: HashMap<u64, Proxy>,
}

impl Session {
    fn wait(
        &self,
        id: u64,
        proxy: u64,
        reached: Reached,
        timeout_ms: Option<u64>,
        waits: &mut JoinSet<Reply>,
    ) -> Option<Reply> {
        if waits.len() >= WAITS_MAX {
            return Some(failed(id, "too many waits".to_owned()));
        }
        let Some(proxy) = self.proxies.get(&proxy) else { return Some(failed(id, unknown(proxy))) };
        let waiter = proxy.waiter(reached);
        let timeout = Duration::from_millis(timeout_ms.unwrap_or(WAIT_TIMEOUT_MS));
        waits.spawn(async move {
            match tokio::time::timeout(timeout, waiter).await {
                Ok(()) => Reply { id, ok: true, ..Reply::default() },
                Err(_) => failed(id, "timed out".to_owned()),
            }
        });
        None
    }

    async fn carry_out(&mut self, command: Command) -> Reply {
        match self.try_carry_out(command).await {
            Ok(reply) => Reply { ok: true, ..reply },
            Err(error) => failed(0, error),
        }
    }

    async fn try_carry_out(&mut self, command: Command) -> Result<Reply, String> {
        let mut reply = Reply::default();
        match command {
            Command::Open { upstream, listen } => {
                if self.proxies.len() >= PROXIES_MAX {
                    return Err("too many proxies".to_owned());
                }
                let listen = listen.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0)));
                let proxy = Proxy::start(listen, upstream).await.map_err(|error| error.to_string())?;
                self.opened += 1;
                reply.proxy = Some(self.opened);
                reply.address = Some(proxy.address());
                self.proxies.insert(self.opened, proxy);
            }
            Command::Close { proxy } => {
                self.proxies.remove(&proxy).ok_or_else(|| unknown(proxy))?;
            }
            Command::Upstream { proxy, upstream } => self.find(proxy)?.set_upstream(upstream),
            Command::Plan { proxy, connection, faults } => {
                let proxy = self.find(proxy)?;
                match connection {
                    Some(number) => proxy.plan(number, faults),
                    None => proxy.plan_next(faults).map(drop),
                }
                .map_err(|error| error.to_string())?;
            }
            Command::Random { proxy, random } => self.find(proxy)?.set_random(random),
            Command::FaultAfter { proxy, connection, fault } => {
                let target = connection.map_or(Target::Current, Target::Number);
                self.find(proxy)?.fault_after(target, fault).map_err(|error| error.to_string())?;
            }
            Command::Strike { proxy, connection, action } => {
                let proxy = self.find(proxy)?;
                match connection {
                    Some(number) => {
                        proxy.strike(Target::Number(number), action).map_err(|error| error.to_string())?;
                    }
                    None => {
                        proxy.strike_all(action);
                    }
                }
            }
            Command::Stall { proxy, direction } => self.find(proxy)?.stall(direction),
            Command::Resume { proxy, direction } => self.find(proxy)?.resume(direction),
            Command::Refuse { proxy, count } => self.find(proxy)?.refuse(count.unwrap_or(u64::MAX)),
            Command::Report { proxy } => reply.report = Some(self.find(proxy)?.report()),
            // Answered by `wait`, since it takes its time.
            Command::Wait { .. } => {}
        }
        Ok(reply)
    }

    fn find(&self, number: u64) -> Result<&Proxy, String> {
        self.proxies.get(&number).ok_or_else(|| unknown(number))
    }
}

fn unknown(proxy: u64) -> String {
    format!("there is no proxy {proxy}")
}

fn failed(id: u64, error: String) -> Reply {
    Reply { id, error: Some(error), ..Reply::default() }
}

async fn write(output: &mut (impl AsyncWrite + Unpin), reply: &Reply) -> io::Result<()> {
    let mut line = serde_json::to_vec(reply)?;
    line.push(b'\n');
    output.write_all(&line).await?;
    output.flush().await
}
