//! The client's half of a slot: what was sent, what came back, what may be sent next.
//!
//! # Counters
//! Request packets: `req_acked <= req_sent <= req_high <= req_packets`. Response packets:
//! `resp_rcvd <= resp_asked <= resp_high <= resp_packets`. `sent` and `asked` roll back on a
//! timeout (E59); `high` marks never do: they tell a late answer from a forged one.
//!
//! A message of several packets of a session with selective recovery has a [`Board`]. Then
//! nothing rolls back: of the packets between `acked` and `sent`, or `rcvd` and `asked`, `idle` hold
//! no credit, because they have arrived out of order, or `lost` of them, because they are to be sent
//! again.
//!
//! # Invariants
//! 1. `in_flight = (req_sent - req_acked) + (resp_asked - resp_rcvd) - idle`: the credits this slot
//!    holds.
//! 2. Once a response packet has arrived all request packets are acknowledged.
//! 3. A credit return never acknowledges the last request packet; the response does (E42).
//! 4. `lost <= idle`, and both are what the board says.

use courser_buf::MsgBuf;

use crate::error::Executed;
use crate::loss::{Board, Heard, Nack, Seen};
use crate::mutant::{self, Mutant};
use crate::stats::Drop;
use crate::wire::{HOLES_REACH, Holes, MAX_REMAINING_US};

/// What becomes of a slot whose call ends before its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    /// Free, and its number is used again.
    Rewind,
    /// Free.
    Free,
    /// Not free before the server has answered.
    Quarantine,
}

/// Whether a call is of the common kind: its request is one packet, it has no deadline, and nothing
/// happened to it but what the short cuts do (`tx/short`, `rx/short`). Anything else makes it
/// [`Lone::No`], for good.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lone {
    /// The counters say what it is.
    No,
    /// Nothing was sent.
    Fresh,
    /// The request was sent once, and nothing of the response has come.
    Sent,
}

/// In order of use: a small RPC touches the first two cache lines only.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct ClientSlot<C> {
    pub(crate) req: Option<MsgBuf>,
    pub(crate) cont: Option<C>,
    /// When to suspect loss; of a free slot when its last call ended, ns.
    pub(crate) deadline_ns: u64,
    /// Number of the current request, or of the last one when the slot is free.
    pub(crate) req_num: u32,
    pub(crate) lone: Lone,
    pub(crate) active: bool,
    /// The server still keeps the last response: it has not been told that it arrived (F6).
    pub(crate) ack_owed: bool,
    /// The transmit stage has this slot in its queue: with its call, or its cancellation.
    pub(crate) queued: bool,
    /// The transmit stage has this free slot in its queue, with the number of its next request.
    pub(crate) queued_ahead: bool,
    /// The endpoint's timers have a first look at this slot.
    pub(crate) tracked: bool,
    /// There is no call, but the server has not answered the request yet (F15): the slot cannot
    /// take another.
    pub(crate) quarantined: bool,
    /// Timeouts since the last progress.
    pub(crate) retries: u8,
    /// How often the wait for an acknowledgement was doubled.
    pub(crate) ack_doubled: u8,
    pub(crate) req_type: u16,
    pub(crate) req_packets: u32,
    pub(crate) req_sent: u32,
    pub(crate) req_high: u32,
    pub(crate) req_acked: u32,
    pub(crate) resp_size: u32,
    pub(crate) resp_packets: u32,
    pub(crate) resp_rcvd: u32,
    pub(crate) resp_asked: u32,
    pub(crate) resp_high: u32,
    /// Where the first look is, while the slot is tracked: [`crate::timers::Timers::forget`].
    pub(crate) look_at: u32,
    /// When the request was first sent, ns.
    pub(crate) started_ns: u64,
    /// The call's running number.
    pub(crate) seq: u64,
    /// The earliest later look at this slot that the endpoint's timers have; `u64::MAX`: none.
    pub(crate) timer_ns: u64,
    /// The call's deadline, ns; `u64::MAX`: none.
    pub(crate) expires_ns: u64,
    /// When anything of the server about this request was last taken, ns.
    pub(crate) heard_ns: u64,
    /// When a call without a board was given up last, to be sent again: ns modulo 2^32.
    pub(crate) again_at: u32,
    /// The request whose response was acknowledged last by a packet of its own.
    pub(crate) acked_num: u32,
    pub(crate) resp: Option<MsgBuf>,
    /// Packets that were sent, or asked for, and are neither in order nor on their way.
    pub(crate) idle: u32,
    /// Those of them that are to be sent again.
    pub(crate) lost: u32,
    pub(crate) board: Option<Box<Board>>,
}

const _: () = {
    use std::mem::offset_of;
    // With continuations of 16 bytes, as `courser` has them.
    type Slot = ClientSlot<Result<u64, u32>>;
    assert!(offset_of!(Slot, req_type) + 2 <= 64, "what finds and frees a slot is in one line");
    assert!(offset_of!(Slot, timer_ns) + 8 <= 128, "a small RPC is two lines");
    assert!(size_of::<Slot>() == 192 && align_of::<Slot>() == 64);
};

impl<C> ClientSlot<C> {
    /// A free slot whose next request will be `req_num + step`.
    pub(crate) fn new(req_num: u32) -> Self {
        ClientSlot {
            req_num,
            active: false,
            lone: Lone::No,
            quarantined: false,
            ack_owed: false,
            tracked: false,
            look_at: 0,
            queued: false,
            queued_ahead: false,
            retries: 0,
            ack_doubled: 0,
            acked_num: req_num,
            req_type: 0,
            req_packets: 0,
            req_sent: 0,
            req_high: 0,
            req_acked: 0,
            resp_size: 0,
            resp_packets: 0,
            resp_rcvd: 0,
            resp_asked: 0,
            resp_high: 0,
            deadline_ns: u64::MAX,
            timer_ns: u64::MAX,
            started_ns: 0,
            heard_ns: 0,
            expires_ns: u64::MAX,
            seq: 0,
            req: None,
            resp: None,
            idle: 0,
            lost: 0,
            again_at: 0,
            board: None,
            cont: None,
        }
    }

    /// Takes a call. `step` is the number of slots.
    #[inline]
    pub(crate) fn start(&mut self, step: u32, req_type: u16, req: MsgBuf, packets: u32, cont: C) {
        debug_assert!(!self.active && !self.quarantined);
        self.req_num = self.req_num.wrapping_add(step);
        self.active = true;
        self.lone = Lone::No;
        self.retries = 0;
        self.req_type = req_type;
        self.req_packets = packets;
        (self.req_sent, self.req_high, self.req_acked) = (0, 0, 0);
        (self.resp_size, self.resp_packets) = (0, 0);
        (self.resp_rcvd, self.resp_asked, self.resp_high) = (0, 0, 0);
        self.req = Some(req);
        self.cont = Some(cont);
    }

    /// [`ClientSlot::start`] for a request of one packet without a deadline.
    #[inline]
    pub(crate) fn start_lone(&mut self, step: u32, req_type: u16, req: MsgBuf, cont: C) {
        self.start(step, req_type, req, 1, cont);
        self.lone = Lone::Fresh;
    }

    /// The request of a [`Lone::Fresh`] call was sent.
    #[inline]
    pub(crate) fn sent_lone(&mut self, now_ns: u64) {
        debug_assert!(self.lone == Lone::Fresh);
        self.lone = Lone::Sent;
        self.started_ns = now_ns;
        self.ack_owed = false; // the request says it (F6)
        self.queued = false;
        (self.req_sent, self.req_high) = (1, 1);
    }

    /// The response of a [`Lone::Sent`] call has come, in one packet: what
    /// [`ClientSlot::on_response`] and [`ClientSlot::finish`] do, where one credit comes back.
    #[inline(always)]
    pub(crate) fn finish_lone(&mut self) -> Option<(MsgBuf, C)> {
        debug_assert!(self.lone == Lone::Sent && self.in_flight() == 1);
        self.lone = Lone::No;
        self.active = false;
        self.ack_owed = true;
        self.req_acked = 1; // nothing is in flight
        match (self.req.take(), self.cont.take()) {
            (Some(req), Some(cont)) => Some((req, cont)),
            _ => None,
        }
    }

    /// Credits this slot holds (invariant 1).
    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        (self.req_sent - self.req_acked) + (self.resp_asked - self.resp_rcvd) - self.idle
    }

    /// Packets that could be sent now if there were credits.
    #[inline]
    pub(crate) fn sendable(&self) -> u32 {
        (self.req_packets - self.req_sent) + (self.resp_packets - self.resp_asked) + self.lost
    }

    /// A credit return for `count` packets; gives the credits that come back.
    pub(crate) fn on_credit_return(
        &mut self,
        count: u32,
        in_progress: bool,
        heard: Heard,
        seen: &mut Seen,
    ) -> Result<u32, Drop> {
        if count > self.req_high || count >= self.req_packets {
            return Err(Drop::Inconsistent);
        }
        if self.resp_rcvd > 0 {
            return Err(Drop::Duplicate);
        }
        if in_progress && count + 1 == self.req_packets {
            // Fall through: also without new credits it is news (F5).
        } else if in_progress {
            return Err(Drop::Inconsistent);
        } else if count <= self.req_acked {
            return Err(Drop::Duplicate);
        }
        let before = self.in_flight();
        self.lone = Lone::No;
        self.acknowledge(count);
        if let Some(board) = &mut self.board {
            let in_order = board.in_order(count, heard, seen);
            self.req_acked = in_order.max(count).min(self.req_packets - 1);
            self.take_counts();
        }
        Ok(before.saturating_sub(self.in_flight()))
    }

    /// A negative acknowledgement; gives the credits that come back. It may be older than others
    /// that came before it: what has arrived has arrived.
    pub(crate) fn on_nack(
        &mut self,
        count: u32,
        high: u32,
        holes: Holes<'_>,
        heard: Heard,
        seen: &mut Seen,
    ) -> Result<u32, Drop> {
        if high > self.req_high || high > self.req_packets || count >= self.req_packets {
            return Err(Drop::Inconsistent);
        }
        if self.resp_rcvd > 0 {
            return Err(Drop::Duplicate);
        }
        let before = self.in_flight();
        let last = self.req_packets - 1;
        let board = self.board.as_mut().ok_or(Drop::Inconsistent)?;
        let mut news = false;
        // After a timeout that has gone back, the server is ahead of what is sent again: then only
        // what is in order counts.
        let in_order = if high <= self.req_sent {
            let nack = Nack { count, high, holes, last };
            let (in_order, is_news) = board.on_nack(nack, heard, seen)?;
            news = is_news;
            in_order
        } else {
            board.in_order(count, heard, seen)
        };
        self.acknowledge(count.max(in_order).min(last));
        self.take_counts();
        let credits = before.saturating_sub(self.in_flight());
        if news || credits > 0 { Ok(credits) } else { Err(Drop::Duplicate) }
    }

    /// Takes the counts of the board.
    #[inline]
    fn take_counts(&mut self) {
        if let Some(board) = &self.board {
            (self.idle, self.lost) = board.idle_and_lost();
        }
    }

    /// A message of one packet each way, as far as is known.
    #[inline]
    pub(crate) fn is_small(&self) -> bool {
        self.req_packets == 1 && self.resp_packets <= 1
    }

    /// The lost packets to be sent next: one of a request, or a run of a response.
    pub(crate) fn next_lost(&mut self, credits: u32) -> Option<(u32, u32)> {
        let most = if self.resp_packets > 0 { credits } else { 1 };
        self.board.as_mut()?.next_lost(most)
    }

    /// Packets were sent, or asked for, of which some may be on the board as lost.
    #[inline]
    pub(crate) fn note_sent(&mut self, first: u32, count: u32, now_ns: u64) {
        if let Some(board) = &mut self.board {
            board.sent(first, count, now_ns);
            (self.idle, self.lost) = board.idle_and_lost();
        }
    }

    /// Whether as many packets as may be were sent from one that has not arrived on: what is known of
    /// each costs memory on both sides.
    #[inline]
    pub(crate) fn is_spread(&self, most: u32) -> bool {
        let most = most.min(HOLES_REACH);
        (self.req_sent - self.req_acked) + (self.resp_asked - self.resp_rcvd) >= most
    }

    /// Moves `req_acked` up to `count`.
    fn acknowledge(&mut self, count: u32) {
        self.req_acked = self.req_acked.max(count);
        self.req_sent = self.req_sent.max(self.req_acked);
    }

    /// A packet of the response. `Ok`: its data is to be stored, and so many credits come back. It is
    /// the next in order, unless there is a board.
    pub(crate) fn on_response(
        &mut self,
        index: u32,
        msg_size: u32,
        packets: u32,
        heard: Heard,
        seen: &mut Seen,
    ) -> Result<u32, Drop> {
        if self.req_high < self.req_packets {
            return Err(Drop::Inconsistent); // an answer to what was never completely asked
        }
        let before = self.in_flight();
        if index == 0 {
            if self.resp_rcvd > 0 {
                return Err(Drop::Duplicate);
            }
            self.lone = Lone::No;
            self.resp_size = msg_size;
            self.resp_packets = packets;
            self.acknowledge(self.req_packets);
            self.resp_high = 1;
            (self.idle, self.lost) = (0, 0);
            if let Some(board) = &mut self.board {
                board.begin_response();
            }
        } else {
            if self.resp_rcvd == 0 {
                return Err(Drop::OutOfOrder);
            }
            if msg_size != self.resp_size || index >= self.resp_high {
                return Err(Drop::Inconsistent);
            }
            if index < self.resp_rcvd {
                return Err(Drop::Duplicate);
            }
            if let Some(board) = &mut self.board {
                if index > self.resp_rcvd && index >= self.resp_asked {
                    return Err(Drop::OutOfOrder); // given up after a timeout, and not asked again
                }
                self.resp_rcvd = board.on_response(index, heard, seen)?;
                self.resp_asked = self.resp_asked.max(self.resp_rcvd);
                self.take_counts();
                return Ok(before.saturating_sub(self.in_flight()));
            }
            if index > self.resp_rcvd && !mutant::is_on(Mutant::ResponseGapTaken) {
                return Err(Drop::OutOfOrder);
            }
        }
        self.resp_rcvd += 1;
        self.resp_asked = self.resp_asked.max(self.resp_rcvd);
        if mutant::is_on(Mutant::CreditGivenTwice) {
            return Ok((before - self.in_flight()).max(1));
        }
        Ok(before - self.in_flight())
    }

    /// Nothing was heard for so long that all packets on their way are lost; gives the credits that
    /// come back. Without a board this is go-back-N: forgets what was sent and not answered
    /// `[eRPC §5.3]` (E59).
    pub(crate) fn roll_back(&mut self) -> u32 {
        let credits = self.in_flight();
        self.lone = Lone::No;
        if let Some(board) = &mut self.board {
            let is_response = self.resp_packets > 0;
            match board.time_out(is_response, self.retries > 0) {
                None => {}
                Some(end) if is_response => {
                    self.resp_asked = self.resp_asked.min(end.max(self.resp_rcvd));
                }
                // The last packet is sent again in any case: that is how the response is asked for.
                Some(end) => {
                    let end = end.min(self.req_packets - 1).max(self.req_acked);
                    self.req_sent = self.req_sent.min(end);
                }
            }
            self.take_counts();
            return credits.saturating_sub(self.in_flight());
        }
        self.req_sent = self.req_acked;
        self.resp_asked = self.resp_rcvd;
        credits
    }

    /// The newest packet on its way is sent again, to see whether it is on its way; gives the credit
    /// that comes back.
    pub(crate) fn probe(&mut self) -> u32 {
        let before = self.in_flight();
        if !self.board.as_mut().is_some_and(|board| board.probe()) {
            return self.roll_back();
        }
        self.take_counts();
        before.saturating_sub(self.in_flight())
    }

    /// Ends the call and gives what belongs to the application.
    pub(crate) fn finish(&mut self) -> Option<(MsgBuf, C)> {
        self.active = false;
        self.lone = Lone::No;
        self.expires_ns = u64::MAX;
        self.queued = false; // what is in the queue still is ignored by its number
        self.resp_packets = 0;
        self.resp_asked = 0;
        self.resp_rcvd = 0;
        self.req_packets = 0;
        (self.req_sent, self.req_acked) = (0, 0);
        (self.idle, self.lost) = (0, 0);
        self.resp = None;
        match (self.req.take(), self.cont.take()) {
            (Some(req), Some(cont)) => Some((req, cont)),
            _ => None,
        }
    }

    /// What is left of the call's time, for its server; `None` when there is no deadline, or one
    /// that is further ahead than a packet can say.
    #[inline]
    pub(crate) fn remaining_us(&self, now_ns: u64) -> Option<u32> {
        if self.expires_ns == u64::MAX {
            return None;
        }
        let us = self.expires_ns.saturating_sub(now_ns) / 1_000;
        u32::try_from(us).ok().filter(|&us| us <= MAX_REMAINING_US)
    }

    /// What is known of the handler, if the call ended now: it runs when the whole request has
    /// arrived, and what was not sent will not be.
    pub(crate) fn executed(&self) -> Executed {
        let claims = mutant::is_on(Mutant::ClaimsNeverExecuted);
        let sent = if claims { self.req_acked } else { self.req_high };
        if self.resp_rcvd > 0 {
            Executed::Yes
        } else if sent < self.req_packets {
            Executed::Never
        } else {
            Executed::Maybe
        }
    }

    /// What becomes of the slot when its call ends before its answer (F15), and what is known of
    /// the handler.
    pub(crate) fn ending(&self) -> (Ending, Executed) {
        let ending = if self.req_high == 0 {
            Ending::Rewind
        } else if self.resp_rcvd > 0 {
            Ending::Free
        } else {
            Ending::Quarantine
        };
        (ending, self.executed())
    }

    /// The server never heard of the request, and expects its number next: the next call has to
    /// use it. `step` is the number of slots.
    pub(crate) fn rewind(&mut self, step: u32) {
        debug_assert!(self.active && self.req_high == 0);
        self.req_num = self.req_num.wrapping_sub(step);
        self.queued_ahead = self.queued;
    }

    /// Ends a quarantine.
    pub(crate) fn release(&mut self) {
        self.quarantined = false;
        self.queued = false; // what is in the queue still is ignored
    }

    /// Checks the invariants; for debug builds and simulations.
    pub(crate) fn check(&self) {
        assert!(!self.active || !(self.quarantined || self.queued_ahead));
        if self.active {
            assert!(self.req_acked <= self.req_sent && self.req_sent <= self.req_packets);
            assert!(self.resp_rcvd <= self.resp_asked && self.resp_asked <= self.resp_packets);
            assert!(self.resp_rcvd == 0 || self.req_acked == self.req_packets, "invariant 2");
            let idle = self.board.as_ref().map_or((0, 0), |b| b.idle_and_lost());
            assert_eq!((self.idle, self.lost), idle, "invariant 4");
            self.board.iter().for_each(|board| board.check());
        } else {
            assert!(self.board.is_none());
            assert_eq!(self.lone, Lone::No);
            assert_eq!((self.in_flight(), self.expires_ns), (0, u64::MAX));
            assert!(self.req.is_none() && self.cont.is_none());
        }
        let asked = (self.req_packets, self.expires_ns, self.resp_high, self.resp_packets);
        let sent = (self.req_acked, self.req_sent, self.req_high, self.queued);
        match self.lone {
            Lone::No => {}
            Lone::Fresh => assert_eq!((asked, self.req_high), ((1, u64::MAX, 0, 0), 0)),
            Lone::Sent => assert_eq!((asked, sent), ((1, u64::MAX, 0, 0), (0, 1, 1, false))),
        }
    }
}
