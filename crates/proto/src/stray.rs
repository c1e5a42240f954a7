//! Changes of the addresses of peers, for the event loop: see `moves`.

use crate::endpoint::Endpoint;
use crate::moves::{Challenge, StrayFrame, TOKEN_BITS};
use crate::peer::Party;
use crate::stats::RxDrop;
use crate::tx::TxItem;

impl<C> Endpoint<C> {
    /// The next frame of this burst that came from another address than its peer's. To be received again
    /// after the transport's path, if there is one, leads to [`StrayFrame::src`] and
    /// [`Endpoint::moved`] was called. To be called, like [`Endpoint::poll_challenge`], while
    /// [`Endpoint::has_session_news`], before [`Endpoint::poll_idle`].
    pub fn poll_stray(&mut self) -> Option<StrayFrame> {
        let kept = &mut self.outbox.moves;
        let mut stray = (!kept.stray.is_empty()).then(|| kept.stray.remove(0))?;
        // An earlier frame of the burst may have moved the peer, and spent the token.
        let Some(p) = self.peers.live(stray.peer) else { return Some(stray) };
        let is_proven =
            stray.token.is_some() && kept.token(stray.peer, self.io.now_ns) == stray.token;
        stray.moves = p.addr != stray.src && (is_proven || !p.path.has_received());
        stray.path = (stray.moves && !p.is_dialed()).then_some(p.path_id);
        Some(stray)
    }

    /// The peer of a frame has the frame's source as its address from now on.
    pub fn moved(&mut self, stray: &StrayFrame) {
        self.outbox.moves.spend(stray.peer);
        self.peers.relocate(stray.peer, stray.src);
        self.io.stats.moves += 1;
    }

    /// The transport's path cannot lead to the source of a frame, which is dropped.
    pub fn not_moved(&mut self) {
        self.refuse_frame(RxDrop::WrongSource);
    }

    /// Returns whether [`Endpoint::poll_challenge`] has to be called.
    pub fn wants_challenges(&self) -> bool {
        !self.outbox.moves.wanted.is_empty()
    }

    /// The next challenge to be sent; `None` also if its peer has ended. `random`: 64 random bits.
    pub fn poll_challenge(&mut self, random: impl FnOnce() -> u64) -> Option<Challenge> {
        let peer = self.outbox.moves.wanted.pop()?;
        let p = self.peers.live(peer)?;
        let Party { endpoint_id, control } = p.party;
        let token = self.outbox.moves.challenge(peer, random, self.io.now_ns);
        Some(Challenge { control, endpoint_id, peer: p.remote, token })
    }

    /// Handles a challenge of the endpoint `endpoint_id` that arrived over a control connection: the token
    /// is sent to the peer. Challenges that name another peer are ignored.
    pub fn on_challenge(&mut self, peer: u32, endpoint_id: u64, control: u64, token: u64) {
        let party = Party { endpoint_id, control };
        if self.peers.live(peer).is_none_or(|p| p.party != party) || token >> TOKEN_BITS != 0 {
            return;
        }
        if self.outbox.moves.proofs.insert(peer, token).is_none() {
            self.io.tx.push(TxItem::Proof { peer });
        }
    }
}
