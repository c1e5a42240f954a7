//! A quantity of an experiment as a figure: lines with the range over all seeds, and rings at the values
//! of the paper.

use courser_bench::report::Unit;
use courser_bench::table::show;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;

use super::result::{Point, show_x};
use super::{Experiment, Figure, Quantity, Stated};

const SIZE: (u32, u32) = (940, 400);
/// Width of the lines and axes; the legend is on their right.
const PLOT_WIDTH: u32 = 760;
const FONT: &str = "sans-serif";
const GREY: RGBColor = RGBColor(130, 130, 130);

/// Colours that are distinguishable with common colour blindness (Okabe and Ito).
const COLORS: [RGBColor; 6] = [
    RGBColor(0, 90, 181),
    RGBColor(200, 80, 0),
    RGBColor(0, 140, 100),
    RGBColor(180, 90, 150),
    RGBColor(70, 160, 220),
    RGBColor(150, 120, 0),
];

/// A line of points.
struct Line<'p> {
    name: &'p str,
    color: RGBColor,
    /// Whether it was computed, not simulated.
    computed: bool,
    points: Vec<&'p Point>,
}

impl Line<'_> {
    fn style(&self) -> ShapeStyle {
        self.color.stroke_width(if self.computed { 1 } else { 2 })
    }
}

/// A value of the paper at a position.
struct Mark {
    x: f64,
    value: Stated,
    color: RGBColor,
}

struct Chart<'p> {
    experiment: &'p Experiment,
    quantity: &'p Quantity,
    lines: Vec<Line<'p>>,
    marks: Vec<Mark>,
}

/// Draws a quantity as SVG.
///
/// # Errors
/// An error of the plotting library.
pub(super) fn draw(
    experiment: &Experiment,
    quantity: &Quantity,
    points: &[Point],
) -> Result<String, String> {
    let chart = chart(experiment, quantity, points);
    let mut svg = String::new();
    render(&chart, &mut svg).map_err(|e| e.to_string())?;
    // The label is for screen readers.
    let label = format!("<svg role=\"img\" aria-label=\"{}: {}\" ", experiment.id, quantity.name);
    let start = svg.find("<svg ").ok_or("no picture was drawn")?;
    Ok(svg[start..].replacen("<svg ", &label, 1))
}

fn chart<'p>(experiment: &'p Experiment, quantity: &'p Quantity, points: &'p [Point]) -> Chart<'p> {
    let mut lines: Vec<Line<'_>> = Vec::new();
    for p in points.iter().filter(|p| p.quantity == quantity.name) {
        match lines.iter_mut().find(|line| line.name == p.series) {
            Some(line) => line.points.push(p),
            None => {
                let computed = p.series.starts_with("arithmetic") || p.series.starts_with("bound");
                let simulated = lines.iter().filter(|line| !line.computed).count();
                let color = if computed { GREY } else { COLORS[simulated % COLORS.len()] };
                lines.push(Line { name: &p.series, color, computed, points: vec![p] });
            }
        }
    }
    let mut marks = Vec::new();
    for line in &mut lines {
        line.points.sort_by(|a, b| a.x.total_cmp(&b.x));
        for p in &line.points {
            if let Some(paper) = experiment.paper(quantity.name, line.name, p.x) {
                marks.push(Mark { x: p.x, value: paper.value, color: line.color });
            }
        }
    }
    Chart { experiment, quantity, lines, marks }
}

/// Least and greatest of some positive values.
fn bounds(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values
        .filter(|v| *v > 0.0)
        .fold((f64::MAX, 0.0_f64), |(low, high), v| (v.min(low), v.max(high)));
    if low > high { (0.1, 1.0) } else { (low, high) }
}

type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;
type Canvas<'t> = DrawingArea<SVGBackend<'t>, plotters::coord::Shift>;

fn render(chart: &Chart<'_>, svg: &mut String) -> Drawn {
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let (left_area, right_area) = root.split_horizontally(PLOT_WIDTH);
    let points = || chart.lines.iter().flat_map(|line| &line.points);
    let (left, right) = bounds(points().map(|p| p.x));
    let stated = chart.marks.iter().map(|mark| match mark.value {
        Stated::Value(v) | Stated::Range(_, v) | Stated::AtMost(v) => v,
    });
    let (bottom, top) = bounds(points().flat_map(|p| [p.min, p.max]).chain(stated));
    let is_log = chart.quantity.figure == Figure::Log;
    let x_log = (left * 0.8..right * 1.25).log_scale();
    let x = 0.0..right * 1.05;
    let y_log = (bottom * 0.5..top * 2.0).log_scale();
    let y = 0.0..top * 1.12;
    match (chart.experiment.axis.log, is_log) {
        (true, true) => plot(chart, &left_area, x_log, y_log)?,
        (true, false) => plot(chart, &left_area, x_log, y)?,
        (false, true) => plot(chart, &left_area, x, y_log)?,
        (false, false) => plot(chart, &left_area, x, y)?,
    }
    legend(chart, &right_area)?;
    root.present()
}

fn plot<X, Y>(chart: &Chart<'_>, root: &Canvas<'_>, x: X, y: Y) -> Drawn
where
    X: AsRangedCoord<Value = f64>,
    X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let mut canvas = ChartBuilder::on(root)
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(88)
        .build_cartesian_2d(x, y)?;
    canvas
        .configure_mesh()
        .light_line_style(WHITE)
        .bold_line_style(BLACK.mix(0.1))
        .x_desc(chart.experiment.axis.label)
        .y_desc(chart.quantity.name)
        .x_label_formatter(&|x| show_x(chart.experiment, round(*x)))
        .y_label_formatter(&|y| tick(chart.quantity.unit, *y))
        .label_style((FONT, 14))
        .draw()?;
    for line in &chart.lines {
        let Line { color, computed, points, .. } = line;
        let style = line.style();
        canvas.draw_series(LineSeries::new(points.iter().map(|p| (p.x, p.median)), style))?;
        if !computed {
            let dots = points.iter().map(|p| Circle::new((p.x, p.median), 3, color.filled()));
            canvas.draw_series(dots)?;
            let range = |p: &&Point| PathElement::new([(p.x, p.min), (p.x, p.max)], style);
            canvas.draw_series(points.iter().map(range))?;
        }
    }
    let ring = |color: RGBColor| color.stroke_width(2);
    for mark in &chart.marks {
        let (x, color) = (mark.x, mark.color);
        match mark.value {
            Stated::Value(v) | Stated::AtMost(v) => {
                canvas.draw_series([Circle::new((x, v), 7, ring(color))])?;
            }
            Stated::Range(low, high) => {
                let bar = PathElement::new([(x, low), (x, high)], color.mix(0.4).stroke_width(7));
                canvas.draw_series([bar])?;
            }
        }
    }
    Ok(())
}

/// Names of the lines and of the paper's marks, one below the other.
fn legend(chart: &Chart<'_>, area: &Canvas<'_>) -> Drawn {
    let (left, top, step) = (4, 24, 22);
    let text = |y: i32, words: &str| Text::new(words.to_owned(), (left + 26, y - 7), (FONT, 14));
    let mut y = top;
    for line in &chart.lines {
        area.draw(&PathElement::new([(left, y), (left + 18, y)], line.style()))?;
        area.draw(&text(y, line.name))?;
        y += step;
    }
    if let Some(first) = chart.marks.first() {
        let is_range = matches!(first.value, Stated::Range(..));
        if is_range {
            let bar = [(left + 9, y - 7), (left + 9, y + 7)];
            area.draw(&PathElement::new(bar, GREY.mix(0.4).stroke_width(7)))?;
        } else {
            area.draw(&Circle::new((left + 9, y), 5, GREY.stroke_width(2)))?;
        }
        area.draw(&text(y, if is_range { "the paper's range" } else { "the paper" }))?;
    }
    Ok(())
}

/// A position between two marks of an axis, without the error of its computation.
fn round(x: f64) -> f64 {
    (x * 1e9).round() / 1e9
}

/// A value at an axis.
fn tick(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Percent => format!("{:.0} %", value * 100.0),
        Unit::Plain | Unit::Count => format!("{value:.1}"),
        _ => show(unit, value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::erpc::{CREDITS, INCAST};
    use crate::experiment::{Run, result::merge};

    #[test]
    fn a_figure_has_its_axes_and_the_papers_marks() {
        let mut run = Run::default();
        for (x, us) in [(20.0, 231.0), (50.0, 579.0)] {
            run.add("round trip p50", "simulated", x, us * 1e3);
        }
        let points = merge(&INCAST, vec![run]).points;
        let quantity = INCAST.quantity("round trip p50").expect("there is one");
        let svg = draw(&INCAST, quantity, &points).expect("drawn");
        assert!(svg.starts_with("<svg role=\"img\" aria-label=\"E81: round trip p50\" "), "{svg}");
        for text in ["senders", "simulated", "the paper"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        // Two dots and two rings, and the ring of the legend.
        assert_eq!(svg.matches("<circle").count(), 5, "{svg}");
    }

    #[test]
    fn numbers_at_an_axis_are_short() {
        assert_eq!(show_x(&INCAST, round(0.2 * 3.0)), "0.6");
    }

    #[test]
    fn a_figure_without_points_has_no_lines() {
        let svg = draw(&CREDITS, &CREDITS.quantities[0], &[]).expect("drawn");
        assert!(!svg.contains("<circle"));
    }
}
