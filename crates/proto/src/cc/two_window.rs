//! The sender's window of the default control (ADR 35): congestion that the receiver does not see,
//! elsewhere in the network.
//!
//! While marks arrive, the window follows their fraction as in DCTCP (SIGCOMM '10). Without marks it
//! follows Swift's delay target, with the shortest round trip of a run of frames instead of each:
//! threads that are descheduled delay some frames, a queue delays all of them.

use super::signal::{Allowance, HostLink, PART, Signal};
use super::swift::Swift;

/// Gain of DCTCP's moving average: two to minus this power.
const GAIN_SHIFT: u32 = 4;
/// The whole fraction.
const ONE: u64 = 1 << 16;
/// Rounds without a mark after which the delay decides again.
const UNMARKED_ROUNDS: u32 = 64;
/// Frames of a run.
const RUN: u32 = 8;
/// Rounds without a sign of congestion after which the window is as large as at the start. A path
/// that uses a small part of its window would take much longer by additive increase.
const CLEAN_ROUNDS: u32 = 128;

/// The route is longer when round trips have stayed long for more than this number of rounds, with a
/// window that has shrunk to one part in `SHRUNK`.
const SHRUNK: u64 = 8;
const LONG_ROUNDS: u32 = 2;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct TwoWindow {
    swift: Swift,
    /// DCTCP's estimate of the marked fraction.
    alpha: u64,
    marked: u32,
    counted: u32,
    /// The round lasts for a round trip of the frame that ends it: that of its first frame may be far
    /// too long, when a thread did not run.
    round_began_ns: u64,
    /// Rounds without a mark and without a decrease, and when the last decrease was, ns.
    clean: u32,
    decreased_ns: u64,
    /// Rounds without a mark; at [`UNMARKED_ROUNDS`] or more the delay decides.
    unmarked: u32,
    run_ns: u64,
    run_frames: u32,
    run_acked: u64,
    route: Route,
}

impl TwoWindow {
    pub(super) fn new(line: HostLink, limit: u32) -> Self {
        TwoWindow {
            swift: Swift::new(line, limit),
            alpha: ONE,
            marked: 0,
            counted: 0,
            round_began_ns: 0,
            clean: 0,
            decreased_ns: 0,
            unmarked: UNMARKED_ROUNDS,
            run_ns: u64::MAX,
            run_frames: 0,
            run_acked: 0,
            route: Route::default(),
        }
    }

    pub(super) fn on_signal(&mut self, s: &Signal) {
        self.marked = self.marked.saturating_add(s.marked.min(s.counted.max(1)));
        self.counted = self.counted.saturating_add(s.counted);
        if self.marked > 0 && self.unmarked >= UNMARKED_ROUNDS {
            // The first mark: its round begins with it.
            (self.unmarked, self.alpha) = (0, ONE);
            self.counted = self.marked; // the rest is from before, when frames were not passed on
            self.end_round(s);
        } else if s.now_ns >= self.round_began_ns.saturating_add(s.rtt_ns.max(s.base_ns)) {
            self.end_round(s);
        }
        if self.unmarked >= UNMARKED_ROUNDS {
            self.on_delay(s);
        }
    }

    /// The end of a round trip.
    fn end_round(&mut self, s: &Signal) {
        let (marked, counted) = (u64::from(self.marked), u64::from(self.counted.max(1)));
        let fraction = (marked * ONE / counted).min(ONE);
        self.alpha = self.alpha - (self.alpha >> GAIN_SHIFT) + (fraction >> GAIN_SHIFT);
        self.unmarked = if marked > 0 { 0 } else { (self.unmarked + 1).min(UNMARKED_ROUNDS) };
        if self.unmarked < UNMARKED_ROUNDS {
            if marked > 0 {
                self.swift.decrease(1024 - self.alpha * 512 / ONE, s.now_ns);
            } else {
                self.swift.set_window(self.swift.window() + self.swift.window().min(PART));
            }
        }
        let decreased_ns = self.swift.decreased_ns();
        let is_clean = marked == 0 && decreased_ns == self.decreased_ns;
        self.clean = if is_clean { self.clean + 1 } else { 0 };
        self.decreased_ns = decreased_ns;
        if self.clean >= CLEAN_ROUNDS {
            self.clean = 0;
            self.swift.open();
        }
        (self.marked, self.counted) = (0, 0);
        self.round_began_ns = s.now_ns;
    }

    /// Collects a run of frames and passes the shortest to Swift. With a window of less than two packets
    /// a run takes too many round trips.
    fn on_delay(&mut self, s: &Signal) {
        if s.rtt_ns == 0 {
            return;
        }
        self.run_ns = self.run_ns.min(s.rtt_ns);
        self.run_acked += s.acked;
        self.run_frames += 1;
        let small = self.swift.window() < 2 * PART;
        if self.run_frames >= RUN || small {
            let run = Signal { rtt_ns: self.run_ns, acked: self.run_acked, ..*s };
            let late = self.swift.on_signal(&run);
            if self.route.on_run(&run, self.swift.window(), late) {
                self.swift.open();
            }
            (self.run_ns, self.run_frames, self.run_acked) = (u64::MAX, 0, 0);
        }
    }

    pub(super) fn take_longer_route(&mut self) -> Option<u64> {
        self.route.take()
    }

    pub(super) fn on_loss(&mut self, now_ns: u64, rtt_ns: u64) {
        self.swift.on_loss(now_ns, rtt_ns);
    }

    pub(super) fn on_spurious(&mut self) {
        self.swift.on_spurious();
    }

    pub(super) fn limit(&self) -> u64 {
        self.swift.limit()
    }

    pub(super) fn set_limit(&mut self, limit: u32) {
        self.swift.set_limit(limit);
    }

    pub(super) fn allowance(&self, base_ns: u64, rtt_ns: u64, noise_ns: u64) -> Allowance {
        let mut allowed = self.swift.allowance(base_ns, rtt_ns, noise_ns);
        // A slow frame begins a run, which needs the frames after it.
        if self.unmarked < UNMARKED_ROUNDS || self.run_frames > 0 {
            allowed.watch_ns = 0;
        }
        allowed
    }
}

/// Tells a longer route from a queue. A queue shrinks with the windows that fill it; if half of the
/// excess stays while the window shrinks to an eighth, that is the route's. The other half may be the
/// queue of the window from before.
#[derive(Debug, Default)]
struct Route {
    /// The longest round trip since the window began to shrink, and the window then; 0: it does not
    /// shrink.
    longest_ns: u64,
    window: u64,
    /// Round trips of at least half of that excess, with a small window, and when the last of them began.
    long: u32,
    began_ns: u64,
    /// The route's round trip; 0: as before.
    found_ns: u64,
}

impl Route {
    /// A run of frames whose shortest round trip is `s.rtt_ns`; `late`: it is beyond the target.
    /// Returns whether the route is longer than before.
    fn on_run(&mut self, s: &Signal, window: u64, late: bool) -> bool {
        if !late {
            *self = Route::default();
            return false;
        }
        if self.longest_ns == 0 {
            self.window = window;
        }
        self.longest_ns = self.longest_ns.max(s.rtt_ns);
        let long_ns = s.base_ns + self.longest_ns.saturating_sub(s.base_ns) / 2;
        if window * SHRUNK > self.window || s.rtt_ns < long_ns {
            self.long = 0;
        } else if self.long == 0 || s.now_ns >= self.began_ns + s.rtt_ns {
            (self.long, self.began_ns) = (self.long + 1, s.now_ns);
        }
        if self.long <= LONG_ROUNDS {
            return false;
        }
        *self = Route { found_ns: s.rtt_ns, ..Route::default() };
        true
    }

    fn take(&mut self) -> Option<u64> {
        let found_ns = std::mem::take(&mut self.found_ns);
        (found_ns > 0).then_some(found_ns)
    }
}
