//! DCQCN (SIGCOMM '15) at the sender, with the constants of the paper (E54).
//!
//! The paper's receiver returns at most one congestion notification per 50 us while marked packets
//! arrive. Here each frame carries counts of marks, so the sender makes one notification of all
//! marks within 50 us. Timers are evaluated when a frame arrives: between frames nothing is sent
//! that they could delay by more than the age of the rate.

use crate::cc::signal::{Allowance, HostLink, PART, Signal};

/// Shortest time between two notifications.
const NOTIFY_NS: u64 = 50_000;
/// Time without a notification after which `alpha` decreases.
const ALPHA_NS: u64 = 55_000;
/// Period of the rate timer.
const RATE_NS: u64 = 55_000;
/// Bytes after which the rate increases.
const COUNTER_BYTES: u64 = 10_000_000;
/// Steps of fast recovery.
const RECOVERY: u32 = 5;
/// Additive and hyper increase, bytes per second: 40 and 400 Mbit/s.
const STEP: u64 = 5_000_000;
const HYPER_STEP: u64 = 50_000_000;
/// `g` is two to minus this power.
const GAIN_SHIFT: u32 = 8;
/// `alpha` of one.
const ONE: u64 = 1 << 20;
/// The smallest rate, bytes per second.
const FLOOR: u64 = 1_250_000;
/// Timer periods that are evaluated after a pause; more change nothing.
const PERIODS_MAX: u64 = 4_096;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Dcqcn {
    line: HostLink,
    /// Current rate.
    rate_bytes_per_s: u64,
    /// The rate that it returns to.
    target_bytes_per_s: u64,
    alpha: u64,
    notified_ns: u64,
    alpha_ns: u64,
    timer_ns: u64,
    bytes: u64,
    timer_steps: u32,
    byte_steps: u32,
    /// Marks that no notification was made of yet.
    marked: bool,
}

impl Dcqcn {
    pub(in crate::cc) fn new(line: HostLink) -> Self {
        Dcqcn {
            line,
            rate_bytes_per_s: line.rate_bytes_per_s,
            target_bytes_per_s: line.rate_bytes_per_s,
            alpha: ONE,
            notified_ns: 0,
            alpha_ns: 0,
            timer_ns: 0,
            bytes: 0,
            timer_steps: 0,
            byte_steps: 0,
            marked: false,
        }
    }

    pub(in crate::cc) fn allowance(&self) -> Allowance {
        // Marks are always passed to the controller.
        self.line.at_rate(self.rate_bytes_per_s, u64::MAX)
    }

    pub(in crate::cc) fn on_signal(&mut self, s: &Signal) {
        self.bytes += s.acked * self.line.packet_bytes / PART;
        self.marked |= s.marked > 0;
        self.run_timers(s.now_ns);
        if self.marked && s.now_ns - self.notified_ns >= NOTIFY_NS {
            self.marked = false;
            self.notify(s.now_ns);
        }
    }

    /// A congestion notification.
    fn notify(&mut self, now_ns: u64) {
        self.target_bytes_per_s = self.rate_bytes_per_s;
        let less = (u128::from(self.rate_bytes_per_s) * u128::from(self.alpha)
            / u128::from(2 * ONE)) as u64;
        self.rate_bytes_per_s =
            (self.rate_bytes_per_s - less).max(FLOOR.min(self.line.rate_bytes_per_s));
        self.alpha += (ONE - self.alpha) >> GAIN_SHIFT;
        (self.notified_ns, self.alpha_ns, self.timer_ns) = (now_ns, now_ns, now_ns);
        (self.bytes, self.timer_steps, self.byte_steps) = (0, 0, 0);
    }

    fn run_timers(&mut self, now_ns: u64) {
        if self.notified_ns == 0 {
            (self.alpha_ns, self.timer_ns) = (now_ns, now_ns); // nothing to recover from yet
        }
        for _ in 0..((now_ns - self.alpha_ns) / ALPHA_NS).min(PERIODS_MAX) {
            self.alpha -= self.alpha >> GAIN_SHIFT;
        }
        self.alpha_ns += (now_ns - self.alpha_ns) / ALPHA_NS * ALPHA_NS;
        for _ in 0..((now_ns - self.timer_ns) / RATE_NS).min(PERIODS_MAX) {
            self.timer_steps = self.timer_steps.saturating_add(1);
            self.increase();
        }
        self.timer_ns += (now_ns - self.timer_ns) / RATE_NS * RATE_NS;
        while self.bytes >= COUNTER_BYTES {
            self.bytes -= COUNTER_BYTES;
            self.byte_steps = self.byte_steps.saturating_add(1);
            self.increase();
        }
    }

    fn increase(&mut self) {
        let (least, most) =
            (self.timer_steps.min(self.byte_steps), self.timer_steps.max(self.byte_steps));
        if least > RECOVERY {
            self.target_bytes_per_s += HYPER_STEP * u64::from(least - RECOVERY);
        } else if most > RECOVERY {
            self.target_bytes_per_s += STEP;
        }
        self.target_bytes_per_s = self.target_bytes_per_s.min(self.line.rate_bytes_per_s);
        self.rate_bytes_per_s = (self.rate_bytes_per_s + self.target_bytes_per_s).div_ceil(2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::factors::Factors;

    /// Without the bypass every frame runs the timers: 2^32 periods are 66 hours without a mark.
    #[test]
    fn days_without_a_mark_change_nothing() {
        let factors = Factors { update_bypass: false, ..Factors::default() };
        let line = HostLink::new(&Config { factors, ..Config::default() }, 1_028);
        let (timer_steps, byte_steps) = (u32::MAX, u32::MAX);
        let mut c = Dcqcn { timer_steps, byte_steps, notified_ns: 1, ..Dcqcn::new(line) };
        let acked = 30_000 * PART;
        c.on_signal(&Signal { now_ns: 10 * RATE_NS, acked, ..Signal::default() });
        assert_eq!(c.rate_bytes_per_s, line.rate_bytes_per_s);
    }

    /// `alpha` measures how often the path is marked, and a mark halves the rate only while it is one.
    #[test]
    fn a_mark_lowers_the_rate_less_the_longer_the_last_one_is_ago() {
        let line = HostLink::new(&Config::default(), 1_028);
        let cut_after = |periods: u64| {
            let mut c = Dcqcn::new(line);
            let frame = |c: &mut Dcqcn, now_ns, marked| {
                c.on_signal(&Signal {
                    now_ns,
                    acked: PART,
                    counted: 1,
                    marked,
                    ..Signal::default()
                });
            };
            frame(&mut c, ALPHA_NS, 1);
            (2..=periods).for_each(|at| frame(&mut c, at * ALPHA_NS, 0));
            let before = c.rate_bytes_per_s;
            frame(&mut c, periods * ALPHA_NS, 1);
            (before - c.rate_bytes_per_s) * 1_000 / before
        };
        // Half of alpha, which is multiplied by 255/256 in each period.
        assert_eq!([2, 180, 1_000].map(cut_after), [498, 248, 10]);
    }
}
