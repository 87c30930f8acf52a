//! The demo page and its operations, and who may use them.

use std::path::{Path, PathBuf};

use oncewire::demo::BODY_BYTES_MAX;
use serde_json::{Value, json};

use crate::support::*;
use crate::tls::Secured;

const DEMO_HUB: &str = "demo";

async fn gateway() -> Gateway {
    Gateway::with(|config| config.demo = true).await
}

fn get(gateway: &Gateway, path: &str) -> Ask {
    Ask::new(gateway.address(), "GET", path)
}

/// As the page sends it.
fn post(gateway: &Gateway, path: &str, body: impl Into<String>) -> Ask {
    Ask::new(gateway.address(), "POST", path)
        .header("origin", &format!("http://{}", gateway.address()))
        .header("content-type", "application/json")
        .body(body)
}

/// Each operation of the page, with a body that is right in form.
fn posts(gateway: &Gateway) -> Vec<Ask> {
    let bodies = [
        ("/demo/negotiate", r#"{"user":"ann"}"#),
        ("/demo/faults/cut", r#"{"connectionId":"c"}"#),
        ("/demo/faults/stall", r#"{"connectionId":"c","milliseconds":1}"#),
        ("/demo/faults/lose-next-ack", r#"{"connectionId":"c"}"#),
        ("/demo/restart", "{}"),
    ];
    bodies.map(|(path, body)| post(gateway, path, body)).to_vec()
}

/// The files that the page was built into.
fn built() -> Vec<String> {
    fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { collect(&path, files) } else { files.push(path) }
        }
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("web-demo/dist");
    let mut files = Vec::new();
    collect(&folder, &mut files);
    files.iter().map(|file| file.strip_prefix(&folder).unwrap().to_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn without_the_demo_none_of_its_paths_exists() {
    let gateway = Gateway::start().await;
    let page = built().into_iter().map(|file| format!("/{file}"));
    for path in page.chain(["/".to_owned(), "/demo/status".to_owned()]) {
        assert_eq!(get(&gateway, &path).send().await.status, 404, "{path}");
    }
    for ask in posts(&gateway) {
        assert_eq!(ask.send().await.status, 404);
    }
}

#[tokio::test]
async fn each_built_file_is_served_as_what_it_is() {
    let gateway = gateway().await;
    for file in built() {
        let path = if file == "index.html" { "/".to_owned() } else { format!("/{file}") };
        let answer = get(&gateway, &path).send().await;
        assert_eq!(answer.status, 200, "{path}");
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("web-demo/dist");
        assert!(answer.body == std::fs::read(folder.join(&file)).unwrap(), "{path}");
        let kind = match file.rsplit_once('.').unwrap().1 {
            "html" => "text/html; charset=utf-8",
            "js" => "text/javascript; charset=utf-8",
            "css" => "text/css; charset=utf-8",
            "svg" => "image/svg+xml",
            "txt" => "text/plain; charset=utf-8",
            other => panic!("what is a {other} file served as?"),
        };
        assert_eq!(answer.header("content-type"), kind);
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
        assert_eq!(
            answer.header("cache-control").contains("immutable"),
            file.starts_with("assets/"),
            "{path}"
        );
        let policy = answer.header("content-security-policy");
        assert!(policy.contains("default-src 'none'") && policy.contains("script-src 'self';"), "{policy}");
        assert!(
            policy.contains(&format!(" ws://{};", gateway.address())) && !policy.contains("unsafe"),
            "{policy}"
        );
        let head = Ask::new(gateway.address(), "HEAD", &path).send().await;
        assert_eq!((head.status, head.body.len()), (200, 0));
        assert_eq!(head.header("content-type"), kind);
    }
    for path in ["/assets/", "/assets/none.js", "/none", "/index.html", "/assets/../Cargo.toml", "/demo/none"]
    {
        assert_eq!(get(&gateway, path).send().await.status, 404, "{path}");
    }
}

#[tokio::test]
async fn the_page_is_asked_for_again_and_sent_only_if_it_has_changed() {
    let gateway = gateway().await;
    let page = get(&gateway, "/").send().await;
    assert_eq!(page.header("cache-control"), "no-cache");
    let again = get(&gateway, "/").header("if-none-match", page.header("etag")).send().await;
    assert_eq!((again.status, again.body.len()), (304, 0));
    assert_eq!(again.header("etag"), page.header("etag"));
    let other = get(&gateway, "/").header("if-none-match", "\"another\"").send().await;
    assert_eq!((other.status, other.body.len()), (200, page.body.len()));
}

#[tokio::test]
async fn what_is_negotiated_opens_a_session_in_the_demos_hub_and_no_other() {
    let gateway = gateway().await;
    for host in [gateway.address().to_string(), format!("localhost:{}", gateway.address().port())] {
        let ask = post(&gateway, "/demo/negotiate", r#"{"user":"ann & bob"}"#);
        let answer = ask.header("host", &host).header("origin", &format!("http://{host}")).send().await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("cache-control"), "no-store");
        let negotiated = answer.json();
        assert_eq!((&negotiated["hub"], &negotiated["userId"]), (&json!(DEMO_HUB), &json!("ann & bob")));
        assert_eq!(negotiated.as_object().unwrap().len(), 3);
        let url = negotiated["url"].as_str().unwrap();
        let (base, token) = url.split_once("?access_token=").unwrap();
        assert_eq!(base, format!("ws://{host}/client/hubs/demo"));
        let connector = gateway.connector().host(&host).query("access_token", token).offer(RELIABLE);
        assert_eq!(connector.clone().open().await.err(), Some(Refused(401)));
        let mut socket = connector.hub(DEMO_HUB).open().await.unwrap();
        socket.read_connected().await;
        assert_eq!(socket.user_id(), Some("ann & bob"));
        socket.done(join("any room", 1)).await;
        socket.done(publish("any other room", 2, "text")).await;
    }
}

#[tokio::test]
async fn over_tls_the_page_is_told_to_come_back_over_tls() {
    let secured = Secured::with(|config| config.demo = true).await;
    let (tls, address) = (&secured.client, secured.gateway.tls_address());
    let ask = Ask::new(address, "POST", "/demo/negotiate")
        .inside(tls)
        .header("content-type", "application/json")
        .header("x-forwarded-proto", "http")
        .body(r#"{"user":"ann"}"#);
    let answer = ask.clone().header("origin", &format!("https://{address}")).send().await;
    let url = answer.json()["url"].as_str().unwrap().to_owned();
    let (base, token) = url.split_once("?access_token=").unwrap();
    assert_eq!(base, format!("wss://{address}/client/hubs/demo"));
    let connector = secured.gateway.tls_connector(tls).hub(DEMO_HUB).query("access_token", token);
    connector.offer(RELIABLE).open().await.unwrap().read_connected().await;
    assert_eq!(ask.header("origin", &format!("http://{address}")).send().await.status, 403);
    let page = Ask::new(address, "GET", "/").inside(tls).send().await;
    assert!(page.header("content-security-policy").contains(&format!(" wss://{address};")));
}

#[tokio::test]
async fn behind_a_proxy_the_public_url_is_where_clients_come_in() {
    let public = "https://chat.example.com/wps";
    let gateway = Gateway::with(|config| {
        config.demo = true;
        config.public_urls = vec![public.parse().unwrap()];
    })
    .await;
    for path in ["/demo/negotiate", "/wps/demo/negotiate"] {
        let ask = post(&gateway, path, r#"{"user":"ann"}"#).header("host", "chat.example.com");
        let answer = ask.clone().header("origin", "https://chat.example.com").send().await;
        let url = answer.json()["url"].as_str().unwrap().to_owned();
        assert!(url.starts_with("wss://chat.example.com/wps/client/hubs/demo?"), "{url}");
        assert_eq!(ask.header("origin", "http://chat.example.com").send().await.status, 403);
    }
    let moved = get(&gateway, "/wps").header("host", "chat.example.com").send().await;
    assert_eq!((moved.status, moved.header("location")), (308, "/wps/"));
    for file in built() {
        let path = if file == "index.html" { "/wps/".to_owned() } else { format!("/wps/{file}") };
        let answer = get(&gateway, &path).header("host", "chat.example.com").send().await;
        assert_eq!(answer.status, 200, "{path}");
    }
    let page = get(&gateway, "/wps/").header("host", "chat.example.com").send().await;
    assert!(page.header("content-security-policy").contains(" wss://chat.example.com;"));
}

#[tokio::test]
async fn the_status_tells_what_survives_and_which_start_this_is() {
    let gateway = gateway().await;
    let first = get(&gateway, "/demo/status").send().await;
    assert_eq!((first.status, first.header("cache-control")), (200, "no-store"));
    let status = first.json();
    let boot = status["boot"].as_str().unwrap();
    assert!(!boot.is_empty());
    assert_eq!(status["canRestart"], false);
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!((&status["store"], &status["durability"]), (&json!("disk"), &json!("sync")));
    assert_eq!(get(&gateway, "/demo/status").send().await.json(), status);
    let other = Gateway::with(|config| {
        config.demo = true;
        config.store = oncewire::config::Store::Memory;
    })
    .await;
    let status = get(&other, "/demo/status").send().await.json();
    assert_eq!((&status["store"], &status["durability"]), (&json!("memory"), &json!("memory")));
    assert_ne!(status["boot"], boot);
}

#[tokio::test]
async fn under_a_name_that_somebody_else_may_have_resolve_here_nothing_is_served() {
    let gateway = gateway().await;
    let reads = ["/", "/demo/status"].map(|path| get(&gateway, path));
    for ask in reads.into_iter().chain(posts(&gateway)) {
        for host in ["evil.example", "localhost.evil.example", "10.0.0.1:8080"] {
            let foreign = ask.clone().header("host", host).header("origin", &format!("http://{host}"));
            let answer = foreign.send().await;
            assert_eq!(answer.status, 403, "{host}");
            assert!(answer.json()["error"].as_str().unwrap().contains("public_urls"));
        }
    }
}

#[tokio::test]
async fn another_sites_page_can_read_nothing_and_change_nothing() {
    let gateway = gateway().await;
    for ask in posts(&gateway) {
        for origin in ["https://evil.example", "http://127.0.0.1:1", "null"] {
            assert_eq!(ask.clone().header("origin", origin).send().await.status, 403, "{origin}");
        }
        assert_eq!(ask.clone().without("origin").send().await.status, 403);
        let answer = ask.send().await;
        assert_ne!(answer.status, 403);
    }
    let status = get(&gateway, "/demo/status").header("origin", "https://evil.example").send().await;
    let text = format!("{status:?}");
    assert!(!text.contains("access-control-allow"), "{text}");
}

#[tokio::test]
async fn whoever_asks_for_what_is_not_the_demos_is_not_asked_where_he_comes_from() {
    let gateway = gateway().await;
    for method in ["GET", "POST"] {
        let ask = Ask::new(gateway.address(), method, "/nothing/here").header("host", "elsewhere.example");
        assert_eq!(ask.send().await.status, 404, "{method}");
    }
}

#[tokio::test]
async fn a_body_is_json_of_the_right_form_and_small() {
    let gateway = gateway().await;
    for ask in posts(&gateway) {
        for content_type in ["text/plain", "application/x-www-form-urlencoded", "application/jsonx", ""] {
            assert_eq!(ask.clone().header("content-type", content_type).send().await.status, 415);
        }
        assert_eq!(ask.clone().without("content-type").send().await.status, 415);
        let with_charset = ask.clone().header("content-type", "Application/JSON; charset=utf-8");
        assert_ne!(with_charset.send().await.status, 415);
        for body in ["", "{", "[]", r#"["ann"]"#, "null", r#"{"unknown":1}"#] {
            assert_eq!(ask.clone().body(body).send().await.status, 400, "{body}");
        }
        assert_eq!(ask.clone().body(" ".repeat(BODY_BYTES_MAX)).send().await.status, 400);
        assert_eq!(ask.clone().body(" ".repeat(BODY_BYTES_MAX + 1)).send().await.status, 413);
    }
    for path in ["negotiate", "restart", "faults/cut", "faults/stall", "faults/lose-next-ack"] {
        assert_eq!(get(&gateway, &format!("/demo/{path}")).send().await.status, 405, "{path}");
    }
    assert_eq!(post(&gateway, "/demo/status", "{}").send().await.status, 405);
}

#[tokio::test]
async fn where_nobody_would_start_the_process_again_it_is_not_killed() {
    let gateway = gateway().await;
    let answer = post(&gateway, "/demo/restart", "{}").send().await;
    assert_eq!(answer.status, 409);
    assert!(answer.json()["error"].as_str().unwrap().contains("oncewire dev"));
    assert_eq!(get(&gateway, "/demo/status").send().await.json()["canRestart"], false);
}

#[tokio::test]
async fn a_users_name_is_neither_blank_nor_long() {
    const USER_BYTES_MAX: usize = 128;
    let gateway = gateway().await;
    let negotiate = async |user: Value| {
        post(&gateway, "/demo/negotiate", json!({ "user": user }).to_string()).send().await.status
    };
    assert_eq!(negotiate(json!("x".repeat(USER_BYTES_MAX))).await, 200);
    for user in [json!("x".repeat(USER_BYTES_MAX + 1)), json!(""), json!(" "), json!(1), json!(null)] {
        assert_eq!(negotiate(user.clone()).await, 400, "{user}");
    }
}
