//! Goodput of large requests by their size `[eRPC §6.4, Figure 6]` (E77).
//!
//! One client thread keeps one request in flight to a server at the same switch and receives 32
//! bytes. The base of comparison is an RDMA write over the same network, as arithmetic: the packets
//! of the message follow each other at line rate, and the next write starts one round trip of the
//! idle network after the last packet.

use std::time::Duration;

use courser_bench::report::Unit;
use courser_kit::units::show_bytes;
use courser_sim::fabric::{CableSpec, Topology};
use courser_sim::{HostId, NicConfig, World};
use serde::Serialize;

use crate::declare::column::Column;
use crate::declare::parameter::{bytes, count, name, parameters, rate, time};
use crate::declare::points::{self, Better, Figure, Paper, Stated, Tolerance};
use crate::declare::seeds::Row;
use crate::declare::special::Special;
use crate::declare::text::bps;
use crate::declare::{Experiment, Recorded, Simulation, Step, Table};
use crate::picture::{Axis, Chart, Style};
use crate::scenario::app;
use crate::scenario::{
    Cpu, MAX_TIME_NS, ScenarioError, Traffic, data_per_packet, per_second, uncontrolled,
    wire_bytes, wire_ns,
};

pub(crate) const EXPERIMENT: Experiment<Bandwidth, Goodput> = Experiment {
    name: "bandwidth",
    aliases: &["e77"],
    about: "Goodput of large requests by size, compared with writes [eRPC §6.4]",
    run: Simulation::Several(simulate),
    network: None,
    columns: COLUMNS,
    caption: |s, _| {
        let (rate, cpu) = (bps(s.rate_bps), s.cpu.name());
        format!("One request in flight over {rate}, {} credits, {cpu} CPUs", s.credits)
    },
    table: Table::Columns,
    picture,
    recorded: &[Recorded {
        id: "E77",
        results: include_str!("../../recorded/E77.json"),
        title: "Bandwidth of large requests",
        source: "eRPC section 6.4, figure 6",
        model: "Two hosts at a switch with 100 Gbit/s, one session with 32 credits and one request \
            in flight, frames of 4 KiB of data, CPUs as calibrated on a machine. A write is \
            arithmetic: its packets at line rate, then one round trip of the idle network.",
        axis: points::Axis { label: "request", unit: Unit::Bytes, log: true },
        x: |_, o| o.request_bytes as f64,
        series: |_, _| SERIES.to_owned(),
        only: &[],
        runs: |size| {
            let default = Bandwidth::default();
            vec![Bandwidth {
                request_bytes: size.pick(vec![1 << 10, 32 << 10, 1 << 20], default.request_bytes),
                time_ns: size.pick(2_000_000, 20_000_000),
                ..Bandwidth::default()
            }]
        },
        more: |_, _| {},
        paper: &[
            Paper::new("goodput", SERIES, Some(8_388_608.0), Stated::Value(75e9)).because(
                "The paper's core is the limit. The model's CPU takes less time for a packet than \
                 the link.",
            ),
            of_a_write(32_768.0),
            of_a_write(131_072.0),
            of_a_write(1_048_576.0),
            of_a_write(8_388_608.0),
        ],
    }],
    special: Special::NONE,
};

const SERIES: &str = "one request in flight";

/// The paper has at least 70 % for 32 kB and more.
const fn of_a_write(bytes: f64) -> Paper {
    Paper::new("share of a write", SERIES, Some(bytes), Stated::AtLeast(0.7))
}

/// Whole requests are counted: one more or less of the largest is 3 % of those in a full run.
const REQUESTS: Tolerance = Tolerance::relative(0.03);

type Col = Column<Bandwidth, Goodput>;

const COLUMNS: &[Col] = &[
    Col::text("request", |_, o| show_bytes(o.request_bytes as u64)),
    Col::figure("goodput", Unit::Bits, |_, o| Some(o.goodput_bps as f64))
        .recorded("goodput", REQUESTS)
        .better(Better::Higher)
        .drawn(Figure::Linear),
    Col::figure("write", Unit::Bits, |_, o| Some(o.write_bps as f64)),
    Col::figure("of the write", Unit::Percent, |_, o| Some(o.write_fraction))
        .recorded("share of a write", REQUESTS)
        .better(Better::Higher)
        .drawn(Figure::Linear),
];

/// Goodput by request, and that of writes.
fn picture(rows: &[Row<Bandwidth, Goodput>]) -> Chart {
    let rate = rows.first().map(|(s, _)| bps(s.rate_bps)).unwrap_or_default();
    let mut chart = Chart::lines(
        format!("Goodput of one request in flight over {rate}"),
        Axis::log("request", Unit::Bytes),
        Axis::linear("goodput", Unit::Bits),
    );
    for (_, o) in rows {
        let x = o.request_bytes as f64;
        chart.line(Style::Main, "calls, simulated").points.push((x, o.goodput_bps as f64));
        let writes = chart.line(Style::Calculated, "writes, calculated");
        writes.points.push((x, o.write_bps as f64));
    }
    chart
}

parameters! {
    /// Settings of the experiment. The defaults are those of `[eRPC §6.4]`.
    #[derive(Eq)]
    pub struct Bandwidth {
        /// Decides all random choices.
        seed: u64 = 1, count(0..=u64::MAX);
        /// Sizes of requests, with commas
        request_bytes: Vec<usize> = (9..=23).map(|power| 1 << power).collect(),
            bytes(1..=8 << 20).option("sizes");
        /// Rate of the cables, Gbit/s
        rate_bps: u64 = 100_000_000_000, rate(1_000_000_000..=1_000_000_000_000).option("gbps");
        /// Largest datagram payload: 4 KiB of data
        max_frame: usize = 4_140, bytes(304..=9_000);
        /// Credits of the session
        credits: u32 = 32, count(1..=65_535).option("credits");
        /// Model of CPU costs
        cpu: Cpu = Cpu::Measured, name::<Cpu>().option("cpu");
        /// Virtual time before the measurement
        warm_up_ns: u64 = 1_000_000, time(0..=MAX_TIME_NS);
        /// Measured virtual time of each size
        time_ns: u64 = 20_000_000, time(1..=MAX_TIME_NS).option("time");
    }
}

impl Bandwidth {
    fn topology(&self) -> Topology {
        let rate_bps = self.rate_bps;
        Topology::one_switch(2).each_cable(|cable| {
            cable.spec = CableSpec { rate_bps, ..cable.spec };
        })
    }

    /// Time of a write of `bytes` bytes over this network, ns.
    fn write_ns(&self, bytes: usize) -> u64 {
        let data = data_per_packet(self.max_frame);
        let wire = (bytes / data) as u64 * wire_bytes(data)
            + if bytes.is_multiple_of(data) { 0 } else { wire_bytes(bytes % data) };
        let topology = self.topology();
        let cables: u64 = topology.cables().iter().map(|c| c.spec.delay_ns).sum();
        let switch = topology.switches().first().map_or(0, |s| s.latency_ns);
        let nic = NicConfig::default();
        let one_way_ns = nic.tx_latency_ns + nic.rx_latency_ns + cables + switch;
        wire_ns(wire, self.rate_bps) + wire_ns(wire_bytes(0), self.rate_bps) + 2 * one_way_ns
    }
}

/// One size of request.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Goodput {
    /// Bytes of a request.
    pub request_bytes: usize,
    /// Goodput: data of answered requests, bit/s.
    pub goodput_bps: u64,
    /// Goodput of writes of this size, bit/s.
    pub write_bps: u64,
    /// The share of that.
    pub write_fraction: f64,
    /// Retransmitted packets.
    pub retransmitted: u64,
    /// A hash over all events; 16 hexadecimal digits in JSON.
    #[serde(serialize_with = "crate::scenario::hex")]
    pub digest: u64,
}

/// Runs it; returns a result for each size of request.
///
/// # Errors
/// A setting is out of range, the session was not connected, or a call has failed.
pub fn run(settings: &Bandwidth) -> Result<Vec<Goodput>, ScenarioError> {
    EXPERIMENT.all(settings, &mut |_, _| {})
}

fn simulate(settings: &Bandwidth, step: Step<'_>) -> Result<Vec<Goodput>, ScenarioError> {
    let sizes = &settings.request_bytes;
    let one = |(done, &bytes): (usize, &usize)| {
        step(done, sizes.len());
        measure(settings, bytes)
    };
    sizes.iter().enumerate().map(one).collect()
}

fn measure(settings: &Bandwidth, bytes: usize) -> Result<Goodput, ScenarioError> {
    let mut config = uncontrolled(settings.seed, settings.topology());
    config.costs = settings.cpu.costs();
    config.nic.max_frame = settings.max_frame;
    config.nexus.credits = Some(settings.credits);
    config.nexus.max_msg_size = 8 << 20;
    let mut world = World::new(config)?;
    let tally = app::closed_loops(&mut world, HostId(0), bytes, 1)?;
    app::connect_all(&mut world)?;
    world.run_for(Duration::from_nanos(settings.warm_up_ns));
    let before = Traffic::of(&mut world);
    world.run_for(Duration::from_nanos(settings.time_ns));
    tally.borrow().check()?;
    let traffic = Traffic::of(&mut world).since(&before);
    let goodput_bps = per_second(traffic.responses * bytes as u64 * 8, settings.time_ns);
    let write_bps = bytes as u64 * 8_000_000_000 / settings.write_ns(bytes);
    Ok(Goodput {
        request_bytes: bytes,
        goodput_bps,
        write_bps,
        write_fraction: goodput_bps as f64 / write_bps as f64,
        retransmitted: traffic.retransmitted,
        digest: world.digest(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_32_kb_and_more_reach_the_papers_share_of_a_write() {
        let request_bytes = vec![1 << 10, 32 << 10, 128 << 10, 1 << 20];
        let settings = Bandwidth { request_bytes, time_ns: 3_000_000, ..Bandwidth::default() };
        let rows = run(&settings).expect("runs");
        let shares: Vec<f64> = rows.iter().map(|row| row.write_fraction).collect();
        // Whole requests are counted: 35 of the largest, one of which can begin before the measured time.
        assert!(shares[1..].iter().all(|share| (0.9..1.03).contains(share)), "{shares:?}");
        assert!(shares.is_sorted(), "{shares:?}");
        assert!(rows[3].goodput_bps > 75_000_000_000, "{rows:?}");
    }

    #[test]
    fn the_same_seed_is_the_same_run() {
        let of = |seed| {
            let (request_bytes, time_ns) = (vec![32 << 10], 200_000);
            run(&Bandwidth { seed, request_bytes, time_ns, ..Bandwidth::default() }).expect("runs")
        };
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }
}
