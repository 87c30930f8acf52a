//! The handlers' room against real HTTP servers on loopback. Where time matters it is the runtime's, which stands still
//! while somebody is at work.

mod cookies;
mod delivery;
mod ends;
mod limits;
mod reload;
mod tls;
mod validation;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, Method, StatusCode, Version};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt};
use oncewire_protocol::hub::UserEvent;
use oncewire_protocol::log::{Disconnected, EventId, EventSubject, SessionIdentity, Time};
use oncewire_protocol::wire::{
    ConnectionId, EventName, GroupName, HubName, Metadata, Payload, PayloadKind, Subprotocol, UserId,
};
use parking_lot::Mutex;
use tokio::net::TcpListener;

use super::Events;
use crate::auth::AccessKeys;
use crate::config::{Config, Overrides};
use crate::engine::Connecting;

const KEY: &str = "0123456789abcdef0123456789abcdef";
/// A safety net: what hangs shall fail.
const WAIT: Duration = Duration::from_secs(60);

/// A request as the application got it.
#[derive(Debug, Clone)]
struct Seen {
    method: Method,
    version: Version,
    /// Path and query.
    path: String,
    headers: HeaderMap,
    body: Bytes,
}

impl Seen {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

/// An application with event handlers.
struct Application {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Application {
    /// Gives each gateway leave to send, and answers events in this way.
    async fn start(answer: impl Fn(&Seen) -> Response + Send + Sync + 'static) -> Self {
        Self::serve(move |seen| {
            let response = match seen.method {
                Method::OPTIONS => leave().into_response(),
                _ => answer(&seen),
            };
            std::future::ready(response).boxed()
        })
        .await
    }

    /// Answers everything in this way.
    async fn serve(answer: impl Fn(Seen) -> BoxFuture<'static, Response> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::<Mutex<Vec<Seen>>>::default();
        let router = router(Arc::clone(&seen), answer);
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { address, seen }
    }

    /// The events it got.
    fn events(&self) -> Vec<Seen> {
        self.with_method(&Method::POST)
    }

    fn with_method(&self, method: &Method) -> Vec<Seen> {
        self.seen.lock().iter().filter(|seen| seen.method == *method).cloned().collect()
    }

    /// A gateway's handlers, with one here that takes everything, and these keys.
    fn handlers(&self, keys: &str) -> Events {
        events(&handler(self.address, keys))
    }
}

fn router(
    log: Arc<Mutex<Vec<Seen>>>,
    answer: impl Fn(Seen) -> BoxFuture<'static, Response> + Send + Sync + 'static,
) -> Router {
    let answer = Arc::new(answer);
    Router::new().fallback(move |request: Request| {
        let (log, answer) = (Arc::clone(&log), Arc::clone(&answer));
        async move {
            let (parts, body) = request.into_parts();
            let seen = Seen {
                method: parts.method,
                version: parts.version,
                path: parts.uri.path_and_query().unwrap().to_string(),
                headers: parts.headers,
                body: to_bytes(body, usize::MAX).await.unwrap(),
            };
            log.lock().push(seen.clone());
            answer(seen).await
        }
    })
}

/// An answer that gives any gateway leave to send.
fn leave() -> impl IntoResponse {
    [("WebHook-Allowed-Origin", "*")]
}

/// A section of the hub `chat` with a handler that takes everything.
fn handler(address: SocketAddr, keys: &str) -> String {
    format!(
        "[[hubs.chat.event_handlers]]\nurl_template = \"http://{address}/{{event}}\"\nuser_event_pattern = \"*\"\n\
         system_events = [\"connect\", \"connected\", \"disconnected\"]\n{keys}\n"
    )
}

fn config(text: &str) -> Config {
    Config::from_toml(text, Overrides::default()).unwrap()
}

fn events(text: &str) -> Events {
    let config = config(&format!("public_urls = [\"https://gateway.example.net:8443/wps\"]\n{text}"));
    Events::new(&config, AccessKeys::new(KEY, None).unwrap(), Arc::default()).unwrap()
}

fn hub() -> HubName {
    HubName::new("chat").unwrap()
}

fn subject(id: &str) -> EventSubject {
    EventSubject {
        identity: SessionIdentity {
            connection_id: ConnectionId::new(id),
            user_id: Some(UserId::new("ann")),
            subprotocol: Subprotocol::JsonReliable,
            custom_subprotocol: None,
        },
        state: None,
    }
}

fn user_event(id: &str, text: &str) -> UserEvent {
    UserEvent {
        subject: subject(id),
        id: EventId::OfAck(1),
        time: Time(0),
        event: EventName::new("message").unwrap(),
        payload: Payload { kind: PayloadKind::Text, bytes: Bytes::copy_from_slice(text.as_bytes()) },
        metadata: Metadata::default(),
    }
}

fn disconnected(id: &str) -> Disconnected {
    Disconnected { subject: subject(id), number: 5, time: Time(0), reason: "gone \"home\"".to_owned() }
}

fn connecting(id: &str) -> Connecting {
    Connecting {
        hub: hub(),
        connection_id: ConnectionId::new(id),
        user_id: Some(UserId::new("ann")),
        roles: vec!["webpubsub.joinLeaveGroup".to_owned()],
        groups: vec![GroupName::new("token").unwrap()],
        claims: vec![("sub".to_owned(), vec!["ann".to_owned()])],
        query: Vec::new(),
        headers: Vec::new(),
        subprotocols: vec!["json.webpubsub.azure.v1".to_owned()],
    }
}

/// Waits until something holds.
async fn eventually(what: impl Fn() -> bool) {
    let holds = async {
        while !what() {
            tokio::task::yield_now().await;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(WAIT, holds).await.expect("it never comes to hold");
}

fn status(code: u16) -> Response {
    Response::builder().status(StatusCode::from_u16(code).unwrap()).body(Body::empty()).unwrap()
}
