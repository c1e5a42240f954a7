//! The `router` program.

#![forbid(unsafe_code)]

mod cli;

use std::process::ExitCode;

use clap::Parser;
use courser_bench::program;

fn main() -> ExitCode {
    program::end(cli::run(cli::Cli::parse().command))
}
