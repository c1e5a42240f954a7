//! The `courser` program: measures, serves and pings.

mod args;
mod bench;
mod fail;
// Some of what the harness can do has no command yet.
#[allow(dead_code)]
mod harness;
mod interrupt;
mod json;
mod measure;
mod out;
mod ping;
mod quickstart;
mod serve;
mod sim;
mod soak;
mod stat;
mod units;

use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use args::{Cli, Command, CompletionsArgs};
use fail::Failure;

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Quickstart(args) => quickstart::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Ping(args) => ping::run(&args),
        Command::Stat(args) => stat::run(&args),
        Command::Soak(args) => soak::run(&args),
        Command::Sim(args) => sim::run(&args),
        Command::Bench(args) => measure::run(&args),
        Command::Completions(args) => completions(&args),
        Command::SoakServer(args) => soak::server::main(&args),
        Command::SoakClient(args) => soak::client::main(&args),
        Command::BenchPeer(args) => bench::peer::main(&args).map_err(Failure::from),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if let Some(text) = failure.text() {
                out::error(text);
            }
            failure.code()
        }
    }
}

fn completions(args: &CompletionsArgs) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "courser", &mut text);
    let mut out = std::io::stdout().lock();
    out.write_all(&text)?;
    Ok(out.flush()?)
}
