//! Requests that come again.

use std::sync::Arc;

use oncewire::config::{HubOverrides, Idempotency};

use super::*;

async fn ask(gateway: &Gateway, path: &str, id: &str, body: &str) -> Answer {
    let ask =
        call(gateway, "POST", path).header("content-type", "text/plain").header("x-ms-client-request-id", id);
    ask.body(body).send().await
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
    let gateway = Gateway::start().await;
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
    for gateway in [Gateway::start().await, Gateway::sharded().await] {
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
async fn an_id_has_256_bytes_at_most() {
    let gateway = Gateway::start().await;
    assert_eq!(ask(&gateway, ":send", &"i".repeat(256), "").await.status, 202);
    assert_eq!(ask(&gateway, ":send", &"i".repeat(257), "").await.status, 400);
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
