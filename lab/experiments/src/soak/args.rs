//! The command line of `courser-lab soak`.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};
use courser::Recovery;
use courser_kit::units;

use super::Experiment;

/// Arguments of `soak`.
#[derive(Debug, Args)]
#[command(after_help = "\
Starts two servers that call each other, and clients of both, as processes of this \
machine. Each call has a number that determines every byte of its messages. Each \
execution is recorded in a file that survives a kill. The soak test checks that each call \
ends once, in time, with a correct response or a true error, that no request is executed \
twice, and that servers return to their initial memory and sessions.

Examples:
  courser-lab soak                                 a minute without kills
  courser-lab soak mixed --kills --for 1h         an hour with kills and freezes
  courser-lab soak kill-server --times 50
  courser-lab soak connects --times 10000 --json -")]
pub struct SoakArgs {
    /// The experiment
    #[arg(value_name = "WHAT", value_enum, default_value = "mixed")]
    pub(crate) what: Experiment,
    /// Duration of mixed
    #[arg(long = "for", value_name = "TIME", default_value = "60s", value_parser = units::nonzero_time)]
    pub(crate) time: Duration,
    /// Repetitions of the other experiments
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) times: u64,
    /// In mixed: kill and freeze processes every few seconds
    #[arg(long)]
    pub(crate) kills: bool,
    /// Calls per second of all clients together
    #[arg(long, value_name = "N", default_value_t = 2000.0, value_parser = units::load)]
    pub(crate) load: f64,
    /// Largest message, up to 8MiB
    #[arg(long, value_name = "SIZE", default_value = "8MiB", value_parser = units::message_size)]
    pub(crate) max_size: usize,
    /// Loss recovery: go-back-n, go-back-n-nack, melo or default
    #[arg(long, value_name = "SCHEME", default_value_t)]
    pub(crate) recovery: Recovery,
    /// Repeat the faults and messages of an earlier run with this seed
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Write the result as JSON to a file, or to standard output with -
    #[arg(long, value_name = "PATH")]
    pub(crate) json: Option<PathBuf>,
}

impl ValueEnum for Experiment {
    fn value_variants<'a>() -> &'a [Self] {
        &Experiment::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (name, help) = self.words();
        Some(PossibleValue::new(name).help(help))
    }
}
