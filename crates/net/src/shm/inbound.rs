//! Receiving rings: accepts them from senders, polls them, and closes them.
//!
//! When there are more than a few rings, quiet ones become idle: they are not polled until a sender
//! sets a hint (`[eRPC §4.1]`, E15). So the cost of a burst depends on the number of sending peers,
//! not on the number of peers.

use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use courser_buf::{Addr, Ecn, RX_BURST, RX_HEAD, RxBurst, RxFrame};
use rustix::io::Errno;

use super::config::ShmConfig;
use super::doorbell::Doorbell;
use super::epoll::{Epoll, Token};
use super::map::{self, Mapping, PAGE};
use super::msg::{self, Hello, Received, Welcome};
use super::ring::{Broken, Consumer, Lent, Shape};
use crate::TransportStats;

/// No ring becomes idle when there are at most this many.
const ALWAYS_POLLED: usize = 4;
/// Hints processed in one burst.
const HINTS: usize = 16;
/// Idle rings that are polled in one round of upkeep, in case a hint was lost.
const IDLE_POLLS: usize = 8;
/// Maximum number of connections without a `Hello`.
const MAX_PENDING: usize = 16;
/// After this time a connection without a `Hello` is closed.
const HELLO_TIMEOUT: Duration = Duration::from_secs(1);
/// Signals read from a peer per round of upkeep. A correct peer sends at most one per sleep of this
/// endpoint.
const SIGNALS: usize = 64;
/// Frames are aligned to lines.
const LINE: usize = 64;
/// Frames of at least this many bytes are copied once: only the front is copied out, and the rest
/// stays in the ring until the next burst. For smaller frames a second copy costs less than the
/// occupied places.
pub(super) const LARGE: usize = 4096;

const _: () = assert!(LARGE > RX_HEAD && RX_HEAD.is_multiple_of(LINE));

/// The kind of frames that an endpoint with these settings lends, for frames of its own maximum
/// size.
pub(super) fn lends(cfg: &ShmConfig) -> Lent {
    match cfg.max_frame {
        _ if cfg.trust.is_some() => Lent::Frames,
        LARGE.. => Lent::Tails,
        _ => Lent::Nothing,
    }
}

/// A receiving ring.
#[derive(Debug)]
struct Ring {
    consumer: Consumer<Mapping>,
    src: Addr,
    /// Frames are read in place: both sides have set `trust`.
    trusted: bool,
    /// Tails of the last burst's frames are still in this untrusted ring.
    lent: bool,
    idle: bool,
    /// Records received at the last upkeep.
    seen: u64,
    /// The sender has ended; records up to this one are still received.
    last: Option<u64>,
    socket: OwnedFd,
}

/// A connection that has not sent its `Hello`.
#[derive(Debug)]
struct Pending {
    socket: OwnedFd,
    since: Instant,
}

/// All rings of an endpoint.
#[derive(Debug)]
pub(super) struct Inbound {
    rings: Vec<Option<Ring>>,
    /// Numbers of the rings that are not idle.
    active: Vec<u16>,
    /// Position in `active` of the next burst's first ring: round robin.
    cursor: usize,
    /// The idle ring that upkeep polls next.
    next_idle_poll: usize,
    doorbell: Doorbell,
    /// The files of the doorbell's pages, for senders.
    pages: [OwnedFd; 2],
    pending: Vec<Pending>,
    /// A ring that broke during the last burst. Frames of that burst may still be lent from it.
    broken: Option<Ring>,
    limits: Limits,
    /// True if this endpoint trusts senders that set `trust`.
    trust: bool,
    /// Bytes of all rings.
    bytes: u64,
    /// The address of this endpoint. All senders have its host.
    local: Addr,
}

/// Limits for senders, which choose the sizes of their rings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    rings: usize,
    /// Bytes of all rings: `rings` times the size of this endpoint's own ring.
    bytes: u64,
    /// Bytes of a ring that are populated at once.
    present: usize,
}

impl Limits {
    pub(super) fn new(rings: usize, own: Shape) -> Self {
        Limits { rings, bytes: rings as u64 * own.bytes() as u64, present: own.front() }
    }
}

impl Inbound {
    pub(super) fn new(local: Addr, limits: Limits, trust: bool) -> Result<Self, Errno> {
        let (doorbell, pages) = Doorbell::new()?;
        Ok(Inbound {
            rings: Vec::new(),
            active: Vec::new(),
            cursor: 0,
            next_idle_poll: 0,
            doorbell,
            pages,
            pending: Vec::new(),
            broken: None,
            limits,
            trust,
            bytes: 0,
            local,
        })
    }

    pub(super) fn doorbell(&self) -> &Doorbell {
        &self.doorbell
    }

    /// Returns whether there is no ring.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// One burst, copied to the private `memory`, or in place in the rings of trusted peers.
    ///
    /// # Safety
    /// `self` is not used as long as the frames are used.
    #[inline]
    pub(super) unsafe fn receive<'a>(
        &mut self,
        mut memory: &'a mut [u8],
        out: &mut RxBurst<'a>,
        stats: &mut TransportStats,
    ) {
        for _ in 0..HINTS {
            let Some(ring) = self.doorbell.hinted() else { break };
            self.mark_active(ring);
        }
        if let [number] = self.active[..]
            && let Some(Some(ring)) = self.rings.get_mut(usize::from(number))
        {
            // SAFETY: as below. Test: `frames_of_a_ring_that_broke_stay`.
            if unsafe { ring.receive(RX_BURST, &mut memory, out, stats) }.is_err() {
                self.close_broken(number, stats);
            }
            return;
        }
        let count = self.active.len();
        let quota = if count > 1 { (RX_BURST / count).max(8) } else { RX_BURST };
        self.cursor = if self.cursor + 1 < count { self.cursor + 1 } else { 0 };
        let mut broken = None;
        for step in 0..count {
            let at = self.cursor + step;
            let number = self.active[if at < count { at } else { at - count }];
            let Some(Some(ring)) = self.rings.get_mut(usize::from(number)) else { continue };
            // SAFETY: rings live until the next use of `self`; see `broken`.
            // Test: `frames_of_a_ring_that_broke_stay`.
            match unsafe { ring.receive(quota, &mut memory, out, stats) } {
                Ok(true) => {}
                Ok(false) => break,
                Err(Broken) => broken = Some(number),
            }
        }
        if let Some(number) = broken {
            self.close_broken(number, stats);
        }
    }

    fn close_broken(&mut self, number: u16, stats: &mut TransportStats) {
        stats.rx_dropped += 1;
        // Frames of this burst may be lent from it.
        self.broken = self.remove(usize::from(number));
    }

    fn mark_active(&mut self, number: usize) {
        // The hint is untrusted: the ring may not exist or may not be idle.
        self.doorbell.mark_active(number);
        if let Some(Some(ring)) = self.rings.get_mut(number)
            && std::mem::take(&mut ring.idle)
        {
            self.active.push(number as u16);
        }
    }

    fn remove(&mut self, number: usize) -> Option<Ring> {
        self.doorbell.mark_active(number);
        self.active.retain(|&n| usize::from(n) != number);
        let ring = self.rings.get_mut(number)?.take()?;
        self.bytes -= ring.consumer.shape().bytes() as u64;
        Some(ring)
    }

    /// Returns whether any ring has a frame or is broken.
    pub(super) fn is_waiting(&self) -> bool {
        self.rings.iter().flatten().any(|r| r.consumer.peek() != Ok(None))
    }

    // ---- upkeep -------------------------------------------------------------------------------

    /// Handles a new connection.
    pub(super) fn accept(&mut self, socket: OwnedFd, now: Instant, epoll: &Epoll) {
        if !super::dir::is_ours(&socket) {
            return;
        }
        let pending = Pending { socket, since: now };
        if let Some(pending) = self.try_adopt(pending, now, epoll)
            && self.pending.len() < MAX_PENDING
            && epoll.add(&pending.socket, Token::Pending)
        {
            self.pending.push(pending);
        }
    }

    /// Polls the connections that have not sent their `Hello`.
    pub(super) fn poll_pending(&mut self, now: Instant, epoll: &Epoll) {
        for pending in std::mem::take(&mut self.pending) {
            let waits = self.try_adopt(pending, now, epoll);
            self.pending.extend(waits);
        }
    }

    /// Reads the `Hello` and adopts the ring. Returns the connection while the `Hello` has not
    /// arrived.
    fn try_adopt(&mut self, pending: Pending, now: Instant, epoll: &Epoll) -> Option<Pending> {
        match msg::receive(pending.socket.as_fd()) {
            Received::Nothing => {
                (now.saturating_duration_since(pending.since) < HELLO_TIMEOUT).then_some(pending)
            }
            Received::Ended => None,
            Received::Message(bytes, fds) => {
                if let (Some(hello), [fd]) = (Hello::parse(&bytes), &fds[..]) {
                    let adopted = self.adopt(hello, fd, pending.socket, epoll);
                    if let Err(e) = adopted {
                        tracing::debug!(port = hello.port, error = %e, "a ring was refused");
                    }
                }
                None
            }
        }
    }

    /// Adopts a ring. The `Hello` was checked before; its memory is checked here.
    fn adopt(
        &mut self,
        hello: Hello,
        fd: &OwnedFd,
        socket: OwnedFd,
        epoll: &Epoll,
    ) -> Result<(), Errno> {
        let free = self.rings.iter().position(Option::is_none);
        let number = free.unwrap_or(self.rings.len());
        let bytes = self.bytes + hello.shape.bytes() as u64;
        if number >= self.limits.rings || bytes > self.limits.bytes {
            return Err(Errno::NOBUFS);
        }
        let mut mapping = map::adopt(fd.as_fd(), hello.shape.bytes(), true)?;
        mapping.protect_after(PAGE)?;
        mapping.populate(hello.shape.front().min(self.limits.present));
        let welcome = Welcome { ring: number as u32 };
        // Before the first poll of the ring: see `outbound`.
        let pages = self.pages.each_ref().map(AsFd::as_fd);
        msg::send(socket.as_fd(), &welcome.to_bytes(), &pages)?;
        epoll.remove(&socket);
        if !epoll.add(&socket, Token::Inbound(number as u32)) {
            return Err(Errno::NOSPC);
        }
        let ring = Ring {
            consumer: Consumer::new(mapping, hello.shape),
            src: Addr { port: hello.port, ..self.local },
            trusted: self.trust && hello.trust,
            lent: false,
            idle: false,
            seen: 0,
            last: None,
            socket,
        };
        if number == self.rings.len() {
            self.rings.push(None);
        }
        self.rings[number] = Some(ring);
        self.bytes = bytes;
        self.active.push(number as u16);
        Ok(())
    }

    /// Reads a peer's socket: signals, or the end of the connection.
    pub(super) fn on_socket(&mut self, number: u32) {
        let Some(Some(ring)) = self.rings.get_mut(number as usize) else { return };
        let mut buf = [0; 8];
        for _ in 0..SIGNALS {
            match rustix::net::recv(&ring.socket, &mut buf, rustix::net::RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                Ok((n, _)) if n > 0 => {}
                _ => break,
            }
        }
        // The peer has ended or floods the socket. Published records are still received, but at
        // most a full ring: another process may have its memory and continue to write.
        if ring.last.is_none() {
            ring.last = Some(ring.consumer.received() + u64::from(ring.consumer.shape().slots));
        }
        self.mark_active(number as usize);
    }

    /// Removes the rings of senders that have ended, and marks quiet ones as idle.
    pub(super) fn upkeep(&mut self) {
        self.broken = None;
        let mut quiet = Vec::new();
        for number in 0..self.rings.len() {
            let Some(ring) = &mut self.rings[number] else { continue };
            // The ring may become idle, so report now.
            ring.consumer.release();
            if ring.last.is_some() {
                let done = Some(ring.consumer.received()) >= ring.last;
                if done || ring.consumer.peek() == Ok(None) {
                    self.remove(number);
                }
                continue;
            }
            let received = ring.consumer.received();
            if std::mem::replace(&mut ring.seen, received) == received && !ring.idle {
                quiet.push(number);
            }
        }
        if self.active.len() > ALWAYS_POLLED {
            self.mark_idle(&quiet);
        }
        for _ in 0..IDLE_POLLS.min(self.rings.len()) {
            self.next_idle_poll = (self.next_idle_poll + 1) % self.rings.len();
            self.mark_active_if_waiting(self.next_idle_poll);
        }
    }

    fn mark_idle(&mut self, quiet: &[usize]) {
        for &number in quiet {
            self.doorbell.mark_idle(number);
            if let Some(Some(ring)) = self.rings.get_mut(number) {
                ring.idle = true;
            }
        }
        if quiet.is_empty() {
            return;
        }
        let rings = &self.rings;
        let awake = |n: &u16| !rings[usize::from(*n)].as_ref().is_some_and(|r| r.idle);
        self.active.retain(awake);
        self.doorbell.idle_barrier();
        quiet.iter().for_each(|&number| self.mark_active_if_waiting(number));
    }

    fn mark_active_if_waiting(&mut self, number: usize) {
        let waiting = |r: &Ring| r.idle && r.consumer.peek() != Ok(None);
        if self.rings.get(number).and_then(Option::as_ref).is_some_and(waiting) {
            self.mark_active(number);
        }
    }
}

impl Ring {
    /// Receives at most `quota` frames. Returns false when the burst is full.
    ///
    /// # Safety
    /// The ring exists and is not used as long as the frames are used.
    #[inline]
    unsafe fn receive<'a>(
        &mut self,
        quota: usize,
        memory: &mut &'a mut [u8],
        out: &mut RxBurst<'a>,
        stats: &mut TransportStats,
    ) -> Result<bool, Broken> {
        let before = out.len();
        let end = before + quota;
        let result = if self.trusted {
            // SAFETY: as promised by the caller. Test: `frames_of_a_ring_that_broke_stay`.
            unsafe { self.lend(end, out, stats) }
        } else {
            // SAFETY: as above. Test: `large_frames_of_a_ring_that_broke_stay`.
            unsafe { self.copy(end, memory, out, stats) }
        };
        let frames = out.len() - before;
        stats.rx_frames += frames as u64;
        stats.rx_calls += u64::from(frames > 0);
        result
    }

    /// Calls `take` with the length of each record and appends the returned frame, until the burst
    /// has `end` frames, no record is left, or `take` breaks with whether the burst has room.
    /// Returns false when the burst is full.
    #[inline(always)]
    fn each<'a>(
        &mut self,
        end: usize,
        out: &mut RxBurst<'a>,
        stats: &mut TransportStats,
        mut take: impl FnMut(&mut Self, usize) -> ControlFlow<bool, RxFrame<'a>>,
    ) -> Result<bool, Broken> {
        while out.len() < end {
            let Some(len) = self.consumer.peek()? else { break };
            if out.is_full() {
                return Ok(false);
            }
            match take(self, len) {
                ControlFlow::Continue(frame) => out.push(frame),
                ControlFlow::Break(more) => return Ok(more),
            }
            stats.rx_bytes += len as u64;
        }
        Ok(true)
    }

    /// Copies frames to private memory.
    ///
    /// # Safety
    /// As `receive`.
    #[inline(always)]
    unsafe fn copy<'a>(
        &mut self,
        end: usize,
        memory: &mut &'a mut [u8],
        out: &mut RxBurst<'a>,
        stats: &mut TransportStats,
    ) -> Result<bool, Broken> {
        if std::mem::take(&mut self.lent) {
            self.consumer.release_tails();
        }
        let mut large = false;
        let result = self.each(end, out, stats, |ring, len| {
            if len >= LARGE {
                large = true;
                return ControlFlow::Break(true);
            }
            let Some(own) = room(memory, len) else { return ControlFlow::Break(false) };
            ring.consumer.pop(len, &mut own[..len.next_multiple_of(16)]);
            // No switch marks frames in shared memory.
            ControlFlow::Continue(RxFrame::new(ring.src, &own[..len], Ecn::Ect0))
        });
        // SAFETY: as promised by the caller. Test: `large_frames_of_a_ring_that_broke_stay`.
        if large { unsafe { self.copy_fronts(end, memory, out, stats) } } else { result }
    }

    /// Receives the rest of a burst, from its first large frame on. Copies the front of large
    /// frames; the tail stays in the ring until the next burst, so the receiver reports none of
    /// these frames before.
    ///
    /// # Safety
    /// As `receive`.
    #[inline(never)] // keeps registers free in bursts of small frames
    unsafe fn copy_fronts<'a>(
        &mut self,
        end: usize,
        memory: &mut &'a mut [u8],
        out: &mut RxBurst<'a>,
        stats: &mut TransportStats,
    ) -> Result<bool, Broken> {
        // All earlier frames were copied out, so the whole lendable part of the ring is free.
        self.consumer.release_tails();
        self.lent = true;
        self.each(end, out, stats, |ring, len| {
            let front = if len >= LARGE { RX_HEAD } else { len };
            let Some(own) = room(memory, front) else { return ControlFlow::Break(false) };
            let Some(at) = ring.consumer.lend(len) else { return ControlFlow::Break(true) };
            let lent = ring.consumer.memory();
            lent.read(at, &mut own[..front.next_multiple_of(16)]);
            // SAFETY: the ring's memory stays mapped as long as the ring exists, by the caller's
            // promise longer than the frames are used. Its sender may write there, which is what
            // tails are for. Test: `large_frames_of_a_ring_that_broke_stay`.
            let tail = unsafe { lent.tail(at + front, len - front) };
            let frame = RxFrame::new(ring.src, &own[..front], Ecn::Ect0);
            ControlFlow::Continue(frame.with_tail(tail))
        })
    }

    /// Lends frames in place, after releasing the frames of the last burst.
    ///
    /// # Safety
    /// As `receive`.
    unsafe fn lend<'a>(
        &mut self,
        end: usize,
        out: &mut RxBurst<'a>,
        stats: &mut TransportStats,
    ) -> Result<bool, Broken> {
        self.consumer.release();
        self.each(end, out, stats, |ring, len| {
            let Some(at) = ring.consumer.lend(len) else { return ControlFlow::Break(true) };
            // SAFETY: the ring's memory stays mapped as long as the ring exists, by the caller's
            // promise longer than the frames are used. The sender does not write there: the ring's
            // invariant 2 forbids it before `release` reports the record as consumed. This holds
            // for correct senders only, which is the meaning of trust, and both sides have set it:
            // see `ShmConfig::trust`. Test: `lent_frames_stay_while_they_are_lent`.
            let data = unsafe { ring.consumer.memory().lend(at, len) };
            ControlFlow::Continue(RxFrame::new(ring.src, data, Ecn::Ect0))
        })
    }
}

/// Whole lines of private memory for `len` bytes; `None`: too few are left.
#[inline]
fn room<'a>(memory: &mut &'a mut [u8], len: usize) -> Option<&'a mut [u8]> {
    let lines = len.next_multiple_of(LINE);
    if lines > memory.len() {
        return None;
    }
    let (own, rest) = std::mem::take(memory).split_at_mut(lines);
    *memory = rest;
    Some(own)
}

#[cfg(test)]
impl Inbound {
    /// Number of rings.
    pub(super) fn len(&self) -> usize {
        self.rings.iter().flatten().count()
    }

    pub(super) fn active(&self) -> usize {
        self.active.len()
    }

    /// Number of rings that are read in place.
    pub(super) fn trusted(&self) -> usize {
        self.rings.iter().flatten().filter(|r| r.trusted).count()
    }

    pub(super) fn pending(&self) -> usize {
        self.pending.len()
    }
}
