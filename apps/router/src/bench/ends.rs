//! The two threads: the node at which packets arrive, and that by which they leave.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::mpsc::{Receiver as Inbox, Sender as Mailbox, channel};
use std::thread;
use std::time::Duration;

use courser::parts::transport::{AnyTransport, Transport};
use courser::{Nexus, Rpc};
use courser_bench::affinity::{Cores, pin_current_thread};
use courser_bench::clock::Clock;
use serde_json::Value;

use super::baseline::{self, Receiver, Sender};
use super::sink::{IDLE, Line, PORTS, Sink};
use super::table::Packets;
use super::{BenchError, MTU, Measured, QUEUE, Settings, Window, Workload};
use crate::config::Config;
use crate::line::{BURST, CountingOutlet, Intake, MemoryIntake, Outlet};
use crate::local::unacknowledged;
use crate::node::{self, Node, NodeState, Shared};
use crate::packet;
use crate::route::NodeId;
use crate::routes::{Lookup, Routes};
use crate::run::{self, NodeError};

/// Time for the nodes to connect.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time after which packets that have not been counted are lost.
const LOST_NS: u64 = 2_000_000_000;
/// Between two windows both threads serve all nodes, for their heartbeats.
const BETWEEN_NS: u64 = 1_000_000;
/// Packets in flight of the baseline, of which the fastest is used.
const WINDOWS: [u64; 5] = [256, 512, 1_024, 2_048, 4_096];

/// The cluster: the node `a` with one port, and `b` with several.
fn config(batching: bool) -> Result<Config, BenchError> {
    let mut text = format!(
        "[cluster]\nname = \"bench\"\ntopology = \"switch\"\nfailure_timeout = \"8s\"\n\
         [interconnect]\nmtu = {MTU}\nqueue = {QUEUE}\nbatching = {batching}\n\
         [[node]]\nname = \"a\"\naddress = \"udp://127.0.0.1:31850\"\n\
         [[node.port]]\ninterface = \"lan0\"\naddresses = [\"10.1.0.1/24\"]\n\
         [[node]]\nname = \"b\"\naddress = \"udp://127.0.0.1:31851\"\n"
    );
    for port in 0..PORTS {
        text += &format!(
            "[[node.port]]\ninterface = \"lan{port}\"\naddresses = [\"10.2.{port}.1/24\"]\n"
        );
    }
    Config::parse(&text, "").map_err(|error| BenchError::Transport(error.to_string()))
}

/// A node with its endpoint.
struct End<O> {
    node: Shared<O>,
    rpc: Rpc,
    _nexus: Nexus,
}

impl<O: Outlet + 'static> End<O> {
    fn pass(&mut self) -> bool {
        let worked = self.rpc.poll();
        node::end_of_pass(&self.node);
        worked
    }

    fn frames(&self) -> (u64, u64) {
        let stats = self.rpc.transport_stats();
        (stats.tx_frames, stats.tx_bytes)
    }
}

/// Both nodes of this thread, with and without batching: their settings and addresses.
struct Bound(Vec<(Config, Nexus)>);

impl Bound {
    fn new(settings: &Settings, own: NodeId) -> Result<Bound, BenchError> {
        let bind = |batching| {
            let config = config(batching)?;
            let courser = run::courser_settings(&config, &run::settings(&config, own));
            let address = format!("{}://127.0.0.1:0", settings.over.scheme());
            let nexus = Nexus::bind_with(&address, courser).map_err(NodeError::from)?;
            Ok((config, nexus))
        };
        Ok(Bound([true, false].into_iter().map(bind).collect::<Result<_, BenchError>>()?))
    }

    fn addresses(&self) -> Vec<String> {
        self.0.iter().map(|(_, nexus)| nexus.local_uri()).collect()
    }

    /// Starts the nodes.
    fn start<O: Outlet + 'static>(
        self,
        own: NodeId,
        others: &[String],
        mut routes: impl FnMut(&Config) -> Result<Routes, BenchError>,
        mut outlet: impl FnMut(usize) -> O,
    ) -> Result<Vec<End<O>>, BenchError> {
        let mut ends = Vec::new();
        for (at, ((config, nexus), other)) in self.0.into_iter().zip(others).enumerate() {
            let mut node = run::settings(&config, own);
            node.addresses = vec![nexus.local_uri(), other.clone()];
            if own == 1 {
                node.addresses.reverse();
            }
            let mut rpc = nexus.endpoint().map_err(NodeError::from)?;
            let started = Node::start(&mut rpc, node, routes(&config)?, outlet(at), ());
            let node = started.map_err(NodeError::from)?;
            ends.push(End { node, rpc, _nexus: nexus });
        }
        Ok(ends)
    }
}

/// Addresses to and from the other thread.
struct Exchange {
    to: Mailbox<Vec<String>>,
    from: Inbox<Vec<String>>,
}

impl Exchange {
    fn pair() -> [Exchange; 2] {
        let ((to_b, from_a), (to_a, from_b)) = (channel(), channel());
        [Exchange { to: to_b, from: from_b }, Exchange { to: to_a, from: from_a }]
    }

    /// `None`: the other thread has failed.
    fn swap(&self, own: Vec<String>) -> Option<Vec<String>> {
        self.to.send(own).ok()?;
        self.from.recv().ok()
    }
}

/// Measures packets of a size.
pub(super) fn run(
    settings: &Settings,
    bytes: usize,
    clock: &Clock,
    cores: &Cores,
) -> Result<Measured, BenchError> {
    let mut routes = config(true)?.routes().map_err(NodeError::from)?;
    settings.table.announce(&mut routes)?;
    let packets = Packets::new(&routes, bytes);
    drop(routes);
    let line = Line::new();
    let max_frame = MTU - 48;
    let (sender, receiver) = baseline::pair(settings.over, max_frame)?;
    let address = sender.local_addr();
    let sender = Sender::new(sender, &receiver)?;
    let [first, last] = Exchange::pair();
    let count = packets.len();
    thread::scope(|scope| {
        let last = scope.spawn(|| {
            let stopped = StopAtEnd(Arc::clone(&line));
            pin(cores, cores.server)?;
            Last::start(settings, &stopped.0, last, count, (receiver, address))?.run(cores)
        });
        let first = scope.spawn(|| {
            let stopped = StopAtEnd(Arc::clone(&line));
            pin(cores, cores.client)?;
            let mut first = First::start(settings, &stopped.0, first, &packets, bytes, sender)?;
            first.clock = clock.clone();
            first.yields = !cores.distinct();
            first.measure(settings)
        });
        let (first, last) = (first.join(), last.join());
        let mut measured = first.map_err(|_| BenchError::Thread)??;
        let back = last.map_err(|_| BenchError::Thread)??;
        for (frames, back) in measured.frames[1..].iter_mut().zip(back) {
            frames.back = back;
        }
        Ok(measured)
    })
}

/// Without a second core the threads take turns anyway.
fn pin(cores: &Cores, core: usize) -> Result<(), BenchError> {
    if cores.distinct() { Ok(pin_current_thread(core)?) } else { Ok(()) }
}

/// Ends the other thread when this one ends.
struct StopAtEnd(Arc<Line>);

impl Drop for StopAtEnd {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// The last node's thread.
struct Last {
    line: Arc<Line>,
    ends: Vec<End<Sink>>,
    receiver: Receiver,
}

impl Last {
    fn start(
        settings: &Settings,
        line: &Arc<Line>,
        exchange: Exchange,
        count: usize,
        (receiver, sender): (AnyTransport, courser::parts::transport::Addr),
    ) -> Result<Last, BenchError> {
        let bound = Bound::new(settings, 1)?;
        let others = exchange.swap(bound.addresses()).ok_or(BenchError::Thread)?;
        let routes = |config: &Config| Ok(config.routes().map_err(NodeError::from)?);
        let ends = bound.start(1, &others, routes, |at| Sink::new(line, at + 1, count))?;
        let receiver = Receiver::new(receiver, sender, Sink::new(line, 0, count))?;
        Ok(Last { line: Arc::clone(line), ends, receiver })
    }

    /// Works until the first node's thread ends. Returns frames and bytes sent by the nodes.
    fn run(mut self, cores: &Cores) -> Result<Vec<(u64, u64)>, BenchError> {
        let mut current = IDLE;
        while !self.line.is_stopped() {
            let wanted = self.line.wanted();
            if wanted != current {
                self.begin(wanted);
                current = wanted;
            }
            let worked = match Workload::of(current) {
                Some(Workload::Baseline) => {
                    let worked = self.receiver.poll();
                    self.receiver.sink.flush();
                    worked
                }
                Some(Workload::Batching) => self.ends[0].pass(),
                Some(Workload::NoBatching) => self.ends[1].pass(),
                _ => self.serve(),
            };
            if !worked && !cores.distinct() {
                thread::yield_now();
            }
        }
        Ok(self.ends.iter().map(End::frames).collect())
    }

    fn serve(&mut self) -> bool {
        let worked = self.ends.iter_mut().map(End::pass).fold(false, |any, one| any | one);
        if !worked {
            thread::yield_now();
        }
        worked
    }

    fn begin(&mut self, workload: usize) {
        let first = self.line.first();
        self.receiver.sink.begin(first);
        self.ends.iter().for_each(|end| end.node.borrow_mut().outlet_mut().begin(first));
        self.line.changed(workload);
    }
}

/// The first node's thread.
struct First {
    line: Arc<Line>,
    ends: Vec<End<CountingOutlet>>,
    sender: Sender,
    intake: MemoryIntake,
    /// Packets that the intake has passed, and those that it has.
    passed: u64,
    count: u64,
    /// Packets of the baseline in flight.
    baseline_window: u64,
    bytes: usize,
    clock: Clock,
    yields: bool,
}

impl First {
    fn start(
        settings: &Settings,
        line: &Arc<Line>,
        exchange: Exchange,
        packets: &Packets,
        bytes: usize,
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
            intake: MemoryIntake::new(packets.iter().map(|packet| (0, packet)), None),
            passed: 0,
            count: packets.len() as u64,
            baseline_window: WINDOWS[0],
            bytes,
            clock: Clock::new(),
            yields: false,
        })
    }

    fn measure(mut self, settings: &Settings) -> Result<Measured, BenchError> {
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

    fn frames(&self) -> [(u64, u64); 3] {
        [self.sender.sent(), self.ends[0].frames(), self.ends[1].frames()]
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
        measured.destinations = self.count as usize;
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
        let room = self.sender.room(self.bytes);
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

    fn round(&mut self, window: Duration) -> [Window; 4] {
        Workload::ALL.map(|workload| self.window(workload, window))
    }

    /// Runs a workload until all its packets have been counted.
    fn window(&mut self, workload: Workload, time: Duration) -> Window {
        let (line, first) = (Arc::clone(&self.line), (self.passed % self.count) as u32);
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

    /// Takes a burst of packets, if there is room, and sends it. Returns its number of packets.
    fn pass(&mut self, workload: Workload, sent: u64, counted: &dyn Fn() -> u64) -> u64 {
        let packets = match workload {
            Workload::Baseline if sent - counted() + BURST as u64 <= self.baseline_window => {
                let sender = &mut self.sender;
                let packets = self.intake.burst(&mut |_, packet| sender.push(packet));
                sender.flush();
                packets
            }
            Workload::Batching => forward(&mut self.ends[0], &mut self.intake),
            Workload::NoBatching => forward(&mut self.ends[1], &mut self.intake),
            Workload::LookUp => look_up(&self.ends[0], &mut self.intake),
            Workload::Baseline => 0,
        };
        if packets == 0 && self.yields {
            thread::yield_now();
        }
        self.passed += packets as u64;
        packets as u64
    }

    fn pass_without_packets(&mut self, workload: Workload) {
        match workload {
            Workload::Batching => drop(self.ends[0].pass()),
            Workload::NoBatching => drop(self.ends[1].pass()),
            Workload::Baseline | Workload::LookUp => {}
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
fn forward(end: &mut End<CountingOutlet>, intake: &mut MemoryIntake) -> usize {
    let mut packets = 0;
    if unacknowledged(&end.rpc) as usize + BURST <= QUEUE {
        let (mut cx, node) = (end.rpc.context(), &end.node);
        packets = intake.burst(&mut |port, packet| {
            node.borrow_mut().receive(&mut cx, port, packet);
        });
    }
    end.pass();
    packets
}

/// The work of a node on a burst of packets without sending them.
fn look_up(end: &End<CountingOutlet>, intake: &mut MemoryIntake) -> usize {
    let node = end.node.borrow();
    let (routes, seed) = (node.routes(), node.settings().seed);
    let found = Cell::new(0_u64);
    let packets = intake.burst(&mut |_, packet| {
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
