//! `restart`: how long a hub with many sessions takes to come back after a kill, and what it takes on the disk.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use futures_util::stream::{StreamExt as _, TryStreamExt as _};
use oncewire::config::Config;
use oncewire::config::Durability;
use oncewire::engine::{AttachedSocket, Engine, HubHandle, HubUnavailable, NewSession};
use oncewire::store::{EmbeddedStore, Store};
use oncewire_protocol::log::{BootId, ChunkCheckpoint, SessionIdentity};
use oncewire_protocol::session::Request;
use oncewire_protocol::wire::{
    ConnectionId, GroupName, HubName, Metadata, Payload, PayloadKind, Subprotocol, Upstream,
};
use serde::Serialize;

use crate::compare::parse_seconds;
use crate::process::ScratchDirectory;
use crate::procfs::{Machine, resident_bytes};
use crate::report;

const HUB: &str = "chat";
/// Sessions that are opened at the same time.
const OPENING: usize = 256;

/// How long a hub with many sessions takes to come back after a kill, and what it takes on the disk.
///
/// A process opens sessions, each in one of many groups, and publishes to the groups in turn; the sessions acknowledge all
/// but the last messages. Then it is killed with SIGKILL, and another process starts on the same directory. Sockets are
/// left out: both drive the engine itself. The sessions come back and acknowledge again what they had acknowledged, as
/// clients do with what is sent to them a second time: an acknowledgement is not in the log. Disk use is looked at again
/// when the hub has been at rest for a while, and compared with what it keeps then: the sessions' checkpoints and the
/// payload of each unacknowledged message once.
#[derive(clap::Args)]
pub struct RestartArgs {
    /// Where files are made, and removed again: on the disk that is to be measured.
    #[arg(long, default_value = ".", value_name = "DIRECTORY")]
    directory: PathBuf,
    #[command(flatten)]
    load: Load,
    /// Seconds at rest until the disk use is looked at once more.
    #[arg(long, default_value = "150", value_parser = parse_seconds, value_name = "SECONDS")]
    rest: Duration,
}

/// The processes that `restart` starts.
#[derive(clap::Args)]
pub struct RestartProcessArgs {
    #[arg(long)]
    directory: PathBuf,
    #[command(flatten)]
    load: Load,
    /// Whether to fill the directory, or to start on what it holds.
    #[arg(long)]
    fill: bool,
}

#[derive(clap::Args, Clone, Copy, Serialize)]
struct Load {
    /// Sessions.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    sessions: u32,
    /// Groups that the sessions are divided into.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    groups: u32,
    /// Bytes of payload in each message.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    payload_bytes: u32,
    /// Messages to each group.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    messages: u32,
    /// Of those, the ones that no session has acknowledged at the end.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    unacknowledged: u32,
}

#[derive(Serialize)]
struct Report {
    benchmark: &'static str,
    command: String,
    machine: Machine,
    load: Load,
    /// Payload that was published.
    published_bytes: u64,
    fill_seconds: f64,
    /// Disk use when the process was killed.
    killed_disk_bytes: u64,
    /// From the start of the process until its hub takes sockets: the result.
    open_seconds: f64,
    /// Resident memory of the process then.
    open_resident_bytes: u64,
    /// Disk use after the rest.
    rest_disk_bytes: u64,
    /// What the hub keeps then.
    kept_bytes: u64,
    /// Messages among it, each counted once.
    kept_messages: u64,
    rest_disk_to_kept: f64,
}

/// A process that is killed in the end.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the command.
///
/// # Errors
/// A process fails, or the directory cannot be used.
pub fn run(args: &RestartArgs) -> Result<()> {
    let machine = Machine::describe()?;
    let scratch = ScratchDirectory::of_run(&args.directory, "restart");
    let directory = scratch.path();
    let load = args.load;
    let began = Instant::now();
    drop(start(directory, load, true)?);
    let fill_seconds = began.elapsed().as_secs_f64();
    let killed_disk_bytes = disk_bytes(directory)?;

    let began = Instant::now();
    let opened = start(directory, load, false)?;
    let open_seconds = began.elapsed().as_secs_f64();
    let open_resident_bytes = resident_bytes(opened.0.id())?;
    std::thread::sleep(args.rest);
    drop(opened);
    let rest_disk_bytes = disk_bytes(directory)?;
    let payload_bytes = u64::from(load.payload_bytes);
    let (checkpoint_bytes, kept_messages) = kept(directory)?;
    let kept_bytes = checkpoint_bytes + kept_messages * payload_bytes;
    let report = Report {
        benchmark: "restart",
        command: report::command_line(),
        machine,
        load,
        published_bytes: u64::from(load.groups) * u64::from(load.messages) * payload_bytes,
        fill_seconds,
        killed_disk_bytes,
        open_seconds,
        open_resident_bytes,
        rest_disk_bytes,
        kept_bytes,
        kept_messages,
        rest_disk_to_kept: rest_disk_bytes as f64 / kept_bytes as f64,
    };
    writeln!(
        io::stderr(),
        "{} sessions after a kill: open in {open_seconds:.2} s, {:.0} MB resident; disk {:.0} MB when killed, {:.0} MB \
         at rest, {:.2} of what is kept",
        load.sessions,
        open_resident_bytes as f64 / 1e6,
        killed_disk_bytes as f64 / 1e6,
        rest_disk_bytes as f64 / 1e6,
        report.rest_disk_to_kept
    )?;
    report::print_json(&report)
}

/// Starts a process and waits until it has done its work. It stays until it is dropped, and is killed then.
fn start(directory: &Path, load: Load, fill: bool) -> Result<Process> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("restart-process").arg("--directory").arg(directory);
    for (flag, value) in [
        ("--sessions", load.sessions),
        ("--groups", load.groups),
        ("--payload-bytes", load.payload_bytes),
        ("--messages", load.messages),
        ("--unacknowledged", load.unacknowledged),
    ] {
        command.arg(flag).arg(value.to_string());
    }
    if fill {
        command.arg("--fill");
    }
    let mut process = Process(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?);
    let stdout = process.0.stdout.take().context("no standard output")?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    ensure!(line == "done\n", "the process ended early");
    Ok(process)
}

/// Runs one of the processes.
///
/// # Errors
/// The engine refuses something.
pub fn run_process(args: &RestartProcessArgs) -> Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let boot = BootId(u128::from(std::process::id()));
        let store = EmbeddedStore::open(&args.directory, |_| Durability::Os)?;
        let engine = Engine::new(Arc::new(Config::default()), Arc::new(store), boot);
        engine.start_kept_hubs().await?;
        // Sessions have to stay attached, or they would expire.
        let _sockets = if args.fill {
            let sockets = fill(&engine, args.load).await?;
            writeln!(io::stdout(), "done")?;
            sockets
        } else {
            let hub = started(&engine).await?;
            writeln!(io::stdout(), "done")?;
            resume_all(&hub, args.load).await?
        };
        std::future::pending::<()>().await;
        Ok(())
    })
}

/// Opens all sessions and publishes.
async fn fill(engine: &Engine, load: Load) -> Result<Vec<AttachedSocket>> {
    let hub = engine.hub_to_join(&HubName::new(HUB)?).await?;
    let publisher = hub.open(session("publisher", None)).await?;
    let opening = (0..load.sessions).map(|n| {
        let hub = hub.clone();
        async move { anyhow::Ok(hub.open(session(&name(n), Some(group(n % load.groups)?))).await?) }
    });
    let sockets: Vec<AttachedSocket> =
        futures_util::stream::iter(opening).buffered(OPENING).try_collect().await?;
    for round in 0..load.messages {
        // All that came so far, so that the last ones are left in the end.
        if (load.messages - round).is_multiple_of(load.unacknowledged) {
            settle(&publisher).await;
            let everything = || Upstream::SequenceAck { sequence_id: u64::MAX };
            sockets.iter().for_each(|socket| drop(socket.attachment().receive(everything())));
        }
        for first in (0..load.groups).step_by(OPENING) {
            let groups = first..load.groups.min(first + OPENING as u32);
            publisher.submit(groups.map(|n| message(n, load)).collect::<Result<_>>()?).await;
            publisher.ready_to_read().await;
        }
    }
    settle(&publisher).await;
    Ok(sockets.into_iter().chain([publisher]).collect())
}

/// Waits until everything that was submitted has been published.
async fn settle(publisher: &AttachedSocket) {
    while publisher.attachment().outbox.lock().pending_requests() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Waits until the hub takes sockets.
async fn started(engine: &Engine) -> Result<HubHandle> {
    loop {
        match engine.hub_at_once(&HubName::new(HUB)?) {
            Ok(Some(hub)) => return Ok(hub),
            Ok(None) => bail!("there is no hub"),
            Err(HubUnavailable::Starting) => tokio::time::sleep(Duration::from_millis(1)).await,
            Err(error) => return Err(error.into()),
        }
    }
}

/// Attaches all sessions. Each acknowledges again all but its last messages.
async fn resume_all(hub: &HubHandle, load: Load) -> Result<Vec<AttachedSocket>> {
    let resume = |n: u32| resume(hub.clone(), name(n), load.unacknowledged as usize);
    futures_util::stream::iter((0..load.sessions).map(resume)).buffered(OPENING).try_collect().await
}

async fn resume(hub: HubHandle, name: String, unacknowledged: usize) -> Result<AttachedSocket> {
    let socket = hub.resume(ConnectionId::new(&name), Subprotocol::JsonReliable).await?;
    let ids: Vec<u64> = socket.attachment().outbox.lock().unacknowledged().map(|(id, _)| id).collect();
    let acknowledged = ids.len().saturating_sub(unacknowledged);
    if let Some(sequence_id) = acknowledged.checked_sub(1).map(|last| ids[last]) {
        socket.attachment().receive(Upstream::SequenceAck { sequence_id });
    }
    Ok(socket)
}

fn name(n: u32) -> String {
    format!("session-{n:026}")
}

fn group(n: u32) -> Result<GroupName> {
    Ok(GroupName::new(&format!("group-{n}"))?)
}

fn session(name: &str, group: Option<GroupName>) -> NewSession {
    NewSession {
        identity: SessionIdentity {
            connection_id: ConnectionId::new(name),
            user_id: None,
            subprotocol: Subprotocol::JsonReliable,
            custom_subprotocol: None,
        },
        roles: vec!["webpubsub.sendToGroup".to_owned()],
        groups: group.into_iter().collect(),
        reconnection_token: None,
        state: None,
    }
}

fn message(group_number: u32, load: Load) -> Result<Request> {
    let bytes = load.payload_bytes as usize;
    let message = Upstream::SendToGroup {
        group: group(group_number)?,
        payload: Payload { kind: PayloadKind::Text, bytes: vec![b'x'; bytes].into() },
        metadata: Metadata::default(),
        ack_id: None,
        no_echo: false,
        ttl_seconds: 0,
    };
    Ok(Request { message, bytes })
}

/// What the sessions' checkpoints take, in bytes, and how many messages they name.
fn kept(directory: &Path) -> Result<(u64, u64)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let store = EmbeddedStore::open(directory, |_| Durability::Os)?;
        let mut chunks = store.open(&HubName::new(HUB)?).await?.load_all("chunk/");
        let (mut bytes, mut messages) = (0, BTreeSet::new());
        while let Some(portion) = chunks.next().await {
            for (_, chunk) in portion? {
                bytes += chunk.bytes.len() as u64;
                let sessions = ChunkCheckpoint::decode(chunk.bytes)?.sessions;
                let named = sessions.iter().flat_map(|session| &session.unacknowledged);
                messages.extend(named.map(|(_, message)| *message));
            }
        }
        Ok((bytes, messages.len() as u64))
    })
}

/// What the files in a directory take.
fn disk_bytes(directory: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let about = entry.metadata()?;
        bytes += if about.is_dir() { disk_bytes(&entry.path())? } else { about.len() };
    }
    Ok(bytes)
}
