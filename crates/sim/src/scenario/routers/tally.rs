//! Measurements of the packets of a router, and the head that a packet carries.

use std::cell::RefCell;
use std::rc::Rc;

use crate::observe::Times;

/// Bytes of a [`Head`] of a plain packet, which is the smallest payload of a datagram.
pub(super) const PLAIN_HEAD: usize = 18;

/// Bytes of a [`Head`] between nodes.
const HEAD: usize = PLAIN_HEAD + 1;

/// The head of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Head {
    /// When the host outside began to send it, ns.
    pub(super) born_ns: u64,
    /// When the node that sent it last got it, ns.
    pub(super) since_ns: u64,
    /// The line on which it leaves.
    pub(super) to: u16,
    /// Nodes that it has passed. Only between nodes.
    pub(super) passed: u8,
}

impl Head {
    pub(super) fn new(born_ns: u64, to: u32) -> Head {
        Head { born_ns, since_ns: born_ns, to: to as u16, passed: 0 }
    }

    /// Writes it to a packet; a plain packet may have no room for `passed`.
    pub(super) fn write(&self, bytes: &mut [u8]) {
        let Head { born_ns, since_ns, to, passed } = *self;
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(&born_ns.to_le_bytes());
        head[8..16].copy_from_slice(&since_ns.to_le_bytes());
        head[16..18].copy_from_slice(&to.to_le_bytes());
        head[18] = passed;
        let len = bytes.len().min(HEAD);
        bytes[..len].copy_from_slice(&head[..len]);
    }

    /// `None`: no packet of this experiment.
    pub(super) fn read(bytes: &[u8]) -> Option<Head> {
        let (born_ns, rest) = bytes.split_first_chunk()?;
        let (since_ns, rest) = rest.split_first_chunk()?;
        let (to, rest) = rest.split_first_chunk()?;
        Some(Head {
            born_ns: u64::from_le_bytes(*born_ns),
            since_ns: u64::from_le_bytes(*since_ns),
            to: u16::from_le_bytes(*to),
            passed: rest.first().copied().unwrap_or(0),
        })
    }
}

/// Places of hops in [`Tally::hops`].
pub(super) const LINE_IN: usize = 0;
pub(super) const LINE_OUT: usize = 3;

/// Measurements of all packets that are born in the measured time.
#[derive(Debug)]
pub(super) struct Tally {
    begin_ns: u64,
    end_ns: u64,
    nodes: u32,
    /// Packets that hosts outside have sent.
    pub(super) offered: u64,
    /// Packets that nodes have received from them.
    pub(super) received: u64,
    /// Packets of any age that have left in the measured time.
    pub(super) left: u64,
    /// Packets that a node could not send, in the whole run.
    pub(super) refused: u64,
    pub(super) end_to_end: Times,
    /// By hop: from the line, between nodes, to the line.
    pub(super) hops: [(&'static str, Times); 4],
    /// Packets by sending and receiving node.
    pairs: Vec<u64>,
}

/// Shared by all parts of a world.
pub(super) type SharedTally = Rc<RefCell<Tally>>;

impl Tally {
    pub(super) fn new(nodes: u32) -> Tally {
        Tally {
            begin_ns: u64::MAX,
            end_ns: u64::MAX,
            nodes,
            offered: 0,
            received: 0,
            left: 0,
            refused: 0,
            end_to_end: Times::default(),
            hops: ["line_in", "first", "second", "line_out"].map(|hop| (hop, Times::default())),
            pairs: vec![0; (nodes * nodes) as usize],
        }
    }

    /// Sets the measured time.
    pub(super) fn measure(&mut self, begin_ns: u64, end_ns: u64) {
        (self.begin_ns, self.end_ns) = (begin_ns, end_ns);
    }

    fn is_measured(&self, at_ns: u64) -> bool {
        (self.begin_ns..self.end_ns).contains(&at_ns)
    }

    /// A host outside has sent a packet.
    pub(super) fn sent(&mut self, now_ns: u64) {
        self.offered += u64::from(self.is_measured(now_ns));
    }

    /// A hop of a packet ends now.
    pub(super) fn hop_ends(&mut self, hop: usize, head: &Head, now_ns: u64) {
        if !self.is_measured(head.born_ns) {
            return;
        }
        self.received += u64::from(hop == LINE_IN);
        if let Some((_, times)) = self.hops.get_mut(hop) {
            times.record(now_ns - head.since_ns);
        }
    }

    /// A node sends a packet to another.
    pub(super) fn passes(&mut self, from: u32, to: u32, head: &Head) {
        let measured = u64::from(self.is_measured(head.born_ns));
        if let Some(pair) = self.pairs.get_mut((from * self.nodes + to) as usize) {
            *pair += measured;
        }
    }

    /// A packet has left the router.
    pub(super) fn leaves(&mut self, head: &Head, now_ns: u64) {
        self.left += u64::from(self.is_measured(now_ns));
        self.hop_ends(LINE_OUT, head, now_ns);
        if self.is_measured(head.born_ns) {
            self.end_to_end.record(now_ns - head.born_ns);
        }
    }

    /// Returns whether all measured packets have left.
    pub(super) fn is_complete(&self) -> bool {
        self.end_to_end.count() == self.offered
    }

    /// Packets of the pair of nodes with most, for one packet received from each line.
    pub(super) fn busiest_pair_share(&self) -> f64 {
        let most = self.pairs.iter().max().copied().unwrap_or(0);
        most as f64 * f64::from(self.nodes) / self.received.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_survive_packets_of_both_kinds() {
        let head = Head { born_ns: 1 << 40, since_ns: 7, to: 300, passed: 2 };
        let mut message = [0xff; 64];
        head.write(&mut message);
        assert_eq!((Head::read(&message), message[19]), (Some(head), 0xff));
        let mut plain = [0; PLAIN_HEAD];
        head.write(&mut plain);
        assert_eq!(Head::read(&plain), Some(Head { passed: 0, ..head }));
        assert_eq!(Head::read(&plain[1..]), None);
    }

    #[test]
    fn only_packets_of_the_measured_time_count() {
        let mut tally = Tally::new(2);
        tally.measure(100, 200);
        for born_ns in [99, 100, 199, 200] {
            let head = Head::new(born_ns, 1);
            tally.sent(born_ns);
            tally.hop_ends(LINE_IN, &head, born_ns + 10);
            tally.passes(0, 1, &head);
            tally.leaves(&head, born_ns + 50);
        }
        assert_eq!((tally.offered, tally.received, tally.left), (2, 2, 2), "two left in time");
        assert_eq!(tally.end_to_end.extremes_ns(), Some((50, 50)));
        assert_eq!(tally.hops[LINE_IN].1.mean_ns(), Some(10));
        assert_eq!(tally.busiest_pair_share(), 2.0);
        assert!(tally.is_complete());
    }
}
