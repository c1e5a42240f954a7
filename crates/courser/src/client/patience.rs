//! How long a caller polls for its answer before it leaves that to the thread of the endpoint.

/// Added to twice the usual time of an answer, ns.
const SLACK_NS: u64 = 20_000;
/// Most calls that do not poll after a poll without an answer: 2^6.
const MOST_MISSES: u32 = 6;

/// The time that callers poll, from the times of answers so far. After polls without an answer the
/// next 2, 4, ... 64 calls do not poll, so that an endpoint whose answers take long polls for one call
/// in 64.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// [`crate::Config::spin`], ns.
    most_ns: u64,
    /// Usual time from the begin of polling to the answer, ns.
    usual_ns: u64,
    /// Polls without an answer since the last answer.
    misses: u32,
    /// Calls that do not poll.
    skips: u32,
}

impl Patience {
    pub(super) fn new(most_ns: u64) -> Self {
        Patience { most_ns, usual_ns: most_ns / 2, misses: 0, skips: 0 }
    }

    /// How long to poll, ns; 0: not at all.
    #[inline]
    pub(super) fn budget_ns(&self) -> u64 {
        match (self.skips, self.misses) {
            (0, 0) => (2 * self.usual_ns + SLACK_NS).min(self.most_ns),
            (0, _) => self.most_ns,
            _ => 0,
        }
    }

    /// Calls begin.
    #[inline]
    pub(super) fn begin(&mut self, calls: usize) {
        self.skips = self.skips.saturating_sub(u32::try_from(calls).unwrap_or(u32::MAX));
    }

    /// An answer came after this time of polling.
    #[inline]
    pub(super) fn hit(&mut self, ns: u64) {
        self.usual_ns = (7 * self.usual_ns + ns) / 8;
        (self.misses, self.skips) = (0, 0);
    }

    /// There was no answer in the time of polling.
    pub(super) fn miss(&mut self) {
        self.misses = (self.misses + 1).min(MOST_MISSES);
        self.skips = 1 << self.misses;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_poll_for_twice_the_usual_time_and_seldom_without_success() {
        let mut patience = Patience::new(100_000);
        assert_eq!(patience.budget_ns(), 100_000);
        (0..100).for_each(|_| patience.hit(2_000));
        assert!((23_000..30_000).contains(&patience.budget_ns()));
        let mut polls = 0;
        for _ in 0..1_000 {
            patience.begin(1);
            if patience.budget_ns() > 0 {
                polls += 1;
                patience.miss();
            }
        }
        assert!((10..25).contains(&polls), "{polls} of 1,000");
        patience.hit(80_000);
        assert_eq!(patience.budget_ns(), (2 * ((7 * 2_000 + 80_000) / 8) + SLACK_NS).min(100_000));
        assert_eq!(Patience::new(0).budget_ns(), 0, "no spinning");
    }
}
