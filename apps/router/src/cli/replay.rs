//! `router replay`.

use clap::Args;
use courser_bench::program::Failure;

#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {}

pub(crate) fn run(_: &ReplayArgs) -> Result<(), Failure> {
    Err(Failure::Runtime("not built yet".to_owned()))
}
