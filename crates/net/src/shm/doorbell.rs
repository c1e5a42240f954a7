//! How a receiver says that it does not look, and how a sender wakes it.
//!
//! A receiver owns two pages. The *state* says whether it sleeps, and which of its rings it does
//! not look at because they were quiet; peers can only read it, so that none can put the receiver
//! to sleep for others, and while nothing changes it costs a sender a hit in its own cache. The
//! *hints* are bits that senders set for rings that are not looked at. They are outside bytes:
//! a peer may clear the bits of others, so all rings are looked at now and then besides.
//!
//! # Invariant
//! Who publishes a record looks at the state afterwards; who changes the state looks at the rings
//! afterwards. With a barrier between on both sides one of them sees the other. The sender's is
//! on the path of every burst, the receiver's is rare, so the receiver's does the work of both
//! (`membarrier(2)`: every running thread of the registered processes passes a full barrier).
//! Where that is not to be had both sides use a fence. `model` tries every order.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::LazyLock;
use std::sync::atomic::{Ordering, compiler_fence, fence};

use rustix::io::Errno;
use rustix::thread::{MembarrierCommand, membarrier};

use super::map::{self, Mapping, PAGE, Word, Words};

/// Rings that an endpoint may receive from: the bits of one line.
pub(super) const MAX_RINGS: usize = 512;
const WORDS: usize = MAX_RINGS / 64;

/// In the state: odd while the receiver sleeps; every sleep has its own odd number.
const EPOCH: usize = 0;
/// In the state: not 0 when senders have to fence.
const FENCE: usize = 8;
/// In the state: the rings that are not looked at, a bit each; in a line of its own.
const IDLE: usize = 64;

/// Whether this process takes part in barriers of others. Once for the process.
static REGISTERED: LazyLock<bool> =
    LazyLock::new(|| membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok());

/// A page of a doorbell, and the barriers that go with it: of the system, or of a model.
pub(super) trait Page: Words {
    /// The receiver's barrier: orders what it has stored before what it loads next, and makes
    /// every sender's stores before its last look at the state visible. False: it does the first
    /// only, and senders have to fence.
    fn heavy_barrier(&self) -> bool;
    /// The sender's, between publishing and looking at the state; `fenced` when the receiver
    /// cannot do it.
    fn light_barrier(&self, fenced: bool);
}

impl Page for Mapping {
    /// A few microseconds.
    fn heavy_barrier(&self) -> bool {
        fence(Ordering::SeqCst);
        *REGISTERED && membarrier(MembarrierCommand::GlobalExpedited).is_ok()
    }

    #[inline(always)]
    fn light_barrier(&self, fenced: bool) {
        if *REGISTERED && !fenced {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }
}

/// The receiver's side.
#[derive(Debug)]
pub(super) struct Doorbell<P = Mapping> {
    state: P,
    hints: P,
    /// Number of idle rings in each word, so that only words in use are looked at.
    idle: [u16; WORDS],
    /// Number of idle rings.
    resting: u32,
}

impl Doorbell {
    /// And the files of its two pages, for senders.
    pub(super) fn new() -> Result<(Self, [OwnedFd; 2]), Errno> {
        let (state_fd, state) = map::create("courser-state", PAGE, true)?;
        let (hints_fd, hints) = map::create("courser-hints", PAGE, false)?;
        Ok((Doorbell::on(state, hints), [state_fd, hints_fd]))
    }
}

impl<P: Page> Doorbell<P> {
    /// On pages that are all zero.
    pub(super) fn on(state: P, hints: P) -> Self {
        let doorbell = Doorbell { state, hints, idle: [0; WORDS], resting: 0 };
        if !doorbell.state.heavy_barrier() {
            doorbell.state.word(FENCE).store(1, Ordering::Release);
        }
        doorbell
    }

    fn epoch(&self) -> u64 {
        self.state.word(EPOCH).load(Ordering::Relaxed)
    }

    pub(super) fn is_armed(&self) -> bool {
        self.epoch() % 2 == 1
    }

    /// Asks senders for a signal. Afterwards the rings have to be looked at once more.
    pub(super) fn arm(&self) {
        if !self.is_armed() {
            self.state.word(EPOCH).store(self.epoch().wrapping_add(1), Ordering::Release);
        }
        self.barrier();
    }

    /// Signals are not needed any more.
    pub(super) fn disarm(&self) {
        if self.is_armed() {
            self.state.word(EPOCH).store(self.epoch().wrapping_add(1), Ordering::Release);
        }
    }

    fn barrier(&self) {
        if !self.state.heavy_barrier() {
            // It worked when this endpoint was made; from now on senders fence, and those that
            // have looked already are late by a look at all rings, as with a lost hint.
            self.state.word(FENCE).store(1, Ordering::SeqCst);
        }
    }

    /// A ring will not be looked at. After one or more of these [`Doorbell::settle`] must follow.
    pub(super) fn rest(&mut self, ring: usize) {
        let (word, bit) = (ring / 64, 1 << (ring % 64));
        let idle = self.state.word(IDLE + 8 * word);
        if idle.load(Ordering::Relaxed) & bit == 0 {
            idle.fetch_or(bit, Ordering::Release);
            self.idle[word] += 1;
            self.resting += 1;
        }
    }

    /// Afterwards the rings that rest have to be looked at once more.
    pub(super) fn settle(&self) {
        self.barrier();
    }

    /// A ring is looked at again, or is gone.
    pub(super) fn rouse(&mut self, ring: usize) {
        let (word, bit) = (ring / 64, 1 << (ring % 64));
        let idle = self.state.word(IDLE + 8 * word);
        if idle.load(Ordering::Relaxed) & bit != 0 {
            idle.fetch_and(!bit, Ordering::Release);
            self.idle[word] -= 1;
            self.resting -= 1;
        }
    }

    /// A resting ring for which a sender has left a hint. Costs a load for each 64 rings of which
    /// some rest.
    #[inline]
    pub(super) fn hinted(&self) -> Option<usize> {
        if self.resting == 0 { None } else { self.next_hint() }
    }

    fn next_hint(&self) -> Option<usize> {
        for (word, &idle) in self.idle.iter().enumerate() {
            if idle == 0 {
                continue;
            }
            let hints = self.hints.word(8 * word);
            let seen = hints.load(Ordering::Acquire);
            if seen != 0 {
                let bit = seen.trailing_zeros();
                hints.fetch_and(!(1 << bit), Ordering::AcqRel);
                return Some(word * 64 + bit as usize);
            }
        }
        None
    }
}

/// A sender's view of a receiver's doorbell.
#[derive(Debug)]
pub(super) struct RemoteDoorbell<P = Mapping> {
    state: P,
    hints: P,
    /// The ring's number at the receiver.
    ring: usize,
    /// The sleep for which a signal has been sent.
    signalled: u64,
}

impl RemoteDoorbell {
    /// From what a receiver sent.
    pub(super) fn new(state: &OwnedFd, hints: &OwnedFd, ring: u32) -> Result<Self, Errno> {
        let ring = ring as usize;
        if ring >= MAX_RINGS {
            return Err(Errno::INVAL);
        }
        let state = map::adopt(state.as_fd(), PAGE, false)?;
        let hints = map::adopt(hints.as_fd(), PAGE, true)?;
        LazyLock::force(&REGISTERED);
        Ok(RemoteDoorbell::on(state, hints, ring))
    }
}

impl<P: Page> RemoteDoorbell<P> {
    pub(super) fn on(state: P, hints: P, ring: usize) -> Self {
        RemoteDoorbell { state, hints, ring, signalled: 0 }
    }

    /// After publishing: leaves a hint if the receiver wants one. True: it sleeps, and has not
    /// been signalled since it fell asleep.
    #[inline]
    pub(super) fn ring(&mut self) -> bool {
        self.state.light_barrier(self.state.word(FENCE).load(Ordering::Relaxed) != 0);
        let idle = self.state.word(IDLE + self.ring / 64 * 8).load(Ordering::Relaxed);
        if idle >> (self.ring % 64) & 1 == 1 {
            self.hint();
        }
        let epoch = self.state.word(EPOCH).load(Ordering::Relaxed);
        epoch % 2 == 1 && epoch != std::mem::replace(&mut self.signalled, epoch)
    }

    #[cold]
    fn hint(&self) {
        let hints = self.hints.word(self.ring / 64 * 8);
        // Also when the bit seems to be set: the operation orders the record before itself, so
        // that whoever clears the bit afterwards finds the record.
        hints.fetch_or(1 << (self.ring % 64), Ordering::AcqRel);
    }
}

#[cfg(all(test, loom))]
impl<P: Page> Doorbell<P> {
    /// Whether any ring rests.
    pub(super) fn is_resting(&self) -> bool {
        self.resting > 0
    }
}

/// What a hostile peer can do to the hints.
#[cfg(test)]
impl Doorbell {
    pub(super) fn lose_hints(&self) {
        (0..WORDS).for_each(|word| self.hints.word(8 * word).store(0, Ordering::Relaxed));
    }

    pub(super) fn invent_hints(&self) {
        (0..WORDS).for_each(|word| self.hints.word(8 * word).store(u64::MAX, Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(ring: u32) -> (Doorbell, RemoteDoorbell) {
        let (doorbell, [state, hints]) = Doorbell::new().unwrap();
        let remote = RemoteDoorbell::new(&state, &hints, ring).unwrap();
        (doorbell, remote)
    }

    #[test]
    fn a_sleep_is_signalled_once() {
        let (doorbell, mut remote) = pair(3);
        assert!(!remote.ring());
        for _ in 0..3 {
            doorbell.arm();
            doorbell.arm();
            assert!(remote.ring());
            assert!(!remote.ring());
            doorbell.disarm();
            doorbell.disarm();
            assert!(!remote.ring());
        }
    }

    #[test]
    fn only_resting_rings_are_hinted_at() {
        let (mut doorbell, mut remote) = pair(200);
        remote.ring();
        assert_eq!(doorbell.hinted(), None);
        doorbell.rest(200);
        doorbell.rest(201);
        doorbell.settle();
        assert_eq!(doorbell.hinted(), None);
        remote.ring();
        remote.ring();
        assert_eq!((doorbell.hinted(), doorbell.hinted()), (Some(200), None));
        doorbell.rouse(200);
        remote.ring();
        assert_eq!(doorbell.hinted(), None);
    }

    #[test]
    fn pages_of_a_stranger_are_checked() {
        let (_bell, [state, hints]) = Doorbell::new().unwrap();
        let ring = |state, hints, ring| RemoteDoorbell::new(state, hints, ring).is_ok();
        assert!(ring(&state, &hints, 511));
        assert!(!ring(&state, &hints, 512));
        // The state cannot be written, so it is no page of hints.
        assert!(!ring(&state, &state, 0));
        let (large, _) = map::create("test", 2 * PAGE, false).unwrap();
        assert!(!ring(&large, &hints, 0));
    }
}
