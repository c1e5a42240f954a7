//! Which next hops are alive.

use std::collections::BTreeSet;

use crate::route::{Exit, MAX_NODES, MAX_PORTS, NextHop};

/// Nodes, ports and gateways that are alive or dead.
#[derive(Debug)]
pub(super) struct Liveness {
    nodes: [bool; MAX_NODES],
    ports: [[bool; MAX_PORTS]; MAX_NODES],
    /// Gateways that differ from their ports.
    others: BTreeSet<NextHop>,
}

impl Liveness {
    /// All are alive.
    pub(super) fn new() -> Liveness {
        Liveness {
            nodes: [true; MAX_NODES],
            ports: [[true; MAX_PORTS]; MAX_NODES],
            others: BTreeSet::new(),
        }
    }

    /// Asks about each node and port, and about these gateways.
    pub(super) fn of<'a>(
        alive: &impl Fn(&NextHop) -> bool,
        hops: impl Iterator<Item = &'a NextHop>,
    ) -> Liveness {
        let mut state = Liveness::new();
        for node in 0..MAX_NODES as u8 {
            state.nodes[usize::from(node)] = alive(&NextHop { node, exit: Exit::Local });
            for port in 0..MAX_PORTS as u8 {
                state.ports[usize::from(node)][usize::from(port)] =
                    alive(&NextHop { node, exit: Exit::Connected(port) });
            }
        }
        let others = hops.filter(|hop| alive(hop) != state.is_alive(hop)).copied();
        state.others = others.collect();
        state
    }

    /// Whether a next hop is alive, of a node and port that clusters can have.
    pub(super) fn is_alive(&self, hop: &NextHop) -> bool {
        let node = usize::from(hop.node);
        let by_port = match hop.port() {
            None => self.nodes[node],
            Some(port) => self.ports[node][usize::from(port)],
        };
        by_port != self.others.contains(hop)
    }
}
