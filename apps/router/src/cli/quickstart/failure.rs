//! The death of a node, and its return.

use std::time::{Duration, Instant};

use courser_bench::program::Failure;
use courser_bench::program::units::show_ns;
use courser_router::netns;

use super::Phases;
use super::cluster::{Demo, NODES};
use super::programs;
use super::report::Results;
use super::screen::Screen;
use super::table::{self, Sample};
use super::traffic::{Pair, Traffic};

/// The node that dies, and the others.
const VICTIM: usize = 2;
const OTHERS: [usize; 2] = [0, 1];

/// The longest wait for the others to notice a death or a return.
const LIMIT: Duration = Duration::from_secs(5);

/// What was measured.
#[derive(Clone, Debug, Default)]
pub(super) struct Times {
    /// Until the routes of the node were withdrawn at the others.
    pub(super) withdrawn: Vec<Duration>,
    /// From the start of the new process until all nodes see each other.
    pub(super) recovered: Duration,
    /// Until a datagram arrives at the node's host.
    pub(super) traffic_recovered: Option<Duration>,
    /// ICMP errors arrived at host a, by IPv4 and IPv6. Without ping, it is not known.
    pub(super) unreachable: [Option<bool>; 2],
}

/// True for the datagrams between hosts of the nodes that live.
pub(super) fn among_others(pair: &Pair) -> bool {
    let victim = netns::name(VICTIM).to_string();
    pair.from != victim && pair.to != victim
}

/// Kills a node, and starts it again.
pub(super) fn run(
    screen: &mut Screen,
    demo: &mut Demo,
    phases: Phases,
    results: &mut Results,
) -> Result<(), Failure> {
    screen.heading("The death of node c")?;
    let traffic = Traffic::start(demo)?;
    std::thread::sleep(phases.after);
    let mut times = Times::default();
    die(screen, demo, phases, &mut times)?;
    come_back(screen, demo, phases, &traffic, &mut times)?;
    let outcome = traffic.stop()?;
    screen.line(&format!("  Hosts a and b to each other: {}\n", outcome.words(among_others)))?;
    results.failure = Some(outcome);
    results.times = times;
    Ok(())
}

fn die(
    screen: &mut Screen,
    demo: &mut Demo,
    phases: Phases,
    times: &mut Times,
) -> Result<(), Failure> {
    let killed = demo.kill_node(VICTIM);
    let seen = demo
        .until(OTHERS, LIMIT, "notice that node c is dead", |states| states.of(VICTIM) == "dead")?;
    times.withdrawn = seen.iter().map(|at| at.duration_since(killed)).collect();
    let [a, b] = [0, 1].map(|at| ns(times.withdrawn[at]));
    screen.line(&format!(
        "  SIGKILL. Its routes were withdrawn at a after {a}, at b after {b}; the failure timeout \
         is {}.",
        ns(demo.config().failure_timeout)
    ))?;
    let first = Sample::take(demo)?;
    let [v4, v6] = [netns::host_v4(VICTIM).into(), netns::host_v6(VICTIM).into()];
    times.unreachable[0] = programs::ping_unreachable(screen, demo, v4)?;
    times.unreachable[1] = programs::ping_unreachable(screen, demo, v6)?;
    table::watch(screen, demo, &first, phases.after)?;
    Ok(())
}

fn come_back(
    screen: &mut Screen,
    demo: &mut Demo,
    phases: Phases,
    traffic: &Traffic,
    times: &mut Times,
) -> Result<(), Failure> {
    let (before, begin) = (traffic.arrivals(VICTIM), Instant::now());
    demo.start_node(VICTIM)?;
    let seen = demo.until(0..NODES, LIMIT, "see all nodes again", |states| states.all_direct())?;
    let last = seen.into_iter().max().unwrap_or(begin);
    times.recovered = last.duration_since(begin);
    while traffic.arrivals(VICTIM) == before && begin.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(1));
    }
    if traffic.arrivals(VICTIM) > before {
        times.traffic_recovered = Some(begin.elapsed());
    }
    let arrives =
        times.traffic_recovered.map_or("not yet".to_owned(), |t| format!("after {}", ns(t)));
    screen.line(&format!(
        "  Started again. All nodes see each other after {}, packets arrive at its host {arrives}.",
        ns(times.recovered)
    ))?;
    let first = Sample::take(demo)?;
    table::watch(screen, demo, &first, phases.after)?;
    Ok(())
}

fn ns(time: Duration) -> String {
    show_ns(time.as_nanos() as f64)
}
