//! Shared memory: endpoints of one user on one machine, in several processes or in one.
//!
//! Each pair of endpoints that talk has a ring for each direction, in memory that the sender makes
//! and passes over a Unix socket. So a hostile or broken peer spoils its own traffic only; what it
//! writes is copied out before it is looked at: at once, or, behind the front of large frames, when
//! its place is known (`RxFrame::tail`). Nothing on the way of a frame is a system call, but
//! waking a receiver that sleeps.
//!
//! * `config`: settings and errors. * `dir`: the directory where endpoints find each other.
//! * `msg`: what is said over the sockets. * `map`, `copy`: memory that others write.
//! * `ring`: one sender, one receiver. * `doorbell`: sleeping, and rings that are not looked at.
//! * `outbound`, `inbound`: the rings that we send and receive by. * `epoll`: all sockets.
//!
//! A full ring drops frames and counts them at the sender. A frame is lost, too, while its
//! receiver is not there, and when one of the two goes.
//!
//! # Trust
//! Processes of other users cannot connect: the directory is closed to them, and the kernel says
//! who is at the other side of a socket. A process of the same user can claim any port as its own
//! that sends; as with UDP, frames of a stranger are told by what the protocol puts into them.

mod config;
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
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use courser_buf::{Addr, PathId, RxBurst, TX_GATHER, TxBurst, drop_frames};

use config::SCHEME;
pub use config::{ShmConfig, ShmError, ShmOptions};
use dir::Listener;
use epoll::{Epoll, Token};
use inbound::{Inbound, Limits};
use msg::Hello;
use outbound::{Outbound, Own};

use crate::{Caps, Path, PathError, Transport, TransportStats};

/// How often sockets are looked at while the endpoint is busy: new peers, and peers that have
/// gone. About 0.3 us each time.
const UPKEEP_EVERY: Duration = Duration::from_micros(250);
/// The clock is read after at most so many receive bursts: at most about 20 us of bursts that find
/// nothing.
const CALLS: u32 = 1024;
/// Private memory that a receive burst is copied to. Small enough to stay in the cache, and at
/// least a largest frame, though of those from `inbound::LARGE` on only the front comes here.
const BURST_BYTES: usize = 128 << 10;
/// Connections accepted in one round of upkeep.
const ACCEPTS: usize = 16;

const _: () = assert!(BURST_BYTES >= ring::MAX_FRAME);

/// A cache line of private memory.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// An endpoint over shared memory.
pub struct ShmTransport {
    inbound: Inbound,
    outbound: Outbound,
    memory: Box<[Line]>,
    /// The last burst's frames, until the processor has surely finished storing what was copied:
    /// letting go of them takes a locked instruction each, and the first one would wait for every
    /// line that has to come from the receiver's cache.
    sent: TxBurst,
    /// Frames were sent since frames were last reclaimed.
    sent_anew: bool,
    stats: TransportStats,
    /// Receive bursts until the clock is read again, and how many there were since it was.
    calls_left: u32,
    calls: u32,
    last_upkeep: Instant,
    /// Somebody else sleeps on the descriptor.
    watched: AtomicBool,
    caps: Caps,
    local: Addr,
    hello: Hello,
    epoll: Epoll,
    listener: Listener,
}

impl ShmTransport {
    /// Makes the endpoint: takes its port, and listens for those who want to send to it.
    ///
    /// # Errors
    /// [`ShmError`], with what to do about it.
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
            inbound: Inbound::new(local, Limits::new(cfg.max_peers, shape), cfg.trust)
                .map_err(&failed)?,
            outbound: Outbound::new(cfg.max_peers),
            memory: vec![Line([0; 64]); BURST_BYTES / 64].into(),
            sent: TxBurst::new(),
            sent_anew: false,
            stats: TransportStats::default(),
            calls_left: 1,
            calls: 1,
            last_upkeep: Instant::now(),
            watched: AtomicBool::new(false),
            caps: Caps {
                scheme: SCHEME,
                max_frame: cfg.max_frame,
                headroom: 0,
                tailroom: 0,
                gather: TX_GATHER,
                train_frames: 1,
                train_bytes: cfg.max_frame,
                polls_memory: true,
                rx_queue_frames: shape.frames(inbound::lends(cfg)),
                small_frame: cfg.max_frame.min(ring::INLINE),
                rx_queue_small_frames: shape.small_frames(inbound::lends(cfg)),
                rx_queue_per_peer: true,
                holds_frames: true,
            },
            local,
            hello: Hello { port: local.port, shape, trust: cfg.trust },
            epoll,
            listener,
        })
    }

    /// Lets go of the last burst's frames.
    #[inline(always)]
    fn let_go(&mut self) {
        if !self.sent.is_empty() {
            self.drop_sent();
        }
    }

    #[inline(never)] // most passes have sent nothing
    fn drop_sent(&mut self) {
        match self.sent.len() {
            1 => drop(self.sent.pop_front()),
            count => drop_frames(&mut self.sent, count),
        }
    }

    /// Reads the clock, and looks after the sockets when it is time.
    #[cold]
    #[inline(never)] // `scripts/instructions.sh` knows it by name
    fn look_after(&mut self) {
        let now = Instant::now();
        let since = now.saturating_duration_since(self.last_upkeep);
        // As many calls as fit the time between two rounds at the pace of the last ones.
        let fit = UPKEEP_EVERY.as_nanos() * u128::from(self.calls) / since.as_nanos().max(1);
        self.calls_left = fit.clamp(1, u128::from(CALLS)) as u32;
        // Who has no peers has nothing better to do than look for the first.
        if since >= UPKEEP_EVERY || self.inbound.is_empty() {
            self.upkeep(now);
            self.calls = 0;
        }
        self.calls = self.calls.saturating_add(self.calls_left);
    }

    /// For those who sleep on the descriptor without our knowing: a burst that brings nothing
    /// leaves the senders told, and signals that have done their work are taken away.
    #[cold]
    fn before_watched_burst(&mut self) {
        if self.inbound.doorbell().is_armed() {
            self.upkeep(Instant::now());
        } else if !self.inbound.is_waiting() {
            self.inbound.doorbell().arm();
        }
    }

    /// New peers, signals, welcomes, peers that have gone. Bounded work; never waits.
    fn upkeep(&mut self, now: Instant) {
        self.last_upkeep = now;
        for token in self.epoll.ready() {
            match token {
                Token::Listener => {
                    for _ in 0..ACCEPTS {
                        let Some(socket) = dir::accept(&self.listener) else { break };
                        self.inbound.accept(socket, now, &self.epoll);
                    }
                }
                Token::Inbound(number) => self.inbound.on_socket(number),
                Token::Outbound(number) => self.outbound.on_socket(number),
                Token::Stranger => {}
            }
        }
        self.inbound.hear_strangers(now, &self.epoll);
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

    /// Cheap, and nobody need be there: the ring is made when it is first sent to.
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
        // Before the stores to the ring: giving a frame back takes a locked instruction, which waits
        // for all stores before it, and those have to get their lines from the receiver first.
        self.let_go();
        let own = Own { dir: &self.listener.dir, hello: &self.hello, epoll: &self.epoll };
        self.outbound.burst(own, burst, &mut self.stats);
        std::mem::swap(burst, &mut self.sent);
        self.sent_anew = true;
    }

    fn tx_copy(&mut self, path: PathId, frame: &[u8]) -> bool {
        self.stats.tx_calls += 1;
        let own = Own { dir: &self.listener.dir, hello: &self.hello, epoll: &self.epoll };
        self.outbound.one(own, path, frame, &mut self.stats);
        true
    }

    #[inline]
    fn tx_reclaim(&mut self) -> usize {
        if !std::mem::take(&mut self.sent_anew) {
            self.let_go();
        }
        self.sent.len()
    }

    fn tx_flush(&mut self) {
        self.let_go();
    }

    fn rx_burst<'a>(&'a mut self, out: &mut RxBurst<'a>) {
        self.calls_left -= 1;
        if self.calls_left == 0 {
            self.look_after();
        }
        if self.watched.load(Ordering::Relaxed) {
            self.before_watched_burst();
        }
        let before = out.len();
        // SAFETY: `memory` is that many bytes, all initialised, borrowed exclusively for as long
        // as the frames that will lie in it. Test: the conformance suite over shared memory.
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
        self.watched.store(true, Ordering::Relaxed);
    }

    fn wait(&mut self, wake: RawFd, timeout_ns: Option<u64>) -> io::Result<()> {
        self.upkeep(Instant::now());
        self.inbound.doorbell().arm();
        let result = if self.inbound.is_waiting() {
            Ok(())
        } else {
            crate::wait_readable(self.epoll.fd(), wake, timeout_ns)
        };
        self.inbound.doorbell().disarm();
        self.upkeep(Instant::now());
        result
    }

    fn stats(&self) -> TransportStats {
        self.stats
    }
}
