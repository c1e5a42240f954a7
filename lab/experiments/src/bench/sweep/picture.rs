//! The results of the sweep as a picture: a line for each frame size.

use courser_bench::report::{Report, Unit};
use courser_kit::units::show_bytes;

use crate::picture::{Axis, Chart, Style};

/// The rates by calls in flight, at the placement with most windows.
pub(crate) fn chart(report: &Report) -> Chart {
    let most = report.results.iter().max_by_key(|result| result.windows);
    let placement = most.map_or("untagged", |result| result.placement.as_str());
    let mut chart = Chart::lines(
        format!("32 B calls over {}, {placement}, by largest frame", report.transport),
        Axis::log("calls in flight", Unit::Count),
        Axis::linear("calls per second", Unit::PerSecond),
    );
    for result in report.results.iter().filter(|result| result.placement == placement) {
        let (Some(frame), Some(in_flight), Some(rate)) =
            (result.value("frame_bytes"), result.value("in_flight"), result.rate)
        else {
            continue;
        };
        let line = chart.line(Style::Main, show_bytes(frame as u64));
        line.points.push((in_flight, rate.rate_rps));
    }
    chart
}
