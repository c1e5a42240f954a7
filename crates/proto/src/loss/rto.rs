//! Round trips and the retransmission timeout (E57).
//!
//! The estimator of RFC 6298 in integers: smoothed RTT, mean deviation, and `RTO = SRTT + 4 RTTVAR`
//! within `Config::{rto_min_ns, rto_max_ns}`. Samples come from the time echo in the frame header:
//! each echo belongs to exactly one frame, so retransmissions are never ambiguous (ADR 2), and the
//! peer's processing time, handlers included, is excluded (ADR 5).

use crate::config::Config;

/// Larger samples are echoes from before the clock wrapped: half of 2^32 ns.
const MAX_SAMPLE_NS: u32 = 1 << 31;

/// Duration of one iteration of the event loop: a shorter timeout would have no effect.
const PTO_MIN_NS: u64 = 500;

/// The smallest round trip is that of the current and the previous period of this length, ns: a
/// longer route is known within 40 ms.
const PERIOD_NS: u64 = 20_000_000;

/// Round trips for which a path drains before a larger smallest round trip is adopted.
const DRAIN_ROUND_TRIPS: u64 = 2;

/// Round-trip estimator of one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rtt {
    srtt_ns: u64,
    rttvar_ns: u64,
    /// The smallest round trip.
    min_ns: u64,
    /// The smallest of this period and of the previous one.
    period_min_ns: u64,
    previous_min_ns: u64,
    period_ends_ns: u64,
    /// This period is a drain: the path has at most half of its packets in flight.
    drains: bool,
    latest_ns: u64,
    samples: u64,
    /// The timeout before the first sample.
    initial_ns: u64,
}

impl Default for Rtt {
    /// No sample.
    fn default() -> Self {
        Rtt::new(&Config::default())
    }
}

/// Time that a call and its answer may wait for other packets, which no sample contains: both sides
/// count as having this side's budget.
#[inline]
fn waits_ns(cfg: &Config) -> u64 {
    2 * cfg.batch_budget_ns
}

impl Rtt {
    pub(crate) fn new(cfg: &Config) -> Self {
        Rtt {
            srtt_ns: 0,
            rttvar_ns: 0,
            min_ns: u64::MAX,
            period_min_ns: u64::MAX,
            previous_min_ns: u64::MAX,
            period_ends_ns: 0,
            drains: false,
            latest_ns: 0,
            samples: 0,
            initial_ns: cfg.rto_initial_ns,
        }
    }

    /// Takes the sample of an echo, a time modulo 2^32, and returns it. The frame has waited in this host
    /// for `wait_ns` of it, which timeouts contain and the smallest round trip does not.
    #[inline]
    pub(crate) fn on_echo(&mut self, now_ns: u64, echo: u32, wait_ns: u32) -> Option<u32> {
        let sample = (now_ns as u32).wrapping_sub(echo);
        if sample >= MAX_SAMPLE_NS {
            return None;
        }
        self.on_sample(sample.into());
        if wait_ns > 0 {
            self.on_bare(sample.saturating_sub(wait_ns).max(1).into());
        }
        if now_ns >= self.period_ends_ns {
            self.end_period(now_ns);
        }
        Some(sample)
    }

    /// The newest sample, without the wait of its frame in this host.
    #[inline(never)] // its registers would be those of every sample
    fn on_bare(&mut self, rtt_ns: u64) {
        self.min_ns = self.min_ns.min(rtt_ns);
        self.period_min_ns = self.period_min_ns.min(rtt_ns);
    }

    /// Ends a period of the smallest round trip. A queue that is never empty looks like a longer
    /// route; so before a larger smallest round trip is adopted the path drains ([`Rtt::drains`]).
    #[cold]
    fn end_period(&mut self, now_ns: u64) {
        let seen_ns = self.period_min_ns.min(self.previous_min_ns);
        let is_first = self.period_ends_ns == 0;
        let grows = seen_ns > self.min_ns.saturating_add(self.min_ns / 8) && !is_first;
        if grows && !self.drains {
            self.drains = true;
            self.previous_min_ns = u64::MAX;
            self.period_ends_ns = now_ns + (DRAIN_ROUND_TRIPS * self.srtt_ns).min(PERIOD_NS);
        } else {
            if !is_first {
                self.min_ns = seen_ns;
            }
            self.drains = false;
            self.previous_min_ns = self.period_min_ns;
            self.period_ends_ns = now_ns + PERIOD_NS;
        }
        self.period_min_ns = u64::MAX;
    }

    /// Returns whether the path is to have at most half of its packets in flight, to see its round
    /// trip without its own queue.
    #[inline]
    pub(crate) fn drains(&self) -> bool {
        self.drains
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
        self.period_min_ns = self.period_min_ns.min(rtt_ns);
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
            _ => {
                let late_ns = self.srtt_ns + 4 * self.rttvar_ns + waits_ns(cfg);
                late_ns.clamp(cfg.rto_min_ns, cfg.rto_max_ns)
            }
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
                let late_ns = late_ns + waits_ns(cfg);
                late_ns.max(PTO_MIN_NS).min(cfg.rto_max_ns)
            }
        }
    }

    /// The smoothed round trip, ns; 0 before the first sample.
    #[inline]
    pub(crate) fn smoothed_ns(&self) -> u64 {
        self.srtt_ns
    }

    /// Takes this as the smallest round trip: the route has become longer.
    pub(crate) fn adopt(&mut self, least_ns: u64, now_ns: u64) {
        (self.min_ns, self.period_min_ns, self.previous_min_ns) = (least_ns, least_ns, least_ns);
        (self.drains, self.period_ends_ns) = (false, now_ns + PERIOD_NS);
    }

    /// The newest round trip, ns.
    pub(crate) fn latest_ns(&self) -> u64 {
        self.latest_ns
    }

    /// The smallest recent round trip, ns; 0 before the first sample.
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
    fn a_longer_route_is_adopted_after_a_drain_within_50_ms() {
        let mut r = Rtt::new(&cfg());
        let mut drained_ns = 0;
        for at_us in (0..200_000).step_by(10) {
            let now_ns = (1 << 40) + at_us * 1_000;
            let rtt_ns = if at_us < 100_000 { 5_000 } else { 15_000 };
            r.on_echo(now_ns, (now_ns - rtt_ns) as u32, 0);
            drained_ns += if r.drains() { 10_000 } else { 0 };
            let expected = if at_us < 100_000 { Some(5_000) } else { None };
            assert!(expected.is_none_or(|ns| r.least_ns() == ns));
            assert!(at_us < 150_000 || r.least_ns() == 15_000, "{at_us} us: {}", r.least_ns());
        }
        assert!((10_000..100_000).contains(&drained_ns), "{drained_ns}");
    }

    #[test]
    fn a_queue_that_a_drain_empties_is_no_longer_route() {
        let mut r = Rtt::new(&cfg());
        for at_us in (0..400_000).step_by(10) {
            let now_ns = (1 << 40) + at_us * 1_000;
            let queued_ns = if at_us == 0 || r.drains() { 0 } else { 9_000 };
            r.on_echo(now_ns, (now_ns - 5_000 - queued_ns) as u32, 0);
            assert_eq!(r.least_ns(), 5_000, "{at_us}");
        }
    }

    #[test]
    fn clock_wraps_are_handled_and_impossible_echoes_ignored() {
        let mut r = Rtt::new(&cfg());
        r.on_echo(5 + (1 << 32), u32::MAX - 4, 0);
        assert_eq!(r.report(&cfg()).unwrap().0, 10);
        r.on_echo(5 + (1 << 32), 6, 0); // an echo from the future
        assert_eq!(r.report(&cfg()).unwrap().0, 10);
    }
}
