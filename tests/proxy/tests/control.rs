//! The binary, driven over its standard input and output as tests in other languages drive it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a step that fails is the test's failure")]

use std::process::Stdio;
use std::time::Duration;

use oncewire_proxy::State;
use oncewire_proxy::control::{LINE_BYTES_MAX, Reply};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

struct Driver {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Driver {
    fn start() -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_oncewire-proxy"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, input, output }
    }

    async fn send(&mut self, line: &str) {
        self.input.write_all(line.as_bytes()).await.unwrap();
        self.input.write_all(b"\n").await.unwrap();
    }

    async fn reply(&mut self) -> Reply {
        let line = tokio::time::timeout(Duration::from_secs(30), self.output.next_line()).await;
        serde_json::from_str(&line.unwrap().unwrap().unwrap()).unwrap()
    }

    async fn ask(&mut self, line: &str) -> Reply {
        self.send(line).await;
        let reply = self.reply().await;
        assert!(reply.ok, "{line}: {:?}", reply.error);
        reply
    }
}

#[tokio::test]
async fn a_sweep_can_be_driven_line_by_line() {
    let upstream = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = upstream.local_addr().unwrap();
    let mut driver = Driver::start();
    let opened = driver.ask(&format!(r#"{{"id":1,"do":"open","upstream":"{server}"}}"#)).await;
    assert_eq!((opened.id, opened.proxy), (1, Some(1)));
    let address = opened.address.unwrap();

    for offset in 1..=3_u64 {
        driver
            .ask(&format!(
                r#"{{"id":2,"do":"plan","proxy":1,"connection":{},"faults":[{{"direction":"server_to_client","after_bytes":{offset},"action":"cut_rst"}}]}}"#,
                offset
            ))
            .await;
        let mut client = TcpStream::connect(address).await.unwrap();
        let (mut accepted, _) = upstream.accept().await.unwrap();
        let _ = accepted.write_all(b"abcd").await;
        let mut answer = Vec::new();
        assert!(client.read_to_end(&mut answer).await.is_err());
        assert_eq!(answer, b"abcd"[..usize::try_from(offset).unwrap()]);
    }
    let report = driver.ask(r#"{"id":3,"do":"report","proxy":1}"#).await.report.unwrap();
    assert_eq!((report.accepted, report.faults, report.server_to_client_bytes), (3, 3, 6));
}

#[tokio::test]
async fn every_command_is_understood() {
    let upstream = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = upstream.local_addr().unwrap();
    let mut driver = Driver::start();
    let opened =
        driver.ask(&format!(r#"{{"id":1,"do":"open","upstream":"{server}","listen":"127.0.0.1:0"}}"#)).await;
    let mut client = TcpStream::connect(opened.address.unwrap()).await.unwrap();
    let (mut accepted, _) = upstream.accept().await.unwrap();
    for line in [
        format!(r#"{{"id":2,"do":"upstream","proxy":1,"upstream":"{server}"}}"#),
        r#"{"id":3,"do":"plan","proxy":1,"faults":[]}"#.to_owned(),
        r#"{"id":4,"do":"random","proxy":1,"random":{"seed":1,"bytes_min":1,"bytes_max":2,"connections_max":3,"actions":["cut_fin"]}}"#.to_owned(),
        r#"{"id":5,"do":"random","proxy":1,"random":null}"#.to_owned(),
        r#"{"id":6,"do":"refuse","proxy":1}"#.to_owned(),
        r#"{"id":7,"do":"refuse","proxy":1,"count":0}"#.to_owned(),
        r#"{"id":8,"do":"stall","proxy":1,"direction":"client_to_server"}"#.to_owned(),
        r#"{"id":9,"do":"resume","proxy":1,"direction":"client_to_server"}"#.to_owned(),
        r#"{"id":10,"do":"fault_after","proxy":1,"connection":1,"fault":{"direction":"client_to_server","after_bytes":2,"action":"stall"}}"#.to_owned(),
    ] {
        driver.ask(&line).await;
    }
    client.write_all(b"abcd").await.unwrap();
    driver.ask(r#"{"id":11,"do":"wait","proxy":1,"reached":{"faults":1}}"#).await;
    let mut bytes = [0; 2];
    accepted.read_exact(&mut bytes).await.unwrap();
    driver.ask(r#"{"id":12,"do":"strike","proxy":1,"connection":1,"action":"client_dies"}"#).await;
    driver.ask(r#"{"id":13,"do":"wait","proxy":1,"reached":{"stopped":1}}"#).await;
    let report = driver.ask(r#"{"id":14,"do":"report","proxy":1}"#).await.report.unwrap();
    assert_eq!(report.connections[0].state, State::HalfOpen);
    driver.ask(r#"{"id":15,"do":"strike","proxy":1,"action":"cut_rst"}"#).await;
    assert!(accepted.read(&mut bytes).await.is_err());
    driver.ask(r#"{"id":16,"do":"close","proxy":1}"#).await;
}

#[tokio::test]
async fn a_wait_does_not_hold_up_later_commands_and_times_out() {
    let mut driver = Driver::start();
    driver.ask(r#"{"id":1,"do":"open","upstream":"127.0.0.1:9"}"#).await;
    driver.send(r#"{"id":2,"do":"wait","proxy":1,"reached":{"accepted":1},"timeout_ms":100}"#).await;
    assert_eq!(driver.ask(r#"{"id":3,"do":"report","proxy":1}"#).await.id, 3);
    let late = driver.reply().await;
    assert_eq!((late.id, late.ok), (2, false));
    assert_eq!(late.error.as_deref(), Some("timed out"));
}

#[tokio::test]
async fn mistakes_are_answered_and_cost_nothing_else() {
    let mut driver = Driver::start();
    for (line, id) in [
        ("not json", 0),
        (r#"{"id":7,"do":"dance"}"#, 0),
        (r#"{"id":8,"do":"report","proxy":1}"#, 8),
        (r#"{"id":9,"do":"wait","proxy":1,"reached":{}}"#, 9),
        (r#"{"id":10,"do":"strike","proxy":1,"connection":4,"action":"cut_rst"}"#, 10),
    ] {
        driver.send(line).await;
        let reply = driver.reply().await;
        assert_eq!((reply.id, reply.ok, reply.error.is_some()), (id, false, true), "{line}");
    }
    driver.ask(r#"{"id":11,"do":"open","upstream":"127.0.0.1:9"}"#).await;
}

#[tokio::test]
async fn the_process_ends_with_its_input_or_with_a_line_that_is_too_long() {
    let mut driver = Driver::start();
    driver.ask(r#"{"id":1,"do":"open","upstream":"127.0.0.1:9"}"#).await;
    drop(driver.input);
    let status = tokio::time::timeout(Duration::from_secs(30), driver.child.wait()).await;
    assert!(status.unwrap().unwrap().success());

    let mut driver = Driver::start();
    let long = vec![b' '; usize::try_from(LINE_BYTES_MAX).unwrap()];
    let _ = driver.input.write_all(&long).await;
    let status = tokio::time::timeout(Duration::from_secs(30), driver.child.wait()).await;
    assert!(!status.unwrap().unwrap().success());
}
