//! Runs experiments with all their seeds on several threads. A run uses a single thread, and its result
//! does not depend on the number of threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use courser_bench::progress;
use courser_kit::Failure;

use super::SEEDS;
use super::result::{Measured, merge};
use crate::declare::points::{Experiment, Run, Size};

/// One run.
struct Job {
    experiment: usize,
    seed: u64,
}

/// Runs each experiment with each seed.
///
/// # Errors
/// A run failed; the error names the experiment and the seed.
pub(super) fn run(
    experiments: &[&'static Experiment],
    size: Size,
    threads: usize,
) -> Result<Vec<Measured>, Failure> {
    // The longest experiments are last in the list and start first.
    let jobs: Vec<Job> = (0..experiments.len())
        .rev()
        .flat_map(|experiment| SEEDS.map(|seed| Job { experiment, seed }))
        .collect();
    let bar = progress::bar()?;
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(jobs.len()));
    let work = || {
        while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let experiment = experiments[job.experiment];
            let mut run = Run::default();
            let result = experiment.run.run(size, job.seed, &mut run).map(|()| run);
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            done.push((job, result));
            bar.set_position((done.len() * 1000 / jobs.len()) as u64);
            bar.set_message(format!("{} of {} runs", done.len(), jobs.len()));
        }
    };
    let sound = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work)).collect();
        threads.into_iter().all(|thread| thread.join().is_ok())
    });
    bar.finish_and_clear();
    if !sound {
        return Err(Failure::Runtime("an experiment has panicked (see above)".to_owned()));
    }
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(job, _)| job.seed);
    let mut runs: Vec<Vec<Run>> = experiments.iter().map(|_| Vec::new()).collect();
    for (job, result) in done {
        let id = experiments[job.experiment].id;
        let run = result
            .map_err(|e| Failure::Runtime(format!("{id} with seed {} failed: {e}", job.seed)))?;
        runs[job.experiment].push(run);
    }
    Ok(experiments.iter().zip(runs).map(|(&e, runs)| merge(e, runs)).collect())
}
