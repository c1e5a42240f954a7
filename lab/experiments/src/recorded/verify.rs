//! `courser-lab verify`: compares experiments with their recorded results.

use std::io::Write;
use std::time::Instant;

use courser_bench::report::Unit;
use courser_bench::table::show;
use courser_kit::table::Table;
use courser_kit::text::labelled;
use courser_kit::{Failure, json, out};
use serde::Serialize;
use serde_json::json;

use super::args::VerifyArgs;
use super::result::{Measured, Point, Results};
use super::store::Store;
use super::{SEEDS, chosen, pool};
use crate::declare::points::{Experiment, Size};

/// The recorded and the measured values of a point.
#[derive(Debug, Serialize)]
struct Compared {
    experiment: &'static str,
    point: String,
    /// Medians.
    recorded: Option<f64>,
    measured: Option<f64>,
    /// Lowest and highest values of all seeds.
    recorded_range: Option<[f64; 2]>,
    measured_range: Option<[f64; 2]>,
    /// The largest difference of the medians that fits.
    tolerance: f64,
    /// Whether the medians, the lowest and the highest values fit.
    fits: bool,
    /// The largest difference as a share of the largest that fits; `None`: nothing to compare.
    #[serde(skip)]
    farthest: Option<f64>,
    #[serde(skip)]
    unit: Unit,
}

impl Compared {
    /// Experiment, point, recorded and measured value, tolerance: the message of a failure. It has
    /// the ranges if only those differ by too much.
    fn text(&self) -> String {
        let (id, point) = (self.experiment, &self.point);
        let shown = |value| show_exact(self.unit, value);
        match (self.recorded, self.measured) {
            (Some(recorded), Some(measured)) => {
                let range = |range: Option<[f64; 2]>| {
                    let [low, high] = range.unwrap_or_default().map(shown);
                    format!("{low} to {high}")
                };
                let (what, recorded, measured) =
                    if self.fits || (measured - recorded).abs() > self.tolerance {
                        ("", shown(recorded), shown(measured))
                    } else {
                        ("range ", range(self.recorded_range), range(self.measured_range))
                    };
                let tolerance = shown(self.tolerance);
                format!(
                    "{id}: {point}: {what}recorded {recorded}, measured {measured}, tolerance \
                     {tolerance}"
                )
            }
            (Some(_), None) => format!("{id}: {point}: recorded, but not measured any more"),
            _ => format!("{id}: {point}: measured, but not recorded (`courser-lab record`)"),
        }
    }
}

/// A value with enough digits for small differences.
fn show_exact(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Percent => format!("{:.3} %", value * 100.0),
        _ => show(unit, value),
    }
}

/// Compares the points of an experiment.
fn compare(
    experiment: &'static Experiment,
    recorded: &Results,
    measured: &Measured,
) -> Vec<Compared> {
    let unit = |p: &Point| experiment.quantity(&p.quantity).map_or(Unit::Plain, |q| q.unit);
    let of = |p: &Point, recorded: Option<&Point>, measured: Option<&Point>| {
        let range = |p: &Point| [p.min, p.max];
        let farthest = recorded.zip(measured).map(|(r, m)| farthest(experiment, r, m));
        Compared {
            experiment: experiment.id,
            point: p.name(experiment),
            recorded: recorded.map(|r| r.median),
            measured: measured.map(|m| m.median),
            recorded_range: recorded.map(range),
            measured_range: measured.map(range),
            tolerance: recorded.map_or(0.0, |r| allowed(experiment, r, r.median)),
            fits: farthest.is_some_and(|share| share <= 1.0),
            farthest,
            unit: unit(p),
        }
    };
    let known = recorded.points.iter();
    let mut all: Vec<Compared> =
        known.map(|r| of(r, Some(r), measured.points.iter().find(|m| m.is(r)))).collect();
    let is_new = |m: &&Point| !recorded.points.iter().any(|r| r.is(m));
    all.extend(measured.points.iter().filter(is_new).map(|m| of(m, None, Some(m))));
    all
}

/// The largest difference of median, lowest and highest value, each as a share of the largest that
/// fits.
fn farthest(experiment: &'static Experiment, recorded: &Point, measured: &Point) -> f64 {
    let values = [
        (recorded.median, measured.median),
        (recorded.min, measured.min),
        (recorded.max, measured.max),
    ];
    let quantity = experiment.quantity(&recorded.quantity);
    let share = |(r, m): (f64, f64)| {
        // Differences by rounding are ignored.
        let fits = allowed(experiment, recorded, r) + 1e-12 * r.abs();
        let is_improved = quantity.is_some_and(|quantity| quantity.is_improved(r, m));
        if r == m || is_improved { 0.0 } else { (m - r).abs() / fits }
    };
    values.map(share).into_iter().max_by(f64::total_cmp).unwrap_or(0.0)
}

/// The largest difference from a value of a recorded point. A file cannot loosen the experiment's
/// tolerance.
fn allowed(experiment: &'static Experiment, recorded: &Point, value: f64) -> f64 {
    let declared = experiment.quantity(&recorded.quantity).map(|q| q.tolerance);
    let declared = declared.map_or(f64::INFINITY, |tolerance| tolerance.of(value));
    recorded.tolerance.of(value).min(declared)
}

/// The recorded results of an experiment.
fn recorded(
    args: &VerifyArgs,
    experiment: &'static Experiment,
    size: Size,
) -> Result<Results, Failure> {
    let store = Store::of(args.recorded.as_deref());
    let (id, name) = (experiment.id, store.name(experiment));
    let missing = |what: &str| {
        let again = format!("`courser-lab record --only {id}` writes it");
        Failure::Usage(format!("{name}: {what}; {again}"))
    };
    let file = store.read(experiment)?.ok_or_else(|| missing("there is no file"))?;
    let results = file.of(size).cloned();
    results.ok_or_else(|| missing(&format!("it has no {} runs", size.name())))
}

/// Runs experiments and compares them with their recorded results.
///
/// # Errors
/// A point is off by more than its tolerance, an experiment failed, or has no recorded results.
pub(crate) fn run(args: &VerifyArgs) -> Result<(), Failure> {
    json::check_target(args.json.as_deref())?;
    let (experiments, size) = (chosen(&args.select.only)?, args.size());
    // All files are read first, so that an error does not occur after an hour.
    let recorded: Vec<Results> =
        experiments.iter().map(|e| recorded(args, e, size)).collect::<Result<_, _>>()?;
    let begin = Instant::now();
    let measured = pool::run(&experiments, size, args.select.threads())?;
    let took_s = begin.elapsed().as_secs_f64();
    let mut compared = Vec::new();
    let mut other_settings = Vec::new();
    for ((experiment, recorded), measured) in experiments.iter().zip(&recorded).zip(&measured) {
        compared.push(compare(experiment, recorded, measured));
        if recorded.settings != measured.settings || recorded.seeds != SEEDS {
            other_settings.push(experiment.id);
        }
    }
    if !json::only(args.json.as_deref()) {
        let mut out = out::stdout();
        writeln!(out, "{}", table(&experiments, &compared))?;
        let count: usize = compared.iter().map(Vec::len).sum();
        let (seeds, size) = (SEEDS.len(), size.name());
        writeln!(out, "{count} points of the {size} runs, {seeds} seeds each, in {took_s:.1} s")?;
        for point in compared.iter().flatten().filter(|p| args.points || !p.fits) {
            let mark = if point.fits { "" } else { "OFF " };
            writeln!(out, "{}", labelled(mark, &point.text()))?;
        }
    }
    if let Some(target) = &args.json {
        let report = json!({
            "bench": "verify",
            "transport": "sim",
            "config": { "size": size, "seeds": SEEDS },
            "results": compared.iter().flatten().collect::<Vec<_>>(),
            "environment": json::environment(None),
        });
        json::write(target, &report)?;
    }
    verdict(&other_settings, &compared)
}

fn verdict(other_settings: &[&str], compared: &[Vec<Compared>]) -> Result<(), Failure> {
    let off: Vec<&Compared> = compared.iter().flatten().filter(|p| !p.fits).collect();
    match (&off[..], other_settings) {
        ([], []) => Ok(()),
        ([], [id, ..]) => Err(Failure::Runtime(format!(
            "{id} was recorded with other settings: `courser-lab record --only {id}`"
        ))),
        ([first], _) => Err(Failure::Runtime(first.text())),
        ([first, others @ ..], _) => {
            Err(Failure::Runtime(format!("{}; and {} more", first.text(), others.len())))
        }
    }
}

/// A row for each experiment.
fn table(experiments: &[&'static Experiment], compared: &[Vec<Compared>]) -> Table {
    let mut table = Table::plain(["id", "experiment", "points", "farthest", ""]);
    for (experiment, points) in experiments.iter().zip(compared) {
        let off = points.iter().filter(|p| !p.fits).count();
        let shares = points.iter().filter_map(|p| p.farthest).filter(|share| share.is_finite());
        let farthest = shares.max_by(f64::total_cmp);
        let farthest = farthest.map(|share| format!("{:.0} %", share * 100.0));
        table.add_row([
            experiment.id.to_owned(),
            experiment.title.to_owned(),
            points.len().to_string(),
            farthest.unwrap_or_default(),
            if off == 0 { "fits".to_owned() } else { format!("{off} OFF") },
        ]);
    }
    table.align_right(2..4);
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::declare::points::{Run, Tolerance};
    use crate::recorded::result::merge;
    use crate::recorded::{all, of_id};

    fn measured(values: &[(f64, f64)]) -> Measured {
        let mut run = Run::default();
        for &(x, value) in values {
            run.add("goodput", "simulated", x, value);
        }
        merge(of_id("E81"), vec![run])
    }

    /// The recorded or measured points that do not fit.
    fn off(recorded: &[(f64, f64)], again: &[(f64, f64)]) -> Vec<String> {
        let recorded = Results::new(measured(recorded));
        let compared = compare(of_id("E81"), &recorded, &measured(again));
        compared.iter().filter(|p| !p.fits).map(Compared::text).collect()
    }

    #[test]
    fn a_point_fits_within_its_tolerance_on_both_sides() {
        let recorded = [(20.0, 20e9)];
        for same in [20e9, 20.09e9, 19.91e9] {
            assert_eq!(off(&recorded, &[(20.0, same)]), [""; 0]);
        }
        assert_eq!(
            off(&recorded, &[(20.0, 20.2e9)]),
            ["E81: goodput, simulated, senders 20: recorded 20.00 Gbit/s, measured 20.20 Gbit/s, \
                tolerance 100.00 Mbit/s"]
        );
        assert_eq!(off(&recorded, &[(20.0, 19.8e9)]).len(), 1);
    }

    #[test]
    fn the_range_of_the_seeds_fits_within_the_tolerance_too() {
        let recorded = || Results::new(measured(&[(20.0, 20e9)]));
        for (edit, fits) in [(19.95e9, true), (19e9, false), (f64::NAN, false)] {
            let mut edited = recorded();
            edited.points[0].min = edit;
            let compared = compare(of_id("E81"), &edited, &measured(&[(20.0, 20e9)]));
            assert_eq!(compared[0].fits, fits, "{:?}", compared[0]);
        }
        let mut edited = recorded();
        edited.points[0].max = 21e9;
        let compared = compare(of_id("E81"), &edited, &measured(&[(20.0, 20e9)]));
        assert_eq!(
            compared[0].text(),
            "E81: goodput, simulated, senders 20: range recorded 20.00 Gbit/s to 21.00 Gbit/s, \
                measured 20.00 Gbit/s to 20.00 Gbit/s, tolerance 100.00 Mbit/s"
        );
    }

    #[test]
    fn a_file_cannot_loosen_the_tolerance_of_an_experiment() {
        let mut recorded = Results::new(measured(&[(20.0, 20e9)]));
        recorded.points[0].tolerance = Tolerance::relative(0.5);
        let compared = compare(of_id("E81"), &recorded, &measured(&[(20.0, 20.2e9)]));
        assert!(!compared[0].fits, "{:?}", compared[0]);
    }

    #[test]
    fn a_point_that_is_missing_or_new_does_not_fit() {
        let (one, two) = (&[(20.0, 1e9)][..], &[(20.0, 1e9), (50.0, 1e9)][..]);
        assert!(off(two, one)[0].ends_with("senders 50: recorded, but not measured any more"));
        assert!(off(one, two)[0].contains("senders 50: measured, but not recorded"));
    }

    #[test]
    fn the_table_fits_80_columns() {
        let compared: Vec<_> = all().iter().map(|_| Vec::new()).collect();
        let table = table(&all().iter().collect::<Vec<_>>(), &compared).to_string();
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    }
}
