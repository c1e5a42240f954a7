//! Swift (SIGCOMM '20): a window that follows a delay target, below one packet by pacing.
//!
//! The target is the smallest round trip plus an allowance for queueing that scales with the path:
//! no constant in microseconds assumes a slow or a fast network. Flows with small windows get a
//! higher target (flow scaling), which makes windows fair.

use crate::mutant::{self, Mutant};

use super::signal::{Allowance, HostLink, PART, Signal, WINDOW_MIN};

/// Largest decrease per round trip is to this many 1,024ths.
const DECREASE_MAX: u64 = 512;
/// Weight of the excess delay in a decrease, per 1,024.
const BETA: u64 = 819; // 0.8
/// Flow scaling applies between these windows.
const SCALE_FROM: u64 = PART / 10;
const SCALE_TO: u64 = 100 * PART;
/// Packets whose time on the link is allowed as queueing.
const QUEUE_PACKETS: u64 = 16;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Swift {
    line: HostLink,
    /// In parts of a packet, up to `limit`.
    window: u64,
    limit: u64,
    decreased_ns: u64,
    /// The window before the last decrease by loss; 0: none.
    before_loss: u64,
}

impl Swift {
    pub(super) fn new(line: HostLink, limit: u32) -> Self {
        let limit = u64::from(limit.max(1)) * PART;
        Swift { line, window: limit, limit, decreased_ns: 0, before_loss: 0 }
    }

    pub(super) fn window(&self) -> u64 {
        self.window
    }

    pub(super) fn set_window(&mut self, window: u64) {
        self.window = window.clamp(WINDOW_MIN, self.limit);
    }

    /// When the window last decreased, ns.
    pub(super) fn decreased_ns(&self) -> u64 {
        self.decreased_ns
    }

    /// Opens the window up to its limit.
    pub(super) fn open(&mut self) {
        if !mutant::is_on(Mutant::WindowNeverRecovers) {
            self.window = self.limit;
        }
    }

    /// The largest window.
    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// Changes the limit; a window at the limit stays there.
    pub(super) fn set_limit(&mut self, limit: u32) {
        let limit = u64::from(limit.max(1)) * PART;
        let full = self.window >= self.limit;
        self.window = if full { limit } else { self.window.min(limit) };
        self.limit = limit;
    }

    /// The delay that this window aims at, ns.
    pub(super) fn target_ns(&self, base_ns: u64, noise_ns: u64) -> u64 {
        let packets_ns = QUEUE_PACKETS * self.line.gap_ns(self.line.rate_bytes_per_s);
        let queue_ns = base_ns.max(packets_ns).max(2 * noise_ns) + 2 * self.line.train_ns;
        // `range * (1/sqrt(w) - 1/sqrt(to)) / (1/sqrt(from) - 1/sqrt(to))`, in parts of 1,024.
        let inverse = |window: u64| (1 << 20) / window.isqrt();
        let (w, from, to) = (
            inverse(self.window.clamp(SCALE_FROM, SCALE_TO)),
            inverse(SCALE_FROM),
            inverse(SCALE_TO),
        );
        let scaling_ns = 2 * base_ns * (w - to) / (from - to).max(1);
        base_ns + queue_ns + scaling_ns
    }

    /// Takes a frame; returns whether its round trip is beyond the target.
    pub(super) fn on_signal(&mut self, s: &Signal) -> bool {
        if s.rtt_ns == 0 {
            return false;
        }
        let target_ns = self.target_ns(s.base_ns, s.noise_ns);
        let is_late = s.rtt_ns >= target_ns;
        if !is_late {
            self.increase(s.acked);
        } else if s.now_ns >= self.decreased_ns + s.rtt_ns {
            let over = (s.rtt_ns - target_ns) * 1024 / s.rtt_ns;
            let keeps = (1024 - BETA * over / 1024).max(DECREASE_MAX);
            self.decrease(keeps, s.now_ns);
        }
        is_late
    }

    /// One packet per round trip: by its share for what was acknowledged.
    pub(super) fn increase(&mut self, acked: u64) {
        if mutant::is_on(Mutant::WindowNeverRecovers) {
            return;
        }
        let more = if self.window >= PART { acked * PART / self.window } else { acked };
        self.window = (self.window + more).min(self.limit);
    }

    pub(super) fn decrease(&mut self, keeps: u64, now_ns: u64) {
        self.set_window(self.window * keeps / 1024);
        self.decreased_ns = now_ns;
        self.before_loss = 0;
    }

    /// Halves the window, at most once per round trip.
    pub(super) fn on_loss(&mut self, now_ns: u64, rtt_ns: u64) {
        if now_ns >= self.decreased_ns + rtt_ns {
            let before = self.window;
            self.decrease(DECREASE_MAX, now_ns);
            self.before_loss = before;
        }
    }

    /// Undoes the last decrease by loss.
    pub(super) fn on_spurious(&mut self) {
        self.window = self.window.max(self.before_loss).min(self.limit);
        self.before_loss = 0;
    }

    pub(super) fn allowance(&self, base_ns: u64, rtt_ns: u64, noise_ns: u64) -> Allowance {
        let full = self.window >= self.limit;
        let skips = full && self.line.skips_updates;
        let paced = self.window < PART;
        Allowance {
            window: if full { u64::MAX } else { self.window.max(PART) },
            gap_ns: if paced { rtt_ns.max(base_ns) * PART / self.window } else { 0 },
            watch_ns: if skips { self.target_ns(base_ns, noise_ns) } else { 0 },
        }
    }
}
