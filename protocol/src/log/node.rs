//! Gateways that share a log, and what their records say.

use std::fmt;
use std::sync::Arc;

use super::{BootId, Offset};
use crate::wire::ConnectionId;

/// The name of a gateway among those that share a log: the same for all its starts.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeName(Arc<str>);

/// Bytes of a node's name.
const NODE_NAME_BYTES_MAX: usize = 128;

/// Why a text is no name of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a node's name has 1 to {NODE_NAME_BYTES_MAX} of the letters a to z, A to Z, 0 to 9, '-', '_' and '.'"
)]
pub struct NodeNameError;

impl NodeName {
    /// Takes a name.
    ///
    /// # Errors
    /// When it is empty, too long, or has other letters than [`NodeNameError`] tells.
    pub fn new(name: &str) -> Result<Self, NodeNameError> {
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let is_name = (1..=NODE_NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_letter);
        is_name.then(|| Self(name.into())).ok_or(NodeNameError)
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeName({})", self.0)
    }
}

/// That a gateway takes part in a log from here on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeStarted {
    /// Its name. An earlier start under this name is gone.
    pub node: NodeName,
    /// The end of the log when it was proposed. It counts only if nothing has changed about this name since: else a late
    /// copy would bring a start back that is gone.
    pub seen: Offset,
    /// The latest version of records that it reads.
    pub record_version: u8,
    /// Whether the application is to be told of the sessions that end with the earlier start.
    pub takes_disconnected: bool,
}

/// That a start of a gateway is over: none of its records counts from here on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeGone {
    /// Which.
    pub boot: BootId,
    /// Whether it has said so itself.
    pub is_stopped: bool,
    /// Whether the application is to be told of the sessions that end with it.
    pub takes_disconnected: bool,
}

/// A session that its speaker has released.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// The session.
    pub connection_id: ConnectionId,
    /// The attachment that is answered: see [`Hold::release`](super::Hold::release).
    pub attached: Offset,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_plain() {
        for good in ["a", "gw-1", "Pod_7.svc", &"n".repeat(NODE_NAME_BYTES_MAX)] {
            assert_eq!(NodeName::new(good).map(|name| name.to_string()), Ok(good.to_owned()));
        }
        for bad in ["", "a b", "a/b", "ü", "a\n", &"n".repeat(NODE_NAME_BYTES_MAX + 1)] {
            assert_eq!(NodeName::new(bad), Err(NodeNameError), "{bad:?}");
        }
    }
}
