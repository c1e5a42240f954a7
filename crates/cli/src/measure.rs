//! `courser bench`, and what it shares with `quickstart`: a benchmark with its progress bar.

use std::io::Write;
use std::time::Duration;

use courser::{Nexus, Recovery};
use indicatif::ProgressBar;

use crate::args::{BenchArgs, What};
use crate::bench::sweep::{FRAMES, IN_FLIGHT, Sweep};
use crate::bench::{self, BenchSpec, Kind, Over, SERIES_SIZES};
use courser_bench::program::Failure;
use courser_bench::program::out;
use courser_bench::program::units;
use courser_bench::program::{json, progress};
use courser_bench::report::Report;
use courser_bench::table;
use courser_bench::window::{Plan, Progress};

/// Windows of the workers benchmark: ten handlers long.
const WORKERS_WINDOW: Duration = Duration::from_millis(40);

/// The batch of the small-call rate in a series over faults, as in the other series.
const FAULT_BATCH: u32 = 3;

/// Runs the benchmark that was asked for.
///
/// # Errors
/// It cannot be run as asked, or failed.
pub(crate) fn run(args: &BenchArgs) -> Result<(), Failure> {
    json::check_target(args.json.as_deref())?;
    let kind = match args.what {
        What::Calls(kind) => kind,
        What::Workers => return workers(args),
        What::Overload => return overload(args),
        What::Sweep => return sweep(args),
        What::Factors | What::Sessions | What::Credits | What::TxQueue | What::Threads => {
            return series(args);
        }
    };
    check_flags(kind, args)?;
    let spec = spec(kind, args);
    let bar = progress::bar()?;
    if args.connect.is_none() && args.transport == Over::Udp {
        machine_warnings().iter().for_each(|warning| out::warn(warning));
    }
    if compares_recovery(args) {
        return faults(args, &spec, &bar);
    }
    let report = with_progress(&spec, &bar, (0.0, 1.0))?;
    bar.finish_and_clear();
    show(args, &report, || {
        let elsewhere = "untagged: a server elsewhere has no probes and no raw baseline\n";
        table::render(&report) + args.connect.as_ref().map_or("", |_| elsewhere)
    })
}

/// Whether faults or several schemes make a series of the benchmark.
fn compares_recovery(args: &BenchArgs) -> bool {
    !args.fault.is_empty() || args.recovery.len() > 1
}

/// Latency, rate or bandwidth with faults and without, under one scheme of recovery or several.
fn faults(args: &BenchArgs, spec: &BenchSpec, bar: &ProgressBar) -> Result<(), Failure> {
    let schemes = match &args.recovery[..] {
        [] => &[Recovery::default()],
        schemes => schemes,
    };
    bar.set_prefix(spec.kind.name());
    let plans: Vec<_> = args.fault.iter().flat_map(|faults| faults.0.iter().cloned()).collect();
    let report = bench::faults::run(spec, schemes, &plans, &mut |now| {
        progress::show(bar, &spec.plan, now);
    });
    bar.finish_and_clear();
    let report = report?;
    show(args, &report, || table::render(&report))
}

/// Refuses the flags that a benchmark does not take: all but `taken`, `--quick` and `--json`.
fn takes_only(args: &BenchArgs, name: &str, taken: &[&str]) -> Result<(), Failure> {
    let given = [
        ("--connect", args.connect.is_some()),
        ("--transport", args.transport != Over::Udp),
        ("--size", !args.size.is_empty()),
        ("--sizes", args.sizes),
        ("--sessions", !args.sessions.is_empty()),
        ("--in-flight", !args.in_flight.is_empty()),
        ("--batch", !args.batch.is_empty()),
        ("--symmetric", args.symmetric),
        ("--no-copy", args.no_copy),
        ("--raw-copy", args.raw_copy),
        ("--credits", args.credits.is_some()),
        ("--slots", args.slots.is_some()),
        ("--frame-size", !args.frame_size.is_empty()),
        ("--fault", !args.fault.is_empty()),
        ("--recovery", !args.recovery.is_empty()),
        ("--svg", args.svg.is_some()),
        ("--pairs", args.pairs.is_some()),
        ("--max-time", args.max_time.is_some()),
    ];
    no_meaning(&given.map(|(flag, is_given)| (flag, is_given && !taken.contains(&flag))), name)
}

fn no_meaning(given: &[(&str, bool)], name: &str) -> Result<(), Failure> {
    match given.iter().find(|(_, is_given)| *is_given) {
        Some((flag, _)) => Err(Failure::Usage(format!("{flag} has no meaning for bench {name}"))),
        None => Ok(()),
    }
}

/// The benchmarks that change one thing from window to window.
fn series(args: &BenchArgs) -> Result<(), Failure> {
    let (name, taken) = match args.what {
        What::Factors => ("factors", None),
        What::Sessions => ("sessions", Some("--sessions")),
        What::TxQueue => ("txqueue", None),
        What::Threads => ("threads", None),
        _ => ("credits", Some("--size")),
    };
    let taken = ["--transport", "--pairs", "--max-time"].into_iter().chain(taken);
    takes_only(args, name, &taken.collect::<Vec<_>>())?;
    no_meaning(&[("--size with several values", args.size.len() > 1)], name)?;
    let plan = plan(args);
    let bar = progress::bar()?;
    bar.set_prefix(name);
    let mut progress = |now: &Progress| {
        progress::show(&bar, &plan, now);
    };
    let report = match args.what {
        What::Factors => bench::factors::run(args.transport, plan, &mut progress),
        What::TxQueue => bench::txqueue::run(args.transport, plan, &mut progress),
        What::Threads => bench::threads::run(args.transport, plan, &mut progress),
        What::Sessions => {
            let counts = session_counts(&args.sessions)?;
            bench::sessions::run(args.transport, plan, &counts, &mut progress)
        }
        _ => {
            let size = args.size.first().map_or(8 << 20, |&size| size);
            let size = units::message_len(size).map_err(Failure::Usage)?;
            bench::credits::run(args.transport, plan, size, &mut progress)
        }
    };
    bar.finish_and_clear();
    let report = report?;
    show(args, &report, || table::render(&report))
}

/// More and more calls in flight, by frame size.
fn sweep(args: &BenchArgs) -> Result<(), Failure> {
    let taken = ["--transport", "--in-flight", "--frame-size", "--svg", "--pairs", "--max-time"];
    takes_only(args, "sweep", &taken)?;
    json::check_target(args.svg.as_deref())?;
    let frames: Vec<usize> =
        args.frame_size.iter().map(|&n| usize::try_from(n).unwrap_or(usize::MAX)).collect();
    let plan = plan(args);
    let sweep = Sweep {
        over: args.transport,
        plan,
        frames: if frames.is_empty() { FRAMES.to_vec() } else { frames },
        in_flight: match &args.in_flight[..] {
            [] => IN_FLIGHT.to_vec(),
            given => given.to_vec(),
        },
    };
    let bar = progress::bar()?;
    bar.set_prefix("sweep");
    let report = sweep.run(&mut |now| {
        progress::show(&bar, &plan, now);
    });
    bar.finish_and_clear();
    let report = report?;
    if let Some(path) = &args.svg {
        bench::sweep::draw(&report, path)?;
    }
    show(args, &report, || bench::sweep::render(&report))
}

/// The numbers of sessions of that benchmark: they can only rise.
fn session_counts(given: &[u32]) -> Result<Vec<u32>, Failure> {
    let most = bench::sessions::MOST;
    match given {
        [] => Ok(bench::sessions::COUNTS.to_vec()),
        counts if counts.iter().all(|n| (1..=most).contains(n)) && counts.is_sorted() => {
            Ok(counts.to_vec())
        }
        _ => Err(Failure::Usage(format!("--sessions must be 1 to {most}, and rise"))),
    }
}

fn plan(args: &BenchArgs) -> Plan {
    let plan = if args.quick { Plan::quick() } else { Plan::full() };
    Plan {
        pairs: args.pairs.unwrap_or(plan.pairs),
        max_time: args.max_time.unwrap_or(plan.max_time),
        ..plan
    }
}

/// Dispatch calls beside long worker handlers.
fn workers(args: &BenchArgs) -> Result<(), Failure> {
    takes_only(args, "workers", &["--pairs", "--max-time"])?;
    let plan = Plan { window: WORKERS_WINDOW, ..plan(args) };
    let bar = progress::bar()?;
    bar.set_prefix("workers");
    let report = bench::workers::run(plan, &mut |now| {
        progress::show(&bar, &plan, now);
    });
    bar.finish_and_clear();
    let report = report?;
    show(args, &report, || {
        table::render(&report) + "untagged: the calls stay on one core; raw: with an idle worker\n"
    })
}

/// A worker pool that is asked for twice what it can do.
fn overload(args: &BenchArgs) -> Result<(), Failure> {
    takes_only(args, "overload", &[])?;
    let (rounds, half) = if args.quick { (3, 1) } else { (7, 4) };
    let plan = bench::overload::OverloadPlan { rounds, half: Duration::from_secs(half) };
    let bar = progress::bar()?;
    bar.set_prefix("overload");
    let report = bench::overload::run(plan, &mut |part| bar.set_position((part * 1000.0) as u64));
    bar.finish_and_clear();
    let report = report?;
    show(args, &report, || bench::overload::render(&report))
}

/// The result for people, unless standard output is for programs, and the one for programs.
fn show(
    args: &BenchArgs,
    report: &impl serde::Serialize,
    text: impl FnOnce() -> String,
) -> Result<(), Failure> {
    if !json::only(args.json.as_deref()) {
        let mut out = out::stdout();
        write!(out, "{}", text())?;
        out.flush()?;
    }
    match &args.json {
        Some(target) => json::write(target, report),
        None => Ok(()),
    }
}

fn spec(kind: Kind, args: &BenchArgs) -> BenchSpec {
    let mut spec = BenchSpec::new(kind, plan(args));
    if kind == Kind::Rate {
        // Over UDP the rate of the README, which trains of packets need more calls in flight for.
        if !args.batch.is_empty() || (args.transport != Over::Udp && args.connect.is_none()) {
            spec = spec.paper_rate();
        }
        if !args.batch.is_empty() {
            spec.batches.clone_from(&args.batch);
        } else if compares_recovery(args) && !spec.batches.is_empty() {
            spec.batches = vec![FAULT_BATCH];
        }
    }
    spec.transport = args.transport;
    spec.connect.clone_from(&args.connect);
    spec.symmetric = args.symmetric;
    spec.no_copy = args.no_copy;
    spec.raw_copy = args.raw_copy;
    // What does not fit is too large for the benchmark too, which says so.
    let count = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    match &args.size[..] {
        [] if args.sizes => spec.sizes = SERIES_SIZES.to_vec(),
        [] => {}
        [size] => spec.size = count(*size),
        sizes => spec.sizes = sizes.iter().copied().map(count).collect(),
    }
    spec.sessions = args.sessions.first().copied().unwrap_or(spec.sessions);
    spec.in_flight = args.in_flight.first().copied().unwrap_or(spec.in_flight);
    spec.credits = args.credits;
    spec.slots = args.slots;
    spec.frame = args.frame_size.first().copied().map(count);
    spec.recovery = args.recovery.first().copied().unwrap_or_default();
    if let [batch] = spec.batches[..] {
        (spec.batch, spec.batches) = (batch, Vec::new());
    }
    spec
}

/// Says which flag has no meaning for a benchmark of calls.
fn check_flags(kind: Kind, args: &BenchArgs) -> Result<(), Failure> {
    let given = [
        ("--batch", !args.batch.is_empty() && kind != Kind::Rate),
        ("--symmetric", args.symmetric && kind != Kind::Rate),
        ("--no-copy", args.no_copy && kind != Kind::Bandwidth),
        ("--raw-copy", args.raw_copy && kind != Kind::Latency),
        ("--sizes", args.sizes && kind != Kind::Bandwidth),
        ("--size with several values", args.size.len() > 1 && kind != Kind::Bandwidth),
        ("--sessions with several values", args.sessions.len() > 1),
        ("--in-flight with several values", args.in_flight.len() > 1),
        ("--frame-size with several values", args.frame_size.len() > 1),
        ("--svg", args.svg.is_some()),
    ];
    no_meaning(&given, kind.name())?;
    if !compares_recovery(args) {
        return Ok(());
    }
    let given = [
        ("--symmetric", args.symmetric),
        ("--no-copy", args.no_copy),
        ("--raw-copy", args.raw_copy),
        ("--sizes", args.sizes),
        ("--size with several values", args.size.len() > 1),
        ("--batch with several values", args.batch.len() > 1),
        ("--connect", args.connect.is_some()),
    ];
    no_meaning(&given, &format!("{} with --fault or several schemes", kind.name()))
}

/// Runs a benchmark that is the part of the bar from `start` to `start + share`.
///
/// # Errors
/// It cannot be run as asked, or failed; the bar is gone then.
pub(crate) fn with_progress(
    spec: &BenchSpec,
    bar: &ProgressBar,
    (start, share): (f64, f64),
) -> Result<Report, Failure> {
    let at = |part: f64| ((start + share * part) * 1000.0) as u64;
    bar.set_prefix(spec.kind.name());
    bar.set_message("starting");
    bar.set_position(at(0.0));
    bar.tick();
    let report = bench::run(spec, &mut |now| {
        bar.set_message(progress::counts(now));
        bar.set_position(at(progress::done(&spec.plan, now)));
    });
    report.map_err(|error| {
        bar.finish_and_clear();
        error.into()
    })
}

/// What an endpoint of this machine would warn of, each with the command that mends it.
pub(crate) fn machine_warnings() -> Vec<String> {
    let endpoint = Nexus::bind("udp://127.0.0.1:0").and_then(|nexus| nexus.endpoint());
    endpoint.map(|rpc| rpc.warnings()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};
    use crate::bench::PAPER_BATCHES;

    fn spec_of(line: &str) -> BenchSpec {
        match Cli::try_parse_from(line.split(' ')).expect(line).command {
            Command::Bench(args) => match args.what {
                What::Calls(kind) => spec(kind, &args),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn flags_reach_the_benchmark_and_defaults_stay() {
        let plain = spec_of("courser bench rate");
        let defaults = BenchSpec::new(Kind::Rate, Plan::full());
        assert_eq!(format!("{plain:?}"), format!("{defaults:?}"));
        let given = spec_of(
            "courser bench bandwidth --quick --pairs 7 --max-time 3s --size 1MiB --sessions 3 \
             --outstanding 5 --credits 64 --slots 4 --frame-size 4KiB --connect udp://a:1",
        );
        assert_eq!(given.kind, Kind::Bandwidth);
        let max_time = Duration::from_secs(3);
        assert_eq!(given.plan, Plan { pairs: 7, max_time, ..Plan::quick() });
        assert_eq!((given.size, given.sessions, given.in_flight), (1 << 20, 3, 5));
        assert_eq!((given.credits, given.slots, given.frame), (Some(64), Some(4), Some(4096)));
        assert_eq!(given.connect.as_deref(), Some("udp://a:1"));
        assert!(!given.no_copy && spec_of("courser bench bandwidth --no-copy").no_copy);
    }

    #[test]
    fn batches_are_the_papers_experiment_and_shared_memory_begins_with_it() {
        let one = spec_of("courser bench rate --batch 3 --symmetric");
        assert_eq!((one.sessions, one.in_flight, one.random), (8, 60, true));
        assert_eq!((one.batch, one.batches.len(), one.symmetric), (3, 0, true));
        let all = spec_of("courser bench rate --transport mem --sessions 4");
        assert_eq!((all.sessions, &all.batches[..]), (4, &PAPER_BATCHES[..]));
        let sizes = spec_of("courser bench bandwidth --size 1KiB,2KiB");
        assert_eq!(sizes.sizes, [1024, 2048]);
        assert_eq!(spec_of("courser bench bandwidth --sizes").sizes, SERIES_SIZES);
    }

    #[test]
    fn session_counts_rise() {
        assert_eq!(session_counts(&[]).expect("default"), bench::sessions::COUNTS);
        assert_eq!(session_counts(&[8, 100]).expect("rise"), [8, 100]);
        for counts in [&[0][..], &[8, 1], &[2_000_000]] {
            assert!(session_counts(counts).is_err(), "{counts:?}");
        }
    }

    #[test]
    fn flags_without_a_meaning_are_refused() {
        for line in [
            "courser bench latency --batch 3",
            "courser bench rate --sizes",
            "courser bench rate --no-copy",
            "courser bench rate --raw-copy",
            "courser bench bandwidth --no-copy --fault loss=1e-3",
        ] {
            let Command::Bench(args) = Cli::try_parse_from(line.split(' ')).expect(line).command
            else {
                panic!("{line}")
            };
            let What::Calls(kind) = args.what else { panic!("{line}") };
            assert!(check_flags(kind, &args).is_err(), "{line}");
        }
    }
}
