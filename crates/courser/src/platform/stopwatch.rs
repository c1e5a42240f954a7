//! Durations of calls and handlers, by the processor's counter where it is steady: a reading takes a few
//! instructions, one of the system's clock some 70 with its conversion.
//!
//! Ticks become nanoseconds at a rate that all threads share. It is measured against the system's clock when
//! a duration ends, at times that are further and further apart, up to a second.

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use courser_buf::{has_steady_ticks, ticks};

use super::Clock;

/// Longest time between two measurements of the rate, ns.
const SPAN_NS: u128 = 1_000_000_000;

/// Rates from 10 GHz down to 1 MHz are believed; in ns per tick, with 32 binary places.
const RATES: std::ops::RangeInclusive<u128> = (1 << 32) / 10..=1000 << 32;

/// Ticks between two readings of the counter around one of the system's clock, if the thread was not
/// interrupted.
const CLOSE_TICKS: u64 = 1_000;

/// The stopwatch of the process.
static SYSTEM: LazyLock<Stopwatch> = LazyLock::new(|| Stopwatch::new(has_steady_ticks()));

/// Measures durations.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    is_steady: bool,
    /// ns per tick, with 32 binary places.
    rate: AtomicU64,
    /// The tick from which on the rate is measured again.
    due: AtomicU64,
    anchor: Mutex<Anchor>,
}

/// Readings of both clocks, from which the rate is measured.
#[derive(Debug)]
struct Anchor {
    tick: u64,
    time: Instant,
    /// The measurement before gave another rate than the one before it, and was not believed.
    doubted: bool,
}

impl Stopwatch {
    /// The stopwatch of the process.
    #[inline]
    pub(crate) fn system() -> &'static Stopwatch {
        &SYSTEM
    }

    fn new(is_steady: bool) -> Self {
        let [rate, due] = [(); 2].map(|()| AtomicU64::new(0));
        Stopwatch { is_steady, rate, due, anchor: Mutex::new(Anchor::at(both(is_steady))) }
    }

    fn anchor(&self) -> MutexGuard<'_, Anchor> {
        // Nothing panics under this lock.
        self.anchor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A reading, for [`Stopwatch::since_ns`].
    #[inline]
    pub(crate) fn read(&self) -> u64 {
        if self.is_steady { ticks() } else { Clock::virtual_ns(Clock::System.now()) }
    }

    /// The time since a reading, ns. Counters of two processors may be some ticks apart.
    #[inline]
    pub(crate) fn since_ns(&self, begun: u64) -> u64 {
        let now = self.read();
        let took = now.saturating_sub(begun);
        if !self.is_steady {
            return took;
        }
        if now >= self.due.load(Ordering::Relaxed) {
            self.measure();
        }
        let rate = self.rate.load(Ordering::Relaxed);
        ((u128::from(took) * u128::from(rate)) >> 32) as u64
    }

    /// Measures the rate since the anchor.
    #[cold]
    #[inline(never)]
    fn measure(&self) {
        let mut anchor = self.anchor();
        self.measure_at(&mut anchor, both(true));
    }

    /// Measures the rate between two readings of both clocks. The anchor moves on once it is a second old.
    ///
    /// Only one of the clocks counts while the machine is suspended, so another rate over a long span is
    /// believed when it is measured once more.
    fn measure_at(&self, anchor: &mut Anchor, (now, time): (u64, Instant)) {
        let span = now.saturating_sub(anchor.tick);
        let span_ns = time.saturating_duration_since(anchor.time).as_nanos();
        let rate = (span_ns << 32).checked_div(u128::from(span)).unwrap_or_default();
        let known = u128::from(self.rate.load(Ordering::Relaxed));
        let is_long = span_ns >= SPAN_NS || span >= second(known);
        let differs = known != 0 && rate.abs_diff(known) > known / 100;
        let doubted = is_long && differs && !anchor.doubted;
        let mut rate_now = known;
        if RATES.contains(&rate) && !doubted {
            self.rate.store(rate as u64, Ordering::Relaxed);
            rate_now = rate;
        }
        if is_long || span == 0 {
            *anchor = Anchor { doubted, ..Anchor::at((now, time)) };
        }
        self.due.store(now.saturating_add(span.min(second(rate_now))), Ordering::Relaxed);
    }
}

impl Anchor {
    fn at((tick, time): (u64, Instant)) -> Self {
        Anchor { tick, time, doubted: false }
    }
}

/// Ticks of a second at a rate; with an unknown one, those of 1 ns.
fn second(rate: u128) -> u64 {
    let ticks = (SPAN_NS << 32).checked_div(rate).unwrap_or(SPAN_NS);
    u64::try_from(ticks).unwrap_or(u64::MAX)
}

/// Readings of both clocks at one time, as close to each other as in the best of three attempts.
fn both(is_steady: bool) -> (u64, Instant) {
    let mut best = (u64::MAX, 0, Clock::System.now());
    for _ in 0..3 {
        if !is_steady || best.0 < CLOSE_TICKS {
            break;
        }
        let (before, time) = (ticks(), Clock::System.now());
        let between = ticks().saturating_sub(before);
        if between < best.0 {
            best = (between, before.saturating_add(between / 2), time);
        }
    }
    (best.1, best.2)
}

/// A clock for the durations of calls: the stopwatch of the process, or virtual time.
#[derive(Clone, Debug)]
pub(crate) enum Durations {
    System(&'static Stopwatch),
    Virtual(Clock),
}

impl Durations {
    /// Durations by a clock.
    pub(crate) fn by(clock: Clock) -> Self {
        match clock {
            Clock::System => Durations::System(Stopwatch::system()),
            Clock::Virtual(_) => Durations::Virtual(clock),
        }
    }

    /// A reading, for [`Durations::since_ns`].
    #[inline]
    pub(crate) fn read(&self) -> u64 {
        match self {
            Durations::System(stopwatch) => stopwatch.read(),
            Durations::Virtual(clock) => Clock::virtual_ns(clock.now()),
        }
    }

    /// The time since a reading, ns.
    #[inline]
    pub(crate) fn since_ns(&self, begun: u64) -> u64 {
        match self {
            Durations::System(stopwatch) => stopwatch.since_ns(begun),
            Durations::Virtual(clock) => Clock::virtual_ns(clock.now()).saturating_sub(begun),
        }
    }
}
