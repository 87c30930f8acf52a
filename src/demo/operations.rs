//! What the page asks for.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Extension, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use url::Url;

use super::body::JsonBody;
use super::refusal::Refusal;
use super::site::Reached;
use super::{Demo, HUB, STALL_MILLISECONDS_MAX, USER_BYTES_MAX};
use crate::auth::{ClientGrant, SignError};
use crate::config::{Durability, Store};
use crate::edge::Fault;
use crate::engine;
use crate::telemetry;

/// How long the page may connect with an access token, in seconds. It gets a new one for each new session.
const TOKEN_VALIDITY_SECONDS: u64 = 60 * 60;

/// Whom an access token is for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Negotiate {
    user: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Negotiated {
    url: String,
    hub: &'static str,
    user_id: String,
}

/// `POST /demo/negotiate`: a URL with which the page may open a session in [`HUB`].
pub(super) async fn negotiate(
    State(demo): State<Arc<Demo>>,
    Extension(Reached(base)): Extension<Reached>,
    JsonBody(Negotiate { user }): JsonBody<Negotiate>,
) -> Result<Response, Refusal> {
    if user.trim().is_empty() || user.len() > USER_BYTES_MAX {
        return Err(Refusal::BadUser);
    }
    let url = client_url(&demo, &base, &user).map_err(|_| Refusal::NoToken)?;
    Ok(answer(&Negotiated { url: url.into(), hub: HUB, user_id: user }))
}

/// A URL with a token for where the page was reached. That may be loopback, where a token for it is good only if there are
/// no public URLs.
fn client_url(demo: &Demo, reached: &Url, user: &str) -> Result<Url, SignError> {
    let now_unix_seconds = engine::wall_clock().unix_seconds();
    let grant = ClientGrant {
        endpoint: reached,
        hub: HUB,
        user_id: Some(user),
        roles: &["webpubsub.joinLeaveGroup", "webpubsub.sendToGroup"].map(str::to_owned),
        groups: &[],
        validity_seconds: TOKEN_VALIDITY_SECONDS,
    };
    let mut url = demo.access_keys.client_url(&grant, now_unix_seconds)?;
    let public_urls = &demo.config.public_urls;
    if let Some(public) = public_urls.first().filter(|_| !public_urls.contains(reached)) {
        let grant = ClientGrant { endpoint: public, ..grant };
        let token = demo.access_keys.sign_client_token(&grant, now_unix_seconds)?;
        url.query_pairs_mut().clear().append_pair("access_token", &token);
    }
    Ok(url)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    boot: String,
    process: u32,
    store: &'static str,
    durability: &'static str,
    can_restart: bool,
    version: &'static str,
}

/// `GET /demo/status`: what survives here, and which start of the process this is.
pub(super) async fn status(State(demo): State<Arc<Demo>>) -> Response {
    answer(&Status {
        boot: format!("{:032x}", demo.boot.0),
        process: std::process::id(),
        store: match demo.config.store {
            Store::Disk => "disk",
            Store::Memory => "memory",
        },
        durability: match demo.config.hub(HUB).durability {
            Durability::Sync => "sync",
            Durability::Os => "os",
            Durability::Memory => "memory",
        },
        can_restart: demo.is_supervised,
        version: env!("CARGO_PKG_VERSION"),
    })
}

/// On which socket.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct OnSocket {
    connection_id: String,
}

/// On which socket, and for how long.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Stall {
    connection_id: String,
    milliseconds: u64,
}

/// `POST /demo/faults/cut`: the socket is dropped without a close frame.
pub(super) async fn cut(
    State(demo): State<Arc<Demo>>,
    JsonBody(OnSocket { connection_id }): JsonBody<OnSocket>,
) -> Result<StatusCode, Refusal> {
    make(&demo, &connection_id, Fault::Cut)
}

/// `POST /demo/faults/stall`: nothing is read from the socket nor written to it for a while.
pub(super) async fn stall(
    State(demo): State<Arc<Demo>>,
    JsonBody(Stall { connection_id, milliseconds }): JsonBody<Stall>,
) -> Result<StatusCode, Refusal> {
    if !(1..=STALL_MILLISECONDS_MAX).contains(&milliseconds) {
        return Err(Refusal::BadStall);
    }
    make(&demo, &connection_id, Fault::Stall(Duration::from_millis(milliseconds)))
}

/// `POST /demo/faults/lose-next-ack`: the next publish is executed, and the socket dropped in place of its ack.
pub(super) async fn lose_next_ack(
    State(demo): State<Arc<Demo>>,
    JsonBody(OnSocket { connection_id }): JsonBody<OnSocket>,
) -> Result<StatusCode, Refusal> {
    make(&demo, &connection_id, Fault::LoseNextAck)
}

fn make(demo: &Demo, connection_id: &str, fault: Fault) -> Result<StatusCode, Refusal> {
    if demo.faults.make(connection_id, fault) { Ok(StatusCode::NO_CONTENT) } else { Err(Refusal::NoSocket) }
}

/// How long a process lives on once it has agreed to be killed, so that its answer goes out.
const LAST_ANSWER_WAIT: Duration = Duration::from_millis(100);

/// No field at all.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Nothing {}

/// `POST /demo/restart`: this process kills itself, and its supervisor starts it again.
pub(super) async fn restart(
    State(demo): State<Arc<Demo>>,
    JsonBody(Nothing {}): JsonBody<Nothing>,
) -> Result<StatusCode, Refusal> {
    if !demo.is_supervised {
        return Err(Refusal::NoSupervisor);
    }
    tracing::info!(fault = "restart", effect = "this process is killed", "fault made");
    tokio::spawn(async {
        tokio::time::sleep(LAST_ANSWER_WAIT).await;
        // Lines that wait would die with the process. No other task has to go on.
        telemetry::flush();
        kill_this_process();
    });
    Ok(StatusCode::ACCEPTED)
}

/// As if by `kill -9`: nothing is written, said or closed any more.
fn kill_this_process() {
    use rustix::process::{Signal, getpid, kill_process};
    if let Err(error) = kill_process(getpid(), Signal::KILL) {
        tracing::error!(%error, "this process can't be killed");
    }
}

fn answer(body: &impl Serialize) -> Response {
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
    match serde_json::to_vec(body) {
        Ok(json) => (headers, json).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
