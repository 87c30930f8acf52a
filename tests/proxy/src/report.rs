//! What the proxy saw: connections, bytes, and how each connection ended.

use serde::{Deserialize, Serialize};

use crate::fault::Fault;

/// The most connections that a [`Report`] lists; the totals go on counting, and the oldest finished ones are dropped.
pub const CONNECTIONS_REPORTED_MAX: usize = 4_096;

/// Where a connection is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Bytes flow, or would, were there no stall.
    Forwarding,
    /// One side is dead, the other one was told nothing and is held open.
    HalfOpen,
    /// The proxy holds no socket of it any more.
    Ended,
}

/// Why a connection stopped forwarding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// Both peers closed in an orderly way.
    Closed,
    /// The client broke off with an error, which the server then got as a reset.
    ClientFailed,
    /// The server broke off with an error, which the client then got as a reset.
    ServerFailed,
    /// The server could not be reached; the client got a reset.
    Unreachable,
    /// A fault struck.
    Fault,
}

/// One connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionReport {
    /// Counted from 1 in the order of acceptance.
    pub number: u64,
    /// Where it is in its life.
    pub state: State,
    /// Bytes forwarded to the server.
    pub client_to_server_bytes: u64,
    /// Bytes forwarded to the client.
    pub server_to_client_bytes: u64,
    /// The last fault that struck, with `after_bytes` counted from the start of the connection.
    pub fault: Option<Fault>,
    /// Why it stopped forwarding; `None` while it forwards.
    pub ending: Option<Ending>,
    /// Of a half-open connection: whether the peer that was told nothing has closed by itself.
    pub survivor_closed: bool,
}

/// All of one proxy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Connections accepted and numbered.
    pub accepted: u64,
    /// Connections refused, which have no number.
    pub refused: u64,
    /// Faults that struck, stalls included.
    pub faults: u64,
    /// Connections that forward at this moment.
    pub forwarding: u64,
    /// Bytes forwarded to servers by all connections.
    pub client_to_server_bytes: u64,
    /// Bytes forwarded to clients by all connections.
    pub server_to_client_bytes: u64,
    /// Each connection, oldest first; at most [`CONNECTIONS_REPORTED_MAX`].
    pub connections: Vec<ConnectionReport>,
}
