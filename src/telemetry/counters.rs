//! What is counted, by reason, since the process was started. The names are stable: `oncewire_<what>_total{reason}`.
//!
//! A count is one addition to a number of its own: nothing is looked up for it.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

/// The reasons of one family of counters.
pub trait Reason: Copy + 'static {
    /// All of them, in the order of their places.
    const ALL: &'static [Self];

    /// As the label says it.
    fn text(self) -> &'static str;

    /// Its place, from 0.
    fn place(self) -> usize;
}

/// One family of counters.
#[derive(Debug)]
pub struct Counted<R> {
    counts: Box<[AtomicU64]>,
    reasons: PhantomData<R>,
}

impl<R: Reason> Default for Counted<R> {
    fn default() -> Self {
        Self { counts: R::ALL.iter().map(|_| AtomicU64::new(0)).collect(), reasons: PhantomData }
    }
}

impl<R: Reason> Counted<R> {
    /// Counts one.
    pub fn count(&self, reason: R) {
        self.counts[reason.place()].fetch_add(1, Ordering::Relaxed);
    }

    /// All counts, those that are 0 included.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        R::ALL.iter().zip(&self.counts).map(|(reason, count)| (reason.text(), count.load(Ordering::Relaxed)))
    }
}

macro_rules! reasons {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl Reason for $name {
            const ALL: &'static [Self] = &[$(Self::$variant,)*];

            fn text(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }

            fn place(self) -> usize {
                self as usize
            }
        }
    };
}

reasons! {
    /// Why a session ended.
    SessionEnd {
        /// Its client closed it, or the socket of a session that can't be resumed went away.
        ClientClosed = "client_closed",
        /// Its client broke the protocol, or something of its was refused that it can only be told by closing.
        ProtocolViolation = "protocol_violation",
        /// Too much was waiting for its client.
        OutboxFull = "outbox_full",
        /// Its client did not come back in time.
        Expired = "expired",
        /// The process was short of memory, and this session held most.
        Shed = "shed",
        /// The application closed it.
        ClosedByApplication = "closed_by_application",
        /// The gateway was stopped, and its log went with it.
        Stopped = "stopped",
        /// The gateway was started again, and the session is of a kind that can't be resumed.
        Restarted = "restarted",
    }
}

reasons! {
    /// How a socket ended.
    SocketEnd {
        /// The client sent a close frame.
        ClientClosed = "client_closed",
        /// The connection was lost.
        Lost = "lost",
        /// Nothing was heard from the client for three ping intervals.
        Silent = "silent",
        /// The client broke the protocol.
        ProtocolViolation = "protocol_violation",
        /// Memory was short, and it held much of a message that had not come in whole.
        HalfMessageGivenUp = "half_message_given_up",
        /// The gateway sent a close frame: its session is over, or the gateway stops.
        ClosedByGateway = "closed_by_gateway",
        /// Its session let go of it without a close frame: another socket took over.
        LetGo = "let_go",
    }
}

reasons! {
    /// Why an upgrade was refused.
    UpgradeRefusal {
        /// It is no WebSocket upgrade.
        NotAnUpgrade = "not_an_upgrade",
        /// The page is of an origin that may not connect.
        Origin = "origin",
        /// The hub is missing or can't be called so.
        Hub = "hub",
        /// The access token is missing or refused; `oncewire_tokens_refused_total` has the reason.
        Token = "token",
        /// Something in the request or the token can't be used.
        BadRequest = "bad_request",
        /// The application refused it.
        Application = "application",
        /// The application's event handler failed.
        HandlerFailed = "handler_failed",
        /// The application's event handler has as many events under way as it may have.
        HandlerBusy = "handler_busy",
        /// There are as many sockets as there may be.
        ConnectionsMax = "connections_max",
        /// There are as many sessions as there may be, or they fill the memory that they may.
        NoRoom = "no_room",
        /// There are as many hubs as there may be.
        HubsMax = "hubs_max",
        /// The hub can't be used now.
        Unavailable = "unavailable",
    }
}

reasons! {
    /// Why a session can never be recovered.
    RecoveryRefusal {
        /// The request is no recovery that could succeed.
        Malformed = "malformed",
        /// The reconnection token does not prove it.
        Token = "token",
        /// There is no such session, or not any more.
        UnknownSession = "unknown_session",
    }
}

reasons! {
    /// Why a recovery had to wait.
    RecoveryDelay {
        /// Those before it came to nothing: the client closed its socket soon, again and again, and acknowledged nothing.
        InVain = "in_vain",
    }
}

reasons! {
    /// Why a connection was closed, or its request refused, before anybody had looked at who it is.
    StrangerRefusal {
        /// It was silent for longest when another connection came, and there were as many as there may be.
        SilentForLongest = "silent_for_longest",
        /// It was silent for longest when descriptors were short.
        SilentWhileShort = "silent_while_descriptors_short",
        /// Its address has as many connections as it may have.
        AddressFull = "connections_per_address_max",
        /// Descriptors are short, and it recovers no session.
        DescriptorsShort = "descriptors_short",
        /// There are as many HTTP connections as there may be.
        HttpFull = "http_connections_max",
        /// It did not send a whole request head in time, or did not finish its TLS handshake.
        HeadTooSlow = "head_too_slow",
        /// It was kept for another request, and none came.
        Idle = "idle",
        /// It did not take its answer.
        AnswerUnread = "answer_unread",
        /// Its request has no `Host`, or several.
        BadHost = "bad_host",
        /// Its body is encoded in a way that is not offered, or has two lengths.
        BadTransferEncoding = "bad_transfer_encoding",
        /// It is a page of another site, where everybody knows the access key.
        ForeignPage = "foreign_page",
        /// Its TLS handshake failed.
        TlsFailed = "tls_failed",
        /// What it sent is no HTTP, or too long a head.
        NoHttp = "no_http",
    }
}

reasons! {
    /// Why a request was answered 503 without having been finished.
    RequestShed {
        /// As many requests of the API as there may be were worked on.
        Api = "api_requests_max",
        /// The same of the demo.
        Demo = "demo_requests_max",
        /// The same of the operator's listener.
        Operator = "operator_requests_max",
        /// It took too long, its body included.
        TimedOut = "timed_out",
    }
}

reasons! {
    /// Why an access token was refused, of a client or of the application.
    TokenRefusal {
        /// There is none.
        Missing = "missing",
        /// It is none.
        Malformed = "malformed",
        /// It is signed in another way than is asked for.
        Algorithm = "algorithm",
        /// It is signed with another access key.
        WrongKey = "wrong_key",
        /// It does not say how long it is good.
        NoExpiry = "no_expiry",
        /// It was good once.
        Expired = "expired",
        /// It is not good yet.
        NotYetValid = "not_yet_valid",
        /// A user can't be called so.
        BadUser = "bad_user",
        /// It is for another URL.
        WrongAudience = "wrong_audience",
    }
}

reasons! {
    /// Why a request of the REST API was refused, by its status.
    RestRefusal {
        /// 400
        BadRequest = "bad_request",
        /// 401
        Unauthorized = "unauthorized",
        /// 403
        Forbidden = "forbidden",
        /// 404
        NotFound = "not_found",
        /// 405
        MethodNotAllowed = "method_not_allowed",
        /// 409
        Conflict = "conflict",
        /// 412
        PreconditionFailed = "precondition_failed",
        /// 413
        TooLarge = "too_large",
        /// 415
        UnsupportedMediaType = "unsupported_media_type",
        /// 501
        NotImplemented = "not_implemented",
        /// 503
        Unavailable = "unavailable",
        /// Any other.
        Other = "other",
    }
}

reasons! {
    /// Why an event did not come to its handler, or what it answered can't be used.
    EventFailure {
        /// No handler takes it.
        NoHandler = "no_handler",
        /// The handler has as many events under way as it may have.
        Busy = "busy",
        /// The handler gave no leave to send it events.
        NotAllowed = "not_allowed",
        /// No answer came in time.
        TimedOut = "timed_out",
        /// It could not be reached, or was lost on the way.
        Network = "network",
        /// It answered with a status that is no success.
        Status = "status",
        /// It answered something that can't be used.
        BadAnswer = "bad_answer",
        /// No request could be made of the event.
        Unsendable = "unsendable",
    }
}

reasons! {
    /// How an append to a log failed.
    AppendFailure {
        /// It did not happen.
        Definite = "definite",
        /// It may have happened, and is tried again.
        Indefinite = "indefinite",
    }
}

/// A family of counters at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Family {
    /// Its name without `oncewire_` and `_total`.
    pub name: &'static str,
    /// What it counts.
    pub help: &'static str,
    /// All counts by their reasons.
    pub counts: Vec<(&'static str, u64)>,
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident: $reason:ty = $help:literal,)*) => {
        /// All families.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: Counted<$reason>,)*
        }

        impl Counters {
            /// Each family.
            pub fn families(&self) -> Vec<Family> {
                vec![$(Family {
                    name: stringify!($name),
                    help: $help,
                    counts: self.$name.all().collect(),
                },)*]
            }
        }
    };
}

counters! {
    /// Sessions that ended.
    sessions_ended: SessionEnd = "Sessions that ended",
    /// Sockets that ended.
    sockets_ended: SocketEnd = "Sockets that ended",
    /// Upgrades that were refused.
    upgrades_refused: UpgradeRefusal = "Upgrades that were refused",
    /// Recoveries that were refused for good.
    recoveries_refused: RecoveryRefusal = "Recoveries that were refused for good",
    /// Recoveries that had to wait.
    recoveries_delayed: RecoveryDelay = "Recoveries that had to wait before they were let in",
    /// Strangers that were turned away.
    strangers_turned_away: StrangerRefusal = "Connections that were closed, or whose request was refused, before anybody looked at who it is",
    /// HTTP requests that were shed.
    http_requests_shed: RequestShed = "HTTP requests that were answered 503 without having been finished",
    /// Access tokens that were refused.
    tokens_refused: TokenRefusal = "Access tokens that were refused, of clients and of the application",
    /// Requests of the REST API that were refused.
    rest_requests_refused: RestRefusal = "Requests of the REST API that were refused",
    /// Events that were not handled.
    events_failed: EventFailure = "Events that their handler did not take, further attempts for one event not counted",
    /// Appends that failed.
    appends_failed: AppendFailure = "Appends to a log that failed, each attempt",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_own_count() {
        let counters = Counters::default();
        counters.sessions_ended.count(SessionEnd::Shed);
        counters.sessions_ended.count(SessionEnd::Shed);
        counters.sessions_ended.count(SessionEnd::Restarted);
        let counts: Vec<_> = counters.sessions_ended.all().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counts, [("shed", 2), ("restarted", 1)]);
    }

    #[test]
    fn names_and_reasons_are_what_a_metric_may_be_called() {
        let is_name = |name: &str| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        for Family { name, help, counts } in Counters::default().families() {
            assert!(is_name(name) && !help.is_empty() && !counts.is_empty(), "{name}");
            let mut reasons: Vec<_> = counts.iter().map(|(reason, _)| *reason).collect();
            assert!(reasons.iter().all(|reason| is_name(reason)), "{reasons:?}");
            reasons.sort_unstable();
            reasons.dedup();
            assert_eq!(reasons.len(), counts.len(), "{name}");
        }
    }
}
