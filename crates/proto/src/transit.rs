//! Transit times of frames: a server uses them to convert the remaining time of a call, as of its
//! transmission, into a deadline of its own clock (ADR 15).
//!
//! The two clocks are not synchronised, so `arrival - sent_at` is the transit time plus an unknown
//! constant. Its minimum stands for a frame without queueing. Any excess is waiting time: in either
//! kernel, in the network, or in the receive buffer of a stopped server. The minimum is taken over
//! the last 10 to 20 s, so that clocks may drift: 50 ppm are 1 ms then, which makes a deadline
//! early, never late. If the transport states when a frame has arrived, `arrival` is that time, and the
//! wait in the host is added.
//!
//! Before the first round-trip sample the transit time is unknown; the deadline is then late by the
//! transit time.
//!
//! The clocks count nanoseconds modulo 2^32. A frame that waited for more than 3.7 s is taken for
//! one that waited 4.3 s less.

/// Length of each of the two windows of the minimum filter, ns.
const WINDOW_NS: u64 = 10_000_000_000;

/// Differences from here on are frames faster than the minimum, by up to 0.5 s; smaller ones are
/// frames slower, by up to 3.7 s. Long waits are common; a sudden, much faster path is not.
const FASTER: u32 = 0xe000_0000;

/// The minimum transit of a peer's frames, and that of its newest frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transit {
    /// Minimum of this window and the previous one.
    least: u32,
    /// Minimum of this window.
    least_now: u32,
    /// End of this window; 0 before the first frame.
    until_ns: u64,
    /// Transit of the current frame.
    frame: u32,
    /// The round trip that the current frame completed, at most; `u32::MAX` when unknown.
    round_trip: u32,
}

impl Transit {
    pub(crate) fn new() -> Self {
        Transit { least: 0, least_now: 0, until_ns: 0, frame: 0, round_trip: u32::MAX }
    }

    /// Records a frame that is newer than all before, and the round trip of its echo.
    #[inline]
    pub(crate) fn on_newer(&mut self, sent_at: u32, round_trip: Option<u32>, now_ns: u64) {
        self.frame = (now_ns as u32).wrapping_sub(sent_at);
        self.round_trip = round_trip.unwrap_or(u32::MAX);
        if now_ns >= self.until_ns {
            self.next_window(now_ns);
        }
        if self.frame.wrapping_sub(self.least_now) >= FASTER {
            self.least_now = self.frame;
            if self.frame.wrapping_sub(self.least) >= FASTER {
                self.least = self.frame;
            }
        }
    }

    /// Transit time of the current frame and the smallest one, ns modulo 2^32, plus an unknown
    /// constant.
    pub(crate) fn frame(&self) -> (u32, u32) {
        (self.frame, self.least)
    }

    /// The round trip that the current frame has completed.
    #[inline]
    pub(crate) fn round_trip_ns(&self) -> Option<u64> {
        (self.round_trip != u32::MAX).then_some(self.round_trip.into())
    }

    /// Records a reordered or duplicate frame. It gives no sample: a replayed old frame would
    /// appear to come from the future.
    #[inline]
    pub(crate) fn on_older(&mut self, sent_at: u32, now_ns: u64) {
        self.frame = (now_ns as u32).wrapping_sub(sent_at);
        self.round_trip = u32::MAX;
    }

    /// Records a frame without send time: taken as one without queueing.
    #[inline]
    pub(crate) fn on_untimed(&mut self) {
        self.frame = self.least;
        self.round_trip = u32::MAX;
    }

    #[cold]
    fn next_window(&mut self, now_ns: u64) {
        // After a pause the minimum is outdated.
        let known = self.until_ns != 0 && now_ns - self.until_ns < WINDOW_NS;
        self.least = if known { self.least_now } else { self.frame };
        self.least_now = self.frame;
        self.until_ns = now_ns + WINDOW_NS;
    }

    /// Time since the current frame left its sender, ns; `rtt_min_ns` is the smallest round trip to
    /// it, 0 when unknown, and `wait_ns` how long the frame has waited since it arrived. Rounded up: the
    /// transit without queueing is taken as a whole round trip. It is at most the round trip that this
    /// frame completed, whatever the clocks show; if that contradicts the minimum transit, the latter is
    /// corrected.
    pub(crate) fn age_ns(&mut self, rtt_min_ns: u64, wait_ns: u64) -> u64 {
        let excess = self.frame.wrapping_sub(self.least);
        let excess = if excess >= FASTER { 0 } else { excess };
        if excess > self.round_trip {
            self.least = self.frame.wrapping_sub(self.round_trip);
            self.least_now = self.least;
        }
        (u64::from(excess) + rtt_min_ns + wait_ns).min(u64::from(self.round_trip))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A peer whose clock is `skew` behind, and whose frames take 20 us.
    fn arrive(t: &mut Transit, skew: u32, now_ns: u64, waited_ns: u64) -> u64 {
        let sent = (now_ns - waited_ns - 20_000) as u32;
        t.on_newer(sent.wrapping_sub(skew), None, now_ns);
        t.age_ns(30_000, 0)
    }

    #[test]
    fn waiting_times_are_measured_with_any_clock_offset() {
        for skew in [0, 1, 1 << 31, u32::MAX - 5] {
            let mut t = Transit::new();
            assert_eq!(arrive(&mut t, skew, 5_000 * MS, 0), 30_000, "{skew}");
            assert_eq!(arrive(&mut t, skew, 5_001 * MS, 7 * MS), 7 * MS + 30_000);
            assert_eq!(arrive(&mut t, skew, 9_000 * MS, 3_500 * MS), 3_500 * MS + 30_000);
            assert_eq!(
                arrive(&mut t, skew, 9_001 * MS, 0),
                30_000,
                "waiting does not change the minimum"
            );
        }
    }

    #[test]
    fn the_first_fast_frame_replaces_a_slow_minimum() {
        let mut t = Transit::new();
        assert_eq!(arrive(&mut t, 9, 5_000 * MS, 400 * MS), 30_000);
        assert_eq!(arrive(&mut t, 9, 5_001 * MS, 0), 30_000);
        assert_eq!(arrive(&mut t, 9, 5_002 * MS, 400 * MS), 400 * MS + 30_000);
    }

    #[test]
    fn drift_is_followed_and_a_pause_resets() {
        let mut t = Transit::new();
        let mut worst = 0;
        // 50 ppm for 100 s: 5 ms in total.
        for s in 1..100u64 {
            let drifted = (s * 50_000) as u32;
            worst = worst.max(arrive(&mut t, drifted, s * 1_000 * MS, 0));
        }
        assert!((500_000..=30_000 + MS).contains(&worst), "{worst}");
        assert_eq!(arrive(&mut t, 1 << 29, 1_000_000 * MS, 0), 30_000);
    }

    #[test]
    fn no_frame_is_older_than_the_round_trip_it_completes() {
        let mut t = Transit::new();
        // A frame that waited for 4.2 s appears faster than the minimum by 0.1 s.
        arrive(&mut t, 0, 10_000 * MS, 0);
        arrive(&mut t, 0, 15_000 * MS, 4_200 * MS);
        let sent = (15_001 * MS - 20_000) as u32;
        t.on_newer(sent, Some(50_000), 15_001 * MS);
        assert_eq!(t.age_ns(30_000, 0), 50_000);
        assert_eq!(arrive(&mut t, 0, 15_002 * MS, 0), 80_000, "corrected for later frames too");
    }

    #[test]
    fn old_frames_teach_nothing() {
        let mut t = Transit::new();
        arrive(&mut t, 0, 10_000 * MS, 0);
        t.on_older((6_000 * MS) as u32, 10_001 * MS); // 4 s: "0.3 s faster"
        arrive(&mut t, 0, 10_002 * MS, 0);
        assert_eq!(arrive(&mut t, 0, 10_003 * MS, MS), MS + 30_000);
    }
}
