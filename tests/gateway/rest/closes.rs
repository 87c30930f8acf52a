//! Closing connections.

use super::*;

fn disconnected(reason: &str) -> Value {
    let message = format!("Application server closed the connection.{reason}");
    json!({"type": "system", "event": "disconnected", "message": message})
}

#[tokio::test]
async fn clients_are_told_why_and_closed_with_1000_and_never_come_back() {
    for gateway in [Gateway::start().await, Gateway::sharded().await] {
        let mut reliable = gateway.session(RELIABLE, &Token::bare().group("g")).await;
        let mut plain = gateway.session(JSON, &Token::bare().group("g")).await;
        let mut raw = gateway.raw(&Token::bare().group("g")).await;
        let detached = gateway.session(RELIABLE, &Token::bare().group("g")).await;
        let mut spared = gateway.session(RELIABLE, &Token::bare().group("g")).await;
        let mut elsewhere = gateway.session(RELIABLE, &Token::bare()).await;
        let identities = [reliable.identity(), detached.identity()];
        detached.cut();
        let excluded = id_of(&spared);
        let path =
            format!("groups/g/:closeConnections?excluded={excluded}&excluded=none&reason=night%20shift");
        send_text(&gateway, &format!("groups/g/:send?excluded={excluded}"), "bye").await;
        expect(&gateway, "POST", &path, 204).await;
        for client in [&mut reliable, &mut plain] {
            assert_eq!(client.read().await["data"], "bye", "what was sent before comes before");
            client.expect(disconnected(" Reason: night shift")).await;
            assert_eq!(client.expect_close_reason(1000).await, "");
        }
        raw.expect_bare(Bare::text("bye")).await;
        assert_eq!(raw.next_bare_or_close().await, Err((1000, String::new())));
        for identity in &identities {
            gateway.expect_unrecoverable(identity).await;
        }
        send_text(&gateway, ":send", "still here").await;
        assert_eq!(texts(&mut spared).await, ["still here"]);
        assert_eq!(texts(&mut elsewhere).await, ["still here"]);
    }
}

#[tokio::test]
async fn a_connection_a_user_or_all_are_closed() {
    let gateway = Gateway::sharded().await;
    let mut one = gateway.json("ann").await;
    let mut two = gateway.json("ann").await;
    let mut spared = gateway.json("ann").await;
    let mut bob = gateway.json("bob").await;
    expect(&gateway, "DELETE", &format!("connections/{}?reason=one", id_of(&one)), 204).await;
    one.expect(disconnected(" Reason: one")).await;
    one.expect_close(1000).await;
    let excluded = id_of(&spared);
    expect(&gateway, "POST", &format!("users/ann/:closeConnections?excluded={excluded}"), 204).await;
    two.expect(disconnected("")).await;
    two.expect_close(1000).await;
    expect(&gateway, "POST", ":closeConnections?reason=", 204).await;
    for client in [&mut spared, &mut bob] {
        client.expect(disconnected("")).await;
        assert_eq!(client.expect_close_reason(1000).await, "");
    }
    let mut after = gateway.json("ann").await;
    assert!(after.settle().await.is_empty());
}

#[tokio::test]
async fn closing_nobody_is_done_at_once() {
    let gateway = Gateway::start().await;
    for path in [":closeConnections", "groups/none/:closeConnections", "users/none/:closeConnections"] {
        expect(&gateway, "POST", path, 204).await;
    }
    for _ in 0..2 {
        expect(&gateway, "DELETE", "connections/none", 204).await;
    }
}

#[tokio::test]
async fn many_sessions_are_closed_by_one_request_and_each_client_is_told() {
    const SESSIONS: usize = 3_000;
    let gateway = Gateway::sharded().await;
    let token = Token::bare().group("g");
    let mut detached = Vec::new();
    for _ in 0..SESSIONS {
        let session = gateway.session(RELIABLE, &token).await;
        detached.push(session.identity());
        session.cut();
    }
    let mut attached = gateway.session(RELIABLE, &token).await;
    let mut spared = gateway.session(RELIABLE, &token).await;
    let path = format!("groups/g/:closeConnections?excluded={}", id_of(&spared));
    expect(&gateway, "POST", &path, 204).await;
    // Answered when all of it is done: nobody is a member any more.
    send_text(&gateway, "groups/g/:send", "late").await;
    attached.expect(disconnected("")).await;
    attached.expect_close_reason(1000).await;
    for identity in detached.iter().step_by(100) {
        let recovery = Connector::new(gateway.address()).recover(identity).offer(RELIABLE);
        recovery.open().await.unwrap().expect_close_reason(1008).await;
    }
    assert_eq!(spared.read().await["data"], "late");
}
