//! Experiments by declaration. An experiment is one file with one [`Experiment`]: its parameters, how it
//! runs, its columns, its picture and its recorded points. The command line, the results as text, JSON
//! and SVG, and what `courser-lab record`, `verify` and `report` compare follow from these.

pub(crate) mod column;
pub(crate) mod error;
pub(crate) mod group;
pub(crate) mod observe;
pub(crate) mod output;
pub(crate) mod parameter;
pub(crate) mod points;
pub(crate) mod seeds;
pub(crate) mod special;
pub(crate) mod steps;
pub(crate) mod text;

use clap::{ArgMatches, Args, Command, FromArgMatches};
use courser_kit::Failure;
use courser_sim::Tap;
use courser_sim::fabric::Topology;
use serde::Serialize;
use serde_json::{Value, json};

use self::column::Column;
use self::error::ScenarioError;
use self::observe::{ObserveArgs, Observed};
use self::output::OutputArgs;
use self::parameter::Declared;
use self::points::{self as recorded, Axis, Paper, Run, Runner, Size};
use self::special::Special;
use self::steps::failure;
use crate::declare::seeds::{Row, Runs, SeedArgs};
use crate::picture::Chart;

/// The observer of a run, if it has one.
pub(crate) type Observer = Option<Box<dyn Tap>>;

/// An experiment with settings `S` and results `O`.
pub(crate) struct Experiment<S: 'static, O: 'static> {
    /// Its name after `courser-lab sim run`.
    pub(crate) name: &'static str,
    /// Other names.
    pub(crate) aliases: &'static [&'static str],
    /// Its line of help.
    pub(crate) about: &'static str,
    pub(crate) run: Simulation<S, O>,
    /// The network, if packets can be traced.
    pub(crate) network: Option<fn(&S) -> Topology>,
    pub(crate) columns: &'static [Column<S, O>],
    /// The caption of the table from the first run. The seeds are added to its first line.
    pub(crate) caption: fn(&S, &O) -> String,
    /// More tables below, or another one in place of the table of columns.
    pub(crate) table: Table<S, O>,
    pub(crate) picture: fn(&[Row<S, O>]) -> Chart,
    pub(crate) recorded: &'static [Recorded<S, O>],
    pub(crate) special: Special<S, O>,
}

/// How an experiment runs.
pub(crate) enum Simulation<S: 'static, O: 'static> {
    /// Settings have one result.
    One(fn(&S, Observer) -> Result<O, ScenarioError>),
    /// Settings have several results, such as one for each value of a list. The function calls its
    /// second argument with the number of finished steps and their total.
    Several(fn(&S, Step<'_>) -> Result<Vec<O>, ScenarioError>),
    /// Settings have several results of one world, which can be observed.
    Observed(fn(&S, Observer) -> Result<Vec<O>, ScenarioError>),
}

/// Shows the progress of a simulation.
pub(crate) type Step<'a> = &'a mut dyn FnMut(usize, usize);

/// The table of an experiment.
pub(crate) enum Table<S: 'static, O: 'static> {
    /// A row for each run.
    Columns,
    /// A single run has a row for each column, with what it is compared with under this heading;
    /// several have a row each.
    Beside(&'static str),
    /// A row for each run, and a text below.
    Followed(fn(&Runs<Row<S, O>>) -> String),
    /// Another table; it has the caption.
    Other(fn(&str, &Runs<Row<S, O>>) -> String),
}

/// Recorded points of an experiment.
pub(crate) struct Recorded<S: 'static, O: 'static> {
    /// Its requirement in docs/conformance.md, such as `E81`, or its name.
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
    pub(crate) x: fn(&S, &O) -> f64,
    pub(crate) series: fn(&S, &O) -> String,
    /// The recorded quantities of the columns that it has; without any, all.
    pub(crate) only: &'static [&'static str],
    /// The settings of each run, but for the seed.
    pub(crate) runs: fn(Size) -> Vec<S>,
    /// Adds points that follow from the results of all runs with a seed.
    pub(crate) more: fn(&[Row<S, O>], &mut Run),
    pub(crate) paper: &'static [Paper],
}

/// An experiment of any settings and results.
pub(crate) trait Declaration: Sync {
    fn name(&self) -> &'static str;
    /// The command line.
    fn command(&self) -> Command;
    /// Runs the experiment as the command line says, and prints and writes the results.
    ///
    /// # Errors
    /// It cannot run as given, failed, or its result could not be written.
    fn run(&self, arguments: &ArgMatches) -> Result<(), Failure>;
    /// Checks the settings of a command line, as [`Declaration::run`] does.
    #[cfg(test)]
    fn check(&self, arguments: &ArgMatches) -> Result<(), Failure>;
    /// Its recorded points.
    fn recorded(&'static self) -> Vec<recorded::Experiment>;
}

impl<S: Declared + Serialize + Sync, O: Serialize> Declaration for Experiment<S, O> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn command(&self) -> Command {
        let options = S::parameters();
        let options = options.iter().filter_map(parameter::Parameter::argument);
        let command = Command::new(self.name).visible_aliases(self.aliases);
        let command = SeedArgs::augment_args(command).args(options);
        let command = (self.special.options)(command);
        let command = match self.network {
            Some(_) => ObserveArgs::augment_args(command),
            None => command,
        };
        // Last, as groups of options bring descriptions of their own.
        let command = OutputArgs::augment_args(command).about(self.about);
        match self.special.after_help {
            "" => command,
            text => command.after_help(text),
        }
    }

    fn run(&self, arguments: &ArgMatches) -> Result<(), Failure> {
        let parsed = |e: clap::Error| Failure::Usage(e.to_string());
        let output = OutputArgs::from_arg_matches(arguments).map_err(parsed)?;
        output.check()?;
        let seeds = SeedArgs::from_arg_matches(arguments).map_err(parsed)?;
        // Before files are opened and networks are built, which take time and memory.
        let cases = self.cases(arguments, seeds.first())?;
        let instead = |case| (self.special.instead)(case, arguments, &output);
        if let Some(done) = cases.first().and_then(instead) {
            return done;
        }
        let observe = match self.network {
            Some(network) => {
                Some((network, ObserveArgs::from_arg_matches(arguments).map_err(parsed)?))
            }
            None => None,
        };
        let runs = match (&observe, &cases[..]) {
            (Some((network, observe)), [case]) if seeds.is_one() => {
                let observed = Observed::begin(observe, &network(case))?;
                let outcomes = self.observed(case, observed.tap(), &mut |_, _| {});
                let outcomes = outcomes.map_err(failure)?.into_iter();
                observed.end()?;
                let rows = outcomes.map(|outcome| (case.clone(), outcome)).collect();
                Runs::of(seeds.first(), vec![rows])
            }
            (observe, _) => {
                observe.as_ref().map_or(Ok(()), |(_, observe)| observe.refuse())?;
                self.each(seeds, &cases)?
            }
        };
        let result = |(settings, outcome): &Row<S, O>| self.result(settings, outcome);
        let results = self.special.results.all(&runs, result);
        let chart = || runs.chart(self.picture);
        output.print(self.name, &cases.first(), json!(results), chart, || self.text(&runs))
    }

    #[cfg(test)]
    fn check(&self, arguments: &ArgMatches) -> Result<(), Failure> {
        self.cases(arguments, 1).map(drop)
    }

    fn recorded(&'static self) -> Vec<recorded::Experiment> {
        self.recorded.iter().map(|points| self.points(points)).collect()
    }
}

impl<S: Declared + Serialize + Sync, O: Serialize> Experiment<S, O> {
    /// The settings of a command line, whose values are in their ranges.
    fn cases(&self, arguments: &ArgMatches, seed: u64) -> Result<Vec<S>, Failure> {
        let mut cases: Vec<S> = parameter::of_arguments(arguments);
        for case in &mut cases {
            parameter::set(case, "seed", seed);
            (self.special.adjust)(case, arguments);
        }
        cases.iter().try_for_each(parameter::check).map_err(failure)?;
        Ok(cases)
    }

    /// The values of papers beside a series of the recorded points.
    pub(crate) fn stated(&self, quantity: &str, series: &str) -> Vec<(f64, f64)> {
        let all = self.recorded.iter();
        all.flat_map(|recorded| points::stated(recorded.paper, quantity, series)).collect()
    }

    /// Runs it with checked settings; returns the first result.
    pub(crate) fn once(&self, settings: &S, observer: Observer) -> Result<O, ScenarioError> {
        Ok(self.observed(settings, observer, &mut |_, _| {})?.swap_remove(0))
    }

    /// Runs it with checked settings; returns all results, one or more.
    pub(crate) fn all(&self, settings: &S, step: Step<'_>) -> Result<Vec<O>, ScenarioError> {
        self.observed(settings, None, step)
    }

    fn observed(
        &self,
        settings: &S,
        observer: Observer,
        step: Step<'_>,
    ) -> Result<Vec<O>, ScenarioError> {
        parameter::check(settings)?;
        match self.run {
            Simulation::One(run) => Ok(vec![run(settings, observer)?]),
            Simulation::Several(run) => run(settings, step),
            Simulation::Observed(run) => run(settings, observer),
        }
    }

    /// Runs it with each of these settings and each seed.
    fn each(&self, seeds: SeedArgs, cases: &[S]) -> Result<Runs<Row<S, O>>, Failure> {
        seeds.each(|seed, step| self.rows(seed, cases, step))
    }

    /// Runs it with each of these settings and a seed.
    fn rows(
        &self,
        seed: u64,
        cases: &[S],
        step: Step<'_>,
    ) -> Result<Vec<Row<S, O>>, ScenarioError> {
        let mut rows = Vec::new();
        for (done, case) in cases.iter().enumerate() {
            step(done, cases.len());
            let mut case = case.clone();
            parameter::set(&mut case, "seed", seed);
            let inner = &mut |at, of| step(done * of + at, cases.len() * of);
            let outcomes = self.all(&case, inner)?;
            rows.extend(outcomes.into_iter().map(|outcome| (case.clone(), outcome)));
        }
        Ok(rows)
    }

    /// A result in JSON: the outcome, the parameters in which runs differ, and further figures.
    fn result(&self, settings: &S, outcome: &O) -> Value {
        let mut result = json!(outcome);
        if let Some(fields) = result.as_object_mut() {
            fields.extend(parameter::reported(settings));
            self.columns.iter().for_each(|column| column.add_key(settings, outcome, fields));
        }
        result
    }

    fn text(&self, runs: &Runs<Row<S, O>>) -> String {
        let Some((settings, outcome)) = runs.cases().first() else { return String::new() };
        let caption = (self.caption)(settings, outcome);
        let (caption, note) = caption.split_once('\n').unwrap_or((&caption, ""));
        let caption = format!("{caption}, {}\n{note}", runs.caption());
        let columns: Vec<(&str, &Column<S, O>)> =
            self.columns.iter().filter_map(|column| Some((column.head()?, column))).collect();
        if let (Table::Beside(head), [(s, o)]) = (&self.table, runs.cases())
            && runs.is_one()
        {
            let row = |(head, column): (&str, &Column<S, O>)| column.row(head, s, o);
            return text::table(&caption, &["", "simulated", head], columns.into_iter().map(row));
        }
        let columns: Vec<_> =
            columns.into_iter().filter(|(_, column)| !column.is_alone()).collect();
        let heads: Vec<&str> = columns.iter().map(|(head, _)| *head).collect();
        let row = |(s, o): &Row<S, O>| columns.iter().map(|(_, c)| c.cell(s, o)).collect();
        let table = || runs.table(&caption, &heads, row);
        match self.table {
            Table::Columns | Table::Beside(_) => table(),
            Table::Followed(below) => table() + &below(runs),
            Table::Other(table) => table(&caption, runs),
        }
    }

    /// The recorded points as `record` and `verify` run them.
    fn points(&'static self, points: &'static Recorded<S, O>) -> recorded::Experiment {
        let has = |name: &str| points.only.is_empty() || points.only.contains(&name);
        let run = move |size: Size, seed: u64, run: &mut Run| {
            let cases = (points.runs)(size);
            cases.iter().for_each(|case| run.settings(case));
            let rows = self.rows(seed, &cases, &mut |_, _| {})?;
            for (case, outcome) in &rows {
                let (series, x) = ((points.series)(case, outcome), (points.x)(case, outcome));
                let all = self.columns.iter().filter_map(|c| c.recorded_point(case, outcome));
                for (name, value) in all.filter(|(name, _)| has(name)) {
                    run.add(name, series.as_str(), x, value);
                }
            }
            (points.more)(&rows, run);
            Ok(())
        };
        let quantities = self.columns.iter().filter_map(Column::recorded_quantity);
        recorded::Experiment {
            id: points.id,
            results: points.results,
            title: points.title,
            source: points.source,
            model: points.model,
            axis: points.axis,
            quantities: quantities.filter(|quantity| has(quantity.name)).collect(),
            paper: points.paper,
            run: Runner::Declared(Box::new(run)),
        }
    }
}
