//! Session scalability `[eRPC §6.3, Figure 5]` (E76): many nodes, each thread with a session to
//! every other thread, small requests to threads chosen at random.
//!
//! A thread has `in_flight / batch` batches in flight. A batch is `batch` requests to threads drawn
//! for each; after the last of its responses the next batch is sent `[eRPC §6.2]`. So at most
//! `in_flight` requests are in flight, and fewer while batches lack their last response. Every
//! thread is client and server at the same time.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use courser::{Completion, Context, MsgBuf, Nexus, Rpc, SessionId};
use courser_bench::report::Unit;
use courser_sim::SetupError;
use courser_sim::fabric::Topology;
use courser_sim::observe::Times;
use courser_sim::{Checks, HostId, NicConfig, Rng, World, WorldConfig};
use serde::Serialize;

use super::stopwatch::{Stopwatch, peak_rss_bytes};
use crate::declare::column::Column;
use crate::declare::parameter::{bytes, count, flag, name, parameters, time};
use crate::declare::points::{self, Better, Figure, Paper, Stated, Tolerance};
use crate::declare::seeds::Row;
use crate::declare::special::{Results, Special};
use crate::declare::text::{counted, ns};
use crate::declare::{Experiment, Observer, Recorded, Simulation, Table};
use crate::picture::{Axis, Chart, Style};
use crate::scenario::app::{self, SharedTally};
use crate::scenario::{
    Cpu, Latency, MAX_HOSTS, MAX_TIME_NS, ScenarioError, Traffic, check, observed, per_second,
    uncontrolled,
};

pub(crate) const EXPERIMENT: Experiment<Sessions, TimedCalls> = Experiment {
    name: "e76",
    aliases: &["datacenter"],
    about: "Latency and rate of small calls between nodes that all call each other [eRPC §6.3]",
    run: Simulation::One(simulate),
    network: Some(Sessions::topology),
    columns: COLUMNS,
    caption: |s, _| {
        format!(
            "{} nodes, {} threads each, {} requests in flight in batches of {}, {} CPUs, {} of \
             virtual time",
            s.nodes,
            s.threads,
            s.in_flight,
            s.batch,
            s.cpu.name(),
            ns(s.time_ns),
        )
    },
    table: Table::Beside("paper"),
    picture,
    recorded: &[RATE, SESSIONS],
    special: Special { results: Results::Unseeded, ..Special::NONE },
};

const RATE: Recorded<Sessions, TimedCalls> = Recorded {
    id: "E73",
    results: include_str!("../../recorded/E73.json"),
    title: "Rate of small calls by batch",
    source: "eRPC section 6.2, figure 4",
    model: "11 nodes of the paper's CX4 cluster with one thread each, client and server at once; \
        60 requests of 32 B in flight in batches to threads drawn at random. Each thread calls \
        at this rate and serves as many. No congestion control; the paper has 5.44 M/s without. \
        The CPU table erpc is set to that rate, so that the rate is no result of ours; courser \
        is from counted instructions, without any gain of sending or receiving in bursts.",
    axis: points::Axis { label: "requests of a batch", unit: Unit::Count, log: false },
    x: |s, _| s.batch.into(),
    series: |s, _| s.series(),
    only: &["calls per second and thread", "latency p50", "latency p99"],
    runs: |size| {
        let of = |cpu, batch| Sessions {
            nodes: 11,
            // The largest multiple of the batch up to the paper's 60.
            in_flight: 60 / batch * batch,
            batch,
            cpu,
            time_ns: size.pick(500_000, 10_000_000),
            ..Sessions::default()
        };
        [Cpu::Erpc, Cpu::Courser].iter().flat_map(|&c| [1, 3, 5, 11].map(|b| of(c, b))).collect()
    },
    more: |_, _| {},
    paper: &[Paper::new("calls per second and thread", ERPC, Some(3.0), Stated::Value(5.44e6))
        .because(
            "Table erpc makes the paper's rate with a frame for each packet. Courser puts \
             packets that leave together for the same node into one frame, and pays for fewer \
             frames: 60 requests are in flight to 10 nodes.",
        )],
};

/// The series with the costs that are set to the paper's rate.
const ERPC: &str = "CPU erpc";

/// The series with the calibrated table of CPU costs.
const MEASURED: &str = "CPU measured";

const SESSIONS: Recorded<Sessions, TimedCalls> = Recorded {
    id: "E76",
    results: include_str!("../../recorded/E76.json"),
    title: "Many nodes that all talk to each other",
    source: "eRPC section 6.3, figure 5",
    model: "100 nodes of the paper's CX4 cluster in five racks, each thread with a session to \
        every other one (short runs: 20 nodes), 60 requests of 32 B in flight in batches of \
        three. 198 sessions a node with one thread, 796 with two; the paper's ten threads and \
        19,980 sessions are not simulated, and its bounds of the latency's p99.99 and of packets \
        sent again are those of ten threads. The CPU table measured is calibrated on a machine with \
        shared memory, erpc is set to the paper's rate, courser is from counted instructions. No \
        congestion control, no caches, an ideal NIC.",
    axis: points::Axis { label: "threads of a node", unit: Unit::Count, log: false },
    x: |s, _| s.threads.into(),
    series: |s, _| s.series(),
    only: &[],
    runs: |size| {
        let of = |(cpu, threads)| Sessions {
            nodes: size.pick(20, 100),
            threads,
            cpu,
            time_ns: size.pick(500_000, if threads == 1 { 10_000_000 } else { 3_000_000 }),
            ..Sessions::default()
        };
        let measured_and_erpc = [Cpu::Measured, Cpu::Erpc].map(|cpu| [(cpu, 1), (cpu, 2)]);
        measured_and_erpc.concat().into_iter().chain([(Cpu::Courser, 1)]).map(of).collect()
    },
    more: |_, _| {},
    paper: &[
        Paper::new("latency p50", MEASURED, Some(1.0), Stated::Value(12_700.0)).because(
            "The thread is the bottleneck: latency is 54 requests over the rate. The table \
             is of a faster CPU than the paper's, without the driver of a NIC.",
        ),
        Paper::new("latency p99.99", MEASURED, None, Stated::AtMost(700_000.0)),
        Paper::new(RESENT, MEASURED, None, Stated::AtMost(1_700.0)),
        Paper::new("latency p50", ERPC, Some(1.0), Stated::Value(12_700.0)).because(
            "The thread is the bottleneck: latency is 54 requests over the rate. The \
             paper's is with congestion control (9 %), and caches that 198 sessions share; \
             its idle round trips are longer too (6 us between racks, 4.2 us here).",
        ),
        Paper::new("latency p99.99", ERPC, None, Stated::AtMost(700_000.0)),
        Paper::new(RESENT, ERPC, None, Stated::AtMost(1_700.0)),
    ],
};

const RESENT: &str = "packets sent again per node and second";

/// Tolerance of values that depend on the order of events.
const LOOSE: Tolerance = Tolerance::relative(0.02);

type Col = Column<Sessions, TimedCalls>;

const COLUMNS: &[Col] = &[
    Col::text("nodes", |s, _| s.nodes.to_string()),
    Col::figure("latency p50", Unit::Time, |_, o| Some(o.calls.latency.p50_ns as f64))
        .beside(|_, _| "12.7 µs at 1 thread".to_owned())
        .recorded("latency p50", LOOSE)
        .drawn(Figure::Linear),
    Col::figure("latency p99", Unit::Time, |_, o| Some(o.calls.latency.p99_ns as f64))
        .recorded("latency p99", Tolerance::relative(0.05)),
    Col::figure("latency p99.9", Unit::Time, |_, o| Some(o.calls.latency.p99_9_ns as f64)),
    Col::figure("latency p99.99", Unit::Time, |_, o| Some(o.calls.latency.p99_99_ns as f64))
        .beside(|_, _| "below 700 µs at 10 threads".to_owned())
        .recorded("latency p99.99", Tolerance::relative(0.1)),
    Col::figure("calls made per node", Unit::PerSecond, |_, o| {
        Some(o.calls.rate_per_node_rps as f64)
    })
    .beside(|_, _| "12.3 M/s at 10 threads".to_owned())
    .recorded_as(points::quantity("calls per second and thread", Unit::PerSecond, LOOSE), |s, o| {
        Some(o.calls.rate_per_node_rps as f64 / f64::from(s.threads))
    })
    .better(Better::Higher)
    .drawn(Figure::Linear),
    Col::figure("sent per node, on the wire", Unit::Bits, |_, o| {
        Some(o.calls.wire_per_node_bps as f64)
    })
    .beside(|_, _| "18.1 Gbit/s at 10 threads".to_owned())
    .recorded("sent per node", LOOSE),
    Col::figure("retransmissions per node", Unit::PerSecond, |_, o| {
        Some(o.calls.retransmitted_per_node_per_s as f64)
    })
    .beside(|_, _| "below 1,700 /s; seen above 2 threads".to_owned())
    .recorded(RESENT, Tolerance::relative(0.1).or_absolute(10.0))
    .better(Better::Lower),
    Col::figure("datagrams lost", Unit::Count, |_, o| Some(o.calls.traffic.drops_total() as f64)),
    Col::figure("sessions per node", Unit::Count, |_, o| Some(o.calls.sessions_per_node as f64))
        .beside(|_, _| "19,980 at 10 threads".to_owned()),
    Col::figure("deliveries", Unit::Count, |_, o| Some(o.calls.traffic.datagrams_delivered as f64))
        .alone(),
    Col::figure("time of the simulation", Unit::Time, |_, o| Some(o.wall_s * 1e9)).alone(),
    Col::figure("CPU time of it", Unit::Time, |_, o| Some(o.cpu_s * 1e9)).alone(),
    Col::figure("deliveries per second", Unit::PerSecond, |_, o| Some(o.deliveries_per_wall_s))
        .alone(),
    Col::figure("time before the measurement", Unit::Time, |_, o| Some(o.prepare_wall_s * 1e9))
        .alone(),
    Col::figure("memory, MiB", Unit::Count, |_, o| Some((o.peak_rss_bytes? >> 20) as f64)).alone(),
];

/// The latency at four percentiles.
fn picture(rows: &[Row<Sessions, TimedCalls>]) -> Chart {
    let latency = Axis::linear("latency", Unit::Time);
    let Some((settings, seen)) = rows.first() else { return Chart::bars("", latency) };
    let threads = counted(settings.threads, "thread");
    let title = format!("Calls between {} nodes with {threads} each", settings.nodes);
    let mut chart = Chart::bars(title, latency);
    let l = &seen.calls.latency;
    let percentiles =
        [("p50", l.p50_ns), ("p99", l.p99_ns), ("p99.9", l.p99_9_ns), ("p99.99", l.p99_99_ns)];
    let name = format!("simulated, {} CPUs", settings.cpu.name());
    for (row, ns) in percentiles {
        chart.bar(Style::Main, &name, row, ns as f64);
    }
    if settings.cpu == Cpu::Erpc {
        let stated = EXPERIMENT.stated("latency p50", "CPU erpc");
        let same =
            stated.into_iter().filter(|(threads, _)| *threads == f64::from(settings.threads));
        let row = chart.row("p50");
        chart.line(Style::Main, name).add_paper("the paper", same.map(|(_, ns)| (row, ns)));
    }
    chart
}

/// Message memory of an endpoint, bytes; allocated on use.
const MEMORY: usize = 64 << 20;

parameters! {
    /// Settings of the experiment. The defaults are those of `[eRPC §6.3]` at one thread a node,
    /// without congestion control.
    #[derive(Copy, Eq)]
    pub struct Sessions {
        /// Decides all random choices.
        seed: u64 = 1, count(0..=u64::MAX);
        /// Nodes, in five racks
        nodes: u32 = 100, count(2..=MAX_HOSTS as u64).option("nodes");
        /// Threads of each node, with one CPU each
        threads: u32 = 1, count(1..=16).option("threads");
        /// Requests in flight of each thread
        in_flight: u32 = 60, count(1..=1_024).option("in-flight");
        /// Requests of a batch
        batch: u32 = 3, count(1..=64).option("batch");
        /// Bytes of a request and of its response
        request_bytes: usize = 32, bytes(1..=1_024);
        /// Credits of each session
        credits: u32 = 32, count(1..=65_535);
        /// Model of CPU costs
        cpu: Cpu = Cpu::Erpc, name::<Cpu>().option("cpu");
        /// Record every executed request to detect a second execution
        at_most_once: bool = false, flag().option("at-most-once");
        /// Virtual time before the measurement
        warm_up_ns: u64 = 1_000_000, time(0..=MAX_TIME_NS).option("warm-up");
        /// Virtual time of the measurement
        time_ns: u64 = 10_000_000, time(1..=MAX_TIME_NS).option("time");
    }
}

impl Sessions {
    fn check(&self) -> Result<(), ScenarioError> {
        let all = self.nodes * self.threads;
        check(all <= MAX_HOSTS, "nodes * threads", all, "at most 1,000")?;
        let whole = self.in_flight.is_multiple_of(self.batch);
        check(whole, "in_flight", self.in_flight, "1 to 1,024 and a multiple of the batch")
    }

    fn series(&self) -> String {
        format!("CPU {}", self.cpu.name())
    }

    fn topology(&self) -> Topology {
        Topology::cx4(self.nodes)
    }

    fn config(&self) -> WorldConfig {
        let mut config = uncontrolled(self.seed, self.topology());
        config.costs = self.cpu.costs();
        config.checks = Checks { at_most_once: self.at_most_once, ..Checks::default() };
        // As in the paper, every session may have all its credits [eRPC §4.3.1].
        let sessions = 2 * (self.nodes * self.threads - 1) as usize;
        let descriptors = sessions * self.credits as usize;
        config.nic.rx_queue = descriptors.max(NicConfig::default().rx_queue);
        config.nexus.credits = Some(self.credits);
        config.nexus.memory_limit = MEMORY;
        config
    }
}

/// Calls of the measured time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Calls {
    /// From call to completion function, including queueing at the caller's thread.
    pub latency: Latency,
    /// Responses received by a node, per second; it answers as many requests of others.
    pub rate_per_node_rps: u64,
    /// Bits sent by a node on the wire, per second.
    pub wire_per_node_bps: u64,
    /// Packets retransmitted by a node, per second, stored responses included.
    pub retransmitted_per_node_per_s: u64,
    /// Sessions of a node, both roles.
    pub sessions_per_node: u64,
    /// Virtual time until all sessions were connected, ns.
    pub connect_ns: u64,
    /// All counters.
    pub traffic: Traffic,
    /// A hash over all events; 16 hexadecimal digits in JSON.
    #[serde(serialize_with = "crate::scenario::hex")]
    pub digest: u64,
}

/// Calls, and the time and memory of the simulation.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct TimedCalls {
    #[serde(flatten)]
    calls: Calls,
    /// Real time of the measured part, s.
    wall_s: f64,
    /// CPU time of the measured part, s; lower than the real time if other programs used the core.
    cpu_s: f64,
    /// Datagrams that reached a receive queue, per second of real time.
    deliveries_per_wall_s: f64,
    /// Datagrams that reached a receive queue, per second of CPU time.
    deliveries_per_cpu_s: f64,
    /// Peak resident memory of the process, bytes; `null` if unknown.
    peak_rss_bytes: Option<u64>,
    /// Time before the measured part, s.
    prepare_wall_s: f64,
}

/// Runs it.
///
/// # Errors
/// A setting is out of range, sessions were not connected, or a call has failed.
pub fn run(settings: &Sessions) -> Result<Calls, ScenarioError> {
    Ok(EXPERIMENT.once(settings, None)?.calls)
}

fn simulate(settings: &Sessions, observer: Observer) -> Result<TimedCalls, ScenarioError> {
    let begin = Stopwatch::start();
    let mut running = prepare(settings, observer)?;
    let (prepare_wall_s, _) = begin.elapsed_s();
    let begin = Stopwatch::start();
    let calls = running.measure()?;
    let (wall_s, cpu_s) = begin.elapsed_s();
    let delivered = calls.traffic.datagrams_delivered as f64;
    Ok(TimedCalls {
        calls,
        wall_s,
        cpu_s,
        deliveries_per_wall_s: delivered / wall_s,
        deliveries_per_cpu_s: delivered / cpu_s,
        peak_rss_bytes: peak_rss_bytes(),
        prepare_wall_s,
    })
}

/// The client side of a thread.
struct Caller {
    sessions: Vec<SessionId>,
    batch: u32,
    /// When each request was made, by its tag.
    starts: Vec<u64>,
    /// Responses missing in each batch.
    left: Vec<u32>,
    spare: Vec<MsgBuf>,
    rng: Rng,
    tally: SharedTally,
}

impl Caller {
    /// Sends the requests of a batch.
    fn issue(&mut self, cx: &mut Context<'_>, batch: u32) {
        self.left[batch as usize] = self.batch;
        for tag in batch * self.batch..(batch + 1) * self.batch {
            let Some(&session) = self.rng.pick(&self.sessions) else { return };
            let Some(request) = self.spare.pop() else { return };
            self.starts[tag as usize] = cx.now_ns();
            if let Err(rejected) = cx.request(session, app::ECHO, request).tag(tag.into()).send() {
                self.tally.borrow_mut().failed(&rejected.reason);
            }
        }
    }

    fn ended(&mut self, cx: &mut Context<'_>, tag: u64, done: Completion<'_>) {
        let after_ns = cx.now_ns() - self.starts[tag as usize];
        self.tally.borrow_mut().ended(&done.result, after_ns);
        self.spare.push(done.request);
        let batch = tag as u32 / self.batch;
        let left = &mut self.left[batch as usize];
        *left -= 1;
        if *left == 0 {
            self.issue(cx, batch);
        }
    }

    fn issue_all(&mut self, cx: &mut Context<'_>) {
        for batch in 0..self.left.len() as u32 {
            self.issue(cx, batch);
        }
    }
}

type Shared = Rc<RefCell<Caller>>;

/// One thread: a server, and a client with a session to each of `others`.
fn thread(
    nexus: &Nexus,
    others: &[String],
    settings: &Sessions,
    rng: Rng,
    tally: SharedTally,
) -> Result<(Rpc, Shared), SetupError> {
    let mut rpc = nexus.endpoint()?;
    app::answer(&mut rpc);
    let sessions = others.iter().map(|uri| rpc.connect(uri)).collect::<Result<Vec<_>, _>>()?;
    let count = settings.in_flight as usize;
    let spare = (0..count).map(|_| app::message(&rpc, settings.request_bytes));
    let caller = Rc::new(RefCell::new(Caller {
        sessions,
        batch: settings.batch,
        starts: vec![0; count],
        left: vec![0; count / settings.batch as usize],
        spare: spare.collect::<Result<_, _>>()?,
        rng,
        tally,
    }));
    let own = caller.clone();
    rpc.on_completion(move |cx, tag, done| own.borrow_mut().ended(cx, tag, done));
    Ok((rpc, caller))
}

/// The experiment between its preparation and its measured time.
struct Running {
    world: World,
    settings: Sessions,
    tally: SharedTally,
    callers: Vec<(HostId, usize, Shared)>,
    connect_ns: u64,
}

/// Builds the world, connects all sessions by their handshakes, and runs the warm-up.
fn prepare(settings: &Sessions, observer: Observer) -> Result<Running, ScenarioError> {
    settings.check()?;
    let mut world = observed(World::new(settings.config())?, observer);
    let tally = SharedTally::default();
    let made = Rc::new(RefCell::new(Vec::new()));
    for host in world.hosts() {
        start_node(&mut world, host, settings, &tally, &made)?;
    }
    app::connect_all(&mut world)?;
    let connect_ns = world.now_ns();
    let callers = made.take();
    let mut running = Running { world, settings: *settings, tally, callers, connect_ns };
    for (host, endpoint, caller) in &running.callers {
        if let Some(rpc) = running.world.endpoint(*host, *endpoint) {
            caller.borrow_mut().issue_all(&mut rpc.context());
        }
    }
    running.world.run_for(Duration::from_nanos(settings.warm_up_ns));
    Ok(running)
}

type Made = Rc<RefCell<Vec<(HostId, usize, Shared)>>>;

fn start_node(
    world: &mut World,
    host: HostId,
    settings: &Sessions,
    tally: &SharedTally,
    made: &Made,
) -> Result<(), ScenarioError> {
    let threads = settings.threads as usize;
    let uris: Vec<Vec<String>> = world
        .hosts()
        .map(|of| (0..threads).map(|n| format!("{}/{n}", world.uri(of))).collect())
        .collect();
    let (settings, tally, made) = (*settings, tally.clone(), made.clone());
    let setup = move |nexus: &Nexus| -> Result<Vec<Rpc>, SetupError> {
        let mut rpcs = Vec::with_capacity(threads);
        for own in 0..threads {
            let others = uris.iter().enumerate().flat_map(|(of, uris)| {
                let is_own = move |n: usize| of == host.0 as usize && n == own;
                uris.iter().enumerate().filter(move |&(n, _)| !is_own(n)).map(|(_, uri)| uri)
            });
            let others: Vec<String> = others.cloned().collect();
            let rng = Rng::stream(settings.seed, u64::from(host.0) << 8 | own as u64);
            let (rpc, caller) = thread(nexus, &others, &settings, rng, tally.clone())?;
            made.borrow_mut().push((host, own, caller));
            rpcs.push(rpc);
        }
        Ok(rpcs)
    };
    Ok(world.start(host, setup)?)
}

impl Running {
    /// Runs the measured time.
    fn measure(&mut self) -> Result<Calls, ScenarioError> {
        let before = Traffic::of(&mut self.world);
        self.tally.borrow_mut().latency = Times::default();
        self.world.run_for(Duration::from_nanos(self.settings.time_ns));
        let traffic = Traffic::of(&mut self.world).since(&before);
        let tally = self.tally.borrow();
        tally.check()?;
        let (nodes, time_ns) = (u64::from(self.settings.nodes), self.settings.time_ns);
        let per_node = |count: u64| per_second(count, time_ns) / nodes;
        let threads = u64::from(self.settings.threads);
        Ok(Calls {
            latency: Latency::from(&tally.latency),
            rate_per_node_rps: per_node(traffic.responses),
            wire_per_node_bps: per_node(traffic.wire_bytes_sent * 8),
            retransmitted_per_node_per_s: per_node(
                traffic.retransmitted + traffic.responses_resent,
            ),
            sessions_per_node: 2 * threads * (nodes * threads - 1),
            connect_ns: self.connect_ns,
            traffic,
            digest: self.world.digest(),
        })
    }
}
