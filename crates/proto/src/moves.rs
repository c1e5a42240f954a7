//! Peers whose port differs from the stated one, or changes: translation of addresses (NAT).
//!
//! At connect an endpoint states the port of its datapath, and its host is that of its control
//! connection. A translation on the way may give its frames another port. So a peer has the source of its
//! first valid frame. Later changes are followed only after a challenge, as a cookie can be seen on the
//! way: this endpoint sends a random token over the control connection, and the peer returns it in a
//! frame ([`Packet::Proof`]), whose source is the new address.
//!
//! The host of a client stays that of its control connection, which TCP has proven: a client cannot have
//! frames sent to another host, nor be taken for one. A server's frames may come from another host, but a
//! client goes on sending to the address that it has dialed: only that address is known to lead through a
//! translation to the server.

use std::collections::BTreeMap;

use courser_buf::{Addr, Ecn, PathId, RxFrame};

use crate::peer::Peer;
use crate::wire::{FrameHeader, Packet, parse_packet};

/// Most frames of unknown sources that are kept until the end of their burst, and their bytes.
const MAX_KEPT: usize = 128;
const MAX_KEPT_BYTES: usize = 512 * 1024;

/// A peer is challenged at most once in this time, ns.
const CHALLENGE_EACH_NS: u64 = 50_000_000;

/// A token is valid for this time, ns.
const TOKEN_NS: u64 = 3_000_000_000;

/// Bits of a token.
pub(crate) const TOKEN_BITS: u32 = 60;

/// A request to the endpoint of a peer to prove its address, to be sent over the control connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Challenge {
    /// The control connection.
    pub control: u64,
    /// The number of the peer's endpoint: see [`crate::Endpoint::id`].
    pub endpoint_id: u64,
    /// The number of this endpoint at that one.
    pub peer: u32,
    /// The token that it has to return in a frame.
    pub token: u64,
}

/// A valid frame of a peer from another address than the peer's.
#[derive(Debug)]
pub struct StrayFrame {
    pub(crate) peer: u32,
    /// The source of the frame.
    pub src: Addr,
    data: Vec<u8>,
    ecn: Ecn,
    /// The token of the proof in it.
    pub(crate) token: Option<u64>,
    /// The peer has the source's address from now on.
    pub moves: bool,
    /// The path of the transport that has to lead to that address; `None`: it stays.
    pub path: Option<PathId>,
}

impl StrayFrame {
    /// The frame, to be received again.
    pub fn frame(&self) -> RxFrame<'_> {
        RxFrame::new(self.src, &self.data, self.ecn)
    }
}

#[derive(Clone, Copy, Debug)]
struct Token {
    /// `None`: it has served.
    token: Option<u64>,
    made_ns: u64,
    sent_ns: u64,
}

/// The state of changes of address. Empty while there are none.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    /// Frames of the current burst.
    pub(crate) stray: Vec<StrayFrame>,
    /// Peers to be challenged.
    pub(crate) wanted: Vec<u32>,
    /// Tokens that peers have to return.
    tokens: BTreeMap<u32, Token>,
    /// Tokens to be returned to peers.
    pub(crate) proofs: BTreeMap<u32, u64>,
}

impl Moves {
    /// Returns whether something is to be polled.
    pub(crate) fn has_some(&self) -> bool {
        !self.stray.is_empty() || !self.wanted.is_empty()
    }

    /// A peer is removed.
    pub(crate) fn forget(&mut self, peer: u32) {
        // Its number may be used again before the end of the burst.
        self.stray.retain(|stray| stray.peer != peer);
        self.wanted.retain(|&wanted| wanted != peer);
        self.tokens.remove(&peer);
        self.proofs.remove(&peer);
    }

    /// The valid token of a peer.
    pub(crate) fn token(&self, peer: u32, now_ns: u64) -> Option<u64> {
        let valid = |t: &&Token| now_ns.saturating_sub(t.made_ns) < TOKEN_NS;
        self.tokens.get(&peer).filter(valid)?.token
    }

    /// A token has served. The next challenge still waits for its time.
    pub(crate) fn spend(&mut self, peer: u32) {
        if let Some(t) = self.tokens.get_mut(&peer) {
            t.token = None;
        }
    }

    /// Returns whether a frame can be kept.
    fn has_room(&self, frame: &RxFrame<'_>) -> bool {
        let kept = self.stray.iter().map(|stray| stray.data.len()).sum::<usize>();
        self.stray.len() < MAX_KEPT && kept + frame.data.len() <= MAX_KEPT_BYTES
    }

    /// Returns whether a challenge of a peer may be sent now.
    fn may_challenge(&self, peer: u32, now_ns: u64) -> bool {
        let recent = |t: &Token| now_ns.saturating_sub(t.sent_ns) < CHALLENGE_EACH_NS;
        !self.tokens.get(&peer).is_some_and(recent) && !self.wanted.contains(&peer)
    }

    /// Handles a frame of a peer that is valid but for its source. Keeps it until the end of the burst if the
    /// peer may move there; else it is to be dropped, and the peer may have to be challenged.
    #[cold]
    pub(crate) fn on_stray(&mut self, p: &Peer, frame: &RxFrame<'_>, now_ns: u64) -> Stray {
        let (peer, is_first) = (p.number(), !p.path.has_received());
        if !may_be_at(p, frame.src) {
            return Stray::Dropped;
        }
        let token = self.token(peer, now_ns).filter(|&t| proof_in(frame.data) == Some(t));
        if (is_first || token.is_some()) && frame.tail().is_empty() && self.has_room(frame) {
            let (src, data, ecn) = (frame.src, frame.data.to_vec(), frame.ecn);
            self.stray.push(StrayFrame { peer, src, data, ecn, token, moves: false, path: None });
            return Stray::Kept;
        }
        if is_first || !self.may_challenge(peer, now_ns) {
            return Stray::Dropped;
        }
        self.wanted.push(peer);
        Stray::Challenged
    }

    /// A proof came from the address that its peer has. Its token is of no use to others, who may have seen
    /// it.
    pub(crate) fn on_proof(&mut self, peer: u32, token: u64, now_ns: u64) {
        if self.token(peer, now_ns) == Some(token) {
            self.spend(peer);
        }
    }

    /// A challenge of a peer is sent with this token, or with the valid one that was sent before. Returns
    /// the token.
    pub(crate) fn challenge(
        &mut self,
        peer: u32,
        random: impl FnOnce() -> u64,
        now_ns: u64,
    ) -> u64 {
        let valid = self.token(peer, now_ns);
        let token = valid.unwrap_or_else(|| random() & ((1 << TOKEN_BITS) - 1));
        let entry = Token { token: Some(token), made_ns: now_ns, sent_ns: now_ns };
        let entry = self.tokens.entry(peer).and_modify(|t| t.sent_ns = now_ns).or_insert(entry);
        if valid.is_none() {
            (entry.token, entry.made_ns) = (Some(token), now_ns);
        }
        token
    }
}

/// The consequence of a frame of another source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stray {
    /// It is to be polled.
    Kept,
    /// It is dropped.
    Dropped,
    /// It is dropped, and a challenge of its peer is to be polled.
    Challenged,
}

/// The token of a proof in a frame.
fn proof_in(frame: &[u8]) -> Option<u64> {
    let (h, mut rest) = FrameHeader::parse(frame).ok()?;
    while let Ok(Some((packet, next))) = parse_packet(rest, h.data_per_packet) {
        if let Packet::Proof { token } = packet {
            return Some(token);
        }
        rest = next;
    }
    None
}

/// A peer may have this address: a client keeps the host of its control connection.
fn may_be_at(peer: &Peer, src: Addr) -> bool {
    peer.is_dialed() || peer.addr.host == src.host
}
