//! `peers`: Courser beside other RPC libraries, in one harness. README.md says how to run it and
//! how to read it.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, anyhow, ensure};
use clap::{Parser, Subcommand};
use courser_bench::affinity::{self, Cores};
use courser_bench::clock::Clock;
use courser_bench::program::{self, Failure, json as file};
use serde_json::json;

mod child;
mod contestants;
mod drive;
mod environment;
mod pair;
mod picture;
mod report;
mod rounds;
mod table;
mod work;
/// By build.rs.
#[allow(clippy::all, rust_2018_idioms, unused_qualifications, unreachable_pub)]
mod peers_capnp {
    include!(concat!(env!("OUT_DIR"), "/peers_capnp.rs"));
}

use contestants::Contestant;
use rounds::{Measured, Plan};

const TEACH: &str = "\
Every contestant is a server process and a client process, each pinned to a core before any of its \
threads starts, with one thread or a single-threaded runtime where the library lets. In every \
round all get new processes; for each load they then take turns, a window each:

  echo of 32 B and of 1 KiB, 1 and 64 in flight    p50, p99, calls per second
  requests of 1 MiB, answers of 32 B, 1 and 4      goodput, the better of the two

Before and after each window the round trip of a cache line between the two cores is probed. \
Windows are compared within one placement (near, far); those in which it changed are repeated.

The table goes to standard output. Bare sockets are limits, not peers. Where a peer is ahead of \
Courser, the lines above the table say so first.

Examples:
  peers                                          all contestants, about 3 minutes
  peers --quick                                  the same in seconds, to see that it works
  peers --only courser-udp,tonic --rounds 21
  peers --json peers.json --svg peers.svg
  peers --check                                  does everybody answer every byte rightly?
";

/// Courser beside other RPC libraries, in one harness.
#[derive(Parser)]
#[command(name = "peers", version, after_long_help = TEACH, args_conflicts_with_subcommands = true)]
struct Args {
    #[command(subcommand)]
    side: Option<Side>,
    /// Contestants, separated by commas; all unless given
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = contestants::named)]
    only: Vec<&'static Contestant>,
    /// List the contestants and end
    #[arg(long, conflicts_with = "check")]
    list: bool,
    /// Measure nothing: check that each contestant answers every byte rightly
    #[arg(long)]
    check: bool,
    /// Two short rounds: shows that it works, gives no numbers worth keeping
    #[arg(long, conflicts_with_all = ["rounds", "window_ms", "warm_ms"])]
    quick: bool,
    #[command(flatten)]
    plan: Plan,
    /// Core of the clients
    #[arg(long, default_value_t = 0)]
    client_cpu: usize,
    /// Core of the servers; 1, or the clients' if there is only one
    #[arg(long)]
    server_cpu: Option<usize>,
    /// Also write the report as one JSON object; `-`: to standard output, instead of the table
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// Also draw the picture
    #[arg(long, value_name = "PATH")]
    svg: Option<PathBuf>,
}

/// The processes of a contestant; started by this program only.
#[derive(Subcommand)]
enum Side {
    #[command(hide = true)]
    Serve(child::ChildArgs),
    #[command(hide = true)]
    Call {
        #[command(flatten)]
        child: child::ChildArgs,
        address: String,
    },
}

fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = match &args.side {
        Some(Side::Serve(child)) => return child::serve(child),
        Some(Side::Call { child, address }) => return child::call(child, address),
        None => run(&args),
    };
    program::end(outcome.map_err(|error| Failure::Runtime(format!("{error:#}"))))
}

fn run(args: &Args) -> Result<()> {
    let wanted =
        |c: &&Contestant| args.only.is_empty() || args.only.iter().any(|only| only.name == c.name);
    let chosen: Vec<&'static Contestant> = contestants::ALL.iter().filter(wanted).collect();
    if args.list {
        chosen.iter().for_each(|c| println!("{:<12} {}", c.name, c.about));
        return Ok(());
    }
    let cores = cores(args)?;
    if args.check {
        return check(&chosen, &cores);
    }
    let (clock, json, svg) = (Clock::new(), args.json.as_deref(), args.svg.as_deref());
    file::check_target(json).and_then(|()| file::check_target(svg)).map_err(plain)?;
    let plan = match args.quick {
        true => Plan { rounds: 2, window_ms: 40, warm_ms: 20 },
        false => args.plan,
    };
    let measured = rounds::measure(&chosen, &cores, &plan, |line| eprintln!("{line}"))?;
    if !file::only(json) {
        print!("{}", table::render(&measured));
    }
    if let Some(path) = json {
        file::write(path, &report(&measured, &plan, &clock, &cores)?).map_err(plain)?;
    }
    if let Some(path) = svg {
        picture::write(&measured, path)?;
    }
    all_succeeded(measured.failed.len(), &chosen)
}

/// A failure of the harness.
fn plain(failure: Failure) -> anyhow::Error {
    anyhow!("{}", failure.text().unwrap_or("the reader of the output has ended"))
}

fn cores(args: &Args) -> Result<Cores> {
    let usable = affinity::usable_cpus()?;
    let client = args.client_cpu;
    let server = match args.server_cpu {
        Some(cpu) => cpu,
        None if usable.contains(&1) && client != 1 => 1,
        None => usable.iter().copied().find(|&cpu| cpu != client).unwrap_or(client),
    };
    for cpu in [client, server] {
        ensure!(usable.contains(&cpu), "core {cpu} is not to be had; there are {usable:?}");
    }
    if client == server {
        eprintln!("peers: both sides share core {client}: figures say nothing about two cores");
    }
    Ok(Cores { client, server, usable: usable.len(), warning: None })
}

fn check(chosen: &[&'static Contestant], cores: &Cores) -> Result<()> {
    let mut failed = 0;
    for contestant in chosen {
        let name = contestant.name;
        match rounds::check(contestant, cores) {
            Ok(loads) => println!("{name}: {loads} loads, every byte right"),
            Err(error) => {
                failed += 1;
                println!("{name}: {error:#}");
            }
        }
    }
    all_succeeded(failed, chosen)
}

fn all_succeeded(failed: usize, chosen: &[&Contestant]) -> Result<()> {
    ensure!(failed == 0, "{failed} of {} contestants failed", chosen.len());
    Ok(())
}

/// One object, as `courser bench` writes it.
fn report(
    measured: &Measured,
    plan: &Plan,
    clock: &Clock,
    cores: &Cores,
) -> Result<serde_json::Value> {
    Ok(json!({
        "bench": "peers",
        // Each result names its own.
        "transport": "several",
        "config": {
            "rounds": plan.rounds,
            "window_ms": plan.window_ms,
            "warm_ms": plan.warm_ms,
            "dropped_windows": measured.dropped,
        },
        "results": report::results(measured),
        "environment": environment::collect(clock, cores)?,
    }))
}
