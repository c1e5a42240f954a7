//! `courser-lab sim`: the simulated datacenter.

mod replay;
mod run;
mod swarm;

use clap::{Args, Subcommand};

use courser_kit::Failure;

use crate::declare::group::Chosen;
use crate::experiments;

#[derive(Debug, Args)]
#[command(after_help = "\
Time is virtual and all random choices come from one seed, so a run has the same result \
on every machine.

Examples:
  courser-lab sim swarm --seeds 1000          check 1,000 scenarios at random
  courser-lab sim replay --seed 17 --trace    one of them, packet by packet
  courser-lab sim run e76                     100 nodes that all call each other
  courser-lab sim run incast --senders 50     goodput and queue at one receiver
  courser-lab sim loss --svg loss.svg         goodput of each recovery by loss")]
pub struct SimArgs {
    #[command(subcommand)]
    command: SimCommand,
}

#[derive(Debug, Subcommand)]
enum SimCommand {
    /// Check all invariants in many random scenarios with faults, one for each seed
    Swarm(swarm::SwarmArgs),
    /// Run one seed of `sim swarm` again and show its packets
    Replay(replay::ReplayArgs),
    /// Repeat a measurement of the eRPC paper and compare the results with the paper or with
    /// calculated values
    Run(run::RunArgs),
    #[command(flatten)]
    Recovery(Chosen<experiments::Recovery>),
}

/// Runs a command.
///
/// # Errors
/// The command cannot run as given, or failed.
pub(crate) fn run(args: &SimArgs) -> Result<(), Failure> {
    match &args.command {
        SimCommand::Swarm(args) => swarm::run(args),
        SimCommand::Replay(args) => replay::run(args),
        SimCommand::Run(args) => run::run(args),
        SimCommand::Recovery(chosen) => chosen.run(),
    }
}
