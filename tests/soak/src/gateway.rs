//! The gateway as a process that is killed and started again on the same address and the same data.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// The key of every gateway here, unless its arguments name another.
pub const ACCESS_KEY: &str = "a key of the soak test that guards nothing at all";
/// How long a start may take. A safety net for machines that are busy, not a promise.
const START_WAIT: Duration = Duration::from_secs(120);

/// How a gateway is started.
#[derive(Debug, Clone)]
pub struct GatewayCommand {
    /// The program.
    pub binary: PathBuf,
    /// More arguments of `serve`.
    pub arguments: Vec<String>,
}

/// A gateway on one address, whose process may be killed and started again. Dropped, it is killed.
pub struct Gateway {
    command: GatewayCommand,
    address: SocketAddr,
    child: Option<Child>,
}

/// Whom an access token is for.
#[derive(Debug, Clone, Copy)]
pub struct Grant<'a> {
    /// The hub.
    pub hub: &'a str,
    /// The user.
    pub user: &'a str,
    /// Groups to be in from the start.
    pub groups: &'a [&'a str],
}

impl Gateway {
    /// Starts one on a free port, and waits until it serves.
    ///
    /// # Errors
    /// When it does not get so far.
    pub async fn start(command: GatewayCommand) -> Result<Self> {
        // The port stays the same over all starts, so that clients find it again.
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let mut gateway = Self { command, address, child: None };
        gateway.restart().await?;
        Ok(gateway)
    }

    /// Gives later starts other arguments.
    pub fn set_arguments(&mut self, arguments: Vec<String>) {
        self.command.arguments = arguments;
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The process's id, while there is one.
    pub fn process_id(&self) -> Option<u32> {
        self.child.as_ref().and_then(Child::id)
    }

    /// Starts the process, and waits until it serves.
    ///
    /// # Errors
    /// When it does not get so far.
    pub async fn restart(&mut self) -> Result<()> {
        let mut stdout = self.spawn()?;
        let mut line = String::new();
        timeout(START_WAIT, stdout.read_line(&mut line))
            .await
            .context("the gateway does not get ready")??;
        if !line.contains("connection string:") {
            let status = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
            bail!("the gateway ended instead of getting ready ({status:?})");
        }
        // The end is kept open: a gateway whose standard output is gone may take it as a failure.
        if let Some(child) = &mut self.child {
            child.stdout = Some(stdout.into_inner());
        }
        Ok(())
    }

    /// Starts the process and kills it after a while, ready or not.
    ///
    /// # Errors
    /// When it can't be started, or ends by itself.
    pub async fn restart_and_kill_within(&mut self, while_: Duration) -> Result<()> {
        let _stdout = self.spawn()?;
        tokio::time::sleep(while_).await;
        self.kill().await
    }

    /// Kills the process: SIGKILL, which it can't notice.
    ///
    /// # Errors
    /// When it has ended by itself before.
    pub async fn kill(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else { bail!("the gateway is not running") };
        if let Some(status) = child.try_wait()? {
            bail!("the gateway ended by itself ({status})");
        }
        child.kill().await.context("cannot kill the gateway")
    }

    /// Asks the process to end, and waits until it has.
    ///
    /// # Errors
    /// When it ends with another code than 0.
    pub async fn stop(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else { bail!("the gateway is not running") };
        let id = child.id().context("the gateway has ended by itself")?;
        let told = Command::new("kill").args(["-TERM", &id.to_string()]).status().await?;
        ensure!(told.success(), "cannot signal the gateway");
        let status = timeout(START_WAIT, child.wait()).await.context("the gateway does not end")??;
        ensure!(status.success(), "the gateway ended with {status}");
        Ok(())
    }

    /// A client URL, made by the gateway's own command.
    ///
    /// # Errors
    /// When the command fails.
    pub async fn client_url(&self, grant: Grant<'_>) -> Result<String> {
        let mut command = Command::new(&self.command.binary);
        command.args(["token", "--hub", grant.hub, "--user", grant.user, "--minutes", "1440"]);
        command.args(["--role", "webpubsub.joinLeaveGroup", "--role", "webpubsub.sendToGroup"]);
        command.args(["--endpoint", &format!("http://{}", self.address)]);
        for group in grant.groups {
            command.args(["--group", group]);
        }
        let output = command.env("ONCEWIRE_ACCESS_KEY", ACCESS_KEY).output().await?;
        ensure!(output.status.success(), "token: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }

    fn spawn(&mut self) -> Result<BufReader<tokio::process::ChildStdout>> {
        let mut child = Command::new(&self.command.binary)
            .args(["serve", "--log", "warn", "--listen", &self.address.to_string()])
            .args(&self.command.arguments)
            .env("ONCEWIRE_PRINT_CONNECTION_STRING", "true")
            .env("ONCEWIRE_ACCESS_KEY", ACCESS_KEY)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", self.command.binary.display()))?;
        let stdout = child.stdout.take().context("no standard output")?;
        self.child = Some(child);
        Ok(BufReader::new(stdout))
    }
}

impl GatewayCommand {
    /// `serve` over a directory, with a durability.
    pub fn on_disk(binary: &Path, data_dir: &Path, durability: &str) -> Self {
        let data_dir = data_dir.display().to_string();
        let arguments = ["--store", "disk", "--data-dir", &data_dir, "--durability", durability];
        Self { binary: binary.to_owned(), arguments: arguments.map(str::to_owned).to_vec() }
    }
}
