//! Close codes, and which closings a session survives.

use serde_json::json;

use crate::support::*;

/// A reliable member of `g` with one unacknowledged message.
async fn scene(gateway: &Gateway) -> Socket {
    let mut subscriber = gateway.session(RELIABLE, &Token::user("s").group("g")).await;
    let mut publisher = gateway.reliable("p").await;
    publisher.done(publish("g", 1, "1")).await;
    subscriber.expect(message(1, "g", "p", "1")).await;
    subscriber
}

async fn expect_recoverable(gateway: &Gateway, identity: &Identity) {
    gateway.recover(identity).await.expect(message(1, "g", "p", "1")).await;
}

#[tokio::test]
async fn s22_1_11_a_client_that_closes_with_1000_can_not_recover() {
    let gateway = Gateway::start().await;
    let subscriber = scene(&gateway).await;
    let identity = subscriber.identity();
    assert_eq!(subscriber.close(1000).await, Event::Close(1000, String::new()));
    gateway.expect_unrecoverable(&identity).await;
}

#[tokio::test]
async fn s22_1_12_a_client_that_closes_without_a_code_can_recover() {
    let gateway = Gateway::start().await;
    let subscriber = scene(&gateway).await;
    let identity = subscriber.identity();
    assert_eq!(subscriber.close_without_code().await, Event::Close(1005, String::new()));
    expect_recoverable(&gateway, &identity).await;
}

#[tokio::test]
async fn s22_09_every_other_end_that_the_client_makes_can_be_recovered() {
    let gateway = Gateway::start().await;
    for code in [1001, 1002, 1003, 1007, 1008, 1009, 1011, 3000, 4000, 4999] {
        let subscriber = scene(&gateway).await;
        let identity = subscriber.identity();
        assert_eq!(subscriber.close(code).await, Event::Close(code, String::new()));
        expect_recoverable(&gateway, &identity).await;
    }
    let subscriber = scene(&gateway).await;
    let identity = subscriber.identity();
    subscriber.cut();
    expect_recoverable(&gateway, &identity).await;

    let mut subscriber = scene(&gateway).await;
    subscriber.half_close().await;
    let identity = subscriber.identity();
    subscriber.expect_cut().await;
    expect_recoverable(&gateway, &identity).await;
}

#[tokio::test]
async fn s22_1_15_a_binary_frame_closes_with_1003_and_ends_the_session() {
    let gateway = Gateway::start().await;
    let mut subscriber = scene(&gateway).await;
    let identity = subscriber.identity();
    subscriber.send_binary(br#"{"type":"ping"}"#).await;
    let reason = subscriber.expect_close_reason(1003).await;
    assert_eq!(reason, "The JSON subprotocol requires text messages.");
    gateway.expect_unrecoverable(&identity).await;
    let mut plain = gateway.json("j").await;
    plain.send_binary(b"").await;
    plain.expect_close(1003).await;
}

#[tokio::test]
async fn s22_1_16_an_invalid_message_closes_with_1007_and_ends_the_session() {
    let gateway = Gateway::start().await;
    for text in [
        r#"{"type":"sendToGroup","group":"g","data":1,"ttlSeconds":301}"#,
        r#"{"type":"nonsense"}"#,
        r#"{"type":"joinGroup"}"#,
        r#"{"type":"joinGroup","group":"g","ackId":"1"}"#,
    ] {
        let mut subscriber = scene(&gateway).await;
        let identity = subscriber.identity();
        subscriber.send_text(text).await;
        let reason = subscriber.expect_close_reason(1007).await;
        assert_eq!(reason, "The client message is not a valid JSON protocol message.", "{text}");
        gateway.expect_unrecoverable(&identity).await;
    }
}

#[tokio::test]
async fn s22_10_whatever_is_no_valid_message_closes_with_1007() {
    let gateway = Gateway::start().await;
    let long_group = "x".repeat(1025);
    for text in [
        "",
        " ",
        "{",
        "null",
        "[]",
        r#""ping""#,
        "{}",
        r#"{"type":null}"#,
        r#"{"type":1}"#,
        r#"{"type":"ping"} x"#,
        r#"{"type":"ack","ackId":1,"success":true}"#,
        r#"{"type":"joinGroup","group":""}"#,
        r#"{"type":"joinGroup","group":" "}"#,
        r#"{"type":"joinGroup","group":7}"#,
        r#"{"type":"joinGroup","Group":"g"}"#,
        &format!(r#"{{"type":"joinGroup","group":"{long_group}"}}"#),
        r#"{"type":"joinGroup","group":"g","ackId":-1}"#,
        r#"{"type":"joinGroup","group":"g","ackId":1.5}"#,
        r#"{"type":"joinGroup","group":"g","ackId":18446744073709551616}"#,
        r#"{"type":"sendToGroup","group":"g"}"#,
        r#"{"type":"sendToGroup","group":"g","data":null}"#,
        r#"{"type":"sendToGroup","group":"g","dataType":"text","data":1}"#,
        r#"{"type":"sendToGroup","group":"g","dataType":"binary","data":"***"}"#,
        r#"{"type":"sendToGroup","group":"g","dataType":"xml","data":"x"}"#,
        r#"{"type":"sendToGroup","group":"g","data":1,"ttlSeconds":-1}"#,
        r#"{"type":"sendToGroup","group":"g","data":1,"noEcho":"true"}"#,
        r#"{"type":"sendToGroup","group":"g","data":1,"metadata":{"a b":"x"}}"#,
        r#"{"type":"sendToGroup","group":"g","data":1,"metadata":{"k":"1","k":"2"}}"#,
        r#"{"type":"event","event":"1st","data":1}"#,
        r#"{"type":"event","data":1}"#,
        r#"{"type":"sequenceAck"}"#,
        r#"{"type":"sequenceAck","sequenceId":"1"}"#,
        r#"{"type":"invoke","target":"event","event":"e"}"#,
    ] {
        let mut socket = gateway.json("j").await;
        socket.send_text(text).await;
        match socket.next().await {
            Event::Close(1007, _) => {}
            other => panic!("{text}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn what_was_asked_before_an_invalid_message_is_done_and_what_came_after_is_not() {
    let gateway = Gateway::start().await;
    let mut other = gateway.session(RELIABLE, &Token::bare().group("g")).await;
    let mut socket = gateway.reliable("s").await;
    let identity = socket.identity();
    socket
        .send_together([publish("g", 1, "before"), json!({"type": "nonsense"}), publish("g", 2, "after")])
        .await;
    loop {
        match socket.next().await {
            Event::Message(ack) => assert_eq!(ack, success(1)),
            Event::Close(1007, _) => break,
            other => panic!("{other:?}"),
        }
    }
    gateway.expect_unrecoverable(&identity).await;
    other.expect(message(1, "g", "s", "before")).await;
    other.expect_quiet().await;
}

#[tokio::test]
async fn broken_framing_closes_with_1002_and_ends_the_session() {
    let gateway = Gateway::start().await;
    for (what, bytes) in [
        ("a frame that is not masked", &b"\x81\x02{}"[..]),
        ("a reserved bit", b"\xc1\x80\0\0\0\0"),
        ("a reserved opcode", b"\x83\x80\0\0\0\0"),
        ("a fragmented ping", b"\x09\x80\0\0\0\0"),
        ("a continuation of nothing", b"\x80\x80\0\0\0\0"),
        ("a message within a fragmented one", b"\x01\x80\0\0\0\0\x81\x80\0\0\0\0"),
    ] {
        let mut subscriber = scene(&gateway).await;
        let identity = subscriber.identity();
        subscriber.send_raw(bytes).await;
        assert!(!subscriber.expect_close_reason(1002).await.is_empty(), "{what}");
        gateway.expect_unrecoverable(&identity).await;
    }
}

#[tokio::test]
async fn a_close_frame_that_must_not_be_is_answered_with_1002_and_ends_the_session() {
    let gateway = Gateway::start().await;
    let codes: [u16; 12] = [0, 1, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2999, 5000, 65535];
    let mut frames: Vec<_> =
        codes.map(|code| [&b"\x88\x82\0\0\0\0"[..], &code.to_be_bytes()].concat()).into();
    frames.push(b"\x88\x81\0\0\0\0x".to_vec());
    for frame in frames {
        let mut subscriber = scene(&gateway).await;
        let identity = subscriber.identity();
        subscriber.send_raw(&frame).await;
        assert!(!subscriber.expect_close_reason(1002).await.is_empty(), "{frame:?}");
        gateway.expect_unrecoverable(&identity).await;
    }
}

#[tokio::test]
async fn text_that_is_not_utf8_closes_with_1007() {
    let gateway = Gateway::start().await;
    let mut subscriber = scene(&gateway).await;
    let identity = subscriber.identity();
    subscriber.send_raw(b"\x81\x82\0\0\0\0\xc3\x28").await;
    subscriber.expect_close(1007).await;
    gateway.expect_unrecoverable(&identity).await;
}

#[tokio::test]
async fn a_message_in_fragments_is_one_message_and_control_frames_may_come_between() {
    let gateway = Gateway::start().await;
    let mut socket = gateway.reliable("s").await;
    // {"type":"ping"} in three fragments with a WebSocket ping in between.
    socket.send_raw(b"\x01\x84\0\0\0\0{\"ty").await;
    socket.send_raw(b"\x89\x82\0\0\0\0hi").await;
    socket.send_raw(b"\x00\x84\0\0\0\0pe\":").await;
    socket.send_raw(b"\x80\x87\0\0\0\0\"ping\"}").await;
    socket.expect(json!({"type": "pong"})).await;
}

#[tokio::test]
async fn no_disconnected_message_is_sent_before_a_close_for_a_violation() {
    let gateway = Gateway::start().await;
    let mut socket = gateway.reliable("s").await;
    socket.send_text("nonsense").await;
    assert!(matches!(socket.next().await, Event::Close(1007, _)));
    assert_eq!(socket.next().await, Event::Dropped);
}

#[tokio::test]
async fn a_session_that_ended_is_in_no_group() {
    let gateway = Gateway::start().await;
    for subprotocol in [JSON, RELIABLE] {
        let socket = gateway.session(subprotocol, &Token::user("s").group("g")).await;
        socket.close(1000).await;
    }
    let mut publisher = gateway.reliable("p").await;
    publisher.done(publish("g", 1, "x")).await;
}

#[tokio::test]
async fn what_was_asked_just_before_a_close_is_done() {
    let gateway = Gateway::start().await;
    let mut subscriber = gateway.session(RELIABLE, &Token::bare().group("g")).await;
    for n in 1..=20 {
        let mut publisher = gateway.json("p").await;
        publisher.send(json!({"type": "sendToGroup", "group": "g", "dataType": "text", "data": "bye"})).await;
        publisher.close(1000).await;
        subscriber.expect(message(n, "g", "p", "bye")).await;
    }
}

#[tokio::test]
async fn a_client_that_does_not_answer_a_close_is_dropped() {
    let gateway = Gateway::start().await;
    let mut socket = gateway.json("j").await;
    socket.send_text("nonsense").await;
    let bytes = socket.read_to_end_unanswered().await;
    // A close frame with code 1007, and nothing behind its reason.
    assert_eq!(bytes[0], 0x88);
    assert_eq!(bytes.len(), 2 + usize::from(bytes[1]));
    assert_eq!(bytes[2..4], 1007_u16.to_be_bytes());
}

#[tokio::test]
async fn what_comes_after_a_clients_close_frame_changes_nothing() {
    let gateway = Gateway::start().await;
    let mut subscriber = scene(&gateway).await;
    let identity = subscriber.identity();
    let mut other = gateway.session(RELIABLE, &Token::bare().group("h")).await;
    let mut bytes = b"\x88\x80\0\0\0\0".to_vec();
    let publish = br#"{"type":"sendToGroup","group":"h","dataType":"text","data":"no"}"#;
    bytes.extend_from_slice(&[0x81, 0x80 | publish.len() as u8, 0, 0, 0, 0]);
    bytes.extend_from_slice(publish);
    subscriber.send_raw(&bytes).await;
    subscriber.expect_close(1005).await;
    expect_recoverable(&gateway, &identity).await;
    other.expect_quiet().await;
}
