//! The program killed with SIGKILL and started again over its data directory: what continues, and what does not.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use oncewire_soak::GatewayCommand;
use serde_json::json;
use tempfile::TempDir;

use crate::support::*;

/// A gateway on a data directory of its own.
pub struct Crashing {
    /// Its process.
    pub gateway: oncewire_soak::Gateway,
    directory: TempDir,
}

impl Crashing {
    /// With the settings of a fresh installation.
    pub async fn start() -> Self {
        Self::with(&[]).await
    }

    /// With more arguments.
    pub async fn with(arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let command = GatewayCommand {
            binary: PathBuf::from(env!("CARGO_BIN_EXE_oncewire")),
            arguments: on_disk(&directory, arguments),
        };
        Self { gateway: oncewire_soak::Gateway::start(command).await.unwrap(), directory }
    }

    /// Kills it and starts it again.
    pub async fn crash(&mut self) {
        self.gateway.kill().await.unwrap();
        self.gateway.restart().await.unwrap();
    }

    /// The same with other arguments.
    async fn crash_into(&mut self, arguments: &[&str]) {
        self.gateway.kill().await.unwrap();
        self.gateway.set_arguments(on_disk(&self.directory, arguments));
        self.gateway.restart().await.unwrap();
    }

    async fn reliable(&self, token: Token) -> Socket {
        let token = token.key(oncewire_soak::ACCESS_KEY);
        let connector = Connector::new(self.gateway.address()).token(&token).offer(RELIABLE);
        let mut socket = connector.open().await.unwrap();
        socket.read_connected().await;
        socket
    }

    /// A member of `g` and a publisher.
    pub async fn pair(&self) -> (Socket, Socket) {
        (self.reliable(Token::user("s").group("g")).await, self.reliable(Token::user("p")).await)
    }

    /// A socket that recovers a session, as soon as the gateway can tell whether it may.
    pub async fn resume(&self, identity: &Identity) -> Socket {
        resume(self.gateway.address(), identity).await
    }

    async fn expect_unrecoverable(&self, identity: &Identity) {
        self.resume(identity).await.expect_close(1008).await;
    }
}

/// What an application asks of a gateway that may have been started again.
fn call(crashing: &Crashing, method: &'static str, path: &str) -> Ask {
    let target = format!("/api/hubs/{HUB}/{path}");
    let address = crashing.gateway.address();
    let token = Token::bare().key(oncewire_soak::ACCESS_KEY).sign(&format!("http://{address}{target}"));
    let ask = Ask::new(address, method, &target).header("authorization", &format!("Bearer {token}"));
    ask.header("content-length", "0").header("content-type", "text/plain")
}

/// Tries until the answer is another than 503, as clients do while a hub is starting.
pub async fn resume(address: SocketAddr, identity: &Identity) -> Socket {
    soon(async {
        loop {
            match Connector::new(address).recover(identity).offer(RELIABLE).open().await {
                Ok(socket) => return socket,
                Err(Refused(503)) => tokio::time::sleep(Duration::from_millis(10)).await,
                Err(refused) => panic!("{refused:?}"),
            }
        }
    })
    .await
}

fn on_disk(directory: &TempDir, more: &[&str]) -> Vec<String> {
    let data_dir = directory.path().join("data").display().to_string();
    let arguments = ["--data-dir".to_owned(), data_dir];
    arguments.into_iter().chain(more.iter().map(|argument| (*argument).to_owned())).collect()
}

#[tokio::test]
async fn producer_crash_before_send() {
    let mut crashing = Crashing::start().await;
    let (subscriber, mut publisher) = crashing.pair().await;
    let (to_subscriber, to_publisher) = (subscriber.identity(), publisher.identity());
    // The head of a frame, and then nothing more.
    publisher.send_raw(&[0x81, 0xfe, 0x00]).await;
    crashing.crash().await;
    let mut publisher = crashing.resume(&to_publisher).await;
    publisher.done(publish("g", 1, "kept by the producer")).await;
    let mut subscriber = crashing.resume(&to_subscriber).await;
    subscriber.expect(message(1, "g", "p", "kept by the producer")).await;
    subscriber.expect_quiet().await;
}

#[tokio::test]
async fn consumer_crash_before_processing() {
    let mut crashing = Crashing::start().await;
    let (mut subscriber, mut publisher) = crashing.pair().await;
    publisher.done(publish("g", 1, "one")).await;
    publisher.done(publish("g", 2, "two")).await;
    subscriber.expect(message(1, "g", "p", "one")).await;
    let identity = subscriber.identity();
    subscriber.cut();
    crashing.crash().await;
    let mut subscriber = crashing.resume(&identity).await;
    subscriber.expect(message(1, "g", "p", "one")).await;
    subscriber.expect(message(2, "g", "p", "two")).await;
    subscriber.expect_quiet().await;
}

#[tokio::test]
async fn network_drop_between_transmission_and_ack() {
    let mut crashing = Crashing::start().await;
    let (mut subscriber, mut publisher) = crashing.pair().await;
    publisher.send(publish("g", 7, "once")).await;
    subscriber.expect(message(1, "g", "p", "once")).await;
    let (to_subscriber, to_publisher) = (subscriber.identity(), publisher.identity());
    // The ack is never read.
    publisher.cut();
    crashing.crash().await;
    let mut publisher = crashing.resume(&to_publisher).await;
    publisher.refused(publish("g", 7, "once"), "Duplicate").await;
    publisher.refused(publish("g", 7, "something else"), "PayloadMismatch").await;
    publisher.done(publish("g", 8, "next")).await;
    let mut subscriber = crashing.resume(&to_subscriber).await;
    subscriber.expect(message(1, "g", "p", "once")).await;
    subscriber.expect(message(2, "g", "p", "next")).await;
    subscriber.expect_quiet().await;
}

#[tokio::test]
async fn slow_consumer() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("oncewire.toml");
    std::fs::write(&file, "outbox_messages_max = 50\n").unwrap();
    let mut crashing = Crashing::with(&["--config", file.to_str().unwrap()]).await;
    let (slow, mut publisher) = crashing.pair().await;
    let mut reading = crashing.reliable(Token::user("r").group("g")).await;
    for n in 1..=40 {
        publisher.done(publish("g", n, "x")).await;
        reading.expect(message(n, "g", "p", "x")).await;
    }
    reading.send(sequence_ack(40)).await;
    reading.expect_quiet().await;
    // What the slow one has not acknowledged survives, and counts on: against twice the bound, since it may have
    // acknowledged before what the restart has brought back.
    let identities = [slow.identity(), publisher.identity(), reading.identity()];
    crashing.crash().await;
    let mut reading = crashing.resume(&identities[2]).await;
    // A crash may have forgotten that it was acknowledged.
    reading.send(sequence_ack(40)).await;
    reading.settle().await;
    let mut publisher = crashing.resume(&identities[1]).await;
    for n in 41..=100 {
        publisher.done(publish("g", n, "x")).await;
        reading.expect(message(n, "g", "p", "x")).await;
        reading.send(sequence_ack(n)).await;
    }
    let mut slow = crashing.resume(&identities[0]).await;
    assert_eq!(slow.settle().await.len(), 100);
    slow.cut();
    publisher.done(publish("g", 101, "x")).await;
    crashing.expect_unrecoverable(&identities[0]).await;
    // That it has ended is remembered, too.
    crashing.crash().await;
    crashing.expect_unrecoverable(&identities[0]).await;
}

#[tokio::test]
async fn after_a_sequence_ack_that_a_crash_forgot_the_same_ids_come_again() {
    let mut crashing = Crashing::start().await;
    let (mut subscriber, mut publisher) = crashing.pair().await;
    for n in 1..=5 {
        publisher.done(publish("g", n, &n.to_string())).await;
        subscriber.expect(message(n, "g", "p", &n.to_string())).await;
    }
    subscriber.send(sequence_ack(3)).await;
    subscriber.expect_quiet().await;
    let identity = subscriber.identity();
    crashing.crash().await;
    let mut subscriber = crashing.resume(&identity).await;
    let heard = subscriber.settle().await;
    let all: Vec<_> = (1..=5).map(|n| message(n, "g", "p", &n.to_string())).collect();
    assert!(all.ends_with(&heard) && heard.len() >= 2, "{heard:?}");
}

#[tokio::test]
async fn groups_joined_and_left_are_as_they_were() {
    let mut crashing = Crashing::start().await;
    let (mut subscriber, publisher) = crashing.pair().await;
    subscriber.done(join("h", 1)).await;
    subscriber.done(leave("g", 2)).await;
    let identity = subscriber.identity();
    for _ in 0..3 {
        crashing.crash().await;
    }
    let mut publisher = crashing.resume(&publisher.identity()).await;
    publisher.done(publish("g", 1, "nobody is here")).await;
    publisher.done(publish("h", 2, "here it is")).await;
    let mut subscriber = crashing.resume(&identity).await;
    subscriber.expect(message(1, "h", "p", "here it is")).await;
    subscriber.expect_quiet().await;
}

#[tokio::test]
async fn a_message_expires_also_while_the_gateway_is_down() {
    let mut crashing = Crashing::start().await;
    let (subscriber, mut publisher) = crashing.pair().await;
    let identity = subscriber.identity();
    subscriber.cut();
    let mut short_lived = publish("g", 1, "short");
    short_lived["ttlSeconds"] = json!(1);
    publisher.done(short_lived).await;
    publisher.done(publish("g", 2, "long")).await;
    crashing.gateway.kill().await.unwrap();
    tokio::time::sleep(Duration::from_millis(1100)).await;
    crashing.gateway.restart().await.unwrap();
    let mut subscriber = crashing.resume(&identity).await;
    subscriber.expect(message(2, "g", "p", "long")).await;
    subscriber.expect_quiet().await;
}

#[tokio::test]
async fn sessions_that_are_not_reliable_end_with_the_process() {
    let mut crashing = Crashing::start().await;
    let token = Token::user("j").group("g").key(oncewire_soak::ACCESS_KEY);
    let connector = Connector::new(crashing.gateway.address()).token(&token).offer(JSON);
    let mut plain = connector.open().await.unwrap();
    plain.read_connected().await;
    let identity = plain.identity();
    crashing.crash().await;
    crashing.expect_unrecoverable(&identity).await;
}

#[tokio::test]
async fn rotating_the_access_keys_cuts_no_session_off() {
    let mut crashing = Crashing::start().await;
    let (subscriber, _publisher) = crashing.pair().await;
    crashing.crash_into(&["--access-key", "quite another key, which is long enough as well"]).await;
    let mut subscriber = crashing.resume(&subscriber.identity()).await;
    subscriber.expect_quiet().await;
}

#[tokio::test]
async fn over_a_wiped_directory_or_in_memory_old_tokens_are_refused_at_once() {
    let mut crashing = Crashing::start().await;
    let (subscriber, _publisher) = crashing.pair().await;
    crashing.crash_into(&["--store", "memory"]).await;
    crashing.expect_unrecoverable(&subscriber.identity()).await;
    crashing.gateway.kill().await.unwrap();
    std::fs::remove_dir_all(crashing.directory.path().join("data")).unwrap();
    crashing.gateway.set_arguments(on_disk(&crashing.directory, &[]));
    crashing.gateway.restart().await.unwrap();
    crashing.expect_unrecoverable(&subscriber.identity()).await;
    // Also once the hub is there again.
    let _other = crashing.pair().await;
    crashing.expect_unrecoverable(&subscriber.identity()).await;
}

#[tokio::test]
async fn after_a_new_epoch_old_tokens_are_refused_at_once() {
    let mut crashing = Crashing::start().await;
    let (subscriber, _publisher) = crashing.pair().await;
    crashing.gateway.kill().await.unwrap();
    let begun = tokio::process::Command::new(env!("CARGO_BIN_EXE_oncewire"))
        .args(["log", "new-epoch", "--data-dir"])
        .arg(crashing.directory.path().join("data"))
        .output();
    assert!(begun.await.unwrap().status.success());
    crashing.gateway.restart().await.unwrap();
    crashing.expect_unrecoverable(&subscriber.identity()).await;
}

#[tokio::test]
async fn a_graceful_stop_keeps_sessions_as_a_crash_does() {
    let mut crashing = Crashing::with(&["--durability", "os"]).await;
    let (subscriber, mut publisher) = crashing.pair().await;
    let identity = subscriber.identity();
    subscriber.cut();
    publisher.done(publish("g", 1, "kept")).await;
    crashing.gateway.stop().await.unwrap();
    crashing.gateway.restart().await.unwrap();
    let mut subscriber = crashing.resume(&identity).await;
    subscriber.expect(message(1, "g", "p", "kept")).await;
}

#[tokio::test]
async fn repeatable_requests_have_their_first_answers_after_kills() {
    let mut crashing = Crashing::start().await;
    let (mut subscriber, _publisher) = crashing.pair().await;
    let first_sent = httpdate::fmt_http_date(std::time::SystemTime::now());
    let asks = [
        ("POST", "groups/g/:send", "m", 202),
        ("PUT", "users/s/groups/h", "", 200),
        ("DELETE", "users/p/groups/g", "", 204),
        ("PUT", "users/late/groups/h", "", 404),
    ];
    for round in 0..3 {
        for (n, (method, path, body, status)) in asks.into_iter().enumerate() {
            let ask = call(&crashing, method, path).body(body);
            let ask = ask.header("repeatability-request-id", &n.to_string());
            let ask = ask.header("repeatability-first-sent", &first_sent);
            let answer = soon(async {
                loop {
                    let answer = ask.send().await;
                    if answer.status != 503 {
                        return answer;
                    }
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            })
            .await;
            assert_eq!(
                (answer.status, answer.header("repeatability-result")),
                (status, "accepted"),
                "{round} {path}"
            );
        }
        if round == 0 {
            assert_eq!(call(&crashing, "DELETE", "users/s/groups/h").send().await.status, 204);
            let _late = crashing.reliable(Token::user("late")).await;
        }
        let members = call(&crashing, "HEAD", "groups/h").send().await;
        assert_eq!(members.status, 404, "nobody was put into the group again");
        crashing.crash().await;
    }
    assert_eq!(subscriber.read().await["data"], "m");
    let mut subscriber = crashing.resume(&subscriber.identity()).await;
    let read = subscriber.settle().await;
    assert!(read.iter().all(|message| message["sequenceId"] == 1), "{read:?}");
}
