//! Prefetching: loads the state for the next frames of a burst while the current one is handled,
//! and the state for the next timers. `deferred.rs` does the same for calls.
//!
//! With some hundred sessions all state of an RPC is in the nearest caches. With many thousands it
//! is not, and a request would incur three successive cache misses: for its session, its slot, and
//! the buffer of the response. Prefetching overlaps the misses of all packets of a frame with each
//! other and with the handling of earlier frames. The packets were not validated yet: they can name
//! anything, and only a hint to the CPU depends on them.

use courser_buf::{PacketAccess, RxFrame, prefetch};

use crate::endpoint::Endpoint;
use crate::session::Session;
use crate::timers::TimerKind;
use crate::working_set::each_packet;

/// With fewer calls in flight, the state for their responses is still in the nearest caches: some
/// 300 bytes per call, 150 KB for 512.
const FAR_CALLS: u64 = 512;

impl<C> Endpoint<C> {
    /// Prefetches for the frames after `frames[at]`. To be called before each frame of a received
    /// burst. Costs a test unless the endpoint has many sessions, then some 20 instructions per
    /// frame to find how many are in use, and if these are many too, 20 per packet and level.
    #[inline]
    pub fn prefetch_burst(&mut self, frames: &[RxFrame<'_>], at: usize) {
        if self.working_set.can_be_large(self.sessions.len()) {
            self.prefetch_in_use(frames, at);
        }
    }

    fn prefetch_in_use(&mut self, frames: &[RxFrame<'_>], at: usize) {
        if let Some(frame) = frames.get(at)
            && self.working_set.count(frame, self.sessions.len())
        {
            self.deferred.take_none();
        }
        if self.working_set.is_large() {
            self.fetch(frames, at);
        }
    }

    fn fetch(&self, frames: &[RxFrame<'_>], at: usize) {
        // Pure clients receive only responses, whose state is still cached below FAR_CALLS.
        if self.sessions.server_slots.is_empty() && self.io.outstanding_calls() < FAR_CALLS {
            return;
        }
        // Software pipeline: sessions 3 frames ahead, slots 2, buffers 1; the first call fills it.
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
            self.sessions.prefetch(session);
            true
        });
    }

    fn fetch_slots(&self, frame: &RxFrame<'_>) {
        each_packet(frame, |session, req_num| {
            match self.sessions.get(session as usize) {
                Some(Session::Server(s)) => {
                    if let Some(slot) = s.slots.of(req_num) {
                        slot.prefetch();
                        if s.keeps_buffers {
                            prefetch(&slot.prealloc);
                        }
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

    /// Prefetches the state for the next quiet timers. With many sessions there are many, each of
    /// another session that was not used for a while.
    #[inline]
    pub(crate) fn prefetch_expiries(&self) {
        if !self.working_set.is_large() {
            return;
        }
        let [session, slot] = TIMERS_AHEAD.map(|at| self.io.timers.quiet_ahead(at));
        if let Some(entry) = session {
            self.sessions.prefetch(entry.session);
        }
        if let Some(entry) = slot
            && let Some(Session::Client(s)) = self.sessions.get(entry.session as usize)
            && let TimerKind::Slot(slot_no) = entry.kind
            && let Some(slot) = s.slots.get(usize::from(slot_no))
        {
            slot.prefetch();
        }
    }

    /// Prefetches response buffers. Stops at the first packet of a client, which needs none.
    fn fetch_buffers(&self, frame: &RxFrame<'_>) {
        each_packet(frame, |session, req_num| {
            let Some(Session::Server(s)) = self.sessions.get(session as usize) else {
                return false;
            };
            if s.keeps_buffers
                && let Some(slot) = s.slots.of(req_num)
                && let Some(buffer) = &slot.prealloc
            {
                buffer.prefetch();
            }
            true
        });
    }
}

/// Distances, in timers, at which a session and its slot are prefetched. With 20,000 sessions in
/// use quiet timers expire every few microseconds.
const TIMERS_AHEAD: [usize; 2] = [4, 2];
