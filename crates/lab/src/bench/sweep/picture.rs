//! The results of the sweep as SVG: a line for each frame size.

use std::path::Path;

use plotters::prelude::*;

use courser_bench::program::Failure;
use courser_bench::program::json;
use courser_bench::program::units::show_bytes;
use courser_bench::report::{PlacementResult, Report};

const SIZE: (u32, u32) = (900, 540);
const FONT: &str = "sans-serif";

/// A line of (calls in flight, M/s).
type Line = (u64, Vec<(f64, f64)>);

/// Draws the rates by calls in flight, at the placement with most windows.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn draw(report: &Report, path: &Path) -> Result<(), Failure> {
    let most = report.results.iter().max_by_key(|result| result.windows);
    let placement = most.map_or("untagged", |result| result.placement.as_str());
    let title = format!("32 B calls over {}, {placement}, by largest frame", report.transport);
    let mut text = String::new();
    plot(&title, &lines(&report.results, placement), &mut text)
        .map_err(|e| Failure::Runtime(format!("cannot draw {}: {e}", path.display())))?;
    json::write_text(path, &text)
}

fn lines(results: &[PlacementResult], placement: &str) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for result in results.iter().filter(|result| result.placement == placement) {
        let (Some(frame), Some(in_flight), Some(rate)) =
            (result.value("frame_bytes"), result.value("in_flight"), result.rate)
        else {
            continue;
        };
        let point = (in_flight, rate.rate_rps / 1e6);
        match lines.iter_mut().find(|line| line.0 == frame as u64) {
            Some(line) => line.1.push(point),
            None => lines.push((frame as u64, vec![point])),
        }
    }
    lines
}

type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

fn plot(title: &str, lines: &[Line], text: &mut String) -> Drawn {
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let all = || lines.iter().flat_map(|line| &line.1);
    let top = all().fold(0.1, |top: f64, point| top.max(point.1)) * 1.1;
    let right = all().fold(2.0, |right: f64, point| right.max(point.0)) * 1.2;
    let mut canvas = ChartBuilder::on(&root)
        .caption(title, (FONT, 20))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(60)
        .build_cartesian_2d((0.9..right).log_scale(), 0.0..top)?;
    canvas
        .configure_mesh()
        .light_line_style(WHITE)
        .x_desc("calls in flight")
        .y_desc("million calls per second")
        .label_style((FONT, 14))
        .draw()?;
    for (at, (frame, points)) in lines.iter().enumerate() {
        let color = Palette99::pick(at).to_rgba();
        let line = LineSeries::new(points.iter().copied(), color.stroke_width(2));
        canvas
            .draw_series(line)?
            .label(show_bytes(*frame))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
        canvas.draw_series(points.iter().map(|&p| Circle::new(p, 3, color.filled())))?;
    }
    canvas
        .configure_series_labels()
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .label_font((FONT, 14))
        .position(SeriesLabelPosition::UpperLeft)
        .draw()?;
    root.present()
}
