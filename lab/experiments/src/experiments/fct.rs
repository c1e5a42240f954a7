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

mod recorded;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use courser::{Completion, Context, Control, Nexus, Recovery, Rpc, SessionId};
use courser_bench::report::Unit;
use courser_kit::units;
use courser_sim::fabric::Topology;
use courser_sim::observe::DropReason;
use courser_sim::{Checks, HostId, Rng, SetupError, World, WorldConfig, web_search};
use serde::Serialize;
use serde_json::{Value, json};

use super::loss::{self, SCHEMES, control_list, scheme_name};
use crate::declare::column::Column;
use crate::declare::parameter::{Notation, chance, count, name, parameters, time, written};
use crate::declare::points::{self, Better, Figure, Quantity, Tolerance};
use crate::declare::seeds::Row;
use crate::declare::special::{Results, Special};
use crate::declare::text::{ns, percent};
use crate::declare::{Experiment, Simulation, Step, Table};
use crate::picture::{Axis, Chart, Style};
use crate::scenario::app::{self, SharedTally};
use crate::scenario::path::{self, DATA, MAX_FRAME, Part, Path, RATE_BPS};
use crate::scenario::{
    Cpu, ScenarioError, Traffic, check, controlled, run_pairs, share, wire_bytes,
};

pub(crate) const EXPERIMENT: Experiment<WebSearch, FlowTimes> = Experiment {
    name: "fct",
    aliases: &[],
    about: "Completion times of web-search flows over a lossy spine [MELO §4.1.2]",
    run: Simulation::Several(simulate),
    network: None,
    columns: COLUMNS,
    caption,
    table: Table::Columns,
    picture,
    recorded: recorded::ALL,
    special: Special {
        after_help: AFTER_HELP,
        results: Results::Median(|o| o.fct_p99_ns as f64, over_seeds),
        ..Special::NONE
    },
};

const AFTER_HELP: &str = "\
Simulates MELO's network, or a part of it with the same load on each spine: leaves with \
ten hosts at 40 Gbit/s, four spines, 100 Gbit/s between leaf and spine, a round trip of \
16 us. Each host of one half sends to a host of the other half, across leaves. Flow sizes \
are those of web search (8.8 kB to 29 MB, 1.67 MB on average); arrivals are independent. \
Spine 0 drops 1 % of its packets. Switches mark for DCQCN: RED from 100 to 400 kB, up to \
20 %. A flow is one request with credits for one \
bandwidth-delay product. It has its own session unless all lanes of its sender are busy. \
Every scheme gets the same flows at the same times.

Examples:
  courser-lab sim fct                    40 hosts, loads 0.1 to 0.9, 1,000 flows
  courser-lab sim fct --load 0.3,0.6 --flows 5000
  courser-lab sim fct --hosts 320 --flows 4000 --seeds 5 --svg fct.svg
  courser-lab sim fct --scheme go-back-n,default --load 0.5 --json -";

/// Go-back-N on timeouts, and on NACKs.
const SLOW: [Recovery; 2] = [Recovery::GoBackN, Recovery::GoBackNNack];

/// How much better other schemes are.
const BETTER: [&str; 2] = ["times better than go-back-n", "times better than go-back-n-nack"];

/// The series of runs without loss.
const LOSSLESS: &str = "default, no loss";

type Col = Column<WebSearch, FlowTimes>;

const COLUMNS: &[Col] = &[
    Col::text("scheme", |s, o| scheme_name(o.scheme, o.control, &s.controls)),
    Col::text("load", |_, o| format!("{:.2}", o.load)),
    Col::figure("p50", Unit::Time, |_, o| Some(o.fct_p50_ns as f64)),
    Col::figure("p99", Unit::Time, |_, o| Some(o.fct_p99_ns as f64))
        .recorded("99th percentile", Tolerance::relative(0.05))
        .drawn(Figure::Linear),
    Col::figure("better than timeout", Unit::Plain, |_, o| o.better_than[0])
        .digits(2)
        .recorded_as(better(BETTER[0]), |_, o| o.better_than[0].filter(|_| !o.is_slow())),
    Col::figure("better than NACK", Unit::Plain, |_, o| o.better_than[1])
        .digits(2)
        .recorded_as(better(BETTER[1]), |_, o| o.better_than[1].filter(|_| !o.is_slow())),
    Col::figure("lost", Unit::Count, |_, o| Some(o.lost as f64)),
    Col::figure("queue drops", Unit::Count, |_, o| Some(o.overflows as f64)),
    Col::figure("resent", Unit::Count, |_, o| Some(o.retransmitted as f64)),
    Col::figure("RTOs", Unit::Count, |_, o| Some(o.timeouts as f64)),
];

const fn better(name: &'static str) -> Quantity {
    let tolerance = Tolerance::relative(0.05);
    let (better, figure) = (Better::Higher, Figure::Linear);
    Quantity { better, figure, ..points::quantity(name, Unit::Plain, tolerance) }
}

/// Figures over all seeds, in the order of their 99th percentile.
fn over_seeds(all: &[&FlowTimes]) -> Value {
    let [min, max] = [all.first(), all.last()].map(|o| o.map(|o| o.fct_p99_ns));
    let spread = |of: fn(&FlowTimes) -> Option<f64>| {
        let mut times = all.iter().map(|o| of(o)).collect::<Option<Vec<f64>>>()?;
        times.sort_by(f64::total_cmp);
        let last = times.len() - 1;
        Some(json!({ "median": times[last / 2], "min": times[0], "max": times[last] }))
    };
    json!({
        "fct_p99_min_ns": min,
        "fct_p99_max_ns": max,
        "better_than_go_back_n": spread(|o| o.better_than[0]),
        "better_than_go_back_n_nack": spread(|o| o.better_than[1]),
    })
}

fn caption(s: &WebSearch, _: &FlowTimes) -> String {
    let (controls, loss, rto) = (control_list(&s.controls), share(s.loss_ppm), ns(s.rto_ns));
    format!(
        "{} web-search flows at each load, {} hosts, {} lanes of {} credits, control {controls}, \
         spine 0 loses {}, RTO {rto}\n\
         Better: the p99 of go-back-N on timeouts, and on NACKs, over that of the row. In the paper \
         MELO is {} to {} times better than go-back-N on NACKs, with DCQCN.",
        s.flows,
        s.hosts,
        s.lanes,
        s.credits(),
        percent(loss),
        PAPER.0,
        PAPER.1,
    )
}

/// The 99th percentile of completion times by load.
fn picture(rows: &[Row<WebSearch, FlowTimes>]) -> Chart {
    let mut chart = Chart::lines(
        "Web-search flows over a lossy spine: 99th percentile of completion times",
        Axis::linear("load", Unit::Percent),
        Axis::linear("completion time", Unit::Time),
    );
    for (s, o) in rows {
        let line = chart.line(Style::Main, scheme_name(o.scheme, o.control, &s.controls));
        line.points.push((o.load, o.fct_p99_ns as f64));
    }
    // The paper only has MELO's improvement over go-back-N, which gives bounds for MELO.
    for (s, o) in rows.iter().filter(|(_, o)| o.scheme == Recovery::GoBackN) {
        let bounds = [PAPER.0, PAPER.1].map(|n| (o.load, o.fct_p99_ns as f64 / n));
        let line = chart.line(Style::Main, scheme_name(Recovery::Melo, o.control, &s.controls));
        line.add_paper("melo in the paper: 2.11 to 3.11 times better than go-back-n", bounds);
    }
    chart
}

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

static LOAD: Notation = Notation {
    value_name: "SHARE",
    parse: |text| {
        let load = units::chance(text).map(u64::from);
        load.map_err(|_| "write a share of a link: 0.1 or 10%".to_owned())
    },
    show: |ppm| format!("{}%", ppm as f64 / 1e4),
    json: |ppm| json!(ppm),
};

parameters! {
    /// Settings of the experiment. The defaults are those of the paper, except for the number of hosts.
    #[derive(Eq)]
    pub struct WebSearch {
        /// Decides all random choices.
        seed: u64 = 1, count(0..=u64::MAX);
        /// Congestion controls, each with every scheme. The paper has dcqcn
        controls: Vec<Control> = vec![Control::Dcqcn], name::<Control>().option("control");
        /// Schemes: go-back-n, go-back-n-nack, melo, default
        schemes: Vec<Recovery> = Recovery::ALL.to_vec(), written(&SCHEMES).option("scheme");
        /// Loads as shares of the sender's link
        load_ppm: Vec<u32> = (1..10).map(|tenths| tenths * 100_000).collect(),
            written(&LOAD).within(10_000..=950_000).option("load");
        /// Hosts: 20 to 320, a multiple of 20; the paper has 320
        hosts: u32 = 40, count(20..=320).option("hosts");
        /// Measured flows at each load. Flows in flight are in memory, 1.7 MB each on average
        flows: u32 = 1_000, count(10..=100_000).option("flows");
        /// Endpoints of a sender, with one session each
        lanes: u32 = 16, count(1..=64).option("lanes");
        /// Probability that spine 0 drops a packet
        loss_ppm: u32 = 10_000, chance(0..=500_000).option("loss");
        /// Recovery time of go-back-n and melo. The default is that of `sim loss`
        rto_ns: u64 = loss::GO_BACK_N_RTO_NS, time(1_000..=1_000_000_000).option("rto");
        /// Credits of a session in thousandths of the bandwidth-delay product
        window_permille: u32 = 1_000, count(100..=100_000);
    }
}

impl WebSearch {
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
pub struct FlowTimes {
    /// The scheme.
    #[serde(serialize_with = "crate::scenario::recovery_name")]
    pub scheme: Recovery,
    /// The congestion control.
    #[serde(serialize_with = "crate::scenario::control_name")]
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
    /// 99th percentile of go-back-N, on timeouts and on NACKs, over that of this one; `None`: it is the
    /// same, or has not run.
    #[serde(skip)]
    pub better_than: [Option<f64>; 2],
    /// A hash over all events; 16 hexadecimal digits in JSON.
    #[serde(serialize_with = "crate::scenario::hex")]
    pub digest: u64,
}

impl FlowTimes {
    /// True for go-back-N.
    fn is_slow(&self) -> bool {
        SLOW.contains(&self.scheme)
    }

    /// How many times better the 99th percentile is than that of another scheme with the same control
    /// and load.
    fn better<'a>(
        &self,
        than: Recovery,
        mut all: impl Iterator<Item = &'a FlowTimes>,
    ) -> Option<f64> {
        let same = (than, self.control, self.load);
        let slow = all.find(|o| (o.scheme, o.control, o.load) == same);
        let slow = slow.filter(|_| self.scheme != than)?;
        Some(slow.fct_p99_ns as f64 / self.fct_p99_ns.max(1) as f64)
    }
}

/// Runs it.
///
/// # Errors
/// A setting is out of range, sessions were not connected, or a call has failed.
pub fn run(settings: &WebSearch) -> Result<Vec<FlowTimes>, ScenarioError> {
    EXPERIMENT.all(settings, &mut |_, _| {})
}

fn simulate(settings: &WebSearch, step: Step<'_>) -> Result<Vec<FlowTimes>, ScenarioError> {
    let hosts = settings.hosts;
    check(hosts.is_multiple_of(2 * LEAF), "hosts", hosts, "20 to 320, a multiple of 20")?;
    let each = |&control| settings.schemes.iter().map(move |&scheme| (control, scheme));
    let kinds: Vec<Kind> = settings.controls.iter().flat_map(each).collect();
    let run = |kind, load_ppm| times(settings, kind, load_ppm);
    let mut all = run_pairs(&kinds, &settings.load_ppm, step, run)?;
    let better: Vec<_> = all.iter().map(|o| SLOW.map(|than| o.better(than, all.iter()))).collect();
    all.iter_mut().zip(better).for_each(|(o, better)| o.better_than = better);
    Ok(all)
}

/// A control and a scheme.
type Kind = (Control, Recovery);

/// A future flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Flow {
    at_ns: u64,
    sender: u32,
    bytes: u64,
}

/// All flows at a load, in the order of time: the same for every scheme.
fn flows(settings: &WebSearch, load_ppm: u32) -> Vec<Flow> {
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

fn config(settings: &WebSearch, (control, scheme): Kind) -> WorldConfig {
    let mut config = controlled(settings.seed, settings.topology(), control);
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
    // A buffer is reused for flows of about its size only, which an endpoint rarely has: without this
    // the buffers of all flows would be kept.
    nexus.tuning.trim_after = Duration::from_millis(1);
    if scheme != Recovery::Selective {
        let rto = Duration::from_nanos(settings.rto_ns);
        nexus.rto = (rto, rto);
    }
    config
}

/// Runs one control and scheme at one load.
fn times(settings: &WebSearch, kind: Kind, load_ppm: u32) -> Result<FlowTimes, ScenarioError> {
    let mut world = World::new(config(settings, kind))?;
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

fn summary(world: &mut World, (control, scheme): Kind, load_ppm: u32, board: &Board) -> FlowTimes {
    let traffic = Traffic::of(world);
    let mut times = board.times_ns.clone();
    times.sort_unstable();
    // The smallest time that `percent` of all do not exceed.
    let at = |percent: usize| {
        let rank = (times.len() * percent).div_ceil(100).saturating_sub(1);
        times.get(rank).copied().unwrap_or(0)
    };
    let sum: u128 = times.iter().map(|&ns| u128::from(ns)).sum();
    FlowTimes {
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
        better_than: [None; 2],
        digest: world.digest(),
    }
}

/// Receivers, and senders with connected sessions.
fn start(world: &mut World, settings: &WebSearch) -> Result<SharedBoard, ScenarioError> {
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
    settings: &WebSearch,
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
