//! Control messages: what two nexuses say to each other over a reliable byte stream (F13, E66).
//!
//! The stream starts with 8 bytes in each direction, [`CONTROL_PREAMBLE`]: `CRSR`, then the oldest
//! and the newest control version the side speaks (16 bits each, little endian). Then messages: a
//! 32-bit little-endian length, and that many bytes of a [`ControlMsg`] in postcard's format.
//! Nothing is trusted: a length above [`CONTROL_MAX`] or bytes that are no message end the
//! connection with a typed error.

use serde::{Deserialize, Serialize};

use super::connect::{ConnectAccept, ConnectRefuseReason, ConnectRequest};

/// Longest control message, bytes.
pub const CONTROL_MAX: usize = 1024;
/// Most slots that a session can have.
const MAX_SLOTS: usize = 32;
/// The control version this build speaks.
const VERSION: u16 = 6;
/// What this build sends first.
pub const CONTROL_PREAMBLE: [u8; 8] = {
    let [a, b] = VERSION.to_le_bytes();
    [b'C', b'R', b'S', b'R', a, b, a, b]
};

/// An endpoint of a nexus, as the other nexus names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EndpointRef {
    /// Its number in its nexus.
    pub index: u16,
    /// Its random number, so that a successor is never taken for it.
    pub id: u64,
}

/// A control message.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ControlMsg {
    /// A client endpoint asks for a session with endpoint `to`, or with any.
    Connect {
        /// Who asks.
        from: EndpointRef,
        /// Which endpoint of the server's nexus; `None` lets it choose.
        to: Option<u16>,
        /// What it asks for.
        request: ConnectRequest,
    },
    /// The server endpoint has agreed.
    Accept {
        /// Who asked.
        to: EndpointRef,
        /// Who agreed.
        from: EndpointRef,
        /// To what.
        accept: ConnectAccept,
    },
    /// The server has refused.
    Refuse {
        /// Who asked.
        to: EndpointRef,
        /// The client's session number.
        session: u32,
        /// Echo of the cookie in the request: tells this answer from that to an earlier connect
        /// that had the same session number.
        client_cookie: u32,
        /// Why.
        reason: ConnectRefuseReason,
    },
    /// The client has closed a session.
    Disconnect {
        /// Whose session it was.
        from: EndpointRef,
        /// The server endpoint.
        to: EndpointRef,
        /// The server's session number.
        session: u32,
    },
    /// A client session is idle: the server may free what it keeps for it (F6).
    Idle {
        /// Whose session it is.
        from: EndpointRef,
        /// The server endpoint.
        to: EndpointRef,
        /// The server's session number.
        session: u32,
        /// For each slot, 32 at most, the number of its last request, whose response has arrived.
        done: Vec<u32>,
    },
    /// Answer with [`ControlMsg::Pong`]: nothing was heard from the receiver for a while (E66).
    Ping,
    /// The answer to [`ControlMsg::Ping`].
    Pong,
    /// An endpoint is going away: all its sessions over this connection end.
    EndpointGone {
        /// Which.
        from: EndpointRef,
    },
}

/// Why a control stream cannot be understood; the connection has to be closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ControlError {
    /// The other side is not Courser.
    #[error("the other side does not speak Courser's control protocol; check host and port")]
    NotCourser,
    /// It is, but of an incompatible version.
    #[error(
        "the other side speaks control versions {theirs_oldest} to {theirs_newest}, this one \
         {ours}; upgrade the older one"
    )]
    Version {
        /// Oldest version of the other side.
        theirs_oldest: u16,
        /// Newest version of the other side.
        theirs_newest: u16,
        /// Our version.
        ours: u16,
    },
    /// A message is announced longer than any can be.
    #[error(
        "a control message is announced with {0} bytes, above the limit of {CONTROL_MAX}; check that \
         both sides run the same version"
    )]
    TooLong(u32),
    /// Bytes that are no message.
    #[error("a control message cannot be decoded; check that both sides run the same version")]
    Undecodable,
}

impl ControlMsg {
    /// The message as it goes on the stream, length first.
    pub fn encode(&self) -> Vec<u8> {
        // Serialising these plain structures to a vector has no way to fail; an empty message
        // would be refused by the other side.
        let body = postcard::to_stdvec(self).unwrap_or_default();
        debug_assert!(!body.is_empty() && body.len() <= CONTROL_MAX);
        let mut out = Vec::with_capacity(4 + body.len());
        out.extend_from_slice(&(body.len() as u32).to_le_bytes());
        out.extend_from_slice(&body);
        out
    }
}

/// Cuts a byte stream into messages. Holds at most one unfinished message.
#[derive(Debug, Default)]
pub struct ControlDecoder {
    greeted: bool,
    buf: Vec<u8>,
}

impl ControlDecoder {
    /// How many more bytes may be pushed now: what is unfinished never exceeds one message.
    pub fn room(&self) -> usize {
        (4 + CONTROL_MAX).saturating_sub(self.buf.len())
    }

    /// Adds received bytes; no more than [`ControlDecoder::room`] are taken, the count is returned.
    pub fn push(&mut self, bytes: &[u8]) -> usize {
        let n = bytes.len().min(self.room());
        self.buf.extend_from_slice(&bytes[..n]);
        n
    }

    /// Whether the other side's greeting was received and understood.
    pub fn greeted(&self) -> bool {
        self.greeted
    }

    /// The next message, when one is complete.
    ///
    /// # Errors
    /// The stream cannot be understood from here on.
    pub fn next_msg(&mut self) -> Result<Option<ControlMsg>, ControlError> {
        if !self.greeted {
            let Some(hello) = self.buf.get(..8) else { return Ok(None) };
            if hello[..4] != CONTROL_PREAMBLE[..4] {
                return Err(ControlError::NotCourser);
            }
            let theirs_oldest = u16::from_le_bytes([hello[4], hello[5]]);
            let theirs_newest = u16::from_le_bytes([hello[6], hello[7]]);
            if !(theirs_oldest..=theirs_newest).contains(&VERSION) {
                let ours = VERSION;
                return Err(ControlError::Version { theirs_oldest, theirs_newest, ours });
            }
            self.greeted = true;
            self.buf.drain(..8);
        }
        let Some(&[a, b, c, d]) = self.buf.first_chunk::<4>() else { return Ok(None) };
        let len = u32::from_le_bytes([a, b, c, d]);
        if len as usize > CONTROL_MAX {
            return Err(ControlError::TooLong(len));
        }
        let Some(body) = self.buf.get(4..4 + len as usize) else { return Ok(None) };
        let (msg, rest) = postcard::take_from_bytes(body).map_err(|_| ControlError::Undecodable)?;
        // Mailboxes count messages: none may be larger in memory than its kind.
        let oversized = matches!(&msg, ControlMsg::Idle { done, .. } if done.len() > MAX_SLOTS);
        if !rest.is_empty() || oversized {
            return Err(ControlError::Undecodable);
        }
        self.buf.drain(..4 + len as usize);
        Ok(Some(msg))
    }
}
