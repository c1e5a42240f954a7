//! A nanosecond clock cheap enough to read around every operation.
//!
//! The time stamp counter costs about 10 ns where `clock_gettime` costs 23. `quanta`
//! reads it when the processor promises a constant rate and falls back to the system's
//! monotonic clock when it does not. Its rate is calibrated against the system clock at
//! start; since a wrong calibration would bend every latency alike and unseen,
//! [`Clock::error_ppm`] compares the two over the life of the clock.

use std::time::Instant;

/// Nanoseconds since the clock was made. Cloning is cheap and keeps the origin.
#[derive(Clone, Debug)]
pub struct Clock {
    fast: quanta::Clock,
    origin: u64,
    system_origin: Instant,
}

/// Below this age the comparison of [`Clock::error_ppm`] would show only its own cost.
const MIN_AGE_NS: u64 = 100_000_000;

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock {
    /// Makes a clock that starts at 0. The first one of a process calibrates the
    /// counter, which may take up to 200 ms: make it before anything is timed.
    pub fn new() -> Self {
        let fast = quanta::Clock::new();
        let system_origin = Instant::now();
        let origin = fast.raw();
        Self { fast, origin, system_origin }
    }

    /// Time since the clock was made. About 10 ns; never goes backwards on one core.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        self.fast.delta_as_nanos(self.origin, self.fast.raw())
    }

    /// How fast this clock runs against the system's, in parts per million; `None` in
    /// its first 100 ms, when there is nothing to compare.
    pub fn error_ppm(&self) -> Option<i64> {
        let fast = self.now_ns();
        let system = u64::try_from(self.system_origin.elapsed().as_nanos()).ok()?;
        relative_ppm(fast, system)
    }
}

fn relative_ppm(fast_ns: u64, system_ns: u64) -> Option<i64> {
    if system_ns < MIN_AGE_NS {
        return None;
    }
    let difference = i128::from(fast_ns) - i128::from(system_ns);
    i64::try_from(difference * 1_000_000 / i128::from(system_ns)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_does_not_go_back_and_does_pass() {
        let clock = Clock::new();
        let mut last = clock.now_ns();
        let first = last;
        for _ in 0..10_000 {
            let now = clock.now_ns();
            assert!(now >= last);
            last = now;
        }
        assert!(last > first);
    }

    #[test]
    fn clones_share_their_origin() {
        let clock = Clock::new();
        std::thread::sleep(std::time::Duration::from_millis(2));
        let clone = clock.clone();
        assert!(clone.now_ns() >= 2_000_000);
    }

    #[test]
    fn error_is_relative_to_the_system_clock() {
        assert_eq!(relative_ppm(5, MIN_AGE_NS - 1), None);
        assert_eq!(relative_ppm(1_000_000_000, 1_000_000_000), Some(0));
        assert_eq!(relative_ppm(1_010_000_000, 1_000_000_000), Some(10_000));
        assert_eq!(relative_ppm(999_000_000, 1_000_000_000), Some(-1_000));
    }
}
