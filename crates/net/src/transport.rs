//! The transport trait: unreliable datagram I/O `[eRPC §3.1]` (E14; steps 8 and 9 of a packet's
//! path).
//!
//! A transport does not parse frames and does not depend on the protocol. It may lose, duplicate,
//! reorder and truncate frames; it must not invent any. The tests of [`crate::conformance`] are the
//! requirements for every implementation.

use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;

use courser_buf::{Addr, MemorySource, PathId, RxBurst, TxBurst, stats};

/// Capabilities of a transport; constant for its lifetime.
#[derive(Clone, Debug)]
pub struct Caps {
    /// The scheme of its addresses: `udp`, `mem`, ...
    pub scheme: &'static str,
    /// Largest frame it carries on any path, in bytes.
    pub max_frame: usize,
    /// Bytes that it needs before each frame's first piece for its own headers (at most 66).
    pub headroom: usize,
    /// Bytes that it needs after each frame's last piece.
    pub tailroom: usize,
    /// Most gather entries a frame may have: 2 to [`courser_buf::TX_GATHER`]. Larger batches are split.
    pub gather: usize,
    /// Data bytes from which on a small packet that shares a frame costs less as a gather entry than
    /// as a copy, as measured; `usize::MAX`: none does.
    pub gather_from: usize,
    /// Most equal-sized frames that leave as one train; 1 without trains.
    pub train_frames: usize,
    /// Most bytes of one train.
    pub train_bytes: usize,
    /// Frames of `max_frame` bytes that its receive queue holds before it drops: the paper's |RQ|
    /// (`[eRPC §4.3.1]`, ADR 7). For a socket: granted bytes over the kernel's true cost of a frame.
    pub rx_queue_frames: usize,
    /// Frames of at most this many bytes use as much of the receive queue as the smallest ones: 1
    /// to `max_frame`.
    pub small_frame: usize,
    /// Frames of at most `small_frame` bytes that its receive queue holds before it drops: at least
    /// `rx_queue_frames`.
    pub rx_queue_small_frames: usize,
    /// True if each sender has a receive queue of these lengths, instead of one for all senders.
    pub rx_queue_per_peer: bool,
    /// True if an empty receive burst makes no system call. It then costs some ten nanoseconds, and
    /// an event loop may poll several times in one pass.
    pub polls_memory: bool,
    /// True if a frame may stay referenced after [`Transport::tx_burst`] returns (ADR 8).
    pub holds_frames: bool,
    /// Rate of the link that frames leave on, bits per second; `None`: not known, or there is no link.
    pub line_rate_bps: Option<u64>,
}

/// A prepared destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The value for [`courser_buf::TxFrame::path`].
    pub id: PathId,
    /// Largest frame that fits the path, in bytes: the path MTU less IP and UDP headers, and at
    /// most [`Caps::max_frame`].
    pub max_frame: usize,
}

/// Why a destination cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PathError {
    /// The address is of a kind this transport cannot reach (IPv6 on an IPv4 socket, say).
    #[error(
        "{0} cannot be reached from a {1} transport bound to {2}; use addresses of one transport and family"
    )]
    Unsupported(Addr, &'static str, Addr),
    /// All path numbers are taken.
    #[error(
        "the endpoint already has its {0} paths to peers; close sessions or raise the limit of paths"
    )]
    TooMany(usize),
    /// The system refused: no route, no permission, ...
    #[error("no path to {0}: {1}; {advice}", advice = path_advice(.1))]
    Io(Addr, #[source] io::Error),
}

fn path_advice(e: &io::Error) -> &'static str {
    if is_exhausted(e) {
        return "raise the limit of open files (`ulimit -n`) or free memory";
    }
    "check the address and the route (`ip route`)"
}

/// Returns whether descriptors or the kernel's memory have run out.
pub fn is_exhausted(e: &io::Error) -> bool {
    let exhausted = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
    e.raw_os_error().is_some_and(|code| exhausted.contains(&code))
}

stats! {
    /// Counters of a transport since its creation. Reading them is free.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct TransportStats: "transport" {
        /// Frames and bytes handed to the network.
        pub tx_frames: u64 = counter(frames),
        /// Bytes of those frames.
        pub tx_bytes: u64 = counter(bytes),
        /// System calls (or doorbells) for them.
        pub tx_calls: u64 = counter(calls),
        /// Frames that the system refused: unreachable, too large, filtered.
        pub tx_dropped: u64 = counter(frames),
        /// Times that the send queue was full and the rest of a burst had to wait.
        pub tx_full: u64 = counter(times),
        /// Frames received.
        pub rx_frames: u64 = counter(frames),
        /// Bytes of those frames.
        pub rx_bytes: u64 = counter(bytes),
        /// Successful receive calls.
        pub rx_calls: u64 = counter(calls),
        /// Frames that the transport discarded: truncated, unknown sender family.
        pub rx_dropped: u64 = counter(frames),
        /// Frames that the receive queue dropped, where the system reports them (SO_RXQ_OVFL).
        pub rx_overflow: u64 = counter(frames),
    }
}

/// Unreliable datagram I/O of one endpoint. Owned by one thread.
///
/// # Order of calls in one pass of an event loop
/// `tx_reclaim` (when frames are held) · `rx_burst` · the protocol · `tx_burst`, or `tx_copy` when
/// no burst is left over · `tx_flush` (only when a buffer must come back now).
pub trait Transport {
    /// Capabilities.
    fn caps(&self) -> &Caps;

    /// The address peers send to. For a wildcard bind the host is the wildcard.
    fn local_addr(&self) -> Addr;

    /// Prepares a destination. `local` is the local host address that the peer used, when known:
    /// replies must leave from it. Costs system calls: once per session, never per packet.
    ///
    /// # Errors
    /// [`PathError`]; nothing changes then.
    fn path_open(&mut self, remote: Addr, local: Option<Addr>) -> Result<Path, PathError>;

    /// Closes a destination. Frames for it that are still queued may be dropped.
    fn path_close(&mut self, path: PathId);

    /// Makes an open path lead to another address, from the same local address: a translation of addresses
    /// on the way (NAT) has changed that of the peer. Its number stays. The default is for transports whose
    /// peers keep their addresses.
    ///
    /// # Errors
    /// [`PathError`]; the path stays as it was.
    fn path_move(&mut self, path: PathId, remote: Addr) -> Result<Path, PathError> {
        let _ = path;
        Err(PathError::Unsupported(remote, self.caps().scheme, self.local_addr()))
    }

    /// Sends frames from the front of `burst`, in order, until the send queue is full, and leaves
    /// the rest. A frame that the network refuses is dropped and counted; the protocol treats it as
    /// lost. Adjacent frames for one path with equal lengths (the last may be shorter) leave as
    /// trains where the system supports them.
    fn tx_burst(&mut self, burst: &mut TxBurst);

    /// Sends one frame by copying it and holds no reference: the cheapest way for a single small
    /// frame, in order with earlier bursts. It may be refused or lost like any other. `false`
    /// (default): the transport does not support this, and nothing was sent.
    fn tx_copy(&mut self, path: PathId, frame: &[u8]) -> bool {
        let _ = (path, frame);
        false
    }

    /// Releases frames whose transmission has completed, without waiting. Returns the number of
    /// frames that are still held; 0 for a transport that holds none.
    fn tx_reclaim(&mut self) -> usize;

    /// Bytes of frames that were handed over and that the kernel or the device has not sent. An event
    /// loop calls it while large messages are sent, at most once for each batch, and keeps the queue
    /// short, with the default congestion control; with any other it has no effect. It may cost a system
    /// call. The kernel's overhead for each packet may count. `None` (default): not known, or there is no
    /// such queue, and nothing is bounded.
    fn tx_backlog(&self) -> Option<u64> {
        None
    }

    /// Waits until no frame is held `[eRPC §4.2.2]`. Rare: 2 us on the paper's NICs.
    fn tx_flush(&mut self);

    /// Appends received frames to `out` until it is full, nothing is left, or the transport has a
    /// natural end of burst (a train). Never blocks. The frames borrow the transport's receive
    /// memory, which is not reused before the next call `[eRPC §4.2.3]` (E29). The end of a large
    /// frame may be in memory that its sender can still write ([`courser_buf::RxFrame::tail`]).
    fn rx_burst<'a>(&'a mut self, out: &mut RxBurst<'a>);

    /// A descriptor that polls readable when a frame may be available; `None` without one.
    fn event_fd(&self) -> Option<BorrowedFd<'_>>;

    /// From now on a foreign event loop may sleep on [`Transport::event_fd`] after an empty receive
    /// burst. A transport whose senders do not always signal it makes them do so.
    fn signal_always(&self) {}

    /// From now on the system may drop frames from addresses without a path, and frames whose first
    /// byte is not `first_byte`, before they are queued: against floods, which would else displace
    /// the frames of peers. Called again with the same byte after paths were opened, whose frames may
    /// be dropped until then: installing a filter can take a millisecond, which is spent once for all
    /// paths of a pass. `None` ends it. Returns whether the transport does it; the default does not.
    /// Dropped frames may count as [`TransportStats::rx_overflow`].
    fn drop_strangers(&mut self, first_byte: Option<u8>) -> bool {
        let _ = first_byte;
        false
    }

    /// A thread is about to sleep on [`Transport::event_fd`] without holding the transport, which other
    /// threads may use meanwhile: until [`Transport::wake_up`] the descriptor becomes readable with
    /// the next frame. `false`: a frame may be there already. The default is for transports whose
    /// descriptor is readable while there are frames.
    fn fall_asleep(&mut self) -> bool {
        true
    }

    /// Ends [`Transport::fall_asleep`]: no thread relies on the descriptor any more.
    fn wake_up(&mut self) {}

    /// Sleeps until a frame may be available, `wake` is readable, or `timeout_ns` has passed
    /// (`None`: no limit). Spurious returns are allowed.
    ///
    /// # Errors
    /// Errors of the system's poll, except an interrupted call.
    fn wait(&mut self, wake: RawFd, timeout_ns: Option<u64>) -> io::Result<()>;

    /// The source of message memory (registered or shared memory, ADR 9), or `None` for any.
    fn memory(&self) -> Option<Arc<dyn MemorySource>> {
        None
    }

    /// Warnings for the operator, such as a capped receive buffer or missing offloads, each with
    /// the command that fixes it.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// Counters.
    fn stats(&self) -> TransportStats;
}
