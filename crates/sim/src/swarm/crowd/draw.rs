//! A congested world, drawn from its seed.

use std::fmt;

use courser::Control;
use courser_proto::wire::{FRAME_HEADER, PACKET_HEADER};

use crate::fabric::Topology;
use crate::swarm::dice::{Dice, MS, US};
use crate::{Checks, CpuCosts, Rng, WorldConfig};

/// Purposes of random streams.
pub(super) mod purpose {
    pub(in crate::swarm) const WORLD: u64 = 0x5c_0001;
    pub(in crate::swarm) const SIZES: u64 = 0x5c_0001_0000_0000;
    pub(in crate::swarm) const JITTER: u64 = 0x5c_0002_0000_0000;
}

/// Direction of the load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pattern {
    /// All hosts send to host 0.
    Incast,
    /// Host 0 sends to all.
    OneToMany,
    /// Each host sends to some others.
    AllToAll,
}

/// Sizes of requests: packets times a power of two, with equal probability of each power.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sizes {
    pub(super) least: usize,
    pub(super) most: usize,
}

impl Sizes {
    pub(super) fn draw(self, rng: &mut Rng) -> usize {
        let powers = (self.most / self.least).ilog2();
        self.least << rng.between(0, powers.into())
    }
}

/// Requests of a host to a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Flow {
    pub(super) from: u32,
    to: u32,
    endpoint: u32,
    /// Time from the start of the process to the first request.
    pub(super) starts_ns: u64,
}

impl Flow {
    /// Address of its server.
    pub(super) fn server(&self) -> String {
        format!("sim://n{}:31850/{}", self.to, self.endpoint)
    }
}

/// All decisions about a congested world.
#[derive(Clone, Debug)]
pub(in crate::swarm) struct Crowd {
    pub(super) seed: u64,
    pub(super) world: WorldConfig,
    pub(super) pattern: Pattern,
    /// Endpoints of a receiving host.
    pub(super) endpoints: u32,
    pub(super) flows: Vec<Flow>,
    pub(super) sizes: Sizes,
    pub(super) rate_bps: u64,
    pub(super) jitter_ns: u64,
    /// The measurement begins.
    pub(super) warm_up_ns: u64,
    pub(super) end_ns: u64,
}

/// Sessions are connected within this time, ns.
const CONNECT_NS: u64 = MS;

/// Least packets and requests of each flow in a measurement, if the flows share a link: shares are
/// equal after several requests, since a receiver serves the one with the fewest packets left first.
const PACKETS_OF_FLOW: u64 = 150;
const REQUESTS_OF_FLOW: u64 = 4;

/// Shortest measurement, and time of flows before it, ns.
const LEAST_NS: u64 = 10 * MS;

/// Most packets of all flows.
const PACKETS: u64 = 90_000;

/// Shortest measurement all to all, and time of flows before it, ns: some tens of round trips. Shorter
/// ones show the start of all flows only.
const LEAST_ALL_NS: u64 = 250 * US;

/// Fewest hosts, and most.
const HOSTS: (u64, u64) = (16, 100);

/// Hosts that a host sends to, all to all.
const PEERS: u64 = 4;

/// Bytes of a frame beside the data of its packet.
const OVERHEAD: usize = FRAME_HEADER + PACKET_HEADER;

/// Time of a full frame on a link, ns.
fn packet_ns(rate_bps: u64, max_frame: usize) -> u64 {
    8 * (max_frame as u64 + u64::from(crate::WIRE_OVERHEAD)) * 1_000_000_000 / rate_bps
}

/// Most hosts that can send to each other for long enough.
fn all_to_all_hosts(rate_bps: u64, max_frame: usize) -> u64 {
    (PACKETS * packet_ns(rate_bps, max_frame) / (2 * LEAST_ALL_NS)).max(HOSTS.0)
}

impl Crowd {
    /// The world of a seed.
    pub(in crate::swarm) fn draw(seed: u64) -> Crowd {
        let mut rng = Rng::stream(seed, purpose::WORLD);
        let pattern = match rng.below(6) {
            0 => Pattern::OneToMany,
            1 => Pattern::AllToAll,
            _ => Pattern::Incast,
        };
        let drawn_hosts = rng.between(HOSTS.0, HOSTS.1);
        let endpoints = rng.one(&[1, 1, 2, 4, 8]);
        let rate_bps = rng.one(&[10, 25, 25, 40, 100]) * 1_000_000_000;
        let delay_ns = rng.one(&[15, 15, 100, 1_000]);
        let max_frame = rng.one(&[1_072, 1_472, 1_472, 4_096, 8_972]);
        let hosts = match pattern {
            Pattern::AllToAll => drawn_hosts.min(all_to_all_hosts(rate_bps, max_frame)),
            _ => drawn_hosts,
        };
        let topology = Topology::one_switch(hosts as u32)
            .each_cable(|c| (c.spec.rate_bps, c.spec.delay_ns) = (rate_bps, delay_ns));
        let mut world = WorldConfig::new(seed, topology);
        world.nic.max_frame = max_frame;
        world.clocks_differ = false; // the recorder compares hosts' times with the world's
        // Where the CPUs are not what limits receivers, they have costs.
        let has_costs = rate_bps <= 25_000_000_000 && max_frame >= 1_472;
        let costs: fn() -> CpuCosts = rng.one(&[CpuCosts::none as fn() -> _, CpuCosts::courser]);
        world.costs = if has_costs { costs() } else { CpuCosts::none() };
        world.control = vec![Control::default()];
        world.nexus.credits = rng.one(&[None, Some(32), Some(64)]);
        world.nexus.memory_limit = 4 << 30;
        world.nic.rx_queue = 64 * 128 * 2;
        let checks =
            Checks { record: true, at_most_once: false, every_passes: 4_096, ..Checks::default() };
        world.checks = checks;
        let packet = max_frame - OVERHEAD;
        let sizes = match pattern {
            Pattern::AllToAll => Sizes { least: packet, most: packet << 9 },
            _ => {
                let bytes = packet << rng.between(3, 7);
                Sizes { least: bytes, most: bytes }
            }
        };
        let starts_ns = rng.one(&[0, 100 * US, MS]);
        let jitter_ns = rng.one(&[0, 0, 0, US, 5 * US]);
        let mut crowd = Crowd {
            seed,
            world,
            pattern,
            endpoints,
            flows: Vec::new(),
            sizes,
            rate_bps,
            jitter_ns,
            warm_up_ns: 0,
            end_ns: 0,
        };
        crowd.draw_flows(&mut rng, starts_ns);
        crowd.plan_time(starts_ns);
        crowd
    }

    fn draw_flows(&mut self, rng: &mut Rng, starts_ns: u64) {
        let (hosts, endpoints) = (self.hosts(), self.endpoints);
        let mut flow = |rng: &mut Rng, from: u32, to: u32, number: u32| {
            let starts_ns = CONNECT_NS + rng.below(starts_ns + 1);
            self.flows.push(Flow { from, to, endpoint: number % endpoints, starts_ns });
        };
        for host in 1..hosts {
            match self.pattern {
                Pattern::Incast => flow(rng, host, 0, host),
                Pattern::OneToMany => flow(rng, 0, host, host),
                Pattern::AllToAll => {}
            }
        }
        if self.pattern == Pattern::AllToAll {
            for host in 0..hosts {
                for number in 0..PEERS as u32 {
                    let to = (host + 1 + rng.below(u64::from(hosts) - 1) as u32) % hosts;
                    flow(rng, host, to, number);
                }
            }
        }
    }

    fn plan_time(&mut self, starts_ns: u64) {
        let links = if self.pattern == Pattern::AllToAll { u64::from(self.hosts()) } else { 1 };
        let of_link = self.flows.len() as u64 / links;
        let time_of = |packets: u64| packets * self.packet_ns() / links;
        let packets = (REQUESTS_OF_FLOW * self.packets_of_request()).max(PACKETS_OF_FLOW);
        let least_ns = (of_link * packets * self.packet_ns()).max(LEAST_NS);
        let measured_ns = least_ns.min(time_of(PACKETS) / 2);
        let warm_up_ns = LEAST_NS.min(measured_ns);
        self.warm_up_ns = CONNECT_NS + starts_ns + warm_up_ns;
        self.end_ns = self.warm_up_ns + measured_ns;
    }

    /// Hosts of its world.
    pub(in crate::swarm) fn hosts(&self) -> u32 {
        self.world.topology.hosts()
    }

    /// Endpoints of a host.
    pub(super) fn endpoints_of(&self, host: u32) -> u32 {
        let receives = match self.pattern {
            Pattern::Incast => host == 0,
            Pattern::OneToMany => host != 0,
            Pattern::AllToAll => true,
        };
        if receives { self.endpoints } else { 1 }
    }

    /// Time of a full frame on a link, ns.
    pub(super) fn packet_ns(&self) -> u64 {
        packet_ns(self.rate_bps, self.world.nic.max_frame)
    }

    /// Packets of the largest request.
    pub(super) fn packets_of_request(&self) -> u64 {
        self.sizes.most.div_ceil(self.world.nic.max_frame - OVERHEAD) as u64
    }

    /// The counts of the hosts that have a share.
    pub(super) fn shares<'a>(&self, of_host: &'a [u64]) -> impl Iterator<Item = u64> + 'a {
        let first = if self.pattern == Pattern::AllToAll { 0 } else { 1 };
        of_host.iter().skip(first).copied()
    }

    /// The same network with little load: single packets of one sender.
    pub(super) fn idle(&self) -> Crowd {
        let packet = self.world.nic.max_frame - OVERHEAD;
        let mut idle = self.clone();
        idle.pattern = Pattern::Incast;
        idle.flows = vec![Flow { from: 1, to: 0, endpoint: 0, starts_ns: CONNECT_NS }];
        idle.sizes = Sizes { least: packet, most: packet };
        idle.jitter_ns = 0;
        (idle.warm_up_ns, idle.end_ns) = (CONNECT_NS, CONNECT_NS + 300 * US);
        idle
    }
}

impl fmt::Display for Crowd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (hosts, flows) = (self.hosts(), self.flows.len());
        let pattern = match self.pattern {
            Pattern::Incast => "all hosts send to n0",
            Pattern::OneToMany => "n0 sends to all hosts",
            Pattern::AllToAll => "all hosts send to some others",
        };
        writeln!(f, "seed {}: {pattern}, {hosts} hosts, {flows} sessions", self.seed)?;
        writeln!(f, "  {:?}", self.world.nic)?;
        writeln!(
            f,
            "  {} endpoints of a receiver, links of {} Gbit/s, credits {:?}, requests of {} to {} B, \
             delays of up to {} ns at hosts, measured from {} to {} us",
            self.endpoints,
            self.rate_bps / 1_000_000_000,
            self.world.nexus.credits,
            self.sizes.least,
            self.sizes.most,
            self.jitter_ns,
            self.warm_up_ns / US,
            self.end_ns / US,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crowds_have_all_patterns_and_16_to_100_hosts() {
        let all: Vec<Crowd> = (0..200).map(Crowd::draw).collect();
        let of = |pattern| all.iter().filter(|crowd| crowd.pattern == pattern).count();
        let counts = [Pattern::Incast, Pattern::OneToMany, Pattern::AllToAll].map(of);
        assert!(counts[0] > 100 && counts[1..].iter().all(|&n| n > 15), "{counts:?}");
        assert!(all.iter().all(|crowd| (16..=100).contains(&crowd.hosts())));
        assert!(all.iter().any(|crowd| crowd.hosts() > 80 && crowd.endpoints == 8));
    }

    #[test]
    fn flows_are_to_other_hosts_and_last_for_some_round_trips_and_requests() {
        for crowd in (0..200).map(Crowd::draw) {
            assert!(crowd.flows.iter().all(|flow| flow.from != flow.to), "{crowd}");
            let measured_ns = crowd.end_ns - crowd.warm_up_ns;
            assert!(measured_ns >= LEAST_ALL_NS, "{crowd}");
            if crowd.pattern == Pattern::Incast {
                let flows = crowd.flows.len() as u64;
                let request_ns = flows * crowd.packets_of_request() * crowd.packet_ns();
                assert!(measured_ns >= 3 * request_ns, "{crowd}");
            }
        }
    }
}
