//! What all answers have in common: versions, routes, bodies of errors.

use super::*;

const VERSIONS: &str = "2021-10-01, 2022-11-01, 2023-07-01, 2024-01-01, 2024-12-01";

#[tokio::test]
async fn every_answer_lists_the_versions_and_all_of_them_work() {
    let gateway = Gateway::start().await;
    for version in VERSIONS.split(", ") {
        let answer =
            signed(&gateway, "POST", &format!("/api/hubs/chat/:send?api-version={version}")).send().await;
        assert_eq!((answer.status, answer.header("api-supported-versions")), (202, VERSIONS));
    }
    let answer = signed(&gateway, "POST", "/api/hubs/chat/:send").send().await;
    assert_eq!(answer.status, 202, "a version need not be named");
    for bad in ["", "2099-01-01", "2024-12-01,2024-12-01", "2024-12-01&api-version=2024-12-01"] {
        let answer =
            signed(&gateway, "POST", &format!("/api/hubs/chat/:send?api-version={bad}")).send().await;
        assert_eq!((answer.status, answer.header("api-supported-versions")), (400, VERSIONS), "{bad}");
        let detail = answer.json();
        assert_eq!((&detail["code"], &detail["target"]), (&json!("Error.BadRequest"), &json!("api-version")));
        assert_eq!(detail["message"], "The specified API version is not supported.");
    }
    let health = Ask::new(gateway.address(), "HEAD", "/api/health").send().await;
    assert_eq!((health.status, health.header("api-supported-versions")), (200, VERSIONS));
}

#[tokio::test]
async fn a_route_that_is_none_is_404_and_another_method_405() {
    let gateway = Gateway::start().await;
    for (method, target, status) in [
        ("POST", "/api/hubs/chat/connections//:send", 404),
        ("POST", "/api/hubs/chat/:send/more", 404),
        ("POST", "/api/hubs/chat/send", 404),
        ("HEAD", "/api/hubs/chat/users/u/groups/g", 405),
        ("GET", "/api/hubs/chat/:send", 405),
        ("PATCH", "/api/hubs/chat/connections/c", 405),
        ("POST", "/api/hubs/9chat/:send", 400),
        ("POST", "/api/hubs/chat/users/%FF/:send", 400),
        ("POST", "/api/hubs/chat/users/%zz/:send", 400),
        ("POST", "/api/hubs/chat/:send?filter=%FF", 400),
    ] {
        let answer = signed(&gateway, method, target).send().await;
        assert_eq!(
            (answer.status, answer.header("api-supported-versions")),
            (status, VERSIONS),
            "{method} {target}"
        );
    }
    let answer = signed(&gateway, "PATCH", "/api/hubs/chat/connections/c").send().await;
    assert_eq!(answer.header("allow"), "DELETE, HEAD");
}

#[tokio::test]
async fn a_content_type_that_is_refused_was_not_told_which_ones_are_good() {
    let gateway = Gateway::start().await;
    let ask = signed(&gateway, "POST", "/api/hubs/chat/:send").header("content-type", "text/html");
    let message = ask.header("content-length", "0").send().await.json()["message"].to_string();
    for good in ["text/plain", "application/json", "application/octet-stream"] {
        assert!(message.contains(good), "{message}");
    }
}

#[tokio::test]
async fn every_refusal_has_a_flat_body_with_the_code_of_its_header() {
    let gateway = Gateway::start().await;
    let refusals = [
        (signed(&gateway, "POST", "/api/hubs/chat/send"), 404, "Error.NotFound"),
        (signed(&gateway, "GET", "/api/hubs/chat/:send"), 405, "Error.MethodNotAllowed"),
        (Ask::new(gateway.address(), "POST", "/api/hubs/chat/:send"), 401, "Error.Unauthorized"),
        (
            signed(&gateway, "POST", "/api/hubs/chat/:send").header("content-type", "text/html"),
            415,
            "Error.UnsupportedMediaType",
        ),
        (
            signed(&gateway, "POST", "/api/hubs/chat/:send").header("content-encoding", "gzip"),
            415,
            "Error.UnsupportedMediaType",
        ),
        (signed(&gateway, "POST", "/api/hubs/9chat/:send"), 400, "Error.BadRequest"),
    ];
    for (ask, status, code) in refusals {
        let answer = ask.header("content-length", "0").send().await;
        assert_eq!((answer.status, answer.header("x-ms-error-code")), (status, code));
        assert_eq!(answer.header("content-type"), "application/json");
        let detail = answer.json();
        assert_eq!(detail["code"], code);
        assert!(detail["message"].is_string() && detail.get("error").is_none(), "{detail}");
    }
}

#[tokio::test]
async fn names_of_all_kinds_are_understood() {
    let gateway = Gateway::start().await;
    let mut names = vec!["a b", "a/b", "a+b", "a%2Fb", "é", "!*'()", "?", "#", "..", "\u{1F600}"];
    names.push("a;b=c&d");
    for name in names {
        let mut client = gateway.session(RELIABLE, &Token::bare().named(name)).await;
        let encoded =
            percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC).to_string();
        expect(&gateway, "HEAD", &format!("users/{encoded}"), 200).await;
        send_text(&gateway, &format!("users/{encoded}/:send"), name).await;
        assert_eq!(texts(&mut client).await, [name]);
    }
}

#[tokio::test]
async fn a_group_that_a_client_can_join_is_within_reach() {
    let gateway = Gateway::start().await;
    for group in ["a\nb", "a\n", "a\0b", "\u{7f}", "a\u{2028}b"] {
        let mut client = gateway.session(RELIABLE, &Token::user("u").group(group)).await;
        let encoded =
            percent_encoding::utf8_percent_encode(group, percent_encoding::NON_ALPHANUMERIC).to_string();
        expect(&gateway, "HEAD", &format!("groups/{encoded}"), 200).await;
        send_text(&gateway, &format!("groups/{encoded}/:send"), "x").await;
        assert_eq!(texts(&mut client).await, ["x"], "{group:?}");
    }
}

#[tokio::test]
async fn hubs_are_apart_and_found_in_any_case() {
    let gateway = Gateway::start().await;
    let mut client = gateway.json("u").await;
    let mut elsewhere =
        gateway.connector().hub("other").token(&Token::user("u")).offer(JSON).open().await.unwrap();
    elsewhere.read_connected().await;
    let answer = signed(&gateway, "POST", "/api/hubs/CHAT/:send").header("content-type", "text/plain");
    assert_eq!(answer.body("x").send().await.status, 202);
    assert_eq!((texts(&mut client).await.len(), texts(&mut elsewhere).await.len()), (1, 0));
}
