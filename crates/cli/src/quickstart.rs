//! `courser quickstart`: three benchmarks over two transports, one table, and suggested commands.

use std::io::Write;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::args::QuickstartArgs;
use crate::bench;
use courser_bench::progress;
use courser_bench::report::{PlacementResult, Report};
use courser_bench::rpc::{self, BenchSpec, Kind, Over, RATE_IN_FLIGHT};
use courser_bench::window::Plan;
use courser_kit::Failure;
use courser_kit::VERSION;
use courser_kit::environment::Environment;
use courser_kit::json;
use courser_kit::out::{self, BOLD, Out};
use courser_kit::table::Table;
use courser_kit::text::{WIDTH, wrap};
use courser_kit::units::{show_ns, show_per_second};

/// The benchmarks in the order of the table.
const KINDS: [Kind; 3] = [Kind::Latency, Kind::Rate, Kind::Bandwidth];

/// More pairs than a run of a few seconds can have, so that the time limit ends it.
const ALL_PAIRS: u32 = 100_000;

/// The results.
struct Measured {
    /// Reports over UDP, and over shared memory if it is available.
    reports: Vec<Report>,
    /// Why shared memory is not available.
    no_shm: Option<String>,
}

/// Measures and prints the results.
///
/// # Errors
/// A benchmark failed, or the JSON could not be written.
pub(crate) fn run(args: &QuickstartArgs) -> Result<(), Failure> {
    json::check_target(args.output.json.as_deref())?;
    let only_json = json::only(args.output.json.as_deref());
    let no_shm = rpc::shared_memory().err();
    let mut out = out::stdout();
    if !only_json {
        let (ways, seconds) = match (&no_shm, args.quick) {
            (None, quick) => ("UDP and over shared memory", if quick { 7 } else { 15 }),
            (Some(_), quick) => ("UDP", if quick { 4 } else { 8 }),
        };
        writeln!(out, "{BOLD}courser {VERSION}{BOLD:#}")?;
        write_wrapped(
            &mut out,
            &format!(
                "Measuring calls between two processes over loopback {ways}, about {seconds} s."
            ),
        )?;
        writeln!(out)?;
        out.flush()?;
    }
    let warnings = bench::machine_warnings();
    let measured = measure_all(args.quick, no_shm)?;
    let shares = measured.reports.iter().filter_map(Report::disturbed);
    let disturbed = shares.reduce(f64::max).filter(|_| !args.output.anyway);
    if !only_json {
        if let Some(share) = disturbed {
            print_busy(&mut out, share)?;
        }
        print(&mut out, args, &measured, &warnings)?;
    }
    if let Some(target) = &args.output.json {
        json::write(target, &combined(&measured))?;
    }
    Ok(())
}

/// Prints that the machine was busy. The calls succeeded, so the command does, but its figures are
/// marked.
fn print_busy(out: &mut Out, share: f64) -> Result<(), Failure> {
    let text = format!(
        "The machine was busy: the benchmarks' threads waited {share:.2} s for a CPU in each second. \
         The calls worked, but the figures below are not results: end other programs and repeat."
    );
    write_wrapped(out, &text)?;
    Ok(writeln!(out)?)
}

fn measure_all(quick: bool, no_shm: Option<String>) -> Result<Measured, Failure> {
    let ways = if no_shm.is_some() { &[Over::Udp][..] } else { &[Over::Udp, Over::Shm] };
    let bar = progress::bar()?;
    let share = 1.0 / (ways.len() * KINDS.len()) as f64;
    let mut reports = Vec::new();
    for &transport in ways {
        for kind in KINDS {
            let spec = BenchSpec { transport, ..BenchSpec::new(kind, plan(quick)) };
            let start = reports.len() as f64 * share;
            reports.push(bench::with_progress(&spec, &bar, (start, share))?);
        }
    }
    bar.finish_and_clear();
    Ok(Measured { reports, no_shm })
}

/// The plan of a benchmark, without the 0.7 s for its start.
fn plan(quick: bool) -> Plan {
    let (window_ms, max_time_ms) = if quick { (10, 400) } else { (20, 1_700) };
    Plan {
        window: Duration::from_millis(window_ms),
        pairs: ALL_PAIRS,
        max_time: Duration::from_millis(max_time_ms),
        warmup: 2,
    }
}

fn print(
    out: &mut Out,
    args: &QuickstartArgs,
    measured: &Measured,
    warnings: &[String],
) -> Result<(), Failure> {
    let reports = &measured.reports[..];
    writeln!(out, "{}\n", table(reports))?;
    if let Some(why) = &measured.no_shm {
        write_wrapped(
            out,
            &format!("Shared memory is left out because it is not available: {why}."),
        )?;
    }
    for line in placements(reports) {
        write_wrapped(out, line)?;
    }
    let raw = raw_words(reports);
    write_wrapped(out, &format!("raw: the same transport without the protocol, {raw}."))?;
    let ratio = "ratio: Courser to raw within a pair of neighbouring windows, median over pairs.";
    write_wrapped(out, ratio)?;
    if let Some(report) = reports.first() {
        write_wrapped(out, &machine(&report.environment))?;
        write_wrapped(out, &depends(reports, &report.environment))?;
    }
    let cores = reports.first().and_then(|r| r.config.get("cores_warning")).and_then(Value::as_str);
    let warnings: Vec<&str> = warnings.iter().map(String::as_str).chain(cores).collect();
    if !warnings.is_empty() {
        writeln!(out, "\n{BOLD}Warnings{BOLD:#}")?;
        for warning in warnings {
            let lines = wrap(warning, WIDTH - 2);
            lines.iter().try_for_each(|line| writeln!(out, "  {line}"))?;
        }
    }
    print_next(out, args)
}

/// Writes a paragraph in lines of at most 80 characters.
fn write_wrapped(out: &mut Out, text: &str) -> Result<(), Failure> {
    Ok(wrap(text, WIDTH).iter().try_for_each(|line| writeln!(out, "{line}"))?)
}

fn print_next(out: &mut Out, args: &QuickstartArgs) -> Result<(), Failure> {
    writeln!(out, "\n{BOLD}Try next{BOLD:#}")?;
    writeln!(
        out,
        "  courser serve --bind udp://0.0.0.0:31850    between machines; prints the rest"
    )?;
    writeln!(out, "  courser bench rate        a figure with its interval, from 200 window pairs")?;
    if args.output.json.is_none() {
        writeln!(out, "  courser quickstart --json quickstart.json    everything, for programs")?;
    }
    Ok(out.flush()?)
}

/// Explains "raw" for the measured transports.
fn raw_words(reports: &[Report]) -> &'static str {
    if reports.iter().any(|report| report.transport == Over::Shm.name()) {
        "bare UDP sockets or bare rings in shared memory"
    } else {
        "bare UDP sockets"
    }
}

/// One row for each benchmark, transport and placement.
fn table(reports: &[Report]) -> Table {
    let mut table = Table::ruled(["what", "over", "placement", "Courser", "raw", "ratio"]);
    for kind in KINDS {
        for report in reports.iter().filter(|report| report.bench == kind.name()) {
            for result in &report.results {
                table.add_row(row(&report.bench, &report.transport, result));
            }
        }
    }
    // Six columns fit 80 characters only with a blank between them.
    table.set_gap(1);
    table.align_right(3..6);
    table
}

fn row(bench: &str, transport: &str, result: &PlacementResult) -> [String; 6] {
    let none = || "-".to_owned();
    let ratio = result.ratio.map(|r| r.ratio);
    let (what, courser, raw, ratio) = match bench {
        "latency" => (
            "32 B round trip, median".to_owned(),
            result.latency_p50.map(|q| show_ns(q.latency_p50_ns)),
            result.raw_p50.map(|q| show_ns(q.raw_p50_ns)),
            ratio.map(times),
        ),
        "rate" => (
            format!("32 B calls, {RATE_IN_FLIGHT} in flight{}", waits(result)),
            result.rate.map(|q| show_per_second(q.rate_rps, "/s")),
            result.raw_rate.map(|q| show_per_second(q.raw_rate_pps, "/s")),
            ratio.map(percent),
        ),
        _ => (
            "8 MiB requests".to_owned(),
            result.goodput.map(|q| show_per_second(q.goodput_bps, "bit/s")),
            result.raw_goodput.map(|q| show_per_second(q.raw_goodput_bps, "bit/s")),
            ratio.map(percent),
        ),
    };
    [
        what,
        transport.to_owned(),
        result.placement.clone(),
        courser.unwrap_or_else(none),
        raw.unwrap_or_else(none),
        ratio.unwrap_or_else(none),
    ]
}

/// A ratio in at most six characters, so that the table fits 80.
fn times(ratio: f64) -> String {
    match ratio {
        ratio if ratio < 9.995 => format!("{ratio:.2} x"),
        ratio if ratio < 1000.0 => format!("{ratio:.0} x"),
        _ => ">999 x".to_owned(),
    }
}

/// A ratio in per cent, in at most six characters.
fn percent(ratio: f64) -> String {
    let percent = (ratio * 100.0).round();
    if percent < 10_000.0 { format!("{percent} %") } else { ">999 %".to_owned() }
}

/// The number of waits for shared credits per call, on its own line.
fn waits(result: &PlacementResult) -> String {
    let each = result.value("pool_waits_per_call");
    each.map(|each| format!("\n  {each:.3} pool waits/call")).unwrap_or_default()
}

/// Explains the placements that occur.
fn placements(reports: &[Report]) -> Vec<&'static str> {
    let has = |name| reports.iter().flat_map(|r| &r.results).any(|r| r.placement == name);
    let mut lines = Vec::new();
    if has("near") || has("far") {
        lines.push(
            "near, far: the cores shared a cache or did not; a hypervisor may move virtual cores.",
        );
    }
    if has("untagged") {
        lines.push("untagged: the placement of the cores is unknown; an indication, not a claim.");
    }
    lines
}

fn machine(here: &Environment) -> String {
    let cpu = here.cpu_model.as_deref().unwrap_or("unknown processor");
    let kind = if here.hypervisor == Some(true) { ", virtual" } else { "" };
    format!("Measured on {cpu}{kind}, {} cores, Linux {}.", here.cpus_usable, here.kernel)
}

/// The conditions of this machine on which the figures depend.
fn depends(reports: &[Report], here: &Environment) -> String {
    let of = |name: &str| {
        let results = reports.iter().flat_map(|r| &r.results).filter(|r| r.placement == name);
        let probes: Vec<_> = results.filter_map(|r| r.probe).collect();
        let low = probes.iter().map(|p| p.probe_ns_min).reduce(f64::min)?;
        let high = probes.iter().map(|p| p.probe_ns_max).reduce(f64::max)?;
        Some(format!("{name} here, a cache line takes {low:.0} to {high:.0} ns there and back"))
    };
    let seen: Vec<_> = ["near", "far"].into_iter().filter_map(of).collect();
    let cores =
        if seen.is_empty() { "of unknown placement here".to_owned() } else { seen.join("; ") };
    let generation = here.cpu_generation.as_deref().unwrap_or("unknown");
    format!(
        "The figures depend on the cores ({cores}) and on the generation of the CPU ({generation} \
         here): either changes those over shared memory by up to three times."
    )
}

/// All reports as one report; each result has its benchmark and its transport. Settings of UDP are at
/// the top level of `config`, those of shared memory under `shm`.
fn combined(measured: &Measured) -> Value {
    let (mut config, mut shm) = (Map::new(), Map::new());
    let mut results = Vec::new();
    for report in &measured.reports {
        let of = if report.transport == Over::Shm.name() { &mut shm } else { &mut config };
        of.insert(report.bench.clone(), Value::Object(report.config.clone()));
        for result in &report.results {
            let mut entry = json!({ "bench": report.bench, "transport": report.transport });
            if let (Some(entry), Value::Object(keys)) = (entry.as_object_mut(), json!(result)) {
                entry.extend(keys);
            }
            results.push(entry);
        }
    }
    if let Some(why) = &measured.no_shm {
        shm.insert("skipped".to_owned(), why.as_str().into());
    }
    config.insert(Over::Shm.name().to_owned(), shm.into());
    json!({
        "bench": "quickstart",
        "transport": measured.reports.first().map_or("udp", |report| &report.transport),
        "config": config,
        "results": results,
        "environment": measured.reports.last().map(|report| &report.environment),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use courser_bench::report::example;

    fn reports() -> Vec<Report> {
        let of = |over: Over| {
            let named = |kind: Kind| Report {
                bench: kind.name().to_owned(),
                transport: over.name().to_owned(),
                ..example()
            };
            KINDS.map(named)
        };
        [Over::Udp, Over::Shm].map(of).concat()
    }

    #[test]
    fn every_benchmark_transport_and_placement_has_a_row() {
        let text = table(&reports()).to_string();
        for what in ["32 B round trip", "32 B calls", "8 MiB requests"] {
            let rows: Vec<_> = text.lines().filter(|line| line.contains(what)).collect();
            let expected = [("udp", "near"), ("udp", "far"), ("shm", "near"), ("shm", "far")];
            assert_eq!(rows.len(), expected.len(), "{text}");
            for (row, (over, placement)) in rows.iter().zip(expected) {
                assert!(row.contains(over) && row.contains(placement), "{text}");
            }
        }
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }

    #[test]
    fn ratios_have_at_most_six_characters() {
        for (ratio, as_times, as_percent) in [
            (0.834, "0.83 x", "83 %"),
            (9.994, "9.99 x", "999 %"),
            (12.3, "12 x", "1230 %"),
            (999.4, "999 x", ">999 %"),
            (1167.15, ">999 x", ">999 %"),
        ] {
            assert_eq!((&*times(ratio), &*percent(ratio)), (as_times, as_percent));
        }
    }

    #[test]
    fn placements_are_explained_when_they_occur() {
        let mut reports = reports();
        assert_eq!(placements(&reports).len(), 1);
        for result in reports.iter_mut().flat_map(|r| &mut r.results) {
            result.placement = "untagged".to_owned();
        }
        let lines = placements(&reports);
        assert!(lines.len() == 1 && lines[0].starts_with("untagged"));
        assert!(placements(&[]).is_empty());
        assert!(raw_words(&reports).contains("shared memory"));
        assert!(!raw_words(&reports[..KINDS.len()]).contains("shared memory"));
    }

    #[test]
    fn the_cores_and_the_generation_that_figures_depend_on_are_named() {
        let mut reports = reports();
        let mut here = reports[0].environment.clone();
        here.cpu_generation = Some("Zen 4".to_owned());
        let text = depends(&reports, &here);
        assert!(text.contains("(near here, a cache line takes 100 to 120 ns"), "{text}");
        assert!(
            text.contains("; far here, a cache line") && text.contains("(Zen 4 here)"),
            "{text}"
        );
        for result in reports.iter_mut().flat_map(|r| &mut r.results) {
            result.placement = "untagged".to_owned();
        }
        here.cpu_generation = None;
        let text = depends(&reports, &here);
        assert!(text.contains("of unknown placement here"), "{text}");
        assert!(text.contains("generation of the CPU (unknown here)"), "{text}");
    }

    #[test]
    fn the_json_is_one_report_whose_results_have_benchmark_and_transport() {
        let json = combined(&Measured { reports: reports(), no_shm: None });
        let keys: Vec<_> = json.as_object().expect("an object").keys().cloned().collect();
        let mut expected = ["bench", "config", "environment", "results", "transport"];
        expected.sort_unstable();
        let mut keys: Vec<_> = keys.iter().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys, expected);
        assert_eq!(json["transport"], "udp");
        let results = json["results"].as_array().expect("a list");
        let per_bench = example().results.len();
        assert_eq!(results.len(), 2 * KINDS.len() * per_bench);
        for (at, result) in results.iter().enumerate() {
            let report = at / per_bench;
            assert_eq!(result["bench"], KINDS[report % KINDS.len()].name());
            assert_eq!(result["transport"], ["udp", "shm"][report / KINDS.len()]);
            assert!(result["placement"].is_string() && result["windows"].is_u64());
        }
        for kind in KINDS {
            assert!(json["config"][kind.name()].is_object(), "{json}");
            assert!(json["config"]["shm"][kind.name()].is_object(), "{json}");
        }
    }

    #[test]
    fn the_json_has_the_reason_why_shared_memory_is_missing() {
        let mut measured = Measured { reports: reports(), no_shm: Some("closed".to_owned()) };
        measured.reports.truncate(KINDS.len());
        let json = combined(&measured);
        assert_eq!(json["config"]["shm"], json!({ "skipped": "closed" }));
        let results = json["results"].as_array().expect("a list");
        assert!(!results.is_empty() && results.iter().all(|r| r["transport"] == "udp"));
    }
}
