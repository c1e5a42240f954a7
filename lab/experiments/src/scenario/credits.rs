//! Credits against the bandwidth-delay product `[eRPC §4.3.1]` (E35): a session reaches line rate
//! with C = BDP / MTU.
//!
//! Two hosts, one session, one large request after the other. A credit spent on a packet returns
//! after one round trip: the packet's time on the cable, the credit return's, twice the cable's
//! delay, and twice the time of the NICs. So C packets leave in a round trip, and the session gets
//! min(1, C b / BDP) of the line, b being a packet's bytes on the wire.

use std::rc::Rc;
use std::time::Duration;

use serde::Serialize;

use super::app::{self, SharedTally};
use super::uncontrolled;
use super::{Cpu, ScenarioError, Traffic};
use super::{
    check, check_time, check_warm_up, data_per_packet, observed, per_second, wire_bytes, wire_ns,
};
use courser_sim::fabric::{CableSpec, Topology};
use courser_sim::observe::Tap;
use courser_sim::{HostId, World, WorldConfig};

const SERVER: HostId = HostId(0);
const CLIENT: HostId = HostId(1);

/// Settings of the experiment. The defaults are the paper's example.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Settings {
    /// Decides all random choices.
    pub seed: u64,
    /// Rate of the cable, bit/s. Default 25 Gbit/s.
    pub rate_bps: u64,
    /// The round trip of a credit, ns; sets the length of the cable. Default 6,080: 19 kB at 25
    /// Gbit/s.
    pub rtt_ns: u64,
    /// Largest C; each from 1 on is measured, or every n-th so that there are at most 32. `None`:
    /// twice the bandwidth-delay product.
    pub max_credits: Option<u32>,
    /// Warm-up, ns, and at least 4 round trips. Default 1 ms.
    pub warm_up_ns: u64,
    /// Measured time, ns, and at least 20 round trips. Default 20 ms.
    pub time_ns: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            seed: 1,
            rate_bps: 25_000_000_000,
            rtt_ns: 6_080,
            max_credits: None,
            warm_up_ns: 1_000_000,
            time_ns: 20_000_000,
        }
    }
}

/// Most values of C in a run.
const MAX_POINTS: u32 = 32;

/// One value of C.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Point {
    /// C.
    pub credits: u32,
    /// Goodput: data that the server has accepted, bit/s.
    pub goodput_bps: u64,
    /// The share of the line used by packets with data, with headers, per million.
    pub line_ppm: u64,
    /// min(1, C b / BDP), per million.
    pub expected_ppm: u64,
    /// Retransmitted packets.
    pub retransmitted: u64,
}

/// Result of the experiment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Outcome {
    /// Rate times round trip, bytes.
    pub bdp_bytes: u64,
    /// b: a full packet on the wire, bytes.
    pub packet_bytes: u64,
    /// The smallest C with which C b is not below the bandwidth-delay product.
    pub full_credits: u32,
    /// By C.
    pub points: Vec<Point>,
}

impl Settings {
    fn check(&self) -> Result<(), ScenarioError> {
        let rate_bps = self.rate_bps;
        let rates = "1 Gbit/s to 1 Tbit/s";
        let rated = (1_000_000_000..=1_000_000_000_000).contains(&rate_bps);
        check(rated, "rate_bps", rate_bps, rates)?;
        check_time(self.time_ns)?;
        check_warm_up(self.warm_up_ns)?;
        let credits = self.max_credits.unwrap_or(1);
        check((1..=65_535).contains(&credits), "max_credits", credits, "1 to 65,535")?;
        let least_ns = self.fixed_ns();
        let fits = (least_ns..=100_000_000).contains(&self.rtt_ns);
        let range = "from the time of NICs and packets (2.1 us at 25 Gbit/s) to 100 ms";
        check(fits, "rtt_ns", self.rtt_ns, range)
    }

    fn bdp_bytes(&self) -> u64 {
        (u128::from(self.rate_bps) * u128::from(self.rtt_ns) / 8_000_000_000) as u64
    }

    fn packet_data(&self) -> usize {
        data_per_packet(self.config(1).nic.max_frame)
    }

    /// The round trip of a credit without the cable's delay: a packet, its credit return, two
    /// NICs each way, and a nanosecond for the pass that each side makes.
    fn fixed_ns(&self) -> u64 {
        let nic = WorldConfig::new(self.seed, Topology::two_hosts()).nic;
        let data = data_per_packet(nic.max_frame);
        let wire = wire_ns(wire_bytes(data), self.rate_bps) + wire_ns(wire_bytes(0), self.rate_bps);
        wire + 2 * (nic.tx_latency_ns + nic.rx_latency_ns)
    }

    /// The network of the experiment.
    pub fn topology(&self) -> Topology {
        let delay_ns = self.rtt_ns.saturating_sub(self.fixed_ns()) / 2;
        let spec = CableSpec { rate_bps: self.rate_bps, delay_ns };
        Topology::two_hosts().each_cable(|cable| cable.spec = spec)
    }

    fn config(&self, credits: u32) -> WorldConfig {
        let mut config = uncontrolled(self.seed, Topology::two_hosts());
        config.costs = Cpu::None.costs();
        config.nexus.credits = Some(credits);
        config
    }
}

/// Runs it for each C. `progress` is called with the number of finished runs and their total.
///
/// # Errors
/// A setting is out of range, sessions were not connected, or a call has failed.
pub fn run(
    settings: &Settings,
    mut progress: impl FnMut(usize, usize),
) -> Result<Outcome, ScenarioError> {
    settings.check()?;
    let packet_bytes = wire_bytes(settings.packet_data());
    let bdp_bytes = settings.bdp_bytes();
    let full_credits = u32::try_from(bdp_bytes.div_ceil(packet_bytes)).unwrap_or(u32::MAX);
    let max_credits = settings.max_credits.unwrap_or(2 * full_credits).min(65_535);
    let step = max_credits.div_ceil(MAX_POINTS);
    let values: Vec<u32> = (1..=max_credits).filter(|c| *c == 1 || c % step == 0).collect();
    let mut points = Vec::with_capacity(values.len());
    for (done, &credits) in values.iter().enumerate() {
        progress(done, values.len());
        points.push(point(settings, credits, None)?);
    }
    progress(values.len(), values.len());
    Ok(Outcome { bdp_bytes, packet_bytes, full_credits, points })
}

/// Runs it for one C.
///
/// # Errors
/// As [`run`].
pub fn point(
    settings: &Settings,
    credits: u32,
    tap: Option<Box<dyn Tap>>,
) -> Result<Point, ScenarioError> {
    settings.check()?;
    let mut config = settings.config(credits);
    config.topology = settings.topology();
    let mut world = observed(World::new(config)?, tap);
    let tally = SharedTally::default();
    world.start(SERVER, app::server)?;
    let uri = world.uri(SERVER);
    let packet = settings.packet_data();
    let bytes = (8 << 20) / packet * packet;
    let to = Rc::clone(&tally);
    // Two requests, so that the session sends while one of them awaits its response.
    world.start(CLIENT, move |nexus| {
        app::closed_loop(nexus, &uri, app::SINK, bytes, 2, to.clone())
    })?;
    app::connect_all(&mut world)?;
    let warm_up_ns = settings.warm_up_ns.max(4 * settings.rtt_ns);
    let time_ns = settings.time_ns.max(20 * settings.rtt_ns);
    world.run_for(Duration::from_nanos(warm_up_ns));
    let before = Traffic::of(&mut world);
    world.run_for(Duration::from_nanos(time_ns));
    tally.borrow().check()?;
    let traffic = Traffic::of(&mut world).since(&before);
    let goodput_bps = per_second(traffic.request_packets * packet as u64 * 8, time_ns);
    let packet_bytes = wire_bytes(packet);
    let line_bps = per_second(traffic.request_packets * packet_bytes * 8, time_ns);
    let million = 1_000_000_u128;
    let share = u128::from(credits) * u128::from(packet_bytes) * million;
    Ok(Point {
        credits,
        goodput_bps,
        line_ppm: (u128::from(line_bps) * million / u128::from(settings.rate_bps)) as u64,
        expected_ppm: (share / u128::from(settings.bdp_bytes())).min(million) as u64,
        retransmitted: traffic.retransmitted,
    })
}
