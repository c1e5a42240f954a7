//! Transport in memory: endpoints of one process, in one thread or in several.
//!
//! For tests, for counting instructions and for programs that contain client and server. Frames are
//! copied once into the receiver's queue. A full queue drops frames and counts them. In one thread
//! the results are deterministic. No lock is taken between `path_open` and `path_close`, unless a
//! destination appears or disappears.
//!
//! # Invariant
//! A sender pushes to the queue, then reads `armed`; a receiver that sleeps sets `armed`, then reads
//! the queue. With a fence between, at least one of them sees the other.

mod queue;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use courser_buf::{Addr, Ecn, PathId, RX_BURST, RxBurst, RxFrame, TX_GATHER, TxBurst};
use rustix::event::{EventfdFlags, eventfd};

use crate::options::{CommonOptions, NamedOption, TransportOptions, set};
use crate::{Caps, OpenError, Path, PathError, PathTable, Transport, TransportStats};
use queue::{Queue, Receiver};

/// The scheme of addresses in memory.
const SCHEME: &str = "mem";
/// See [`Caps::gather_from`]: the same bytes are copied once for the receiver, by either packing.
const GATHER_FROM: usize = usize::MAX;
/// Largest depth and frame that can be set; together they bound an endpoint's memory to 4 GiB.
const MAX_DEPTH: usize = 65_536;
const MAX_FRAME: usize = 65_536;

/// Settings of an endpoint.
#[derive(Clone, Copy, Debug)]
pub struct MemConfig {
    /// Number of the simulated node, [`Addr::host`]. Default: 1.
    pub host: u128,
    /// Number of the endpoint on the node, [`Addr::port`]; 0 (default): the next free one.
    pub port: u32,
    /// Largest frame in bytes, 1 to 65,536. Default: 1472, as over Ethernet.
    pub max_frame: usize,
    /// Frames that its queue holds before it drops, 1 to 65,536. Memory: up to `max_frame` bytes
    /// for each of its places, of which there are at most twice as many as it holds and lends (128);
    /// allocated on first use. Default: 1024.
    pub depth: usize,
}

impl Default for MemConfig {
    fn default() -> Self {
        MemConfig { host: 1, port: 0, max_frame: 1472, depth: 1024 }
    }
}

/// Options of a network in memory in code and in addresses (`mem://127.0.0.1:0?depth=64`): the
/// settings of [`MemConfig`], each in place of its default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemOptions {
    /// [`MemConfig::max_frame`]
    pub max_frame: Option<usize>,
    /// [`MemConfig::depth`]; [`CommonOptions::queue_bytes`] allows as many as have room in it.
    pub depth: Option<usize>,
    /// [`MemConfig::host`]
    pub host: Option<u128>,
}

impl TransportOptions for MemOptions {
    const SCHEME: &'static str = SCHEME;
    const NAMED: &'static [NamedOption<Self>] = &[
        ("max_frame", |o, text| set(&mut o.max_frame, text)),
        ("depth", |o, text| set(&mut o.depth, text)),
        ("host", |o, text| set(&mut o.host, text)),
    ];

    fn check_host(host: IpAddr) -> Result<(), OpenError> {
        if host.is_unspecified() { Err(MemError::Unspecified(host).into()) } else { Ok(()) }
    }
}

impl MemOptions {
    /// All settings of an endpoint. `ip` is the host of its address, when that is an IP address:
    /// the node's number is then the one that [`Addr::from_socket`] makes of it.
    pub fn config(&self, ip: Option<IpAddr>, port: u16, common: &CommonOptions) -> MemConfig {
        let defaults = MemConfig::default();
        let max_frame = self.max_frame.or(common.max_frame).unwrap_or(defaults.max_frame);
        let frames = |bytes: usize| (bytes / max_frame.max(1)).clamp(1, MAX_DEPTH);
        let number = |ip| Addr::from_socket(SocketAddr::new(ip, port)).host;
        MemConfig {
            host: self.host.or(ip.map(number)).unwrap_or(defaults.host),
            port: port.into(),
            max_frame,
            depth: self.depth.or(common.queue_bytes.map(frames)).unwrap_or(defaults.depth),
        }
    }
}

/// Why an endpoint in memory could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemError {
    /// Another endpoint has the address.
    #[error("port {0} of node {1} is in use; choose another, or 0 for any")]
    InUse(u32, u128),
    /// A setting is out of range.
    #[error("{0} is {1}; set it from 1 to {2}")]
    Range(&'static str, usize, usize),
    /// The address names no node.
    #[error("{0} is not the address of one host; use an address such as 127.0.0.1")]
    Unspecified(IpAddr),
    /// Too many networks were opened by name.
    #[error("{0} networks in memory were opened by name, which is the limit; reuse a name")]
    Networks(usize),
    /// The system refused a descriptor for waiting.
    #[error("no event descriptor: {0}; raise the limit of open files (`ulimit -n`)")]
    EventFd(#[source] io::Error),
}

impl From<MemError> for OpenError {
    fn from(e: MemError) -> Self {
        match e {
            MemError::InUse(..) => OpenError::in_use(e),
            _ => OpenError::transport(e),
        }
    }
}

/// The receiving side of an endpoint, shared by all its senders.
struct Inbox {
    queue: Arc<Queue>,
    max_frame: usize,
    /// The receiver requests a signal on `event` for the next frame.
    armed: AtomicBool,
    /// Its endpoint is gone.
    closed: AtomicBool,
    overflow: AtomicU64,
    event: OwnedFd,
}

impl Inbox {
    fn new(cfg: &MemConfig) -> Result<(Self, Receiver), MemError> {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map_err(|e| MemError::EventFd(e.into()))?;
        let (queue, receiver) = Queue::new(cfg.depth, RX_BURST);
        let inbox = Inbox {
            queue,
            max_frame: cfg.max_frame,
            armed: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            overflow: AtomicU64::new(0),
            event,
        };
        Ok((inbox, receiver))
    }

    /// Adds a frame; when the queue is full, counts it.
    #[inline]
    fn push(&self, src: Addr, write: impl FnOnce(&mut Vec<u8>)) {
        if !self.queue.push(src, write) {
            self.overflow.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn signal(&self) {
        // Fails only when the count is at its limit, and then the descriptor is readable.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// Wakes the receiver if it sleeps; after pushing.
    fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.armed.load(Ordering::Relaxed) && self.armed.swap(false, Ordering::AcqRel) {
            self.signal();
        }
    }

    /// Requests a signal. The receiver then looks for frames once more.
    fn arm(&self) {
        let mut count = [0u8; 8];
        // Empty is the usual case: EAGAIN.
        let _ = rustix::io::read(&self.event, &mut count);
        self.armed.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
    }
}

#[derive(Default)]
struct Nodes {
    inboxes: BTreeMap<Addr, Arc<Inbox>>,
}

struct Hub {
    nodes: Mutex<Nodes>,
    /// Incremented when an endpoint appears, so that paths resolve their destination again.
    generation: AtomicU64,
}

impl Hub {
    fn nodes(&self) -> MutexGuard<'_, Nodes> {
        // The map is consistent at every point where a holder could panic.
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A network in memory: its endpoints reach only each other.
#[derive(Clone)]
pub struct MemNetwork(Arc<Hub>);

impl Default for MemNetwork {
    fn default() -> Self {
        MemNetwork::new()
    }
}

impl MemNetwork {
    /// A network without endpoints.
    pub fn new() -> Self {
        MemNetwork(Arc::new(Hub { nodes: Mutex::default(), generation: AtomicU64::new(0) }))
    }

    /// Makes an endpoint. Dropping it frees its address; open paths then reach the next endpoint
    /// with that address, as with UDP.
    ///
    /// # Errors
    /// [`MemError`]: the address is taken, or a setting out of range.
    pub fn endpoint(&self, cfg: MemConfig) -> Result<MemTransport, MemError> {
        for (what, value, max) in
            [("depth", cfg.depth, MAX_DEPTH), ("max_frame", cfg.max_frame, MAX_FRAME)]
        {
            if value == 0 || value > max {
                return Err(MemError::Range(what, value, max));
            }
        }
        let (inbox, receiver) = Inbox::new(&cfg)?;
        let inbox = Arc::new(inbox);
        let mut nodes = self.0.nodes();
        let in_use = |port| nodes.inboxes.contains_key(&Addr { host: cfg.host, port });
        let port = match cfg.port {
            0 => (1..=u32::MAX).find(|&p| !in_use(p)).unwrap_or(0),
            port => port,
        };
        let local = Addr { host: cfg.host, port };
        if port == 0 || in_use(port) {
            return Err(MemError::InUse(port, cfg.host));
        }
        nodes.inboxes.insert(local, inbox.clone());
        drop(nodes);
        self.0.generation.fetch_add(1, Ordering::Release);
        Ok(MemTransport::new(self.0.clone(), (inbox, receiver), local, &cfg))
    }
}

/// A destination; its inbox while there is one.
struct Destination {
    addr: Addr,
    inbox: Option<Arc<Inbox>>,
    /// The network's generation at the last lookup.
    generation: u64,
}

/// An endpoint of a [`MemNetwork`].
pub struct MemTransport {
    hub: Arc<Hub>,
    inbox: Arc<Inbox>,
    receiver: Receiver,
    local: Addr,
    caps: Caps,
    paths: PathTable<Destination>,
    /// A foreign event loop polls the descriptor.
    polled: AtomicBool,
    stats: TransportStats,
}

impl MemTransport {
    fn new(
        hub: Arc<Hub>,
        (inbox, receiver): (Arc<Inbox>, Receiver),
        local: Addr,
        cfg: &MemConfig,
    ) -> Self {
        MemTransport {
            hub,
            inbox,
            receiver,
            local,
            caps: Caps {
                scheme: SCHEME,
                max_frame: cfg.max_frame,
                headroom: 0,
                tailroom: 0,
                gather: TX_GATHER,
                gather_from: GATHER_FROM,
                train_frames: 1,
                train_bytes: cfg.max_frame,
                polls_memory: true,
                rx_queue_frames: cfg.depth,
                small_frame: cfg.max_frame, // the queue counts frames, whatever their size
                rx_queue_small_frames: cfg.depth,
                rx_queue_per_peer: false,
                holds_frames: false,
                line_rate_bps: None,
            },
            paths: PathTable::default(),
            polled: AtomicBool::new(false),
            stats: TransportStats::default(),
        }
    }
}

impl MemTransport {
    /// Requests a signal for the next frame. Returns whether frames have arrived meanwhile.
    fn arm(&self) -> bool {
        self.inbox.arm();
        !self.receiver.is_empty()
    }

    /// A burst that is not empty.
    fn receive<'a>(&'a mut self, out: &mut RxBurst<'a>) {
        let (before, mut bytes) = (out.len(), 0);
        self.receiver.take(out.remaining_capacity(), |packet| {
            bytes += packet.data.len() as u64;
            // No switch marks frames here.
            out.push(RxFrame::new(packet.src, &packet.data, Ecn::Ect0));
        });
        let frames = (out.len() - before) as u64;
        self.stats.rx_calls += u64::from(frames > 0);
        self.stats.rx_frames += frames;
        self.stats.rx_bytes += bytes;
    }
}

impl Destination {
    /// The inbox; looked up again when it is closed and other endpoints have appeared.
    #[inline]
    fn find(&mut self, hub: &Hub) -> Option<&Inbox> {
        if self.inbox.as_ref().is_none_or(|i| i.closed.load(Ordering::Relaxed)) {
            self.look_up(hub);
        }
        self.inbox.as_deref()
    }

    #[cold]
    fn look_up(&mut self, hub: &Hub) {
        self.inbox = None;
        let generation = hub.generation.load(Ordering::Acquire);
        if generation != self.generation {
            self.generation = generation;
            self.inbox = hub.nodes().inboxes.get(&self.addr).cloned();
        }
    }
}

impl Transport for MemTransport {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn local_addr(&self) -> Addr {
        self.local
    }

    fn path_open(&mut self, remote: Addr, _local: Option<Addr>) -> Result<Path, PathError> {
        if remote.port == 0 {
            return Err(PathError::Unsupported(remote, SCHEME, self.local));
        }
        let mut destination = Destination { addr: remote, inbox: None, generation: u64::MAX };
        let max_frame = destination.find(&self.hub).map_or(self.caps.max_frame, |i| i.max_frame);
        let id = self.paths.open(destination)?;
        Ok(Path { id, max_frame: max_frame.min(self.caps.max_frame) })
    }

    fn path_close(&mut self, path: PathId) {
        self.paths.close(path);
    }

    fn tx_burst(&mut self, burst: &mut TxBurst) {
        if burst.is_empty() {
            return;
        }
        self.stats.tx_calls += 1;
        while let Some(front) = burst.front() {
            let path = front.path;
            let destination = self.paths.get_mut(path);
            let Some(inbox) = destination.and_then(|d| d.find(&self.hub)) else {
                burst.pop_front();
                self.stats.tx_dropped += 1;
                continue;
            };
            while burst.front().is_some_and(|f| f.path == path) {
                let Some(frame) = burst.pop_front() else { break };
                if frame.len() as usize > self.caps.max_frame.min(inbox.max_frame) {
                    self.stats.tx_dropped += 1;
                    continue;
                }
                self.stats.tx_frames += 1;
                self.stats.tx_bytes += u64::from(frame.len());
                inbox.push(self.local, |data| frame.copy_to(data));
            }
            inbox.wake();
        }
    }

    fn tx_copy(&mut self, path: PathId, frame: &[u8]) -> bool {
        self.stats.tx_calls += 1;
        match self.paths.get_mut(path).and_then(|d| d.find(&self.hub)) {
            Some(inbox) if frame.len() <= self.caps.max_frame.min(inbox.max_frame) => {
                self.stats.tx_frames += 1;
                self.stats.tx_bytes += frame.len() as u64;
                inbox.push(self.local, |data| data.extend_from_slice(frame));
                inbox.wake();
            }
            _ => self.stats.tx_dropped += 1,
        }
        true
    }

    #[inline]
    fn tx_reclaim(&mut self) -> usize {
        0
    }

    fn tx_flush(&mut self) {}

    #[inline]
    fn rx_burst<'a>(&'a mut self, out: &mut RxBurst<'a>) {
        let is_polled = || self.polled.load(Ordering::Relaxed);
        if !self.receiver.is_empty() || is_polled() && self.arm() {
            self.receive(out);
        }
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.inbox.event.as_fd())
    }

    /// From now on an empty burst costs a system call, and so does the first frame after it.
    fn signal_always(&self) {
        self.polled.store(true, Ordering::Relaxed);
        self.inbox.armed.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        if !self.receiver.is_empty() {
            self.inbox.signal();
        }
    }

    fn fall_asleep(&mut self) -> bool {
        self.receiver.is_empty() && !self.arm()
    }

    fn wake_up(&mut self) {
        if !self.polled.load(Ordering::Relaxed) {
            self.inbox.armed.store(false, Ordering::Relaxed);
        }
    }

    fn wait(&mut self, wake: RawFd, timeout_ns: Option<u64>) -> io::Result<()> {
        if !self.fall_asleep() {
            return Ok(());
        }
        let result = crate::wait_readable(self.inbox.event.as_fd(), wake, timeout_ns);
        self.wake_up();
        result
    }

    fn stats(&self) -> TransportStats {
        TransportStats { rx_overflow: self.inbox.overflow.load(Ordering::Relaxed), ..self.stats }
    }
}

impl Drop for MemTransport {
    fn drop(&mut self) {
        self.hub.nodes().inboxes.remove(&self.local);
        self.inbox.closed.store(true, Ordering::Relaxed);
    }
}
