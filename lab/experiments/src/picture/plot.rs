//! Draws a chart with its axes and its legend.

use courser_kit::text::wrap;
use plotters::coord::Shift;
use plotters::prelude::*;

use super::axis::{Span, show};
use super::{Chart, Line, Paper, Range, Style, X};

const FONT: &str = "sans-serif";
/// Size of texts; letters are half as wide.
const TEXT: u32 = 14;
/// Width of a letter on average.
const LETTER: u32 = 7;
/// Most letters in a line of the legend.
const LEGEND_LETTERS: usize = 52;
/// Height of a line of the legend.
const LEGEND_STEP: u32 = 20;
/// Width of axes and lines.
const PLOT_WIDTH: u32 = 720;
/// Height of a chart of lines; more with a long legend.
const HEIGHT: u32 = 440;
const TITLE_HEIGHT: u32 = 36;
/// Height of the x axis with its texts.
const X_HEIGHT: u32 = 48;
/// Height of a bar and of the gap between two rows.
const BAR_HEIGHT: u32 = 16;
const MARGIN: u32 = 12;
const GREY: RGBColor = RGBColor(130, 130, 130);

/// Colours of lines; the first are distinguishable with common colour blindness (Okabe and Ito).
const COLORS: [RGBColor; 10] = [
    RGBColor(0, 90, 181),
    RGBColor(200, 80, 0),
    RGBColor(0, 140, 100),
    RGBColor(180, 90, 150),
    RGBColor(70, 160, 220),
    RGBColor(150, 120, 0),
    RGBColor(190, 30, 50),
    RGBColor(90, 60, 160),
    RGBColor(110, 170, 60),
    RGBColor(60, 60, 60),
];

/// Radius of the first ring at a place; further ones are around it.
const RING: i32 = 6;

type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;
type Canvas<'t> = DrawingArea<SVGBackend<'t>, Shift>;
type Plot<'p, 't> = ChartContext<'p, SVGBackend<'t>, Cartesian2d<Span, Span>>;

/// A line of the legend.
struct Entry {
    symbol: Symbol,
    look: Look,
    words: String,
}

/// Colour and marks of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Look {
    color: RGBColor,
    mark: Mark,
}

/// The shape of points: another one when all colours are in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mark {
    Dot,
    Triangle,
    Cross,
}

impl Look {
    const GREY: Look = Look { color: GREY, mark: Mark::Dot };

    fn nth(at: usize) -> Look {
        let marks = [Mark::Dot, Mark::Triangle, Mark::Cross];
        Look { color: COLORS[at % COLORS.len()], mark: marks[at / COLORS.len() % marks.len()] }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Symbol {
    Line(Style),
    Bar(Style),
    Ring,
    PaperRange,
}

pub(super) fn svg(chart: &Chart) -> Result<String, DrawingAreaErrorKind<std::io::Error>> {
    let looks = looks(&chart.lines);
    let entries = entries(chart, &looks);
    let letters = entries.iter().map(|entry| entry.words.chars().count()).max().unwrap_or(0);
    let legend_width = (letters.min(LEGEND_LETTERS) as u32 + 1) * LETTER + 30;
    let legend_height: u32 = entries.iter().map(height).sum();
    let title_height = if chart.title.is_empty() { 0 } else { TITLE_HEIGHT };
    let bars = chart.lines.len() as u32 * BAR_HEIGHT;
    let plot_height = match &chart.x {
        X::Numbers(_) => HEIGHT - TITLE_HEIGHT,
        X::Names(names) => (bars + BAR_HEIGHT) * names.len() as u32 + X_HEIGHT + 2 * MARGIN,
    };
    let height = title_height + plot_height.max(legend_height + 2 * MARGIN);
    let mut svg = String::new();
    {
        let size = (PLOT_WIDTH + legend_width, height);
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&WHITE)?;
        let (title, below) = root.split_vertically(title_height);
        if !chart.title.is_empty() {
            let at = (MARGIN as i32 + 4, MARGIN as i32);
            title.draw(&Text::new(chart.title.clone(), at, (FONT, 20)))?;
        }
        let (left, right) = below.split_horizontally(PLOT_WIDTH);
        let (left, _) = left.split_vertically(plot_height);
        match &chart.x {
            X::Numbers(_) => draw_lines(chart, &looks, &left)?,
            X::Names(names) => draw_bars(chart, names, &looks, &left)?,
        }
        draw_legend(&entries, &right)?;
        root.present()?;
    }
    Ok(svg)
}

fn looks(lines: &[Line]) -> Vec<Look> {
    let mut used = 0_usize;
    let look = |line: &Line| match line.style {
        Style::Calculated => Look::GREY,
        Style::Second => Look::nth(used.saturating_sub(1)),
        Style::Main => {
            used += 1;
            Look::nth(used - 1)
        }
    };
    lines.iter().map(look).collect()
}

/// The name of each line, and then those of the paper's values.
fn entries(chart: &Chart, looks: &[Look]) -> Vec<Entry> {
    let is_bars = matches!(chart.x, X::Names(_));
    let symbol = |style| if is_bars { Symbol::Bar(style) } else { Symbol::Line(style) };
    let lines = || chart.lines.iter().zip(looks.iter().copied());
    let drawn = lines().filter(|(line, _)| !line.points.is_empty());
    let of_line =
        |(line, look): (&Line, _)| Entry::new(symbol(line.style), look, line.name.clone());
    let mut entries: Vec<Entry> = drawn.map(of_line).collect();
    let first = entries.len();
    for (line, look) in lines() {
        let Some(paper) = &line.paper else { continue };
        let symbol = if paper.is_range() { Symbol::PaperRange } else { Symbol::Ring };
        let words = match paper.values[..] {
            // A text beside the ring is the value of the bar.
            [value] if is_bars => format!("{}: {}", paper.name, show(chart.y.unit, value.low)),
            _ => paper.name.clone(),
        };
        match entries[first..].iter_mut().find(|e| e.words == words && e.symbol == symbol) {
            // It stands for values in several colours.
            Some(same) => same.look = if same.look == look { look } else { Look::GREY },
            None => entries.push(Entry::new(symbol, look, words)),
        }
    }
    entries
}

impl Entry {
    fn new(symbol: Symbol, look: Look, words: String) -> Entry {
        Entry { symbol, look, words }
    }
}

impl Paper {
    fn is_range(&self) -> bool {
        self.values.iter().any(|value| value.low < value.high)
    }
}

fn height(entry: &Entry) -> u32 {
    let lines = wrap(&entry.words, LEGEND_LETTERS).len().max(1) as u32;
    LEGEND_STEP + (lines - 1) * (LEGEND_STEP - 4)
}

fn stroke(style: Style, color: RGBColor) -> ShapeStyle {
    color.stroke_width(if style == Style::Calculated { 1 } else { 2 })
}

/// The colour of a bar.
fn fill(style: Style, color: RGBColor) -> ShapeStyle {
    color.mix(if style == Style::Second { 0.4 } else { 0.9 }).filled()
}

fn ring(color: RGBColor) -> ShapeStyle {
    color.stroke_width(2)
}

fn range_style(color: RGBColor) -> ShapeStyle {
    color.mix(0.4).stroke_width(7)
}

fn draw_lines(chart: &Chart, looks: &[Look], area: &Canvas<'_>) -> Drawn {
    let X::Numbers(axis) = &chart.x else { return Ok(()) };
    let ranges = || chart.lines.iter().flat_map(Line::all);
    let x = axis.span(ranges().map(|range| range.x), 1.06);
    let y = chart.y.span(ranges().flat_map(|range| [range.low, range.high]), 1.1);
    let mut plot = ChartBuilder::on(area)
        .margin(MARGIN)
        .x_label_area_size(X_HEIGHT)
        .y_label_area_size(88)
        .build_cartesian_2d(x, y)?;
    plot.configure_mesh()
        .bold_line_style(BLACK.mix(0.1))
        .x_desc(axis.label)
        .y_desc(chart.y.label)
        .label_style((FONT, TEXT))
        .draw()?;
    for (line, look) in chart.lines.iter().zip(looks) {
        draw_line(line, *look, &mut plot)?;
    }
    let mut rings: Vec<Range> = Vec::new();
    for (line, look) in chart.lines.iter().zip(looks) {
        for value in line.paper.iter().flat_map(|paper| &paper.values) {
            let (low, high) = ((value.x, value.low), (value.x, value.high));
            if value.low < value.high {
                plot.draw_series([PathElement::new([low, high], range_style(look.color))])?;
            } else {
                let inner = rings.iter().filter(|other| is_close(other, value)).count() as i32;
                plot.draw_series([Circle::new(low, RING + 3 * inner, ring(look.color))])?;
                rings.push(*value);
            }
        }
    }
    Ok(())
}

/// True if the rings of two values would cover each other.
fn is_close(a: &Range, b: &Range) -> bool {
    a.x == b.x && (a.low - b.low).abs() <= 0.02 * a.low.max(b.low)
}

fn draw_line(line: &Line, look: Look, plot: &mut Plot<'_, '_>) -> Drawn {
    let stroke = stroke(line.style, look.color);
    let points = || line.points.iter().copied();
    if line.style == Style::Second {
        plot.draw_series(DashedLineSeries::new(points(), 6, 4, stroke))?;
    } else {
        plot.draw_series(LineSeries::new(points(), stroke))?;
    }
    if line.style == Style::Calculated {
        return Ok(());
    }
    let filled = look.color.filled();
    match look.mark {
        Mark::Dot => plot.draw_series(points().map(|p| Circle::new(p, 3, filled)))?,
        Mark::Triangle => plot.draw_series(points().map(|p| TriangleMarker::new(p, 5, filled)))?,
        Mark::Cross => plot.draw_series(points().map(|p| Cross::new(p, 4, stroke)))?,
    };
    let range = |r: &Range| PathElement::new([(r.x, r.low), (r.x, r.high)], stroke);
    plot.draw_series(line.ranges.iter().map(range))?;
    Ok(())
}

fn draw_bars(chart: &Chart, names: &[String], looks: &[Look], area: &Canvas<'_>) -> Drawn {
    let values = chart.lines.iter().flat_map(Line::all).flat_map(|r| [r.low, r.high]);
    // Room for the text beside the longest bar.
    let value = chart.y.span(values, if chart.y.log { 1.6 } else { 1.2 });
    let longest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0) as u32;
    let (zero, rows) = (value.low, Span::rows(names));
    let mut plot = ChartBuilder::on(area)
        .margin(MARGIN)
        .x_label_area_size(X_HEIGHT)
        .y_label_area_size((longest * LETTER).clamp(40, PLOT_WIDTH / 2) + 8)
        .build_cartesian_2d(value, rows)?;
    plot.configure_mesh()
        .disable_y_mesh()
        .bold_line_style(BLACK.mix(0.1))
        .x_desc(chart.y.label)
        .label_style((FONT, TEXT))
        .draw()?;
    // Rows are one apart, and have a gap as high as a bar.
    let high = 1.0 / (chart.lines.len() + 1) as f64;
    for (at, (line, look)) in chart.lines.iter().zip(looks).enumerate() {
        let top = |row: f64| row - 0.5 + high * (0.5 + at as f64);
        let bar = |&(row, value): &(f64, f64)| {
            let (from, to) = ((zero, top(row) + 0.1 * high), (value, top(row) + 0.9 * high));
            Rectangle::new([from, to], fill(line.style, look.color))
        };
        plot.draw_series(line.points.iter().map(bar))?;
        let range = |r: &Range| {
            let middle = top(r.x) + 0.5 * high;
            PathElement::new([(r.low, middle), (r.high, middle)], BLACK.stroke_width(2))
        };
        plot.draw_series(line.ranges.iter().map(range))?;
        let rings = || line.paper.iter().flat_map(|paper| &paper.values);
        let text = |&(row, value): &(f64, f64)| {
            let words = show(chart.y.unit, value);
            // Right of a ring that would cover it.
            let covers = |ring: &&Range| ring.x == row && (0.95..1.2).contains(&(ring.low / value));
            let ring = rings().find(covers);
            let (end, gap) = ring.map_or((value, 5), |ring| (ring.low.max(value), RING + 5));
            let at = (end, top(row) + 0.5 * high);
            EmptyElement::at(at) + Text::new(words, (gap, -6), (FONT, TEXT - 1))
        };
        plot.draw_series(line.points.iter().map(text))?;
        for value in rings() {
            let at = (value.low, top(value.x) + 0.5 * high);
            plot.draw_series([Circle::new(at, RING, ring(look.color))])?;
        }
    }
    Ok(())
}

impl Line {
    /// All values that are drawn.
    fn all(&self) -> impl Iterator<Item = Range> {
        let points = self.points.iter().map(|&(x, y)| Range { x, low: y, high: y });
        let paper = self.paper.iter().flat_map(|paper| &paper.values).copied();
        points.chain(self.ranges.iter().copied()).chain(paper)
    }
}

fn draw_legend(entries: &[Entry], area: &Canvas<'_>) -> Drawn {
    let left = 4;
    let mut y = 2 * MARGIN as i32;
    for entry in entries {
        let Entry { symbol, look, words } = entry;
        let (color, middle) = (look.color, left + 9);
        match *symbol {
            Symbol::Line(style) => {
                let parts = match style {
                    Style::Second => &[(0, 6), (10, 16)][..],
                    _ => &[(0, 18)],
                };
                for (from, to) in parts {
                    let ends = [(left + from, y), (left + to, y)];
                    area.draw(&PathElement::new(ends, stroke(style, color)))?;
                }
                match look.mark {
                    Mark::Dot => {}
                    Mark::Triangle => {
                        area.draw(&TriangleMarker::new((middle, y), 5, color.filled()))?;
                    }
                    Mark::Cross => area.draw(&Cross::new((middle, y), 4, stroke(style, color)))?,
                }
            }
            Symbol::Bar(style) => {
                let corners = [(left, y - 5), (left + 18, y + 5)];
                area.draw(&Rectangle::new(corners, fill(style, color)))?;
            }
            Symbol::Ring => area.draw(&Circle::new((middle, y), 5, ring(color)))?,
            Symbol::PaperRange => {
                let ends = [(middle, y - 7), (middle, y + 7)];
                area.draw(&PathElement::new(ends, range_style(color)))?;
            }
        }
        for (at, line) in wrap(words, LEGEND_LETTERS).into_iter().enumerate() {
            let top = y - 7 + at as i32 * (LEGEND_STEP as i32 - 4);
            area.draw(&Text::new(line, (left + 26, top), (FONT, TEXT)))?;
        }
        y += height(entry) as i32;
    }
    Ok(())
}
