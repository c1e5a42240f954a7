//! `ordered-index bench`.

use std::time::Duration;

use clap::{Args, ValueEnum};
use courser_bench::contention::BUSY;
use courser_kit::table::Table;
use courser_kit::units::{self, show_ns, show_per_second};
use courser_kit::{Failure, ResultArgs, progress};
use courser_ordered_index::bench::{self, BenchError, Settings, Workload};
use courser_ordered_index::driver::Load;
use courser_ordered_index::load::filled;
use courser_ordered_index::mix::Mix;
use serde_json::Value;

#[derive(Debug, Args)]
#[command(after_help = "\
A server and its clients in one process. Windows of the same mix alternate: with scans in \
workers, with scans in dispatch handlers, and plain RPCs of the same sizes. Ratios are taken \
within a round. On a machine with few cores, workers take time from the other threads.

Examples:
  ordered-index bench
  ordered-index bench --transport shm --clients 8 --time 30s --json result.json
  ordered-index bench --mix get=50,put=30,delete=15,scan=5
  ordered-index bench --scans dispatch")]
pub(crate) struct BenchArgs {
    /// Transport between server and clients
    #[arg(long, value_enum, default_value = "udp")]
    transport: Transport,
    /// Keys of the index
    #[arg(long, default_value_t = 1_000_000, value_parser = super::keys(1))]
    keys: u64,
    /// Shares of the operations, per cent
    #[arg(long, default_value_t = Mix::PAPER)]
    mix: Mix,
    /// Sessions, 1 to 1024
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1_024))]
    clients: u16,
    /// Outstanding operations of each, 1 to 16
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
    outstanding: u8,
    /// Endpoints of the server, 1 to 64
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
    /// Worker threads of the server, 1 to 64
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    workers: u16,
    /// Where scans run: both, to compare
    #[arg(long, value_enum, value_delimiter = ',', default_value = "workers,dispatch")]
    scans: Vec<super::ScansArg>,
    /// Length of a window
    #[arg(long, default_value = "50ms", value_parser = units::nonzero_time)]
    window: Duration,
    /// Time of the measurement
    #[arg(long, default_value = "15s", value_parser = units::nonzero_time)]
    time: Duration,
    #[command(flatten)]
    output: ResultArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Transport {
    /// UDP on the loopback
    Udp,
    /// Shared memory
    Shm,
}

fn failure(error: BenchError) -> Failure {
    match error {
        BenchError::Bind(error) => error.into(),
        error => Failure::Runtime(error.to_string()),
    }
}

pub(crate) fn run(args: &BenchArgs) -> Result<(), Failure> {
    args.output.check()?;
    let mut workloads = Vec::new();
    for (arg, workload) in [
        (super::ScansArg::Workers, Workload::Workers),
        (super::ScansArg::Dispatch, Workload::Dispatch),
    ] {
        if args.scans.contains(&arg) {
            workloads.push(workload);
        }
    }
    workloads.push(Workload::Plain);
    let settings = Settings {
        scheme: match args.transport {
            Transport::Udp => "udp",
            Transport::Shm => "shm",
        },
        threads: args.threads,
        workers: args.workers.into(),
        clients: args.clients,
        load: Load { mix: args.mix, keys: args.keys, outstanding: args.outstanding.into() },
        workloads,
        window: args.window,
        time: args.time,
    };
    let mut loading = super::Loading::begin(args.keys)?;
    let index = filled(args.keys, |done| loading.show(done));
    drop(loading);
    let bar = progress::bar()?;
    bar.set_prefix("measuring");
    let done = &mut |part: f64| bar.set_position((part * 1_000.0) as u64);
    let report = bench::run(&settings, &index, done);
    bar.finish_and_clear();
    let report = report.map_err(failure)?;
    let share = report["config"]["cpu_wait_share"].as_f64();
    args.output.accept(share.filter(|share| *share >= BUSY))?;
    args.output.show(&report, || text(&report))
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

/// The report as text.
fn text(report: &Value) -> String {
    let result = &report["results"];
    let mut table =
        Table::ruled(["", "operations/s", "GET p50", "GET p99", "SCAN p50", "SCAN p99"]);
    for name in ["workers", "dispatch", "plain"] {
        let of = &result[name];
        if of.is_null() {
            continue;
        }
        let ns = |key: &str| match &of[key] {
            Value::Null => String::new(),
            value => show_ns(number(value)),
        };
        let [get50, get99] = ["get_latency_p50_ns", "get_latency_p99_ns"].map(ns);
        let [scan50, scan99] = ["scan_latency_p50_ns", "scan_latency_p99_ns"].map(ns);
        let rate = show_per_second(number(&of["rate_rps"]), "");
        table.add_row([name.to_owned(), rate, get50, get99, scan50, scan99]);
    }
    table.align_right(1..6);
    let mut lines = table.lines();
    let transport = report["transport"].as_str().unwrap_or_default();
    let mix = report["config"]["mix"].as_str().unwrap_or_default();
    lines.insert(0, format!("{transport}, {mix}, medians of {} rounds\n", result["rounds"]));
    lines.push(String::new());
    for (key, name) in [
        ("get_p99_workers_over_dispatch", "GET p99, workers / dispatch"),
        ("get_p50_workers_over_dispatch", "GET p50, workers / dispatch"),
        ("get_p50_workers_over_plain", "GET p50, workers / plain RPC"),
        ("get_rate_workers_over_plain", "GET rate, workers / plain RPC"),
    ] {
        if !result[key].is_null() {
            let [value, low, high] = ["", "_ci_low", "_ci_high"]
                .map(|end| number(&result[format!("{key}{end}").as_str()]));
            lines.push(format!("{name:<31}{value:.3}  (95 % interval {low:.3} to {high:.3})"));
        }
    }
    let (get, scan) = (number(&result["index_get_ns"]), number(&result["index_scan_ns"]));
    lines.push(format!("index alone: GET {}, scan {}", show_ns(get), show_ns(scan)));
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_text_fits_a_terminal() {
        let of = json!({
            "rate_rps": 999_999_999.0, "get_latency_p50_ns": 999_949_999.0,
            "get_latency_p99_ns": 999_949_999.0, "scan_latency_p50_ns": 999_949_999.0,
            "scan_latency_p99_ns": 999_949_999.0,
        });
        let mut result = json!({ "rounds": 1_000_000, "index_get_ns": 1e9, "index_scan_ns": 1e9 });
        for name in ["workers", "dispatch", "plain"] {
            result[name] = of.clone();
        }
        for key in ["get_p99_workers_over_dispatch", "get_rate_workers_over_plain"] {
            for end in ["", "_ci_low", "_ci_high"] {
                result[format!("{key}{end}")] = json!(1234.5678);
            }
        }
        let config = json!({ "mix": "get=50,scan=10,put=20,delete=20" });
        let text = text(&json!({ "transport": "udp", "config": config, "results": result }));
        for line in text.lines() {
            assert!(line.chars().count() <= courser_kit::text::WIDTH, "{line}");
        }
        assert_eq!(text.matches("1234.568").count(), 6, "{text}");
    }
}
