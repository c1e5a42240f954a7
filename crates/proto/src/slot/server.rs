//! The server's half of a slot: the request as it arrives, and the response as long as a
//! duplicate may ask for it again.
//!
//! # States
//! ```text
//! Idle -> Receiving -> Executing -> Responded -> (next request) Receiving ...
//!                                        |-> Acked: the client has it, the response is freed (F6)
//! ```
//! The server has no timers and never rolls back (E40): every transition is caused by a packet
//! of the client or by the handler's reply.

use courser_buf::MsgBuf;

use super::Gaps;
use crate::mutant::{self, Mutant};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum ServerPhase {
    /// No request yet.
    Idle,
    /// The client has the response; nothing is stored.
    Acked,
    /// The response is stored.
    Responded,
    /// Some packets of a request have arrived.
    Receiving,
    /// The request is with its handler.
    Executing,
}

/// The stored response.
#[derive(Debug)]
pub(crate) enum Stored {
    /// Nothing.
    None,
    /// In the slot's preallocated buffer (E32).
    Preallocated,
    /// In a buffer of its own.
    Owned(MsgBuf),
    /// An error status in its place.
    Error(u16),
}

/// Where a packet's request number stands against the slot's (past, in order, future).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Position {
    /// An earlier request.
    Past,
    /// The current one.
    Current,
    /// The one that comes next.
    Next,
    /// Further ahead: no honest client sends that.
    Future,
}

/// In order of use, two cache lines.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct ServerSlot {
    pub(crate) req_num: u32,
    pub(crate) phase: ServerPhase,
    /// A credit return is queued in the transmit stage.
    pub(crate) cr_queued: bool,
    /// The credit return that is queued says "in progress".
    pub(crate) cr_in_progress: bool,
    /// Packets `send_next..send_end` of the response are queued in the transmit stage.
    resp_queued: bool,
    /// The response is one packet in the preallocated buffer, and is to be sent for the first time.
    short_due: bool,
    /// The client has given the request up.
    pub(crate) cancelled: bool,
    pub(crate) req_type: u16,
    pub(crate) req_size: u32,
    pub(crate) req_packets: u32,
    pub(crate) req_rcvd: u32,
    send_next: u32,
    send_end: u32,
    resp_size: u32,
    resp_packets: u32,
    /// Bytes of `req` and `resp` that count against what the client's process may hold.
    pub(crate) held: u32,
    /// The transmit stage for which the response was written where it was given.
    written_for: u32,
    /// The client's deadline, in this endpoint's time, never too late; `u64::MAX`: none (F15).
    pub(crate) expires_ns: u64,
    pub(crate) resp: Stored,
    /// MTU-sized buffer for short responses, kept from request to request (E32).
    pub(crate) prealloc: Option<MsgBuf>,
    pub(crate) req: Option<MsgBuf>,
    /// Only where packets were missing, or several parts of the response asked for at once.
    pub(crate) gaps: Option<Box<Gaps>>,
}

const _: () = {
    use std::mem::offset_of;
    assert!(
        offset_of!(ServerSlot, expires_ns) + 8 <= 64,
        "all that is not a buffer is in one line"
    );
    assert!(size_of::<ServerSlot>() == 128, "two lines");
};

impl ServerSlot {
    /// A request is arriving, or with its handler.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.phase, ServerPhase::Receiving | ServerPhase::Executing)
    }

    /// A slot whose first request will be `req_num + step`.
    pub(crate) fn new(req_num: u32) -> Self {
        ServerSlot {
            req_num,
            phase: ServerPhase::Idle,
            cr_queued: false,
            cr_in_progress: false,
            resp_queued: false,
            short_due: false,
            send_next: 0,
            send_end: 0,
            req_type: 0,
            req_size: 0,
            req_packets: 0,
            req_rcvd: 0,
            resp_size: 0,
            resp_packets: 0,
            expires_ns: u64::MAX,
            cancelled: false,
            req: None,
            resp: Stored::None,
            held: 0,
            written_for: 0,
            prealloc: None,
            gaps: None,
        }
    }

    /// Where `req_num` stands; `step` is the number of slots.
    #[inline]
    pub(crate) fn position(&self, req_num: u32, step: u32) -> Position {
        let ahead = req_num.wrapping_sub(self.req_num);
        if req_num < self.req_num && mutant::is_on(Mutant::WrapForgotten) {
            Position::Past
        } else if ahead == step {
            Position::Next
        } else if ahead == 0 {
            Position::Current
        } else if ahead < 1 << 31 {
            Position::Future
        } else {
            Position::Past
        }
    }

    /// Begins the next request; frees what was kept of the one before, and says how many bytes of
    /// that were held.
    #[inline]
    pub(crate) fn begin(
        &mut self,
        req_num: u32,
        req_type: u16,
        size: u32,
        packets: u32,
        expires_ns: u64,
    ) -> u32 {
        self.req = None;
        self.forget_gaps();
        let freed = std::mem::take(&mut self.held);
        self.renew(req_num, req_type, size, packets, expires_ns);
        freed
    }

    /// [`ServerSlot::begin`] for a slot that [`ServerSlot::is_clean`].
    #[inline(always)]
    pub(crate) fn renew(
        &mut self,
        req_num: u32,
        req_type: u16,
        size: u32,
        packets: u32,
        expires_ns: u64,
    ) {
        self.req_num = req_num;
        self.phase = ServerPhase::Receiving;
        // Items of the request before are ignored by their number.
        self.cr_queued = false;
        self.cr_in_progress = false;
        self.resp_queued = false;
        self.short_due = false;
        self.cancelled = false;
        self.req_type = req_type;
        self.req_size = size;
        self.req_packets = packets;
        self.req_rcvd = 0;
        self.expires_ns = expires_ns;
        self.resp = Stored::None;
    }

    fn forget_gaps(&mut self) {
        if let Some(gaps) = &mut self.gaps {
            gaps.forget();
        }
    }

    /// Whether the slot has no request and keeps no buffer of its own, but its preallocated one.
    #[inline(always)]
    pub(crate) fn is_clean(&self) -> bool {
        self.phase <= ServerPhase::Responded && self.held == 0 && self.gaps.is_none()
    }

    /// All packets of the request have arrived at once.
    #[inline(always)]
    pub(crate) fn arrived_whole(&mut self) {
        self.phase = ServerPhase::Executing;
        self.req_rcvd = self.req_packets;
    }

    /// Stores a response of one packet that is in the preallocated buffer: as
    /// [`ServerSlot::respond`].
    #[inline(always)]
    pub(crate) fn respond_short(&mut self, size: u32) {
        let unasked = mutant::is_on(Mutant::ResponseUnasked);
        self.phase = ServerPhase::Responded;
        self.resp = Stored::Preallocated;
        (self.resp_size, self.resp_packets) = (size, 1);
        (self.resp_queued, self.short_due) = (true, !unasked);
        (self.send_next, self.send_end) = (0, 1 + u32::from(unasked));
    }

    /// `len` bytes of the preallocated buffer, if it has so many and the transport has let go of
    /// it.
    #[inline(always)]
    pub(crate) fn prealloc_mut(&mut self, len: usize) -> Option<&mut [u8]> {
        self.prealloc.as_mut()?.get_mut()?.get_mut(..len)
    }

    /// A response of one packet that is in the preallocated buffer and was not sent yet.
    #[inline(always)]
    pub(crate) fn short_response(&self) -> Option<&[u8]> {
        if !self.short_due {
            return None;
        }
        self.prealloc.as_ref()?.get(..self.resp_size as usize)
    }

    /// [`ServerSlot::short_response`] was sent.
    #[inline(always)]
    pub(crate) fn sent_short(&mut self) {
        self.short_due = false;
        self.send_next = 1;
        self.resp_queued = false;
    }

    /// Keeps a response of one packet as one in a buffer of its own, which the next request frees.
    pub(crate) fn own_short(&mut self) {
        self.short_due = false;
        if let Some(m) = self.prealloc.take() {
            self.resp = Stored::Owned(m);
        }
    }

    /// The response is appended to a frame of the batch with this number.
    #[inline(always)]
    pub(crate) fn appended_for(&mut self, batch: u32) {
        self.written_for = batch;
    }

    /// Bytes of the stored response.
    pub(crate) fn response_size(&self) -> u32 {
        self.resp_size
    }

    /// Packets of the stored response.
    pub(crate) fn response_packets(&self) -> u32 {
        self.resp_packets
    }

    /// The packet of the response that is to be sent next, if one is due.
    pub(crate) fn due_packet(&mut self) -> Option<u32> {
        self.short_due = false;
        let due = self.send_next < self.send_end.min(self.resp_packets) || self.next_part();
        due.then_some(self.send_next)
    }

    /// That packet was sent.
    pub(crate) fn sent_due_packet(&mut self) {
        self.send_next += 1;
    }

    /// No packet of the response is due; its item has left the transmit queue.
    pub(crate) fn sent_all_due(&mut self) {
        self.resp_queued = false;
    }

    /// All bytes that count as the client's.
    pub(crate) fn all_held(&self) -> u32 {
        self.held + self.prealloc.as_ref().map_or(0, |m| m.capacity() as u32)
    }

    /// The client has the response: nothing is kept. Gives the bytes that were held.
    pub(crate) fn acknowledged(&mut self) -> u32 {
        let held = self.all_held();
        self.phase = ServerPhase::Acked;
        self.short_due = false;
        if !mutant::is_on(Mutant::StoredResponseKept) {
            self.resp = Stored::None;
        }
        self.prealloc = None;
        self.held = 0;
        self.gaps = None;
        held
    }

    /// The packets a credit return may name: never the last one (E42).
    #[inline]
    pub(crate) fn returnable(&self) -> u32 {
        self.req_rcvd.min(self.req_packets.saturating_sub(1))
    }

    /// Stores the response; its first packet is due, and is to be queued.
    #[inline]
    pub(crate) fn respond(&mut self, resp: Stored, size: u32, packets: u32) {
        self.phase = ServerPhase::Responded;
        self.resp = resp;
        self.resp_size = size;
        self.resp_packets = packets;
        self.resp_queued = true;
        self.short_due = false;
        self.forget_gaps();
        let unasked = u32::from(mutant::is_on(Mutant::ResponseUnasked));
        (self.send_next, self.send_end) = (0, 1 + unasked);
    }

    /// The first packet of the response once more. `true`: the slot is to be queued. Not needed
    /// when anything of the response is due already: either that is the first packet, or the
    /// client has it. `stage` is the number of the next stage: what was written for that is due too.
    pub(crate) fn resend_first(&mut self, stage: u32) -> bool {
        if self.resp_queued || self.written_for == stage {
            return false;
        }
        (self.send_next, self.send_end) = (0, 1);
        self.resp_queued = true;
        true
    }

    /// Packets `first..end` of the response are asked for. `true`: the slot is to be queued.
    /// What still waits and touches them is kept, up to `limit` packets together; else the newest
    /// wish counts: an honest client then has or has given up the other. So a slot is in the queue
    /// once, and never owes more than `limit` packets, however often it is asked. With `selective`
    /// recovery an honest client asks for parts that are apart, and wants them all.
    pub(crate) fn ask(&mut self, first: u32, end: u32, limit: u32, selective: bool) -> bool {
        let queued = self.resp_queued;
        self.short_due = false;
        let apart = first > self.send_end || end < self.send_next;
        if queued && selective && apart {
            let due = self.send_end - self.send_next;
            self.gaps.get_or_insert_default().ask(first, end, due, limit);
            return false;
        }
        if queued && first <= self.send_end && end >= self.send_next {
            self.send_next = self.send_next.min(first);
            self.send_end = self.send_end.max(end).min(self.send_next.saturating_add(limit));
        } else {
            (self.send_next, self.send_end) = (first, end);
        }
        self.resp_queued = true;
        !queued
    }

    /// What is asked for next of the response, now that the part before was sent. `false`: nothing.
    #[inline]
    fn next_part(&mut self) -> bool {
        let Some(part) = self.gaps.as_mut().and_then(|gaps| gaps.next_ask()) else { return false };
        (self.send_next, self.send_end) = part;
        true
    }

    /// Checks the invariants; for debug builds and simulations.
    pub(crate) fn check(&self) {
        assert!(self.req_rcvd <= self.req_packets);
        // A response of one packet may be uncounted: `Endpoint::reply_allocated`.
        let keeps =
            self.req.is_some() || (matches!(self.resp, Stored::Owned(_)) && self.resp_packets > 1);
        assert!(!keeps || self.held > 0, "buffers are counted");
        if self.short_due {
            let due = (self.send_next, self.send_end, self.resp_packets, self.resp_queued);
            assert_eq!((due, self.phase), ((0, 1, 1, true), ServerPhase::Responded));
            assert!(matches!(self.resp, Stored::Preallocated) && self.prealloc.is_some());
        }
        match self.phase {
            ServerPhase::Idle | ServerPhase::Acked => {
                assert!(matches!(self.resp, Stored::None) && self.req.is_none());
            }
            ServerPhase::Receiving => assert!(self.req_rcvd < self.req_packets),
            ServerPhase::Executing => assert_eq!(self.req_rcvd, self.req_packets),
            ServerPhase::Responded => assert!(!matches!(self.resp, Stored::None)),
        }
    }
}
