//! `router sim`.

use clap::Args;
use courser_bench::program::Failure;

#[derive(Debug, Args)]
pub(crate) struct SimArgs {}

pub(crate) fn run(_: &SimArgs) -> Result<(), Failure> {
    Err(Failure::Runtime("not built yet".to_owned()))
}
