//! Soak tests, the papers' experiments in the simulator, and long benchmarks.
//!
//! The program `courser-lab` runs the commands of [`Command`], [`ExperimentCommand`] and [`Series`].

#![forbid(unsafe_code)]

mod bench;
#[cfg(test)]
mod conformance;
mod declare;
pub mod experiments;
mod picture;
#[cfg(test)]
mod readme;
mod recorded;
pub mod scenario;
mod sim;
mod soak;

use clap::Subcommand;
use courser_kit::Failure;

pub use bench::{Series, run as run_series};

/// A command that is no benchmark and has no recorded results.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Kill, freeze and restart processes under load and check all guarantees
    Soak(soak::SoakArgs),
    /// Simulate a datacenter in virtual time
    Sim(sim::SimArgs),
    /// A server process of the soak test
    #[command(hide = true)]
    SoakServer(soak::server::ServerArgs),
    /// A client process of the soak test
    #[command(hide = true)]
    SoakClient(soak::client::ClientArgs),
}

/// A command about the recorded experiments.
#[derive(Debug, Subcommand)]
pub enum ExperimentCommand {
    /// Run the papers' experiments again and compare them with the recorded results
    Verify(recorded::VerifyArgs),
    /// Run the papers' experiments and write the recorded results
    Record(recorded::RecordArgs),
    /// Compare the recorded results with the papers' on one HTML page
    Report(recorded::ReportArgs),
}

/// Runs a command about the recorded experiments.
///
/// # Errors
/// A result differs from the recorded one, or the command cannot run as given.
pub fn run_experiment(command: &ExperimentCommand) -> Result<(), Failure> {
    match command {
        ExperimentCommand::Verify(args) => recorded::verify(args),
        ExperimentCommand::Record(args) => recorded::record(args),
        ExperimentCommand::Report(args) => recorded::report(args),
    }
}

/// Runs a command.
///
/// # Errors
/// The command cannot run as given, or failed.
pub fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Soak(args) => soak::run(args),
        Command::Sim(args) => sim::run(args),
        Command::SoakServer(args) => soak::server::main(args),
        Command::SoakClient(args) => soak::client::main(args),
    }
}
