//! Results as SVG: a line for each run.

use std::path::Path;

use courser_sim::scenario::{Hosts, join_leave, operating_range, reroute};
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;

use super::Row;
use courser_bench::program::Failure;
use courser_bench::program::json;
use courser_bench::program::units::{show_bytes, show_ns};

const SIZE: (u32, u32) = (900, 540);
const FONT: &str = "sans-serif";

/// A name and its points.
type Line = (String, Vec<(f64, f64)>);

/// A diagram.
struct Chart {
    title: &'static str,
    x: &'static str,
    y: &'static str,
    log_x: bool,
    /// Smallest y value that is shown.
    bottom: f64,
    lines: Vec<Line>,
}

/// Draws the lowest goodput by round trip: a line for each rate, frame size and jitter.
///
/// # Errors
/// The file cannot be written.
pub(super) fn operating_range(
    rows: &[Row<operating_range::Settings, operating_range::Outcome>],
    path: &Path,
) -> Result<(), Failure> {
    let mut lines: Vec<Line> = Vec::new();
    for (s, o) in rows {
        let name = format!(
            "{}, {} Gbit/s, {}, jitter {}",
            s.hosts.control.name(),
            s.rate_bps / 1_000_000_000,
            show_bytes(s.hosts.max_frame as u64),
            show_ns(s.jitter_ns as f64),
        );
        let (x, y) = (s.base_rtt_ns.max(1) as f64 / 1e3, o.goodput_share);
        let points = points_of(&mut lines, name);
        match points.iter_mut().find(|point| point.0 == x) {
            Some(point) => point.1 = point.1.min(y),
            None => points.push((x, y)),
        }
    }
    let title = "Lowest goodput of all numbers of senders";
    let y = "share of the link's goodput";
    write(&Chart { title, x: "base round trip, us", y, log_x: true, bottom: 0.0, lines }, path)
}

/// Draws Jain's index after each change.
///
/// # Errors
/// The file cannot be written.
pub(super) fn join_leave(
    rows: &[Row<join_leave::Settings, join_leave::Outcome>],
    path: &Path,
) -> Result<(), Failure> {
    let of = |(s, o): &Row<join_leave::Settings, join_leave::Outcome>| {
        let at_ms = |change: usize| change as f64 * s.every_ns as f64 / 1e6;
        let points = o.windows.iter().enumerate().map(|(n, w)| (at_ms(n), w.jain));
        (name(&s.hosts), points.collect())
    };
    let lines = rows.iter().map(of).collect();
    let title = "Fairness of senders that join one after the other and leave";
    let y = "Jain's index until the next change";
    write(&Chart { title, x: "time of the change, ms", y, log_x: false, bottom: 0.0, lines }, path)
}

/// Draws the goodput after the change of routes.
///
/// # Errors
/// The file cannot be written.
pub(super) fn reroute(
    rows: &[Row<reroute::Settings, reroute::Outcome>],
    path: &Path,
) -> Result<(), Failure> {
    let of = |(s, o): &Row<reroute::Settings, reroute::Outcome>| {
        let at_ms = |slice: usize| (slice + 1) as f64 * s.slice_ns as f64 / 1e6;
        let points = o.after_bps.iter().enumerate().map(|(n, &bps)| (at_ms(n), bps as f64 / 1e9));
        (format!("{}, {} senders", name(&s.hosts), s.senders), points.collect())
    };
    let lines = rows.iter().map(of).collect();
    let title = "Goodput after the path has become longer";
    write(&Chart { title, x: "ms", y: "Gbit/s", log_x: false, bottom: 0.0, lines }, path)
}

fn name(hosts: &Hosts) -> String {
    format!("{}, {}", hosts.control.name(), hosts.recovery)
}

/// The points of a line, which is added if there is none.
fn points_of(lines: &mut Vec<Line>, name: String) -> &mut Vec<(f64, f64)> {
    let at = lines.iter().position(|line| line.0 == name).unwrap_or_else(|| {
        lines.push((name, Vec::new()));
        lines.len() - 1
    });
    &mut lines[at].1
}

fn write(chart: &Chart, path: &Path) -> Result<(), Failure> {
    let mut text = String::new();
    draw(chart, &mut text)
        .map_err(|e| Failure::Runtime(format!("cannot draw {}: {e}", path.display())))?;
    json::write_text(path, &text)
}

type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

fn draw(chart: &Chart, text: &mut String) -> Drawn {
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let all = || chart.lines.iter().flat_map(|line| &line.1);
    let left = all().fold(f64::MAX, |left, point| left.min(point.0));
    let right = all().fold(left.min(1.0), |right, point| right.max(point.0)) * 1.1;
    let top = all().fold(0.1, |top: f64, point| top.max(point.1)) * 1.1;
    if chart.log_x && left > 0.0 && left < right {
        plot(chart, &root, (left * 0.9..right).log_scale(), top)?;
    } else {
        plot(chart, &root, 0.0..right.max(1.0), top)?;
    }
    root.present()
}

type Canvas<'t> = DrawingArea<SVGBackend<'t>, plotters::coord::Shift>;

fn plot<X>(chart: &Chart, root: &Canvas<'_>, x: X, top: f64) -> Drawn
where
    X: AsRangedCoord<Value = f64>,
    X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let mut canvas = ChartBuilder::on(root)
        .caption(chart.title, (FONT, 20))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(60)
        .build_cartesian_2d(x, chart.bottom..top)?;
    canvas
        .configure_mesh()
        .light_line_style(WHITE)
        .x_desc(chart.x)
        .y_desc(chart.y)
        .label_style((FONT, 14))
        .draw()?;
    for (at, (name, points)) in chart.lines.iter().enumerate() {
        let color = Palette99::pick(at).to_rgba();
        let line = LineSeries::new(points.iter().copied(), color.stroke_width(2));
        canvas
            .draw_series(line)?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
        canvas.draw_series(points.iter().map(|&p| Circle::new(p, 3, color.filled())))?;
    }
    canvas
        .configure_series_labels()
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .label_font((FONT, 14))
        .position(SeriesLabelPosition::LowerRight)
        .draw()?;
    Ok(())
}
