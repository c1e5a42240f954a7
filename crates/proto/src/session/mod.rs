//! Sessions and peers: who talks to whom, with how many credits (`[eRPC §4.3]`; step 2 and 11 of
//! a packet's path).
//!
//! A *peer* is another endpoint in one incarnation: address, cookies, frame numbers, round trips.
//! A *session* is one-to-one between two endpoints, with a client and a server side (E6); all
//! sessions between the same two endpoints share the peer, and so share frames.

mod connect;
mod control;
pub(crate) mod peer;

use std::collections::VecDeque;

use courser_buf::MsgBuf;

pub use connect::{
    ConnectAccept, ConnectError, ConnectOffer, ConnectRequest, Dialed, Established, RefuseReason,
};
pub use control::{
    CONTROL_MAX, CONTROL_PREAMBLE, ControlDecoder, ControlError, ControlMsg, EndpointRef,
};
pub(crate) use peer::{Peer, PeerState};

use crate::slot::{ClientSlot, ServerSlot};

/// A session of this endpoint. Stale after the session ends: never mistaken for a later one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SessionId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl SessionId {
    /// The session's number at this endpoint; another session may have it later.
    pub fn index(self) -> u32 {
        self.index
    }
}

/// Where a session stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SessionState {
    /// The handshake is under way; calls wait.
    Connecting,
    /// Calls flow.
    Connected,
    /// Ended, failed, or never there.
    Gone,
}

/// A call that waits for a slot or for the handshake.
#[derive(Debug)]
pub(crate) struct QueuedCall<C> {
    pub(crate) req_type: u16,
    pub(crate) req: MsgBuf,
    pub(crate) cont: C,
}

/// The client side of a session.
///
/// Invariant 1: `credits` + the slots' credits in flight = `credit_limit` (E33).
#[derive(Debug)]
pub(crate) struct ClientSession<C> {
    pub(crate) generation: u32,
    pub(crate) state: SessionState,
    pub(crate) peer: u32,
    /// The server's number for this session.
    pub(crate) remote: u32,
    pub(crate) credits: u32,
    pub(crate) credit_limit: u32,
    /// Large messages leave in steps of this many packets.
    pub(crate) quantum: u32,
    pub(crate) data_per_packet: u16,
    pub(crate) max_msg_size: u32,
    /// Bit per free slot.
    pub(crate) free: u32,
    /// Bit per slot that waits for credits.
    pub(crate) stalled: u32,
    pub(crate) slots: Box<[ClientSlot<C>]>,
    pub(crate) queue: VecDeque<QueuedCall<C>>,
    // Cold.
    /// Slot `i` began at this number plus `i`.
    pub(crate) start_req_num: u32,
    pub(crate) rollbacks: u64,
    pub(crate) retransmitted: u64,
}

impl<C> ClientSession<C> {
    /// Calls put on slots, modulo 2^27.
    pub(crate) fn requests(&self) -> u32 {
        let req_nums = self.slots.iter().map(|slot| slot.req_num);
        requests(self.start_req_num, self.slots.len(), req_nums)
    }

    /// Failed, and not closed by the application yet: it only keeps its number.
    pub(crate) fn has_failed(&self) -> bool {
        self.state == SessionState::Gone
    }
}

/// The server side of a session.
#[derive(Debug)]
pub(crate) struct ServerSession {
    pub(crate) generation: u32,
    pub(crate) peer: u32,
    /// The client's number for this session.
    pub(crate) remote: u32,
    pub(crate) credit_limit: u32,
    pub(crate) data_per_packet: u16,
    /// Largest message that both sides take.
    pub(crate) max_msg_size: u32,
    pub(crate) slots: Box<[ServerSlot]>,
    // Cold.
    /// Slot `i` began at this number plus `i`.
    pub(crate) start_req_num: u32,
    /// Stored responses sent again.
    pub(crate) resent: u64,
}

/// [`crate::SessionStats::requests`] counts modulo this: 2^32 request numbers over at most 32
/// slots.
const REQUESTS_MODULO: u32 = 1 << 27;

/// Requests on slots that began at `start`, `start + 1`, ... and stand at `req_nums`.
fn requests(start: u32, slots: usize, req_nums: impl Iterator<Item = u32>) -> u32 {
    let step = slots.max(1) as u32;
    let sum = (0..).zip(req_nums).fold(0u32, |sum, (slot, now)| {
        sum.wrapping_add(now.wrapping_sub(start.wrapping_add(slot)) / step)
    });
    sum % REQUESTS_MODULO
}

impl ServerSession {
    /// Requests that began to arrive, modulo 2^27.
    pub(crate) fn requests(&self) -> u32 {
        let req_nums = self.slots.iter().map(|slot| slot.req_num);
        requests(self.start_req_num, self.slots.len(), req_nums)
    }
}

/// An entry of the session table.
#[derive(Debug)]
pub(crate) enum Session<C> {
    /// Free; the next session here gets this generation.
    Vacant { generation: u32 },
    /// This endpoint calls.
    Client(ClientSession<C>),
    /// This endpoint answers.
    Server(ServerSession),
}

impl<C> ClientSession<C> {
    /// Checks the invariants; for debug builds and simulations.
    pub(crate) fn check(&self) {
        let mut in_flight = 0;
        for (i, s) in self.slots.iter().enumerate() {
            s.check();
            assert_eq!(s.active, self.free & 1 << i == 0, "slot {i}: free bit");
            in_flight += s.in_flight();
        }
        assert_eq!(self.credits + in_flight, self.credit_limit, "invariant 1");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_their_numbers_across_the_wrap() {
        // Four slots from u32::MAX - 1 on: slots 2 and 3 begin at 0 and 1.
        let start = u32::MAX - 1;
        let at = |done: [u32; 4]| {
            let number =
                |(i, n): (u32, &u32)| start.wrapping_add(i).wrapping_add(n.wrapping_mul(4));
            requests(start, 4, (0..).zip(&done).map(number))
        };
        assert_eq!(at([0, 0, 0, 0]), 0);
        assert_eq!(at([1, 0, 0, 2]), 3);
        assert_eq!(at([REQUESTS_MODULO, 5, 0, 0]), 5);
        // Each slot's own count wraps at 2^30 here; the sum's difference stays right.
        let (before, after) = ((1 << 30) - 1, 1 << 30);
        let difference = at([after, 0, 0, 0]).wrapping_sub(at([before, 0, 0, 0]));
        assert_eq!(difference % REQUESTS_MODULO, 1);
    }
}
