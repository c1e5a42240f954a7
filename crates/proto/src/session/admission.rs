//! Admission: the size of a peer's credit pool (E34, E36; [`crate::credits`]).
//!
//! # Invariant
//! The credits of all pools of an endpoint, beyond one each, sum up to at most |RQ|; where each
//! peer has a receive queue of its own, the same holds for the pools between two endpoints. With
//! strict admission reservations of connects in progress count too. Otherwise they only limit each
//! other: a hundred connects at once would else leave no room for a hundred peers that connect here.

use std::collections::BTreeMap;

use super::{ClientSession, ServerSession, Session};
use crate::admission::{Admission as Limits, Answer, Need};
use crate::config::Admission;
use crate::credits::{CreditPool, Room};
use crate::endpoint::Endpoint;
use crate::flow::ClientFlow;
use crate::io::Io;
use crate::peer::{PeerName, PeerState};
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

impl<C> ClientFlow<'_, C> {
    /// The session is connected with C = `credits`: its pool is `stated` by the server, or less, if it
    /// can grow by `grows` only.
    pub(super) fn join_pool(&mut self, credits: u32, stated: u32, grows: u32) {
        let (io, is_limited) = (&mut *self.io, self.admission.budget.is_enabled());
        self.admission.pools.change(self.peer, |p| {
            let stated = stated.min(p.credits.limit() + grows);
            let (before, after) = p.credits.join(credits, stated);
            io.release_room(p, 0); // sessions may wait for it
            p.path.control(&io.cfg, p.data_per_packet, after, io.now_ns);
            if before == 0 && is_limited {
                p.path.expect_grants();
            }
            io.apply_window(p);
        });
    }

    /// The session has ended; none of its credits is in flight.
    pub(super) fn leave_pool(&mut self) {
        let (io, credits) = (&mut *self.io, self.s.credits.limit());
        let waits = std::mem::take(&mut self.s.waits_for_room);
        self.admission.pools.change(self.peer, |p| {
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
}

/// Growth of a pool by a session. Gets the growth, packets.
/// Oversubscribed, a pool grows to at most half of the remaining room, so that later peers get
/// some, or a 64th of it when pools are large and less than half of the queue is left, and beyond
/// `Config::credits_remote` only while there is plenty; but a peer always has one credit. A queue of a
/// single peer has no later peers: one half is for the requests of either side.
#[derive(Clone, Copy, Debug)]
pub(super) struct PoolGrowth {
    /// Credits of all pools with the peer for requests of the same side; `None`: the peer is tentative.
    pub(super) with: Option<u64>,
    /// The pool so far.
    pub(super) pool: u32,
    /// Packets that the session may have in flight.
    pub(super) wanted: u32,
}

impl Need for PoolGrowth {
    type Gets = u32;
    type Refusal = ();

    fn decide(self, admission: &Limits, io: &Io) -> Answer<u32, ()> {
        let PoolGrowth { with, pool, wanted } = self;
        let (cfg, pools) = (&io.cfg, &admission.pools);
        let queue = u64::from(cfg.rx_queue_frames);
        let is_strict = cfg.admission == Admission::Strict;
        let reserved = if is_strict || with.is_none() { 0 } else { pools.reserved };
        let free = queue.saturating_sub(pools.granted - reserved);
        let has = u64::from(pool);
        let plain = u64::from(cfg.credits_remote);
        let is_scarce = free < queue / 2 && !cfg.rx_queue_per_peer;
        let most = match is_scarce && plain > queue / FEW_PEERS {
            true => plain.min((free / 64).max(SCARCE)),
            false => plain.max(free / 16),
        };
        let wants = u64::from(wanted).min(most);
        let grows = match cfg.admission {
            Admission::Strict if u64::from(wanted) > free => return Answer::Refuse(()),
            Admission::Strict => return Answer::Now(wanted),
            Admission::Oversubscribed if cfg.rx_queue_per_peer => {
                (queue / 2).saturating_sub(with.unwrap_or(0))
            }
            Admission::Oversubscribed => ((free + has) / 2).saturating_sub(has).min(free),
        };
        let grows = grows.min(wants) as u32;
        Answer::Now(if pool == 0 { grows.max(1) } else { grows })
    }
}

impl<C> Endpoint<C> {
    /// Credits of the pools for the requests of one side with an endpoint. That endpoint is several
    /// peers when both sides have dialed each other at the same time.
    pub(super) fn pools_with(&self, requests: Requests, name: PeerName) -> u64 {
        let peers = self.peers.known.get(&name).into_iter().flatten();
        let peers = peers.filter_map(|&at| self.peers.at(at));
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
            *beyond_one.entry(own_queues.then(|| (self.peers.name(p), tentative))).or_default() +=
                beyond;
            if p.state == PeerState::Tentative {
                continue; // reserved
            }
            p.credits.check(in_flight, caps);
            let counted = p.path.awaiting() as usize;
            assert_eq!(awaiting[at as usize], counted, "slots that await a grant");
        }
        assert_eq!(all, self.admission.pools.granted, "sum of the pools");
        assert_eq!(reserved, self.admission.pools.reserved, "sum of the reservations");
        let queue = u64::from(self.io.cfg.rx_queue_frames);
        for (peer, beyond_one) in beyond_one {
            assert!(beyond_one <= queue, "{peer:?}: {beyond_one} credits for {queue} frames");
        }
    }
}

#[cfg(test)]
mod tests {
    use courser_buf::Arena;

    use super::*;
    use crate::config::Config;

    fn grows(cfg: &Config, granted: u64, reserved: u64, need: PoolGrowth) -> Answer<u32, ()> {
        let mut ep = Endpoint::<u64>::new(cfg.clone(), Arena::heap(), 1, 1_472).unwrap();
        (ep.admission.pools.granted, ep.admission.pools.reserved) = (granted, reserved);
        ep.admission.ask(&ep.io, need)
    }

    #[test]
    fn a_pool_grows_within_the_receive_queue_and_is_refused_by_strict_admission_only() {
        let need = PoolGrowth { with: Some(0), pool: 0, wanted: 32 };
        let cfg = Config { rx_queue_frames: 100, ..Config::default() };
        let strict = Config { admission: Admission::Strict, ..cfg.clone() };
        assert_eq!(grows(&strict, 68, 0, need), Answer::Now(32));
        assert_eq!(grows(&strict, 69, 0, need), Answer::Refuse(()));
        assert_eq!(grows(&strict, 69, 1, need), Answer::Refuse(()), "reservations count");
        let shared = Config { admission: Admission::Oversubscribed, ..cfg.clone() };
        assert_eq!(grows(&shared, 60, 0, need), Answer::Now(20), "half of the rest");
        assert_eq!(grows(&shared, 70, 10, need), Answer::Now(20), "reservations do not count");
        assert_eq!(grows(&shared, 100, 0, need), Answer::Now(1), "a peer has one credit");
        assert_eq!(grows(&shared, 100, 0, PoolGrowth { pool: 1, ..need }), Answer::Now(0));
        let own = Config { rx_queue_per_peer: true, ..shared };
        assert_eq!(grows(&own, 100, 0, PoolGrowth { with: Some(30), ..need }), Answer::Now(20));
    }
}
