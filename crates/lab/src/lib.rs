//! The laboratory: soak tests, the papers' experiments in the simulator, long benchmarks.
//!
//! The program `courser-lab` runs the commands of [`Command`]; the program `courser` includes them
//! with its default feature `lab`.

#![forbid(unsafe_code)]

mod bench;
mod sim;
mod soak;

use clap::Subcommand;
use courser_bench::program::Failure;

pub use bench::{Series, run as run_series};

/// A command of the laboratory.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Kill, freeze and restart processes under load and check every promise
    Soak(soak::SoakArgs),
    /// Run a whole datacenter in virtual time
    Sim(sim::SimArgs),
    /// A server of a soak
    #[command(hide = true)]
    SoakServer(soak::server::ServerArgs),
    /// A client of a soak
    #[command(hide = true)]
    SoakClient(soak::client::ClientArgs),
}

/// Runs a command.
///
/// # Errors
/// The command cannot be run as given, or failed.
pub fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Soak(args) => soak::run(args),
        Command::Sim(args) => sim::run(args),
        Command::SoakServer(args) => soak::server::main(args),
        Command::SoakClient(args) => soak::client::main(args),
    }
}
