//! `courser sim loss` and its neighbours: what loss recovery makes of a lossy network.

mod args;
mod picture;
mod tables;

use courser_sim::scenario::loss;
use serde_json::json;

pub(super) use self::args::LossArgs;

use super::run::{steps, tell};
use crate::fail::Failure;
use crate::json;

/// Throughput against loss.
///
/// # Errors
/// It cannot be run as asked, failed, or its result could not be written.
pub(super) fn loss(args: &LossArgs) -> Result<(), Failure> {
    json::check_target(args.json.as_deref())?;
    json::check_target(args.svg.as_deref())?;
    let settings = args.settings();
    if args.fit {
        let fit = steps(|step| loss::fit(&settings, step))?;
        return tell(&args.json, "loss-fit", &settings, json!(fit), || tables::fit(&fit));
    }
    let points = steps(|step| loss::run(&settings, step))?;
    if let Some(path) = &args.svg {
        picture::loss(&points, path)?;
    }
    tell(&args.json, "loss", &settings, json!(points), || tables::loss(&settings, &points))
}
