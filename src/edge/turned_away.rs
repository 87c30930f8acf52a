//! Why a connection or a request of a stranger is turned away: the one place that tells it.

use std::net::SocketAddr;

/// Why a connection is closed, or a request answered by a status, before anybody has looked at who it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum TurnedAway {
    /// It was the connection of its listener that had been silent for longest when another one came.
    #[error("it was silent for longest when another connection came")]
    SilentForLongest,
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
    /// Everybody knows the access key, and it comes from a page of another site, or by a name that may be anybody's.
    #[error("everybody knows the access key, and it does not come from this machine")]
    ForeignPage,
}

impl TurnedAway {
    /// Takes note of it.
    pub(super) fn tell(self, peer: SocketAddr) {
        tracing::debug!(%peer, reason = %self, "turned away");
    }
}
