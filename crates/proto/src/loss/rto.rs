//! Round trips and the retransmission timeout (E57).
//!
//! The estimator is RFC 6298's, in integers: smoothed RTT, mean deviation, and
//! `RTO = SRTT + 4 RTTVAR` within `Config::{rto_min_ns, rto_max_ns}`. Samples come from the frame
//! header's time echo: each belongs to exactly one frame, so retransmissions are never ambiguous
//! (F2), and the time the peer held the echo, handlers included, is taken out (F5).

use crate::config::Config;

/// Samples above this are not round trips but echoes of a clock that has wrapped: half of 2^32 ns.
const MAX_SAMPLE_NS: u32 = 1 << 31;

/// Round-trip estimator of one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rtt {
    srtt_ns: u64,
    rttvar_ns: u64,
    min_ns: u64,
    latest_ns: u64,
    samples: u64,
    rto_ns: u64,
}

impl Rtt {
    pub(crate) fn new(cfg: &Config) -> Self {
        Rtt {
            srtt_ns: 0,
            rttvar_ns: 0,
            min_ns: u64::MAX,
            latest_ns: 0,
            samples: 0,
            rto_ns: cfg.rto_initial_ns,
        }
    }

    /// Takes the sample that an echo gives, and gives it. Both are nanoseconds modulo 2^32.
    #[inline]
    pub(crate) fn on_echo(&mut self, now: u32, echo: u32, cfg: &Config) -> Option<u32> {
        let sample = now.wrapping_sub(echo);
        if sample >= MAX_SAMPLE_NS {
            return None;
        }
        self.on_sample(u64::from(sample), cfg);
        Some(sample)
    }

    fn on_sample(&mut self, rtt_ns: u64, cfg: &Config) {
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
        self.rto_ns = (self.srtt_ns + 4 * self.rttvar_ns).clamp(cfg.rto_min_ns, cfg.rto_max_ns);
    }

    /// The timeout after `retries` fruitless ones: doubled for each, up to the upper bound.
    #[inline]
    pub(crate) fn rto_ns(&self, retries: u8, cfg: &Config) -> u64 {
        let doubled = self.rto_ns.saturating_mul(1 << u32::from(retries).min(20));
        doubled.min(cfg.rto_max_ns)
    }

    /// [`Rtt::rto_ns`] without retries: the estimate keeps within the bounds as it is.
    #[inline]
    pub(crate) fn first_rto_ns(&self) -> u64 {
        self.rto_ns
    }

    /// The smallest round trip, ns; 0 before the first sample.
    pub(crate) fn least_ns(&self) -> u64 {
        if self.samples > 0 { self.min_ns } else { 0 }
    }

    /// (latest, smoothed, smallest, timeout), ns; `None` before the first sample.
    pub(crate) fn report(&self) -> Option<(u64, u64, u64, u64)> {
        (self.samples > 0).then_some((self.latest_ns, self.srtt_ns, self.min_ns, self.rto_ns))
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
        assert_eq!(r.first_rto_ns(), cfg().rto_initial_ns);
        assert_eq!(r.rto_ns(1, &cfg()), 2 * cfg().rto_initial_ns);
        assert_eq!(r.rto_ns(200, &cfg()), cfg().rto_max_ns);
    }

    #[test]
    fn a_steady_round_trip_converges_and_stays_above_the_lower_bound() {
        let mut r = Rtt::new(&cfg());
        for _ in 0..200 {
            r.on_sample(20_000, &cfg());
        }
        let rto = r.rto_ns(0, &cfg());
        assert_eq!(r.first_rto_ns(), rto);
        assert!((20_000..20_100).contains(&rto), "{rto}");
        for _ in 0..200 {
            r.on_sample(100, &cfg());
        }
        assert_eq!(r.rto_ns(0, &cfg()), cfg().rto_min_ns);
    }

    #[test]
    fn jitter_widens_the_timeout() {
        let (mut steady, mut jittery) = (Rtt::new(&cfg()), Rtt::new(&cfg()));
        for i in 0..200u64 {
            steady.on_sample(50_000, &cfg());
            jittery.on_sample(if i % 2 == 0 { 20_000 } else { 80_000 }, &cfg());
        }
        assert!(jittery.rto_ns(0, &cfg()) > 2 * steady.rto_ns(0, &cfg()));
    }

    #[test]
    fn the_clock_may_wrap_and_nonsense_is_ignored() {
        let mut r = Rtt::new(&cfg());
        r.on_echo(5, u32::MAX - 4, &cfg());
        assert_eq!(r.report().unwrap().0, 10);
        r.on_echo(5, 6, &cfg()); // an echo from the future
        assert_eq!(r.report().unwrap().0, 10);
    }
}
