//! Time that the grants of a peer take (ADR 35), by which the timeout of a request that waits for one is
//! longer.
//!
//! A receiver serves messages with few packets left first. So grants follow each other closely at the end
//! of a long message, and at the begin of the next one the same sender waits for all that others have to
//! send. The estimate is therefore the longest wait of the last 50 to 100 ms, or of four times its length,
//! and no average: an average forgets long waits before the next message begins, and each of its grants is
//! then probed for although nothing was lost.

/// Length of a period of the maximum filter, ns: longer than most messages take.
const PERIOD_NS: u64 = 50_000_000;
/// A wait is forgotten after two periods, and not before this number of times its length.
const KEPT: u64 = 4;
/// Unit of [`GrantWait::may_double`], ns: it wraps around after a second.
const DOUBLES_NS: u64 = 16_000;
/// Bits of a [`Wait`] below its exponent.
const MANTISSA: u32 = 11;

/// A wait, rounded up to microseconds and to one part in 1,024: microseconds below 2^11, and above
/// that a mantissa of as many bits and an exponent. Its order is that of the waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Wait(u16);

impl Wait {
    fn new(ns: u64) -> Self {
        let us = u32::try_from(ns.div_ceil(1_000)).unwrap_or(u32::MAX);
        let exponent = (us.checked_ilog2().unwrap_or(0) + 1).saturating_sub(MANTISSA);
        let mantissa = us.div_ceil(1 << exponent);
        // A mantissa that was rounded up to 2^11 carries into the exponent.
        let (exponent, mantissa) = if mantissa >> MANTISSA == 0 {
            (exponent, mantissa)
        } else {
            (exponent + 1, mantissa / 2)
        };
        Wait((exponent << MANTISSA | mantissa) as u16)
    }

    fn ns(self) -> u64 {
        let (exponent, mantissa) = (self.0 >> MANTISSA, self.0 & ((1 << MANTISSA) - 1));
        (u64::from(mantissa) << exponent) * 1_000
    }
}

/// The longest wait of this period and of the ones before. At most eight bytes, since each peer has one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GrantWait {
    before: Wait,
    now: Wait,
    /// Number of this period, modulo 2^16.
    period: u16,
    /// When [`GrantWait::may_double`] was last true, in units of [`DOUBLES_NS`], modulo 2^16.
    doubled: u16,
}

const _: () = assert!(size_of::<GrantWait>() <= 8);

impl GrantWait {
    /// A grant has taken `wait_ns`, or takes longer.
    pub(crate) fn on_wait(&mut self, wait_ns: u64, now_ns: u64) {
        let wait = Wait::new(wait_ns);
        let (before, now) = self.at(now_ns);
        *self = GrantWait { before, now: now.max(wait), period: period(now_ns), ..*self };
    }

    /// The longest wait, ns; 0 if there was none in the last periods.
    pub(crate) fn longest_ns(&self, now_ns: u64) -> u64 {
        let (before, now) = self.at(now_ns);
        before.max(now).ns()
    }

    /// Several messages wait for the same thing. Returns whether the wait may be doubled: once in its
    /// length.
    pub(crate) fn may_double(&mut self, now_ns: u64) -> bool {
        let (now, longest) = ((now_ns / DOUBLES_NS) as u16, self.longest_ns(now_ns) / DOUBLES_NS);
        let doubles = u64::from(now.wrapping_sub(self.doubled)) >= longest;
        if doubles {
            self.doubled = now;
        }
        doubles
    }

    /// The longest wait of the periods before a time, and of the period of that time.
    fn at(&self, now_ns: u64) -> (Wait, Wait) {
        let periods = period(now_ns).wrapping_sub(self.period);
        let kept = |wait: Wait, most: u16| {
            let is_kept = periods <= most || u64::from(periods) * PERIOD_NS < KEPT * wait.ns();
            if is_kept { wait } else { Wait::default() }
        };
        match periods {
            0 => (self.before, self.now),
            _ => (kept(self.now, 1).max(kept(self.before, 0)), Wait::default()),
        }
    }
}

fn period(now_ns: u64) -> u16 {
    (now_ns / PERIOD_NS) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1_000;

    #[test]
    fn a_long_wait_is_kept_while_many_short_ones_follow() {
        let (mut wait, start_ns) = (GrantWait::default(), 1 << 40);
        assert_eq!(wait.longest_ns(start_ns), 0);
        wait.on_wait(900 * US, start_ns);
        for number in 0..PERIOD_NS / US {
            let now_ns = start_ns + number * US;
            wait.on_wait(US, now_ns);
            assert_eq!(wait.longest_ns(now_ns), 900 * US, "{number}");
        }
    }

    #[test]
    fn a_wait_is_forgotten_within_two_periods() {
        for short_waits in [true, false] {
            let (mut wait, start_ns) = (GrantWait::default(), 1 << 40);
            wait.on_wait(900 * US, start_ns);
            let end_ns = start_ns + 2 * PERIOD_NS;
            for now_ns in (start_ns..=end_ns).step_by(100 * US as usize) {
                if short_waits {
                    wait.on_wait(US, now_ns);
                }
            }
            let left_ns = if short_waits { US } else { 0 };
            assert_eq!(wait.longest_ns(end_ns), left_ns);
        }
    }

    #[test]
    fn a_wait_that_is_longer_than_periods_is_kept_for_some_of_its_length() {
        let (mut wait, start_ns) = (GrantWait::default(), 1 << 40);
        wait.on_wait(400_000 * US, start_ns);
        wait.on_wait(US, start_ns + 900_000 * US);
        assert_eq!(wait.longest_ns(start_ns + 1_500_000 * US), Wait::new(400_000 * US).ns());
        assert_eq!(wait.longest_ns(start_ns + 3_000_000 * US), 0);
    }

    #[test]
    fn waits_are_rounded_up_by_one_part_in_1024_at_most() {
        let mut before = Wait::default();
        for us in (0..10_000).chain((1..1_000).map(|n| n * 4_294_967)) {
            let wait = Wait::new(us * US);
            assert!((us..=us + us / 1_024).contains(&(wait.ns() / US)), "{us}: {}", wait.ns());
            assert!(wait >= before, "{us}");
            before = wait;
        }
        assert!(Wait::new(u64::MAX).ns() >= u64::from(u32::MAX) * US);
    }
}
