//! The three topologies of scaled-out software routers: [Scatter-gather §II-A, Fig. 1].

use courser_sim::HostId;
use courser_sim::fabric::{CableSpec, HOST_DELAY_NS, Node, SwitchSpec, Topology};
use serde::Serialize;

/// A topology.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Shape {
    /// A cable between every two nodes, and Valiant load balancing (RouteBricks): a packet goes from
    /// the node of its port to a node drawn at random, and from there to the node of its destination.
    /// The node drawn may be one of these two, and the packet goes directly then.
    Mesh,
    /// A cable from every node to one switch, over which packets go directly (ScaleBricks).
    Switch,
    /// The hosts outside are at the switch, too, which divides the packets that arrive among all nodes
    /// (Flowstream, E2). A node's cable has twice the rate of a host's.
    Mixed,
}

impl Shape {
    /// All of them.
    pub const ALL: [Shape; 3] = [Shape::Mesh, Shape::Switch, Shape::Mixed];

    /// Its name in options and results.
    pub const fn name(self) -> &'static str {
        match self {
            Shape::Mesh => "mesh",
            Shape::Switch => "switch",
            Shape::Mixed => "mixed",
        }
    }

    /// The nodes, and after them the host outside of each, with cables of this rate, bit/s.
    pub(super) fn topology(self, nodes: u32, rate_bps: u64) -> Topology {
        let cable = |rate_bps| CableSpec { rate_bps, delay_ns: HOST_DELAY_NS };
        let line = cable(rate_bps);
        let (node, outside) = (|n| Node::Host(HostId(n)), |n| Node::Host(HostId(nodes + n)));
        let mut t = Topology::new(2 * nodes);
        let switch = match self {
            Shape::Mesh => None,
            _ => Some(Node::Switch(t.add_switch(SwitchSpec::default()))),
        };
        for n in 0..nodes {
            match (self, switch) {
                (Shape::Mixed, Some(switch)) => {
                    t.add_cable(node(n), switch, cable(2 * rate_bps));
                    t.add_cable(outside(n), switch, line);
                    continue;
                }
                (_, Some(switch)) => {
                    t.add_cable(node(n), switch, line);
                }
                (_, None) => {
                    (n + 1..nodes).for_each(|m| {
                        t.add_cable(node(n), node(m), line);
                    });
                }
            }
            t.add_cable(outside(n), node(n), line);
        }
        t
    }
}

#[cfg(test)]
mod tests {
    use courser_sim::fabric::{Cable, Fabric};

    use super::*;

    #[test]
    fn shapes_have_the_cables_of_the_figure() {
        for (shape, cables, switches, at_switch, per_node) in [
            (Shape::Mesh, 6 + 4, 0, 0, 4),
            (Shape::Switch, 4 + 4, 1, 4, 2),
            (Shape::Mixed, 4 + 4, 1, 8, 1),
        ] {
            let t = shape.topology(4, 10_000_000_000);
            assert_eq!((t.hosts(), t.cables().len(), t.switches().len()), (8, cables, switches));
            let is_at = |c: &&Cable| [c.a, c.b].iter().any(|end| matches!(end, Node::Switch(_)));
            assert_eq!(t.cables().iter().filter(is_at).count(), at_switch, "{shape:?}");
            let fabric = Fabric::new(&t, 1).expect("builds");
            assert_eq!(fabric.uplinks(HostId(0)).count(), per_node, "{shape:?}");
        }
    }
}
