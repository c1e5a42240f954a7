//! Constants of the controllers of papers, with their values there.

use serde::{Deserialize, Serialize};

/// The range of a constant, in numbers and as text.
#[derive(Clone, Copy)]
struct Range(u64, u64, &'static str);

impl Range {
    const TIME: Range = Range(1_000, 1_000_000_000, "1 us to 1 s");
    const RATE: Range = Range(8, 1_000_000_000_000, "8 bit/s to 1,000 Gbit/s");
    const STEPS: Range = Range(1, 100, "1 to 100");
    /// With a smaller gain the fixed-point `alpha` of DCQCN stops above a thousandth.
    const SHIFT: Range = Range(1, 10, "1 to 10");
    const IGNORED: Range = Range(0, 1_000_000_000, "0 to 1 s");
    const COUNTER: Range = Range(10_000, u64::MAX, "at least 10,000 bytes");
    const SHARE: Range = Range(1, 1_000_000, "1 to 1,000,000 parts per million");
}

/// A constant that is out of its range: its name, its value and the range.
pub(crate) type OutOfRange = (&'static str, u64, &'static str);

fn check_all(all: &[(&'static str, u64, Range)]) -> Result<(), OutOfRange> {
    for &(name, value, Range(least, most, range)) in all {
        if !(least..=most).contains(&value) {
            return Err((name, value, range));
        }
    }
    Ok(())
}

/// Constants of [`Control::Dcqcn`](crate::Control::Dcqcn). The names of the DCQCN paper (SIGCOMM
/// '15) are in parentheses. The marking of switches belongs to the same choice: the paper has 5 kB
/// (Kmin), 200 kB (Kmax) and 1 % (Pmax) at 40 Gbit/s, the vendor 100 kB, 400 kB and 20 % at 25 Gbit/s.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DcqcnConstants {
    /// Shortest time between two reductions of the rate, ns: 1,000 to 1,000,000,000.
    pub decrease_ns: u64,
    /// Time without a mark after which `alpha` decreases (K), ns: 1,000 to 1,000,000,000. A mark
    /// increases it at most once in this time, or in `decrease_ns` where that is shorter.
    pub alpha_ns: u64,
    /// Period of the timer that increases the rate (T), ns: 1,000 to 1,000,000,000.
    pub timer_ns: u64,
    /// Bytes of the counter that increases the rate (B): at least 10,000; `u64::MAX`: there is no
    /// counter, and hyper increase follows the first additive one.
    pub counter_bytes: u64,
    /// Increases that halve the distance to the target before the target rises (F): 1 to 100.
    pub recovery_steps: u32,
    /// Additive increase of the target (R_AI), bit/s: 8 to 10^12.
    pub step_bps: u64,
    /// Hyper increase of the target, bit/s: 8 to 10^12. It is multiplied by the number of such steps,
    /// as in the paper; without a counter every step is the same, as in the simulations of HPCC.
    pub hyper_step_bps: u64,
    /// `g` is two to minus this power: 1 to 10.
    pub gain_shift: u32,
    /// The smallest rate, bit/s: 8 to 10^12. On links that are not faster the rate is that of the
    /// link.
    pub floor_bps: u64,
}

impl DcqcnConstants {
    /// The paper's: a notification each 50 us, timers of 55 us, a counter of 10 MB, five steps of
    /// recovery, R_AI of 40 Mbit/s and hyper increase ten times that, g 1/256. The paper states no
    /// smallest rate; it is 10 Mbit/s here.
    pub const PAPER: DcqcnConstants = DcqcnConstants {
        decrease_ns: 50_000,
        alpha_ns: 55_000,
        timer_ns: 55_000,
        counter_bytes: 10_000_000,
        recovery_steps: 5,
        step_bps: 40_000_000,
        hyper_step_bps: 400_000_000,
        gain_shift: 8,
        floor_bps: 10_000_000,
    };

    /// A vendor's for a link of this rate, as in the published simulations of HPCC (SIGCOMM '19,
    /// `run.py`): reductions 4 us apart, alpha's timer 1 us, the rate's 300 us, no byte counter, one
    /// step of recovery, 5 Mbit/s of additive increase for each 25 Gbit/s, ten times that of hyper
    /// increase, the same in every step, and a smallest rate of 100 Mbit/s. Links below 10 Gbit/s are
    /// not part of those simulations: the smallest rate is a hundredth of theirs here, or it would
    /// keep the rate of a link of 100 Mbit/s from falling.
    pub const fn vendor(line_rate_bps: u64) -> DcqcnConstants {
        let step_bps = line_rate_bps / 5_000;
        let step_bps = if step_bps < 8 { 8 } else { step_bps };
        let floor_bps = match line_rate_bps / 100 {
            0..8 => 8,
            floor_bps @ 8..100_000_000 => floor_bps,
            _ => 100_000_000,
        };
        DcqcnConstants {
            decrease_ns: 4_000,
            alpha_ns: 1_000,
            timer_ns: 300_000,
            counter_bytes: u64::MAX,
            recovery_steps: 1,
            step_bps,
            hyper_step_bps: 10 * step_bps,
            gain_shift: 8,
            floor_bps,
        }
    }

    pub(crate) fn validate(&self) -> Result<(), OutOfRange> {
        check_all(&[
            ("dcqcn.decrease_ns", self.decrease_ns, Range::TIME),
            ("dcqcn.alpha_ns", self.alpha_ns, Range::TIME),
            ("dcqcn.timer_ns", self.timer_ns, Range::TIME),
            ("dcqcn.counter_bytes", self.counter_bytes, Range::COUNTER),
            ("dcqcn.recovery_steps", self.recovery_steps.into(), Range::STEPS),
            ("dcqcn.step_bps", self.step_bps, Range::RATE),
            ("dcqcn.hyper_step_bps", self.hyper_step_bps, Range::RATE),
            ("dcqcn.gain_shift", self.gain_shift.into(), Range::SHIFT),
            ("dcqcn.floor_bps", self.floor_bps, Range::RATE),
        ])
    }
}

/// Constants of [`Control::Timely`](crate::Control::Timely) and
/// [`Control::TimelyPatched`](crate::Control::TimelyPatched). The names of the Timely paper (SIGCOMM
/// '15) are in parentheses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TimelyConstants {
    /// Round trip below which the rate increases (T_low), ns: 1,000 to 1,000,000,000.
    pub low_ns: u64,
    /// Round trip above which the rate decreases whatever the gradient (T_high), ns: 1,000 to
    /// 1,000,000,000.
    pub high_ns: u64,
    /// Round trip by which gradients are normalised (D_minRTT), ns: 1,000 to 1,000,000,000, at most
    /// `low_ns`.
    pub min_rtt_ns: u64,
    /// Shorter round trips are ignored, ns: 0 to 1,000,000,000, at most `min_rtt_ns`. A rate that was
    /// lowered does not rise while all round trips are ignored: where those of the idle network are
    /// shorter, it stays low.
    pub ignored_below_ns: u64,
    /// Additive increase (delta), bit/s: 8 to 10^12.
    pub step_bps: u64,
    /// The smallest rate, bit/s: 8 to 10^12. On links that are not faster the rate is that of the
    /// link.
    pub floor_bps: u64,
    /// Weight of a new difference of round trips (alpha), parts per million: 1 to 1,000,000.
    pub alpha_ppm: u64,
    /// Factor of decreases (beta), parts per million: 1 to 1,000,000.
    pub beta_ppm: u64,
    /// Differences that were not positive, in a row, after which increases are fivefold: 1 to 100.
    /// The corrected controller has no such increases.
    pub hyper_after: u32,
}

impl TimelyConstants {
    /// The constants that C++ eRPC ships (`timely.h` and `timely_sweep_params.h`, not patched), the
    /// default of [`Control::Timely`](crate::Control::Timely).
    pub const ERPC: TimelyConstants = TimelyConstants {
        low_ns: 50_000,
        high_ns: 1_000_000,
        min_rtt_ns: 2_000,
        ignored_below_ns: 2_000,
        step_bps: 40_000_000,
        floor_bps: 120_000_000,
        alpha_ppm: 460_000,
        beta_ppm: 260_000,
        hyper_after: 5,
    };

    /// The same under eRPC's `kPatched`, with alpha and beta of "ECN or Delay" (CoNEXT '16, section
    /// 4.3): the default of [`Control::TimelyPatched`](crate::Control::TimelyPatched).
    pub const PATCHED: TimelyConstants =
        TimelyConstants { alpha_ppm: 875_000, beta_ppm: 8_000, ..TimelyConstants::ERPC };

    /// The constants of the Timely paper (SIGCOMM '15) as "ECN or Delay" lists them, for links of
    /// 10 Gbit/s: T_low 50 us, T_high 500 us, D_minRTT 20 us, delta 10 Mbit/s, alpha 0.875, beta 0.8. The
    /// paper ignores no round trip, and states no smallest rate; that is eRPC's here.
    pub const PAPER: TimelyConstants = TimelyConstants {
        high_ns: 500_000,
        min_rtt_ns: 20_000,
        ignored_below_ns: 0,
        step_bps: 10_000_000,
        alpha_ppm: 875_000,
        beta_ppm: 800_000,
        ..TimelyConstants::ERPC
    };

    pub(crate) fn validate(&self) -> Result<(), OutOfRange> {
        check_all(&[
            ("timely.low_ns", self.low_ns, Range::TIME),
            ("timely.high_ns", self.high_ns, Range::TIME),
            ("timely.min_rtt_ns", self.min_rtt_ns, Range::TIME),
            ("timely.ignored_below_ns", self.ignored_below_ns, Range::IGNORED),
            ("timely.step_bps", self.step_bps, Range::RATE),
            ("timely.floor_bps", self.floor_bps, Range::RATE),
            ("timely.alpha_ppm", self.alpha_ppm, Range::SHARE),
            ("timely.beta_ppm", self.beta_ppm, Range::SHARE),
            ("timely.hyper_after", self.hyper_after.into(), Range::STEPS),
        ])?;
        if self.min_rtt_ns > self.low_ns {
            return Err(("timely.min_rtt_ns", self.min_rtt_ns, "1 us to timely.low_ns"));
        }
        if self.ignored_below_ns > self.min_rtt_ns {
            let range = "0 to timely.min_rtt_ns";
            return Err(("timely.ignored_below_ns", self.ignored_below_ns, range));
        }
        Ok(())
    }
}
