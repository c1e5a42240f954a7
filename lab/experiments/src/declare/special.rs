//! Parts that few experiments have.

use clap::{ArgMatches, Command};
use courser_kit::Failure;
use serde_json::{Value, json};

use super::output::OutputArgs;
use super::seeds::{Row, Runs};

/// Further parts of an experiment with settings `S` and results `O`.
pub(crate) struct Special<S: 'static, O: 'static> {
    /// Explanations and examples below the options.
    pub(crate) after_help: &'static str,
    /// Adds options that are no parameters.
    pub(crate) options: fn(Command) -> Command,
    /// Changes settings, for defaults that depend on other options.
    pub(crate) adjust: fn(&mut S, &ArgMatches),
    /// Does something else, if an option asks for it.
    pub(crate) instead: fn(&S, &ArgMatches, &OutputArgs) -> Option<Result<(), Failure>>,
    pub(crate) results: Results<S, O>,
}

impl<S, O> Special<S, O> {
    /// Nothing further.
    pub(crate) const NONE: Self = Special {
        after_help: "",
        options: |command| command,
        adjust: |_, _| {},
        instead: |_, _, _| None,
        results: Results::Each,
    };
}

/// The results in JSON.
pub(crate) enum Results<S: 'static, O: 'static> {
    /// A result of each run, with its seed.
    Each,
    /// The same, without the seed if there is one.
    Unseeded,
    /// A result of each case: that of the seed with the median of a value. Figures over the runs with
    /// all seeds, in the order of that value, are added.
    Median(fn(&O) -> f64, fn(&[&O]) -> Value),
    /// One result of all those with a seed; it has the seed if there are several.
    Together(fn(&S, &[&O]) -> Value),
}

impl<S, O> Results<S, O> {
    /// All results; `result` makes that of a run.
    pub(super) fn all(
        &self,
        runs: &Runs<Row<S, O>>,
        result: impl Fn(&Row<S, O>) -> Value,
    ) -> Vec<Value> {
        match self {
            Results::Unseeded if runs.is_one() => runs.cases().iter().map(result).collect(),
            Results::Each | Results::Unseeded => runs.results(result),
            Results::Together(of) => {
                let one = |rows: &[Row<S, O>]| {
                    let outcomes: Vec<&O> = rows.iter().map(|(_, outcome)| outcome).collect();
                    rows.first().map_or(Value::Null, |(settings, _)| of(settings, &outcomes))
                };
                let all = runs.together(one);
                if all.is_one() { all.cases().to_vec() } else { all.results(Value::clone) }
            }
            Results::Median(of, more) => {
                let case = |case: usize| {
                    let mut sorted: Vec<&Row<S, O>> = runs.of_case(case).collect();
                    sorted.sort_by(|a, b| of(&a.1).total_cmp(&of(&b.1)));
                    let mut median = result(sorted[(sorted.len() - 1) / 2]);
                    median["seeds"] = json!(sorted.len());
                    let outcomes: Vec<&O> = sorted.iter().map(|row| &row.1).collect();
                    if let (Value::Object(all), Value::Object(more)) =
                        (&mut median, more(&outcomes))
                    {
                        all.extend(more);
                    }
                    median
                };
                (0..runs.cases().len()).map(case).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_of_several_seeds_is_that_of_the_median() {
        let runs = Runs::of(4, [3_u64, 1, 2, 9].map(|value| vec![((), value)]).to_vec());
        let ends = |all: &[&u64]| json!({ "min": all[0], "max": all[all.len() - 1] });
        let results = Results::Median(|&value| value as f64, ends);
        let all = results.all(&runs, |(_, value)| json!({ "value": value }));
        assert_eq!(all, [json!({ "value": 2, "seeds": 4, "min": 1, "max": 9 })]);
    }

    #[test]
    fn results_without_a_seed_have_one_if_there_are_several() {
        let of = |seeds: &[u64]| {
            let runs = Runs::of(4, seeds.iter().map(|&value| vec![((), value)]).collect());
            Results::Unseeded.all(&runs, |(_, value)| json!({ "value": value }))
        };
        assert_eq!(of(&[3]), [json!({ "value": 3 })]);
        assert_eq!(of(&[3, 1])[1], json!({ "value": 1, "seed": 5 }));
    }
}
