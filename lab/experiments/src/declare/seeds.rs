//! Runs with several seeds: the median of each figure, and its range.

use crate::scenario::ScenarioError;
use clap::Args;
use serde_json::{Value, json};

use crate::declare::steps::steps;
use crate::declare::text::table;
use crate::picture::Chart;
use courser_kit::Failure;

#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct SeedArgs {
    /// Seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Number of seeds from --seed on: tables show the median of each figure and its range
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
}

impl SeedArgs {
    pub(crate) fn first(self) -> u64 {
        self.seed
    }

    pub(crate) fn is_one(self) -> bool {
        self.seeds == 1
    }

    /// Runs an experiment with each seed. It returns a result for each of its cases.
    pub(crate) fn each<R>(
        self,
        run: impl Fn(u64, &mut dyn FnMut(usize, usize)) -> Result<Vec<R>, ScenarioError>,
    ) -> Result<Runs<R>, Failure> {
        Ok(Runs::of(self.seed, each_seed((self.seed, self.seeds), run)?))
    }
}

/// Runs an experiment with this many seeds from `first` on; returns the results of each seed.
fn each_seed<R>(
    (first, seeds): (u64, u64),
    run: impl Fn(u64, &mut dyn FnMut(usize, usize)) -> Result<Vec<R>, ScenarioError>,
) -> Result<Vec<Vec<R>>, Failure> {
    steps(|step| {
        let one = |at: u64| {
            let all = seeds as usize;
            run(first.wrapping_add(at), &mut |done, of| step(at as usize * of + done, all * of))
        };
        (0..seeds).map(one).collect()
    })
}

/// A run with its settings.
pub(crate) type Row<S, O> = (S, O);

/// The results of all cases of an experiment with each seed.
pub(crate) struct Runs<R> {
    first: u64,
    seeds: Vec<Vec<R>>,
}

impl<R> Runs<R> {
    /// The results of all cases with each seed from `first` on.
    pub(crate) fn of(first: u64, seeds: Vec<Vec<R>>) -> Self {
        Runs { first, seeds }
    }

    /// A single case, made of all cases with a seed.
    pub(crate) fn together<T>(&self, of: impl Fn(&[R]) -> T) -> Runs<T> {
        Runs { first: self.first, seeds: self.seeds.iter().map(|cases| vec![of(cases)]).collect() }
    }

    /// The results of a case, by seed.
    pub(crate) fn of_case(&self, case: usize) -> impl Iterator<Item = &R> {
        self.seeds.iter().filter_map(move |cases| cases.get(case))
    }

    /// The cases with the first seed.
    pub(crate) fn cases(&self) -> &[R] {
        self.seeds.first().map_or(&[], Vec::as_slice)
    }

    /// True with one seed.
    pub(crate) fn is_one(&self) -> bool {
        self.seeds.len() == 1
    }

    /// The seeds, for the caption of a table.
    pub(crate) fn caption(&self) -> String {
        match self.seeds.len() as u64 {
            0 | 1 => format!("seed {}", self.first),
            count => {
                let last = self.first.wrapping_add(count - 1);
                format!("medians of seeds {} to {last}, with the range of what differs", self.first)
            }
        }
    }

    /// A JSON object for each run with its seed; the runs of a case follow each other.
    pub(crate) fn results(&self, result: impl Fn(&R) -> Value) -> Vec<Value> {
        let with_seed = |run: &R, at: usize| {
            let mut result = result(run);
            result["seed"] = json!(self.first.wrapping_add(at as u64));
            result
        };
        let case = |case: usize| {
            let runs = self.of_case(case).enumerate();
            runs.map(|(at, run)| with_seed(run, at)).collect::<Vec<_>>()
        };
        (0..self.cases().len()).flat_map(case).collect()
    }

    /// A table of rows that each follow from one run.
    pub(crate) fn table(
        &self,
        caption: &str,
        head: &[&str],
        row: impl Fn(&R) -> Vec<Cell>,
    ) -> String {
        self.table_of(caption, head, |cases| cases.iter().map(&row).collect())
    }

    /// A table whose rows follow from all cases with a seed.
    pub(crate) fn table_of(
        &self,
        caption: &str,
        head: &[&str],
        rows: impl Fn(&[R]) -> Vec<Vec<Cell>>,
    ) -> String {
        let seeds: Vec<_> = self.seeds.iter().map(|cases| rows(cases)).collect();
        let merged = merged(&seeds);
        let differ = seeds.first().is_none_or(|rows| rows.len() < merged.len());
        let text = table(caption, head, merged);
        let same = "No figure differs between the seeds: this is one run.\n";
        if differ || self.is_one() { text } else { text + same }
    }

    /// A picture with medians and ranges.
    pub(crate) fn chart(&self, draw: impl Fn(&[R]) -> Chart) -> Chart {
        draw(self.cases()).over_seeds(self.seeds.iter().skip(1).map(|cases| draw(cases)))
    }
}

/// A cell of a table.
pub(crate) struct Cell {
    text: String,
    /// Orders the figures of several seeds; `None`: the text is that of the settings.
    value: Option<f64>,
}

impl Cell {
    pub(crate) fn new(text: String, value: f64) -> Cell {
        Cell { text, value: Some(value) }
    }

    pub(crate) fn of(value: u64, show: impl FnOnce(u64) -> String) -> Cell {
        Cell { text: show(value), value: Some(value as f64) }
    }

    /// A figure that a run may not have: then it is shown as this word, above all others.
    pub(crate) fn or(value: Option<u64>, show: impl FnOnce(u64) -> String, word: &str) -> Cell {
        let text = value.map_or_else(|| word.to_owned(), show);
        Cell { text, value: Some(value.map_or(f64::INFINITY, |value| value as f64)) }
    }

    pub(crate) fn into_text(self) -> String {
        self.text
    }

    pub(crate) fn count(value: u64) -> Cell {
        Cell::of(value, |value| value.to_string())
    }

    /// A number with this many digits after the point.
    pub(crate) fn decimal(value: f64, digits: usize) -> Cell {
        Cell { text: format!("{value:.digits$}"), value: Some(value) }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Cell {
        Cell { text, value: None }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        text.to_owned().into()
    }
}

/// The rows of all seeds as one row of medians each. Two more have the range, if a figure differs.
fn merged(seeds: &[Vec<Vec<Cell>>]) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    for row in 0..seeds.first().map_or(0, Vec::len) {
        let runs: Vec<&Vec<Cell>> = seeds.iter().filter_map(|rows| rows.get(row)).collect();
        let last = runs.len() - 1;
        all.push(ranked(&runs, last / 2, None));
        let (min, max) = (ranked(&runs, 0, Some("min")), ranked(&runs, last, Some("max")));
        if min[1..] != max[1..] {
            all.extend([min, max]);
        }
    }
    all
}

/// The figures of this rank among the runs. A row with a name has no texts of the settings.
fn ranked(runs: &[&Vec<Cell>], rank: usize, name: Option<&str>) -> Vec<String> {
    let cell = |column: usize| {
        let mut cells: Vec<&Cell> = runs.iter().filter_map(|row| row.get(column)).collect();
        cells.sort_by(|a, b| a.value.unwrap_or(0.0).total_cmp(&b.value.unwrap_or(0.0)));
        let cell = cells.get(rank)?;
        let blank = name.is_some() && cell.value.is_none();
        let own = name.filter(|_| column == 0).unwrap_or_default();
        Some(if blank { own.to_owned() } else { cell.text.clone() })
    };
    let columns = runs.first().map_or(0, |row| row.len());
    (0..columns).map(|column| cell(column).unwrap_or_default()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(values: &[u64]) -> Runs<(u32, u64)> {
        let cases = |&value: &u64| vec![(2, 7), (20, value)];
        Runs { first: 4, seeds: values.iter().map(cases).collect() }
    }

    fn text(runs: &Runs<(u32, u64)>) -> String {
        runs.table(&runs.caption(), &["control", "N", "drops"], |&(senders, drops)| {
            vec!["none".into(), senders.to_string().into(), Cell::count(drops)]
        })
    }

    #[test]
    fn a_table_has_the_median_and_the_range_of_a_figure_that_differs() {
        let rows = |text: String| -> Vec<Vec<String>> {
            let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
            text.lines().map(words).collect()
        };
        let all = text(&runs(&[30, 10, 20, 50, 40]));
        assert!(all.starts_with("medians of seeds 4 to 8"), "{all}");
        let all = rows(all);
        assert_eq!(
            all[3..],
            [
                vec!["none", "2", "7"],
                vec!["none", "20", "30"],
                vec!["min", "10"],
                vec!["max", "50"],
            ]
        );
        let one = text(&runs(&[30]));
        assert!(one.starts_with("seed 4\n") && !one.contains("min"), "{one}");
        let equal = text(&runs(&[30, 30]));
        assert!(equal.ends_with("between the seeds: this is one run.\n"), "{equal}");
        assert!(!one.contains("differs") && !equal.contains("min"), "{one} {equal}");
    }

    #[test]
    fn a_figure_that_a_run_lacks_is_the_largest() {
        let cell = |value: Option<u64>| vec!["x".into(), Cell::or(value, |n| n.to_string(), "not")];
        let seeds = [Some(1), None, Some(3)].map(|value| vec![cell(value)]);
        assert_eq!(merged(&seeds), [["x", "3"], ["min", "1"], ["max", "not"]]);
    }

    #[test]
    fn each_run_is_a_result_with_its_seed() {
        let results = runs(&[30, 10]).results(|&(n, drops)| json!({ "n": n, "drops": drops }));
        let of = |key: &str| results.iter().map(|r| r[key].as_u64().unwrap()).collect::<Vec<_>>();
        assert_eq!((of("n"), of("seed")), (vec![2, 2, 20, 20], vec![4, 5, 4, 5]));
        assert_eq!(of("drops"), [7, 7, 30, 10]);
    }

    #[test]
    fn seeds_follow_each_other_and_progress_counts_all() {
        let run = |seed, step: &mut dyn FnMut(usize, usize)| {
            step(1, 2);
            Ok(vec![seed])
        };
        assert_eq!(each_seed((7, 3), run).expect("runs"), [[7], [8], [9]]);
    }
}
