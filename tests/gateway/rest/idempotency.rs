//! Requests that come again.

use std::sync::Arc;

use oncewire::config::{Config, HubOverrides, Idempotency};

use super::*;

async fn ask(gateway: &Gateway, path: &str, id: &str, body: &str) -> Answer {
    let ask =
        call(gateway, "POST", path).header("content-type", "text/plain").header("x-ms-client-request-id", id);
    ask.body(body).send().await
}

/// A gateway that passes over repetitions of whatever changes something.
fn of_all(config: &mut Config) {
    config.idempotency = Idempotency::All;
}

fn is_duplicate(answer: &Answer) -> bool {
    answer.has("x-oncewire-duplicate") && answer.header("x-oncewire-duplicate") == "true"
}

#[tokio::test]
async fn a_repeated_request_is_answered_as_the_first_and_executed_once() {
    for gateway in [Gateway::start().await, Gateway::sharded().await] {
        let mut client = gateway.reliable("u").await;
        for (path, id, body, repeated) in [
            (":send", "1", "a", false),
            (":send", "1", "a", true),
            (":send", "1", "b", false),
            (":send", "2", "a", false),
            ("users/u/:send", "1", "a", false),
            (":send?filter=true", "1", "a", false),
            (":send", "", "no id", false),
            (":send", "", "no id", false),
            (":send", "1", "a", true),
        ] {
            let answer = ask(&gateway, path, id, body).await;
            assert_eq!((answer.status, is_duplicate(&answer)), (202, repeated), "{path} {id} {body}");
        }
        assert_eq!(texts(&mut client).await, ["a", "b", "a", "a", "a", "no id", "no id"]);
    }
}

#[tokio::test]
async fn repetitions_are_counted_where_an_operator_sees_them() {
    let gateway = Gateway::with(|config| config.metrics = true).await;
    let _attached = gateway.reliable("u").await;
    gateway.reliable("v").await.cut();
    for id in ["1", "1", "2", "1"] {
        ask(&gateway, ":send", id, "x").await;
    }
    let until_detached = async || loop {
        let answer = Ask::new(gateway.address(), "GET", "/metrics").send().await;
        assert_eq!(answer.status, 200);
        assert!(answer.header("content-type").starts_with("application/openmetrics-text"));
        let text = String::from_utf8(answer.body).unwrap();
        if text.contains("oncewire_sockets{hub=\"chat\"} 1\n") {
            return text;
        }
    };
    let text = soon(until_detached()).await;
    assert!(text.contains("oncewire_sessions{hub=\"chat\"} 2\n"), "{text}");
    assert!(text.contains("oncewire_requests_repeated_total{hub=\"chat\"} 2\n"), "{text}");
    let without = Gateway::start().await;
    assert_eq!(Ask::new(without.address(), "GET", "/metrics").send().await.status, 404);
}

#[tokio::test]
async fn a_repeated_close_closes_nobody_who_came_later() {
    let gateway = Gateway::with(of_all).await;
    let first = gateway.json("u").await;
    let close = || ask(&gateway, ":closeConnections", "1", "");
    assert_eq!(close().await.status, 204);
    drop(first);
    let mut second = gateway.json("u").await;
    let answer = close().await;
    assert_eq!((answer.status, is_duplicate(&answer)), (204, true));
    assert!(second.settle().await.is_empty());
}

#[tokio::test]
async fn a_request_that_was_done_is_answered_so_whatever_became_of_its_user() {
    let sharded = Gateway::with(|config| {
        of_all(config);
        config.hub_shards = 4;
    });
    for gateway in [Gateway::with(of_all).await, sharded.await] {
        let client = gateway.json("u").await;
        let put = |path: &str| call(&gateway, "PUT", path).header("x-ms-client-request-id", "1");
        let connection = format!("groups/g/connections/{}", id_of(&client));
        let paths = ["users/u/groups/g", &connection];
        for path in paths {
            assert_eq!(put(path).send().await.status, 200);
        }
        expect(&gateway, "DELETE", &format!("connections/{}", id_of(&client)), 204).await;
        for path in paths {
            let answer = put(path).send().await;
            assert_eq!((answer.status, is_duplicate(&answer)), (200, true), "{path}");
            assert_eq!(put(path).header("x-ms-client-request-id", "2").send().await.status, 404);
        }
    }
}

#[tokio::test]
async fn a_hub_may_be_strict_or_not_care() {
    let gateway = Gateway::with(|config| {
        let own = |idempotency| HubOverrides { idempotency: Some(idempotency), ..HubOverrides::default() };
        config.hubs.insert("strict".to_owned(), own(Idempotency::Strict));
        config.hubs.insert("off".to_owned(), own(Idempotency::Off));
    })
    .await;
    let ask = async |hub: &str, body: &str| {
        let ask =
            signed(&gateway, "POST", &format!("/api/hubs/{hub}/:send")).header("content-type", "text/plain");
        ask.header("x-ms-client-request-id", "1").body(body).send().await
    };
    // Where nobody is nothing is sent, so that nothing need be remembered.
    for hub in ["strict", "off"] {
        drop(gateway.connector().hub(hub).token(&Token::user("u")).offer(RELIABLE).open().await.unwrap());
    }
    assert_eq!(ask("strict", "a").await.status, 202);
    assert!(is_duplicate(&ask("strict", "a").await));
    let other = ask("strict", "b").await;
    assert_eq!((other.status, other.header("x-ms-error-code")), (409, "Error.Request.Conflict"));
    for _ in 0..2 {
        let answer = ask("off", "a").await;
        assert_eq!((answer.status, is_duplicate(&answer)), (202, false));
    }
}

#[tokio::test]
async fn put_delete_put_of_a_membership_under_one_id_left_it_deleted() {
    for gateway in [Gateway::start().await, Gateway::sharded().await] {
        let mut client = gateway.reliable("u").await;
        for path in [format!("groups/g/connections/{}", id_of(&client)), "users/u/groups/g".to_owned()] {
            for (method, status, is_member) in [("PUT", 200, 200), ("DELETE", 204, 404), ("PUT", 200, 200)] {
                let answer =
                    call(&gateway, method, &path).header("x-ms-client-request-id", "trace").send().await;
                assert_eq!((answer.status, is_duplicate(&answer)), (status, false), "{method} {path}");
                expect(&gateway, "HEAD", "groups/g", is_member).await;
            }
            expect(&gateway, "DELETE", &path, 204).await;
        }
        for (path, body) in [(":addToGroups", true), (":removeFromGroups", false), (":addToGroups", true)] {
            let many = call(&gateway, "POST", path).header("content-type", "application/json");
            let many = many.header("x-ms-client-request-id", "trace").body("{\"groups\":[\"g\"]}");
            assert_eq!(many.send().await.status, 200);
            expect(&gateway, "HEAD", "groups/g", if body { 200 } else { 404 }).await;
        }
        assert_eq!(texts(&mut client).await, [] as [&str; 0]);
    }
}

#[tokio::test]
async fn grant_revoke_grant_under_one_id_left_it_revoked() {
    let gateway = Gateway::start().await;
    let client = gateway.session(RELIABLE, &Token::bare()).await;
    let path = format!("permissions/sendToGroup/connections/{}?targetName=g", id_of(&client));
    for (method, status, is_allowed) in [("PUT", 200, 200), ("DELETE", 204, 404), ("PUT", 200, 200)] {
        let answer = call(&gateway, method, &path).header("x-ms-client-request-id", "trace").send().await;
        assert_eq!(answer.status, status, "{method}");
        expect(&gateway, "HEAD", &path, is_allowed).await;
    }
}

#[tokio::test]
async fn a_close_under_the_id_of_an_earlier_one_closed_nobody() {
    let gateway = Gateway::start().await;
    for _ in 0..2 {
        let mut client = gateway.json("u").await;
        assert_eq!(ask(&gateway, ":closeConnections", "trace", "").await.status, 204);
        client.settle_until_close(1000).await;
    }
}

#[tokio::test]
async fn a_send_with_other_metadata_or_another_content_type_was_taken_for_a_repetition() {
    let gateway = Gateway::start().await;
    let mut client = gateway.reliable("u").await;
    let send = |content_type: &str| {
        let ask = call(&gateway, "POST", ":send").header("x-ms-client-request-id", "1");
        ask.header("content-type", content_type).body("1")
    };
    for (ask, is_repeated) in [
        (send("text/plain"), false),
        (send("application/json"), false),
        (send("text/plain").header("x-webpubsub-metadata-k", "v"), false),
        (send("text/plain").header("x-webpubsub-metadata-k", "w"), false),
        (send("text/plain").header("X-WebPubSub-Metadata-K", "w"), true),
        (send("text/plain").header("user-agent", "another"), true),
        (send("application/json"), true),
    ] {
        let answer = ask.send().await;
        assert_eq!((answer.status, is_duplicate(&answer)), (202, is_repeated));
    }
    let read: Vec<Value> = client.settle().await;
    let read = read.iter().map(|message| (&message["dataType"], &message["data"], &message["metadata"]["k"]));
    let none = Value::Null;
    let (text, json) = (json!("text"), json!("json"));
    assert!(read.eq([
        (&text, &json!("1"), &none),
        (&json, &json!(1), &none),
        (&text, &json!("1"), &json!("v")),
        (&text, &json!("1"), &json!("w")),
    ]));
}

#[tokio::test]
async fn an_id_has_256_bytes_at_most_where_it_counts() {
    let gateway = Gateway::start().await;
    assert_eq!(ask(&gateway, ":send", &"i".repeat(256), "").await.status, 202);
    assert_eq!(ask(&gateway, ":send", &"i".repeat(257), "").await.status, 400);
    assert_eq!(ask(&gateway, ":closeConnections", &"i".repeat(257), "").await.status, 204);
    let off = Gateway::with(|config| config.idempotency = Idempotency::Off).await;
    assert_eq!(ask(&off, ":send", &"i".repeat(257), "").await.status, 202);
}

#[tokio::test]
async fn while_a_request_is_being_stored_its_repetition_waits_and_after_a_failure_both_may_come_again() {
    let store = HeldStore::default();
    let gateway = Gateway::with_store(Arc::new(store.clone()), |_| {}).await;
    let mut client = gateway.reliable("u").await;
    store.fail_next(Failure::Definite);
    assert_eq!(ask(&gateway, ":send", "1", "a").await.status, 503);
    store.hold();
    let both = async { tokio::join!(ask(&gateway, ":send", "1", "a"), ask(&gateway, ":send", "1", "a")) };
    let release = async {
        store.holds(1).await;
        a_while().await;
        store.release();
    };
    let ((first, second), ()) = tokio::join!(both, release);
    assert_eq!((first.status, second.status), (202, 202));
    assert_ne!(is_duplicate(&first), is_duplicate(&second));
    assert_eq!(texts(&mut client).await, ["a"]);
}
