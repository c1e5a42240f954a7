//! A report as a table of at most [`WIDTH`] columns.

use std::fmt::Write;

use courser_kit::text::{WIDTH, wrap};

use super::report::{PlacementResult, Report, Unit};
use super::stats::Interval;

/// Columns for the names of quantities, indented.
const NAME: usize = 29;
/// Columns for values.
const VALUE: usize = 13;
/// Columns for an interval and for a range.
const SPAN: usize = 16;

/// Renders the results of a report: a block for each placement and point, a line for each quantity.
pub fn render(report: &Report) -> String {
    let dropped = report.results.first().map_or(0, |r| r.windows_dropped);
    let mut text = format!("{} over {}; {dropped} windows dropped", report.bench, report.transport);
    text += " (placement changed or unclear)\n";
    for result in &report.results {
        let point = if result.point.is_empty() { "" } else { ", " };
        let name = format!("{}{point}{}", result.placement, result.point);
        let header = format!("{:>VALUE$}{:>SPAN$}{:>SPAN$}", "median", "95 % interval", "range");
        let _ = writeln!(text, "\n{}{header}{:>6}", named(&name), "n");
        for line in lines(result) {
            line.write(&mut text);
        }
    }
    text
}

/// The first column; a longer name has its own line.
fn named(name: &str) -> String {
    let gap = if name.chars().count() > NAME { format!("\n{:NAME$}", "") } else { String::new() };
    format!("{name:NAME$}{gap}")
}

/// A line of a block: one quantity.
struct Line {
    name: String,
    unit: Unit,
    median: f64,
    /// Smallest and largest value, and the interval of the median.
    spread: Option<(f64, f64, Option<Interval>)>,
    count: usize,
    note: String,
}

impl Line {
    fn write(&self, text: &mut String) {
        let name = named(&format!("  {}", self.name));
        let value = show(self.unit, self.median);
        let _ = match &self.spread {
            Some((min, max, interval)) => {
                let span = |low, high| span(self.unit, self.median, low, high);
                let interval =
                    interval.map_or_else(|| "too few".to_owned(), |i| span(i.low, i.high));
                let range = span(*min, *max);
                let count = self.count;
                writeln!(text, "{name}{value:>VALUE$}{interval:>SPAN$}{range:>SPAN$}{count:>6}")
            }
            None => {
                let note = wrap(&self.note, WIDTH - NAME - VALUE - 3);
                let gap = format!("\n{:1$}", "", NAME + VALUE + 3);
                let line = format!("{name}{value:>VALUE$}   {}", note.join(&gap));
                writeln!(text, "{}", line.trim_end())
            }
        };
    }
}

/// Adds a line for the five fields of a quantity.
macro_rules! line {
    ($lines:ident, $result:ident, $name:expr, $unit:ident, $count:expr,
     $field:ident: $median:ident, $min:ident, $max:ident, $low:ident, $high:ident) => {
        if let Some(q) = &$result.$field {
            let interval = q.$low.zip(q.$high).map(|(low, high)| Interval { low, high });
            $lines.push(Line {
                name: $name.to_owned(),
                unit: Unit::$unit,
                median: q.$median,
                spread: Some((q.$min, q.$max, interval)),
                count: $count,
                note: String::new(),
            });
        }
    };
}

fn lines(result: &PlacementResult) -> Vec<Line> {
    let mut lines = Vec::new();
    let n = result.windows;
    line!(lines, result, "probe", Time, n, probe: probe_ns,
        probe_ns_min, probe_ns_max, probe_ns_ci_low, probe_ns_ci_high);
    line!(lines, result, "latency p50", Time, n, latency_p50: latency_p50_ns,
        latency_p50_ns_min, latency_p50_ns_max, latency_p50_ns_ci_low, latency_p50_ns_ci_high);
    line!(lines, result, "latency p99", Time, n, latency_p99: latency_p99_ns,
        latency_p99_ns_min, latency_p99_ns_max, latency_p99_ns_ci_low, latency_p99_ns_ci_high);
    line!(lines, result, "raw p50", Time, n, raw_p50: raw_p50_ns,
        raw_p50_ns_min, raw_p50_ns_max, raw_p50_ns_ci_low, raw_p50_ns_ci_high);
    line!(lines, result, "raw p99", Time, n, raw_p99: raw_p99_ns,
        raw_p99_ns_min, raw_p99_ns_max, raw_p99_ns_ci_low, raw_p99_ns_ci_high);
    line!(lines, result, "rate", PerSecond, n, rate: rate_rps,
        rate_rps_min, rate_rps_max, rate_rps_ci_low, rate_rps_ci_high);
    line!(lines, result, "raw rate", PerSecond, n, raw_rate: raw_rate_pps,
        raw_rate_pps_min, raw_rate_pps_max, raw_rate_pps_ci_low, raw_rate_pps_ci_high);
    line!(lines, result, "goodput", Bits, n, goodput: goodput_bps,
        goodput_bps_min, goodput_bps_max, goodput_bps_ci_low, goodput_bps_ci_high);
    line!(lines, result, "raw goodput", Bits, n, raw_goodput: raw_goodput_bps,
        raw_goodput_bps_min, raw_goodput_bps_max, raw_goodput_bps_ci_low,
        raw_goodput_bps_ci_high);
    let name = format!("ratio of {}", result.ratio_of.as_deref().unwrap_or("?"));
    line!(lines, result, name, Plain, result.pairs.unwrap_or(0), ratio: ratio,
        ratio_min, ratio_max, ratio_ci_low, ratio_ci_high);
    lines.extend(result.rows.iter().map(|row| Line {
        name: row.label.clone(),
        unit: row.unit,
        median: row.value,
        spread: row.spread.map(|s| (s.min, s.max, s.ci)),
        count: row.spread.map_or(0, |s| s.count),
        note: row.note.clone(),
    }));
    lines
}

/// Formats a value with its unit.
pub fn show(unit: Unit, value: f64) -> String {
    let (divisor, digits, suffix) = scale(unit, value);
    let sign = if unit == Unit::Difference { "+" } else { "" };
    match value {
        value if value < 0.0 => format!("-{:.digits$}{suffix}", -value / divisor),
        value => format!("{sign}{:.digits$}{suffix}", value / divisor),
    }
}

/// Formats two values in the scale of a third one, without a unit.
fn span(unit: Unit, of: f64, low: f64, high: f64) -> String {
    let (divisor, digits, _) = scale(unit, of);
    let (low, high) = (low / divisor, high / divisor);
    let fits = |text: &String| text.chars().count() < SPAN;
    // Fewer digits if one value is far from the median.
    let mut texts = (0..=digits).rev().map(|digits| format!("{low:.digits$} - {high:.digits$}"));
    texts.find(fits).unwrap_or_else(|| format!("{low:.1e} - {high:.1e}"))
}

/// The divisor of a value, its digits after the decimal point, and its unit.
fn scale(unit: Unit, value: f64) -> (f64, usize, &'static str) {
    let size = value.abs();
    let prefixed = |units: [&'static str; 4]| match size {
        v if v >= 1e9 => (1e9, 2, units[3]),
        v if v >= 1e6 => (1e6, 2, units[2]),
        v if v >= 1e3 => (1e3, 2, units[1]),
        _ => (1.0, 2, units[0]),
    };
    match unit {
        Unit::Time | Unit::Difference => match size {
            ns if ns >= 1e6 => (1e6, 2, " ms"),
            ns if ns >= 1e3 => (1e3, 2, " µs"),
            _ => (1.0, 0, " ns"),
        },
        Unit::PerSecond => prefixed([" /s", " K/s", " M/s", " G/s"]),
        Unit::Bits => prefixed([" bit/s", " Kbit/s", " Mbit/s", " Gbit/s"]),
        Unit::Bytes => (1.0, 0, " B"),
        Unit::Plain => (1.0, 3, ""),
        Unit::Count => (1.0, 0, ""),
        Unit::Percent => (0.01, 1, " %"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::example;
    use super::*;

    #[test]
    fn values_are_scaled_to_their_unit() {
        for (unit, value, text) in [
            (Unit::Time, 181.4, "181 ns"),
            (Unit::Time, 5_350.0, "5.35 µs"),
            (Unit::Time, 2e6, "2.00 ms"),
            (Unit::Difference, 40.0, "+40 ns"),
            (Unit::Difference, -1_500.0, "-1.50 µs"),
            (Unit::PerSecond, 14.4e6, "14.40 M/s"),
            (Unit::PerSecond, 12.0, "12.00 /s"),
            (Unit::Bits, 56e9, "56.00 Gbit/s"),
            (Unit::Plain, 0.8126, "0.813"),
            (Unit::Percent, 0.5, "50.0 %"),
        ] {
            assert_eq!(show(unit, value), text);
        }
        assert_eq!(span(Unit::PerSecond, 14.4e6, 900e3, 15e6), "0.90 - 15.00");
        assert_eq!(span(Unit::Plain, 1.8, 1.734, 73_273.896), "1.73 - 73273.90");
        assert_eq!(span(Unit::Time, 800.0, 782.0, 330_465_270_000.0), "7.8e2 - 3.3e11");
    }

    #[test]
    fn every_quantity_of_every_placement_has_a_line() {
        let text = render(&example());
        assert!(text.starts_with("test over shm; 0 windows dropped"));
        let blocks: Vec<_> = text.split("\n\n").skip(1).collect();
        // Goodput is in the near result only; 4 far windows have no interval.
        for (block, name, count) in [(blocks[0], "near", 10), (blocks[1], "far", 8)] {
            assert!(block.starts_with(name), "{text}");
            assert_eq!(block.lines().skip(1).count(), count, "{text}");
            assert_eq!(block.matches("ratio of rate_rps").count(), 1, "{text}");
        }
        assert_eq!(text.matches("too few").count(), 2 + 7);
    }

    #[test]
    fn no_line_is_longer_than_80_characters() {
        let mut report = example();
        for result in &mut report.results {
            result.at_point("fault", 1, "go-back-n loss=0.02,duplicate=0.1,span=3".to_owned());
            let note = "entry 192, peer 12, slots 320, queue 16, timers 24, responses 1024";
            result.add_value("memory", "client, a session", Unit::Bytes, 4e9, note);
            let summary = super::super::stats::Summary::of([123_456_789.0; 9]);
            let summary = summary.expect("nine values");
            result.add("x", "of the same without faults", Unit::Bits, summary);
        }
        let text = render(&report);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(text.contains("responses 1024"), "{text}");
    }
}
