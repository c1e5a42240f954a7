//! The `ordered-index` program.

#![forbid(unsafe_code)]

mod cli;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    courser_kit::end(cli::run(cli::Cli::parse().command))
}
