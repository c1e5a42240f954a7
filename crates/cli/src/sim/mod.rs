//! `courser sim`: the simulated datacenter.

mod run;

use clap::{Args, Subcommand};

use crate::fail::Failure;

#[derive(Debug, Args)]
#[command(after_help = "\
Virtual time, one seed: a run gives the same result on every machine, however slow.

Examples:
  courser sim run e76                     100 nodes, each talking to all others
  courser sim run incast --senders 50     what stands in front of one receiver")]
pub(crate) struct SimArgs {
    #[command(subcommand)]
    command: SimCommand,
}

#[derive(Debug, Subcommand)]
enum SimCommand {
    /// Repeat a measurement of the paper, beside the arithmetic or the paper's own numbers
    Run(run::RunArgs),
}

/// Runs what was asked for.
///
/// # Errors
/// It cannot be done as asked, or failed.
pub(crate) fn run(args: &SimArgs) -> Result<(), Failure> {
    match &args.command {
        SimCommand::Run(args) => run::run(args),
    }
}
