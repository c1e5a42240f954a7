//! The `courser` program: quickstart, serve, ping, stat and bench.

#![forbid(unsafe_code)]

#[cfg(test)]
#[path = "../tests/common/advice.rs"]
mod advice;
mod args;
mod bench;
mod list;
mod ping;
mod quickstart;
mod serve;
mod stat;

use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use args::{Cli, Command, CompletionsArgs};
use courser_kit::{self, Failure};

fn main() -> ExitCode {
    courser_kit::end(match Cli::parse().command {
        Command::Quickstart(args) => quickstart::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Ping(args) => ping::run(&args),
        Command::Stat(args) => stat::run(&args),
        Command::List(args) => list::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Completions(args) => completions(&args),
        Command::BenchPeer(args) => courser_bench::rpc::peer::main(&args).map_err(Failure::from),
    })
}

fn completions(args: &CompletionsArgs) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "courser", &mut text);
    let mut out = std::io::stdout().lock();
    out.write_all(&text)?;
    Ok(out.flush()?)
}
