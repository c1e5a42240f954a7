//! `router bench`.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use courser_bench::contention::BUSY;
use courser_kit::table::Table as Grid;
use courser_kit::text::{WIDTH, wrap};
use courser_kit::units::{self, show_per_second};
use courser_kit::{Failure, json, out};
use courser_router::bench::{self, BenchError, Over, SMALLEST, Settings, Table};
use serde_json::Value;

/// Routes of the table that replaces the Internet's.
const RANDOM_ROUTES: usize = 512_000;

#[derive(Debug, Args)]
#[command(after_help = "\
Two nodes on two cores: the first takes packets from memory, looks them up in a table of the \
Internet's size and sends them to the second, which counts them. In alternating windows the same \
is done without batching, and by a baseline that copies the packets into frames of the same \
transport without look-up and protocol. Destinations are random over the table, so that look-ups \
miss the caches. Needs no privileges.

Examples:
  router bench
  router bench --bytes 64 --time 20s --json result.json
  router bench --transport shm")]
pub(crate) struct BenchArgs {
    /// Transport between the nodes
    #[arg(long, value_enum, default_value = "udp")]
    transport: Transport,
    /// Bytes of the IP packets
    #[arg(long, value_delimiter = ',', default_value = "64,1500", value_parser = size)]
    bytes: Vec<usize>,
    /// Time for each size
    #[arg(long, default_value = "10s", value_parser = units::nonzero_time)]
    time: Duration,
    /// Routes of a random table, instead of the Internet's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    random: Option<u32>,
    /// Write the result as JSON to a file, or to standard output with -
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Transport {
    /// UDP on the loopback
    Udp,
    /// Shared memory
    Shm,
    /// Memory of one process
    Mem,
}

/// Parses the bytes of a packet.
fn size(text: &str) -> Result<usize, String> {
    let wrong = || format!("write {SMALLEST} to 1500");
    let bytes: usize = text.parse().map_err(|_| wrong())?;
    if (SMALLEST..=1_500).contains(&bytes) { Ok(bytes) } else { Err(wrong()) }
}

struct Error(BenchError);

impl From<Error> for Failure {
    fn from(Error(error): Error) -> Self {
        match error {
            BenchError::NotConnected(_) | BenchError::Thread => Failure::Runtime(error.to_string()),
            _ => Failure::Usage(error.to_string()),
        }
    }
}

pub(crate) fn run(args: &BenchArgs) -> Result<(), Failure> {
    json::check_target(args.json.as_deref())?;
    let table = match args.random {
        Some(routes) => Table::Random(routes as usize),
        None => Table::installed().unwrap_or_else(|| {
            let text = "SKIPPED: the Internet's table is not installed (apt-get install \
                        python3-pyasn); random prefixes take its place";
            let _ = writeln!(out::stderr(), "{text}");
            Table::Random(RANDOM_ROUTES)
        }),
    };
    let over = match args.transport {
        Transport::Udp => Over::Udp,
        Transport::Shm => Over::Shm,
        Transport::Mem => Over::Mem,
    };
    let window = Duration::from_millis(100).min(args.time / 8);
    let settings = Settings { over, sizes: args.bytes.clone(), time: args.time, window, table };
    let mut step = |text: &str| drop(writeln!(out::stderr(), "{text}"));
    let report = bench::run(&settings, &mut step).map_err(Error)?;
    if !json::only(args.json.as_deref()) {
        print(&report)?;
    }
    if let Some(share) = report["config"]["cpu_wait_share"].as_f64().filter(|s| *s >= BUSY) {
        out::warn(&format!(
            "the machine was busy: the threads waited {share:.2} s for a CPU in each second; end \
             other programs and repeat"
        ));
    }
    args.json.as_deref().map_or(Ok(()), |target| json::write(target, &report))
}

fn print(report: &Value) -> Result<(), Failure> {
    let mut out = out::stdout();
    let config = &report["config"];
    writeln!(
        out,
        "{}, {}",
        report["transport"].as_str().unwrap_or_default(),
        text(&config["table"])
    )?;
    for result in report["results"].as_array().into_iter().flatten() {
        print_size(&mut out, result)?;
    }
    Ok(out.flush()?)
}

fn print_size(out: &mut impl Write, result: &Value) -> Result<(), Failure> {
    let title = format!(
        "packets of {} bytes to {} destinations, {} routes, tables of {} MiB",
        result["packet_bytes"],
        result["destinations"],
        result["routes"],
        result["table_bytes"].as_u64().unwrap_or_default() >> 20,
    );
    writeln!(out, "\n{}", wrap(&title, WIDTH).join("\n"))?;
    for table in [rates(result), ratios(result)] {
        for line in table.lines() {
            writeln!(out, "  {line}")?;
        }
    }
    writeln!(
        out,
        "  lost {}, out of order {}, misrouted {}",
        result["lost"], result["out_of_order"], result["misrouted"]
    )?;
    Ok(())
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

/// An empty table that is shown with two blanks before it.
fn indented<const N: usize>(header: [&str; N]) -> Grid {
    let mut table = Grid::ruled(header);
    table.set_width(WIDTH - 2);
    table
}

/// Packets per second: the median, and the range of the windows.
fn rates(result: &Value) -> Grid {
    let header =
        ["", "packets/s", "lowest", "highest", "packets\na frame", "header bytes\na packet"];
    let mut table = indented(header);
    for (key, name) in [
        ("baseline", "baseline"),
        ("batching", "batching"),
        ("no_batching", "no batching"),
        ("one_by_one", "one by one"),
    ] {
        let of = &result[key];
        let rate = |key: &str| show_per_second(number(&of[key]), "");
        table.add_row([
            name.to_owned(),
            rate("rate_pps"),
            rate("rate_pps_min"),
            rate("rate_pps_max"),
            format!("{:.1}", number(&of["packets_per_frame"])),
            format!("{:.1}", number(&of["header_bytes_per_packet"])),
        ]);
    }
    table.align_right(1..6);
    table
}

/// Comparisons: the median, and the range of the windows.
fn ratios(result: &Value) -> Grid {
    let mut table = indented(["", "median", "lowest", "highest"]);
    for (key, name) in [
        ("look_up_and_rewrite_ns", "look-up and rewriting, ns"),
        ("ratio_to_baseline", "batching / baseline"),
        ("batching_over_none", "batching / no batching"),
        ("batching_over_one_by_one", "batching / one by one"),
    ] {
        let value = |end: &str| format!("{:.2}", number(&result[format!("{key}{end}")]));
        table.add_row([name.to_owned(), value(""), value("_min"), value("_max")]);
    }
    table.align_right(1..4);
    table
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_tables_fit_a_terminal() {
        let workload = json!({
            "rate_pps": 999_949_999.0, "rate_pps_min": 999_949_999.0, "rate_pps_max": 999_949_999.0,
            "packets_per_frame": 1_000.0, "header_bytes_per_packet": 1_000.0,
        });
        let mut result = json!({
            "packet_bytes": 1_500, "destinations": u32::MAX, "routes": 1 << 21,
            "table_bytes": u32::MAX, "lost": u64::MAX, "out_of_order": 0, "misrouted": 0,
        });
        for key in ["baseline", "batching", "no_batching", "one_by_one"] {
            result[key] = workload.clone();
        }
        for key in [
            "look_up_and_rewrite_ns",
            "ratio_to_baseline",
            "batching_over_none",
            "batching_over_one_by_one",
        ] {
            for end in ["", "_min", "_max"] {
                result[format!("{key}{end}")] = json!(1e9);
            }
        }
        let mut out = Vec::new();
        print_size(&mut out, &result).expect("into memory");
        let text = String::from_utf8(out).expect("text");
        crate::cli::assert_fits(&text);
        assert_eq!(text.matches("1000 M").count(), 12, "{text}");
    }
}
