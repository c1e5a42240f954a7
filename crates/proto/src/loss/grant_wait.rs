//! Time that the grants of a peer take (ADR 35), by which the timeout of a request that waits for one is
//! longer.
//!
//! A receiver serves messages with few packets left first. So grants follow each other closely at the end
//! of a long message, and at the begin of the next one the same sender waits for all that others have to
//! send. The estimate is therefore the longest wait of the last 50 to 100 ms, and no average: an
//! average forgets long waits before the next message begins, and each of its grants is then probed for
//! although nothing was lost.

/// Length of a period of the maximum filter, ns: longer than most messages take.
const PERIOD_NS: u64 = 50_000_000;

/// The longest wait of this period and of the one before. Eight bytes, since each peer has one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GrantWait {
    /// Microseconds, rounded up; longer waits count as the longest that fits, 65 ms.
    before_us: u16,
    now_us: u16,
    /// Number of this period, modulo 2^32.
    period: u32,
}

const _: () = assert!(size_of::<GrantWait>() == 8);

impl GrantWait {
    /// A grant has taken `wait_ns`, or takes longer.
    pub(crate) fn on_wait(&mut self, wait_ns: u64, now_ns: u64) {
        let wait_us = u16::try_from(wait_ns.div_ceil(1_000)).unwrap_or(u16::MAX);
        let (before_us, now_us) = self.at(now_ns);
        *self = GrantWait { before_us, now_us: now_us.max(wait_us), period: period(now_ns) };
    }

    /// The longest wait, ns; 0 if there was none for two periods.
    pub(crate) fn longest_ns(&self, now_ns: u64) -> u64 {
        let (before_us, now_us) = self.at(now_ns);
        1_000 * u64::from(before_us.max(now_us))
    }

    /// The longest wait of the period before a time, and of the period of that time.
    fn at(&self, now_ns: u64) -> (u16, u16) {
        match period(now_ns).wrapping_sub(self.period) {
            0 => (self.before_us, self.now_us),
            1 => (self.now_us, 0),
            _ => (0, 0),
        }
    }
}

fn period(now_ns: u64) -> u32 {
    (now_ns / PERIOD_NS) as u32
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
}
