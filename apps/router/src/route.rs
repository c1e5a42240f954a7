//! Where packets go: nodes, ports, next hops.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// A node of the cluster, by its position in the cluster's file: 0 to [`MAX_NODES`] - 1.
pub type NodeId = u8;
/// Nodes of a cluster. Sets of nodes are 64 bits.
pub const MAX_NODES: usize = 64;

/// A port of a node to a network outside, by its position in the node's list.
pub type PortId = u8;
/// Ports of a node. Sets of ports are 32 bits.
pub const MAX_PORTS: usize = 32;

/// How a packet leaves the cluster at its last node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Exit {
    /// The destination is an address of the node itself.
    Local,
    /// The destination is on the network of a port.
    Connected(PortId),
    /// Through a router on the network of a port.
    Gateway(PortId, IpAddr),
}

/// The last node of a packet, and its way out there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct NextHop {
    /// The node.
    pub node: NodeId,
    /// The way out.
    pub exit: Exit,
}

impl NextHop {
    /// The port by which packets leave; `None` for an address of the node.
    pub fn port(&self) -> Option<PortId> {
        match self.exit {
            Exit::Local => None,
            Exit::Connected(port) | Exit::Gateway(port, _) => Some(port),
        }
    }
}

impl fmt::Display for NextHop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.exit {
            Exit::Local => write!(f, "node {} itself", self.node),
            Exit::Connected(port) => write!(f, "node {} port {port}", self.node),
            Exit::Gateway(port, gateway) => {
                write!(f, "node {} port {port} gateway {gateway}", self.node)
            }
        }
    }
}

/// Next hops with their weights, which share the flows of a route. An empty list rejects packets
/// with ICMP "unreachable".
pub type Members = Vec<(NextHop, u16)>;
