//! The machine of a nexus on a simulated host: the simulator's implementation of
//! [`courser::parts::machine`].

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use courser::parts::machine::{
    ControlLoop, Listener, Machine, Thread, VirtualClock, VirtualWorkers,
};
use courser_buf::Addr;
use courser_net::{AnyTransport, BindSpec, MemError, OpenError};
use courser_proto::RequestId;

use super::costs::Costs;
use super::life::Life;
use super::port::{NicConfig, SharedPort, SimTransport, lock};
use super::{host_of, ip_of};
use crate::packet::HostId;
use crate::rng::Rng;
use crate::streams::{SharedStreams, StreamListener};
use crate::world::handler_begins;

/// Threads that others have woken, in order, until the world processes them.
pub(crate) type Wakes = Arc<Mutex<Vec<(Life, Thread)>>>;

/// The machine of one process.
pub(crate) struct SimMachine {
    life: Life,
    hosts: usize,
    nic: NicConfig,
    costs: Costs,
    wakes: Wakes,
    streams: SharedStreams,
    inner: Mutex<Inner>,
}

/// A dispatch handler that ran.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Run {
    pub(crate) endpoint: u16,
    pub(crate) req_type: u16,
    pub(crate) request: RequestId,
}

/// First request numbers of sessions: the upper half of the random bits of a new session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Numbers {
    /// Uniform, as in production.
    #[default]
    Anywhere,
    /// Up to 255 before their wrap, or before the middle, where a signed comparison would wrap.
    NearWrap,
    /// All sessions begin with the same number, 64 before the wrap, so that a session reuses
    /// request numbers of an earlier one that has ended.
    Same,
}

impl Numbers {
    /// Random bits whose upper half is of this kind.
    fn place(self, random: u64) -> u64 {
        let low = random & u64::from(u32::MAX);
        let before = |end: u32, n: u64| u64::from(end.wrapping_sub(1 + n as u32)) << 32 | low;
        match self {
            Numbers::Anywhere => random,
            Numbers::NearWrap => {
                let middle = if random >> 63 == 0 { 0 } else { 1 << 31 };
                before(middle, random >> 32 & 0xff)
            }
            Numbers::Same => before(0, 63),
        }
    }
}

struct Inner {
    rng: Rng,
    numbers: Numbers,
    /// Start value of the clocks.
    start_ns: u64,
    clocks: BTreeMap<Thread, Arc<VirtualClock>>,
    /// Ports that were opened and that the world has not fetched yet.
    opened: Vec<(u32, SharedPort)>,
    /// Ports that are open.
    bound: BTreeMap<u32, SharedPort>,
    control: Option<ControlLoop>,
    workers: Option<(VirtualWorkers, usize)>,
    runs: Vec<Run>,
}

impl SimMachine {
    #[expect(clippy::too_many_arguments, reason = "the parts of one host")]
    pub(crate) fn new(
        life: Life,
        hosts: usize,
        nic: NicConfig,
        costs: Costs,
        wakes: Wakes,
        streams: SharedStreams,
        (rng, numbers): (Rng, Numbers),
        start_ns: u64,
    ) -> Self {
        let inner = Inner {
            rng,
            numbers,
            start_ns,
            clocks: BTreeMap::new(),
            opened: Vec::new(),
            bound: BTreeMap::new(),
            control: None,
            workers: None,
            runs: Vec::new(),
        };
        SimMachine { life, hosts, nic, costs, wakes, streams, inner: Mutex::new(inner) }
    }

    /// Ports that were opened since the last call.
    pub(crate) fn take_opened(&self) -> Vec<(u32, SharedPort)> {
        std::mem::take(&mut lock(&self.inner).opened)
    }

    pub(crate) fn take_control(&self) -> Option<ControlLoop> {
        lock(&self.inner).control.take()
    }

    pub(crate) fn take_workers(&self) -> Option<(VirtualWorkers, usize)> {
        lock(&self.inner).workers.take()
    }

    /// Appends the handlers that ran since the last call to the list.
    pub(crate) fn take_runs(&self, to: &mut Vec<Run>) {
        to.append(&mut lock(&self.inner).runs);
    }

    /// A thread's clock.
    pub(crate) fn clock_of(&self, thread: Thread) -> Arc<VirtualClock> {
        self.clock(thread)
    }
}

impl fmt::Debug for SimMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimMachine").field("life", &self.life).finish_non_exhaustive()
    }
}

impl Machine for SimMachine {
    fn clock(&self, thread: Thread) -> Arc<VirtualClock> {
        let mut inner = lock(&self.inner);
        let start_ns = inner.start_ns;
        let clock = inner.clocks.entry(thread).or_insert_with(|| {
            let clock = VirtualClock::default();
            clock.set(start_ns);
            Arc::new(clock)
        });
        clock.clone()
    }

    fn random_u64(&self) -> u64 {
        let mut inner = lock(&self.inner);
        let random = inner.rng.next_u64();
        inner.numbers.place(random)
    }

    fn open(&self, endpoint: u16, spec: &BindSpec) -> Result<AnyTransport, OpenError> {
        let own = IpAddr::V4(ip_of(self.life.host));
        let mut inner = lock(&self.inner);
        inner.bound.retain(|_, port| !lock(port).closed);
        let wanted = u32::from(spec.uri.port);
        let first = if wanted == 0 { 49_152 } else { wanted };
        let free = |port: &u32| !inner.bound.contains_key(port);
        let port = match wanted {
            0 => (first..65_536).find(free),
            _ => Some(first).filter(free),
        };
        let in_use = || OpenError::from(MemError::InUse(wanted, u128::from(self.life.host.0)));
        let port = port.ok_or_else(in_use)?;
        let local = Addr::from_socket(SocketAddr::new(own, port as u16));
        drop(inner);
        let clock = self.clock(Thread::Endpoint(endpoint));
        let mut nic = self.nic.clone();
        // The only setting of a simulated socket.
        if let Some(bytes) = spec.common.max_frame {
            nic.max_frame = nic.max_frame.min(bytes);
        }
        let (transport, shared) = SimTransport::new(local, &nic, self.costs.clone(), clock);
        let mut inner = lock(&self.inner);
        inner.bound.insert(port, shared.clone());
        inner.opened.push((port, shared));
        Ok(Box::new(transport))
    }

    fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let number = host.strip_prefix('n').and_then(|n| n.parse().ok());
        match number.filter(|&n: &u32| (n as usize) < self.hosts) {
            Some(n) => Ok(vec![SocketAddr::new(ip_of(HostId(n)).into(), port)]),
            None => {
                let last = self.hosts.saturating_sub(1);
                let text = format!("the simulated datacenter has hosts n0 to n{last}");
                Err(io::Error::new(io::ErrorKind::NotFound, text))
            }
        }
    }

    fn listen(&self, bind: SocketAddr) -> io::Result<(Box<dyn Listener>, SocketAddr)> {
        let own = host_of(bind.ip(), self.hosts) == Some(self.life.host);
        if !own && !bind.ip().is_unspecified() {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        }
        let port = lock(&self.streams).listen(self.life, bind.port())?;
        let listener = StreamListener::new(self.life, port, self.streams.clone());
        Ok((Box::new(listener), SocketAddr::new(ip_of(self.life.host).into(), port)))
    }

    fn start_control(&self, control: ControlLoop) {
        lock(&self.inner).control = Some(control);
        self.wake(Thread::Control);
    }

    fn start_workers(&self, workers: VirtualWorkers, threads: usize) {
        lock(&self.inner).workers = Some((workers, threads));
    }

    fn wake(&self, thread: Thread) {
        lock(&self.wakes).push((self.life, thread));
    }

    fn handler_runs(&self, endpoint: u16, number: u16, request: Option<RequestId>) {
        handler_begins(None);
        let mut inner = lock(&self.inner);
        if let Some(clock) = inner.clocks.get(&Thread::Endpoint(endpoint)) {
            clock.spend(self.costs.get().handler(number));
        }
        inner.runs.extend(request.map(|request| Run { endpoint, req_type: number, request }));
    }
}
