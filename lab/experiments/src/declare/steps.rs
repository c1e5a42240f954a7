//! Simulations of many steps, with a progress bar.

use std::time::{Duration, Instant};

use crate::scenario::ScenarioError;
use courser_bench::progress;
use courser_kit::Failure;

/// The failure of a program for an error of a scenario.
pub(crate) fn failure(error: ScenarioError) -> Failure {
    match error {
        ScenarioError::Setting { .. } => Failure::Usage(error.to_string()),
        _ => Failure::Runtime(error.to_string()),
    }
}

/// Time between two lines about the progress where no bar is shown.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Runs a simulation of many steps with a progress bar; without a terminal, with a line now and then.
pub(crate) fn steps<R>(
    run: impl FnOnce(&mut dyn FnMut(usize, usize)) -> Result<R, ScenarioError>,
) -> Result<R, Failure> {
    let bar = progress::bar()?;
    let mut line = Instant::now();
    let done = run(&mut |done, of| {
        if bar.is_hidden() && line.elapsed() >= LINE_EVERY {
            eprintln!("{done} of {of}");
            line = Instant::now();
        }
        bar.set_position((done * 1000).checked_div(of).unwrap_or(1000) as u64);
        bar.set_message(format!("{done} of {of}"));
    });
    bar.finish_and_clear();
    done.map_err(failure)
}
