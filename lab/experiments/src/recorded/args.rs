//! Arguments of `record`, `verify` and `report`.

use std::path::PathBuf;

use clap::Args;

use crate::declare::points::Size;

/// Arguments of `courser-lab record`.
#[derive(Debug, Args)]
#[command(after_help = "\
Runs every experiment with five seeds and writes medians, ranges and tolerances. The \
program that is built next has them.

Examples:
  courser-lab record                      all experiments, short and full
  courser-lab record --short --only E81   the points of E81 that CI compares")]
pub struct RecordArgs {
    /// Record only the short runs
    #[arg(long)]
    short: bool,
    /// Record only the full runs
    #[arg(long, conflicts_with = "short")]
    full: bool,
    #[command(flatten)]
    pub(super) select: Select,
    /// Directory of the recorded results, from the repository's root
    #[arg(long, value_name = "DIR", default_value = "lab/experiments/recorded")]
    pub(super) recorded: PathBuf,
}

/// Arguments of `courser-lab verify`.
#[derive(Debug, Args)]
#[command(after_help = "\
Runs the experiments again and compares them with the recorded results. The simulator \
is deterministic: a difference comes from a change of the code. The exit status is 1 when \
a point differs by more than its tolerance.

Examples:
  courser-lab verify --short         a few points of each: under two minutes
  courser-lab verify --only M24      one experiment with all its points")]
pub struct VerifyArgs {
    /// A few points of each experiment instead of all
    #[arg(long)]
    short: bool,
    /// Print every point, not only those that differ
    #[arg(long)]
    pub(super) points: bool,
    /// Write the comparison as JSON (- for standard output)
    #[arg(long, value_name = "PATH")]
    pub(super) json: Option<PathBuf>,
    #[command(flatten)]
    pub(super) select: Select,
    /// Directory of recorded results instead of those in this program
    #[arg(long, value_name = "DIR")]
    pub(super) recorded: Option<PathBuf>,
}

/// Arguments of `courser-lab report`.
#[derive(Debug, Args)]
#[command(after_help = "\
Writes one self-contained HTML page. It compares the recorded results of each experiment \
with the paper's, in tables and figures, and states the reasons of deviations. A file \
name that ends with .md gives the tables as Markdown.

Examples:
  courser-lab report --out report.html
  courser-lab report --out docs/results/experiments.md")]
pub struct ReportArgs {
    /// The file to write: HTML, or Markdown if its name ends with .md
    #[arg(long, value_name = "FILE")]
    pub(super) out: PathBuf,
    /// Directory of recorded results instead of those in this program
    #[arg(long, value_name = "DIR")]
    pub(super) recorded: Option<PathBuf>,
}

/// Selection of experiments.
#[derive(Debug, Args)]
pub(super) struct Select {
    /// Select this experiment, such as E81; may be repeated
    #[arg(long, value_name = "ID")]
    pub(super) only: Vec<String>,
    /// Threads [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
}

impl RecordArgs {
    pub(super) fn sizes(&self) -> &'static [Size] {
        match (self.short, self.full) {
            (true, _) => &[Size::Short],
            (_, true) => &[Size::Full],
            _ => &[Size::Short, Size::Full],
        }
    }
}

impl VerifyArgs {
    pub(super) fn size(&self) -> Size {
        if self.short { Size::Short } else { Size::Full }
    }
}

impl Select {
    pub(super) fn threads(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.map_or_else(cores, usize::from)
    }
}
