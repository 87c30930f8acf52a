//! Why a connection or a request of a stranger is turned away: the one place that tells it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use crate::telemetry::{Counters, Episode, StrangerRefusal};

/// Why a connection is closed, or a request answered by a status, before anybody has looked at who it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum TurnedAway {
    /// It was the connection of its listener that had been silent for longest when another one came.
    #[error("it was silent for longest when another connection came")]
    SilentForLongest,
    /// The same of any listener, when descriptors were short.
    #[error("it was silent for longest when descriptors were short")]
    SilentWhileShort,
    /// The address has as many connections as it may have.
    #[error("its address has as many connections as it may have")]
    AddressFull,
    /// There are few descriptors left, and it is no recovery.
    #[error("descriptors are short, and it recovers no session")]
    NoRecovery,
    /// All places for HTTP connections are taken by such as are being answered.
    #[error("there are as many HTTP connections as there may be")]
    HttpFull,
    /// It did not send a whole request head in time.
    #[error("it sent no request head in time")]
    HeadTooSlow,
    /// It was kept for another request, and none came.
    #[error("no further request came")]
    Idle,
    /// It did not take its answer.
    #[error("it did not take its answer")]
    AnswerUnread,
    /// Its request has no `Host`, or more than one.
    #[error("its request has no Host header, or several")]
    BadHost,
    /// The body of its request is encoded otherwise than by `chunked` alone, or says its length too.
    #[error("the transfer encoding of its body is not chunked alone")]
    BadTransferEncoding,
    /// Everybody knows the access key, and it comes from a page of another site, or by a name that may be anybody's.
    #[error(
        "with the development key only pages of this machine (localhost, 127.0.0.1, [::1]) may connect: set an access key of your own for others"
    )]
    ForeignPage,
    /// It did not come through its TLS handshake.
    #[error("its TLS handshake failed")]
    TlsFailed,
    /// It speaks something else, or its request head is too long.
    #[error("it sent no request that can be read")]
    NoHttp,
}

/// What is told of strangers: a line and a count for each, and a warning for each episode in which a bound of the gateway
/// turns them away.
pub(super) struct Strangers {
    counters: Arc<Counters>,
    pool_full: Episode,
    address_full: Episode,
    descriptors_short: Episode,
    http_full: Episode,
}

impl Strangers {
    pub(super) fn new(counters: Arc<Counters>) -> Self {
        Self {
            counters,
            pool_full: Episode::new(
                "silent connections are closed: handshakes_pending_max or http_connections_max",
                "",
            ),
            address_full: Episode::new("connections are closed: connections_per_address_max", ""),
            descriptors_short: Episode::new("clients are turned away: descriptors are short", ""),
            http_full: Episode::new("HTTP requests are refused: http_connections_max", ""),
        }
    }

    /// Takes note of one that is turned away.
    pub(super) fn tell(&self, reason: TurnedAway, peer: SocketAddr) {
        tracing::debug!(%peer, %reason, "turned away");
        self.counters.strangers_turned_away.count(counted(reason));
        let now = Instant::now();
        match reason {
            TurnedAway::SilentForLongest if self.pool_full.is_news(now) => tracing::warn!(
                %peer,
                "silent connections are closed: there are as many as handshakes_pending_max or http_connections_max \
                 allows, and others come"
            ),
            TurnedAway::AddressFull if self.address_full.is_news(now) => tracing::warn!(
                %peer,
                "connections are closed: their address has as many as connections_per_address_max allows"
            ),
            TurnedAway::SilentWhileShort | TurnedAway::NoRecovery if self.descriptors_short.is_news(now) => {
                tracing::warn!(
                    %peer,
                    "clients are turned away: nearly all descriptors that the process may have are in use, and the last \
                     ones are kept for clients that recover a session; raise its limit of open files (ulimit -n)"
                );
            }
            TurnedAway::HttpFull if self.http_full.is_news(now) => tracing::warn!(
                %peer,
                "HTTP requests are refused: as many connections are being answered as http_connections_max allows"
            ),
            _ => {}
        }
    }
}

fn counted(reason: TurnedAway) -> StrangerRefusal {
    match reason {
        TurnedAway::SilentForLongest => StrangerRefusal::SilentForLongest,
        TurnedAway::SilentWhileShort => StrangerRefusal::SilentWhileShort,
        TurnedAway::AddressFull => StrangerRefusal::AddressFull,
        TurnedAway::NoRecovery => StrangerRefusal::DescriptorsShort,
        TurnedAway::HttpFull => StrangerRefusal::HttpFull,
        TurnedAway::HeadTooSlow => StrangerRefusal::HeadTooSlow,
        TurnedAway::Idle => StrangerRefusal::Idle,
        TurnedAway::AnswerUnread => StrangerRefusal::AnswerUnread,
        TurnedAway::BadHost => StrangerRefusal::BadHost,
        TurnedAway::BadTransferEncoding => StrangerRefusal::BadTransferEncoding,
        TurnedAway::ForeignPage => StrangerRefusal::ForeignPage,
        TurnedAway::TlsFailed => StrangerRefusal::TlsFailed,
        TurnedAway::NoHttp => StrangerRefusal::NoHttp,
    }
}
