//! Which hubs there are: what brings one into being, what does not, and how many there may be.

use std::sync::Arc;

use oncewire::config::Durability;
use oncewire::store::EmbeddedStore;
use tempfile::TempDir;

use crate::support::*;

const VERSION: &str = "api-version=2024-12-01";

/// A gateway over a directory, and what hubs that has.
async fn on_disk(directory: &TempDir, hubs_max: Option<usize>) -> Gateway {
    let store = EmbeddedStore::open(directory.path(), |_| Durability::Os).unwrap();
    Gateway::with_store(Arc::new(store), |config| {
        config.hubs_max = hubs_max;
        config.groups_per_session_max = 1;
    })
    .await
}

fn hubs(directory: &TempDir) -> Vec<String> {
    let entries = std::fs::read_dir(directory.path().join("hubs")).unwrap();
    let mut hubs: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    hubs.sort();
    hubs
}

fn signed(gateway: &Gateway, method: &'static str, target: &str) -> Ask {
    let token = Token::bare().sign(&format!("http://{}{target}", gateway.address()));
    Ask::new(gateway.address(), method, target)
        .header("authorization", &format!("Bearer {token}"))
        .header("content-length", "0")
}

#[tokio::test]
async fn the_rest_api_brings_no_hub_into_being() {
    let directory = TempDir::new().unwrap();
    let gateway = on_disk(&directory, None).await;
    for (method, path, status) in [
        ("POST", "users/a/:send", 202),
        ("POST", "groups/g/:send", 202),
        ("POST", "connections/c/:send", 202),
        ("POST", ":send", 202),
        ("POST", ":closeConnections", 204),
        ("POST", "groups/g/:closeConnections", 204),
        ("POST", "users/u/:closeConnections", 204),
        ("DELETE", "connections/c", 204),
        ("HEAD", "connections/c", 404),
        ("HEAD", "users/u", 404),
        ("HEAD", "groups/g", 404),
        ("PUT", "groups/g/connections/c", 404),
        ("DELETE", "groups/g/connections/c", 204),
        ("PUT", "users/u/groups/g", 404),
        ("DELETE", "users/u/groups/g", 204),
        ("DELETE", "users/u/groups", 204),
        ("DELETE", "connections/c/groups", 204),
        ("PUT", "permissions/sendToGroup/connections/c?targetName=g", 404),
        ("DELETE", "permissions/sendToGroup/connections/c?targetName=g", 204),
        ("HEAD", "permissions/sendToGroup/connections/c?targetName=g", 404),
        ("GET", "groups/g/connections", 200),
        ("POST", ":generateToken", 200),
    ] {
        let sign = if path.contains('?') { '&' } else { '?' };
        let ask = signed(&gateway, method, &format!("/api/hubs/new/{path}{sign}{VERSION}"));
        let ask = ask.header("x-ms-client-request-id", path).header("content-type", "text/plain");
        let answer = ask.body(if path.ends_with(":send") { "hi" } else { "" }).send().await;
        assert_eq!(answer.status, status, "{method} {path}: {}", String::from_utf8_lossy(&answer.body));
    }
    for path in [":addToGroups", ":removeFromGroups"] {
        let ask = signed(&gateway, "POST", &format!("/api/hubs/new/{path}?{VERSION}"));
        let answer = ask.header("content-type", "application/json").body("{\"groups\":[\"g\"]}").send().await;
        assert_eq!(answer.status, 200, "{path}");
    }
    assert_eq!(hubs(&directory), [""; 0]);
    assert!(gateway.engine().counts().is_empty());
    gateway.shut_down().await;
}

#[tokio::test]
async fn a_client_that_is_refused_leaves_no_hub() {
    let directory = TempDir::new().unwrap();
    let gateway = on_disk(&directory, None).await;
    let connector = || gateway.connector().hub("new").offer(RELIABLE);
    assert_eq!(connector().status().await, 401);
    assert_eq!(connector().token(&Token::bare().key("another key of thirty-two bytes!")).status().await, 401);
    assert_eq!(connector().token(&Token::bare().group("one").group("two")).status().await, 400);
    let identity = gateway.reliable("a").await.identity();
    connector().recover(&identity).open().await.unwrap().expect_close(1008).await;
    assert_eq!(hubs(&directory), [HUB]);
    connector().token(&Token::bare().group("one")).open().await.unwrap();
    assert_eq!(hubs(&directory).len(), 2);
    gateway.shut_down().await;
}

#[tokio::test]
async fn a_hub_more_than_there_may_be_is_503_with_a_time_to_come_back() {
    let directory = TempDir::new().unwrap();
    let gateway = on_disk(&directory, Some(1)).await;
    let mut client = gateway.reliable("a").await;
    let token = Token::bare().sign(&format!("http://{}/client/hubs/new", gateway.address()));
    let ask = Ask::new(gateway.address(), "GET", &format!("/client/hubs/new?access_token={token}"));
    let ask = ask.header("connection", "Upgrade").header("upgrade", "websocket");
    let ask =
        ask.header("sec-websocket-version", "13").header("sec-websocket-key", "AAAAAAAAAAAAAAAAAAAAAA==");
    let answer = ask.send().await;
    assert_eq!((answer.status, answer.header("retry-after")), (503, "60"));
    // A recovery there is no new hub: it is refused for certain.
    let identity = client.identity();
    gateway
        .connector()
        .hub("new")
        .recover(&identity)
        .offer(RELIABLE)
        .open()
        .await
        .unwrap()
        .expect_close(1008)
        .await;
    assert_eq!(hubs(&directory), [HUB]);
    gateway.reliable("b").await;
    let send = signed(&gateway, "POST", &format!("/api/hubs/{HUB}/:send?{VERSION}"));
    assert_eq!(send.header("content-type", "text/plain").body("hi").send().await.status, 202);
    assert_eq!(client.settle().await.len(), 1);
    gateway.shut_down().await;
}

/// The next start finds as many as there may be, and more, and serves them all.
#[tokio::test]
async fn hubs_that_exist_are_served_although_there_may_be_fewer() {
    let directory = TempDir::new().unwrap();
    let gateway = on_disk(&directory, None).await;
    let mut identities = Vec::new();
    for hub in ["one", "two"] {
        let mut socket =
            gateway.connector().hub(hub).token(&Token::user("a")).offer(RELIABLE).open().await.unwrap();
        socket.read_connected().await;
        identities.push((hub, socket.identity()));
    }
    gateway.shut_down().await;
    let store = soon(async {
        loop {
            match EmbeddedStore::open(directory.path(), |_| Durability::Os) {
                Ok(store) => return store,
                Err(_) => a_while().await,
            }
        }
    })
    .await;
    let gateway = Gateway::with_store(Arc::new(store), |config| config.hubs_max = Some(1)).await;
    for hub in ["one", "two"] {
        soon(async {
            while gateway.connector().hub(hub).token(&Token::user("b")).offer(RELIABLE).status().await != 101
            {
                a_while().await;
            }
        })
        .await;
    }
    assert_eq!(gateway.connector().hub("three").token(&Token::user("b")).offer(RELIABLE).status().await, 503);
}
