//! Round trips and the retransmission timeout (E57).
//!
//! The estimator of RFC 6298 in integers: smoothed RTT, mean deviation, and `RTO = SRTT + 4 RTTVAR`
//! within `Config::{rto_min_ns, rto_max_ns}`. Samples come from the time echo in the frame header:
//! each echo belongs to exactly one frame, so retransmissions are never ambiguous (F2), and the
//! peer's processing time, handlers included, is excluded (F5).

use crate::config::Config;

/// Larger samples are echoes from before the clock wrapped: half of 2^32 ns.
const MAX_SAMPLE_NS: u32 = 1 << 31;

/// Duration of one iteration of the event loop: a shorter timeout would have no effect.
const PTO_MIN_NS: u64 = 500;

/// Round-trip estimator of one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rtt {
    srtt_ns: u64,
    rttvar_ns: u64,
    min_ns: u64,
    latest_ns: u64,
    samples: u64,
    /// The timeout before the first sample.
    initial_ns: u64,
}

impl Rtt {
    pub(crate) fn new(cfg: &Config) -> Self {
        Rtt {
            srtt_ns: 0,
            rttvar_ns: 0,
            min_ns: u64::MAX,
            latest_ns: 0,
            samples: 0,
            initial_ns: cfg.rto_initial_ns,
        }
    }

    /// Takes the sample of an echo and returns it. Both arguments are nanoseconds modulo 2^32.
    #[inline]
    pub(crate) fn on_echo(&mut self, now: u32, echo: u32) -> Option<u32> {
        let sample = now.wrapping_sub(echo);
        if sample >= MAX_SAMPLE_NS {
            return None;
        }
        self.on_sample(sample.into());
        Some(sample)
    }

    /// Takes an estimate of the round trip from another source. Until the first sample the timeout
    /// is at least twice the estimate, so that a slow path is not mistaken for loss.
    pub(crate) fn expect(&mut self, rtt_ns: u64, cfg: &Config) {
        if self.samples == 0 {
            let rto_ns = rtt_ns.saturating_mul(2).max(cfg.rto_initial_ns);
            self.initial_ns = rto_ns.min(cfg.rto_max_ns);
        }
    }

    #[inline]
    fn on_sample(&mut self, rtt_ns: u64) {
        self.latest_ns = rtt_ns;
        self.min_ns = self.min_ns.min(rtt_ns);
        if self.samples == 0 {
            self.srtt_ns = rtt_ns;
            self.rttvar_ns = rtt_ns / 2;
        } else {
            let deviation = self.srtt_ns.abs_diff(rtt_ns);
            self.rttvar_ns = self.rttvar_ns - self.rttvar_ns / 4 + deviation / 4;
            self.srtt_ns = self.srtt_ns - self.srtt_ns / 8 + rtt_ns / 8;
        }
        self.samples += 1;
    }

    /// The timeout after `retries` unsuccessful ones: doubled for each, up to the upper limit.
    /// Computed on demand, since samples arrive with each frame and timeouts are rare.
    pub(crate) fn rto_ns(&self, retries: u8, cfg: &Config) -> u64 {
        let rto_ns = match self.samples {
            0 => self.initial_ns,
            _ => (self.srtt_ns + 4 * self.rttvar_ns).clamp(cfg.rto_min_ns, cfg.rto_max_ns),
        };
        rto_ns.saturating_mul(1 << u32::from(retries).min(20)).min(cfg.rto_max_ns)
    }

    /// Probe timeout (PTO): when an answer that was not lost should have arrived. Twice the
    /// smoothed round trip, or with large deviation the RTO without its lower limit. Without the
    /// reordering window.
    pub(crate) fn pto_ns(&self, cfg: &Config) -> u64 {
        match self.samples {
            0 => self.initial_ns,
            _ => {
                let late_ns = self.srtt_ns + (4 * self.rttvar_ns).max(self.srtt_ns);
                late_ns.max(PTO_MIN_NS).min(cfg.rto_max_ns)
            }
        }
    }

    /// The smoothed round trip, ns; 0 before the first sample.
    #[inline]
    pub(crate) fn smoothed_ns(&self) -> u64 {
        self.srtt_ns
    }

    /// The smallest round trip, ns; 0 before the first sample.
    pub(crate) fn least_ns(&self) -> u64 {
        if self.samples > 0 { self.min_ns } else { 0 }
    }

    /// (latest, smoothed, smallest, timeout), ns; `None` before the first sample.
    pub(crate) fn report(&self, cfg: &Config) -> Option<(u64, u64, u64, u64)> {
        let rto_ns = self.rto_ns(0, cfg);
        (self.samples > 0).then_some((self.latest_ns, self.srtt_ns, self.min_ns, rto_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cfg() -> Config {
        Config { rto_min_ns: 10_000, ..Config::default() }
    }

    #[test]
    fn before_a_sample_the_initial_timeout_holds_and_backs_off() {
        let r = Rtt::new(&cfg());
        assert_eq!(r.rto_ns(0, &cfg()), cfg().rto_initial_ns);
        assert_eq!(r.rto_ns(1, &cfg()), 2 * cfg().rto_initial_ns);
        assert_eq!(r.rto_ns(200, &cfg()), cfg().rto_max_ns);
    }

    #[test]
    fn a_steady_round_trip_converges_and_stays_above_the_lower_bound() {
        let mut r = Rtt::new(&cfg());
        for _ in 0..200 {
            r.on_sample(20_000);
        }
        let rto = r.rto_ns(0, &cfg());
        assert!((20_000..20_100).contains(&rto), "{rto}");
        for _ in 0..200 {
            r.on_sample(100);
        }
        assert_eq!(r.rto_ns(0, &cfg()), cfg().rto_min_ns);
    }

    #[test]
    fn jitter_widens_the_timeout() {
        let (mut steady, mut jittery) = (Rtt::new(&cfg()), Rtt::new(&cfg()));
        for i in 0..200u64 {
            steady.on_sample(50_000);
            jittery.on_sample(if i % 2 == 0 { 20_000 } else { 80_000 });
        }
        assert!(jittery.rto_ns(0, &cfg()) > 2 * steady.rto_ns(0, &cfg()));
    }

    #[test]
    fn clock_wraps_are_handled_and_impossible_echoes_ignored() {
        let mut r = Rtt::new(&cfg());
        r.on_echo(5, u32::MAX - 4);
        assert_eq!(r.report(&cfg()).unwrap().0, 10);
        r.on_echo(5, 6); // an echo from the future
        assert_eq!(r.report(&cfg()).unwrap().0, 10);
    }
}
