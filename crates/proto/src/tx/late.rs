//! Departure times of batches that left long after their first packet was written.
//!
//! A call takes the arrival time of the frame that caused it as the departure time of its request.
//! If handlers or continuations run long, that is too early, and loss would be suspected too soon.
//! Departure times are recorded per batch, which needs no work per request.

/// Batches that leave sooner than this after their first packet are not recorded, ns.
const LATE_NS: u64 = 250;

/// Records kept of each size class. With this many, a record is kept at least four times the
/// duration of its batch.
const KEPT: usize = 8;

/// Size classes: each twice as long as the one before.
const SIZES: usize = 32;

/// A batch whose first packet was written at `.0` and which left at `.1`, ns.
type Late = (u64, u64);

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct LateBatches {
    kept: Box<[[Late; KEPT]; SIZES]>,
    /// Number of records in each class; wraps.
    noted: [u8; SIZES],
    /// Write time of the first packet of a batch whose departure time is not known yet; `u64::MAX`:
    /// none.
    unsettled_ns: u64,
}

impl LateBatches {
    pub(super) fn new() -> Self {
        LateBatches {
            kept: Box::new([[(0, 0); KEPT]; SIZES]),
            noted: [0; SIZES],
            unsettled_ns: u64::MAX,
        }
    }

    /// A batch leaves whose first packet was written at `written_ns`: at `now_ns`, or without a
    /// clock reading at the time of the next [`LateBatches::advance`].
    #[inline(always)]
    pub(super) fn leaves(&mut self, written_ns: u64, now_ns: Option<u64>) {
        match now_ns {
            Some(now_ns) => {
                self.advance(now_ns);
                self.left(written_ns, now_ns);
            }
            None => self.unsettled_ns = self.unsettled_ns.min(written_ns),
        }
    }

    /// Sets the time: a batch that left without a clock reading has left by `now_ns`.
    #[inline]
    pub(super) fn advance(&mut self, now_ns: u64) {
        if self.unsettled_ns != u64::MAX {
            let written_ns = std::mem::replace(&mut self.unsettled_ns, u64::MAX);
            self.left(written_ns, now_ns);
        }
    }

    #[inline]
    fn left(&mut self, written_ns: u64, now_ns: u64) {
        if now_ns.saturating_sub(written_ns) >= LATE_NS {
            self.note(written_ns, now_ns);
        }
    }

    fn note(&mut self, written_ns: u64, now_ns: u64) {
        let size = ((now_ns - written_ns) / LATE_NS).checked_ilog2().unwrap_or(0) as usize;
        let size = size.min(SIZES - 1);
        let at = usize::from(self.noted[size]) % KEPT;
        self.noted[size] = self.noted[size].wrapping_add(1);
        self.kept[size][at] = (written_ns, now_ns);
    }

    /// When a request that was written at `written_ns` left.
    pub(super) fn left_ns(&self, written_ns: u64) -> u64 {
        let all = self.kept.iter().flatten();
        let around = all.filter(|late| (late.0..late.1).contains(&written_ns));
        // If two batches were filled at that time, it is in the later one.
        around.map(|late| late.1).max().unwrap_or(written_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_a_late_batch_left_when_it_did() {
        let mut late = LateBatches::new();
        late.leaves(1_000, Some(1_000 + LATE_NS - 1));
        late.leaves(2_000, Some(5_000));
        late.leaves(u64::MAX, Some(5_500)); // no packet was written before that batch
        late.leaves(6_000, None);
        assert_eq!(
            [1_000, 1_999, 2_000, 4_999].map(|at| late.left_ns(at)),
            [1_000, 1_999, 5_000, 5_000]
        );
        assert_eq!(late.left_ns(6_000), 6_000, "not known yet");
        late.advance(9_000);
        late.advance(20_000);
        assert_eq!([6_000, 8_999, 9_000].map(|at| late.left_ns(at)), [9_000, 9_000, 9_000]);
        late.leaves(30_000, None);
        late.leaves(40_000, Some(41_000));
        assert_eq!(late.left_ns(30_000), 41_000, "at the latest when the next one does");
    }

    #[test]
    fn many_short_batches_do_not_displace_a_long_one() {
        let mut late = LateBatches::new();
        late.leaves(0, Some(1_000_000));
        let mut now_ns = 1_000_000;
        for _ in 0..10_000 {
            late.leaves(now_ns, Some(now_ns + 300));
            now_ns += 310;
        }
        assert_eq!(late.left_ns(10), 1_000_000);
    }

    #[test]
    fn any_length_has_a_place() {
        let mut late = LateBatches::new();
        late.leaves(0, Some(u64::MAX));
        assert_eq!(late.left_ns(1), u64::MAX);
    }
}
