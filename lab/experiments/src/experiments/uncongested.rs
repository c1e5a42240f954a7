//! An uncongested network `[eRPC §5.2.2]` (E55): in the datacenters that the paper cites, 99 % of links
//! are used by less than a tenth. Here every host calls random others at random times, so that links
//! have a stated small load; most calls are small, some large.
//!
//! The calls, their sizes and their times are the same for every control, so that a difference of
//! their completion times is the cost of the control.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use courser::{Completion, Context, Nexus, Rpc, SessionId};
use serde::Serialize;

use crate::scenario::app::{self, SharedTally};
use crate::scenario::hosts::Hosts;
use crate::scenario::{Cpu, Latency, ScenarioError, Traffic};
use crate::scenario::{check, check_time, check_warm_up, data_per_packet, per_second, wire_bytes};
use courser_sim::SetupError;
use courser_sim::fabric::{HOST_RATE_BPS, Topology};
use courser_sim::observe::{DropReason, Times};
use courser_sim::web_search::gap_ns;
use courser_sim::{HostId, Rng, World, WorldConfig};

/// Bytes of a small call, and of the response to every call.
const SMALL_BYTES: usize = 32;

/// Settings of the experiment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Settings {
    /// All hosts. Default: CPUs as calibrated on a machine.
    #[serde(flatten)]
    pub hosts: Hosts,
    /// Hosts: 2 to 200. Default 40.
    pub nodes: u32,
    /// Mean load of a host's link in each direction, per million: 1,000 to 900,000. Default 10 %.
    pub load_ppm: u32,
    /// Bytes of a large request: at most 1 MiB. Default 64,000.
    pub large_bytes: usize,
    /// Large calls, per million calls. Default 1 %.
    pub large_ppm: u32,
    /// Warm-up, ns. Default 1 ms.
    pub warm_up_ns: u64,
    /// Measured time, ns. Default 10 ms.
    pub time_ns: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            hosts: Hosts { cpu: Cpu::Measured, ..Hosts::default() },
            nodes: 40,
            load_ppm: 100_000,
            large_bytes: 64_000,
            large_ppm: 10_000,
            warm_up_ns: 1_000_000,
            time_ns: 10_000_000,
        }
    }
}

impl Settings {
    fn check(&self) -> Result<(), ScenarioError> {
        self.hosts.check()?;
        check((2..=200).contains(&self.nodes), "nodes", self.nodes, "2 to 200")?;
        let range = "1,000 to 900,000";
        check((1_000..=900_000).contains(&self.load_ppm), "load_ppm", self.load_ppm, range)?;
        let bytes = self.large_bytes as u64;
        check((1..=1 << 20).contains(&bytes), "large_bytes", bytes, "1 byte to 1 MiB")?;
        check(self.large_ppm <= 1_000_000, "large_ppm", self.large_ppm, "at most 1,000,000")?;
        check_time(self.time_ns)?;
        check_warm_up(self.warm_up_ns)
    }

    fn config(&self) -> WorldConfig {
        let mut config = self.hosts.config(Topology::one_switch(self.nodes), 2 * self.nodes);
        config.nexus.line_rate_bps = HOST_RATE_BPS;
        config.checks.every_passes = 1_024;
        config
    }

    /// Mean time between two calls of a host, ns. Responses and credit returns are in the load of
    /// the other direction, so that they are added.
    fn gap_ns(&self) -> f64 {
        let data = data_per_packet(self.hosts.max_frame);
        let (whole, rest) = (self.large_bytes / data, self.large_bytes % data);
        let last = if rest == 0 { 0 } else { wire_bytes(rest) };
        let packets = whole as u64 + u64::from(rest > 0);
        let answer = wire_bytes(SMALL_BYTES);
        let large = whole as u64 * wire_bytes(data) + last + packets * wire_bytes(0) + answer;
        let share = f64::from(self.large_ppm) / 1e6;
        let small = (wire_bytes(SMALL_BYTES) + answer) as f64;
        let mean = share * large as f64 + (1.0 - share) * small;
        mean * 8e9 / (HOST_RATE_BPS as f64 * f64::from(self.load_ppm) / 1e6)
    }
}

/// Results of a run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Outcome {
    /// Small calls, from call to completion.
    pub small: Latency,
    /// Large calls, likewise.
    pub large: Latency,
    /// Calls that ended, per second, of all hosts.
    pub calls_rps: u64,
    /// Load of the hosts' links: bits sent, as a share of their rate.
    pub load: f64,
    /// Packets per second of all hosts.
    pub packets_per_s: u64,
    /// Packets that were paced.
    pub paced: u64,
    /// Retransmitted packets.
    pub retransmitted: u64,
    /// Datagrams dropped by the switch for lack of buffer.
    pub overflows: u64,
    /// A hash over all events; 16 hexadecimal digits in JSON.
    #[serde(serialize_with = "crate::scenario::hex")]
    pub digest: u64,
}

/// The client side of a host.
struct Calls {
    sessions: Vec<SessionId>,
    settings: Settings,
    rng: Rng,
    /// Time of the next call on the host's clock, with its fraction, ns.
    next_ns: f64,
    small: SharedTally,
    large: SharedTally,
}

type SharedCalls = Rc<RefCell<Calls>>;

impl Calls {
    /// Starts the calls that are due, and a timer for the next one.
    fn go_on(shared: &SharedCalls, cx: &mut Context<'_>) {
        let mut calls = shared.borrow_mut();
        let now_ns = cx.now_ns() as f64;
        if calls.next_ns == 0.0 {
            calls.next_ns = now_ns;
        }
        while calls.next_ns <= now_ns {
            calls.call(cx);
            let mean_ns = calls.settings.gap_ns();
            calls.next_ns += gap_ns(&mut calls.rng, mean_ns);
        }
        let wait = Duration::from_nanos((calls.next_ns - now_ns).ceil() as u64);
        let own = Rc::clone(shared);
        cx.after(wait, move |cx| Calls::go_on(&own, cx));
    }

    fn call(&mut self, cx: &mut Context<'_>) {
        let Some(&session) = self.rng.pick(&self.sessions) else { return };
        let is_large = self.rng.chance_ppm(self.settings.large_ppm);
        let (bytes, tally) = match is_large {
            true => (self.settings.large_bytes, Rc::clone(&self.large)),
            false => (SMALL_BYTES, Rc::clone(&self.small)),
        };
        let mut request = match cx.alloc(bytes) {
            Ok(request) => request,
            Err(error) => return tally.borrow_mut().failed(&error),
        };
        request.fill(0xa5);
        let (start_ns, to) = (cx.now_ns(), Rc::clone(&tally));
        let done = move |cx: &mut Context<'_>, done: Completion<'_>| {
            to.borrow_mut().ended(&done.result, cx.now_ns() - start_ns);
        };
        if let Err(rejected) = cx.call(session, app::SINK, request, done) {
            tally.borrow_mut().failed(&rejected.reason);
        }
    }
}

/// Runs it.
///
/// # Errors
/// A setting is out of range, sessions were not connected, or a call has failed.
pub fn run(settings: &Settings) -> Result<Outcome, ScenarioError> {
    settings.check()?;
    let mut world = World::new(settings.config())?;
    let (small, large) = (SharedTally::default(), SharedTally::default());
    let clients = start(&mut world, settings, &small, &large)?;
    app::connect_all(&mut world)?;
    for (host, calls) in clients.borrow().iter() {
        Calls::go_on(calls, &mut world.rpc(*host).context());
    }
    world.run_for(Duration::from_nanos(settings.warm_up_ns));
    let paced = |world: &World| -> u64 {
        world.hosts().filter_map(|h| world.peek(h, 0)).map(|rpc| rpc.stats().paced).sum()
    };
    let before = (Traffic::of(&mut world), paced(&world));
    for tally in [&small, &large] {
        tally.borrow_mut().latency = Times::default();
    }
    world.run_for(Duration::from_nanos(settings.time_ns));
    for tally in [&small, &large] {
        tally.borrow().check()?;
    }
    let traffic = Traffic::of(&mut world).since(&before.0);
    let time_ns = settings.time_ns;
    let all_bps = HOST_RATE_BPS as f64 * f64::from(settings.nodes);
    Ok(Outcome {
        small: Latency::from(&small.borrow().latency),
        large: Latency::from(&large.borrow().latency),
        calls_rps: per_second(traffic.responses, time_ns),
        load: per_second(traffic.wire_bytes_sent * 8, time_ns) as f64 / all_bps,
        packets_per_s: per_second(traffic.packets_made, time_ns),
        paced: paced(&world) - before.1,
        retransmitted: traffic.retransmitted,
        overflows: traffic.dropped(DropReason::BufferFull),
        digest: world.digest(),
    })
}

type Made = Rc<RefCell<Vec<(HostId, SharedCalls)>>>;

fn start(
    world: &mut World,
    settings: &Settings,
    small: &SharedTally,
    large: &SharedTally,
) -> Result<Made, ScenarioError> {
    let made = Made::default();
    let uris: Vec<String> = world.hosts().map(|host| world.uri(host)).collect();
    for host in world.hosts() {
        let (settings, made) = (*settings, Rc::clone(&made));
        let (small, large) = (Rc::clone(small), Rc::clone(large));
        let mut others = uris.clone();
        others.remove(host.0 as usize);
        world.start(host, move |nexus: &Nexus| -> Result<Rpc, SetupError> {
            let mut rpc = nexus.endpoint()?;
            app::answer(&mut rpc);
            let sessions = others.iter().map(|uri| rpc.connect(uri));
            let calls = Calls {
                sessions: sessions.collect::<Result<_, _>>()?,
                settings,
                rng: Rng::stream(settings.hosts.seed, u64::from(host.0) << 8),
                next_ns: 0.0,
                small: Rc::clone(&small),
                large: Rc::clone(&large),
            };
            made.borrow_mut().push((host, Rc::new(RefCell::new(calls))));
            Ok(rpc)
        })?;
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Spoilt, assert_refused};

    fn short() -> Settings {
        Settings { nodes: 4, warm_up_ns: 100_000, time_ns: 1_000_000, ..Settings::default() }
    }

    #[test]
    fn links_have_the_load_of_the_settings() {
        for load_ppm in [50_000, 200_000] {
            let settings = Settings { load_ppm, large_ppm: 100_000, ..short() };
            let seen = run(&settings).expect("runs");
            let ratio = seen.load * 1e6 / f64::from(load_ppm);
            assert!((0.7..1.3).contains(&ratio), "{load_ppm} {seen:?}");
            assert!(seen.small.count > seen.large.count && seen.large.count > 0, "{seen:?}");
            assert_eq!(run(&settings).expect("runs"), seen);
        }
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let bad: &[Spoilt<Settings>] = &[
            ("nodes", |s| s.nodes = 1),
            ("load_ppm", |s| s.load_ppm = 0),
            ("large_bytes", |s| s.large_bytes = 0),
            ("large_ppm", |s| s.large_ppm = 1_000_001),
            ("time_ns", |s| s.time_ns = 0),
            ("warm_up_ns", |s| s.warm_up_ns = u64::MAX),
        ];
        assert_refused(bad, Settings::default, run);
    }
}
