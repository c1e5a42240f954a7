//! The requests of a window, their right answers, and the [`Meter`] that times and checks the calls
//! of every contestant.

use anyhow::{Result, bail};
use courser_bench::clock::Clock;
use courser_bench::window::Sample;
use courser_kit::latency::Latency;
use serde::{Deserialize, Serialize};

/// Bytes of an answer to [`Kind::Sink`].
pub const RECEIPT: usize = 32;

/// Bytes of a value of [`Kind::Get`].
pub const VALUE: usize = 32;

/// Largest request that a server takes.
pub const MAX_REQUEST: usize = 4 << 20;

/// What a server does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Answers with the request.
    Echo,
    /// Answers with a [`receipt`].
    Sink,
    /// Answers with the [`value`] of the key that the request is.
    Get,
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

/// Fewest calls of a window. A window is extended until it has them, so that a busy machine gives a
/// figure too.
pub const MIN_CALLS: u64 = 8;

/// Times and checks the calls of one window. A call begins when its predecessor ends, so the clock
/// is read once per call (about 10 ns), for all contestants alike.
pub struct Meter {
    clock: Clock,
    work: Work,
    /// Begin and end of the window, on the clock.
    from_ns: u64,
    until_ns: u64,
    calls: u64,
    latency: Latency,
    /// By number of the request: start of its call, and whether an answer to it was compared whole.
    issued_ns: Vec<u64>,
    compared: Vec<bool>,
}

impl Meter {
    /// A meter whose warm-up and first calls begin now. The clock is made once per process: it
    /// calibrates.
    pub fn start(clock: &Clock, work: &Work) -> Self {
        let (clock, latency) = (clock.clone(), Latency::new());
        let now_ns = clock.now_ns();
        let from_ns = now_ns + work.warm_ms * 1_000_000;
        Self {
            clock,
            work: *work,
            from_ns,
            until_ns: from_ns + work.window_ms * 1_000_000,
            calls: 0,
            latency,
            issued_ns: vec![now_ns; work.in_flight],
            compared: vec![false; work.in_flight],
        }
    }

    /// Checks the answer to the request with that number: whole if it is the first one, or if all
    /// are to be compared.
    ///
    /// # Errors
    /// The answer is wrong.
    #[inline]
    pub fn check(&mut self, index: usize, request: &[u8], answer: &[u8]) -> Result<()> {
        let compared = std::mem::replace(&mut self.compared[index], true);
        check(self.work.kind, request, answer, self.work.check_all || !compared)
    }

    /// The call of the request with that number has ended. True: the next one begins now; false:
    /// the window is over.
    #[inline]
    pub fn ended(&mut self, index: usize) -> bool {
        self.ended_at(index, self.clock.now_ns())
    }

    fn ended_at(&mut self, index: usize, now_ns: u64) -> bool {
        if now_ns >= self.until_ns {
            if self.calls >= MIN_CALLS {
                return false;
            }
            self.until_ns = now_ns;
        }
        if now_ns >= self.from_ns {
            self.calls += 1;
            self.latency.record(now_ns.saturating_sub(self.issued_ns[index]));
        }
        self.issued_ns[index] = now_ns;
        true
    }

    /// The window's figures. Its time is that of the window, not from the first call to the last:
    /// calls that end in bursts would seem faster than they are.
    pub fn sample(&mut self) -> Sample {
        Sample {
            operations: self.calls,
            bytes: self.calls * self.work.size as u64,
            elapsed_ns: (self.until_ns - self.from_ns).max(1),
            latency: self.latency.take(),
            cpu_ns: None,
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

/// What the store has for a key in windows of kind [`Kind::Get`]: bytes that depend on all of it.
pub fn value(key: &[u8]) -> [u8; VALUE] {
    let seed = key.iter().fold(0_u64, |seed, byte| seed.wrapping_mul(257) + u64::from(*byte) + 1);
    std::array::from_fn(|i| (seed.rotate_left(i as u32) >> 7) as u8 ^ i as u8)
}

/// Compares an answer with what it must be: all of it if `all`, else its length and both ends,
/// which tell the requests in flight apart and cost next to nothing.
#[inline]
fn check(kind: Kind, request: &[u8], answer: &[u8], all: bool) -> Result<()> {
    let right = match kind {
        Kind::Sink => answer == receipt(request),
        Kind::Get => answer == value(request),
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
        assert!(check(Kind::Get, &sent, &value(&sent), false).is_ok());
        assert!(check(Kind::Get, &sent, &value(&request(2, 100)), false).is_err());
    }

    fn work(in_flight: usize, warm_ms: u64, window_ms: u64) -> Work {
        Work { kind: Kind::Echo, size: 100, in_flight, warm_ms, window_ms, check_all: false }
    }

    #[test]
    fn the_first_answer_of_each_request_is_compared_whole() {
        let mut meter = Meter::start(&Clock::new(), &work(2, 0, 1));
        let sent = request(1, 100);
        let mut bent = sent.clone();
        bent[50] ^= 1;
        assert!(meter.check(0, &sent, &sent).is_ok());
        assert!(meter.check(0, &sent, &bent).is_ok());
        assert!(meter.check(1, &sent, &bent).is_err());
    }

    #[test]
    fn a_meter_counts_what_ends_within_its_window() {
        let mut meter = Meter::start(&Clock::new(), &work(1, 1, 2));
        let mut now_ns = meter.issued_ns[0] + 250_000;
        while meter.ended_at(0, now_ns) {
            now_ns += 250_000;
        }
        let sample = meter.sample();
        // At 1.00, 1.25 ... 2.75 ms.
        assert_eq!((sample.operations, sample.bytes), (8, 800));
        assert_eq!(sample.rate(), 4_000.0);
        let p50_ns = sample.latency.expect("calls").p50_ns;
        assert!((249_000..=251_000).contains(&p50_ns), "{sample:?}");
    }

    #[test]
    fn bursts_count_by_the_window_and_a_slow_window_waits() {
        let mut meter = Meter::start(&Clock::new(), &work(4, 0, 10));
        let start_ns = meter.from_ns;
        for burst in 1..=2 {
            for index in 0..4 {
                assert!(meter.ended_at(index, start_ns + burst * 20_000_000), "{burst}");
            }
        }
        assert!(!meter.ended_at(0, start_ns + 60_000_000));
        // Eight calls until 40 ms.
        assert_eq!(meter.sample().rate(), 200.0);
    }
}
