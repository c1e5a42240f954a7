//! The transport trait: unreliable datagram I/O, and nothing else (E14; steps 8 and 9 of a
//! packet's path).
//!
//! A transport never looks into a frame and never sees the protocol. It may lose, duplicate,
//! reorder and truncate; it must not invent. What every implementation has to obey is written in
//! [`crate::conformance`] as tests.

use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;

use courser_buf::{Addr, MemorySource, PathId, RxBurst, TxBurst};

/// What a transport can do; constant for its lifetime.
#[derive(Clone, Debug)]
pub struct Caps {
    /// Its name in addresses: `udp`, `mem`, ...
    pub scheme: &'static str,
    /// Largest frame it carries on any path, in bytes.
    pub max_frame: usize,
    /// Bytes that it wants before each frame's first piece for headers of its own (at most 66).
    pub headroom: usize,
    /// Bytes that it wants behind each frame's last piece.
    pub tailroom: usize,
    /// Most gather entries a frame may have (at least 2).
    pub gather: usize,
    /// Most equal-sized frames that leave as one train; 1 when there is no such thing.
    pub train_frames: usize,
    /// Most bytes of one train.
    pub train_bytes: usize,
    /// Frames of `max_frame` bytes that its receive queue holds before it drops: the paper's |RQ|
    /// (`[eRPC §4.3.1]`, F7). For a socket: granted bytes over the kernel's true cost of a frame.
    pub rx_queue_frames: usize,
    /// Frames of at most this many bytes take no more room in the receive queue than the smallest
    /// ones: 1 to `max_frame`.
    pub small_frame: usize,
    /// Frames of at most `small_frame` bytes that its receive queue holds before it drops: at least
    /// `rx_queue_frames`.
    pub rx_queue_small_frames: usize,
    /// Whether each sender has a receive queue of these lengths for itself, instead of one that all
    /// share.
    pub rx_queue_per_peer: bool,
    /// Whether a receive burst that finds nothing makes no system call: some ten nanoseconds, so that
    /// an event loop may look several times before it looks after anything else.
    pub polls_memory: bool,
    /// Whether a frame may stay referenced after [`Transport::tx_burst`] returns (F8).
    pub holds_frames: bool,
}

/// A prepared destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Its name in [`courser_buf::TxFrame::path`].
    pub id: PathId,
    /// Largest frame that fits the path, in bytes: the path MTU less IP and UDP headers, and at
    /// most [`Caps::max_frame`].
    pub max_frame: usize,
}

/// Why a destination cannot be used.
#[derive(Debug, thiserror::Error)]
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
    #[error("no path to {0}: {1}; check the address and the route (`ip route get`)")]
    Io(Addr, #[source] io::Error),
}

/// Counters of a transport, since it was made. Reading them costs nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransportStats {
    /// Frames and bytes handed to the network.
    pub tx_frames: u64,
    /// Bytes of those frames.
    pub tx_bytes: u64,
    /// System calls (or doorbells) they took.
    pub tx_calls: u64,
    /// Frames that the system refused for good: unreachable, too large, filtered.
    pub tx_dropped: u64,
    /// Times the send queue was full and the rest of a burst had to wait.
    pub tx_full: u64,
    /// Frames received.
    pub rx_frames: u64,
    /// Bytes of those frames.
    pub rx_bytes: u64,
    /// Successful receive calls.
    pub rx_calls: u64,
    /// Frames the transport itself had to discard: truncated, unknown sender family.
    pub rx_dropped: u64,
    /// Frames the receive queue dropped before we saw them, where the system tells (SO_RXQ_OVFL).
    pub rx_overflow: u64,
}

/// Unreliable datagram I/O of one endpoint. Owned by one thread.
///
/// # Order of calls in one pass of an event loop
/// `tx_reclaim` (when frames are held) · `rx_burst` · the protocol · `tx_burst`, or `tx_copy` when no
/// burst is left over ·
/// `tx_flush` (only when a buffer must come back now).
pub trait Transport {
    /// What this transport can do.
    fn caps(&self) -> &Caps;

    /// The address peers send to. For a wildcard bind the host is the wildcard.
    fn local_addr(&self) -> Addr;

    /// Prepares a destination. `local` is the host address at which the peer reached us, when
    /// known: replies must leave from it. Costs system calls: once a session, never per packet.
    ///
    /// # Errors
    /// [`PathError`]; nothing changes then.
    fn path_open(&mut self, remote: Addr, local: Option<Addr>) -> Result<Path, PathError>;

    /// Gives a destination back. Frames for it that are still queued may be dropped.
    fn path_close(&mut self, path: PathId);

    /// Sends from the front of `burst`, in order, as many frames as the send queue takes, and
    /// leaves the rest. A frame the network refuses is dropped and counted, never returned:
    /// the protocol treats it as lost. Frames for one path that stand together and have equal
    /// lengths (the last may be shorter) leave as trains where the system can.
    fn tx_burst(&mut self, burst: &mut TxBurst);

    /// Sends one frame by copying it, and holds nothing: the shortest way for a small one that leaves
    /// alone, behind what was sent before. Like those of a burst it may be refused or lost. `false`, as
    /// by default: this transport has no such way, and nothing was sent.
    fn tx_copy(&mut self, path: PathId, frame: &[u8]) -> bool {
        let _ = (path, frame);
        false
    }

    /// Lets go of frames whose transmission has ended, without waiting. Returns how many are
    /// still held. 0 for a transport that holds nothing.
    fn tx_reclaim(&mut self) -> usize;

    /// Waits until no frame is held any more `[eRPC §4.2.2]`. Rare: 2 us on the paper's NICs.
    fn tx_flush(&mut self);

    /// Appends received frames to `out` until it is full, nothing is left, or the transport has a
    /// natural end of burst (a train). Never blocks. The frames borrow the transport's receive
    /// memory, which is not given back to the network before the next call (E29). The end of a
    /// large frame may be in memory that its sender can still write ([`courser_buf::RxFrame::tail`]).
    fn rx_burst<'a>(&'a mut self, out: &mut RxBurst<'a>);

    /// A descriptor that polls readable when a frame may be waiting, when there is one.
    fn event_fd(&self) -> Option<BorrowedFd<'_>>;

    /// From now on somebody else may sleep on [`Transport::event_fd`] after a receive burst that
    /// brought nothing. A transport whose senders otherwise need not wake it has them do so.
    fn signal_always(&self) {}

    /// Sleeps until a frame may be waiting, `wake` is readable, or `timeout_ns` has passed
    /// (`None`: no limit). Spurious returns are allowed.
    ///
    /// # Errors
    /// Whatever the system's poll reports, except an interrupted call.
    fn wait(&mut self, wake: RawFd, timeout_ns: Option<u64>) -> io::Result<()>;

    /// Where message memory must come from (registered or shared memory), or `None` for any
    /// (F9).
    fn memory(&self) -> Option<Arc<dyn MemorySource>> {
        None
    }

    /// Things a person should know: a receive buffer the system capped, offloads that are
    /// missing; each with the command that mends it.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// Counters.
    fn stats(&self) -> TransportStats;
}
