//! Valiant load balancing: the node by which a flow goes.
//!
//! Every node spreads the packets for each destination evenly over all nodes, so that a cable
//! carries at most two shares of 1/N of a node's traffic, whatever the destinations are:
//! [Valiant and Brebner, STOC '81], [RouteBricks, SOSP '09]. Packets of a flow that follow each
//! other closely take the same way, since others could overtake them. After a gap longer than the
//! ways differ in time, a flow may take another: the one with the fewest bytes so far for that
//! destination.

use crate::route::{MAX_NODES, NodeId};

/// Flows to a destination that are distinguished; more share entries, and their ways.
const FLOWS: usize = 1 << 14;

/// A flow without a packet for this long may take another way: longer than a packet takes through the
/// cluster when queues are full and processes wait for a CPU. RouteBricks has the same.
const GAP_NS: u64 = 100_000_000;

#[derive(Clone, Copy)]
struct Flow {
    last_ns: u64,
    way: NodeId,
}

/// The ways of flows of one node.
pub(super) struct Valiant {
    /// By destination: flows of one entry always have the same usable ways, or they would change the
    /// way of each other with every packet.
    flows: Vec<Flow>,
    /// Bytes sent, by destination and way.
    bytes: Vec<u64>,
    nodes: usize,
}

impl Valiant {
    pub(super) fn new(nodes: usize) -> Self {
        let unused = Flow { last_ns: 0, way: NodeId::MAX };
        Valiant { flows: vec![unused; FLOWS * nodes], bytes: vec![0; nodes * nodes], nodes }
    }

    /// The way of a packet of `bytes` to the node `to`, of those in the set `usable`; `None`: there
    /// is none. A way may be `to`, or this node itself: directly.
    pub(super) fn way(
        &mut self,
        to: NodeId,
        flow: u32,
        bytes: usize,
        now_ns: u64,
        usable: u64,
    ) -> Option<NodeId> {
        let at = usize::from(to) * FLOWS + (flow as usize & (FLOWS - 1));
        let known = self.flows[at];
        let fresh = now_ns.saturating_sub(known.last_ns) < GAP_NS;
        let way = if fresh && usable.checked_shr(known.way.into()).is_some_and(|u| u & 1 == 1) {
            known.way
        } else {
            self.least(to, flow, usable)?
        };
        self.flows[at] = Flow { last_ns: now_ns, way };
        self.count(to, way, bytes);
        Some(way)
    }

    /// The usable way with the fewest bytes; of several the first after a random one.
    fn least(&self, to: NodeId, flow: u32, usable: u64) -> Option<NodeId> {
        let row = &self.bytes[usize::from(to) * self.nodes..][..self.nodes];
        let first = (flow >> 16) as usize % self.nodes;
        let ways = (first..self.nodes).chain(0..first).filter(|way| usable >> way & 1 == 1);
        ways.min_by_key(|way| row[*way]).map(|way| way as NodeId)
    }

    fn count(&mut self, to: NodeId, way: NodeId, bytes: usize) {
        let row = &mut self.bytes[usize::from(to) * self.nodes..][..self.nodes];
        row[usize::from(way)] += bytes as u64;
        if row[usize::from(way)] > 1 << 20 {
            // What was long ago counts less, so that a way that was not usable is not preferred for
            // as long as it was away.
            let least = row.iter().copied().min().unwrap_or(0);
            row.iter_mut().for_each(|b| *b = (*b - least) / 2);
        }
    }
}

const _: () = assert!(MAX_NODES <= 64, "sets of nodes are 64 bits");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_to_each_destination_are_spread_evenly() {
        let mut v = Valiant::new(4);
        let mut sent = [0_usize; 4];
        for flow in 0..4_000_u32 {
            let way = v.way(2, flow.wrapping_mul(0x9e37_79b9), 100, 1_000_000_000, 0b1111);
            sent[usize::from(way.expect("all usable"))] += 1;
        }
        assert!(sent.iter().all(|n| n.abs_diff(1_000) <= 1), "{sent:?}");
    }

    #[test]
    fn a_burst_of_a_flow_takes_one_way_and_a_dead_node_none() {
        let mut v = Valiant::new(4);
        let begin = 1_000_000_000;
        let first = v.way(1, 77, 1_500, begin, 0b1111).expect("a way");
        for n in 1..1_000 {
            assert_eq!(v.way(1, 77, 1_500, begin + n * 1_000, 0b1111), Some(first));
        }
        let others = 0b1111 & !(1 << first);
        let second = v.way(1, 77, 1_500, begin + 1_000_000, others).expect("a way");
        assert_ne!(second, first);
        assert_eq!(v.way(1, 78, 1_500, begin, 0), None);
        // After a gap the flow moves to the way with the fewest bytes.
        let third = v.way(1, 77, 1_500, begin + 10 * GAP_NS, 0b1111).expect("a way");
        assert!(third != first && third != second, "{first} {second} {third}");
    }

    #[test]
    fn flows_of_one_hash_to_two_nodes_do_not_disturb_each_other() {
        // The cable between 2 and 3 is cut.
        let usable = |to: NodeId| if to == 2 { 0b0111 } else { 0b1011 };
        let mut v = Valiant::new(4);
        let mut way = |to, n: u64| v.way(to, 77, 1_500, 1_000_000_000 + n, usable(to));
        let first = (way(2, 0), way(3, 1));
        for n in 1..1_000 {
            assert_eq!((way(2, 2 * n), way(3, 2 * n + 1)), first, "packet {n}");
        }
    }

    #[test]
    fn a_node_that_returns_gets_no_more_than_a_share_for_long() {
        let mut v = Valiant::new(3);
        for flow in 0..100_000_u32 {
            v.way(1, flow, 1_500, 1_000_000_000 + u64::from(flow) * GAP_NS * 2, 0b011);
        }
        let mut in_a_row = 0;
        let mut now_ns = 1 << 50;
        while v.way(1, in_a_row, 1_500, now_ns, 0b111) == Some(2) {
            in_a_row += 1;
            now_ns += 2 * GAP_NS;
        }
        assert!(in_a_row < 1_500, "{in_a_row}");
    }
}
