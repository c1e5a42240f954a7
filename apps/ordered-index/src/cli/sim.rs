//! `ordered-index sim`.

use std::time::Duration;

use clap::{Args, ValueEnum};
use courser_kit::table::Table;
use courser_kit::units::{self, show_ns, show_per_second};
use courser_kit::{Failure, ResultArgs, json};
use courser_ordered_index::driver::Load;
use courser_ordered_index::load::filled;
use courser_ordered_index::mix::Mix;
use courser_ordered_index::service::Scans;
use courser_ordered_index::sim::{self, Costs, Settings};
use serde_json::{Value, json};

#[derive(Debug, Args)]
#[command(after_help = "\
The server and the clients of `serve` and `bench`, unchanged, in virtual time: by default the \
paper's set-up, 14 threads and 2 workers, 64 clients on 8 hosts with two requests each. The \
times of the handlers are those that `ordered-index bench` measures for the index alone; those \
of packets are the simulator's table `measured`. Equal options give equal results.

Examples:
  ordered-index sim
  ordered-index sim --costs paper
  ordered-index sim --scan-ns 10000 --seeds 5 --json result.json")]
pub(crate) struct SimArgs {
    /// Keys of the index
    #[arg(long, default_value_t = 1_000_000, value_parser = super::keys(1))]
    keys: u64,
    /// Shares of the operations, per cent
    #[arg(long, default_value_t = Mix::PAPER)]
    mix: Mix,
    /// Outstanding operations of each client, 1 to 16
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
    outstanding: u8,
    /// Threads of the server, 1 to 64
    #[arg(long, default_value_t = 14, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
    /// Workers of the server, 1 to 64
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    workers: u16,
    /// Times of the index's own work
    #[arg(long, value_enum, default_value = "measured")]
    costs: CostsArg,
    /// Time of a GET, PUT or DELETE in the index instead, ns
    #[arg(long, value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    point_ns: Option<u64>,
    /// Time of a scan instead, ns
    #[arg(long, value_parser = clap::value_parser!(u64).range(..=10_000_000))]
    scan_ns: Option<u64>,
    /// Measured virtual time
    #[arg(long, default_value = "5ms", value_parser = units::nonzero_time)]
    time: Duration,
    /// Runs, with seeds from 0 on, 1 to 1000
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    seeds: u64,
    #[command(flatten)]
    output: ResultArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum CostsArg {
    /// This index, measured by `bench`
    Measured,
    /// Masstree, as the paper's results imply
    Paper,
}

pub(crate) fn run(args: &SimArgs) -> Result<(), Failure> {
    args.output.check()?;
    let mut loading = super::Loading::begin(args.keys)?;
    let index = filled(args.keys, |done| loading.show(done));
    drop(loading);
    let known = match args.costs {
        CostsArg::Measured => Costs::MEASURED,
        CostsArg::Paper => Costs::PAPER,
    };
    let costs = Costs {
        point_ns: args.point_ns.unwrap_or(known.point_ns),
        scan_ns: args.scan_ns.unwrap_or(known.scan_ns),
    };
    let mut results = Vec::new();
    for seed in 0..args.seeds {
        for scans in [Scans::Workers, Scans::Dispatch] {
            let settings = Settings {
                threads: args.threads,
                workers: args.workers.into(),
                load: Load { mix: args.mix, keys: args.keys, outstanding: args.outstanding.into() },
                time: args.time,
                ..Settings::paper(scans, costs, seed)
            };
            let failed = |error: sim::SimError| Failure::Runtime(error.to_string());
            let counted = sim::run(&settings, &index).map_err(failed)?;
            results.push(sim::json(&settings, &counted));
        }
    }
    let report = json!({
        "bench": "ordered-index",
        "transport": "sim",
        "config": {
            "keys": args.keys, "mix": args.mix.to_string(), "outstanding": args.outstanding,
            "server_threads": args.threads, "workers": args.workers, "clients": 64,
            "point_ns": costs.point_ns, "scan_ns": costs.scan_ns,
            "time_us": args.time.as_micros() as u64,
        },
        "results": results,
        "environment": json::environment(None),
    });
    args.output.show(&report, || text(&report))
}

fn text(report: &Value) -> String {
    let mut table = Table::ruled(["scans in", "seed", "GET/s", "GET p50", "GET p99", "SCAN p99"]);
    for result in report["results"].as_array().into_iter().flatten() {
        let number = |key: &str| result[key].as_f64();
        let ns = |key: &str| number(key).map_or(String::new(), show_ns);
        table.add_row([
            result["scans"].as_str().unwrap_or_default().to_owned(),
            result["seed"].to_string(),
            number("get_rate_rps").map_or(String::new(), |rate| show_per_second(rate, "")),
            ns("get_latency_p50_ns"),
            ns("get_latency_p99_ns"),
            ns("scan_latency_p99_ns"),
        ]);
    }
    table.align_right(1..6);
    table.lines().join("\n") + "\n"
}
