//! The networks of tests and papers, and the default parameters.

use super::policy::{Buffer, Marking};
use super::topology::{CableSpec, MAX_NODES, Node, SwitchSpec, Topology};
use crate::HostId;

/// Rate of a host's cable: 25 Gbit/s, the NICs of eRPC's large cluster [eRPC Table 1].
pub const HOST_RATE_BPS: u64 = 25_000_000_000;

/// Rate of a cable between switches: 100 Gbit/s [eRPC §6].
pub const UPLINK_RATE_BPS: u64 = 100_000_000_000;

/// Delay of a host's cable: 3 m within a rack, at 5 ns per metre.
pub const HOST_DELAY_NS: u64 = 15;

/// Delay of a cable between switches: 20 m through a row of racks, at 5 ns per metre.
pub const UPLINK_DELAY_NS: u64 = 100;

/// Latency of a switch, port to port: 300 ns. [eRPC §6] has "less than 500 ns" for the Spectrum
/// switches of its cluster.
pub const SWITCH_LATENCY_NS: u64 = 300;

/// Buffer of a switch: 12 MB, all of it dynamic [eRPC §2.1] (E84).
pub const BUFFER_BYTES: u64 = 12_000_000;

/// Share of the free buffer that a queue may take: 8, so that a single queue reaches eight ninths,
/// as in [eRPC §2.1] ("can be dedicated to an incast's target port").
pub const BUFFER_ALPHA: u32 = 8;

/// Marking for DCQCN: RED between 100 and 400 kB, with a probability of 20 % at the upper limit, as in
/// the published simulations of HPCC (SIGCOMM '19) for links of 25 Gbit/s.
pub const DCQCN_MARKING: Marking =
    Marking::Red { min_bytes: 100_000, max_bytes: 400_000, pmax_ppm: 200_000 };

/// Fastest cable: a petabit per second. With it and the largest datagram, all products of the
/// fabric's arithmetic stay below 2^64.
pub(super) const MAX_RATE_BPS: u64 = 1_000_000_000_000_000;

impl Default for CableSpec {
    /// A host's cable.
    fn default() -> Self {
        CableSpec { rate_bps: HOST_RATE_BPS, delay_ns: HOST_DELAY_NS }
    }
}

impl CableSpec {
    /// A cable between switches.
    pub fn uplink() -> Self {
        CableSpec { rate_bps: UPLINK_RATE_BPS, delay_ns: UPLINK_DELAY_NS }
    }
}

impl Default for Buffer {
    fn default() -> Self {
        Buffer::Shared { bytes: BUFFER_BYTES, alpha_num: BUFFER_ALPHA, alpha_den: 1 }
    }
}

impl Default for SwitchSpec {
    /// A cut-through switch without marking and without priority flow control.
    fn default() -> Self {
        SwitchSpec {
            latency_ns: SWITCH_LATENCY_NS,
            cut_through: true,
            buffer: Buffer::default(),
            marking: Marking::Off,
            marks_departures: false,
            pfc: None,
        }
    }
}

/// Two tiers of switches: every leaf has its hosts, and cables to every spine. All paths between
/// two leaves have equal length; a flow takes one of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeafSpine {
    /// Leaves (top-of-rack switches).
    pub leaves: u32,
    /// Hosts of each.
    pub hosts_per_leaf: u32,
    /// Spines.
    pub spines: u32,
    /// Cables between each leaf and each spine.
    pub cables_per_spine: u32,
    /// The hosts' cables.
    pub host_cable: CableSpec,
    /// The cables between the tiers.
    pub uplink: CableSpec,
    /// All switches.
    pub switch: SwitchSpec,
}

impl Default for LeafSpine {
    /// Two leaves of four hosts, two spines: the smallest network with a choice of path.
    fn default() -> Self {
        LeafSpine {
            leaves: 2,
            hosts_per_leaf: 4,
            spines: 2,
            cables_per_spine: 1,
            host_cable: CableSpec::default(),
            uplink: CableSpec::uplink(),
            switch: SwitchSpec::default(),
        }
    }
}

impl Topology {
    /// Two hosts and one cable.
    pub fn two_hosts() -> Topology {
        let mut t = Topology::new(2);
        t.add_cable(Node::Host(HostId(0)), Node::Host(HostId(1)), CableSpec::default());
        t
    }

    /// One switch with `hosts` hosts.
    pub fn one_switch(hosts: u32) -> Topology {
        let hosts = hosts.min(MAX_NODES + 1);
        let mut t = Topology::new(hosts);
        let switch = Node::Switch(t.add_switch(SwitchSpec::default()));
        for h in 0..hosts {
            t.add_cable(Node::Host(HostId(h)), switch, CableSpec::default());
        }
        t
    }

    /// Every host has a cable to every other.
    pub fn full_mesh(hosts: u32, cable: CableSpec) -> Topology {
        let mut t = Topology::new(hosts.min(MAX_NODES + 1));
        for a in 0..t.hosts() {
            for b in a + 1..t.hosts() {
                if t.cables().len() > MAX_NODES as usize {
                    return t;
                }
                t.add_cable(Node::Host(HostId(a)), Node::Host(HostId(b)), cable);
            }
        }
        t
    }

    /// Two tiers. Switches are numbered leaves first; hosts leaf by leaf.
    pub fn leaf_spine(spec: LeafSpine) -> Topology {
        let hosts = spec.leaves.saturating_mul(spec.hosts_per_leaf);
        two_tiers(hosts, &spec)
    }

    /// eRPC's large cluster, CX4 [eRPC §6, Table 1] (E71): five top-of-rack switches with up to 40
    /// hosts at 25 GbE each and five 100 GbE cables to one spine. That is 2:1 oversubscribed with
    /// all 200 hosts; of fewer (the paper uses 100), each leaf has a fifth, rounded up, so that
    /// they have more uplink rate than in the full cluster.
    pub fn cx4(hosts: u32) -> Topology {
        let spec = LeafSpine {
            leaves: 5,
            hosts_per_leaf: hosts.div_ceil(5),
            spines: 1,
            cables_per_spine: 5,
            ..LeafSpine::default()
        };
        two_tiers(hosts, &spec)
    }

    /// The simulated network of MELO (M22) [MELO §4.1]: 32 leaves with 10 hosts at 40 Gbit/s, 4
    /// spines, 100 Gbit/s between the tiers. The base RTT of 16 µs is 2 µs on each of the eight
    /// cables of a round trip; its switches store packets and add no latency, as in packet-level
    /// simulators. The paper states no buffer size: it is the default here.
    pub fn melo() -> Topology {
        Topology::melo_part(32)
    }

    /// Part of [`Topology::melo`]: fewer leaves with their hosts, and all spines. The share of the
    /// traffic that crosses each spine stays the same.
    pub fn melo_part(leaves: u32) -> Topology {
        let delay_ns = 2_000;
        Topology::leaf_spine(LeafSpine {
            leaves,
            hosts_per_leaf: 10,
            spines: 4,
            cables_per_spine: 1,
            host_cable: CableSpec { rate_bps: 40_000_000_000, delay_ns },
            uplink: CableSpec { rate_bps: 100_000_000_000, delay_ns },
            switch: SwitchSpec { latency_ns: 0, cut_through: false, ..SwitchSpec::default() },
        })
    }
}

/// The first `hosts` hosts of a two-tier network. Stops early at the limit of parts, which
/// [`Topology::check`] then reports.
fn two_tiers(hosts: u32, spec: &LeafSpine) -> Topology {
    let hosts = hosts.min(MAX_NODES + 1);
    let mut t = Topology::new(hosts);
    for _ in 0..spec.leaves.saturating_add(spec.spines).min(MAX_NODES + 1) {
        t.add_switch(spec.switch);
    }
    for h in 0..hosts {
        let leaf = h / spec.hosts_per_leaf;
        t.add_cable(Node::Host(HostId(h)), Node::Switch(leaf), spec.host_cable);
    }
    let leaves = if spec.cables_per_spine == 0 { 0 } else { spec.leaves };
    let tiers = (0..leaves).flat_map(|leaf| (0..spec.spines).map(move |spine| (leaf, spine)));
    for (leaf, spine) in tiers {
        for _ in 0..spec.cables_per_spine {
            if t.cables().len() > MAX_NODES as usize {
                return t;
            }
            let up = Node::Switch(spec.leaves.saturating_add(spine));
            t.add_cable(Node::Switch(leaf), up, spec.uplink);
        }
    }
    t
}
