//! Cost of multi-packet responses `[eRPC §5.1]` (E44): the server sends a response's first packet
//! unprompted, the others when they are requested, one round trip later.
//!
//! One host calls another, one call at a time. L(k) is the time of a call whose response has k full
//! packets. Without requests-for-response the packets would follow each other at the rate of the
//! cable: L(1) + (k - 1) s, with s the time of a packet on the slowest cable. The extra is the time
//! beyond that, in units of the round trip L(1), which like that of a request-for-response has a
//! small packet one way and a full one back.
//! a request-for-response takes a small packet there and a full one back.

use serde::Serialize;

use super::uncontrolled;
use super::{Cpu, ScenarioError};
use super::{app, check, data_per_packet, observed, wire_bytes, wire_ns};
use courser::{Nexus, SessionId};
use courser_sim::fabric::{CableSpec, HOST_RATE_BPS, Topology};
use courser_sim::observe::Tap;
use courser_sim::{HostId, World};

const SERVER: HostId = HostId(0);
const CLIENT: HostId = HostId(1);

/// Settings of the experiment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Settings {
    /// Decides all random choices.
    pub seed: u64,
    /// Largest response, packets: 1 to 1,000. Default 32.
    pub max_packets: u32,
    /// Credits of the session. Default 32: all packets of a response are requested at once.
    pub credits: u32,
    /// Rate of the hosts' cables, bit/s. Default 25 Gbit/s.
    pub rate_bps: u64,
    /// Hosts at two top-of-rack switches (three switches between them) instead of at one.
    pub two_racks: bool,
    /// The CPUs. Default: eRPC's.
    pub cpu: Cpu,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            seed: 1,
            max_packets: 32,
            credits: 32,
            rate_bps: HOST_RATE_BPS,
            two_racks: false,
            cpu: Cpu::Erpc,
        }
    }
}

/// One size of response.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Point {
    /// Packets of the response, k.
    pub packets: u32,
    /// L(k), ns.
    pub latency_ns: u64,
    /// L(1) + (k - 1) s, ns.
    pub without_rfr_ns: u64,
    /// The difference, ns.
    pub extra_ns: u64,
    /// The difference in round trips, per million.
    pub extra_rtt_ppm: u64,
    /// The difference as a part of L(k), per million.
    pub extra_share_ppm: u64,
}

/// Result of the experiment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Outcome {
    /// A call with 32 bytes each way, ns.
    pub small_ns: u64,
    /// L(1), the unit of the extras, ns.
    pub rtt_ns: u64,
    /// Time of a full packet on a host's cable, ns.
    pub packet_ns: u64,
    /// By size of response.
    pub points: Vec<Point>,
}

impl Settings {
    fn check(&self) -> Result<(), ScenarioError> {
        let packets = self.max_packets;
        check((1..=1_000).contains(&packets), "max_packets", packets, "1 to 1,000")?;
        let credits = self.credits;
        check((1..=65_535).contains(&credits), "credits", credits, "1 to 65,535")?;
        let rated = (100_000_000..=100_000_000_000).contains(&self.rate_bps);
        check(rated, "rate_bps", self.rate_bps, "100 Mbit/s to 100 Gbit/s")
    }

    /// The network of the experiment.
    pub fn topology(&self) -> Topology {
        let (topology, host_cables) = match self.two_racks {
            false => (Topology::one_switch(2), CableSpec::default()),
            true => (Topology::cx4(5), CableSpec::default()),
        };
        let rate_bps = self.rate_bps;
        topology.each_cable(|cable| {
            if cable.spec == host_cables {
                cable.spec.rate_bps = rate_bps;
            }
        })
    }
}

/// Runs it.
///
/// # Errors
/// A setting is out of range, the session was not connected, or a call has failed.
pub fn run(settings: &Settings, tap: Option<Box<dyn Tap>>) -> Result<Outcome, ScenarioError> {
    settings.check()?;
    let mut config = uncontrolled(settings.seed, settings.topology());
    config.costs = settings.cpu.costs();
    config.nexus.credits = Some(settings.credits);
    let packet = data_per_packet(config.nic.max_frame);
    let mut world = observed(World::new(config)?, tap);
    world.start(SERVER, app::sized_server)?;
    world.start(CLIENT, Nexus::endpoint)?;
    let uri = world.uri(SERVER);
    let connected = world.rpc(CLIENT).connect(&uri);
    let session = connected.map_err(|e| ScenarioError::Calls { count: 1, first: e.to_string() })?;
    app::connect_all(&mut world)?;
    let small_ns = settled(&mut world, session, 32)?;
    let rtt_ns = settled(&mut world, session, packet)?;
    let packet_bytes = wire_bytes(packet);
    let mut points = Vec::with_capacity(settings.max_packets as usize);
    for packets in 1..=settings.max_packets {
        let latency_ns = settled(&mut world, session, packets as usize * packet)?;
        let more = wire_ns(u64::from(packets - 1) * packet_bytes, settings.rate_bps);
        let without_rfr_ns = rtt_ns + more;
        let extra_ns = latency_ns.saturating_sub(without_rfr_ns);
        points.push(Point {
            packets,
            latency_ns,
            without_rfr_ns,
            extra_ns,
            extra_rtt_ppm: extra_ns * 1_000_000 / rtt_ns,
            extra_share_ppm: extra_ns * 1_000_000 / latency_ns,
        });
    }
    let packet_ns = wire_ns(packet_bytes, settings.rate_bps);
    Ok(Outcome { small_ns, rtt_ns, packet_ns, points })
}

/// Time of a call for `bytes` bytes. The first of its kind is discarded: it may allocate memory.
fn settled(world: &mut World, session: SessionId, bytes: usize) -> Result<u64, ScenarioError> {
    let mut request = [0; 32];
    request[..4].copy_from_slice(&(bytes as u32).to_le_bytes());
    app::one_call(world, CLIENT, session, app::WANT, &request)?;
    app::one_call(world, CLIENT, session, app::WANT, &request)
}
