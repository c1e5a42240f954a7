//! What the hosts outside, and observers in the nodes, saw of packets.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use courser_sim::observe::Times;
use courser_sim::thread_now_ns;
use serde::Serialize;

use super::node::{behind, outside};
use crate::node::Probe;
use crate::packet::checksum;
use crate::route::NodeId;

pub(super) type SharedTally = Rc<RefCell<Tally>>;

/// Distribution of a time. All in nanoseconds; 0 when there is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Latency {
    /// Median.
    pub latency_p50_ns: u64,
    /// 99th percentile.
    pub latency_p99_ns: u64,
    /// Largest.
    pub latency_max_ns: u64,
}

impl From<&Times> for Latency {
    fn from(times: &Times) -> Self {
        let at = |q| times.quantile_ns(q).unwrap_or(0);
        Latency { latency_p50_ns: at(0.5), latency_p99_ns: at(0.99), latency_max_ns: at(1.0) }
    }
}

/// Time of a part of the way.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Hop {
    /// `line_in`: from the host outside until the first node sends it on; `link`: from a node to the
    /// next one, in order; `node`: in a node between; `line_out`: from the last node to the host.
    pub hop: &'static str,
    /// Packets that have it.
    pub packets: u64,
    /// Mean, ns.
    pub mean_ns: u64,
    /// The distribution.
    #[serde(flatten)]
    pub latency: Latency,
}

const HOPS: [&str; 5] = ["line_in", "first_link", "node", "second_link", "line_out"];

/// What must not happen: numbers of packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Faults {
    /// Left after a later packet of their flow.
    pub reordered: u64,
    /// Left twice.
    pub duplicated: u64,
    /// Left at a port where their destination is not.
    pub misrouted: u64,
    /// Left with another content, or time to live.
    pub changed: u64,
}

/// Content of a packet: hosts, flow, number in the flow, time of its first bit.
///
/// A simulated network carries the payload of datagrams, and accounts for the headers of IPv4 and UDP
/// itself. A port of a node puts them before what arrives, and takes them off what leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mark {
    pub(super) from: u8,
    pub(super) to: u8,
    pub(super) flow: u32,
    pub(super) number: u32,
    pub(super) sent_ns: u64,
}

/// Bytes of an IPv4 and a UDP header.
pub(super) const HEADERS: usize = 28;
/// Bytes of a mark: what the smallest Ethernet frame carries.
pub(super) const MARK: usize = 18;
/// Time to live of packets from hosts.
const TTL: u8 = 64;
const UDP: u8 = 17;

impl Mark {
    pub(super) fn write(&self, payload: &mut [u8]) {
        payload[..2].copy_from_slice(&[self.from, self.to]);
        payload[2..6].copy_from_slice(&self.flow.to_le_bytes());
        payload[6..10].copy_from_slice(&self.number.to_le_bytes());
        payload[10..18].copy_from_slice(&self.sent_ns.to_le_bytes());
    }

    /// `None` for packets of the nodes themselves, which have their IP header.
    pub(super) fn read(payload: &[u8]) -> Option<Mark> {
        let mark = payload.first_chunk::<MARK>()?;
        let byte = |at: usize| u64::from(mark[at]);
        let number = |at: usize, len: usize| (0..len).fold(0, |n, i| n | byte(at + i) << (8 * i));
        let from_host = mark[0] < 0x40;
        from_host.then(|| Mark {
            from: mark[0],
            to: mark[1],
            flow: number(2, 4) as u32,
            number: number(6, 4) as u32,
            sent_ns: number(10, 8),
        })
    }

    fn of_packet(packet: &[u8]) -> Option<Mark> {
        Mark::read(payload(packet)?)
    }
}

/// Writes the packet of a payload.
pub(super) fn packet_of(payload: &[u8], out: &mut Vec<u8>) {
    let Some(mark) = Mark::read(payload) else { return };
    let total = (HEADERS + payload.len()) as u16;
    let (source, destination) =
        (outside(mark.from.into()), behind(mark.to.into(), mark.flow as u16));
    out.clear();
    out.extend_from_slice(&[0x45, 0]);
    out.extend_from_slice(&total.to_be_bytes());
    out.extend_from_slice(&[0, 0, 0x40, 0, TTL, UDP, 0, 0]);
    out.extend_from_slice(&source.octets());
    out.extend_from_slice(&destination.octets());
    let sum = checksum::of_header(out);
    out[10..12].copy_from_slice(&sum.to_be_bytes());
    out.extend_from_slice(&((mark.flow >> 16) as u16).to_be_bytes());
    out.extend_from_slice(&(mark.flow as u16).to_be_bytes());
    out.extend_from_slice(&(total - 20).to_be_bytes());
    out.extend_from_slice(&[0, 0]);
    out.extend_from_slice(payload);
}

/// The payload of a packet of hosts; `None`: it is one of the nodes'.
pub(super) fn payload(packet: &[u8]) -> Option<&[u8]> {
    (packet.get(9) == Some(&UDP)).then(|| packet.get(HEADERS..)).flatten()
}

/// Results of a run.
pub(super) struct Tally {
    nodes: u32,
    begin_ns: u64,
    end_ns: u64,
    pub(super) offered: u64,
    /// Packets that left in the measured time.
    pub(super) left: u64,
    pub(super) left_bytes: u64,
    pub(super) all_left: u64,
    pub(super) end_to_end: Times,
    pub(super) faults: Faults,
    pub(super) bytes_between_nodes: u64,
    hops: Vec<Times>,
    /// Packets by pair of nodes, in the measured time.
    pairs: Vec<u64>,
    /// Received by each port in the measured time.
    arrived: Vec<u64>,
    /// Counted packets sent and received, by pair of hosts.
    flows: Vec<(u64, u64)>,
    /// The next number of each flow that left.
    next: BTreeMap<u32, u32>,
    /// When packets passed last, and hops behind them.
    passed: BTreeMap<(u32, u32), (u64, usize)>,
}

impl Tally {
    pub(super) fn new(nodes: u32) -> Self {
        let n = nodes as usize;
        Tally {
            nodes,
            begin_ns: u64::MAX,
            end_ns: u64::MAX,
            offered: 0,
            left: 0,
            left_bytes: 0,
            all_left: 0,
            end_to_end: Times::default(),
            faults: Faults::default(),
            bytes_between_nodes: 0,
            hops: HOPS.iter().map(|_| Times::default()).collect(),
            pairs: vec![0; n * n],
            arrived: vec![0; n],
            flows: vec![(0, 0); n * n],
            next: BTreeMap::new(),
            passed: BTreeMap::new(),
        }
    }

    pub(super) fn measure(&mut self, begin_ns: u64, end_ns: u64) {
        (self.begin_ns, self.end_ns) = (begin_ns, end_ns);
    }

    fn counts(&self, at_ns: u64) -> bool {
        (self.begin_ns..self.end_ns).contains(&at_ns)
    }

    /// All counted packets have left.
    pub(super) fn is_complete(&self) -> bool {
        self.end_to_end.count() >= self.offered
    }

    fn pair(&self, from: u8, to: u8) -> usize {
        usize::from(from) * self.nodes as usize + usize::from(to)
    }

    /// Counted packets from one host to another: sent, received.
    pub(super) fn between(&self, from: u32, to: u32) -> (u64, u64) {
        self.flows[self.pair(from as u8, to as u8)]
    }

    /// A host outside sends a packet.
    pub(super) fn sent(&mut self, mark: &Mark) {
        if self.counts(mark.sent_ns) {
            self.offered += 1;
            self.arrived[usize::from(mark.from)] += 1;
            let pair = self.pair(mark.from, mark.to);
            self.flows[pair].0 += 1;
        }
    }

    /// A node sends a packet to the host at its port.
    pub(super) fn check_packet(&mut self, packet: &[u8]) {
        let header = crate::packet::parse(packet);
        self.faults.changed += u64::from(!header.is_ok_and(|header| header.ttl == TTL - 1));
    }

    /// The payload of a packet has reached the host at the port of a node.
    pub(super) fn leaves(&mut self, now_ns: u64, at: u32, payload: &[u8]) {
        let Some(mark) = Mark::read(payload) else { return };
        self.faults.misrouted += u64::from(u32::from(mark.to) != at);
        let next = self.next.entry(mark.flow).or_insert(0);
        if mark.number >= *next {
            *next = mark.number + 1;
        } else if mark.number + 1 == *next {
            self.faults.duplicated += 1;
            return;
        } else {
            self.faults.reordered += 1;
        }
        let (since_ns, hop) = self.passed.remove(&(mark.flow, mark.number)).unwrap_or((now_ns, 0));
        self.all_left += 1;
        if self.counts(now_ns) {
            self.left += 1;
            self.left_bytes += (HEADERS + payload.len()) as u64;
        }
        if self.counts(mark.sent_ns) {
            self.end_to_end.record(now_ns.saturating_sub(mark.sent_ns));
            if hop > 0 {
                self.hops[HOPS.len() - 1].record(now_ns.saturating_sub(since_ns));
            }
            let pair = self.pair(mark.from, mark.to);
            self.flows[pair].1 += 1;
        }
    }

    /// A packet is sent to a node, or taken from one.
    fn passes(&mut self, packet: &[u8], between: Option<(NodeId, NodeId)>) {
        let (Some(mark), Some(now_ns)) = (Mark::of_packet(packet), thread_now_ns()) else { return };
        if let Some((from, to)) = between {
            self.bytes_between_nodes += packet.len() as u64;
            if self.counts(mark.sent_ns) {
                let pair = self.pair(from, to);
                self.pairs[pair] += 1;
            }
        }
        if !self.counts(mark.sent_ns) {
            return;
        }
        let key = (mark.flow, mark.number);
        let (since_ns, hop) = self.passed.get(&key).copied().unwrap_or((mark.sent_ns, 0));
        if hop < HOPS.len() - 1 {
            self.hops[hop].record(now_ns.saturating_sub(since_ns));
        }
        self.passed.insert(key, (now_ns, hop + 1));
    }

    pub(super) fn busiest_pair_share(&self) -> f64 {
        let most = self.pairs.iter().copied().max().unwrap_or(0);
        let n = self.nodes as usize;
        let left = |to: usize| (0..n).map(|from| self.flows[from * n + to].1).sum();
        let ports = self.arrived.iter().copied().chain((0..n).map(left));
        let busiest_port: u64 = ports.max().unwrap_or(0);
        most as f64 / busiest_port.max(1) as f64
    }

    pub(super) fn hops(&self) -> Vec<Hop> {
        let hops = HOPS.iter().zip(&self.hops).filter(|(_, times)| times.count() > 0);
        hops.map(|(hop, times)| Hop {
            hop,
            packets: times.count(),
            mean_ns: times.mean_ns().unwrap_or(0),
            latency: Latency::from(times),
        })
        .collect()
    }
}

/// The observer in a node.
pub struct SimProbe {
    node: NodeId,
    tally: SharedTally,
}

impl std::fmt::Debug for SimProbe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimProbe").field("node", &self.node).finish_non_exhaustive()
    }
}

impl SimProbe {
    pub(super) fn new(node: u32, tally: &SharedTally) -> Self {
        SimProbe { node: node as NodeId, tally: Rc::clone(tally) }
    }
}

impl Probe for SimProbe {
    fn sends(&mut self, to: NodeId, _last: NodeId, packet: &[u8]) {
        self.tally.borrow_mut().passes(packet, Some((self.node, to)));
    }

    fn takes(&mut self, _from: NodeId, packet: &[u8]) {
        self.tally.borrow_mut().passes(packet, None);
    }
}
