//! `courser-lab sim run`: the experiments of [`crate::scenario`] with tables and JSON.

pub(super) mod args;
mod figures;
mod picture;
pub(super) mod tables;

use crate::scenario::{ScenarioError, bandwidth, buffers, credits, incast, response_rtt, sessions};
use courser::Control;
use serde_json::{Value, json};

pub(crate) use args::RunArgs;

use self::args::{
    BandwidthArgs, BuffersArgs, CreditsArgs, E76Args, IncastArgs, ResponseRttArgs, Scenario,
    SpeedArgs,
};
use self::figures::{Stopwatch, Timed, Wall};
use crate::declare::observe::Observed;
use crate::declare::output::print;
use crate::declare::seeds::{Row, Runs, SeedArgs};
use crate::declare::steps::{failure, steps};
use courser_kit::Failure;
use courser_kit::json;

/// Runs an experiment and prints its result.
///
/// # Errors
/// It cannot run as given, failed, or its result could not be written.
pub(super) fn run(args: &RunArgs) -> Result<(), Failure> {
    match &args.experiment {
        Scenario::E76(args) => e76(args),
        Scenario::Incast(args) => incast(args),
        Scenario::Buffers(args) => buffers(args),
        Scenario::Credits(args) => credits(args),
        Scenario::Bandwidth(args) => bandwidth(args),
        Scenario::ResponseRtt(args) => response_rtt(args),
        Scenario::Declared(chosen) => chosen.run(),
        Scenario::Speed(args) => speed(args),
    }
}

fn e76(args: &E76Args) -> Result<(), Failure> {
    args.output.check()?;
    let settings = args.settings();
    let observed = Observed::begin(&args.observe, &settings.topology())?;
    let begin = Stopwatch::start();
    let mut running = sessions::prepare(&settings, observed.tap()).map_err(failure)?;
    let (prepare_wall_s, _) = begin.elapsed_s();
    let begin = Stopwatch::start();
    let outcome = running.measure().map_err(failure)?;
    let wall = Wall::of(&begin, &outcome.traffic);
    drop(running);
    observed.end()?;
    let seen = Timed { outcome, wall, prepare_wall_s };
    let chart = || picture::e76(&settings, &seen.outcome);
    args.output.print("e76", &settings, json!(seen), chart, || tables::e76(&settings, &seen))
}

/// Settings with a seed.
trait Seeded: Copy {
    fn with_seed(self, seed: u64) -> Self;
}

impl Seeded for incast::Settings {
    fn with_seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }
}

/// Runs an experiment with each of these settings and each seed.
fn each<S: Seeded, O>(
    seeds: SeedArgs,
    all: &[S],
    run: impl Fn(&S) -> Result<O, ScenarioError>,
) -> Result<Runs<Row<S, O>>, Failure> {
    seeds.each(|seed, step| {
        let one = |(done, settings): (usize, &S)| {
            step(done, all.len());
            let settings = settings.with_seed(seed);
            Ok((settings, run(&settings)?))
        };
        all.iter().enumerate().map(one).collect()
    })
}

fn incast(args: &IncastArgs) -> Result<(), Failure> {
    args.output.check()?;
    let all = args.settings();
    let runs = match &all[..] {
        [settings] if args.seeds.is_one() => {
            let observed = Observed::begin(&args.observe, &settings.topology())?;
            let outcome = incast::run(settings, observed.tap()).map_err(failure)?;
            observed.end()?;
            Runs::one(settings.seed, (*settings, outcome))
        }
        _ => {
            args.observe.refuse()?;
            each(args.seeds, &all, |settings| incast::run(settings, None))?
        }
    };
    let results = runs.results(|(s, outcome)| incast_json(s, outcome));
    let Some(first) = all.first() else { return Ok(()) };
    let (chart, table) = (|| runs.chart(picture::incast), || tables::incast(&runs));
    args.output.print("incast", first, json!(results), chart, table)
}

/// A result with the settings in which the runs differ.
fn incast_json(settings: &incast::Settings, outcome: &incast::Outcome) -> Value {
    let mut result = json!(outcome);
    result["control"] = json!(settings.control.name());
    result["default"] = json!(settings.control == Control::default());
    result["senders"] = json!(settings.senders);
    result["recovery"] = json!(settings.recovery.to_string());
    result
}

fn buffers(args: &BuffersArgs) -> Result<(), Failure> {
    args.output.check()?;
    let settings = args.settings();
    let run = |seed| buffers::Settings { seed, ..settings.clone() };
    let runs = args.seeds.each(|seed, step| buffers::run(&run(seed), step))?;
    let results = runs.results(|point| json!(point));
    let (chart, table) = (|| runs.chart(picture::buffers), || tables::buffers(&settings, &runs));
    args.output.print("buffers", &settings, json!(results), chart, table)
}

fn credits(args: &CreditsArgs) -> Result<(), Failure> {
    args.output.check()?;
    let settings = args.settings();
    let outcome = steps(|step| credits::run(&settings, step))?;
    let chart = || picture::credits(&settings, &outcome);
    let table = || tables::credits(&settings, &outcome);
    args.output.print("credits", &settings, json!(outcome), chart, table)
}

fn bandwidth(args: &BandwidthArgs) -> Result<(), Failure> {
    args.output.check()?;
    let settings = args.settings();
    let run = |seed| bandwidth::Settings { seed, ..settings.clone() };
    let runs = args.seeds.each(|seed, step| bandwidth::run(&run(seed), step))?;
    let results = runs.results(|row| json!(row));
    let chart = || runs.chart(|rows| picture::bandwidth(&settings, rows));
    let table = || tables::bandwidth(&settings, &runs);
    args.output.print("bandwidth", &settings, json!(results), chart, table)
}

fn response_rtt(args: &ResponseRttArgs) -> Result<(), Failure> {
    args.output.check()?;
    let settings = args.settings();
    let observed = Observed::begin(&args.observe, &settings.topology())?;
    let outcome = response_rtt::run(&settings, observed.tap()).map_err(failure)?;
    observed.end()?;
    let table = || tables::response_rtt(&settings, &outcome);
    let chart = || picture::response_rtt(&settings, &outcome);
    args.output.print("response-rtt", &settings, json!(outcome), chart, table)
}

fn speed(args: &SpeedArgs) -> Result<(), Failure> {
    json::check_target(args.json.as_deref())?;
    let results = steps(|step| figures::speed(args, step))?;
    print(args.json.as_deref(), "speed", args, json!(results), || tables::speed(&results))
}
