//! The binary, running.

use std::net::SocketAddr;
use std::process::Stdio;

use tempfile::NamedTempFile;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::{ACCESS_KEY, Connector, RELIABLE, SECONDARY_KEY, Socket, Token, soon};

/// A running `oncewire serve`.
pub struct Served {
    /// The process.
    pub child: Child,
    /// Where it listens.
    pub address: SocketAddr,
    /// Its line on standard output.
    pub greeting: String,
}

impl Served {
    /// Starts it, at most with so many descriptors, and waits for its line.
    pub async fn start(descriptors_max: Option<u32>, arguments: &[&str]) -> Self {
        Self::start_on(descriptors_max, "memory", arguments).await
    }

    /// The same with another store.
    pub async fn start_on(descriptors_max: Option<u32>, store: &str, arguments: &[&str]) -> Self {
        let limit = descriptors_max.map_or(String::new(), |max| format!("ulimit -n {max} && "));
        Self::start_limited(&limit, store, arguments).await
    }

    /// The same where no file may be larger than so many KiB.
    pub async fn start_with_small_files(file_kib_max: u32, store: &str, arguments: &[&str]) -> Self {
        // In blocks of 512 bytes.
        Self::start_limited(&format!("ulimit -f {} && ", 2 * file_kib_max), store, arguments).await
    }

    async fn start_limited(limit: &str, store: &str, arguments: &[&str]) -> Self {
        let mut child = Command::new("sh")
            .args(["-c", &format!("{limit}exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_oncewire"), "serve"])
            .args(["--listen", "127.0.0.1:0", "--store", store])
            .args(arguments)
            .env("ONCEWIRE_PRINT_CONNECTION_STRING", "true")
            .env("ONCEWIRE_ACCESS_KEY", ACCESS_KEY)
            .env("ONCEWIRE_SECONDARY_KEY", SECONDARY_KEY)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut greeting = String::new();
        soon(stdout.read_line(&mut greeting)).await.unwrap();
        child.stdout = Some(stdout.into_inner());
        let endpoint = greeting.split("Endpoint=http://").nth(1).unwrap();
        let address = endpoint.split(';').next().unwrap().parse().unwrap();
        Self { child, address, greeting }
    }

    /// The same with these settings, in a file that has to be kept.
    pub async fn with_settings(settings: &str) -> (Self, NamedTempFile) {
        let file = NamedTempFile::new().unwrap();
        std::fs::write(file.path(), settings).unwrap();
        (Self::start(None, &["--config", file.path().to_str().unwrap()]).await, file)
    }

    /// A new reliable session, its `connected` read; `None` when it is refused.
    pub async fn reliable(&self, user: &str) -> Option<Socket> {
        let connector = Connector::new(self.address).token(&Token::user(user)).offer(RELIABLE);
        let mut socket = connector.open().await.ok()?;
        socket.read_connected().await;
        Some(socket)
    }

    /// Memory that it holds now, in MiB.
    pub fn resident_mib(&self) -> usize {
        self.status_mib("VmRSS:")
    }

    /// The most memory that it has held so far, in MiB.
    pub fn resident_mib_max(&self) -> usize {
        self.status_mib("VmHWM:")
    }

    fn status_mib(&self, name: &str) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id().unwrap())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() / 1024
    }

    /// Sends it a signal.
    pub fn signal(&self, name: &str) {
        let id = self.child.id().unwrap().to_string();
        let killed = std::process::Command::new("kill").args(["-s", name, &id]).status().unwrap();
        assert!(killed.success());
    }

    /// Tells it to stop; returns what it said on standard output after the greeting, and on standard error.
    pub async fn stop(self) -> (String, String) {
        self.signal("TERM");
        let output = soon(self.child.wait_with_output()).await.unwrap();
        assert!(output.status.success(), "{:?}", output.status);
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    }
}
