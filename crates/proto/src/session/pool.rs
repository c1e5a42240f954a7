//! Credits of a peer: what all sessions between two endpoints share (E34, E36, F7).
//!
//! The server of a connect says how many packets of all client sessions of that endpoint it has
//! room for: the *pool*. A session takes credits of it for its packets in flight, up to its own C,
//! and an idle one has none; so the number of sessions does not matter to the receive queue.
//!
//! # Numbers that both sides have
//! The server answers each connect with the pool as it is then, `stated`. Either side drops
//! sessions when it hears of their end, and what a pool has above the sum of its sessions' C goes
//! with them. The client is the first to drop one, and the server states a new number with each one
//! more: so the client's pool is never above the one that the server counts with.
//!
//! # Waiting
//! A session that has something to send while the pool is empty stands in line, and while one does,
//! credits that come back are kept for the line: the session at its head takes what there is, up to
//! C, and stands at its end again when that was too little. Whatever it sends, the next one is next:
//! none starves, and a turn costs the same with any number of sessions.
//!
//! # Invariants
//! 1. Credits in the pool and those of packets in flight are the pool's limit (checked by
//!    [`Endpoint::check`], for all sessions of a peer).
//! 2. Nothing is kept unless some session stands in line, and nothing is open while one does.
//! 3. While something is kept, the transmit stage has the peer's turn in its queue.
//! 4. What all pools of an endpoint have beyond one credit each is at most |RQ|; where each peer has a
//!    receive queue of its own, what those between two endpoints have.

use std::collections::BTreeMap;

use courser_buf::TxBurst;

use super::{ConnectRequest, PeerName, PeerState, Session, SessionId, SessionState};
use crate::config::Admission;
use crate::endpoint::Endpoint;
use crate::tx::{Sent, TxItem};

/// No session.
const NONE: u32 = u32::MAX;

/// The pool that this endpoint has as a client of a peer, and the one that it gave it.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Credits that any session may take.
    pub(crate) open: u32,
    /// Credits that sessions in line will take.
    kept: u32,
    /// All of them, those in flight included.
    pub(super) limit: u32,
    /// What the server has stated.
    pub(super) stated: u32,
    /// Sum of the C of this endpoint's client sessions; of a tentative peer, the C that was asked for.
    pub(super) caps: u64,
    /// Sessions in line.
    head: u32,
    tail: u32,
    /// The transmit stage has the turn of the head in its queue.
    pub(crate) has_turn: bool,
    /// The peer's pool as a client of this endpoint.
    pub(super) granted: u32,
    /// Sum of the C of its sessions.
    pub(super) granted_caps: u64,
}

/// Whose requests a pool is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Requests {
    /// This endpoint's; their answers come here.
    Own,
    /// The peer's; they come here.
    Peers,
}

impl Requests {
    fn part(self, pool: &Pool) -> u32 {
        match self {
            Requests::Own => pool.limit,
            Requests::Peers => pool.granted,
        }
    }
}

/// A session's place in its peer's line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) waits: bool,
    before: u32,
    behind: u32,
}

impl Place {
    /// Not in line.
    pub(crate) const OUT: Place = Place { waits: false, before: NONE, behind: NONE };
}

impl Pool {
    pub(super) fn new() -> Self {
        Pool {
            open: 0,
            kept: 0,
            limit: 0,
            stated: 0,
            caps: 0,
            head: NONE,
            tail: NONE,
            has_turn: false,
            granted: 0,
            granted_caps: 0,
        }
    }

    /// Whether sessions stand in line.
    #[inline]
    pub(crate) fn is_awaited(&self) -> bool {
        self.head != NONE
    }

    /// Whether some of its credits are in flight.
    pub(crate) fn is_used(&self) -> bool {
        self.left() < self.limit
    }

    /// All credits, those in flight included.
    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    /// Credits that are not in flight.
    pub(crate) fn left(&self) -> u32 {
        self.open + self.kept
    }

    /// Credits come back. `true`: a turn has to be queued.
    #[inline]
    fn take_back(&mut self, credits: u32) -> bool {
        if !self.is_awaited() {
            self.open += credits;
            return false;
        }
        self.kept += credits;
        self.kept > 0 && !std::mem::replace(&mut self.has_turn, true)
    }

    /// What the two numbers allow; gives what the pool had before. What is in flight is never more
    /// than the C of the sessions that are left.
    fn resize(&mut self) -> u32 {
        let before = self.limit;
        self.limit = u64::from(self.stated).min(self.caps) as u32;
        if self.limit >= before {
            let more = self.limit - before;
            *if self.is_awaited() { &mut self.kept } else { &mut self.open } += more;
        } else {
            let less = before - self.limit;
            let of_open = less.min(self.open);
            self.open -= of_open;
            self.kept = self.kept.saturating_sub(less - of_open);
        }
        before
    }

    /// Invariants 2 and 3.
    pub(crate) fn check(&self) {
        assert!(self.is_awaited() || self.kept == 0, "credits kept for nobody");
        assert!(!self.is_awaited() || self.open == 0, "credits open while sessions wait");
        assert!(self.kept == 0 || self.has_turn, "credits kept and no turn");
    }
}

impl<C> Endpoint<C> {
    // ---- admission ----------------------------------------------------------------------------

    /// By how much a pool, now of `pool` credits, grows with a session that may have `wanted` packets
    /// in flight; `None`: the session is refused. Whose peer is not known yet has no name.
    ///
    /// Oversubscribed, a pool grows to at most half of what the others leave, so that there is
    /// something for who comes later, and by more than `Config::plain_credits` only while there is
    /// plenty; but a peer always has one credit. In a queue that a peer has for
    /// itself nobody comes later: one half is for the requests of either side.
    pub(super) fn growth(
        &self,
        requests: Requests,
        peer: Option<PeerName>,
        pool: u32,
        wanted: u32,
    ) -> Option<u32> {
        let queue = u64::from(self.cfg.rx_queue_frames);
        let free = queue.saturating_sub(self.credits_granted);
        let has = u64::from(pool);
        let plain = u64::from(self.cfg.plain_credits);
        let wants = u64::from(wanted).min(plain.max(free / 16));
        let grows = match self.cfg.admission {
            Admission::Strict => return (u64::from(wanted) <= free).then_some(wanted),
            Admission::Oversubscribed if self.cfg.rx_queue_per_peer => {
                let have = peer.map_or(0, |name| self.pools_with(requests, name));
                (queue / 2).saturating_sub(have)
            }
            Admission::Oversubscribed => ((free + has) / 2).saturating_sub(has).min(free),
        };
        let grows = grows.min(wants) as u32;
        Some(if pool == 0 { grows.max(1) } else { grows })
    }

    /// What the pools for the requests of one side have between here and an endpoint. It is several
    /// peers here when both sides have dialed each other at the same time.
    fn pools_with(&self, requests: Requests, name: PeerName) -> u64 {
        let peers = self.known_peers.get(&name).into_iter().flatten();
        let peers = peers.filter_map(|&at| self.peers.get(at as usize)?.as_ref());
        peers.map(|p| u64::from(requests.part(&p.pool))).sum()
    }

    /// The server side of a session with this peer has C = `credits`, and its pool grows by `grows`.
    /// Gives the pool, to be stated.
    pub(super) fn grant_pool(&mut self, peer: u32, credits: u32, grows: u32) -> u32 {
        let Some(Some(p)) = self.peers.get_mut(peer as usize) else { return 0 };
        p.pool.granted_caps += u64::from(credits);
        p.pool.granted += grows;
        self.credits_granted += u64::from(grows);
        p.pool.granted
    }

    /// The server side of a session with C = `credits` has ended.
    pub(super) fn ungrant_pool(&mut self, peer: u32, credits: u32) {
        let Some(Some(p)) = self.peers.get_mut(peer as usize) else { return };
        p.pool.granted_caps -= u64::from(credits);
        let keeps = u64::from(p.pool.granted).min(p.pool.granted_caps) as u32;
        self.credits_granted -= u64::from(p.pool.granted - keeps);
        p.pool.granted = keeps;
    }

    /// A session that is being connected, with C = `credits` if its server agrees, reserves room for
    /// the answers to `pool` packets, under the name of its tentative peer.
    pub(super) fn reserve_pool(&mut self, peer: u32, credits: u32, pool: u32) {
        let Some(Some(p)) = self.peers.get_mut(peer as usize) else { return };
        (p.pool.limit, p.pool.caps) = (pool, u64::from(credits));
        self.credits_granted += u64::from(pool);
    }

    /// The server of a session that is being connected, with this request, is of the same host: it may
    /// have all of [`crate::Config::credits`], as far as there is room.
    pub fn widen(&mut self, session: SessionId, request: &mut ConnectRequest) {
        let credits = self.cfg.credits;
        if credits <= request.credits || self.session_state(session) != SessionState::Connecting {
            return;
        }
        let Some(s) = self.client_session_at(session.index) else { return };
        let peer = s.peer;
        let reserved = self.unreserve_pool(peer);
        if let Some(pool) = self.growth(Requests::Own, None, 0, credits) {
            (request.credits, request.pool) = (credits, pool.max(reserved));
        }
        self.reserve_pool(peer, request.credits, request.pool);
    }

    /// Gives the reservation back; the connect has been answered.
    pub(super) fn unreserve_pool(&mut self, peer: u32) -> u32 {
        let Some(Some(p)) = self.peers.get_mut(peer as usize) else { return 0 };
        p.pool.caps = 0;
        let reserved = std::mem::take(&mut p.pool.limit);
        self.credits_granted -= u64::from(reserved);
        reserved
    }

    /// The server of a session with C = `credits` has stated its pool, of which this side takes as
    /// much more as it has room for itself; it had reserved `reserved`.
    pub(super) fn join_pool(&mut self, peer: u32, credits: u32, stated: u32, reserved: u32) {
        self.settle();
        let Some(Some(p)) = self.peers.get(peer as usize) else { return };
        let (had, name) = (p.pool.limit, p.name());
        // Reserved room is free again, and there.
        let grows = self
            .growth(Requests::Own, Some(name), had, credits)
            .map_or(0, |g| g.min(reserved.max(u32::from(had == 0))));
        let Some(Some(p)) = self.peers.get_mut(peer as usize) else { return };
        p.pool.caps += u64::from(credits);
        p.pool.stated = stated.min(had + grows);
        let before = p.pool.resize();
        self.credits_granted = self.credits_granted + u64::from(p.pool.limit) - u64::from(before);
        self.credits_home(peer, 0); // for those that wait for it
    }

    /// The client side of a session with C = `credits` has ended; none of it is in flight.
    pub(super) fn leave_pool(&mut self, session: u32, peer: u32, credits: u32) {
        self.settle();
        self.leave_line(session);
        let Some(Some(p)) = self.peers.get_mut(peer as usize) else { return };
        p.pool.caps -= u64::from(credits);
        let before = p.pool.resize();
        self.credits_granted -= u64::from(before - p.pool.limit);
    }

    // ---- credits ------------------------------------------------------------------------------

    /// Credits of sessions of a peer come back.
    #[inline]
    pub(crate) fn credits_home(&mut self, peer: u32, credits: u32) {
        if let Some(Some(p)) = self.peers.get_mut(peer as usize)
            && p.pool.take_back(credits)
        {
            self.tx.push(TxItem::Turn { peer });
        }
    }

    /// Short responses of this peer follow.
    #[inline]
    pub(crate) fn home_is(&mut self, peer: u32) {
        if self.homing_peer != peer {
            self.settle();
            self.homing_peer = peer;
        }
    }

    /// Credits of short responses, which are counted and not brought home one by one, come back.
    #[inline]
    pub(crate) fn settle(&mut self) {
        let credits = std::mem::take(&mut self.homing);
        if credits != 0 {
            self.credits_home(self.homing_peer, credits);
        }
    }

    // ---- the line -----------------------------------------------------------------------------

    /// A session found its peer's pool empty: it stands in line until it has its turn.
    #[cold]
    pub(crate) fn stand_in_line(&mut self, session: u32) {
        let Some(Session::Client(s)) = self.sessions.get_mut(session as usize) else { return };
        if s.place.waits {
            return;
        }
        let Some(Some(p)) = self.peers.get_mut(s.peer as usize) else { return };
        let before = std::mem::replace(&mut p.pool.tail, session);
        s.place = Place { waits: true, before, behind: NONE };
        self.stats.pool_waits += 1;
        match self.sessions.get_mut(before as usize) {
            Some(Session::Client(s)) if before != NONE => s.place.behind = session,
            _ => p.pool.head = session,
        }
        // Nobody passes by.
        p.pool.kept += std::mem::take(&mut p.pool.open);
        if p.pool.take_back(0) {
            self.tx.push(TxItem::Turn { peer: self.peer_of(session) });
        }
    }

    fn peer_of(&self, session: u32) -> u32 {
        match self.sessions.get(session as usize) {
            Some(Session::Client(s)) => s.peer,
            _ => u32::MAX,
        }
    }

    fn leave_line(&mut self, session: u32) {
        let Some(Session::Client(s)) = self.sessions.get_mut(session as usize) else { return };
        let Place { waits, before, behind } = std::mem::replace(&mut s.place, Place::OUT);
        let peer = s.peer;
        if !waits {
            return;
        }
        if let Some(Session::Client(s)) = self.sessions.get_mut(before as usize) {
            s.place.behind = behind;
        }
        if let Some(Session::Client(s)) = self.sessions.get_mut(behind as usize) {
            s.place.before = before;
        }
        let Some(Some(p)) = self.peers.get_mut(peer as usize) else { return };
        if before == NONE {
            p.pool.head = behind;
        }
        if behind == NONE {
            p.pool.tail = before;
        }
        if !p.pool.is_awaited() {
            p.pool.open += std::mem::take(&mut p.pool.kept);
        }
    }

    /// Puts a session at the head of the line again: its turn was cut short.
    #[cold]
    fn stand_first(&mut self, session: u32) {
        self.leave_line(session);
        let Some(Session::Client(s)) = self.sessions.get_mut(session as usize) else { return };
        let Some(Some(p)) = self.peers.get_mut(s.peer as usize) else { return };
        let behind = std::mem::replace(&mut p.pool.head, session);
        s.place = Place { waits: true, before: NONE, behind };
        match self.sessions.get_mut(behind as usize) {
            Some(Session::Client(s)) if behind != NONE => s.place.before = session,
            _ => p.pool.tail = session,
        }
    }

    /// The turn of the session at the head of a peer's line: its slots take what has come back. The
    /// next one's turn follows while there is something left.
    #[cold]
    pub(crate) fn tx_turn(&mut self, peer: u32, out: &mut TxBurst) -> Sent {
        let Some(Some(p)) = self.peers.get_mut(peer as usize) else { return Sent::All };
        p.pool.has_turn = false;
        if p.pool.kept == 0 || !p.pool.is_awaited() {
            return Sent::All;
        }
        let session = p.pool.head;
        self.leave_line(session);
        // For this session alone, until it has had its turn.
        if let Some(Some(p)) = self.peers.get_mut(peer as usize) {
            p.pool.open += std::mem::take(&mut p.pool.kept);
        }
        let done = self.tx_stalled(session, out);
        if !done {
            self.stand_first(session);
        }
        let Some(Some(p)) = self.peers.get_mut(peer as usize) else { return Sent::All };
        if p.pool.is_awaited() {
            p.pool.kept += std::mem::take(&mut p.pool.open);
        }
        match p.pool.take_back(0) {
            true if done => self.tx.push(TxItem::Turn { peer }),
            true => return Sent::Rest(TxItem::Turn { peer }),
            false => {}
        }
        Sent::All
    }

    /// Sends for the slots of a session that wait for credits, in turn, until they lack them again.
    /// `false`: the stage is full.
    fn tx_stalled(&mut self, session: u32, out: &mut TxBurst) -> bool {
        let Some(s) = self.client_session_at(session) else { return true };
        let first = u32::from(s.next_in_turn) % 32;
        let mut stalled = s.stalled.rotate_right(first);
        while stalled != 0 {
            let slot_no = ((stalled.trailing_zeros() + first) % 32) as u8;
            stalled &= stalled - 1;
            let Some(s) = self.client_session_at(session) else { return true };
            let before = s.credits;
            s.stalled &= !(1 << slot_no);
            let Some(slot) = s.slots.get(usize::from(slot_no)) else { continue };
            let req_num = slot.req_num;
            let sent = self.tx_client(session, slot_no, req_num, true, out);
            let Some(s) = self.client_session_at(session) else { return true };
            // Whoever got something comes after the others next time.
            s.next_in_turn = slot_no + u8::from(s.credits < before);
            if let Sent::Rest(_) = sent {
                s.stalled |= 1 << slot_no;
                if let Some(slot) = s.slots.get_mut(usize::from(slot_no)) {
                    slot.queued = false;
                }
                return false;
            }
            if s.stalled & 1 << slot_no != 0 {
                return true;
            }
        }
        true
    }

    // ---- checks -------------------------------------------------------------------------------

    /// Checks the invariants of all pools.
    pub(crate) fn check_pools(&self) {
        let mut in_flight = vec![(0_u64, 0_u64); self.peers.len()];
        for entry in &self.sessions {
            if let Session::Client(s) = entry
                && let Some((sum, caps)) = in_flight.get_mut(s.peer as usize)
            {
                *sum += u64::from(s.credit_limit - s.credits.min(s.credit_limit));
                *caps += u64::from(s.credit_limit);
            }
        }
        let own_queues =
            self.cfg.rx_queue_per_peer && self.cfg.admission == Admission::Oversubscribed;
        let (mut all, mut beyond_one) = (0, BTreeMap::<_, u64>::new());
        for (at, (p, (in_flight, caps))) in (0..).zip(self.peers.iter().zip(in_flight)) {
            let Some(p) = p else { continue };
            let pool = &p.pool;
            let parts = [pool.limit, pool.granted].map(u64::from);
            let beyond = parts.iter().map(|part| part.saturating_sub(1)).sum::<u64>();
            all += parts.iter().sum::<u64>();
            let tentative = (p.state == PeerState::Tentative).then_some(at);
            *beyond_one.entry(own_queues.then(|| (p.name(), tentative))).or_default() += beyond;
            if p.state == PeerState::Tentative {
                continue; // reserved
            }
            pool.check();
            let homing = if at == self.homing_peer { self.homing } else { 0 };
            let home = u64::from(pool.left()) + u64::from(homing);
            assert_eq!(caps, pool.caps, "peer {at}: the sessions of the pool");
            assert_eq!(home + in_flight, u64::from(pool.limit), "peer {at}: the pool");
        }
        assert_eq!(all, self.credits_granted, "sum of the pools");
        let queue = u64::from(self.cfg.rx_queue_frames);
        for (peer, beyond_one) in beyond_one {
            assert!(beyond_one <= queue, "{peer:?}: {beyond_one} credits for {queue} frames");
        }
    }
}
