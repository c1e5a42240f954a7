//! Simulations of many steps, with a progress bar.

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

/// Runs a simulation of many steps with a progress bar.
pub(crate) fn steps<R>(
    run: impl FnOnce(&mut dyn FnMut(usize, usize)) -> Result<R, ScenarioError>,
) -> Result<R, Failure> {
    let bar = progress::bar()?;
    let done = run(&mut |done, of| {
        bar.set_position((done * 1000).checked_div(of).unwrap_or(1000) as u64);
        bar.set_message(format!("{done} of {of}"));
    });
    bar.finish_and_clear();
    done.map_err(failure)
}
