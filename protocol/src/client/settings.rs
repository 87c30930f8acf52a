//! A client's settings, and the habits of the official clients in terms of them.

use crate::wire::Subprotocol;

/// How a client behaves. Times are in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientSettings {
    /// What to offer; one that has an envelope, since bare payloads leave a client nothing to keep account of.
    pub subprotocol: Subprotocol,
    /// How long to go on trying to recover a session after its socket is lost.
    pub recovery_window_ms: u64,
    /// Pause after a failed attempt to recover or to connect. The first attempt is made at once.
    pub connect_retry_ms: u64,
    /// How long one attempt may take, the `connected` message of a new session included.
    pub connect_timeout_ms: u64,
    /// How long a sequence id may wait to be acknowledged.
    pub sequence_ack_ms: u64,
    /// Whether a sequence id far above the one before is acknowledged at once; see [`QUICK_ACK_JUMP`].
    pub quick_ack: bool,
    /// Whether the wait for a sequence ack begins anew with each socket.
    pub sequence_ack_anew: bool,
    /// When a request without an answer is sent again under the same ack id; `None` waits for ever.
    pub ack_timeout_ms: Option<u64>,
    /// Pause before a request that failed with `InternalServerError` is sent again under the same ack id.
    pub request_retry_ms: u64,
    /// How often a request is sent again because it failed or was not answered. Sending again on the socket of a
    /// recovery does not count.
    pub request_retries_max: u32,
    /// Requests that may wait for their outcome.
    pub pending_requests_max: usize,
    /// Bytes of their frames.
    pub pending_bytes_max: usize,
    /// How often to ping; `None` never does.
    pub ping_ms: Option<u64>,
    /// How long nothing may arrive before the socket is given up; `None` waits for ever.
    pub silence_ms_max: Option<u64>,
    /// Whether requests are sent as soon as the socket is open, or only after `connected`. Sent early, they are in
    /// doubt when the socket is lost before the session has a name.
    pub requests_before_connected: bool,
    /// Whether a new session joins the groups that the client was in.
    pub auto_rejoin: bool,
    /// Groups to remember for that, those that are being joined included.
    pub rejoin_groups_max: usize,
    /// What a new session, which knows nothing of earlier ack ids, does with requests that were sent to the lost one:
    /// send them again, at the risk of executing them twice, or report them as
    /// [`Unknown`](super::Outcome::Unknown).
    pub resend_to_new_session: bool,
    /// The close code when stopped; `None` sends none. A gateway ends the session at once for 1000 only.
    pub stop_code: Option<u16>,
}

/// A quick ack is sent when a sequence id lies more than this above the largest seen before it.
pub const QUICK_ACK_JUMP: u64 = 300;

impl Default for ClientSettings {
    fn default() -> Self {
        Self {
            subprotocol: Subprotocol::JsonReliable,
            recovery_window_ms: 30_000,
            connect_retry_ms: 1_000,
            connect_timeout_ms: 10_000,
            sequence_ack_ms: 1_000,
            quick_ack: true,
            sequence_ack_anew: false,
            ack_timeout_ms: Some(30_000),
            request_retry_ms: 1_000,
            request_retries_max: 3,
            pending_requests_max: 1024,
            pending_bytes_max: 4 * 1024 * 1024,
            ping_ms: Some(20_000),
            silence_ms_max: Some(120_000),
            requests_before_connected: false,
            auto_rejoin: true,
            rejoin_groups_max: 1000,
            resend_to_new_session: false,
            stop_code: Some(1000),
        }
    }
}

impl ClientSettings {
    /// The official JavaScript client's habits: quick ack, pings, no ack timeout, stops without a close code.
    pub fn like_javascript() -> Self {
        Self { ack_timeout_ms: None, requests_before_connected: true, stop_code: None, ..Self::default() }
    }

    /// The official Python client's habits: no quick ack and no pings.
    pub fn like_python() -> Self {
        Self {
            quick_ack: false,
            ping_ms: None,
            silence_ms_max: None,
            requests_before_connected: true,
            ..Self::default()
        }
    }

    /// The official Java client's habits: a sequence ack every 5 s of a socket's life, no quick ack and no pings.
    pub fn like_java() -> Self {
        Self { sequence_ack_ms: 5_000, sequence_ack_anew: true, ..Self::like_python() }
    }
}
