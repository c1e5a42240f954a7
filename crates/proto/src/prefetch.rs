//! Looking ahead: what the next frames of a burst need is fetched while this one is worked on, and
//! what the next looks of the timers will see. The same for calls is `deferred.rs`.
//!
//! With some hundred sessions all that an RPC touches is in the nearest caches. With many thousand
//! it is not, and a request would wait for memory three times, one after the other: for its
//! session, for the slot, and for the buffer of the response. Here the waits of all packets of a
//! frame overlap each other and the work on the frames before. What is looked at was not checked
//! yet: it can name anything, and nothing comes of it but a hint to the CPU.

use courser_buf::{PacketAccess, RxFrame, prefetch};

use crate::endpoint::Endpoint;
use crate::session::Session;
use crate::wire::{PACKET_HEADER, body_of};

/// Packets of a frame that are looked at.
const PACKETS: usize = 64;

/// With fewer calls under way, all that their responses need is still in the nearest caches: some 300
/// bytes for each, of which 512 have 150 KB.
const FAR_CALLS: u64 = 512;

impl<C> Endpoint<C> {
    /// Whether there are so many sessions that looking ahead is worth it.
    #[inline(always)]
    pub(crate) fn prefetches(&self) -> bool {
        self.sessions.len() >= self.cfg.far_sessions && self.cfg.prefetch
    }

    /// Call it before each frame of a received burst, which is `frames[at]`. Costs a test or two
    /// unless the endpoint has many sessions; then some 20 instructions for each packet and level.
    #[inline(always)]
    pub fn look_ahead(&self, frames: &[RxFrame<'_>], at: usize) {
        if self.prefetches() {
            self.fetch(frames, at);
        }
    }

    #[inline(never)]
    fn fetch(&self, frames: &[RxFrame<'_>], at: usize) {
        // Who serves nobody gets responses only.
        if self.sessions.server_slots.is_empty() && self.outstanding_calls() < FAR_CALLS {
            return;
        }
        // Each frame comes by here at each distance; those at the front of the burst at once.
        let nearest = if at == 0 { 0 } else { 3 };
        let at_distance = |from: usize, to: usize| {
            frames.iter().skip(at + from).take((to + 1).saturating_sub(from))
        };
        at_distance(nearest, 3).for_each(|f| self.fetch_sessions(f));
        at_distance(nearest.min(2), 2).for_each(|f| self.fetch_slots(f));
        at_distance(nearest.min(1), 1).for_each(|f| self.fetch_buffers(f));
    }

    fn fetch_sessions(&self, frame: &RxFrame<'_>) {
        each_packet(frame, |session, _| {
            if let Some(session) = self.sessions.get(session as usize) {
                prefetch(session);
            }
            true
        });
    }

    fn fetch_slots(&self, frame: &RxFrame<'_>) {
        each_packet(frame, |session, req_num| {
            match self.sessions.get(session as usize) {
                Some(Session::Server(s)) => {
                    if let Some(slot) = s.slots.of(req_num) {
                        prefetch(slot);
                        prefetch(&slot.prealloc);
                    }
                }
                Some(Session::Client(s)) => {
                    if let Some(slot) = s.slots.of(req_num) {
                        slot.prefetch();
                    }
                }
                _ => {}
            }
            true
        });
    }

    /// Asks for what the next quiet looks will see. There are many with many sessions, each at another
    /// one that has not been used for a while.
    #[inline]
    pub(crate) fn fetch_for_looks(&self) {
        if !self.prefetches() {
            return;
        }
        let [session, slot] = LOOKS_AHEAD.map(|at| self.timers.quiet_ahead(at));
        if let Some(session) = session.and_then(|look| self.sessions.get(look.session as usize)) {
            prefetch(session);
        }
        if let Some(look) = slot
            && let Some(Session::Client(s)) = self.sessions.get(look.session as usize)
            && let Some(slot) = s.slots.get(usize::from(look.slot))
        {
            slot.prefetch();
        }
    }

    /// The frames of a client have nothing to be fetched here: the first packet tells.
    fn fetch_buffers(&self, frame: &RxFrame<'_>) {
        each_packet(frame, |session, req_num| {
            let Some(Session::Server(s)) = self.sessions.get(session as usize) else {
                return false;
            };
            if let Some(slot) = s.slots.of(req_num)
                && let Some(buffer) = &slot.prealloc
            {
                buffer.prefetch();
            }
            true
        });
    }
}

/// How many looks from now a session is asked for, and then its slot. With 20,000 sessions in use
/// quiet looks are microseconds apart.
const LOOKS_AHEAD: [usize; 2] = [4, 2];

/// Session and request number of the packets at the front of a frame that are whole messages, as
/// long as `wanted` gives `true`. What is not one only makes a guess wrong.
#[inline(always)]
fn each_packet(frame: &RxFrame<'_>, mut wanted: impl FnMut(u32, u32) -> bool) {
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
