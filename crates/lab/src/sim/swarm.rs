//! `courser sim swarm`: many worlds, each drawn from a seed, with everything checked.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use courser_sim::Invariant;
use courser_sim::swarm::{Coverage, Options, SwarmReport, THREAD, run_swarm};
use serde_json::{Map, Value, json};

use courser_bench::clock::Clock;
use courser_bench::program::Failure;
use courser_bench::program::units::{show_ns, show_per_second};
use courser_bench::program::{json, out, progress};

/// Seeds after which every expected kind of fault, packet and drop must have occurred.
const ENOUGH: u64 = 1_000;

/// Calls per seed, on average, below which the swarm fails.
const ENOUGH_RPCS: u64 = 2_000;

#[derive(Debug, Args)]
#[command(after_help = "\
Each seed is a world of its own: two to eight hosts, switches, settings, a workload of all
that the API can do, and faults of every kind, all drawn from the seed. What is checked is
listed below; after the faults every call must end, every session work again, and in the
end nothing be left.

A seed is the same run on every machine with the same build, whatever the threads: so is
the digest, a hash over the event logs of all seeds in their order. The first seed that
breaks an invariant ends the run with status 1 and the command that shows its packets.

  at-most-once      a request is executed at most once, and never after `never executed`
  exactly-one-end   each call ends once
  response-matches  the response is its request's, byte for byte
  credits           never more packets in flight than credits; all are back at rest
  ownership         a buffer that the application has back is not being sent
  leak, freed-state in the end no buffer and no session is left
  liveness          without faults every call ends within a bound of virtual time
  incarnation       nothing that was sent to a process before is taken
  internal          the protocol's own invariants; no forbidden packet
  application       deadlines hold; no error without a cause
  recovery          a lost packet costs few timeouts and few packets more

Examples:
  courser sim swarm --seeds 1000
  courser sim swarm --seeds 100000 --from 1000 --json swarm.json
  courser sim replay --seed 17 --trace            what led to a failure")]
pub(super) struct SwarmArgs {
    /// How many seeds
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// The first of them
    #[arg(long, value_name = "S", default_value_t = 0)]
    from: u64,
    /// Seeds that run side by side; default: one per CPU
    #[arg(long, value_name = "T", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Go on after a violation, and name all seeds that have one
    #[arg(long)]
    keep_going: bool,
    /// Write the result as JSON to a file, or to standard output with -
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    #[command(flatten)]
    planted: Planted,
}

/// A bug to be found, in builds that have some.
#[derive(Debug, Args)]
pub(super) struct Planted {
    /// Plant a bug in every endpoint: its name or number
    #[cfg(feature = "mutants")]
    #[arg(long, value_name = "NAME")]
    mutant: Option<courser_proto::mutant::Mutant>,
}

impl Planted {
    pub(super) fn options(&self) -> Options {
        Options {
            #[cfg(feature = "mutants")]
            mutant: self.mutant,
            ..Options::default()
        }
    }

    /// As it is typed, with a blank before.
    fn typed(&self) -> String {
        #[cfg(feature = "mutants")]
        if let Some(mutant) = self.mutant {
            return format!(" --mutant {mutant}");
        }
        String::new()
    }

    fn is_none(&self) -> bool {
        self.typed().is_empty()
    }
}

/// Runs the seeds and says what they have found.
///
/// # Errors
/// A violation, or a file that cannot be written.
pub(super) fn run(args: &SwarmArgs) -> Result<(), Failure> {
    json::check_target(args.json.as_deref())?;
    if args.from.checked_add(args.seeds - 1).is_none() {
        let text = "--from and --seeds go beyond the last seed, 18446744073709551615";
        return Err(Failure::Usage(text.to_owned()));
    }
    let threads = args.threads.map_or_else(cpus, usize::from);
    let mut options = args.planted.options();
    options.keep_going = args.keep_going;
    quiet_panics();
    let bar = progress::bar()?;
    let began = Instant::now();
    let report = run_swarm(args.from, args.seeds, threads, options, |so_far| {
        bar.set_position(so_far.seeds * 1000 / args.seeds);
        let rate = so_far.seeds as f64 / began.elapsed().as_secs_f64().max(1e-3);
        let rpcs = so_far.rpcs / so_far.seeds.max(1);
        bar.set_message(format!(
            "{} of {} seeds, {rate:.1} a second, {rpcs} calls each",
            so_far.seeds, args.seeds
        ));
        true
    });
    bar.finish_and_clear();
    let wall = began.elapsed();
    if !json::only(args.json.as_deref()) {
        print(args, &report, wall, threads)?;
    }
    if let Some(target) = &args.json {
        write(target, args, &report, wall, threads)?;
    }
    verdict(args, &report)
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Panics of a simulation are caught and told as violations: nothing else need be said of them.
pub(super) fn quiet_panics() {
    let others = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let ours = std::thread::current().name().is_some_and(|name| name.starts_with(THREAD));
        if !ours {
            others(info);
        }
    }));
}

/// What the run comes to.
fn verdict(args: &SwarmArgs, report: &SwarmReport) -> Result<(), Failure> {
    if let Some((seed, violation)) = report.failed.first() {
        let more = match report.violations {
            1 => String::new(),
            n => format!(" ({n} seeds of {} have violations)", report.seeds),
        };
        let typed = args.planted.typed();
        return Err(Failure::Runtime(format!(
            "seed {seed}: {violation}{more}\n  courser sim replay --seed {seed} --trace{typed}"
        )));
    }
    if report.seeds < ENOUGH || !args.planted.is_none() {
        return Ok(());
    }
    let missing: Vec<String> =
        report.coverage.missing().iter().map(|m| format!("{} {}", m.table, m.kind)).collect();
    if !missing.is_empty() {
        let (seeds, missing) = (report.seeds, missing.join(", "));
        return Err(Failure::Runtime(format!("never seen in {seeds} seeds: {missing}")));
    }
    let mean = report.rpcs / report.seeds;
    if mean < ENOUGH_RPCS {
        let text = format!("{mean} calls a seed are too few: at least {ENOUGH_RPCS} are wanted");
        return Err(Failure::Runtime(text));
    }
    Ok(())
}

fn print(
    args: &SwarmArgs,
    report: &SwarmReport,
    wall: Duration,
    threads: usize,
) -> Result<(), Failure> {
    let mut out = out::stdout();
    let (bold, seeds) = (out::BOLD, report.seeds.max(1));
    let per_seed = |n: u64| n / seeds;
    let per_second = |n: u64, unit| show_per_second(n as f64 / wall.as_secs_f64().max(1e-3), unit);
    writeln!(out, "{bold}swarm{bold:#}, seeds {} to {}", args.from, args.from + seeds - 1)?;
    writeln!(
        out,
        "  {} seeds in {:.1} s on {threads} threads, {} a second",
        report.seeds,
        wall.as_secs_f64(),
        per_second(report.seeds, "seeds")
    )?;
    writeln!(
        out,
        "  {} calls, {} a seed, {} of them with a response; {} packets, {}",
        report.rpcs,
        per_seed(report.rpcs),
        per_seed(report.responses),
        report.packets,
        per_second(report.packets, "packets/s")
    )?;
    let virtual_ns = show_ns(per_seed(report.virtual_ns) as f64);
    writeln!(out, "  a seed takes {virtual_ns} of its own time")?;
    writeln!(out, "  violations {}, digest {:016x}", report.violations, report.digest)?;
    print_coverage(&mut out, &report.coverage)?;
    for (seed, violation) in report.failed.iter().skip(1) {
        writeln!(out, "  seed {seed}: {violation}")?;
    }
    Ok(())
}

/// The table, a paragraph for each sort of things; unexpected kinds are left out.
fn print_coverage(out: &mut impl Write, coverage: &Coverage) -> std::io::Result<()> {
    let mut table = "";
    let mut in_line = 0;
    for line in coverage.table().iter().filter(|l| l.expected || l.count > 0) {
        if line.table != table {
            table = line.table;
            in_line = 0;
            write!(out, "\n  {table}s\n   ")?;
        } else if in_line == 4 {
            in_line = 0;
            write!(out, "\n   ")?;
        }
        in_line += 1;
        write!(out, " {:<21}{:>9}", line.kind, line.count)?;
    }
    writeln!(out)
}

fn write(
    target: &Path,
    args: &SwarmArgs,
    report: &SwarmReport,
    wall: Duration,
    threads: usize,
) -> Result<(), Failure> {
    let failed: Vec<Value> = report
        .failed
        .iter()
        .map(|(seed, v)| {
            let (invariant, at_ns) = (v.invariant.name(), v.at_ns);
            json!({ "seed": seed, "invariant": invariant, "at_ns": at_ns, "detail": v.detail })
        })
        .collect();
    // How it was run has no part in what came of it.
    let mut environment = json::environment(&Clock::new()).unwrap_or_else(|| json!({}));
    environment["threads"] = json!(threads);
    environment["wall_s"] = json!(wall.as_secs_f64());
    let value = json!({
        "bench": "swarm",
        "transport": "sim",
        "config": {
            "from": args.from,
            "seeds": args.seeds,
            "keep_going": args.keep_going,
            "mutant": args.planted.typed().split_whitespace().nth(1),
            "invariants": Invariant::ALL.map(Invariant::name),
        },
        "results": [{
            "seeds": report.seeds,
            "violations": report.violations,
            "rpcs": report.rpcs,
            "responses": report.responses,
            "packets": report.packets,
            "virtual_ns": report.virtual_ns,
            "digest": format!("{:016x}", report.digest),
            "failed": failed,
            "coverage": coverage_json(&report.coverage),
        }],
        "environment": environment,
    });
    json::write(target, &value)
}

fn coverage_json(coverage: &Coverage) -> Value {
    let mut tables = Map::new();
    for line in coverage.table() {
        let table = tables.entry(line.table).or_insert_with(|| json!({}));
        table[line.kind] = json!({ "count": line.count, "expected": line.expected });
    }
    Value::Object(tables)
}
