//! What is told of upgrades that are refused: a line and a count for each, and a warning for each episode in which a bound
//! of the gateway turns clients away.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::Request;
use oncewire_protocol::wire::{ConnectionId, HubName};

use super::listener::Peer;
use super::query::Query;
use super::upgrade_request::Refusal;
use crate::auth::TokenRefusals;
use crate::telemetry::{
    Counters, Episode, Episodes, EventFailure, RecoveryDelay, RecoveryRefusal, UpgradeRefusal,
};

/// So much of what a client takes for a hub stands in the log.
const HUB_CHARS_MAX: usize = 128;

/// What an upgrade asks for, as the log names it.
pub(super) struct Asked {
    hub: String,
    peer: Option<SocketAddr>,
}

impl Asked {
    /// `path_hub` is the hub that the path names; else the query may.
    pub(super) fn of(request: &Request, path_hub: Option<&str>) -> Self {
        let query = || Query::parse(request.uri().query().unwrap_or_default()).ok()?.hub.map(Cow::into_owned);
        let mut hub = path_hub.map(str::to_owned).or_else(query).unwrap_or_default();
        if let Some((end, _)) = hub.char_indices().nth(HUB_CHARS_MAX) {
            hub.truncate(end);
        }
        Self { hub, peer: request.extensions().get().map(|Peer(peer)| *peer) }
    }
}

/// See the module.
pub(super) struct Refusals {
    counters: Arc<Counters>,
    tokens: TokenRefusals,
    connections_max: Episode,
    hubs_max: Episode,
    no_room: Episode,
    /// Of recoveries that come to nothing.
    in_vain: Episodes<HubName>,
    farewells: Episode,
    /// Of `connect` handlers that choose one which the client did not offer.
    subprotocols: Episodes<HubName>,
}

impl Refusals {
    pub(super) fn new(counters: &Arc<Counters>) -> Self {
        Self {
            counters: Arc::clone(counters),
            tokens: TokenRefusals::new("clients", Arc::clone(counters)),
            connections_max: Episode::new("clients are refused: connections_max", ""),
            hubs_max: Episode::new("clients are refused: hubs_max", ""),
            no_room: Episode::new("clients are refused: no room for another session", ""),
            in_vain: Episodes::new("clients recover their sessions in vain, and have to wait"),
            farewells: Episode::new("handlers are not told of sessions that never began", ""),
            subprotocols: Episodes::new(
                "a connect handler chose a subprotocol that the client did not offer",
            ),
        }
    }

    /// Tells of an upgrade that is answered by a status.
    pub(super) fn tell(&self, refusal: &Refusal, asked: &Asked) {
        let Asked { hub, peer } = asked;
        let (status, now) = (refusal.status().as_u16(), Instant::now());
        tracing::debug!(hub, peer = peer.map(tracing::field::display), status, reason = %refusal, "upgrade refused");
        self.counters.upgrades_refused.count(counted(refusal));
        match refusal {
            Refusal::NoToken => self.tokens.tell(None, &hub.escape_debug()),
            Refusal::BadToken(error) => self.tokens.tell(Some(error), &hub.escape_debug()),
            Refusal::Full if self.connections_max.is_news(now) => {
                tracing::warn!("clients are refused: there are as many sockets as connections_max allows");
            }
            Refusal::NoRoom if self.no_room.is_news(now) => tracing::warn!(
                hub,
                "clients are refused: there are as many sessions as sessions_max or sessions_per_user_max allows, or they \
                 fill message_memory_bytes_max"
            ),
            Refusal::TooManyHubs if self.hubs_max.is_news(now) => {
                tracing::warn!(hub, "clients are refused: there are as many hubs as hubs_max allows");
            }
            _ => {}
        }
    }

    /// Tells that the hub's `connect` handler is not told of a session that it accepted and that never began: too many are
    /// being told.
    pub(super) fn tell_no_farewell(&self, hub: &HubName) {
        self.counters.events_failed.count(EventFailure::Busy);
        if self.farewells.is_news(Instant::now()) {
            tracing::warn!(%hub, "a handler is not told of a session that it accepted and that could not be opened: too many are");
        }
    }

    /// Tells that the hub's `connect` handler chose a subprotocol that the client did not offer.
    pub(super) fn tell_subprotocol(&self, hub: &HubName) {
        if self.subprotocols.is_news(hub, Instant::now()) {
            tracing::warn!(%hub, "the connect handler chose a subprotocol that the client did not offer");
        }
    }

    /// Tells of a recovery that has to wait so long, since those before it came to nothing. The first message that its client
    /// has not acknowledged has so many bytes, of payload and metadata.
    pub(super) fn tell_delay(
        &self,
        hub: &HubName,
        id: &ConnectionId,
        wait_ms: u64,
        first_message_bytes: usize,
    ) {
        self.counters.recoveries_delayed.count(RecoveryDelay::InVain);
        tracing::debug!(%hub, connection_id = %id, wait_ms, first_message_bytes, "recovery delayed");
        if self.in_vain.is_news(hub, Instant::now()) {
            tracing::warn!(
                %hub, connection_id = %id, first_message_bytes,
                "a client recovers its session again and again, and acknowledges nothing of what it is sent: it has to \
                 wait before it is let in"
            );
        }
    }

    /// Tells of a recovery that can never succeed; its client is told by a close frame.
    pub(super) fn tell_recovery(&self, refusal: RecoveryRefusal, connection_id: Option<&str>, asked: &Asked) {
        let Asked { hub, peer } = asked;
        let (peer, reason) = (peer.map(tracing::field::display), refusal_text(refusal));
        tracing::debug!(hub, connection_id, peer, reason, "recovery refused");
        self.counters.recoveries_refused.count(refusal);
    }
}

fn refusal_text(refusal: RecoveryRefusal) -> &'static str {
    match refusal {
        RecoveryRefusal::Malformed => "the request is no recovery that could succeed",
        RecoveryRefusal::Token => {
            "the reconnection token is not one of this session, has expired, or is of another epoch of its hub"
        }
        RecoveryRefusal::UnknownSession => "there is no such session, or not any more",
    }
}

fn counted(refusal: &Refusal) -> UpgradeRefusal {
    match refusal {
        Refusal::NotAnUpgrade => UpgradeRefusal::NotAnUpgrade,
        Refusal::ForeignOrigin => UpgradeRefusal::Origin,
        Refusal::NoHub | Refusal::BadHub => UpgradeRefusal::Hub,
        Refusal::NoToken | Refusal::BadToken(_) => UpgradeRefusal::Token,
        Refusal::BadQuery | Refusal::BadGroup | Refusal::TooManyGroups | Refusal::BadMode => {
            UpgradeRefusal::BadRequest
        }
        Refusal::ByHandler(_) => UpgradeRefusal::Application,
        Refusal::HandlerFailed | Refusal::HandlerFailedWith(_) => UpgradeRefusal::HandlerFailed,
        Refusal::HandlerBusy => UpgradeRefusal::HandlerBusy,
        Refusal::Full => UpgradeRefusal::ConnectionsMax,
        Refusal::NoRoom => UpgradeRefusal::NoRoom,
        Refusal::TooManyHubs => UpgradeRefusal::HubsMax,
        Refusal::Unavailable => UpgradeRefusal::Unavailable,
    }
}
