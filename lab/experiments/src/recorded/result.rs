//! Results over all seeds, and the files of recorded results.

use courser_kit::Failure;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::SEEDS;
use crate::declare::points::{Experiment, Key, Run, Size, Tolerance};

/// A point over all seeds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Point {
    pub(super) quantity: String,
    pub(super) series: String,
    /// Position on the experiment's axis.
    pub(super) x: f64,
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
    /// Largest difference of the median of another run.
    pub(super) tolerance: Tolerance,
}

impl Point {
    /// True if all seeds have the same value, so that the median is that of one run.
    pub(super) fn is_one_run(&self) -> bool {
        self.min == self.max
    }

    pub(super) fn is(&self, other: &Point) -> bool {
        (&self.quantity, &self.series, self.x) == (&other.quantity, &other.series, other.x)
    }

    /// Its name in tables and messages.
    pub(super) fn name(&self, experiment: &Experiment) -> String {
        let x = show_x(experiment, self.x);
        format!("{}, {}, {} {x}", self.quantity, self.series, experiment.axis.label)
    }
}

/// A position on the axis in its shortest exact form.
pub(super) fn show_x(experiment: &Experiment, x: f64) -> String {
    use courser_bench::report::Unit;
    match experiment.axis.unit {
        Unit::Percent => format!("{} %", (x * 1e6).round() / 1e4),
        Unit::Time => courser_kit::units::show_ns(x),
        _ if x != 0.0 && x < 0.1 => format!("{x:e}"),
        _ => format!("{x}"),
    }
}

/// The measurements of all runs of an experiment.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) settings: Vec<Value>,
    pub(super) points: Vec<Point>,
}

/// Medians and ranges over the runs with all seeds.
pub(super) fn merge(experiment: &Experiment, runs: Vec<Run>) -> Measured {
    let mut keys: Vec<Key> = Vec::new();
    for sample in runs.iter().flat_map(|run| &run.samples) {
        if !keys.contains(&sample.key) {
            keys.push(sample.key.clone());
        }
    }
    let of = |key: Key| {
        let samples = runs.iter().flat_map(|run| &run.samples).filter(|s| s.key == key);
        let mut values: Vec<f64> = samples.map(|s| s.value).collect();
        values.sort_by(f64::total_cmp);
        let tolerance = experiment.quantity(key.quantity).map(|q| q.tolerance);
        Point {
            quantity: key.quantity.to_owned(),
            series: key.series,
            x: key.x,
            median: values[(values.len() - 1) / 2],
            min: values[0],
            max: values[values.len() - 1],
            tolerance: tolerance.unwrap_or(Tolerance::relative(0.0)),
        }
    };
    let points = keys.into_iter().map(of).collect();
    let settings = runs.into_iter().next().map(|run| run.settings).unwrap_or_default();
    Measured { settings, points }
}

/// The recorded results of an experiment.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Recorded {
    pub(super) experiment: String,
    pub(super) short: Option<Results>,
    pub(super) full: Option<Results>,
}

/// The recorded results of one size.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Results {
    /// Version of the program that measured them.
    pub(super) version: String,
    pub(super) seeds: Vec<u64>,
    pub(super) settings: Vec<Value>,
    pub(super) points: Vec<Point>,
}

impl Results {
    pub(super) fn new(measured: Measured) -> Results {
        Results {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            seeds: SEEDS.to_vec(),
            settings: measured.settings,
            points: measured.points,
        }
    }
}

impl Recorded {
    pub(super) fn of(&self, size: Size) -> Option<&Results> {
        match size {
            Size::Short => self.short.as_ref(),
            Size::Full => self.full.as_ref(),
        }
    }

    pub(super) fn set(&mut self, size: Size, results: Results) {
        match size {
            Size::Short => self.short = Some(results),
            Size::Full => self.full = Some(results),
        }
    }

    /// Reads the text of a file with the name `shown`.
    ///
    /// # Errors
    /// The text has no recorded results of this experiment; the error names the file.
    pub(super) fn parse(
        text: &str,
        shown: &str,
        experiment: &Experiment,
    ) -> Result<Recorded, Failure> {
        let again = format!("`courser-lab record --only {}` writes it again", experiment.id);
        let wrong = |e: &dyn std::fmt::Display| {
            Failure::Usage(format!("{shown} has no recorded results: {e}; {again}"))
        };
        let recorded: Recorded = serde_json::from_str(text).map_err(|e| wrong(&e))?;
        if recorded.experiment != experiment.id {
            let other = format!("it is of experiment {}", recorded.experiment);
            return Err(wrong(&other));
        }
        let points =
            [&recorded.short, &recorded.full].into_iter().flatten().flat_map(|r| &r.points);
        for p in points {
            let Tolerance { relative, absolute } = p.tolerance;
            if relative < 0.0 || absolute < 0.0 {
                return Err(wrong(&format!("{} has a negative tolerance", p.name(experiment))));
            }
        }
        Ok(recorded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorded::of_id;

    #[test]
    fn points_are_medians_and_ranges_over_the_seeds() {
        let run = |value| {
            let mut run = Run::default();
            run.settings(&serde_json::json!({ "seed": 7, "senders": 20 }));
            run.add("goodput", "simulated", 20.0, value);
            run
        };
        let measured = merge(of_id("E81"), [5.0, 1.0, 3.0, 9.0, 2.0].map(run).into());
        let [p] = &measured.points[..] else { panic!("{measured:?}") };
        assert_eq!((p.median, p.min, p.max), (3.0, 1.0, 9.0));
        assert_eq!(p.name(of_id("E81")), "goodput, simulated, senders 20");
        assert_eq!(measured.settings, [serde_json::json!({ "senders": 20 })], "without the seed");
    }
}
