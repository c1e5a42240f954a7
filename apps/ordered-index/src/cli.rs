//! The command line: subcommands, flags and help texts.

mod bench;
mod client;
mod serve;
mod sim;

use clap::{Parser, Subcommand, ValueEnum};
use courser_kit::progress;
use courser_kit::{Failure, VERSION};
use courser_ordered_index::load::MOST_KEYS;
use courser_ordered_index::service::Scans;
use indicatif::ProgressBar;

const EXAMPLES: &str = "\
Examples:
  ordered-index serve --keys 1000000
  ordered-index client put udp://127.0.0.1:31860 7 42
  ordered-index client scan udp://127.0.0.1:31860 0 --count 128
  ordered-index bench                     the paper's mix, on this machine
  ordered-index sim                       the paper's cluster, in virtual time

Traffic is neither encrypted nor authenticated: use it on trusted networks only.
Exit status: 0 success, 1 the command failed, 2 it cannot run as given.";

/// An ordered index in memory, served by Courser.
#[derive(Debug, Parser)]
#[command(name = "ordered-index", version = VERSION, after_help = EXAMPLES, max_term_width = 80)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve an index until Ctrl-C
    Serve(serve::ServeArgs),
    /// Send one operation to a server, or load keys
    Client(client::ClientArgs),
    /// Measure reads beside scans in workers and in dispatch handlers
    Bench(bench::BenchArgs),
    /// The same server and clients in the simulated datacenter
    Sim(sim::SimArgs),
}

/// Where scans run, as an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ScansArg {
    /// On worker threads
    Workers,
    /// On the threads of the endpoints, where they delay reads
    Dispatch,
}

impl From<ScansArg> for Scans {
    fn from(arg: ScansArg) -> Scans {
        match arg {
            ScansArg::Workers => Scans::Workers,
            ScansArg::Dispatch => Scans::Dispatch,
        }
    }
}

/// A range of keys to load.
fn keys(lowest: u64) -> clap::builder::RangedU64ValueParser<u64> {
    clap::value_parser!(u64).range(lowest..=MOST_KEYS)
}

/// Shows how many of some keys are loaded.
struct Loading {
    bar: ProgressBar,
    keys: u64,
}

impl Loading {
    fn begin(keys: u64) -> Result<Loading, Failure> {
        let bar = progress::bar()?;
        bar.set_prefix("loading");
        Ok(Loading { bar, keys })
    }

    fn show(&mut self, done: u64) {
        self.bar.set_position(done * 1_000 / self.keys.max(1));
        self.bar.set_message(format!("{done} keys"));
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Runs a command.
pub(crate) fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Serve(args) => serve::run(&args),
        Command::Client(args) => client::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Sim(args) => sim::run(&args),
    }
}
