//! The data-plane REST API through plain HTTP, with clients connected.
//!
//! Written from the API's specification: paths, statuses and bodies are spelled out. Tokens are made by hand, as the
//! server SDKs make them: for the URL of one request.

mod authentication;
mod closes;
mod filters;
mod idempotency;
mod listing;
mod membership;
mod permissions;
mod repeatable;
mod sends;
mod shape;
mod tokens;

use serde_json::{Value, json};

use crate::support::*;

/// The query that SDKs always send.
const VERSION: &str = "api-version=2024-12-01";

/// A request to the hub of most scenarios, with a token for its URL. The path may have a query.
fn call(gateway: &Gateway, method: &'static str, path: &str) -> Ask {
    let sign = if path.contains('?') { '&' } else { '?' };
    signed(gateway, method, &format!("/api/hubs/{HUB}/{path}{sign}{VERSION}"))
}

/// A request to a whole target, with a token for it.
fn signed(gateway: &Gateway, method: &'static str, target: &str) -> Ask {
    let token = Token::bare().sign(&format!("http://{}{target}", gateway.address()));
    Ask::new(gateway.address(), method, target)
        .header("authorization", &format!("Bearer {token}"))
        .header("content-length", "0")
}

/// A request that has to be answered so.
async fn expect(gateway: &Gateway, method: &'static str, path: &str, status: u16) {
    let answer = call(gateway, method, path).send().await;
    assert_eq!(answer.status, status, "{method} {path}: {}", String::from_utf8_lossy(&answer.body));
    if status < 300 {
        assert!(answer.body.is_empty(), "{method} {path}");
    }
}

/// Sends a text to a path that ends with `:send`, perhaps with a query; it has to be accepted.
async fn send_text(gateway: &Gateway, path: &str, text: &str) {
    let answer = call(gateway, "POST", path).header("content-type", "text/plain").body(text).send().await;
    assert_eq!(answer.status, 202, "{path}: {}", String::from_utf8_lossy(&answer.body));
    assert!(answer.body.is_empty());
}

fn id_of(socket: &Socket) -> String {
    socket.identity().connection_id
}

/// What a reliable client hears of a text that the application sends to no group.
fn from_server(sequence_id: u64, text: &str) -> Value {
    json!({"sequenceId": sequence_id, "type": "message", "from": "server", "dataType": "text", "data": text})
}

/// The texts that have come to a client.
async fn texts(socket: &mut Socket) -> Vec<String> {
    let text = |message: Value| message["data"].as_str().unwrap().to_owned();
    socket.settle().await.into_iter().map(text).collect()
}
