//! What can go wrong with a connection, and where.
//!
//! Knows the vocabulary of faults only; carrying them out is the connection's business.

use serde::{Deserialize, Serialize};

/// One of the two ways that bytes flow through a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Requests: from the client that dialled the proxy to the server behind it.
    ClientToServer,
    /// Answers: from the server to the client.
    ServerToClient,
}

impl Direction {
    /// Both directions, client to server first.
    pub const BOTH: [Self; 2] = [Self::ClientToServer, Self::ServerToClient];

    pub(crate) fn index(self) -> usize {
        match self {
            Self::ClientToServer => 0,
            Self::ServerToClient => 1,
        }
    }
}

/// What happens to a connection when a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Both peers get a reset (RST). Bytes that the proxy had forwarded before stay readable.
    CutRst,
    /// Both peers get an orderly end of stream (FIN); what they still send is swallowed.
    CutFin,
    /// The client's side breaks with a reset and the server is told nothing: to the server the connection looks alive
    /// and silent, and what it sends is swallowed (unless that direction is stalled: then nothing is read from it).
    ClientDies,
    /// The reverse: the server's side breaks with a reset, and the client is left with a silent open socket.
    ServerDies,
    /// The fault's direction stops; both sockets stay open. [`crate::Proxy::resume`] lets it flow again.
    Stall,
}

impl Action {
    pub(crate) fn is_cut(self) -> bool {
        matches!(self, Self::CutRst | Self::CutFin)
    }
}

/// An action and the place where it strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// The direction whose bytes are counted.
    pub direction: Direction,
    /// Strikes once exactly so many bytes were forwarded in `direction`, before the next one. Counted from the start
    /// of the connection in a plan, and from now in [`crate::Proxy::fault_after`]. 0 strikes at once.
    pub after_bytes: u64,
    /// What then happens.
    pub action: Action,
}

/// Which connection a command is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// The one that was accepted last and still forwards.
    Current,
    /// The one with this number.
    Number(u64),
}
