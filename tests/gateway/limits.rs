//! Limits, each tested at the limit.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;

use crate::support::*;

/// A publish whose text frame has exactly so many bytes.
fn publish_of(frame_bytes: usize) -> String {
    let empty = publish("g", 1, "").to_string();
    publish("g", 1, &"x".repeat(frame_bytes - empty.len())).to_string()
}

#[tokio::test]
async fn s22_1_17_a_message_of_1_mib_is_accepted_and_one_byte_more_closes_with_1009() {
    let gateway = Gateway::start().await;
    let mut subscriber = gateway.session(RELIABLE, &Token::bare().group("g")).await;
    let mut socket = gateway.reliable("p").await;
    let identity = socket.identity();
    socket.send_text(&publish_of(1024 * 1024)).await;
    socket.expect(success(1)).await;
    assert_eq!(subscriber.read().await["sequenceId"], 1);
    socket.send_text(&publish_of(1024 * 1024 + 1)).await;
    assert_eq!(socket.expect_close_reason(1009).await, "The client message is too large.");
    gateway.expect_unrecoverable(&identity).await;
    subscriber.expect_quiet().await;
}

#[tokio::test]
async fn the_size_of_a_message_is_the_sum_of_its_fragments() {
    let gateway = Gateway::start().await;
    let fragment = |first: u8, bytes: usize| {
        let mut frame = vec![first, 0xFF];
        frame.extend_from_slice(&(bytes as u64).to_be_bytes());
        frame.extend_from_slice(&[0; 4]);
        frame.resize(frame.len() + bytes, b' ');
        frame
    };
    let mut socket = gateway.json("p").await;
    socket.send_raw(&fragment(0x01, 1024 * 1024 - 15)).await;
    socket.send_raw(b"\x80\x8f\0\0\0\0{\"type\":\"ping\"}").await;
    socket.expect(json!({"type": "pong"})).await;
    socket.send_raw(&fragment(0x01, 1024 * 1024 - 14)).await;
    socket.send_raw(b"\x80\x8f\0\0\0\0{\"type\":\"ping\"}").await;
    socket.expect_close(1009).await;
}

#[tokio::test]
async fn a_huge_frame_is_refused_by_its_header_alone() {
    let gateway = Gateway::start().await;
    let mut socket = gateway.json("p").await;
    socket.send_raw(b"\x81\xff\x00\x00\x00\x01\x00\x00\x00\x00\0\0\0\0").await;
    socket.expect_close(1009).await;
}

#[tokio::test]
async fn s22_1_13_one_message_more_than_the_outbox_holds_ends_the_session() {
    let gateway = Gateway::with(|config| config.outbox_messages_max = 1000).await;
    let mut attached = gateway.session(RELIABLE, &Token::user("a").group("g")).await;
    let mut acknowledging = gateway.session(RELIABLE, &Token::user("b").group("g")).await;
    let detached = gateway.session(RELIABLE, &Token::user("d").group("g")).await;
    let (attached_identity, detached_identity) = (attached.identity(), detached.identity());
    detached.cut();
    let mut publisher = gateway.reliable("p").await;
    publisher.send_together((1..=1000).map(|n| publish("g", n, "x"))).await;
    for n in 1..=1000 {
        publisher.expect(success(n)).await;
    }
    assert_eq!(attached.settle().await.len(), 1000);
    let last = acknowledging.settle().await.pop().unwrap()["sequenceId"].as_u64().unwrap();
    acknowledging.send(sequence_ack(last)).await;
    acknowledging.expect_quiet().await;
    let mut recovered = gateway.recover(&detached_identity).await;
    assert_eq!(recovered.settle().await.len(), 1000);
    recovered.cut();

    publisher.done(publish("g", 1001, "one more")).await;
    // The one that was too much may come, or not: the session is over.
    assert!(attached.settle_until_close(1008).await.len() <= 1);
    assert_eq!(acknowledging.settle().await.len(), 1);
    gateway.expect_unrecoverable(&attached_identity).await;
    gateway.expect_unrecoverable(&detached_identity).await;
}

#[tokio::test]
async fn more_bytes_than_the_outbox_holds_end_the_session() {
    let gateway = Gateway::with(|config| config.outbox_bytes_max = 100_000).await;
    let detached = gateway.session(RELIABLE, &Token::user("d").group("g")).await;
    let identity = detached.identity();
    detached.cut();
    let mut publisher = gateway.reliable("p").await;
    for n in 1..=9 {
        publisher.done(publish("g", n, &"x".repeat(10_000))).await;
    }
    let mut recovered = gateway.recover(&identity).await;
    assert_eq!(recovered.settle().await.len(), 9);
    recovered.cut();
    publisher.done(publish("g", 10, &"x".repeat(10_001))).await;
    gateway.expect_unrecoverable(&identity).await;
}

#[tokio::test]
async fn the_memory_of_all_sessions_together_is_bounded() {
    let gateway = Gateway::with(|config| config.message_memory_bytes_max = 1_000_000).await;
    let detached = gateway.session(RELIABLE, &Token::user("d").group("g")).await;
    let identity = detached.identity();
    detached.cut();
    let mut publisher = gateway.reliable("p").await;
    let text = "x".repeat(100_000);
    for n in 1..=50 {
        publisher.done(publish("g", n, &text)).await;
    }
    gateway.expect_unrecoverable(&identity).await;
    let mut fresh = gateway.session(RELIABLE, &Token::bare().group("g")).await;
    publisher.done(publish("g", 51, &text)).await;
    fresh.expect(message(1, "g", "p", &text)).await;
}

#[tokio::test]
async fn large_messages_reach_a_slow_reader_whole() {
    let gateway = Gateway::start().await;
    let connector = gateway.connector().token(&Token::bare().group("g")).offer(RELIABLE);
    let mut subscriber = connector.receive_buffer_bytes(4096).open().await.unwrap();
    subscriber.read_connected().await;
    let mut publisher = gateway.reliable("p").await;
    let texts: Vec<_> = (0..12).map(|n| format!("{n:05} ").repeat(170_000)).collect();
    for (n, text) in (1..).zip(&texts) {
        publisher.done(publish("g", n, text)).await;
    }
    for text in &texts {
        let heard = subscriber.read().await;
        assert!(heard["data"] == text.as_str(), "message {} was changed", heard["sequenceId"]);
    }
}

#[tokio::test]
async fn a_slow_reader_without_recovery_is_dropped_and_the_others_are_not() {
    let gateway = Gateway::with(|config| {
        config.outbox_messages_max = 100;
        config.outbox_bytes_max = 1 << 30;
    })
    .await;
    let token = Token::user("slow").group("g");
    let slow = gateway.connector().token(&token).offer(JSON).receive_buffer_bytes(4096).open().await.unwrap();
    let mut reader = gateway.session(JSON, &Token::user("reader").group("g")).await;
    let mut publisher = gateway.reliable("p").await;
    let text = "x".repeat(100_000);
    for n in 1..=400 {
        publisher.done(publish("g", n, &text)).await;
        reader.expect(unsequenced("g", "p", &text)).await;
    }
    let mut slow = slow;
    slow.read_connected().await;
    let mut heard = 0;
    loop {
        match slow.next().await {
            Event::Message(_) => heard += 1,
            Event::Close(1008, _) | Event::Dropped => break,
            other => panic!("{other:?}"),
        }
    }
    assert!(heard < 400, "{heard}");
}

#[tokio::test]
async fn at_the_bound_of_pending_requests_reading_stops_and_then_goes_on() {
    let store = HeldStore::default();
    let gateway =
        Gateway::with_store(Arc::new(store.clone()), |config| config.pending_requests_max = 100).await;
    let mut socket = gateway.reliable("p").await;
    store.hold();
    socket.send(publish("g", 0, "x")).await;
    store.holds(1).await;
    // Whether a request is pending can be seen by what comes behind it: a ping is answered at once if it is read.
    socket.send_together((1..100).map(|n| publish("g", n, "x"))).await;
    for n in 100..2000 {
        socket.send(publish("g", n, "x")).await;
    }
    socket.send(json!({"type": "ping"})).await;
    assert!(tokio::time::timeout(Duration::from_secs(1), socket.next()).await.is_err());
    store.release();
    for n in 0..2000 {
        socket.expect_passing_over_pongs(success(n)).await;
    }
}

#[tokio::test]
async fn at_the_bound_of_pending_bytes_reading_stops_and_then_goes_on() {
    let store = HeldStore::default();
    let change = |config: &mut oncewire::config::Config| config.pending_request_bytes_max = 1_000_000;
    let gateway = Gateway::with_store(Arc::new(store.clone()), change).await;
    let mut socket = gateway.reliable("p").await;
    store.hold();
    let mut sent = 0;
    // A socket that is not read takes what the kernel's buffers hold, some megabytes at most.
    while socket
        .try_send(publish("g", sent, &"x".repeat(100_000)).to_string().into(), Duration::from_secs(2))
        .await
    {
        sent += 1;
        assert!(sent < 1000, "100 MB were taken");
    }
    store.release();
    // The one that was not taken at once is on its way, too.
    for n in 0..=sent {
        socket.expect(success(n)).await;
    }
}

#[tokio::test]
async fn at_the_bound_of_pending_replies_reading_stops_and_then_goes_on() {
    let gateway = Gateway::start().await;
    let token = Token::user("flood");
    let connector = gateway.connector().token(&token).offer(RELIABLE).receive_buffer_bytes(4096);
    let mut socket = connector.open().await.unwrap();
    socket.read_connected().await;
    let ping = json!({"type": "ping"}).to_string();
    let mut sent = 0_u64;
    while socket.try_send(ping.clone().into(), Duration::from_secs(2)).await {
        sent += 1;
        assert!(sent < 3_000_000, "a client that reads nothing was read for ever");
    }
    for _ in 0..=sent {
        socket.expect(json!({"type": "pong"})).await;
    }
    socket.expect_quiet().await;
}

#[tokio::test]
async fn a_flood_of_websocket_pings_is_bounded_too() {
    let gateway = Gateway::start().await;
    let connector =
        gateway.connector().token(&Token::user("flood")).offer(RELIABLE).receive_buffer_bytes(4096);
    let mut socket = connector.open().await.unwrap();
    socket.read_connected().await;
    const FLOOD: usize = 200_000;
    let mut sent = 0;
    let ping = Message::Ping(vec![b'x'; 125].into());
    while sent < FLOOD && socket.try_send(ping.clone(), Duration::from_secs(2)).await {
        sent += 1;
    }
    // Either reading stopped, or some pongs stood for several pings; else all 25 MB of pongs have waited somewhere, more
    // than the kernel's buffers hold.
    socket.settle().await;
    assert!(sent < FLOOD || socket.pongs() < FLOOD / 2, "{sent} pings, {} pongs", socket.pongs());
}

#[tokio::test]
async fn a_request_head_that_comes_too_slowly_is_cut() {
    let gateway = Gateway::with(|config| config.header_read_timeout_seconds = 1).await;
    let mut silent = TcpStream::connect(gateway.address()).await.unwrap();
    let mut slow = TcpStream::connect(gateway.address()).await.unwrap();
    slow.write_all(b"GET /client/hubs/chat HTTP/1.1\r\nHost: x\r\n").await.unwrap();
    for stream in [&mut silent, &mut slow] {
        let mut rest = Vec::new();
        let _ = soon(stream.read_to_end(&mut rest)).await;
        assert!(!rest.starts_with(b"HTTP/1.1 101"));
    }
}

#[tokio::test]
async fn an_upgrade_that_takes_too_long_is_503_and_the_hub_goes_on() {
    let store = HeldStore::default();
    let change = |config: &mut oncewire::config::Config| config.handshake_timeout_seconds = 1;
    let gateway = Gateway::with_store(Arc::new(store.clone()), change).await;
    let mut early = gateway.reliable("early").await;
    store.hold();
    assert_eq!(gateway.connector().token(&Token::user("late")).offer(RELIABLE).status().await, 503);
    store.release();
    early.done(join("g", 1)).await;
    gateway.reliable("late").await.done(join("g", 1)).await;
}

#[tokio::test]
async fn pending_handshakes_are_capped_and_open_sockets_do_not_count() {
    let gateway = Gateway::with(|config| {
        config.handshakes_pending_max = 2;
        config.header_read_timeout_seconds = 2;
    })
    .await;
    let mut open = Vec::new();
    for _ in 0..5 {
        open.push(gateway.reliable("a").await);
    }
    let mut pending = [
        TcpStream::connect(gateway.address()).await.unwrap(),
        TcpStream::connect(gateway.address()).await.unwrap(),
    ];
    // One of them goes.
    let _late = gateway.reliable("late").await;
    a_while().await;
    let ended = pending.each_mut().map(|stream| stream.try_read(&mut [0; 16]));
    let is_ended = |read: &std::io::Result<usize>| match read {
        Ok(_) => true,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    };
    assert!(ended.iter().any(is_ended), "{ended:?}");
    for socket in &mut open {
        socket.expect_quiet().await;
    }
}

#[tokio::test]
async fn groups_of_a_session_are_bounded() {
    let gateway = Gateway::with(|config| config.groups_per_session_max = 3).await;
    let mut socket = gateway.session(RELIABLE, &Token::user("a").group("1").group("2")).await;
    socket.done(join("3", 1)).await;
    socket.refused(join("4", 2), "BadRequest").await;
    socket.done(join("3", 3)).await;
    socket.done(leave("1", 4)).await;
    socket.done(join("4", 5)).await;
    let many = Token::user("a").group("1").group("2").group("3").group("4");
    assert_eq!(gateway.connector().token(&many).offer(RELIABLE).status().await, 400);
}

#[tokio::test]
async fn json_may_be_nested_as_deep_as_subscribers_bear() {
    let gateway = Gateway::start().await;
    let nested = |depth: usize| {
        format!(
            r#"{{"type":"sendToGroup","group":"g","ackId":{depth},"data":{}{}}}"#,
            "[".repeat(depth),
            "]".repeat(depth)
        )
    };
    let mut socket = gateway.reliable("a").await;
    socket.send_text(&nested(100)).await;
    socket.expect(success(100)).await;
    socket.send_text(&nested(400_000)).await;
    socket.expect_close(1007).await;
}
