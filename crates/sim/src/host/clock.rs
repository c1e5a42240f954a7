//! A host's clock: any start value, fast or slow.

/// Drift is given in parts of this.
const MILLION: i128 = 1_000_000;

/// Maps the world's time to the time of a host's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Oscillator {
    /// From this world time on ...
    since_ns: u64,
    /// ... at which the clock shows this ...
    shown_ns: u64,
    /// ... it runs fast by `drift_ppm` parts per million (slow when negative).
    drift_ppm: i32,
}

/// Largest drift that is accepted.
pub(crate) const MAX_DRIFT_PPM: i32 = 500_000;

impl Oscillator {
    pub(crate) fn new(shown_ns: u64) -> Self {
        Oscillator { since_ns: 0, shown_ns, drift_ppm: 0 }
    }

    /// The clock's time.
    pub(crate) fn shows(&self, world_ns: u64) -> u64 {
        let passed = world_ns.saturating_sub(self.since_ns);
        if self.drift_ppm == 0 {
            return self.shown_ns + passed;
        }
        let rate = MILLION + i128::from(self.drift_ppm);
        self.shown_ns + (i128::from(passed) * rate / MILLION) as u64
    }

    /// The first world time at which the clock shows at least this.
    pub(crate) fn when(&self, shown_ns: u64) -> u64 {
        let ahead = shown_ns.saturating_sub(self.shown_ns);
        if self.drift_ppm == 0 {
            return self.since_ns.saturating_add(ahead);
        }
        let rate = MILLION + i128::from(self.drift_ppm);
        let passed = (i128::from(ahead) * MILLION + rate - 1) / rate;
        let passed = u64::try_from(passed).unwrap_or(u64::MAX);
        self.since_ns.saturating_add(passed)
    }

    /// Changes the drift from now on; the clock does not jump.
    pub(crate) fn set_drift(&mut self, world_ns: u64, ppm: i32) {
        self.shown_ns = self.shows(world_ns);
        self.since_ns = world_ns;
        self.drift_ppm = ppm.clamp(-MAX_DRIFT_PPM, MAX_DRIFT_PPM);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drift_is_kept_and_inverted() {
        let mut o = Oscillator::new(1_000);
        assert_eq!((o.shows(500), o.when(1_500), o.when(0)), (1_500, 500, 0));
        for ppm in [100, -100, 500_000, -500_000, 1] {
            let before = o.shows(2_000_000);
            o.set_drift(2_000_000, ppm);
            assert_eq!(o.shows(2_000_000), before, "no jump");
            let after = o.shows(3_000_000);
            assert_eq!(after as i64 - before as i64, 1_000_000 + i64::from(ppm));
            for shown in [before + 1, before + 7, after] {
                let at = o.when(shown);
                assert!(o.shows(at) >= shown && o.shows(at - 1) < shown, "{ppm} {shown}");
            }
            o.set_drift(3_000_000, 0);
        }
        assert_eq!(o.when(u64::MAX), u64::MAX - o.shown_ns + o.since_ns);
    }
}
