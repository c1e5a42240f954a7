//! `courser sim`: the simulated datacenter.

mod recovery;
mod replay;
mod run;
mod swarm;

use clap::{Args, Subcommand};

use courser_bench::program::Failure;

#[derive(Debug, Args)]
#[command(after_help = "\
Virtual time, one seed: a run gives the same result on every machine, however slow.

Examples:
  courser sim swarm --seeds 1000          1,000 drawn worlds, with everything checked
  courser sim replay --seed 17 --trace    one of them, packet by packet
  courser sim run e76                     100 nodes, each talking to all others
  courser sim run incast --senders 50     what stands in front of one receiver
  courser sim loss --svg loss.svg         goodput of each loss recovery against loss")]
pub struct SimArgs {
    #[command(subcommand)]
    command: SimCommand,
}

#[derive(Debug, Subcommand)]
enum SimCommand {
    /// Check everything in many worlds, each drawn from a seed, under every fault
    Swarm(swarm::SwarmArgs),
    /// Run one seed of the swarm again and show its packets
    Replay(replay::ReplayArgs),
    /// Repeat a measurement of the paper, beside the arithmetic or the paper's own numbers
    Run(run::RunArgs),
    /// Goodput of one flow against loss and reordering, for each loss recovery [MELO §4.1.1]
    Loss(recovery::LossArgs),
    /// Completion times of web-search flows over a lossy spine [MELO §4.1.2]
    Fct(recovery::FctArgs),
    /// Use of the receiver's bits pool with MELO [MELO §4.2.2]
    BitsPool(recovery::BitsPoolArgs),
    /// What the loss of a packet costs a small call
    LostCall(recovery::LostCallArgs),
}

/// Runs what was asked for.
///
/// # Errors
/// It cannot be done as asked, or failed.
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
