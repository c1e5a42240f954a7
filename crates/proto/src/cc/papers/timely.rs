//! Timely (SIGCOMM '15), by default with the constants of eRPC's `timely.h` `[eRPC section 5.2]` (E48),
//! and with the correction of "ECN or Delay" (CoNEXT '16, algorithm 2) as eRPC has it under
//! `kPatched`.
//!
//! eRPC passes every packet's round trip to the controller. A step is scaled by the time since the
//! last one, at most a smallest round trip. Here one credit return may acknowledge many packets, so
//! that a step is scaled by at most that number: their samples would have arrived in that time.
//!
//! The corrected one has a fixed point. With a constant round trip the gradient is zero and `w` one
//! half, so that increase `delta / 2` and decrease `R beta (RTT - T_low) / T_low / 2` are equal. All
//! flows have the same round trip and so the same rate `C / N`:
//! `RTT = T_low (1 + N delta / (beta C))`. The queue has this time, less the base round trip, in
//! bytes at the link's rate.

use crate::cc::constants::TimelyConstants;
use crate::cc::signal::{Allowance, HostLink, PART, Signal};

/// One, in the fixed-point numbers of gradients, weights and factors.
const ONE: i64 = 1 << 20;
const ONE_SHIFT: u32 = 20;

/// Parts per million as a fixed-point number.
fn of_ppm(ppm: u64) -> i64 {
    ppm as i64 * ONE / 1_000_000
}

/// `a b` of two fixed-point numbers.
fn times(a: i64, b: i64) -> i64 {
    ((i128::from(a) * i128::from(b)) >> ONE_SHIFT) as i64
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Timely {
    line: HostLink,
    patched: bool,
    constants: TimelyConstants,
    /// The constants that are fixed-point numbers.
    alpha: i64,
    beta: i64,
    /// The rate that it allows.
    rate_bytes_per_s: u64,
    last_rtt_ns: u64,
    /// Smoothed difference of successive round trips, in units of 2^-20 ns.
    difference: i64,
    falling: u32,
    last_ns: u64,
}

impl Timely {
    pub(in crate::cc) fn new(line: HostLink, patched: bool, constants: TimelyConstants) -> Self {
        Timely {
            line,
            patched,
            constants,
            alpha: of_ppm(constants.alpha_ppm),
            beta: of_ppm(constants.beta_ppm),
            rate_bytes_per_s: line.rate_bytes_per_s,
            last_rtt_ns: 0,
            difference: 0,
            falling: 0,
            last_ns: 0,
        }
    }

    pub(in crate::cc) fn allowance(&self) -> Allowance {
        self.line.at_rate(self.rate_bytes_per_s, self.constants.low_ns)
    }

    pub(in crate::cc) fn on_signal(&mut self, s: &Signal) {
        let min_rtt_ns = self.constants.min_rtt_ns;
        if s.rtt_ns == 0 || s.rtt_ns < self.constants.ignored_below_ns || s.acked == 0 {
            return;
        }
        if self.last_rtt_ns == 0 {
            (self.last_rtt_ns, self.last_ns) = (s.rtt_ns, s.now_ns);
            return;
        }
        let difference_ns = s.rtt_ns as i64 - self.last_rtt_ns as i64;
        self.falling = if difference_ns < 0 { self.falling + 1 } else { 0 };
        self.difference += times(difference_ns * ONE - self.difference, self.alpha);
        let most = s.acked.max(PART) * ONE as u64 / PART;
        let since_ns = s.now_ns.saturating_sub(self.last_ns);
        let scale = (since_ns.saturating_mul(ONE as u64) / min_rtt_ns).min(most);
        (self.last_rtt_ns, self.last_ns) = (s.rtt_ns, s.now_ns);
        let rate = self.next_rate(s.rtt_ns, scale as i64);
        let floor = (self.constants.floor_bps / 8).min(self.line.rate_bytes_per_s);
        // As eRPC: one update never lowers the rate by more than half.
        self.rate_bytes_per_s =
            rate.max(self.rate_bytes_per_s / 2).clamp(floor, self.line.rate_bytes_per_s);
    }

    fn next_rate(&self, rtt_ns: u64, scale: i64) -> u64 {
        let TimelyConstants { low_ns, high_ns, min_rtt_ns, step_bps, hyper_after, .. } =
            self.constants;
        let rate = self.rate_bytes_per_s as i64;
        let step = times((step_bps / 8) as i64, scale);
        // More than the whole is as much as that: a step never lowers the rate by more than half.
        let less = |share: i64| rate - times(rate, times(scale, times(self.beta, share)).min(ONE));
        let share = |part_ns: i64, of_ns: u64| part_ns.saturating_mul(ONE) / of_ns as i64;
        let next = if rtt_ns < low_ns {
            rate + step
        } else if rtt_ns > high_ns {
            less(ONE - share(high_ns as i64, rtt_ns))
        } else {
            let gradient = self.difference / min_rtt_ns as i64;
            if self.patched {
                let weight = (2 * gradient + ONE / 2).clamp(0, ONE);
                let error = share(rtt_ns as i64 - low_ns as i64, low_ns);
                less(times(weight, error)) + times(step, ONE - weight)
            } else if gradient <= 0 {
                rate + step * if self.falling >= hyper_after { 5 } else { 1 }
            } else {
                less(gradient)
            }
        };
        next.max(0) as u64
    }
}
