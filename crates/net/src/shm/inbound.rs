//! The rings that others send to us by: taken over, looked at, let go.
//!
//! Rings that have been quiet are not looked at one by one, when there are more than a few: they
//! rest until a hint comes (E15). So the cost of a burst grows with the peers that send, not with
//! those that could.

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

/// Rings that are looked at in any case.
const ALWAYS: usize = 4;
/// Hints followed in one burst.
const HINTS: usize = 16;
/// Resting rings that are looked at in one round of upkeep.
const LOOKS: usize = 8;
/// Connections that have not said who they are.
const STRANGERS: usize = 16;
/// How long they may take.
const PATIENCE: Duration = Duration::from_secs(1);
/// Signals that are read from a peer in one round of upkeep; an honest one sends one for each
/// time that we fell asleep.
const SIGNALS: usize = 64;
/// Frames begin at a line.
const LINE: usize = 64;
/// Frames of so many bytes and more are copied once: all but their front stays in the ring until
/// the next burst. Below that two copies cost less than holding the ring's places for so long.
pub(super) const LARGE: usize = 4096;

const _: () = assert!(LARGE > RX_HEAD && RX_HEAD.is_multiple_of(LINE));

/// What is lent of the frames of an endpoint of these settings. Of a sender with larger frames more may
/// be: the promise is about frames of our own measures.
pub(super) fn lends(cfg: &ShmConfig) -> Lent {
    match cfg.max_frame {
        _ if cfg.trust => Lent::Frames,
        LARGE.. => Lent::Tails,
        _ => Lent::Nothing,
    }
}

/// A ring that somebody sends by.
#[derive(Debug)]
struct Ring {
    consumer: Consumer<Mapping>,
    src: Addr,
    /// Frames are read where they lie: both sides have said that they trust each other.
    trusted: bool,
    /// Of frames of the last burst all but the front lies here still, though it is not trusted.
    lent: bool,
    resting: bool,
    /// Records received when upkeep last looked.
    seen: u64,
    /// The sender has gone; what it left is received up to this record.
    last: Option<u64>,
    socket: OwnedFd,
}

/// A connection that has not said anything yet.
#[derive(Debug)]
struct Stranger {
    socket: OwnedFd,
    since: Instant,
}

/// All rings of an endpoint.
#[derive(Debug)]
pub(super) struct Inbound {
    rings: Vec<Option<Ring>>,
    /// Numbers of the rings that do not rest.
    active: Vec<u16>,
    /// Where the next burst begins, so that no ring is always the first.
    cursor: usize,
    /// Where the next look at resting rings begins.
    next_look: usize,
    doorbell: Doorbell,
    /// The files of the doorbell's pages, for senders.
    pages: [OwnedFd; 2],
    strangers: Vec<Stranger>,
    /// A ring that broke in the burst whose frames may still be lent from it.
    broken: Option<Ring>,
    limits: Limits,
    /// Whether we trust senders that trust us.
    trust: bool,
    /// Bytes of all rings.
    bytes: u64,
    /// Our own address, as far as senders share it.
    local: Addr,
}

/// How much senders may have. They choose the shapes of their rings themselves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    rings: usize,
    /// Bytes of all rings together: as many rings as there may be, of the shape that we use.
    bytes: u64,
    /// Bytes of a ring that are made present at once, in the middle of a burst.
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
            next_look: 0,
            doorbell,
            pages,
            strangers: Vec::new(),
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

    /// Whether nobody sends to us.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// One burst into `memory`, which is private, or where trusted peers have put it.
    ///
    /// # Safety
    /// Nothing else is done with `self` as long as the frames are used.
    #[inline]
    pub(super) unsafe fn receive<'a>(
        &mut self,
        mut memory: &'a mut [u8],
        out: &mut RxBurst<'a>,
        stats: &mut TransportStats,
    ) {
        for _ in 0..HINTS {
            let Some(ring) = self.doorbell.hinted() else { break };
            self.rouse(ring);
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
            // SAFETY: rings live until something else is done with `self`; see `broken`.
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

    #[cold]
    fn close_broken(&mut self, number: u16, stats: &mut TransportStats) {
        stats.rx_dropped += 1;
        // Frames of this burst may lie in it.
        self.broken = self.remove(usize::from(number));
    }

    #[cold]
    fn rouse(&mut self, number: usize) {
        // The hint is an outside byte: there may be no such ring, and it may not rest.
        self.doorbell.rouse(number);
        if let Some(Some(ring)) = self.rings.get_mut(number)
            && std::mem::take(&mut ring.resting)
        {
            self.active.push(number as u16);
        }
    }

    #[cold]
    fn remove(&mut self, number: usize) -> Option<Ring> {
        self.doorbell.rouse(number);
        self.active.retain(|&n| usize::from(n) != number);
        let ring = self.rings.get_mut(number)?.take()?;
        self.bytes -= ring.consumer.shape().bytes() as u64;
        Some(ring)
    }

    /// Whether any ring holds a frame, or cannot be used any more.
    pub(super) fn is_waiting(&self) -> bool {
        self.rings.iter().flatten().any(|r| r.consumer.peek() != Ok(None))
    }

    // ---- upkeep -------------------------------------------------------------------------------

    /// A connection has come.
    pub(super) fn accept(&mut self, socket: OwnedFd, now: Instant, epoll: &Epoll) {
        if !super::dir::is_ours(&socket) {
            return;
        }
        let stranger = Stranger { socket, since: now };
        if let Some(stranger) = self.listen(stranger, now, epoll)
            && self.strangers.len() < STRANGERS
            && epoll.add(&stranger.socket, Token::Stranger)
        {
            self.strangers.push(stranger);
        }
    }

    /// Hears those who had nothing to say when they came.
    pub(super) fn hear_strangers(&mut self, now: Instant, epoll: &Epoll) {
        for stranger in std::mem::take(&mut self.strangers) {
            let waits = self.listen(stranger, now, epoll);
            self.strangers.extend(waits);
        }
    }

    /// Gives the stranger back when it may still say who it is.
    fn listen(&mut self, stranger: Stranger, now: Instant, epoll: &Epoll) -> Option<Stranger> {
        match msg::receive(stranger.socket.as_fd()) {
            Received::Nothing => {
                (now.saturating_duration_since(stranger.since) < PATIENCE).then_some(stranger)
            }
            Received::Ended => None,
            Received::Message(bytes, fds) => {
                if let (Some(hello), [fd]) = (Hello::parse(&bytes), &fds[..]) {
                    let adopted = self.adopt(hello, fd, stranger.socket, epoll);
                    if let Err(e) = adopted {
                        tracing::debug!(port = hello.port, error = %e, "a ring was refused");
                    }
                }
                None
            }
        }
    }

    /// Takes a ring over: whatever its sender says has been checked, and its memory is now.
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
        // Before the ring is looked at for the first time: see `outbound`.
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
            resting: false,
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

    /// A peer's socket has something: signals, or its end.
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
        // It has gone, or sends what nobody asked for. What it had published still counts, but
        // not more than a ring holds: somebody else may have its memory and go on.
        if ring.last.is_none() {
            ring.last = Some(ring.consumer.received() + u64::from(ring.consumer.shape().slots));
        }
        self.rouse(number as usize);
    }

    /// Lets go of the rings of senders that have gone, and rests those that were quiet.
    pub(super) fn upkeep(&mut self) {
        self.broken = None;
        let mut quiet = Vec::new();
        for number in 0..self.rings.len() {
            let Some(ring) = &mut self.rings[number] else { continue };
            // It may be the last look for long.
            ring.consumer.release();
            if ring.last.is_some() {
                let done = Some(ring.consumer.received()) >= ring.last;
                if done || ring.consumer.peek() == Ok(None) {
                    self.remove(number);
                }
                continue;
            }
            let received = ring.consumer.received();
            if std::mem::replace(&mut ring.seen, received) == received && !ring.resting {
                quiet.push(number);
            }
        }
        if self.active.len() > ALWAYS {
            self.rest(&quiet);
        }
        for _ in 0..LOOKS.min(self.rings.len()) {
            self.next_look = (self.next_look + 1) % self.rings.len();
            self.rouse_if_waiting(self.next_look);
        }
    }

    fn rest(&mut self, quiet: &[usize]) {
        for &number in quiet {
            self.doorbell.rest(number);
            if let Some(Some(ring)) = self.rings.get_mut(number) {
                ring.resting = true;
            }
        }
        if quiet.is_empty() {
            return;
        }
        let rings = &self.rings;
        let awake = |n: &u16| !rings[usize::from(*n)].as_ref().is_some_and(|r| r.resting);
        self.active.retain(awake);
        self.doorbell.settle();
        quiet.iter().for_each(|&number| self.rouse_if_waiting(number));
    }

    fn rouse_if_waiting(&mut self, number: usize) {
        let waiting = |r: &Ring| r.resting && r.consumer.peek() != Ok(None);
        if self.rings.get(number).and_then(Option::as_ref).is_some_and(waiting) {
            self.rouse(number);
        }
    }
}

impl Ring {
    /// At most `quota` frames. False: the burst is full.
    ///
    /// # Safety
    /// The ring exists, and nothing is done with it, as long as the frames are used.
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

    /// Has `take` make a frame of one record after another, of the length that it is told, until
    /// there are `end` in the burst, no record is left, or `take` says whether there is room for
    /// more. False: the burst is full.
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

    /// Frames that are copied to private memory.
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
            self.consumer.settle();
        }
        let mut large = false;
        let result = self.each(end, out, stats, |ring, len| {
            if len >= LARGE {
                large = true;
                return ControlFlow::Break(true);
            }
            let Some(own) = room(memory, len) else { return ControlFlow::Break(false) };
            ring.consumer.pop(len, &mut own[..len.next_multiple_of(16)]);
            // Nothing marks frames on the way: they come as they were sent.
            ControlFlow::Continue(RxFrame::new(ring.src, &own[..len], Ecn::Ect0))
        });
        // SAFETY: as promised by the caller. Test: `large_frames_of_a_ring_that_broke_stay`.
        if large { unsafe { self.copy_fronts(end, memory, out, stats) } } else { result }
    }

    /// The rest of a burst in which there is a large frame. Of large frames the front is copied, and
    /// the rest can be, until the next burst. So the sender is not told of any of these frames
    /// before.
    ///
    /// # Safety
    /// As `receive`.
    #[inline(never)] // so that bursts of small frames have the registers
    unsafe fn copy_fronts<'a>(
        &mut self,
        end: usize,
        memory: &mut &'a mut [u8],
        out: &mut RxBurst<'a>,
        stats: &mut TransportStats,
    ) -> Result<bool, Broken> {
        // All before was copied out: a whole part of the ring may be lent.
        self.consumer.settle();
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
            ControlFlow::Continue(RxFrame { tail, ..frame })
        })
    }

    /// Frames that are read where they lie; those of the last burst are given back first.
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
            // promise longer than the frames are used. Nobody writes there: the sender has said
            // that it trusts us and can be trusted, and the rules of the ring (its invariant 2)
            // forbid it to write to a record that has not been counted as consumed, which
            // `release` does. This holds for honest senders only, which is what trust means: see
            // `ShmConfig::trust`. Test: `lent_frames_stay_while_they_are_lent`.
            let data = unsafe { ring.consumer.memory().lend(at, len) };
            ControlFlow::Continue(RxFrame::new(ring.src, data, Ecn::Ect0))
        })
    }
}

/// Whole lines of private memory for so many bytes; `None`: there are not as many left.
#[inline(always)]
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
    /// Rings there are, and those that are looked at in any case.
    pub(super) fn len(&self) -> usize {
        self.rings.iter().flatten().count()
    }

    pub(super) fn active(&self) -> usize {
        self.active.len()
    }

    /// Rings that are read in place.
    pub(super) fn trusted(&self) -> usize {
        self.rings.iter().flatten().filter(|r| r.trusted).count()
    }

    pub(super) fn strangers(&self) -> usize {
        self.strangers.len()
    }
}
