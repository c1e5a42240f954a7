//! The first burst of an incast: senders that were idle begin one request each at the same time.
//!
//! No sender has received its share, so that each sends what it may before the first answer.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use courser::{Context, Nexus, Rpc};
use serde::Serialize;

use crate::scenario::app;
use crate::scenario::flows::{Flows, Recorder};
use crate::scenario::hosts::Hosts;
use crate::scenario::{Latency, ScenarioError, check, data_per_packet, wire_bytes, wire_ns};
use courser_sim::SetupError;
use courser_sim::fabric::{Buffer, HOST_RATE_BPS, Topology};
use courser_sim::observe::{DropReason, Times};
use courser_sim::{HostId, World, WorldConfig};

/// The server's host.
const SERVER: HostId = HostId(0);

/// Longest time of a round, ns.
const ROUND_MAX_NS: u64 = 2_000_000_000;

/// Settings of the experiment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Settings {
    /// All hosts.
    #[serde(flatten)]
    pub hosts: Hosts,
    /// Senders: 1 to 999. Default 100.
    pub senders: u32,
    /// Bytes of a request: at most 1 MiB. Default 64,000.
    pub request_bytes: usize,
    /// Bytes of switch buffer for each port. Default 480,000.
    pub buffer_bytes: u64,
    /// Rounds. Default 10.
    pub rounds: u32,
    /// Time between two rounds in which all are idle, ns. Default 150 ms: longer than a sender keeps
    /// what it has learned.
    pub idle_ns: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            hosts: Hosts::default(),
            senders: 100,
            request_bytes: 64_000,
            buffer_bytes: 480_000,
            rounds: 10,
            idle_ns: 150_000_000,
        }
    }
}

impl Settings {
    fn check(&self) -> Result<(), ScenarioError> {
        self.hosts.check()?;
        check((1..=999).contains(&self.senders), "senders", self.senders, "1 to 999")?;
        let bytes = self.request_bytes as u64;
        check((1..=1 << 20).contains(&bytes), "request_bytes", bytes, "1 byte to 1 MiB")?;
        check((1..=1_000).contains(&self.rounds), "rounds", self.rounds, "1 to 1,000")?;
        check(self.idle_ns <= 1_000_000_000, "idle_ns", self.idle_ns, "at most 1 s")
    }

    fn config(&self) -> WorldConfig {
        let buffer = Buffer::PerPort { bytes: self.buffer_bytes };
        let topology = Topology::one_switch(self.senders + 1);
        let topology = topology.each_switch(|_, switch| switch.buffer = buffer);
        let mut config = self.hosts.config(topology, self.senders);
        config.nexus.line_rate_bps = HOST_RATE_BPS;
        config
    }

    /// All requests on the server's link, and an idle round trip with a small response, ns.
    pub fn ideal_ns(&self) -> u64 {
        let data = data_per_packet(self.hosts.max_frame);
        let (whole, rest) = (self.request_bytes / data, self.request_bytes % data);
        let last = if rest == 0 { 0 } else { wire_bytes(rest) };
        let request = whole as u64 * wire_bytes(data) + last;
        // Two NICs, two cables and a switch each way, as the presets have them.
        let way_ns = 2 * 400 + 2 * 15 + 300;
        let answer_ns = wire_ns(wire_bytes(32), HOST_RATE_BPS);
        // The switch is cut-through, so that a packet takes its time once, in the sum.
        wire_ns(request * u64::from(self.senders), HOST_RATE_BPS) + 2 * way_ns + answer_ns
    }
}

/// Results of a run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Outcome {
    /// From the first request of a round to its last response.
    pub round: Latency,
    /// Calls, from call to completion.
    pub completion: Latency,
    /// All requests on the server's link, and an idle round trip, ns.
    pub ideal_ns: u64,
    /// The longest round as a multiple of that.
    pub ratio: f64,
    /// Largest number of bytes in the queue of the server's link.
    pub queue_max_bytes: u64,
    /// Datagrams dropped by the switch for lack of buffer.
    pub overflows: u64,
    /// A hash over all events; 16 hexadecimal digits in JSON.
    #[serde(serialize_with = "crate::scenario::hex")]
    pub digest: u64,
}

/// Calls of a round that have not ended, the times of those that have, and the first error.
#[derive(Debug, Default)]
struct Round {
    left: u32,
    last_ns: u64,
    times: Times,
    error: Option<String>,
}

/// Runs it.
///
/// # Errors
/// A setting is out of range, sessions were not connected, or a call has failed.
pub fn run(settings: &Settings) -> Result<Outcome, ScenarioError> {
    settings.check()?;
    let mut world = World::new(settings.config())?;
    let link = world.fabric().uplink(SERVER).reverse();
    let flows = Flows::new(SERVER, link);
    world.set_tap(Box::new(Recorder { flows: Rc::clone(&flows), inner: None }));
    world.start(SERVER, app::server)?;
    let uri = world.uri(SERVER);
    for host in (1..=settings.senders).map(HostId) {
        let uri = uri.clone();
        world.start(host, move |nexus: &Nexus| -> Result<Rpc, SetupError> {
            let mut rpc = nexus.endpoint()?;
            rpc.connect(&uri)?;
            Ok(rpc)
        })?;
    }
    app::connect_all(&mut world)?;
    let (mut rounds, mut times) = (Times::default(), Times::default());
    flows.borrow_mut().restart(world.now_ns());
    for _ in 0..settings.rounds {
        rounds.record(one_round(&mut world, settings, &mut times)?);
        world.run_for(Duration::from_nanos(settings.idle_ns));
    }
    let queue_max_bytes = flows.borrow_mut().queue_quantile_bytes(1_000, world.now_ns());
    let ideal_ns = settings.ideal_ns();
    let round = Latency::from(&rounds);
    Ok(Outcome {
        ratio: round.max_ns as f64 / ideal_ns as f64,
        round,
        completion: Latency::from(&times),
        ideal_ns,
        queue_max_bytes,
        overflows: world.fabric().drops()[DropReason::BufferFull as usize],
        digest: world.digest(),
    })
}

/// A call of each sender at once. Returns the time until all have ended.
fn one_round(
    world: &mut World,
    settings: &Settings,
    times: &mut Times,
) -> Result<u64, ScenarioError> {
    let failed = |first: String| ScenarioError::Calls { count: 1, first };
    let round = Rc::new(RefCell::new(Round::default()));
    let begin_ns = world.now_ns();
    for host in (1..=settings.senders).map(HostId) {
        let ended = Rc::clone(&round);
        let rpc = world.rpc(host);
        let begin_ns = rpc.context().now_ns();
        let request =
            app::message(rpc, settings.request_bytes).map_err(|e| failed(e.to_string()))?;
        let session = rpc.sessions_from(0).next();
        let session = session.ok_or_else(|| failed("a session has ended".to_owned()))?;
        round.borrow_mut().left += 1;
        let done = move |cx: &mut Context<'_>, done: courser::Completion<'_>| {
            let mut round = ended.borrow_mut();
            round.left -= 1;
            round.last_ns = cx.now_ns() - begin_ns;
            round.times.record(cx.now_ns() - begin_ns);
            if let Err(error) = &done.result {
                round.error.get_or_insert_with(|| error.to_string());
            }
        };
        let call = world.rpc(host).call(session, app::SINK, request, done);
        call.map_err(|rejected| failed(rejected.reason.to_string()))?;
    }
    let left = || round.borrow().left;
    while left() > 0 && world.now_ns() < begin_ns + ROUND_MAX_NS {
        world.run_for(Duration::from_micros(10));
    }
    let round = round.borrow();
    times.merge(&round.times);
    match round.error.clone().or_else(|| (round.left > 0).then(|| "no answer in 2 s".to_owned())) {
        Some(first) => Err(failed(first)),
        None => Ok(round.last_ns),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Spoilt, assert_refused};

    fn short() -> Settings {
        let (senders, rounds, idle_ns) = (4, 2, 1_000_000);
        Settings { senders, rounds, idle_ns, ..Settings::default() }
    }

    #[test]
    fn a_burst_takes_at_least_the_ideal_time() {
        for request_bytes in [100, 1_028, 64_000] {
            let settings = Settings { request_bytes, ..short() };
            let seen = run(&settings).expect("runs");
            assert_eq!((seen.round.count, seen.completion.count), (2, 8));
            // Times on cables are rounded packet by packet.
            assert!(seen.round.min_ns + 10 >= seen.ideal_ns && seen.ratio < 1.5, "{seen:?}");
            assert_eq!(run(&settings).expect("runs"), seen);
        }
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let bad: &[Spoilt<Settings>] = &[
            ("senders", |s| s.senders = 0),
            ("request_bytes", |s| s.request_bytes = 2 << 20),
            ("rounds", |s| s.rounds = 0),
            ("idle_ns", |s| s.idle_ns = u64::MAX),
        ];
        assert_refused(bad, Settings::default, run);
    }
}
