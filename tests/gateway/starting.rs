//! When a gateway is ready: when each hub that it had before is live again, or known to be damaged.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use oncewire::store::{Log, MemoryStore, Store, StoreError, StoreErrorCause};
use oncewire_protocol::log::Certainty;
use oncewire_protocol::wire::HubName;
use oncewire_soak::{GatewayCommand, Grant};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;

use crate::support::*;

/// A store with hubs from before: one whose log opens when it is let, one whose log is damaged, and one that is well.
struct Kept {
    memory: MemoryStore,
    is_let: watch::Receiver<bool>,
}

const SLOW: &str = "slow";
const DAMAGED: &str = "damaged";

impl Store for Kept {
    fn open(&self, hub: &HubName) -> BoxFuture<'_, Result<Arc<dyn Log>, StoreError>> {
        let (hub, opening, mut is_let) = (hub.to_string(), self.memory.open(hub), self.is_let.clone());
        async move {
            match hub.as_str() {
                DAMAGED => {
                    let cause = StoreErrorCause::Damaged { place: "here".into(), what: "a bit".into() };
                    return Err(StoreError { certainty: Certainty::Definite, cause });
                }
                SLOW => drop(is_let.wait_for(|is_let| *is_let).await),
                _ => {}
            }
            opening.await
        }
        .boxed()
    }

    fn hubs(&self) -> BoxFuture<'_, Result<Vec<HubName>, StoreError>> {
        let names = [SLOW, DAMAGED, HUB].map(|name| HubName::new(name).unwrap());
        std::future::ready(Ok(names.to_vec())).boxed()
    }

    fn remove(&self, hub: &HubName) -> BoxFuture<'_, Result<(), StoreError>> {
        self.memory.remove(hub)
    }
}

/// A gateway over it, and what lets the slow hub be opened.
async fn kept(start_with_damaged_hubs: bool) -> (Gateway, watch::Sender<bool>) {
    let (let_it, is_let) = watch::channel(false);
    let store = Arc::new(Kept { memory: MemoryStore::default(), is_let });
    let gateway = Gateway::with_store(store, |config| {
        config.start_with_damaged_hubs = start_with_damaged_hubs;
        config.handshake_timeout_seconds = 1;
        config.metrics = true;
    })
    .await;
    (gateway, let_it)
}

async fn health(gateway: &Gateway) -> (u16, Answer) {
    let head = Ask::new(gateway.address(), "HEAD", "/api/health").send().await;
    assert!(head.body.is_empty());
    let answer = Ask::new(gateway.address(), "GET", "/api/health").send().await;
    assert_eq!(head.status, answer.status);
    (answer.status, answer)
}

fn someone() -> Identity {
    Identity { connection_id: "a".repeat(32), reconnection_token: "x".to_owned() }
}

async fn recovery(gateway: &Gateway, hub: &str) -> u16 {
    gateway.connector().hub(hub).recover(&someone()).offer(RELIABLE).status().await
}

#[tokio::test]
async fn it_is_not_ready_while_a_kept_hub_is_still_being_folded() {
    let (gateway, let_it) = kept(true).await;
    // Whoever is served shows that the listener is.
    gateway.reliable("a").await.done(join("g", 1)).await;
    let (status, answer) = health(&gateway).await;
    assert_eq!(status, 503);
    assert_eq!(answer.json()["status"], "starting");
    assert!(gateway.readiness().reached().now_or_never().is_none());
    assert_eq!(recovery(&gateway, SLOW).await, 503, "it cannot be decided now");
    let newcomer = gateway.connector().hub(SLOW).token(&Token::user("n")).offer(RELIABLE);
    assert_eq!(newcomer.status().await, 503);
    let_it.send_replace(true);
    soon(gateway.readiness().reached()).await;
    assert_eq!(health(&gateway).await.0, 200);
    assert_eq!(recovery(&gateway, SLOW).await, 101, "it can: with 1008");
}

#[tokio::test]
async fn a_damaged_hub_does_not_stop_the_start_and_makes_health_503() {
    let (gateway, let_it) = kept(false).await;
    let_it.send_replace(true);
    soon(gateway.readiness().reached()).await;
    let (status, answer) = health(&gateway).await;
    let named = json!({"status": "damaged", "damagedHubs": [DAMAGED], "damagedHubCount": 1});
    assert_eq!((status, answer.json()), (503, named));
    assert_eq!(recovery(&gateway, DAMAGED).await, 503, "its sessions are not lost yet");
    let newcomer = gateway.connector().hub(DAMAGED).token(&Token::user("n")).offer(RELIABLE);
    assert_eq!(newcomer.status().await, 503);
    gateway.reliable("a").await.done(join("g", 1)).await;
    let metrics = Ask::new(gateway.address(), "GET", "/metrics").send().await;
    let metrics = String::from_utf8(metrics.body).unwrap();
    assert!(metrics.contains("oncewire_hub_damaged{hub=\"damaged\"} 1\n"), "{metrics}");
}

#[tokio::test]
async fn a_damaged_hub_may_be_borne() {
    let (gateway, let_it) = kept(true).await;
    let_it.send_replace(true);
    soon(gateway.readiness().reached()).await;
    let (status, answer) = health(&gateway).await;
    let named = json!({"status": "ready", "damagedHubs": [DAMAGED], "damagedHubCount": 1});
    assert_eq!((status, answer.json()), (200, named));
}

/// Overwrites what a hub's segments hold.
fn damage(data: &Path, hub: &str) {
    let folder = data.join("hubs").join(hub);
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let segments: Vec<PathBuf> =
        files.filter(|path| path.file_name().is_some_and(|name| name != "meta.redb")).collect();
    assert!(!segments.is_empty());
    for segment in segments {
        let mut bytes = std::fs::read(&segment).unwrap();
        assert!(bytes.len() > 4096);
        bytes[4096..].fill(0xa5);
        std::fs::write(&segment, bytes).unwrap();
    }
}

/// The program over a directory, its greeting read.
async fn serve(data: &Path, arguments: &[&str]) -> (Child, std::net::SocketAddr) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_oncewire"))
        .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(data)
        .args(arguments)
        .env("ONCEWIRE_PRINT_CONNECTION_STRING", "true")
        .env("ONCEWIRE_ACCESS_KEY", ACCESS_KEY)
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
    (child, endpoint.split(';').next().unwrap().parse().unwrap())
}

async fn said(child: Child) -> String {
    let id = child.id().unwrap().to_string();
    assert!(std::process::Command::new("kill").args(["-s", "TERM", &id]).status().unwrap().success());
    let output = soon(child.wait_with_output()).await.unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

#[tokio::test]
async fn a_hub_that_is_damaged_on_the_disk_is_named_once_and_the_others_are_served() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let (child, address) = serve(&data, &[]).await;
    let open = async |address, hub: &str| {
        let connector = Connector::new(address).hub(hub).token(&Token::user("u")).offer(RELIABLE);
        let mut socket = connector.open().await.unwrap();
        socket.read_connected().await;
        for ack_id in 1..=20 {
            socket.done(publish("g", ack_id, &"x".repeat(1_000))).await;
        }
        socket.identity()
    };
    let lost = open(address, "lost").await;
    let kept = open(address, HUB).await;
    said(child).await;
    damage(&data, "lost");

    let (child, address) = serve(&data, &[]).await;
    let answer = Ask::new(address, "GET", "/api/health").send().await;
    assert_eq!((answer.status, &answer.json()["damagedHubs"]), (503, &json!(["lost"])));
    for _ in 0..3 {
        let recovery = Connector::new(address).hub("lost").recover(&lost).offer(RELIABLE);
        assert_eq!(recovery.status().await, 503);
    }
    let mut socket = Connector::new(address).recover(&kept).offer(RELIABLE).open().await.unwrap();
    socket.done(publish("g", 21, "on")).await;
    let log = said(child).await;
    let errors: Vec<_> = log.lines().filter(|line| line.contains("ERROR")).collect();
    assert!(errors.len() == 1 && errors[0].contains("lost"), "{log}");

    let (child, address) = serve(&data, &["--start-with-damaged-hubs"]).await;
    let answer = Ask::new(address, "GET", "/api/health").send().await;
    assert_eq!((answer.status, &answer.json()["damagedHubs"]), (200, &json!(["lost"])));
    drop(child);
}

/// From the moment that the address can be dialled on, health is answered, and 200 means that sessions can be resumed.
#[tokio::test]
async fn when_health_is_200_every_session_can_be_resumed() {
    let directory = tempfile::tempdir().unwrap();
    let data_dir = directory.path().join("data").display().to_string();
    let command = GatewayCommand {
        binary: PathBuf::from(env!("CARGO_BIN_EXE_oncewire")),
        arguments: ["--data-dir".to_owned(), data_dir].to_vec(),
    };
    let mut gateway = oncewire_soak::Gateway::start(command).await.unwrap();
    let mut sessions = Vec::new();
    for number in 0..5 {
        let hub = format!("hub{number}");
        let url = gateway.client_url(Grant { hub: &hub, user: "u", groups: &["g"] }).await.unwrap();
        let (_, target) = url.split_once(&gateway.address().to_string()).unwrap();
        let mut socket = Connector::new(gateway.address()).path(target).offer(RELIABLE).open().await.unwrap();
        socket.read_connected().await;
        for ack_id in 0..200 {
            socket.send(publish("g", ack_id, &"y".repeat(2_000))).await;
        }
        socket.settle().await;
        sessions.push((hub, socket.identity()));
    }
    for _ in 0..5 {
        gateway.kill().await.unwrap();
        let restarting = gateway.restart();
        restarting.await.unwrap();
        // It is ready: no answer is 503 any more.
        let health = Ask::new(gateway.address(), "HEAD", "/api/health").send().await;
        assert_eq!(health.status, 200);
        for (hub, identity) in &sessions {
            let recovery = Connector::new(gateway.address()).hub(hub).recover(identity).offer(RELIABLE);
            recovery.open().await.unwrap_or_else(|refused| panic!("{hub}: {refused:?}")).cut();
        }
    }
}
