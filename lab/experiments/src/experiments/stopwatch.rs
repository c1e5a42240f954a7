//! Time and memory of a simulation itself.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Measures real time and the CPU time of this thread.
pub(super) struct Stopwatch {
    wall: Instant,
    cpu: Duration,
}

impl Stopwatch {
    pub(super) fn start() -> Self {
        Stopwatch { wall: Instant::now(), cpu: cpu_time() }
    }

    /// Seconds since the start: real time and CPU time of this thread.
    pub(super) fn elapsed_s(&self) -> (f64, f64) {
        let cpu = cpu_time().saturating_sub(self.cpu);
        (self.wall.elapsed().as_secs_f64(), cpu.as_secs_f64())
    }
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Peak resident memory of this process, bytes; `None` if unknown.
pub(super) fn peak_rss_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_time_are_measured() {
        let begin = Stopwatch::start();
        assert!(peak_rss_bytes().is_some_and(|bytes| bytes > 1 << 20));
        let (wall_s, cpu_s) = begin.elapsed_s();
        assert!(wall_s > 0.0 && cpu_s >= 0.0);
    }
}
