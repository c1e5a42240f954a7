//! `courser-lab sim`: the simulated datacenter.

mod recovery;
mod replay;
mod run;
mod swarm;

use clap::{Args, Subcommand};

use courser_kit::Failure;

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
    /// Goodput of one flow by loss and reordering, for each loss recovery [MELO §4.1.1]
    Loss(recovery::LossArgs),
    /// Completion times of web-search flows over a lossy spine [MELO §4.1.2]
    Fct(recovery::FctArgs),
    /// Peak use of the receiver's pool of bits with MELO [MELO §4.2.2]
    BitsPool(recovery::BitsPoolArgs),
    /// Latency that one lost packet adds to a small call
    LostCall(recovery::LostCallArgs),
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
        SimCommand::Loss(args) => recovery::loss(args),
        SimCommand::Fct(args) => recovery::fct(args),
        SimCommand::BitsPool(args) => recovery::bits_pool(args),
        SimCommand::LostCall(args) => recovery::lost_call(args),
    }
}
