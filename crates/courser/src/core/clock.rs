//! An endpoint's clock on a real system: the processor's counter, held to the system's clock.
//!
//! The system's monotonic clock takes 25 ns and the processor's counter 10, and a round trip over
//! shared memory may have four readings in it. So time is counted in ticks of the processor from an
//! anchor that is a few milliseconds old, at the rate that was measured up to that anchor. Each new
//! anchor is a reading of the system's clock: the two never come apart by more than what the rate
//! changed since, some ten nanoseconds, however long the endpoint lives, whatever time servers do
//! to the system's clock, and also when the machine was suspended or moved.
//!
//! There is no calibration to wait for: until the first rate is known, and where the processor's
//! counter is of no use, the system's clock is read.

use std::cell::Cell;
use std::time::Instant;

use courser_buf::{has_steady_ticks, ticks};

/// How long a rate is used, ns: short enough that it is right, long enough that two readings of the
/// system's clock at its ends, each some 30 ns off, measure it to 15 ppm.
const SPAN_NS: u64 = 4_000_000;

/// Ticks between two readings of the counter around one of the system's clock, if the thread was
/// not interrupted.
const CLOSE_TICKS: u64 = 1_000;

/// Rates from 10 GHz down to 1 MHz are believed; in ns per tick, with 32 binary places.
const RATES: std::ops::RangeInclusive<u64> = (1 << 32) / 10..=1000 << 32;

/// Nanoseconds since it was made. Never goes back.
#[derive(Debug)]
pub(crate) struct SystemClock {
    start: Instant,
    steady: bool,
    /// The last reading.
    last_ns: Cell<u64>,
    anchor_ticks: Cell<u64>,
    /// At the anchor, by this clock.
    anchor_ns: Cell<u64>,
    /// At the anchor, by the system's clock.
    system_ns: Cell<u64>,
    /// ns per tick, with 32 binary places.
    rate: Cell<u64>,
    /// Ticks after the anchor for which the rate holds; 0: there is none.
    span: Cell<u64>,
    /// Calls of [`SystemClock::now_ns`].
    #[cfg(test)]
    pub(crate) readings: Cell<u64>,
}

impl SystemClock {
    pub(crate) fn new() -> Self {
        let steady = has_steady_ticks();
        SystemClock {
            start: Instant::now(),
            steady,
            last_ns: Cell::new(0),
            anchor_ticks: Cell::new(if steady { ticks() } else { 0 }),
            anchor_ns: Cell::new(0),
            system_ns: Cell::new(0),
            rate: Cell::new(0),
            span: Cell::new(0),
            #[cfg(test)]
            readings: Cell::new(0),
        }
    }

    #[inline]
    pub(crate) fn now_ns(&self) -> u64 {
        #[cfg(test)]
        self.readings.set(self.readings.get() + 1);
        self.at(ticks()).unwrap_or_else(|| self.by_the_system())
    }

    /// The last reading.
    #[inline]
    pub(crate) fn last_ns(&self) -> u64 {
        self.last_ns.get()
    }

    /// The time at a count of ticks, if the rate is known.
    #[inline]
    fn at(&self, ticks: u64) -> Option<u64> {
        let since = ticks.wrapping_sub(self.anchor_ticks.get());
        if since >= self.span.get() {
            return None;
        }
        // Below 2^64: a span is SPAN_NS.
        let now_ns = self.anchor_ns.get() + ((since * self.rate.get()) >> 32);
        Some(self.not_before(now_ns))
    }

    /// Counters of two processors may be some ticks apart.
    #[inline]
    fn not_before(&self, now_ns: u64) -> u64 {
        let now_ns = now_ns.max(self.last_ns.get());
        self.last_ns.set(now_ns);
        now_ns
    }

    #[cold]
    #[inline(never)]
    fn by_the_system(&self) -> u64 {
        let system_ns = || self.start.elapsed().as_nanos() as u64;
        if !self.steady {
            return self.not_before(system_ns());
        }
        let mut best = (u64::MAX, 0, 0);
        for _ in 0..3 {
            let (before, now_ns) = (ticks(), system_ns());
            let between = ticks().wrapping_sub(before);
            if between < best.0 {
                best = (between, before.wrapping_add(between / 2), now_ns);
            }
            if between < CLOSE_TICKS {
                break;
            }
        }
        let (_, ticks, now_ns) = best;
        self.anchor(ticks, now_ns)
    }

    /// Takes a pair of readings, and returns the time.
    fn anchor(&self, ticks: u64, system_ns: u64) -> u64 {
        let passed_ns = system_ns.saturating_sub(self.system_ns.get());
        if self.span.get() == 0 && passed_ns < SPAN_NS / 2 {
            return self.not_before(system_ns); // too short for a rate
        }
        let passed_ticks = ticks.wrapping_sub(self.anchor_ticks.get());
        let rate = (u128::from(passed_ns) << 32) / u128::from(passed_ticks.max(1));
        let rate = u64::try_from(rate).ok().filter(|rate| RATES.contains(rate));
        let now_ns = self.not_before(system_ns);
        self.anchor_ticks.set(ticks);
        self.anchor_ns.set(now_ns);
        self.system_ns.set(system_ns);
        let Some(rate) = rate else {
            // The counter was set, or stood still. From here on anew.
            self.span.set(0);
            return now_ns;
        };
        // A clock that is ahead does not go back: it goes slower for one span.
        let ahead_ns = (now_ns - system_ns).min(SPAN_NS / 2);
        self.rate
            .set((u128::from(rate) * u128::from(SPAN_NS - ahead_ns) / u128::from(SPAN_NS)) as u64);
        self.span.set((SPAN_NS << 32) / rate);
        now_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A clock whose counter and system clock are the test's.
    fn clock() -> SystemClock {
        SystemClock { steady: true, anchor_ticks: Cell::new(0), ..SystemClock::new() }
    }

    /// Reads it at a count of ticks that the system's clock calls `system_ns`.
    fn read(c: &SystemClock, ticks: u64, system_ns: u64) -> u64 {
        c.at(ticks).unwrap_or_else(|| c.anchor(ticks, system_ns))
    }

    #[test]
    fn it_begins_without_a_rate_and_then_needs_the_system_once_in_a_span() {
        let c = clock();
        let mut asked = 0;
        for us in 0..100_000 {
            let (ticks, system_ns) = (us * 2_600, us * 1_000);
            asked += u64::from(us > 2_001 && c.at(ticks).is_none());
            let now_ns = read(&c, ticks, system_ns);
            assert!(now_ns.abs_diff(system_ns) <= 2, "{now_ns} at {system_ns}");
        }
        assert!((20..30).contains(&asked), "{asked}");
    }

    #[test]
    fn it_follows_a_system_clock_that_goes_faster_and_slower_and_never_goes_back() {
        let c = clock();
        let (mut ticks, mut system, mut last) = (0, 0_f64, 0);
        for step in 0..400_000_u64 {
            ticks += 3_000;
            // 500 ppm, the largest correction by time servers, to either side, in turn.
            let ppm = if (step / 50_000).is_multiple_of(2) { 500.0 } else { -500.0 };
            system += 1_000.0 * (1.0 + ppm * 1e-6);
            let now_ns = read(&c, ticks, system as u64);
            assert!(now_ns >= last);
            assert!(now_ns.abs_diff(system as u64) < 10_000, "{now_ns} at {system}");
            last = now_ns;
        }
    }

    #[test]
    fn a_counter_that_stops_jumps_or_runs_at_another_rate_does_no_lasting_harm() {
        let c = clock();
        for ms in 0..20 {
            read(&c, ms * 2_600_000, ms * MS);
        }
        // Suspended for an hour, in which the counter stood still.
        let hour = 3_600_000 * MS;
        let resumed = read(&c, 20 * 2_600_000, 20 * MS + hour);
        let mut ticks = 20 * 2_600_000;
        let mut last = resumed;
        // On the next machine it begins at zero and is half as fast.
        for (start, per_ms) in [(ticks, 2_600_000), (0, 1_300_000), (u64::MAX - 9 * MS, 2_600_000)]
        {
            for ms in 0..40 {
                ticks = u64::wrapping_add(start, ms * per_ms);
                let now_ns = read(&c, ticks, last.max(resumed) + MS);
                assert!(now_ns >= last);
                last = now_ns;
            }
        }
        for ms in 1..50 {
            let now_ns = read(&c, ticks.wrapping_add(ms * 2_600_000), last + ms * MS);
            assert!(now_ns.abs_diff(last + ms * MS) < 5 * MS, "{ms}");
        }
    }

    #[test]
    fn a_counter_that_is_behind_on_another_processor_does_not_turn_time_back() {
        let c = clock();
        for ms in 0..6 {
            read(&c, ms * 2_600_000, ms * MS);
        }
        let now_ns = read(&c, 6 * 2_600_000, 6 * MS);
        assert_eq!(read(&c, 6 * 2_600_000 - 500, 6 * MS), now_ns);
    }

    #[test]
    fn the_real_one_is_between_two_readings_of_the_system() {
        let c = SystemClock::new();
        let end_ns = 12 * MS;
        while (c.start.elapsed().as_nanos() as u64) < end_ns {
            let before = c.start.elapsed().as_nanos() as u64;
            let now_ns = c.now_ns();
            let after = c.start.elapsed().as_nanos() as u64;
            // It may be ahead or behind by what an interrupted reading makes of the rate.
            let slack = MS;
            assert!(
                before <= now_ns + slack && now_ns <= after + slack,
                "{before} {now_ns} {after}"
            );
        }
    }
}
