//! `courser-lab sim run`: selects the declaration of an experiment.

use clap::Args;
use courser_kit::Failure;

use crate::declare::group::Chosen;
use crate::experiments::Run;

#[derive(Debug, Args)]
#[command(after_help = "\
The same seed has the same result on every machine, except for the time and memory that \
the simulation takes.

Examples:
  courser-lab sim run e76 --time 2ms --json e76.json
  courser-lab sim run incast --senders 20 --trace incast.txt
  courser-lab sim run fan-in --seeds 5    medians of five seeds with their range
  courser-lab sim run response-rtt --two-racks
  courser-lab sim run speed")]
pub(crate) struct RunArgs {
    #[command(subcommand)]
    experiment: Chosen<Run>,
}

/// Runs an experiment and prints its result.
///
/// # Errors
/// It cannot run as given, failed, or its result could not be written.
pub(super) fn run(args: &RunArgs) -> Result<(), Failure> {
    args.experiment.run()
}
