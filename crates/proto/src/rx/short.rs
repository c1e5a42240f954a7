//! Short cuts of the receive path: a short message that comes in order on a slot with nothing else
//! going on. Each first looks whether all of that holds, and takes nothing when it does not; what
//! it does is then what the general code would (`tests/short_cuts.rs` compares the two).

use courser_buf::MsgBuf;

use crate::calls::queue_started;
use crate::deadline::{FORGETS_FROM, forget_look};
use crate::endpoint::Endpoint;
use crate::event::{Answered, RequestId};
use crate::session::{Session, SessionId, SessionState};
use crate::slot::Lone;
use crate::wire::Short;

impl<C> Endpoint<C> {
    /// The next request of a slot that holds nothing but, at most, its preallocated response:
    /// [`Endpoint::rx_request`] for one packet, when every client has room for its buffers and
    /// nothing is copied.
    #[inline(always)]
    pub(crate) fn rx_short_request(&mut self, peer: u32, packet: &Short<'_>) -> Option<RequestId> {
        let Some(Session::Server(s)) = self.sessions.get_mut(packet.session as usize) else {
            return None;
        };
        let (step, generation) = (s.slots.count(), s.generation);
        let slot_no = packet.req_num & (step - 1);
        let slot = s.slots.get_mut(slot_no as usize)?;
        let next = slot.req_num.wrapping_add(step) == packet.req_num;
        if s.peer != peer
            || !next
            || !slot.is_light()
            || self.shares.choosy
            || !self.cfg.zero_copy_rx
        {
            return None;
        }
        slot.begin_short(packet.req_num, packet.req_type, packet.data.len() as u32);
        self.stats.requests += 1;
        self.stats.received(0);
        let session = SessionId { index: packet.session, generation };
        Some(RequestId::new(session, slot_no as u8, packet.req_num))
    }

    /// The response to a [`Lone::Sent`] call of a session in which at most short calls wait, and for
    /// slots only: [`Endpoint::rx_response`] and [`Endpoint::complete`], which then give one credit
    /// back, and the slot to the call that waited longest. Not while the peer's credits are `awaited`:
    /// what comes home here wakes none of the sessions that wait for them.
    #[inline(always)]
    pub(crate) fn rx_short_response(
        &mut self,
        peer: u32,
        awaited: bool,
        packet: &Short<'_>,
    ) -> Option<Answered<C>> {
        if awaited {
            return None;
        }
        let many = self.sessions.len() >= FORGETS_FROM;
        let Some(Session::Client(s)) = self.sessions.get_mut(packet.session as usize) else {
            return None;
        };
        let step = s.slots.count();
        let slot_no = packet.req_num & (step - 1);
        let waits =
            s.stalled != 0 || (s.waits && s.queue.front().is_some_and(|call| !s.is_short(call)));
        let slot = s.slots.get_mut(slot_no as usize)?;
        // A slot whose first look is over needs a timer for its acknowledgement.
        let expected = slot.lone == Lone::Sent && slot.req_num == packet.req_num && slot.tracked;
        if !expected || waits || s.peer != peer || s.state != SessionState::Connected {
            return None;
        }
        if slot.req.as_ref().is_none_or(MsgBuf::is_shared) {
            return None; // it waits until the transport has let go (E24)
        }
        let (request, cont) = slot.finish_lone()?;
        s.credits += 1;
        self.homing += 1; // its peer's too, at the end of its frames
        let id = SessionId { index: packet.session, generation: s.generation };
        match if s.waits { s.queue.pop_front() } else { None } {
            Some(next) => {
                s.waits = !s.queue.is_empty(); // as `with_queue`, which would need the slot too
                slot.start_lone(step, next.req_type, next.req, next.cont);
                slot.seq = next.seq;
                let look_ns = u64::MAX; // it is tracked
                queue_started(&mut self.tx, &mut self.timers, slot, id, slot_no as u8, look_ns);
            }
            None => {
                slot.deadline_ns = self.now_ns;
                s.free |= 1 << slot_no;
                if many {
                    let timers = &mut self.timers;
                    forget_look(timers, &self.cfg, slot, packet.session);
                }
            }
        }
        self.stats.responses += 1;
        self.stats.received(3);
        Some(Answered { cont, session: id, request })
    }
}
