//! Starts this program again when it is killed.
//!
//! ```text
//! supervisor --starts, forwards signals--> process that serves
//!            <--where it serves--- lifeline ---end of file when the supervisor is gone-->
//! ```
//! Knows: processes, signals, and the lifeline between the two: a socket in the place of standard input. Does not know: what
//! the other process does. Where that served is told back to its successor letter by letter.
//!
//! Only a process that was killed (SIGKILL) is started again. One that ends by itself is not, and its exit code is the
//! supervisor's. No process outlives its supervisor, however that ends.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use oncewire::telemetry;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader as AsyncBufReader, Lines};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep_until};

use crate::signals::Signals;

/// Two starts are at least this far apart.
const STARTS_APART: Duration = Duration::from_millis(300);
/// So many processes in a row that were killed before they served, and no other is started.
const STARTS_IN_VAIN_MAX: u32 = 5;

/// Runs a process until one ends by itself, and returns its exit code. `command` makes the command from where the process
/// before served, if one did.
///
/// # Errors
/// When a process can't be started, or ended by another signal than SIGKILL, or is killed each time before it serves.
pub fn supervise(command: impl Fn(&[String]) -> Command) -> Result<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut signals = Signals::listen().context("can't listen for signals")?;
        let mut places = Vec::new();
        let mut starts_in_vain = 0;
        loop {
            let started_at = Instant::now();
            let is_restart = !places.is_empty();
            let mut served = Served::start(command(&places))?;
            let (end, ready) = served.watch(&mut signals, is_restart).await?;
            starts_in_vain = if ready.is_some() { 0 } else { starts_in_vain + 1 };
            if !end.is_killed() || end.is_told_to {
                return end.exit_code();
            }
            if starts_in_vain == STARTS_IN_VAIN_MAX {
                bail!("the process was killed {STARTS_IN_VAIN_MAX} times before it was ready; giving up");
            }
            places = ready.unwrap_or(places);
            tokio::select! {
                () = sleep_until(started_at + STARTS_APART) => {}
                _ = signals.next() => return Ok(0),
            }
        }
    })
}

/// Makes commands of this program with its own arguments, as the process that serves.
///
/// # Errors
/// When it can't be told which program this is.
pub fn this_program() -> Result<impl Fn(&[String]) -> Command> {
    // Now: when the file has been replaced, by a build for example, its name can't be told any more.
    let program = std::env::current_exe().context("can't tell which program this is")?;
    Ok(move |places: &[String]| {
        let mut command = Command::new(&program);
        command.args(std::env::args_os().skip(1)).arg("--supervised");
        for place in places {
            command.args(["--again", place]);
        }
        command
    })
}

/// How a process ended.
struct End {
    status: ExitStatus,
    /// Whether a signal had been forwarded to it.
    is_told_to: bool,
}

impl End {
    fn is_killed(&self) -> bool {
        self.status.signal() == Some(Signal::KILL.as_raw())
    }

    fn exit_code(&self) -> Result<u8> {
        let forwarded = [Signal::TERM, Signal::INT].map(|signal| Some(signal.as_raw()));
        match self.status.code() {
            Some(code) => Ok(u8::try_from(code).unwrap_or(1)),
            // It was told to end before it could listen.
            None if self.is_told_to && forwarded.contains(&self.status.signal()) => Ok(0),
            None => bail!("the process that served has ended: {}", self.status),
        }
    }
}

/// The process that serves, as its supervisor sees it. Dropped, it is killed.
struct Served {
    process: Child,
    lifeline: Lines<AsyncBufReader<tokio::net::UnixStream>>,
}

impl Served {
    fn start(mut command: Command) -> Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let process = command
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            // Out of reach of the terminal, whose signals it gets from here, once.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .context("can't start the process that serves")?;
        let lifeline = AsyncBufReader::new(tokio::net::UnixStream::from_std(ours)?).lines();
        Ok(Self { process, lifeline })
    }

    /// Waits for its end, and forwards signals. Tells also where it served, if it did.
    async fn watch(&mut self, signals: &mut Signals, is_restart: bool) -> Result<(End, Option<Vec<String>>)> {
        let (mut is_told_to, mut ready, mut is_silent) = (false, None, false);
        let status = loop {
            tokio::select! {
                // What it has said before its end counts.
                biased;
                said = said(&mut self.lifeline), if !is_silent => {
                    is_silent = true;
                    ready = said;
                    if ready.is_some() && is_restart {
                        self.announce();
                    }
                }
                signal = signals.next() => {
                    is_told_to = true;
                    self.forward(signal);
                }
                status = self.process.wait() => break status?,
            }
        };
        Ok((End { status, is_told_to }, ready))
    }

    fn announce(&self) {
        let process = self.process.id().unwrap_or_default();
        // Whoever does not read it any more does not miss it.
        let _ = writeln!(io::stdout(), "killed and started again: process {process}");
    }

    /// A process that has just ended needs no signal.
    fn forward(&self, signal: Signal) {
        let id = self.process.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        if let Some(id) = id {
            let _ = kill_process(id, signal);
        }
    }
}

/// The one line that a process says: where it serves. None when it ends before.
async fn said<R: AsyncRead + Unpin>(lifeline: &mut Lines<AsyncBufReader<R>>) -> Option<Vec<String>> {
    let line = lifeline.next_line().await.ok()??;
    Some(line.split(' ').map(str::to_owned).collect())
}

/// The lifeline, as the process that serves holds it.
pub struct Lifeline(UnixStream);

impl Lifeline {
    /// Takes it, and ends this process as soon as the supervisor is gone.
    ///
    /// # Errors
    /// When there is none.
    pub fn hold() -> io::Result<Self> {
        let lifeline = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        lifeline.peer_addr()?;
        let mut held = lifeline.try_clone()?;
        std::thread::Builder::new().name("lifeline".to_owned()).spawn(move || {
            // Nothing is ever said in this direction.
            let _ = held.read(&mut [0]);
            tracing::error!("the supervisor is gone");
            telemetry::finish();
            std::process::exit(1);
        })?;
        Ok(Self(lifeline))
    }

    /// Tells the supervisor where this process serves.
    ///
    /// # Errors
    /// When it is gone.
    pub fn ready(&self, places: &[String]) -> io::Result<()> {
        (&self.0).write_all(format!("{}\n", places.join(" ")).as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that is a script, and what it leaves in a file: one line for each start.
    fn supervise_script(script: &str) -> (Result<u8>, Vec<String>) {
        let directory = tempfile::tempdir().unwrap();
        let starts = directory.path().join("starts");
        let result = supervise(|places| {
            let mut command = Command::new("sh");
            command.args(["-c", &format!("echo \"start $*\" >> \"$0\"; {script}")]).arg(&starts).args(places);
            command
        });
        let starts = std::fs::read_to_string(&starts).unwrap();
        (result, starts.lines().map(str::to_owned).collect())
    }

    #[test]
    fn a_process_that_ends_by_itself_is_not_started_again_and_its_code_counts() {
        for code in [0, 1, 2, 77] {
            let (result, starts) = supervise_script(&format!("exit {code}"));
            assert_eq!((result.unwrap(), starts.len()), (code, 1));
        }
        let (result, starts) = supervise_script("kill -TERM $$");
        assert!(result.unwrap_err().to_string().contains("signal"));
        assert_eq!(starts.len(), 1);
    }

    #[test]
    fn one_that_is_killed_is_started_again_where_it_served_before() {
        let script = "if [ \"$(wc -l < \"$0\")\" -lt 3 ]; then echo 'a=1 b=2' >&0; kill -KILL $$; fi; exit 7";
        let (result, starts) = supervise_script(script);
        assert_eq!(result.unwrap(), 7);
        assert_eq!(starts, ["start ", "start a=1 b=2", "start a=1 b=2"]);
    }

    #[test]
    fn one_that_is_always_killed_before_it_serves_is_given_up() {
        let (result, starts) = supervise_script("kill -KILL $$");
        assert!(result.unwrap_err().to_string().contains("giving up"));
        assert_eq!(starts.len(), STARTS_IN_VAIN_MAX as usize);
        // One start fewer in vain, and it goes on.
        let killed = STARTS_IN_VAIN_MAX - 1;
        let script = format!("if [ \"$(wc -l < \"$0\")\" -le {killed} ]; then kill -KILL $$; fi; exit 3");
        let (result, starts) = supervise_script(&script);
        assert_eq!((result.unwrap(), starts.len()), (3, STARTS_IN_VAIN_MAX as usize));
    }
}
