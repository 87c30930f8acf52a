//! What an upgrade request asks for: a plain function from its parts to a decision.
//!
//! The checks come in the order of the Web PubSub emulator, since clients tell failures apart by their status.

use axum::http::header::{
    CONNECTION, CONTENT_LENGTH, HOST, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION,
    TRANSFER_ENCODING, UPGRADE,
};
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, Version, request};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use oncewire_protocol::wire::raw::RawTarget;
use oncewire_protocol::wire::{ConnectionId, GroupName, HubName, Subprotocol, UserId, negotiate};

use super::origin::may_upgrade;
use super::query::{InvalidMode, NotUtf8, Query};
use crate::auth::{AccessKeys, AudienceContext, TokenError, bearer_token};
use crate::config::Config;

/// A client's key is a nonce of this size, in base64 (RFC 6455, section 4.2.1).
const WEBSOCKET_KEY_BYTES: usize = 16;

/// What a client that may upgrade asks for.
pub(super) struct UpgradeRequest {
    /// The client's key, from which the answer's is derived.
    pub websocket_key: String,
    /// What was negotiated.
    pub selected: Selected,
    /// New session or recovery.
    pub purpose: Purpose,
}

/// What a socket speaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Selected {
    pub subprotocol: Subprotocol,
    /// Its name in the client's spelling, to be repeated in the answer.
    pub spelling: Option<String>,
}

impl Selected {
    /// The name, where the gateway does not speak it.
    pub(super) fn custom(&self) -> Option<String> {
        self.spelling.clone().filter(|_| self.subprotocol == Subprotocol::Raw)
    }
}

/// What a socket is for.
pub(super) enum Purpose {
    /// To begin a session.
    Begin(Begin),
    /// To recover a session.
    Recover(Recover),
    /// To be told that its session can't be recovered: nothing that could change would change that.
    Unrecoverable,
}

/// A session to begin.
pub(super) struct Begin {
    pub hub: HubName,
    pub user_id: Option<UserId>,
    pub roles: Vec<String>,
    pub groups: Vec<GroupName>,
    /// Where the client's frames go, if it turns out to be raw and publishes.
    pub publishes_to: Option<RawTarget>,
}

/// A session to recover. The token is still to be verified, against the epoch of the hub's log.
#[derive(Clone)]
pub(super) struct Recover {
    pub hub: HubName,
    pub connection_id: ConnectionId,
    pub reconnection_token: String,
}

/// Why a request is answered by a status instead of an upgrade. The text is the body; it holds nothing of the request but,
/// where a token is for another one, the URL that was dialled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("this is no WebSocket upgrade of version 13")]
    NotAnUpgrade,
    #[error("pages of this origin may not connect")]
    ForeignOrigin,
    #[error("a parameter of the query is not UTF-8")]
    BadQuery,
    #[error("the hub is missing")]
    NoHub,
    #[error("the hub's name is not valid")]
    BadHub,
    #[error("an access token is needed")]
    NoToken,
    #[error(transparent)]
    BadToken(#[from] TokenError),
    #[error("the access token holds an invalid group name")]
    BadGroup,
    #[error("the access token holds too many groups")]
    TooManyGroups,
    #[error("webpubsub_mode, group or noEcho is not valid")]
    BadMode,
    #[error("the application refused the connection")]
    ByHandler(u16),
    #[error("the application could not be asked about the connection, or its answer can't be used")]
    HandlerFailed,
    #[error("the application could not be asked about the connection, or its answer can't be used")]
    HandlerFailedWith(u16),
    #[error("the application is busy")]
    HandlerBusy,
    #[error("the gateway has as many clients as it may have")]
    Full,
    #[error("the gateway has no room for another session now")]
    NoRoom,
    #[error("there are as many hubs as there may be")]
    TooManyHubs,
    #[error("the hub is not available now")]
    Unavailable,
}

impl Refusal {
    pub(super) fn status(&self) -> StatusCode {
        match *self {
            Self::NotAnUpgrade
            | Self::BadQuery
            | Self::NoHub
            | Self::BadHub
            | Self::BadGroup
            | Self::TooManyGroups
            | Self::BadMode => StatusCode::BAD_REQUEST,
            Self::NoToken | Self::BadToken(_) => StatusCode::UNAUTHORIZED,
            Self::ForeignOrigin => StatusCode::FORBIDDEN,
            // A handler can't make it a success, or leave the client waiting for more.
            Self::ByHandler(status @ 300..) | Self::HandlerFailedWith(status @ 300..) => {
                StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
            }
            Self::ByHandler(_) | Self::HandlerFailed | Self::HandlerFailedWith(_) => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
            Self::HandlerBusy | Self::Full | Self::NoRoom | Self::TooManyHubs | Self::Unavailable => {
                StatusCode::SERVICE_UNAVAILABLE
            }
        }
    }
}

/// Decides what becomes of an upgrade request. `path_hub` is the hub that the path names, decoded; it wins over the
/// query's.
pub(super) fn decide(
    request: &request::Parts,
    path_hub: Option<&str>,
    keys: &AccessKeys,
    config: &Config,
    now_unix_seconds: u64,
) -> Result<UpgradeRequest, Refusal> {
    let websocket_key = websocket_key(request).ok_or(Refusal::NotAnUpgrade)?;
    if !may_upgrade(&request.headers, config, true) {
        return Err(Refusal::ForeignOrigin);
    }
    let query = Query::parse(request.uri.query().unwrap_or_default()).map_err(|NotUtf8| Refusal::BadQuery)?;
    let hub = path_hub.or(query.hub.as_deref()).filter(|hub| !hub.trim().is_empty()).ok_or(Refusal::NoHub)?;
    let offer = offer(&request.headers);
    let is_recovery = query.connection_id.is_some();
    let selected = match negotiate(&offer, is_recovery) {
        Some((subprotocol, spelling)) => Selected { subprotocol, spelling: Some(spelling.to_owned()) },
        None => Selected { subprotocol: Subprotocol::Raw, spelling: None },
    };
    let purpose = if is_recovery {
        recovery(hub, &query, selected.subprotocol)
    } else {
        Purpose::Begin(begin(request, hub, &query, keys, config, now_unix_seconds)?)
    };
    Ok(UpgradeRequest { websocket_key, selected, purpose })
}

/// The client's access token, wherever it stands.
pub(super) fn access_token<'a>(request: &'a request::Parts, query: &'a Query<'_>) -> Option<&'a str> {
    query.access_token.as_deref().or_else(|| bearer_token(&request.headers))
}

/// The names of subprotocols that the client offers, with commas between them.
pub(super) fn offer(headers: &HeaderMap) -> String {
    list(headers, &SEC_WEBSOCKET_PROTOCOL)
}

/// The client's key, if this is an upgrade to WebSocket (RFC 6455, section 4.2.1).
fn websocket_key(request: &request::Parts) -> Option<String> {
    let headers = &request.headers;
    let has = |name: &HeaderName, token: &str| {
        list(headers, name).split(',').any(|item| item.trim().eq_ignore_ascii_case(token))
    };
    let is_upgrade = request.method == Method::GET
        && request.version == Version::HTTP_11
        && has(&CONNECTION, "upgrade")
        && has(&UPGRADE, "websocket")
        && headers.get(SEC_WEBSOCKET_VERSION).is_some_and(|version| version.as_bytes() == b"13");
    // A body would be taken for frames.
    let has_body = headers.contains_key(TRANSFER_ENCODING)
        || headers.get(CONTENT_LENGTH).is_some_and(|length| length.as_bytes() != b"0");
    let mut keys = headers.get_all(SEC_WEBSOCKET_KEY).iter();
    let key = keys.next()?.to_str().ok()?;
    let is_key = STANDARD.decode(key).is_ok_and(|nonce| nonce.len() == WEBSOCKET_KEY_BYTES);
    (is_upgrade && !has_body && is_key && keys.next().is_none()).then(|| key.to_owned())
}

/// A header that is a list, however many lines it takes. Lines that are no text are passed over.
fn list(headers: &HeaderMap, name: &HeaderName) -> String {
    let lines: Vec<_> = headers.get_all(name).iter().filter_map(|line| line.to_str().ok()).collect();
    lines.join(",")
}

/// The access token counts for nothing here: official clients repeat the one of their first connection, which may have
/// expired long ago.
fn recovery(hub: &str, query: &Query<'_>, subprotocol: Subprotocol) -> Purpose {
    let (Ok(hub), Some(connection_id), Some(token), true) =
        (HubName::new(hub), &query.connection_id, &query.reconnection_token, subprotocol.is_reliable())
    else {
        return Purpose::Unrecoverable;
    };
    Purpose::Recover(Recover {
        hub,
        connection_id: ConnectionId::new(connection_id),
        reconnection_token: token.clone().into_owned(),
    })
}

fn begin(
    request: &request::Parts,
    spelled_hub: &str,
    query: &Query<'_>,
    keys: &AccessKeys,
    config: &Config,
    now_unix_seconds: u64,
) -> Result<Begin, Refusal> {
    let hub = HubName::new(spelled_hub).map_err(|_| Refusal::BadHub)?;
    let claims = match access_token(request, query) {
        Some(token) => {
            let dialled = request.headers.get(HOST).and_then(|host| host.to_str().ok());
            let audience =
                AudienceContext { public_urls: &config.public_urls, host: dialled, hub: spelled_hub };
            keys.verify_client_token(token, &audience, now_unix_seconds)?
        }
        None if config.hub(hub.as_str()).anonymous => {
            if !may_upgrade(&request.headers, config, false) {
                return Err(Refusal::ForeignOrigin);
            }
            Default::default()
        }
        None => return Err(Refusal::NoToken),
    };
    let groups: Result<Vec<_>, _> = claims.groups.iter().map(|group| GroupName::new(group)).collect();
    let groups = groups.map_err(|_| Refusal::BadGroup)?;
    let publishes_to = query.raw_target().map_err(|InvalidMode| Refusal::BadMode)?;
    let user_id = claims.user_id.as_deref().map(UserId::new);
    Ok(Begin { hub, user_id, roles: claims.roles, groups, publishes_to })
}

#[cfg(test)]
#[path = "upgrade_request_tests.rs"]
mod tests;
