//! Command-line arguments of all benchmarks: the duration of the measurement.

use std::time::Duration;

use clap::Args;
use courser_kit::{Failure, ResultArgs, units};

use crate::report::Report;
use crate::window::Plan;

/// Duration of the measurement.
#[derive(Clone, Debug, Default, Args)]
pub struct PlanArgs {
    /// Measure for a few seconds instead of half a minute or more
    #[arg(long)]
    pub quick: bool,
    /// Pairs of one raw window and one window of RPCs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub pairs: Option<u32>,
    /// Longest time to measure. A series of n settings may take n times this, at most 6 times.
    /// Default 2min, with --quick 2500ms
    #[arg(long, value_name = "TIME", value_parser = units::nonzero_time)]
    pub max_time: Option<Duration>,
}

impl PlanArgs {
    /// The plan.
    pub fn plan(&self) -> Plan {
        let plan = if self.quick { Plan::quick() } else { Plan::full() };
        Plan {
            pairs: self.pairs.unwrap_or(plan.pairs),
            max_time: self.max_time.unwrap_or(plan.max_time),
            ..plan
        }
    }
}

/// As [`ResultArgs::show`], but returns an error instead of printing `text` if other programs took much
/// CPU time from the benchmark.
///
/// # Errors
/// Standard output or the file cannot be written, or there is no result on a busy machine.
pub fn show(
    output: &ResultArgs,
    report: &Report,
    text: impl FnOnce() -> String,
) -> Result<(), Failure> {
    let disturbed = report.disturbed().filter(|_| !output.anyway);
    let text = || disturbed.map_or_else(text, |_| String::new());
    output.show(report, text)?;
    output.accept(disturbed)
}
