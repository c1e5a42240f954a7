//! Parts of a command-line program: exit status, output, JSON files, signals, units, progress.

use std::process::ExitCode;

pub mod fail;
pub mod grid;
pub mod interrupt;
pub mod json;
pub mod out;
pub mod parent;
pub mod plan;
pub mod progress;
pub mod units;

pub use fail::Failure;
pub use plan::{PlanArgs, ResultArgs};

/// Version and commit.
pub const VERSION: &str =
    concat!(env!("CARGO_PKG_VERSION"), " (commit ", env!("COURSER_COMMIT"), ")");

/// Prints the error of a command, if there is one, and returns the exit status.
pub fn end(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if let Some(text) = failure.text() {
                out::error(text);
            }
            failure.code()
        }
    }
}
