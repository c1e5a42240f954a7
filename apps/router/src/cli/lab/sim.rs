//! `router sim`.

use std::fmt::Display;
use std::io::Write;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use courser_kit::out::{self, Out};
use courser_kit::text::{WIDTH, wrap};
use courser_kit::{Failure, ResultArgs, json, units};
use courser_router::sim::{self, Cpu, Latency, Matrix, Outcome, Settings, Shape, Sizes};
use serde_json::{Value, json};

use crate::cli::Topology;

#[derive(Debug, Args)]
#[command(after_help = "\
Runs the nodes of the router, unchanged, in virtual time, with a host at each node's port that \
sends packets at random times. Every packet that leaves is checked: right port, once, in the \
order of its flow, time to live. Equal options give equal results.

Topologies: mesh (cables between all nodes, Valiant load balancing), switch (all nodes at a \
switch), mixed (the hosts, too).

Examples:
  router sim --topology switch --load 90 --bytes 1518
  router sim --batch 1 --load 100           a frame for each packet
  router sim --flows --ms 5                 flows of the sizes of a web search")]
pub(crate) struct SimArgs {
    /// How the nodes are connected
    #[arg(long, value_enum, default_value = "mesh")]
    topology: Topology,
    /// Nodes, 2 to 32
    #[arg(long, default_value_t = 4, value_parser = number(2..=32_u32, "nodes"))]
    nodes: u32,
    /// Packets taken in a pass, whose messages share frames, 1 to 64; 1: no batching
    #[arg(long, default_value_t = 32, value_parser = batch())]
    batch: usize,
    /// Microseconds that a packet waits at most for others that share its frame, 0 to 250
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=250))]
    budget_us: u64,
    /// Bytes of each packet on Ethernet, 64 to 1518
    #[arg(long, default_value_t = 64, value_parser = bytes())]
    bytes: u32,
    /// Flows of real sizes instead of single packets
    #[arg(long, conflicts_with = "bytes")]
    flows: bool,
    /// Load of the ports in per cent, at most 100
    #[arg(long, default_value_t = 20.0, value_parser = number(0.0001..=100.0, "per cent"))]
    load: f64,
    /// All packets of a host go to one other: the worst case for direct ways
    #[arg(long)]
    adversarial: bool,
    /// Rate of ports and cables, 1 to 1000 Gbit/s
    #[arg(long, default_value_t = 10, value_parser = gbps())]
    gbps: u64,
    /// CPU time of frames and packets
    #[arg(long, value_enum, default_value = "measured")]
    cpu: CpuArg,
    /// Measured virtual time, at most 10000 ms
    #[arg(long, default_value_t = 1.0, value_parser = number(0.000001..=10_000.0, "ms"))]
    ms: f64,
    /// Seed of all random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    output: ResultArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum CpuArg {
    /// None: the cables are the limit
    None,
    /// Courser's own, without a NIC's driver
    Measured,
    /// With the system's sockets
    Sockets,
}

/// Parses a number within a range, which no other value of a float is in.
fn number<T>(
    range: RangeInclusive<T>,
    unit: &'static str,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Display + Clone + Send + Sync + 'static,
{
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| format!("write {} to {} {unit}", range.start(), range.end()))
    }
}

/// Parses packets of a batch.
pub(super) fn batch() -> impl Fn(&str) -> Result<usize, String> + Clone + Send + Sync + 'static {
    number(1..=64, "packets")
}

/// Parses bytes of a packet on Ethernet.
pub(super) fn bytes() -> impl Fn(&str) -> Result<u32, String> + Clone + Send + Sync + 'static {
    number(64..=1_518, "bytes")
}

/// Parses the rate of a cable.
pub(super) fn gbps() -> impl Fn(&str) -> Result<u64, String> + Clone + Send + Sync + 'static {
    number(1..=1_000, "Gbit/s")
}

impl From<Topology> for Shape {
    fn from(topology: Topology) -> Shape {
        match topology {
            Topology::Mesh => Shape::Mesh,
            Topology::Switch => Shape::Switch,
            Topology::Mixed => Shape::Mixed,
        }
    }
}

impl From<CpuArg> for Cpu {
    fn from(cpu: CpuArg) -> Cpu {
        match cpu {
            CpuArg::None => Cpu::None,
            CpuArg::Measured => Cpu::Measured,
            CpuArg::Sockets => Cpu::Sockets,
        }
    }
}

impl SimArgs {
    fn settings(&self) -> Settings {
        let defaults = Settings::default();
        Settings {
            seed: self.seed,
            topology: self.topology.into(),
            nodes: self.nodes,
            batch: self.batch,
            batch_budget: Duration::from_micros(self.budget_us),
            line_rate_bps: self.gbps * 1_000_000_000,
            sizes: match self.flows {
                true => Sizes::WebSearch,
                false => Sizes::Fixed { packet_bytes: self.bytes },
            },
            load_ppm: (self.load * 10_000.0).round() as u32,
            matrix: if self.adversarial { Matrix::Shift(1) } else { Matrix::Uniform },
            cpu: self.cpu.into(),
            time_ns: (self.ms * 1e6).round() as u64,
            failure_timeout: Duration::from_millis(40),
            ..defaults
        }
    }
}

/// Errors of settings are those of usage.
pub(crate) fn failure(error: &sim::SimError) -> Failure {
    match error {
        sim::SimError::Setting { .. } => Failure::Usage(error.to_string()),
        _ => Failure::Runtime(error.to_string()),
    }
}

pub(crate) fn run(args: &SimArgs) -> Result<(), Failure> {
    let target = args.output.json.as_deref();
    json::check_target(target)?;
    let settings = args.settings();
    let outcome = sim::run(&settings).map_err(|error| failure(&error))?;
    if !json::only(target) {
        print(&mut out::stdout(), &settings, &outcome)?;
    }
    if let Some(target) = target {
        json::write(target, &report("router-sim", json!(settings), json!(outcome)))?;
    }
    if outcome.faults != sim::Faults::default() {
        return Err(Failure::Runtime(format!("packets went wrong: {:?}", outcome.faults)));
    }
    Ok(())
}

/// The object of a simulation.
pub(crate) fn report(bench: &str, config: Value, results: Value) -> Value {
    json!({
        "bench": bench,
        "transport": "sim",
        "config": config,
        "results": results,
        "environment": json::environment(None),
    })
}

fn print(out: &mut Out, settings: &Settings, o: &Outcome) -> Result<(), Failure> {
    let shown = |l: &Latency| {
        let [p50, p99, max] = [l.latency_p50_ns, l.latency_p99_ns, l.latency_max_ns]
            .map(|ns| units::show_ns(ns as f64));
        format!("p50 {p50}, p99 {p99}, max {max}")
    };
    writeln!(
        out,
        "{} of {} packets forwarded, {}, {:.2} Gbit/s of IP packets",
        o.packets_forwarded,
        o.packets_offered,
        units::show_per_second(o.throughput_pps as f64, "packets"),
        o.throughput_bps as f64 / 1e9
    )?;
    writeln!(out, "  end to end   {}", shown(&o.end_to_end))?;
    for hop in &o.hops {
        writeln!(out, "  {:<12} {}", hop.hop.replace('_', " "), shown(&hop.latency))?;
    }
    let bound = 2.0 / f64::from(settings.nodes);
    let share = o.busiest_pair_share;
    let f = &o.faults;
    for text in [
        format!(
            "{:.2} links between nodes for each packet, {:.1} messages for each frame, {:.2} bytes on \
             the wire for each byte of a packet",
            o.links_mean, o.messages_per_frame, o.wire_bytes_per_byte
        ),
        format!(
            "busiest pair of nodes: {share:.3} of a port's packets (Valiant load balancing: at most \
             {bound:.3} with many flows)"
        ),
        format!(
            "reordered {}, twice {}, at a wrong port {}, changed {}; dropped by nodes: {}, at receive \
             queues {}",
            f.reordered,
            f.duplicated,
            f.misrouted,
            f.changed,
            drops(&o.drops),
            o.dropped_at_receive_queues
        ),
    ] {
        for line in wrap(&text, WIDTH) {
            writeln!(out, "{line}")?;
        }
    }
    Ok(())
}

fn drops(drops: &[(&'static str, u64)]) -> String {
    let texts: Vec<_> = drops.iter().map(|(reason, n)| format!("{reason} {n}")).collect();
    if texts.is_empty() { "none".to_owned() } else { texts.join(", ") }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::lab::LabCommand;
    use crate::cli::{Cli, Command};

    fn parse(options: &str) -> Result<SimArgs, String> {
        let words = ["router", "sim"].into_iter().chain(options.split_whitespace());
        match Cli::try_parse_from(words).map_err(|error| error.to_string())?.command {
            Command::Lab(LabCommand::Sim(args)) => Ok(args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_ends_of_all_ranges_are_settings_in_range() {
        for options in [
            "--nodes 2 --batch 1 --bytes 64 --load 0.0001 --gbps 1 --ms 0.000001 --budget-us 0",
            "--nodes 32 --batch 64 --bytes 1518 --load 100 --gbps 1000 --ms 10000 --budget-us 250",
        ] {
            let settings = parse(options).expect("options").settings();
            assert!(settings.check().is_ok(), "{options}: {settings:?}");
        }
        let settings = parse("--load 0.57 --ms 0.0157").expect("options").settings();
        assert_eq!((settings.load_ppm, settings.time_ns), (5_700, 15_700), "no rounding down");
    }

    #[test]
    fn values_that_are_no_numbers_are_refused() {
        for value in ["nan", "NaN", "inf", "-inf", "infinity", "1e999", "-1", "-0", "", "x"] {
            for option in ["load", "ms", "gbps", "nodes", "batch", "bytes"] {
                let error = parse(&format!("--{option}={value}")).expect_err(value);
                assert!(error.contains(&format!("'--{option} <")), "{error}");
            }
        }
    }
}
