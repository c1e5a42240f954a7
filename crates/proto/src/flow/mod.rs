//! A session together with the parts of the endpoint that its packets, calls and timers need.
//!
//! A flow is found once for each packet, call or timer: it borrows the entries of the session and of
//! its peer, and what all sessions share beside them. Its methods do not look sessions up. Consequences for other
//! sessions go to queues that the endpoint works off: the transmit queue, the timers, and the outbox.

mod answer;
mod call;
mod ending;
mod expiry;
mod fetch;
mod idle;
mod queue;
mod start;
mod wake;

use crate::admission::Admission;
use crate::endpoint::{Endpoint, Outbox};
use crate::event::RequestId;
use crate::io::Io;
use crate::mutant::{self, Mutant};
use crate::peer::Peer;
use crate::session::{ClientSession, ServerSession, Session, SessionId, SessionState};
use crate::stats::RxDrop;

pub(crate) use expiry::{is_needed, needs_no_timer};
pub(crate) use queue::end_without_slot;
pub(crate) use wake::slot_timeout_ns;

/// A client session and what it shares with other sessions.
#[derive(Debug)]
pub(crate) struct ClientFlow<'e, C> {
    pub(crate) s: &'e mut ClientSession<C>,
    pub(crate) peer: &'e mut Peer,
    /// The session's number.
    pub(crate) index: u32,
    pub(crate) io: &'e mut Io,
    pub(crate) admission: &'e mut Admission,
    pub(crate) out: &'e mut Outbox<C>,
}

/// A server session and what it shares with other sessions.
#[derive(Debug)]
pub(crate) struct ServerFlow<'e, C> {
    pub(crate) s: &'e mut ServerSession,
    pub(crate) peer: &'e mut Peer,
    /// The session's number.
    pub(crate) index: u32,
    pub(crate) io: &'e mut Io,
    pub(crate) admission: &'e mut Admission,
    pub(crate) out: &'e mut Outbox<C>,
}

impl<C> ClientFlow<'_, C> {
    #[inline]
    pub(crate) fn id(&self) -> SessionId {
        SessionId { index: self.index, generation: self.s.generation }
    }

    /// The slot of a request that has a call.
    /// # Errors
    /// The reason for dropping its packet.
    #[inline]
    pub(crate) fn slot_of(&self, req_num: u32) -> Result<u8, RxDrop> {
        let slot_no = (req_num & (self.s.slots.count() - 1)) as u8;
        let Some(slot) = self.s.slots.get(usize::from(slot_no)) else {
            return Err(self.s.slots.late(req_num));
        };
        let old_taken = slot.active && mutant::is_on(Mutant::OldAnswerTaken);
        if slot.active && slot.req_num == req_num || old_taken {
            return Ok(slot_no);
        }
        let ahead = req_num.wrapping_sub(slot.req_num);
        let future = ahead != 0 && ahead < 1 << 31;
        Err(if future { RxDrop::Future } else { RxDrop::Stale })
    }
}

impl<C> ServerFlow<'_, C> {
    #[inline]
    pub(crate) fn id(&self) -> SessionId {
        SessionId { index: self.index, generation: self.s.generation }
    }
}

impl<C> Endpoint<C> {
    /// The client session of that number.
    #[inline(always)]
    pub(crate) fn client_flow(&mut self, index: u32) -> Option<ClientFlow<'_, C>> {
        let Endpoint { io, peers, sessions, admission, outbox: out, .. } = self;
        let s = sessions.client_mut(index)?;
        let peer = peers.at_mut(s.peer)?;
        Some(ClientFlow { s, peer, index, io, admission, out })
    }

    /// The connected client session of that number, if it belongs to `peer`.
    /// # Errors
    /// The reason for dropping its packet.
    pub(crate) fn connected_flow(
        &mut self,
        peer: u32,
        index: u32,
    ) -> Result<ClientFlow<'_, C>, RxDrop> {
        let Endpoint { io, peers, sessions, admission, outbox: out, .. } = self;
        match sessions.get_mut(index as usize) {
            Some(Session::Client(s)) if s.peer == peer && s.state == SessionState::Connected => {
                let peer = peers.at_mut(peer).ok_or(RxDrop::UnknownPeer)?;
                Ok(ClientFlow { s, peer, index, io, admission, out })
            }
            Some(Session::Server(s)) if s.peer == peer => Err(RxDrop::WrongRole),
            _ => Err(RxDrop::UnknownSession),
        }
    }

    /// The server session of that number.
    #[inline(always)]
    pub(crate) fn server_flow(&mut self, index: u32) -> Option<ServerFlow<'_, C>> {
        let Endpoint { io, peers, sessions, admission, outbox: out, .. } = self;
        let s = sessions.server_mut(index)?;
        let peer = peers.at_mut(s.peer)?;
        Some(ServerFlow { s, peer, index, io, admission, out })
    }

    /// The server session of that number, if it belongs to `peer`.
    /// # Errors
    /// The reason for dropping its packet.
    #[inline(always)]
    pub(crate) fn server_flow_of(
        &mut self,
        peer: u32,
        index: u32,
    ) -> Result<ServerFlow<'_, C>, RxDrop> {
        let Endpoint { io, peers, sessions, admission, outbox: out, .. } = self;
        let s = sessions.server_of(peer, index)?;
        let peer = peers.at_mut(peer).ok_or(RxDrop::UnknownPeer)?;
        Ok(ServerFlow { s, peer, index, io, admission, out })
    }

    /// The server session of a request packet, with its slots. Allocates those of an idle session
    /// for the next request of a slot.
    /// # Errors
    /// The reason for dropping the packet, which is late.
    pub(crate) fn awake_server_flow(
        &mut self,
        peer: u32,
        index: u32,
        req_num: u32,
    ) -> Result<ServerFlow<'_, C>, RxDrop> {
        let Endpoint { io, peers, sessions, admission, outbox: out, .. } = self;
        let s = sessions.awake_server_of(peer, index, req_num)?;
        let peer = peers.at_mut(peer).ok_or(RxDrop::UnknownPeer)?;
        Ok(ServerFlow { s, peer, index, io, admission, out })
    }

    /// The server session of a request that is its slot's current one.
    #[inline]
    pub(crate) fn request_flow(&mut self, id: RequestId) -> Option<ServerFlow<'_, C>> {
        let flow = self.server_flow(id.session().index)?;
        let slot = flow.s.slots.get(usize::from(id.slot()))?;
        let is_current =
            flow.s.generation == id.session().generation && slot.req_num == id.req_num();
        is_current.then_some(flow)
    }
}
