//! `courser sim swarm`: many worlds, each drawn from a seed, with everything checked.

use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use courser_sim::Violation;
use courser_sim::swarm::{Options, SwarmReport, THREAD, run_swarm};
use serde_json::{Value, json};

use crate::fail::Failure;
use crate::harness::clock::Clock;
use crate::{json, measure, out};

/// Failed seeds that are shown.
const SHOWN: usize = 10;

/// So many seeds must have seen every kind of fault, packet, drop and end that is expected, and made
/// so many calls each, or they have shown less than they seem to.
const ENOUGH: u64 = 1_000;
const ENOUGH_CALLS: u64 = 2_000;

#[derive(Debug, Args)]
#[command(after_help = "\
Each seed draws a topology, settings, a workload and faults: loss, bursts, copies, reordering,
flipped bits, partitions, links and hosts that go down, processes that are killed and come back,
clocks that drift, handlers that are slow. Meanwhile and afterwards everything that Courser
promises is checked: at most one execution, exactly one end of each call, every byte, credits,
buffers, memory, and that all calls end in time when the faults are over.

The first seed that fails ends the run, with the command that shows it packet by packet. Exit
status 1 then, and when 1,000 seeds or more have not seen every kind of fault, packet and drop. The
same seeds give the same digest on every machine, for the same build.

  at-most-once       a request is executed at most once, and never after `never executed`
  exactly-one-end    each call ends once
  response-matches   the response is its request's, byte for byte
  credits            never more packets in flight than credits; at rest all are back
  ownership          a buffer that the application has back is not being sent
  leak, freed-state  in the end no buffer, session or control connection is left
  liveness           when faults are over, calls end within a bound and sessions work again
  incarnation        nothing that was sent to an earlier process is taken
  internal           the protocol's own invariants; no packet that nobody may send
  application        deadlines hold; no error without a cause

Examples:
  courser sim swarm                          1,000 seeds on all cores
  courser sim swarm --seeds 100000           a night's worth of luck
  courser sim swarm --from 4711 --seeds 1    one seed")]
pub(crate) struct SwarmArgs {
    /// How many seeds
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// The first of them
    #[arg(long, value_name = "S", default_value_t = 0)]
    from: u64,
    /// Seeds at the same time [default: one per CPU]
    #[arg(long, value_name = "T", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Go on behind a failed seed
    #[arg(long)]
    keep_going: bool,
    /// Plant a bug in every endpoint: does the swarm find it?
    #[cfg(feature = "mutants")]
    #[arg(long, value_name = "NAME")]
    mutant: Option<courser::parts::proto::mutant::Mutant>,
    /// Write the result as JSON (- for standard output)
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
}

impl SwarmArgs {
    fn options(&self) -> Options {
        Options {
            keep_going: self.keep_going,
            #[cfg(feature = "mutants")]
            mutant: self.mutant,
        }
    }

    fn threads(&self) -> usize {
        let all = || std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.map_or_else(all, usize::from)
    }

    /// Words that a replay needs to be the same run.
    fn planted(&self) -> String {
        #[cfg(feature = "mutants")]
        if let Some(mutant) = self.mutant {
            return format!(" --mutant {mutant}");
        }
        String::new()
    }
}

/// Panics of a simulated world are caught and told with their seed; nothing is printed where they
/// happen.
pub(super) fn quiet_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let thread = std::thread::current();
        if !thread.name().is_some_and(|name| name.starts_with(THREAD)) {
            usual(panic);
        }
    }));
}

/// Runs the seeds.
///
/// # Errors
/// An invariant did not hold, or the result could not be written.
pub(super) fn run(args: &SwarmArgs) -> Result<(), Failure> {
    json::check_target(args.json.as_deref())?;
    quiet_panics();
    let begin = Instant::now();
    let report = with_bar(args, begin)?;
    let wall_s = begin.elapsed().as_secs_f64();
    if !measure::only_json(args.json.as_deref()) {
        write!(out::stdout(), "{}", text(args, &report, wall_s))?;
    }
    if let Some(target) = &args.json {
        json::write(target, &object(args, &report, wall_s))?;
    }
    verdict(args, &report)
}

/// What the run comes to.
fn verdict(args: &SwarmArgs, report: &SwarmReport) -> Result<(), Failure> {
    if let Some((seed, violation)) = report.failed.first() {
        let others = match report.violations {
            0 | 1 => String::new(),
            n => format!(", and {} other seeds failed", n - 1),
        };
        let planted = args.planted();
        return Err(Failure::Runtime(format!(
            "seed {seed}: {violation}{others}\n  see it: courser sim replay --seed {seed} --trace{planted}"
        )));
    }
    let (seeds, missing) = (report.seeds, report.coverage.missing());
    if seeds < ENOUGH {
        return Ok(());
    }
    if !missing.is_empty() {
        let kinds: Vec<String> =
            missing.iter().map(|line| format!("{} {}", line.table, line.kind)).collect();
        let text = format!("{seeds} seeds have never seen: {}", kinds.join(", "));
        return Err(Failure::Runtime(text));
    }
    match report.rpcs / seeds {
        ENOUGH_CALLS.. => Ok(()),
        few => Err(Failure::Runtime(format!("{few} calls a seed, not {ENOUGH_CALLS}"))),
    }
}

fn with_bar(args: &SwarmArgs, begin: Instant) -> Result<SwarmReport, Failure> {
    let bar = measure::bar()?;
    bar.set_prefix("seeds");
    let report = run_swarm(args.from, args.seeds, args.threads(), args.options(), |so_far| {
        let done = u128::from(so_far.seeds) * 1000 / u128::from(args.seeds);
        bar.set_position(done as u64);
        let rate = so_far.seeds as f64 / begin.elapsed().as_secs_f64().max(1e-9);
        let failed = match so_far.violations {
            0 => String::new(),
            n => format!(", {n} failed"),
        };
        let (seeds, calls) = (so_far.seeds, so_far.rpcs);
        bar.set_message(format!("{seeds} seeds, {rate:.0}/s, {calls} calls{failed}"));
        true
    });
    bar.finish_and_clear();
    Ok(report)
}

/// What a person reads.
fn text(args: &SwarmArgs, report: &SwarmReport, wall_s: f64) -> String {
    let SwarmReport { seeds, rpcs, packets, digest, .. } = report;
    let each = rpcs / seeds.max(&1);
    let mut text = format!(
        "{seeds} seeds from {}: {rpcs} calls ({each} a seed), {packets} packets, {:.1} simulated \
         seconds in {wall_s:.1} s; digest {digest:016x}\n",
        args.from,
        report.virtual_ns as f64 / 1e9,
    );
    for table in ["fault", "packet", "network-drop", "endpoint-drop", "end"] {
        let lines = report.coverage.table();
        let of =
            lines.iter().filter(|line| line.table == table && (line.expected || line.count > 0));
        let words: Vec<String> = of.map(|line| format!("{} {}", line.kind, line.count)).collect();
        text += &format!("{table:>13}: {}\n", words.join(", "));
    }
    let missing = report.coverage.missing();
    if !missing.is_empty() {
        let kinds: Vec<String> =
            missing.iter().map(|line| format!("{} {}", line.table, line.kind)).collect();
        text += &format!("  never seen: {} (more seeds see more)\n", kinds.join(", "));
    }
    // The first is what the program ends with.
    for (seed, violation) in report.failed.iter().take(SHOWN).skip(1) {
        text += &failure(*seed, violation, &args.planted());
    }
    if report.failed.len() > SHOWN {
        text += &format!("... and {} more seeds\n", report.violations - SHOWN as u64);
    }
    text
}

/// A failed seed, and how to see it.
fn failure(seed: u64, violation: &Violation, planted: &str) -> String {
    format!(
        "seed {seed}: {violation}\n  see it: courser sim replay --seed {seed}{planted} --trace\n"
    )
}

/// What a program reads.
fn object(args: &SwarmArgs, report: &SwarmReport, wall_s: f64) -> Value {
    let failed: Vec<Value> = report
        .failed
        .iter()
        .map(|(seed, v)| {
            json!({
                "seed": seed,
                "invariant": v.invariant.name(),
                "at_ns": v.at_ns,
                "detail": v.detail,
            })
        })
        .collect();
    let mut coverage = serde_json::Map::new();
    for line in report.coverage.table() {
        let table = coverage.entry(line.table).or_insert_with(|| json!({}));
        table[line.kind] = json!(line.count);
    }
    let missing: Vec<String> = report
        .coverage
        .missing()
        .iter()
        .map(|line| format!("{}/{}", line.table, line.kind))
        .collect();
    let results = json!({
        "seeds": report.seeds,
        "violations": report.violations,
        "rpcs": report.rpcs,
        "responses": report.responses,
        "packets": report.packets,
        "digest": format!("{:016x}", report.digest),
        "simulated_ns": report.virtual_ns,
        "coverage": coverage,
        "never_seen": missing,
        "failed": failed,
    });
    // How fast it was run has no part in what came of it, which is the same everywhere.
    let mut environment = json::environment(&Clock::new()).unwrap_or_else(|| json!({}));
    environment["threads"] = json!(args.threads());
    environment["wall_s"] = json!(wall_s);
    json!({
        "bench": "swarm",
        "transport": "sim",
        "config": { "seeds": args.seeds, "from": args.from, "keep_going": args.keep_going },
        "results": [results],
        "environment": environment,
    })
}
