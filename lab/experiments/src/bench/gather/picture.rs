//! The results as pictures beside the values that the paper's text states.

use courser_bench::report::{PlacementResult, Report, Unit};
use courser_kit::units::show_bytes;

use crate::picture::{Axis, Chart, Paper, Range, Style};

/// Largest packets of the paper, bytes, and its latencies of one way in ns: of batches of Ethernet
/// packets (figure 8), and of a gathered batch of 32 (figure 10).
const PAPER_SIZE: u64 = 1500;
const ETHERNET_NS: [(f64, f64); 2] = [(1.0, 10_000.0), (32.0, 73_000.0)];
const GATHERED_NS: [(f64, f64); 1] = [(32.0, 13_500.0)];
/// Throughput of gathered batches as a multiple, up to 256 bytes `[SG section IV]`.
const PAPER_TIMES: (f64, f64) = (3.7, 4.8);
const PAPER_TIMES_UP_TO: u64 = 256;

/// The pictures with the ends of their file names: figures 9, 9 as multiples of batch 1, and 8 with 10.
pub(crate) fn charts(report: &Report) -> [(&'static str, Chart); 3] {
    let most = report.results.iter().max_by_key(|result| result.windows);
    let placement = most.map_or("untagged", |result| result.placement.as_str());
    let here = |r: &&PlacementResult| {
        r.placement == placement && r.extra.get("directions").is_some_and(|d| d == "both")
    };
    let results: Vec<_> = report.results.iter().filter(here).collect();
    let of = format!("over {}", super::place(report, placement));
    [
        ("throughput", throughput(&results, &of)),
        ("gain", gain(&results, &of)),
        ("latency", latency(&results, &of)),
    ]
}

fn packing(result: &PlacementResult) -> &str {
    result.extra.get("packing").and_then(|value| value.as_str()).unwrap_or("")
}

fn number(result: &PlacementResult, key: &str) -> u64 {
    result.value(key).unwrap_or(0.0) as u64
}

/// Whether small packets share frames.
fn is_packed(result: &PlacementResult) -> bool {
    !["off", "single"].contains(&packing(result))
}

/// Bits per second by size: a line for each batch.
fn throughput(results: &[&PlacementResult], of: &str) -> Chart {
    let mut chart = Chart::lines(
        format!("Messages {of}, small packets share frames: throughput of a direction"),
        Axis::log("bytes of a message", Unit::Bytes),
        Axis::linear("bits per second, headers included", Unit::Bits),
    );
    for result in results.iter().filter(|result| is_packed(result)) {
        let name = format!("{}, batch {}", packing(result), number(result, "batch"));
        if let Some(bps) = result.value("throughput_bps") {
            let x = number(result, "size") as f64;
            chart.line(Style::Main, name).points.push((x, bps));
        }
    }
    chart
}

/// Messages per second by size as a multiple of batch 1.
fn gain(results: &[&PlacementResult], of: &str) -> Chart {
    let mut chart = Chart::lines(
        format!("Messages {of}: rate of the largest batch over that of batch 1"),
        Axis::log("bytes of a message", Unit::Bytes),
        Axis::linear("times batch 1", Unit::Plain),
    );
    let largest = results.iter().map(|result| number(result, "batch")).max().unwrap_or(0);
    for result in results.iter().filter(|result| number(result, "batch") == largest) {
        let Some(times) = result.value("messages_of_batch_1") else { continue };
        let size = number(result, "size");
        let line = chart.line(Style::Main, format!("{}, batch {largest}", packing(result)));
        line.points.push((size as f64, times));
        if is_packed(result) && size <= PAPER_TIMES_UP_TO {
            let name = "the paper, gathered: 3.7 to 4.8 times Ethernet".to_owned();
            let paper = line.paper.get_or_insert_with(|| Paper { name, values: Vec::new() });
            let (low, high) = PAPER_TIMES;
            paper.values.push(Range { x: size as f64, low, high });
        }
    }
    chart
}

/// Latency by batch of the largest and the smallest messages.
fn latency(results: &[&PlacementResult], of: &str) -> Chart {
    let mut chart = Chart::lines(
        format!("Messages {of}: latency of one way, p50"),
        Axis::log("messages in a batch", Unit::Count),
        Axis::log("latency of one way", Unit::Time),
    );
    let mut sizes: Vec<u64> = results.iter().map(|result| number(result, "size")).collect();
    sizes.sort_unstable();
    let (Some(&least), Some(&most)) = (sizes.first(), sizes.last()) else { return chart };
    let mut ways: Vec<&str> = Vec::new();
    for result in results {
        if !ways.contains(&packing(result)) {
            ways.push(packing(result));
        }
    }
    for way in ways {
        for (size, style) in [(most, Style::Main), (least, Style::Second)] {
            let here = results.iter().filter(|r| packing(r) == way && number(r, "size") == size);
            for result in here {
                let Some(p50) = result.latency_p50 else { continue };
                let line = chart.line(style, format!("{}, {way}", show_bytes(size)));
                line.points.push((number(result, "batch") as f64, p50.latency_p50_ns));
            }
        }
        if most != PAPER_SIZE {
            continue;
        }
        let name = format!("{}, {way}", show_bytes(most));
        if way == "off" {
            let line = chart.line(Style::Main, name);
            line.add_paper("the paper, 1500 B: Ethernet", ETHERNET_NS);
        } else if way != "single" {
            let line = chart.line(Style::Main, name);
            line.add_paper("the paper, 1500 B: gathered", GATHERED_NS);
        }
    }
    chart
}
