//! The binary itself: what it logs, how it bears a lack of descriptors, how it ends.

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::*;

#[tokio::test]
async fn the_greeting_is_a_connection_string_and_the_one_place_with_the_key() {
    let served = Served::start(None, &[]).await;
    assert_eq!(
        served.greeting,
        format!(
            "connection string: Endpoint=http://{};AccessKey={ACCESS_KEY};Version=1.0;\n",
            served.address
        )
    );
    let (stdout, stderr) = served.stop().await;
    assert_eq!(stdout, "");
    assert!(!stderr.contains(ACCESS_KEY));
}

#[tokio::test]
async fn a_whole_run_at_trace_logs_no_token_no_key_and_no_payload() {
    let served = Served::start(None, &["--log", "trace"]).await;
    let audience = format!("http://{}/client/hubs/{HUB}", served.address);
    let mut secrets = vec![ACCESS_KEY.to_owned(), SECONDARY_KEY.to_owned()];
    let mut connect = async |subprotocol: &str, token: Token, in_header: bool| {
        let signed = token.sign(&audience);
        let connector = Connector::new(served.address).offer(subprotocol);
        let connector = if in_header {
            connector.header("Authorization", &format!("Bearer {signed}"))
        } else {
            connector.query("access_token", &signed)
        };
        secrets.push(signed);
        let opened = connector.open().await;
        if let Ok(mut socket) = opened {
            socket.read_connected().await;
            let token = socket.identity().reconnection_token;
            if !token.is_empty() {
                secrets.push(token);
            }
            Some(socket)
        } else {
            None
        }
    };
    let mut subscriber = connect(RELIABLE, Token::user("s").group("g"), false).await.unwrap();
    let mut publisher = connect(RELIABLE, Token::user("p"), true).await.unwrap();
    let mut plain = connect(JSON, Token::user("j").group("g"), false).await.unwrap();
    let mut forbidden = connect(RELIABLE, Token::bare(), false).await.unwrap();
    assert!(
        connect(RELIABLE, Token::user("x").key("some other key that is long enough to be one"), false)
            .await
            .is_none()
    );
    assert!(connect(RELIABLE, Token::user("x").claim("exp", json!(1)), true).await.is_none());
    let raw = Connector::new(served.address).query("access_token", "Xgarbage-tokenX").open().await;
    assert!(raw.is_err());

    publisher.done(publish("g", 1, "Xsecret-textX")).await;
    publisher.refused(publish("g", 1, "Xsecret-otherX"), "PayloadMismatch").await;
    let binary = json!({"type": "sendToGroup", "group": "g", "ackId": 2, "dataType": "binary", "data": "WHNlY3JldC1iaW5hcnlY"});
    publisher.done(binary).await;
    let with_metadata = json!({
        "type": "sendToGroup", "group": "g", "ackId": 3, "data": {"Xsecret-jsonX": 1}, "metadata": {"k": "Xsecret-metadataX"},
    });
    publisher.done(with_metadata).await;
    let event =
        json!({"type": "event", "event": "e", "ackId": 4, "dataType": "text", "data": "Xsecret-eventX"});
    publisher.refused(event, "InternalServerError").await;
    forbidden.refused(publish("g", 1, "Xsecret-forbiddenX"), "Forbidden").await;
    assert_eq!(subscriber.settle().await.len(), 3);
    assert_eq!(plain.settle().await.len(), 3);

    let identity = subscriber.identity();
    subscriber.cut();
    let recover = |token: &str| {
        Connector::new(served.address)
            .query("awps_connection_id", &identity.connection_id)
            .query("awps_reconnection_token", token)
            .query("access_token", "Xgarbage-tokenX")
            .offer(RELIABLE)
            .open()
    };
    let mut subscriber = recover(&identity.reconnection_token).await.unwrap();
    assert_eq!(subscriber.settle().await.len(), 3);
    let forged = format!("{}X", identity.reconnection_token);
    recover(&forged).await.unwrap().expect_close(1008).await;
    plain.send_text(r#"{"type":"Xsecret-typeX","Xsecret-fieldX":"Xsecret-valueX"}"#).await;
    plain.expect_close(1007).await;
    forbidden.send_binary(b"Xsecret-frameX").await;
    forbidden.expect_close(1003).await;
    publisher.send_raw(b"\xf1\x80Xsecret-framingX").await;
    publisher.expect_close(1002).await;

    let (stdout, stderr) = served.stop().await;
    assert!(stderr.contains("TRACE") && stderr.contains("DEBUG"), "{stderr}");
    assert!(!stderr.contains("ERROR"), "{stderr}");
    secrets.extend(
        ["Xsecret", "WHNlY3JldC1iaW5hcnlY", "Xgarbage-tokenX", "access_token=", "eyJ"].map(str::to_owned),
    );
    for said in [&stdout, &stderr] {
        for secret in &secrets {
            assert!(!said.contains(secret), "{secret} was logged");
            // Not in parts either: a signature alone opens a door.
            for part in secret.split('.').filter(|part| part.len() > 16) {
                assert!(!said.contains(part), "a part of {secret} was logged");
            }
        }
    }
}

#[tokio::test]
async fn sigterm_closes_sockets_with_1001_and_exits_in_order() {
    let served = Served::start(None, &[]).await;
    let socket = served.reliable("a").await.unwrap();
    let address = served.address;
    let (_, said) = tokio::join!(socket.expect_close(1001), served.stop());
    assert!(!said.1.contains("ERROR"), "{}", said.1);
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn half_a_request_head_is_nobody_to_wait_for_at_the_end() {
    let served = Served::start(None, &[]).await;
    let mut half = TcpStream::connect(served.address).await.unwrap();
    half.write_all(b"GET /client/hubs/chat HTTP/1.1\r\nHost: ").await.unwrap();
    // Whoever has been served after it shows that it has been accepted.
    let socket = served.reliable("a").await.unwrap();
    let (_, said) = tokio::join!(socket.expect_close(1001), served.stop());
    assert!(!said.1.contains("WARN"), "{}", said.1);
    drop(half);
}

#[tokio::test]
async fn a_second_interrupt_ends_it_at_once() {
    let served = Served::start(None, &[]).await;
    let mut silent = served.reliable("a").await.unwrap();
    served.signal("INT");
    // It waits for the client to close, too, which the client does not.
    silent.expect_close_frame_unanswered(1001).await;
    served.signal("INT");
    let output = soon(served.child.wait_with_output()).await.unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    drop(silent);
}

#[tokio::test]
async fn the_accept_loop_survives_running_out_of_descriptors() {
    let served = Served::start(Some(64), &[]).await;
    let mut early = served.reliable("early").await.unwrap();
    // More connections than there can be descriptors; the kernel accepts those that the gateway can't.
    let mut crowd = Vec::new();
    for _ in 0..200 {
        crowd.push(TcpStream::connect(served.address).await.unwrap());
    }
    for n in 1..=10 {
        early.done(join("g", n)).await;
    }
    // Those that say nothing go, so the others come in while the crowd is still there.
    served.reliable("late").await.unwrap().done(join("g", 1)).await;
    drop(crowd);
    served.reliable("later").await.unwrap().done(join("g", 1)).await;
    early.done(join("g", 11)).await;
    let (_, stderr) = served.stop().await;
    let complaints = stderr.lines().filter(|line| line.contains("accept")).count();
    assert!(complaints <= 10, "{complaints} complaints:\n{stderr}");
}

#[tokio::test]
async fn a_gateway_that_is_killed_is_gone_and_the_next_one_starts() {
    let mut served = Served::start(None, &[]).await;
    let socket = served.reliable("a").await.unwrap();
    served.child.kill().await.unwrap();
    socket.expect_cut().await;
    let mut rest = String::new();
    served.child.stderr.take().unwrap().read_to_string(&mut rest).await.unwrap();
    assert!(!rest.contains("ERROR"), "{rest}");
    let again = Served::start(None, &[]).await;
    again.reliable("a").await.unwrap().done(join("g", 1)).await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn slow_sockets_do_not_each_hold_a_copy_of_the_frame_that_they_are_stuck_in() {
    let served = Served::start(None, &[]).await;
    let mut stuck = Vec::new();
    for number in 0..200 {
        let token = Token::user(&format!("s{number}")).group("g");
        let connector = Connector::new(served.address).token(&token).offer(RELIABLE);
        stuck.push(connector.receive_buffer_bytes(4096).open().await.unwrap_or_else(|_| panic!("refused")));
    }
    let mut publisher = served.reliable("publisher").await.unwrap();
    for ack_id in 1..=4 {
        publisher.done(publish("g", ack_id, &"x".repeat(1_000_000))).await;
    }
    // Answered behind the writes of its own socket's turn, so that the others have had theirs.
    publisher.settle().await;
    let held = served.resident_mib();
    assert!(held < 80, "{held} MiB for 4 MB of messages");
    drop(stuck);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn an_idle_socket_does_not_hold_the_buffer_of_its_largest_message() {
    let served = Served::start(None, &[]).await;
    let large_ping = json!({"type": "ping", "padding": "x".repeat(1_000_000)});
    let mut idle = Vec::new();
    for number in 0..100 {
        let mut socket = served.reliable(&format!("s{number}")).await.unwrap();
        socket.send(large_ping.clone()).await;
        socket.expect(json!({"type": "pong"})).await;
        idle.push(socket);
    }
    let held = served.resident_mib();
    assert!(held < 60, "{held} MiB for 100 idle sockets");
}
