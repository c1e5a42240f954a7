//! Sessions: connections of a client endpoint to a server endpoint, with credits and slots (`[eRPC
//! §4.3]`; steps 2 and 11 of a packet's path).
//!
//! A *peer* ([`crate::peer`]) is another endpoint in one incarnation: address, cookies, path. A
//! *session* is one-to-one between two endpoints, with a client and a server side (E6); all
//! sessions between the same two endpoints share the peer, and so share frames.

mod admission;
mod connect;
mod control;
mod evict;
mod handshake;
mod heartbeat;
mod id;
mod idle;
mod lost;
mod party;
mod quota;
pub(crate) mod room;
mod shares;
mod slots;
mod table;

use std::collections::VecDeque;

use courser_buf::MsgBuf;

pub use connect::{
    ConnectAccept, ConnectError, ConnectOffer, ConnectOver, ConnectRefuseReason, ConnectRequest,
    Dialed, EndpointRef, Established, Evicted, InvalidField, RemoteSession, Schemes,
};
pub use control::{
    CONTROL_GREETING, CONTROL_MAX, CONTROL_PREAMBLE, ControlDecoder, ControlError, ControlMsg,
    ControlRefusal, HostIdentity,
};
pub use heartbeat::{Beat, Heartbeat, Silence};
pub use id::{IdleSession, SessionId};
pub(crate) use lost::Cause;
pub(crate) use quota::Quotas;
pub(crate) use shares::Memory;
pub(crate) use slots::{HOT as SLOTS_HOT, Slots};
pub(crate) use table::Sessions;

use crate::credits::SessionCredits;
use crate::loss::Recovery;
use crate::oneway::{Incoming, Outgoing};
use crate::slot::{ClientSlot, ServerSlot};
use room::AwaitedRoom;

/// State of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SessionState {
    /// The handshake is in progress; calls wait.
    Connecting,
    /// Calls are sent.
    Connected,
    /// Ended, failed, or nonexistent.
    Gone,
}

/// A call that waits for a slot or for the handshake.
#[derive(Debug)]
pub(crate) struct QueuedCall<C> {
    pub(crate) req_type: u16,
    pub(crate) req: MsgBuf,
    pub(crate) cont: C,
    /// Sequence number; ascending in the queue.
    pub(crate) seq: u64,
    /// Time of the call, ns.
    pub(crate) queued_ns: u64,
    /// Its deadline, ns; `u64::MAX`: none.
    pub(crate) expires_ns: u64,
    /// It carries a one-way message.
    pub(crate) one_way: bool,
}

/// The client side of a session.
///
/// # Invariants
/// 1. `credits` left + the slots' credits in flight = C (E33).
/// 2. A slot with a call has a timer that expires no later than its next check is due.
/// 3. A session with awake slots, which may become idle, has an idle timer.
///
/// In order of use: a small RPC accesses the first line only.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ClientSession<C> {
    pub(crate) generation: u32,
    pub(crate) peer: u32,
    /// The server's number for this session.
    pub(crate) remote: u32,
    pub(crate) credits: SessionCredits,
    /// Bit per free slot.
    pub(crate) free: u32,
    /// Bit per slot that waits for credits.
    pub(crate) stalled: u32,
    most_in_a_packet: u16,
    pub(crate) state: SessionState,
    waits: bool,
    pub(crate) slots: Slots<ClientSlot<C>>,
    /// Parameters agreed at connect, and the control connection.
    pub(crate) agreed: Agreed,
    /// The session waits for room in the credit pool of its peer.
    pub(crate) waits_for_room: bool,
    /// The idle timer of the session is set.
    pub(crate) idle_timed: bool,
    /// The application waits for room.
    awaited: AwaitedRoom,
    /// The first slot of its next turn, modulo 32.
    pub(crate) next_in_turn: u8,
    counters: ClientCounters,
    pub(crate) queue_times: QueueTimes,
    /// One-way messages that were not acknowledged; `None` until the first.
    pub(crate) outgoing: Option<Box<Outgoing>>,
    /// See [`ClientSession::with_queue`].
    pub(crate) queue: VecDeque<QueuedCall<C>>,
}

/// Parameters that both sides agreed on at connect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Agreed {
    /// The control connection of the session.
    pub(crate) control: u64,
    /// Number of the first request of slot 0.
    pub(crate) first_req_num: u32,
    pub(crate) max_msg_size: u32,
    /// Large messages leave in steps of this many packets.
    pub(crate) quantum: u16,
    pub(crate) data_per_packet: u16,
    pub(crate) recovery: Recovery,
}

/// Timer of the queue of calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueTimes {
    /// No call in the queue expires earlier, ns.
    pub(crate) expires_ns: u64,
    /// The earliest timer of the queue that is set; `u64::MAX`: none.
    pub(crate) timer_ns: u64,
}

/// Counters of loss recovery of a client session. Packed, so that a session has 192 bytes.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, packed(4))]
struct ClientCounters {
    /// Timeouts that rolled a request back, modulo 2^32.
    rollbacks: u32,
    /// Packets retransmitted because of timeouts.
    retransmitted: u64,
}

const _: () = {
    use std::mem::offset_of;
    let slots = [offset_of!(ClientSession<u64>, slots), offset_of!(ServerSession, slots)];
    let tag = align_of::<ClientSession<u64>>();
    assert!(
        tag + slots[0] + SLOTS_HOT <= 64 && tag + slots[1] + SLOTS_HOT <= 64,
        "found in one line"
    );
};

impl<C> ClientSession<C> {
    /// Calls put on slots, modulo [`REQUESTS_MODULO`].
    pub(crate) fn requests(&self) -> u32 {
        requests(self.agreed.first_req_num, &self.slots, |slot| slot.req_num)
    }

    /// Counts packets that were sent again.
    pub(crate) fn on_retransmitted(&mut self, packets: u64) {
        self.counters.retransmitted += packets;
    }

    /// Counts a timeout that rolled a request back.
    pub(crate) fn on_rollback(&mut self) {
        self.counters.rollbacks = self.counters.rollbacks.wrapping_add(1);
    }

    /// Timeouts that rolled a request back, modulo 2^32, and packets that were sent again.
    pub(crate) fn recovery_counts(&self) -> (u32, u64) {
        (self.counters.rollbacks, self.counters.retransmitted)
    }

    /// Returns whether a call gets a slot at once, and its request of `len` bytes is one packet.
    #[inline]
    pub(crate) fn takes_single(&self, len: usize) -> bool {
        self.free != 0
            && self.state == SessionState::Connected
            && !self.waits
            && len <= self.most_in_a_packet()
    }

    /// Returns whether a call has to wait for a slot, or for the handshake.
    pub(crate) fn has_to_wait(&self) -> bool {
        self.free == 0 || self.state != SessionState::Connected || !self.queue.is_empty()
    }

    /// Returns whether there are calls in the queue, or the application waits to add some.
    #[inline]
    pub(crate) fn waits(&self) -> bool {
        self.waits
    }

    /// Largest request of one packet, bytes.
    #[inline]
    pub(crate) fn most_in_a_packet(&self) -> usize {
        self.most_in_a_packet.into()
    }

    /// Sets the agreed sizes.
    pub(crate) fn set_sizes(&mut self, data_per_packet: u16, max_msg_size: u32) {
        (self.agreed.data_per_packet, self.agreed.max_msg_size) = (data_per_packet, max_msg_size);
        self.most_in_a_packet = max_msg_size.min(data_per_packet.into()) as u16;
    }

    /// Updates the queue, and records whether it still has calls.
    #[inline]
    pub(crate) fn with_queue<R>(&mut self, f: impl FnOnce(&mut VecDeque<QueuedCall<C>>) -> R) -> R {
        let result = f(&mut self.queue);
        self.update_waits();
        result
    }

    fn update_waits(&mut self) {
        self.waits = !self.queue.is_empty() || self.awaited.any_in_calls();
    }

    /// A submission of this kind was refused, and the application waits for room.
    #[cold]
    pub(crate) fn await_room(&mut self, kind: u8) {
        self.awaited.add(kind);
        self.update_waits();
    }

    /// Returns whether the application waits for room.
    #[inline]
    pub(crate) fn awaits_room(&self) -> bool {
        self.awaited.any()
    }

    /// See [`AwaitedRoom::report`].
    pub(crate) fn report_room(&mut self, kinds: u8) -> bool {
        let notice = self.awaited.report(kinds);
        self.update_waits();
        notice
    }

    /// See [`AwaitedRoom::take_report`].
    pub(crate) fn take_report(&mut self) -> Option<bool> {
        self.awaited.take_report()
    }

    /// Returns whether it has failed, and was not closed by the application yet: only its number is
    /// kept.
    pub(crate) fn has_failed(&self) -> bool {
        self.state == SessionState::Gone
    }
}

/// The server side of a session. In order of use, as the client's.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ServerSession {
    pub(crate) generation: u32,
    pub(crate) peer: u32,
    /// The client's number for this session.
    pub(crate) remote: u32,
    pub(crate) credit_limit: u32,
    /// Largest message that both sides accept.
    pub(crate) max_msg_size: u32,
    /// Index of the client process in the quota table.
    pub(crate) quota: u32,
    pub(crate) data_per_packet: u16,
    pub(crate) recovery: Recovery,
    /// A slot has had a preallocated buffer since they were awake.
    pub(crate) keeps_buffers: bool,
    pub(crate) slots: Slots<ServerSlot>,
    /// Number of the first request of slot 0.
    pub(crate) first_req_num: u32,
    /// Retransmitted responses.
    pub(crate) resent: u64,
    /// Time of the connect, ns.
    pub(crate) accepted_ns: u64,
    /// Number of the client endpoint in its nexus.
    pub(crate) client_index: u16,
    /// One-way messages that have arrived; `None` until the first.
    pub(crate) incoming: Option<Box<Incoming>>,
}

impl ServerSession {
    /// Returns whether no packet of a request has arrived.
    pub(crate) fn is_unused(&self) -> bool {
        self.slots.are_asleep() && self.requests() == 0 && self.incoming.is_none()
    }

    /// Requests of which a packet has arrived, modulo [`REQUESTS_MODULO`].
    pub(crate) fn requests(&self) -> u32 {
        requests(self.first_req_num, &self.slots, |slot| slot.req_num)
    }
}

/// [`crate::SessionStats::requests`] counts modulo this: 2^32 numbers over at most 32 slots.
const REQUESTS_MODULO: u32 = 1 << 27;

/// Requests started on slots; the first one of slot 0 had the number `first`.
fn requests<S>(first: u32, slots: &Slots<S>, number: impl Fn(&S) -> u32) -> u32 {
    let step = slots.count();
    let begun = |(slot, now): (u32, u32)| {
        let before_first = first.wrapping_add(slot).wrapping_sub(step);
        now.wrapping_sub(before_first) / step
    };
    let sum = (0..).zip(slots.numbers(number)).map(begun).fold(0, u32::wrapping_add);
    sum % REQUESTS_MODULO
}

/// A server session whose client is gone while handlers still work for it (E68). It has no buffers.
/// It counts as a session until the last handler has replied, so that reconnecting clients cannot
/// accumulate work without limit.
#[derive(Debug)]
pub(crate) struct Draining {
    pub(crate) generation: u32,
    pub(crate) quota: u32,
    /// Slot and number of each request that is still with its handler.
    pub(crate) executing: Vec<(u8, u32)>,
}

/// An entry of the session table. The discriminant is in the most used cache line.
#[derive(Debug)]
#[repr(u8, align(64))]
pub(crate) enum Session<C> {
    /// Free; the next session here gets this generation.
    Vacant { generation: u32 },
    /// The client side of a session.
    Client(ClientSession<C>),
    /// The server side of a session.
    Server(ServerSession),
    /// A session whose client is gone; replies are discarded.
    Draining(Draining),
}

impl<C> Session<C> {
    /// The generation of a session that has not ended.
    #[inline]
    pub(crate) fn generation(&self) -> Option<u32> {
        match self {
            Session::Client(s) => Some(s.generation),
            Session::Server(s) => Some(s.generation),
            Session::Vacant { .. } | Session::Draining(_) => None,
        }
    }
}

impl<C> ClientSession<C> {
    /// Checks the invariants; for debug builds and simulations.
    pub(crate) fn check(&self) {
        let mut in_flight = 0;
        if self.slots.are_asleep() {
            assert_eq!(
                self.free.count_ones(),
                self.slots.count(),
                "a slot is asleep during a call"
            );
        }
        for (i, s) in self.slots.iter().enumerate() {
            s.check();
            let taken = s.active || s.quarantined;
            assert_eq!(taken, self.free & 1 << i == 0, "slot {i}: free bit");
            in_flight += s.in_flight();
            assert!(!s.active || s.is_timed() || self.has_failed(), "invariant 2: slot {i}");
        }
        assert!(self.slots.are_asleep() || self.idle_timed || self.has_failed(), "invariant 3");
        assert_eq!(self.waits, !self.queue.is_empty() || self.awaited.any_in_calls());
        assert!(self.queue.iter().all(|c| c.expires_ns >= self.queue_times.expires_ns));
        assert!(self.queue_times.timer_ns <= self.queue_times.expires_ns || self.has_failed());
        assert_eq!(self.credits.left() + in_flight, self.credits.limit(), "invariant 1");
        if let Some(outgoing) = &self.outgoing {
            outgoing.check();
        }
    }
}

#[cfg(test)]
mod tests {
    use courser_buf::Runs;

    use super::*;

    #[test]
    fn requests_are_counted_by_number_awake_or_asleep_and_across_the_wrap() {
        // Four slots that start with u32::MAX - 1, u32::MAX, 0 and 1.
        let first = u32::MAX - 1;
        let at = |done: [u32; 4], asleep: bool| {
            let mut slots: Slots<u32> = Slots::new(4, first.wrapping_sub(4));
            slots.wake(&mut Runs::new(), |n| n);
            slots.iter_mut().zip(done).for_each(|(s, n)| *s = s.wrapping_add(n.wrapping_mul(4)));
            if asleep {
                slots.sleep(|n| *n);
            }
            requests(first, &slots, |n| *n)
        };
        for asleep in [false, true] {
            assert_eq!(at([0, 0, 0, 0], asleep), 0);
            assert_eq!(at([1, 0, 0, 2], asleep), 3);
            assert_eq!(at([REQUESTS_MODULO, 5, 0, 0], asleep), 5);
            // Each slot's own count wraps at 2^30 here; the difference of the sums stays correct.
            let (before, after) = ((1 << 30) - 1, 1 << 30);
            let difference =
                at([after, 0, 0, 0], asleep).wrapping_sub(at([before, 0, 0, 0], asleep));
            assert_eq!(difference % REQUESTS_MODULO, 1);
        }
    }
}
