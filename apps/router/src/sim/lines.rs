//! The hosts outside: each sends packets at random times and takes those that leave.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use courser_sim::web_search::{draw, gap_ns, mean_bytes};
use courser_sim::{HostId, Rng, STORED_OVERHEAD, WIRE_OVERHEAD, World};
use serde::Serialize;

use super::tally::{HEADERS, MARK, Mark, SharedTally};
use super::{Settings, Shape};

/// Preamble and gap of an Ethernet frame.
pub(super) const FRAMING: u32 = WIRE_OVERHEAD - STORED_OVERHEAD;
/// Header and check sequence of an Ethernet frame.
const ETHERNET: u32 = 18;
/// Flows between two hosts, of packets of a fixed size.
const FLOWS: u64 = 4_096;

/// Sizes of packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "sizes", rename_all = "snake_case")]
pub enum Sizes {
    /// Each of the same size, in 4,096 flows from a host to another, at independent random times.
    Fixed {
        /// With Ethernet header and check sequence: 64 to 1,518.
        packet_bytes: u32,
    },
    /// Flows of the sizes of a web search, in packets of at most 1,518 bytes. The flows of a host
    /// that are not complete take turns.
    WebSearch,
}

impl Sizes {
    /// The largest packet, with Ethernet header and check sequence.
    pub(super) fn largest_packet(self) -> u32 {
        match self {
            Sizes::Fixed { packet_bytes } => packet_bytes,
            Sizes::WebSearch => 1_518,
        }
    }
}

/// Destinations of packets.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Matrix {
    /// Any other host, with equal probability.
    Uniform,
    /// The host this many places further on: all packets of a host go to one other, the worst case
    /// for direct ways.
    Shift(u32),
    /// For each host and destination the share of what a port carries, per million. A row or column
    /// of an admissible matrix adds up to at most a million.
    Shares(Vec<Vec<u32>>),
}

impl Matrix {
    /// Shares of the destinations of a host, per million.
    fn row(&self, from: u32, nodes: u32) -> Vec<u32> {
        let n = nodes as usize;
        let mut row = vec![0; n];
        match self {
            Matrix::Uniform => {
                row.fill(1_000_000 / (nodes - 1));
                row[from as usize] = 0;
            }
            Matrix::Shift(by) => row[((from + by) % nodes) as usize] = 1_000_000,
            Matrix::Shares(rows) => {
                let shares = rows.get(from as usize).into_iter().flatten();
                row.iter_mut().zip(shares).for_each(|(to, share)| *to = *share);
            }
        }
        row
    }
}

/// Packets of a flow that are to be sent.
struct Burst {
    flow: u32,
    to: u8,
    /// Bytes of IP packets.
    bytes: u64,
}

/// A host outside.
struct Line {
    settings: Settings,
    number: u32,
    rng: Rng,
    row: Vec<u32>,
    /// When the next burst begins, ns.
    next_ns: f64,
    mean_gap_ns: f64,
    bursts: VecDeque<Burst>,
    /// Flows begun.
    flows: u32,
    /// Numbers of the next packets of flows.
    numbers: BTreeMap<u32, u32>,
    end_ns: u64,
    tally: SharedTally,
}

type SharedLine = Rc<RefCell<Line>>;

/// Lets all hosts outside take packets.
pub(super) fn set_sinks(world: &mut World, settings: &Settings, tally: &SharedTally) {
    for number in 0..settings.nodes {
        let tally = Rc::clone(tally);
        let take = move |now_ns, packet: &[u8]| tally.borrow_mut().leaves(now_ns, number, packet);
        world.set_sink(HostId(settings.nodes + number), Box::new(take));
    }
}

/// Lets all hosts outside send until `end_ns`.
pub(super) fn start(world: &mut World, settings: &Settings, tally: &SharedTally, end_ns: u64) {
    for number in 0..settings.nodes {
        let row = settings.matrix.row(number, settings.nodes);
        let load = f64::from(settings.load_ppm) / 1e6 * row.iter().sum::<u32>() as f64 / 1e6;
        if load == 0.0 {
            continue;
        }
        let ns_per_byte = 8e9 / settings.line_rate_bps as f64;
        let burst_bytes = match settings.sizes {
            Sizes::Fixed { packet_bytes } => f64::from((packet_bytes + FRAMING) * settings.burst),
            Sizes::WebSearch => mean_bytes() as f64 * 1_538.0 / 1_500.0,
        };
        let line = Line {
            settings: settings.clone(),
            number,
            rng: Rng::stream(settings.seed, 0x11e5 << 32 | u64::from(number)),
            row,
            next_ns: world.now_ns() as f64,
            mean_gap_ns: burst_bytes * ns_per_byte / load,
            bursts: VecDeque::new(),
            flows: 0,
            numbers: BTreeMap::new(),
            end_ns,
            tally: Rc::clone(tally),
        };
        step(world, &Rc::new(RefCell::new(line)));
    }
}

/// Sends the next packet when there is one and the cable is free.
fn step(world: &mut World, line: &SharedLine) {
    let mut guard = line.borrow_mut();
    let l = &mut *guard;
    let now_ns = world.now_ns();
    l.begin_bursts(now_ns);
    let next_ns = match l.next_packet(now_ns) {
        None => l.next_ns as u64 + 1,
        Some((mark, payload)) => {
            let first = l.first_node(&mark);
            let outside = HostId(l.settings.nodes + l.number);
            let bytes = payload.len();
            match world.send_plain(outside, HostId(first), 0, payload) {
                Ok(()) => {
                    l.sent(&mark, bytes);
                    now_ns + l.wire_ns(bytes)
                }
                // The cable keeps fractions of a nanosecond.
                Err(_) => now_ns + 1,
            }
        }
    };
    let again = next_ns < l.end_ns;
    drop(guard);
    if again {
        let line = Rc::clone(line);
        world.at(next_ns, move |world| step(world, &line));
    }
}

impl Line {
    /// Adds what has begun by now.
    fn begin_bursts(&mut self, now_ns: u64) {
        while self.next_ns <= now_ns as f64 {
            self.next_ns += gap_ns(&mut self.rng, self.mean_gap_ns);
            let to = self.destination();
            let own = self.number << 24;
            match self.settings.sizes {
                Sizes::Fixed { packet_bytes } => {
                    let bytes = u64::from(packet_bytes - ETHERNET);
                    for _ in 0..self.settings.burst {
                        let flow = own | u32::from(to) << 16 | self.rng.below(FLOWS) as u32;
                        self.bursts.push_back(Burst { flow, to, bytes });
                    }
                }
                Sizes::WebSearch => {
                    self.flows += 1;
                    let flow = own | self.flows & 0x00ff_ffff;
                    self.bursts.push_back(Burst { flow, to, bytes: draw(&mut self.rng) });
                }
            }
        }
    }

    fn destination(&mut self) -> u8 {
        let all: u64 = self.row.iter().map(|share| u64::from(*share)).sum();
        let mut at = self.rng.below(all.max(1));
        for (to, share) in self.row.iter().enumerate() {
            if at < u64::from(*share) {
                return to as u8;
            }
            at -= u64::from(*share);
        }
        0
    }

    /// The next packet, which stays the next one until it is sent.
    fn next_packet(&self, now_ns: u64) -> Option<(Mark, Vec<u8>)> {
        let burst = self.bursts.front()?;
        let number = self.numbers.get(&burst.flow).copied().unwrap_or(0);
        let (from, to) = (self.number as u8, burst.to);
        let mark = Mark { from, to, flow: burst.flow, number, sent_ns: now_ns };
        let most = self.settings.sizes.largest_packet() - ETHERNET;
        let bytes = burst.bytes.min(u64::from(most)) as usize;
        let mut payload = vec![0xa5; bytes.saturating_sub(HEADERS).max(MARK)];
        mark.write(&mut payload);
        Some((mark, payload))
    }

    fn sent(&mut self, mark: &Mark, payload: usize) {
        self.tally.borrow_mut().sent(mark);
        let Some(mut burst) = self.bursts.pop_front() else { return };
        burst.bytes = burst.bytes.saturating_sub((HEADERS + payload) as u64);
        if burst.bytes > 0 {
            self.numbers.insert(burst.flow, mark.number + 1);
            self.bursts.push_back(burst);
        } else if let Sizes::Fixed { .. } = self.settings.sizes {
            self.numbers.insert(burst.flow, mark.number + 1);
        } else {
            self.numbers.remove(&burst.flow);
        }
    }

    /// The node at which a packet arrives: in the mixed topology the switch divides flows among all.
    fn first_node(&self, mark: &Mark) -> u32 {
        match self.settings.topology {
            Shape::Mixed => (mark.flow.wrapping_mul(0x9e37_79b9) >> 16) % self.settings.nodes,
            Shape::Mesh | Shape::Switch => self.number,
        }
    }

    /// Time of a packet on the cable, ns.
    fn wire_ns(&self, payload: usize) -> u64 {
        let bytes = payload as u64 + HEADERS as u64 + u64::from(ETHERNET + FRAMING);
        (bytes * 8_000_000_000).div_ceil(self.settings.line_rate_bps)
    }
}
