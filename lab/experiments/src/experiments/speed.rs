//! Speed of the simulator: two hosts on a cable, and datagrams that reach a receive queue per
//! second of real time and of CPU time. It is no experiment of the network: it has no recorded points and
//! no sweep of seeds.

use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use clap::{ArgMatches, Args, Command, FromArgMatches};
use courser_kit::units::{nonzero_time, show_per_second};
use courser_kit::{Failure, json};
use courser_sim::fabric::Topology;
use courser_sim::{Checks, HostId, World};
use serde::Serialize;
use serde_json::json;

use super::stopwatch::Stopwatch;
use crate::declare::output::print;
use crate::declare::points::Experiment;
use crate::declare::steps::steps;
use crate::declare::text::table;
use crate::declare::{Declaration, Step};
use crate::scenario::app::{self, SharedTally};
use crate::scenario::{Cpu, ScenarioError, data_per_packet, uncontrolled};

/// The command.
pub(crate) struct Speed;

impl Declaration for Speed {
    fn name(&self) -> &'static str {
        "speed"
    }

    fn command(&self) -> Command {
        SpeedArgs::augment_args(Command::new(self.name())).about("Speed of the simulator")
    }

    fn run(&self, arguments: &ArgMatches) -> Result<(), Failure> {
        let parsed = |e: clap::Error| Failure::Usage(e.to_string());
        let args = SpeedArgs::from_arg_matches(arguments).map_err(parsed)?;
        json::check_target(args.json.as_deref())?;
        let results = steps(|step| measure(&args, step))?;
        print(args.json.as_deref(), self.name(), &args, json!(results), || text(&results))
    }

    #[cfg(test)]
    fn check(&self, _: &ArgMatches) -> Result<(), Failure> {
        Ok(()) // all values are checked when they are parsed
    }

    fn recorded(&'static self) -> Vec<Experiment> {
        Vec::new()
    }
}

#[derive(Debug, Args, Serialize)]
struct SpeedArgs {
    /// Seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Rounds with one window of each load
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Real time of a window
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = nonzero_time)]
    window: Duration,
    /// Disable the checks that every simulation does
    #[arg(long)]
    no_checks: bool,
    /// Write the result as JSON to a file, or to standard output with -
    #[arg(long, value_name = "PATH")]
    #[serde(skip)]
    json: Option<PathBuf>,
}

fn text(results: &[Deliveries]) -> String {
    let rate = |rate| show_per_second(rate, "/s");
    let rows = results.iter().map(|s| {
        let (low, high) = (s.deliveries_per_cpu_s_min, s.deliveries_per_cpu_s_max);
        vec![
            s.load.name().to_owned(),
            rate(s.deliveries_per_cpu_s),
            format!("{} - {}", rate(low), rate(high)),
            rate(s.deliveries_per_wall_s),
            format!("{:.3}", s.virtual_s_per_wall_s),
        ]
    });
    let header = ["load", "per CPU second", "range", "per second", "virtual s per s"];
    table("deliveries between two hosts", &header, rows)
}

const SERVER: HostId = HostId(0);
const CLIENT: HostId = HostId(1);

/// Load of the two hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Load {
    /// 32-byte echoes, one at a time: each datagram has one packet, and batching has no effect.
    Single,
    /// 32-byte echoes, 60 in flight: datagrams have several packets.
    Small,
    /// 8 MiB requests, two in flight, with 32 credits: full packets one way, credit returns the
    /// other.
    Bulk,
}

impl Load {
    const ALL: [Load; 3] = [Load::Single, Load::Small, Load::Bulk];

    const fn name(self) -> &'static str {
        match self {
            Load::Single => "single",
            Load::Small => "small",
            Load::Bulk => "bulk",
        }
    }
}

/// The two hosts under load.
struct TwoHosts {
    world: World,
    tally: SharedTally,
}

impl TwoHosts {
    /// Connects them and advances time by a millisecond.
    ///
    /// # Errors
    /// The session was not connected, or a call has failed.
    fn new(load: Load, args: &SpeedArgs) -> Result<TwoHosts, ScenarioError> {
        let mut config = uncontrolled(args.seed, Topology::two_hosts());
        config.costs = Cpu::Courser.costs();
        config.nexus.credits = Some(32);
        config.nexus.slots = 32;
        if args.no_checks {
            config.checks = Checks { at_most_once: false, every_passes: 0, ..Checks::default() };
        }
        let packet = data_per_packet(config.nic.max_frame);
        let (req_type, bytes, outstanding) = match load {
            Load::Single => (app::ECHO, 32, 1),
            Load::Small => (app::ECHO, 32, 60),
            Load::Bulk => (app::SINK, (8 << 20) / packet * packet, 2),
        };
        let mut world = World::new(config)?;
        let tally = SharedTally::default();
        world.start(SERVER, app::server)?;
        let (uri, to) = (world.uri(SERVER), Rc::clone(&tally));
        world.start(CLIENT, move |nexus| {
            app::closed_loop(nexus, &uri, req_type, bytes, outstanding, to.clone())
        })?;
        app::connect_all(&mut world)?;
        let mut hosts = TwoHosts { world, tally };
        hosts.advance(1_000_000)?;
        Ok(hosts)
    }

    /// Advances virtual time; returns the datagrams delivered in it.
    ///
    /// # Errors
    /// A call has failed.
    fn advance(&mut self, time_ns: u64) -> Result<u64, ScenarioError> {
        let before = self.world.counts().delivered;
        self.world.run_for(Duration::from_nanos(time_ns));
        self.tally.borrow().check()?;
        Ok(self.world.counts().delivered - before)
    }
}

/// Results of one load over all rounds.
#[derive(Debug, Serialize)]
struct Deliveries {
    /// The load.
    load: Load,
    /// Delivered datagrams per second of CPU time, median over the rounds.
    deliveries_per_cpu_s: f64,
    /// The slowest round.
    deliveries_per_cpu_s_min: f64,
    /// The fastest round.
    deliveries_per_cpu_s_max: f64,
    /// Delivered datagrams per second of real time, median.
    deliveries_per_wall_s: f64,
    /// The slowest round.
    deliveries_per_wall_s_min: f64,
    /// The fastest round.
    deliveries_per_wall_s_max: f64,
    /// Virtual time per real time, median.
    virtual_s_per_wall_s: f64,
}

/// One window: deliveries per second of CPU time and of real time, and virtual seconds per real
/// second.
struct Window {
    per_cpu_s: f64,
    per_wall_s: f64,
    virtual_s: f64,
}

/// Virtual time between two clock reads, ns.
const SLICE_NS: u64 = 200_000;

/// Runs rounds with one window of each load, so that other programs affect all loads equally.
fn measure(args: &SpeedArgs, step: Step<'_>) -> Result<Vec<Deliveries>, ScenarioError> {
    let mut worlds = Vec::new();
    for load in Load::ALL {
        worlds.push((load, TwoHosts::new(load, args)?, Vec::new()));
    }
    let rounds = args.rounds as usize;
    for round in 0..rounds {
        step(round, rounds);
        for (_, hosts, seen) in &mut worlds {
            seen.push(window(hosts, args.window)?);
        }
    }
    Ok(worlds.into_iter().map(|(load, _, seen)| summary(load, &seen)).collect())
}

fn window(hosts: &mut TwoHosts, time: Duration) -> Result<Window, ScenarioError> {
    let (mut delivered, mut slices) = (0, 0_u64);
    let begin = Stopwatch::start();
    let (wall_s, cpu_s) = loop {
        delivered += hosts.advance(SLICE_NS)?;
        slices += 1;
        let elapsed_s = begin.elapsed_s();
        if elapsed_s.0 >= time.as_secs_f64() {
            break elapsed_s;
        }
    };
    let virtual_s = (slices * SLICE_NS) as f64 / 1e9;
    let delivered = delivered as f64;
    Ok(Window {
        per_cpu_s: delivered / cpu_s,
        per_wall_s: delivered / wall_s,
        virtual_s: virtual_s / wall_s,
    })
}

fn summary(load: Load, seen: &[Window]) -> Deliveries {
    let (cpu_min, cpu, cpu_max) = spread(seen.iter().map(|w| w.per_cpu_s));
    let (wall_min, wall, wall_max) = spread(seen.iter().map(|w| w.per_wall_s));
    Deliveries {
        load,
        deliveries_per_cpu_s: cpu,
        deliveries_per_cpu_s_min: cpu_min,
        deliveries_per_cpu_s_max: cpu_max,
        deliveries_per_wall_s: wall,
        deliveries_per_wall_s_min: wall_min,
        deliveries_per_wall_s_max: wall_max,
        virtual_s_per_wall_s: spread(seen.iter().map(|w| w.virtual_s)).1,
    }
}

/// Minimum, median and maximum of values; zeros without values.
fn spread(values: impl Iterator<Item = f64>) -> (f64, f64, f64) {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let at = |n: usize| values.get(n).copied().unwrap_or(0.0);
    (at(0), at(values.len() / 2), at(values.len().saturating_sub(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_minimum_median_and_maximum() {
        assert_eq!(spread([3.0, 1.0, 2.0].into_iter()), (1.0, 2.0, 3.0));
        assert_eq!(spread(std::iter::empty()), (0.0, 0.0, 0.0));
    }
}
