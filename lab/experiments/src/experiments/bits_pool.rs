//! Use of MELO's bits pool `[MELO §4.2.2, Figure 6b]` (M26).
//!
//! One server's connections to another, under different leaves, with a round trip of 200 us; the
//! receiver's leaf loses packets. Each connection is a client endpoint with a session, and sends
//! one large message after the other. Their credits add up to one bandwidth-delay product: the
//! paper explains its result by flows that share it ("each flow has a smaller BDP as the number of
//! concurrent connections grows"). The result is the largest number of bits in use in the
//! receiver's pool of 1,024, in whole blocks of 8, over the whole run.
//!
//! A connection sends at most its credits from the first missing packet on, like hardware whose
//! reorder buffer is one bandwidth-delay product (M2). So a packet that is lost twice does not fill
//! the pool until its timeout; with Courser's own limit, four times as many, it does
//! ([`Settings::spread`]).
//!
//! A packet here is 1,130 bytes on the wire, so that 885 fill the round trip; with the paper's
//! 1,024 it would be 977.

use std::rc::Rc;
use std::time::Duration;

use courser::{Nexus, Recovery, Rpc};
use serde::Serialize;

use crate::scenario::app::{self, SharedTally};
use crate::scenario::path::{self, CLIENT, DATA, MAX_FRAME, Part, Path, SERVER};
use crate::scenario::uncontrolled;
use crate::scenario::{Cpu, ScenarioError, Traffic};
use crate::scenario::{
    check, check_loss, check_rto, check_time, observed, per_second, run_pairs, share,
};
use courser_sim::SetupError;
use courser_sim::fabric::Topology;
use courser_sim::observe::{DropReason, Tap};
use courser_sim::{World, WorldConfig};

/// Bits of the pool (M18).
pub const POOL_BITS: u32 = 1_024;

/// Bytes of a message.
const MESSAGE: usize = 4 << 20;

/// The paper's results, as (connections, loss per million, share of the pool): 96.9 % with one
/// connection at any loss, and 65.6 % with 20 at 2 %.
const PAPER: (f64, (u32, u32, f64)) = (0.969, (20, 20_000, 0.656));

/// Settings of the experiment. The defaults are those of the paper.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Settings {
    /// Decides all random choices.
    pub seed: u64,
    /// Numbers of connections: 1 or more, each 1 to 100. Default 1, 5, 10, 15, 20.
    pub connections: Vec<u32>,
    /// Probabilities that the receiver's leaf loses a packet, per million: 1 or more, each at most
    /// 500,000. Default 0.1, 0.5, 1 and 2 %.
    pub loss_ppm: Vec<u32>,
    /// The round trip of the idle network, ns: from that of NICs and packets (2.4 us) to 10 ms.
    /// Default 200 us.
    pub rtt_ns: u64,
    /// The retransmission timeout, ns: 1 us to 1 s. Default 600 us, three round trips.
    pub rto_ns: u64,
    /// Packets that a connection sends from the first missing one on, in multiples of its credits:
    /// 1 to 1,024. Default 1.
    pub spread: u32,
    /// Time of a run, ns. Default 50 ms.
    pub time_ns: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            seed: 1,
            connections: vec![1, 5, 10, 15, 20],
            loss_ppm: vec![1_000, 5_000, 10_000, 20_000],
            rtt_ns: 200_000,
            rto_ns: 600_000,
            spread: 1,
            time_ns: 50_000_000,
        }
    }
}

impl Settings {
    fn check(&self) -> Result<(), ScenarioError> {
        check(!self.connections.is_empty(), "connections", 0_u64, "one or more")?;
        check(!self.loss_ppm.is_empty(), "loss", 0_u64, "one or more")?;
        for &n in &self.connections {
            check((1..=100).contains(&n), "connections", n, "1 to 100")?;
        }
        for &ppm in &self.loss_ppm {
            check_loss(ppm)?;
        }
        let least_ns = self.path().fixed_ns();
        let range = "from the time of NICs and packets (2.4 us) to 10 ms";
        check((least_ns..=10_000_000).contains(&self.rtt_ns), "rtt_ns", self.rtt_ns, range)?;
        check((1..=1_024).contains(&self.spread), "spread", self.spread, "1 to 1,024")?;
        check_rto(self.rto_ns)?;
        check_time(self.time_ns)
    }

    fn path(&self) -> Path {
        Path { part: Part::TwoLeaves, rtt_ns: self.rtt_ns }
    }

    /// The network: two hosts, their leaves and a spine.
    pub fn topology(&self) -> Topology {
        self.path().topology()
    }

    /// Packets of a bandwidth-delay product, which all connections share.
    pub fn bdp_packets(&self) -> u32 {
        self.path().bdp_packets()
    }
}

/// A number of connections at a loss rate.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Point {
    /// Connections.
    pub connections: u32,
    /// Probability that the receiver's leaf loses a packet.
    pub loss: f64,
    /// Credits of each connection.
    pub credits: u32,
    /// Most bits of the receiver's pool in use.
    pub bits_peak: u32,
    /// The peak as a share of the pool.
    pub pool_fraction: f64,
    /// The paper's share.
    pub paper_fraction: Option<f64>,
    /// Packets for which the pool had no bits (M16).
    pub refused: u64,
    /// Goodput: data that the server has accepted, bit/s.
    pub goodput_bps: u64,
    /// Datagrams lost by the leaf.
    pub lost: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// A hash over all events; 16 hexadecimal digits in JSON.
    #[serde(serialize_with = "crate::scenario::hex")]
    pub digest: u64,
}

/// Runs it. `progress` is called with the number of finished runs and their total.
///
/// # Errors
/// A setting is out of range, sessions were not connected, or a call has failed.
pub fn run(
    settings: &Settings,
    progress: impl FnMut(usize, usize),
) -> Result<Vec<Point>, ScenarioError> {
    settings.check()?;
    run_pairs(&settings.connections, &settings.loss_ppm, progress, |connections, loss_ppm| {
        point(settings, connections, loss_ppm, None)
    })
}

fn config(settings: &Settings, credits: u32) -> WorldConfig {
    let mut config = uncontrolled(settings.seed, settings.topology());
    config.costs = Cpu::None.costs();
    config.nic.max_frame = MAX_FRAME;
    config.nic.rx_queue = config.nic.rx_queue.max(4 * settings.bdp_packets() as usize);
    let rto = Duration::from_nanos(settings.rto_ns);
    let nexus = &mut config.nexus;
    nexus.credits = Some(credits);
    // So that all messages may arrive at once (ADR 36): the bits are measured, not the memory.
    nexus.memory_limit = 4 << 30;
    nexus.recovery = Recovery::Melo;
    nexus.rto = (rto, rto);
    nexus.tuning.reorder_span = settings.spread;
    config
}

/// Runs one point.
///
/// # Errors
/// As [`run`].
pub fn point(
    settings: &Settings,
    connections: u32,
    loss_ppm: u32,
    tap: Option<Box<dyn Tap>>,
) -> Result<Point, ScenarioError> {
    settings.check()?;
    let credits = settings.bdp_packets().div_ceil(connections.max(1)).clamp(1, 65_535);
    let mut world = observed(World::new(config(settings, credits))?, tap);
    let tally = SharedTally::default();
    world.start(SERVER, app::server)?;
    let (uri, to) = (world.uri(SERVER), Rc::clone(&tally));
    let bytes = MESSAGE / DATA * DATA;
    world.start(CLIENT, move |nexus: &Nexus| -> Result<Vec<Rpc>, SetupError> {
        let one = |_| app::closed_loop(nexus, &uri, app::SINK, bytes, 1, to.clone());
        (0..connections).map(one).collect()
    })?;
    app::connect_all(&mut world)?;
    path::lose_at(&mut world, 0, loss_ppm);
    world.run_for(Duration::from_nanos(settings.time_ns));
    tally.borrow().check()?;
    let traffic = Traffic::of(&mut world);
    let stats = world.peek(SERVER, 0).map(|rpc| rpc.stats().clone()).unwrap_or_default();
    let (one, many) = PAPER;
    let paper = if connections == 1 { Some(one) } else { None };
    let paper = if (connections, loss_ppm) == (many.0, many.1) { Some(many.2) } else { paper };
    Ok(Point {
        connections,
        loss: share(loss_ppm),
        credits,
        bits_peak: stats.melo_bits_peak,
        pool_fraction: f64::from(stats.melo_bits_peak) / f64::from(POOL_BITS),
        paper_fraction: paper.filter(|_| settings.rtt_ns == 200_000 && loss_ppm > 0),
        refused: stats.melo_refused,
        goodput_bps: per_second(traffic.request_packets * DATA as u64 * 8, settings.time_ns),
        lost: traffic.dropped(DropReason::Loss),
        timeouts: traffic.rollbacks,
        digest: world.digest(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Spoilt, assert_refused};

    fn small() -> Settings {
        Settings {
            connections: vec![1, 10],
            loss_ppm: vec![10_000],
            rtt_ns: 50_000,
            rto_ns: 150_000,
            time_ns: 4_000_000,
            ..Settings::default()
        }
    }

    #[test]
    fn one_connection_fills_the_pool_with_its_window_and_many_need_less() {
        let settings = small();
        assert_eq!(settings.bdp_packets(), 221);
        let points = run(&settings, |_, _| {}).expect("runs");
        let [one, many] = &points[..] else { panic!("{points:?}") };
        assert_eq!((one.credits, many.credits), (221, 23));
        assert!(one.bits_peak >= 128 && one.bits_peak <= POOL_BITS, "{one:?}");
        assert!(many.bits_peak > 0 && many.lost > 0, "{many:?}");
        assert_eq!(one.pool_fraction, f64::from(one.bits_peak) / 1_024.0);
        let again = run(&settings, |_, _| {}).expect("runs");
        assert_eq!(again, points, "the same seed, the same run");
    }

    #[test]
    fn without_loss_the_pool_is_not_used() {
        let settings = Settings { connections: vec![3], loss_ppm: vec![0], ..small() };
        let points = run(&settings, |_, _| {}).expect("runs");
        assert_eq!((points[0].bits_peak, points[0].refused, points[0].timeouts), (0, 0, 0));
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let bad: &[Spoilt<Settings>] = &[
            ("connections", |s| s.connections = vec![0]),
            ("loss_ppm", |s| s.loss_ppm = vec![600_000]),
            ("rtt_ns", |s| s.rtt_ns = 2_000),
            ("rto_ns", |s| s.rto_ns = 1),
            ("spread", |s| s.spread = 0),
        ];
        assert_refused(bad, small, |settings| run(settings, |_, _| {}));
    }
}
