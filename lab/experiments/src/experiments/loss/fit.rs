//! Search for the recovery time, which the paper does not state.

use courser::Recovery;
use courser_kit::Failure;
use serde::Serialize;
use serde_json::json;

use super::{Case, Goodput, Loss, Reorder, goodput, measure};
use crate::declare::output::{self, OutputArgs};
use crate::declare::parameter;
use crate::declare::steps::steps;
use crate::declare::text::{chance, ns, percent, table};
use crate::scenario::ScenarioError;

/// Averaging time of the shares, ns of virtual time: some 1,000 losses at 1e-3.
const TIME_NS: u64 = 500_000_000;

/// The search ends when the bounds are this close, ns: a hundredth.
const STEP_NS: u64 = 2_500;

/// First bounds, ns: with the one go-back-N has some 60 % at 1e-3, with the other 30 %.
const BOUNDS_NS: (u64, u64) = (120_000, 520_000);

/// Go-back-N's share at a loss of 1e-3 `[MELO §4.1.1]`.
const TARGET: f64 = 0.456;

/// Its share at 1e-2: 99.0 % over 14.02.
const PREDICTED: f64 = 0.071;

/// Result of the search.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Fit {
    /// The recovery time, ns.
    pub rto_ns: u64,
    /// Go-back-N with it at a loss of 1e-3: the criterion of the search.
    pub fitted: Goodput,
    /// Go-back-N with it at 1e-2: the consequence.
    pub predicted: Goodput,
    /// The share at 1e-2 over the paper's, less one.
    pub error: f64,
}

/// Searches by bisection the recovery time with which go-back-N has the paper's 45.6 % at a loss of
/// 1e-3, and measures the share at 1e-2 with it. Schemes, losses, recovery times and all controls
/// but the first are not used; each run lasts half a second of virtual time at least. `progress` is called with
/// the number of finished runs and their total.
///
/// # Errors
/// As [`run`](super::run).
pub fn fit(settings: &Loss, mut progress: impl FnMut(usize, usize)) -> Result<Fit, ScenarioError> {
    parameter::check(settings)?;
    settings.check()?;
    let (mut low_ns, mut high_ns) = BOUNDS_NS;
    let steps = ((high_ns - low_ns) / STEP_NS).ilog2() as usize + 4;
    let mut done = 0;
    let reorder = Reorder::default();
    let (scheme, control) = (Recovery::GoBackN, settings.controls[0]);
    let mut case = Case { scheme, control, rto_ns: Some(high_ns), reorder, loss_ppm: 0 };
    let lossless_bps = measure(settings, &case, None)?.goodput_bps;
    let settings = Loss { time_ns: settings.time_ns.max(TIME_NS), ..settings.clone() };
    let mut at = |rto_ns, loss_ppm| {
        done += 1;
        progress(done, steps);
        case.rto_ns = Some(rto_ns);
        case.loss_ppm = loss_ppm;
        let seen = measure(&settings, &case, None)?;
        Ok::<_, ScenarioError>(goodput(&settings, &case, &seen, lossless_bps))
    };
    let mut rto_ns = (low_ns + high_ns) / 2;
    let mut fitted = at(rto_ns, 1_000)?;
    while high_ns - low_ns > STEP_NS {
        let side = if fitted.goodput_fraction > TARGET { &mut low_ns } else { &mut high_ns };
        *side = rto_ns;
        rto_ns = (low_ns + high_ns) / 2;
        fitted = at(rto_ns, 1_000)?;
    }
    let predicted = at(rto_ns, 10_000)?;
    let error = predicted.goodput_fraction / PREDICTED - 1.0;
    Ok(Fit { rto_ns, fitted, predicted, error })
}

/// Runs the search, and prints and writes its result.
pub(super) fn show(settings: &Loss, output: &OutputArgs) -> Result<(), Failure> {
    let fit = steps(|step| fit(settings, step))?;
    let row = |name: &str, o: &Goodput| {
        let paper = o.paper_fraction.map_or_else(String::new, percent);
        vec![name.to_owned(), chance(o.loss), percent(o.goodput_fraction), paper]
    };
    let text = || {
        let (rto, error) = (ns(fit.rto_ns), fit.error * 100.0);
        let caption =
            format!("go-back-N with a recovery time of {rto}: {error:+.1} % off the paper at 1e-2");
        let rows = [row("fitted", &fit.fitted), row("predicted", &fit.predicted)];
        table(&caption, &["", "loss", "simulated", "paper"], rows)
    };
    output::print(output.json.as_deref(), "loss-fit", settings, json!(fit), text)
}
