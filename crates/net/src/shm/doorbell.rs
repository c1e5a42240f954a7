//! Doorbell: wakes a sleeping receiver and marks idle rings that have a new record.
//!
//! A receiver owns two pages. The *state* page contains its sleep epoch and the bits of idle rings,
//! which it does not poll. Peers map it read-only, so that no peer can change it for others; while
//! it does not change, a sender's read is a cache hit. The *hints* page contains a bit for each
//! ring, which senders to idle rings set. Hints are untrusted: a peer can clear the bits of others,
//! so the receiver also polls idle rings at a low rate.
//!
//! # Invariant
//! A sender publishes a record, then reads the state. The receiver changes the state, then polls
//! the rings. With a full barrier between the two steps on both sides, at least one side sees the
//! other. The sender's barrier is on the path of every burst and the receiver's is rare, so the
//! receiver executes both (`membarrier(2)`: every running thread of the registered processes passes
//! a full barrier). Without `membarrier` both sides use a fence. `model` tests every order.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::LazyLock;
use std::sync::atomic::{Ordering, compiler_fence, fence};

use rustix::io::Errno;
use rustix::thread::{MembarrierCommand, membarrier};

use super::map::{self, Mapping, PAGE, Word, Words};

/// Maximum number of receiving rings of an endpoint: the bits of one line.
pub(super) const MAX_RINGS: usize = 512;
const WORDS: usize = MAX_RINGS / 64;

/// Offset in the state: the sleep epoch, odd while the receiver sleeps.
const EPOCH: usize = 0;
/// Offset in the state: not 0 when senders must use a fence.
const FENCE: usize = 8;
/// Offset in the state: the bits of idle rings, in a line of their own.
const IDLE: usize = 64;

/// True if this process is registered for the barriers of other processes; once per process.
static REGISTERED: LazyLock<bool> =
    LazyLock::new(|| membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok());

/// A page of a doorbell with its barriers: those of the system, or of a model.
pub(super) trait Page: Words {
    /// The receiver's barrier: orders its stores before its later loads, and executes a barrier on
    /// behalf of every sender. False: it does only the first, and senders must use a fence.
    fn heavy_barrier(&self) -> bool;
    /// The sender's barrier between publishing and reading the state; a fence when `fenced`, which
    /// the receiver requests when it has no `membarrier`.
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
    /// Number of idle rings in each word, so that only words in use are read.
    idle_in_word: [u16; WORDS],
    /// Number of idle rings.
    idle_rings: u32,
}

impl Doorbell {
    /// A doorbell, and the files of its two pages for senders.
    pub(super) fn new() -> Result<(Self, [OwnedFd; 2]), Errno> {
        let (state_fd, state) = map::create("courser-state", PAGE, true)?;
        let (hints_fd, hints) = map::create("courser-hints", PAGE, false)?;
        Ok((Doorbell::on(state, hints), [state_fd, hints_fd]))
    }
}

impl<P: Page> Doorbell<P> {
    /// A doorbell on pages that are all zero.
    pub(super) fn on(state: P, hints: P) -> Self {
        let doorbell = Doorbell { state, hints, idle_in_word: [0; WORDS], idle_rings: 0 };
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

    /// Requests a signal from senders. The caller must poll the rings once more afterwards.
    pub(super) fn arm(&self) {
        if !self.is_armed() {
            self.state.word(EPOCH).store(self.epoch().wrapping_add(1), Ordering::Release);
        }
        self.barrier();
    }

    /// Withdraws the request for signals.
    pub(super) fn disarm(&self) {
        if self.is_armed() {
            self.state.word(EPOCH).store(self.epoch().wrapping_add(1), Ordering::Release);
        }
    }

    fn barrier(&self) {
        if !self.state.heavy_barrier() {
            // `membarrier` worked when this endpoint was bound. From now on senders use a fence. A
            // sender may have read the state before this store; the next poll of all rings finds
            // its record, as after a lost hint.
            self.state.word(FENCE).store(1, Ordering::SeqCst);
        }
    }

    /// Marks a ring as idle. After one or more of these [`Doorbell::idle_barrier`] must follow.
    pub(super) fn mark_idle(&mut self, ring: usize) {
        let (word, bit) = (ring / 64, 1 << (ring % 64));
        let idle = self.state.word(IDLE + 8 * word);
        if idle.load(Ordering::Relaxed) & bit == 0 {
            idle.fetch_or(bit, Ordering::Release);
            self.idle_in_word[word] += 1;
            self.idle_rings += 1;
        }
    }

    /// Makes idle marks visible. The caller must poll the idle rings once more afterwards.
    pub(super) fn idle_barrier(&self) {
        self.barrier();
    }

    /// Clears the idle mark of a ring that is polled again or is gone.
    pub(super) fn mark_active(&mut self, ring: usize) {
        let (word, bit) = (ring / 64, 1 << (ring % 64));
        let idle = self.state.word(IDLE + 8 * word);
        if idle.load(Ordering::Relaxed) & bit != 0 {
            idle.fetch_and(!bit, Ordering::Release);
            self.idle_in_word[word] -= 1;
            self.idle_rings -= 1;
        }
    }

    /// An idle ring for which a sender has set a hint. Costs one load per 64 rings of which some
    /// are idle.
    #[inline]
    pub(super) fn hinted(&self) -> Option<usize> {
        if self.idle_rings == 0 { None } else { self.next_hint() }
    }

    fn next_hint(&self) -> Option<usize> {
        for (word, &idle) in self.idle_in_word.iter().enumerate() {
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
    /// The epoch for which a signal was sent.
    signalled: u64,
}

impl RemoteDoorbell {
    /// Maps the pages that a receiver sent.
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

    /// Called after publishing: sets a hint if the ring is idle. True: the receiver sleeps and was
    /// not signalled in this epoch.
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
        // Also when the bit is set already: the operation orders the record before itself, so the
        // receiver finds the record after clearing the bit.
        hints.fetch_or(1 << (self.ring % 64), Ordering::AcqRel);
    }
}

#[cfg(all(test, loom))]
impl<P: Page> Doorbell<P> {
    /// Returns whether any ring is idle.
    pub(super) fn has_idle_rings(&self) -> bool {
        self.idle_rings > 0
    }
}

/// Changes of the hints that a hostile peer can make.
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
    fn only_idle_rings_are_hinted_at() {
        let (mut doorbell, mut remote) = pair(200);
        remote.ring();
        assert_eq!(doorbell.hinted(), None);
        doorbell.mark_idle(200);
        doorbell.mark_idle(201);
        doorbell.idle_barrier();
        assert_eq!(doorbell.hinted(), None);
        remote.ring();
        remote.ring();
        assert_eq!((doorbell.hinted(), doorbell.hinted()), (Some(200), None));
        doorbell.mark_active(200);
        remote.ring();
        assert_eq!(doorbell.hinted(), None);
    }

    #[test]
    fn received_pages_are_checked() {
        let (_bell, [state, hints]) = Doorbell::new().unwrap();
        let ring = |state, hints, ring| RemoteDoorbell::new(state, hints, ring).is_ok();
        assert!(ring(&state, &hints, 511));
        assert!(!ring(&state, &hints, 512));
        // The state page cannot be written, so it cannot be the hints page.
        assert!(!ring(&state, &state, 0));
        let (large, _) = map::create("test", 2 * PAGE, false).unwrap();
        assert!(!ring(&large, &hints, 0));
    }
}
