//! Who a session is.

use crate::wire::{ConnectionId, Subprotocol, UserId};

/// What a session is from its beginning to its end. Records, checkpoints and event handlers tell of sessions by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionIdentity {
    /// The session's name.
    pub connection_id: ConnectionId,
    /// Whom it acts for.
    pub user_id: Option<UserId>,
    /// What its sockets speak.
    pub subprotocol: Subprotocol,
    /// The name that was negotiated, where the gateway does not speak it: the session is a raw one then.
    pub custom_subprotocol: Option<String>,
}
