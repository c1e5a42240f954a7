//! Credits and credit pools: all spending and releasing, and the queue of sessions that wait for
//! credits (E33, E34, E36).
//!
//! A packet of a client costs two things: one of its session's C credits ([`SessionCredits`]),
//! which limit the packets in flight of one session `[eRPC section 4.3.1]`; and room in the receive
//! queues of the two endpoints, which all their sessions share: the [`CreditPool`]. Room is counted
//! in units of a small frame, since a receive queue holds many more small frames than large ones. A
//! packet with more data than [`Room::small_data`] costs [`CreditPool::units_per_packet`]. A small
//! request costs the expected size of its response, one unit where all responses are small.
//!
//! Congestion control limits the pool: of the units that are not in flight it withholds those above
//! its window, and a pacer delays the turn of waiting sessions.
//!
//! # State at both sides
//! The server answers each connect with the current pool, `stated`. Each side drops sessions when
//! it learns of their end, together with the part of the pool above the sum of its sessions' C. The
//! client drops a session first, and the server states a new number with each further one, so the
//! client's pool never exceeds the server's. What is in flight may exceed a pool that has shrunk,
//! until it returns. The wire counts pools in packets of full size.
//!
//! # Waiting
//! A session that has packets to send while the pool is empty waits in a queue. While a session
//! waits, released room is reserved for the queue: in its turn the session at the head takes up to
//! C units. If that was too little, it is queued again: at the end, or, if it could send nothing,
//! at the head, and the next turn starts when there is as much room as it lacked. Round robin, so
//! no session starves, and a turn costs the same with any number of sessions.
//!
//! A large request that may not leave in its turn, since the host's own transmit queue is long
//! (`tx::host`), waits in a second queue, and other sessions have their turns. There its turn is that of
//! the host's queue, with all reserved room. If that is not enough for a packet, since packets of others
//! have taken it, its session is first in the pool again, and from its next turn on room for one packet
//! is kept.
//!
//! # Invariants
//! 1. Room in the pool and room of packets in flight add up to the pool's limit and its excess
//!    (checked by `Endpoint::check`, for all sessions of a peer).
//! 2. Room is reserved only while a session waits, and available only while none does.
//! 3. While as much is reserved as the head of the queue is known to lack, the transmit queue has
//!    the peer's turn.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::mutant::{self, Mutant};
use crate::session::SessionId;

/// The credits of one client session.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SessionCredits {
    left: u32,
    limit: u32,
}

impl SessionCredits {
    pub(crate) fn new(limit: u32) -> Self {
        SessionCredits { left: limit, limit }
    }

    #[inline]
    pub(crate) fn left(self) -> u32 {
        self.left
    }

    /// C.
    #[inline]
    pub(crate) fn limit(self) -> u32 {
        self.limit
    }

    /// Packets in flight.
    #[inline]
    pub(crate) fn in_flight(self) -> u32 {
        self.limit.wrapping_sub(self.left)
    }

    /// Packets are no longer in flight: acknowledged, lost or cancelled.
    #[inline]
    pub(crate) fn release(&mut self, packets: u32) {
        self.left += packets;
    }
}

/// Room that packets take, agreed with a peer at connect.
///
/// A client proposes at most what its receive queue allows, and the server grants at most that,
/// within its own queue. It applies to all sessions between the two.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Room {
    /// Packets of at most this many data bytes take one unit.
    pub small_data: u16,
    /// Units of any other packet: 1 to 65,535.
    pub units_per_packet: u16,
}

impl Room {
    /// Every packet takes the room of a full-sized one.
    pub const UNIFORM: Room = Room { small_data: 0, units_per_packet: 1 };
}

/// Responses over which their size is averaged.
const RESPONSES: u32 = 16;

/// Session, slot, and packets left of a request.
pub(crate) type AtHostEntry = (SessionId, u8, u32);

/// Requests that had their turn in the pool and wait for the host's transmit queue.
#[derive(Debug, Default)]
struct AtHost {
    /// In the order of their turns. Entries of ended sessions stay until their turn.
    requests: VecDeque<AtHostEntry>,
    /// The host's transmit queue has an entry for them.
    queued: bool,
    /// The last one that had its turn there lacked room: room is kept for the next one.
    keeps_room: bool,
}

/// The pool of one peer for the requests of this endpoint, and the pool that this endpoint has
/// granted to the peer.
#[derive(Debug)]
pub(crate) struct CreditPool {
    /// Units that any session may take.
    available: u32,
    /// Units for the waiting sessions.
    reserved: u32,
    room: Room,
    /// Decaying average of a response's units above one, times [`RESPONSES`]. 0: all recent
    /// responses were small.
    extra_units: u32,
    /// Expected units of a response: one plus twice that average, since responses of different
    /// sizes arrive in any order.
    response_units: u16,
    /// The transmit queue has the turn of the waiting sessions.
    turn_queued: bool,
    /// Waiting sessions, the next one at the front. Entries of ended sessions stay until they reach
    /// the front.
    waiters: VecDeque<SessionId>,
    /// Units that the session at the front lacked; 1: not known.
    lacked: u16,
    /// Units available when the turn began; `u32::MAX`: no turn is in progress.
    turn_units: u32,
    /// Entries of live sessions in `waiters`, and all in `at_host`.
    waiting: u32,
    /// `None` until the first request waits there.
    at_host: Option<Box<AtHost>>,
    /// The whole pool in packets of full size, including those in flight.
    limit: u32,
    /// Units that may be in flight by congestion control; `u32::MAX`: all of the pool.
    window: u32,
    /// Units that are not in flight and that the window withholds.
    withheld: u32,
    /// Units in flight beyond the pool, which has shrunk meanwhile: they do not return to it. While
    /// there are some, there is no room, and `window` is not `u32::MAX`.
    excess: u32,
    /// The pacer delays the next turn.
    paced: bool,
    /// The pool that the server stated last, packets.
    stated: u32,
    /// Sum of the C of this endpoint's client sessions with the peer; of a tentative peer, the
    /// requested C.
    caps: u64,
    /// The peer's pool as a client of this endpoint, packets.
    granted: u32,
    /// Sum of the C of the peer's sessions as a client of this endpoint.
    granted_caps: u64,
}

impl CreditPool {
    pub(crate) fn new() -> Self {
        CreditPool {
            available: 0,
            reserved: 0,
            room: Room::UNIFORM,
            extra_units: 0,
            response_units: 1,
            turn_queued: false,
            waiters: VecDeque::new(),
            lacked: 1,
            turn_units: u32::MAX,
            waiting: 0,
            at_host: None,
            limit: 0,
            window: u32::MAX,
            withheld: 0,
            excess: 0,
            paced: false,
            stated: 0,
            caps: 0,
            granted: 0,
            granted_caps: 0,
        }
    }

    // ---- spending -----------------------------------------------------------------------------

    /// Units of a message of one packet: the larger one of the request and of its expected
    /// response.
    #[inline]
    pub(crate) fn units_of(&self, request_bytes: usize) -> u16 {
        let small = request_bytes <= usize::from(self.room.small_data)
            || mutant::is_on(Mutant::LargePacketsSmall);
        if small { self.response_units } else { self.room.units_per_packet }
    }

    /// Units of a message of one packet that has no response.
    pub(crate) fn units_of_message(&self, bytes: usize) -> u16 {
        let small = bytes <= usize::from(self.room.small_data);
        if small { 1 } else { self.room.units_per_packet }
    }

    /// Units of any packet.
    #[inline]
    pub(crate) fn units_per_packet(&self) -> u16 {
        if mutant::is_on(Mutant::LargePacketsSmall) {
            return 1;
        }
        self.room.units_per_packet
    }

    /// Packets of `units` each that a session may send now.
    #[inline]
    pub(crate) fn grant(&self, session: SessionCredits, units: u16) -> u32 {
        if units == 1 {
            return session.left.min(self.available);
        }
        session.left.min(self.available / u32::from(units.max(1)))
    }

    /// Spends at most the result of [`CreditPool::grant`]. The only place that spends credits.
    #[inline]
    pub(crate) fn spend(&mut self, session: &mut SessionCredits, packets: u32, units: u16) {
        session.left -= packets;
        self.available -= packets * u32::from(units);
    }

    /// Returns units to the pool. `true`: the caller has to queue the turn of the waiting sessions.
    #[inline(always)]
    #[must_use]
    pub(crate) fn release(&mut self, units: u32) -> bool {
        // While the window is not used up, units that return may be spent again.
        let is_limited = self.window != u32::MAX && (self.excess > 0 || self.available == 0);
        if self.waiting == 0 && !is_limited {
            self.available += units;
            return false;
        }
        self.release_rare(units)
    }

    #[cold]
    fn release_rare(&mut self, units: u32) -> bool {
        let gone = units.min(self.excess);
        self.excess -= gone;
        self.withheld += units - gone;
        let owes_turn = self.apply_window();
        self.note_excess();
        owes_turn
    }

    /// Sets the units that may be in flight, at least those of a packet; `u32::MAX`: all of the
    /// pool. `true`: the caller has to queue the turn of the waiting sessions.
    #[must_use]
    pub(crate) fn set_window(&mut self, units: u32) -> bool {
        let whole = self.units(self.limit);
        self.window = match units.max(self.room.units_per_packet.into()) {
            units if units >= whole => u32::MAX,
            units => units,
        };
        self.note_excess();
        self.apply_window()
    }

    /// While units are in flight beyond the pool, `window` makes [`CreditPool::release`] look.
    fn note_excess(&mut self) {
        if self.excess > 0 {
            self.window = self.window.min(u32::MAX - 1);
        } else if self.window == u32::MAX - 1 {
            self.window = u32::MAX;
        }
    }

    /// Moves units between those that may be spent and those that the window withholds.
    fn apply_window(&mut self) -> bool {
        let room = self.left_units();
        let in_flight = self.in_flight_units();
        let usable = self.window.saturating_sub(in_flight).min(room);
        self.withheld = room - usable;
        let spendable = self.available + self.reserved;
        if usable >= spendable {
            let more = usable - spendable;
            if self.is_awaited() {
                return self.reserve(more);
            }
            self.available += more;
        } else {
            let less = spendable - usable;
            let of_available = less.min(self.available);
            self.available -= of_available;
            self.reserved -= less - of_available;
        }
        false
    }

    /// Units of the pool that are in flight.
    pub(crate) fn in_flight_units(&self) -> u32 {
        (self.units(self.limit) + self.excess).saturating_sub(self.left_units())
    }

    /// Units of a full-sized packet, or the given part of it.
    pub(crate) fn window_units(&self, parts: u64, part: u64) -> u32 {
        if parts == u64::MAX {
            return u32::MAX;
        }
        let units = parts.saturating_mul(self.room.units_per_packet.into()) / part;
        units.min(u64::from(u32::MAX - 1)) as u32
    }

    /// The next turn waits for the pacer. Returns whether it did not already.
    pub(crate) fn begin_pacing(&mut self) -> bool {
        !std::mem::replace(&mut self.paced, true)
    }

    /// The pacer allows the next turn. `true`: the caller has to queue it.
    #[must_use]
    pub(crate) fn end_pacing(&mut self) -> bool {
        self.paced = false;
        self.waiting > 0 && self.reserve(0)
    }

    /// Returns whether sessions wait for the pacer, or for their turn after such a wait.
    pub(crate) fn waits_for_departure(&self) -> bool {
        self.waiting > 0 && (self.paced || self.turn_queued)
    }

    fn reserve(&mut self, units: u32) -> bool {
        self.reserved += units;
        self.has_turn() && !std::mem::replace(&mut self.turn_queued, true)
    }

    /// Returns whether there is enough room for a turn to send a packet. When nothing is in flight
    /// the whole pool is reserved, so a turn always comes.
    fn has_turn(&self) -> bool {
        let at_host = self.at_host.as_ref().map_or(0, |at_host| at_host.requests.len());
        self.waiting as usize > at_host
            && self.reserved >= u32::from(self.lacked) + self.kept()
            && !self.paced
    }

    /// Units of the reserved room that are kept for the request which is next at the host's queue.
    fn kept(&self) -> u32 {
        match &self.at_host {
            Some(at_host) if at_host.keeps_room && !at_host.requests.is_empty() => {
                self.room.units_per_packet.into()
            }
            _ => 0,
        }
    }

    /// A response of one packet arrived: updates the expected size.
    #[inline]
    pub(crate) fn on_response(&mut self, bytes: usize) {
        let large = bytes > usize::from(self.room.small_data) && self.room.units_per_packet > 1;
        if large || self.extra_units > 0 {
            self.average(bytes);
        }
    }

    fn average(&mut self, bytes: usize) {
        self.extra_units -= self.extra_units.div_ceil(RESPONSES);
        if bytes > usize::from(self.room.small_data) {
            self.extra_units += u32::from(self.room.units_per_packet) - 1;
        }
        self.expect_responses();
    }

    fn expect_responses(&mut self) {
        let units = 1 + (2 * self.extra_units).div_ceil(RESPONSES);
        let units = units.min(self.room.units_per_packet.into()) as u16;
        if units < self.response_units {
            self.lacked = 1; // it may lack less now; `release` follows
        }
        self.response_units = units;
    }

    // ---- waiting ------------------------------------------------------------------------------

    /// Returns whether sessions wait.
    #[inline]
    pub(crate) fn is_awaited(&self) -> bool {
        self.waiting > 0
    }

    /// Queues a session that lacked room for a packet of `units` units: at the end, or at the front
    /// if it could send nothing in its turn. `true`: the caller has to queue the turn.
    #[must_use]
    pub(crate) fn wait(&mut self, session: SessionId, units: u16) -> bool {
        self.waiting += 1;
        if self.waiters.is_empty() || self.available == self.turn_units {
            self.waiters.push_front(session);
            self.lacked = units;
        } else {
            self.waiters.push_back(session);
        }
        // No session overtakes the queue.
        let available = std::mem::take(&mut self.available);
        self.reserve(available)
    }

    /// Queues a session at the front: its turn was cut short, and ends with
    /// [`CreditPool::end_turn`].
    pub(crate) fn wait_first(&mut self, session: SessionId) {
        self.waiting += 1;
        self.waiters.push_front(session);
        self.lacked = 1;
    }

    /// A session has ended, or has less to send: the one at the front may lack less than recorded.
    /// `true`: the caller has to queue the turn.
    #[must_use]
    pub(crate) fn retry_turn(&mut self) -> bool {
        self.lacked = 1;
        self.waiting > 0 && self.reserve(0)
    }

    /// A waiting session no longer waits.
    pub(crate) fn wait_no_more(&mut self) {
        self.waiting -= 1;
        if self.waiting == 0 {
            self.waiters.clear();
            self.available += std::mem::take(&mut self.reserved);
        }
    }

    /// Takes the turn from the transmit queue. Returns the oldest entry of the queue, if there is
    /// room for its session; the session may have ended.
    pub(crate) fn next_waiter(&mut self) -> Option<SessionId> {
        self.turn_queued = false;
        if !self.has_turn() {
            return None;
        }
        self.lacked = 1;
        self.waiters.pop_front()
    }

    /// Makes all reserved room available to one session, until [`CreditPool::end_turn`].
    pub(crate) fn begin_turn(&mut self) {
        let kept = self.kept().min(self.reserved);
        self.available += std::mem::replace(&mut self.reserved, kept) - kept;
        self.turn_units = self.available;
    }

    /// In the turn of its session a request waits for the host's transmit queue. `true`: the caller has
    /// to add the pool to that.
    #[must_use]
    pub(crate) fn wait_for_host(&mut self, request: AtHostEntry) -> bool {
        self.waiting += 1;
        let at_host = self.at_host.get_or_insert_default();
        at_host.requests.push_back(request);
        !std::mem::replace(&mut at_host.queued, true)
    }

    /// A request has its turn at the host's transmit queue. Makes all reserved room available, until
    /// [`CreditPool::end_turn`].
    pub(crate) fn begin_host_turn(&mut self) {
        self.available += std::mem::take(&mut self.reserved);
        self.turn_units = self.available;
    }

    /// The pool has its turn at the host's transmit queue. Takes the request that waits first.
    pub(crate) fn next_at_host(&mut self) -> Option<AtHostEntry> {
        let at_host = self.at_host.as_mut()?;
        at_host.queued = false;
        let next = at_host.requests.pop_front()?;
        self.wait_no_more();
        Some(next)
    }

    /// Puts it back, since it had nothing of its turn.
    pub(crate) fn first_at_host(&mut self, request: AtHostEntry) {
        self.waiting += 1;
        let at_host = self.at_host.get_or_insert_default();
        at_host.requests.push_front(request);
        at_host.queued = true;
    }

    /// Packets left of the request that is next, if the caller has to add the pool to the host's queue.
    pub(crate) fn continue_at_host(&mut self) -> Option<u32> {
        let at_host = self.at_host.as_mut().filter(|at_host| !at_host.queued)?;
        let next = at_host.requests.front().map(|&(.., left)| left);
        at_host.queued = next.is_some();
        next
    }

    /// A request had its turn at the host's queue and was not `sent`, for lack of room.
    pub(crate) fn keep_room(&mut self, sent: bool) {
        if let Some(at_host) = &mut self.at_host {
            at_host.keeps_room = !sent;
        }
    }

    /// Ends a session's turn. Its unused units are reserved for the next session. `true`: the
    /// caller has to queue the next turn.
    #[must_use]
    pub(crate) fn end_turn(&mut self) -> bool {
        self.turn_units = u32::MAX;
        if self.waiting == 0 {
            return false;
        }
        let left = std::mem::take(&mut self.available);
        self.reserve(left)
    }

    // ---- size ---------------------------------------------------------------------------------

    /// Sets the room agreed with the peer, before anything is spent.
    pub(crate) fn set_room(&mut self, room: Room) {
        debug_assert_eq!(self.limit, 0, "in use");
        self.room = room;
        // Until small responses have arrived, responses may be as large as a packet.
        self.extra_units = RESPONSES * (u32::from(room.units_per_packet) - 1);
        self.expect_responses();
    }

    pub(crate) fn room(&self) -> Room {
        self.room
    }

    /// The whole pool in packets of full size, including those in flight.
    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    /// Units that are not in flight.
    pub(crate) fn left_units(&self) -> u32 {
        self.available + self.reserved + self.withheld
    }

    /// Packets of full size that still fit.
    pub(crate) fn left(&self) -> u32 {
        self.left_units() / u32::from(self.room.units_per_packet)
    }

    /// Returns whether a part of it is in flight.
    pub(crate) fn is_used(&self) -> bool {
        self.left_units() < self.units(self.limit)
    }

    fn units(&self, packets: u32) -> u32 {
        packets * u32::from(self.room.units_per_packet)
    }

    pub(crate) fn granted(&self) -> u32 {
        self.granted
    }

    /// The requested C of a tentative peer's session.
    pub(crate) fn asked(&self) -> u32 {
        self.caps as u32
    }

    /// A connecting session with C = `credits` reserves room for `pool` packets, under the name of
    /// its tentative peer.
    pub(crate) fn reserve_tentatively(&mut self, credits: u32, pool: u32) {
        (self.limit, self.caps) = (pool, credits.into());
    }

    /// Releases that reservation.
    pub(crate) fn unreserve(&mut self) -> u32 {
        self.caps = 0;
        std::mem::take(&mut self.limit)
    }

    /// A client session with C = `credits` joins; the server states a pool of `stated` packets.
    /// Returns the pool before and after, in packets.
    pub(crate) fn join(&mut self, credits: u32, stated: u32) -> (u32, u32) {
        self.caps += u64::from(credits);
        self.stated = stated;
        self.resize()
    }

    /// A client session with C = `credits` leaves, with none of it in flight. Returns the pool before
    /// and after.
    pub(crate) fn leave(&mut self, credits: u32) -> (u32, u32) {
        self.caps -= u64::from(credits);
        self.resize()
    }

    /// Limits the pool to the sum of the remaining sessions' C. More may be in flight, as messages
    /// have a C of their own: when they have returned, the pool has its new size.
    fn resize(&mut self) -> (u32, u32) {
        let before = self.limit;
        self.limit = u64::from(self.stated).min(self.caps) as u32;
        if self.limit >= before {
            let more = self.units(self.limit - before);
            let gone = more.min(self.excess);
            self.excess -= gone;
            let more = more - gone;
            *if self.is_awaited() { &mut self.reserved } else { &mut self.available } += more;
        } else {
            let less = self.units(before - self.limit);
            let of_withheld = less.min(self.withheld);
            let of_available = (less - of_withheld).min(self.available);
            self.withheld -= of_withheld;
            self.available -= of_available;
            let rest = less - of_withheld - of_available;
            let of_reserved = rest.min(self.reserved);
            self.reserved -= of_reserved;
            self.excess += rest - of_reserved;
        }
        self.note_excess();
        (before, self.limit)
    }

    /// The server side of a session with C = `credits` starts; the peer's pool grows by `packets`.
    /// Returns the pool to be stated.
    pub(crate) fn grant_to_peer(&mut self, credits: u32, packets: u32) -> u32 {
        self.granted_caps += u64::from(credits);
        self.granted += packets;
        self.granted
    }

    /// The server side of a session with C = `credits` ends. Returns the decrease of the peer's
    /// pool in packets.
    pub(crate) fn ungrant(&mut self, credits: u32) -> u32 {
        self.granted_caps -= u64::from(credits);
        let keeps = u64::from(self.granted).min(self.granted_caps) as u32;
        let less = self.granted - keeps;
        self.granted = keeps;
        less
    }

    /// Checks invariants 1 to 3 with the units in flight and the sum of C of the peer's client
    /// sessions.
    pub(crate) fn check(&self, in_flight: u64, caps: u64) {
        assert!(self.window != u32::MAX || self.withheld == 0, "room withheld without a window");
        assert!(self.is_awaited() || self.reserved == 0, "room reserved and no session waits");
        assert!(!self.is_awaited() || self.available == 0, "room available while sessions wait");
        assert!(!self.is_awaited() || !self.has_turn() || self.turn_queued, "no turn queued");
        assert_eq!(caps, self.caps, "the sessions of the pool");
        let left = u64::from(self.left_units());
        let whole = u64::from(self.units(self.limit) + self.excess);
        assert_eq!(left + in_flight, whole, "the pool");
        assert!(self.excess == 0 || left == 0, "room while more than the pool is in flight");
        assert!(self.excess == 0 || self.window != u32::MAX, "what returns is counted");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(index: u32) -> SessionId {
        SessionId { index, generation: 0 }
    }

    fn pool(packets: u32, room: Room) -> CreditPool {
        let mut p = CreditPool::new();
        p.set_room(room);
        p.join(packets, packets);
        p
    }

    #[test]
    fn small_packets_take_one_unit_when_responses_are_small_too() {
        let room = Room { small_data: 100, units_per_packet: 16 };
        let mut p = pool(10, room);
        assert_eq!(p.units_of(32), 16, "no response has arrived yet");
        (0..400).for_each(|_| p.on_response(100));
        assert_eq!((p.units_of(100), p.units_of(101)), (1, 16));
        let mut s = SessionCredits::new(200);
        assert_eq!((p.grant(s, 1), p.grant(s, 16)), (160, 10));
        p.spend(&mut s, 150, 1);
        assert_eq!((p.grant(s, 1), p.grant(s, 16), p.left()), (10, 0, 0));
        assert!(p.is_used() && !p.release(150) && !p.is_used());
    }

    #[test]
    fn units_that_return_may_be_spent_up_to_the_window() {
        for window in 1..12 {
            let (mut p, mut s) = (pool(10, Room::UNIFORM), SessionCredits::new(20));
            assert!(!p.set_window(window));
            for narrower in [window, window.div_ceil(2), window] {
                let spent = p.grant(s, 1);
                p.spend(&mut s, spent, 1);
                assert!(!p.set_window(narrower)); // fewer than are in flight
                for left in (0..spent).rev() {
                    assert!(!p.release(1));
                    s.release(1);
                    assert_eq!(p.in_flight_units(), left);
                    let most = narrower.min(10);
                    assert_eq!(p.grant(s, 1), most.saturating_sub(left), "{narrower} {left}");
                }
            }
        }
    }

    #[test]
    fn some_large_responses_make_every_packet_take_twice_their_share() {
        let mut p = pool(10, Room { small_data: 100, units_per_packet: 16 });
        for (one_in, least, most) in [(64, 1, 3), (16, 1, 5), (4, 7, 10), (1, 16, 16)] {
            for response in 1..=2_000 {
                p.on_response(if response % one_in == 0 { 101 } else { 100 });
                let units = p.units_of(32);
                assert!(
                    response < 1_000 || (least..=most).contains(&units),
                    "1 in {one_in}: {units}"
                );
            }
        }
        (0..400).for_each(|_| p.on_response(100));
        assert_eq!(p.units_of(32), 1, "forgotten");
    }

    #[test]
    fn a_turn_starts_when_there_is_room_for_the_longest_waiting_packet() {
        let mut p = pool(1, Room { small_data: 100, units_per_packet: 16 });
        let mut s = SessionCredits::new(32);
        p.spend(&mut s, 16, 1);
        assert!(!p.wait(id(7), 1) && !p.wait(id(8), 16) && !p.wait(id(9), 1));
        assert!(p.release(2), "room for a small packet");
        assert_eq!(p.next_waiter(), Some(id(7)));
        p.wait_no_more();
        p.begin_turn();
        s.release(16);
        p.spend(&mut s, 1, 1);
        assert!(p.end_turn(), "the rest is for the next session");
        assert_eq!(p.next_waiter(), Some(id(8)));
        p.wait_no_more();
        p.begin_turn();
        assert!(!p.wait(id(8), 16), "too little, and it stays the first");
        assert!(!p.end_turn() && !p.release(14));
        assert!(p.release(1));
        assert_eq!(p.next_waiter(), Some(id(8)));
    }

    #[test]
    fn a_session_that_leaves_does_not_block_the_queue() {
        let mut p = pool(1, Room { small_data: 100, units_per_packet: 16 });
        let mut s = SessionCredits::new(32);
        p.spend(&mut s, 2, 1);
        assert!(!p.wait(id(7), 16) && !p.wait(id(8), 1), "14 units are not enough for the first");
        p.wait_no_more(); // the first has ended; its entry stays
        assert!(p.retry_turn() && !p.retry_turn());
        assert_eq!((p.next_waiter(), p.next_waiter()), (Some(id(7)), Some(id(8))));
    }

    #[test]
    fn room_is_reserved_while_a_session_waits_and_returns_when_none_does() {
        let mut p = pool(4, Room::UNIFORM);
        let mut s = SessionCredits::new(4);
        p.spend(&mut s, 4, 1);
        assert!(!p.wait(id(7), 1), "no room yet");
        assert!(!p.wait(id(8), 1));
        assert!(p.release(1), "the turn is queued once");
        assert!(!p.release(1));
        assert_eq!((p.grant(s, 1), p.left()), (0, 2));
        assert_eq!(p.next_waiter(), Some(id(7)));
        p.wait_no_more();
        p.begin_turn();
        s.release(4);
        p.spend(&mut s, 1, 1);
        assert!(p.end_turn(), "the rest is reserved for the next");
        assert_eq!(p.next_waiter(), Some(id(8)));
        p.wait_no_more();
        assert_eq!((p.left_units(), p.grant(s, 1)), (1, 1));
        assert!(!p.end_turn() && p.next_waiter().is_none());
    }
}
