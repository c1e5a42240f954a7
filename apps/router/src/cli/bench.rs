//! `router bench`.

use clap::Args;
use courser_bench::program::Failure;

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {}

pub(crate) fn run(_: &BenchArgs) -> Result<(), Failure> {
    Err(Failure::Runtime("not built yet".to_owned()))
}
