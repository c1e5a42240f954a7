//! Completion times of web-search flows over a lossy spine `[MELO §4.1.2, Figure 5b]` (M24).
//!
//! The network is [`Topology::melo`], or fewer of its leaves. Each host of the first half of the
//! leaves sends to the host at its position in the other half, so that all flows cross the spines,
//! one of which loses packets in either direction. Flows have the sizes of the DCTCP paper's web
//! search, arrive independently of each other, and are answered with 32 bytes; a flow's completion
//! time is that from the call to its completion.
//!
//! **A flow is a request.** Each sender has `lanes` endpoints, with a session each; a lane's
//! packets take one path. A flow uses a free lane, drawn at random, or where none is free one of
//! those with the fewest flows, whose credits it then shares. So, as in the paper, each flow
//! usually has a path and a window of its own, and flows delay each other only in queues.
//!
//! **Load** is the share of a sender's link used by its data packets, with headers and without
//! retransmissions. The flows and their arrival times are the same for all schemes. The first tenth
//! finds the network idle and is not counted; the rest are, until the last is complete.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use courser::{Completion, Context, Control, Nexus, Recovery, Rpc, SessionId};
use serde::Serialize;

use super::loss;
use crate::scenario::app::{self, SharedTally};
use crate::scenario::path::{self, DATA, MAX_FRAME, Part, Path, RATE_BPS};
use crate::scenario::{Cpu, ScenarioError, Traffic, control_name, control_names, controlled};
use crate::scenario::{check, check_loss, check_rto, observed, run_pairs, share, wire_bytes};
use courser_sim::SetupError;
use courser_sim::fabric::Topology;
use courser_sim::observe::{DropReason, Tap};
use courser_sim::{Checks, HostId, Rng, World, WorldConfig, web_search};

/// Hosts of a leaf.
const LEAF: u32 = 10;

/// The base round trip of the network, ns.
const RTT_NS: u64 = 16_000;

/// Bytes of message memory of a flow at most, with its headers.
const FLOW_MEMORY: usize = 40 << 20;

/// Earliest time of the first flow: all sessions are connected by then, ns.
const LEAD_NS: u64 = 1_000_000;

/// A run that has not completed all flows by then has failed, ns of virtual time.
const LIMIT_NS: u64 = 60_000_000_000;

/// Improvement of MELO's 99th percentile over go-back-N's, from the worst load to the best `[MELO
/// §4.1.2]`.
pub const PAPER: (f64, f64) = (2.11, 3.11);

/// Settings of the experiment. The defaults are those of the paper, except for the number of hosts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Settings {
    /// Decides all random choices.
    pub seed: u64,
    /// Schemes of recovery: 1 or more. Default all.
    pub schemes: Vec<Recovery>,
    /// Congestion controls, each with every scheme: 1 or more. Default DCQCN, as in the paper.
    #[serde(serialize_with = "control_names")]
    pub controls: Vec<Control>,
    /// Loads, per million of a sender's link: 1 or more, of 1 % to 95 %. Default 10 % to 90 %.
    pub load_ppm: Vec<u32>,
    /// Hosts: 20 to 320, a multiple of 20. Default 40, four leaves; the paper has 320.
    pub hosts: u32,
    /// Flows that are counted at each load: 10 to 100,000. Default 1,000. Flows in flight are in
    /// memory, 1.7 MB each on average.
    pub flows: u32,
    /// Endpoints of a sender, with a session each: 1 to 64. Default 16.
    pub lanes: u32,
    /// Probability that spine 0 loses a packet, per million: at most 500,000. Default 1 %.
    pub loss_ppm: u32,
    /// The retransmission timeout of go-back-N and MELO, ns: 1 us to 1 s. Default
    /// [`loss::GO_BACK_N_RTO_NS`].
    pub rto_ns: u64,
    /// Credits of a session in thousandths of the bandwidth-delay product: 100 to 100,000. Default
    /// 1,000.
    pub window_permille: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            seed: 1,
            schemes: Recovery::ALL.to_vec(),
            controls: vec![Control::Dcqcn],
            load_ppm: (1..10).map(|tenths| tenths * 100_000).collect(),
            hosts: 40,
            flows: 1_000,
            lanes: 16,
            loss_ppm: 10_000,
            rto_ns: loss::GO_BACK_N_RTO_NS,
            window_permille: 1_000,
        }
    }
}

impl Settings {
    fn check(&self) -> Result<(), ScenarioError> {
        check(!self.schemes.is_empty(), "schemes", 0_u64, "one or more")?;
        check(!self.controls.is_empty(), "controls", 0_u64, "one or more")?;
        check(!self.load_ppm.is_empty(), "load", 0_u64, "one or more")?;
        for &ppm in &self.load_ppm {
            check((10_000..=950_000).contains(&ppm), "load_ppm", ppm, "10,000 to 950,000")?;
        }
        let hosts = self.hosts;
        let whole = (20..=320).contains(&hosts) && hosts.is_multiple_of(2 * LEAF);
        check(whole, "hosts", hosts, "20 to 320, a multiple of 20")?;
        check((10..=100_000).contains(&self.flows), "flows", self.flows, "10 to 100,000")?;
        check((1..=64).contains(&self.lanes), "lanes", self.lanes, "1 to 64")?;
        check_loss(self.loss_ppm)?;
        check_rto(self.rto_ns)?;
        let window = self.window_permille;
        check((100..=100_000).contains(&window), "window_permille", window, "100 to 100,000")
    }

    /// The network: the number of leaves follows from the hosts, with all four spines.
    pub fn topology(&self) -> Topology {
        Topology::melo_part(self.hosts / LEAF)
    }

    /// Credits of a session, C.
    pub fn credits(&self) -> u32 {
        let path = Path { part: Part::TwoLeaves, rtt_ns: RTT_NS };
        let packets = u64::from(path.bdp_packets()) * u64::from(self.window_permille);
        u32::try_from(packets.div_ceil(1_000)).unwrap_or(u32::MAX).clamp(1, 65_535)
    }

    fn senders(&self) -> u32 {
        self.hosts / 2
    }
}

/// One scheme at one load.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Point {
    /// The scheme.
    #[serde(serialize_with = "loss::name")]
    pub scheme: Recovery,
    /// The congestion control.
    #[serde(serialize_with = "control_name")]
    pub control: Control,
    /// Share of a sender's link used by the flows.
    pub load: f64,
    /// Number of counted flows.
    pub flows: u64,
    /// Their median time, ns.
    pub fct_p50_ns: u64,
    /// 99th percentile, ns.
    pub fct_p99_ns: u64,
    /// The longest, ns.
    pub fct_max_ns: u64,
    /// Mean, ns.
    pub fct_mean_ns: u64,
    /// Flows without a free lane, which shared one.
    pub shared: u64,
    /// Datagrams lost by the spine.
    pub lost: u64,
    /// Datagrams dropped by switches for lack of buffer.
    pub overflows: u64,
    /// Packets retransmitted by clients.
    pub retransmitted: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// A hash over all events; 16 hexadecimal digits in JSON.
    #[serde(serialize_with = "crate::scenario::hex")]
    pub digest: u64,
}

/// Runs it. `progress` is called with the number of finished runs and their total.
///
/// # Errors
/// A setting is out of range, sessions were not connected, or a call has failed.
pub fn run(
    settings: &Settings,
    progress: impl FnMut(usize, usize),
) -> Result<Vec<Point>, ScenarioError> {
    settings.check()?;
    let each = |&control| settings.schemes.iter().map(move |&scheme| (control, scheme));
    let kinds: Vec<Kind> = settings.controls.iter().flat_map(each).collect();
    run_pairs(&kinds, &settings.load_ppm, progress, |kind, load_ppm| {
        point(settings, kind, load_ppm, None)
    })
}

/// A control and a scheme.
pub type Kind = (Control, Recovery);

/// A future flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Flow {
    at_ns: u64,
    sender: u32,
    bytes: u64,
}

/// All flows at a load, in the order of time: the same for every scheme.
fn flows(settings: &Settings, load_ppm: u32) -> Vec<Flow> {
    let mut rng = Rng::stream(settings.seed, u64::from(load_ppm));
    let wire = web_search::mean_bytes() as f64 * wire_bytes(DATA) as f64 / DATA as f64;
    let rate_bps = RATE_BPS as f64 * f64::from(settings.senders()) * share(load_ppm);
    let mean_ns = wire * 8e9 / rate_bps;
    let count = settings.flows + settings.flows / 10;
    let mut at_ns = 0.0;
    let mut next = |_| {
        at_ns += web_search::gap_ns(&mut rng, mean_ns);
        let sender = rng.below(settings.senders().into()) as u32;
        Flow { at_ns: at_ns as u64, sender, bytes: web_search::draw(&mut rng) }
    };
    (0..count).map(&mut next).collect()
}

/// The application's state of its flows.
#[derive(Debug, Default)]
struct Board {
    /// Flows in flight, by lane, sender by sender.
    under_way: Vec<u32>,
    ended: u64,
    shared: u64,
    times_ns: Vec<u64>,
    tally: SharedTally,
}

type SharedBoard = Rc<RefCell<Board>>;

fn config(settings: &Settings, (control, scheme): Kind) -> WorldConfig {
    let mut config = controlled(settings.seed, settings.topology(), control, RATE_BPS);
    config.costs = Cpu::None.costs();
    config.checks = Checks { at_most_once: false, ..Checks::default() };
    config.nic.max_frame = MAX_FRAME;
    let credits = settings.credits();
    // Descriptors for all packets that can arrive: losses occur only in the network. A session gets
    // half of the remaining ones.
    let in_flight = settings.lanes as usize * credits as usize;
    config.nic.rx_queue = config.nic.rx_queue.max(2 * in_flight);
    let nexus = &mut config.nexus;
    nexus.credits = Some(credits);
    nexus.recovery = scheme;
    nexus.slots = 32;
    nexus.max_msg_size = web_search::MAX_BYTES as u32;
    nexus.memory_limit = 64 * FLOW_MEMORY;
    nexus.max_held_per_peer = 64 * FLOW_MEMORY;
    if scheme != Recovery::Selective {
        let rto = Duration::from_nanos(settings.rto_ns);
        nexus.rto = (rto, rto);
    }
    config
}

/// Runs one control and scheme at one load.
///
/// # Errors
/// As [`run`].
pub fn point(
    settings: &Settings,
    kind: Kind,
    load_ppm: u32,
    tap: Option<Box<dyn Tap>>,
) -> Result<Point, ScenarioError> {
    settings.check()?;
    let mut world = observed(World::new(config(settings, kind))?, tap);
    let flows = flows(settings, load_ppm);
    let board = start(&mut world, settings)?;
    path::lose_at(&mut world, settings.hosts / LEAF, settings.loss_ppm);
    let uncounted = flows.len() - settings.flows as usize;
    let mut rng = Rng::stream(settings.seed, u64::from(load_ppm) | 1 << 32);
    let begin_ns = world.now_ns() + LEAD_NS;
    for (number, flow) in flows.iter().enumerate() {
        world.run_to(begin_ns + flow.at_ns);
        begin(&mut world, settings, flow, number >= uncounted, &board, &mut rng)?;
    }
    let limit = Duration::from_nanos(LIMIT_NS);
    let all = flows.len() as u64;
    world.run_until(limit, |_| board.borrow().ended == all);
    let board = board.borrow();
    board.tally.borrow().check()?;
    if board.ended < all {
        let (count, first) = (all - board.ended, "not complete within a minute".to_owned());
        return Err(ScenarioError::Calls { count, first });
    }
    Ok(summary(&mut world, kind, load_ppm, &board))
}

fn summary(world: &mut World, (control, scheme): Kind, load_ppm: u32, board: &Board) -> Point {
    let traffic = Traffic::of(world);
    let mut times = board.times_ns.clone();
    times.sort_unstable();
    // The smallest time that `percent` of all do not exceed.
    let at = |percent: usize| {
        let rank = (times.len() * percent).div_ceil(100).saturating_sub(1);
        times.get(rank).copied().unwrap_or(0)
    };
    let sum: u128 = times.iter().map(|&ns| u128::from(ns)).sum();
    Point {
        scheme,
        control,
        load: share(load_ppm),
        flows: times.len() as u64,
        fct_p50_ns: at(50),
        fct_p99_ns: at(99),
        fct_max_ns: at(100),
        fct_mean_ns: (sum / times.len().max(1) as u128) as u64,
        shared: board.shared,
        lost: traffic.dropped(DropReason::Loss),
        overflows: traffic.dropped(DropReason::BufferFull),
        retransmitted: traffic.retransmitted,
        timeouts: traffic.rollbacks,
        digest: world.digest(),
    }
}

/// Receivers, and senders with connected sessions.
fn start(world: &mut World, settings: &Settings) -> Result<SharedBoard, ScenarioError> {
    let (senders, lanes) = (settings.senders(), settings.lanes);
    let board = SharedBoard::default();
    board.borrow_mut().under_way = vec![0; (senders * lanes) as usize];
    for receiver in senders..settings.hosts {
        world.start(HostId(receiver), app::server)?;
    }
    for sender in 0..senders {
        let uri = world.uri(HostId(senders + sender));
        world.start(HostId(sender), move |nexus: &Nexus| -> Result<Vec<Rpc>, SetupError> {
            let mut endpoints = Vec::with_capacity(lanes as usize);
            for _ in 0..lanes {
                let mut rpc = nexus.endpoint()?;
                rpc.connect(&uri)?;
                endpoints.push(rpc);
            }
            Ok(endpoints)
        })?;
    }
    app::connect_all(world)?;
    Ok(board)
}

/// Starts a flow.
fn begin(
    world: &mut World,
    settings: &Settings,
    flow: &Flow,
    counted: bool,
    board: &SharedBoard,
    rng: &mut Rng,
) -> Result<(), ScenarioError> {
    let first = (flow.sender * settings.lanes) as usize;
    let lane = {
        let mut board = board.borrow_mut();
        let of_sender = &board.under_way[first..first + settings.lanes as usize];
        let fewest = of_sender.iter().min().copied().unwrap_or(0);
        let free = (0..of_sender.len()).filter(|&lane| of_sender[lane] == fewest);
        let free: Vec<_> = free.collect();
        let lane = rng.pick(&free).copied().unwrap_or(0);
        board.under_way[first + lane] += 1;
        board.shared += u64::from(fewest > 0);
        lane
    };
    let refused = |first: String| ScenarioError::Calls { count: 1, first };
    let absent = || refused("a sender is gone".to_owned());
    let rpc = world.endpoint(HostId(flow.sender), lane).ok_or_else(absent)?;
    let session: SessionId = rpc.sessions_from(0).next().ok_or_else(absent)?;
    let message = app::message(rpc, flow.bytes as usize).map_err(|e| refused(e.to_string()))?;
    let start_ns = rpc.context().now_ns();
    let to = Rc::clone(board);
    let done = move |cx: &mut Context<'_>, done: Completion<'_>| {
        let mut board = to.borrow_mut();
        board.under_way[first + lane] -= 1;
        board.ended += 1;
        let time_ns = cx.now_ns() - start_ns;
        board.tally.borrow_mut().ended(&done.result, time_ns);
        if counted {
            board.times_ns.push(time_ns);
        }
    };
    let called = rpc.call(session, app::SINK, message, done);
    called.map(drop).map_err(|e| refused(e.reason.to_string()))
}

#[cfg(test)]
mod tests;
