//! Senders under one leaf and their receiver under another, with a spine between them.

use courser_sim::fabric::{CableSpec, Node, Pfc, SwitchSpec, Topology};
use courser_sim::{HostId, LinkId, NicConfig, World};

use crate::scenario::path::{DATA, links_of};
use crate::scenario::{ScenarioError, wire_bytes, wire_ns};

/// The receiver.
pub(super) const SERVER: HostId = HostId(0);

/// A switch accepts this much from a link before it pauses the sender.
const XOFF_BYTES: u64 = 100_000;

/// It resumes the sender at this.
const XON_BYTES: u64 = 50_000;

/// The network of a run. A cable between switches is 2.5 times as fast as a host's, as in the
/// paper's, and all cables are equally long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Net {
    pub(super) senders: u32,
    pub(super) rate_bps: u64,
    /// Round trip of a full packet and its credit return on the idle network.
    pub(super) rtt_ns: u64,
    /// Switches pause their inputs.
    pub(super) pfc: bool,
}

impl Net {
    fn rates(self) -> [u64; 4] {
        let uplink_bps = self.rate_bps / 2 * 5;
        [self.rate_bps, uplink_bps, uplink_bps, self.rate_bps]
    }

    /// The round trip without the cables' delays, ns.
    fn fixed_ns(self) -> u64 {
        let nic = NicConfig::default();
        let wire = |&rate| wire_ns(wire_bytes(DATA), rate) + wire_ns(wire_bytes(0), rate);
        self.rates().iter().map(wire).sum::<u64>() + 2 * (nic.tx_latency_ns + nic.rx_latency_ns)
    }

    /// An error for a round trip that is shorter than the time of NICs and packets.
    pub(super) fn check(self) -> Result<(), ScenarioError> {
        let (rtt_ns, fixed_ns) = (self.rtt_ns, self.fixed_ns());
        if rtt_ns >= fixed_ns {
            return Ok(());
        }
        let range = format!("at least {fixed_ns}ns, the time of NICs and packets").into();
        Err(ScenarioError::Setting { name: "rtt_ns", value: format!("{rtt_ns}ns"), range })
    }

    /// Packets in flight on a full line.
    pub(super) fn bdp_packets(self) -> u32 {
        let bits = u128::from(self.rate_bps) * u128::from(self.rtt_ns) / 1_000_000_000;
        u32::try_from(bits.div_ceil(8 * u128::from(wire_bytes(DATA)))).unwrap_or(u32::MAX)
    }

    pub(super) fn topology(self) -> Topology {
        let delay_ns = self.rtt_ns.saturating_sub(self.fixed_ns()) / 8;
        let [rate_bps, uplink_bps, ..] = self.rates();
        let host = CableSpec { rate_bps, delay_ns };
        let uplink = CableSpec { rate_bps: uplink_bps, delay_ns };
        let pfc = self.pfc.then(|| Pfc {
            xoff_bytes: XOFF_BYTES,
            xon_bytes: XON_BYTES,
            headroom_bytes: Pfc::headroom_for(uplink_bps, delay_ns, 0, wire_bytes(DATA) as u32),
        });
        let melo = Topology::melo_part(2);
        let spec = melo.switches().first().copied().unwrap_or_default();
        let mut t = Topology::new(1 + self.senders);
        let [leaf, other, spine] =
            [(); 3].map(|()| Node::Switch(t.add_switch(SwitchSpec { pfc, ..spec })));
        t.add_cable(Node::Host(SERVER), leaf, host);
        for sender in 1..=self.senders {
            t.add_cable(Node::Host(HostId(sender)), other, host);
        }
        t.add_cable(leaf, spine, uplink);
        t.add_cable(other, spine, uplink);
        t
    }
}

/// Time for which senders of links were paused, as a share of the run of the senders' own links.
pub(super) fn paused_fraction(world: &World, senders: u32, time_ns: u64) -> f64 {
    let fabric = world.fabric();
    let paused: u64 = (1..=senders)
        .map(|sender| fabric.link_counters(fabric.uplink(HostId(sender))).paused_ns)
        .sum();
    paused as f64 / (f64::from(senders.max(1)) * time_ns.max(1) as f64)
}

/// The links of the receiver's leaf.
pub(super) fn lossy_links(world: &World) -> Vec<LinkId> {
    links_of(world, 0)
}
