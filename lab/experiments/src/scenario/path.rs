//! The part of MELO's network that a single flow uses `[MELO §4]` (M22); the rest has no influence
//! on it.

use super::{ScenarioError, wire_bytes, wire_ns};
use courser_sim::fabric::{CableSpec, LinkFaults, Node, SwitchSpec, Topology};
use courser_sim::{HostId, LinkId, NicConfig, World};

/// Receiver of the flow.
pub(crate) const SERVER: HostId = HostId(0);

/// Sender of the flow.
pub(crate) const CLIENT: HostId = HostId(1);

/// Rate of a host's cable, bit/s.
pub(crate) const RATE_BPS: u64 = 40_000_000_000;

/// Rate of a cable between switches, bit/s.
const UPLINK_RATE_BPS: u64 = 100_000_000_000;

/// Data bytes of a full packet: the paper's MTU of 1 KB.
pub(crate) const DATA: usize = 1_024;

/// The datagram payload with room for them.
pub(crate) const MAX_FRAME: usize = DATA + super::data_overhead();

/// Switches between the two hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    /// One leaf (number 0), with both hosts.
    OneLeaf,
    /// The server's leaf (number 0), the client's (1) and a spine (2).
    TwoLeaves,
}

impl Part {
    /// Rates of the cables of a path, in order.
    fn rates(self) -> &'static [u64] {
        match self {
            Part::OneLeaf => &[RATE_BPS, RATE_BPS],
            Part::TwoLeaves => &[RATE_BPS, UPLINK_RATE_BPS, UPLINK_RATE_BPS, RATE_BPS],
        }
    }
}

/// Two hosts with this round trip: that of a full packet and its credit return on the idle network,
/// including their time on every cable and in the NICs. The length of the cables follows from it;
/// all are equal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Path {
    pub(crate) part: Part,
    pub(crate) rtt_ns: u64,
}

impl Path {
    /// The round trip without the cables' delays, ns.
    pub(crate) fn fixed_ns(self) -> u64 {
        let nic = NicConfig::default();
        let cables = self.part.rates().iter();
        let wire: u64 =
            cables.map(|&r| wire_ns(wire_bytes(DATA), r) + wire_ns(wire_bytes(0), r)).sum();
        wire + 2 * (nic.tx_latency_ns + nic.rx_latency_ns)
    }

    /// An error for a round trip that is shorter than the time of NICs and packets.
    pub(crate) fn check(self) -> Result<(), ScenarioError> {
        let (rtt_ns, fixed_ns) = (self.rtt_ns, self.fixed_ns());
        if rtt_ns >= fixed_ns {
            return Ok(());
        }
        let range = format!("at least {fixed_ns}ns, the time of NICs and packets").into();
        Err(ScenarioError::Setting { name: "rtt_ns", value: format!("{rtt_ns}ns"), range })
    }

    /// Packets in flight on a full line: the bandwidth-delay product over a packet's bytes on the
    /// wire, rounded up.
    pub(crate) fn bdp_packets(self) -> u32 {
        let bytes = u128::from(RATE_BPS) * u128::from(self.rtt_ns) / 8_000_000_000;
        let packets = bytes.div_ceil(u128::from(wire_bytes(DATA)));
        u32::try_from(packets).unwrap_or(u32::MAX)
    }

    /// The network.
    pub(crate) fn topology(self) -> Topology {
        let rates = self.part.rates();
        let delay_ns = self.rtt_ns.saturating_sub(self.fixed_ns()) / (2 * rates.len() as u64);
        let cable = |rate_bps| CableSpec { rate_bps, delay_ns };
        let mut t = Topology::new(2);
        let leaf = Node::Switch(t.add_switch(switch()));
        t.add_cable(Node::Host(SERVER), leaf, cable(RATE_BPS));
        match self.part {
            Part::OneLeaf => t.add_cable(Node::Host(CLIENT), leaf, cable(RATE_BPS)),
            Part::TwoLeaves => {
                let other = Node::Switch(t.add_switch(switch()));
                let spine = Node::Switch(t.add_switch(switch()));
                t.add_cable(Node::Host(CLIENT), other, cable(RATE_BPS));
                t.add_cable(leaf, spine, cable(UPLINK_RATE_BPS));
                t.add_cable(other, spine, cable(UPLINK_RATE_BPS))
            }
        };
        t
    }
}

/// A switch of [`Topology::melo`].
fn switch() -> SwitchSpec {
    Topology::melo().switches().first().copied().unwrap_or_default()
}

/// The links that leave a switch.
pub(crate) fn links_of(world: &World, switch: u32) -> Vec<LinkId> {
    let links = (0..world.fabric().links()).map(LinkId);
    links.filter(|&link| world.fabric().ends(link).0 == Node::Switch(switch)).collect()
}

/// Makes a switch lose packets: each that crosses it, in either direction, with this probability
/// per million.
pub(crate) fn lose_at(world: &mut World, switch: u32, loss_ppm: u32) {
    for link in links_of(world, switch) {
        world.set_link_faults(link, LinkFaults { loss_ppm, ..LinkFaults::default() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use courser_sim::WorldConfig;

    #[test]
    fn a_full_packet_has_a_kibibyte_and_the_paper_s_delay_holds_71_of_them() {
        assert_eq!(super::super::data_per_packet(MAX_FRAME), 1_024);
        let path = Path { part: Part::OneLeaf, rtt_ns: 16_000 };
        assert_eq!(wire_bytes(DATA), 1_134);
        assert_eq!(path.bdp_packets(), 71, "80,000 / 1,134");
    }

    #[test]
    fn a_lossy_switch_loses_in_every_direction() {
        for (part, links) in [(Part::OneLeaf, 2), (Part::TwoLeaves, 2)] {
            let topology = Path { part, rtt_ns: 16_000 }.topology();
            let world = World::new(WorldConfig::new(1, topology)).expect("a world");
            assert_eq!(links_of(&world, 0).len(), links);
        }
    }
}
