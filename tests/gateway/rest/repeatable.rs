//! Repeatable requests, as OASIS Repeatable Requests 1.0 has them: the first answer is the answer.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use oncewire::config::{HubOverrides, Idempotency};

use super::*;

const ID: &str = "repeatability-request-id";
const FIRST_SENT: &str = "repeatability-first-sent";

/// A date as the header has it, so many seconds from now.
fn date(seconds_from_now: i64) -> String {
    let seconds = u64::try_from(now_unix_seconds() + seconds_from_now).unwrap();
    httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds))
}

/// A request that is sent now for the first time, and as often as wanted.
fn repeatable(gateway: &Gateway, method: &'static str, path: &str, id: &str) -> Ask {
    call(gateway, method, path).header(ID, id).header(FIRST_SENT, &date(0))
}

/// What a repetition has to be answered with too.
#[track_caller]
fn told(answer: &Answer, result: &str) -> (u16, Vec<String>, String) {
    assert_eq!(answer.header("repeatability-result"), result);
    let headers = answer.headers().filter(|(name, _)| *name != "date");
    let headers = headers.map(|(name, value)| format!("{name}: {value}")).collect();
    (answer.status, headers, String::from_utf8(answer.body.clone()).unwrap())
}

#[tokio::test]
async fn whatever_happens_in_between_a_repetition_is_answered_as_the_first_and_changes_nothing() {
    for gateway in [Gateway::start().await, Gateway::sharded().await] {
        let mut client = gateway.reliable("u").await;
        let id = id_of(&client);
        let rule = format!("permissions/sendToGroup/connections/{id}?targetName=g");
        let member = format!("groups/g/connections/{id}");
        let nobody = "permissions/sendToGroup/connections/nobody?targetName=g";
        let all = "{\"groups\":[\"h\"]}";
        let (to_connection, groups) = (format!("connections/{id}/:send"), format!("connections/{id}/groups"));
        // What is asked, and what undoes it.
        let operations = [
            ("POST", ":send", "m", 202, None),
            ("POST", "groups/g/:send", "m", 202, None),
            ("POST", "users/u/:send", "m", 202, None),
            ("POST", &*to_connection, "m", 202, None),
            ("PUT", &*member, "", 200, Some(("DELETE", &*member))),
            ("DELETE", &*member, "", 204, Some(("PUT", &*member))),
            ("PUT", "users/u/groups/g", "", 200, Some(("DELETE", "users/u/groups/g"))),
            ("DELETE", "users/u/groups/g", "", 204, Some(("PUT", "users/u/groups/g"))),
            ("DELETE", "users/u/groups", "", 204, Some(("PUT", "users/u/groups/g"))),
            ("DELETE", &*groups, "", 204, Some(("PUT", &*member))),
            ("POST", ":addToGroups", all, 200, Some(("DELETE", "users/u/groups"))),
            ("POST", ":removeFromGroups", all, 200, Some(("PUT", "users/u/groups/h"))),
            ("PUT", &*rule, "", 200, Some(("DELETE", &*rule))),
            ("DELETE", &*rule, "", 204, Some(("PUT", &*rule))),
            ("DELETE", nobody, "", 204, None),
            ("PUT", nobody, "", 404, None),
            ("PUT", "groups/g/connections/nobody", "", 404, None),
            ("PUT", "users/nobody/groups/g", "", 404, None),
            ("POST", ":send?messageTtlSeconds=301", "m", 400, None),
        ];
        for (n, (method, path, body, status, undoing)) in operations.into_iter().enumerate() {
            let content_type = if body.starts_with('{') { "application/json" } else { "text/plain" };
            let ask = repeatable(&gateway, method, path, &n.to_string());
            let ask = ask.header("content-type", content_type).body(body);
            let first = told(&ask.send().await, "accepted");
            assert_eq!(first.0, status, "{method} {path}: {}", first.2);
            if let Some((method, path)) = undoing {
                let undone = call(&gateway, method, path).send().await.status;
                assert!(undone < 300, "{method} {path}");
            }
            let is_there = async |path: &str| call(&gateway, "HEAD", path).send().await.status;
            let state =
                async || (is_there("groups/g").await, is_there("groups/h").await, is_there(&rule).await);
            let before = state().await;
            for _ in 0..2 {
                assert_eq!(told(&ask.send().await, "accepted"), first, "{method} {path}");
            }
            assert_eq!(state().await, before, "{method} {path}");
        }
        assert_eq!(
            texts(&mut client).await,
            ["m", "m", "m"],
            "of the sends, one went to a group without members"
        );
    }
}

#[tokio::test]
async fn a_refusal_stays_also_when_there_is_no_reason_for_it_any_more() {
    for gateway in [Gateway::start().await, Gateway::sharded().await] {
        let put = |id: &str| repeatable(&gateway, "PUT", "users/u/groups/g", id);
        let asked = put("1");
        let first = told(&asked.send().await, "accepted");
        assert_eq!(first.0, 404);
        let _client = gateway.json("u").await;
        assert_eq!(told(&asked.send().await, "accepted"), first);
        expect(&gateway, "HEAD", "groups/g", 404).await;
        assert_eq!(put("2").send().await.status, 200);
        assert_eq!(told(&asked.send().await, "accepted"), first);
    }
}

#[tokio::test]
async fn headers_that_are_none_and_times_outside_of_the_window_are_rejected() {
    let window = |config: &mut oncewire::config::Config| config.idempotency_window_seconds = 3600;
    let gateway = Gateway::with(window).await;
    let mut client = gateway.reliable("u").await;
    let send = || call(&gateway, "POST", ":send").header("content-type", "text/plain").body("m");
    let now = date(0);
    let rfc_850 = "Sunday, 06-Nov-94 08:49:37 GMT";
    for (id, first_sent, status) in [
        (Some("1"), None, 400),
        (None, Some(&*now), 400),
        (Some(""), Some(&*now), 400),
        (Some(&*"i".repeat(257)), Some(&*now), 400),
        (Some("1"), Some(""), 400),
        (Some("1"), Some("yesterday"), 400),
        (Some("1"), Some(rfc_850), 400),
        (Some("1"), Some(&*now.replace("GMT", "UTC")), 400),
        (Some("1"), Some("2026-11-28T20:00:00Z"), 400),
        (Some("1"), Some(&*date(-3700)), 412),
        (Some("1"), Some(&*date(400)), 412),
    ] {
        let headers = [(ID, id), (FIRST_SENT, first_sent)];
        let ask = headers.into_iter().fold(send(), |ask, (name, value)| match value {
            Some(value) => ask.header(name, value),
            None => ask,
        });
        let answer = ask.send().await;
        assert_eq!(answer.status, status, "{id:?} {first_sent:?}");
        assert_eq!(answer.header("repeatability-result"), "rejected");
        assert!(answer.json()["message"].is_string());
    }
    let twice = send().header(ID, "1").header("Repeatability-Request-ID", "2").header(FIRST_SENT, &now);
    assert_eq!(twice.send().await.status, 400);
    let alone = send().header("repeatability-client-id", "c");
    assert_eq!(alone.send().await.status, 400);
    assert_eq!(texts(&mut client).await, [] as [&str; 0]);
    for (id, seconds) in [("1", -3500), ("2", 200), (&*"i".repeat(256), 0)] {
        let answer = send().header(ID, id).header(FIRST_SENT, &date(seconds)).send().await;
        assert_eq!((answer.status, answer.header("repeatability-result")), (202, "accepted"));
    }
    assert!(!send().send().await.has("repeatability-result"));
    let bare = Ask::new(gateway.address(), "POST", "/api/hubs/chat/:send").header(ID, "1");
    let unknown = bare.header("content-length", "0").send().await;
    assert!(unknown.status == 401 && !unknown.has("repeatability-result"), "a stranger learns nothing");
}

#[tokio::test]
async fn another_request_under_a_used_id_is_rejected() {
    let gateway = Gateway::start().await;
    let mut client = gateway.reliable("u").await;
    let send = |path: &str, body: &str| {
        call(&gateway, "POST", path).header("content-type", "text/plain").header(ID, "1").body(body)
    };
    let first_sent = date(-10);
    let first = send(":send", "a").header(FIRST_SENT, &first_sent);
    assert_eq!(first.send().await.status, 202);
    for other in [
        send(":send", "b").header(FIRST_SENT, &first_sent),
        send("users/u/:send", "a").header(FIRST_SENT, &first_sent),
        send(":send", "a").header(FIRST_SENT, &date(0)),
        send(":send", "a").header(FIRST_SENT, &first_sent).header("content-type", "application/octet-stream"),
        send(":send", "a").header(FIRST_SENT, &first_sent).header("x-webpubsub-metadata-k", "v"),
    ] {
        let answer = other.send().await;
        assert_eq!((answer.status, answer.header("repeatability-result")), (400, "rejected"));
        assert_eq!(answer.json()["target"], "repeatability-request-id");
    }
    for client_id in ["c", "d"] {
        let other = first.clone().header("repeatability-client-id", client_id);
        for _ in 0..2 {
            assert_eq!(other.send().await.status, 202, "an id is unique within its client");
        }
    }
    assert_eq!(texts(&mut client).await, ["a", "a", "a"]);
}

#[tokio::test]
async fn what_is_forgotten_before_its_time_is_refused_and_not_executed_again() {
    let gateway = Gateway::with(|config| config.idempotency_requests_max = 2).await;
    let mut client = gateway.reliable("u").await;
    let send = |id: &str, first_sent: &str| {
        let ask = call(&gateway, "POST", ":send").header("content-type", "text/plain").body(id);
        ask.header(ID, id).header(FIRST_SENT, first_sent)
    };
    let asks = ["1", "2", "3"].map(|id| send(id, &date(-20 + id.parse::<i64>().unwrap())));
    for ask in &asks {
        assert_eq!(ask.send().await.status, 202);
    }
    let forgotten = asks[0].send().await;
    assert_eq!((forgotten.status, forgotten.header("repeatability-result")), (412, "rejected"));
    for ask in &asks[1..] {
        assert_eq!(ask.send().await.status, 202);
    }
    for id in ["x", "y", "z"] {
        let plain = call(&gateway, "POST", ":send").header("content-type", "text/plain").body("plain");
        assert_eq!(plain.header("x-ms-client-request-id", id).send().await.status, 202);
    }
    assert_eq!(asks[1].send().await.status, 202, "requests of the other kind do not count");
    assert_eq!(texts(&mut client).await, ["1", "2", "3", "plain", "plain", "plain"]);
}

#[tokio::test]
async fn a_repetition_waits_for_the_first_also_when_it_would_be_refused_by_itself() {
    let store = HeldStore::default();
    let gateway = Gateway::with_store(Arc::new(store.clone()), |_| {}).await;
    let client = gateway.json("u").await;
    let ask = repeatable(&gateway, "PUT", "users/u/groups/g", "1");
    store.hold();
    let first = tokio::spawn({
        let ask = ask.clone();
        async move { ask.send().await }
    });
    store.holds(1).await;
    client.close(1000).await;
    let until_gone = async {
        while call(&gateway, "HEAD", "users/u").send().await.status == 200 {
            tokio::task::yield_now().await;
        }
    };
    soon(until_gone).await;
    let again = tokio::spawn(async move { ask.send().await });
    a_while().await;
    assert!(!again.is_finished(), "what the answer is, is not known yet");
    store.release();
    let (first, again) = (soon(first).await.unwrap(), soon(again).await.unwrap());
    assert_eq!(told(&first, "accepted").0, 200);
    assert_eq!(told(&again, "accepted"), told(&first, "accepted"));
}

#[tokio::test]
async fn what_could_not_be_stored_may_come_again() {
    let store = HeldStore::default();
    let gateway = Gateway::with_store(Arc::new(store.clone()), |_| {}).await;
    let mut client = gateway.reliable("u").await;
    let ask = repeatable(&gateway, "POST", ":send", "1").header("content-type", "text/plain").body("m");
    store.fail_next(Failure::Definite);
    assert_eq!(told(&ask.send().await, "rejected").0, 503);
    for _ in 0..2 {
        assert_eq!(told(&ask.send().await, "accepted").0, 202);
    }
    assert_eq!(texts(&mut client).await, ["m"]);
}

#[tokio::test]
async fn no_setting_for_the_other_id_touches_them() {
    let gateway = Gateway::with(|config| {
        let own = HubOverrides { idempotency: Some(Idempotency::Off), ..HubOverrides::default() };
        config.hubs.insert(HUB.to_owned(), own);
    })
    .await;
    let mut client = gateway.reliable("u").await;
    let ask = repeatable(&gateway, "POST", ":send", "1").header("content-type", "text/plain").body("m");
    let first = told(&ask.send().await, "accepted");
    assert_eq!(told(&ask.send().await, "accepted"), first);
    // The other id counts for nothing where this one is there.
    let other = ask.header("x-ms-client-request-id", &"i".repeat(1000));
    assert_eq!(told(&other.send().await, "accepted"), first);
    assert_eq!(texts(&mut client).await, ["m"]);
}

#[tokio::test]
async fn a_token_is_generated_once_and_what_only_asks_is_answered_anew() {
    let gateway = Gateway::start().await;
    let generate =
        call(&gateway, "POST", ":generateToken?userId=u").header(ID, "1").header(FIRST_SENT, &date(-100));
    let first = told(&generate.send().await, "accepted");
    assert_eq!(told(&generate.send().await, "accepted"), first);
    let token = serde_json::from_str::<Value>(&first.2).unwrap()["token"].as_str().unwrap().to_owned();
    let socket = gateway.connector().query("access_token", &token).offer(RELIABLE).open().await;
    let mut socket = socket.unwrap();
    socket.read_connected().await;
    let exists = repeatable(&gateway, "HEAD", "users/v", "2");
    assert_eq!(told(&exists.send().await, "accepted").0, 404);
    let _client = gateway.json("v").await;
    assert_eq!(told(&exists.send().await, "accepted").0, 200);
}
