//! One thread's endpoint: packets in, packets out, the next deadline (`[eRPC §3.1]`, E5, E7).
//!
//! The endpoint does no I/O and reads no clock: every call that needs the time takes `now_ns`,
//! any monotonic count of nanoseconds below 2^60, which is 36 years. One pass of an event loop is
//!
//! 1. [`Endpoint::on_frame`] for each received frame, then [`Endpoint::next_event`] until `None`;
//! 2. [`Endpoint::on_deadline`] when [`Endpoint::next_deadline`] has passed;
//! 3. [`Endpoint::poll_transmit`], whose frames go to the transport;
//! 4. [`Endpoint::needs_flush`] (then flush the transport), [`Endpoint::poll_completion`].
//!
//! `C` is what the caller wants back with a completion; the endpoint stores it untouched.

use std::collections::{BTreeMap, VecDeque};

use courser_buf::{Addr, AllocError, Arena, MsgBuf, PathId, Runs};

use crate::config::{Config, ConfigError};
use crate::deferred::Deferred;
use crate::error::{CallError, CallRefused};
use crate::event::{Answered, Body, Completion, Event, FrameCursor};
use crate::loss::{Board, Pools};
use crate::mutant::{self, Mutant};
use crate::options::{CallId, CallOptions};
use crate::session::{
    ClientSession, IdleSession, Peer, QueuedCall, ServerSession, Session, SessionId, SessionState,
    Shares,
};
use crate::slot::{ClientSlot, Lone, ServerSlot};
use crate::stats::{Drop, EndpointStats};
use crate::timers::{Timed, Timers};
use crate::tx::{TxItem, TxStage, Written};
use crate::wire::{Packet, SHORT_REQUEST, SHORT_RESPONSE, packets_of, parse_packet, short_header};

/// Boards that are kept for messages to come: each has room for the credits of a session.
const SPARE_BOARDS: usize = 64;

/// See the module's documentation.
#[derive(Debug)]
pub struct Endpoint<C> {
    pub(crate) cfg: Config,
    pub(crate) arena: Arena,
    pub(crate) id: u64,
    pub(crate) now_ns: u64,
    /// The peer of the newest frame: the only one whose newest round trip may be unsettled.
    pub(crate) heard: u32,
    pub(crate) peers: Vec<Option<Peer>>,
    /// Free entries of `peers`.
    pub(crate) vacant_peers: Vec<u32>,
    pub(crate) sessions: Vec<Session<C>>,
    /// The slots of those in use.
    pub(crate) client_slots: Runs<ClientSlot<C>>,
    pub(crate) server_slots: Runs<ServerSlot>,
    /// Free entries of `sessions`.
    pub(crate) vacant: Vec<u32>,
    pub(crate) live_sessions: usize,
    /// Live peers by the number and the address of their endpoint.
    pub(crate) known_peers: BTreeMap<(u64, Addr), u32>,
    /// Peers without a session that a connect under way may need, and their control connections.
    pub(crate) lingering: Vec<(u32, u64)>,
    /// Client sessions whose server has not answered.
    pub(crate) connecting: usize,
    /// Paths that nobody needs any more.
    pub(crate) unused_paths: Vec<PathId>,
    /// What each process may take as a client here.
    pub(crate) shares: Shares,
    /// Client sessions that have shrunk, for [`Endpoint::poll_idle`].
    pub(crate) idle: VecDeque<IdleSession>,
    /// Requests with their handlers whose clients have given them up, or are gone.
    pub(crate) given_up: u64,
    /// Sum of the pools of all peers, in both directions, and of what connects under way have
    /// reserved (F7).
    pub(crate) credits_granted: u64,
    /// Credits of short responses from one peer that its pool has not got back yet.
    pub(crate) homing: u32,
    pub(crate) homing_peer: u32,
    pub(crate) deferred: Deferred<C>,
    pub(crate) tx: TxStage,
    /// Where a frame is put together whose end is in shared memory: at most a largest frame.
    pub(crate) room: Vec<u8>,
    /// When which client slots and sessions are to be looked at.
    pub(crate) timers: Timers,
    /// When something should have been heard of every peer with calls; `u64::MAX`: nobody waits.
    pub(crate) silence_ns: u64,
    /// Nothing was known of how long to wait until then.
    pub(crate) silence_guessed: bool,
    /// A client session has [`crate::Recovery::Selective`].
    pub(crate) watchful: bool,
    /// Boards that no message needs now; boxed, as slots have them.
    #[allow(clippy::vec_box)]
    pub(crate) boards: Vec<Box<Board>>,
    /// The bits of messages with [`crate::Recovery::Melo`] (M5).
    pub(crate) pools: Pools,
    /// When to try again to make frames, after there was no memory for them; else 0.
    pub(crate) retry_tx_ns: u64,
    /// Completions that did not come from a packet, or that wait for the transport.
    pub(crate) done: VecDeque<Completion<'static, C>>,
    /// Client sessions that failed and were not taken by [`Endpoint::poll_failed`] yet.
    pub(crate) failed: VecDeque<SessionId>,
    pub(crate) stats: EndpointStats,
}

impl<C> Endpoint<C> {
    /// An endpoint. `id` is random and names this incarnation to its peers; `max_frame` is the
    /// largest frame the transport carries.
    ///
    /// # Errors
    /// A setting out of its range.
    pub fn new(cfg: Config, arena: Arena, id: u64, max_frame: usize) -> Result<Self, ConfigError> {
        cfg.validate()?;
        let max_held_per_peer = cfg.max_held_per_peer;
        let mut tx = TxStage::new(max_frame, &cfg);
        tx.reserve(&arena);
        Ok(Endpoint {
            cfg,
            arena,
            id,
            now_ns: 0,
            heard: u32::MAX,
            peers: Vec::new(),
            vacant_peers: Vec::new(),
            sessions: Vec::new(),
            client_slots: Runs::new(),
            server_slots: Runs::new(),
            vacant: Vec::new(),
            live_sessions: 0,
            known_peers: BTreeMap::new(),
            lingering: Vec::new(),
            connecting: 0,
            unused_paths: Vec::new(),
            shares: Shares::new(max_held_per_peer),
            idle: VecDeque::new(),
            given_up: 0,
            credits_granted: 0,
            homing: 0,
            homing_peer: 0,
            deferred: Deferred::default(),
            tx,
            room: Vec::new(),
            timers: Timers::new(),
            silence_ns: u64::MAX,
            silence_guessed: false,
            watchful: false,
            boards: Vec::new(),
            pools: Pools::new(),
            retry_tx_ns: 0,
            done: VecDeque::new(),
            failed: VecDeque::new(),
            stats: EndpointStats::default(),
        })
    }

    // ---- receive: see also `door.rs` ------------------------------------------------------------

    /// Works through the packets of a frame up to the next one that the application has to act
    /// on; `None` at the end of the frame. [`FrameCursor::drive`] costs less. Nothing is transmitted
    /// before the frame has ended.
    pub fn next_event<'f>(&mut self, cursor: &mut FrameCursor<'f>) -> Option<Event<'f, C>> {
        self.home_is(cursor.peer);
        self.open_writing();
        while !cursor.rest.is_empty() {
            if let Some((short, rest)) = cursor.next_short() {
                let body = Body::Borrowed(short.data);
                let event = match short.kind {
                    SHORT_REQUEST => self.rx_short_request(cursor.peer, &short).map(|id| {
                        let req_type = short.req_type;
                        Event::Request { id, req_type, body, deadline_ns: None }
                    }),
                    SHORT_RESPONSE => {
                        self.rx_short_response(cursor.peer, cursor.awaited, &short).map(|call| {
                            let Answered { cont, session, request } = call;
                            let result = Ok(body);
                            Event::Completion(Completion { cont, session, request, result })
                        })
                    }
                    _ => None,
                };
                if event.is_some() {
                    cursor.rest = rest;
                    return event;
                }
            }
            let event = self.next_packet(cursor);
            if event.is_some() {
                return event;
            }
        }
        self.tx.close_writing();
        None
    }

    /// Takes one packet, of any kind and whatever state it finds.
    #[inline(never)] // so that short messages have the registers
    pub(crate) fn next_packet<'f>(&mut self, cursor: &mut FrameCursor<'f>) -> Option<Event<'f, C>> {
        self.settle_round_trip();
        // At the end, or when what follows cannot be delimited, the rest of the frame is done with.
        let rest = std::mem::take(&mut cursor.rest);
        let packet = match parse_packet(rest, cursor.data_per_packet) {
            Ok(Some((packet, rest))) => {
                cursor.rest = rest;
                packet
            }
            Ok(None) => return None,
            Err(malformed) => {
                self.stats.drop(malformed.into());
                return None;
            }
        };
        self.on_packet(cursor.peer, packet).unwrap_or_else(|reason| {
            self.stats.drop(reason);
            None
        })
    }

    /// One file per packet kind: see [`crate::rx`].
    #[inline]
    fn on_packet<'f>(
        &mut self,
        peer: u32,
        packet: Packet<'f>,
    ) -> Result<Option<Event<'f, C>>, Drop> {
        let (kind, event) = match packet {
            Packet::Request { session, req_num, req_type, msg_size, index, remaining_us, data } => {
                let (left, size) = (remaining_us, msg_size);
                let event =
                    self.rx_request(peer, session, req_num, req_type, size, index, left, data)?;
                (0, event)
            }
            Packet::CreditReturn { session, req_num, count, in_progress } => {
                self.rx_credit_return(peer, session, req_num, count, in_progress)?;
                (1, None)
            }
            Packet::Rfr { session, req_num, first, count } => {
                self.rx_rfr(peer, session, req_num, first, count)?;
                (2, None)
            }
            Packet::Response { session, req_num, msg_size, index, data } => {
                (3, self.rx_response(peer, session, req_num, msg_size, index, data)?)
            }
            Packet::ErrorResponse { session, req_num, status } => {
                (3, self.rx_error_response(peer, session, req_num, status)?)
            }
            Packet::Ack { session, req_num } => {
                self.rx_ack(peer, session, req_num)?;
                (4, None)
            }
            Packet::Cancel { session, req_num } => {
                self.rx_cancel(peer, session, req_num)?;
                (5, None)
            }
            Packet::Nack { session, req_num, count, high, holes } => {
                self.rx_nack(peer, session, req_num, (count, high, holes))?;
                (6, None)
            }
            Packet::Gap => {
                self.rx_gap(peer);
                (7, None)
            }
            Packet::OneWay { .. } => return Err(Drop::Unsupported),
        };
        self.stats.received(kind);
        Ok(event)
    }

    // ---- calls --------------------------------------------------------------------------------

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
    #[inline]
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
            debug_assert!(!slot.queued_ahead, "it has nothing in an empty queue");
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

    // ---- look-ups -----------------------------------------------------------------------------

    /// A client session that `peer` may speak to, with the slot and its number of a request.
    #[inline]
    pub(crate) fn client_slot(
        &mut self,
        peer: u32,
        session: u32,
        req_num: u32,
    ) -> Result<(&mut ClientSession<C>, u8), Drop> {
        match self.sessions.get_mut(session as usize) {
            Some(Session::Client(s)) if s.peer == peer && s.state == SessionState::Connected => {
                let slot_no = (req_num & (s.slots.count() - 1)) as u8;
                let Some(slot) = s.slots.get(usize::from(slot_no)) else {
                    return Err(s.slots.late(req_num));
                };
                if slot.active && slot.req_num == req_num {
                    return Ok((s, slot_no));
                }
                if slot.active && mutant::is_on(Mutant::OldAnswerTaken) {
                    return Ok((s, slot_no));
                }
                let ahead = req_num.wrapping_sub(slot.req_num);
                let future = ahead != 0 && ahead < 1 << 31;
                Err(if future { Drop::Future } else { Drop::Stale })
            }
            Some(Session::Server(s)) if s.peer == peer => Err(Drop::WrongRole),
            _ => Err(Drop::UnknownSession),
        }
    }

    /// A server session that `peer` may speak to.
    #[inline]
    pub(crate) fn server_session(
        &mut self,
        peer: u32,
        session: u32,
    ) -> Result<&mut ServerSession, Drop> {
        server_at(&mut self.sessions, peer, session)
    }
}

/// A server session that `peer` may speak to; borrows the table only.
#[inline]
pub(crate) fn server_at<C>(
    sessions: &mut [Session<C>],
    peer: u32,
    session: u32,
) -> Result<&mut ServerSession, Drop> {
    match sessions.get_mut(session as usize) {
        Some(Session::Server(s)) if s.peer == peer => Ok(s),
        Some(Session::Client(s)) if s.peer == peer => Err(Drop::WrongRole),
        _ => Err(Drop::UnknownSession),
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

/// A buffer with the same bytes.
pub(crate) fn copy_of(arena: &Arena, bytes: &[u8]) -> Result<MsgBuf, AllocError> {
    let mut m = arena.alloc(bytes.len())?;
    m.copy_from_slice(bytes);
    Ok(m)
}
