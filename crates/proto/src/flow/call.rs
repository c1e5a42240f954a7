//! Calls of a client session: from a message to a slot, and from an ended call back to the application.

use courser_buf::MsgBuf;

use super::ClientFlow;
use crate::endpoint::copy_of;
use crate::error::{CallError, Executed};
use crate::event::{Body, Completion};
use crate::held::Held;
use crate::io::batch_calls;
use crate::mutant::{self, Mutant};
use crate::oneway::Outgoing;
use crate::session::{ClientSession, QueuedCall, SessionState};
use crate::slot::ClientSlot;
use crate::timers::{TimerEntry, TimerKind};
use crate::tx::{TxItem, send_single};
use crate::wire::packets_of;

impl<C> ClientFlow<'_, C> {
    /// Starts a call, if it finds a slot at once and its request is one packet.
    /// # Errors
    /// The unchanged call, if one of these conditions does not hold.
    #[inline(always)]
    pub(crate) fn start_single(
        &mut self,
        generation: u32,
        call: QueuedCall<C>,
    ) -> Result<(), QueuedCall<C>> {
        if call.expires_ns <= self.io.now_ns {
            return Err(call);
        }
        let takes = |s: &ClientSession<C>, len| s.generation == generation && s.takes_single(len);
        self.start_on_slot(call, 1, takes)
    }

    /// Puts a call on a free slot of a connected session whose slots are awake.
    pub(crate) fn start_call(&mut self, call: QueuedCall<C>) {
        let packets = packets_of(call.req.len() as u32, self.s.agreed.data_per_packet);
        let (one_way, seq) = (call.one_way, call.seq);
        if one_way && packets == 1 {
            return self.send_waiting(call);
        }
        let slot = self.s.free & self.s.free.wrapping_neg();
        if self.start_on_slot(call, packets, |_, _| true).is_err() {
            debug_assert!(false, "no free slot");
        }
        if one_way {
            let (first, credits) = (self.s.agreed.first_req_num, self.s.credits.limit());
            let outgoing = &mut self.s.outgoing;
            outgoing.get_or_insert_with(|| Outgoing::begun(first, credits)).slots |= slot;
        }
        if packets > 1 && !self.io.held.is_empty() {
            self.wait_behind(seq);
        }
    }

    /// A call with a request of several packets was put on a slot: it waits if others to its peer do
    /// ([`crate::held`]).
    fn wait_behind(&mut self, seq: u64) {
        let is_it = |slot: &ClientSlot<C>| slot.active && slot.seq == seq;
        let Some(slot_no) = self.s.slots.iter().position(is_it) else { return };
        if self.io.held.has_waiting(self.s.peer) {
            self.s.slots[slot_no].hold();
            let held = Held { session: self.index, slot: slot_no as u8, since_ns: None };
            self.io.held.wait(self.s.peer, seq, held, self.io.now_ns);
        }
    }

    /// Puts a call on a free slot of a session that `takes` a request of this length, and appends
    /// its request to a frame; if this is not possible now, queues the slot for transmission.
    /// # Errors
    /// The unchanged call, if the session does not take it or has no free slot awake.
    #[inline(always)] // inlined into its callers, which have checked the session
    fn start_on_slot(
        &mut self,
        call: QueuedCall<C>,
        packets: u32,
        takes: impl FnOnce(&ClientSession<C>, usize) -> bool,
    ) -> Result<(), QueuedCall<C>> {
        let (index, io) = (self.index, &mut *self.io);
        let s = &mut *self.s;
        if !takes(s, call.req.len()) {
            return Err(call);
        }
        let slot_no = s.free.trailing_zeros() as u8;
        let (step, generation) = (s.slots.count(), s.generation);
        let Some(slot) = s.slots.get_mut(usize::from(slot_no)) else { return Err(call) };
        let QueuedCall { req_type, req, cont, seq, expires_ns, .. } = call;
        s.free &= s.free.wrapping_sub(1);
        slot.start(step, req_type, req, packets, cont);
        slot.seq = seq;
        if !mutant::is_on(Mutant::DeadlineIgnored) {
            slot.expires_ns = expires_ns;
        }
        // Set when the request is first sent; until then nothing can be lost.
        slot.deadline_ns = u64::MAX;
        let first_timer_ns = io.now_ns + io.cfg.rto_min_ns;
        if !std::mem::replace(&mut slot.tracked, true) {
            let entry = TimerEntry {
                due_ns: first_timer_ns,
                session: index,
                generation,
                kind: TimerKind::Slot(slot_no),
            };
            slot.first_timer = io.timers.arm_first(entry);
        }
        // A queue item of an earlier call of the slot serves this call, or finds nothing to send.
        let queued_ahead = std::mem::take(&mut slot.queued_ahead);
        if io.tx.may_append_request() && send_single(io, self.peer, s.remote, &mut s.credits, slot)
        {
            // This call is not counted yet.
            io.tx.appended_request(|| batch_calls(io.stats.outstanding_calls() + 1, &io.cfg));
        } else {
            slot.queued = true;
            let req_num = slot.req_num;
            if !queued_ahead {
                io.tx.push(TxItem::Client { session: index, slot: slot_no, req_num });
            }
        }
        if expires_ns < first_timer_ns.min(slot.timer_ns) {
            let kind = TimerKind::Slot(slot_no);
            let entry = TimerEntry { due_ns: expires_ns, session: index, generation, kind };
            slot.timer_ns = io.timers.arm_later(entry);
        }
        Ok(())
    }

    /// Starts waiting calls while slots are free.
    pub(crate) fn start_queued(&mut self) {
        while self.s.free != 0
            && self.s.state == SessionState::Connected
            && let Some(call) = self.next_waiting()
        {
            self.start_call(call);
        }
        self.note_room();
    }

    /// Frees a slot whose call has ended, unless it becomes quarantined (ADR 15), starts the calls
    /// that wait for it, and returns the completion if the application may have it now (E24);
    /// otherwise the completion goes to the outbox.
    pub(crate) fn complete<'f>(
        &mut self,
        slot_no: u8,
        result: Result<Body<'f>, CallError>,
    ) -> Option<Completion<'f, C>> {
        let (session, waits) = (self.id(), self.s.waits());
        let slot = &self.s.slots[usize::from(slot_no)];
        let (seq, several) = (slot.seq, slot.has_several_packets());
        let (request, cont) = self.clear_slot(slot_no)?;
        let s = &mut *self.s;
        s.free |= u32::from(!s.slots[usize::from(slot_no)].quarantined) << slot_no;
        let carried = s.outgoing.as_mut().is_some_and(|outgoing| outgoing.take_slot(slot_no));
        match &result {
            Ok(_) => self.io.stats.responses += 1,
            Err(_) => self.io.stats.errors += 1,
        }
        if several && !self.io.held.is_empty() {
            self.end_held(seq, result.is_ok());
        }
        if carried {
            self.end_large_message(result.is_ok());
        }
        if waits {
            self.start_queued();
        }
        self.wake_stalled(slot_no);
        let completion = Completion { cont, session, request, result };
        if completion.request.is_shared() && !mutant::is_on(Mutant::BufferReturnedEarly) {
            self.park(completion);
            return None;
        }
        Some(completion)
    }

    /// [`ClientFlow::complete`] with an error. The completion goes to the outbox.
    pub(crate) fn fail(&mut self, slot_no: u8, error: CallError) {
        if let Some(Completion { cont, session, request, .. }) = self.complete(slot_no, Err(error))
        {
            self.out.done.push_back(Completion { cont, session, request, result: Err(error) });
        }
    }

    /// Ends the calls of all slots: the session has ended.
    pub(crate) fn fail_slots(&mut self, error: impl Fn(Executed) -> CallError) {
        for slot_no in 0..self.s.slots.len() as u8 {
            let slot = &mut self.s.slots[usize::from(slot_no)];
            if slot.quarantined {
                slot.release();
                self.s.free |= 1 << slot_no;
            }
            let slot = &self.s.slots[usize::from(slot_no)];
            if slot.active {
                self.fail(slot_no, error(slot.executed()));
            }
        }
    }

    /// A call with a request of several packets has ended. If it was answered, the peer has memory
    /// for another one that is held back.
    fn end_held(&mut self, seq: u64, was_answered: bool) {
        let peer = self.s.peer;
        self.io.held.forget(peer, seq);
        if was_answered {
            self.io.held.on_answer(peer, self.io.now_ns);
            self.admission.effects.answered.push(peer);
        }
    }

    /// Takes the call off a slot, which keeps its number.
    pub(crate) fn clear_slot(&mut self, slot_no: u8) -> Option<(MsgBuf, C)> {
        self.end_fetch(slot_no);
        let (s, io) = (&mut *self.s, &mut *self.io);
        let slot = &mut s.slots[usize::from(slot_no)];
        let (credits, units) = (slot.in_flight(), slot.in_flight_units());
        s.credits.release(credits);
        let call = slot.finish()?;
        slot.deadline_ns = io.now_ns;
        s.stalled &= !(1 << slot_no);
        let (waits_for_room, untracked) = (s.waits_for_room, !slot.tracked);
        if let Some(board) = slot.take_board() {
            io.boards.put(board);
        }
        self.note_awaiting(slot_no);
        if units != 0 {
            self.io.release_room(self.peer, units);
        }
        if waits_for_room {
            self.io.retry_turn(self.peer);
        }
        if untracked {
            // Its first timer has expired, and the next may be far ahead: see `arm_soon`.
            self.arm_soon(slot_no);
        }
        Some(call)
    }

    /// Keeps a completion until the transport has released its request.
    fn park(&mut self, c: Completion<'_, C>) {
        self.io.stats.completions_parked += 1;
        let result = match c.result {
            Ok(Body::Owned(m)) => Ok(Body::Owned(m)),
            Ok(Body::Borrowed(b)) => copy_of(&self.io.arena, b)
                .map(Body::Owned)
                .map_err(|_| CallError::NoMemory { response_bytes: b.len() as u32 }),
            Err(e) => Err(e),
        };
        let Completion { cont, session, request, .. } = c;
        self.out.done.push_back(Completion { cont, session, request, result });
    }
}
