//! Common parts of Courser's programs.
//!
//! * [`fail`]: errors of commands and their exit status. [`out`]: text on standard output and error.
//!   [`interrupt`]: signals. [`parent`]: programs that a program starts.
//! * [`units`]: sizes, times and rates on the command line. [`args`]: common arguments.
//! * [`text`]: lines that fit a terminal. [`table`]: tables. `progress` (a feature): a bar.
//! * [`counters`]: declared statistics as JSON.
//! * [`file`](mod@file), [`json`]: results in files, which are replaced atomically.
//! * [`affinity`]: CPUs of a thread. [`environment`]: the machine of a measurement. `latency` (a
//!   feature): histograms.

#![forbid(unsafe_code)]

use std::process::ExitCode;

pub mod affinity;
pub mod args;
pub mod counters;
pub mod environment;
pub mod fail;
pub mod file;
mod generation;
pub mod interrupt;
pub mod json;
#[cfg(feature = "latency")]
pub mod latency;
pub mod out;
pub mod parent;
#[cfg(feature = "progress")]
pub mod progress;
pub mod table;
pub mod text;
pub mod units;

pub use args::ResultArgs;
pub use fail::Failure;

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
