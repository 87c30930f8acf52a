//! The server under test as a child process: started on a chosen core, awaited, and ended with its handle.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::{Resource, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::endpoint::Endpoint;

/// Key of the servers that are started here; they listen on loopback only, for as long as they are measured.
const ACCESS_KEY: &str = "oncewire-bench-key-that-guards-nothing";
const READY_WITHIN: Duration = Duration::from_secs(30);

/// A program to measure.
#[derive(Clone, Debug)]
pub enum Server {
    /// This program's own `floor`.
    Floor,
    /// The gateway's binary, with further arguments for its `serve`.
    Gateway { binary: PathBuf, arguments: Vec<String> },
}

/// A server that is ready. Dropping it kills the process.
pub struct Running {
    child: Child,
    /// Where it listens.
    pub endpoint: Endpoint,
}

impl Server {
    /// Starts the server on a free port, pinned to `core` if one is given, and waits until it says that it is ready.
    ///
    /// # Errors
    /// It cannot be started, ends early, or says nothing within 30 seconds.
    pub fn start(&self, core: Option<usize>) -> Result<Running> {
        let mut command = match self {
            Self::Floor => {
                let mut command = Command::new(std::env::current_exe()?);
                command.arg("floor");
                command
            }
            Self::Gateway { binary, arguments } => {
                let mut command = Command::new(binary);
                // An argument can ask for another store.
                command.arg("serve").args(arguments).env("ONCEWIRE_STORE", "memory");
                command.env("ONCEWIRE_PRINT_CONNECTION_STRING", "true");
                command
            }
        };
        command.args(["--listen", "127.0.0.1:0", "--access-key", ACCESS_KEY]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = spawn_on(core, &mut command).with_context(|| format!("cannot start {self:?}"))?;
        let stdout = child.stdout.take();
        // From here on an error drops the handle, which ends the process.
        let endpoint = "Endpoint=http://0.0.0.0:0;AccessKey=;".parse()?;
        let mut running = Running { child, endpoint };
        running.endpoint = await_ready(stdout.context("the child has no standard output")?)
            .with_context(|| format!("{self:?} did not become ready"))?;
        Ok(running)
    }
}

impl Running {
    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A directory of this run, which is removed in the end.
pub struct ScratchDirectory(PathBuf);

impl ScratchDirectory {
    /// One below `parent`, not made yet.
    pub fn of_run(parent: &Path, benchmark: &str) -> Self {
        Self(parent.join(format!("oncewire-bench-{benchmark}-{}", std::process::id())))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Pins the calling thread, and what it starts from now on, to one core.
///
/// # Errors
/// There is no such core, or this process may not use it.
pub fn pin(core: usize) -> Result<()> {
    let mut cores = CpuSet::new();
    if core >= CpuSet::MAX_CPU {
        bail!("core {core}: at most {} are supported", CpuSet::MAX_CPU);
    }
    cores.set(core);
    sched_setaffinity(None, &cores).with_context(|| format!("cannot use core {core}"))
}

/// Lets this process, and what it starts from now on, hold at least `count` descriptors.
///
/// # Errors
/// The hard limit is lower, and this process may not raise it.
pub fn allow_descriptors(count: u64) -> Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= count) {
        return Ok(());
    }
    limit.current = Some(count);
    limit.maximum = limit.maximum.map(|maximum| maximum.max(count));
    setrlimit(Resource::Nofile, limit)
        .with_context(|| format!("cannot have {count} open files: raise `ulimit -Hn`"))
}

/// A child inherits the cores of the thread that starts it, so that thread changes over for a moment.
fn spawn_on(core: Option<usize>, command: &mut Command) -> Result<Child> {
    let Some(core) = core else { return Ok(command.spawn()?) };
    let own = sched_getaffinity(None)?;
    pin(core)?;
    let child = command.spawn();
    sched_setaffinity(None, &own)?;
    Ok(child?)
}

/// Reads standard output until the ready line, and goes on reading (and dropping) it so that the server never blocks.
fn await_ready(stdout: ChildStdout) -> Result<Endpoint> {
    let (ready, found) = mpsc::sync_channel(1);
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if line.contains("connection string:") {
                // Fails when the line was awaited no longer.
                let _ = ready.try_send(line);
            }
        }
    });
    match found.recv_timeout(READY_WITHIN) {
        Ok(line) => line.parse(),
        Err(mpsc::RecvTimeoutError::Disconnected) => bail!("it closed its standard output or ended"),
        Err(mpsc::RecvTimeoutError::Timeout) => {
            bail!("it printed no connection string within {READY_WITHIN:?}")
        }
    }
}
