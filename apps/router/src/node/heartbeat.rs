//! Heartbeats: the state of nodes that they send to each other.

use serde::{Deserialize, Serialize};

use crate::route::{MAX_NODES, NodeId};

/// The last heartbeat of a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heard {
    pub(super) at_ns: u64,
    /// A number of its start.
    pub(super) life: u64,
    /// Nodes that it receives heartbeats from, and their ports that are up, by node.
    pub(super) hears: u64,
    pub(super) others: [u32; MAX_NODES],
    /// Its ports that are up.
    pub(super) ports: u32,
    /// Silence after which it counts others as dead: it sends heartbeats so often.
    pub(super) silence_ns: u64,
}

impl Heard {
    /// Returns true while it is so young that the node counts as alive.
    pub(super) fn is_fresh(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.at_ns) < self.silence_ns
    }

    pub(super) fn state(&self) -> (u64, u64, u32, &[u32]) {
        (self.life, self.hears, self.ports, &self.others)
    }
}

/// A heartbeat: postcard, after the header of a message.
#[derive(Serialize, Deserialize)]
pub(super) struct Heartbeat {
    pub(super) fingerprint: u64,
    pub(super) life: u64,
    pub(super) node: NodeId,
    /// As in [`Heard`].
    pub(super) hears: u64,
    pub(super) ports: u32,
    /// Ports of the nodes in `hears`, in their order.
    pub(super) others: Vec<u32>,
    pub(super) silence_ns: u64,
    /// The epoch of the receiver's routes that the sender has (`announce`).
    pub(super) epoch: u32,
}

impl Heartbeat {
    /// Ports by node. `None`: there are not as many as nodes.
    pub(super) fn others(&self) -> Option<[u32; MAX_NODES]> {
        let mut by_node = [0; MAX_NODES];
        let mut given = self.others.iter();
        for (node, ports) in by_node.iter_mut().enumerate() {
            if self.hears >> node & 1 == 1 {
                *ports = *given.next()?;
            }
        }
        given.next().is_none().then_some(by_node)
    }
}
