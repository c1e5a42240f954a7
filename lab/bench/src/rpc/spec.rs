//! Descriptions of benchmarks, and their limits.

use courser::{Control, Packing, Recovery};

use super::error::BenchError;
use super::load::Load;
use super::service;
use super::side::{Over, Variant};
use super::switch::Switch;
use crate::report::Metric;
use crate::window::Plan;

/// The kind of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Latency of small calls, one at a time.
    Latency,
    /// Small calls per second.
    Rate,
    /// Payload bits per second of large requests.
    Bandwidth,
}

impl Kind {
    /// The name in reports and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Rate => "rate",
            Self::Bandwidth => "bandwidth",
        }
    }

    /// The quantity it compares.
    pub fn metric(self) -> Metric {
        match self {
            Self::Latency => Metric::Latency,
            Self::Rate => Metric::Rate,
            Self::Bandwidth => Metric::Goodput,
        }
    }

    /// The request type it calls.
    pub fn req_type(self) -> u16 {
        match self {
            Self::Latency | Self::Rate => service::ECHO,
            Self::Bandwidth => service::SINK,
        }
    }
}

/// The description of a benchmark. [`BenchSpec::new`] has the defaults.
#[derive(Clone, Debug)]
pub struct BenchSpec {
    /// The kind of the benchmark.
    pub kind: Kind,
    /// The transport.
    pub transport: Over,
    /// Address of a running server; `None` starts a server side. Against a running server a benchmark
    /// has no raw baseline and no probes, so its result is untagged.
    pub connect: Option<String>,
    /// Local address of the client of a running server; `None`: any.
    pub bind: Option<String>,
    /// Request size, bytes.
    pub size: usize,
    /// Sessions, all between the same two endpoints.
    pub sessions: u32,
    /// Calls in flight over all sessions.
    pub in_flight: u32,
    /// Calls of a chain that are sent together; the next batch follows when all have ended.
    pub batch: u32,
    /// Several batches as a series; empty: only `batch`.
    pub batches: Vec<u32>,
    /// Several request sizes as a series; empty: only `size`.
    pub sizes: Vec<usize>,
    /// Each call uses a random session; otherwise each of the calls in flight keeps its session.
    pub random: bool,
    /// Both sides call each other.
    pub symmetric: bool,
    /// The server does not copy received data into the message (E78).
    pub no_copy: bool,
    /// Raw datagrams are sent by [`courser::Transport::tx_copy`], as single frames of an endpoint.
    pub raw_copy: bool,
    /// Duration of the measurement.
    pub plan: Plan,
    /// Packets that a session may have in flight; `None`: the transport's default.
    pub credits: Option<u32>,
    /// Calls that a session may have in flight; `None`: the default.
    pub slots: Option<u8>,
    /// Largest frame, bytes; `None`: the transport's default.
    pub frame: Option<usize>,
    /// Congestion control.
    pub control: Control,
    /// Loss recovery.
    pub recovery: Recovery,
    /// How small packets share frames; `None`: the default of the transport.
    pub packing: Option<Packing>,
    /// True if the report contains the counters of both sides (`config.diagnostics`).
    pub stats: bool,
}

/// Most sessions: with more, the tables of the benchmark itself would influence the result.
const MAX_SESSIONS: u32 = 4096;
/// Most calls in flight.
pub const MAX_IN_FLIGHT: u32 = 65_536;
/// Largest message of the wire format.
const MAX_SIZE: usize = (1 << 28) - 1;
/// Default of the calls in flight in the rate benchmark.
pub const RATE_IN_FLIGHT: u32 = 128;

/// The paper's experiment `[eRPC section 6.2, figure 4]`.
const PAPER_SESSIONS: u32 = 8;
const PAPER_IN_FLIGHT: u32 = 60;
/// The batches of that experiment.
pub const PAPER_BATCHES: [u32; 5] = [1, 3, 5, 8, 11];
/// Sizes of the bandwidth series `[eRPC section 6.4, figure 6]`, and larger ones than in the paper.
pub const SERIES_SIZES: [usize; 9] =
    [1 << 10, 4 << 10, 16 << 10, 32 << 10, 128 << 10, 512 << 10, 2 << 20, 8 << 20, 64 << 20];

/// Most memory of all requests of a run.
pub const MAX_MEMORY: usize = 512 << 20;

impl BenchSpec {
    /// The benchmark with its defaults, as in docs/performance.md.
    pub fn new(kind: Kind, plan: Plan) -> Self {
        let (size, sessions, in_flight) = match kind {
            Kind::Latency => (32, 1, 1),
            // Enough calls that both sides work at the same time, and slots for all of them. The raw
            // echo determines its own window, up to 256 packets in flight.
            Kind::Rate => (32, 16, RATE_IN_FLIGHT),
            Kind::Bandwidth => (8 << 20, 1, 1),
        };
        Self {
            kind,
            transport: Over::Udp,
            connect: None,
            bind: None,
            size,
            sessions,
            in_flight,
            batch: 1,
            batches: Vec::new(),
            sizes: Vec::new(),
            random: false,
            symmetric: false,
            no_copy: false,
            raw_copy: false,
            plan,
            credits: None,
            slots: None,
            frame: None,
            control: Control::default(),
            recovery: Recovery::default(),
            packing: None,
            stats: true,
        }
    }

    /// The small-RPC rate of the paper `[eRPC section 6.2]`: several batches on random sessions.
    pub fn paper_rate(mut self) -> Self {
        (self.sessions, self.in_flight, self.random) = (PAPER_SESSIONS, PAPER_IN_FLIGHT, true);
        self.batches = PAPER_BATCHES.to_vec();
        self
    }

    /// The loads, one for each point of the series.
    pub fn loads(&self) -> Vec<Load> {
        let one = |size: usize, batch: u32| Load {
            req_type: self.kind.req_type(),
            size,
            sessions: self.sessions as usize,
            in_flight: self.in_flight,
            batch,
            random: self.random,
            timed: self.kind == Kind::Latency,
        };
        match (&self.sizes[..], &self.batches[..]) {
            ([], []) => vec![one(self.size, self.batch)],
            ([], batches) => batches.iter().map(|&batch| one(self.size, batch)).collect(),
            (sizes, _) => sizes.iter().map(|&size| one(size, self.batch)).collect(),
        }
    }

    /// Largest request size.
    fn largest(&self) -> usize {
        self.sizes.iter().copied().max().unwrap_or(self.size)
    }

    /// Checks every limit.
    ///
    /// # Errors
    /// [`BenchError::Spec`] with the first value outside its range.
    pub fn check(&self) -> Result<(), BenchError> {
        let check = |ok: bool, what, limits: String| {
            if ok { Ok(()) } else { Err(BenchError::Spec { what, limits }) }
        };
        let sizes = self.sizes.iter().chain(self.sizes.is_empty().then_some(&self.size));
        for size in sizes {
            check((1..=MAX_SIZE).contains(size), "the size", format!("1 to {MAX_SIZE} bytes"))?;
        }
        let range = format!("1 to {MAX_SESSIONS}");
        check((1..=MAX_SESSIONS).contains(&self.sessions), "the number of sessions", range)?;
        let range = format!("1 to {MAX_IN_FLIGHT}");
        check((1..=MAX_IN_FLIGHT).contains(&self.in_flight), "the calls in flight", range)?;
        let range = format!("1 to {}, the calls in flight", self.in_flight);
        let batches = self.batches.iter().chain(self.batches.is_empty().then_some(&self.batch));
        for batch in batches {
            check((1..=self.in_flight).contains(batch), "the batch", range.clone())?;
        }
        let both = "on this machine: omit --connect or --symmetric";
        check(!self.symmetric || self.connect.is_none(), "the other caller", both.to_owned())?;
        let ours = "of a server that the benchmark starts: omit --connect or --no-copy";
        check(!self.no_copy || self.connect.is_none(), "the copy of a server", ours.to_owned())?;
        let copies = "measured over shm, without --connect".to_owned();
        let has = self.transport == Over::Shm && self.connect.is_none();
        check(!self.raw_copy || has, "raw packets that are copied", copies)?;
        let only = "reached over udp or shm: mem connects threads of this process only";
        let elsewhere = self.connect.is_none() || self.transport != Over::Mem;
        check(elsewhere, "a server elsewhere", only.to_owned())?;
        let together: usize = self
            .loads()
            .iter()
            .map(|l| l.size.saturating_mul(l.chains().1))
            .fold(0, usize::saturating_add);
        check(
            together <= MAX_MEMORY,
            "the requests in flight together",
            format!("at most {MAX_MEMORY} bytes"),
        )
    }

    /// Settings of both endpoints.
    pub fn variant(&self) -> Variant {
        Variant {
            size: self.largest(),
            credits: self.credits,
            slots: self.slots,
            frame: self.frame,
            sessions: self.sessions as usize,
            control: self.control,
            recovery: self.recovery,
            packing: self.packing,
            off: if self.no_copy { vec![Switch::RequestCopies] } else { Vec::new() },
            ..Variant::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [Kind; 3] = [Kind::Latency, Kind::Rate, Kind::Bandwidth];

    #[test]
    fn defaults_are_within_limits() {
        for kind in KINDS {
            let checked = BenchSpec::new(kind, Plan::quick()).check();
            assert!(checked.is_ok(), "{}: {checked:?}", kind.name());
        }
    }

    #[test]
    fn each_limit_is_checked() {
        type Spoil = fn(&mut BenchSpec);
        let bad: [(&str, Spoil); 14] = [
            ("size", |s| s.size = 0),
            ("size", |s| s.size = MAX_SIZE + 1),
            ("sessions", |s| s.sessions = 0),
            ("sessions", |s| s.sessions = MAX_SESSIONS + 1),
            ("calls in flight", |s| s.in_flight = 0),
            ("calls in flight", |s| s.in_flight = MAX_IN_FLIGHT + 1),
            ("batch", |s| s.batch = 0),
            ("batch", |s| s.batch = s.in_flight + 1),
            ("together", |s| s.size = MAX_MEMORY / 64 + 1),
            ("batch", |s| s.batches = vec![1, s.in_flight + 1]),
            ("size", |s| s.sizes = vec![32, 0]),
            ("packets that are copied", |s| s.raw_copy = true),
            ("copy of a server", |s| (s.no_copy, s.connect) = (true, Some("udp://a:1".into()))),
            ("other caller", |s| (s.symmetric, s.connect) = (true, Some("udp://a:1".into()))),
        ];
        for (name, spoil) in bad {
            let mut spec = BenchSpec::new(Kind::Rate, Plan::quick());
            spoil(&mut spec);
            let error = spec.check().expect_err(name).to_string();
            assert!(error.contains(name), "{name}: {error}");
        }
    }

    #[test]
    fn a_series_is_a_load_for_each_point() {
        let paper = BenchSpec::new(Kind::Rate, Plan::quick()).paper_rate();
        assert!(paper.check().is_ok());
        let batches: Vec<_> = paper.loads().iter().map(|load| load.batch).collect();
        assert_eq!(batches, PAPER_BATCHES);
        assert!(paper.loads().iter().all(|load| load.random && load.in_flight == 60));
        let mut sizes = BenchSpec::new(Kind::Bandwidth, Plan::quick());
        sizes.sizes = vec![1 << 10, 64 << 20];
        assert_eq!(sizes.loads().len(), 2);
        assert_eq!(sizes.variant().size, 64 << 20);
    }
}
