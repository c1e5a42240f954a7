//! `router figures`.

use clap::Args;
use courser_bench::program::Failure;

#[derive(Debug, Args)]
pub(crate) struct FiguresArgs {}

pub(crate) fn run(_: &FiguresArgs) -> Result<(), Failure> {
    Err(Failure::Runtime("not built yet".to_owned()))
}
