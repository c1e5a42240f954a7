//! `courser-lab sim run routers`: options, table and picture.

use std::time::Duration;

use clap::{Args, ValueEnum};
use courser_bench::report::Unit;
use courser_kit::Failure;
use courser_kit::units::{self, show_bytes};
use courser_sim::scenario::routers::{self, Matrix, Outcome, Settings, Shape};
use serde_json::{Value, json};

use super::args::{CpuName, nanos};
use super::seeds::{Cell, Runs, SeedArgs};
use super::tables::{bps, counted, ns};
use super::{Row, Seeded, each};
use crate::picture::{Axis, Chart, Style};
use crate::sim::output::OutputArgs;

/// A topology of nodes and lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ShapeName {
    /// A cable between every two nodes, and Valiant load balancing
    Mesh,
    /// All nodes at a switch
    Switch,
    /// All nodes and all lines at a switch
    Mixed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OnOff {
    On,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MatrixName {
    /// Any other line
    Uniform,
    /// The next line
    Neighbour,
}

#[derive(Debug, Args)]
pub(super) struct RoutersArgs {
    #[command(flatten)]
    seeds: SeedArgs,
    /// Topologies
    #[arg(
        long,
        value_name = "NAME,..",
        value_enum,
        value_delimiter = ',',
        default_value = "mesh,switch,mixed"
    )]
    topology: Vec<ShapeName>,
    /// Whether messages share frames
    #[arg(
        long,
        value_name = "on,off",
        value_enum,
        value_delimiter = ',',
        default_value = "on,off"
    )]
    batching: Vec<OnOff>,
    /// Packets that arrive, as shares of what a line can carry: 0.1 or 10%
    #[arg(long, value_name = "SHARE,..", value_delimiter = ',',
        default_value = "0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9", value_parser = units::chance)]
    loads: Vec<u32>,
    /// Rates of a line, Gbit/s
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "10,40",
        value_parser = clap::value_parser!(u64).range(1..=1000))]
    gbps: Vec<u64>,
    /// Bytes of a packet, with its Ethernet header
    #[arg(long, value_name = "BYTES,..", value_delimiter = ',', default_value = "64,1500")]
    sizes: Vec<u32>,
    /// Nodes, with a line each
    #[arg(long, value_name = "N", default_value_t = 4)]
    nodes: u32,
    /// Threads of each node, with one CPU each
    #[arg(long, value_name = "N", default_value_t = 4)]
    threads: u32,
    /// Destinations of the packets of a line
    #[arg(long, value_name = "NAME", value_enum, default_value = "uniform")]
    matrix: MatrixName,
    /// Model of CPU costs
    #[arg(long, value_name = "MODEL", value_enum, default_value = "measured")]
    cpu: CpuName,
    /// Virtual time before the measurement
    #[arg(long, value_name = "TIME", default_value = "50us", value_parser = units::time)]
    warm_up: Duration,
    /// Virtual time of the measurement
    #[arg(long, value_name = "TIME", default_value = "500us", value_parser = units::nonzero_time)]
    time: Duration,
    #[command(flatten)]
    output: OutputArgs,
}

impl RoutersArgs {
    fn settings(&self) -> Vec<Settings> {
        let mut all = vec![self.common()];
        vary(&mut all, &self.gbps, |s, &gbps| s.line_rate_bps = gbps * 1_000_000_000);
        vary(&mut all, &self.sizes, |s, &bytes| s.packet_bytes = bytes);
        vary(&mut all, &self.topology, |s, name| {
            s.topology = match name {
                ShapeName::Mesh => Shape::Mesh,
                ShapeName::Switch => Shape::Switch,
                ShapeName::Mixed => Shape::Mixed,
            };
        });
        vary(&mut all, &self.batching, |s, &batching| s.batching = batching == OnOff::On);
        vary(&mut all, &self.loads, |s, &ppm| s.load_ppm = ppm);
        all
    }

    fn common(&self) -> Settings {
        let mut common = Settings {
            nodes: self.nodes,
            cores: self.threads,
            matrix: match self.matrix {
                MatrixName::Uniform => Matrix::Uniform,
                MatrixName::Neighbour => Matrix::Neighbour,
            },
            warm_up_ns: nanos(self.warm_up),
            time_ns: nanos(self.time),
            ..Settings::default()
        };
        common.hosts.cpu = self.cpu.into();
        common
    }
}

/// Each of the settings with each of the values.
fn vary<T>(all: &mut Vec<Settings>, values: &[T], set: impl Fn(&mut Settings, &T)) {
    let with = |settings: &Settings, value| {
        let mut settings = *settings;
        set(&mut settings, value);
        settings
    };
    *all = all
        .iter()
        .flat_map(|s| values.iter().map(move |value| (s, value)))
        .map(|(s, value)| with(s, value))
        .collect();
}

impl Seeded for Settings {
    fn with_seed(mut self, seed: u64) -> Self {
        self.hosts.seed = seed;
        self
    }
}

pub(super) fn run(args: &RoutersArgs) -> Result<(), Failure> {
    args.output.check()?;
    let runs = each(args.seeds, &args.settings(), routers::run)?;
    let results = runs.results(result);
    let first = runs.cases().first().map(|(settings, _)| settings);
    args.output.print("routers", &first, json!(results), || runs.chart(picture), || table(&runs))
}

/// A result with the settings in which the runs differ.
fn result((s, o): &Row<Settings, Outcome>) -> Value {
    let mut result = json!(o);
    result["topology"] = json!(s.topology);
    result["batching"] = json!(s.batching);
    result["line_rate_bps"] = json!(s.line_rate_bps);
    result["packet_bytes"] = json!(s.packet_bytes);
    result["load"] = json!(load(s));
    result
}

fn load(s: &Settings) -> f64 {
    f64::from(s.load_ppm) / 1e6
}

/// The name of a line of the picture, and the start of a row.
fn name(s: &Settings) -> String {
    let batching = if s.batching { "on" } else { "off" };
    format!("{} {batching}", s.topology.name())
}

fn packets(s: &Settings) -> String {
    format!("{} Gbit/s, {}", s.line_rate_bps / 1_000_000_000, show_bytes(s.packet_bytes.into()))
}

fn table(runs: &Runs<Row<Settings, Outcome>>) -> String {
    let Some((s, _)) = runs.cases().first() else { return String::new() };
    let caption = format!(
        "Router of {} with {} each, a line at each node, packets to {} line; by topology, \
         with messages that share frames (on) and without (off); {} CPUs, {}",
        counted(s.nodes, "node"),
        counted(s.cores, "thread"),
        match s.matrix {
            Matrix::Uniform => "any other",
            Matrix::Neighbour => "the next",
        },
        s.hosts.cpu.name(),
        runs.caption(),
    );
    let hop = |o: &Outcome, name: &str| match o.hops.iter().find(|h| h.hop == name) {
        Some(hop) => Cell::of(hop.latency.p50_ns, ns),
        None => "-".into(),
    };
    let row = |(s, o): &Row<Settings, Outcome>| {
        vec![
            format!("{}, {}", s.line_rate_bps / 1_000_000_000, s.packet_bytes).into(),
            name(s).into(),
            Cell::decimal(load(s), 1),
            Cell::of(o.throughput_bps, bps),
            Cell::count(o.packets_dropped),
            Cell::of(o.end_to_end.p50_ns, ns),
            Cell::of(o.end_to_end.p99_ns, ns),
            hop(o, "first"),
            hop(o, "second"),
        ]
    };
    let head = ["Gbit/s, B", "topology", "load", "out", "drops", "p50", "p99", "hop 1", "hop 2"];
    runs.table(&caption, &head, row)
}

/// The latency by load: a line for each topology, with batching and without.
fn picture(rows: &[Row<Settings, Outcome>]) -> Chart {
    let mut chart = Chart::lines(
        "Latency of a router of several nodes, by topology and batching",
        Axis::linear("load, share of a line", Unit::Percent),
        Axis::log("latency p50", Unit::Time),
    );
    for (s, o) in rows.iter().filter(|(_, o)| o.end_to_end.count > 0) {
        let style = if s.batching { Style::Main } else { Style::Second };
        let line = chart.line(style, format!("{}, {}", name(s), packets(s)));
        line.points.push((load(s), o.end_to_end.p50_ns as f64));
    }
    chart
}
