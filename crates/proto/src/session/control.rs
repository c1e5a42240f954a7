//! Control messages between two nexuses, over a reliable byte stream (ADR 13, E66).
//!
//! The stream starts with 8 bytes in each direction, [`CONTROL_PREAMBLE`]: `CRSR`, then the oldest
//! and the newest supported control version (16 bits each, little endian). Both sides speak the newest
//! version that both support. From version 11 on each side's [`HostIdentity`] follows, 16 bytes, when
//! the other side's preamble is known. Then messages follow: a
//! 32-bit little-endian length, and a [`ControlMsg`] of that length in postcard's format. A side that
//! takes no further connection sends a [`ControlRefusal`] in place of its preamble. No input
//! is trusted: a length above [`CONTROL_MAX`] or an undecodable message ends the connection with a
//! typed error.

use serde::{Deserialize, Serialize};

use super::connect::{
    ConnectAccept, ConnectRefuseReason, ConnectRequest, EndpointRef, RemoteSession,
};
use crate::loss::Recovery;

/// Longest control message, bytes.
pub const CONTROL_MAX: usize = 1024;
/// Most slots of a session.
const MAX_SLOTS: usize = 32;
/// The oldest and the newest control version of this build.
const OLDEST: u16 = 10;
const NEWEST: u16 = 13;
/// The first version whose greeting has the identity of the host.
const WITH_HOST: u16 = 11;
/// The first version with [`ConnectRefuseReason::Exhausted`].
const WITH_EXHAUSTED: u16 = 11;
/// The first part of the greeting of this build.
pub const CONTROL_PREAMBLE: [u8; 8] = {
    let ([a, b], [c, d]) = (OLDEST.to_le_bytes(), NEWEST.to_le_bytes());
    [b'C', b'R', b'S', b'R', a, b, c, d]
};
/// The first version with [`Recovery::GoBackZero`].
const WITH_GO_BACK_ZERO: u16 = 12;
/// The first version with [`ControlMsg::Challenge`], and with answers that name the dialed port.
const WITH_TRANSLATION: u16 = 13;
/// The oldest version of a preamble that refuses the connection; the newest one is the reason.
const REFUSED: u16 = u16::MAX;
/// The whole greeting of a side whose host is not known, to another side of this build.
pub const CONTROL_GREETING: [u8; 24] = {
    let mut bytes = [0; 24];
    let mut at = 0;
    while at < CONTROL_PREAMBLE.len() {
        bytes[at] = CONTROL_PREAMBLE[at];
        at += 1;
    }
    bytes
};

/// Identifies the host of a nexus. Addresses do not: with a proxy beside each of two processes both see
/// the loopback address at the other end, and hosts behind a translation of addresses share one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HostIdentity(pub [u8; 16]);

impl HostIdentity {
    /// All zeros: the identity is not known.
    pub const UNKNOWN: HostIdentity = HostIdentity([0; 16]);

    /// Returns whether both are known to be one host.
    pub fn is_same(self, other: HostIdentity) -> bool {
        self == other && self != HostIdentity::UNKNOWN
    }
}

/// A control message.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ControlMsg {
    /// A client endpoint requests a session with endpoint `to`, or with any.
    Connect {
        /// The client endpoint.
        from: EndpointRef,
        /// The endpoint of the server's nexus; `None`: the server chooses.
        to: Option<u16>,
        /// The request.
        request: ConnectRequest,
    },
    /// The server endpoint has agreed.
    Accept {
        /// The client endpoint.
        to: EndpointRef,
        /// The server endpoint.
        from: EndpointRef,
        /// The agreement.
        accept: ConnectAccept,
    },
    /// The server has refused.
    Refuse {
        /// The client endpoint.
        to: EndpointRef,
        /// The client's session number.
        session: u32,
        /// Echo of the cookie in the request: distinguishes the answer from that to an earlier
        /// connect with the same session number.
        client_cookie: u32,
        /// The reason.
        reason: ConnectRefuseReason,
    },
    /// The client has closed a session.
    Disconnect {
        /// The client endpoint.
        from: EndpointRef,
        /// The server endpoint.
        to: EndpointRef,
        /// The session.
        session: RemoteSession,
    },
    /// A client session is idle: the server may free its state (ADR 6).
    Idle {
        /// The client endpoint.
        from: EndpointRef,
        /// The server endpoint.
        to: EndpointRef,
        /// The server's session number.
        session: u32,
        /// For each slot, 32 at most, the number of its last request, whose response has arrived.
        done: Vec<u32>,
    },
    /// Requests a [`ControlMsg::Pong`]: nothing was received from the other side for a while (E66).
    Ping,
    /// The answer to [`ControlMsg::Ping`].
    Pong,
    /// An endpoint has ended: all its sessions over this connection end.
    EndpointGone {
        /// The endpoint.
        from: EndpointRef,
    },
    /// The server has ended a session that was never used, to make room for another.
    Evicted {
        /// The client endpoint.
        to: EndpointRef,
        /// The server endpoint.
        from: EndpointRef,
        /// The client's session number.
        session: u32,
        /// The server's session number.
        server_session: u32,
    },
    /// A frame of an endpoint came from another address than before. The endpoint proves the address with a
    /// frame.
    Challenge {
        /// The number of the challenged endpoint.
        to: u64,
        /// The number of the challenging endpoint.
        from: u64,
        /// The challenged endpoint's number for the peer.
        peer: u32,
        /// The token that the frame has to contain, 60 bits.
        token: u64,
    },
}

/// Why a nexus takes no further control connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[repr(u16)]
#[non_exhaustive]
pub enum ControlRefusal {
    /// The system gives it no descriptor, or no memory for a socket.
    #[error(
        "it has no descriptor or memory for another one; raise its limit of open files (`ulimit -n`), \
         free memory there, or try again later"
    )]
    Exhausted = 1,
    /// It has as many connections as it takes, in all or from this address.
    #[error(
        "it has as many of them as it takes, in all or from this address; raise its max_connections \
         or max_connections_per_address, or try again later"
    )]
    Connections = 2,
    /// The reason is not known to this version.
    #[error("it names a reason that this version does not know; upgrade this side")]
    Other = u16::MAX,
}

impl ControlRefusal {
    /// The bytes that the other side gets in place of a preamble.
    pub fn to_bytes(self) -> [u8; 8] {
        let ([a, b], [c, d]) = (REFUSED.to_le_bytes(), (self as u16).to_le_bytes());
        [b'C', b'R', b'S', b'R', a, b, c, d]
    }

    fn from_code(code: u16) -> Self {
        match code {
            1 => ControlRefusal::Exhausted,
            2 => ControlRefusal::Connections,
            _ => ControlRefusal::Other,
        }
    }
}

/// Why a control stream is invalid; the connection has to be closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The other side does not use Courser's protocol.
    #[error("the other side speaks another protocol, such as HTTP or TLS; check host and port")]
    NotCourser,
    /// The other side uses Courser's protocol in an incompatible version.
    #[error(
        "the other side speaks control versions {theirs_oldest} to {theirs_newest}, this one \
         {OLDEST} to {ours}; upgrade the older one"
    )]
    Version {
        /// Oldest version of the other side.
        theirs_oldest: u16,
        /// Newest version of the other side.
        theirs_newest: u16,
        /// Our newest version.
        ours: u16,
    },
    /// The other side takes no further connection.
    #[error("the server refuses the control connection: {0}")]
    Refused(ControlRefusal),
    /// A message exceeds the maximum length.
    #[error(
        "a control message is announced with {0} bytes, above the limit of {CONTROL_MAX}; check that \
         both sides run the same version"
    )]
    TooLong(u32),
    /// The bytes are not a valid message.
    #[error("a control message cannot be decoded; check that both sides run the same version")]
    Undecodable,
}

impl ControlMsg {
    /// The encoded message, length first.
    pub fn encode(&self) -> Vec<u8> {
        // Serialising these plain structures to a vector cannot fail; the other side would reject
        // an empty message.
        let body = postcard::to_stdvec(self).unwrap_or_default();
        debug_assert!(!body.is_empty() && body.len() <= CONTROL_MAX);
        let mut out = Vec::with_capacity(4 + body.len());
        out.extend_from_slice(&(body.len() as u32).to_le_bytes());
        out.extend_from_slice(&body);
        out
    }
}

/// Splits a byte stream into messages. Holds at most one incomplete message.
#[derive(Debug, Default)]
pub struct ControlDecoder {
    greeted: bool,
    /// The version that both sides speak; 0: not known yet.
    version: u16,
    host: HostIdentity,
    buf: Vec<u8>,
}

impl ControlDecoder {
    /// Number of bytes that may be pushed now: an incomplete message never exceeds the maximum.
    pub fn room(&self) -> usize {
        (4 + CONTROL_MAX).saturating_sub(self.buf.len())
    }

    /// Adds received bytes, at most [`ControlDecoder::room`]; returns how many were taken.
    pub fn push(&mut self, bytes: &[u8]) -> usize {
        let n = bytes.len().min(self.room());
        self.buf.extend_from_slice(&bytes[..n]);
        n
    }

    /// Encodes a message for the version that both sides speak; no bytes if that does not have it.
    pub fn encode(&self, msg: &ControlMsg) -> Vec<u8> {
        match msg {
            // Earlier versions cannot decode the scheme. Go-back-N is agreed on with each server that has
            // not set the same one.
            &ControlMsg::Connect { from, to, ref request }
                if request.recovery == Recovery::GoBackZero && self.version < WITH_GO_BACK_ZERO =>
            {
                let recovery = Recovery::GoBackN;
                let request = ConnectRequest { recovery, ..request.clone() };
                ControlMsg::Connect { from, to, request }.encode()
            }
            // Earlier versions do not know the reason.
            &ControlMsg::Refuse { to, session, client_cookie, reason }
                if reason == ConnectRefuseReason::Exhausted && self.version < WITH_EXHAUSTED =>
            {
                let reason = ConnectRefuseReason::NoPath;
                ControlMsg::Refuse { to, session, client_cookie, reason }.encode()
            }
            // Earlier versions stay at the address of their connect.
            ControlMsg::Challenge { .. } if self.version < WITH_TRANSLATION => Vec::new(),
            msg => msg.encode(),
        }
    }

    /// Returns whether both sides know [`ConnectAccept::DIALED_PORT`].
    pub fn names_dialed_port(&self) -> bool {
        self.version >= WITH_TRANSLATION
    }

    /// Returns whether the other side expects the identity of this side's host.
    pub fn wants_host(&self) -> bool {
        self.version >= WITH_HOST
    }

    /// The other side's host.
    pub fn host(&self) -> HostIdentity {
        self.host
    }

    /// Returns whether a compatible greeting was received.
    pub fn greeted(&self) -> bool {
        self.greeted
    }

    /// The next complete message.
    /// # Errors
    /// The stream is invalid from here on.
    pub fn next_msg(&mut self) -> Result<Option<ControlMsg>, ControlError> {
        if !self.greeted && !self.greet()? {
            return Ok(None);
        }
        let Some(&[a, b, c, d]) = self.buf.first_chunk::<4>() else { return Ok(None) };
        let len = u32::from_le_bytes([a, b, c, d]);
        if len as usize > CONTROL_MAX {
            return Err(ControlError::TooLong(len));
        }
        let Some(body) = self.buf.get(4..4 + len as usize) else { return Ok(None) };
        let (msg, rest) = postcard::take_from_bytes(body).map_err(|_| ControlError::Undecodable)?;
        // Mailboxes limit the number of messages, so the size of each kind has to be bounded.
        let oversized = matches!(&msg, ControlMsg::Idle { done, .. } if done.len() > MAX_SLOTS);
        if !rest.is_empty() || oversized {
            return Err(ControlError::Undecodable);
        }
        self.buf.drain(..4 + len as usize);
        Ok(Some(msg))
    }

    /// Reads the greeting; `false`: it is not complete.
    fn greet(&mut self) -> Result<bool, ControlError> {
        if self.version == 0 {
            // Another protocol may answer with less than a greeting, such as an alert of TLS.
            if !CONTROL_PREAMBLE.starts_with(&self.buf[..self.buf.len().min(4)]) {
                return Err(ControlError::NotCourser);
            }
            let Some(hello) = self.buf.get(..8) else { return Ok(false) };
            let theirs_oldest = u16::from_le_bytes([hello[4], hello[5]]);
            let theirs_newest = u16::from_le_bytes([hello[6], hello[7]]);
            if theirs_oldest == REFUSED {
                return Err(ControlError::Refused(ControlRefusal::from_code(theirs_newest)));
            }
            let version = theirs_newest.min(NEWEST);
            if version < theirs_oldest.max(OLDEST) {
                let ours = NEWEST;
                return Err(ControlError::Version { theirs_oldest, theirs_newest, ours });
            }
            self.version = version;
            self.buf.drain(..8);
        }
        if self.version >= WITH_HOST {
            let Some(host) = self.buf.first_chunk() else { return Ok(false) };
            self.host = HostIdentity(*host);
            self.buf.drain(..self.host.0.len());
        }
        self.greeted = true;
        Ok(true)
    }
}
