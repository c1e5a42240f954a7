//! Pauses of this endpoint itself: a thread that was stopped, or starved of CPU time, finds its timers
//! late. Its peers had no packet to answer meanwhile, so their silence in that time proves nothing.
//!
//! After a pause no peer is given up for as long as it took, at most for the timeout of such verdicts.
//! An endpoint that is late all the time, because its handlers are slow, gets that once in a timeout,
//! so that a dead peer is still found.

/// A timer that is late by this part of the timeout shows a pause.
const PART: u64 = 32;

/// See the module's documentation.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Pause {
    /// Until then no peer is given up, ns; 0: there was no pause.
    until_ns: u64,
}

impl Pause {
    /// Timers expire, of which the first was due at `due_ns`; verdicts come after `timeout_ns`.
    #[inline]
    pub(crate) fn on_timers(&mut self, due_ns: u64, now_ns: u64, timeout_ns: u64) {
        let late_ns = now_ns.saturating_sub(due_ns);
        if late_ns > timeout_ns / PART {
            self.on_late(late_ns, now_ns, timeout_ns);
        }
    }

    fn on_late(&mut self, late_ns: u64, now_ns: u64, timeout_ns: u64) {
        if self.until_ns == 0 || now_ns >= self.until_ns.saturating_add(timeout_ns) {
            self.until_ns = now_ns.saturating_add(late_ns.min(timeout_ns));
        }
    }

    /// Returns whether the silence of a peer may be due to a pause of this endpoint.
    pub(crate) fn excuses(&self, now_ns: u64) -> bool {
        now_ns < self.until_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn a_pause_excuses_for_as_long_as_it_took_and_at_most_for_the_timeout() {
        for (late_ns, excused_ns) in [(S, S), (4 * S, 4 * S), (90 * S, 5 * S)] {
            let mut pause = Pause::default();
            let now_ns = 100 * S;
            pause.on_timers(now_ns - late_ns, now_ns, 5 * S);
            assert!(pause.excuses(now_ns + excused_ns - 1));
            assert!(!pause.excuses(now_ns + excused_ns));
        }
    }

    #[test]
    fn timers_that_are_a_little_late_excuse_nothing() {
        let mut pause = Pause::default();
        pause.on_timers(S, S + S / 10, 5 * S);
        assert!(!pause.excuses(S + S / 10));
    }

    #[test]
    fn an_endpoint_that_is_always_late_is_excused_less_than_half_of_the_time() {
        let mut pause = Pause::default();
        let (mut now_ns, mut excused) = (0, 0);
        for _ in 0..1_000 {
            now_ns += 500_000_000;
            pause.on_timers(now_ns - 500_000_000, now_ns, 5 * S);
            excused += u32::from(pause.excuses(now_ns));
        }
        assert!((50..500).contains(&excused), "{excused} of 1,000");
    }
}
