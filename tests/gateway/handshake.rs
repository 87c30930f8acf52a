//! From the first byte to `connected`: statuses and their order, access tokens, subprotocols.

use jsonwebtoken::Algorithm;
use oncewire::config::HubOverrides;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::*;

/// Sends a request head as it is and returns the answer's, or as much as comes before the end of the stream.
async fn answer(gateway: &Gateway, head: &str) -> String {
    let mut stream = TcpStream::connect(gateway.address()).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    loop {
        let mut bytes = [0; 1024];
        let read = soon(stream.read(&mut bytes)).await.unwrap();
        answer.extend_from_slice(&bytes[..read]);
        let end = answer.windows(4).position(|end| end == b"\r\n\r\n");
        if read == 0 || end.is_some() {
            answer.truncate(end.unwrap_or(answer.len()));
            return String::from_utf8(answer).unwrap();
        }
    }
}

fn upgrade(target: &str, more: &str) -> String {
    format!(
        "GET {target} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{more}\r\n"
    )
}

fn signed(token: &Token, gateway: &Gateway) -> String {
    token.sign(&format!("http://{}/client/hubs/{HUB}", gateway.address()))
}

#[tokio::test]
async fn what_is_no_upgrade_is_400_whatever_else_is_wrong() {
    let gateway = Gateway::start().await;
    let whole = upgrade("/client/hubs/%20?access_token=bad", "");
    for left_out in ["Upgrade: websocket\r\n", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"] {
        let head = whole.replace(left_out, "");
        assert!(answer(&gateway, &head).await.starts_with("HTTP/1.1 400 "), "without {left_out}");
    }
    let get = format!("GET /client/hubs/{HUB} HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(answer(&gateway, &get).await.starts_with("HTTP/1.1 400 "));
}

#[tokio::test]
async fn a_blank_hub_is_400_before_the_token_is_looked_at() {
    let gateway = Gateway::start().await;
    for path in ["/client/hubs/%20", "/client/?hub=", "/client?hub=%20%09", "/client/", "/client"] {
        assert_eq!(gateway.connector().path(path).query("access_token", "bad").status().await, 400, "{path}");
    }
}

#[tokio::test]
async fn a_recovery_is_answered_before_the_token_is_looked_at() {
    let gateway = Gateway::start().await;
    let nobody = Identity { connection_id: "nobody".into(), reconnection_token: "none".into() };
    let connector = gateway.connector().recover(&nobody).offer(RELIABLE);
    for connector in [
        connector.clone(),
        connector.clone().query("access_token", "bad"),
        connector.clone().query("webpubsub_mode", "bad"),
        connector.token(&Token::bare().group(" ")),
    ] {
        connector.open().await.unwrap().expect_close(1008).await;
    }
}

#[tokio::test]
async fn a_missing_token_is_401() {
    let gateway = Gateway::start().await;
    assert_eq!(gateway.connector().status().await, 401);
    assert_eq!(gateway.connector().query("access_token", "").status().await, 401);
    assert_eq!(gateway.connector().query("awps_reconnection_token", "alone").status().await, 401);
    assert_eq!(gateway.connector().query("awps_connection_id", "").status().await, 401);
}

#[tokio::test]
async fn a_token_that_proves_nothing_is_401() {
    let gateway = Gateway::start().await;
    let now = now_unix_seconds();
    let endpoint = format!("http://{}/client/hubs/{HUB}", gateway.address());
    for (what, token) in [
        ("signed with another key", Token::user("a").key("some other key that is long enough to be one")),
        ("HS384", Token::user("a").algorithm(Algorithm::HS384)),
        ("HS512", Token::user("a").algorithm(Algorithm::HS512)),
        ("expired", Token::user("a").claim("exp", json!(now - 310))),
        ("without expiry", Token::user("a").claim("exp", Value::Null)),
        ("not valid yet", Token::user("a").claim("nbf", json!(now + 310))),
        ("for another hub", Token::user("a").claim("aud", json!(format!("{endpoint}x")))),
        ("for another host", Token::user("a").claim("aud", json!("http://other/client/hubs/chat"))),
        ("for ftp", Token::user("a").claim("aud", json!(endpoint.replace("http:", "ftp:")))),
        ("for nobody", Token::user("a").claim("aud", json!(""))),
    ] {
        assert_eq!(gateway.connector().token(&token).status().await, 401, "{what}");
        assert_eq!(gateway.connector().bearer(&token).status().await, 401, "{what}, in the header");
    }
    for text in ["bad", "a.b.c", "..", "%00"] {
        assert_eq!(gateway.connector().query("access_token", text).status().await, 401, "{text}");
    }
}

#[tokio::test]
async fn a_token_without_signature_is_401() {
    let gateway = Gateway::start().await;
    let token = signed(&Token::user("a"), &gateway);
    let claims = token.split('.').nth(1).unwrap();
    // {"alg":"none","typ":"JWT"}
    let header = "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0";
    let signature = token.split('.').nth(2).unwrap();
    for token in [
        format!("{header}.{claims}."),
        format!("{header}.{claims}.{signature}"),
        format!("{header}.{claims}"),
    ] {
        assert_eq!(gateway.connector().query("access_token", &token).status().await, 401);
    }
}

#[tokio::test]
async fn an_invalid_group_in_the_token_is_400_but_only_in_a_good_one() {
    let gateway = Gateway::start().await;
    for group in ["", " ", &"x".repeat(1025)] {
        let token = Token::user("a").group("fine").group(group);
        assert_eq!(gateway.connector().token(&token).status().await, 400);
        let forged = token.key("some other key that is long enough to be one");
        assert_eq!(gateway.connector().token(&forged).status().await, 401);
    }
    let token = Token::user("a").group(&"x".repeat(1024));
    assert_eq!(gateway.connector().token(&token).offer(JSON).status().await, 101);
}

#[tokio::test]
async fn bad_raw_parameters_are_400_but_only_with_a_good_token() {
    let gateway = Gateway::start().await;
    let raw = |parameters: &[(&str, &str)]| {
        parameters.iter().fold(gateway.connector(), |connector, (name, value)| connector.query(name, value))
    };
    for parameters in [
        &[("webpubsub_mode", "bad")][..],
        &[("webpubsub_mode", "sendToGroup")],
        &[("webpubsub_mode", "sendToGroup"), ("group", " ")],
        &[("webpubsub_mode", "sendToGroup"), ("group", "g"), ("noEcho", "yes")],
    ] {
        assert_eq!(raw(parameters).token(&Token::user("a")).status().await, 400, "{parameters:?}");
        assert_eq!(
            raw(parameters).token(&Token::user("a")).offer(RELIABLE).status().await,
            400,
            "{parameters:?}: also when the connection does not become raw"
        );
        assert_eq!(raw(parameters).status().await, 401, "{parameters:?}");
    }
    let event_mode = [("webpubsub_mode", "SendEvent"), ("group", " "), ("noEcho", "yes")];
    assert_eq!(raw(&event_mode).token(&Token::user("a")).offer(JSON).status().await, 101);
}

#[tokio::test]
async fn s22_20_the_audience_is_the_http_url_that_was_dialled_and_clocks_may_differ_by_5_minutes() {
    let gateway = Gateway::start().await;
    let now = now_unix_seconds();
    let endpoint = format!("http://{}/client/hubs/{HUB}", gateway.address());
    for (what, token) in [
        ("expired 4 minutes ago", Token::user("a").claim("exp", json!(now - 240))),
        ("valid in 4 minutes", Token::user("a").claim("nbf", json!(now + 240))),
        ("another case", Token::user("a").claim("aud", json!(endpoint.to_uppercase()))),
        ("https", Token::user("a").claim("aud", json!(endpoint.replace("http:", "https:")))),
        ("several audiences", Token::user("a").claim("aud", json!(["http://other", endpoint]))),
        ("issued later", Token::user("a").claim("iat", json!(now + 100_000))),
        ("one role as text", Token::user("a").claim("role", json!("webpubsub.sendToGroup"))),
        ("one group as text", Token::user("a").claim("webpubsub.group", json!("g"))),
        ("unknown roles", Token::user("a").role("webpubsub.fly").role("")),
        ("the other key", Token::user("a").key(SECONDARY_KEY)),
    ] {
        assert_eq!(gateway.connector().token(&token).offer(JSON).status().await, 101, "{what}");
    }
}

#[tokio::test]
async fn the_dialled_host_is_the_one_of_the_host_header() {
    let gateway = Gateway::start().await;
    let dialled = |host: &str| gateway.connector().host(host).through(gateway.address()).offer(JSON);
    for host in ["chat.internal", "chat.internal:1234", "[::1]:80"] {
        assert_eq!(dialled(host).token(&Token::user("a")).status().await, 101, "{host}");
    }
    let elsewhere = Token::user("a").claim("aud", json!("http://chat.internal/client/hubs/chat"));
    assert_eq!(dialled("chat.external").token(&elsewhere).status().await, 401);
}

#[tokio::test]
async fn a_public_url_is_the_audience_whatever_was_dialled() {
    let gateway = Gateway::with(|config| {
        config.public_urls = vec!["https://chat.example.com/wps".parse().unwrap()];
    })
    .await;
    let token = Token::user("a").claim("aud", json!("https://chat.example.com/wps/client/hubs/chat"));
    assert_eq!(gateway.connector().token(&token).offer(JSON).status().await, 101);
    let prefixed = gateway.connector().path(&format!("/wps/client/hubs/{HUB}"));
    assert_eq!(
        prefixed.token(&token).offer(JSON).status().await,
        101,
        "behind a proxy that keeps the prefix"
    );
    let other = Token::user("a").claim("aud", json!("https://chat.example.com/client/hubs/chat"));
    assert_eq!(gateway.connector().token(&other).offer(JSON).status().await, 401);
    let dialled = gateway.connector().token(&Token::user("a"));
    assert_eq!(dialled.offer(JSON).status().await, 401, "what was dialled chooses nothing");
}

#[tokio::test]
async fn the_token_may_stand_in_the_header_and_the_query_is_preferred() {
    let gateway = Gateway::start().await;
    let mut socket = gateway.connector().bearer(&Token::user("header")).offer(JSON).open().await.unwrap();
    socket.read_connected().await;
    assert_eq!(socket.user_id(), Some("header"));
    let lower = format!("bearer {}", signed(&Token::user("a"), &gateway));
    assert_eq!(gateway.connector().header("Authorization", &lower).offer(JSON).status().await, 101);
    let both = gateway.connector().bearer(&Token::user("header")).token(&Token::user("query"));
    let mut socket = both.offer(JSON).open().await.unwrap();
    socket.read_connected().await;
    assert_eq!(socket.user_id(), Some("query"));
    let bad = gateway.connector().bearer(&Token::user("header")).query("access_token", "bad");
    assert_eq!(bad.status().await, 401);
    let twice = gateway.connector().query("access_token", "bad").token(&Token::user("last"));
    assert_eq!(twice.offer(JSON).status().await, 101);
}

#[tokio::test]
async fn all_spellings_of_the_url_lead_to_the_hub_and_the_path_wins() {
    let gateway = Gateway::start().await;
    let mut sockets = Vec::new();
    for path in [
        "/client/hubs/chat",
        "/client/hubs/CHAT",
        "/client/hubs/chat/",
        "/client?hub=chat",
        "/client/?hub=Chat",
        "/client/hubs/chat?hub=other",
    ] {
        let connector = gateway.connector().path(path).token(&Token::user("a").group("g"));
        let mut socket = connector.offer(JSON).open().await.unwrap();
        socket.read_connected().await;
        sockets.push(socket);
    }
    sockets[0].send(json!({"type": "sendToGroup", "group": "g", "dataType": "text", "data": "hi"})).await;
    for socket in &mut sockets {
        socket.expect(unsequenced("g", "a", "hi")).await;
    }
}

#[tokio::test]
async fn hubs_do_not_see_each_other() {
    let gateway = Gateway::start().await;
    let mut here = gateway.json("a").await;
    here.done(join("g", 1)).await;
    let there = gateway.connector().hub("other").token(&Token::user("b")).offer(JSON);
    let mut there = there.open().await.unwrap();
    there.read_connected().await;
    there.done(publish("g", 1, "hi")).await;
    here.expect_quiet().await;
}

#[tokio::test]
async fn anonymous_clients_are_let_in_only_where_the_hub_allows_them() {
    let gateway = Gateway::with(|config| {
        let overrides = HubOverrides { anonymous: true, ..HubOverrides::default() };
        config.hubs.insert("open".into(), overrides);
    })
    .await;
    assert_eq!(gateway.connector().offer(RELIABLE).status().await, 401);
    let open = || gateway.connector().hub("open").offer(RELIABLE);
    assert_eq!(open().query("access_token", "bad").status().await, 401);
    let mut socket = open().open().await.unwrap();
    socket.read_connected().await;
    assert_eq!(socket.user_id(), None);
    socket.refused(join("g", 1), "Forbidden").await;
}

#[tokio::test]
async fn s22_13_the_subprotocol_is_echoed_in_the_clients_spelling() {
    let gateway = Gateway::start().await;
    let token = Token::user("a");
    for (offer, selected) in [
        (JSON, JSON),
        (RELIABLE, RELIABLE),
        ("Json.WebPubSub.Azure.V1", "Json.WebPubSub.Azure.V1"),
        ("json.webpubsub.azure.v1, json.reliable.webpubsub.azure.v1", JSON),
        ("graphql-ws, JSON.RELIABLE.webpubsub.azure.v1", "JSON.RELIABLE.webpubsub.azure.v1"),
    ] {
        let (mut socket, name) = gateway.connector().token(&token).offer(offer).selected().await.unwrap();
        assert_eq!(name.as_deref(), Some(selected));
        socket.read_connected().await;
    }
}

#[tokio::test]
async fn unknown_subprotocols_are_accepted_and_not_selected() {
    let gateway = Gateway::start().await;
    let target = format!(
        "/client/hubs/{HUB}?access_token={}",
        Token::user("a").sign(&format!("http://x/client/hubs/{HUB}"))
    );
    for offer in ["", "Sec-WebSocket-Protocol: graphql-ws, chat\r\n"] {
        let answer = answer(&gateway, &upgrade(&target, offer)).await.to_lowercase();
        assert!(answer.starts_with("http/1.1 101 "), "{answer}");
        assert!(!answer.contains("sec-websocket-protocol"), "{answer}");
        assert!(answer.contains("sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo="), "{answer}");
    }
}

#[tokio::test]
async fn extensions_are_declined() {
    let gateway = Gateway::start().await;
    let target = format!(
        "/client/hubs/{HUB}?access_token={}",
        Token::user("a").sign(&format!("http://x/client/hubs/{HUB}"))
    );
    let offer = format!("Sec-WebSocket-Protocol: {JSON}\r\nSec-WebSocket-Extensions: permessage-deflate\r\n");
    let answer = answer(&gateway, &upgrade(&target, &offer)).await.to_lowercase();
    assert!(answer.starts_with("http/1.1 101 ") && !answer.contains("permessage-deflate"), "{answer}");
}

#[tokio::test]
async fn connected_is_first_and_says_who_is_connected() {
    let gateway = Gateway::start().await;
    let token = Token::user("ada").group("g");
    let mut socket = gateway.connector().token(&token).offer(RELIABLE).open().await.unwrap();
    let connected = socket.read().await;
    assert_eq!(connected["type"], "system");
    assert_eq!(connected["event"], "connected");
    assert_eq!(connected["userId"], "ada");
    let id = connected["connectionId"].as_str().unwrap();
    assert!(!id.is_empty() && id.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c)), "{id}");
    assert!(!connected["reconnectionToken"].as_str().unwrap().is_empty());

    let mut socket = gateway.connector().token(&Token::bare()).offer(JSON).open().await.unwrap();
    let connected = socket.read().await;
    assert_eq!(connected["userId"], Value::Null);
    assert!(connected.get("reconnectionToken").is_none(), "{connected}");
    assert_ne!(connected["connectionId"], id);
}

#[tokio::test]
async fn s22_18_requests_are_accepted_before_connected_is_read() {
    let gateway = Gateway::start().await;
    let mut socket = gateway.connector().token(&Token::user("a")).offer(RELIABLE).open().await.unwrap();
    socket.send_together([join("g", 1), publish("g", 2, "hi")]).await;
    socket.read_connected().await;
    socket.expect(success(1)).await;
    socket.expect(message(1, "g", "a", "hi")).await;
    socket.expect(success(2)).await;
}

#[tokio::test]
async fn frames_may_follow_the_request_head_without_a_pause() {
    let gateway = Gateway::start().await;
    let token = Token::user("a").sign(&format!("http://x/client/hubs/{HUB}"));
    let offer = format!("Sec-WebSocket-Protocol: {JSON}\r\n");
    let mut bytes = upgrade(&format!("/client/hubs/{HUB}?access_token={token}"), &offer).into_bytes();
    bytes.extend_from_slice(b"\x81\x8f\0\0\0\0{\"type\":\"ping\"}");
    let mut stream = TcpStream::connect(gateway.address()).await.unwrap();
    stream.write_all(&bytes).await.unwrap();
    let mut answer = String::new();
    while !answer.contains("\"pong\"") {
        let mut bytes = [0; 1024];
        let read = soon(stream.read(&mut bytes)).await.unwrap();
        assert!(read > 0, "{answer}");
        answer.push_str(&String::from_utf8_lossy(&bytes[..read]));
    }
    let connected = answer.find("\"connected\"").unwrap();
    let pong = answer.find("\"pong\"").unwrap();
    assert!(connected < pong, "{answer}");
}

#[tokio::test]
async fn connected_comes_first_also_when_the_groups_of_the_token_are_busy() {
    let gateway = Gateway::start().await;
    let mut publisher = gateway.json("p").await;
    let publishing = async {
        for n in 1..=500 {
            publisher.done(publish("g", n, "x")).await;
        }
    };
    let connecting = async {
        for _ in 0..50 {
            let mut socket = gateway.session(RELIABLE, &Token::bare().group("g")).await;
            for (n, message) in (1..).zip(socket.settle().await) {
                assert_eq!(message["sequenceId"], n, "{message}");
            }
        }
    };
    tokio::join!(publishing, connecting);
}

#[tokio::test]
async fn a_client_more_than_there_may_be_is_503_until_another_leaves() {
    let gateway = Gateway::with(|config| config.connections_max = Some(2)).await;
    let first = gateway.reliable("a").await;
    let _second = gateway.reliable("b").await;
    let third = || gateway.connector().token(&Token::user("c")).offer(RELIABLE);
    assert_eq!(third().status().await, 503);
    first.close(1000).await;
    soon(async {
        while third().status().await == 503 {
            a_while().await;
        }
    })
    .await;
}

#[tokio::test]
async fn health_is_open_to_everybody() {
    let gateway = Gateway::start().await;
    for method in ["GET", "HEAD"] {
        let head = format!("{method} /api/health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        assert!(answer(&gateway, &head).await.starts_with("HTTP/1.1 200 "), "{method}");
    }
}
