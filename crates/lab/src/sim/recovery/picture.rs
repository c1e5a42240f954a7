//! The loss experiments as SVG: lines for simulated values, circles for values of the paper.

use std::path::Path;

use courser::Recovery;
use courser_sim::scenario::fct;
use courser_sim::scenario::loss::{PAPER, Point};
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;

use courser_bench::program::Failure;
use courser_bench::program::json;

const SIZE: (u32, u32) = (900, 540);
const FONT: &str = "sans-serif";

/// The simulated values of a scheme, or those of the paper.
#[derive(Clone, PartialEq, Debug)]
struct Series {
    scheme: Recovery,
    points: Vec<(f64, f64)>,
}

/// A diagram.
struct Chart {
    title: &'static str,
    x: &'static str,
    y: &'static str,
    /// The x axis is logarithmic.
    log_x: bool,
    simulated: Vec<Series>,
    paper: Vec<Series>,
    /// Addition to the legend of the paper's values.
    paper_note: &'static str,
}

/// Draws goodput by the parameter that varies: loss, recovery time or reordering.
///
/// # Errors
/// The file cannot be written.
pub(super) fn loss<'a>(
    points: impl Iterator<Item = &'a Point>,
    path: &Path,
) -> Result<(), Failure> {
    write(&loss_chart(&points.collect::<Vec<_>>()), path)
}

fn loss_chart(points: &[&Point]) -> Chart {
    type X = fn(&Point) -> f64;
    let varies = |x: X| points.iter().any(|p| points.first().is_some_and(|first| x(p) != x(first)));
    let rto_us: X = |p| p.rto_ns.unwrap_or_default() as f64 / 1e3;
    let (x, label): (X, _) = if varies(|p| p.reorder) {
        (|p| p.reorder, "share of packets that come late")
    } else if varies(rto_us) && !varies(|p| p.loss) {
        (rto_us, "recovery time, us")
    } else {
        (|p| p.loss, "chance that a packet is lost")
    };
    let is_loss = label.contains("lost");
    // A logarithmic axis cannot show 0.
    let shown =
        points.iter().filter(|p| x(p) > 0.0).map(|p| (p.scheme, (x(p), p.goodput_fraction)));
    let paper = PAPER.iter().filter(|p| is_loss && points.iter().any(|q| q.scheme == p.0));
    Chart {
        title: "Goodput of one flow, as a share of that without loss",
        x: label,
        y: "goodput, % of lossless",
        log_x: true,
        simulated: series(shown.map(|(s, (x, y))| (s, (x, 100.0 * y)))),
        paper: series(paper.map(|p| (p.0, (f64::from(p.1) / 1e6, 100.0 * p.2)))),
        paper_note: "",
    }
}

/// Draws the 99th percentile of completion times by load.
///
/// # Errors
/// The file cannot be written.
pub(super) fn fct<'a>(
    points: impl Iterator<Item = &'a fct::Point>,
    path: &Path,
) -> Result<(), Failure> {
    let points: Vec<&fct::Point> = points.collect();
    let simulated = points.iter().map(|p| (p.scheme, (p.load, p.fct_p99_ns as f64 / 1e6)));
    // The paper only has MELO's improvement over go-back-N, which gives bounds for MELO.
    let slow = || points.iter().filter(|p| p.scheme == Recovery::GoBackN);
    let least =
        slow().map(|p| (Recovery::Melo, (p.load, p.fct_p99_ns as f64 / 1e6 / fct::PAPER.0)));
    let most = slow().map(|p| (Recovery::Melo, (p.load, p.fct_p99_ns as f64 / 1e6 / fct::PAPER.1)));
    let chart = Chart {
        title: "Web-search flows over a lossy spine: 99th percentile of completion times",
        x: "load",
        y: "ms",
        log_x: false,
        simulated: series(simulated),
        paper: series(least.chain(most)),
        paper_note: ": 2.11 to 3.11 times better than go-back-n",
    };
    write(&chart, path)
}

/// Points by scheme, sorted by `x`.
fn series(points: impl Iterator<Item = (Recovery, (f64, f64))>) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for (scheme, point) in points {
        match all.iter_mut().find(|s| s.scheme == scheme) {
            Some(series) => series.points.push(point),
            None => all.push(Series { scheme, points: vec![point] }),
        }
    }
    for series in &mut all {
        series.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    all
}

fn color(scheme: Recovery) -> RGBColor {
    match scheme {
        Recovery::GoBackN => RGBColor(190, 60, 40),
        Recovery::GoBackNNack => RGBColor(214, 140, 30),
        Recovery::Melo => RGBColor(120, 130, 140),
        _ => RGBColor(0, 90, 181),
    }
}

/// Minimum and maximum of values with a margin of 10 %; (0.1, 1) without values.
fn bounds(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values.fold((f64::MAX, 0.0), |(l, h), v| (v.min(l), v.max(h)));
    if low > high { (0.1, 1.0) } else { (low * 0.9, high * 1.1) }
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
    let all = || chart.simulated.iter().chain(&chart.paper).flat_map(|s| &s.points);
    let (left, right) = bounds(all().map(|p| p.0));
    let top = bounds(all().map(|p| p.1)).1;
    if chart.log_x {
        plot(chart, &root, (left..right).log_scale(), top)?;
    } else {
        plot(chart, &root, 0.0..right, top)?;
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
        .build_cartesian_2d(x, 0.0..top)?;
    canvas
        .configure_mesh()
        .light_line_style(WHITE)
        .x_desc(chart.x)
        .y_desc(chart.y)
        .x_label_formatter(&|x| number(*x))
        .y_label_formatter(&|y| number(*y))
        .label_style((FONT, 14))
        .draw()?;
    for Series { scheme, points } in &chart.simulated {
        let color = color(*scheme);
        let line = LineSeries::new(points.iter().copied(), color.stroke_width(2));
        canvas
            .draw_series(line)?
            .label(scheme.name())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
        canvas.draw_series(points.iter().map(|&p| Circle::new(p, 3, color.filled())))?;
    }
    for Series { scheme, points } in &chart.paper {
        let color = color(*scheme);
        canvas
            .draw_series(points.iter().map(|&p| Circle::new(p, 7, color.stroke_width(2))))?
            .label(format!("{scheme} in the paper{}", chart.paper_note))
            .legend(move |(x, y)| Circle::new((x + 9, y), 5, color.stroke_width(2)));
    }
    canvas
        .configure_series_labels()
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .label_font((FONT, 14))
        .position(if chart.log_x {
            SeriesLabelPosition::LowerLeft
        } else {
            SeriesLabelPosition::UpperLeft
        })
        .draw()?;
    Ok(())
}

/// Formats values below 0.1 with an exponent, such as `1e-2`.
fn number(value: f64) -> String {
    if value != 0.0 && value.abs() < 0.1 { format!("{value:e}") } else { format!("{value}") }
}
