//! DCQCN (SIGCOMM '15) at the sender, with constants of the paper or of a vendor (E54).
//!
//! The paper's receiver returns at most one congestion notification per 50 us while marked packets
//! arrive. Here each frame carries counts of marks, so the sender makes one notification of all
//! marks within 50 us. Timers are evaluated when a frame arrives: between frames nothing is sent
//! that they could delay by more than the age of the rate.

use crate::cc::constants::DcqcnConstants;
use crate::cc::signal::{Allowance, HostLink, PART, Signal};

/// `alpha` of one.
const ONE: u64 = 1 << 20;
/// Timer periods that are evaluated after a pause; more change nothing.
const PERIODS_MAX: u64 = 4_096;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Dcqcn {
    line: HostLink,
    constants: DcqcnConstants,
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
    /// Marks that did not lower the rate yet, and that did not raise `alpha` yet.
    marked: bool,
    marked_for_alpha: bool,
}

impl Dcqcn {
    pub(in crate::cc) fn new(line: HostLink, constants: DcqcnConstants) -> Self {
        Dcqcn {
            line,
            constants,
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
            marked_for_alpha: false,
        }
    }

    pub(in crate::cc) fn allowance(&self) -> Allowance {
        // Marks are always passed to the controller.
        self.line.at_rate(self.rate_bytes_per_s, u64::MAX)
    }

    pub(in crate::cc) fn on_signal(&mut self, s: &Signal) {
        self.bytes = self.bytes.saturating_add(s.acked * self.line.packet_bytes / PART);
        self.marked |= s.marked > 0;
        self.marked_for_alpha |= s.marked > 0;
        self.run_timers(s.now_ns);
        if self.marked && s.now_ns - self.notified_ns >= self.constants.decrease_ns {
            self.marked = false;
            self.notify(s.now_ns);
        }
    }

    /// A congestion notification.
    fn notify(&mut self, now_ns: u64) {
        self.target_bytes_per_s = self.rate_bytes_per_s;
        let less = (u128::from(self.rate_bytes_per_s) * u128::from(self.alpha)
            / u128::from(2 * ONE)) as u64;
        let floor = (self.constants.floor_bps / 8).min(self.line.rate_bytes_per_s);
        self.rate_bytes_per_s = (self.rate_bytes_per_s - less).max(floor);
        if !self.alpha_is_faster() {
            self.raise_alpha();
            self.alpha_ns = now_ns;
        }
        (self.notified_ns, self.timer_ns) = (now_ns, now_ns);
        (self.bytes, self.timer_steps, self.byte_steps) = (0, 0, 0);
    }

    /// Returns whether marks raise `alpha` between notifications too.
    fn alpha_is_faster(&self) -> bool {
        self.constants.alpha_ns < self.constants.decrease_ns
    }

    fn raise_alpha(&mut self) {
        self.alpha += (ONE - self.alpha) >> self.constants.gain_shift;
    }

    fn run_timers(&mut self, now_ns: u64) {
        let DcqcnConstants { alpha_ns, timer_ns, counter_bytes, gain_shift, .. } = self.constants;
        if self.notified_ns == 0 {
            (self.alpha_ns, self.timer_ns) = (now_ns, now_ns); // nothing to recover from yet
        }
        let periods = (now_ns - self.alpha_ns) / alpha_ns;
        self.alpha_ns += periods * alpha_ns;
        let raises = periods > 0 && self.alpha_is_faster() && self.marked_for_alpha;
        for _ in u64::from(raises)..periods.min(PERIODS_MAX) {
            self.alpha -= self.alpha >> gain_shift;
        }
        if raises {
            self.marked_for_alpha = false;
            self.raise_alpha();
        }
        let periods = (now_ns - self.timer_ns) / timer_ns;
        self.timer_ns += periods * timer_ns;
        for _ in 0..periods.min(PERIODS_MAX) {
            self.timer_steps = self.timer_steps.saturating_add(1);
            self.increase();
        }
        if counter_bytes == u64::MAX {
            return;
        }
        let times = self.bytes / counter_bytes;
        self.bytes %= counter_bytes;
        for _ in 0..times.min(PERIODS_MAX) {
            self.byte_steps = self.byte_steps.saturating_add(1);
            self.increase();
        }
    }

    fn increase(&mut self) {
        let DcqcnConstants { counter_bytes, recovery_steps, .. } = self.constants;
        let (least, most) = if counter_bytes == u64::MAX {
            (self.timer_steps.saturating_sub(1), self.timer_steps)
        } else {
            (self.timer_steps.min(self.byte_steps), self.timer_steps.max(self.byte_steps))
        };
        let more = if least > recovery_steps {
            let times = if counter_bytes == u64::MAX { 1 } else { least - recovery_steps };
            (self.constants.hyper_step_bps / 8).saturating_mul(times.into())
        } else if most > recovery_steps {
            self.constants.step_bps / 8
        } else {
            0
        };
        self.target_bytes_per_s =
            self.target_bytes_per_s.saturating_add(more).min(self.line.rate_bytes_per_s);
        self.rate_bytes_per_s = (self.rate_bytes_per_s + self.target_bytes_per_s).div_ceil(2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::factors::Factors;

    const PAPER: DcqcnConstants = DcqcnConstants::PAPER;

    fn frame(c: &mut Dcqcn, now_ns: u64, marked: u32) {
        let signal = Signal { now_ns, acked: PART, counted: 1, ..Signal::default() };
        c.on_signal(&Signal { marked, ..signal });
    }

    /// Without the bypass every frame runs the timers: 2^32 periods are 66 hours without a mark.
    #[test]
    fn days_without_a_mark_change_nothing() {
        let factors = Factors { update_bypass: false, ..Factors::default() };
        let line = HostLink::new(&Config { factors, ..Config::default() }, 1_028);
        let (timer_steps, byte_steps) = (u32::MAX, u32::MAX);
        for constants in [PAPER, DcqcnConstants::vendor(25_000_000_000)] {
            let new = Dcqcn::new(line, constants);
            let mut c = Dcqcn { timer_steps, byte_steps, notified_ns: 1, ..new };
            let acked = 30_000 * PART;
            c.on_signal(&Signal { now_ns: 10 * PAPER.timer_ns, acked, ..Signal::default() });
            assert_eq!(c.rate_bytes_per_s, line.rate_bytes_per_s);
        }
    }

    /// `alpha` measures how often the path is marked, and a mark halves the rate only while it is one.
    #[test]
    fn a_mark_lowers_the_rate_less_the_longer_the_last_one_is_ago() {
        let line = HostLink::new(&Config::default(), 1_028);
        let cut_after = |periods: u64| {
            let mut c = Dcqcn::new(line, PAPER);
            frame(&mut c, PAPER.alpha_ns, 1);
            (2..=periods).for_each(|at| frame(&mut c, at * PAPER.alpha_ns, 0));
            let before = c.rate_bytes_per_s;
            frame(&mut c, periods * PAPER.alpha_ns, 1);
            (before - c.rate_bytes_per_s) * 1_000 / before
        };
        // Half of alpha, which is multiplied by 255/256 in each period.
        assert_eq!([2, 180, 1_000].map(cut_after), [498, 248, 10]);
    }

    /// The vendor's `alpha` is the share of periods of 1 us with a mark, although the rate is
    /// lowered every 4 us only.
    #[test]
    fn alpha_with_a_short_period_is_the_share_of_marked_periods() {
        let line = HostLink::new(&Config::default(), 1_028);
        let alpha_of = |is_marked: fn(u64) -> bool| {
            let mut c = Dcqcn::new(line, DcqcnConstants::vendor(25_000_000_000));
            (1..20_000).for_each(|us| frame(&mut c, us * 1_000, is_marked(us).into()));
            c.alpha * 100 / ONE
        };
        assert_eq!(alpha_of(|us| us == 1), 0);
        assert!((98..=100).contains(&alpha_of(|_| true)), "{}", alpha_of(|_| true));
        let half = alpha_of(|us| us % 2 == 0);
        assert!((48..=52).contains(&half), "{half}");
    }

    /// The vendor has no byte counter: the timer alone raises the rate, with its second step beyond
    /// recovery by hyper increase.
    #[test]
    fn without_a_byte_counter_the_timer_increases_the_rate() {
        let line = HostLink::new(&Config::default(), 1_028);
        let constants = DcqcnConstants::vendor(25_000_000_000);
        let mut c = Dcqcn::new(line, constants);
        c.target_bytes_per_s = line.rate_bytes_per_s / 4;
        c.rate_bytes_per_s = c.target_bytes_per_s;
        c.notified_ns = 1;
        c.timer_ns = 1_000;
        let targets: Vec<u64> = (1..=4)
            .map(|step| {
                let before = c.target_bytes_per_s;
                frame(&mut c, 1_000 + step * constants.timer_ns, 0);
                (c.target_bytes_per_s - before) * 8
            })
            .collect();
        let (step, hyper) = (constants.step_bps, constants.hyper_step_bps);
        assert_eq!((step, hyper), (5_000_000, 50_000_000));
        assert_eq!(targets, [0, step, hyper, hyper]);
    }

    /// Constants at the ends of their ranges after the longest time without a mark.
    #[test]
    fn the_largest_steps_end_at_the_rate_of_the_link() {
        let line = HostLink::new(&Config::default(), 1_028);
        let (timer_steps, byte_steps) = (u32::MAX, u32::MAX);
        let most = 1_000_000_000_000;
        for counter_bytes in [10_000, u64::MAX] {
            let constants = DcqcnConstants {
                step_bps: most,
                hyper_step_bps: most,
                counter_bytes,
                recovery_steps: 1,
                ..PAPER
            };
            assert_eq!(constants.validate(), Ok(()));
            let new = Dcqcn::new(line, constants);
            let mut c = Dcqcn { timer_steps, byte_steps, notified_ns: 1, ..new };
            (c.rate_bytes_per_s, c.target_bytes_per_s) = (1, 1);
            let (now_ns, acked) = (100 * PAPER.timer_ns, 30_000 * PART);
            c.on_signal(&Signal { now_ns, acked, ..Signal::default() });
            assert_eq!(c.target_bytes_per_s, line.rate_bytes_per_s);
            assert_eq!(c.rate_bytes_per_s, line.rate_bytes_per_s);
        }
    }

    /// With the smallest gain that is allowed `alpha` still comes near one and near zero.
    #[test]
    fn alpha_reaches_both_ends_with_the_smallest_gain() {
        let line = HostLink::new(&Config::default(), 1_028);
        let constants = DcqcnConstants { gain_shift: 10, ..PAPER };
        assert_eq!(constants.validate(), Ok(()));
        let beyond = DcqcnConstants { gain_shift: 11, ..PAPER };
        assert_eq!(beyond.validate(), Err(("dcqcn.gain_shift", 11, "1 to 10")));
        let mut c = Dcqcn::new(line, constants);
        (1..20_000).for_each(|at| frame(&mut c, at * PAPER.alpha_ns, 0));
        frame(&mut c, 20_000 * PAPER.alpha_ns, 1);
        (20_001..40_000).for_each(|at| frame(&mut c, at * PAPER.alpha_ns, 0));
        assert!(c.alpha <= ONE / 1_000, "{}", c.alpha);
        let from_ns = 40_000 * PAPER.alpha_ns;
        (0..20_000).for_each(|at| frame(&mut c, from_ns + at * PAPER.decrease_ns, 1));
        assert!(c.alpha >= ONE - ONE / 1_000, "{}", c.alpha);
    }

    /// A smallest rate of 100 Mbit/s is no limit for a link of that rate.
    #[test]
    fn a_mark_lowers_the_rate_of_a_slow_link_with_a_vendors_constants() {
        for line_rate_bps in [1_000_000, 100_000_000, 1_000_000_000, 25_000_000_000] {
            let line = HostLink::new(&Config { line_rate_bps, ..Config::default() }, 1_028);
            let mut c = Dcqcn::new(line, DcqcnConstants::vendor(line_rate_bps));
            (1..1_000).for_each(|us| frame(&mut c, us * 10_000, 1));
            let least = line_rate_bps.min(10_000_000_000) / 800;
            assert_eq!(c.rate_bytes_per_s, least, "{line_rate_bps}");
        }
    }
}
