//! `router quickstart`.

use clap::Args;
use courser_bench::program::Failure;

#[derive(Debug, Args)]
pub(crate) struct QuickstartArgs {}

pub(crate) fn run(_: &QuickstartArgs) -> Result<(), Failure> {
    Err(Failure::Runtime("not built yet".to_owned()))
}
