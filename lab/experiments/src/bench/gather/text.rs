//! The results as tables of at most 80 columns: rows are sizes and ways of packing, columns are batches.

use std::fmt::Write;

use courser_bench::report::{PlacementResult, Report};
use courser_kit::text::{WIDTH, wrap};

/// Batches of one table: as many columns as fit.
const COLUMNS: usize = 6;

/// All tables, and the comparison with calls.
pub(crate) fn render(report: &Report) -> String {
    let mut text = String::new();
    for placement in ["near", "far", "untagged"] {
        let of = |result: &&PlacementResult| result.placement == placement;
        let results: Vec<_> = report.results.iter().filter(of).collect();
        let both: Vec<_> =
            results.iter().copied().filter(|r| word(r, "directions") == "both").collect();
        if !both.is_empty() {
            let at = format!("Messages over {}", super::place(report, placement));
            let rates = "Gbit/s in each direction, headers included, and million messages a \
                         second; both sides send";
            tables(&mut text, &both, &format!("{at}: {rates}"), &|r| {
                Some((r.value("throughput_bps")? / 1e9, r.value("messages_ps")? / 1e6))
            });
            let delays = "latency of one way, p50 and p99 in microseconds";
            tables(&mut text, &both, &format!("{at}: {delays}"), &|r| {
                Some((r.latency_p50?.latency_p50_ns / 1e3, r.latency_p99?.latency_p99_ns / 1e3))
            });
        }
        for result in results.iter().filter(|r| word(r, "directions") == "one") {
            line(&mut text, &compared(&super::place(report, placement), result));
        }
    }
    let dropped = report.results.iter().map(|r| r.windows_dropped).max().unwrap_or(0);
    line(
        &mut text,
        "off: each packet has a frame. copy: packets up to 1280 B, of which two fit, are copied into \
         shared frames. gather: shared frames refer to them. single: off, and no trains (UDP_SEGMENT).",
    );
    if !super::is_simulated(report) {
        line(&mut text, &format!("at most {dropped} windows of a point dropped"));
    }
    text
}

fn line(text: &mut String, words: &str) {
    let _ = writeln!(text, "{}", wrap(words, WIDTH).join("\n"));
}

/// `shm, near: 12.3 M/s of 32 B messages by 128, 1.80 times the calls of 32 B (6.8 M/s), one direction`
fn compared(place: &str, result: &PlacementResult) -> String {
    let of = |key: &str| result.value(key).unwrap_or(0.0);
    format!(
        "{place}: {} M/s of {} B messages in batches of {}, one direction: {} times the rate of calls \
         ({} M/s)",
        short(of("messages_ps") / 1e6),
        of("size"),
        of("batch"),
        short(of("messages_of_calls")),
        short(of("calls_ps") / 1e6),
    )
}

fn word<'r>(result: &'r PlacementResult, key: &str) -> &'r str {
    result.extra.get(key).and_then(|value| value.as_str()).unwrap_or("")
}

fn number(result: &PlacementResult, key: &str) -> u64 {
    result.value(key).unwrap_or(0.0) as u64
}

/// Distinct values in ascending order: a placement may lack some points.
fn distinct<T: Ord>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut all: Vec<T> = values.collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Rows of a size: the ways that pack last.
fn order(packing: &str) -> usize {
    ["single", "off", "copy", "gather"].iter().position(|way| *way == packing).unwrap_or(usize::MAX)
}

/// A table of two values for each size, packing and batch.
fn tables(
    text: &mut String,
    results: &[&PlacementResult],
    caption: &str,
    values: &dyn Fn(&PlacementResult) -> Option<(f64, f64)>,
) {
    line(text, caption);
    let batches = distinct(results.iter().map(|r| number(r, "batch")));
    let rows = distinct(results.iter().map(|r| {
        let packing = word(r, "packing");
        (number(r, "size"), order(packing), packing)
    }));
    for batches in batches.chunks(COLUMNS) {
        let mut row = format!("{:>5} {:<6}", "size", "batch");
        batches.iter().for_each(|batch| row += &format!("{batch:>11}"));
        let _ = writeln!(text, "{row}");
        for &(size, _, packing) in &rows {
            let mut row = format!("{size:>5} {packing:<6}");
            for &batch in batches {
                let here = results.iter().find(|r| {
                    (number(r, "size"), word(r, "packing"), number(r, "batch"))
                        == (size, packing, batch)
                });
                let cell = here.and_then(|result| values(result));
                let cell =
                    cell.map_or("-".to_owned(), |(a, b)| format!("{} {}", short(a), short(b)));
                row += &format!("{cell:>11}");
            }
            let _ = writeln!(text, "{row}");
        }
    }
    text.push('\n');
}

/// Three digits, if they fit.
fn short(value: f64) -> String {
    let digits = if value < 9.995 {
        2
    } else if value < 99.95 {
        1
    } else {
        0
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use courser_bench::report::{LatencyP50, LatencyP99, example};

    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        let shown = [0.0, 1.234, 9.999, 12.34, 99.96, 1234.5].map(short);
        assert_eq!(shown, ["0.00", "1.23", "10.0", "12.3", "100", "1234"]);
    }

    fn result(packing: &str, batch: u64) -> PlacementResult {
        let mut result = example().results.remove(0);
        result.placement = "near".to_owned();
        let values = [
            ("packing", packing.into()),
            ("directions", "both".into()),
            ("size", 1500.into()),
            ("batch", batch.into()),
            ("throughput_bps", 123.4e9.into()),
            ("messages_ps", 9.876e6.into()),
        ];
        result.extra = values.map(|(key, value)| (key.to_owned(), value)).into_iter().collect();
        let quantity = |ns| courser_bench::stats::Summary::of([ns]).expect("a value");
        result.latency_p50 = Some(LatencyP50::from(quantity(13_500.0)));
        result.latency_p99 = Some(LatencyP99::from(quantity(7_654_321.0)));
        result
    }

    #[test]
    fn tables_have_a_row_for_each_packing_and_fit_a_terminal() {
        let mut report = example();
        report.transport = "veth".to_owned();
        report.results = [1, 2, 4, 8, 16, 32, 256]
            .into_iter()
            .flat_map(|batch| ["single", "copy"].map(|packing| result(packing, batch)))
            .collect();
        let mut small = result("copy", 32);
        for (key, value) in [("messages_of_calls", 1.8), ("calls_ps", 6.8e6)] {
            small.extra.insert(key.to_owned(), value.into());
        }
        small.extra.insert("directions".to_owned(), "one".into());
        report.results.push(small);
        let text = render(&report);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        let row = " 1500 single   123 9.88   123 9.88";
        assert!(text.contains(row) && text.contains(" 1500 copy    13.5 7654"), "{text}");
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains("one direction: 1.80 times the rate of calls (6.80 M/s)"), "{text}");
        assert_eq!(text.matches("batch").count() - text.matches("batches").count(), 4, "{text}");
    }
}
