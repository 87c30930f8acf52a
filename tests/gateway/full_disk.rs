//! A data directory on a small file system that fills up, and gets room again.

use std::path::PathBuf;
use std::process::Command;

use oncewire_soak::GatewayCommand;
use serde_json::Value;
use tempfile::TempDir;

use crate::crashes::resume;
use crate::support::*;

/// What one message of these tests carries, so that few of them fill the disk.
const PAYLOAD_BYTES: usize = 200_000;

/// A file system of 16 MiB of its own, while it lives.
struct SmallDisk(TempDir);

impl SmallDisk {
    /// None, with the reason on standard error, where this user may not mount.
    #[expect(clippy::print_stderr, reason = "a test that was skipped says so")]
    fn mount() -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=16m", "tmpfs"])
            .arg(directory.path())
            .output();
        match mounted {
            Ok(output) if output.status.success() => Some(Self(directory)),
            other => {
                eprintln!("skipped: a small file system cannot be mounted here: {other:?}");
                None
            }
        }
    }

    /// Where a file takes room that can be given back.
    fn ballast(&self) -> PathBuf {
        self.0.path().join("ballast")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

fn large(ack_id: u64) -> Value {
    publish("g", ack_id, &format!("{ack_id} {}", "x".repeat(PAYLOAD_BYTES)))
}

fn is_from(message: &Value, ack_id: u64) -> bool {
    message["data"].as_str().is_some_and(|data| data.starts_with(&format!("{ack_id} ")))
}

#[tokio::test]
async fn on_a_full_disk_publishes_are_refused_and_everything_else_goes_on() {
    let Some(disk) = SmallDisk::mount() else { return };
    std::fs::write(disk.ballast(), vec![1; 6 << 20]).unwrap();
    let data_dir = disk.0.path().join("data");
    let command = GatewayCommand::on_disk(&PathBuf::from(env!("CARGO_BIN_EXE_oncewire")), &data_dir, "sync");
    let mut gateway = oncewire_soak::Gateway::start(command).await.unwrap();
    let open = async |address, token: Token| {
        let token = token.key(oncewire_soak::ACCESS_KEY);
        let mut socket = Connector::new(address).token(&token).offer(RELIABLE).open().await.unwrap();
        socket.read_connected().await;
        socket
    };
    let address = gateway.address();
    let mut subscriber = open(address, Token::user("s").group("g")).await;
    let mut publisher = open(address, Token::user("p")).await;
    let identities = [subscriber.identity(), publisher.identity()];

    let mut sequence_id = 0;
    let mut full_at = None;
    for ack_id in 1..200 {
        let ack = publisher.ask(large(ack_id)).await;
        if ack["success"] == false {
            assert_eq!(ack["error"]["name"], "InternalServerError", "{ack}");
            full_at = Some(ack_id);
            break;
        }
        let message = subscriber.read().await;
        assert!(is_from(&message, ack_id), "message {ack_id} comes in its turn");
        sequence_id = message["sequenceId"].as_u64().unwrap();
        subscriber.send(sequence_ack(sequence_id)).await;
    }
    let full_at = full_at.expect("a disk of 16 MiB is full at some time");
    assert!(full_at > 1);

    // Again and again, and nobody gets what was refused.
    for _ in 0..3 {
        publisher.refused(large(full_at), "InternalServerError").await;
    }
    subscriber.expect_quiet_on_a_full_disk().await;
    subscriber.cut();
    let mut subscriber = resume(address, &identities[0]).await;
    subscriber.expect_quiet_on_a_full_disk().await;

    // There is room, and the same request is executed, once.
    std::fs::remove_file(disk.ballast()).unwrap();
    publisher.done(large(full_at)).await;
    publisher.refused(large(full_at), "Duplicate").await;
    let message = subscriber.read().await;
    assert!(is_from(&message, full_at) && message["sequenceId"].as_u64() > Some(sequence_id));

    // All of which is so after a crash, too.
    gateway.kill().await.unwrap();
    gateway.restart().await.unwrap();
    let mut publisher = resume(address, &identities[1]).await;
    publisher.refused(large(full_at), "Duplicate").await;
    let mut subscriber = resume(address, &identities[0]).await;
    let heard = subscriber.settle().await;
    assert!(heard.last().is_some_and(|last| is_from(last, full_at)), "{} messages", heard.len());
    let ids: Vec<_> = heard.iter().map(|message| message["sequenceId"].as_u64()).collect();
    assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
}
