//! Recorded points: quantities with a tolerance, the values of a paper beside them, and the measurements
//! of a run.

use std::borrow::Cow;

use courser_bench::report::Unit;
use serde::Serialize;
use serde_json::Value;

use super::error::ScenarioError;

/// Size of a run of an experiment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Size {
    /// A few points for a short time: for continuous integration.
    Short,
    /// The points of the paper.
    Full,
}

impl Size {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Size::Short => "short",
            Size::Full => "full",
        }
    }

    /// The first value in a short run, the second in a full one.
    pub(crate) fn pick<T>(self, short: T, full: T) -> T {
        match self {
            Size::Short => short,
            Size::Full => full,
        }
    }
}

/// Runs an experiment of a size with a seed and adds its measurements.
pub(crate) enum Runner {
    /// A function.
    Of(fn(Size, u64, &mut Run) -> Result<(), ScenarioError>),
    /// The runs of a declaration.
    Declared(Box<DeclaredRuns>),
}

type DeclaredRuns = dyn Fn(Size, u64, &mut Run) -> Result<(), ScenarioError> + Send + Sync;

impl Runner {
    pub(crate) fn run(&self, size: Size, seed: u64, run: &mut Run) -> Result<(), ScenarioError> {
        match self {
            Runner::Of(of) => of(size, seed, run),
            Runner::Declared(of) => of(size, seed, run),
        }
    }
}

/// An experiment of a paper.
pub(crate) struct Experiment {
    /// Its requirement in docs/conformance.md, such as `E81`; its name in `courser-lab sim run`
    /// without one.
    pub(crate) id: &'static str,
    /// The file of its recorded results, as part of the program.
    pub(crate) results: &'static str,
    pub(crate) title: &'static str,
    /// Section or figure of the paper.
    pub(crate) source: &'static str,
    /// Description of the model and its limits.
    pub(crate) model: &'static str,
    /// The parameter that varies within a series.
    pub(crate) axis: Axis,
    pub(crate) quantities: Cow<'static, [Quantity]>,
    pub(crate) paper: &'static [Paper],
    /// Runs it with one seed.
    pub(crate) run: Runner,
}

/// The parameter that varies within a series.
#[derive(Clone, Copy)]
pub(crate) struct Axis {
    pub(crate) label: &'static str,
    pub(crate) unit: Unit,
    /// Figures have a logarithmic axis.
    pub(crate) log: bool,
}

/// A measured quantity.
#[derive(Clone, Copy)]
pub(crate) struct Quantity {
    pub(crate) name: &'static str,
    pub(crate) unit: Unit,
    pub(crate) better: Better,
    pub(crate) tolerance: Tolerance,
    pub(crate) figure: Figure,
    /// A value that is better than the recorded one fits by any difference.
    pub(crate) may_improve: bool,
}

impl Quantity {
    /// Returns whether a value is better than a recorded one, and may be by any difference.
    pub(crate) fn is_improved(&self, recorded: f64, measured: f64) -> bool {
        self.may_improve && self.better.name(measured - recorded) == "better"
    }
}

/// The direction in which a quantity is better.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Better {
    Higher,
    Lower,
    /// It has no better direction, such as the size of a window.
    Neither,
}

impl Better {
    /// Name of a difference from a stated value; empty if neither direction is better.
    pub(crate) const fn name(self, difference: f64) -> &'static str {
        match self {
            Better::Neither => "",
            Better::Higher if difference > 0.0 => "better",
            Better::Lower if difference < 0.0 => "better",
            _ => "worse",
        }
    }
}

/// How a quantity is drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Figure {
    /// Only in the table.
    None,
    Linear,
    Log,
}

/// Largest difference between a measured and a recorded value: the larger of both fields.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tolerance {
    /// As a share of the recorded value.
    pub(crate) relative: f64,
    /// In the unit of the quantity.
    pub(crate) absolute: f64,
}

impl Tolerance {
    pub(crate) const fn relative(relative: f64) -> Tolerance {
        Tolerance { relative, absolute: 0.0 }
    }

    pub(crate) const fn or_absolute(self, absolute: f64) -> Tolerance {
        Tolerance { absolute, ..self }
    }

    /// The largest difference from a recorded value.
    pub(crate) fn of(self, recorded: f64) -> f64 {
        self.absolute.max(self.relative * recorded.abs())
    }
}

/// Tolerance of values that follow from the settings except for rounding.
pub(crate) const TIGHT: Tolerance = Tolerance::relative(0.005);

/// Tolerance of shares and indices near 1.
pub(crate) const SHARE: Tolerance = Tolerance { relative: 0.0, absolute: 0.02 };

/// Tolerance of times that depend on the order of events.
pub(crate) const TIME: Tolerance = Tolerance::relative(0.1);

/// A quantity that is in tables only. Of these only times have a better direction.
pub(crate) const fn quantity(name: &'static str, unit: Unit, tolerance: Tolerance) -> Quantity {
    let better = match unit {
        Unit::Time => Better::Lower,
        _ => Better::Neither,
    };
    Quantity { name, unit, better, tolerance, figure: Figure::None, may_improve: false }
}

/// A value of the paper.
pub(crate) struct Paper {
    pub(crate) quantity: &'static str,
    /// The measured series that it is compared with.
    pub(crate) series: &'static str,
    /// The position on the axis; `None`: the whole series.
    pub(crate) x: Option<f64>,
    pub(crate) value: Stated,
    /// Reason of a deviation; empty without one.
    pub(crate) reason: &'static str,
}

impl Paper {
    pub(crate) const fn new(
        quantity: &'static str,
        series: &'static str,
        x: Option<f64>,
        value: Stated,
    ) -> Paper {
        Paper { quantity, series, x, value, reason: "" }
    }

    /// The reason of a deviation.
    pub(crate) const fn because(self, reason: &'static str) -> Paper {
        Paper { reason, ..self }
    }
}

/// How a paper states a value.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Stated {
    Value(f64),
    Range(f64, f64),
    AtMost(f64),
    AtLeast(f64),
}

impl Stated {
    /// Relative deviation of a value, or absolute deviation from zero; 0 within the stated range.
    pub(crate) fn deviation(self, ours: f64) -> f64 {
        let off = |bound: f64| if bound == 0.0 { ours } else { ours / bound - 1.0 };
        match self {
            Stated::Value(value) => off(value),
            Stated::Range(low, _) | Stated::AtLeast(low) if ours < low => off(low),
            Stated::Range(_, high) | Stated::AtMost(high) if ours > high => off(high),
            _ => 0.0,
        }
    }
}

/// The measurements of one run.
#[derive(Debug, Default)]
pub(crate) struct Run {
    /// The settings of its parts, without the seed.
    pub(crate) settings: Vec<Value>,
    pub(crate) samples: Vec<Sample>,
}

/// A value of a run.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Sample {
    pub(crate) key: Key,
    pub(crate) value: f64,
}

/// Identifies a point of an experiment.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Key {
    pub(crate) quantity: &'static str,
    pub(crate) series: String,
    pub(crate) x: f64,
}

impl Run {
    /// Records the settings of a part.
    pub(crate) fn settings(&mut self, settings: &impl Serialize) {
        let mut settings = serde_json::to_value(settings).unwrap_or_default();
        if let Some(fields) = settings.as_object_mut() {
            fields.remove("seed");
        }
        self.settings.push(settings);
    }

    pub(crate) fn add(
        &mut self,
        quantity: &'static str,
        series: impl Into<String>,
        x: f64,
        value: f64,
    ) {
        let key = Key { quantity, series: series.into(), x };
        self.samples.push(Sample { key, value });
    }
}

impl Experiment {
    pub(crate) fn quantity(&self, name: &str) -> Option<&Quantity> {
        self.quantities.iter().find(|q| q.name == name)
    }

    /// The value of the paper for a point.
    pub(crate) fn paper(&self, quantity: &str, series: &str, x: f64) -> Option<&'static Paper> {
        let same = |p: &&Paper| (p.quantity, p.series) == (quantity, series);
        self.paper.iter().filter(same).find(|p| p.x.is_none_or(|at| at == x))
    }
}

/// The values of a paper beside a series, as pairs of position and value.
pub(crate) fn stated(paper: &[Paper], quantity: &str, series: &str) -> Vec<(f64, f64)> {
    let same = paper.iter().filter(|p| (p.quantity, p.series) == (quantity, series));
    let value = |p: &Paper| match (p.x, p.value) {
        (Some(x), Stated::Value(value)) => Some((x, value)),
        _ => None,
    };
    same.filter_map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_within_what_the_paper_states_does_not_deviate() {
        let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(close(Stated::Value(2.0).deviation(2.5), 0.25));
        assert!(close(Stated::Range(2.0, 4.0).deviation(3.0), 0.0));
        assert!(close(Stated::Range(2.0, 4.0).deviation(1.0), -0.5));
        assert!(close(Stated::Range(2.0, 4.0).deviation(5.0), 0.25));
        assert!(close(Stated::AtMost(4.0).deviation(1.0), 0.0));
        assert!(close(Stated::AtMost(4.0).deviation(5.0), 0.25));
        assert!(close(Stated::AtMost(0.0).deviation(0.1), 0.1));
        assert!(close(Stated::AtLeast(4.0).deviation(5.0), 0.0));
        assert!(close(Stated::AtLeast(4.0).deviation(3.0), -0.25));
    }

    #[test]
    fn a_tolerance_is_the_larger_of_both() {
        let tolerance = Tolerance::relative(0.01).or_absolute(3.0);
        assert_eq!((tolerance.of(100.0), tolerance.of(-1_000.0)), (3.0, 10.0));
    }

    #[test]
    fn a_difference_is_better_or_worse_by_the_direction_of_its_quantity() {
        let names = |better: Better| [better.name(0.1), better.name(-0.1)];
        assert_eq!(names(Better::Higher), ["better", "worse"]);
        assert_eq!(names(Better::Lower), ["worse", "better"]);
        assert_eq!(names(Better::Neither), ["", ""]);
    }

    #[test]
    fn only_a_better_value_of_a_quantity_that_may_improve_is_an_improvement() {
        let of = |better, may_improve| {
            let quantity = Quantity { better, may_improve, ..quantity("", Unit::Plain, TIME) };
            [quantity.is_improved(1.0, 2.0), quantity.is_improved(1.0, 0.5)]
        };
        assert_eq!(of(Better::Higher, true), [true, false]);
        assert_eq!(of(Better::Lower, true), [false, true]);
        assert_eq!(of(Better::Neither, true), [false, false]);
        assert_eq!(of(Better::Higher, false), [false, false]);
    }

    #[test]
    fn stated_values_are_those_of_a_series_and_have_a_position() {
        let paper = |series, x, value| Paper { quantity: "loss", series, x, value, reason: "" };
        let paper = [
            paper("a", Some(20.0), Stated::Value(67.0)),
            paper("a", Some(50.0), Stated::Value(174.0)),
            paper("a", Some(60.0), Stated::AtMost(1.0)),
            paper("a", None, Stated::Value(2.0)),
            paper("b", Some(20.0), Stated::Value(3.0)),
        ];
        assert_eq!(stated(&paper, "loss", "a"), [(20.0, 67.0), (50.0, 174.0)]);
        assert!(stated(&paper, "goodput", "a").is_empty());
    }
}
