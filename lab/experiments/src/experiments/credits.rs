//! Credits against the bandwidth-delay product `[eRPC §4.3.1]` (E35): a session reaches line rate
//! with C = BDP / MTU.
//!
//! Two hosts, one session, one large request after the other. A credit spent on a packet returns
//! after one round trip: the packet's time on the cable, the credit return's, twice the cable's
//! delay, and twice the time of the NICs. So C packets leave in a round trip, and the session gets
//! min(1, C b / BDP) of the line, b being a packet's bytes on the wire.

use std::time::Duration;

use courser_bench::report::Unit;
use courser_sim::fabric::{CableSpec, Topology};
use courser_sim::{HostId, World, WorldConfig};
use serde::Serialize;
use serde_json::json;

use crate::declare::column::Column;
use crate::declare::parameter::{self, count, parameters, rate, time};
use crate::declare::points::{self, Better, Figure, Paper, Stated, TIGHT};
use crate::declare::seeds::Row;
use crate::declare::special::{Results, Special};
use crate::declare::text::{bps, ns};
use crate::declare::{Experiment, Recorded, Simulation, Step, Table};
use crate::picture::{Axis, Chart, Style};
use crate::scenario::app;
use crate::scenario::{
    Cpu, MAX_TIME_NS, ScenarioError, Traffic, check, data_per_packet, per_second, uncontrolled,
    wire_bytes, wire_ns,
};

pub(crate) const EXPERIMENT: Experiment<Credits, LineUse> = Experiment {
    name: "credits",
    aliases: &[],
    about: "Bandwidth of a session by its credits [eRPC §4.3.1]",
    run: Simulation::Several(simulate),
    network: None,
    columns: COLUMNS,
    caption: |s, _| {
        format!(
            "{} with a round trip of {}: BDP {} B, packets of {} B, so {} credits fill the line",
            bps(s.rate_bps),
            ns(s.rtt_ns),
            s.bdp_bytes(),
            s.packet_bytes(),
            s.full_credits(),
        )
    },
    table: Table::Columns,
    picture,
    recorded: &[Recorded {
        id: "E35",
        results: include_str!("../../recorded/E35.json"),
        title: "Credits by bandwidth-delay product",
        source: "eRPC section 4.3.1",
        model: "Two hosts, one session, two requests of 8 MiB under way. The cable is so long that \
            a credit returns in 6.08 us: 19 kB at 25 Gbit/s. CPUs take no time. Arithmetic is \
            min(1, C x packet / BDP).",
        axis: points::Axis { label: "credits", unit: Unit::Count, log: false },
        x: |_, p| p.credits.into(),
        series: |s, _| s.line(),
        only: &[],
        runs: |size| {
            let time_ns = size.pick(2_000_000, 20_000_000);
            let of = |gbps: u64| Credits {
                rate_bps: gbps * 1_000_000_000,
                time_ns,
                ..Credits::default()
            };
            size.pick(&[25][..], &[25, 100]).iter().map(|&gbps| of(gbps)).collect()
        },
        more: |rows, run| {
            for (s, p) in rows {
                let series = format!("arithmetic, {}", s.line());
                run.add(SHARE_OF_LINE, series, p.credits.into(), share(p.expected_ppm));
            }
        },
        paper: &[
            Paper::new(SHARE_OF_LINE, "25 Gbit/s", Some(13.0), Stated::Value(1.0)),
            Paper::new(SHARE_OF_LINE, "100 Gbit/s", Some(52.0), Stated::Value(1.0)),
        ],
    }],
    special: Special { results: Results::Together(together), ..Special::NONE },
};

const SHARE_OF_LINE: &str = "share of the line";

type Col = Column<Credits, LineUse>;

const COLUMNS: &[Col] = &[
    Col::text("credits", |_, p| p.credits.to_string()),
    Col::figure("goodput", Unit::Bits, |_, p| Some(p.goodput_bps as f64)),
    Col::figure("of the line", Unit::Percent, |_, p| Some(share(p.line_ppm)))
        .recorded(SHARE_OF_LINE, TIGHT)
        .better(Better::Higher)
        .drawn(Figure::Linear),
    Col::figure("calculated", Unit::Percent, |_, p| Some(share(p.expected_ppm))),
];

fn share(ppm: u64) -> f64 {
    ppm as f64 / 1e6
}

/// The result in JSON.
fn together(s: &Credits, points: &[&LineUse]) -> serde_json::Value {
    json!({
        "bdp_bytes": s.bdp_bytes(),
        "packet_bytes": s.packet_bytes(),
        "full_credits": s.full_credits(),
        "points": points,
    })
}

/// Use of the line by credits.
fn picture(rows: &[Row<Credits, LineUse>]) -> Chart {
    let (rate, series) = rows.first().map(|(s, _)| (bps(s.rate_bps), s.line())).unwrap_or_default();
    let mut chart = Chart::lines(
        format!("Use of a line of {rate} by the credits of a session"),
        Axis::linear("credits", Unit::Count),
        Axis::linear("share of the line", Unit::Percent),
    );
    for (_, p) in rows {
        let x = f64::from(p.credits);
        chart.line(Style::Main, "simulated").points.push((x, share(p.line_ppm)));
        chart.line(Style::Calculated, "calculated").points.push((x, share(p.expected_ppm)));
    }
    let stated = EXPERIMENT.stated(SHARE_OF_LINE, &series);
    chart.line(Style::Main, "simulated").add_paper("the paper", stated);
    chart
}

const SERVER: HostId = HostId(0);

parameters! {
    /// Settings of the experiment. The defaults are the paper's example.
    #[derive(Copy, Eq)]
    pub struct Credits {
        /// Decides all random choices.
        seed: u64 = 1, count(0..=u64::MAX);
        /// Rate of the cable, Gbit/s
        rate_bps: u64 = 25_000_000_000, rate(1_000_000_000..=1_000_000_000_000).option("gbps");
        /// Round trip of a credit
        rtt_ns: u64 = 6_080, time(0..=100_000_000).option("rtt");
        /// Most credits. Default: two bandwidth-delay products
        max_credits: Option<u32> = None, count(1..=65_535).option("max-credits");
        /// Time before the measurement, and at least 4 round trips
        warm_up_ns: u64 = 1_000_000, time(0..=MAX_TIME_NS);
        /// Measured time, and at least 20 round trips
        time_ns: u64 = 20_000_000, time(1..=MAX_TIME_NS);
    }
}

/// Most values of C in a run: each from 1 on, or every n-th.
const MAX_POINTS: u32 = 32;

/// One value of C.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct LineUse {
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

impl Credits {
    fn check(&self) -> Result<(), ScenarioError> {
        parameter::check(self)?;
        let range = "from the time of NICs and packets (2.1 us at 25 Gbit/s) to 100 ms";
        check(self.rtt_ns >= self.fixed_ns(), "rtt_ns", self.rtt_ns, range)
    }

    fn line(&self) -> String {
        format!("{} Gbit/s", self.rate_bps / 1_000_000_000)
    }

    /// Rate times round trip, bytes.
    fn bdp_bytes(&self) -> u64 {
        (u128::from(self.rate_bps) * u128::from(self.rtt_ns) / 8_000_000_000) as u64
    }

    fn packet_data(&self) -> usize {
        data_per_packet(self.config(1).nic.max_frame)
    }

    /// b: a full packet on the wire, bytes.
    fn packet_bytes(&self) -> u64 {
        wire_bytes(self.packet_data())
    }

    /// The smallest C with which C b is not below the bandwidth-delay product.
    fn full_credits(&self) -> u32 {
        u32::try_from(self.bdp_bytes().div_ceil(self.packet_bytes())).unwrap_or(u32::MAX)
    }

    /// The round trip of a credit without the cable's delay: a packet, its credit return, two
    /// NICs each way, and a nanosecond for the pass that each side makes.
    fn fixed_ns(&self) -> u64 {
        let nic = WorldConfig::new(self.seed, Topology::two_hosts()).nic;
        let data = data_per_packet(nic.max_frame);
        let wire = wire_ns(wire_bytes(data), self.rate_bps) + wire_ns(wire_bytes(0), self.rate_bps);
        wire + 2 * (nic.tx_latency_ns + nic.rx_latency_ns)
    }

    fn topology(&self) -> Topology {
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

fn simulate(settings: &Credits, step: Step<'_>) -> Result<Vec<LineUse>, ScenarioError> {
    settings.check()?;
    let max_credits = settings.max_credits.unwrap_or(2 * settings.full_credits()).min(65_535);
    let every = max_credits.div_ceil(MAX_POINTS);
    let values: Vec<u32> = (1..=max_credits).filter(|c| *c == 1 || c % every == 0).collect();
    let one = |(done, &credits): (usize, &u32)| {
        step(done, values.len());
        point(settings, credits)
    };
    values.iter().enumerate().map(one).collect()
}

/// Runs it for one C.
///
/// # Errors
/// A setting is out of range, sessions were not connected, or a call has failed.
pub fn point(settings: &Credits, credits: u32) -> Result<LineUse, ScenarioError> {
    settings.check()?;
    let mut config = settings.config(credits);
    config.topology = settings.topology();
    let mut world = World::new(config)?;
    let packet = settings.packet_data();
    // Two requests, so that the session sends while one of them awaits its response.
    let tally = app::closed_loops(&mut world, SERVER, (8 << 20) / packet * packet, 2)?;
    app::connect_all(&mut world)?;
    let warm_up_ns = settings.warm_up_ns.max(4 * settings.rtt_ns);
    let time_ns = settings.time_ns.max(20 * settings.rtt_ns);
    world.run_for(Duration::from_nanos(warm_up_ns));
    let before = Traffic::of(&mut world);
    world.run_for(Duration::from_nanos(time_ns));
    tally.borrow().check()?;
    let traffic = Traffic::of(&mut world).since(&before);
    let goodput_bps = per_second(traffic.request_packets * packet as u64 * 8, time_ns);
    let packet_bytes = settings.packet_bytes();
    let line_bps = per_second(traffic.request_packets * packet_bytes * 8, time_ns);
    let million = 1_000_000_u128;
    let share = u128::from(credits) * u128::from(packet_bytes) * million;
    Ok(LineUse {
        credits,
        goodput_bps,
        line_ppm: (u128::from(line_bps) * million / u128::from(settings.rate_bps)) as u64,
        expected_ppm: (share / u128::from(settings.bdp_bytes())).min(million) as u64,
        retransmitted: traffic.retransmitted,
    })
}
