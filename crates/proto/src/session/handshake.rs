//! The decisions of the handshake on both sides (ADR 13), without I/O.

use courser_buf::{Addr, PathId};

use super::admission::Requests;
use super::connect::InvalidField;
use super::room::AwaitedRoom;
use super::{
    Agreed, ClientCounters, ClientSession, ConnectAccept, ConnectError, ConnectOffer,
    ConnectRefuseReason, ConnectRequest, Dialed, Established, QueueTimes, RemoteSession, Schemes,
    ServerSession, Session, SessionId, SessionState, Slots,
};
use crate::credits::{Room, SessionCredits};
use crate::endpoint::Endpoint;
use crate::error::SessionEnd;
use crate::integrity::{Integrity, Protection};
use crate::loss::Recovery;
use crate::peer::{Party, Peer, PeerState};
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
        let pool = self
            .growth(Requests::Own, None, 0, credits)
            .ok_or(ConnectError::NoCredits { queue, credits })?;
        let peer = self.peers.add(Peer::tentative(random as u32, &self.io.cfg));
        self.reserve_pool(peer, credits, pool);
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

    /// Requests at least this protection of frames for a connecting session.
    pub fn require_integrity(
        &mut self,
        session: SessionId,
        request: &mut ConnectRequest,
        integrity: Integrity,
    ) {
        request.integrity = integrity;
        if let Some(flow) = self.client_flow(session.index)
            && flow.peer.state == PeerState::Tentative
        {
            flow.peer.protection = Protection::of(integrity);
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
        let queue = self.io.cfg.rx_queue_frames;
        let credits = r.credits.min(self.io.cfg.credits).min(offer.credits.max(1));
        let has =
            known.and_then(|k| self.peers[k as usize].as_ref()).map_or(0, |p| p.credits.granted());
        let grows = self
            .growth(Requests::Peers, Some((r.endpoint_id, offer.addr)), has, credits)
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
        let Some(Some(peer)) = self.peers.get_mut(peer_no as usize) else {
            return Err(ConnectRefuseReason::NoPath);
        };
        peer.sessions += 1;
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
        self.admission.quotas.add_unused(quota, session, |s| sessions.is_unused(s));
        self.be_selective(peer_no, recovery);
        let pool = self.grant_pool(peer_no, credits, grows);
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
        known: Option<u32>,
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
        if let Some(Some(p)) = known.map(|k| &self.peers[k as usize]) {
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
        let (quantum_frames, own) = (self.io.cfg.train_frames, self.own_room());
        let recovery = self.io.cfg.recovery;
        let Some(s) = self.sessions.client_mut(a.client_session) else {
            return Err(ConnectError::Closed);
        };
        if s.state != SessionState::Connecting {
            return Err(ConnectError::Closed);
        }
        let wanted_slots = s.slots.count();
        let (tentative, control) = (s.peer, s.agreed.control);
        let asked = self.peers.get(tentative as usize).and_then(Option::as_ref);
        let Some(asked) = asked.filter(|p| p.rx_cookie == a.client_cookie) else {
            return Err(ConnectError::Closed);
        };
        let (wanted, protection) = (asked.credits.asked(), asked.protection);
        let frame = FRAME_HEADER + PACKET_HEADER + usize::from(a.data_per_packet);
        let sane = (1..=wanted).contains(&a.credits)
            && a.pool >= 1
            && a.slots.is_power_of_two()
            && u32::from(a.slots) <= wanted_slots
            && a.session.number <= MAX_SESSION
            && a.peer <= MAX_PEER
            && a.room.small_data <= own.small_data
            && (1..=own.units_per_packet).contains(&a.room.units_per_packet)
            && a.data_per_packet >= MIN_DATA_PER_PACKET
            && protection.accepts(a.schemes.integrity)
            && (a.schemes.recovery == recovery || a.schemes.recovery == Recovery::GoBackN)
            && frame <= self.io.tx.max_frame();
        let reserved = if sane { self.unreserve_pool(tentative) } else { 0 };
        if !sane || !self.attach_peer((tentative, control), a, addr, path) {
            self.refused(a.client_session, SessionEnd::BadAnswer);
            return Err(ConnectError::BadAnswer);
        }
        self.be_selective(a.client_peer, a.schemes.recovery);
        self.io.tail_loss.enable(a.schemes.recovery);
        self.join_pool(a.client_peer, a.credits, a.pool, reserved);
        let max_msg_size = self.io.cfg.max_msg_size.min(a.max_msg_size);
        if let Some(s) = self.sessions.client_mut(a.client_session) {
            s.state = SessionState::Connected;
            s.peer = a.client_peer;
            s.remote = a.session.number;
            s.credits = SessionCredits::new(a.credits);
            s.agreed.quantum = (a.credits / 3).min(quantum_frames).clamp(1, u16::MAX.into()) as u16;
            s.set_sizes(a.data_per_packet, max_msg_size);
            s.agreed.recovery = a.schemes.recovery;
            if u32::from(a.slots) < wanted_slots {
                // Numbers start one step before their first: no call has used any yet.
                let first = s.agreed.first_req_num;
                s.slots.renumber(a.slots, first.wrapping_sub(u32::from(a.slots)));
                s.free = (1u64 << a.slots).wrapping_sub(1) as u32;
            }
        }
        self.connect_ended();
        if let Some(mut flow) = self.awake_flow(a.client_session, |s| !s.queue.is_empty()) {
            flow.start_queued();
            flow.begin_messages();
        }
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

    /// A session with a peer uses this scheme.
    fn be_selective(&mut self, peer: u32, recovery: Recovery) {
        if let Some(Some(p)) = self.peers.get_mut(peer as usize) {
            p.selective |= recovery == Recovery::Selective;
        }
    }

    /// Makes the tentative peer live, or drops it in favour of the earlier one that the server
    /// named.
    fn attach_peer(
        &mut self,
        (tentative, control): (u32, u64),
        a: &ConnectAccept,
        addr: Addr,
        path: PathId,
    ) -> bool {
        let now_ns = self.io.now_ns;
        let party = Party { endpoint_id: a.endpoint_id, control };
        let Some(p) = self.peers.at_mut(a.client_peer) else { return false };
        p.sessions += 1;
        if a.client_peer == tentative {
            p.credits.set_room(a.room);
            p.agree(a.data_per_packet, Protection::of(a.schemes.integrity));
            p.party = party;
            p.addr = addr;
            p.path_id = path;
            p.remote = a.peer;
            p.tx_cookie = a.cookie;
            p.path.set_last_rx(now_ns);
            self.peers.known.entry((a.endpoint_id, addr)).or_default().push(tentative);
            return true;
        }
        let same = p.state == PeerState::Live
            && p.party == party
            && p.data_per_packet == a.data_per_packet
            && p.tx_cookie == a.cookie
            && p.protection.integrity() == a.schemes.integrity
            && p.credits.room() == a.room;
        if !same {
            p.sessions -= 1;
            return false;
        }
        self.drop_peer(tentative);
        true
    }
}
