//! Calls of the application: from a message to a slot, and from an ended call back to the
//! application (E2, E8, E30). A call that finds no free slot waits in its session's queue.

use courser_buf::MsgBuf;

use crate::endpoint::{Endpoint, copy_of};
use crate::error::{CallError, RejectReason, SessionEnd};
use crate::event::{Body, Completion};
use crate::mutant::{self, Mutant};
use crate::oneway::Outgoing;
use crate::options::{CallId, CallOptions};
use crate::session::{ClientSession, QueuedCall, Session, SessionId, SessionState};
use crate::timers::TimerEntry;
use crate::tx::{Single, TxItem, send_single};
use crate::wire::packets_of;

impl<C> Endpoint<C> {
    /// [`Endpoint::call_with`] without options.
    /// # Errors
    /// The reason, with the buffer and the continuation.
    #[inline]
    pub fn call(
        &mut self,
        session: SessionId,
        req_type: u16,
        req: MsgBuf,
        cont: C,
    ) -> Result<CallId, (RejectReason, MsgBuf, C)> {
        self.call_with(session, req_type, req, cont, CallOptions::new())
    }

    /// Queues a call (E2, E8); nothing is sent before [`Endpoint::poll_transmit`]. When all slots
    /// are in use, or the session is still connecting, the call waits in the session's queue. With
    /// many sessions (`Config::prefetch_min_sessions`) a small call may be deferred: it is put on its slot
    /// up to eight calls later, at the latest before the next batch. The returned number can be
    /// passed to [`Endpoint::cancel`].
    /// # Errors
    /// The reason, with the buffer and the continuation.
    #[inline(always)] // only the branch is inlined: each case is a function of its own
    pub fn call_with(
        &mut self,
        session: SessionId,
        req_type: u16,
        req: MsgBuf,
        cont: C,
        options: CallOptions,
    ) -> Result<CallId, (RejectReason, MsgBuf, C)> {
        let expires_ns = options.deadline_ns.unwrap_or(u64::MAX);
        if self.deferred.takes(session) && req.len() <= self.most_deferred() {
            return Ok(self.defer(session, req_type, req, cont, expires_ns));
        }
        self.call_now(session, req_type, req, cont, expires_ns)
    }

    /// [`Endpoint::call_with`] for a call that is not deferred.
    #[inline(never)]
    fn call_now(
        &mut self,
        session: SessionId,
        req_type: u16,
        req: MsgBuf,
        cont: C,
        expires_ns: u64,
    ) -> Result<CallId, (RejectReason, MsgBuf, C)> {
        self.make_deferred_of(session);
        let (seq, queued_ns) = (self.io.stats.calls, self.io.now_ns);
        let call = QueuedCall { req_type, req, cont, seq, queued_ns, expires_ns, one_way: false };
        if let Err(call) = self.start_single(session, call) {
            return self.call_rare(session, call);
        }
        self.io.stats.calls += 1;
        self.may_defer_next(session);
        Ok(CallId { session, seq })
    }

    /// A call that is rejected, waits, has expired, or whose request has several packets.
    #[inline(never)] // outlined to keep registers free for other calls
    pub(crate) fn call_rare(
        &mut self,
        session: SessionId,
        call: QueuedCall<C>,
    ) -> Result<CallId, (RejectReason, MsgBuf, C)> {
        let limit = self.io.cfg.call_queue;
        let seq = call.seq;
        let s = match self.sessions.get_mut(session.index as usize) {
            Some(Session::Client(s)) if s.generation == session.generation && !s.has_failed() => s,
            Some(Session::Server(s)) if s.generation == session.generation => {
                return Err((RejectReason::NotClient, call.req, call.cont));
            }
            _ => return Err((RejectReason::NoSession(SessionEnd::Unknown), call.req, call.cont)),
        };
        if call.req.len() > s.agreed.max_msg_size as usize {
            let refused =
                RejectReason::TooLarge { bytes: call.req.len(), limit: s.agreed.max_msg_size };
            return Err((refused, call.req, call.cont));
        }
        let waits = s.free == 0 || s.state != SessionState::Connected || !s.queue.is_empty();
        if waits && s.queue.len() >= limit {
            return Err((RejectReason::QueueFull { limit }, call.req, call.cont));
        }
        self.io.stats.calls += 1;
        if waits {
            self.deferred.take_no_more(session.index);
        }
        if waits || call.expires_ns <= call.queued_ns {
            self.call_later(session, call);
        } else {
            self.start_call(session.index, call);
        }
        Ok(CallId { session, seq })
    }

    /// Starts a call, if it finds a slot at once and its request is one packet.
    /// # Errors
    /// The unchanged call, if one of these conditions does not hold.
    #[inline(always)]
    pub(crate) fn start_single(
        &mut self,
        session: SessionId,
        call: QueuedCall<C>,
    ) -> Result<(), QueuedCall<C>> {
        if call.expires_ns <= self.io.now_ns {
            return Err(call);
        }
        let takes =
            |s: &ClientSession<C>, len| s.generation == session.generation && s.takes_single(len);
        self.start_on_slot(session.index, call, 1, takes)
    }

    /// Puts a call on a free slot of a connected session.
    #[inline(never)]
    pub(crate) fn start_call(&mut self, index: u32, call: QueuedCall<C>) {
        let Some(s) = self.sessions.client_mut(index) else { return };
        let packets = packets_of(call.req.len() as u32, s.agreed.data_per_packet);
        if s.slots.are_asleep() {
            self.wake_session(index);
        }
        let (one_way, seq) = (call.one_way, call.seq);
        if one_way && packets == 1 {
            return self.send_waiting(index, call);
        }
        let slot = self.sessions.client(index).map_or(0, |s| s.free & s.free.wrapping_neg());
        if self.start_on_slot(index, call, packets, |_, _| true).is_err() {
            debug_assert!(false, "no free slot");
        }
        if one_way && let Some(s) = self.sessions.client_mut(index) {
            let (first, credits) = (s.agreed.first_req_num, s.credits.limit());
            s.outgoing.get_or_insert_with(|| Outgoing::begun(first, credits)).slots |= slot;
        }
        if packets > 1 && !self.io.peers.held.is_empty() {
            self.wait_behind(index, seq);
        }
    }

    /// Puts a call on a free slot of a session that `takes` a request of this length, and appends
    /// its request to a frame; if this is not possible now, queues the slot for transmission.
    /// # Errors
    /// The unchanged call, if the session does not take it or has no free slot awake.
    #[inline(always)] // inlined into its callers, which have checked the session
    fn start_on_slot(
        &mut self,
        index: u32,
        call: QueuedCall<C>,
        packets: u32,
        takes: impl FnOnce(&ClientSession<C>, usize) -> bool,
    ) -> Result<(), QueuedCall<C>> {
        let s = match self.sessions.client_mut(index) {
            Some(s) if takes(s, call.req.len()) => s,
            _ => return Err(call),
        };
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
        let first_timer_ns = self.io.now_ns + self.io.cfg.rto_min_ns;
        if !std::mem::replace(&mut slot.tracked, true) {
            let entry =
                TimerEntry { due_ns: first_timer_ns, session: index, generation, slot: slot_no };
            slot.first_timer = self.io.timers.arm_first(entry);
        }
        // A queue item of an earlier call of the slot serves this call, or finds nothing to send.
        let queued_ahead = std::mem::take(&mut slot.queued_ahead);
        let cx = Single {
            tx: &mut self.io.tx,
            peers: &mut self.io.peers,
            arena: &self.io.arena,
            cfg: &self.io.cfg,
            stats: &mut self.io.stats,
            now_ns: self.io.now_ns,
            peer_no: s.peer,
            session: s.remote,
        };
        if cx.tx.may_append_request() && send_single(cx, &mut s.credits, slot) {
            self.io.tx.appended_request(&mut self.io.peers);
        } else {
            slot.queued = true;
            let req_num = slot.req_num;
            if !queued_ahead {
                self.io.tx.push(TxItem::Client { session: index, slot: slot_no, req_num });
            }
        }
        if expires_ns < first_timer_ns.min(slot.timer_ns) {
            self.arm_slot(index, slot_no, expires_ns);
        }
        Ok(())
    }

    #[cold]
    fn wake_session(&mut self, index: u32) {
        let idle_ns = self.io.now_ns.saturating_add(self.io.cfg.idle_after_ns);
        if let Some(s) = self.sessions.wake_client(index) {
            s.watch_idle(&mut self.io.timers, &self.io.cfg, index, idle_ns);
        }
    }

    /// Starts waiting calls while slots are free.
    #[inline(never)]
    pub(crate) fn start_queued(&mut self, index: u32) {
        while let Some(s) = self.sessions.client(index)
            && s.free != 0
            && s.state == SessionState::Connected
            && let Some(call) = self.next_waiting(index)
        {
            self.start_call(index, call);
        }
        self.note_room(index);
    }

    /// Frees a slot whose call has ended, unless it becomes quarantined (ADR 15), starts the calls
    /// that wait for it, and returns the completion if the application may have it now (E24);
    /// otherwise the completion goes to the outbox.
    pub(crate) fn complete<'f>(
        &mut self,
        index: u32,
        slot_no: u8,
        result: Result<Body<'f>, CallError>,
    ) -> Option<Completion<'f, C>> {
        let s = self.sessions.client_mut(index)?;
        let session = SessionId { index, generation: s.generation };
        let (peer, waits) = (s.peer, s.waits());
        let slot = &s.slots[usize::from(slot_no)];
        let (seq, several) = (slot.seq, slot.has_several_packets());
        let (request, cont) = self.clear_slot(index, slot_no)?;
        let s = self.sessions.client_mut(index)?;
        s.free |= u32::from(!s.slots[usize::from(slot_no)].quarantined) << slot_no;
        let carried = s.outgoing.as_mut().is_some_and(|outgoing| outgoing.take_slot(slot_no));
        match &result {
            Ok(_) => self.io.stats.responses += 1,
            Err(_) => self.io.stats.errors += 1,
        }
        if several && !self.io.peers.held.is_empty() {
            self.end_held(peer, seq, result.is_ok());
        }
        if carried {
            self.end_large_message(index, result.is_ok());
        }
        if waits {
            self.start_queued(index);
        }
        self.wake_stalled(index, slot_no);
        let completion = Completion { cont, session, request, result };
        if completion.request.is_shared() && !mutant::is_on(Mutant::BufferReturnedEarly) {
            self.park(completion);
            return None;
        }
        Some(completion)
    }

    /// Takes the call off a slot, which keeps its number.
    pub(crate) fn clear_slot(&mut self, index: u32, slot_no: u8) -> Option<(MsgBuf, C)> {
        self.end_fetch(index, slot_no);
        let s = self.sessions.client_mut(index)?;
        let slot = &mut s.slots[usize::from(slot_no)];
        let (peer, credits, units) = (s.peer, slot.in_flight(), slot.in_flight_units());
        s.credits.release(credits);
        let call = slot.finish()?;
        slot.deadline_ns = self.io.now_ns;
        s.stalled &= !(1 << slot_no);
        let waits_for_room = s.waits_for_room;
        let untracked = !slot.tracked;
        if let Some(board) = slot.take_board() {
            self.io.boards.put(board);
        }
        self.note_awaiting(index, slot_no);
        if units != 0 {
            self.release_room(peer, units);
        }
        if waits_for_room {
            self.retry_turn(peer);
        }
        if untracked {
            // Its first timer has expired, and the next may be far ahead: see `arm_soon`.
            self.arm_soon(index, slot_no);
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
        self.outbox.done.push_back(Completion { cont, session, request, result });
    }

    /// Returns whether a completed call waits for the transport to release its request buffer:
    /// flush the transport, then call [`Endpoint::poll_completion`] (E24, E25).
    #[inline]
    pub fn needs_flush(&self) -> bool {
        self.outbox.done.front().is_some_and(|c| c.request.is_shared())
    }

    /// Calls that ended without a packet (timeouts, failures) or whose buffer the transport held.
    /// `None` when there is none, or [`Endpoint::needs_flush`].
    #[inline]
    pub fn poll_completion(&mut self) -> Option<Completion<'static, C>> {
        if self.outbox.done.is_empty() {
            return None;
        }
        if self.needs_flush() {
            // An incomplete frame may be what references it, and no flush would end that.
            self.io.tx.copy_references();
            if self.needs_flush() {
                return None;
            }
        }
        self.outbox.done.pop_front()
    }
}
