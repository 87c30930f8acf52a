//! What messages and sessions take, beside what they may take: a gateway in a process of its own, whose memory is read.

use serde_json::json;
use tempfile::NamedTempFile;

use crate::support::*;

const MIB: usize = 1024 * 1024;
/// What the messages and sessions of the gateway may take here, in MiB.
const MEMORY_MIB: usize = 48;
/// Publishes that wait for their ack at once.
const AT_ONCE: u64 = 20;

/// A gateway with little memory for messages, and room in each outbox for more than that.
async fn served() -> (Served, NamedTempFile) {
    let settings = format!(
        "message_memory_bytes_max = {}\noutbox_messages_max = 1000000\noutbox_bytes_max = 1073741824\n",
        MEMORY_MIB * MIB
    );
    Served::with_settings(&settings).await
}

/// Publishes so many messages to members that acknowledge nothing; each of those is ended when it holds too much, and
/// another takes its place.
async fn flood(served: &Served, messages: u64, message: impl Fn(u64) -> serde_json::Value) {
    let member = || async {
        let connector = Connector::new(served.address).token(&Token::user("m").group("g")).offer(RELIABLE);
        connector.open().await.unwrap()
    };
    let mut members = Vec::new();
    let mut publisher = served.reliable("p").await.unwrap();
    for first in (1..=messages).step_by(AT_ONCE as usize) {
        if (first / AT_ONCE).is_multiple_of(10) {
            members.push(member().await);
        }
        for ack_id in first..first + AT_ONCE {
            publisher.send(message(ack_id)).await;
        }
        for ack_id in first..first + AT_ONCE {
            publisher.expect(success(ack_id)).await;
        }
    }
}

/// What the gateway may have held at most: twice what it may keep, and 100 MiB.
fn expect_bounded(served: &Served) {
    let (held, bound) = (served.resident_mib_max(), 2 * MEMORY_MIB + 100);
    assert!(held <= bound, "{held} MiB where {bound} are allowed");
}

#[tokio::test]
async fn metadata_of_four_thousand_keys_took_300_kib_and_counted_as_8() {
    let (served, _file) = served().await;
    let keys = (0..2_700_u32).map(|n| (format!("{n:03x}"), json!("")));
    let metadata = serde_json::Value::Object(keys.collect());
    let with_metadata = |ack_id| {
        json!({
            "type": "sendToGroup", "group": "g", "dataType": "text", "data": "", "ackId": ack_id,
            "metadata": metadata
        })
    };
    flood(&served, 2_400, with_metadata).await;
    expect_bounded(&served);
}

#[tokio::test]
async fn long_names_counted_for_nothing() {
    let (served, _file) = served().await;
    let group = "g".repeat(1_000);
    let user = "u".repeat(3_000);
    let token = Token::user(&user).group(&group);
    let mut members = Vec::new();
    for _ in 0..3 {
        let connector = Connector::new(served.address).token(&token).offer(RELIABLE);
        members.push(connector.open().await.unwrap());
    }
    let connector = Connector::new(served.address).token(&token).offer(RELIABLE);
    let mut publisher = connector.open().await.unwrap();
    publisher.read_connected().await;
    publisher.done(json!({"type": "leaveGroup", "group": group, "ackId": 1_000_000})).await;
    for first in (1..=40_000).step_by(100) {
        for ack_id in first..first + 100 {
            publisher.send(publish(&group, ack_id, "")).await;
        }
        for ack_id in first..first + 100 {
            publisher.expect(success(ack_id)).await;
        }
    }
    expect_bounded(&served);
}

/// The first 900,000 bytes of a text message of 1,000,000, in one frame.
fn half_message() -> Vec<u8> {
    let mut bytes = vec![0x81, 0xFF];
    bytes.extend(1_000_000_u64.to_be_bytes());
    bytes.extend([0; 4]);
    bytes.resize(bytes.len() + 900_000, b' ');
    bytes
}

#[tokio::test]
async fn half_messages_of_many_sockets_filled_the_memory_while_pings_were_answered() {
    let (served, _file) = served().await;
    let member = Connector::new(served.address).token(&Token::user("m").group("g")).offer(RELIABLE);
    let mut member = member.open().await.unwrap();
    let mut publisher = served.reliable("p").await.unwrap();
    let half = half_message();
    let mut half_sent = Vec::new();
    for _ in 0..250 {
        let mut socket = served.reliable("flood").await.unwrap();
        let identity = socket.identity();
        socket.send_raw(&half).await;
        half_sent.push((socket, identity));
        if half_sent.len().is_multiple_of(10) {
            let ack_id = half_sent.len() as u64;
            publisher.send(publish("g", ack_id, "still served")).await;
            publisher.expect(success(ack_id)).await;
        }
    }
    expect_bounded(&served);
    member.read_connected().await;
    for _ in 0..25 {
        assert!(member.read_text().await.contains("still served"));
    }
    // Whoever was closed has its session still.
    let (mut closed, identity) = half_sent.swap_remove(0);
    let reason = closed.expect_close_reason(1013).await;
    assert_eq!(reason, "The gateway has no room for the message now. Send it again.");
    let recovering = Connector::new(served.address).hub(HUB).recover(&identity).offer(RELIABLE);
    let mut recovered = recovering.open().await.unwrap();
    recovered.done(json!({"type": "joinGroup", "group": "h", "ackId": 1})).await;
}

#[tokio::test]
async fn bodies_of_many_requests_in_part_are_bounded_and_the_whole_ones_are_answered() {
    let (served, _file) = served().await;
    let path = format!("/api/hubs/{HUB}/groups/nobody/:send");
    let bearer = format!("Bearer {}", Token::bare().sign(&format!("http://{}{path}", served.address)));
    let send = |body_bytes: usize| {
        let send = Ask::new(served.address, "POST", &format!("{path}?api-version=2024-12-01"));
        let send = send.header("authorization", &bearer).header("content-type", "text/plain");
        send.body("x".repeat(body_bytes))
    };
    let mut publisher = served.reliable("p").await.unwrap();
    let (mut in_part, mut refused) = (Vec::new(), 0);
    for ack_id in 1..=250 {
        let mut begun = send(1_000_000).begin(900_000).await;
        match begun.early_answer().await {
            None => in_part.push(begun),
            Some(answer) => {
                assert_eq!((answer.status, answer.header("retry-after")), (503, "1"));
                refused += 1;
            }
        }
        publisher.send(publish("g", ack_id, "still served")).await;
        publisher.expect(success(ack_id)).await;
        assert_eq!(send(10).send().await.status, 202);
    }
    expect_bounded(&served);
    assert!(refused > 100, "{refused} are refused");
    // There is room again once the others have gone.
    let first = in_part.swap_remove(0);
    drop(in_part);
    while send(1_000_000).send().await.status != 202 {
        a_while().await;
    }
    assert_eq!(first.end().await.status, 202);
}
