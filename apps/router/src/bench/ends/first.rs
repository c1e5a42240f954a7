//! The first node's thread: the nodes at which packets arrive, and the sender of the baseline. It
//! measures.

use std::cell::Cell;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use courser_bench::clock::Clock;
use serde_json::Value;

use super::{Bound, End, Exchange};
use crate::bench::baseline::Sender;
use crate::bench::sink::{IDLE, Line};
use crate::bench::table::Arrivals;
use crate::bench::{BenchError, Measured, QUEUE, Round, Settings, Window, Workload};
use crate::config::Config;
use crate::line::{BURST, CountingOutlet};
use crate::local::unacknowledged;
use crate::node::NodeState;
use crate::packet;
use crate::routes::Lookup;
use crate::run::NodeError;

/// Time for the nodes to connect.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time after which packets that have not been counted are lost.
const LOST_NS: u64 = 10_000_000_000;
/// Between two windows both threads serve all nodes, for their heartbeats.
const BETWEEN_NS: u64 = 1_000_000;
/// Packets in flight of the baseline, of which the fastest is used.
const WINDOWS: [u64; 5] = [256, 512, 1_024, 2_048, 4_096];

/// The first node's thread.
pub(super) struct First {
    line: Arc<Line>,
    ends: Vec<End<CountingOutlet>>,
    sender: Sender,
    arrivals: Arrivals,
    /// Packets of the baseline in flight.
    baseline_window: u64,
    pub(super) clock: Clock,
    pub(super) yields: bool,
}

impl First {
    pub(super) fn start(
        settings: &Settings,
        line: &Arc<Line>,
        exchange: Exchange,
        arrivals: Arrivals,
        sender: Sender,
    ) -> Result<First, BenchError> {
        let bound = Bound::new(settings, 0)?;
        let others = exchange.swap(bound.addresses()).ok_or(BenchError::Thread)?;
        let routes = |config: &Config| {
            let mut routes = config.routes().map_err(NodeError::from)?;
            settings.table.announce(&mut routes)?;
            Ok(routes)
        };
        let ends = bound.start(0, &others, routes, |_| CountingOutlet::new(1))?;
        Ok(First {
            line: Arc::clone(line),
            ends,
            sender,
            arrivals,
            baseline_window: WINDOWS[0],
            clock: Clock::new(),
            yields: false,
        })
    }

    pub(super) fn measure(mut self, settings: &Settings) -> Result<Measured, BenchError> {
        self.connect()?;
        self.choose_baseline_window(settings.window);
        let mut measured = Measured::default();
        self.round(settings.window); // the first touches memory for the first time
        let (begin_ns, before) = (self.clock.now_ns(), self.frames());
        while measured.rounds.is_empty()
            || self.clock.now_ns() - begin_ns < settings.time.as_nanos() as u64
        {
            let round = self.round(settings.window);
            for (frames, window) in measured.frames.iter_mut().zip(&round) {
                frames.packets += window.counted;
            }
            measured.rounds.push(round);
        }
        let sent = before.into_iter().zip(self.frames());
        for (frames, (before, after)) in measured.frames.iter_mut().zip(sent) {
            frames.frames = after.0 - before.0;
            frames.bytes = after.1 - before.1;
        }
        self.finish(measured)
    }

    fn frames(&self) -> Vec<(u64, u64)> {
        let nodes = self.ends.iter().map(End::frames);
        std::iter::once(self.sender.sent()).chain(nodes).collect()
    }

    /// Adds what was counted over the whole run.
    fn finish(self, mut measured: Measured) -> Result<Measured, BenchError> {
        for lane in &self.line.lanes {
            let (disordered, misrouted) = lane.faults();
            measured.disordered += disordered;
            measured.misrouted += misrouted;
        }
        for end in &self.ends {
            let node = end.node.borrow();
            measured.misrouted += node.outlet().sent(0).packets;
            for (reason, n) in node.counters().drops() {
                let of = measured.drops.entry(reason.name()).or_insert(Value::from(0));
                *of = (of.as_u64().unwrap_or_default() + n).into();
            }
        }
        let node = self.ends[0].node.borrow();
        measured.routes = node.routes().len();
        measured.table_bytes = node.routes().fib().memory_bytes();
        measured.destinations = self.arrivals.len();
        measured.baseline_window = self.baseline_window;
        drop(node);
        Ok(measured)
    }

    fn connect(&mut self) -> Result<(), BenchError> {
        let begin_ns = self.clock.now_ns();
        while !self.ends.iter().all(|end| end.node.borrow().state(1) == NodeState::Direct) {
            if self.clock.now_ns() - begin_ns > PATIENCE.as_nanos() as u64 || self.line.is_stopped()
            {
                return Err(BenchError::NotConnected(PATIENCE));
            }
            serve(&mut self.ends);
        }
        Ok(())
    }

    /// The number of packets in flight with which the baseline is fastest.
    fn choose_baseline_window(&mut self, window: Duration) {
        let room = self.sender.room(self.arrivals.bytes());
        let mut best = (0.0, WINDOWS[0].min(room));
        for candidate in WINDOWS.into_iter().filter(|candidate| *candidate <= room) {
            self.baseline_window = candidate;
            self.window(Workload::Baseline, window / 4);
            let rate = self.window(Workload::Baseline, window / 2).rate();
            if rate > best.0 {
                best = (rate, candidate);
            }
        }
        self.baseline_window = best.1;
    }

    fn round(&mut self, window: Duration) -> Round {
        Workload::ALL.map(|workload| self.window(workload, window))
    }

    /// Runs a workload until all its packets have been counted.
    fn window(&mut self, workload: Workload, time: Duration) -> Window {
        let (line, first) = (Arc::clone(&self.line), self.arrivals.next());
        line.change(workload as usize, first, || serve(&mut self.ends));
        let lane = line.lanes.get(workload as usize);
        let before = lane.map_or(0, |lane| lane.packets());
        let counted = || lane.map_or(0, |lane| lane.packets()) - before;
        let begin_ns = self.clock.now_ns();
        let (mut sent, mut now_ns) = (0, begin_ns);
        while now_ns - begin_ns < time.as_nanos() as u64 {
            sent += self.pass(workload, sent, &counted);
            now_ns = self.clock.now_ns();
        }
        let end_ns = now_ns + LOST_NS;
        while lane.is_some() && counted() < sent && now_ns < end_ns && !line.is_stopped() {
            self.pass_without_packets(workload);
            now_ns = self.clock.now_ns();
        }
        let counted = if lane.is_some() { counted() } else { sent };
        let window = Window { sent, counted, elapsed_ns: now_ns - begin_ns };
        line.change(IDLE, 0, || serve(&mut self.ends));
        let begin_ns = self.clock.now_ns();
        while self.clock.now_ns() - begin_ns < BETWEEN_NS {
            serve(&mut self.ends);
        }
        window
    }

    /// Takes packets, if there is room, and sends them. Returns their number.
    fn pass(&mut self, workload: Workload, sent: u64, counted: &dyn Fn() -> u64) -> u64 {
        let arrivals = &mut self.arrivals;
        let packets = match workload.node() {
            Some(node) => {
                let burst = if workload == Workload::OneByOne { 1 } else { BURST };
                forward(&mut self.ends[node], arrivals, burst)
            }
            None if workload == Workload::LookUp => look_up(&self.ends[0], arrivals),
            None if sent.saturating_sub(counted()) + BURST as u64 <= self.baseline_window => {
                let sender = &mut self.sender;
                let packets = arrivals.take(BURST, &mut |_| {}, &mut |packet| sender.push(packet));
                sender.flush();
                packets
            }
            None => 0,
        };
        if packets == 0 && self.yields {
            thread::yield_now();
        }
        packets as u64
    }

    fn pass_without_packets(&mut self, workload: Workload) {
        if let Some(node) = workload.node() {
            self.ends[node].pass();
        }
        if self.yields {
            thread::yield_now();
        }
    }
}

/// Polls the nodes.
fn serve(ends: &mut [End<CountingOutlet>]) {
    if !ends.iter_mut().map(End::pass).fold(false, |any, one| any | one) {
        thread::yield_now();
    }
}

/// A pass of a node: packets of its port, if its link has room for them, and messages.
fn forward(end: &mut End<CountingOutlet>, arrivals: &mut Arrivals, burst: usize) -> usize {
    let mut packets = 0;
    if unacknowledged(&end.rpc) as usize + burst <= QUEUE {
        let (mut cx, node) = (end.rpc.context(), &end.node);
        packets =
            arrivals.take(burst, &mut |packet| node.borrow().prefetch(packet), &mut |packet| {
                node.borrow_mut().receive(&mut cx, 0, packet)
            });
    }
    end.pass();
    packets
}

/// The work of a node on a burst of packets without sending them.
fn look_up(end: &End<CountingOutlet>, arrivals: &mut Arrivals) -> usize {
    let node = end.node.borrow();
    let (routes, seed) = (node.routes(), node.settings().seed);
    let found = Cell::new(0_u64);
    let packets = arrivals.take(BURST, &mut |packet| node.prefetch(packet), &mut |packet| {
        let Ok(header) = packet::parse(packet) else { return };
        let flow = packet::flow_hash(packet, &header, seed);
        if let Lookup::Via(hop) = routes.lookup(header.dst, flow) {
            packet::decrement_ttl(packet, &header);
            found.set(found.get() + 1 + u64::from(hop.node));
        }
    });
    std::hint::black_box(found.get());
    packets
}
