//! Whether an idle endpoint may spin. Spinning saves 30 us of wake-up time for the next packet and
//! costs a core; with a single core it would delay the sender of that packet.

use std::time::Duration;

use crate::platform::{Clock, Platform, cpus, process_cpus};

/// Spin time where there is more than one CPU to spin on.
const SPIN: Duration = Duration::from_micros(100);

/// A yield that takes longer than this has given the CPU to a thread that does not give it back.
const LATE_NS: u64 = 300_000;
/// Time without spinning after a late yield: at first, and at most. Doubled when the first yield after
/// that time is late again.
const PAUSE_NS: (u64, u64) = (10_000_000, 1_000_000_000);

/// Whether other threads compete for this thread's CPU. A thread that spins and yields then runs once
/// in a few milliseconds, while one that sleeps runs as soon as it has a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Crowd {
    /// No spinning before this time, ns.
    until_ns: u64,
    /// Length of the last pause, ns; 0 after yields in time.
    pause_ns: u64,
}

impl Crowd {
    /// A yield took from `from_ns` to `to_ns`.
    pub(crate) fn yielded(&mut self, from_ns: u64, to_ns: u64) {
        if to_ns.saturating_sub(from_ns) > LATE_NS {
            self.pause_ns = (2 * self.pause_ns).clamp(PAUSE_NS.0, PAUSE_NS.1);
            self.until_ns = to_ns.saturating_add(self.pause_ns);
        } else if to_ns >= self.until_ns.saturating_add(self.pause_ns) {
            self.pause_ns = 0;
        }
    }

    /// Returns whether the thread sleeps at once instead of spinning.
    #[inline]
    pub(crate) fn is_there(&self, now_ns: u64) -> bool {
        now_ns < self.until_ns
    }
}

/// How an endpoint waits for its next packet before it sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Spin {
    /// For how long, ns; 0: not at all.
    pub(crate) ns: u64,
    /// Yield the CPU between two polls: all threads of the process are pinned to one, and the
    /// other side may be pinned there too.
    pub(crate) yields: bool,
}

impl Spin {
    /// The settings for this platform. `wanted` overrides the time, not the politeness. In virtual time there is
    /// nothing to spin for.
    ///
    /// Containers' CPU sets and quotas count: with one CPU, or less, there is no spinning. The
    /// affinity of threads does not: a program that pins its threads still owns several CPUs.
    pub(crate) fn on(platform: &Platform, wanted: Option<Duration>) -> Self {
        if platform.is_virtual() {
            return Spin { ns: 0, yields: false };
        }
        let default = if cpus() > 1 { SPIN } else { Duration::ZERO };
        let ns = u64::try_from(wanted.unwrap_or(default).as_nanos()).unwrap_or(u64::MAX);
        Spin { ns, yields: process_cpus().len() == 1 }
    }
}

/// Checks between two clock readings.
const POLLS: u32 = 32;

/// Spins until `is_over`, for at most `time`.
pub(crate) fn spin_until(time: Duration, is_over: impl Fn() -> bool) {
    if cfg!(all(loom, test)) {
        is_over(); // a model has no time
        return;
    }
    let start = Clock::System.now();
    while Clock::System.now().saturating_duration_since(start) < time {
        for _ in 0..POLLS {
            if is_over() {
                return;
            }
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_yields_pause_the_spinning_for_longer_and_longer() {
        const MS: u64 = 1_000_000;
        let mut crowd = Crowd::default();
        crowd.yielded(MS, MS + LATE_NS);
        assert!(!crowd.is_there(MS + LATE_NS), "a short yield");
        let mut now_ns = 10 * MS;
        for pause in [10, 20, 40, 80, 160, 320, 640, 1_000, 1_000] {
            crowd.yielded(now_ns, now_ns + 3 * MS);
            now_ns += 3 * MS;
            assert!(crowd.is_there(now_ns + pause * MS - 1), "{pause} ms");
            assert!(!crowd.is_there(now_ns + pause * MS), "{pause} ms");
            now_ns += pause * MS;
        }
        // In time for as long as the pause was: the next one is short.
        crowd.yielded(now_ns + 1_000 * MS - 300, now_ns + 1_000 * MS);
        crowd.yielded(now_ns + 1_000 * MS, now_ns + 1_000 * MS + 300);
        now_ns += 1_001 * MS;
        crowd.yielded(now_ns, now_ns + 3 * MS);
        assert!(!crowd.is_there(now_ns + 13 * MS));
    }

    #[test]
    fn this_machine_has_a_cpu_and_a_wish_is_granted() {
        assert!(cpus() >= 1 && !process_cpus().is_empty());
        let wanted = Spin::on(&Platform::System, Some(Duration::from_micros(7)));
        assert_eq!(wanted.ns, 7_000);
    }
}
