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
use serde::Serialize;

use super::app::{self, SharedTally};
use super::uncontrolled;
use super::{Cpu, Latency, MAX_HOSTS, ScenarioError, Traffic};
use super::{check, check_time, check_warm_up, observed, per_second};
use courser_sim::SetupError;
use courser_sim::fabric::Topology;
use courser_sim::observe::{Tap, Times};
use courser_sim::{Checks, HostId, NicConfig, Rng, World, WorldConfig};

/// Message memory of an endpoint, bytes; allocated on use.
const MEMORY: usize = 64 << 20;

/// Settings of the experiment. The defaults are those of `[eRPC §6.3]` at one thread a node, without
/// congestion control.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Settings {
    /// Decides all random choices.
    pub seed: u64,
    /// Nodes of the paper's cluster, [`Topology::cx4`]: 2 to 1,000. Default 100.
    pub nodes: u32,
    /// Threads of each: 1 to 16, at most 1,000 altogether. Default 1.
    pub threads: u32,
    /// Requests in flight of a thread: 1 to 1,024, a multiple of `batch`. Default 60.
    pub in_flight: u32,
    /// Requests of a batch, B: 1 to 64. Default 3.
    pub batch: u32,
    /// Bytes of a request and of its response: 1 to 1,024. Default 32.
    pub request_bytes: usize,
    /// Credits of each session, C. Default 32.
    pub credits: u32,
    /// The CPUs. Default: eRPC's.
    pub cpu: Cpu,
    /// True if executed requests are recorded, to find one that is executed twice: 50 bytes each.
    /// Default false.
    pub at_most_once: bool,
    /// Warm-up, ns. Default 1 ms.
    pub warm_up_ns: u64,
    /// Measured time, ns. Default 10 ms.
    pub time_ns: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            seed: 1,
            nodes: 100,
            threads: 1,
            in_flight: 60,
            batch: 3,
            request_bytes: 32,
            credits: 32,
            cpu: Cpu::Erpc,
            at_most_once: false,
            warm_up_ns: 1_000_000,
            time_ns: 10_000_000,
        }
    }
}

impl Settings {
    fn check(&self) -> Result<(), ScenarioError> {
        let (nodes, threads) = (self.nodes, self.threads);
        check((2..=MAX_HOSTS).contains(&nodes), "nodes", nodes, "2 to 1,000")?;
        check((1..=16).contains(&threads), "threads", threads, "1 to 16")?;
        let all = nodes * threads;
        check(all <= MAX_HOSTS, "nodes * threads", all, "at most 1,000")?;
        let (in_flight, batch) = (self.in_flight, self.batch);
        check((1..=64).contains(&batch), "batch", batch, "1 to 64")?;
        let whole = (1..=1_024).contains(&in_flight) && in_flight.is_multiple_of(batch);
        check(whole, "in_flight", in_flight, "1 to 1,024 and a multiple of the batch")?;
        let bytes = self.request_bytes;
        check((1..=1_024).contains(&bytes), "request_bytes", bytes as u64, "1 to 1,024")?;
        let credits = self.credits;
        check((1..=65_535).contains(&credits), "credits", credits, "1 to 65,535")?;
        check_time(self.time_ns)?;
        check_warm_up(self.warm_up_ns)
    }

    /// The network of the experiment.
    pub fn topology(&self) -> Topology {
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

/// Result of the experiment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Outcome {
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
    #[serde(serialize_with = "super::hex")]
    pub digest: u64,
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
    settings: &Settings,
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

/// The experiment between two of its phases, so that each can be timed from outside.
pub struct Running {
    world: World,
    settings: Settings,
    tally: SharedTally,
    callers: Vec<(HostId, usize, Shared)>,
    connect_ns: u64,
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running").field("world", &self.world).finish_non_exhaustive()
    }
}

/// Builds the world, connects all sessions by their handshakes, and runs the warm-up.
///
/// # Errors
/// A setting is out of range, or sessions were not connected.
pub fn prepare(settings: &Settings, tap: Option<Box<dyn Tap>>) -> Result<Running, ScenarioError> {
    settings.check()?;
    let mut world = observed(World::new(settings.config())?, tap);
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
    settings: &Settings,
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
    /// Runs the measured time and returns the result. Can be called again, to continue.
    ///
    /// # Errors
    /// A call has failed.
    pub fn measure(&mut self) -> Result<Outcome, ScenarioError> {
        let before = Traffic::of(&mut self.world);
        self.tally.borrow_mut().latency = Times::default();
        self.world.run_for(Duration::from_nanos(self.settings.time_ns));
        let traffic = Traffic::of(&mut self.world).since(&before);
        let tally = self.tally.borrow();
        tally.check()?;
        let (nodes, time_ns) = (u64::from(self.settings.nodes), self.settings.time_ns);
        let per_node = |count: u64| per_second(count, time_ns) / nodes;
        let threads = u64::from(self.settings.threads);
        Ok(Outcome {
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

    /// Detaches the observer.
    pub fn take_tap(&mut self) -> Option<Box<dyn Tap>> {
        self.world.take_tap()
    }
}

/// Runs it.
///
/// # Errors
/// A setting is out of range, sessions were not connected, or a call has failed.
pub fn run(settings: &Settings, tap: Option<Box<dyn Tap>>) -> Result<Outcome, ScenarioError> {
    prepare(settings, tap)?.measure()
}
