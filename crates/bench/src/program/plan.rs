//! Command-line arguments of all benchmarks: duration, and destination of the result.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::fail::Failure;
use super::{json, out, units};
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

/// Destination of the result, and whether figures of a busy machine are shown.
#[derive(Clone, Debug, Default, Args)]
pub struct ResultArgs {
    /// Write the result as JSON to a file, or to standard output with -
    #[arg(long, value_name = "PATH")]
    pub json: Option<PathBuf>,
    /// Show figures even if other programs took CPU time from the benchmark
    #[arg(long)]
    pub anyway: bool,
}

impl ResultArgs {
    /// Fails early if the file cannot be written.
    ///
    /// # Errors
    /// The target's directory does not exist or cannot be written.
    pub fn check(&self) -> Result<(), Failure> {
        json::check_target(self.json.as_deref())
    }

    /// As [`ResultArgs::show`], but returns an error instead of printing `text` if other programs
    /// took much CPU time from the benchmark.
    ///
    /// # Errors
    /// Standard output or the file cannot be written, or there is no result on a busy machine.
    pub fn show_report(
        &self,
        report: &Report,
        text: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        let disturbed = report.disturbed().filter(|_| !self.anyway);
        let text = || disturbed.map_or_else(text, |_| String::new());
        self.show(report, text)?;
        self.accept(disturbed)
    }

    /// Returns an error if other programs took this share of the time. With `--json` it is a warning
    /// because the report contains the share.
    ///
    /// # Errors
    /// [`Failure::Runtime`] that states the share and the remedy.
    pub fn accept(&self, disturbed: Option<f64>) -> Result<(), Failure> {
        let Some(share) = disturbed.filter(|_| !self.anyway) else { return Ok(()) };
        let text = format!(
            "the machine was busy: the benchmark's threads waited {share:.2} s for a CPU in each second, \
             so its figures say little about Courser; end other programs and repeat, or add --anyway"
        );
        match self.json {
            Some(_) => out::warn(&text),
            None => return Err(Failure::Runtime(text)),
        }
        Ok(())
    }

    /// Prints `text`, unless standard output is for JSON, and writes the JSON.
    ///
    /// # Errors
    /// Standard output or the file cannot be written.
    pub fn show(
        &self,
        report: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        let target: Option<&Path> = self.json.as_deref();
        if !json::only(target) {
            let mut out = out::stdout();
            write!(out, "{}", text())?;
            out.flush()?;
        }
        target.map_or(Ok(()), |target| json::write(target, report))
    }
}
