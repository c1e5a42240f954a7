//! The handshake's state machine (F13): what each side decides, without a socket in sight.
//!
//! ```text
//! client endpoint                                    server endpoint
//! dial() -> ConnectRequest ---------------------->   accept() -> ConnectAccept | RefuseReason
//! established() | refused() <----------------------
//! close() ------------- Disconnect -------------->   disconnected()
//! peer_lost()  (control connection gone, either side)
//! ```
//! A client that connects again to an endpoint it already talks to gets a second session of the
//! same peer: the server recognises the client's endpoint number, and the tentative peer of the
//! request is dropped.

use courser_buf::{Addr, PathId};
use serde::{Deserialize, Serialize};

use super::{ClientSession, Peer, PeerState, ServerSession, Session, SessionId, SessionState};
use crate::config::Admission;
use crate::endpoint::Endpoint;
use crate::error::CallError;
use crate::slot::{ClientSlot, ServerSlot};
use crate::wire::{FRAME_HEADER_MAX, MAX_SESSION, MIN_DATA_PER_PACKET, PACKET_HEADER};

/// Credits that an oversubscribed session gets at least.
const MIN_GRANT: u32 = 4;

/// What a client asks for. Everything in it is checked by [`Endpoint::accept`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConnectRequest {
    /// The client endpoint's random number: tells incarnations apart.
    pub endpoint_id: u64,
    /// Port of the client's datapath; the host is the one its control connection comes from.
    pub port: u32,
    /// The client's number for the session.
    pub session: u32,
    /// The client's number for the peer it proposes.
    pub peer: u32,
    /// The cookie it wants in frames to that peer.
    pub cookie: u32,
    /// Largest frame that the client can send and receive on this path, bytes.
    pub max_frame: u32,
    /// Credits wanted.
    pub credits: u32,
    /// Slots wanted.
    pub slots: u8,
    /// Largest message the client accepts.
    pub max_msg_size: u32,
    /// The first request numbers will be this plus the slot number.
    pub first_req_num: u32,
}

/// What the server agreed to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConnectAccept {
    /// The server endpoint's random number.
    pub endpoint_id: u64,
    /// Port of the server's datapath.
    pub port: u32,
    /// Echo of the client's session number.
    pub client_session: u32,
    /// Echo of the cookie in the request: tells its answer from that of an earlier connect that
    /// had the same session number.
    pub client_cookie: u32,
    /// The client's peer that the session belongs to: the one proposed, or an earlier one.
    pub client_peer: u32,
    /// The server's number for the session.
    pub session: u32,
    /// The server's number for the peer.
    pub peer: u32,
    /// The cookie it wants in frames.
    pub cookie: u32,
    /// Data bytes per packet, for all messages between the two (F10).
    pub data_per_packet: u16,
    /// Credits granted: at most what was wanted.
    pub credits: u32,
    /// Largest message the server accepts.
    pub max_msg_size: u32,
}

/// Why a server endpoint refuses a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum RefuseReason {
    /// The session table is full.
    #[error("the server endpoint already has its {limit} sessions")]
    TooManySessions {
        /// `Config::max_sessions`.
        limit: u32,
    },
    /// Strict admission: the receive queue is committed (E34).
    #[error(
        "the server's receive queue of {queue} frames cannot take {credits} credits more; \
         lower credits, raise its receive buffer, or use oversubscribed admission"
    )]
    NoCredits {
        /// |RQ|.
        queue: u32,
        /// Credits wanted.
        credits: u32,
    },
    /// A field of the request is out of its range.
    #[error("the request's {0} is out of range")]
    Invalid(InvalidField),
    /// The path cannot carry the smallest packets.
    #[error("the path carries frames of {max_frame} bytes; at least {needed} are needed")]
    PathTooSmall {
        /// What the path carries.
        max_frame: u32,
        /// What is needed.
        needed: u32,
    },
    /// No endpoint of the server takes sessions, or not the one that was named.
    #[error("the server has no such endpoint that takes sessions")]
    NoEndpoint,
    /// This client has as many sessions as one peer may have.
    #[error("the server takes no more than {limit} sessions of one peer")]
    TooManyOfPeer {
        /// `Config::max_sessions_per_peer`.
        limit: u32,
    },
    /// The server is shutting down.
    #[error("the server is shutting down; connect to another one")]
    ShuttingDown,
    /// The server cannot send to the client's address.
    #[error("the server has no path to the client's datapath address")]
    NoPath,
}

/// Which field of a request was out of range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum InvalidField {
    /// `slots`
    Slots,
    /// `credits`
    Credits,
    /// `session`
    Session,
    /// `port`
    Port,
}

impl std::fmt::Display for InvalidField {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            InvalidField::Slots => "number of slots",
            InvalidField::Credits => "number of credits",
            InvalidField::Session => "session number",
            InvalidField::Port => "port",
        })
    }
}

/// Why this endpoint cannot begin or finish a connect.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConnectError {
    /// The session table is full.
    #[error("this endpoint already has its {limit} sessions; raise max_sessions")]
    TooManySessions {
        /// `Config::max_sessions`.
        limit: usize,
    },
    /// Strict admission: the receive queue is committed (E34).
    #[error(
        "the receive queue of {queue} frames cannot take {credits} credits more; lower credits, \
         raise the receive buffer, or use oversubscribed admission"
    )]
    NoCredits {
        /// |RQ|.
        queue: u32,
        /// C.
        credits: u32,
    },
    /// The server's answer contradicts the request.
    #[error("the server's answer to the connect request makes no sense")]
    BadAnswer,
    /// The session was closed meanwhile.
    #[error("the session was closed before the server answered")]
    Closed,
}

/// A connect that has begun: send the request, and keep the session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dialed {
    /// The session; calls on it wait until it is established.
    pub session: SessionId,
    /// For the server.
    pub request: ConnectRequest,
}

/// Where and how a server reaches the client of a request.
#[derive(Clone, Copy, Debug)]
pub struct ConnectOffer {
    /// The client's datapath address: its host as the control connection shows it.
    pub addr: Addr,
    /// The path to it, unless [`Endpoint::knows_peer`] said that there is one.
    pub path: Option<(PathId, usize)>,
    /// Port of this endpoint's datapath.
    pub local_port: u32,
    /// The control connection, to be named in [`Endpoint::peer_lost`].
    pub control: u64,
    /// Random bits for the cookie.
    pub random: u32,
}

/// What an answer led to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Established {
    /// The path given to [`Endpoint::established`] is not needed: the peer had one.
    pub path_unused: bool,
}

impl<C> Endpoint<C> {
    /// Begins a session as its client. `control` names the control connection, `random` are 64
    /// random bits, `max_frame` is what the path to the server carries.
    ///
    /// # Errors
    /// A limit of this endpoint is reached; nothing changes then.
    pub fn dial(
        &mut self,
        control: u64,
        random: u64,
        local_port: u32,
        max_frame: usize,
    ) -> Result<Dialed, ConnectError> {
        let credits = self.cfg.credits;
        let queue = self.cfg.rx_queue_frames;
        if self.live_sessions >= self.cfg.max_sessions {
            return Err(ConnectError::TooManySessions { limit: self.cfg.max_sessions });
        }
        let credits = self.grant(credits).ok_or(ConnectError::NoCredits { queue, credits })?;
        let peer = self.add_peer(Peer::tentative(random as u32, control, &self.cfg));
        let slots = self.cfg.slots;
        let first_req_num = (random >> 32) as u32 & !(u32::from(slots) - 1);
        // Slots start one step before their first number.
        let start = first_req_num.wrapping_sub(u32::from(slots));
        let max_msg_size = self.cfg.max_msg_size;
        let session = self.add_session(|generation| {
            Session::Client(ClientSession {
                generation,
                state: SessionState::Connecting,
                peer,
                remote: 0,
                credits,
                credit_limit: credits,
                quantum: 1,
                data_per_packet: MIN_DATA_PER_PACKET,
                max_msg_size,
                free: (1u64 << slots).wrapping_sub(1) as u32,
                stalled: 0,
                slots: (0..u32::from(slots))
                    .map(|i| ClientSlot::new(start.wrapping_add(i)))
                    .collect(),
                queue: Default::default(),
                start_req_num: start,
                rollbacks: 0,
                retransmitted: 0,
            })
        });
        self.credits_granted += u64::from(credits);
        let request = ConnectRequest {
            endpoint_id: self.id,
            port: local_port,
            session: session.index,
            peer,
            cookie: random as u32,
            max_frame: max_frame.min(self.tx.max_frame()) as u32,
            credits,
            slots,
            max_msg_size: self.cfg.max_msg_size,
            first_req_num,
        };
        Ok(Dialed { session, request })
    }

    /// Whether an endpoint is a live peer already, at whatever address.
    pub fn knows_endpoint(&self, endpoint_id: u64) -> bool {
        let least = (endpoint_id, Addr { host: 0, port: 0 });
        let first = self.known_peers.range(least..).next();
        first.is_some_and(|((id, _), _)| *id == endpoint_id)
    }

    /// Whether an endpoint is a live peer at this address already, so that no path to it is
    /// needed in [`ConnectOffer::path`].
    pub fn knows_peer(&self, endpoint_id: u64, addr: Addr) -> bool {
        self.find_peer(endpoint_id, addr).is_some()
    }

    /// The address has to agree: an endpoint's number is no secret among its peers, and whoever
    /// shares a peer learns its cookie.
    fn find_peer(&self, endpoint_id: u64, addr: Addr) -> Option<u32> {
        self.known_peers.get(&(endpoint_id, addr)).copied()
    }

    /// Takes a client's request: makes the server side of the session.
    ///
    /// # Errors
    /// Why not; nothing changes then, and the reason is for the client.
    pub fn accept(
        &mut self,
        r: &ConnectRequest,
        offer: ConnectOffer,
    ) -> Result<ConnectAccept, RefuseReason> {
        let known = self.find_peer(r.endpoint_id, offer.addr);
        let dpp = self.check_request(r, known, &offer)?;
        let queue = self.cfg.rx_queue_frames;
        let credits =
            self.grant(r.credits).ok_or(RefuseReason::NoCredits { queue, credits: r.credits })?;
        let peer_no = known.unwrap_or_else(|| {
            let mut p = Peer::tentative(offer.random, offer.control, &self.cfg);
            p.state = PeerState::Live;
            p.endpoint_id = r.endpoint_id;
            p.addr = offer.addr;
            p.remote = r.peer;
            p.tx_cookie = r.cookie;
            p.data_per_packet = dpp;
            p.path = offer.path.map_or(PathId(u32::MAX), |(id, _)| id);
            p.last_heard_ns = self.now_ns;
            let at = self.add_peer(p);
            self.known_peers.insert((r.endpoint_id, offer.addr), at);
            at
        });
        let Some(Some(peer)) = self.peers.get_mut(peer_no as usize) else {
            return Err(RefuseReason::NoPath);
        };
        peer.sessions += 1;
        let (client_peer, cookie) = (peer.remote, peer.rx_cookie);
        let start = r.first_req_num.wrapping_sub(u32::from(r.slots));
        let max_msg_size = self.cfg.max_msg_size;
        let session = self.add_session(|generation| {
            let slots = (0..u32::from(r.slots)).map(|i| ServerSlot::new(start.wrapping_add(i)));
            Session::Server(ServerSession {
                generation,
                peer: peer_no,
                remote: r.session,
                credit_limit: credits,
                data_per_packet: dpp,
                max_msg_size: max_msg_size.min(r.max_msg_size),
                slots: slots.collect(),
                start_req_num: start,
                resent: 0,
            })
        });
        self.credits_granted += u64::from(credits);
        Ok(ConnectAccept {
            endpoint_id: self.id,
            port: offer.local_port,
            client_session: r.session,
            client_cookie: r.cookie,
            client_peer,
            session: session.index,
            peer: peer_no,
            cookie,
            data_per_packet: dpp,
            credits,
            max_msg_size,
        })
    }

    /// Checks every field of a request; gives the packet size.
    fn check_request(
        &self,
        r: &ConnectRequest,
        known: Option<u32>,
        offer: &ConnectOffer,
    ) -> Result<u16, RefuseReason> {
        if self.live_sessions >= self.cfg.max_sessions {
            return Err(RefuseReason::TooManySessions { limit: self.cfg.max_sessions as u32 });
        }
        if !r.slots.is_power_of_two() || r.slots > 32 {
            return Err(RefuseReason::Invalid(InvalidField::Slots));
        }
        if r.first_req_num & (u32::from(r.slots) - 1) != 0 || r.session > MAX_SESSION {
            return Err(RefuseReason::Invalid(InvalidField::Session));
        }
        if r.credits == 0 || r.credits > 65_535 {
            return Err(RefuseReason::Invalid(InvalidField::Credits));
        }
        if r.port == 0 || r.port != offer.addr.port {
            return Err(RefuseReason::Invalid(InvalidField::Port));
        }
        if let Some(Some(p)) = known.map(|k| &self.peers[k as usize]) {
            return Ok(p.data_per_packet);
        }
        let (_, path_frame) = offer.path.ok_or(RefuseReason::NoPath)?;
        let own_frame = path_frame.min(self.tx.max_frame()).min(usize::from(u16::MAX));
        let max_frame = r.max_frame.min(own_frame as u32);
        let headers = (FRAME_HEADER_MAX + PACKET_HEADER) as u32;
        let dpp = max_frame.saturating_sub(headers) as u16;
        if dpp < MIN_DATA_PER_PACKET {
            let needed = headers + u32::from(MIN_DATA_PER_PACKET);
            return Err(RefuseReason::PathTooSmall { max_frame, needed });
        }
        Ok(dpp)
    }

    /// Takes the server's answer. `addr` and `path` reach the server's datapath. The caller makes
    /// sure that the answer comes over the control connection that the request went over.
    ///
    /// # Errors
    /// In each case the path is not needed, and the server is to be told to drop its side.
    /// [`ConnectError::Closed`]: the answer comes too late; nothing changes, whatever session has
    /// the number now. [`ConnectError::BadAnswer`]: it makes no sense; the session has failed.
    pub fn established(
        &mut self,
        a: &ConnectAccept,
        addr: Addr,
        path: PathId,
    ) -> Result<Established, ConnectError> {
        let quantum_frames = self.cfg.train_frames;
        let Some(s) = self.client_session_at(a.client_session) else {
            return Err(ConnectError::Closed);
        };
        if s.state != SessionState::Connecting {
            return Err(ConnectError::Closed);
        }
        let wanted = s.credit_limit;
        let tentative = s.peer;
        let asked = self.peers.get(tentative as usize).and_then(Option::as_ref);
        if asked.is_none_or(|p| p.rx_cookie != a.client_cookie) {
            return Err(ConnectError::Closed);
        }
        let frame = FRAME_HEADER_MAX + PACKET_HEADER + usize::from(a.data_per_packet);
        let sane = (1..=wanted).contains(&a.credits)
            && a.session <= MAX_SESSION
            && a.data_per_packet >= MIN_DATA_PER_PACKET
            && frame <= self.tx.max_frame();
        if !sane || !self.attach_peer(tentative, a, addr, path) {
            self.refused(a.client_session);
            return Err(ConnectError::BadAnswer);
        }
        let max_msg_size = self.cfg.max_msg_size.min(a.max_msg_size);
        self.credits_granted -= u64::from(wanted - a.credits);
        if let Some(s) = self.client_session_at(a.client_session) {
            s.state = SessionState::Connected;
            s.peer = a.client_peer;
            s.remote = a.session;
            s.credits = a.credits;
            s.credit_limit = a.credits;
            s.quantum = (a.credits / 3).min(quantum_frames).max(1);
            s.data_per_packet = a.data_per_packet;
            s.max_msg_size = max_msg_size;
        }
        self.start_queued(a.client_session);
        Ok(Established { path_unused: a.client_peer != tentative })
    }

    /// Makes the tentative peer live, or drops it for the earlier one that the server named.
    fn attach_peer(&mut self, tentative: u32, a: &ConnectAccept, addr: Addr, path: PathId) -> bool {
        let now_ns = self.now_ns;
        let Some(Some(p)) = self.peers.get_mut(a.client_peer as usize) else { return false };
        if a.client_peer == tentative {
            p.state = PeerState::Live;
            p.endpoint_id = a.endpoint_id;
            p.addr = addr;
            p.path = path;
            p.remote = a.peer;
            p.tx_cookie = a.cookie;
            p.data_per_packet = a.data_per_packet;
            p.last_heard_ns = now_ns;
            self.known_peers.insert((a.endpoint_id, addr), tentative);
        } else {
            let same = p.state == PeerState::Live
                && p.endpoint_id == a.endpoint_id
                && p.data_per_packet == a.data_per_packet
                && p.tx_cookie == a.cookie;
            if !same {
                return false;
            }
        }
        p.sessions += 1;
        if a.client_peer != tentative {
            self.drop_peer(tentative);
        }
        true
    }

    /// The connect of a session has failed: its waiting calls end, never executed.
    pub fn refused(&mut self, session: u32) {
        if let Some(s) = self.client_session_at(session)
            && s.state == SessionState::Connecting
        {
            let tentative = s.peer;
            self.fail_session(session, |_| CallError::NotConnected);
            self.free_session(session);
            self.drop_peer(tentative);
        }
    }

    /// Closes a client session, also one that has failed: its calls end with
    /// [`CallError::Closed`]. Gives the server's number of it, to be disconnected over the control
    /// connection, and the path that is no longer needed. `None`: there is no such session, or the
    /// server has not answered yet; an answer that comes later is [`ConnectError::Closed`].
    pub fn close(&mut self, session: SessionId) -> Option<(u32, Option<PathId>)> {
        let s = self.client_session_at(session.index)?;
        if s.generation != session.generation {
            return None;
        }
        if s.state == SessionState::Connecting {
            self.refused(session.index);
            return None;
        }
        let (remote, peer) = (s.remote, s.peer);
        self.fail_session(session.index, CallError::Closed);
        self.free_session(session.index);
        Some((remote, self.release_peer(peer)))
    }

    /// The client has closed its side: frees the server side. `endpoint_id` must be the client's.
    /// Gives the path that is no longer needed.
    pub fn disconnected(&mut self, session: u32, endpoint_id: u64) -> Option<PathId> {
        let Some(Session::Server(s)) = self.sessions.get(session as usize) else { return None };
        let peer = s.peer;
        let owner = self.peers.get(peer as usize)?.as_ref()?.endpoint_id;
        if owner != endpoint_id {
            return None;
        }
        self.free_session(session);
        self.release_peer(peer)
    }

    /// Says which control connection a session that is still connecting uses.
    pub fn bind_control(&mut self, session: SessionId, control: u64) {
        if self.session_state(session) == SessionState::Connecting
            && let Some(s) = self.client_session_at(session.index)
        {
            let peer = s.peer;
            if let Some(Some(p)) = self.peers.get_mut(peer as usize) {
                p.control = control;
            }
        }
    }

    /// A control connection is gone: every session over it has failed. Paths that are no longer
    /// needed go to `paths`.
    pub fn peer_lost(&mut self, control: u64, paths: &mut Vec<PathId>) {
        self.fail_peers(|p| p.control == control, paths);
    }

    /// Another endpoint is gone, as its control connection says: every session with it has failed.
    /// Paths that are no longer needed go to `paths`. What a connection says of endpoints that are
    /// not its own is ignored.
    pub fn endpoint_lost(&mut self, endpoint_id: u64, control: u64, paths: &mut Vec<PathId>) {
        let least = Addr { host: 0, port: 0 };
        let most = Addr { host: u128::MAX, port: u32::MAX };
        let named = self.known_peers.range((endpoint_id, least)..=(endpoint_id, most));
        let controls = |peer: u32| match self.peers.get(peer as usize) {
            Some(Some(p)) => p.control == control,
            _ => false,
        };
        if named.map(|(_, &peer)| peer).any(controls) {
            self.fail_peers(|p| p.endpoint_id == endpoint_id && p.control == control, paths);
        }
    }

    fn fail_peers(&mut self, is_it: impl Fn(&Peer) -> bool, paths: &mut Vec<PathId>) {
        for index in 0..self.sessions.len() as u32 {
            let peer = match &self.sessions[index as usize] {
                Session::Client(s) => s.peer,
                Session::Server(s) => s.peer,
                Session::Vacant { .. } => continue,
            };
            let over = self.peers.get(peer as usize).and_then(Option::as_ref);
            if !over.is_some_and(&is_it) {
                continue;
            }
            if let Some(s) = self.client_session_at(index) {
                if s.state == SessionState::Connecting {
                    self.refused(index);
                    continue;
                }
                self.fail_session(index, CallError::PeerFailed);
            }
            self.free_session(index);
            paths.extend(self.release_peer(peer));
        }
    }

    /// C for one more session, by the rule of admission (F7); `None`: none is left.
    fn grant(&self, wanted: u32) -> Option<u32> {
        let queue = u64::from(self.cfg.rx_queue_frames);
        let fits = self.credits_granted + u64::from(wanted) <= queue;
        match self.cfg.admission {
            _ if fits => Some(wanted),
            Admission::Strict => None,
            Admission::Oversubscribed => {
                let share = queue / (self.live_sessions as u64 + 1);
                Some((share as u32).clamp(MIN_GRANT.min(wanted), wanted))
            }
        }
    }

    fn add_peer(&mut self, peer: Peer) -> u32 {
        let at = self.vacant_peers.pop().unwrap_or_else(|| {
            self.peers.push(None);
            self.peers.len() as u32 - 1
        });
        self.peers[at as usize] = Some(peer);
        at
    }

    fn drop_peer(&mut self, peer: u32) -> Option<Peer> {
        let dropped = self.peers.get_mut(peer as usize)?.take()?;
        self.vacant_peers.push(peer);
        let name = (dropped.endpoint_id, dropped.addr);
        if self.known_peers.get(&name) == Some(&peer) {
            self.known_peers.remove(&name);
        }
        Some(dropped)
    }

    /// One session less; the peer goes with its last one.
    fn release_peer(&mut self, peer: u32) -> Option<PathId> {
        let p = self.peers.get_mut(peer as usize)?.as_mut()?;
        p.sessions = p.sessions.saturating_sub(1);
        if p.sessions > 0 {
            return None;
        }
        self.drop_peer(peer).map(|p| p.path)
    }

    fn add_session(&mut self, make: impl FnOnce(u32) -> Session<C>) -> SessionId {
        let vacant = |s: &Session<C>| matches!(s, Session::Vacant { .. });
        let index = match self.vacant.pop() {
            Some(index) => index,
            None => {
                self.sessions.push(Session::Vacant { generation: 0 });
                self.sessions.len() as u32 - 1
            }
        };
        let entry = &mut self.sessions[index as usize];
        debug_assert!(vacant(entry));
        let generation = match entry {
            Session::Vacant { generation } => *generation,
            _ => 0,
        };
        *entry = make(generation);
        self.live_sessions += 1;
        SessionId { index, generation }
    }

    fn free_session(&mut self, index: u32) {
        let Some(entry) = self.sessions.get_mut(index as usize) else { return };
        let (generation, credits) = match entry {
            Session::Client(s) => (s.generation, s.credit_limit),
            Session::Server(s) => (s.generation, s.credit_limit),
            Session::Vacant { .. } => return,
        };
        *entry = Session::Vacant { generation: generation.wrapping_add(1) };
        self.vacant.push(index);
        self.live_sessions -= 1;
        self.credits_granted -= u64::from(credits);
    }
}
