//! The results of the sweep as tables of at most 80 columns: rows are calls in flight, columns are
//! frame sizes.

use std::fmt::Write;

use courser_bench::report::{PlacementResult, Report};
use courser_kit::table::Table;
use courser_kit::text::{WIDTH, labelled, wrap};
use courser_kit::units::show_bytes;

/// Frame sizes of one table: as many columns as fit.
const FRAMES: usize = 4;

/// All tables of a report, and the worst point of each frame size.
pub(crate) fn render(report: &Report) -> String {
    let mut text = String::new();
    for placement in ["near", "far", "untagged"] {
        let of = |result: &&PlacementResult| result.placement == placement;
        let results: Vec<_> = report.results.iter().filter(of).collect();
        if results.is_empty() {
            continue;
        }
        let caption = format!(
            "32 B calls over {}, {placement}: M/s and 95 % interval, by calls in flight and \
             largest frame",
            report.transport,
        );
        let _ = writeln!(text, "{}", wrap(&caption, WIDTH).join("\n"));
        for frames in distinct(&results, "frame_bytes").chunks(FRAMES) {
            let _ = writeln!(text, "{}", table(&results, frames));
        }
        for worst in results.iter().filter(|r| r.extra.contains_key("worst_of_frame")) {
            let _ = writeln!(text, "{}", worst_line(worst));
        }
        text.push('\n');
    }
    let dropped = report.results.iter().map(|r| r.windows_dropped).max().unwrap_or(0);
    let _ = writeln!(text, "at most {dropped} windows of a point dropped");
    text
}

/// `8 KiB: at worst 0.91 [0.90, 0.92] of the best rate with fewer calls in flight (104 after 60)`
fn worst_line(worst: &PlacementResult) -> String {
    let of = |key: &str| worst.value(key).unwrap_or(0.0);
    let interval = match (worst.value("of_best_fewer_ci_low"), worst.value("of_best_fewer_ci_high"))
    {
        (Some(low), Some(high)) => format!(" [{low:.2}, {high:.2}]"),
        _ => String::new(),
    };
    let share = format!(
        "at worst {:.3}{interval} of the best rate with fewer calls in flight ({} after {})",
        of("of_best_fewer"),
        of("in_flight"),
        of("best_fewer_in_flight"),
    );
    labelled(&format!("{}: ", show_bytes(of("frame_bytes") as u64)), &share)
}

fn number(result: &PlacementResult, key: &str) -> u64 {
    result.value(key).unwrap_or(0.0) as u64
}

/// The values of a key in ascending order, each once.
fn distinct(results: &[&PlacementResult], key: &str) -> Vec<u64> {
    let mut all: Vec<u64> = results.iter().map(|result| number(result, key)).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn table(results: &[&PlacementResult], frames: &[u64]) -> Table {
    let header = ["in flight".to_owned(), "sessions".to_owned()];
    let header = header.into_iter().chain(frames.iter().map(|&frame| show_bytes(frame)));
    let mut table = Table::plain(header);
    table.align_right(0..2 + frames.len());
    for in_flight in distinct(results, "in_flight") {
        let here: Vec<_> = results.iter().filter(|r| number(r, "in_flight") == in_flight).collect();
        let sessions = here.first().map_or(0, |result| number(result, "sessions"));
        let cells = frames.iter().map(|&frame| {
            let result = here.iter().find(|result| number(result, "frame_bytes") == frame);
            result.map_or_else(|| "-".to_owned(), |result| cell(result))
        });
        let first = [in_flight.to_string(), sessions.to_string()];
        table.add_rule();
        table.add_row(first.into_iter().chain(cells));
    }
    table
}

/// The median, below it the interval, and the waits for shared credits if there were any.
fn cell(result: &PlacementResult) -> String {
    let Some(rate) = result.rate else { return "-".to_owned() };
    let mut text = format!("{:.2}", rate.rate_rps / 1e6);
    if let (Some(low), Some(high)) = (rate.rate_rps_ci_low, rate.rate_rps_ci_high) {
        let _ = write!(text, "\n{:.2}-{:.2}", low / 1e6, high / 1e6);
    }
    let waits = result.value("pool_waits_per_call").filter(|&waits| waits >= 0.001);
    if let Some(waits) = waits {
        let _ = write!(text, "\n{waits:.3} waits");
    }
    text
}
