//! Calls of the application: from a message to a slot, and from a slot that is done back to the
//! application (E2, E8, E30). Small ones come in [`Endpoint::start_short`], which `deferred.rs` also
//! ends in; a call that waits for a slot, or its transport, stands in a queue.

use courser_buf::MsgBuf;

use crate::endpoint::{Endpoint, copy_of};
use crate::error::{CallError, CallRefused};
use crate::event::{Body, Completion};
use crate::mutant::{self, Mutant};
use crate::options::{CallId, CallOptions};
use crate::session::{QueuedCall, Session, SessionId, SessionState};
use crate::slot::{ClientSlot, Lone};
use crate::timers::{Timed, Timers};
use crate::tx::{TxItem, TxStage, Written};
use crate::wire::{SHORT_REQUEST, packets_of, short_header};

/// Boards that are kept for messages to come: each has room for the credits of a session.
const SPARE_BOARDS: usize = 64;

impl<C> Endpoint<C> {
    /// [`Endpoint::call_with`] without options.
    ///
    /// # Errors
    /// With the buffer and the continuation, when the call cannot be taken.
    #[inline]
    pub fn call(
        &mut self,
        session: SessionId,
        req_type: u16,
        req: MsgBuf,
        cont: C,
    ) -> Result<CallId, (CallRefused, MsgBuf, C)> {
        self.call_with(session, req_type, req, cont, CallOptions::new())
    }

    /// Queues a call (E2, E8); nothing is sent before [`Endpoint::poll_transmit`]. When all slots
    /// are taken, or the session is still connecting, the call waits in the session's queue. With
    /// many sessions (`Config::far_sessions`) a small call waits for memory like that, too, until eight
    /// more were made or frames are. The number that it gives is for [`Endpoint::cancel`].
    ///
    /// # Errors
    /// With the buffer and the continuation, when the call cannot be taken.
    #[inline(always)] // only the question: each answer is a function of its own
    pub fn call_with(
        &mut self,
        session: SessionId,
        req_type: u16,
        req: MsgBuf,
        cont: C,
        options: CallOptions,
    ) -> Result<CallId, (CallRefused, MsgBuf, C)> {
        let deferrable = options.deadline_ns.is_none() && req.len() <= self.cfg.inline_max;
        if deferrable && self.deferred.takes(session) {
            return Ok(self.defer(session, req_type, req, cont));
        }
        self.call_now(session, req_type, req, cont, options)
    }

    /// [`Endpoint::call_with`] for a call that is not deferred.
    #[inline(never)]
    fn call_now(
        &mut self,
        session: SessionId,
        req_type: u16,
        req: MsgBuf,
        cont: C,
        options: CallOptions,
    ) -> Result<CallId, (CallRefused, MsgBuf, C)> {
        self.make_deferred_of(session);
        if options.deadline_ns.is_some() || !mutant::short_cuts() {
            return self.call_general(session, req_type, req, cont, options);
        }
        let seq = self.stats.calls;
        match self.start_short(session, req_type, req, cont, seq) {
            Ok(()) => {
                self.stats.calls += 1;
                self.may_defer_next(session);
                Ok(CallId { session, seq })
            }
            Err((req, cont)) => self.call_general(session, req_type, req, cont, options),
        }
    }

    /// Puts a call without a deadline on a slot, if one is free and the request is one packet, and
    /// the request in its frame, if that may be.
    #[inline(always)]
    pub(crate) fn start_short(
        &mut self,
        session: SessionId,
        req_type: u16,
        req: MsgBuf,
        cont: C,
        seq: u64,
    ) -> Result<(), (MsgBuf, C)> {
        let Some(Session::Client(s)) = self.sessions.get_mut(session.index as usize) else {
            return Err((req, cont));
        };
        let takes_short = s.generation == session.generation && s.takes_short(req.len());
        let (slot_no, step) = (s.free.trailing_zeros() as u8, s.slots.count());
        let slot = match s.slots.get_mut(usize::from(slot_no)) {
            Some(slot) if takes_short => slot,
            _ => return Err((req, cont)),
        };
        s.free &= s.free - 1;
        let req_num = slot.req_num.wrapping_add(step);
        let size = req.len();
        let written = self.tx.may_write_request()
            && s.credits > 0
            && size <= self.cfg.inline_max
            && match self.peers.get_mut(s.peer as usize) {
                Some(Some(peer)) if peer.pool.open > 0 => {
                    let header =
                        short_header(SHORT_REQUEST, s.remote, req_num, req_type, size as u32);
                    let written = self.tx.append_short(s.peer, peer, &self.arena, header, &req);
                    peer.pool.open -= u32::from(written);
                    written
                }
                _ => false,
            };
        slot.start_lone(step, req_type, req, cont);
        slot.seq = seq;
        let look_ns = self.now_ns.saturating_add(self.cfg.rto_min_ns);
        if written {
            slot.queued_ahead = false; // what is in the queue finds nothing to send
            slot.sent_lone(u64::MAX);
            s.credits -= 1;
            self.stats.sent(0);
            self.stats.max_in_flight = self.stats.max_in_flight.max(s.credit_limit - s.credits);
            self.tx.wrote_request(Written { session: session.index, slot: slot_no, req_num });
            track(&mut self.timers, slot, session, slot_no, look_ns);
        } else {
            queue_started(&mut self.tx, &mut self.timers, slot, session, slot_no, look_ns);
        }
        Ok(())
    }

    /// [`Endpoint::call_with`] for any call.
    #[inline(never)] // so that short ones have the registers
    fn call_general(
        &mut self,
        session: SessionId,
        req_type: u16,
        req: MsgBuf,
        cont: C,
        options: CallOptions,
    ) -> Result<CallId, (CallRefused, MsgBuf, C)> {
        let limit = self.cfg.call_queue;
        let s = match self.sessions.get_mut(session.index as usize) {
            Some(Session::Client(s)) if s.generation == session.generation && !s.has_failed() => s,
            Some(Session::Server(s)) if s.generation == session.generation => {
                return Err((CallRefused::NotClient, req, cont));
            }
            _ => return Err((CallRefused::NoSession, req, cont)),
        };
        if req.len() > s.max_msg_size as usize {
            let refused = CallRefused::TooLarge { bytes: req.len(), limit: s.max_msg_size };
            return Err((refused, req, cont));
        }
        let (seq, queued_ns) = (self.stats.calls, self.now_ns);
        let expires_ns = options.deadline_ns.unwrap_or(u64::MAX);
        let waits = s.free == 0 || s.state != SessionState::Connected || s.waits;
        if waits && s.queue.len() >= limit {
            return Err((CallRefused::QueueFull { limit }, req, cont));
        }
        self.stats.calls += 1;
        if waits {
            self.deferred.take_no_more(session.index);
        }
        if waits && expires_ns == u64::MAX {
            // Nothing has to see to it in time: `call_later` in one line.
            let call = QueuedCall { req_type, req, cont, seq, queued_ns, expires_ns };
            s.with_queue(|queue| queue.push_back(call));
            return Ok(CallId { session, seq });
        }
        let call = QueuedCall { req_type, req, cont, seq, queued_ns, expires_ns };
        if waits || expires_ns <= queued_ns {
            self.call_later(session, call);
        } else {
            self.start_call(session.index, call);
        }
        Ok(CallId { session, seq })
    }

    /// Puts a call on a free slot of a connected session, and the slot in the transmit queue.
    pub(crate) fn start_call(&mut self, index: u32, call: QueuedCall<C>) {
        let Some(Session::Client(s)) = self.sessions.get_mut(index as usize) else { return };
        if s.slots.are_asleep() {
            s.slots.wake(&mut self.client_slots, ClientSlot::new);
            let idle_ns = self.now_ns.saturating_add(self.cfg.idle_after_ns);
            s.watch_idle(&mut self.timers, &self.cfg, index, idle_ns);
        }
        let slot_no = s.free.trailing_zeros() as u8;
        s.free &= !(1 << slot_no);
        let step = s.slots.count();
        let slot = &mut s.slots[usize::from(slot_no)];
        let packets = packets_of(call.req.len() as u32, s.data_per_packet);
        slot.start(step, call.req_type, call.req, packets, call.cont);
        slot.seq = call.seq;
        if !mutant::is_on(Mutant::DeadlineIgnored) {
            slot.expires_ns = call.expires_ns;
        }
        if packets == 1 && call.expires_ns == u64::MAX && mutant::short_cuts() {
            slot.lone = Lone::Fresh;
        }
        let id = SessionId { index, generation: s.generation };
        let look_ns = self.now_ns.saturating_add(self.cfg.rto_min_ns);
        queue_started(&mut self.tx, &mut self.timers, slot, id, slot_no, look_ns);
        if call.expires_ns < look_ns {
            self.arm_slot(index, slot_no, call.expires_ns);
        }
    }

    /// Starts waiting calls while there are free slots.
    pub(crate) fn start_queued(&mut self, index: u32) {
        loop {
            let Some(Session::Client(s)) = self.sessions.get_mut(index as usize) else { return };
            if s.free == 0 || s.state != SessionState::Connected {
                return;
            }
            let Some(call) = self.next_waiting(index) else { return };
            self.start_call(index, call);
        }
    }

    /// Frees a slot whose call has ended, unless it is quarantined now (F15), hands its queue the
    /// slot, and gives the completion
    /// when the application may have it now (E24); otherwise it waits in `done`.
    pub(crate) fn complete<'f>(
        &mut self,
        index: u32,
        slot_no: u8,
        result: Result<Body<'f>, CallError>,
    ) -> Option<Completion<'f, C>> {
        let Some(Session::Client(s)) = self.sessions.get_mut(index as usize) else { return None };
        let session = SessionId { index, generation: s.generation };
        let slot = &mut s.slots[usize::from(slot_no)];
        let (peer, credits) = (s.peer, slot.in_flight());
        s.credits += credits;
        let (request, cont) = slot.finish()?;
        slot.deadline_ns = self.now_ns;
        s.free |= u32::from(!slot.quarantined) << slot_no;
        s.stalled &= !(1 << slot_no);
        let more = s.waits;
        let untracked = !slot.tracked;
        if let Some(mut board) = slot.board.take()
            && self.boards.len() < SPARE_BOARDS
            && board.renew(0)
        {
            self.boards.push(board);
        }
        if credits != 0 {
            self.credits_home(peer, credits);
        }
        if untracked {
            // It has outlived its first look, and the next may be far: see `look_again_soon`.
            self.look_again_soon(index, slot_no);
        }
        match &result {
            Ok(_) => self.stats.responses += 1,
            Err(_) => self.stats.errors += 1,
        }
        if more {
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

    /// Keeps a completion until the transport has let go of its request.
    fn park(&mut self, c: Completion<'_, C>) {
        self.stats.completions_parked += 1;
        let result = match c.result {
            Ok(Body::Owned(m)) => Ok(Body::Owned(m)),
            Ok(Body::Borrowed(b)) => copy_of(&self.arena, b)
                .map(Body::Owned)
                .map_err(|_| CallError::NoMemory { response_bytes: b.len() as u32 }),
            Err(e) => Err(e),
        };
        let Completion { cont, session, request, .. } = c;
        self.done.push_back(Completion { cont, session, request, result });
    }

    /// Whether a finished call waits for the transport to let go of its request buffer: flush the
    /// transport, then call [`Endpoint::poll_completion`] (E24, E25).
    #[inline]
    pub fn needs_flush(&self) -> bool {
        self.done.front().is_some_and(|c| c.request.is_shared())
    }

    /// Calls that ended without a packet (timeouts, failures) or whose buffer had to come back
    /// first. `None` when there is none, or [`Endpoint::needs_flush`].
    #[inline]
    pub fn poll_completion(&mut self) -> Option<Completion<'static, C>> {
        if self.done.is_empty() || self.needs_flush() {
            return None;
        }
        self.done.pop_front()
    }
}

/// Puts a slot that has taken a call in the transmit queue, and among the timers' first looks.
#[inline(always)] // behind what found the slot
pub(crate) fn queue_started<C>(
    tx: &mut TxStage,
    timers: &mut Timers,
    slot: &mut ClientSlot<C>,
    session: SessionId,
    slot_no: u8,
    look_ns: u64,
) {
    slot.queued = true;
    track(timers, slot, session, slot_no, look_ns);
    if !std::mem::take(&mut slot.queued_ahead) {
        let (session, req_num) = (session.index, slot.req_num);
        tx.push(TxItem::Client { session, slot: slot_no, req_num });
    }
}

/// Puts a slot that has taken a call among the timers' first looks.
#[inline(always)]
fn track<C>(
    timers: &mut Timers,
    slot: &mut ClientSlot<C>,
    session: SessionId,
    slot_no: u8,
    look_ns: u64,
) {
    // Due when it is first sent; until then nothing can be lost.
    slot.deadline_ns = u64::MAX;
    let SessionId { index, generation } = session;
    if !std::mem::replace(&mut slot.tracked, true) {
        let entry = Timed { due_ns: look_ns, session: index, generation, slot: slot_no };
        slot.look_at = timers.look_first(entry);
    }
}
