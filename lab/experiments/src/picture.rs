//! Charts as SVG: lines over numbers or bars by names, with the values of a paper as rings.

mod axis;
mod plot;
#[cfg(test)]
mod tests;

use std::path::Path;

use courser_kit::Failure;
use courser_kit::json;

pub(crate) use axis::Axis;

/// A diagram. Its legend is on the right, so that it covers no line.
pub(crate) struct Chart {
    /// The caption; empty for none.
    pub(crate) title: String,
    pub(crate) x: X,
    pub(crate) y: Axis,
    pub(crate) lines: Vec<Line>,
}

/// The positions of the points.
pub(crate) enum X {
    /// Numbers: points are connected by lines.
    Numbers(Axis),
    /// Names, and `x` of a point is the index of one: each point is a horizontal bar.
    Names(Vec<String>),
}

/// A line with its points, or the bars of one colour.
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) style: Style,
    pub(crate) points: Vec<(f64, f64)>,
    /// Smallest and largest values at positions.
    pub(crate) ranges: Vec<Range>,
    pub(crate) paper: Option<Paper>,
}

/// A value with its limits at a position.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Range {
    pub(crate) x: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// Values of a paper: rings, and bars for ranges.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Paper {
    /// Its name in the legend; equal names have one entry.
    pub(crate) name: String,
    pub(crate) values: Vec<Range>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Style {
    /// A colour of its own.
    Main,
    /// The colour of the line before, dashed; bars are pale.
    Second,
    /// Thin and grey: not simulated.
    Calculated,
}

impl Chart {
    /// A chart of lines over numbers.
    pub(crate) fn lines(title: impl Into<String>, x: Axis, y: Axis) -> Chart {
        Chart { title: title.into(), x: X::Numbers(x), y, lines: Vec::new() }
    }

    /// A chart of bars, which are added by [`Chart::bar`].
    pub(crate) fn bars(title: impl Into<String>, y: Axis) -> Chart {
        Chart { title: title.into(), x: X::Names(Vec::new()), y, lines: Vec::new() }
    }

    /// The line with a name, which is added if there is none.
    pub(crate) fn line(&mut self, style: Style, name: impl Into<String>) -> &mut Line {
        let name = name.into();
        let at = self.lines.iter().position(|line| line.name == name).unwrap_or_else(|| {
            self.lines.push(Line::new(style, name));
            self.lines.len() - 1
        });
        &mut self.lines[at]
    }

    /// Adds a bar to a row.
    pub(crate) fn bar(&mut self, style: Style, name: &str, row: &str, value: f64) {
        let x = self.row(row);
        self.line(style, name).points.push((x, value));
    }

    /// The position of a row, which is added if there is none.
    pub(crate) fn row(&mut self, row: &str) -> f64 {
        let X::Names(names) = &mut self.x else { return 0.0 };
        let at = names.iter().position(|name| name == row).unwrap_or_else(|| {
            names.push(row.to_owned());
            names.len() - 1
        });
        at as f64
    }

    /// This chart of a seed with those of others: each point is the median, with the range of all.
    pub(crate) fn over_seeds(mut self, others: impl ExactSizeIterator<Item = Chart>) -> Chart {
        let charts = others.len() + 1;
        if charts > 1 {
            others.for_each(|chart| self.add_points(chart));
            self.lines.iter_mut().for_each(|line| line.merge(charts));
        }
        self
    }

    /// Adds the points of another chart to the lines and rows of the same names.
    fn add_points(&mut self, other: Chart) {
        for line in other.lines {
            for (x, y) in line.points {
                let x = match &other.x {
                    X::Numbers(_) => x,
                    X::Names(names) => names.get(x as usize).map_or(x, |name| self.row(name)),
                };
                self.line(line.style, &line.name).points.push((x, y));
            }
            let paper = &mut self.line(line.style, &line.name).paper;
            if let (Some(all), Some(other)) = (paper, line.paper) {
                all.values.extend(other.values);
            }
        }
    }

    /// Writes the chart to a file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn write(self, path: &Path) -> Result<(), Failure> {
        let text = self
            .svg()
            .map_err(|e| Failure::Runtime(format!("cannot draw {}: {e}", path.display())))?;
        json::write_text(path, &text)
    }

    /// The chart as SVG. Points that the axes cannot show are omitted, such as 0 on a logarithmic one.
    ///
    /// # Errors
    /// An error of the plotting library.
    pub(crate) fn svg(mut self) -> Result<String, String> {
        let shows_x = |x: f64| match &self.x {
            X::Numbers(axis) => axis.shows(x),
            X::Names(names) => (0.0..names.len() as f64).contains(&x),
        };
        let shows = |range: &Range| shows_x(range.x) && self.y.shows(range.low.min(range.high));
        for line in &mut self.lines {
            line.points.retain(|&(x, y)| shows_x(x) && self.y.shows(y));
            line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
            line.ranges.retain(shows);
            if let Some(paper) = &mut line.paper {
                paper.values.retain(shows);
            }
            line.paper.take_if(|paper| paper.values.is_empty());
        }
        plot::svg(&self).map_err(|e| e.to_string())
    }
}

impl Line {
    fn new(style: Style, name: String) -> Line {
        Line { name, style, points: Vec::new(), ranges: Vec::new(), paper: None }
    }

    /// Replaces the points of a position by their median and range.
    fn merge(&mut self, charts: usize) {
        let mut points = std::mem::take(&mut self.points);
        points.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        for same in points.chunk_by(|a, b| a.0 == b.0) {
            let (x, low) = same[0];
            let high = same[same.len() - 1].1;
            self.points.push(same[(same.len() - 1) / 2]);
            self.ranges.push(Range { x, low, high });
        }
        // Values of a paper may follow from measured ones, so that they differ too.
        if let Some(paper) = &mut self.paper {
            let of_each = paper.values.len() / charts;
            let median = |at: usize| {
                let same = paper.values.iter().skip(at).step_by(of_each).copied();
                let mut same: Vec<Range> = same.collect();
                same.sort_by(|a, b| a.low.total_cmp(&b.low));
                same[(same.len() - 1) / 2]
            };
            paper.values = (0..of_each).map(median).collect();
        }
    }

    /// Adds values of a paper, as pairs of position and value.
    pub(crate) fn add_paper(
        &mut self,
        name: impl Into<String>,
        values: impl IntoIterator<Item = (f64, f64)>,
    ) {
        let values = values.into_iter().map(|(x, y)| Range { x, low: y, high: y });
        let new = || Paper { name: name.into(), values: Vec::new() };
        self.paper.get_or_insert_with(new).values.extend(values);
    }
}

/// Checks before a long run that a picture can be written.
///
/// # Errors
/// The target is standard output, or it cannot be written.
pub(crate) fn check_target(path: Option<&Path>) -> Result<(), Failure> {
    if json::only(path) {
        return Err(Failure::Usage("--svg needs a file: standard output has the table".to_owned()));
    }
    json::check_target(path)
}
