//! Commands of the laboratory, in programs that are built with the feature `lab`.

mod bench;
mod figures;
mod overload;
mod replay;
mod sim;

use clap::Subcommand;
use courser_kit::Failure;

#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    /// Forward the packets of a capture in memory, and count what becomes of them
    Replay(replay::ReplayArgs),
    /// Measure packets per second from memory to a counter
    Bench(bench::BenchArgs),
    /// Measure what is delivered of 0.5 to 4 times the capacity, beside the kernel's forwarding
    Overload(overload::OverloadArgs),
    /// Run the nodes in the simulated datacenter
    Sim(sim::SimArgs),
    /// Throughput and latency by batch and packet size, in the simulated datacenter
    Figures(figures::FiguresArgs),
}

/// Runs a command.
pub(super) fn run(command: LabCommand) -> Result<(), Failure> {
    match command {
        LabCommand::Replay(args) => replay::run(&args),
        LabCommand::Bench(args) => bench::run(&args),
        LabCommand::Overload(args) => overload::run(&args),
        LabCommand::Sim(args) => sim::run(&args),
        LabCommand::Figures(args) => figures::run(&args),
    }
}
