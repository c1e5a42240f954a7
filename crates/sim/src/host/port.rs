//! A host's NIC from the endpoint's side: [`SimTransport`], with transmit and receive queues of
//! limited depth.
//!
//! Transmitted frames remain references to message memory until the NIC begins to send them, as
//! with DMA: a buffer that is changed too early changes the sent bytes, which is detected
//! (E24-E27). Received frames occupy a descriptor until the burst after the one that lent them
//! (E29); a frame without a free descriptor is dropped (E60).

use std::collections::VecDeque;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use courser::Transport;
use courser::TransportStats;
use courser::parts::machine::VirtualClock;
use courser_buf::Addr;
use courser_buf::{Ecn, PathId, RxBurst, RxFrame, TX_GATHER, TxBurst, TxFrame};

use courser_net::{Caps, Path, PathError, PathTable};

use super::costs::Costs;
use super::hash::payload_hash;
use super::packets_in;

/// The scheme of addresses in the simulator.
pub(crate) const SCHEME: &str = "sim";

/// Gather entries of a frame: as many as the paper's NIC has (S19), fewer than other transports.
const NIC_GATHER: usize = 32;

const _: () = assert!(NIC_GATHER < TX_GATHER);

/// Spare buffers that an endpoint keeps.
const SPARE: usize = 256;

/// A frame that an endpoint has received.
pub(crate) struct Received {
    pub(crate) src: Addr,
    pub(crate) ecn: Ecn,
    pub(crate) bytes: Vec<u8>,
    /// When it arrived at the NIC, in the time of the host.
    pub(crate) arrived_ns: u64,
    /// Sent before the receiving process started: not meant for it.
    pub(crate) stale: bool,
}

/// A queued frame of the transmit queue.
pub(crate) struct Queued {
    frame: Content,
    pub(crate) dst: Addr,
    pub(crate) flow: u32,
    /// Earliest start of its transmission, in the host's time.
    pub(crate) ready_ns: u64,
    /// Time of its hand-over, in the host's time.
    pub(crate) queued_ns: u64,
    /// Hash of the bytes at hand-over.
    hash: u64,
}

/// A frame that the NIC has read.
pub(crate) struct Taken {
    pub(crate) bytes: Vec<u8>,
    pub(crate) dst: Addr,
    pub(crate) flow: u32,
    /// In the host's time.
    pub(crate) queued_ns: u64,
    pub(crate) hash: u64,
}

enum Content {
    /// Still in message memory.
    Held(TxFrame),
    /// Read by the NIC.
    Read(Vec<u8>),
}

/// The queues of one endpoint, shared by its transport and the world.
#[derive(Default)]
pub(crate) struct Port {
    pub(crate) rx: VecDeque<Received>,
    /// Room of the receive queue: of received frames in the queue, and of lent ones.
    rx_depth: usize,
    /// Frames of at most this size take one unit of room.
    small_frame: usize,
    /// Units of any other frame.
    large_units: usize,
    /// Units of the frames in the queue, and of those that are lent.
    queued_units: usize,
    lent_units: usize,
    pub(crate) tx: VecDeque<Queued>,
    tx_depth: usize,
    /// Bytes of the frames that the NIC was given and has not reported as sent.
    tx_bytes: u64,
    /// Frames that it has sent: times at which it reports them, in the host's time, and their bytes.
    sent: VecDeque<(u64, u64)>,
    /// It reports at multiples of this time, ns; 0: at once.
    completes_ns: u64,
    /// A frame counts at least this, bytes.
    least_counted: usize,
    /// Plain packets that were received: a queue of the same NIC, with as many descriptors.
    pub(crate) plain: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
    /// Its transport was dropped.
    pub(crate) closed: bool,
    /// Frames that were changed between hand-over and sending.
    pub(crate) changed: u64,
    /// Frames without a free descriptor.
    pub(crate) overflow: u64,
    /// Stale frames that the endpoint has received.
    pub(crate) stale_taken: u64,
}

#[inline]
fn hash_of(frame: &TxFrame) -> u64 {
    payload_hash(frame.segs().iter().map(|s| &s[..]))
}

impl Port {
    /// Sets the descriptors of the receive queue, each for a large frame.
    pub(crate) fn set_descriptors(&mut self, descriptors: usize) {
        self.rx_depth = descriptors * self.large_units;
    }

    /// Descriptors of the receive queue.
    pub(crate) fn descriptors(&self) -> usize {
        self.rx_depth / self.large_units
    }

    /// Room that a frame of this length takes.
    fn units_of(&self, len: usize) -> usize {
        if len <= self.small_frame { 1 } else { self.large_units }
    }

    /// Returns true if there is room for a frame that arrives now.
    pub(crate) fn has_room_for(&mut self, len: usize) -> bool {
        let free = self.queued_units + self.lent_units + self.units_of(len) <= self.rx_depth;
        self.overflow += u64::from(!free);
        free
    }

    /// Queues a received frame, for which there is room.
    pub(crate) fn receive(&mut self, frame: Received) {
        self.queued_units += self.units_of(frame.bytes.len());
        self.rx.push_back(frame);
    }

    /// A buffer for a received frame, empty when there is no spare one.
    pub(crate) fn spare(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    pub(crate) fn has_room(&self) -> bool {
        self.tx.len() < self.tx_depth
    }

    /// Queues the bytes of a plain packet.
    pub(crate) fn send_plain(&mut self, bytes: Vec<u8>, dst: Addr, queued_ns: u64, ready_ns: u64) {
        let hash = payload_hash(std::iter::once(&bytes[..]));
        self.tx_bytes += self.counted(bytes.len());
        let frame = Content::Read(bytes);
        self.tx.push_back(Queued { frame, dst, flow: 0, ready_ns, queued_ns, hash });
    }

    /// The NIC reads the frame at this place of the transmit queue. `now_ns`: in the host's time.
    pub(crate) fn take(&mut self, at: usize, now_ns: u64) -> Option<Taken> {
        let Queued { frame, dst, flow, queued_ns, hash, .. } = self.tx.remove(at)?;
        let bytes = match frame {
            Content::Read(bytes) => bytes,
            Content::Held(frame) => self.read(&frame, hash),
        };
        let at_ns = now_ns.checked_div(self.completes_ns).map_or(now_ns, |periods| {
            (periods + 1).saturating_mul(self.completes_ns) // later than now
        });
        self.sent.push_back((at_ns, self.counted(bytes.len())));
        self.report_sent(now_ns);
        Some(Taken { bytes, dst, flow, queued_ns, hash })
    }

    /// Bytes for which a frame of this length counts in the transmit queue.
    fn counted(&self, len: usize) -> u64 {
        len.max(self.least_counted) as u64
    }

    /// The NIC reports what it has sent, as far as it is time for that.
    fn report_sent(&mut self, now_ns: u64) {
        while let Some(&(_, bytes)) = self.sent.front().filter(|(at_ns, _)| *at_ns <= now_ns) {
            self.tx_bytes -= bytes;
            self.sent.pop_front();
        }
    }

    /// The bytes that DMA reads.
    fn read(&mut self, frame: &TxFrame, hash: u64) -> Vec<u8> {
        let mut bytes = self.spare();
        bytes.clear();
        frame.copy_to(&mut bytes);
        self.changed += u64::from(hash_of(frame) != hash);
        bytes
    }

    fn read_all(&mut self) {
        let mut tx = std::mem::take(&mut self.tx);
        for queued in &mut tx {
            if let Content::Held(frame) = &queued.frame {
                queued.frame = Content::Read(self.read(frame, queued.hash));
            }
        }
        self.tx = tx;
    }

    pub(crate) fn give_back(&mut self, bytes: Vec<u8>) {
        if self.spare.len() < SPARE {
            self.spare.push(bytes);
        }
    }
}

/// A port shared by its transport and the world: both are on one thread, the lock only satisfies
/// the compiler.
pub(crate) type SharedPort = Arc<Mutex<Port>>;

pub(crate) fn lock<T: ?Sized>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Properties of hosts' NICs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NicConfig {
    /// Receive descriptors per endpoint,
    /// RQ
    /// `[eRPC §4.3.1]`; a frame without a free descriptor is dropped (E60). Default 4,096.
    pub rx_queue: usize,
    /// Frames of at most `small_frame` bytes for which the receive queue has the room of one large
    /// frame, as in a socket buffer, which counts bytes: 1, the default, is a descriptor for each frame.
    pub small_per_descriptor: usize,
    /// Largest frame that is small; not used with one frame for each descriptor. Default 256.
    pub small_frame: usize,
    /// Transmit descriptors per endpoint. Default 1,024.
    pub tx_queue: usize,
    /// Largest datagram payload, bytes. Default 1,472, that of a 1500-byte link.
    pub max_frame: usize,
    /// From the last bit on the cable to the frame in memory: NIC, PCIe, ns. Default 400.
    pub rx_latency_ns: u64,
    /// From the doorbell to the first bit on the cable, ns. Default 400.
    pub tx_latency_ns: u64,
    /// Frames that a fault of a link has changed are dropped, as UDP's checksum differs. Without,
    /// they arrive, as behind a device that computes it again. Default true.
    pub finds_changes: bool,
    /// It reports what it has sent ([`Transport::tx_backlog`]) at multiples of this time, ns, as NICs do
    /// that moderate interrupts. Default 0: at once.
    pub completes_ns: u64,
    /// A frame counts at least this in these reports, bytes, as in a kernel that counts its own overhead for
    /// each. Default 0.
    pub least_counted: usize,
    /// The NIC, or the kernel, states when each frame has arrived. Default true.
    pub stamps_arrivals: bool,
    /// Rate of the link that it states, bit/s: 1 Mbit/s to 1,600 Gbit/s; `None`, the default: that of
    /// the host's cable.
    pub line_rate_bps: Option<u64>,
}

impl Default for NicConfig {
    fn default() -> Self {
        NicConfig {
            rx_queue: 4_096,
            small_per_descriptor: 1,
            small_frame: 256,
            tx_queue: 1_024,
            max_frame: 1_472,
            rx_latency_ns: 400,
            tx_latency_ns: 400,
            finds_changes: true,
            completes_ns: 0,
            least_counted: 0,
            stamps_arrivals: true,
            line_rate_bps: None,
        }
    }
}

/// A prepared destination.
#[derive(Clone, Copy)]
struct Destination {
    addr: Addr,
    flow: u32,
}

/// The transport of an endpoint in the simulated datacenter.
pub struct SimTransport {
    port: SharedPort,
    clock: Arc<VirtualClock>,
    costs: Costs,
    tx_latency_ns: u64,
    stamps_arrivals: bool,
    caps: Caps,
    local: Addr,
    paths: PathTable<Destination>,
    lent: Vec<Received>,
    stats: TransportStats,
}

impl SimTransport {
    pub(crate) fn new(
        local: Addr,
        nic: &NicConfig,
        costs: Costs,
        clock: Arc<VirtualClock>,
    ) -> (Self, SharedPort) {
        let large_units = nic.small_per_descriptor.max(1);
        let rx_depth = nic.rx_queue * large_units;
        let small_frame = if large_units == 1 { nic.max_frame } else { nic.small_frame };
        let port = Port {
            rx_depth,
            small_frame,
            large_units,
            tx_depth: nic.tx_queue,
            completes_ns: nic.completes_ns,
            least_counted: nic.least_counted,
            ..Port::default()
        };
        let port = Arc::new(Mutex::new(port));
        let caps = Caps {
            scheme: SCHEME,
            max_frame: nic.max_frame,
            headroom: 0,
            tailroom: 0,
            gather: NIC_GATHER,
            gather_from: usize::MAX, // nothing was measured
            train_frames: 1,
            train_bytes: nic.max_frame,
            polls_memory: false,
            rx_queue_frames: nic.rx_queue,
            small_frame,
            rx_queue_small_frames: rx_depth,
            rx_queue_per_peer: false,
            holds_frames: true,
            line_rate_bps: nic.line_rate_bps,
        };
        let transport = SimTransport {
            port: port.clone(),
            clock,
            costs,
            tx_latency_ns: nic.tx_latency_ns,
            stamps_arrivals: nic.stamps_arrivals,
            caps,
            local,
            paths: PathTable::default(),
            lent: Vec::new(),
            stats: TransportStats::default(),
        };
        (transport, port)
    }
}

impl Drop for SimTransport {
    fn drop(&mut self) {
        lock(&self.port).closed = true;
    }
}

/// Input of ECMP: equal for all packets of a flow.
fn flow_of(a: Addr, b: Addr) -> u32 {
    let mut h = 0x9e37_79b9_7f4a_7c15_u64;
    for part in [a.host as u64, u64::from(a.port), b.host as u64, u64::from(b.port)] {
        h = (h ^ part).wrapping_mul(0xff51_afd7_ed55_8ccd);
        h ^= h >> 32;
    }
    h as u32
}

impl Transport for SimTransport {
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
        let flow = flow_of(self.local, remote);
        let id = self.paths.open(Destination { addr: remote, flow })?;
        Ok(Path { id, max_frame: self.caps.max_frame })
    }

    fn path_move(&mut self, path: PathId, remote: Addr) -> Result<Path, PathError> {
        let flow = flow_of(self.local, remote);
        match self.paths.get_mut(path).filter(|_| remote.port != 0) {
            Some(destination) => *destination = Destination { addr: remote, flow },
            None => return Err(PathError::Unsupported(remote, SCHEME, self.local)),
        }
        Ok(Path { id: path, max_frame: self.caps.max_frame })
    }

    fn path_close(&mut self, path: PathId) {
        self.paths.close(path);
    }

    fn tx_burst(&mut self, burst: &mut TxBurst) {
        let costs = self.costs.get();
        let mut port = lock(&self.port);
        self.stats.tx_calls += u64::from(!burst.is_empty());
        while port.has_room() {
            let Some(frame) = burst.pop_front() else { return };
            let path = self.paths.get_mut(frame.path).copied();
            let fits = frame.len() as usize <= self.caps.max_frame;
            let Some(to) = path.filter(|_| fits) else {
                self.stats.tx_dropped += 1;
                continue;
            };
            self.clock.spend(costs.tx_ns(packets_in(frame.segs().iter().map(|s| &s[..]))));
            self.stats.tx_frames += 1;
            self.stats.tx_bytes += u64::from(frame.len());
            port.tx_bytes += port.counted(frame.len() as usize);
            let queued_ns = self.clock.now_ns();
            let ready_ns = queued_ns + self.tx_latency_ns;
            let hash = hash_of(&frame);
            let frame = Content::Held(frame);
            let Destination { addr: dst, flow } = to;
            port.tx.push_back(Queued { frame, dst, flow, ready_ns, queued_ns, hash });
        }
        self.stats.tx_full += u64::from(!burst.is_empty());
    }

    fn tx_reclaim(&mut self) -> usize {
        // Frames leave when the NIC reads them.
        lock(&self.port).tx.len()
    }

    fn tx_backlog(&self) -> Option<u64> {
        let mut port = lock(&self.port);
        port.report_sent(self.clock.now_ns());
        Some(port.tx_bytes)
    }

    fn tx_flush(&mut self) {
        self.clock.spend(self.costs.get().flush_ns);
        lock(&self.port).read_all();
    }

    fn rx_burst<'a>(&'a mut self, out: &mut RxBurst<'a>) {
        let mut port = lock(&self.port);
        for frame in self.lent.drain(..) {
            port.give_back(frame.bytes);
        }
        // Stale frames form bursts of their own, so that the checks see that all of them are
        // discarded.
        let stale = port.rx.front().is_some_and(|f| f.stale);
        let alike = port.rx.iter().take(out.remaining_capacity()).take_while(|f| f.stale == stale);
        let count = alike.count();
        self.lent.extend(port.rx.drain(..count));
        port.lent_units = self.lent.iter().map(|frame| port.units_of(frame.bytes.len())).sum();
        port.queued_units -= port.lent_units;
        port.stale_taken += if stale { count as u64 } else { 0 };
        drop(port);
        if count == 0 {
            return;
        }
        let (costs, begin_ns) = (self.costs.get(), self.clock.now_ns());
        self.stats.rx_calls += 1;
        for frame in &self.lent {
            let len = frame.bytes.len() as u64;
            self.stats.rx_frames += 1;
            self.stats.rx_bytes += len;
            let packets = packets_in(std::iter::once(&frame.bytes[..]));
            self.clock.spend(costs.rx_ns(packets, len));
            let received = RxFrame::new(frame.src, &frame.bytes, frame.ecn);
            out.push(match self.stamps_arrivals {
                true => received.with_wait(begin_ns.saturating_sub(frame.arrived_ns)),
                false => received,
            });
        }
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn wait(&mut self, _wake: RawFd, _timeout_ns: Option<u64>) -> io::Result<()> {
        Err(io::Error::other(
            "in virtual time the simulation drives the event loop: register callbacks and return",
        ))
    }

    fn stats(&self) -> TransportStats {
        TransportStats { rx_overflow: lock(&self.port).overflow, ..self.stats }
    }
}
