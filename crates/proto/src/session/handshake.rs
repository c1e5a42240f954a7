//! The decisions of the handshake on both sides (ADR 13), without I/O.

use courser_buf::{Addr, PathId};

use super::admission::{PoolGrowth, Requests};
use super::connect::InvalidField;
use super::room::AwaitedRoom;
use super::{
    Agreed, ClientCounters, ClientSession, ConnectAccept, ConnectError, ConnectOffer, ConnectOver,
    ConnectRefuseReason, ConnectRequest, Dialed, Established, QueueTimes, RemoteSession, Schemes,
    ServerSession, Session, SessionId, SessionState, Slots,
};
use crate::credits::{Room, SessionCredits};
use crate::endpoint::Endpoint;
use crate::error::SessionEnd;
use crate::flow::ClientFlow;
use crate::integrity::{Integrity, Protection};
use crate::loss::Recovery;
use crate::peer::{Party, Peer, PeerName, PeerState};
use crate::wire::{FRAME_HEADER, MAX_PEER, MAX_SESSION, MIN_DATA_PER_PACKET, PACKET_HEADER};

impl<C> Endpoint<C> {
    /// Starts a session as its client. `control` names the control connection, `random` are 64
    /// random bits, `max_frame` is the largest frame of the path to the server.
    /// # Errors
    /// A limit of this endpoint is reached; nothing changes then.
    pub fn dial(
        &mut self,
        control: u64,
        random: u64,
        local_port: u32,
        max_frame: usize,
    ) -> Result<Dialed, ConnectError> {
        let credits = self.io.cfg.credits.min(self.io.cfg.credits_remote);
        let queue = self.io.cfg.rx_queue_frames;
        if self.sessions.live() >= self.io.cfg.max_sessions {
            return Err(ConnectError::TooManySessions { limit: self.io.cfg.max_sessions });
        }
        let growth = PoolGrowth { with: None, pool: 0, wanted: credits };
        let pool = self.admission.ask(&self.io, growth).now();
        let pool = pool.ok_or(ConnectError::NoCredits { queue, credits })?;
        let mut tentative = Peer::tentative(random as u32, &self.io.cfg);
        self.admission
            .pools
            .change(&mut tentative, |p| p.credits.reserve_tentatively(credits, pool));
        let peer = self.peers.add(tentative);
        let slots = self.io.cfg.slots;
        let first_req_num = (random >> 32) as u32 & !(u32::from(slots) - 1);
        // Slots start one step before their first number.
        let start = first_req_num.wrapping_sub(u32::from(slots));
        let max_msg_size = self.io.cfg.max_msg_size;
        let session = self.sessions.add(|generation| {
            Session::Client(ClientSession {
                generation,
                state: SessionState::Connecting,
                peer,
                remote: 0,
                credits: SessionCredits::default(),
                agreed: Agreed {
                    control,
                    first_req_num,
                    max_msg_size,
                    quantum: 1,
                    data_per_packet: MIN_DATA_PER_PACKET,
                    recovery: Recovery::GoBackN,
                },
                most_in_a_packet: 0,
                waits: false,
                free: (1u64 << slots).wrapping_sub(1) as u32,
                idle_timed: false,
                stalled: 0,
                waits_for_room: false,
                next_in_turn: 0,
                slots: Slots::new(slots, start),
                awaited: AwaitedRoom::default(),
                outgoing: None,
                queue: Default::default(),
                queue_times: QueueTimes { expires_ns: u64::MAX, timer_ns: u64::MAX },
                counters: ClientCounters::default(),
            })
        });
        self.sessions.connecting += 1;
        let room = self.own_room();
        let request = ConnectRequest {
            endpoint_id: self.peers.own_id,
            port: local_port,
            session: session.index,
            peer,
            cookie: random as u32,
            max_frame: max_frame.min(self.io.tx.max_frame()) as u32,
            credits,
            pool,
            slots,
            max_msg_size: self.io.cfg.max_msg_size,
            first_req_num,
            recovery: self.io.cfg.recovery,
            integrity: Integrity::None,
            room,
        };
        Ok(Dialed { session, request })
    }

    /// The control connection to the server of a connecting session is open. To be called before the
    /// request is sent.
    pub fn connect_over(
        &mut self,
        session: SessionId,
        request: &mut ConnectRequest,
        over: ConnectOver,
    ) {
        let ConnectOver { control, integrity, same_host } = over;
        request.integrity = integrity;
        let Some(flow) = self.client_flow(session.index) else { return };
        if flow.id() != session || flow.s.state != SessionState::Connecting {
            return;
        }
        flow.s.agreed.control = control;
        flow.peer.protection = Protection::of(integrity);
        let (io, admission, wanted) = (&*flow.io, flow.admission, flow.io.cfg.credits);
        if same_host && wanted > request.credits {
            // The credits that are reserved count as free.
            let reserved = admission.pools.change(flow.peer, |p| p.credits.unreserve());
            let growth = PoolGrowth { with: None, pool: 0, wanted };
            if let Some(pool) = admission.ask(io, growth).now() {
                (request.credits, request.pool) = (wanted, pool.max(reserved));
            }
            let (credits, pool) = (request.credits, request.pool);
            admission.pools.change(flow.peer, |p| p.credits.reserve_tentatively(credits, pool));
        }
    }

    /// Time since the last frame of the endpoints behind a control connection, ns; `None`: it has no live
    /// peer. A sign of life of their process, while its control connection is silent.
    pub fn last_frame_age_ns(&self, control: u64) -> Option<u64> {
        let of = |p: &&Peer| p.party.control == control && p.state == PeerState::Live;
        let last_ns = self.peers.iter().flatten().filter(of).map(|p| p.path.last_rx_ns()).max()?;
        Some(self.io.now_ns.saturating_sub(last_ns))
    }

    /// Accepts a client's request: creates the server side of the session.
    /// # Errors
    /// The reason for the client; nothing has changed.
    pub fn accept(
        &mut self,
        r: &ConnectRequest,
        offer: ConnectOffer,
    ) -> Result<ConnectAccept, ConnectRefuseReason> {
        self.make_room(r, offer.addr, offer.control)?;
        let known = self.find_peer(r, offer.addr, offer.control);
        let dpp = self.check_request(r, known, &offer)?;
        let (known, has) = (known.map(Peer::number), known.map_or(0, |p| p.credits.granted()));
        let queue = self.io.cfg.rx_queue_frames;
        let credits = r.credits.min(self.io.cfg.credits).min(offer.credits.max(1));
        let with = self.pools_with(Requests::Peers, (r.endpoint_id, offer.addr));
        let growth = PoolGrowth { with: Some(with), pool: has, wanted: credits };
        let grows = self.admission.ask(&self.io, growth).now();
        let grows = grows
            .ok_or(ConnectRefuseReason::NoCredits { queue, credits })?
            .min(r.pool.max(u32::from(has == 0)));
        let slots_granted = r.slots.min(self.io.cfg.slots);
        let recovery = Recovery::agreed(r.recovery, self.io.cfg.recovery);
        let own = self.own_room();
        let peer_no = known.unwrap_or_else(|| {
            let mut p = Peer::tentative(offer.random, &self.io.cfg);
            p.agree(dpp, Protection::agreed(r.integrity, offer.integrity));
            p.party = Party { endpoint_id: r.endpoint_id, control: offer.control };
            p.addr = offer.addr;
            p.remote = r.peer;
            p.tx_cookie = r.cookie;
            p.credits.set_room(Room {
                small_data: own.small_data.min(r.room.small_data),
                units_per_packet: own.units_per_packet.min(r.room.units_per_packet),
            });
            p.path_id = offer.path.map_or(PathId(u32::MAX), |(id, _)| id);
            p.path.set_last_rx(self.io.now_ns);
            let at = self.peers.add(p);
            self.peers.known.entry((r.endpoint_id, offer.addr)).or_default().push(at);
            self.admission.quotas.add_path(at, offer.control);
            at
        });
        let Some(peer) = self.peers.at_mut(peer_no) else {
            return Err(ConnectRefuseReason::NoPath);
        };
        peer.sessions += 1;
        peer.selective |= recovery == Recovery::Selective;
        let grant = |p: &mut Peer| p.credits.grant_to_peer(credits, grows);
        let pool = self.admission.pools.change(peer, grant);
        let (client_peer, cookie) = (peer.remote, peer.rx_cookie);
        let integrity = peer.protection.integrity();
        let room = peer.credits.room();
        let quota = self.admission.quotas.enter(offer.control, offer.addr.host);
        let accepted_ns = self.io.now_ns;
        let start = r.first_req_num.wrapping_sub(u32::from(slots_granted));
        let max_msg_size = self.io.cfg.max_msg_size;
        let session = self.sessions.add(|generation| {
            Session::Server(ServerSession {
                generation,
                peer: peer_no,
                remote: r.session,
                credit_limit: credits,
                data_per_packet: dpp,
                max_msg_size: max_msg_size.min(r.max_msg_size),
                recovery,
                keeps_buffers: false,
                quota,
                slots: Slots::new(slots_granted, start),
                first_req_num: r.first_req_num,
                resent: 0,
                accepted_ns,
                client_index: offer.client_index,
                incoming: None,
            })
        });
        let sessions = &self.sessions;
        self.admission.quotas.add_unused(quota, session, |s| sessions.unused(s).is_some());
        Ok(ConnectAccept {
            endpoint_id: self.peers.own_id,
            port: offer.local_port,
            client_session: r.session,
            client_cookie: r.cookie,
            client_peer,
            session: RemoteSession { number: session.index, first_req_num: r.first_req_num },
            peer: peer_no,
            cookie,
            data_per_packet: dpp,
            credits,
            pool,
            slots: slots_granted,
            max_msg_size,
            schemes: Schemes { recovery, integrity },
            room,
        })
    }

    /// Checks every field of a request; returns the packet size.
    fn check_request(
        &self,
        r: &ConnectRequest,
        known: Option<&Peer>,
        offer: &ConnectOffer,
    ) -> Result<u16, ConnectRefuseReason> {
        if !r.slots.is_power_of_two() || r.slots > 32 {
            return Err(ConnectRefuseReason::Invalid(InvalidField::Slots));
        }
        if r.first_req_num & (u32::from(r.slots) - 1) != 0 || r.session > MAX_SESSION {
            return Err(ConnectRefuseReason::Invalid(InvalidField::Session));
        }
        if r.credits == 0 || r.credits > 65_535 || r.pool > r.credits {
            return Err(ConnectRefuseReason::Invalid(InvalidField::Credits));
        }
        if r.peer > MAX_PEER {
            return Err(ConnectRefuseReason::Invalid(InvalidField::Peer));
        }
        if r.room.units_per_packet == 0 {
            return Err(ConnectRefuseReason::Invalid(InvalidField::Room));
        }
        if r.port == 0 || r.port != offer.addr.port {
            return Err(ConnectRefuseReason::Invalid(InvalidField::Port));
        }
        if let Some(p) = known {
            return Ok(p.data_per_packet);
        }
        let (_, path_frame) = offer.path.ok_or(ConnectRefuseReason::NoPath)?;
        let own_frame = path_frame.min(self.io.tx.max_frame()).min(usize::from(u16::MAX));
        let max_frame = r.max_frame.min(own_frame as u32);
        let headers = (FRAME_HEADER + PACKET_HEADER) as u32;
        let dpp = max_frame.saturating_sub(headers) as u16;
        if dpp < MIN_DATA_PER_PACKET {
            let needed = headers + u32::from(MIN_DATA_PER_PACKET);
            return Err(ConnectRefuseReason::PathTooSmall { max_frame, needed });
        }
        Ok(dpp)
    }

    /// Returns whether an acceptance names a peer that this endpoint does not have: the server had
    /// accepted an earlier connect, which ended here before its answer arrived. After the disconnects
    /// of all sessions that it has accepted for such a peer, the same request gets a valid answer.
    pub fn names_gone_peer(
        &self,
        a: &ConnectAccept,
        request: &ConnectRequest,
        control: u64,
    ) -> bool {
        let party = Party { endpoint_id: a.endpoint_id, control };
        a.client_peer != request.peer && !self.peers.is_with(a.client_peer, party, a.cookie)
    }

    /// Handles the server's acceptance. `addr` and `path` reach the server's datapath. The caller
    /// ensures that the answer arrived over the control connection of the request.
    /// # Errors
    /// In each case the path is not needed, and the server must be notified to drop its side.
    /// [`ConnectError::Closed`]: the answer is too late; nothing changes, even if another session
    /// has the number now. [`ConnectError::BadAnswer`]: it contradicts the request; the session has
    /// failed.
    pub fn established(
        &mut self,
        a: &ConnectAccept,
        addr: Addr,
        path: PathId,
    ) -> Result<Established, ConnectError> {
        let own = self.own_room();
        let Some(flow) = self.client_flow(a.client_session) else {
            return Err(ConnectError::Closed);
        };
        let is_asked = flow.peer.rx_cookie == a.client_cookie;
        if flow.s.state != SessionState::Connecting || !is_asked {
            return Err(ConnectError::Closed);
        }
        let (tentative, control) = (flow.s.peer, flow.s.agreed.control);
        let mut attached = None;
        if flow.accepts(a, own) {
            let reserved = flow.admission.pools.change(flow.peer, |p| p.credits.unreserve());
            attached = self.attach_peer((tentative, control), a, addr, path).zip(Some(reserved));
        }
        let Some(((name, had), reserved)) = attached else {
            self.refused(a.client_session, SessionEnd::BadAnswer);
            return Err(ConnectError::BadAnswer);
        };
        // As much growth as there is room for: the reservation counts as free again.
        let with = self.pools_with(Requests::Own, name);
        let growth = PoolGrowth { with: Some(with), pool: had, wanted: a.credits };
        let grows = self.admission.ask(&self.io, growth).now();
        let grows = grows.map_or(0, |g| g.min(reserved.max(u32::from(had == 0))));
        let (train, max_msg_size) = (self.io.cfg.train_frames, self.io.cfg.max_msg_size);
        let flow = self.awake_flow(a.client_session, |s| {
            s.connect(a, train, max_msg_size);
            !s.queue.is_empty()
        });
        if let Some(mut flow) = flow {
            flow.io.tail_loss.enable(a.schemes.recovery);
            flow.join_pool(a.credits, a.pool, grows);
            flow.start_queued();
            flow.begin_messages();
        }
        self.connect_ended();
        Ok(Established { path_unused: a.client_peer != tentative })
    }

    /// Takes the duration of the server's answer over the control connection as an estimate. Until
    /// a round trip on the datapath is measured, the retransmission timeout is at least twice that,
    /// within `Config::{rto_initial_ns, rto_max_ns}`.
    pub fn expect_round_trip(&mut self, session: SessionId, rtt_ns: u64) {
        if let Some(flow) = self.client_flow(session.index)
            && flow.id() == session
        {
            flow.peer.path.expect(rtt_ns, &flow.io.cfg);
        }
    }

    /// Makes the tentative peer live, or drops it in favour of the earlier one that the server
    /// named. Returns the name of the peer and its pool; `None`: the server named another one.
    fn attach_peer(
        &mut self,
        (tentative, control): (u32, u64),
        a: &ConnectAccept,
        addr: Addr,
        path: PathId,
    ) -> Option<(PeerName, u32)> {
        let party = Party { endpoint_id: a.endpoint_id, control };
        let p = self.peers.at_mut(a.client_peer)?;
        if a.client_peer == tentative {
            p.credits.set_room(a.room);
            p.agree(a.data_per_packet, Protection::of(a.schemes.integrity));
            p.party = party;
            p.addr = addr;
            p.set_dialed();
            p.path_id = path;
            p.remote = a.peer;
            p.tx_cookie = a.cookie;
            p.path.set_last_rx(self.io.now_ns);
        } else if p.state != PeerState::Live
            || p.party != party
            || p.data_per_packet != a.data_per_packet
            || p.tx_cookie != a.cookie
            || p.protection.integrity() != a.schemes.integrity
            || p.credits.room() != a.room
        {
            return None;
        }
        p.sessions += 1;
        p.selective |= a.schemes.recovery == Recovery::Selective;
        let limit = p.credits.limit();
        let attached = (self.peers.name_of(a.client_peer)?, limit);
        if a.client_peer == tentative {
            self.peers.known.entry(attached.0).or_default().push(tentative);
        } else {
            self.drop_peer(tentative);
        }
        Some(attached)
    }
}

impl<C> ClientFlow<'_, C> {
    /// Returns whether a server's answer is one to the request of this session. `own` is the room per
    /// packet that this endpoint has proposed.
    fn accepts(&self, a: &ConnectAccept, own: Room) -> bool {
        let frame = FRAME_HEADER + PACKET_HEADER + usize::from(a.data_per_packet);
        let recovery = a.schemes.recovery;
        (1..=self.peer.credits.asked()).contains(&a.credits)
            && a.pool >= 1
            && a.slots.is_power_of_two()
            && u32::from(a.slots) <= self.s.slots.count()
            && a.session.number <= MAX_SESSION
            && a.peer <= MAX_PEER
            && a.room.small_data <= own.small_data
            && (1..=own.units_per_packet).contains(&a.room.units_per_packet)
            && a.data_per_packet >= MIN_DATA_PER_PACKET
            && self.peer.protection.accepts(a.schemes.integrity)
            && (recovery == self.io.cfg.recovery || recovery == Recovery::GoBackN)
            && frame <= self.io.tx.max_frame()
    }
}

impl<C> ClientSession<C> {
    /// The server has accepted the session. No slot was used yet.
    fn connect(&mut self, a: &ConnectAccept, train_frames: u32, max_msg_size: u32) {
        self.state = SessionState::Connected;
        self.peer = a.client_peer;
        self.remote = a.session.number;
        self.credits = SessionCredits::new(a.credits);
        self.agreed.quantum = (a.credits / 3).min(train_frames).clamp(1, u16::MAX.into()) as u16;
        self.set_sizes(a.data_per_packet, max_msg_size.min(a.max_msg_size));
        self.agreed.recovery = a.schemes.recovery;
        if u32::from(a.slots) < self.slots.count() {
            // Numbers start one step before their first.
            let first = self.agreed.first_req_num;
            self.slots.renumber(a.slots, first.wrapping_sub(u32::from(a.slots)));
            self.free = (1u64 << a.slots).wrapping_sub(1) as u32;
        }
    }
}
