//! The endpoint and the control connection that a session, a peer or a request belongs to.

use courser_buf::Addr;

use super::ConnectRequest;
use crate::endpoint::Endpoint;
use crate::flow::{ClientFlow, ServerFlow};
use crate::peer::{Peer, PeerState};

impl<C> ClientFlow<'_, C> {
    /// The other endpoint of the session, unknown before the handshake, and its control connection.
    pub(super) fn party(&self) -> (Option<u64>, u64) {
        (self.peer.endpoint(), self.s.agreed.control)
    }
}

impl<C> ServerFlow<'_, C> {
    /// The client endpoint of the session, and its control connection.
    pub(super) fn party(&self) -> Option<(Option<u64>, u64)> {
        Some((self.peer.endpoint(), self.admission.quotas.control_of(self.s.quota)?))
    }

    /// Returns whether the session belongs to that endpoint and control connection. An endpoint's
    /// number is not secret, but a connection cannot be forged.
    pub(super) fn belongs_to(&self, endpoint_id: u64, control: u64) -> bool {
        self.party() == Some((Some(endpoint_id), control))
    }
}

impl Peer {
    /// The endpoint, if the handshake is over.
    fn endpoint(&self) -> Option<u64> {
        (self.state == PeerState::Live).then_some(self.party.endpoint_id)
    }
}

impl<C> Endpoint<C> {
    /// Returns whether an endpoint is a live peer, at any address.
    pub fn knows_endpoint(&self, endpoint_id: u64) -> bool {
        let least = (endpoint_id, Addr { host: 0, port: 0 });
        let first = self.peers.known.range(least..).next();
        first.is_some_and(|((id, _), _)| *id == endpoint_id)
    }

    /// Returns whether a client's request from this address, over this control connection, belongs
    /// to a live peer, so that [`crate::ConnectOffer::path`] is not needed.
    pub fn knows_peer(&self, r: &ConnectRequest, addr: Addr, control: u64) -> bool {
        self.find_peer(r, addr, control).is_some()
    }

    /// The live peer of a request. The control connection has to match: an endpoint's number is not
    /// secret among its peers, other processes may have the same address (behind a translation of
    /// addresses, or a proxy), and sharing a peer would reveal its cookie. The address has to match
    /// too, as the peer's path leads there.
    /// A client proposes only numbers that are free at the client. If it proposes the number of an
    /// existing peer with another cookie, it has dropped its side of that peer: it has cancelled an
    /// earlier connect whose end has not arrived here. Under that number the client expects the new
    /// cookie, and would reject frames with the old one.
    pub(super) fn find_peer(&self, r: &ConnectRequest, addr: Addr, control: u64) -> Option<&Peer> {
        let known = self.peers.known.get(&(r.endpoint_id, addr))?;
        let over = |&at: &u32| self.peers.at(at).filter(|p| p.party.control == control);
        let p = known.iter().rev().find_map(over)?;
        (p.remote != r.peer || p.tx_cookie == r.cookie).then_some(p)
    }
}
