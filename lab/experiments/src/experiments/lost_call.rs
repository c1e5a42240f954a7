//! Cost of a lost packet for a small call.
//!
//! Two hosts at one switch. One or more echoes of 32 bytes are always in flight; the switch loses
//! each datagram that crosses it with a given probability, and records the loss for each call whose
//! request or response was in it. Calls are classified by their number of losses: none, one, or
//! more. Each scheme also runs without loss, for comparison; both with the library's own bounds of
//! the retransmission timeout.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use courser::{Nexus, Recovery, Rpc};
use courser_bench::report::Unit;
use courser_sim::SetupError;
use courser_sim::fabric::{Fate, Topology};
use courser_sim::observe::{Times, decode};
use courser_sim::{Rng, World};
use serde::Serialize;

use super::loss::SCHEMES;
use crate::declare::column::Column;
use crate::declare::parameter::{chance, count, name, parameters, written};
use crate::declare::points::{self, Figure, Paper, Stated, Tolerance};
use crate::declare::seeds::{Cell, Row, Runs};
use crate::declare::special::{Results, Special};
use crate::declare::text::{self, ns};
use crate::declare::{Experiment, Recorded, Simulation, Step, Table};
use crate::picture::{Axis, Chart, Style};
use crate::scenario::path::{self, CLIENT, SERVER};
use crate::scenario::{Cpu, Latency, ScenarioError, app, share, uncontrolled};

pub(crate) const EXPERIMENT: Experiment<LostCall, CallTimes> = Experiment {
    name: "lost-call",
    aliases: &[],
    about: "Latency that one lost packet adds to a small call",
    run: Simulation::Several(simulate),
    network: None,
    columns: COLUMNS,
    caption: |s, _| {
        let (loss, cpu) = (text::chance(share(s.loss_ppm)), s.cpu.name());
        format!("calls of {BYTES} bytes, {} in flight, loss {loss}, {cpu} CPUs", s.in_flight)
    },
    table: Table::Other(table),
    picture,
    recorded: &[Recorded {
        id: "E56",
        results: include_str!("../../recorded/E56.json"),
        title: "A small call that loses a packet",
        source: "eRPC section 5.2.3 (which waits 5 ms for its timeout)",
        model: "Calls of 32 B between two hosts at one switch, which loses 1e-3 of the datagrams; CPUs \
            as fast as the paper's. Calls are told apart by how many of their packets were lost.",
        axis: points::Axis { label: "calls in flight", unit: Unit::Count, log: false },
        x: |s, _| s.in_flight.into(),
        series: |_, o| o.scheme.name().to_owned(),
        only: &[],
        runs: |size| {
            let calls = size.pick(10_000, 100_000);
            let of = |in_flight| LostCall { calls, in_flight, ..LostCall::default() };
            [1, 8].map(of).to_vec()
        },
        more: |_, _| {},
        paper: &[Paper {
            quantity: LOST_ONE_P99,
            series: "go-back-n",
            x: None,
            value: Stated::Value(5e6),
            reason: "Courser's shortest timeout is 1 ms, and follows the round trips. The default \
                recovery does not wait for it.",
        }],
    }],
    special: Special { after_help: AFTER_HELP, results: Results::Unseeded, ..Special::NONE },
};

const AFTER_HELP: &str = "\
Simulates two hosts at one switch, which drops each datagram with the given probability. \
Each loss is recorded for the calls whose request or response it contained, so calls that \
lost one packet are counted separately. The bound is the 99th percentile without loss plus \
three round trips plus the reordering window, here a quarter of a round trip.

Examples:
  courser-lab sim lost-call
  courser-lab sim lost-call --in-flight 8 --scheme default --calls 1000000";

type Col = Column<LostCall, CallTimes>;

const LOST_ONE_P99: &str = "p99 of calls that lost a packet";

const COLUMNS: &[Col] = &[
    Col::quantity("p99 without loss", Unit::Time, Tolerance::relative(0.01), |_, o| {
        Some(o.lossless.p99_ns as f64)
    }),
    Col::quantity(LOST_ONE_P99, Unit::Time, Tolerance::relative(0.05), |_, o| {
        Some(o.lost_one.p99_ns as f64)
    })
    .drawn(Figure::Log),
    Col::quantity("longest of calls that lost a packet", Unit::Time, points::TIME, |_, o| {
        Some(o.lost_one.max_ns as f64)
    }),
];

/// Four rows for each scheme: calls by what they lost.
fn table(caption: &str, runs: &Runs<Row<LostCall, CallTimes>>) -> String {
    let row = |scheme: &str, calls: &str, l: &Latency, note: Cell| {
        let time = |of| Cell::or((l.count > 0).then_some(of), ns, "");
        let [p50, p99, max] = [l.p50_ns, l.p99_ns, l.max_ns].map(time);
        vec![scheme.into(), calls.into(), Cell::count(l.count), p50, p99, max, note]
    };
    let rows = |(_, o): &Row<LostCall, CallTimes>| {
        let bound = Cell::of(o.bound_ns, |at| format!("bound {} + reordering window", ns(at)));
        let worst = format!("lossless p99 + {:.1} RTT", o.worst_rtts);
        [
            row(o.scheme.name(), "without loss", &o.lossless, bound),
            row("", "lost no packet", &o.unharmed, "".into()),
            row("", "lost one packet", &o.lost_one, Cell::new(worst, o.worst_rtts)),
            row("", "lost several", &o.lost_more, "".into()),
        ]
    };
    let head = ["scheme", "calls", "count", "p50", "p99", "longest", ""];
    runs.table_of(caption, &head, |all| all.iter().flat_map(rows).collect())
}

/// Latency of small calls by what they lost: a row for each scheme.
fn picture(rows: &[Row<LostCall, CallTimes>]) -> Chart {
    let title = "Latency of a small call that lost a packet";
    let mut chart = Chart::bars(title, Axis::log("latency", Unit::Time));
    for (_, o) in rows {
        for (style, name, ns) in [
            (Style::Main, "no loss in the run: p99", o.lossless.p99_ns),
            (Style::Main, "lost one packet: p99", o.lost_one.p99_ns),
            (Style::Second, "lost one packet: p50", o.lost_one.p50_ns),
            (Style::Calculated, "p99 without loss and 3 round trips", o.bound_ns),
        ] {
            chart.bar(style, name, o.scheme.name(), ns as f64);
        }
    }
    chart
}

/// Bytes of a request, and of its response.
const BYTES: usize = 32;

/// A run that takes longer has failed, ns of virtual time.
const LIMIT_NS: u64 = 600_000_000_000;

parameters! {
    /// Settings of the experiment.
    #[derive(Eq)]
    pub struct LostCall {
        /// Decides all random choices.
        seed: u64 = 1, count(0..=u64::MAX);
        /// Schemes of recovery
        schemes: Vec<Recovery> = vec![Recovery::GoBackN, Recovery::Melo, Recovery::Selective],
            written(&SCHEMES).option("scheme");
        /// Probability that the switch drops a datagram
        loss_ppm: u32 = 1_000, chance(0..=500_000).option("loss");
        /// Calls of each run
        calls: u64 = 100_000, count(100..=10_000_000).option("calls");
        /// Calls in flight
        in_flight: u32 = 1, count(1..=32).option("in-flight");
        /// Model of CPU costs
        cpu: Cpu = Cpu::Erpc, name::<Cpu>().option("cpu");
    }
}

/// Results of one scheme.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CallTimes {
    /// The scheme.
    #[serde(serialize_with = "crate::scenario::recovery_name")]
    pub scheme: Recovery,
    /// Probability that the switch loses a datagram.
    pub loss: f64,
    /// Calls of the run without loss.
    pub lossless: Latency,
    /// Calls that lost nothing, in the run with loss.
    pub unharmed: Latency,
    /// Calls that lost exactly one packet.
    pub lost_one: Latency,
    /// Calls that lost several.
    pub lost_more: Latency,
    /// Smoothed round trip at the end of the run without loss, ns.
    pub rtt_ns: u64,
    /// Three round trips above the 99th percentile without loss, ns. The limit for a call that has
    /// lost one packet, apart from the reordering window.
    pub bound_ns: u64,
    /// By how many round trips the slowest call that has lost one packet is above the 99th
    /// percentile without loss.
    pub worst_rtts: f64,
    /// Lost datagrams without a call's request or response.
    pub lost_others: u64,
    /// A hash over all events; 16 hexadecimal digits in JSON.
    #[serde(serialize_with = "crate::scenario::hex")]
    pub digest: u64,
}

/// Runs it.
///
/// # Errors
/// A setting is out of range, the session was not connected, or a call has failed.
pub fn run(settings: &LostCall) -> Result<Vec<CallTimes>, ScenarioError> {
    EXPERIMENT.all(settings, &mut |_, _| {})
}

fn simulate(settings: &LostCall, step: Step<'_>) -> Result<Vec<CallTimes>, ScenarioError> {
    let all = 2 * settings.schemes.len();
    let one = |(at, &scheme): (usize, &Recovery)| {
        step(2 * at, all);
        let clean = measure(settings, scheme, 0)?;
        step(2 * at + 1, all);
        let lossy = measure(settings, scheme, settings.loss_ppm)?;
        Ok(times(settings, scheme, &clean, &lossy))
    };
    settings.schemes.iter().enumerate().map(one).collect()
}

fn times(settings: &LostCall, scheme: Recovery, clean: &Seen, lossy: &Seen) -> CallTimes {
    let [lossless, ..] = clean.by_losses;
    let [unharmed, lost_one, lost_more] = lossy.by_losses;
    let above_ns = lost_one.max_ns.saturating_sub(lossless.p99_ns);
    CallTimes {
        scheme,
        loss: share(settings.loss_ppm),
        lossless,
        unharmed,
        lost_one,
        lost_more,
        rtt_ns: clean.rtt_ns,
        bound_ns: lossless.p99_ns + 3 * clean.rtt_ns,
        worst_rtts: above_ns as f64 / clean.rtt_ns.max(1) as f64,
        lost_others: lossy.lost_others,
        digest: lossy.digest,
    }
}

/// Result of a run.
struct Seen {
    /// Calls by losses: none, one, or more.
    by_losses: [Latency; 3],
    rtt_ns: u64,
    lost_others: u64,
    digest: u64,
}

/// A call in flight.
#[derive(Clone, Copy, Debug, Default)]
struct Call {
    /// Its number among all calls.
    number: u64,
    start_ns: u64,
    losses: usize,
}

/// State shared by client and switch.
#[derive(Debug, Default)]
struct Book {
    calls: Vec<Call>,
    begun: u64,
    ended: u64,
    by_losses: [Times; 3],
    lost_others: u64,
    first_error: Option<String>,
}

type SharedBook = Rc<RefCell<Book>>;

impl Book {
    /// The next call of a lane; returns the start of its request.
    fn begin(&mut self, place: usize, now_ns: u64) -> [u8; 16] {
        self.begun += 1;
        let number = self.begun;
        if let Some(call) = self.calls.get_mut(place) {
            *call = Call { number, start_ns: now_ns, losses: 0 };
        }
        let mut mark = [0; 16];
        mark[..8].copy_from_slice(&number.to_le_bytes());
        mark[8..].copy_from_slice(&(place as u64).to_le_bytes());
        mark
    }

    fn end(&mut self, place: usize, now_ns: u64) {
        let Some(call) = self.calls.get(place) else { return };
        self.by_losses[call.losses.min(2)].record(now_ns - call.start_ns);
        self.ended += 1;
    }

    /// Records a lost datagram for its calls.
    fn lost(&mut self, frame: &[u8]) {
        let before: usize = self.calls.iter().map(|c| c.losses).sum();
        for data in decode::payloads(frame) {
            let word = |at| Some(u64::from_le_bytes(data.get(at..at + 8)?.try_into().ok()?));
            let (Some(number), Some(place)) = (word(0), word(8)) else { continue };
            // A late copy of an earlier call is ignored.
            if let Some(call) = self.calls.get_mut(place as usize).filter(|c| c.number == number) {
                call.losses += 1;
            }
        }
        let after: usize = self.calls.iter().map(|c| c.losses).sum();
        self.lost_others += u64::from(before == after);
    }
}

fn measure(settings: &LostCall, scheme: Recovery, loss_ppm: u32) -> Result<Seen, ScenarioError> {
    let mut config = uncontrolled(settings.seed, Topology::one_switch(2));
    config.costs = settings.cpu.costs();
    config.nexus.recovery = scheme;
    config.nexus.slots = 32;
    let mut world = World::new(config)?;
    world.start(SERVER, app::server)?;
    let book = SharedBook::default();
    let (uri, to, in_flight) = (world.uri(SERVER), Rc::clone(&book), settings.in_flight);
    world.start(CLIENT, move |nexus| client(nexus, &uri, in_flight, &to))?;
    app::connect_all(&mut world)?;
    // Round trips are known, and calls made before the session was connected have ended.
    world.run_for(Duration::from_millis(1));
    {
        let mut book = book.borrow_mut();
        (book.by_losses, book.ended) = (Default::default(), 0);
    }
    if loss_ppm > 0 {
        lose(&mut world, settings.seed, loss_ppm, &book);
    }
    let limit = Duration::from_nanos(LIMIT_NS);
    let done = |_: &mut World| {
        let book = book.borrow();
        book.ended >= settings.calls || book.first_error.is_some()
    };
    let over = world.run_until(limit, done);
    let book = book.borrow();
    let silent = (!over).then(|| "not all within ten minutes".to_owned());
    if let Some(first) = book.first_error.clone().or(silent) {
        return Err(ScenarioError::Calls { count: 1, first });
    }
    let session = world.peek(CLIENT, 0).and_then(|rpc| {
        let session = rpc.sessions_from(0).next()?;
        rpc.session_stats(session)?.srtt_ns
    });
    Ok(Seen {
        by_losses: book.by_losses.each_ref().map(Latency::from),
        rtt_ns: session.unwrap_or(0),
        lost_others: book.lost_others,
        digest: world.digest(),
    })
}

/// Makes the switch lose datagrams and record them.
fn lose(world: &mut World, seed: u64, loss_ppm: u32, book: &SharedBook) {
    for link in path::links_of(world, 0) {
        let (book, mut rng) = (Rc::clone(book), Rng::stream(seed, 1_000_000 + u64::from(link.0)));
        world.set_link_rule(
            link,
            Some(Box::new(move |packet, _| {
                if !rng.chance_ppm(loss_ppm) {
                    return None;
                }
                book.borrow_mut().lost(&packet.bytes);
                Some(Fate::Drop)
            })),
        );
    }
}

/// A closed-loop client with a constant number of calls in flight.
fn client(
    nexus: &Nexus,
    server: &str,
    in_flight: u32,
    book: &SharedBook,
) -> Result<Rpc, SetupError> {
    let mut rpc = nexus.endpoint()?;
    let session = rpc.connect(server)?;
    book.borrow_mut().calls = vec![Call::default(); in_flight as usize];
    let to = Rc::clone(book);
    rpc.on_completion(move |cx, tag, done| {
        let (now_ns, mut book, mut request) = (cx.now_ns(), to.borrow_mut(), done.request);
        match done.result {
            Ok(_) => book.end(tag as usize, now_ns),
            Err(error) => {
                book.first_error.get_or_insert_with(|| error.to_string());
                return;
            }
        }
        request[..16].copy_from_slice(&book.begin(tag as usize, now_ns));
        if let Err(rejected) = cx.request(session, app::ECHO, request).tag(tag).send() {
            book.first_error.get_or_insert_with(|| rejected.reason.to_string());
        }
    });
    for tag in 0..u64::from(in_flight) {
        let mut request = app::message(&rpc, BYTES)?;
        let now_ns = rpc.context().now_ns();
        request[..16].copy_from_slice(&book.borrow_mut().begin(tag as usize, now_ns));
        let call = rpc.request(session, app::ECHO, request).tag(tag).send();
        call.map_err(|rejected| rejected.reason.to_string())?;
    }
    Ok(rpc)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(scheme: Recovery, in_flight: u32) -> LostCall {
        let (schemes, loss_ppm) = (vec![scheme], 10_000);
        LostCall { schemes, loss_ppm, calls: 2_000, in_flight, ..LostCall::default() }
    }

    fn one(settings: &LostCall) -> CallTimes {
        run(settings).expect("runs").pop().expect("a point")
    }

    #[test]
    fn calls_are_classified_by_their_losses() {
        let p = one(&small(Recovery::GoBackN, 1));
        assert_eq!(p.lossless.count, 2_000);
        assert_eq!(p.unharmed.count + p.lost_one.count + p.lost_more.count, 2_000);
        // Two datagrams a call, each lost with 1 %.
        assert!((20..70).contains(&p.lost_one.count), "{p:?}");
        assert!(p.unharmed.max_ns < 2 * p.lossless.p99_ns, "{p:?}");
        assert!(p.lost_one.min_ns >= 1_000_000, "go-back-N needs its timeout: {p:?}");
    }

    #[test]
    fn by_default_a_lost_packet_costs_a_small_call_three_round_trips() {
        for in_flight in [1, 8] {
            let p = one(&small(Recovery::Selective, in_flight));
            assert!(p.lost_one.count > 20, "{p:?}");
            let window_ns = p.rtt_ns / 4;
            assert!(p.lost_one.max_ns <= p.bound_ns + window_ns, "{p:?}");
        }
    }

    #[test]
    fn the_same_seed_is_the_same_run() {
        let digest = |seed| one(&LostCall { seed, ..small(Recovery::GoBackN, 4) }).digest;
        assert_eq!(digest(1), digest(1));
        assert_ne!(digest(1), digest(2));
    }
}
