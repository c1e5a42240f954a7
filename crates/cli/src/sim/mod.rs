//! `courser sim`: the simulated datacenter.

mod run;
mod swarm;

use clap::{Args, Subcommand};

use crate::fail::Failure;

#[derive(Debug, Args)]
#[command(after_help = "\
Virtual time, one seed: a run gives the same result on every machine, however slow.

Examples:
  courser sim swarm --seeds 1000          1,000 worlds under every fault
  courser sim replay --seed 17 --trace    what happened in one of them
  courser sim run e76                     100 nodes, each talking to all others
  courser sim run incast --senders 50     what stands in front of one receiver")]
pub(crate) struct SimArgs {
    #[command(subcommand)]
    command: SimCommand,
}

#[derive(Debug, Subcommand)]
enum SimCommand {
    /// Look for broken promises in many small worlds, each drawn from a seed, under every fault
    Swarm(swarm::SwarmArgs),
    /// Run one seed of a swarm again and show its faults and packets
    Replay(swarm::ReplayArgs),
    /// Repeat a measurement of the paper, beside the arithmetic or the paper's own numbers
    Run(run::RunArgs),
}

/// Runs what was asked for.
///
/// # Errors
/// It cannot be done as asked, or failed.
pub(crate) fn run(args: &SimArgs) -> Result<(), Failure> {
    match &args.command {
        SimCommand::Swarm(args) => swarm::swarm(args),
        SimCommand::Replay(args) => swarm::replay(args),
        SimCommand::Run(args) => run::run(args),
    }
}
