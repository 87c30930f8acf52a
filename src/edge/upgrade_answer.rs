//! Carries out what the handshake decided: asks the engine, answers, and hands the socket over.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::header::{
    CONNECTION, RETRY_AFTER, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE,
    WWW_AUTHENTICATE,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use oncewire_protocol::hub::OpenError;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use super::listener::{Peer, Present};
use super::new_session::{Attached, Newcomer};
use super::patient::Patient;
use super::pool::Upgrading;
use super::refusals::Asked;
use super::upgrade_request::{Purpose, Recover, Refusal, Selected, UpgradeRequest, decide};
use super::{Edge, Shared, socket, tls};
use crate::engine;
use crate::telemetry::RecoveryRefusal;

/// After how many seconds a client that was refused for lack of room may try again.
const FULL_RETRY_SECONDS: u64 = 5;

/// `/client/hubs/{hub}`, with a slash at the end or without
pub(super) async fn hub_in_path(
    State(shared): State<Arc<Shared>>,
    Path(hub): Path<String>,
    request: Request,
) -> Response {
    respond(shared, Some(&hub), request).await
}

/// `/client/hubs/`
pub(super) async fn hub_left_out(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    respond(shared, Some(""), request).await
}

/// `/client/?hub={hub}`
pub(super) async fn hub_in_query(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    respond(shared, None, request).await
}

/// What an accepted upgrade leads to.
enum Outcome {
    Attached(Box<Attached>),
    /// The client is to be told that its session can't be recovered.
    RecoveryRefused,
}

async fn respond(shared: Arc<Shared>, path_hub: Option<&str>, request: Request) -> Response {
    let asked = Asked::of(&request, path_hub);
    upgrade(Arc::clone(&shared), path_hub, request, &asked).await.unwrap_or_else(|refusal| {
        shared.refusals.tell(&refusal, &asked);
        refusal.into_response()
    })
}

async fn upgrade(
    shared: Arc<Shared>,
    path_hub: Option<&str>,
    request: Request,
    asked: &Asked,
) -> Result<Response, Refusal> {
    let Edge { config, access_keys, .. } = &shared.edge;
    let limit = Duration::from_secs(config.handshake_timeout_seconds);
    let mut deadline = Instant::now() + limit;
    let (mut parts, _) = request.into_parts();
    let handshake = decide(&parts, path_hub, access_keys, config, engine::wall_clock().unix_seconds())?;
    let on_upgrade = parts.extensions.remove::<OnUpgrade>().ok_or(Refusal::NotAnUpgrade)?;
    let mut pending = parts.extensions.remove::<Arc<Upgrading>>();
    let presence = parts.extensions.remove::<Present>();
    let UpgradeRequest { websocket_key, mut selected, purpose } = handshake;
    let outcome = match purpose {
        Purpose::Begin(begin) => {
            let mut newcomer = by(deadline, Newcomer::new(&shared, begin, selected)).await?;
            if newcomer.needs_leave() {
                drop(pending.take());
                newcomer = newcomer.ask(&parts).await?;
                deadline = Instant::now() + limit;
            }
            let attached = by(deadline, newcomer.open()).await?;
            selected = attached.selected.clone();
            Outcome::Attached(Box::new(attached))
        }
        Purpose::Recover(recover) => {
            let mut recovered =
                by(deadline, recover_session(&shared, recover.clone(), selected.clone(), asked, false))
                    .await?;
            if let Recovered::TooEarly(wait) = recovered {
                drop(pending.take());
                let waiting = tokio::time::sleep(wait);
                shared.is_stopping.run_until_cancelled(waiting).await.ok_or(Refusal::Unavailable)?;
                deadline = Instant::now() + limit;
                recovered =
                    by(deadline, recover_session(&shared, recover, selected.clone(), asked, true)).await?;
            }
            match recovered {
                Recovered::Attached(attached) => Outcome::Attached(attached),
                Recovered::Refused => Outcome::RecoveryRefused,
                Recovered::TooEarly(_) => return Err(Refusal::Unavailable),
            }
        }
        Purpose::Unrecoverable => {
            shared.refusals.tell_recovery(RecoveryRefusal::Malformed, None, asked);
            Outcome::RecoveryRefused
        }
    };
    let peer = parts.extensions.get().map(|Peer(peer)| *peer);
    let task = hand_over(Arc::clone(&shared), on_upgrade, deadline, pending, presence, peer, outcome);
    shared.tasks.spawn(task);
    Ok(switching_protocols(&websocket_key, selected.spelling.as_deref()))
}

async fn by<T>(deadline: Instant, work: impl Future<Output = Result<T, Refusal>>) -> Result<T, Refusal> {
    timeout_at(deadline, work).await.unwrap_or(Err(Refusal::Unavailable))
}

/// What became of a recovery.
enum Recovered {
    Attached(Box<Attached>),
    /// It can never succeed.
    Refused,
    /// The client comes back in vain again and again: it has to wait so long.
    TooEarly(Duration),
}

/// An error when it can't be told now whether the session can be recovered.
async fn recover_session(
    shared: &Shared,
    recover: Recover,
    selected: Selected,
    asked: &Asked,
    has_waited: bool,
) -> Result<Recovered, Refusal> {
    let edge = &shared.edge;
    let Recover { hub, connection_id, reconnection_token } = recover;
    let found = edge.engine.hub_at_once(&hub).map_err(|_| Refusal::Unavailable)?;
    let refused = |refusal| {
        shared.refusals.tell_recovery(refusal, Some(connection_id.as_str()), asked);
        Ok(Recovered::Refused)
    };
    let Some(handle) = found else { return refused(RecoveryRefusal::UnknownSession) };
    let verified = edge.reconnection_tokens.verify(
        &reconnection_token,
        hub.as_str(),
        connection_id.as_str(),
        handle.epoch().0,
        engine::wall_clock().unix_seconds(),
    );
    if verified.is_err() {
        return refused(RecoveryRefusal::Token);
    }
    let place = shared.sockets.reserve_for_recovery().ok_or(Refusal::Full)?;
    let id = connection_id.clone();
    let resumed = if has_waited {
        handle.resume_after_wait(id, selected.subprotocol).await
    } else {
        handle.resume(id, selected.subprotocol).await
    };
    match resumed {
        Ok(socket) => {
            let connection_id = connection_id.clone();
            let attached = Attached { hub, connection_id, selected, publishes_to: None, socket, place };
            Ok(Recovered::Attached(Box::new(attached)))
        }
        Err(OpenError::TooEarly { ms, first_message_bytes, .. }) => {
            shared.refusals.tell_delay(&hub, &connection_id, ms, first_message_bytes);
            Ok(Recovered::TooEarly(Duration::from_millis(ms)))
        }
        // No bound refuses a recovery.
        Err(OpenError::Unavailable | OpenError::Full) => Err(Refusal::Unavailable),
        Err(OpenError::Refused | OpenError::TooManyGroups) => refused(RecoveryRefusal::UnknownSession),
    }
}

/// Waits for the bare connection and starts the socket on it. Whatever goes wrong, the engine's socket is dropped and
/// so counts as lost.
async fn hand_over(
    shared: Arc<Shared>,
    on_upgrade: OnUpgrade,
    deadline: Instant,
    pending: Option<Arc<Upgrading>>,
    presence: Option<Present>,
    peer: Option<SocketAddr>,
    outcome: Outcome,
) {
    let Ok(Ok(upgraded)) = timeout_at(deadline, on_upgrade).await else {
        tracing::debug!("an upgrade was not completed");
        return;
    };
    let Some((stream, read_ahead)) = bare(upgraded) else {
        tracing::error!("an upgraded connection is of another kind than the accepted one");
        return;
    };
    match outcome {
        Outcome::Attached(attached) => {
            drop(pending);
            let Attached { hub, connection_id, selected, publishes_to, socket, place } = *attached;
            let config = &shared.edge.config;
            let settings = socket::Settings {
                encoding: selected.subprotocol.encoding(),
                publishes_to,
                ping_seconds: config.hub(hub.as_str()).websocket_ping_seconds,
                read_buffer_bytes: config.websocket_read_buffer_bytes,
                message_bytes_max: config.websocket_message_bytes_max,
                faults: shared.edge.faults.clone().filter(|faults| faults.concern(&hub)),
                presence,
            };
            let counters = Arc::clone(shared.edge.engine.counters());
            let half_messages = Arc::clone(&shared.half_messages);
            let name = Box::new(socket::Name { hub, connection_id, peer, counters, half_messages });
            socket::start(&shared.tasks, stream, &read_ahead, socket, place, name, settings);
        }
        Outcome::RecoveryRefused => {
            socket::refuse_recovery(stream).await;
            drop((pending, presence));
        }
    }
}

/// The connection without HTTP, and what has been read ahead from it.
fn bare(upgraded: Upgraded) -> Option<(socket::Stream, Bytes)> {
    let upgraded = match upgraded.downcast::<TokioIo<Patient<TcpStream>>>() {
        Ok(plain) => {
            return Some((socket::Stream::Plain(plain.io.into_inner().into_inner()), plain.read_buf));
        }
        Err(upgraded) => upgraded,
    };
    let secured = upgraded.downcast::<TokioIo<Patient<tls::Stream>>>().ok()?;
    Some((socket::Stream::Tls(Box::new(secured.io.into_inner().into_inner())), secured.read_buf))
}

/// Extensions are declined by leaving them out.
fn switching_protocols(websocket_key: &str, spelling: Option<&str>) -> Response {
    let mut headers = HeaderMap::with_capacity(4);
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    let accept = derive_accept_key(websocket_key.as_bytes());
    let own = [(SEC_WEBSOCKET_ACCEPT, Some(accept.as_str())), (SEC_WEBSOCKET_PROTOCOL, spelling)];
    for (name, value) in own {
        // Both come from texts that can stand in a header: base64, and a header of the request.
        if let Some(value) = value.and_then(|value| HeaderValue::from_str(value).ok()) {
            headers.insert(name, value);
        }
    }
    (StatusCode::SWITCHING_PROTOCOLS, headers, Body::empty()).into_response()
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = self.status();
        let mut response = (status, self.to_string()).into_response();
        let header = match (self, status) {
            (Self::NotAnUpgrade, _) => Some((SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"))),
            (_, StatusCode::UNAUTHORIZED) => Some((WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
            (Self::TooManyHubs, _) => {
                Some((RETRY_AFTER, HeaderValue::from(engine::TOO_MANY_HUBS_RETRY_SECONDS)))
            }
            (Self::Full | Self::NoRoom, _) => Some((RETRY_AFTER, HeaderValue::from(FULL_RETRY_SECONDS))),
            _ => None,
        };
        if let Some((name, value)) = header {
            response.headers_mut().insert(name, value);
        }
        response
    }
}
