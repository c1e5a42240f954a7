//! `courser sim loss`, `fct`, `bits-pool` and `lost-call`: loss recovery in a lossy network.

mod args;
mod picture;
mod seeds;
mod tables;

use courser_sim::scenario::{bits_pool, loss, lost_call};
use serde_json::json;

pub(super) use self::args::{BitsPoolArgs, FctArgs, LossArgs, LostCallArgs};

use super::run::{steps, tell};
use courser_bench::program::Failure;
use courser_bench::program::json;

/// Goodput by loss.
///
/// # Errors
/// It cannot run as given, failed, or its result could not be written.
pub(super) fn loss(args: &LossArgs) -> Result<(), Failure> {
    json::check_target(args.json.as_deref())?;
    json::check_target(args.svg.as_deref())?;
    let settings = args.settings();
    if args.fit {
        let fit = steps(|step| loss::fit(&settings, step))?;
        return tell(&args.json, "loss-fit", &settings, json!(fit), || tables::fit(&fit));
    }
    let points = seeds::loss(&settings, args.seeds)?;
    if let Some(path) = &args.svg {
        picture::loss(points.iter().map(|p| &p.point), path)?;
    }
    tell(&args.json, "loss", &settings, json!(points), || tables::loss(&settings, &points))
}

/// Completion times of flows over a lossy spine.
///
/// # Errors
/// It cannot run as given, failed, or its result could not be written.
pub(super) fn fct(args: &FctArgs) -> Result<(), Failure> {
    json::check_target(args.json.as_deref())?;
    json::check_target(args.svg.as_deref())?;
    let settings = args.settings();
    let points = seeds::fct(&settings, args.seeds)?;
    if let Some(path) = &args.svg {
        picture::fct(points.iter().map(|p| &p.point), path)?;
    }
    tell(&args.json, "fct", &settings, json!(points), || tables::fct(&settings, &points))
}

/// Peak use of MELO's pool of bits.
///
/// # Errors
/// It cannot run as given, failed, or its result could not be written.
pub(super) fn bits_pool(args: &BitsPoolArgs) -> Result<(), Failure> {
    json::check_target(args.json.as_deref())?;
    let settings = args.settings();
    let points = steps(|step| bits_pool::run(&settings, step))?;
    let table = || tables::bits_pool(&settings, &points);
    tell(&args.json, "bits-pool", &settings, json!(points), table)
}

/// Latency that a lost packet adds to a small call.
///
/// # Errors
/// It cannot run as given, failed, or its result could not be written.
pub(super) fn lost_call(args: &LostCallArgs) -> Result<(), Failure> {
    json::check_target(args.json.as_deref())?;
    let settings = args.settings();
    let points = steps(|step| lost_call::run(&settings, step))?;
    let table = || tables::lost_call(&settings, &points);
    tell(&args.json, "lost-call", &settings, json!(points), table)
}
