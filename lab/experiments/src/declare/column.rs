//! Columns: what is told of a run, in the table, in JSON and among the recorded points.

use courser_bench::report::Unit;
use courser_kit::units::{show_bytes, show_ns, show_per_second};
use serde_json::Map;

use super::points::{self, Better, Figure, Quantity, Tolerance};
use super::seeds::Cell;
use super::text::percent;

/// A column of the table of an experiment with settings `S` and results `O`.
pub(crate) struct Column<S, O> {
    /// Its heading; `None`: the table does not have it.
    head: Option<&'static str>,
    cell: Of<S, O>,
    /// Its key in the results in JSON, for figures that are not in `O`.
    key: Option<&'static str>,
    point: Option<Point<S, O>>,
    /// Only the table of a single run has it.
    alone: bool,
    beside: Option<fn(&S, &O) -> String>,
}

/// The content of a column.
enum Of<S, O> {
    /// A text that follows from the settings, and is the same with every seed.
    Text(fn(&S, &O) -> String),
    Figure(Shown, fn(&S, &O) -> Option<f64>),
}

/// How a figure is shown.
#[derive(Clone, Copy)]
struct Shown {
    unit: Unit,
    /// Digits after the point of a plain number.
    digits: usize,
    /// Shown where a run does not have the figure, above all others.
    absent: &'static str,
}

/// A recorded quantity.
struct Point<S, O> {
    quantity: Quantity,
    value: fn(&S, &O) -> Option<f64>,
}

impl<S, O> Column<S, O> {
    const EMPTY: Self = Column {
        head: None,
        cell: Of::Text(|_, _| String::new()),
        key: None,
        point: None,
        alone: false,
        beside: None,
    };

    /// A column of texts.
    pub(crate) const fn text(head: &'static str, of: fn(&S, &O) -> String) -> Self {
        Column { head: Some(head), cell: Of::Text(of), ..Self::EMPTY }
    }

    /// A column of figures.
    pub(crate) const fn figure(
        head: &'static str,
        unit: Unit,
        of: fn(&S, &O) -> Option<f64>,
    ) -> Self {
        let shown = Shown { unit, digits: 3, absent: "" };
        Column { head: Some(head), cell: Of::Figure(shown, of), ..Self::EMPTY }
    }

    /// A recorded quantity that the table does not have.
    pub(crate) const fn quantity(
        name: &'static str,
        unit: Unit,
        tolerance: Tolerance,
        of: fn(&S, &O) -> Option<f64>,
    ) -> Self {
        let mut column = Self::figure(name, unit, of).recorded(name, tolerance);
        column.head = None;
        column
    }

    /// The digits of a plain number after the point; 3 without.
    pub(crate) const fn digits(mut self, digits: usize) -> Self {
        if let Of::Figure(shown, _) = &mut self.cell {
            shown.digits = digits;
        }
        self
    }

    /// The word for a run that does not have the figure.
    pub(crate) const fn or(mut self, absent: &'static str) -> Self {
        if let Of::Figure(shown, _) = &mut self.cell {
            shown.absent = absent;
        }
        self
    }

    /// The results in JSON have the figure.
    pub(crate) const fn key(mut self, key: &'static str) -> Self {
        self.key = Some(key);
        self
    }

    /// Its values are recorded as this quantity. Times are better when they are lower; others have no
    /// direction.
    pub(crate) const fn recorded(self, name: &'static str, tolerance: Tolerance) -> Self {
        let (unit, of) = match &self.cell {
            Of::Figure(shown, of) => (shown.unit, *of),
            Of::Text(_) => panic!("texts are not recorded"),
        };
        self.recorded_as(points::quantity(name, unit, tolerance), of)
    }

    /// Another value is recorded, or more is said of the quantity.
    pub(crate) const fn recorded_as(
        mut self,
        quantity: Quantity,
        value: fn(&S, &O) -> Option<f64>,
    ) -> Self {
        self.point = Some(Point { quantity, value });
        self
    }

    /// The direction in which the recorded quantity is better.
    pub(crate) const fn better(mut self, better: Better) -> Self {
        if let Some(point) = &mut self.point {
            point.quantity.better = better;
        }
        self
    }

    /// Only values that are worse than the recorded ones, in this direction, do not fit.
    pub(crate) const fn no_worse(self, better: Better) -> Self {
        let mut column = self.better(better);
        if let Some(point) = &mut column.point {
            point.quantity.may_improve = true;
        }
        column
    }

    /// The report draws the recorded quantity.
    pub(crate) const fn drawn(mut self, figure: Figure) -> Self {
        if let Some(point) = &mut self.point {
            point.quantity.figure = figure;
        }
        self
    }

    /// Only the table of a single run has it.
    pub(crate) const fn alone(self) -> Self {
        Column { alone: true, ..self }
    }

    /// The text beside the figure of a single run, such as the paper's.
    pub(crate) const fn beside(self, text: fn(&S, &O) -> String) -> Self {
        Column { beside: Some(text), ..self }
    }

    pub(crate) fn is_alone(&self) -> bool {
        self.alone
    }

    /// The row of a single run: heading, figure and the text beside it.
    pub(crate) fn row(&self, head: &str, settings: &S, outcome: &O) -> Vec<String> {
        let beside = self.beside.map_or_else(String::new, |text| text(settings, outcome));
        vec![head.to_owned(), self.cell(settings, outcome).into_text(), beside]
    }

    pub(crate) fn head(&self) -> Option<&'static str> {
        self.head
    }

    pub(crate) fn cell(&self, settings: &S, outcome: &O) -> Cell {
        match &self.cell {
            Of::Text(of) => of(settings, outcome).into(),
            Of::Figure(shown, of) => shown.cell(of(settings, outcome)),
        }
    }

    /// Adds the figure to the results, if they have it.
    pub(crate) fn add_key(
        &self,
        settings: &S,
        outcome: &O,
        to: &mut Map<String, serde_json::Value>,
    ) {
        if let (Some(key), Of::Figure(_, of)) = (self.key, &self.cell) {
            to.insert(key.to_owned(), of(settings, outcome).into());
        }
    }

    pub(crate) fn recorded_quantity(&self) -> Option<Quantity> {
        self.point.as_ref().map(|point| point.quantity)
    }

    /// The recorded value; `None` if the quantity is not recorded or the run does not have it.
    pub(crate) fn recorded_point(&self, settings: &S, outcome: &O) -> Option<(&'static str, f64)> {
        let point = self.point.as_ref()?;
        Some((point.quantity.name, (point.value)(settings, outcome)?))
    }
}

impl Shown {
    fn cell(self, value: Option<f64>) -> Cell {
        match value {
            Some(value) => Cell::new(self.text(value), value),
            None if self.absent.is_empty() => "".into(),
            None => Cell::new(self.absent.to_owned(), f64::INFINITY),
        }
    }

    fn text(self, value: f64) -> String {
        match self.unit {
            Unit::Time | Unit::Difference => show_ns(value),
            Unit::Bits => show_per_second(value, "bit/s"),
            Unit::PerSecond => show_per_second(value, "/s"),
            Unit::Bytes => show_bytes(value as u64),
            Unit::Count => format!("{value:.0}"),
            Unit::Plain => format!("{value:.*}", self.digits),
            Unit::Percent => percent(value),
        }
    }
}
