//! The waits of an idle endpoint: it spins, and then sleeps. Spinning saves 30 us of wake-up time for the
//! next packet and costs a core; with a single core it would delay the sender of that packet.

use std::time::Duration;

use crate::platform::{Clock, Platform, cpus, process_cpus};

/// Spin time where there is more than one CPU to spin on.
const SPIN: Duration = Duration::from_micros(100);

/// Factor on the spin time of an endpoint with calls in flight: a server that sleeps needs up to
/// 0.2 ms to wake on a virtual machine.
const SPIN_FOR_ANSWER: u64 = 5;

/// After this time without a packet, the thread yields between two polls (about 0.3 us each): with
/// more endpoints than CPUs, the peer may need this one.
const YIELD_AFTER_NS: u64 = 20_000;

/// Polls of an idle endpoint, for frames and mail only, between two full iterations with clock and
/// timers. A poll takes a third of an iteration, so that a packet waits less; other work is delayed
/// by a tenth of a microsecond.
const SPIN_POLLS: u32 = 7;

/// A yield that takes longer than this has given the CPU to a thread that does not give it back.
const LATE_NS: u64 = 300_000;
/// Time without spinning after a late yield: at first, and at most. Doubled when the first yield after
/// that time is late again.
const PAUSE_NS: (u64, u64) = (10_000_000, 1_000_000_000);

/// Whether other threads compete for this thread's CPU. A thread that spins and yields then runs once
/// in a few milliseconds, while one that sleeps runs as soon as it has a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Crowd {
    /// No spinning before this time, ns.
    until_ns: u64,
    /// Length of the last pause, ns; 0 after yields in time.
    pause_ns: u64,
}

impl Crowd {
    /// A yield took from `from_ns` to `to_ns`.
    fn yielded(&mut self, from_ns: u64, to_ns: u64) {
        if to_ns.saturating_sub(from_ns) > LATE_NS {
            self.pause_ns = (2 * self.pause_ns).clamp(PAUSE_NS.0, PAUSE_NS.1);
            self.until_ns = to_ns.saturating_add(self.pause_ns);
        } else if to_ns >= self.until_ns.saturating_add(self.pause_ns) {
            self.pause_ns = 0;
        }
    }

    /// Returns whether the thread sleeps at once instead of spinning.
    #[inline]
    fn is_there(&self, now_ns: u64) -> bool {
        now_ns < self.until_ns
    }
}

/// The spinning of an endpoint before it sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Spin {
    /// For how long, ns; 0: not at all.
    ns: u64,
    /// Yield the CPU between two polls: all threads of the process are pinned to one, and the
    /// other side may be pinned there too.
    yields: bool,
}

impl Spin {
    /// The settings for this platform. `wanted` overrides the time, not the politeness. In virtual time there is
    /// nothing to spin for.
    ///
    /// Containers' CPU sets and quotas count: with one CPU, or less, there is no spinning. The
    /// affinity of threads does not: a program that pins its threads still owns several CPUs.
    fn on(platform: &Platform, wanted: Option<Duration>) -> Self {
        if platform.is_virtual() {
            return Spin { ns: 0, yields: false };
        }
        let default = if cpus() > 1 { SPIN } else { Duration::ZERO };
        let ns = u64::try_from(wanted.unwrap_or(default).as_nanos()).unwrap_or(u64::MAX);
        Spin { ns, yields: process_cpus().len() == 1 }
    }
}

/// The next step of an endpoint without work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rest {
    /// Poll again.
    Poll,
    /// Yield the CPU, and poll again.
    Yield,
    Sleep,
}

/// The state of an endpoint that has no work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Idle {
    spin: Spin,
    /// The program yields the CPU to others while it spins.
    yields: bool,
    crowd: Crowd,
    /// Passes that may handle frames and mail only.
    polls: u32,
    /// There was work since the endpoint was last idle.
    was_busy: bool,
    /// When it became idle, ns.
    since_ns: u64,
}

impl Idle {
    /// See [`Spin::on`].
    pub(crate) fn on(platform: &Platform, wanted: Option<Duration>) -> Self {
        let (spin, crowd) = (Spin::on(platform, wanted), Crowd::default());
        Idle { spin, yields: spin.yields, crowd, polls: 0, was_busy: false, since_ns: 0 }
    }

    /// For how long it spins without calls in flight, ns.
    pub(crate) fn spin_ns(&self) -> u64 {
        self.spin.ns
    }

    /// From now on it yields the CPU while it spins, or does so only where it must.
    #[inline]
    pub(crate) fn set_yields(&mut self, yields: bool) {
        self.yields = self.spin.yields || yields;
    }

    /// An iteration has ended, perhaps with work.
    #[inline]
    pub(crate) fn after(&mut self, busy: bool) {
        self.was_busy |= busy;
    }

    /// Returns whether the next pass may handle frames and mail only.
    #[inline]
    pub(crate) fn only_polls(&self) -> bool {
        self.polls > 0
    }

    /// A pass has found neither frames nor mail. Returns whether it ends there.
    #[inline]
    pub(crate) fn take_poll(&mut self) -> bool {
        if self.polls == 0 {
            return false;
        }
        self.polls -= 1;
        true
    }

    /// The next passes handle frames and mail only.
    pub(crate) fn only_poll(&mut self) {
        self.polls = SPIN_POLLS;
    }

    /// The next pass is a full one.
    #[inline]
    pub(crate) fn poll_no_more(&mut self) {
        self.polls = 0;
    }

    /// The next step after an iteration without work. `expects`: calls are in flight, and their responses
    /// are expected soon, unlike the next request of a client.
    #[inline]
    pub(crate) fn next(&mut self, now_ns: u64, expects: bool) -> Rest {
        // The spin time starts after the last iteration with work: sending to a halted CPU may take
        // as long as the spin time, and the response would find this thread asleep.
        if std::mem::take(&mut self.was_busy) {
            self.since_ns = now_ns;
        }
        let factor = if expects { SPIN_FOR_ANSWER } else { 1 };
        let idle_ns = now_ns.saturating_sub(self.since_ns);
        if idle_ns >= self.spin.ns.saturating_mul(factor) || self.crowd.is_there(now_ns) {
            return Rest::Sleep;
        }
        if self.yields || idle_ns > YIELD_AFTER_NS { Rest::Yield } else { Rest::Poll }
    }

    /// A yield took from `from_ns` to `to_ns`.
    pub(crate) fn yielded(&mut self, from_ns: u64, to_ns: u64) {
        self.crowd.yielded(from_ns, to_ns);
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
    fn an_idle_endpoint_polls_then_yields_and_sleeps_later_when_it_expects_responses() {
        let spin = Spin { ns: 100_000, yields: false };
        let idle = Idle { spin, ..Idle::on(&Platform::System, None) };
        for (expects, sleeps_ns) in [(false, 100_000), (true, 500_000)] {
            let mut idle = idle;
            idle.set_yields(false);
            idle.after(true);
            let mut next = |after_ns| idle.next(7_000_000 + after_ns, expects);
            assert_eq!((next(0), next(YIELD_AFTER_NS)), (Rest::Poll, Rest::Poll));
            assert_eq!((next(20_001), next(sleeps_ns - 1)), (Rest::Yield, Rest::Yield));
            assert_eq!(next(sleeps_ns), Rest::Sleep);
            idle.set_yields(true);
            idle.after(true);
            assert_eq!(idle.next(8_000_000, expects), Rest::Yield, "to others from the beginning");
            idle.yielded(8_000_000, 9_000_000);
            assert_eq!(idle.next(9_000_000, expects), Rest::Sleep, "they do not give the CPU back");
        }
    }

    #[test]
    fn this_machine_has_a_cpu_and_a_wish_is_granted() {
        assert!(cpus() >= 1 && !process_cpus().is_empty());
        let wanted = Spin::on(&Platform::System, Some(Duration::from_micros(7)));
        assert_eq!(wanted.ns, 7_000);
    }
}
