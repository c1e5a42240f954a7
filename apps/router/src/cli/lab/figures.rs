//! `router figures`.

use std::io::Write;
use std::time::Duration;

use clap::Args;
use courser_bench::progress;
use courser_kit::out::{self, Out};
use courser_kit::table::Table;
use courser_kit::{Failure, ResultArgs, json, units};
use courser_router::sim::figures::{BATCHES, Point, SIZES, Sweep};
use serde_json::json;

use super::sim::{CpuArg, batch, bytes, failure, gbps, report};

#[derive(Debug, Args)]
#[command(after_help = "\
Two hosts send to each other through the simulated router, over one link between nodes and over \
two. Throughput is measured at full load, latency at a tenth of that throughput, with packets \
that arrive in bursts of one batch. A batch of more than one packet waits at most 2 us for \
others. Beside the values are those that the text of the paper on \
router interconnects states for 40 Gbit/s between two hosts without ports: gathered batches have \
3.7 to 4.8 times the throughput of single packets up to 256 bytes; one way takes 13.5 us for 32 \
packets of 1500 bytes, 73 us over Ethernet, and less than 3 us for single packets.

Examples:
  router figures
  router figures --cpu sockets --bytes 64 --batch 1,32")]
pub(crate) struct FiguresArgs {
    /// Sizes of packets on Ethernet, 64 to 1518 bytes
    #[arg(long, value_delimiter = ',', default_values_t = SIZES, value_parser = bytes())]
    bytes: Vec<u32>,
    /// Batches, 1 to 64 packets
    #[arg(long, value_delimiter = ',', default_values_t = BATCHES, value_parser = batch())]
    batch: Vec<usize>,
    /// Links between nodes
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2], value_parser = clap::value_parser!(u32).range(1..=2))]
    links: Vec<u32>,
    /// Rate of ports and cables, 1 to 1000 Gbit/s
    #[arg(long, default_value_t = 10, value_parser = gbps())]
    gbps: u64,
    /// Microseconds that a packet waits at most for others that share its frame, 0 to 250
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(0..=250))]
    budget_us: u64,
    /// CPU time of frames and packets
    #[arg(long, value_enum, default_value = "measured")]
    cpu: CpuArg,
    /// Measured virtual time of each point, us
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(10..=100_000))]
    us: u64,
    /// Seed of all random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    output: ResultArgs,
}

pub(crate) fn run(args: &FiguresArgs) -> Result<(), Failure> {
    let target = args.output.json.as_deref();
    json::check_target(target)?;
    let sweep = Sweep {
        seed: args.seed,
        line_rate_bps: args.gbps * 1_000_000_000,
        cpu: args.cpu.into(),
        batch_budget: Duration::from_micros(args.budget_us),
        sizes: args.bytes.clone(),
        batches: args.batch.clone(),
        links: args.links.clone(),
        time_ns: args.us * 1_000,
    };
    let bar = progress::bar()?;
    let points = sweep.run_all(|done, all| {
        bar.set_position((done * 1000 / all.max(1)) as u64);
        bar.set_message(format!("{done} of {all} points"));
    });
    bar.finish_and_clear();
    let points = points.map_err(|error| failure(&error))?;
    if !json::only(target) {
        print(&mut out::stdout(), &sweep, &points)?;
    }
    if let Some(target) = target {
        json::write(target, &report("router-figures", json!(sweep), json!(points)))?;
    }
    Ok(())
}

/// What the paper's text states for a point.
fn paper(point: &Point) -> &'static str {
    match (point.packet_bytes, point.batch) {
        (..=256, 16 | 32) => "3.7 to 4.8 times",
        (1_500.., 32) => "13.5 us;\nEthernet 73 us",
        (_, 1) => "below 3 us",
        _ => "",
    }
}

fn print(out: &mut Out, sweep: &Sweep, points: &[Point]) -> Result<(), Failure> {
    for &links in &sweep.links {
        let words = if links == 1 { "one link" } else { "two links" };
        writeln!(
            out,
            "Through {words} between nodes, {} Gbit/s, CPU {}",
            sweep.line_rate_bps / 1_000_000_000,
            sweep.cpu.name()
        )?;
        let of_links: Vec<&Point> = points.iter().filter(|p| p.links == links).collect();
        writeln!(out, "{}\n", grid(&of_links))?;
    }
    Ok(())
}

/// The points as a table.
fn grid(points: &[&Point]) -> Table {
    let header = [
        "bytes",
        "batch",
        "packets/s",
        "Gbit/s",
        "of\nbatch 1",
        "in a\nframe",
        "p50",
        "p99",
        "paper",
    ];
    let mut table = Table::ruled(header);
    table.set_gap(1);
    for p in points {
        table.add_row([
            p.packet_bytes.to_string(),
            p.batch.to_string(),
            units::show_per_second(p.throughput_pps as f64, ""),
            format!("{:.2}", p.throughput_bps as f64 / 1e9),
            format!("{:.2}", p.of_batch_1),
            format!("{:.1}", p.messages_per_frame),
            units::show_ns(p.latency.latency_p50_ns as f64),
            units::show_ns(p.latency.latency_p99_ns as f64),
            paper(p).to_owned(),
        ]);
    }
    table.align_right(0..8);
    table
}

#[cfg(test)]
mod tests {
    use courser_router::sim::Latency;

    use super::*;

    #[test]
    fn the_table_fits_a_terminal() {
        let latency = Latency {
            latency_p50_ns: 999_949_999,
            latency_p99_ns: 999_949_999,
            latency_max_ns: 999_949_999,
        };
        let point = |packet_bytes, batch| Point {
            links: 2,
            packet_bytes,
            batch,
            throughput_pps: 999_949_999,
            throughput_bps: 999_990_000_000,
            of_batch_1: 100.0,
            messages_per_frame: 100.0,
            wire_bytes_per_byte: 100.0,
            latency,
        };
        let points = [point(64, 1), point(256, 32), point(1_518, 32)];
        let text = grid(&points.each_ref()).lines();
        crate::cli::assert_fits(&text.join("\n"));
        assert!(text.iter().any(|line| line.ends_with("3.7 to 4.8 times")), "{text:#?}");
    }
}
