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
//! ([`BitsPool::spread`]).
//!
//! A packet here is 1,130 bytes on the wire, so that 885 fill the round trip; with the paper's
//! 1,024 it would be 977.

use std::rc::Rc;
use std::time::Duration;

use courser::{Nexus, Recovery, Rpc};
use courser_bench::report::Unit;
use courser_sim::SetupError;
use courser_sim::observe::DropReason;
use courser_sim::{World, WorldConfig};
use serde::Serialize;

use crate::declare::column::Column;
use crate::declare::parameter::{chance, count, parameters, time};
use crate::declare::points::{self, Better, Figure, Paper, Stated, Tolerance};
use crate::declare::seeds::Row;
use crate::declare::special::{Results, Special};
use crate::declare::text::{ns, percent};
use crate::declare::{Experiment, Recorded, Simulation, Step, Table};
use crate::picture::{Axis, Chart, Style};
use crate::scenario::app::{self, SharedTally};
use crate::scenario::path::{self, CLIENT, DATA, MAX_FRAME, Part, Path, SERVER};
use crate::scenario::{
    Cpu, MAX_TIME_NS, ScenarioError, Traffic, per_second, run_pairs, share, uncontrolled,
};

pub(crate) const EXPERIMENT: Experiment<BitsPool, PoolUse> = Experiment {
    name: "bits-pool",
    aliases: &[],
    about: "Peak use of the receiver's pool of bits with MELO [MELO §4.2.2]",
    run: Simulation::Several(simulate),
    network: None,
    columns: COLUMNS,
    caption: |s, _| {
        let [rtt, time, rto] = [s.rtt_ns, s.time_ns, s.rto_ns].map(ns);
        let packets = s.bdp_packets();
        format!("{packets} packets fill a round trip of {rtt}, {time} of virtual time, RTO {rto}")
    },
    table: Table::Columns,
    picture,
    recorded: &[Recorded {
        id: "M26",
        results: include_str!("../../recorded/M26.json"),
        title: "Use of MELO's bits pool",
        source: "MELO section 4.2.2, figure 6b",
        model: "Two hosts under different leaves, a round trip of 200 us, the receiver's leaf lossy. \
            All connections together have the credits of one bandwidth-delay product, and each sends \
            no further than its credits behind a packet that is missing. Most bits in use of 1,024.",
        axis: points::Axis { label: "connections", unit: Unit::Count, log: false },
        x: |_, o| o.connections.into(),
        series: |_, o| format!("loss {:.1} %", o.loss * 100.0),
        only: &[],
        runs: |size| {
            vec![BitsPool {
                connections: size.pick(vec![1, 20], vec![1, 5, 10, 15, 20]),
                loss_ppm: size.pick(vec![20_000], vec![1_000, 5_000, 10_000, 20_000]),
                time_ns: size.pick(10_000_000, 50_000_000),
                ..BitsPool::default()
            }]
        },
        more: |_, _| {},
        paper: &[
            paper("loss 0.1 %", 1.0, PAPER.0),
            paper("loss 0.5 %", 1.0, PAPER.0),
            paper("loss 1.0 %", 1.0, PAPER.0),
            paper("loss 2.0 %", 1.0, PAPER.0),
            paper("loss 2.0 %", 20.0, PAPER.1.2),
        ],
    }],
    special: Special { after_help: AFTER_HELP, results: Results::Unseeded, ..Special::NONE },
};

/// The paper's share of the pool.
const fn paper(series: &'static str, connections: f64, share: f64) -> Paper {
    Paper {
        quantity: "bits in use",
        series,
        x: Some(connections),
        value: Stated::Value(share),
        reason: "A bandwidth-delay product is 885 packets here and 992 in the paper, because our \
            packets carry their headers besides the kilobyte: 89.2 % of the paper's bits.",
    }
}

const AFTER_HELP: &str = "\
A receiver with MELO records packets that arrive out of order in one pool of 1,024 bits \
for all connections, one bit for each packet, in blocks of 8. One host sends to another \
host at a different leaf, which drops packets. All connections together have credits for \
one bandwidth-delay product. The result is the peak use of the pool. The paper has 96.9 % \
with one connection at any loss, and 65.6 % with 20 connections at 2 %.

Examples:
  courser-lab sim bits-pool
  courser-lab sim bits-pool --connections 1,20 --loss 2% --json -";

type Col = Column<BitsPool, PoolUse>;

const COLUMNS: &[Col] = &[
    Col::text("connections", |_, o| o.connections.to_string()),
    Col::text("loss", |_, o| percent(o.loss)),
    Col::text("credits each", |_, o| o.credits.to_string()),
    Col::figure("peak bits", Unit::Count, |_, o| Some(o.bits_peak.into())),
    Col::figure("of the pool", Unit::Percent, |_, o| Some(o.pool_fraction))
        .recorded("bits in use", Tolerance::relative(0.05))
        .better(Better::Lower)
        .drawn(Figure::Linear),
    Col::figure("paper", Unit::Percent, |_, o| o.paper_fraction),
    Col::figure("refused", Unit::Count, |_, o| Some(o.refused as f64)),
    Col::figure("goodput", Unit::Bits, |_, o| Some(o.goodput_bps as f64))
        .recorded("goodput", Tolerance::relative(0.03))
        .better(Better::Higher),
    Col::figure("timeouts", Unit::Count, |_, o| Some(o.timeouts as f64)),
];

/// Peak use of the pool by connections: a line for each loss.
fn picture(rows: &[Row<BitsPool, PoolUse>]) -> Chart {
    let mut chart = Chart::lines(
        "Peak use of MELO's pool of bits",
        Axis::linear("connections", Unit::Count),
        Axis::linear("share of the pool", Unit::Percent),
    );
    for (_, o) in rows {
        let x = f64::from(o.connections);
        let line = chart.line(Style::Main, format!("loss {} %", (o.loss * 1e6).round() / 1e4));
        line.points.push((x, o.pool_fraction));
        line.add_paper("the paper", o.paper_fraction.map(|share| (x, share)));
    }
    chart
}

/// Bits of the pool (M18).
pub const POOL_BITS: u32 = 1_024;

/// Bytes of a message.
const MESSAGE: usize = 4 << 20;

/// The paper's results, as (connections, loss per million, share of the pool): 96.9 % with one
/// connection at any loss, and 65.6 % with 20 at 2 %.
const PAPER: (f64, (u32, u32, f64)) = (0.969, (20, 20_000, 0.656));

parameters! {
    /// Settings of the experiment. The defaults are those of the paper.
    #[derive(Eq)]
    pub struct BitsPool {
        /// Decides all random choices.
        seed: u64 = 1, count(0..=u64::MAX);
        /// Numbers of connections
        connections: Vec<u32> = vec![1, 5, 10, 15, 20], count(1..=100).option("connections");
        /// Probabilities that the receiver's leaf drops a packet
        loss_ppm: Vec<u32> = vec![1_000, 5_000, 10_000, 20_000], chance(0..=500_000).option("loss");
        /// Round trip of the idle network
        rtt_ns: u64 = 200_000, time(1..=10_000_000).option("rtt");
        /// Recovery time of packets that are lost twice
        rto_ns: u64 = 600_000, time(1_000..=1_000_000_000).option("rto");
        /// Packets that a connection may send beyond the first missing one, in multiples of its credits
        spread: u32 = 1, count(1..=1_024).option("spread");
        /// Virtual time of a run
        time_ns: u64 = 50_000_000, time(1..=MAX_TIME_NS).option("time");
    }
}

impl BitsPool {
    fn path(&self) -> Path {
        Path { part: Part::TwoLeaves, rtt_ns: self.rtt_ns }
    }

    /// Packets of a bandwidth-delay product, which all connections share.
    pub fn bdp_packets(&self) -> u32 {
        self.path().bdp_packets()
    }
}

/// A number of connections at a loss rate.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PoolUse {
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

/// Runs it.
///
/// # Errors
/// A setting is out of range, sessions were not connected, or a call has failed.
pub fn run(settings: &BitsPool) -> Result<Vec<PoolUse>, ScenarioError> {
    EXPERIMENT.all(settings, &mut |_, _| {})
}

fn simulate(settings: &BitsPool, step: Step<'_>) -> Result<Vec<PoolUse>, ScenarioError> {
    settings.path().check()?;
    run_pairs(&settings.connections, &settings.loss_ppm, step, |connections, loss_ppm| {
        point(settings, connections, loss_ppm)
    })
}

fn config(settings: &BitsPool, credits: u32) -> WorldConfig {
    let mut config = uncontrolled(settings.seed, settings.path().topology());
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
fn point(settings: &BitsPool, connections: u32, loss_ppm: u32) -> Result<PoolUse, ScenarioError> {
    let credits = settings.bdp_packets().div_ceil(connections.max(1)).clamp(1, 65_535);
    let mut world = World::new(config(settings, credits))?;
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
    Ok(PoolUse {
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

    fn small() -> BitsPool {
        BitsPool {
            connections: vec![1, 10],
            loss_ppm: vec![10_000],
            rtt_ns: 50_000,
            rto_ns: 150_000,
            time_ns: 4_000_000,
            ..BitsPool::default()
        }
    }

    #[test]
    fn one_connection_fills_the_pool_with_its_window_and_many_need_less() {
        let settings = small();
        assert_eq!(settings.bdp_packets(), 221);
        let points = run(&settings).expect("runs");
        let [one, many] = &points[..] else { panic!("{points:?}") };
        assert_eq!((one.credits, many.credits), (221, 23));
        assert!(one.bits_peak >= 128 && one.bits_peak <= POOL_BITS, "{one:?}");
        assert!(many.bits_peak > 0 && many.lost > 0, "{many:?}");
        assert_eq!(one.pool_fraction, f64::from(one.bits_peak) / 1_024.0);
        let again = run(&settings).expect("runs");
        assert_eq!(again, points, "the same seed, the same run");
    }

    #[test]
    fn without_loss_the_pool_is_not_used() {
        let settings = BitsPool { connections: vec![3], loss_ppm: vec![0], ..small() };
        let points = run(&settings).expect("runs");
        assert_eq!((points[0].bits_peak, points[0].refused, points[0].timeouts), (0, 0, 0));
    }
}
