//! A report as a table for people. Programs read the JSON.

use comfy_table::{CellAlignment, Table, presets};

use super::report::{PlacementResult, Report, Unit};

/// The results of a report, a row per quantity and placement, with a line above that
/// says what ran.
pub fn render(report: &Report) -> String {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
    let series = report.results.iter().any(|result| !result.point.is_empty());
    let header = ["placement", "quantity", "median", "95 % interval", "range", "windows"];
    let first = series.then_some("point");
    table.set_header(first.into_iter().chain(header));
    for result in &report.results {
        for row in rows(result) {
            let first = series.then(|| result.point.clone());
            table.add_row(first.into_iter().chain(row));
        }
    }
    for column in table.column_iter_mut().skip(2 + usize::from(series)) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let dropped = report.results.first().map_or(0, |r| r.windows_dropped);
    format!(
        "{} over {}; {dropped} windows dropped (probes disagreed or fell between near and far)\n{table}\n",
        report.bench, report.transport
    )
}

/// A row from the five fields of a quantity.
macro_rules! row {
    ($rows:ident, $result:ident, $label:expr, $unit:ident, $count:expr,
     $field:ident: $median:ident, $min:ident, $max:ident, $low:ident, $high:ident) => {
        if let Some(q) = &$result.$field {
            $rows.push([
                $result.placement.clone(),
                $label.to_owned(),
                $unit(q.$median),
                match (q.$low, q.$high) {
                    (Some(low), Some(high)) => format!("{} - {}", $unit(low), $unit(high)),
                    _ => "too few".to_owned(),
                },
                format!("{} - {}", $unit(q.$min), $unit(q.$max)),
                $count.to_string(),
            ]);
        }
    };
}

fn rows(result: &PlacementResult) -> Vec<[String; 6]> {
    let mut rows = Vec::new();
    let n = result.windows;
    row!(rows, result, "probe", time, n, probe: probe_ns,
        probe_ns_min, probe_ns_max, probe_ns_ci_low, probe_ns_ci_high);
    row!(rows, result, "latency p50", time, n, latency_p50: latency_p50_ns,
        latency_p50_ns_min, latency_p50_ns_max, latency_p50_ns_ci_low, latency_p50_ns_ci_high);
    row!(rows, result, "latency p99", time, n, latency_p99: latency_p99_ns,
        latency_p99_ns_min, latency_p99_ns_max, latency_p99_ns_ci_low, latency_p99_ns_ci_high);
    row!(rows, result, "raw p50", time, n, raw_p50: raw_p50_ns,
        raw_p50_ns_min, raw_p50_ns_max, raw_p50_ns_ci_low, raw_p50_ns_ci_high);
    row!(rows, result, "raw p99", time, n, raw_p99: raw_p99_ns,
        raw_p99_ns_min, raw_p99_ns_max, raw_p99_ns_ci_low, raw_p99_ns_ci_high);
    row!(rows, result, "rate", per_second, n, rate: rate_rps,
        rate_rps_min, rate_rps_max, rate_rps_ci_low, rate_rps_ci_high);
    row!(rows, result, "raw rate", per_second, n, raw_rate: raw_rate_pps,
        raw_rate_pps_min, raw_rate_pps_max, raw_rate_pps_ci_low, raw_rate_pps_ci_high);
    row!(rows, result, "goodput", bits, n, goodput: goodput_bps,
        goodput_bps_min, goodput_bps_max, goodput_bps_ci_low, goodput_bps_ci_high);
    row!(rows, result, "raw goodput", bits, n, raw_goodput: raw_goodput_bps,
        raw_goodput_bps_min, raw_goodput_bps_max, raw_goodput_bps_ci_low,
        raw_goodput_bps_ci_high);
    let label = format!("ratio of {}", result.ratio_of.as_deref().unwrap_or("?"));
    row!(rows, result, label, plain, result.pairs.unwrap_or(0), ratio: ratio,
        ratio_min, ratio_max, ratio_ci_low, ratio_ci_high);
    rows.extend(result.rows.iter().map(|row| {
        let show = |value| show(row.unit, value);
        let ci = row.spread.and_then(|spread| spread.ci);
        let interval = match (row.spread, ci) {
            (_, Some(ci)) => format!("{} - {}", show(ci.low), show(ci.high)),
            (Some(_), None) => "too few".to_owned(),
            (None, None) => row.note.clone(),
        };
        let range = row.spread.map(|s| format!("{} - {}", show(s.min), show(s.max)));
        let count = row.spread.map(|s| s.count.to_string());
        [
            result.placement.clone(),
            row.label.clone(),
            show(row.value),
            interval,
            range.unwrap_or_default(),
            count.unwrap_or_default(),
        ]
    }));
    rows
}

/// A value in its unit.
pub fn show(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Time => time(value),
        Unit::Difference if value < 0.0 => format!("-{}", time(-value)),
        Unit::Difference => format!("+{}", time(value)),
        Unit::PerSecond => per_second(value),
        Unit::Bits => bits(value),
        Unit::Bytes => format!("{value:.0} B"),
        Unit::Plain => plain(value),
        Unit::Count => format!("{value:.0}"),
        Unit::Percent => format!("{:.1} %", value * 100.0),
    }
}

fn time(ns: f64) -> String {
    if ns >= 1e6 {
        format!("{:.2} ms", ns / 1e6)
    } else if ns >= 1e3 {
        format!("{:.2} µs", ns / 1e3)
    } else {
        format!("{ns:.0} ns")
    }
}

fn per_second(value: f64) -> String {
    scaled(value, "/s")
}

fn bits(value: f64) -> String {
    scaled(value, "bit/s")
}

fn scaled(value: f64, unit: &str) -> String {
    let (value, prefix) = match value {
        v if v >= 1e9 => (v / 1e9, "G"),
        v if v >= 1e6 => (v / 1e6, "M"),
        v if v >= 1e3 => (v / 1e3, "K"),
        v => (v, ""),
    };
    format!("{value:.2} {prefix}{unit}")
}

fn plain(value: f64) -> String {
    format!("{value:.3}")
}

#[cfg(test)]
mod tests {
    use super::super::report::example;
    use super::*;

    #[test]
    fn units() {
        assert_eq!(time(181.4), "181 ns");
        assert_eq!(time(5_350.0), "5.35 µs");
        assert_eq!(time(2e6), "2.00 ms");
        assert_eq!(per_second(14.4e6), "14.40 M/s");
        assert_eq!(per_second(12.0), "12.00 /s");
        assert_eq!(bits(56e9), "56.00 Gbit/s");
        assert_eq!(plain(0.8126), "0.813");
    }

    #[test]
    fn every_quantity_of_every_placement_has_a_row() {
        let text = render(&example());
        assert!(text.starts_with("test over shm; 0 windows dropped"));
        let count = |what: &str| text.lines().skip(1).filter(|line| line.contains(what)).count();
        // Goodput is in the near result only; 4 far windows have no interval.
        assert_eq!((count("near"), count("far")), (10, 8));
        assert_eq!(count("ratio of rate_rps"), 2);
        assert_eq!(count("too few"), 2 + 7);
    }
}
