//! The `courser-lab` program.

#[cfg(test)]
#[path = "../../../crates/cli/tests/common/advice.rs"]
mod advice;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use courser_bench::rpc::peer::{self, PeerArgs};
use courser_kit::{self, Failure, VERSION};
use courser_lab::Series;

const AFTER_HELP: &str = "\
Examples:
  courser-lab verify --short
  courser-lab soak mixed --kills --for 1h
  courser-lab sim swarm --seeds 1000

Exit status: 0 success, 1 the command failed, 2 it cannot run as given.";

/// Long benchmarks, soak tests and the experiments of the papers.
#[derive(Debug, Parser)]
#[command(name = "courser-lab", version = VERSION, after_help = AFTER_HELP, max_term_width = 80)]
#[command(subcommand_required = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a long benchmark
    #[command(subcommand, subcommand_value_name = "WHAT")]
    Bench(Series),
    /// The server side of a benchmark, started by the client side
    #[command(hide = true)]
    BenchPeer(PeerArgs),
    #[command(flatten)]
    Experiment(courser_lab::ExperimentCommand),
    #[command(flatten)]
    Lab(courser_lab::Command),
}

fn main() -> ExitCode {
    courser_kit::end(match Cli::parse().command {
        Command::Bench(series) => courser_lab::run_series(&series),
        Command::BenchPeer(args) => peer::main(&args).map_err(Failure::from),
        Command::Experiment(command) => courser_lab::run_experiment(&command),
        Command::Lab(command) => courser_lab::run(&command),
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_definition_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn commands_that_texts_and_documents_name_exist() {
        let wrong = ["sings", "soak --loud", "sim|sings"];
        advice::assert_commands_exist(&Cli::command(), wrong);
    }

    #[test]
    fn values_out_of_range_are_refused() {
        for line in [
            "courser-lab soak --recovery gbn",
            "courser-lab soak --load 0",
            "courser-lab soak --load inf",
            "courser-lab soak everything",
            "courser-lab soak --times 0",
        ] {
            let error = Cli::try_parse_from(line.split(' ')).expect_err(line);
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }
}
