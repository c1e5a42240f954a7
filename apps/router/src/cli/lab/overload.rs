//! `router overload`.

mod report;
mod traffic;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use courser_bench::clock::Clock;
use courser_kit::units;
use courser_kit::{Failure, json, out};
use courser_router::netns::{Cluster, Shape, Unavailable, host_v4, link_v4};

use crate::cli::cluster::Demo;
use report::{Measured, Path, Report};
use traffic::{Pair, ask, flood};

/// Nodes between the two hosts.
const NODES: usize = 2;

/// Offered loads, as multiples of the capacity.
const LOADS: [f64; 4] = [0.5, 1.0, 2.0, 4.0];

#[derive(Debug, Args)]
#[command(after_help = "\
Two nodes between two hosts, in network namespaces of this program: the first host sends \
datagrams of 22 bytes to the second one at 0.5, 1, 2 and 4 times the rate that the router \
delivers of a flood. The same is done on the same chain with the kernel's own forwarding, in \
turns. Also the time of a request and its answer without other traffic, and beside a flood of \
the router's capacity. On a machine with few cores the senders, the receivers and the nodes share \
them, and the rate that can be offered is limited by the sender: see \"offered\".

Needs root, for network namespaces, and the program `ip` (Debian: iproute2). The machine's own \
network is not changed.

Examples:
  router overload
  router overload --time 5s --rounds 9 --json result.json
  router overload --quick")]
pub(crate) struct OverloadArgs {
    /// Time for each load
    #[arg(long, default_value = "1s", value_parser = units::nonzero_time)]
    time: Duration,
    /// Repetitions; the results are medians
    #[arg(long, default_value = "3", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
    /// One round of 200 ms for each load
    #[arg(long, conflicts_with_all = ["time", "rounds"])]
    quick: bool,
    /// Write the result as JSON to a file, or to standard output with -
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
}

/// Measures.
///
/// # Errors
/// The machine or the user cannot have namespaces; a node failed.
pub(crate) fn run(args: &OverloadArgs) -> Result<(), Failure> {
    json::check_target(args.json.as_deref())?;
    let (time, rounds) =
        if args.quick { (Duration::from_millis(200), 1) } else { (args.time, args.rounds) };
    let step = |text: &str| drop(writeln!(out::stderr(), "{text}"));
    let unavailable = |error: Unavailable| Failure::Usage(error.to_string());
    step("builds two chains of two hosts: by a router, and by the kernel");
    let kernel = by_kernel().map_err(unavailable)?;
    let router = Demo::start(Shape::Mesh, NODES)?;
    let address = host_v4(1).into();
    let pairs = [
        (Path::Router, Pair { from: router.host(0), to: router.host(1), address }),
        (Path::Kernel, Pair { from: kernel.host(0), to: kernel.host(1), address }),
    ];
    let warm_up = time.min(Duration::from_millis(200));
    for (_, pair) in pairs {
        flood(pair, Some(1_000.0), warm_up)?;
    }
    let capacity_pps = flood(pairs[0].1, None, time)?.delivered_pps();
    let mut report = Report::new(capacity_pps, time, rounds);
    for round in 0..rounds {
        step(&format!("round {} of {rounds}", round + 1));
        for (path, pair) in pairs {
            measure(&mut report, path, pair, time)?;
        }
    }
    drop((router, kernel));
    if !json::only(args.json.as_deref()) {
        report.print()?;
    }
    let clock = Clock::new();
    args.json.as_deref().map_or(Ok(()), |target| json::write(target, &report.json(&clock)))
}

/// All loads once, and the latency.
fn measure(report: &mut Report, path: Path, pair: Pair<'_>, time: Duration) -> Result<(), Failure> {
    let capacity_pps = report.capacity_pps;
    let idle = ask(pair, time)?;
    let mut floods = Vec::new();
    for load in LOADS {
        floods.push(flood(pair, Some(load * capacity_pps), time)?);
    }
    let beside = std::thread::scope(|scope| {
        let flood = scope.spawn(|| flood(pair, Some(capacity_pps), time));
        let answers = ask(pair, time);
        flood.join().map_err(|_| Failure::Runtime("a thread ended early; repeat".to_owned()))??;
        answers
    })?;
    report.add(path, Measured { floods, idle, beside });
    Ok(())
}

/// A chain of the same shape, whose nodes are the kernel.
fn by_kernel() -> Result<Cluster, Unavailable> {
    let cluster = Cluster::build(Shape::Mesh, NODES)?;
    for node in 0..NODES {
        let other = 1 - node;
        cluster.node(node).set_kernel("ipv4/ip_forward", "1")?;
        let (network, via) = (other + 1, link_v4(other, node));
        cluster.node(node).batch(&format!("route add 10.0.{network}.0/24 via {via}"))?;
    }
    Ok(cluster)
}
