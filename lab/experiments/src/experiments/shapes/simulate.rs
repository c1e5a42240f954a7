//! One run of a load.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use courser::{Nexus, Rpc};
use courser_sim::observe::Times;
use courser_sim::{CpuCosts, HostId, Rng, SetupError, World};
use serde::Serialize;

use super::clients::{Group, Lanes, SharedLanes, Sizes};
use super::load::{Load, SMALL_BYTES};
use super::recorder::{Flows, Recorder, SharedFlows};
use crate::scenario::app::{self, SharedTally};
use crate::scenario::jitter::delay_at_receiver;
use crate::scenario::{Latency, ScenarioError, Traffic, per_second, wire_bytes};

/// Length of the slices in which the time to settle is measured, ns.
pub(super) const SLICE_NS: u64 = 1_000_000;

/// Figures of a run, of the time after the warm-up if nothing else is stated.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Seen {
    /// Data of large requests that the receivers have accepted, bit/s.
    pub goodput_bps: u64,
    /// The same packets with headers, and the frames of hosts that make small calls, as a share of
    /// what the narrowest place of the network carries.
    pub line_share: f64,
    /// Round trips measured by the senders: every sample.
    pub rtt: Latency,
    /// Large requests from call to completion.
    pub completion: Latency,
    /// Small calls from call to completion; of those that end with the warm-up, during that.
    pub small: Latency,
    /// Bytes of the slowest flow as a share of the mean; 0: one sent nothing.
    pub slowest_share: f64,
    /// Jain's index of the flows' bytes.
    pub jain: f64,
    /// The longest queue of a switch's port after the first packets of all senders, bytes.
    pub queue_max_bytes: u64,
    /// Datagrams dropped by switches for lack of buffer, of the same time.
    pub overflows: u64,
    /// Packets sent again.
    pub retransmitted: u64,
    /// The 99th percentile of the round trips of each millisecond from the start on, ns.
    #[serde(skip)]
    pub slices: Vec<u64>,
    /// A hash over all events; 16 hexadecimal digits in JSON.
    #[serde(serialize_with = "crate::scenario::hex")]
    pub digest: u64,
}

/// A client with its host.
type Client = (HostId, SharedLanes);
type Made = Rc<RefCell<Vec<Client>>>;

/// The measurements of large requests and of small calls.
#[derive(Default)]
struct Tallies {
    large: SharedTally,
    small: SharedTally,
}

/// Runs a load on a network with this base round trip.
///
/// # Errors
/// Sessions were not connected, or a call has failed.
pub(super) fn simulate(load: &Load, base_rtt_ns: u64) -> Result<Seen, ScenarioError> {
    let mut run = Run::begin(load, base_rtt_ns)?;
    run.advance_to(load.first_packets_ns());
    run.flows.borrow_mut().restart_queues();
    run.advance_to(load.warm_up_ns());
    let (before, traffic) = (accepted(&run.world, load), Traffic::of(&mut run.world));
    let small_before = if load.small_ends { small_calls(&run.tallies) } else { 0 };
    run.begin_measurement(load);
    run.advance_to(load.duration_ns);
    run.flows.borrow_mut().end_slice();
    let tallies = &run.tallies;
    tallies.large.borrow().check()?;
    tallies.small.borrow().check()?;
    let small = small_calls(tallies) - small_before;
    let packets = (accepted(&run.world, load) - before).saturating_sub(small);
    let flows = run.flows.borrow();
    let (jain, slowest_share) = flows.fairness(load.flows());
    let time_ns = load.duration_ns - load.warm_up_ns();
    let data = load.data_of_packet();
    let carried = packets * wire_bytes(data) + flows.others_wire_bytes;
    Ok(Seen {
        goodput_bps: per_second(packets * data as u64 * 8, time_ns),
        line_share: load.share_of_line(carried, time_ns),
        rtt: Latency::from(&flows.rtts),
        completion: Latency::from(&tallies.large.borrow().latency),
        small: Latency::from(&tallies.small.borrow().latency),
        slowest_share,
        jain,
        queue_max_bytes: flows.queue_max_bytes,
        overflows: flows.overflows,
        retransmitted: Traffic::of(&mut run.world).since(&traffic).retransmitted,
        slices: run.slices,
        digest: run.world.digest(),
    })
}

/// A running load.
struct Run {
    world: World,
    flows: SharedFlows,
    tallies: Tallies,
    begin_ns: u64,
    /// The 99th percentile of the round trips of each slice.
    slices: Vec<u64>,
}

impl Run {
    /// Hosts, sessions, and plans for what happens to them.
    fn begin(load: &Load, base_rtt_ns: u64) -> Result<Run, ScenarioError> {
        let mut world = World::new(load.config(base_rtt_ns))?;
        let flows = Flows::new(load.sending(), load.receiving());
        world.set_tap(Box::new(Recorder(Rc::clone(&flows))));
        let tallies = Tallies::default();
        serve(&mut world, load)?;
        let clients = start(&mut world, load, &tallies)?;
        app::connect_all(&mut world)?;
        disturb(&mut world, load);
        for client in clients.borrow().iter() {
            plan(&mut world, load, client);
        }
        let begin_ns = world.now_ns();
        Ok(Run { world, flows, tallies, begin_ns, slices: Vec::new() })
    }

    /// Runs until a time after the begin.
    fn advance_to(&mut self, end_ns: u64) {
        let end_ns = self.begin_ns + end_ns;
        while self.world.now_ns() < end_ns {
            let slice_end_ns = self.begin_ns + (self.slices.len() as u64 + 1) * SLICE_NS;
            self.world.run_to(slice_end_ns.min(end_ns));
            if self.world.now_ns() == slice_end_ns {
                self.slices.push(self.flows.borrow_mut().end_slice());
            }
        }
    }

    /// Begins the measurement.
    fn begin_measurement(&mut self, load: &Load) {
        self.flows.borrow_mut().restart();
        self.tallies.large.borrow_mut().latency = Times::default();
        if !load.small_ends {
            self.tallies.small.borrow_mut().latency = Times::default();
        }
    }
}

/// Small calls that have ended since the last restart.
fn small_calls(tallies: &Tallies) -> u64 {
    tallies.small.borrow().latency.count()
}

/// Request packets that the receivers have accepted.
fn accepted(world: &World, load: &Load) -> u64 {
    let of = |host: u32, endpoint: u32| {
        let rpc = world.peek(HostId(host), endpoint as usize);
        rpc.map_or(0, |rpc| rpc.stats().rx_kinds[0])
    };
    let of_host = |host| (0..load.endpoints).map(|e| of(host, e)).sum::<u64>();
    load.receiving().map(of_host).sum()
}

/// Starts the servers.
fn serve(world: &mut World, load: &Load) -> Result<(), ScenarioError> {
    let endpoints = load.endpoints;
    for host in load.receiving() {
        world.start(HostId(host), move |nexus: &Nexus| -> Result<Vec<Rpc>, SetupError> {
            (0..endpoints).map(|_| app::server(nexus)).collect()
        })?;
        if load.packet_ns + load.handler_ns > 0 {
            let mut costs = CpuCosts { rx_packet_ns: load.packet_ns, ..load.hosts.cpu.costs() };
            costs.handlers.insert(app::SINK, load.handler_ns.max(costs.handler_ns));
            world.set_costs(HostId(host), costs);
        }
    }
    Ok(())
}

/// Starts the clients: those of large requests, and those of small calls.
fn start(world: &mut World, load: &Load, tallies: &Tallies) -> Result<Made, ScenarioError> {
    let made = Made::default();
    let packet = load.data_of_packet();
    // Full packets, so that counted packets are bytes.
    let full = |bytes: usize| bytes.max(packet) / packet * packet;
    let sizes = Sizes { least: full(load.least_bytes), most: full(load.most_bytes) };
    // Senders use endpoints in turn.
    let server = |world: &World, host: u32, number: u32| {
        format!("{}/{}", world.uri(HostId(host)), number % load.endpoints)
    };
    let small_to = |world: &World, number: u32, lanes: u32| Group {
        server: server(world, load.receiving().start, number),
        lanes,
        sizes: Sizes { least: SMALL_BYTES, most: SMALL_BYTES },
        tally: Rc::clone(&tallies.small),
        is_small: true,
    };
    let mut hosts: Vec<(u32, Vec<Group>)> = Vec::new();
    for sender in load.sending() {
        let large_to = |to| Group {
            server: server(world, to, sender),
            lanes: load.lanes,
            sizes,
            tally: Rc::clone(&tallies.large),
            is_small: false,
        };
        let mut groups: Vec<Group> = load.receivers_of(sender).map(large_to).collect();
        if load.small_of_sender() > 0 {
            groups.push(small_to(world, sender, load.small_of_sender()));
        }
        hosts.push((sender, groups));
    }
    let callers = load.callers().enumerate();
    hosts.extend(callers.map(|(n, (host, lanes))| (host, vec![small_to(world, n as u32, lanes)])));
    for (host, groups) in hosts {
        let (rng, made) = (load.rng(host, 0), Rc::clone(&made));
        world.start(HostId(host), move |nexus: &Nexus| -> Result<Rpc, SetupError> {
            let (rpc, lanes) = Lanes::start(nexus, &groups, rng.clone())?;
            made.borrow_mut().push((HostId(host), lanes));
            Ok(rpc)
        })?;
    }
    Ok(made)
}

/// Starts or stops the large requests or the small calls of a client.
fn switch(world: &mut World, (host, lanes): &Client, is_small: bool, on: bool) {
    if let Some(rpc) = world.endpoint(*host, 0) {
        lanes.borrow_mut().switch(&mut rpc.context(), is_small, on);
    }
}

/// Half to one and a half times a mean time, ns.
fn time_about(mean_ns: u64, rng: &mut Rng) -> u64 {
    mean_ns / 2 + rng.below(mean_ns)
}

/// Plans the start of a client, and its rests.
fn plan(world: &mut World, load: &Load, client: &Client) {
    let mut rng = load.rng(client.0.0, 1);
    let begin_ns = world.now_ns();
    let at = |world: &mut World, at_ns: u64, is_small: bool, on: bool| {
        let client = client.clone();
        world.at(begin_ns + at_ns, move |world| switch(world, &client, is_small, on));
    };
    let mut at_ns = rng.below(load.starts_ns.max(1));
    if load.small > 0 {
        at(world, at_ns, true, true);
        if load.small_ends {
            at(world, load.warm_up_ns(), true, false);
        }
    }
    let mut on = true;
    while at_ns < load.duration_ns {
        at(world, at_ns, false, on);
        if load.churn_ns == 0 {
            return;
        }
        at_ns += time_about(load.churn_ns, &mut rng);
        on = !on;
    }
}

/// Delays and pauses of hosts.
fn disturb(world: &mut World, load: &Load) {
    let hosts: Vec<HostId> = world.hosts().collect();
    let begin_ns = world.now_ns();
    for host in hosts {
        if load.jitter_ns > 0 {
            let link = world.fabric().uplink(host).reverse();
            delay_at_receiver(world, link, load.jitter_ns, load.rng(host.0, 2));
        }
        if load.pause_every_ns > 0 {
            let mut rng = load.rng(host.0, 3);
            let mut at_ns = rng.below(load.pause_every_ns);
            while at_ns < load.duration_ns {
                let pause = move |world: &mut World| world.pause(host, Duration::from_millis(1));
                world.at(begin_ns + at_ns, pause);
                at_ns += time_about(load.pause_every_ns, &mut rng);
            }
        }
    }
}
