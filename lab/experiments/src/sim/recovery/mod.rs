//! `courser-lab sim loss`, `fct`, `bits-pool` and `lost-call`: loss recovery in a lossy network.

mod args;
mod picture;
mod seeds;
mod tables;

use crate::experiments::{bits_pool, loss, lost_call};
use serde_json::json;

pub(super) use self::args::{BitsPoolArgs, FctArgs, LossArgs, LostCallArgs};

use crate::declare::output::print;
use crate::declare::steps::steps;
use courser_kit::Failure;

/// Goodput by loss.
///
/// # Errors
/// It cannot run as given, failed, or its result could not be written.
pub(super) fn loss(args: &LossArgs) -> Result<(), Failure> {
    args.output.check()?;
    let settings = args.settings();
    if args.fit {
        let fit = steps(|step| loss::fit(&settings, step))?;
        return print(args.output.json.as_deref(), "loss-fit", &settings, json!(fit), || {
            tables::fit(&fit)
        });
    }
    let points = seeds::loss(&settings, args.common.seeds)?;
    let chart = || picture::loss(&settings, &points);
    let table = || tables::loss(&settings, &points);
    args.output.print("loss", &settings, json!(points), chart, table)
}

/// Completion times of flows over a lossy spine.
///
/// # Errors
/// It cannot run as given, failed, or its result could not be written.
pub(super) fn fct(args: &FctArgs) -> Result<(), Failure> {
    args.output.check()?;
    let settings = args.settings();
    let points = seeds::fct(&settings, args.common.seeds)?;
    let chart = || picture::fct(&settings, &points);
    let table = || tables::fct(&settings, &points);
    args.output.print("fct", &settings, json!(points), chart, table)
}

/// Peak use of MELO's pool of bits.
///
/// # Errors
/// It cannot run as given, failed, or its result could not be written.
pub(super) fn bits_pool(args: &BitsPoolArgs) -> Result<(), Failure> {
    args.output.check()?;
    let settings = args.settings();
    let points = steps(|step| bits_pool::run(&settings, step))?;
    let table = || tables::bits_pool(&settings, &points);
    args.output.print("bits-pool", &settings, json!(points), || picture::bits_pool(&points), table)
}

/// Latency that a lost packet adds to a small call.
///
/// # Errors
/// It cannot run as given, failed, or its result could not be written.
pub(super) fn lost_call(args: &LostCallArgs) -> Result<(), Failure> {
    args.output.check()?;
    let settings = args.settings();
    let points = steps(|step| lost_call::run(&settings, step))?;
    let table = || tables::lost_call(&settings, &points);
    args.output.print("lost-call", &settings, json!(points), || picture::lost_call(&points), table)
}
