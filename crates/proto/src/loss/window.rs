//! The reordering window of a path: how much later than packets that were sent after it a packet
//! may arrive without being considered lost (E58; after RACK, RFC 8985).
//!
//! Without observed reordering it is a quarter of the smallest round trip, as in RACK. Otherwise it
//! is the largest observed lateness plus a quarter: a packet that arrives after one sent `d` later
//! was late by `d`. The maximum is kept over two windows of one second, so that the value decays.
//! Each spurious retransmission doubles the window.

/// Length of a window of the maximum filter, ns.
const SECOND_NS: u64 = 1_000_000_000;

/// Upper limit of the reordering window in round trips.
const MOST_ROUND_TRIPS: u64 = 8;

/// See the module's documentation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReorderWindow {
    /// Largest lateness in the previous and in the current second, ns.
    before_ns: u64,
    now_ns: u64,
    /// End of the current second.
    until_ns: u64,
}

impl ReorderWindow {
    /// A packet has arrived after one that was sent `late_ns` later.
    pub(crate) fn on_late(&mut self, late_ns: u64, now_ns: u64) {
        self.turn(now_ns);
        self.now_ns = self.now_ns.max(late_ns);
    }

    /// A retransmission caused by the window was spurious.
    pub(crate) fn on_spurious(&mut self, srtt_ns: u64, least_ns: u64, now_ns: u64) {
        let longer_ns = self.window_ns(srtt_ns, least_ns, now_ns).saturating_mul(2);
        self.turn(now_ns);
        self.now_ns = self.now_ns.max(longer_ns).min(MOST_ROUND_TRIPS * srtt_ns);
    }

    /// The window for the given smoothed and smallest round trip, ns.
    pub(crate) fn window_ns(&self, srtt_ns: u64, least_ns: u64, now_ns: u64) -> u64 {
        let seen_ns = if now_ns >= self.until_ns + SECOND_NS {
            0
        } else if now_ns >= self.until_ns {
            self.now_ns
        } else {
            self.now_ns.max(self.before_ns)
        };
        (seen_ns + seen_ns / 4).min(MOST_ROUND_TRIPS * srtt_ns).max(least_ns / 4)
    }

    fn turn(&mut self, now_ns: u64) {
        if now_ns < self.until_ns {
            return;
        }
        let known = now_ns < self.until_ns + SECOND_NS;
        self.before_ns = if known { self.now_ns } else { 0 };
        self.now_ns = 0;
        self.until_ns = if known { self.until_ns } else { now_ns } + SECOND_NS;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RTT: u64 = 16_000;

    proptest! {
        #[test]
        fn it_keeps_the_maximum_of_at_least_one_and_at_most_two_seconds(
            lates in prop::collection::vec((0..SECOND_NS, 0..20 * RTT), 1..60),
            after_ns in 0..3 * SECOND_NS,
            least_ns in 1..RTT,
        ) {
            let (mut w, mut now_ns, mut all) = (ReorderWindow::default(), SECOND_NS, Vec::new());
            for (gap_ns, late_ns) in lates {
                now_ns += gap_ns;
                w.on_late(late_ns, now_ns);
                all.push((now_ns, late_ns));
                check(&w, &all, now_ns, least_ns)?;
            }
            check(&w, &all, now_ns + after_ns, least_ns)?;
        }

        #[test]
        fn spurious_retransmissions_widen_the_window_until_it_suffices(
            late_ns in 0..8 * RTT,
            least_ns in 4..RTT,
        ) {
            let mut w = ReorderWindow::default();
            let mut window_ns = w.window_ns(RTT, least_ns, 5);
            let mut turns = 0;
            while window_ns < late_ns {
                w.on_spurious(RTT, least_ns, 5);
                let longer_ns = w.window_ns(RTT, least_ns, 5);
                prop_assert!(longer_ns >= (2 * window_ns).min(8 * RTT));
                (window_ns, turns) = (longer_ns, turns + 1);
                prop_assert!(turns <= 20, "{} of {}", window_ns, late_ns);
            }
        }
    }

    fn check(
        w: &ReorderWindow,
        all: &[(u64, u64)],
        now_ns: u64,
        least_ns: u64,
    ) -> Result<(), TestCaseError> {
        let most = |within_ns: u64| {
            let recent = all.iter().filter(|late| now_ns - late.0 < within_ns);
            let late_ns = recent.map(|late| late.1).max().unwrap_or(0);
            (late_ns + late_ns / 4).min(MOST_ROUND_TRIPS * RTT).max(least_ns / 4)
        };
        let window_ns = w.window_ns(RTT, least_ns, now_ns);
        prop_assert!((most(SECOND_NS)..=most(2 * SECOND_NS)).contains(&window_ns));
        Ok(())
    }

    #[test]
    fn it_starts_at_a_quarter_of_a_round_trip_and_follows_observations() {
        let mut w = ReorderWindow::default();
        assert_eq!(w.window_ns(RTT, RTT, 5), RTT / 4);
        w.on_late(40_000, 10);
        w.on_late(20_000, 20);
        assert_eq!(w.window_ns(RTT, RTT, 30), 50_000);
        w.on_spurious(RTT, RTT, 40);
        assert_eq!(w.window_ns(RTT, RTT, 50), 125_000);
        w.on_late(u64::MAX / 4, 60);
        assert_eq!(w.window_ns(RTT, RTT, 70), 8 * RTT);
    }

    #[test]
    fn it_decays_within_two_seconds() {
        let mut w = ReorderWindow::default();
        w.on_late(40_000, 7 * SECOND_NS);
        w.on_late(8_000, 8 * SECOND_NS + 1);
        assert_eq!(w.window_ns(RTT, RTT, 8 * SECOND_NS + 2), 50_000);
        w.on_late(8_000, 9 * SECOND_NS + 2);
        assert_eq!(w.window_ns(RTT, RTT, 9 * SECOND_NS + 3), 10_000);
        assert_eq!(w.window_ns(RTT, RTT, 12 * SECOND_NS), RTT / 4);
    }
}
