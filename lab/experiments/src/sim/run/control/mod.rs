//! `courser-lab sim run`: the experiments of congestion control, each with any control and recovery.

pub(super) mod args;
mod picture;
mod tables;

use crate::experiments::{background, join_leave, operating_range};
use crate::scenario::Hosts;
use courser::Control;
use serde::Serialize;
use serde_json::{Value, json};

use super::{Row, Seeded, each};
use crate::declare::seeds::Runs;
use crate::picture::Chart;
use args::{BackgroundArgs, JoinLeaveArgs, RangeArgs};
use courser_kit::Failure;

/// Settings of experiments with common hosts have their seed.
macro_rules! seeded {
    ($($experiment:ident),+) => {
        $(impl Seeded for $experiment::Settings {
            fn with_seed(self, seed: u64) -> Self {
                Self { hosts: Hosts { seed, ..self.hosts }, ..self }
            }
        })+
    };
}

seeded!(background, operating_range, join_leave);

/// A result with the settings in which the runs differ.
fn result(hosts: &Hosts, outcome: &impl Serialize, differs: Value) -> Value {
    let mut result = json!(outcome);
    result["control"] = json!(hosts.control.name());
    result["default"] = json!(hosts.control == Control::default());
    result["recovery"] = json!(hosts.recovery.to_string());
    if let (Some(result), Value::Object(differs)) = (result.as_object_mut(), differs) {
        result.extend(differs);
    }
    result
}

pub(super) fn background(args: &BackgroundArgs) -> Result<(), Failure> {
    args.hosts.output.check()?;
    let runs =
        each(args.hosts.seeds, &args.settings(), |settings| background::run(settings, None))?;
    let of = |(s, o): &Row<background::Settings, background::Outcome>| {
        let ratios = json!({
            "background_p99_ratio": o.background_ratio(),
            "to_victim_p99_ratio": o.to_victim_ratio(),
        });
        result(&s.hosts, o, ratios)
    };
    report(&args.hosts, "background", &runs, of, picture::background, tables::background)
}

/// Draws the picture, prints the table and writes the JSON object of all runs.
fn report<S: Serialize, O>(
    args: &args::HostArgs,
    bench: &str,
    runs: &Runs<Row<S, O>>,
    result: impl Fn(&Row<S, O>) -> Value,
    chart: impl Fn(&[Row<S, O>]) -> Chart,
    table: impl Fn(&Runs<Row<S, O>>) -> String,
) -> Result<(), Failure> {
    let results = runs.results(result);
    let first = runs.cases().first().map(|(settings, _)| settings);
    args.output.print(bench, &first, json!(results), || runs.chart(chart), || table(runs))
}

pub(super) fn operating_range(args: &RangeArgs) -> Result<(), Failure> {
    args.hosts.output.check()?;
    let runs = each(args.hosts.seeds, &args.settings(), operating_range::run)?;
    let of = |(s, o): &Row<operating_range::Settings, operating_range::Outcome>| {
        let differs = json!({
            "rate_bps": s.rate_bps,
            "base_rtt_ns": s.base_rtt_ns,
            "max_frame": s.hosts.max_frame,
            "jitter_ns": s.jitter_ns,
            "senders": s.senders,
        });
        result(&s.hosts, o, differs)
    };
    report(
        &args.hosts,
        "operating-range",
        &runs,
        of,
        picture::operating_range,
        tables::operating_range,
    )
}

pub(super) fn join_leave(args: &JoinLeaveArgs) -> Result<(), Failure> {
    args.hosts.output.check()?;
    let runs =
        each(args.hosts.seeds, &args.settings(), |settings| join_leave::run(settings, None))?;
    let of = |(s, o): &Row<join_leave::Settings, join_leave::Outcome>| {
        result(&s.hosts, o, json!({ "senders": s.senders }))
    };
    report(&args.hosts, "join-leave", &runs, of, picture::join_leave, tables::join_leave)
}
