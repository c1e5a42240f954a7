//! The progress of a benchmark.

use std::time::Duration;

use indicatif::ProgressBar;

pub use courser_kit::progress::bar;

use crate::window::{Plan, Progress};

/// Shows the progress of a plan.
pub fn show(bar: &ProgressBar, plan: &Plan, now: &Progress) {
    bar.set_message(counts(now));
    bar.set_position((done(plan, now) * 1000.0) as u64);
}

/// The completed part of a plan, 0 to 1: the larger part of its time and of its pairs.
pub fn done(plan: &Plan, now: &Progress) -> f64 {
    let time =
        now.elapsed.as_secs_f64() / plan.max_time.max(Duration::from_millis(1)).as_secs_f64();
    let seen = [now.near, now.far].into_iter().filter(|&count| count > 0).min();
    let pairs = f64::from(seen.unwrap_or(now.unprobed)) / f64::from(now.wanted.max(1));
    time.max(pairs).min(1.0)
}

/// The pairs of windows of each placement.
pub fn counts(now: &Progress) -> String {
    let all = [("near", now.near), ("far", now.far), ("untagged", now.unprobed)];
    let seen = all.iter().filter(|(_, count)| *count > 0);
    let texts: Vec<_> = seen.map(|(name, count)| format!("{count} {name}")).collect();
    if texts.is_empty() { "no pair of windows yet".to_owned() } else { texts.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_by_time_or_by_pairs_whichever_is_larger() {
        let plan = Plan { max_time: Duration::from_secs(10), pairs: 100, ..Plan::quick() };
        let now = |seconds, near, far, unprobed| Progress {
            elapsed: Duration::from_secs(seconds),
            near,
            far,
            unprobed,
            wanted: plan.pairs,
            ..Progress::default()
        };
        assert_eq!(done(&plan, &now(5, 0, 0, 0)), 0.5);
        assert_eq!(done(&plan, &now(1, 80, 0, 3)), 0.8);
        assert_eq!(done(&plan, &now(1, 80, 20, 0)), 0.2, "the placement that lacks most");
        assert_eq!(done(&plan, &now(20, 0, 0, 40)), 1.0);
        assert_eq!(counts(&now(1, 80, 20, 0)), "80 near, 20 far");
        assert_eq!(counts(&now(1, 0, 0, 0)), "no pair of windows yet");
    }
}
