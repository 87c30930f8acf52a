//! Wall clocks that jump, under the program itself: with libfaketime, which leaves the monotonic clock alone. Where that is
//! not installed, these tests say so and are passed over.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use oncewire_soak::GatewayCommand;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::crashes::resume;
use crate::support::*;

/// Longer than the time-to-live of messages that are to be over.
const PAST_TTL: Duration = Duration::from_millis(1_500);

fn library() -> Option<PathBuf> {
    let directories = fs::read_dir("/usr/lib").ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    directories.map(|directory| directory.join("faketime/libfaketime.so.1")).find(|path| path.exists())
}

/// A gateway whose wall clock is off by as much as a file says.
struct Jumping {
    gateway: oncewire_soak::Gateway,
    directory: TempDir,
}

impl Jumping {
    /// None where there is no libfaketime.
    #[expect(clippy::print_stdout, reason = "who runs the tests is told what was not tested")]
    async fn start(offset: &str, config: &str) -> Option<Self> {
        let Some(library) = library() else {
            println!("skipped: there is no libfaketime");
            return None;
        };
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let binary = path("oncewire");
        let script = format!(
            "#!/bin/sh\nexport LD_PRELOAD={} FAKETIME_TIMESTAMP_FILE={} FAKETIME_NO_CACHE=1 \
             FAKETIME_DONT_FAKE_MONOTONIC=1 NO_FAKE_STAT=1\nexec {} \"$@\" 2>> {}\n",
            library.display(),
            path("clock").display(),
            env!("CARGO_BIN_EXE_oncewire"),
            path("log").display()
        );
        fs::write(&binary, script).unwrap();
        fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(path("config"), config).unwrap();
        set_clock(directory.path(), offset);
        let data_dir = path("data").display().to_string();
        let config = path("config").display().to_string();
        let arguments = ["--data-dir".to_owned(), data_dir, "--config".to_owned(), config].to_vec();
        let gateway = oncewire_soak::Gateway::start(GatewayCommand { binary, arguments }).await.unwrap();
        Some(Self { gateway, directory })
    }

    fn set_clock(&self, offset: &str) {
        set_clock(self.directory.path(), offset);
    }

    async fn crash(&mut self) {
        self.gateway.kill().await.unwrap();
        self.gateway.restart().await.unwrap();
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap()
    }

    async fn reliable(&self, token: Token) -> Socket {
        let token = token.key(oncewire_soak::ACCESS_KEY).claim("exp", json!(now_unix_seconds() + 1_000_000));
        let connector = Connector::new(self.gateway.address()).token(&token).offer(RELIABLE);
        let mut socket = connector.open().await.unwrap();
        socket.read_connected().await;
        socket
    }

    async fn resume(&self, identity: &Identity) -> Socket {
        resume(self.gateway.address(), identity).await
    }
}

fn set_clock(directory: &Path, offset: &str) {
    let aside = directory.join("clock.new");
    fs::write(&aside, format!("{offset}\n")).unwrap();
    fs::rename(aside, directory.join("clock")).unwrap();
}

fn short(ack_id: u64, text: &str, ttl_seconds: u64) -> Value {
    let mut message = publish("g", ack_id, text);
    message["ttlSeconds"] = json!(ttl_seconds);
    message
}

#[tokio::test]
async fn a_wall_clock_that_jumps_under_a_running_gateway_moves_neither_retention_nor_ttl() {
    let Some(jumping) = Jumping::start("+0", "").await else { return };
    let subscriber = jumping.reliable(Token::user("s").group("g")).await;
    let mut publisher = jumping.reliable(Token::user("p")).await;
    let identity = subscriber.identity();
    subscriber.cut();
    publisher.done(short(1, "for five minutes", 300)).await;
    jumping.set_clock("+3h");
    for ack_id in 2..5 {
        publisher.done(publish("g", ack_id, "after the jump")).await;
    }
    // Neither the session nor the message is over.
    let mut subscriber = jumping.resume(&identity).await;
    subscriber.expect(message(1, "g", "p", "for five minutes")).await;
    for sequence_id in 2..5 {
        subscriber.expect(message(sequence_id, "g", "p", "after the jump")).await;
    }
    subscriber.send(sequence_ack(4)).await;
    subscriber.settle().await;
    subscriber.cut();
    publisher.done(short(5, "for a second", 1)).await;
    jumping.set_clock("-3h");
    tokio::time::sleep(PAST_TTL).await;
    publisher.done(publish("g", 6, "for ever")).await;
    let mut subscriber = jumping.resume(&identity).await;
    subscriber.expect(message(6, "g", "p", "for ever")).await;
}

#[tokio::test]
async fn a_wall_clock_that_was_ahead_at_a_start_stops_no_time_after_the_next_one() {
    let config = "session_retention_seconds = 2";
    let Some(mut jumping) = Jumping::start("+3h", config).await else { return };
    let mut publisher = jumping.reliable(Token::user("p").group("g")).await;
    let identity = publisher.identity();
    publisher.send(publish("g", 1, "from the future")).await;
    publisher.expect(message(1, "g", "p", "from the future")).await;
    publisher.expect(success(1)).await;
    jumping.set_clock("+0");
    jumping.crash().await;
    let warnings = |log: String| log.lines().filter(|line| line.contains("is behind")).count();
    assert_eq!(warnings(jumping.log()), 1, "{}", jumping.log());
    // With the clock of the wall, it would be kept for three hours.
    soon(async {
        loop {
            tokio::time::sleep(Duration::from_secs(3)).await;
            let mut socket = jumping.resume(&identity).await;
            match socket.next().await {
                Event::Close(1008, _) => break,
                Event::Message(_) => socket.cut(),
                other => panic!("{other:?}"),
            }
        }
    })
    .await;
    // Tokens go by the clock of the wall: this one is made by it.
    let subscriber = jumping.reliable(Token::user("s").group("g")).await;
    let mut publisher = jumping.reliable(Token::user("p")).await;
    drop(subscriber);
    publisher.done(publish("g", 1, "now")).await;
    jumping.crash().await;
    assert_eq!(warnings(jumping.log()), 2, "one for each start: {}", jumping.log());
}

#[tokio::test]
async fn a_message_does_not_outlive_its_time_because_the_clock_was_ahead_when_it_was_sent() {
    let Some(mut jumping) = Jumping::start("+3h", "").await else { return };
    let subscriber = jumping.reliable(Token::user("s").group("g")).await;
    let mut publisher = jumping.reliable(Token::user("p")).await;
    let (to_subscriber, to_publisher) = (subscriber.identity(), publisher.identity());
    subscriber.cut();
    publisher.done(short(1, "for a second", 1)).await;
    publisher.done(publish("g", 2, "for ever")).await;
    jumping.set_clock("+0");
    jumping.crash().await;
    tokio::time::sleep(PAST_TTL).await;
    let mut subscriber = jumping.resume(&to_subscriber).await;
    subscriber.expect(message(2, "g", "p", "for ever")).await;
    let mut publisher = jumping.resume(&to_publisher).await;
    publisher.done(publish("g", 3, "on")).await;
    subscriber.expect(message(3, "g", "p", "on")).await;
}
