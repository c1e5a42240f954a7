//! What to measure, checked before anything is started; and what can go wrong.

use std::io;
use std::time::Duration;

use courser::Recovery;

use crate::program::Failure;

use super::caller::Load;
use super::service;
use super::side::{Over, Variant};
use super::switch::Switch;
use crate::affinity::AffinityError;
use crate::line::LineError;
use crate::report::Metric;
use crate::window::{Plan, RunError};

/// What a benchmark is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The time of one small call, one at a time.
    Latency,
    /// Small calls per second.
    Rate,
    /// Payload of large requests.
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

/// A benchmark, described. [`BenchSpec::new`] has the defaults.
#[derive(Clone, Debug)]
pub struct BenchSpec {
    /// What to measure.
    pub kind: Kind,
    /// The transport.
    pub transport: Over,
    /// A server that runs already; `None` starts one here. Without one of its own, a
    /// benchmark has no raw baseline and no probes: its result is untagged.
    pub connect: Option<String>,
    /// Request size, bytes.
    pub size: usize,
    /// Sessions, all between the same two endpoints.
    pub sessions: u32,
    /// Calls in flight over all sessions. For [`Kind::Bandwidth`] also called outstanding.
    pub in_flight: u32,
    /// Calls issued together: a chain of this many is repeated when all of it have ended.
    pub batch: u32,
    /// Several batches, one after another; empty: the one.
    pub batches: Vec<u32>,
    /// Several request sizes, one after another; empty: the one.
    pub sizes: Vec<usize>,
    /// Each call draws its session; else each of the calls in flight keeps to one.
    pub random: bool,
    /// Both sides make the calls, to each other.
    pub symmetric: bool,
    /// The server does not copy what arrives to its message (E78).
    pub no_copy: bool,
    /// Raw datagrams leave as lone frames of an endpoint do, by [`courser::Transport::tx_copy`].
    pub raw_copy: bool,
    /// How long to measure.
    pub plan: Plan,
    /// Packets that a session may have outstanding; `None`: the transport's default.
    pub credits: Option<u32>,
    /// Calls that a session may have under way; `None`: the default.
    pub slots: Option<u8>,
    /// Largest frame, bytes; `None`: the transport's default.
    pub frame: Option<usize>,
    /// How lost packets are found and sent again.
    pub recovery: Recovery,
    /// Whether the report holds both sides' counters (`config.diagnostics`).
    pub stats: bool,
}

/// Most sessions: with more, a run would measure its own tables.
const MAX_SESSIONS: u32 = 4096;
/// Most calls in flight.
pub const MAX_IN_FLIGHT: u32 = 65_536;
/// Largest message of the wire format.
const MAX_SIZE: usize = (1 << 28) - 1;
/// Calls in flight in the rate benchmark, unless told otherwise.
pub const RATE_IN_FLIGHT: u32 = 128;

/// The paper's experiment `[eRPC §6.2, Fig. 4]`.
const PAPER_SESSIONS: u32 = 8;
const PAPER_IN_FLIGHT: u32 = 60;
/// The batches of that experiment.
pub const PAPER_BATCHES: [u32; 5] = [1, 3, 5, 8, 11];
/// Sizes of the bandwidth series `[eRPC §6.4, Fig. 6]`, on to those that the paper could not send.
pub const SERIES_SIZES: [usize; 9] =
    [1 << 10, 4 << 10, 16 << 10, 32 << 10, 128 << 10, 512 << 10, 2 << 20, 8 << 20, 64 << 20];

/// Memory that all requests of a run may take together.
pub const MAX_MEMORY: usize = 512 << 20;

impl BenchSpec {
    /// The benchmark that the README shows.
    pub fn new(kind: Kind, plan: Plan) -> Self {
        let (size, sessions, in_flight) = match kind {
            Kind::Latency => (32, 1, 1),
            // Enough calls that both sides work at the same time, and slots for all of them. The raw
            // echo finds its own best window, up to 256 packets in flight.
            Kind::Rate => (32, 16, RATE_IN_FLIGHT),
            Kind::Bandwidth => (8 << 20, 1, 1),
        };
        Self {
            kind,
            transport: Over::Udp,
            connect: None,
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
            recovery: Recovery::default(),
            stats: true,
        }
    }

    /// The small-RPC rate as the paper measures it `[eRPC §6.2]`: batches of several sizes on
    /// sessions drawn at random.
    pub fn paper_rate(mut self) -> Self {
        (self.sessions, self.in_flight, self.random) = (PAPER_SESSIONS, PAPER_IN_FLIGHT, true);
        self.batches = PAPER_BATCHES.to_vec();
        self
    }

    /// What is called, a point of the series each.
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

    /// Largest request of all.
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
        let both = "a side of this machine: leave --connect or --symmetric out";
        check(!self.symmetric || self.connect.is_none(), "the other caller", both.to_owned())?;
        let ours = "a server of this machine: leave --connect or --no-copy out";
        check(!self.no_copy || self.connect.is_none(), "the copy of a server", ours.to_owned())?;
        let copies = "what shared memory has, with a server of this machine".to_owned();
        let has = self.transport == Over::Shm && self.connect.is_none();
        check(!self.raw_copy || has, "raw packets that are copied", copies)?;
        let only = "measured over udp or shm: threads of this process only see each other";
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
            recovery: self.recovery,
            off: if self.no_copy { vec![Switch::RequestCopies] } else { Vec::new() },
            ..Variant::default()
        }
    }
}

/// Why a benchmark ended without a result. Each is one line.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A value outside its range.
    #[error("{what} must be {limits}")]
    Spec {
        /// Which.
        what: &'static str,
        /// What it may be.
        limits: String,
    },
    /// Cores could not be chosen or taken.
    #[error(transparent)]
    Affinity(#[from] AffinityError),
    /// The page shared with the server process.
    #[error(transparent)]
    Line(#[from] LineError),
    /// The windows.
    #[error(transparent)]
    Run(#[from] RunError),
    /// Our endpoint.
    #[error(transparent)]
    Bind(#[from] courser::BindError),
    /// The worker pool.
    #[error(transparent)]
    Workers(#[from] courser::WorkerError),
    /// Calls that should keep a worker busy fail.
    #[error("the worker's capacity cannot be measured: {0}")]
    Capacity(String),
    /// The session.
    #[error("cannot connect to {uri}: {source}")]
    Connect {
        /// The server.
        uri: String,
        /// Why.
        source: courser::SessionError,
    },
    /// Memory for requests.
    #[error("no memory for the requests: {0}")]
    Memory(#[from] courser::AllocError),
    /// The raw socket.
    #[error("raw socket: {0}")]
    Raw(String),
    /// The server process could not be started.
    #[error("cannot start the server process: {0}")]
    Spawn(#[source] io::Error),
    /// It did not say its addresses in time.
    #[error("the server process did not come up within {0:?}{1}")]
    NotReady(Duration, Said),
    /// It ended by itself.
    #[error("the server process ended ({status}){said}")]
    Ended {
        /// Exit status or signal.
        status: String,
        /// Its last words.
        said: Said,
    },
}

/// The last line that the server process wrote to its standard error, if any.
#[derive(Debug, Default)]
pub struct Said(pub Option<String>);

impl std::fmt::Display for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Some(line) => write!(f, ": {line}"),
            None => Ok(()),
        }
    }
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Self {
        let text = error.to_string();
        match error {
            BenchError::Bind(error) => error.into(),
            BenchError::Connect { source, .. } => match source.into() {
                Failure::Usage(_) => Failure::Usage(text),
                _ => Failure::Runtime(text),
            },
            BenchError::Spec { .. } | BenchError::Run(RunError::Plan { .. }) => {
                Failure::Usage(text)
            }
            _ => Failure::Runtime(text),
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

    #[test]
    fn last_words_are_added_when_there_are_any() {
        let ended = |said| BenchError::Ended { status: "signal 9".into(), said: Said(said) };
        assert_eq!(ended(None).to_string(), "the server process ended (signal 9)");
        let text = ended(Some("no memory".into())).to_string();
        assert_eq!(text, "the server process ended (signal 9): no memory");
    }
}
