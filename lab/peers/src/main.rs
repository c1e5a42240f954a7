//! `peers`: Courser beside other RPC libraries, in one harness. README.md says how to run it and
//! how to read it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use clap::{Parser, Subcommand};
use courser_bench::clock::Clock;
use courser_kit::affinity::{self, Cores};
use courser_kit::{self, Failure, json as file};
use serde_json::json;

mod child;
mod contestants;
mod drive;
mod environment;
mod kv;
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
use rounds::{Measured, PEERS, Plan, Suite};

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

const TEACH_KV: &str = "\
The same key-value service with each library, as its users write it: src/kv/tonic.rs, \
src/kv/tarpc.rs. Tokio tasks that share one client call `get`: a key of 16 B, a value of 32 B. Both \
sides have the runtime that #[tokio::main] makes, with a thread for each core of the process.

Each side has one core, so that placements can be compared; with --unpinned both have all of them, \
and the kernel chooses.

Examples:
  peers kv                                 1, 64 and 1,000 tasks
  peers kv --tasks 1,8,256 --unpinned
  peers kv --check                         does get, put, scan, and do errors, what they must?
  peers kv --program tonic                 runs the program: server and client
  peers kv --program tonic-production      with tokens, traces, deadlines and retries
";

/// Courser beside other RPC libraries, in one harness.
#[derive(Parser)]
#[command(name = "peers", version, after_long_help = TEACH, args_conflicts_with_subcommands = true)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Contestants, separated by commas; all unless given
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = contestants::named)]
    only: Vec<&'static Contestant>,
    #[command(flatten)]
    options: Options,
    /// Also draw the picture
    #[arg(long, value_name = "PATH")]
    svg: Option<PathBuf>,
}

#[derive(clap::Args)]
struct Options {
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
}

#[derive(Subcommand)]
enum Command {
    /// A typed key-value service with each library, called by tokio tasks
    #[command(after_long_help = TEACH_KV)]
    Kv(KvArgs),
    /// The processes of a contestant; started by this program only.
    #[command(hide = true)]
    Serve(child::ChildArgs),
    #[command(hide = true)]
    Call {
        #[command(flatten)]
        child: child::ChildArgs,
        address: String,
    },
}

#[derive(clap::Args)]
struct KvArgs {
    /// Contestants, separated by commas; all unless given
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = kv::named)]
    only: Vec<&'static Contestant>,
    /// Numbers of tasks, separated by commas
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,64,1000")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    tasks: Vec<u16>,
    /// Leave the cores of both sides to the kernel
    #[arg(long, conflicts_with_all = ["client_cpu", "server_cpu"])]
    unpinned: bool,
    /// Measure nothing: run the program with that library, server and client
    #[arg(long, value_name = "NAME")]
    program: Option<String>,
    /// Default deadline of calls of a NAME-production program; 100 unless given
    #[arg(long, value_name = "MS", requires = "program")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=60_000))]
    deadline_ms: Option<u32>,
    #[command(flatten)]
    options: Options,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = match &args.command {
        Some(Command::Serve(child)) => return child::serve(child),
        Some(Command::Call { child, address }) => return child::call(child, address),
        Some(Command::Kv(KvArgs { program: Some(name), deadline_ms, .. })) => {
            kv::program(name, deadline_ms.map(|ms| Duration::from_millis(ms.into())))
        }
        Some(Command::Kv(kv)) => {
            let suite = kv::suite(&kv.tasks);
            run(suite, &kv.only, &kv.options, !kv.unpinned, None)
        }
        None => run(&PEERS, &args.only, &args.options, true, args.svg.as_deref()),
    };
    courser_kit::end(outcome.map_err(|error| Failure::Runtime(format!("{error:#}"))))
}

fn run(
    suite: &'static Suite,
    only: &[&'static Contestant],
    options: &Options,
    pinned: bool,
    svg: Option<&Path>,
) -> Result<()> {
    let wanted = |c: &&Contestant| only.is_empty() || only.iter().any(|only| only.name == c.name);
    let chosen: Vec<&'static Contestant> = suite.contestants.iter().filter(wanted).collect();
    if options.list {
        chosen.iter().for_each(|c| println!("{:<12} {}", c.name, c.about));
        return Ok(());
    }
    let cores = cores(options, pinned)?;
    let pins = pinned.then_some(&cores);
    if options.check {
        return check(suite, &chosen, pins);
    }
    let (clock, json) = (Clock::new(), options.json.as_deref());
    file::check_target(json).and_then(|()| file::check_target(svg)).map_err(plain)?;
    let plan = match options.quick {
        true => Plan { rounds: 2, window_ms: 40, warm_ms: 20 },
        false => options.plan,
    };
    let measured = rounds::measure(suite, &chosen, pins, &plan, |line| eprintln!("{line}"))?;
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

fn cores(args: &Options, pinned: bool) -> Result<Cores> {
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
    if pinned && client == server {
        eprintln!("peers: both sides share core {client}: figures say nothing about two cores");
    }
    Ok(Cores { client, server, usable: usable.len(), warning: None })
}

fn check(suite: &Suite, chosen: &[&'static Contestant], cores: Option<&Cores>) -> Result<()> {
    let mut failed = 0;
    for contestant in chosen {
        let name = contestant.name;
        match rounds::check(suite, contestant, cores) {
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
        "bench": if measured.suite.name == "kv" { "peers_kv" } else { "peers" },
        // Each result names its own.
        "transport": "several",
        "config": {
            "rounds": plan.rounds,
            "window_ms": plan.window_ms,
            "warm_ms": plan.warm_ms,
            "pinned": measured.pinned,
            "dropped_windows": measured.dropped,
        },
        "results": report::results(measured),
        "environment": environment::collect(clock, cores)?,
    }))
}
