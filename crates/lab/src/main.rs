//! The `courser-lab` program.

use std::process::ExitCode;

use clap::Parser;
use courser_bench::program::{self, VERSION};

const AFTER_HELP: &str = "\
Examples:
  courser-lab soak mixed --kills --for 1h
  courser-lab sim swarm --seeds 1000

Exit status: 0 done, 1 tried and failed, 2 cannot be done as asked.";

/// Long benchmarks, soak tests and the experiments of the papers.
#[derive(Debug, Parser)]
#[command(name = "courser-lab", version = VERSION, after_help = AFTER_HELP, max_term_width = 80)]
#[command(subcommand_required = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: courser_lab::Command,
}

fn main() -> ExitCode {
    program::end(courser_lab::run(&Cli::parse().command))
}
