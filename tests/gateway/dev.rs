//! The command `dev`: two processes, one of which starts the other again when it is killed.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdout, Command};

use crate::crashes::resume;
use crate::support::*;

/// The key of every `dev`, as it prints it.
const DEVELOPMENT_KEY: &str = "oncewire-development-key-for-loopback-only";

/// A running `dev`. Dropped, it is killed, and what it started ends with it.
struct Dev {
    supervisor: Child,
    lines: Lines<BufReader<ChildStdout>>,
    address: SocketAddr,
}

impl Dev {
    /// On a free port and over a data directory of its own.
    async fn start(directory: &Path) -> Self {
        let mut supervisor = dev(directory).spawn().unwrap();
        let mut lines = BufReader::new(supervisor.stdout.take().unwrap()).lines();
        let page = soon(lines.next_line()).await.unwrap().unwrap();
        let address = page.strip_prefix("demo page: http://").unwrap().trim_end_matches('/');
        let address = address.parse().unwrap();
        let mut dev = Self { supervisor, lines, address };
        dev.line_with("kill -9 ").await;
        Self { address, ..dev }
    }

    /// The next line that begins so.
    async fn line_with(&mut self, beginning: &str) -> String {
        loop {
            let line = soon(self.lines.next_line()).await.unwrap().unwrap();
            if line.starts_with(beginning) {
                return line;
            }
        }
    }

    /// Waits until it says that it has started the process again; returns which one.
    async fn started_again(&mut self) -> u32 {
        let line = self.line_with("killed and started again: process ").await;
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// The process that serves.
    fn serving(&self) -> u32 {
        let children = children_of(self.supervisor.id().unwrap());
        assert_eq!(children.len(), 1);
        children[0]
    }

    async fn status(&self) -> Value {
        Ask::new(self.address, "GET", "/demo/status").send().await.json()
    }

    async fn reliable(&self, token: Token) -> Socket {
        let token = token.key(DEVELOPMENT_KEY);
        let mut socket = Connector::new(self.address).token(&token).offer(RELIABLE).open().await.unwrap();
        socket.read_connected().await;
        socket
    }

    /// Waits for its end; tells what else it printed, and what it logged.
    async fn end(&mut self) -> (ExitStatus, String, String) {
        let status = soon(self.supervisor.wait()).await.unwrap();
        let (mut stdout, mut stderr) = (String::new(), String::new());
        // They end when the last process that holds them does.
        soon(self.lines.get_mut().read_to_string(&mut stdout)).await.unwrap();
        soon(self.supervisor.stderr.as_mut().unwrap().read_to_string(&mut stderr)).await.unwrap();
        (status, stdout, stderr)
    }
}

fn dev(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncewire"));
    command.args(["dev", "--listen", "127.0.0.1:0", "--data-dir"]).arg(directory);
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

fn children_of(process: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let id: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        // The name before may hold anything.
        let parent: u32 = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?;
        (parent == process).then_some(id)
    });
    processes.collect()
}

fn signal(name: &str, process: u32) {
    let sent = std::process::Command::new("kill").args(["-s", name, &process.to_string()]).status();
    assert!(sent.unwrap().success());
}

async fn gone(process: u32) {
    soon(async {
        while std::fs::exists(format!("/proc/{process}")).unwrap() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn killed_it_serves_again_on_the_same_port_and_sessions_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let mut dev = Dev::start(directory.path()).await;
    let mut subscriber = dev.reliable(Token::user("s").group("g")).await;
    let mut publisher = dev.reliable(Token::user("p")).await;
    let [to_subscriber, to_publisher] = [&subscriber, &publisher].map(Socket::identity);
    let mut seen = vec![dev.serving()];
    for kill in 1..=3 {
        publisher.done(publish("g", kill, "not acknowledged by its subscriber")).await;
        publisher.done(publish("h", 100 + kill, "another")).await;
        signal("KILL", dev.serving());
        let process = dev.started_again().await;
        assert_eq!(process, dev.serving());
        assert!(!seen.contains(&process));
        seen.push(process);
        subscriber = resume(dev.address, &to_subscriber).await;
        for sequence_id in 1..=kill {
            subscriber.expect(message(sequence_id, "g", "p", "not acknowledged by its subscriber")).await;
        }
        publisher = resume(dev.address, &to_publisher).await;
        publisher.refused(publish("g", kill, "not acknowledged by its subscriber"), "Duplicate").await;
        subscriber.expect_quiet().await;
    }
    signal("TERM", dev.supervisor.id().unwrap());
    let (status, stdout, stderr) = dev.end().await;
    assert_eq!((status.code(), stdout.trim()), (Some(0), ""), "{stderr}");
}

#[tokio::test]
async fn a_website_can_do_nothing_with_the_key_that_everybody_knows() {
    let directory = tempfile::tempdir().unwrap();
    let dev = Dev::start(directory.path()).await;
    let from = async |origin: &str| {
        let token = Token::user("a").key(DEVELOPMENT_KEY);
        let connector = Connector::new(dev.address).token(&token).offer(RELIABLE);
        connector.header("Origin", origin).status().await
    };
    assert_eq!(from("https://evil.example").await, 403);
    assert_eq!(from("http://localhost:3000").await, 101);
}

#[tokio::test]
async fn the_page_has_the_process_killed_and_gets_it_back() {
    let directory = tempfile::tempdir().unwrap();
    let mut dev = Dev::start(directory.path()).await;
    let before = dev.status().await;
    assert_eq!((&before["canRestart"], &before["store"]), (&json!(true), &json!("disk")));
    let (process, subscriber) = (dev.serving(), dev.reliable(Token::user("s").group("g")).await);
    let identity = subscriber.identity();
    let restart = Ask::new(dev.address, "POST", "/demo/restart")
        .header("origin", &format!("http://{}", dev.address))
        .header("content-type", "application/json")
        .body("{}");
    assert_eq!(restart.send().await.status, 202);
    subscriber.expect_cut().await;
    assert_ne!(dev.started_again().await, process);
    gone(process).await;
    let after = dev.status().await;
    assert_ne!(after["boot"], before["boot"]);
    assert_eq!(after["canRestart"], true);
    resume(dev.address, &identity).await.expect_quiet().await;
    signal("TERM", dev.supervisor.id().unwrap());
    let (_, _, stderr) = dev.end().await;
    assert!(stderr.contains("fault=\"restart\""), "{stderr}");
}

#[tokio::test]
async fn a_signal_to_it_ends_both_processes_in_order() {
    for name in ["TERM", "INT"] {
        let directory = tempfile::tempdir().unwrap();
        let mut dev = Dev::start(directory.path()).await;
        let (process, socket) = (dev.serving(), dev.reliable(Token::user("s")).await);
        signal(name, dev.supervisor.id().unwrap());
        socket.expect_close(1001).await;
        let (status, stdout, stderr) = dev.end().await;
        assert_eq!((status.code(), stdout.trim()), (Some(0), ""), "{stderr}");
        assert!(!stderr.contains("ERROR"), "{stderr}");
        gone(process).await;
    }
}

#[tokio::test]
async fn when_the_process_that_serves_ends_in_order_so_does_it() {
    let directory = tempfile::tempdir().unwrap();
    let mut dev = Dev::start(directory.path()).await;
    signal("TERM", dev.serving());
    let (status, stdout, stderr) = dev.end().await;
    assert_eq!((status.code(), stdout.trim()), (Some(0), ""), "{stderr}");
}

#[tokio::test]
async fn no_process_outlives_a_supervisor_that_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let mut dev = Dev::start(directory.path()).await;
    let (process, socket) = (dev.serving(), dev.reliable(Token::user("s")).await);
    signal("KILL", dev.supervisor.id().unwrap());
    socket.expect_cut().await;
    gone(process).await;
    let (_, _, stderr) = dev.end().await;
    assert!(stderr.contains("the supervisor is gone"), "{stderr}");
    assert!(TcpStream::connect(dev.address).await.is_err());
}

#[tokio::test]
async fn killed_it_serves_https_again_on_the_same_port_with_the_same_certificate() {
    let directory = tempfile::tempdir().unwrap();
    let mut supervisor = dev(directory.path());
    let mut supervisor =
        supervisor.args(["--tls-self-signed", "--tls-listen", "127.0.0.1:0"]).spawn().unwrap();
    let mut lines = BufReader::new(supervisor.stdout.take().unwrap()).lines();
    let page = soon(lines.next_line()).await.unwrap().unwrap();
    let address = page.strip_prefix("demo page: https://").unwrap().trim_end_matches('/');
    let mut dev = Dev { supervisor, lines, address: address.parse().unwrap() };
    dev.line_with("kill -9 ").await;
    let certificate = std::fs::read_to_string(directory.path().join("self-signed-certificate.pem")).unwrap();
    let status = Ask::new(dev.address, "GET", "/demo/status").inside(&TlsClient::new(&certificate));
    let before = status.send().await.json();
    signal("KILL", dev.serving());
    dev.started_again().await;
    assert_ne!(status.send().await.json()["boot"], before["boot"]);
}

#[tokio::test]
async fn nobody_serves_for_a_supervisor_that_is_not_there() {
    let directory = tempfile::tempdir().unwrap();
    let output = soon(dev(directory.path()).arg("--supervised").output()).await.unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{stderr}");
    assert!(stderr.contains("no supervisor"), "{stderr}");
}
