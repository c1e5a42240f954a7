//! The experiments of the papers. Each is declared as its simulation, the paper's points with the reason
//! of each deviation, and quantities with a tolerance; recorded points are in files.
//!
//! `courser-lab record` runs experiments and writes the recorded results, `verify` runs them again
//! and compares, `report` writes all of them as one page.

mod args;
mod bandwidth;
mod control;
mod erpc;
mod figure;
mod markdown;
mod melo;
mod page;
mod paths;
mod pool;
mod record;
mod result;
mod store;
mod verify;

use crate::scenario::ScenarioError;
use courser_bench::report::Unit;
use courser_kit::Failure;
use serde::Serialize;
use serde_json::Value;

pub(crate) use args::{RecordArgs, ReportArgs, VerifyArgs};
pub(crate) use control::TIMELY_CX4;
pub(crate) use page::run as report;
pub(crate) use record::run as record;
pub(crate) use verify::run as verify;

/// Seeds of every experiment: results are medians over them, with their range.
const SEEDS: [u64; 5] = [1, 2, 3, 4, 5];

/// Size of a run of an experiment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Size {
    /// A few points for a short time: for continuous integration.
    Short,
    /// The points of the paper.
    Full,
}

impl Size {
    const fn name(self) -> &'static str {
        match self {
            Size::Short => "short",
            Size::Full => "full",
        }
    }

    /// The first value in a short run, the second in a full one.
    fn pick<T>(self, short: T, full: T) -> T {
        match self {
            Size::Short => short,
            Size::Full => full,
        }
    }
}

/// An experiment of a paper.
struct Experiment {
    /// Its requirement in docs/conformance.md, such as `E81`; its name in `courser-lab sim run`
    /// without one.
    id: &'static str,
    title: &'static str,
    /// Section or figure of the paper.
    source: &'static str,
    /// Description of the model and its limits.
    model: &'static str,
    /// The parameter that varies within a series.
    axis: Axis,
    quantities: &'static [Quantity],
    paper: &'static [Paper],
    /// Runs it with one seed.
    run: fn(Size, u64, &mut Run) -> Result<(), ScenarioError>,
}

/// The parameter that varies within a series.
struct Axis {
    label: &'static str,
    unit: Unit,
    /// Whether figures have a logarithmic axis.
    log: bool,
}

/// A measured quantity.
#[derive(Clone, Copy)]
struct Quantity {
    name: &'static str,
    unit: Unit,
    better: Better,
    tolerance: Tolerance,
    figure: Figure,
}

/// The direction in which a quantity is better.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Better {
    Higher,
    Lower,
    /// It has no better direction, such as the size of a window.
    Neither,
}

impl Better {
    /// Name of a difference from a stated value; empty if neither direction is better.
    const fn name(self, difference: f64) -> &'static str {
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
enum Figure {
    /// Only in the table.
    None,
    Linear,
    Log,
}

/// Largest difference between a measured and a recorded value: the larger of both fields.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Tolerance {
    /// As a share of the recorded value.
    relative: f64,
    /// In the unit of the quantity.
    absolute: f64,
}

impl Tolerance {
    const fn relative(relative: f64) -> Tolerance {
        Tolerance { relative, absolute: 0.0 }
    }

    const fn or_absolute(self, absolute: f64) -> Tolerance {
        Tolerance { absolute, ..self }
    }

    /// The largest difference from a recorded value.
    fn of(self, recorded: f64) -> f64 {
        self.absolute.max(self.relative * recorded.abs())
    }
}

/// A value of the paper.
struct Paper {
    quantity: &'static str,
    /// The measured series that it is compared with.
    series: &'static str,
    /// The position on the axis; `None`: the whole series.
    x: Option<f64>,
    value: Stated,
    /// Reason of a deviation; empty without one.
    reason: &'static str,
}

/// How a paper states a value.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Stated {
    Value(f64),
    Range(f64, f64),
    AtMost(f64),
    AtLeast(f64),
}

impl Stated {
    /// Relative deviation of a value, or absolute deviation from zero; 0 within the stated range.
    fn deviation(self, ours: f64) -> f64 {
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
struct Run {
    /// The settings of its parts, without the seed.
    settings: Vec<Value>,
    samples: Vec<Sample>,
}

/// A value of a run.
#[derive(Clone, PartialEq, Debug)]
struct Sample {
    key: Key,
    value: f64,
}

/// Identifies a point of an experiment.
#[derive(Clone, PartialEq, Debug)]
struct Key {
    quantity: &'static str,
    series: String,
    x: f64,
}

impl Run {
    /// Records the settings of a part.
    fn settings(&mut self, settings: &impl Serialize) {
        let mut settings = serde_json::to_value(settings).unwrap_or_default();
        if let Some(fields) = settings.as_object_mut() {
            fields.remove("seed");
        }
        self.settings.push(settings);
    }

    fn add(&mut self, quantity: &'static str, series: impl Into<String>, x: f64, value: f64) {
        let key = Key { quantity, series: series.into(), x };
        self.samples.push(Sample { key, value });
    }
}

impl Experiment {
    fn quantity(&self, name: &str) -> Option<&'static Quantity> {
        self.quantities.iter().find(|q| q.name == name)
    }

    /// The value of the paper for a point.
    fn paper(&self, quantity: &str, series: &str, x: f64) -> Option<&'static Paper> {
        let same = |p: &&Paper| (p.quantity, p.series) == (quantity, series);
        self.paper.iter().filter(same).find(|p| p.x.is_none_or(|at| at == x))
    }
}

/// All experiments, in the order of the papers.
const ALL: [&Experiment; 20] = [
    &erpc::CREDITS,
    &erpc::RESPONSES,
    &control::UNCONGESTED,
    &erpc::RATE,
    &erpc::SESSIONS,
    &bandwidth::BANDWIDTH,
    &erpc::INCAST,
    &control::INCAST,
    &control::BACKGROUND,
    &erpc::BUFFERS,
    &paths::FAN_IN,
    &paths::REROUTE,
    &paths::SLOW_HANDLER,
    &melo::LOST_CALL,
    &melo::REORDERING,
    &melo::RECOVERY_TIME,
    &melo::LOSS,
    &melo::CONTROLS,
    &melo::COMPLETION,
    &melo::POOL,
];

/// The values of a paper beside a series, as pairs of position and value.
pub(crate) fn stated(id: &str, quantity: &str, series: &str) -> Vec<(f64, f64)> {
    let papers = ALL.iter().filter(|e| e.id == id).flat_map(|e| e.paper);
    let same = papers.filter(|p| (p.quantity, p.series) == (quantity, series));
    let value = |p: &Paper| match (p.x, p.value) {
        (Some(x), Stated::Value(value)) => Some((x, value)),
        _ => None,
    };
    same.filter_map(value).collect()
}

/// The items of docs/conformance.md that are experiments.
#[cfg(test)]
pub(crate) fn items() -> Vec<&'static str> {
    let is_item = |id: &&str| id.starts_with(['E', 'M', 'S']);
    let mut items: Vec<_> = ALL.iter().map(|e| e.id).filter(is_item).collect();
    items.sort_unstable();
    items
}

/// The experiments of these ids, or all.
fn chosen(only: &[String]) -> Result<Vec<&'static Experiment>, Failure> {
    let known = |id: &&String| ALL.iter().any(|e| e.id.eq_ignore_ascii_case(id));
    if let Some(unknown) = only.iter().find(|id| !known(id)) {
        let ids = ALL.map(|e| e.id).join(", ");
        return Err(Failure::Usage(format!(
            "there is no experiment {unknown}: choose one of {ids}"
        )));
    }
    let is_chosen =
        |e: &&&Experiment| only.is_empty() || only.iter().any(|id| e.id.eq_ignore_ascii_case(id));
    Ok(ALL.iter().filter(is_chosen).copied().collect())
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
    fn ids_are_unique_and_papers_refer_to_quantities() {
        for (n, e) in ALL.iter().enumerate() {
            assert!(ALL[..n].iter().all(|other| other.id != e.id), "{} twice", e.id);
            for paper in e.paper {
                let quantity = e.quantity(paper.quantity);
                let has_direction = quantity.is_some_and(|q| q.better != Better::Neither);
                assert!(has_direction, "{}: {}", e.id, paper.quantity);
            }
        }
    }

    #[test]
    fn a_difference_is_better_or_worse_by_the_direction_of_its_quantity() {
        let names = |better: Better| [better.name(0.1), better.name(-0.1)];
        assert_eq!(names(Better::Higher), ["better", "worse"]);
        assert_eq!(names(Better::Lower), ["worse", "better"]);
        assert_eq!(names(Better::Neither), ["", ""]);
    }

    #[test]
    fn stated_values_are_those_of_a_series_and_have_a_position() {
        let incast = stated("E82", "round trip p99", TIMELY_CX4);
        assert_eq!(incast, [(20.0, 67_000.0), (50.0, 174_000.0), (100.0, 969_000.0)]);
        assert!(stated("E82", "round trip p99", "another").is_empty());
        // A limit is no value.
        assert!(stated("E84", "loss", "dynamic, 12 MB").is_empty());
    }

    #[test]
    fn experiments_are_chosen_by_id_in_any_case() {
        let ids = |only: &[&str]| {
            let only: Vec<String> = only.iter().map(|&id| id.to_owned()).collect();
            chosen(&only).map(|all| all.iter().map(|e| e.id).collect::<Vec<_>>())
        };
        assert_eq!(ids(&["m24", "E35"]).expect("known"), ["E35", "M24"]);
        assert_eq!(ids(&[]).expect("all").len(), ALL.len());
        assert!(matches!(ids(&["E1000"]), Err(Failure::Usage(text)) if text.contains("E35, E44")));
    }
}
