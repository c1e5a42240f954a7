//! The command line: subcommands, flags and help texts.

mod bench;
mod client;
mod serve;
mod sim;

use std::time::{Duration, Instant};

use clap::{Parser, Subcommand, ValueEnum};
use courser_kit::progress;
use courser_kit::units::show_per_second;
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

/// Shows the part of some keys that is loaded, how many a second, and for how long that goes on.
struct Loading {
    bar: ProgressBar,
    keys: u64,
    began: Instant,
    next: Duration,
}

impl Loading {
    /// Time between two texts.
    const EVERY: Duration = Duration::from_millis(100);

    fn begin(keys: u64) -> Result<Loading, Failure> {
        let bar = progress::bar()?;
        bar.set_prefix("loading");
        Ok(Loading { bar, keys, began: Instant::now(), next: Self::EVERY })
    }

    fn show(&mut self, done: u64) {
        let elapsed = self.began.elapsed();
        if elapsed >= self.next {
            self.next = elapsed + Self::EVERY;
            self.bar.set_position(done * 1_000 / self.keys.max(1));
            self.bar.set_message(loading(done, self.keys, elapsed));
        }
    }
}

/// The text behind the bar, at a time since the begin. The rest is estimated by the rate so far.
fn loading(done: u64, keys: u64, elapsed: Duration) -> String {
    let rate = done as f64 / elapsed.as_secs_f64();
    let left = keys.saturating_sub(done) as f64 / rate;
    let left = if done > 0 { format!(", {left:.0} s left") } else { String::new() };
    format!("{}{left}", show_per_second(rate, "/s"))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_has_rate_and_rest() {
        let text = |done| loading(done, 1_000_000, Duration::from_secs(2));
        assert_eq!(text(0), "0.00 /s");
        assert_eq!(text(250_000), "125 k/s, 6 s left");
        assert_eq!(text(1_000_000), "500 k/s, 0 s left");
        // The bar and its part take 55 columns of 80.
        assert!(loading(1, super::MOST_KEYS, Duration::from_secs(1)).len() <= 25);
    }
}
