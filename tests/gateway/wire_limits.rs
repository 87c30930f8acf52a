//! The limits of the wire, each on both sides of it, over sockets of both encodings. What is at a limit is done; what is
//! one above it ends the session with its close code.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::protobuf::{embedded, field, integer};
use crate::support::*;

const GROUP_NAME_UTF16_MAX: usize = 1024;
const EVENT_NAME_CHARS_MAX: usize = 128;
const METADATA_KEY_BYTES_MAX: usize = 256;
const METADATA_VALUE_BYTES_MAX: usize = 1024;
const METADATA_BYTES_MAX: usize = 8192;
const TTL_SECONDS_MAX: u64 = 300;
const OPERATION_ID_BYTES_MAX: usize = 1024;
const JSON_DEPTH_MAX: usize = 128;
const REQUEST_HEAD_BYTES_MAX: usize = 64 * 1024;

/// Metadata that takes exactly so many bytes, keys and values together.
fn metadata_of(bytes: usize) -> Vec<(String, String)> {
    let entry = |n: usize, value_bytes: usize| (format!("key-{n:04}"), "v".repeat(value_bytes));
    let whole = 8 + METADATA_VALUE_BYTES_MAX;
    let mut entries: Vec<_> = (0..bytes / whole).map(|n| entry(n, METADATA_VALUE_BYTES_MAX)).collect();
    let rest = bytes % whole;
    assert!(rest == 0 || rest >= 8, "{rest} bytes are less than a key");
    entries.extend((rest > 0).then(|| entry(9999, rest - 8)));
    entries
}

/// Names of one UTF-16 unit more than allowed, and just allowed, in letters of one unit and of two.
fn group_names() -> [(String, String); 2] {
    let half = "\u{1F600}".repeat(GROUP_NAME_UTF16_MAX / 2);
    let full = "é".repeat(GROUP_NAME_UTF16_MAX);
    [(full.clone(), full + "é"), (half.clone(), half + "x")]
}

/// A JSON object that is sent, and what may be answered: an ack, or an answer of this type.
async fn json_is_taken(gateway: &Gateway, message: Value, answer: &str) {
    let mut socket = gateway.reliable("a").await;
    socket.send(message.clone()).await;
    let heard = socket.read().await;
    assert_eq!(heard["type"], answer, "{message}");
    socket.done(leave("g", 77)).await;
}

async fn json_is_refused(gateway: &Gateway, message: Value) {
    let mut socket = gateway.reliable("a").await;
    let identity = socket.identity();
    socket.send(message.clone()).await;
    assert_eq!(
        socket.expect_close_reason(1007).await,
        "The client message is not a valid JSON protocol message.",
        "{message}"
    );
    gateway.expect_unrecoverable(&identity).await;
}

/// Netty, and so the client of the Java SDK, closes at a frame of more than 65,536 bytes.
#[tokio::test]
async fn a_message_of_66_000_characters_made_the_java_client_recover_without_end() {
    let gateway = Gateway::start().await;
    let mut publisher = gateway.reliable("p").await;
    for (first_ack_id, subprotocol) in [(1, RELIABLE), (101, JSON)] {
        let connector = gateway.connector().token(&Token::bare().group("g")).offer(subprotocol);
        let mut like_netty = connector.frame_bytes_max(65_536).open().await.unwrap();
        like_netty.read_connected().await;
        for (n, characters) in (1..).zip([65_400, 65_536, 66_000, 300_000, 1_000_000]) {
            let text = "x".repeat(characters);
            publisher.done(publish("g", first_ack_id + n, &text)).await;
            let expected = match subprotocol {
                RELIABLE => message(n, "g", "p", &text),
                _ => unsequenced("g", "p", &text),
            };
            like_netty.expect(expected).await;
        }
        like_netty.close(1000).await;
    }
}

#[tokio::test]
async fn json_messages_at_each_limit_are_done_and_one_above_closes_with_1007() {
    let gateway = Gateway::start().await;
    for (longest, longer) in group_names() {
        json_is_taken(&gateway, join(&longest, 1), "ack").await;
        json_is_refused(&gateway, join(&longer, 1)).await;
        json_is_taken(&gateway, publish(&longest, 1, "x"), "ack").await;
        json_is_refused(&gateway, publish(&longer, 1, "x")).await;
    }
    let event = |name: usize| json!({"type": "event", "event": "e".repeat(name), "ackId": 1, "data": 1});
    json_is_taken(&gateway, event(EVENT_NAME_CHARS_MAX), "ack").await;
    json_is_refused(&gateway, event(EVENT_NAME_CHARS_MAX + 1)).await;

    let with_ttl = |seconds: u64| {
        let mut message = publish("g", 1, "x");
        message["ttlSeconds"] = seconds.into();
        message
    };
    json_is_taken(&gateway, with_ttl(TTL_SECONDS_MAX), "ack").await;
    json_is_refused(&gateway, with_ttl(TTL_SECONDS_MAX + 1)).await;

    let with_metadata = |entries: &[(String, String)]| {
        let mut message = publish("g", 1, "x");
        message["metadata"] = entries.iter().cloned().map(|(key, value)| (key, Value::from(value))).collect();
        message
    };
    let key = |bytes: usize| with_metadata(&[("k".repeat(bytes), String::new())]);
    json_is_taken(&gateway, key(METADATA_KEY_BYTES_MAX), "ack").await;
    json_is_refused(&gateway, key(METADATA_KEY_BYTES_MAX + 1)).await;
    let value = |bytes: usize| with_metadata(&[("k".to_owned(), "v".repeat(bytes))]);
    json_is_taken(&gateway, value(METADATA_VALUE_BYTES_MAX), "ack").await;
    json_is_refused(&gateway, value(METADATA_VALUE_BYTES_MAX + 1)).await;
    json_is_taken(&gateway, with_metadata(&metadata_of(METADATA_BYTES_MAX)), "ack").await;
    json_is_refused(&gateway, with_metadata(&metadata_of(METADATA_BYTES_MAX + 1))).await;

    let invoke = |bytes: usize| json!({"type": "invoke", "invocationId": "1".repeat(bytes), "target": "event", "event": "e"});
    json_is_taken(&gateway, invoke(OPERATION_ID_BYTES_MAX), "invokeResponse").await;
    json_is_refused(&gateway, invoke(OPERATION_ID_BYTES_MAX + 1)).await;
    let stream = |bytes: usize| json!({"type": "streamEnd", "streamId": "1".repeat(bytes)});
    json_is_taken(&gateway, stream(OPERATION_ID_BYTES_MAX), "streamClosed").await;
    json_is_refused(&gateway, stream(OPERATION_ID_BYTES_MAX + 1)).await;

    json_is_taken(&gateway, join("g", u64::MAX), "ack").await;
    json_is_taken(&gateway, join("g", 0), "ack").await;
}

#[tokio::test]
async fn json_of_128_levels_is_published_and_of_129_closes_with_1007() {
    let gateway = Gateway::start().await;
    let mut subscriber = gateway.session(RELIABLE, &Token::bare().group("g")).await;
    // The message's own object is one level.
    let nested = |depth: usize| {
        let (open, close) = ("[".repeat(depth - 1), "]".repeat(depth - 1));
        format!(r#"{{"type":"sendToGroup","group":"g","ackId":1,"data":{open}{close}}}"#)
    };
    let mut socket = gateway.reliable("a").await;
    socket.send_text(&nested(JSON_DEPTH_MAX)).await;
    socket.expect(success(1)).await;
    assert!(subscriber.read_text().await.contains(&"[".repeat(JSON_DEPTH_MAX - 1)));
    socket.send_text(&nested(JSON_DEPTH_MAX + 1)).await;
    socket.expect_close(1007).await;
    subscriber.expect_quiet().await;
}

/// The ack of a protobuf request with ack id 1, successful or not.
fn is_ack(heard: &Bare) -> bool {
    matches!(heard, Bare::Binary(bytes) if bytes.first() == Some(&0x0a) && bytes[2..4] == *b"\x08\x01")
}

async fn protobuf_is_taken(gateway: &Gateway, message: &[u8]) {
    for subprotocol in [PROTOBUF, PROTOBUF_RELIABLE] {
        let mut socket = gateway.protobuf(subprotocol, &Token::user("a")).await;
        socket.send_binary(message).await;
        let heard = socket.read_bare().await;
        assert!(is_ack(&heard), "{message:02x?}: {heard:?}");
    }
}

async fn protobuf_is_refused(gateway: &Gateway, message: &[u8]) {
    for subprotocol in [PROTOBUF, PROTOBUF_RELIABLE] {
        let mut socket = gateway.protobuf(subprotocol, &Token::user("a")).await;
        socket.send_binary(message).await;
        let heard = socket.next_bare_or_close().await;
        let reason = "The client message is not a valid protobuf.webpubsub.azure.v1 protocol message.";
        assert_eq!(heard, Err((1007, reason.to_owned())), "{message:02x?}");
    }
}

#[tokio::test]
async fn protobuf_messages_at_each_limit_are_done_and_one_above_closes_with_1007() {
    let gateway = Gateway::start().await;
    let text = embedded(3, &[field(1, b"x")]);
    let send = |more: Vec<u8>| embedded(1, &[field(1, b"g"), integer(2, 1), text.clone(), more]);
    for (longest, longer) in group_names() {
        let join = |name: &str| embedded(6, &[field(1, name.as_bytes()), integer(2, 1)]);
        protobuf_is_taken(&gateway, &join(&longest)).await;
        protobuf_is_refused(&gateway, &join(&longer)).await;
    }
    let event = |chars: usize| {
        embedded(5, &[field(1, "e".repeat(chars).as_bytes()), embedded(2, &[field(1, b"x")]), integer(3, 1)])
    };
    protobuf_is_taken(&gateway, &event(EVENT_NAME_CHARS_MAX)).await;
    protobuf_is_refused(&gateway, &event(EVENT_NAME_CHARS_MAX + 1)).await;

    protobuf_is_taken(&gateway, &send(integer(5, TTL_SECONDS_MAX))).await;
    protobuf_is_refused(&gateway, &send(integer(5, TTL_SECONDS_MAX + 1))).await;

    let metadata = |entries: &[(String, String)]| {
        let entry = |(key, value): &(String, String)| {
            embedded(6, &[field(1, key.as_bytes()), field(2, value.as_bytes())])
        };
        send(entries.iter().flat_map(entry).collect())
    };
    let key = |bytes: usize| metadata(&[("k".repeat(bytes), String::new())]);
    protobuf_is_taken(&gateway, &key(METADATA_KEY_BYTES_MAX)).await;
    protobuf_is_refused(&gateway, &key(METADATA_KEY_BYTES_MAX + 1)).await;
    let value = |bytes: usize| metadata(&[("k".to_owned(), "v".repeat(bytes))]);
    protobuf_is_taken(&gateway, &value(METADATA_VALUE_BYTES_MAX)).await;
    protobuf_is_refused(&gateway, &value(METADATA_VALUE_BYTES_MAX + 1)).await;
    protobuf_is_taken(&gateway, &metadata(&metadata_of(METADATA_BYTES_MAX))).await;
    protobuf_is_refused(&gateway, &metadata(&metadata_of(METADATA_BYTES_MAX + 1))).await;

    // The object that a JSON subscriber gets around the payload is one level.
    let nested = |depth: usize| {
        let json = ["[".repeat(depth), "]".repeat(depth)].concat();
        embedded(1, &[field(1, b"g"), integer(2, 1), embedded(3, &[field(4, json.as_bytes())])])
    };
    protobuf_is_taken(&gateway, &nested(JSON_DEPTH_MAX - 1)).await;
    protobuf_is_refused(&gateway, &nested(JSON_DEPTH_MAX)).await;
}

#[tokio::test]
async fn s22_1_15_a_text_frame_closes_a_protobuf_session_with_1003() {
    let gateway = Gateway::start().await;
    for subprotocol in [PROTOBUF, PROTOBUF_RELIABLE] {
        let mut socket = gateway.protobuf(subprotocol, &Token::user("a")).await;
        socket.send_text("J").await;
        let heard = socket.next_bare_or_close().await;
        assert!(
            matches!(&heard, Err((1003, reason)) if reason.contains("requires binary messages")),
            "{heard:?}"
        );
    }
}

#[tokio::test]
async fn s22_14_protobuf_ids_that_are_present_count_and_only_reliable_sessions_get_sequence_ids() {
    let gateway = Gateway::start().await;
    let publish = embedded(1, &[field(1, b"g"), integer(2, 0), embedded(3, &[field(4, b"{\"a\":1}")])]);
    let silent = embedded(1, &[field(1, b"g"), embedded(3, &[field(4, b"{\"a\":1}")])]);
    for (subprotocol, is_reliable) in [(PROTOBUF, false), (PROTOBUF_RELIABLE, true)] {
        let mut socket = gateway.protobuf(subprotocol, &Token::user("a").group("g")).await;
        for sequence_id in [1, 2] {
            // An ack id of 0 asks for an ack, none does not.
            let wants_ack = sequence_id == 1;
            socket.send_binary(if wants_ack { &publish } else { &silent }).await;
            let id = if is_reliable { integer(4, sequence_id) } else { Vec::new() };
            let data = [field(1, b"group"), field(2, b"g"), embedded(3, &[field(4, b"{\"a\":1}")]), id];
            socket.expect_bare(Bare::Binary(embedded(2, &data))).await;
            if wants_ack {
                socket.expect_bare(Bare::Binary(embedded(1, &[integer(2, 1)]))).await;
            }
        }
        socket.send_binary(&field(9, b"")).await;
        socket.expect_bare(Bare::Binary(field(4, b""))).await;
    }
}

#[tokio::test]
async fn connection_ids_are_random_uuids_of_32_lower_case_digits() {
    let gateway = Gateway::start().await;
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..50 {
        let id = gateway.reliable("a").await.identity().connection_id;
        assert!(id.len() == 32 && id.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')), "{id}");
        assert!(id.as_bytes()[12] == b'4' && b"89ab".contains(&id.as_bytes()[16]), "{id}");
        assert!(seen.insert(id));
    }
}

#[tokio::test]
async fn a_request_head_of_64_kib_is_taken_and_one_that_is_not_complete_by_then_is_431() {
    let gateway = Gateway::start().await;
    let begin = "GET /client/hubs/chat HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                 Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nX: ";
    let whole = |bytes: usize| format!("{begin}{}\r\n\r\n", "x".repeat(bytes - begin.len() - 4));
    let endless = format!("{begin}{}", "x".repeat(REQUEST_HEAD_BYTES_MAX - begin.len()));
    assert_eq!(endless.len(), REQUEST_HEAD_BYTES_MAX);
    for (head, status) in [(whole(REQUEST_HEAD_BYTES_MAX - 1), "401"), (endless, "431")] {
        let mut stream = TcpStream::connect(gateway.address()).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = [0; 12];
        soon(stream.read_exact(&mut answer)).await.unwrap();
        assert_eq!(answer, format!("HTTP/1.1 {status}").as_bytes());
    }
}

#[tokio::test]
async fn a_hub_name_of_128_characters_is_served_and_a_longer_one_is_400() {
    let gateway = Gateway::start().await;
    for (chars, status) in [(128, 101), (129, 400)] {
        let hub = "h".repeat(chars);
        let connector = gateway.connector().hub(&hub).token(&Token::user("a")).offer(RELIABLE);
        assert_eq!(connector.status().await, status, "{chars} characters");
    }
}
