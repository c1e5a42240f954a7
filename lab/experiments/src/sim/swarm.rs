//! `courser-lab sim swarm`: checks all invariants in many random scenarios, one for each seed.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use courser_sim::Invariant;
use courser_sim::swarm::{Coverage, Options, SwarmReport, THREAD, run_swarm};
use serde_json::{Map, Value, json};

use courser_bench::progress;
use courser_kit::Failure;
use courser_kit::text::labelled;
use courser_kit::units::{show_ns, show_per_second};
use courser_kit::{json, out};

/// Seeds after which every expected kind of fault, packet and drop must have occurred.
const ENOUGH: u64 = 1_000;

/// Calls per seed, on average, below which the swarm fails.
const ENOUGH_RPCS: u64 = 2_000;

#[derive(Debug, Args)]
#[command(after_help = "\
A seed determines a scenario: two to eight hosts, switches, settings, a workload that uses \
the whole API, and faults of every kind. After the faults have ended, every call must end \
and every session must work again; at the end, no buffer and no session may be left. One \
seed of 16 is a congested world instead: 16 to 100 hosts that send large messages without \
faults, all to one, one to all, or all to all.

With the same build, a seed is the same run on every machine and with any number of \
threads. The digest is a hash over the event logs of all seeds in their order. The first \
seed that violates an invariant ends the run with status 1, and the command that shows its \
packets is printed.

  at-most-once      a request is executed at most once, and not after its call
                    ended with `never executed`
  exactly-one-end   each call ends once
  response-matches  a response has exactly the bytes of its request's response
  credits           packets in flight never exceed the credits; without calls
                    all credits are available
  ownership         a buffer that was returned to the application is not sent
  leak, freed-state at the end no buffer and no session is left
  liveness          without faults every call ends within a limit of virtual time
  incarnation       packets to an earlier incarnation of a process are dropped
  internal          the invariants of the protocol hold; no forbidden packet
  application       deadlines hold; every error has a cause
  recovery          a lost packet causes few timeouts and few retransmissions;
                    without a loss hardly a packet is sent again
  starvation        senders with the same work have similar shares
  queue             congestion control keeps round trips short

Examples:
  courser-lab sim swarm --seeds 1000
  courser-lab sim swarm --seeds 100000 --from 1000 --json swarm.json
  courser-lab sim replay --seed 17 --trace            packets before a violation")]
pub(super) struct SwarmArgs {
    /// Number of seeds
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// The first seed
    #[arg(long, value_name = "S", default_value_t = 0)]
    from: u64,
    /// Seeds that run in parallel. Default: one for each CPU
    #[arg(long, value_name = "T", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Continue after a violation, and name all seeds that have one
    #[arg(long)]
    keep_going: bool,
    /// Write the result as JSON to a file, or to standard output with -
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    #[command(flatten)]
    planted: Planted,
}

/// A planted bug, in builds with the feature `mutants`.
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

    /// The flag as on the command line, with a leading blank.
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

/// Runs the seeds and prints the violations.
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

/// Suppresses the messages of panics in simulation threads: they are caught and reported as
/// violations.
pub(super) fn quiet_panics() {
    let others = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let ours = std::thread::current().name().is_some_and(|name| name.starts_with(THREAD));
        if !ours {
            others(info);
        }
    }));
}

/// The first violation, or kinds of events that did not occur, as an error.
fn verdict(args: &SwarmArgs, report: &SwarmReport) -> Result<(), Failure> {
    if let Some((seed, violation)) = report.failed.first() {
        let more = match report.violations {
            1 => String::new(),
            n => format!(" ({n} seeds of {} have violations)", report.seeds),
        };
        let typed = args.planted.typed();
        return Err(Failure::Runtime(format!(
            "seed {seed}: {violation}{more}\n  courser-lab sim replay --seed {seed} --trace{typed}"
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
    let mut line = |text: &str| writeln!(out, "{}", labelled("  ", text));
    line(&format!(
        "{} seeds in {:.1} s on {threads} threads, {} a second",
        report.seeds,
        wall.as_secs_f64(),
        per_second(report.seeds, "seeds")
    ))?;
    line(&format!(
        "{} calls, {} per seed, {} of them with a response",
        report.rpcs,
        per_seed(report.rpcs),
        per_seed(report.responses),
    ))?;
    line(&format!("{} packets, {}", report.packets, per_second(report.packets, "packets/s")))?;
    let virtual_ns = show_ns(per_seed(report.virtual_ns) as f64);
    line(&format!("{virtual_ns} of virtual time per seed"))?;
    line(&format!("violations {}, digest {:016x}", report.violations, report.digest))?;
    print_coverage(&mut out, &report.coverage)?;
    for (seed, violation) in report.failed.iter().skip(1) {
        writeln!(out, "{}", labelled(&format!("  seed {seed}: "), &violation.to_string()))?;
    }
    Ok(())
}

/// Prints how often each kind of event occurred, a paragraph for each table. Kinds that are not
/// expected and did not occur are omitted.
fn print_coverage(out: &mut impl Write, coverage: &Coverage) -> std::io::Result<()> {
    let mut table = "";
    let mut in_line = 0;
    for line in coverage.table().iter().filter(|l| l.expected || l.count > 0) {
        if line.table != table {
            table = line.table;
            in_line = 0;
            write!(out, "\n  {table}s\n   ")?;
        } else if in_line == 2 {
            in_line = 0;
            write!(out, "\n   ")?;
        }
        in_line += 1;
        write!(out, " {:<25}{:>11}", line.kind, line.count)?;
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
    // Threads and time do not influence the results.
    let mut environment = json::environment(None).unwrap_or_else(|| json!({}));
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
