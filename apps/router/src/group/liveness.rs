//! Which next hops are alive.

use crate::route::{Exit, MAX_NODES, MAX_PORTS, NextHop};

const _: () = assert!(MAX_NODES <= 64, "sets of nodes are 64 bits");

/// Nodes and ports that are alive or dead.
#[derive(Debug)]
pub(super) struct Liveness {
    /// Sets of nodes: those that are alive, then, for each port number, those whose port is.
    nodes: [u64; 1 + MAX_PORTS],
}

impl Liveness {
    /// All are alive.
    pub(super) const fn new() -> Liveness {
        Liveness { nodes: [u64::MAX; 1 + MAX_PORTS] }
    }

    /// Asks about each node and port.
    pub(super) fn of(alive: impl Fn(&NextHop) -> bool) -> Liveness {
        let set = |exit| {
            let bit = |node| u64::from(alive(&NextHop { node: node as u8, exit })) << node;
            (0..MAX_NODES).fold(0, |set, node| set | bit(node))
        };
        let mut nodes = [set(Exit::Local); 1 + MAX_PORTS];
        for (port, nodes) in (0..).zip(&mut nodes[1..]) {
            *nodes = set(Exit::Connected(port));
        }
        Liveness { nodes }
    }

    /// Whether a next hop is alive, of a node and port that clusters can have.
    pub(super) fn is_alive(&self, hop: &NextHop) -> bool {
        let exit = hop.port().map_or(0, |port| 1 + usize::from(port));
        self.nodes[exit] >> hop.node & 1 == 1
    }

    /// The nodes of which something differs.
    pub(super) fn differs(&self, other: &Liveness) -> u64 {
        self.nodes.iter().zip(&other.nodes).fold(0, |set, (own, other)| set | (own ^ other))
    }
}
