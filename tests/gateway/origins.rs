//! Pages of other origins: who may connect from a browser, and who may read answers.

use std::collections::BTreeMap;

use oncewire::config::{Config, HubOverrides};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::*;

const FOREIGN: &str = "https://page.example";
const LISTED: &str = "https://app.example";

fn with_open_hub(config: &mut Config) {
    let open = HubOverrides { anonymous: true, ..HubOverrides::default() };
    config.hubs = BTreeMap::from([("open".to_owned(), open)]);
}

/// The status of an upgrade that a page of this origin asks for, with a token or to the hub that needs none.
async fn status(gateway: &Gateway, origin: Option<&str>, token: Option<&Token>) -> u16 {
    let connector = match token {
        Some(token) => gateway.connector().token(token),
        None => gateway.connector().hub("open"),
    };
    match origin {
        Some(origin) => connector.header("Origin", origin).status().await,
        None => connector.status().await,
    }
}

#[tokio::test]
async fn by_default_a_page_needs_a_token_or_the_gateways_own_origin() {
    let gateway = Gateway::with(with_open_hub).await;
    let own = format!("http://{}", gateway.address());
    let token = Token::user("a");
    for origin in [None, Some(own.as_str()), Some(FOREIGN), Some("null")] {
        assert_eq!(status(&gateway, origin, Some(&token)).await, 101, "{origin:?}");
    }
    for (origin, expected) in
        [(None, 101), (Some(own.as_str()), 101), (Some(FOREIGN), 403), (Some("null"), 403)]
    {
        assert_eq!(status(&gateway, origin, None).await, expected, "{origin:?}");
    }
    // A hub that needs a token says so, whoever asks.
    let closed = gateway.connector().header("Origin", FOREIGN).status().await;
    assert_eq!(closed, 401);
    // A bad token is none, and its refusal tells no more than elsewhere.
    let bad = gateway.connector().hub("open").query("access_token", "x").header("Origin", FOREIGN);
    assert_eq!(bad.status().await, 401);
}

#[tokio::test]
async fn a_list_binds_all_pages_and_nobody_else() {
    let gateway = Gateway::with(|config| {
        with_open_hub(config);
        config.allowed_origins = vec![LISTED.parse().unwrap()];
    })
    .await;
    let own = format!("http://{}", gateway.address());
    let token = Token::user("a");
    for token in [Some(&token), None] {
        for (origin, expected) in
            [(None, 101), (Some(LISTED), 101), (Some(FOREIGN), 403), (Some(own.as_str()), 403)]
        {
            assert_eq!(status(&gateway, origin, token).await, expected, "{origin:?}");
        }
    }
    let subscriber = gateway.reliable("s").await;
    let identity = subscriber.identity();
    subscriber.cut();
    let recover = || gateway.connector().recover(&identity).offer(RELIABLE);
    assert_eq!(recover().header("Origin", FOREIGN).status().await, 403);
    recover().header("Origin", LISTED).open().await.unwrap().expect_quiet().await;
}

#[tokio::test]
async fn a_list_takes_applications_with_a_browser_inside_files_and_whole_domains() {
    let gateway = Gateway::with(|config| {
        let listed = ["capacitor://localhost", "null", "https://*.example.com"];
        config.allowed_origins = listed.iter().map(|origin| origin.parse().unwrap()).collect();
    })
    .await;
    let token = Token::user("a");
    for (origin, expected) in [
        ("capacitor://localhost", 101),
        ("null", 101),
        ("https://app.example.com", 101),
        ("https://example.com", 403),
        ("ionic://localhost", 403),
        ("https://app.example.com.evil.example", 403),
    ] {
        assert_eq!(status(&gateway, Some(origin), Some(&token)).await, expected, "{origin}");
    }
}

/// The head of an answer, in lower case.
async fn head(gateway: &Gateway, method: &str, lines: &str) -> String {
    let mut stream = TcpStream::connect(gateway.address()).await.unwrap();
    let head = format!("{method} /api/health HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{lines}\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    soon(stream.read_to_string(&mut answer)).await.unwrap();
    answer.to_lowercase()
}

#[tokio::test]
async fn answers_may_be_read_by_pages_of_listed_origins_alone() {
    let preflight = |origin: &str| {
        format!(
            "Origin: {origin}\r\nAccess-Control-Request-Method: GET\r\n\
             Access-Control-Request-Headers: authorization\r\n"
        )
    };
    let gateway = Gateway::start().await;
    for lines in [format!("Origin: {FOREIGN}\r\n"), preflight(FOREIGN)] {
        assert!(!head(&gateway, "GET", &lines).await.contains("access-control-"));
        assert!(!head(&gateway, "OPTIONS", &lines).await.contains("access-control-"));
    }
    let gateway = Gateway::with(|config| config.allowed_origins = vec![LISTED.parse().unwrap()]).await;
    let answer = head(&gateway, "GET", &format!("Origin: {LISTED}\r\n")).await;
    assert!(answer.starts_with("http/1.1 200 "), "{answer}");
    assert!(answer.contains(&format!("access-control-allow-origin: {LISTED}\r\n")), "{answer}");
    let asked = head(&gateway, "OPTIONS", &preflight(LISTED)).await;
    assert!(asked.starts_with("http/1.1 200 "), "{asked}");
    for line in [
        format!("access-control-allow-origin: {LISTED}\r\n"),
        "access-control-allow-headers: authorization\r\n".to_owned(),
    ] {
        assert!(asked.contains(&line), "{asked}");
    }
    for (method, lines) in [("GET", format!("Origin: {FOREIGN}\r\n")), ("OPTIONS", preflight(FOREIGN))] {
        assert!(!head(&gateway, method, &lines).await.contains("access-control-allow-origin"));
    }
    let without = head(&gateway, "GET", "").await;
    assert!(without.starts_with("http/1.1 200 "), "{without}");
}
