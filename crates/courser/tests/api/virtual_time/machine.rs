//! A minimal simulated machine: hosts on a network without delay, on one thread.
//!
//! Datapaths are endpoints of a [`MemNetwork`], control connections are pipes. Handlers and packets
//! take no time; worker handlers take [`SERVICE_NS`].
#![allow(unreachable_pub)]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use courser::parts::machine::{
    ControlLoop, Listener, Machine, Stream, Thread, VirtualClock, VirtualJob, VirtualWorkers,
};
use courser::{Config, Nexus, Rpc};
use courser_net::{AnyTransport, BindSpec, MemConfig, MemNetwork, OpenError};
use courser_proto::RequestId;

/// Execution time of a worker handler.
pub const SERVICE_NS: u64 = 2_000_000;
/// Maximum passes at one virtual time; more mean an endless wake-up.
const PASSES: usize = 10_000;

/// The log of events, one per line.
pub type Trace = Arc<Mutex<Vec<String>>>;

/// The pipes of all hosts.
#[derive(Default, Debug)]
struct Wires {
    ends: Vec<End>,
    /// Connections that can be accepted.
    listeners: BTreeMap<SocketAddr, VecDeque<usize>>,
    /// Ready tokens of each host.
    ready: BTreeMap<IpAddr, BTreeSet<u64>>,
    next_port: u16,
    /// Writes and closes are not delivered.
    cut: bool,
}

#[derive(Debug)]
struct End {
    inbox: VecDeque<u8>,
    local: SocketAddr,
    remote: SocketAddr,
    token: Option<u64>,
    other: Option<usize>,
    closed: bool,
}

impl Wires {
    fn touch(&mut self, end: usize) {
        if let Some(token) = self.ends[end].token {
            self.ready.entry(self.ends[end].local.ip()).or_default().insert(token);
        }
    }

    fn end(&mut self, local: SocketAddr, remote: SocketAddr, other: Option<usize>) -> usize {
        let inbox = VecDeque::new();
        self.ends.push(End { inbox, local, remote, token: None, other, closed: false });
        self.ends.len() - 1
    }
}

/// One end of a pipe.
#[derive(Debug)]
struct Pipe {
    wires: Arc<Mutex<Wires>>,
    end: usize,
}

impl Read for Pipe {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut wires = self.wires.lock().unwrap();
        let end = &mut wires.ends[self.end];
        if end.inbox.is_empty() && !end.closed {
            return Err(ErrorKind::WouldBlock.into());
        }
        end.inbox.read(buf)
    }
}

impl Write for Pipe {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let mut wires = self.wires.lock().unwrap();
        if wires.ends[self.end].closed {
            return Err(ErrorKind::BrokenPipe.into());
        }
        if let (false, Some(other)) = (wires.cut, wires.ends[self.end].other) {
            wires.ends[other].inbox.extend(buf);
            wires.touch(other);
        }
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stream for Pipe {
    fn register(&mut self, token: u64) {
        let mut wires = self.wires.lock().unwrap();
        wires.ends[self.end].token = Some(token);
        wires.touch(self.end);
    }

    fn connected(&mut self) -> io::Result<Option<()>> {
        match self.wires.lock().unwrap().ends[self.end].other {
            Some(_) => Ok(Some(())),
            None => Err(ErrorKind::ConnectionRefused.into()),
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.wires.lock().unwrap().ends[self.end].local)
    }

    fn abort_on_close(&self) {}
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let mut wires = self.wires.lock().unwrap();
        wires.ends[self.end].token = None;
        if let (false, Some(other)) = (wires.cut, wires.ends[self.end].other) {
            wires.ends[other].closed = true;
            wires.touch(other);
        }
    }
}

/// A host's listening pipe.
struct PipeListener {
    wires: Arc<Mutex<Wires>>,
    at: SocketAddr,
}

impl Listener for PipeListener {
    fn accept(&mut self) -> io::Result<(Box<dyn Stream>, SocketAddr)> {
        let mut wires = self.wires.lock().unwrap();
        let waiting = wires.listeners.get_mut(&self.at).and_then(VecDeque::pop_front);
        let end = waiting.ok_or(ErrorKind::WouldBlock)?;
        let remote = wires.ends[end].remote;
        Ok((Box::new(Pipe { wires: self.wires.clone(), end }), remote))
    }

    fn connect(&mut self, to: SocketAddr) -> io::Result<Box<dyn Stream>> {
        let mut wires = self.wires.lock().unwrap();
        wires.next_port += 1;
        let local = SocketAddr::new(self.at.ip(), 40_000 + wires.next_port);
        let near = wires.end(local, to, None);
        if wires.listeners.contains_key(&to) {
            let far = wires.end(to, local, Some(near));
            wires.ends[near].other = Some(far);
            wires.listeners.get_mut(&to).unwrap().push_back(far);
        }
        Ok(Box::new(Pipe { wires: self.wires.clone(), end: near }))
    }

    fn ready(&mut self, tokens: &mut Vec<u64>) {
        let ready = self.wires.lock().unwrap().ready.remove(&self.at.ip());
        tokens.extend(ready.unwrap_or_default());
    }
}

impl Drop for PipeListener {
    fn drop(&mut self) {
        self.wires.lock().unwrap().listeners.remove(&self.at);
    }
}

/// One host.
#[derive(Debug)]
pub struct Host {
    ip: IpAddr,
    network: Network,
    wires: Arc<Mutex<Wires>>,
    random: AtomicU64,
    /// `None`: nothing is logged.
    trace: Option<Trace>,
    state: Mutex<State>,
}

#[derive(Default, Debug)]
struct State {
    clocks: BTreeMap<Thread, Arc<VirtualClock>>,
    now_ns: u64,
    woken: BTreeSet<Thread>,
    control: Option<ControlLoop>,
    control_due: Option<u64>,
    workers: Option<(VirtualWorkers, usize)>,
    /// Running jobs with their end times.
    jobs: VecDeque<(u64, VirtualJob)>,
}

impl Host {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn note(&self, what: std::fmt::Arguments<'_>) {
        let Some(trace) = &self.trace else { return };
        let now_ns = self.state().now_ns;
        trace.lock().unwrap().push(format!("{now_ns} {} {what}", self.ip));
    }

    fn set_clocks(&self, now_ns: u64) {
        let mut state = self.state();
        state.now_ns = now_ns;
        state.clocks.values().for_each(|clock| clock.set(now_ns));
    }

    /// Runs the control loop if it was woken, is ready or due.
    fn control(&self) -> bool {
        let has_ready = {
            let wires = self.wires.lock().unwrap();
            let waits = |(at, queue): (&SocketAddr, &VecDeque<usize>)| {
                at.ip() == self.ip && !queue.is_empty()
            };
            wires.ready.contains_key(&self.ip) || wires.listeners.iter().any(waits)
        };
        let mut state = self.state();
        let due = state.control_due.is_some_and(|due| due <= state.now_ns);
        if !(state.woken.remove(&Thread::Control) || due || has_ready) {
            return false;
        }
        let Some(mut control) = state.control.take() else { return false };
        // The control loop wakes others, which takes the lock.
        drop(state);
        let turn = control.turn();
        self.note(format_args!("control {turn:?}"));
        let mut state = self.state();
        state.control_due = turn.due;
        state.control = (!turn.ended).then_some(control);
        true
    }

    /// Ends finished jobs and starts others.
    fn work(&self) -> bool {
        let mut state = self.state();
        let now_ns = state.now_ns;
        if let Some(&(end_ns, _)) = state.jobs.front()
            && end_ns <= now_ns
        {
            let (_, job) = state.jobs.pop_front().unwrap();
            state.woken.insert(Thread::Workers);
            drop(state);
            self.note(format_args!("worker {} {:?}", job.endpoint(), job.request()));
            job.run();
            return true;
        }
        if !state.woken.remove(&Thread::Workers) {
            return false;
        }
        let Some((workers, threads)) = state.workers.take() else { return false };
        drop(state);
        loop {
            let free = self.state().jobs.len() < threads;
            let Some(job) = free.then(|| workers.next()).flatten() else { break };
            self.state().jobs.push_back((now_ns + SERVICE_NS, job));
        }
        self.state().workers = Some((workers, threads));
        true
    }

    /// The next time at which the control loop or a worker is due.
    fn due_ns(&self) -> Option<u64> {
        let state = self.state();
        let job = state.jobs.front().map(|(end_ns, _)| *end_ns);
        [state.control_due, job].into_iter().flatten().min()
    }
}

impl Machine for Host {
    fn clock(&self, thread: Thread) -> Arc<VirtualClock> {
        let mut state = self.state();
        let now_ns = state.now_ns;
        let clock = state.clocks.entry(thread).or_default().clone();
        clock.set(now_ns);
        clock
    }

    fn random_u64(&self) -> u64 {
        let n = self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let z = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z ^ (z >> 27)
    }

    fn open(&self, _endpoint: u16, spec: &BindSpec) -> Result<AnyTransport, OpenError> {
        let IpAddr::V4(ip) = self.ip else { unreachable!("hosts have IPv4 addresses") };
        let host = u128::from(ip.to_ipv6_mapped());
        let config = MemConfig { host, port: spec.uri.port.into(), ..MemConfig::default() };
        let transport = self.network.0.endpoint(config);
        Ok(Box::new(transport?))
    }

    fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let number = host.strip_prefix('n').and_then(|n| n.parse().ok());
        let number = number.ok_or_else(|| io::Error::new(ErrorKind::NotFound, "no such host"))?;
        Ok(vec![SocketAddr::new(ip_of(number), port)])
    }

    fn listen(&self, bind: SocketAddr) -> io::Result<(Box<dyn Listener>, SocketAddr)> {
        let mut wires = self.wires.lock().unwrap();
        let port = if bind.port() == 0 { 31_850 } else { bind.port() };
        let at = SocketAddr::new(self.ip, port);
        if wires.listeners.insert(at, VecDeque::new()).is_some() {
            return Err(ErrorKind::AddrInUse.into());
        }
        Ok((Box::new(PipeListener { wires: self.wires.clone(), at }), at))
    }

    fn start_control(&self, control: ControlLoop) {
        self.state().control = Some(control);
    }

    fn start_workers(&self, workers: VirtualWorkers, threads: usize) {
        self.state().workers = Some((workers, threads));
    }

    fn wake(&self, thread: Thread) {
        self.state().woken.insert(thread);
    }

    fn handler_runs(&self, endpoint: u16, number: u16, request: Option<RequestId>) {
        self.note(format_args!("handler {endpoint} {number} {request:?}"));
    }
}

fn ip_of(number: u8) -> IpAddr {
    [10, 0, 0, number].into()
}

#[derive(Clone, Default)]
struct Network(MemNetwork);

impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Network")
    }
}

/// An endpoint, with the virtual time of its creation.
struct WorldEndpoint {
    host: usize,
    rpc: Rpc,
    made_ns: u64,
    /// It may have frames, or the test has used it.
    needs_pass: bool,
}

impl WorldEndpoint {
    fn due_ns(&self) -> Option<u64> {
        Some(self.made_ns + self.rpc.next_deadline_ns()?)
    }
}

/// Hosts `n0`, `n1`, ... and their endpoints.
pub struct World {
    hosts: Vec<Arc<Host>>,
    seats: Vec<Option<WorldEndpoint>>,
    network: Network,
    wires: Arc<Mutex<Wires>>,
    pub now_ns: u64,
    pub trace: Trace,
    /// Hosts that are added log their events.
    pub traced: bool,
}

impl World {
    pub fn new() -> World {
        World {
            hosts: Vec::new(),
            seats: Vec::new(),
            network: Network::default(),
            wires: Arc::default(),
            now_ns: 0,
            trace: Trace::default(),
            traced: true,
        }
    }

    /// Adds a host with a nexus.
    pub fn nexus(&mut self, config: Config) -> Nexus {
        let number = self.hosts.len() as u8;
        let host = Host {
            ip: ip_of(number),
            network: self.network.clone(),
            wires: self.wires.clone(),
            random: AtomicU64::new(u64::from(number)),
            trace: self.traced.then(|| self.trace.clone()),
            state: Mutex::new(State { now_ns: self.now_ns, ..State::default() }),
        };
        let host = Arc::new(host);
        self.hosts.push(host.clone());
        Nexus::bind_in(host, &format!("mem://n{number}:0"), config).unwrap()
    }

    /// Adds an endpoint of the last nexus; returns its number.
    pub fn seat(&mut self, rpc: Rpc) -> usize {
        let host = self.hosts.len() - 1;
        self.seats.push(Some(WorldEndpoint { host, rpc, made_ns: self.now_ns, needs_pass: true }));
        self.seats.len() - 1
    }

    pub fn rpc(&mut self, seat: usize) -> &mut Rpc {
        let seat = self.seats[seat].as_mut().unwrap();
        seat.needs_pass = true;
        &mut seat.rpc
    }

    /// Removes an endpoint.
    pub fn take(&mut self, seat: usize) -> Rpc {
        self.seats[seat].take().unwrap().rpc
    }

    /// The hosts, to check that they are dropped with the world.
    pub fn hosts(&self) -> Vec<Weak<Host>> {
        self.hosts.iter().map(Arc::downgrade).collect()
    }

    /// Cuts all control connections without a reset.
    pub fn cut(&mut self) {
        self.wires.lock().unwrap().cut = true;
    }

    /// Kills the process of a host: its system closes its connections.
    pub fn kill(&mut self, host: usize) {
        // The dropped endpoints must not notify their peers.
        let control = self.hosts[host].state().control.take();
        for seat in self.seats.iter_mut().filter(|s| s.as_ref().is_some_and(|s| s.host == host)) {
            *seat = None;
        }
        drop(control);
    }

    /// Whether a host's control loop has ended.
    pub fn has_ended(&self, host: usize) -> bool {
        self.hosts[host].state().control.is_none()
    }

    /// Runs until the virtual time `end_ns`.
    pub fn run_until(&mut self, end_ns: u64) {
        loop {
            self.run_due();
            let seats = self.seats.iter().flatten().filter_map(WorldEndpoint::due_ns);
            let hosts = self.hosts.iter().filter_map(|h| h.due_ns());
            let due_ns = seats.chain(hosts).min().unwrap_or(u64::MAX);
            assert!(due_ns > self.now_ns, "all due work has been done");
            self.advance(due_ns.min(end_ns) - self.now_ns);
            if due_ns > end_ns {
                return;
            }
        }
    }

    /// Lets time pass; nothing runs.
    pub fn advance(&mut self, ns: u64) {
        self.now_ns += ns;
        self.hosts.iter().for_each(|h| h.set_clocks(self.now_ns));
    }

    pub fn run_for(&mut self, ns: u64) {
        self.run_until(self.now_ns + ns);
    }

    /// Runs everything that is due now. Only woken parts run, as frames come only from a pass of
    /// another endpoint.
    fn run_due(&mut self) {
        for _ in 0..PASSES {
            let mut busy = false;
            for host in &self.hosts {
                busy |= host.control() | host.work();
            }
            for n in 0..self.seats.len() {
                busy |= self.pass(n);
            }
            if !busy {
                return;
            }
        }
        panic!("at {} ns the passes do not end", self.now_ns);
    }

    /// Runs a pass of an endpoint if there is a reason; returns whether it did something.
    fn pass(&mut self, n: usize) -> bool {
        let Some(seat) = &mut self.seats[n] else { return false };
        let host = &self.hosts[seat.host];
        let woken = host.state().woken.remove(&Thread::Endpoint(seat.rpc.index()));
        let due = seat.due_ns().is_some_and(|due| due <= self.now_ns);
        if !(woken || due || std::mem::take(&mut seat.needs_pass)) {
            return false;
        }
        let busy = seat.rpc.poll();
        seat.rpc.check();
        host.note(format_args!("pass {n} {busy}"));
        if busy {
            self.seats.iter_mut().flatten().for_each(|s| s.needs_pass = true);
        }
        busy
    }
}
