//! Read-only accessors of an endpoint: counters, sessions, memory. They cost nothing unless called,
//! and do not change the protocol's state.

use courser_buf::{Addr, AllocError, Arena, MsgBuf, stats};

use crate::budget::OverduePackets;
use crate::cc::PART;
use crate::config::Config;
use crate::endpoint::Endpoint;
use crate::integrity::Integrity;
use crate::loss::Recovery;
use crate::peer::{Peer, PeerState};
use crate::session::{Session, SessionId, SessionState};
use crate::stats::EndpointStats;

/// The role of an endpoint in a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Role {
    /// It sends calls.
    #[default]
    Client,
    /// It answers calls.
    Server,
}

stats! {
    /// State and counters of one session.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    #[non_exhaustive]
    pub struct SessionStats: "session" {
        /// The role of this endpoint.
        pub role: Role = state,
        /// The other endpoint; `None` before the handshake.
        pub peer: Option<Addr> = state,
        /// Requests put on slots (client) or of which a packet arrived (server), modulo 2^27: derived
        /// from the slots' request numbers, so that counting costs nothing. Take differences modulo
        /// 2^27.
        pub requests: u32 = counter(requests),
        /// Credits left (client side).
        pub credits: u32 = gauge(credits),
        /// C: the credits agreed at connect.
        pub credit_limit: u32 = gauge(credits),
        /// The credit pool shared by all client sessions of this endpoint with the peer (ADR 7).
        pub pool: u32 = gauge(credits),
        /// Unused part of the pool.
        pub pool_left: u32 = gauge(credits),
        /// Slots with a call (client), or with a request that is arriving or not answered (server).
        pub in_flight: u32 = gauge(slots),
        /// Slots.
        pub slots: u32 = gauge(slots),
        /// Slots whose call has ended and whose request the server has not answered yet (ADR 15): they
        /// accept no call until then.
        pub quarantined: u32 = gauge(slots),
        /// One-way messages of one packet that were not acknowledged (client).
        pub messages: usize = gauge(messages),
        /// Calls waiting for a slot, including deferred ones (`Config::prefetch_min_sessions`).
        pub queued: usize = gauge(calls),
        /// The agreed loss recovery scheme.
        pub recovery: Recovery = state,
        /// The agreed protection of frames.
        pub integrity: Integrity = state,
        /// Data bytes per packet.
        pub data_per_packet: u16 = gauge(bytes),
        /// Retransmission timeouts that rolled a request back, modulo 2^32 (client side; E59).
        pub rollbacks: u64 = counter(timeouts),
        /// Packets retransmitted because of them (client), or stored responses sent again (server).
        pub retransmitted: u64 = counter(packets),
        /// Frames sent to the peer, over all sessions with it.
        pub tx_frames: u64 = counter(frames),
        /// Frames accepted from the peer, over all sessions with it, modulo 2^32.
        pub rx_frames: u32 = counter(frames),
        /// Newest round trip without handler time, ns.
        pub rtt_ns: Option<u64> = gauge(ns),
        /// Smoothed round trip, ns.
        pub srtt_ns: Option<u64> = gauge(ns),
        /// Smallest round trip, ns.
        pub rtt_min_ns: Option<u64> = gauge(ns),
        /// Current retransmission timeout, ns.
        pub rto_ns: Option<u64> = gauge(ns),
        /// Frames that the peer received with a congestion mark, modulo 2^32.
        pub ecn_marked: u32 = counter(frames),
        /// The window of congestion control for all sessions with the peer, in packets, rounded up;
        /// `None`: it does not limit the pool (client side).
        pub window: Option<u32> = gauge(packets) as "window_packets",
        /// Time between two full-sized packets to the peer, ns, while they are paced (client side).
        pub pacing_gap_ns: Option<u64> = gauge(ns),
        /// How often congestion control has allowed less than before, over all sessions with the peer.
        pub decreases: u64 = counter(times) as "window_decreases",
    }
}

impl<C> Endpoint<C> {
    /// Returns whether [`Endpoint::poll_failed`] or [`Endpoint::poll_idle`] may return something,
    /// or ingress has refused 256 frames more. Costs one load, for a check in every pass of the
    /// event loop.
    #[inline]
    pub fn has_session_news(&self) -> bool {
        self.outbox.has_news
    }

    /// Returns whether [`Endpoint::poll_completion`] returns something, now or after a flush of the
    /// transport.
    #[inline]
    pub fn has_completions(&self) -> bool {
        !self.outbox.done.is_empty()
    }

    /// Allocates a message buffer of length `len` with arbitrary contents.
    ///
    /// # Errors
    /// The arena's limit is reached.
    #[inline]
    pub fn alloc(&self, len: usize) -> Result<MsgBuf, AllocError> {
        self.io.arena.alloc(len)
    }

    /// The arena that message buffers come from.
    pub fn arena(&self) -> &Arena {
        &self.io.arena
    }

    /// Counters.
    pub fn stats(&self) -> &EndpointStats {
        &self.io.stats
    }

    /// Settings.
    pub fn config(&self) -> &Config {
        &self.io.cfg
    }

    /// The random number that identifies this incarnation.
    pub fn id(&self) -> u64 {
        self.peers.own_id
    }

    /// The entry of a session that has not ended.
    #[inline]
    fn entry(&self, session: SessionId) -> Option<&Session<C>> {
        let entry = self.sessions.get(session.index as usize)?;
        (entry.generation() == Some(session.generation)).then_some(entry)
    }

    /// The state of a session.
    pub fn session_state(&self, session: SessionId) -> SessionState {
        match self.entry(session) {
            Some(Session::Client(s)) => s.state,
            Some(Session::Server(_)) => SessionState::Connected,
            _ => SessionState::Gone,
        }
    }

    /// The client of a server session: its number here, which a later client may have again, and its
    /// control connection, which no other client has or had.
    #[inline]
    pub fn client_of(&self, session: SessionId) -> Option<(u32, u64)> {
        match self.entry(session)? {
            Session::Server(s) => Some((s.quota, self.admission.quotas.control_of(s.quota)?)),
            _ => None,
        }
    }

    /// Number of clients with a session.
    #[inline]
    pub fn clients(&self) -> usize {
        self.admission.quotas.count()
    }

    /// Returns whether the client of [`Endpoint::client_of`] still has a session.
    pub fn is_client(&self, client: u32, control: u64) -> bool {
        self.admission.quotas.has(client, control)
    }

    /// The address of a client, by its number here; 0: there is no such client.
    pub fn client_host(&self, client: u32) -> u128 {
        self.admission.quotas.host_of(client).unwrap_or(0)
    }

    /// The largest message of a session that is connected, bytes: the smaller limit of the two ends.
    pub fn max_msg_size(&self, session: SessionId) -> Option<u32> {
        match self.entry(session)? {
            Session::Client(s) => Some(s.agreed.max_msg_size),
            Session::Server(s) => Some(s.max_msg_size),
            Session::Vacant { .. } | Session::Draining(_) => None,
        }
    }

    /// The peer of a session.
    fn peer_of(&self, session: SessionId) -> Option<&Peer> {
        let peer = match self.entry(session)? {
            Session::Client(s) => s.peer,
            Session::Server(s) => s.peer,
            Session::Vacant { .. } | Session::Draining(_) => return None,
        };
        self.peers.at(peer)
    }

    /// The address of the peer of a session; `None`: the session or the peer is gone.
    pub fn session_peer(&self, session: SessionId) -> Option<Addr> {
        let peer = self.peer_of(session)?;
        (peer.state == PeerState::Live).then_some(peer.addr)
    }

    /// State and counters of a session; `None` once it has ended.
    pub fn session_stats(&self, session: SessionId) -> Option<SessionStats> {
        let mut out = match self.entry(session)? {
            Session::Client(s) => SessionStats {
                role: Role::Client,
                requests: s.requests(),
                credits: s.credits.left(),
                credit_limit: s.credits.limit(),
                in_flight: s.slots.iter().filter(|slot| slot.active).count() as u32,
                quarantined: s.slots.iter().filter(|slot| slot.quarantined).count() as u32,
                slots: s.slots.count(),
                messages: s.outgoing.as_ref().map_or(0, |outgoing| outgoing.len()),
                queued: s.queue.len() + self.deferred.count(session),
                data_per_packet: s.agreed.data_per_packet,
                recovery: s.agreed.recovery,
                rollbacks: s.recovery_counts().0.into(),
                retransmitted: s.recovery_counts().1,
                ..SessionStats::default()
            },
            Session::Server(s) => SessionStats {
                role: Role::Server,
                requests: s.requests(),
                credit_limit: s.credit_limit,
                in_flight: s.slots.iter().filter(|slot| slot.is_open()).count() as u32,
                slots: s.slots.count(),
                data_per_packet: s.data_per_packet,
                recovery: s.recovery,
                retransmitted: s.resent,
                ..SessionStats::default()
            },
            _ => return None,
        };
        if let Some(p) = self.peer_of(session) {
            if out.role == Role::Client {
                (out.pool, out.pool_left) = (p.credits.limit(), p.credits.left());
            }
            if let Some((latest, smoothed, min, rto)) = p.path.rtt().report(&self.io.cfg) {
                out.rtt_ns = Some(latest);
                out.srtt_ns = Some(smoothed);
                out.rtt_min_ns = Some(min);
                out.rto_ns = Some(rto);
            }
            out.integrity = p.protection.integrity();
            out.peer = (p.state == PeerState::Live).then_some(p.addr);
            out.tx_frames = p.path.tx_frames();
            out.rx_frames = p.path.rx_frames();
            out.ecn_marked = p.path.marks_reported();
            let (window, gap_ns) = (p.path.window(), p.path.gap_ns());
            out.window = (window != u64::MAX).then_some(window.div_ceil(PART) as u32);
            out.pacing_gap_ns = (gap_ns > 0).then_some(gap_ns);
            out.decreases = p.path.decreases();
        }
        Some(out)
    }

    /// Sessions in any state, both roles.
    pub fn live_sessions(&self) -> usize {
        self.sessions.live()
    }

    /// All sessions in any state and both roles, by number from `first` on. With a bounded `take`
    /// they can be iterated in portions. Walks the table, free entries included. Draining sessions
    /// are omitted.
    pub fn sessions_from(&self, first: u32) -> impl Iterator<Item = SessionId> + '_ {
        (first..)
            .zip(self.sessions.iter().skip(first as usize))
            .filter_map(|(index, entry)| Some(SessionId { index, generation: entry.generation()? }))
    }

    /// [`crate::Config::credits_remote`].
    pub fn credits_remote(&self) -> u32 {
        self.io.cfg.credits_remote
    }

    /// Sum of the credit pools of all peers, in both directions (ADR 7): at most the receive queue,
    /// plus one for each peer beyond its capacity.
    pub fn credits_granted(&self) -> u64 {
        self.admission.pools.granted
    }

    /// Accepted calls that have not ended.
    #[inline]
    pub fn outstanding_calls(&self) -> u64 {
        self.io.outstanding_calls()
    }

    /// Returns whether nothing is in flight, queued or waiting to be sent.
    pub fn is_quiet(&self) -> bool {
        !(self.has_unsent() || self.io.tx.host.is_awaited())
            && self.outbox.done.is_empty()
            && self.sessions.iter().all(|s| match s {
                Session::Client(s) => {
                    let idle = s.outgoing.as_ref().is_none_or(|outgoing| outgoing.len() == 0);
                    !s.waits() && s.free.count_ones() == s.slots.count() && idle
                }
                _ => true,
            })
    }

    /// Checks that the receiver's budget (ADR 35) does not count packets which were overdue at the call
    /// before, `seen`, and must have been taken out since; panics if it does. For tests and simulations.
    #[doc(hidden)]
    pub fn check_overdue(&self, seen: &mut OverduePackets) {
        self.admission.budget.check_overdue(seen, self.io.now_ns);
    }
}
