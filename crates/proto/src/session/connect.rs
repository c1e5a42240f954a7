//! The messages of the handshake (ADR 13) and the reasons for refusal. `handshake` has the decisions,
//! `lost` the ends of sessions.
//!
//! ```text
//! client endpoint                                    server endpoint
//! dial() -> ConnectRequest ---------------------->   accept() -> ConnectAccept | ConnectRefuseReason
//! established() | refused() <----------------------
//! close() ------------- Disconnect -------------->   disconnected()
//! peer_lost()  (control connection gone, either side)
//! ```
//! A client that connects again to an endpoint it already talks to gets a second session of the
//! same peer: the server recognises the client's endpoint number, and the tentative peer of the
//! request is dropped.

use courser_buf::{Addr, PathId};
use serde::{Deserialize, Serialize};

use super::SessionId;
use crate::credits::Room;
use crate::integrity::Integrity;
use crate::loss::Recovery;

/// An endpoint of a nexus, as named by the other nexus.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EndpointRef {
    /// Its number in its nexus.
    pub index: u16,
    /// Its random number, which distinguishes it from a successor.
    pub id: u64,
}

/// Names one session of a server. Its number alone does not: after an eviction the server can use it
/// again, for the same client too, before a message about the earlier session arrives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RemoteSession {
    /// The server's number for it.
    pub number: u32,
    /// The first request number, which the client chose at random.
    pub first_req_num: u32,
}

/// A client's request for a session. [`crate::Endpoint::accept`] checks every field.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConnectRequest {
    /// The client endpoint's random number: identifies its incarnation.
    pub endpoint_id: u64,
    /// Port of the client's datapath; the host is that of its control connection.
    pub port: u32,
    /// The client's number for the session.
    pub session: u32,
    /// The client's number for the peer it proposes.
    pub peer: u32,
    /// The cookie that the client requires in frames to that peer.
    pub cookie: u32,
    /// Largest frame that the client can send and receive on this path, bytes.
    pub max_frame: u32,
    /// Requested credits: C of the session.
    pub credits: u32,
    /// Requested growth of its endpoint's pool: at most `credits`.
    pub pool: u32,
    /// Requested slots.
    pub slots: u8,
    /// Largest message the client accepts.
    pub max_msg_size: u32,
    /// The first request numbers are this plus the slot number. Random: see [`RemoteSession`].
    pub first_req_num: u32,
    /// The client's loss recovery scheme.
    pub recovery: Recovery,
    /// The least protection of frames that the client accepts.
    pub integrity: Integrity,
    /// Largest room that packets take in the pool.
    pub room: Room,
}

/// The agreement of the server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConnectAccept {
    /// The server endpoint's random number: identifies its incarnation.
    pub endpoint_id: u64,
    /// Port of the server's datapath; [`ConnectAccept::DIALED_PORT`] on the network, where it is that of
    /// the control connection.
    pub port: u32,
    /// Echo of the client's session number.
    pub client_session: u32,
    /// Echo of the cookie in the request: distinguishes the answer from that to an earlier connect
    /// with the same session number.
    pub client_cookie: u32,
    /// The client's peer that the session belongs to: the one proposed, or an earlier one.
    pub client_peer: u32,
    /// The session, with an echo of the request's first request number.
    pub session: RemoteSession,
    /// The server's number for the peer.
    pub peer: u32,
    /// The cookie that the server requires in frames.
    pub cookie: u32,
    /// Data bytes per packet, for all messages between the two (ADR 10).
    pub data_per_packet: u16,
    /// Granted credits: at most the requested ones.
    pub credits: u32,
    /// The pool of all sessions of the client endpoint with this endpoint (ADR 7), including this one:
    /// at least 1. It grows with sessions, as long as the receive queue has room.
    pub pool: u32,
    /// Granted slots: a power of two, at most the requested ones.
    pub slots: u8,
    /// Largest message the server accepts.
    pub max_msg_size: u32,
    /// The agreed schemes.
    pub schemes: Schemes,
    /// Room that packets take in the pool: at most the client's proposal.
    pub room: Room,
}

impl ConnectAccept {
    /// On the network instead of a port: the port that the client has dialed for the control connection. A
    /// translation of addresses between the two may have given the server another port than its own.
    pub const DIALED_PORT: u32 = 0;
}

/// The schemes that two endpoints have agreed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Schemes {
    /// Loss recovery of the session: the client's, or [`Recovery::GoBackN`].
    pub recovery: Recovery,
    /// The protection of all frames between the two, at least what the client requested.
    pub integrity: Integrity,
}

/// Why a server endpoint refuses a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectRefuseReason {
    /// The session table is full.
    #[error(
        "the server endpoint already has its {limit} sessions; connect to another or raise its max_sessions"
    )]
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
        /// Requested credits.
        credits: u32,
    },
    /// A field of the request is out of its range.
    #[error("the request's {0} is out of range; check that both sides run the same version")]
    Invalid(InvalidField),
    /// The path cannot carry the smallest packets.
    #[error("the path carries frames of {max_frame} bytes and {needed} are needed; raise its MTU")]
    PathTooSmall {
        /// Largest frame of the path.
        max_frame: u32,
        /// Smallest frame needed.
        needed: u32,
    },
    /// No endpoint of the server accepts sessions, or not the named one.
    #[error(
        "the server has no such endpoint that takes sessions; register a handler there (Rpc::on), \
         or check the number behind the slash of the address"
    )]
    NoEndpoint,
    /// This client has the maximum number of sessions of a peer.
    #[error(
        "the server takes no more than {limit} sessions of one peer; close some, or raise its \
         max_sessions_per_peer"
    )]
    TooManyOfPeer {
        /// `Config::max_sessions_per_peer`.
        limit: u32,
    },
    /// The server is shutting down.
    #[error("the server is shutting down; connect to another one")]
    ShuttingDown,
    /// The server cannot send to the client's address.
    #[error(
        "the server has no path to the client's datapath address; check the routes between both hosts"
    )]
    NoPath,
    /// The clients of this address have the maximum number of sessions of one address.
    #[error(
        "the server takes no more than {limit} sessions of one address; close some, or raise its \
         max_sessions_per_address"
    )]
    TooManyOfAddress {
        /// `Config::max_sessions_per_address`.
        limit: u32,
    },
    /// This client has sessions of the maximum number of endpoints of a peer.
    #[error(
        "the server takes sessions of no more than {limit} endpoints of one peer; connect from fewer \
         endpoints, or raise its max_paths_per_peer"
    )]
    TooManyPathsOfPeer {
        /// `Config::max_paths_per_peer`.
        limit: u32,
    },
    /// The server endpoint has its maximum number of paths.
    #[error(
        "the server endpoint already has its {limit} paths to clients; connect to another, or raise \
         the limit of its transport"
    )]
    TooManyPaths {
        /// The limit of its transport.
        limit: u32,
    },
    /// The server's system gives it no descriptor or memory for a path to the client.
    #[error(
        "the server has no descriptor or memory for a path to this endpoint; raise its limit of open \
         files (`ulimit -n`), free memory there, or try again later"
    )]
    Exhausted,
}

/// The field of a request that was out of range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum InvalidField {
    /// `slots`
    Slots,
    /// `credits`
    Credits,
    /// `session`
    Session,
    /// `port`
    Port,
    /// `peer`
    Peer,
    /// `units_per_packet`
    Room,
}

impl std::fmt::Display for InvalidField {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            InvalidField::Slots => "number of slots",
            InvalidField::Credits => "number of credits",
            InvalidField::Session => "session number",
            InvalidField::Port => "port",
            InvalidField::Peer => "peer number",
            InvalidField::Room => "room of a packet",
        })
    }
}

/// Why this endpoint cannot start or finish a connect.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The session table is full.
    #[error("this endpoint already has its {limit} sessions; close some or raise max_sessions")]
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
    #[error(
        "the server's answer contradicts the connect request; check that both sides run the same version"
    )]
    BadAnswer,
    /// The session was closed before the answer.
    #[error("the session was closed before the server answered; connect again")]
    Closed,
}

/// A connect that has begun: the caller sends the request and keeps the session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dialed {
    /// The session; calls on it wait until it is established.
    pub session: SessionId,
    /// To be sent to the server.
    pub request: ConnectRequest,
}

/// The control connection over which a connect request is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectOver {
    /// Its number, to be passed to [`crate::Endpoint::peer_lost`].
    pub control: u64,
    /// The least protection of frames that this endpoint requests.
    pub integrity: Integrity,
    /// The server is on the same host: the session requests all of [`crate::Config::credits`], as far as
    /// there is room, and not only [`crate::Config::credits_remote`].
    pub same_host: bool,
}

/// How a server reaches the client of a request.
#[derive(Clone, Copy, Debug)]
pub struct ConnectOffer {
    /// The client's datapath address, with the host of its control connection.
    pub addr: Addr,
    /// The path to it, unless [`crate::Endpoint::knows_peer`] returned true.
    pub path: Option<(PathId, usize)>,
    /// Port of this endpoint's datapath.
    pub local_port: u32,
    /// The control connection, to be passed to [`crate::Endpoint::peer_lost`].
    pub control: u64,
    /// Number of the client endpoint in its nexus.
    pub client_index: u16,
    /// Random bits for the cookie.
    pub random: u32,
    /// The least protection of frames that this endpoint accepts.
    pub integrity: Integrity,
    /// Most packets in flight that this path supports, at least 1: an upper limit of C, beside
    /// [`crate::Config::credits`].
    pub credits: u32,
}

/// Result of [`crate::Endpoint::established`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Established {
    /// The path passed to [`crate::Endpoint::established`] is not needed: the peer had one.
    pub path_unused: bool,
}

/// A session that the server has evicted because it was never used, to make room for another, or for
/// another control connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Evicted {
    /// The control connection.
    pub control: u64,
    /// The client endpoint.
    pub client: EndpointRef,
    /// The client's session number.
    pub session: u32,
    /// The server's session number.
    pub own: u32,
}
