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

use courser_buf::{AllocError, Arena, MsgBuf, PathId, Runs};

use crate::config::{Config, ConfigError};
use crate::deferred::Deferred;
use crate::event::{Answered, Body, Completion, Event, FrameCursor};
use crate::loss::{Board, Pools};
use crate::mutant::{self, Mutant};
use crate::session::{
    ClientSession, IdleSession, Peer, PeerName, ServerSession, Session, SessionId, SessionState,
    Shares,
};
use crate::slot::{ClientSlot, ServerSlot};
use crate::stats::{Drop, EndpointStats};
use crate::timers::Timers;
use crate::tx::TxStage;
use crate::wire::{Packet, SHORT_REQUEST, SHORT_RESPONSE, parse_packet};

/// See the module's documentation.
#[derive(Debug)]
pub struct Endpoint<C> {
    pub(crate) cfg: Config,
    pub(crate) arena: Arena,
    pub(crate) id: u64,
    pub(crate) now_ns: u64,
    /// The peer of the newest frame: the only one whose newest round trip may be unsettled.
    pub(crate) heard: u32,
    /// The peer of a frame that says no time, until [`Endpoint::heard_at`]; else `u32::MAX`.
    pub(crate) heard_untimed: u32,
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
    /// Live peers by the number and the address of their endpoint: one, or, when both sides have
    /// dialed each other at the same time, several, of which the last is taken for what follows.
    pub(crate) known_peers: BTreeMap<PeerName, Vec<u32>>,
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
            heard_untimed: u32::MAX,
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

/// A buffer with the same bytes.
pub(crate) fn copy_of(arena: &Arena, bytes: &[u8]) -> Result<MsgBuf, AllocError> {
    let mut m = arena.alloc(bytes.len())?;
    m.copy_from_slice(bytes);
    Ok(m)
}
