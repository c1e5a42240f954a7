//! Measures the index over UDP or shared memory, on one machine.
//!
//! One process has a server, with its threads and workers, and on the calling thread the clients: one
//! session for each, with some operations outstanding. Windows of three workloads alternate:
//!
//! * `workers`: the mix, with scans in the workers of the server;
//! * `dispatch`: the same, with scans on the server's endpoint threads;
//! * `plain`: as many requests of the same sizes to a handler that returns them.
//!
//! A busy machine slows all three, and ratios are taken within a round. A window ends when
//! its last operation has ended.

use std::sync::Arc;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use courser::{
    BindError, CallError, Config, EndpointHandle, Nexus, Rpc, RunError, SessionError, WorkerError,
};
use courser_bench::clock::Clock;
use courser_bench::contention::Contention;
use courser_bench::stats::{Ratio, Summary};
use courser_kit::affinity::{self, AffinityError, Cores};
use courser_kit::environment::Environment;
use courser_sim::Rng;
use serde_json::{Map, Value, json};

use crate::driver::{Counted, Driver, Load, SCANNED, SharedTally, Target};
use crate::index::Index;
use crate::message::{SCAN, SCAN_AT_ONCE, nth_key};
use crate::mix::Kind;
use crate::service::{self, Scans};

/// Settings of a run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Scheme of the transport: `udp` or `shm`.
    pub scheme: &'static str,
    /// Endpoints of the server, each with a thread.
    pub threads: u16,
    /// Worker threads.
    pub workers: usize,
    /// Sessions of the client.
    pub clients: u16,
    /// The operations of each of them.
    pub load: Load,
    /// The workloads, in the order of a round.
    pub workloads: Vec<Workload>,
    /// Length of a window.
    pub window: Duration,
    /// Time of all windows.
    pub time: Duration,
}

/// A workload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Workload {
    /// Scans in workers.
    Workers,
    /// Scans in dispatch handlers.
    Dispatch,
    /// Plain RPCs.
    Plain,
}

impl Workload {
    /// Its name in results.
    pub const fn name(self) -> &'static str {
        match self {
            Workload::Workers => "workers",
            Workload::Dispatch => "dispatch",
            Workload::Plain => "plain",
        }
    }

    fn target(self) -> Target {
        match self {
            Workload::Workers => Target::Index { scan: SCAN },
            Workload::Dispatch => Target::Index { scan: SCAN_AT_ONCE },
            Workload::Plain => Target::Plain,
        }
    }
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The cores are not known.
    #[error(transparent)]
    Cores(#[from] AffinityError),
    /// An endpoint cannot be made.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// There are no workers.
    #[error(transparent)]
    Workers(#[from] WorkerError),
    /// A session was refused.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// An event loop failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A thread cannot be started.
    #[error("a thread cannot be started: {0}; raise the limit of processes")]
    Thread(std::io::Error),
    /// A thread has ended.
    #[error("a thread of the server ended early; this is a defect of the program")]
    Ended,
    /// Operations failed.
    #[error("{count} operations failed or were answered wrongly ({}); lower the load", cause(*.error))]
    Failed {
        /// Their number.
        count: u64,
        /// The last error.
        error: Option<CallError>,
    },
    /// Operations did not end.
    #[error("{0} operations have not ended within 10 s; end other programs and repeat")]
    Stuck(usize),
}

fn cause(error: Option<CallError>) -> String {
    error.map_or("no error was returned".to_owned(), |error| error.to_string())
}

/// A server in threads of this process, which end when it is dropped.
struct Served {
    nexus: Arc<Nexus>,
    handles: Vec<EndpointHandle>,
    threads: Vec<JoinHandle<()>>,
}

impl Served {
    fn start(settings: &Settings, index: &Arc<Index>, cores: &Cores) -> Result<Self, BenchError> {
        let config = Config { workers: settings.workers, ..Config::default() };
        let uri = format!("{}://127.0.0.1:0", settings.scheme);
        let nexus = Arc::new(Nexus::bind_with(&uri, config)?);
        let mut served = Served { nexus, handles: Vec::new(), threads: Vec::new() };
        for _ in 0..settings.threads {
            let (nexus, index) = (served.nexus.clone(), index.clone());
            let pin = (settings.threads == 1).then_some(cores.server);
            let (ready, started) = mpsc::channel();
            let serve = move || match endpoint(&nexus, &index, pin) {
                Ok(mut rpc) => {
                    let _ = ready.send(Ok(rpc.handle()));
                    // The client's operations fail, which is reported.
                    let _ = rpc.run();
                }
                Err(error) => drop(ready.send(Err(error))),
            };
            let thread = thread::Builder::new().name("index-endpoint".to_owned()).spawn(serve);
            served.threads.push(thread.map_err(BenchError::Thread)?);
            served.handles.push(started.recv().map_err(|_| BenchError::Ended)??);
        }
        Ok(served)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.handles.iter().for_each(EndpointHandle::stop);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

fn endpoint(nexus: &Nexus, index: &Arc<Index>, pin: Option<usize>) -> Result<Rpc, BenchError> {
    if let Some(core) = pin {
        affinity::pin_current_thread(core)?;
    }
    let mut rpc = nexus.endpoint()?;
    service::register(&mut rpc, index, Scans::Both)?;
    Ok(rpc)
}

/// The client side.
struct Client {
    rpc: Rpc,
    driver: Driver,
    tally: SharedTally,
}

/// A window of a workload.
#[derive(Clone, Copy, Default)]
struct Window {
    counted: Counted,
    elapsed_ns: u64,
}

impl Window {
    fn rate(&self, kind: Kind) -> f64 {
        self.counted.operations[kind as usize] as f64 * 1e9 / self.elapsed_ns as f64
    }

    fn all_rate(&self) -> f64 {
        Kind::ALL.into_iter().map(|kind| self.rate(kind)).sum()
    }

    fn p50_ns(&self, kind: Kind) -> Option<f64> {
        Some(self.counted.latency[kind as usize]?.p50_ns as f64)
    }

    fn p99_ns(&self, kind: Kind) -> Option<f64> {
        Some(self.counted.latency[kind as usize]?.p99_ns as f64)
    }
}

impl Client {
    fn connect(settings: &Settings, server: &Served) -> Result<Self, BenchError> {
        let nexus = Nexus::bind(&format!("{}://127.0.0.1:0", settings.scheme))?;
        let mut rpc = nexus.endpoint()?;
        let uri = server.nexus.local_uri();
        let mut sessions = Vec::new();
        for number in 0..settings.clients {
            sessions.push(rpc.connect(&format!("{uri}/{}", number % settings.threads))?);
        }
        for session in &sessions {
            rpc.wait_connected(*session)?;
        }
        let tally = SharedTally::default();
        let driver = Driver::new(&mut rpc, &sessions, settings.load, 1, tally.clone());
        Ok(Client { rpc, driver, tally })
    }

    fn window(&mut self, workload: Workload, time: Duration) -> Result<Window, BenchError> {
        /// Longest time of the last operations of a window.
        const LAST: Duration = Duration::from_secs(10);
        self.tally.borrow_mut().take();
        let began = Instant::now();
        self.driver.start(&mut self.rpc.context(), workload.target());
        while began.elapsed() < time {
            self.rpc.poll();
        }
        self.driver.stop();
        while self.driver.in_flight() > 0 {
            self.rpc.poll();
            if began.elapsed() > time + LAST {
                return Err(BenchError::Stuck(self.driver.in_flight()));
            }
        }
        let elapsed_ns = began.elapsed().as_nanos() as u64;
        let counted = self.tally.borrow_mut().take();
        match counted.failed + counted.wrong {
            0 => Ok(Window { counted, elapsed_ns }),
            count => Err(BenchError::Failed { count, error: counted.error }),
        }
    }
}

/// The time of one GET and of one scan without any RPC, ns: the median of many groups.
pub fn index_costs(index: &Index, keys: u64) -> (f64, f64) {
    let mut rng = Rng::new(1);
    let mut of = |calls: u32, call: &dyn Fn(u64)| {
        let mut groups: Vec<f64> = (0..101)
            .map(|_| {
                let keys: Vec<u64> = (0..calls).map(|_| nth_key(rng.below(keys))).collect();
                let began = Instant::now();
                keys.into_iter().for_each(call);
                began.elapsed().as_nanos() as f64 / f64::from(calls)
            })
            .collect();
        courser_bench::stats::median(&mut groups).unwrap_or(f64::NAN)
    };
    let get_ns = of(1_000, &|key| _ = std::hint::black_box(index.get(key)));
    let scan_ns = of(100, &|key| _ = std::hint::black_box(index.scan(key, SCANNED)));
    (get_ns, scan_ns)
}

/// Runs the benchmark over an index that has the keys of the load. `progress` gets the part that is
/// done, 0 to 1.
///
/// # Errors
/// [`BenchError`].
pub fn run(
    settings: &Settings,
    index: &Arc<Index>,
    progress: &mut dyn FnMut(f64),
) -> Result<Value, BenchError> {
    let (clock, cores) = (Clock::new(), affinity::choose()?);
    let (get_ns, scan_ns) = index_costs(index, settings.load.keys);
    let served = Served::start(settings, index, &cores)?;
    affinity::pin_current_thread(cores.client)?;
    let mut client = Client::connect(settings, &served)?;
    let contention = Contention::begin();
    for workload in &settings.workloads {
        client.window(*workload, settings.window)?;
    }
    let began = Instant::now();
    let mut rounds: Vec<Vec<Window>> = Vec::new();
    while rounds.is_empty() || began.elapsed() < settings.time {
        let one = |workload: &Workload| client.window(*workload, settings.window);
        rounds.push(settings.workloads.iter().map(one).collect::<Result<_, _>>()?);
        progress((began.elapsed().as_secs_f64() / settings.time.as_secs_f64()).min(1.0));
    }
    let share = contention.and_then(|contention| contention.share());
    Ok(json!({
        "bench": "ordered-index",
        "transport": settings.scheme,
        "config": {
            "keys": settings.load.keys,
            "mix": settings.load.mix.to_string(),
            "scanned_keys": SCANNED,
            "clients": settings.clients,
            "outstanding": settings.load.outstanding,
            "server_threads": settings.threads,
            "workers": settings.workers,
            "window_ms": settings.window.as_millis() as u64,
            "time_ms": settings.time.as_millis() as u64,
            "cores_distinct": cores.distinct(),
            "cpu_wait_share": share,
        },
        "results": results(settings, &rounds, get_ns, scan_ns),
        "environment": Environment::collect(clock.error_ppm(), &cores),
    }))
}

fn results(settings: &Settings, rounds: &[Vec<Window>], get_ns: f64, scan_ns: f64) -> Value {
    let mut result = Map::new();
    result.insert("rounds".into(), rounds.len().into());
    result.insert("index_get_ns".into(), get_ns.into());
    result.insert("index_scan_ns".into(), scan_ns.into());
    for (at, workload) in settings.workloads.iter().enumerate() {
        let windows = || rounds.iter().map(move |round| &round[at]);
        let mut of = Map::new();
        put(&mut of, "rate_rps", Summary::of(windows().map(Window::all_rate)));
        for kind in Kind::ALL.into_iter().filter(|kind| settings.load.mix.share(*kind) > 0.0) {
            let name = kind.name();
            let rates = windows().map(|window| window.rate(kind));
            put(&mut of, &format!("{name}_rate_rps"), Summary::of(rates));
            let p50 = windows().filter_map(|window| window.p50_ns(kind));
            put(&mut of, &format!("{name}_latency_p50_ns"), Summary::of(p50));
            let p99 = windows().filter_map(|window| window.p99_ns(kind));
            put(&mut of, &format!("{name}_latency_p99_ns"), Summary::of(p99));
        }
        result.insert(workload.name().into(), of.into());
    }
    let compare = Compare { settings, rounds };
    let get = Kind::Get;
    let of = |f: fn(&Window, Kind) -> Option<f64>| move |window: &Window| f(window, get);
    let (workers, dispatch, plain) = (Workload::Workers, Workload::Dispatch, Workload::Plain);
    let ratio = compare.ratio(workers, dispatch, of(Window::p99_ns));
    put(&mut result, "get_p99_workers_over_dispatch", ratio);
    let ratio = compare.ratio(workers, dispatch, of(Window::p50_ns));
    put(&mut result, "get_p50_workers_over_dispatch", ratio);
    let ratio = compare.ratio(workers, plain, of(Window::p50_ns));
    put(&mut result, "get_p50_workers_over_plain", ratio);
    let ratio = compare.ratio(workers, plain, |window| Some(window.rate(get)));
    put(&mut result, "get_rate_workers_over_plain", ratio);
    result.into()
}

/// Comparisons within rounds.
struct Compare<'a> {
    settings: &'a Settings,
    rounds: &'a [Vec<Window>],
}

impl Compare<'_> {
    /// `None` if one of the two was not measured.
    fn ratio(
        &self,
        of: Workload,
        to: Workload,
        value: impl Fn(&Window) -> Option<f64>,
    ) -> Option<Summary> {
        let place = |wanted| self.settings.workloads.iter().position(|one| *one == wanted);
        let (of, to) = (place(of)?, place(to)?);
        let pairs =
            self.rounds.iter().filter_map(|round| Some((value(&round[of])?, value(&round[to])?)));
        Some(Ratio::of(pairs)?.per_pair)
    }
}

/// A quantity: its median, range and interval.
fn put(object: &mut Map<String, Value>, name: &str, summary: Option<Summary>) {
    let Some(s) = summary else { return };
    let (low, high) = (s.ci.map(|ci| ci.low), s.ci.map(|ci| ci.high));
    let values = [("", Some(s.median)), ("_min", Some(s.min)), ("_max", Some(s.max))];
    for (end, value) in values.into_iter().chain([("_ci_low", low), ("_ci_high", high)]) {
        object.insert(format!("{name}{end}"), value.into());
    }
}
