//! Shared memory: endpoints of one user on one machine, in several processes or in one.
//!
//! Each pair of endpoints has a ring for each direction, in memory that the sender creates and
//! passes over a Unix socket. So a hostile or broken peer damages only its own traffic. Received
//! bytes are copied to private memory before they are parsed: at once, or, for the tail of large
//! frames, to their place in the message (`RxFrame::tail`). The only system call on the path of a
//! frame is the signal that wakes a sleeping receiver.
//!
//! * `config`: settings and errors. * `dir`: the directory where endpoints find each other.
//! * `control`: sockets for control connections there. * `msg`: the handshake over sockets. * `map`, `copy`: memory that peers write.
//! * `ring`: one sender, one receiver. * `doorbell`: wake-ups, and rings that are not polled.
//! * `outbound`, `inbound`: sending and receiving rings. * `epoll`: all sockets.
//!
//! A full ring drops frames and counts them at the sender. Frames are also lost while the receiver
//! does not exist, and when sender or receiver ends.
//!
//! # Trust
//! Processes of other users cannot connect: the directory is closed to them, and the kernel reports
//! the user of each peer (`SO_PEERCRED`). A process of the same user can claim any sender port; as
//! with UDP, the protocol's cookies reject its frames.

mod config;
mod control;
mod copy;
mod dir;
mod doorbell;
mod epoll;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod inbound;
mod map;
#[cfg(all(test, loom))]
mod model;
mod msg;
mod outbound;
mod ring;
#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use courser_buf::{Addr, PathId, RxBurst, TX_GATHER, TxBurst, drop_frames};

use config::SCHEME;
pub use config::{ShmConfig, ShmError, ShmOptions, Trust, Unsafe};
pub use control::{ControlListener, may_listen};
use dir::Listener;
use epoll::{Epoll, Token};
use inbound::{Inbound, Limits};
use msg::Hello;
use outbound::{Outbound, Own};

use crate::{Caps, Path, PathError, Transport, TransportStats};

/// See [`Caps::gather_from`]. Packets of which several fit a frame are cheaper to copy: a gathered one
/// is counted, released, and a piece of its own in the ring (`docs/results/2026-11-25-packing.md`).
const GATHER_FROM: usize = usize::MAX;

/// Interval of socket upkeep (new peers, lost peers) while the endpoint is busy. Upkeep costs about
/// 0.3 us.
const UPKEEP_EVERY: Duration = Duration::from_micros(250);
/// Most receive bursts between two clock readings: about 20 us of empty bursts.
const MAX_CALLS: u32 = 1024;
/// Private memory for the copies of a receive burst. It is small enough to stay in the cache, and
/// holds at least one largest frame. Of frames from `inbound::LARGE` on, only the front is copied
/// here.
const BURST_BYTES: usize = 128 << 10;
/// Connections accepted in one round of upkeep.
const ACCEPTS: usize = 16;

const _: () = assert!(BURST_BYTES >= ring::MAX_FRAME);

/// A cache line of private memory.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct CacheLine([u8; 64]);

/// An endpoint over shared memory.
pub struct ShmTransport {
    inbound: Inbound,
    outbound: Outbound,
    memory: Box<[CacheLine]>,
    /// The last burst's frames, kept until the copies have left the store buffer: dropping a frame
    /// is a locked instruction, which waits for all earlier stores to lines in the receiver's
    /// cache.
    sent: TxBurst,
    /// Frames were sent since the last `tx_reclaim`.
    sent_since_reclaim: bool,
    stats: TransportStats,
    /// Receive bursts until the next clock reading, and since the last one.
    calls_left: u32,
    calls: u32,
    last_upkeep: Instant,
    /// An external event loop sleeps on the descriptor.
    fd_shared: AtomicBool,
    caps: Caps,
    local: Addr,
    hello: Hello,
    epoll: Epoll,
    listener: Listener,
    /// A descriptor for the connections that are closed when no other one is left: as long as they
    /// wait, the listener is ready. `None`: it was taken meanwhile.
    reserve: Option<OwnedFd>,
}

impl ShmTransport {
    /// Binds the port and listens for senders.
    ///
    /// # Errors
    /// [`ShmError`], with the remedy.
    pub fn bind(cfg: &ShmConfig) -> Result<Self, ShmError> {
        let shape = cfg.shape()?;
        let listener = Listener::bind(cfg)?;
        let local = Addr::from_socket(SocketAddr::new(cfg.host, listener.port));
        let failed = ShmError::io("cannot set up shared memory");
        let epoll = Epoll::new().map_err(&failed)?;
        if !epoll.add(&listener.socket, Token::Listener) {
            return Err(failed(rustix::io::Errno::NOSPC));
        }
        Ok(ShmTransport {
            inbound: Inbound::new(local, Limits::new(cfg.max_peers, shape), cfg.trust.is_some())
                .map_err(&failed)?,
            outbound: Outbound::new(cfg.max_peers),
            memory: vec![CacheLine([0; 64]); BURST_BYTES / 64].into(),
            sent: TxBurst::new(),
            sent_since_reclaim: false,
            stats: TransportStats::default(),
            calls_left: 1,
            calls: 1,
            last_upkeep: Instant::now(),
            fd_shared: AtomicBool::new(false),
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
                rx_queue_frames: shape.frames(inbound::lends(cfg)),
                small_frame: cfg.max_frame.min(ring::INLINE),
                rx_queue_small_frames: shape.small_frames(inbound::lends(cfg)),
                rx_queue_per_peer: true,
                holds_frames: true,
                line_rate_bps: None,
            },
            local,
            hello: Hello { port: local.port, shape, trust: cfg.trust.is_some() },
            epoll,
            listener,
            reserve: dir::reserve().ok(),
        })
    }

    /// Drops the last burst's frames.
    #[inline]
    fn release_sent(&mut self) {
        if !self.sent.is_empty() {
            self.drop_sent();
        }
    }

    fn drop_sent(&mut self) {
        match self.sent.len() {
            1 => drop(self.sent.pop_front()),
            count => drop_frames(&mut self.sent, count),
        }
    }

    /// Reads the clock, and does the upkeep when that is due.
    #[cold]
    #[inline(never)] // named in `scripts/instructions.sh`
    fn upkeep_when_due(&mut self) {
        let now = Instant::now();
        let since = now.saturating_duration_since(self.last_upkeep);
        // The number of calls that fit into the upkeep interval at the rate of the last ones.
        let fit = UPKEEP_EVERY.as_nanos() * u128::from(self.calls) / since.as_nanos().max(1);
        self.calls_left = fit.clamp(1, u128::from(MAX_CALLS)) as u32;
        // Without peers, poll the listening socket at every clock reading.
        if since >= UPKEEP_EVERY || self.inbound.is_empty() {
            self.upkeep(now);
            self.calls = 0;
        }
        self.calls = self.calls.saturating_add(self.calls_left);
    }

    /// For external event loops: requests signals before an empty burst, and reads the signals that
    /// have arrived.
    fn before_fd_shared_burst(&mut self) {
        if self.inbound.doorbell().is_armed() {
            self.upkeep(Instant::now());
        }
        if !self.inbound.doorbell().is_armed() && !self.inbound.is_waiting() {
            self.inbound.doorbell().arm();
        }
    }

    /// Closes a connection that waits, with the reserved descriptor: its peer tries again. Returns
    /// false if there is none.
    fn refuse(&mut self) -> bool {
        drop(self.reserve.take());
        let closed = dir::accept(&self.listener).map(drop);
        self.reserve = dir::reserve().ok();
        closed.is_ok()
    }

    /// Handles new peers, signals, welcomes, and peers that are gone. Bounded work; does not block.
    fn upkeep(&mut self, now: Instant) {
        self.last_upkeep = now;
        let ready = self.epoll.ready();
        if !ready.is_empty() {
            // Senders signal once for each time that the doorbell is armed, and one of the signals
            // read below may be that.
            self.inbound.doorbell().disarm();
        }
        for token in ready {
            match token {
                Token::Listener => {
                    for _ in 0..ACCEPTS {
                        match dir::accept(&self.listener) {
                            Ok(socket) => self.inbound.accept(socket, now, &self.epoll),
                            Err(e) if crate::is_exhausted(&e.into()) && self.refuse() => {}
                            Err(_) => break,
                        }
                    }
                }
                Token::Inbound(number) => self.inbound.on_socket(number),
                Token::Outbound(number) => self.outbound.on_socket(number),
                Token::Pending => {}
            }
        }
        self.inbound.poll_pending(now, &self.epoll);
        self.inbound.upkeep();
    }
}

impl Transport for ShmTransport {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn local_addr(&self) -> Addr {
        self.local
    }

    /// Cheap; the destination need not exist, as the ring is created with the first frame.
    fn path_open(&mut self, remote: Addr, _local: Option<Addr>) -> Result<Path, PathError> {
        let port = u16::try_from(remote.port).ok().filter(|&port| port != 0);
        let port = port.filter(|_| remote.host == self.local.host);
        let port = port.ok_or(PathError::Unsupported(remote, SCHEME, self.local))?;
        let id = self.outbound.open(port)?;
        Ok(Path { id, max_frame: self.caps.max_frame })
    }

    fn path_close(&mut self, path: PathId) {
        self.outbound.close(path);
    }

    fn tx_burst(&mut self, burst: &mut TxBurst) {
        if burst.is_empty() {
            return;
        }
        self.stats.tx_calls += 1;
        // Before the stores to the ring: dropping a frame is a locked instruction, which would wait
        // for these stores, and those wait for lines in the receiver's cache.
        self.release_sent();
        let own = Own { dir: &self.listener.dir, hello: &self.hello, epoll: &self.epoll };
        self.outbound.burst(own, burst, &mut self.stats);
        std::mem::swap(burst, &mut self.sent);
        self.sent_since_reclaim = true;
    }

    fn tx_copy(&mut self, path: PathId, frame: &[u8]) -> bool {
        self.stats.tx_calls += 1;
        let own = Own { dir: &self.listener.dir, hello: &self.hello, epoll: &self.epoll };
        self.outbound.one(own, path, frame, &mut self.stats);
        true
    }

    #[inline]
    fn tx_reclaim(&mut self) -> usize {
        if !std::mem::take(&mut self.sent_since_reclaim) {
            self.release_sent();
        }
        self.sent.len()
    }

    fn tx_flush(&mut self) {
        self.release_sent();
    }

    fn rx_burst<'a>(&'a mut self, out: &mut RxBurst<'a>) {
        self.calls_left -= 1;
        if self.calls_left == 0 {
            self.upkeep_when_due();
        }
        if self.fd_shared.load(Ordering::Relaxed) {
            self.before_fd_shared_burst();
        }
        let before = out.len();
        // SAFETY: `memory` is that many bytes, all initialised, borrowed exclusively for as long
        // as the frames in it. Test: the conformance suite over shared memory.
        let memory = unsafe {
            std::slice::from_raw_parts_mut(self.memory.as_mut_ptr().cast::<u8>(), BURST_BYTES)
        };
        // SAFETY: the frames borrow the whole transport, by the signature of this function.
        // Test: conformance of trusted pairs.
        unsafe { self.inbound.receive(memory, out, &mut self.stats) };
        if out.len() > before {
            self.inbound.doorbell().disarm();
        }
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.fd())
    }

    fn signal_always(&self) {
        self.fd_shared.store(true, Ordering::Relaxed);
    }

    fn fall_asleep(&mut self) -> bool {
        self.upkeep(Instant::now());
        self.inbound.doorbell().arm();
        !self.inbound.is_waiting()
    }

    fn wake_up(&mut self) {
        self.inbound.doorbell().disarm();
        self.upkeep(Instant::now());
    }

    fn wait(&mut self, wake: RawFd, timeout_ns: Option<u64>) -> io::Result<()> {
        let result = match self.fall_asleep() {
            true => crate::wait_readable(self.epoll.fd(), wake, timeout_ns),
            false => Ok(()),
        };
        self.wake_up();
        result
    }

    fn stats(&self) -> TransportStats {
        self.stats
    }
}
