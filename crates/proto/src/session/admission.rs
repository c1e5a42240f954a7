//! Admission: the size of a peer's credit pool (E34, E36; [`crate::credits`]).
//!
//! # Invariant
//! The credits of all pools of an endpoint, beyond one each, sum up to at most |RQ|; where each
//! peer has a receive queue of its own, the same holds for the pools between two endpoints. With
//! strict admission reservations of connects in progress count too. Otherwise they only limit each
//! other: a hundred connects at once would else leave no room for a hundred peers that connect here.

use std::collections::BTreeMap;

use super::{ClientSession, ConnectRequest, ServerSession, Session, SessionId, SessionState};
use crate::config::Admission;
use crate::credits::{CreditPool, Room};
use crate::endpoint::Endpoint;
use crate::peer::{Peer, PeerName, PeerState};
use crate::slot::ClientSlot;

/// Credits of which the receive queue has room for fewer pools than this are many. When less than
/// half of the queue is free, a pool then gets a 64th of the rest.
const FEW_PEERS: u64 = 40;
/// Pools of up to this number of credits are not cut to a 64th.
const SCARCE: u64 = 32;

/// The side whose requests a pool is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Requests {
    /// This endpoint's requests; their responses arrive here.
    Own,
    /// The peer's requests, which arrive here.
    Peers,
}

impl Requests {
    fn part(self, pool: &CreditPool) -> u32 {
        match self {
            Requests::Own => pool.limit(),
            Requests::Peers => pool.granted(),
        }
    }
}

impl<C> Endpoint<C> {
    /// Growth of a pool of `pool` credits by a session that may have `wanted` packets in flight;
    /// `None`: the session is refused. A tentative peer has no name.
    /// Oversubscribed, a pool grows to at most half of the remaining room, so that later peers get
    /// some, or a 64th of it when pools are large and less than half of the queue is left, and beyond
    /// `Config::credits_remote` only while there is plenty; but a peer always has one credit. A queue of a single peer has no later peers: one half is for the requests of
    /// either side.
    pub(crate) fn growth(
        &self,
        requests: Requests,
        peer: Option<PeerName>,
        pool: u32,
        wanted: u32,
    ) -> Option<u32> {
        let queue = u64::from(self.io.cfg.rx_queue_frames);
        let is_strict = self.io.cfg.admission == Admission::Strict;
        let reserved = if is_strict || peer.is_none() { 0 } else { self.peers.credits_reserved };
        let free = queue.saturating_sub(self.peers.credits_granted - reserved);
        let has = u64::from(pool);
        let plain = u64::from(self.io.cfg.credits_remote);
        let is_scarce = free < queue / 2 && !self.io.cfg.rx_queue_per_peer;
        let most = match is_scarce && plain > queue / FEW_PEERS {
            true => plain.min((free / 64).max(SCARCE)),
            false => plain.max(free / 16),
        };
        let wants = u64::from(wanted).min(most);
        let grows = match self.io.cfg.admission {
            Admission::Strict => return (u64::from(wanted) <= free).then_some(wanted),
            Admission::Oversubscribed if self.io.cfg.rx_queue_per_peer => {
                let have = peer.map_or(0, |name| self.pools_with(requests, name));
                (queue / 2).saturating_sub(have)
            }
            Admission::Oversubscribed => ((free + has) / 2).saturating_sub(has).min(free),
        };
        let grows = grows.min(wants) as u32;
        Some(if pool == 0 { grows.max(1) } else { grows })
    }

    /// Credits of the pools for the requests of one side with an endpoint. That endpoint is several
    /// peers when both sides have dialed each other at the same time.
    fn pools_with(&self, requests: Requests, name: PeerName) -> u64 {
        let peers = self.peers.known.get(&name).into_iter().flatten();
        let peers = peers.filter_map(|&at| self.peers.get(at as usize)?.as_ref());
        peers.map(|p| u64::from(requests.part(&p.credits))).sum()
    }

    /// Room per packet as counted by this endpoint's receive queue: its proposal, and its upper
    /// limit.
    pub(crate) fn own_room(&self) -> Room {
        let (small, large) =
            (self.io.cfg.rx_queue_small_frames, self.io.cfg.rx_queue_frames.max(1));
        let units = (small / large).clamp(1, u16::MAX.into()) as u16;
        let small_data = if units > 1 { self.io.cfg.small_data } else { 0 };
        Room { small_data, units_per_packet: units }
    }

    /// Server side: a session with this peer has C = `credits`, and the pool grows by `grows`.
    /// Returns the pool, for the answer.
    pub(crate) fn grant_pool(&mut self, peer: u32, credits: u32, grows: u32) -> u32 {
        let grant = |p: &mut Peer| p.credits.grant_to_peer(credits, grows);
        self.peers.change_pools(peer, grant).unwrap_or(0)
    }

    /// Server side: a session with C = `credits` has ended.
    pub(crate) fn ungrant_pool(&mut self, peer: u32, credits: u32) {
        self.peers.change_pools(peer, |p| p.credits.ungrant(credits));
    }

    /// Client side: a connecting session with C = `credits` (if its server agrees) reserves room
    /// for the responses of `pool` packets, under the name of its tentative peer.
    pub(crate) fn reserve_pool(&mut self, peer: u32, credits: u32, pool: u32) {
        self.peers.change_pools(peer, |p| p.credits.reserve_tentatively(credits, pool));
    }

    /// Raises the credits that a connecting session requests to all of [`crate::Config::credits`],
    /// as far as there is room: its server is on the same host.
    pub fn raise_local_credits(&mut self, session: SessionId, request: &mut ConnectRequest) {
        let credits = self.io.cfg.credits;
        if credits <= request.credits || self.session_state(session) != SessionState::Connecting {
            return;
        }
        let Some(s) = self.sessions.client_mut(session.index) else { return };
        let peer = s.peer;
        let reserved = self.unreserve_pool(peer);
        if let Some(pool) = self.growth(Requests::Own, None, 0, credits) {
            (request.credits, request.pool) = (credits, pool.max(reserved));
        }
        self.reserve_pool(peer, request.credits, request.pool);
    }

    /// Releases the reservation; the connect has been answered.
    pub(crate) fn unreserve_pool(&mut self, peer: u32) -> u32 {
        self.peers.change_pools(peer, |p| p.credits.unreserve()).unwrap_or(0)
    }

    /// Client side: the server of a session with C = `credits` has stated its pool, and this side
    /// takes as much growth as it has room for; it had reserved `reserved`.
    pub(crate) fn join_pool(&mut self, peer: u32, credits: u32, stated: u32, reserved: u32) {
        let Some(p) = self.peers.at(peer) else { return };
        let (had, name) = (p.credits.limit(), p.name());
        // The reservation counts as free again.
        let grows = self
            .growth(Requests::Own, Some(name), had, credits)
            .map_or(0, |g| g.min(reserved.max(u32::from(had == 0))));
        let (io, is_limited) = (&mut self.io, self.admission.budget.is_enabled());
        self.peers.change_pools(peer, |p| {
            let (before, after) = p.credits.join(credits, stated.min(had + grows));
            io.release_room(p, 0); // sessions may wait for it
            p.path.control(&io.cfg, p.data_per_packet, after, io.now_ns);
            if before == 0 && is_limited {
                p.path.expect_grants();
            }
            io.apply_window(p);
        });
    }

    /// Client side: a session with C = `credits` has ended; none of it is in flight. `waits`: it has
    /// waited for room in the pool.
    pub(crate) fn leave_pool(&mut self, peer: u32, credits: u32, waits: bool) {
        let io = &mut self.io;
        self.peers.change_pools(peer, |p| {
            if waits {
                p.credits.wait_no_more();
            }
            let (_, after) = p.credits.leave(credits);
            if after > 0 {
                p.path.control(&io.cfg, p.data_per_packet, after, io.now_ns);
            }
            io.apply_window(p);
            io.retry_turn(p);
        });
    }

    /// Checks the invariants of all pools.
    pub(crate) fn check_pools(&self) {
        self.check_budget();
        let mut in_flight = vec![(0_u64, 0_u64); self.peers.len()];
        let mut awaiting = vec![0_usize; self.peers.len()];
        for entry in self.sessions.iter() {
            if let Session::Client(ClientSession { peer, .. })
            | Session::Server(ServerSession { peer, .. }) = entry
            {
                assert!(self.peers.at(*peer).is_some(), "a session without a peer");
            }
            if let Session::Client(s) = entry
                && let Some((sum, caps)) = in_flight.get_mut(s.peer as usize)
            {
                let units = |slot: &ClientSlot<C>| u64::from(slot.in_flight_units());
                *sum += s.slots.iter().map(units).sum::<u64>();
                *sum += s.outgoing.as_ref().map_or(0, |o| u64::from(o.units()));
                *caps += u64::from(s.credits.limit());
                let awaits = |slot: &&ClientSlot<C>| slot.active && slot.is_awaiting();
                awaiting[s.peer as usize] += s.slots.iter().filter(awaits).count();
            }
        }
        let own_queues =
            self.io.cfg.rx_queue_per_peer && self.io.cfg.admission == Admission::Oversubscribed;
        let is_strict = self.io.cfg.admission == Admission::Strict;
        let (mut all, mut reserved, mut beyond_one) = (0, 0, BTreeMap::<_, u64>::new());
        for (at, (p, (in_flight, caps))) in (0..).zip(self.peers.iter().zip(in_flight)) {
            let Some(p) = p else { continue };
            let parts = [p.credits.limit(), p.credits.granted()].map(u64::from);
            let beyond = parts.iter().map(|part| part.saturating_sub(1)).sum::<u64>();
            all += parts.iter().sum::<u64>();
            let tentative = (p.state == PeerState::Tentative).then_some(at);
            if tentative.is_some() {
                reserved += parts.iter().sum::<u64>();
                if !is_strict {
                    continue;
                }
            }
            *beyond_one.entry(own_queues.then(|| (p.name(), tentative))).or_default() += beyond;
            if p.state == PeerState::Tentative {
                continue; // reserved
            }
            p.credits.check(in_flight, caps);
            let counted = p.path.awaiting() as usize;
            assert_eq!(awaiting[at as usize], counted, "slots that await a grant");
        }
        assert_eq!(all, self.peers.credits_granted, "sum of the pools");
        assert_eq!(reserved, self.peers.credits_reserved, "sum of the reservations");
        let queue = u64::from(self.io.cfg.rx_queue_frames);
        for (peer, beyond_one) in beyond_one {
            assert!(beyond_one <= queue, "{peer:?}: {beyond_one} credits for {queue} frames");
        }
    }
}
