//! The gateways that share a hub's log: which of their starts are live, and who leads.
//!
//! Part of what all shards know alike: it belongs to no session. A log that only one gateway writes has none.

use std::collections::BTreeMap;

use crate::log::{BootId, NodeCheckpoint, NodeName, NodeStarted, Offset};

/// Names that are remembered, those of gateways that are gone included. Of more, the one that was gone first is forgotten.
const NODES_MAX: usize = 1_000;

/// See the module.
#[derive(Debug, Default)]
pub struct Nodes {
    by_name: BTreeMap<NodeName, Node>,
    /// Live starts by where they began: the first leads.
    live: BTreeMap<Offset, BootId>,
}

#[derive(Debug)]
struct Node {
    boot: BootId,
    since: Offset,
    changed: Offset,
    is_live: bool,
    record_version: u8,
}

impl Nodes {
    /// Goes on where a checkpoint was made.
    pub fn restore(stored: &[NodeCheckpoint]) -> Self {
        let node = |node: &NodeCheckpoint| {
            let NodeCheckpoint { boot, since, changed, is_live, record_version, .. } = *node;
            (node.name.clone(), Node { boot, since, changed, is_live, record_version })
        };
        let live = stored.iter().filter(|node| node.is_live).map(|node| (node.since, node.boot));
        Self { live: live.collect(), by_name: stored.iter().map(node).collect() }
    }

    /// What a checkpoint keeps.
    pub fn to_checkpoint(&self) -> Vec<NodeCheckpoint> {
        let node = |(name, node): (&NodeName, &Node)| NodeCheckpoint {
            name: name.clone(),
            boot: node.boot,
            since: node.since,
            changed: node.changed,
            is_live: node.is_live,
            record_version: node.record_version,
        };
        self.by_name.iter().map(node).collect()
    }

    /// Whether no gateway has ever taken part by name.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Whether a start counts.
    pub fn is_live(&self, boot: BootId) -> bool {
        self.live.values().any(|live| *live == boot)
    }

    /// The start that decides what is nobody else's: the live one that began first.
    pub fn leader(&self) -> Option<BootId> {
        self.live.values().next().copied()
    }

    /// The live start of a name.
    pub fn live_boot_of(&self, name: &NodeName) -> Option<BootId> {
        self.by_name.get(name).filter(|node| node.is_live).map(|node| node.boot)
    }

    /// A start takes part from a record on, in place of an earlier one of its name. Tells whether it counts.
    pub fn start(&mut self, at: Offset, boot: BootId, started: &NodeStarted) -> bool {
        let NodeStarted { node: name, seen, record_version, .. } = started;
        if let Some(node) = self.by_name.get(name) {
            if node.changed >= *seen {
                return false;
            }
            self.live.remove(&node.since);
        }
        let node = Node { boot, since: at, changed: at, is_live: true, record_version: *record_version };
        self.by_name.insert(name.clone(), node);
        self.live.insert(at, boot);
        self.forget_gone();
        true
    }

    /// A start is over. Tells whether it was live.
    pub fn end(&mut self, at: Offset, boot: BootId) -> bool {
        let Some(node) = self.by_name.values_mut().find(|node| node.is_live && node.boot == boot) else {
            return false;
        };
        node.is_live = false;
        node.changed = at;
        self.live.remove(&node.since);
        true
    }

    fn forget_gone(&mut self) {
        if self.by_name.len() <= NODES_MAX {
            return;
        }
        let gone = self.by_name.iter().filter(|(_, node)| !node.is_live);
        if let Some(name) = gone.min_by_key(|(_, node)| node.changed).map(|(name, _)| name.clone()) {
            self.by_name.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(name: &str, seen: u64) -> NodeStarted {
        let node = NodeName::new(name).unwrap();
        NodeStarted { node, seen: Offset(seen), record_version: 2, takes_disconnected: false }
    }

    #[test]
    fn a_start_succeeds_the_one_before_and_the_oldest_live_one_leads() {
        let mut nodes = Nodes::default();
        assert!(nodes.is_empty() && nodes.leader().is_none());
        assert!(nodes.start(Offset(0), BootId(1), &started("a", 0)));
        assert!(nodes.start(Offset(1), BootId(2), &started("b", 1)));
        assert_eq!(nodes.leader(), Some(BootId(1)));
        assert!(nodes.start(Offset(2), BootId(3), &started("a", 2)));
        assert!(!nodes.is_live(BootId(1)) && nodes.is_live(BootId(3)));
        assert_eq!(nodes.leader(), Some(BootId(2)));
        assert!(nodes.end(Offset(3), BootId(2)) && !nodes.end(Offset(4), BootId(2)));
        assert_eq!(nodes.leader(), Some(BootId(3)));
        let restored = Nodes::restore(&nodes.to_checkpoint());
        assert_eq!(restored.to_checkpoint(), nodes.to_checkpoint());
        assert_eq!((restored.leader(), restored.is_live(BootId(2))), (Some(BootId(3)), false));
    }

    #[test]
    fn a_late_copy_of_a_start_brings_nobody_back() {
        let mut nodes = Nodes::default();
        let first = started("a", 0);
        assert!(nodes.start(Offset(0), BootId(1), &first));
        assert!(!nodes.start(Offset(1), BootId(1), &first), "a second copy");
        assert!(nodes.end(Offset(2), BootId(1)));
        assert!(!nodes.start(Offset(3), BootId(1), &first), "it is gone");
        assert!(!nodes.start(Offset(4), BootId(2), &started("a", 2)), "it has not seen that");
        assert!(nodes.start(Offset(5), BootId(2), &started("a", 3)));
    }

    #[test]
    fn names_of_gateways_that_are_gone_are_forgotten_and_live_ones_never() {
        let mut nodes = Nodes::default();
        for n in 0..NODES_MAX as u64 {
            assert!(nodes.start(Offset(2 * n), BootId(n.into()), &started(&format!("n{n}"), 2 * n)));
            if n > 0 {
                nodes.end(Offset(2 * n + 1), BootId(n.into()));
            }
        }
        let next = 2 * NODES_MAX as u64;
        assert!(nodes.start(Offset(next), BootId(9_999), &started("one-more", next)));
        assert_eq!(nodes.by_name.len(), NODES_MAX);
        assert!(nodes.is_live(BootId(0)) && nodes.is_live(BootId(9_999)));
        assert!(!nodes.by_name.contains_key(&NodeName::new("n1").unwrap()));
    }
}
