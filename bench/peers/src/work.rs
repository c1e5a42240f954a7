//! What a window asks of a contestant, what comes back, and the one way in which all of them are
//! timed and checked.

use anyhow::{Result, bail, ensure};
use hdrhistogram::Histogram;
use quanta::Clock;
use serde::{Deserialize, Serialize};

/// Bytes of an answer to [`Kind::Sink`].
pub const RECEIPT: usize = 32;

/// Largest request that a server takes.
pub const MAX_REQUEST: usize = 4 << 20;

/// Most requests in flight in one window.
pub const MAX_IN_FLIGHT: usize = 1024;

/// What a server does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Answers with the request.
    Echo,
    /// Answers with a [`receipt`].
    Sink,
}

/// One window: a fixed number of requests in flight, each repeated as soon as it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// What the server does.
    pub kind: Kind,
    /// Bytes of a request.
    pub size: usize,
    /// Requests in flight.
    pub in_flight: usize,
    /// Time before the window whose calls do not count, ms.
    pub warm_ms: u64,
    /// Length of the window, ms.
    pub window_ms: u64,
    /// Compares every answer byte by byte, not only the first of each request in flight.
    pub check_all: bool,
}

/// What a window gave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Calls that ended within the window.
    pub calls: u64,
    /// Median latency, ns.
    pub p50_ns: u64,
    /// 99th percentile, ns.
    pub p99_ns: u64,
    /// Calls per second.
    pub rate_rps: f64,
}

/// Calls that a window waits for if it must, so that even on a machine that is busy with something
/// else there is a figure.
const MIN_CALLS: u64 = 8;

/// Times the calls of one window. A call begins when its predecessor ended, so there is one look
/// at the clock per call (about 10 ns), and it is the same for all contestants.
pub struct Meter {
    clock: Clock,
    epoch: u64,
    /// Times since the epoch, ns.
    from_ns: u64,
    until_ns: u64,
    latency: Histogram<u64>,
}

impl Meter {
    /// A meter whose warm-up begins now. The clock is made once per process: it calibrates.
    pub fn start(clock: &Clock, work: &Work) -> Self {
        let from_ns = work.warm_ms * 1_000_000;
        Self {
            clock: clock.clone(),
            epoch: clock.raw(),
            from_ns,
            until_ns: from_ns + work.window_ms * 1_000_000,
            latency: Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("constant bounds"),
        }
    }

    /// Time since the start, ns.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        self.clock.delta_as_nanos(self.epoch, self.clock.raw())
    }

    /// A call that was issued at `issued_ns` has just ended. Returns the time, at which the next
    /// one begins; `None` when the window is over.
    #[inline]
    pub fn ended(&mut self, issued_ns: u64) -> Option<u64> {
        let now_ns = self.now_ns();
        if now_ns >= self.until_ns {
            if self.latency.len() >= MIN_CALLS {
                return None;
            }
            self.until_ns = now_ns;
        }
        if now_ns >= self.from_ns {
            self.latency.saturating_record(now_ns.saturating_sub(issued_ns).max(1));
        }
        Some(now_ns)
    }

    /// The window's figures. Not calls between the first and the last: those that end in bursts
    /// would seem faster than they are.
    pub fn sample(&self) -> Sample {
        let calls = self.latency.len();
        let window_ns = (self.until_ns - self.from_ns).max(1);
        let rate_rps = calls as f64 * 1e9 / window_ns as f64;
        Sample {
            calls,
            p50_ns: self.latency.value_at_quantile(0.5),
            p99_ns: self.latency.value_at_quantile(0.99),
            rate_rps,
        }
    }
}

/// The request with number `index` among those in flight: its number, then bytes that depend on
/// it and on their place.
pub fn request(index: usize, size: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        (0..size).map(|i| (i.wrapping_mul(7) ^ (i >> 8) ^ index.wrapping_mul(31)) as u8).collect();
    if let Some(number) = bytes.first_chunk_mut() {
        *number = (index as u64).to_le_bytes();
    }
    bytes
}

/// The answer of a server of kind [`Kind::Sink`]: the request's length, its first and its last
/// eight bytes, zeros.
pub fn receipt(request: &[u8]) -> [u8; RECEIPT] {
    let mut receipt = [0; RECEIPT];
    receipt[..8].copy_from_slice(&(request.len() as u64).to_le_bytes());
    let ends = request.len().min(8);
    receipt[8..8 + ends].copy_from_slice(&request[..ends]);
    receipt[16..16 + ends].copy_from_slice(&request[request.len() - ends..]);
    receipt
}

/// Compares an answer with what it must be: all of it if `all`, else its length and both ends,
/// which tell the requests in flight apart and cost next to nothing.
///
/// # Errors
/// What is wrong with it.
#[inline]
pub fn check(kind: Kind, request: &[u8], answer: &[u8], all: bool) -> Result<()> {
    let right = match kind {
        Kind::Sink => answer == receipt(request),
        Kind::Echo if all => answer == request,
        Kind::Echo => {
            let ends = request.len().min(8);
            answer.len() == request.len()
                && answer[..ends] == request[..ends]
                && answer[answer.len() - ends..] == request[request.len() - ends..]
        }
    };
    if !right {
        bail!(
            "a wrong answer to {kind:?} of {} bytes: {} bytes that are not what was to come",
            request.len(),
            answer.len()
        );
    }
    Ok(())
}

impl Work {
    /// Refuses what no contestant is made for.
    ///
    /// # Errors
    /// What is out of range.
    pub fn validate(&self) -> Result<()> {
        ensure!(self.size <= MAX_REQUEST, "requests of at most {MAX_REQUEST} bytes");
        ensure!(
            (1..=MAX_IN_FLIGHT).contains(&self.in_flight),
            "1 to {MAX_IN_FLIGHT} requests in flight"
        );
        ensure!(self.warm_ms.max(self.window_ms) <= 60_000, "windows of at most a minute");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_differ_by_number_and_place() {
        let (a, b) = (request(1, 1024), request(2, 1024));
        assert_ne!(a[..8], b[..8]);
        assert_ne!(a[1016..], b[1016..]);
        assert_eq!(request(3, 0).len(), 0);
        assert_eq!(request(3, 5).len(), 5);
    }

    #[test]
    fn wrong_answers_are_seen() {
        let sent = request(1, 100);
        assert!(check(Kind::Echo, &sent, &sent, true).is_ok());
        assert!(check(Kind::Echo, &sent, &request(2, 100), false).is_err());
        assert!(check(Kind::Echo, &sent, &sent[..99], false).is_err());
        let mut bent = sent.clone();
        bent[50] ^= 1;
        assert!(check(Kind::Echo, &sent, &bent, true).is_err());
        assert!(check(Kind::Sink, &sent, &receipt(&sent), false).is_ok());
        assert!(check(Kind::Sink, &sent, &receipt(&sent[1..]), false).is_err());
        assert!(check(Kind::Sink, &sent, &[], false).is_err());
    }

    #[test]
    fn a_meter_counts_what_ends_within_its_window() {
        let (clock, mock) = Clock::mock();
        let work = Work {
            kind: Kind::Echo,
            size: 0,
            in_flight: 1,
            warm_ms: 1,
            window_ms: 2,
            check_all: false,
        };
        let mut meter = Meter::start(&clock, &work);
        let mut issued = Some(meter.now_ns());
        while let Some(at) = issued {
            mock.increment(250_000_u64);
            issued = meter.ended(at);
        }
        let sample = meter.sample();
        // At 1.00, 1.25 ... 2.75 ms.
        assert_eq!(sample.calls, 8);
        assert_eq!(sample.rate_rps, 4_000.0);
        assert!((249_000..=251_000).contains(&sample.p50_ns), "{sample:?}");
    }

    #[test]
    fn bursts_count_by_the_window_and_a_slow_window_waits() {
        let (clock, mock) = Clock::mock();
        let (kind, size, in_flight, check_all) = (Kind::Sink, 0, 4, false);
        let work = Work { kind, size, in_flight, warm_ms: 0, window_ms: 10, check_all };
        let mut meter = Meter::start(&clock, &work);
        for burst in 1..=2 {
            mock.increment(20_000_000_u64);
            for _ in 0..4 {
                assert!(meter.ended(0).is_some(), "{burst}");
            }
        }
        mock.increment(20_000_000_u64);
        assert_eq!(meter.ended(0), None);
        // Eight calls until 40 ms.
        assert_eq!(meter.sample().rate_rps, 200.0);
    }
}
