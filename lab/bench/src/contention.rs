//! CPU time that other programs took from a benchmark.
//!
//! The threads of a benchmark poll, so they wait for a CPU only if another program runs on it. The
//! kernel counts the waiting time of each thread (`/proc/PID/task/TID/schedstat`). On a virtual
//! machine other guests use the CPUs as well; the kernel counts that as stolen time (`/proc/stat`).
//! With `--connect` only the client process is observed: the server may be on another machine.

use std::fs;
use std::time::Instant;

/// Waiting share above which the figures of a run are not shown as results: they depend on other
/// programs more than on Courser.
pub const BUSY: f64 = 0.1;

/// Waiting and stolen time at the start of a run.
#[derive(Clone, Copy, Debug)]
pub struct Contention {
    start: Instant,
    waited_ns: u64,
    stolen_ns: u64,
}

impl Contention {
    /// Reads the counters; `None` if the kernel does not count waiting times.
    pub fn begin() -> Option<Self> {
        Some(Self { start: Instant::now(), waited_ns: waited_ns()?, stolen_ns: stolen_ns() })
    }

    /// The share of the time since the start for which threads of this process and its children
    /// waited for a CPU, or for which CPUs were stolen from this machine; 0 to the number of CPUs.
    pub fn share(&self) -> Option<f64> {
        let waited = waited_ns()?.saturating_sub(self.waited_ns);
        let stolen = stolen_ns().saturating_sub(self.stolen_ns);
        let elapsed = self.start.elapsed().as_nanos().max(1) as f64;
        Some(waited.max(stolen) as f64 / elapsed)
    }
}

/// Waiting time of all threads of this process and its children, without children that have ended.
fn waited_ns() -> Option<u64> {
    let mut all = waited_of("self")?;
    for task in fs::read_dir("/proc/self/task").ok()?.flatten() {
        let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        all += children.split_whitespace().filter_map(waited_of).sum::<u64>();
    }
    Some(all)
}

fn waited_of(process: &str) -> Option<u64> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).ok()?;
    let of = |task: fs::DirEntry| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    let times: Vec<u64> = tasks.flatten().filter_map(of).collect();
    (!times.is_empty()).then(|| times.iter().sum())
}

/// Time stolen from all CPUs of this machine; the kernel counts it in hundredths of a second.
fn stolen_ns() -> u64 {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    parse_stolen(&text).unwrap_or(0) * 10_000_000
}

fn parse_stolen(text: &str) -> Option<u64> {
    let all = text.lines().find(|line| line.starts_with("cpu "))?;
    all.split_whitespace().nth(8)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;
    use courser_kit::affinity;

    #[test]
    fn stolen_time_is_the_eighth_number_of_the_cpu_line() {
        let text = "cpu  1 2 3 4 5 6 7 88 9 10\ncpu0 0 0 0 0 0 0 0 1 0 0\n";
        assert_eq!(parse_stolen(text), Some(88));
        assert_eq!(parse_stolen("intr 1"), None);
    }

    #[test]
    fn two_threads_on_one_cpu_wait_for_each_other() {
        let cpu = affinity::usable_cpus().expect("mask")[0];
        let (stop, limit) = (AtomicBool::new(false), Duration::from_secs(20));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    affinity::pin_current_thread(cpu).expect("pin");
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let contention = Contention::begin();
            let start = Instant::now();
            let mut share = None;
            while start.elapsed() < limit && share < Some(BUSY) {
                std::thread::sleep(Duration::from_millis(50));
                share = contention.and_then(|contention| contention.share());
            }
            stop.store(true, Ordering::Relaxed);
            assert!(contention.is_none() || share > Some(BUSY), "{share:?}");
        });
    }
}
