//! Timely (SIGCOMM '15) with the constants of eRPC's `timely.h` `[eRPC section 5.2]` (E48), and with
//! the correction of "ECN or Delay" (CoNEXT '16, algorithm 2) as eRPC has it under `kPatched`.
//!
//! eRPC passes every packet's round trip to the controller. A step is scaled by the time since the
//! last one, at most a smallest round trip. Here one credit return may acknowledge many packets, so
//! that a step is scaled by at most that number: their samples would have arrived in that time.

use crate::cc::signal::{Allowance, HostLink, PART, Signal};

/// Below, the rate increases.
const LOW_NS: u64 = 50_000;
/// Above, it decreases whatever the gradient.
const HIGH_NS: u64 = 1_000_000;
/// The round trip by which gradients are normalised; shorter ones are ignored, as in eRPC.
const MIN_RTT_NS: u64 = 2_000;
/// Additive increase, bytes per second: 40 Mbit/s.
const STEP: u64 = 5_000_000;
/// The smallest rate, bytes per second.
const FLOOR: u64 = 15_000_000;
/// Weight of a new difference, and the factor of decreases, per 1,024.
const ALPHA: i64 = 471; // 0.46
const BETA: i64 = 266; // 0.26
/// Differences that were not positive, in a row, after which increases are fivefold.
const HYPER_AFTER: u32 = 5;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Timely {
    line: HostLink,
    patched: bool,
    /// The rate that it allows.
    rate_bytes_per_s: u64,
    last_rtt_ns: u64,
    /// Smoothed difference of successive round trips, ns.
    difference_ns: i64,
    falling: u32,
    last_ns: u64,
}

impl Timely {
    pub(in crate::cc) fn new(line: HostLink, patched: bool) -> Self {
        Timely {
            line,
            patched,
            rate_bytes_per_s: line.rate_bytes_per_s,
            last_rtt_ns: 0,
            difference_ns: 0,
            falling: 0,
            last_ns: 0,
        }
    }

    pub(in crate::cc) fn allowance(&self) -> Allowance {
        self.line.at_rate(self.rate_bytes_per_s, LOW_NS)
    }

    pub(in crate::cc) fn on_signal(&mut self, s: &Signal) {
        if s.rtt_ns < MIN_RTT_NS || s.acked == 0 {
            return;
        }
        if self.last_rtt_ns == 0 {
            (self.last_rtt_ns, self.last_ns) = (s.rtt_ns, s.now_ns);
            return;
        }
        let difference_ns = s.rtt_ns as i64 - self.last_rtt_ns as i64;
        self.falling = if difference_ns < 0 { self.falling + 1 } else { 0 };
        self.difference_ns += (difference_ns - self.difference_ns) * ALPHA / 1024;
        // Parts of 1,024 of a whole step.
        let most = s.acked.max(PART) * 1024 / PART;
        let since_ns = s.now_ns.saturating_sub(self.last_ns);
        let scale = (since_ns.saturating_mul(1024) / MIN_RTT_NS).min(most);
        (self.last_rtt_ns, self.last_ns) = (s.rtt_ns, s.now_ns);
        let rate = self.next_rate(s.rtt_ns, scale as i64);
        // As eRPC: one update never lowers the rate by more than half.
        self.rate_bytes_per_s = rate
            .max(self.rate_bytes_per_s / 2)
            .clamp(FLOOR.min(self.line.rate_bytes_per_s), self.line.rate_bytes_per_s);
    }

    fn next_rate(&self, rtt_ns: u64, scale: i64) -> u64 {
        let rate = self.rate_bytes_per_s as i64;
        let step = STEP as i64 * scale / 1024;
        // `rate * share / 1024^2`, where `share` is a scaled factor.
        let less = |share: i64| rate - ((i128::from(rate) * i128::from(share)) >> 20) as i64;
        let next = if rtt_ns < LOW_NS {
            rate + step
        } else if rtt_ns > HIGH_NS {
            let over = 1024 - (HIGH_NS * 1024 / rtt_ns) as i64;
            less(scale * BETA * over / 1024)
        } else {
            // Gradient in parts of 1,024.
            let gradient = self.difference_ns * 1024 / MIN_RTT_NS as i64;
            if self.patched {
                let weight = (2 * gradient + 512).clamp(0, 1024);
                let error = (rtt_ns as i64 - LOW_NS as i64) * 1024 / LOW_NS as i64;
                less(scale * BETA * weight / 1024 * error / 1024) + step * (1024 - weight) / 1024
            } else if gradient <= 0 {
                rate + step * if self.falling >= HYPER_AFTER { 5 } else { 1 }
            } else {
                less(scale * BETA * gradient / 1024)
            }
        };
        next.max(0) as u64
    }
}
