//! The working set: the sessions in use recently, by which an endpoint chooses its mode.
//!
//! With few sessions in use their state is in the nearest caches, however many are open. With many,
//! calls are deferred ([`crate::deferred`]), state is prefetched ([`crate::prefetch`]), and first timers
//! are cancelled. The working set is the number of distinct sessions in a *window* of consecutive
//! received packets. It is large from `Config::prefetch_min_sessions` on, and small again below half of
//! that. A window has four times as many packets as that number, so it contains nearly all sessions of
//! a working set of that size.
//!
//! Only an endpoint with that many open sessions counts, and only one window in [`PERIOD`]: a packet
//! costs less than an instruction.

use courser_buf::RxFrame;

use crate::config::Config;
use crate::wire::{PACKET_HEADER, body_of};

/// Most packets of a frame that are looked at.
const PACKETS: usize = 64;

/// Windows, by their number of frames, of which one is counted.
const PERIOD: u32 = 16;

/// Packets of a window for each session from which on the working set is large.
const PACKETS_PER_SESSION: usize = 4;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct WorkingSet {
    /// The working set is large from this number of sessions on. 0: always; `usize::MAX`: never.
    min_sessions: usize,
    is_large: bool,
    /// Frames until the next window.
    skipped: u32,
    /// Frames of the window so far.
    frames: u32,
    /// Packets of the window so far.
    packets: usize,
    /// Distinct sessions of the window so far.
    distinct: usize,
    /// A bit per session: it is in the window.
    seen: Vec<u64>,
}

impl WorkingSet {
    pub(crate) fn new(cfg: &Config) -> Self {
        let min_sessions = if cfg.prefetch { cfg.prefetch_min_sessions } else { usize::MAX };
        WorkingSet {
            min_sessions,
            is_large: min_sessions == 0,
            skipped: 0,
            frames: 0,
            packets: 0,
            distinct: 0,
            seen: Vec::new(),
        }
    }

    /// Returns whether enough sessions were in use recently for calls to be deferred and state to be
    /// prefetched.
    #[inline]
    pub(crate) fn is_large(&self) -> bool {
        self.is_large
    }

    /// Returns whether it can be large with this number of open sessions.
    #[inline]
    pub(crate) fn can_be_large(&self, sessions: usize) -> bool {
        sessions >= self.min_sessions
    }

    /// Counts a received frame of an endpoint with this number of open sessions. Returns whether
    /// the working set is large no longer.
    #[inline]
    pub(crate) fn count(&mut self, frame: &RxFrame<'_>, sessions: usize) -> bool {
        if self.skipped > 0 {
            self.skipped -= 1;
            return false;
        }
        self.min_sessions != 0 && self.count_packets(frame, sessions)
    }

    fn count_packets(&mut self, frame: &RxFrame<'_>, sessions: usize) -> bool {
        if self.frames == 0 {
            self.seen.clear();
            self.seen.resize(sessions.div_ceil(64), 0);
        }
        self.frames = self.frames.saturating_add(1);
        each_packet(frame, |session, _| {
            self.packets += 1;
            let bit = 1 << (session % 64);
            if let Some(word) = self.seen.get_mut(session as usize / 64) {
                self.distinct += usize::from(*word & bit == 0);
                *word |= bit;
            }
            true
        });
        let was_large = self.is_large;
        if self.distinct >= self.min_sessions {
            self.is_large = true;
        } else if self.packets < self.min_sessions.saturating_mul(PACKETS_PER_SESSION) {
            return false;
        } else if self.distinct < self.min_sessions / 2 {
            self.is_large = false;
        }
        self.skipped = self.frames.saturating_mul(PERIOD - 1);
        (self.frames, self.packets, self.distinct) = (0, 0, 0);
        was_large && !self.is_large
    }

    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.seen.capacity() * size_of::<u64>()
    }
}

/// Session and request number of the single-packet messages at the front of a frame, while `wanted`
/// returns `true`. Those of other packets are arbitrary: they serve only as hints.
#[inline]
pub(crate) fn each_packet(frame: &RxFrame<'_>, mut wanted: impl FnMut(u32, u32) -> bool) {
    let mut rest = body_of(frame.data);
    for _ in 0..PACKETS {
        let Some(header) = rest.first_chunk::<PACKET_HEADER>() else { return };
        let header = u128::from_le_bytes(*header);
        let (low, size) = (header as u64, (header >> 64) as u32 as usize);
        if !wanted(low as u32 >> 8, (low >> 32) as u32) {
            return;
        }
        let Some(behind) = rest.get(PACKET_HEADER + size..) else { return };
        rest = behind;
    }
}
