//! `courser bench`, and what it shares with `quickstart`: a benchmark with its progress bar.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use courser::Nexus;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::args::{BenchArgs, What};
use crate::bench::{self, BenchSpec, Kind};
use crate::fail::Failure;
use crate::harness::report::Report;
use crate::harness::table;
use crate::harness::window::{Plan, Progress};
use crate::interrupt;
use crate::json;
use crate::out;

/// Windows of the workers benchmark: ten handlers long.
const WORKERS_WINDOW: Duration = Duration::from_millis(40);

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
    };
    let spec = spec(kind, args);
    let bar = bar()?;
    if args.connect.is_none() {
        machine_warnings().iter().for_each(|warning| out::warn(warning));
    }
    let report = with_progress(&spec, &bar, (0.0, 1.0))?;
    bar.finish_and_clear();
    show(args, &report, || {
        let elsewhere = "untagged: a server elsewhere has no probes and no raw baseline\n";
        table::render(&report) + args.connect.as_ref().map_or("", |_| elsewhere)
    })
}

/// Says which flag has no meaning for a benchmark, rather than to ignore it.
fn only_quick(args: &BenchArgs, name: &str, pairs: bool) -> Result<(), Failure> {
    let given = [
        ("--connect", args.connect.is_some()),
        ("--size", args.size.is_some()),
        ("--sessions", args.sessions.is_some()),
        ("--in-flight", args.in_flight.is_some()),
        ("--credits", args.credits.is_some()),
        ("--frame-size", args.frame_size.is_some()),
        ("--pairs", args.pairs.is_some() && !pairs),
    ];
    match given.iter().find(|(_, is_given)| *is_given) {
        Some((flag, _)) => Err(Failure::Usage(format!("{flag} has no meaning for bench {name}"))),
        None => Ok(()),
    }
}

/// Dispatch calls beside long worker handlers.
fn workers(args: &BenchArgs) -> Result<(), Failure> {
    only_quick(args, "workers", true)?;
    let mut plan = if args.quick { Plan::quick() } else { Plan::full() };
    plan.window = WORKERS_WINDOW;
    plan.pairs = args.pairs.unwrap_or(plan.pairs);
    let bar = bar()?;
    bar.set_prefix("workers");
    let report = bench::workers::run(plan, &mut |now| {
        bar.set_message(counts(now));
        bar.set_position((done(&plan, now) * 1000.0) as u64);
    });
    bar.finish_and_clear();
    let report = report?;
    show(args, &report, || {
        table::render(&report) + "untagged: the calls stay on one core; raw: with an idle worker\n"
    })
}

/// A worker pool that is asked for twice what it can do.
fn overload(args: &BenchArgs) -> Result<(), Failure> {
    only_quick(args, "overload", false)?;
    let (rounds, half) = if args.quick { (3, 1) } else { (7, 4) };
    let plan = bench::overload::OverloadPlan { rounds, half: Duration::from_secs(half) };
    let bar = bar()?;
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
    if !only_json(args.json.as_deref()) {
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
    let mut plan = if args.quick { Plan::quick() } else { Plan::full() };
    plan.pairs = args.pairs.unwrap_or(plan.pairs);
    let mut spec = BenchSpec::new(kind, plan);
    spec.transport.clone_from(&args.transport);
    spec.connect.clone_from(&args.connect);
    // What does not fit is too large for the benchmark too, which says so.
    let count = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    spec.size = args.size.map_or(spec.size, count);
    spec.sessions = args.sessions.unwrap_or(spec.sessions);
    spec.in_flight = args.in_flight.unwrap_or(spec.in_flight);
    spec.credits = args.credits;
    spec.frame = args.frame_size.map(count);
    spec
}

/// A bar on standard error, invisible unless that is a terminal; a signal takes it away and ends
/// the process. It is drawn between windows only: a thread that draws would be measured too.
pub(crate) fn bar() -> Result<ProgressBar, Failure> {
    let bar = ProgressBar::with_draw_target(Some(1000), ProgressDrawTarget::stderr_with_hz(10));
    let style = ProgressStyle::with_template("  {prefix:<10} [{bar:32}] {percent:>3} %  {msg}");
    if let Ok(style) = style {
        bar.set_style(style.progress_chars("=> "));
    }
    let shown = bar.clone();
    interrupt::end_cleanly(move || shown.finish_and_clear())?;
    Ok(bar)
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
        bar.set_message(counts(now));
        bar.set_position(at(done(&spec.plan, now)));
    });
    report.map_err(|error| {
        bar.finish_and_clear();
        error.into()
    })
}

/// How much of a plan is done, 0 to 1: whichever comes first, its time or its pairs.
fn done(plan: &Plan, now: &Progress) -> f64 {
    let time =
        now.elapsed.as_secs_f64() / plan.max_time.max(Duration::from_millis(1)).as_secs_f64();
    let seen = [now.near, now.far].into_iter().filter(|&count| count > 0).min();
    let pairs = f64::from(seen.unwrap_or(now.unprobed)) / f64::from(now.wanted.max(1));
    time.max(pairs).min(1.0)
}

fn counts(now: &Progress) -> String {
    let all = [("near", now.near), ("far", now.far), ("untagged", now.unprobed)];
    let seen = all.iter().filter(|(_, count)| *count > 0);
    let texts: Vec<_> = seen.map(|(name, count)| format!("{count} {name}")).collect();
    if texts.is_empty() { "no pair of windows yet".to_owned() } else { texts.join(", ") }
}

/// What an endpoint of this machine would warn of, each with the command that mends it.
pub(crate) fn machine_warnings() -> Vec<String> {
    let endpoint = Nexus::bind("udp://127.0.0.1:0").and_then(|nexus| nexus.endpoint());
    endpoint.map(|rpc| rpc.warnings()).unwrap_or_default()
}

/// True if a result for programs takes the place of the one for people.
pub(crate) fn only_json(target: Option<&Path>) -> bool {
    target.is_some_and(json::is_stdout)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

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
            "courser bench bandwidth --quick --pairs 7 --size 1MiB --sessions 3 --outstanding 5 \
             --credits 64 --frame-size 4KiB --connect udp://a:1",
        );
        assert_eq!(given.kind, Kind::Bandwidth);
        assert_eq!(given.plan, Plan { pairs: 7, ..Plan::quick() });
        assert_eq!((given.size, given.sessions, given.in_flight), (1 << 20, 3, 5));
        assert_eq!((given.credits, given.frame), (Some(64), Some(4096)));
        assert_eq!(given.connect.as_deref(), Some("udp://a:1"));
    }

    #[test]
    fn a_run_is_done_by_time_or_by_pairs_whichever_is_first() {
        let plan = Plan { max_time: Duration::from_secs(10), pairs: 100, ..Plan::quick() };
        let now = |seconds, near, far, unprobed| Progress {
            elapsed: Duration::from_secs(seconds),
            near,
            far,
            unprobed,
            wanted: plan.pairs,
            ..Progress::default()
        };
        assert_eq!(done(&plan, &now(5, 0, 0, 0)), 0.5);
        assert_eq!(done(&plan, &now(1, 80, 0, 3)), 0.8);
        assert_eq!(done(&plan, &now(1, 80, 20, 0)), 0.2, "the placement that lacks most");
        assert_eq!(done(&plan, &now(20, 0, 0, 40)), 1.0);
        assert_eq!(counts(&now(1, 80, 20, 0)), "80 near, 20 far");
        assert_eq!(counts(&now(1, 0, 0, 0)), "no pair of windows yet");
    }
}
