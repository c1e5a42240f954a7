//! Deaths of a node, and its return: its process is killed, then it falls silent.

use std::time::{Duration, Instant};

use courser_kit::Failure;
use courser_kit::units::show_ns;
use courser_router::netns;
use serde_json::{Value, json};

use super::NODES;
use super::Phases;
use super::programs;
use super::screen::Screen;
use super::table::{self, Sample};
use super::traffic::{Outcome, Pair, Traffic};
use crate::cli::cluster::{Demo, States};

/// The node that dies, and the others.
const VICTIM: usize = 2;
const OTHERS: [usize; 2] = [0, 1];

/// The longest wait for the others to notice a death or a return.
const LIMIT: Duration = Duration::from_secs(5);

/// How a node dies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum How {
    /// Its process ends, and with it the connections to others.
    Killed,
    /// It is stopped: nothing ends, and nothing arrives any more, as from a machine without power.
    Silent,
}

impl How {
    const fn name(self) -> &'static str {
        match self {
            How::Killed => "killed",
            How::Silent => "silent",
        }
    }
}

/// A death and a return.
pub(super) struct Death {
    how: How,
    /// Until its routes were withdrawn at each of the others.
    seen: Vec<Duration>,
    /// From its new start until all nodes see each other.
    pub(super) recovered: Duration,
    /// From its new start until a datagram arrives at its host, if one does.
    pub(super) traffic_recovered: Option<Duration>,
    /// ICMP errors arrived at host a, by IPv4 and IPv6. `None`: not tried.
    pub(super) unreachable: [Option<bool>; 2],
    /// From before the death until after the return.
    pub(super) outcome: Outcome,
}

impl Death {
    /// Until its routes were withdrawn at all others.
    pub(super) fn withdrawn(&self) -> Duration {
        self.seen.iter().copied().max().unwrap_or_default()
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "how": self.how.name(),
            "withdrawn_after_ns": ns(self.withdrawn()),
            "recovered_after_ns": ns(self.recovered),
            "traffic_recovered_after_ns": self.traffic_recovered.map(ns),
            "unreachable_ipv4": self.unreachable[0],
            "unreachable_ipv6": self.unreachable[1],
            "others_packets_sent": self.outcome.sent(among_others),
            "others_packets_lost": self.outcome.lost(among_others),
            "others_packets_reordered": self.outcome.reordered(among_others),
            "pairs": self.outcome.pairs,
        })
    }
}

/// True for the datagrams between hosts of the nodes that live.
pub(super) fn among_others(pair: &Pair) -> bool {
    let victim = netns::name(VICTIM).to_string();
    pair.from != victim && pair.to != victim
}

/// Kills the node's process and starts it again.
pub(super) fn kill(screen: &mut Screen, demo: &mut Demo, phases: Phases) -> Result<Death, Failure> {
    screen.heading("Node c is killed (SIGKILL), with the same traffic")?;
    let traffic = Traffic::start(demo)?;
    std::thread::sleep(phases.before);
    let killed = demo.kill_node(VICTIM);
    let seen = withdrawn(screen, demo, killed)?;
    let first = Sample::take(demo)?;
    let unreachable = ping_dead(screen, demo, &traffic)?;
    table::watch(screen, demo, &first, phases.after)?;
    let (before, begin) = (traffic.arrivals(VICTIM), Instant::now());
    demo.start_node(VICTIM)?;
    let recovered = returned(demo, begin)?;
    while traffic.arrivals(VICTIM) == before && begin.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(1));
    }
    let traffic_recovered = (traffic.arrivals(VICTIM) > before).then(|| begin.elapsed());
    let words =
        traffic_recovered.map_or("not yet".to_owned(), |time| format!("after {}", show(time)));
    screen.wrapped(&format!(
        "Started again. All nodes see each other after {}, packets arrive at host c {words}.",
        show(recovered)
    ))?;
    table::watch(screen, demo, &Sample::take(demo)?, phases.after)?;
    let outcome = traffic.stop()?;
    print_others(screen, &outcome)?;
    Ok(Death { how: How::Killed, seen, recovered, traffic_recovered, unreachable, outcome })
}

/// Stops the node's process, and lets it continue.
pub(super) fn silence(
    screen: &mut Screen,
    demo: &mut Demo,
    phases: Phases,
) -> Result<Death, Failure> {
    screen.heading("Node c falls silent (SIGSTOP), as a machine without power does")?;
    let traffic = Traffic::start(demo)?;
    std::thread::sleep(phases.before);
    let stopped = demo.stop_node(VICTIM)?;
    let seen = withdrawn(screen, demo, stopped)?;
    std::thread::sleep(phases.before);
    let begin = demo.continue_node(VICTIM)?;
    let recovered = returned(demo, begin)?;
    screen.wrapped(&format!("Continued. All nodes see each other after {}.", show(recovered)))?;
    std::thread::sleep(phases.before);
    let outcome = traffic.stop()?;
    print_others(screen, &outcome)?;
    let (traffic_recovered, unreachable) = (None, [None; 2]);
    Ok(Death { how: How::Silent, seen, recovered, traffic_recovered, unreachable, outcome })
}

/// Waits until the others know that the node is dead.
fn withdrawn(
    screen: &mut Screen,
    demo: &mut Demo,
    begin: Instant,
) -> Result<Vec<Duration>, Failure> {
    let is_dead = |states: &States| states.of(VICTIM) == "dead";
    let seen = demo.until(OTHERS, LIMIT, "notice that node c is dead", is_dead)?;
    let seen: Vec<_> = seen.iter().map(|at| at.duration_since(begin)).collect();
    let at = |(node, time)| format!("at {} after {}", netns::name(node), show(time));
    let at: Vec<_> = OTHERS.into_iter().zip(seen.iter().copied()).map(at).collect();
    screen.wrapped(&format!(
        "Its routes are withdrawn {}; the limit (failure_timeout) is {}.",
        at.join(", "),
        show(demo.config().failure_timeout)
    ))?;
    Ok(seen)
}

/// Waits until all nodes see each other.
fn returned(demo: &mut Demo, begin: Instant) -> Result<Duration, Failure> {
    let seen = demo.until(0..NODES, LIMIT, "see all nodes again", |states| states.all_direct())?;
    Ok(seen.into_iter().max().unwrap_or(begin).duration_since(begin))
}

/// Pings the host of the dead node.
fn ping_dead(
    screen: &mut Screen,
    demo: &Demo,
    traffic: &Traffic,
) -> Result<[Option<bool>; 2], Failure> {
    // The limit of ICMP errors is for all packets of a node: without this, none is left for ping.
    traffic.pause(VICTIM, true);
    std::thread::sleep(Duration::from_millis(50));
    let [v4, v6] = [netns::host_v4(VICTIM).into(), netns::host_v6(VICTIM).into()];
    let v4 = programs::ping_unreachable(screen, demo, v4)?;
    let v6 = programs::ping_unreachable(screen, demo, v6)?;
    traffic.pause(VICTIM, false);
    Ok([v4, v6])
}

fn print_others(screen: &mut Screen, outcome: &Outcome) -> Result<(), Failure> {
    screen.wrapped(&format!("Between hosts a and b: {}.", outcome.words(among_others)))?;
    screen.line("")
}

fn show(time: Duration) -> String {
    show_ns(time.as_nanos() as f64)
}

fn ns(time: Duration) -> u64 {
    time.as_nanos() as u64
}
