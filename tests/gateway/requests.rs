//! What clients ask for, and what they get for what is not offered.

use std::time::Duration;

use serde_json::json;

use crate::support::*;

#[tokio::test]
async fn s22_01_ping_is_answered_by_pong_and_websocket_pings_are_sent() {
    let gateway = Gateway::with(|config| config.websocket_ping_seconds = 1).await;
    for subprotocol in [RELIABLE, JSON] {
        let mut socket = gateway.session(subprotocol, &Token::user("a")).await;
        socket.send(json!({"type": "ping"})).await;
        socket.expect(json!({"type": "pong"})).await;
        socket.send(json!({"type": "ping"})).await;
        socket.expect(json!({"type": "pong"})).await;
        socket.done(join("g", 1)).await;
        let publishing = async {
            tokio::time::sleep(Duration::from_millis(2_500)).await;
            gateway.json("p").await.done(publish("g", 1, "hi")).await;
        };
        tokio::join!(publishing, socket.read());
        assert!(socket.pings() > 0);
    }
}

#[tokio::test]
async fn a_websocket_ping_is_answered_with_its_payload() {
    let gateway = Gateway::start().await;
    let mut socket = gateway.reliable("a").await;
    socket.ping(b"are you there").await;
    assert_eq!(socket.read_pong().await, b"are you there");
}

#[tokio::test]
async fn a_client_that_answers_no_ping_is_dropped_and_its_session_kept() {
    let gateway = Gateway::with(|config| config.websocket_ping_seconds = 1).await;
    let mut silent = gateway.reliable("a").await;
    let identity = silent.identity();
    silent.done(join("g", 1)).await;
    silent.read_to_end_unanswered().await;
    let mut socket = gateway.recover(&identity).await;
    socket.send(publish("g", 2, "hi")).await;
    socket.expect(message(1, "g", "a", "hi")).await;
    socket.expect(success(2)).await;
}

#[tokio::test]
async fn a_client_that_says_nothing_but_answers_pings_stays() {
    let gateway = Gateway::with(|config| config.websocket_ping_seconds = 2).await;
    let mut quiet = gateway.reliable("a").await;
    quiet.done(join("g", 1)).await;
    let publishing = async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        gateway.json("b").await.done(publish("g", 1, "hi")).await;
    };
    let ((), heard) = tokio::join!(publishing, quiet.read());
    assert_eq!(heard, message(1, "g", "b", "hi"));
}

#[tokio::test]
async fn joining_and_leaving_are_idempotent() {
    let gateway = Gateway::start().await;
    let mut socket = gateway.reliable("a").await;
    socket.done(leave("g", 1)).await;
    socket.done(join("g", 2)).await;
    socket.done(join("g", 3)).await;
    socket.send(publish("g", 4, "once")).await;
    socket.expect(message(1, "g", "a", "once")).await;
    socket.expect(success(4)).await;
    socket.done(leave("g", 5)).await;
    socket.done(leave("g", 6)).await;
    socket.done(publish("g", 7, "nobody")).await;
}

#[tokio::test]
async fn groups_of_the_token_are_joined_from_the_start_and_need_no_role() {
    let gateway = Gateway::start().await;
    let token = Token::bare().named("reader").group("news").group("News");
    let mut reader = gateway.session(RELIABLE, &token).await;
    let mut writer = gateway.reliable("writer").await;
    writer.done(publish("news", 1, "a")).await;
    writer.done(publish("News", 2, "b")).await;
    writer.done(publish("NEWS", 3, "c")).await;
    reader.expect(message(1, "news", "writer", "a")).await;
    reader.expect(message(2, "News", "writer", "b")).await;
    reader.expect_quiet().await;
}

#[tokio::test]
async fn requests_without_an_ack_id_are_executed_and_not_answered() {
    let gateway = Gateway::start().await;
    let mut socket = gateway.reliable("a").await;
    socket.send(json!({"type": "joinGroup", "group": "g"})).await;
    socket.send(json!({"type": "sendToGroup", "group": "g", "dataType": "text", "data": "hi"})).await;
    socket.send(json!({"type": "leaveGroup", "group": "g", "ackId": null})).await;
    socket.send(json!({"type": "sendToGroup", "group": "g", "dataType": "text", "data": "gone"})).await;
    assert_eq!(socket.settle().await, [message(1, "g", "a", "hi")]);
}

#[tokio::test]
async fn refused_requests_without_an_ack_id_are_passed_over_in_silence() {
    let gateway = Gateway::start().await;
    let mut socket = gateway.session(RELIABLE, &Token::bare().group("g")).await;
    socket.send(json!({"type": "joinGroup", "group": "x"})).await;
    socket.send(json!({"type": "sendToGroup", "group": "g", "dataType": "text", "data": "hi"})).await;
    socket.send(json!({"type": "event", "event": "e", "dataType": "text", "data": "hi"})).await;
    socket.expect_quiet().await;
}

#[tokio::test]
async fn what_is_not_offered_is_answered_and_costs_no_session() {
    let gateway = Gateway::start().await;
    for mut socket in [gateway.reliable("a").await, gateway.json("b").await] {
        let event = json!({"type": "event", "event": "e", "ackId": 1, "dataType": "json", "data": {"a": 1}});
        socket.refused(event, "InternalServerError").await;

        socket.send(json!({"type": "invoke", "invocationId": "7", "target": "event", "event": "e"})).await;
        let answer = socket.read().await;
        assert_eq!(answer["type"], "invokeResponse", "{answer}");
        assert_eq!(answer["invocationId"], "7", "{answer}");
        assert_eq!(answer["success"], false, "{answer}");
        assert!(answer["error"]["name"].is_string() && answer["error"]["message"].is_string(), "{answer}");
        socket.send(json!({"type": "cancelInvocation", "invocationId": "7"})).await;

        for stream in [
            json!({"type": "sendToGroup", "group": "g", "stream": {"streamId": "s"}}),
            json!({"type": "streamData", "streamId": "s", "streamSequenceId": 1, "dataType": "text", "data": "x"}),
            json!({"type": "streamEnd", "streamId": "s"}),
        ] {
            socket.send(stream).await;
            let answer = socket.read().await;
            assert_eq!(answer["type"], "streamClosed", "{answer}");
            assert_eq!(answer["streamId"], "s", "{answer}");
            assert_eq!(answer["error"]["name"], "BadRequest", "{answer}");
            assert!(answer["error"]["message"].is_string(), "{answer}");
        }

        for (ack_id, kind) in (10..).zip(["setGroupState", "subscribeGroupState", "unsubscribeGroupState"]) {
            let ack = socket.ask(json!({"type": kind, "group": "g", "state": {}, "ackId": ack_id})).await;
            assert_eq!(ack["success"], false, "{ack}");
            assert!(ack["error"]["name"].is_string() && ack["error"]["message"].is_string(), "{ack}");
        }
        socket.done(join("g", 20)).await;
    }
}

#[tokio::test]
async fn s22_11_every_request_with_an_ack_id_is_answered() {
    let gateway = Gateway::start().await;
    let mut socket = gateway.session(RELIABLE, &Token::bare()).await;
    let requests = [
        join("g", 1),
        leave("g", 2),
        publish("g", 3, "x"),
        json!({"type": "event", "event": "e", "ackId": 4, "dataType": "text", "data": "x"}),
        json!({"type": "setGroupState", "group": "g", "ackId": 5}),
        json!({"type": "subscribeGroupState", "group": "g", "ackId": 0}),
        publish("g", u64::MAX, "x"),
    ];
    for request in requests {
        let ack = socket.ask(request.clone()).await;
        assert_eq!(ack["success"], false, "{request}: {ack}");
        assert!(ack["error"]["name"].is_string(), "{request}: {ack}");
        assert!(ack["error"]["message"].is_string(), "{request}: {ack}");
    }
}

#[tokio::test]
async fn a_request_may_be_spelled_in_many_ways() {
    let gateway = Gateway::start().await;
    let mut socket = gateway.reliable("a").await;
    socket.send_text(r#" { "ackId" : 9, "ackId" : 1, "group" : "other", "unknown" : [ {} ], "group" : "g", "type" : "JOINGROUP" } "#).await;
    socket.expect(success(1)).await;
    socket
        .send_text(r#"{"data":"hi","dataType":"TEXT","noEcho":null,"ttlSeconds":null,"group":"\u0067","ackId":2,"type":"sendToGroup"}"#)
        .await;
    socket.expect(message(1, "g", "a", "hi")).await;
    socket.expect(success(2)).await;
}

#[tokio::test]
async fn ack_ids_are_any_unsigned_64_bit_number() {
    let gateway = Gateway::start().await;
    let mut socket = gateway.reliable("a").await;
    for ack_id in [0, u64::MAX, 1 << 53, (1 << 53) + 1, i64::MAX as u64 + 1] {
        socket.send(join("g", ack_id)).await;
        assert!(socket.read_text().await.contains(&format!("\"ackId\":{ack_id},")), "{ack_id}");
    }
}
