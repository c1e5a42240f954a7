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
use crate::peer::{Peer, Peers};
use crate::session::{ClientSession, ServerSession, Session, SessionId, SessionState, Sessions};
use crate::stats::RxDrop;

pub(crate) use expiry::{cancel_first_timer, is_needed, needs_no_timer};
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

/// The parts of the endpoint that all flows use.
pub(crate) struct Shared<'e, C> {
    pub(crate) io: &'e mut Io,
    pub(crate) peers: &'e mut Peers,
    pub(crate) admission: &'e mut Admission,
    pub(crate) out: &'e mut Outbox<C>,
}

impl<'e, C> Shared<'e, C> {
    /// The flow of a client session, with its peer.
    #[inline(always)]
    pub(crate) fn client(
        self,
        index: u32,
        s: &'e mut ClientSession<C>,
    ) -> Option<ClientFlow<'e, C>> {
        let Shared { io, peers, admission, out } = self;
        let peer = peers.at_mut(s.peer)?;
        Some(ClientFlow { s, peer, index, io, admission, out })
    }

    /// The flow of a server session, with its peer.
    #[inline(always)]
    pub(crate) fn server(self, index: u32, s: &'e mut ServerSession) -> Option<ServerFlow<'e, C>> {
        let Shared { io, peers, admission, out } = self;
        let peer = peers.at_mut(s.peer)?;
        Some(ServerFlow { s, peer, index, io, admission, out })
    }
}

impl<C> Endpoint<C> {
    /// The table of sessions, and what their flows share.
    #[inline(always)]
    pub(crate) fn split(&mut self) -> (&mut Sessions<C>, Shared<'_, C>) {
        let Endpoint { io, peers, sessions, admission, outbox: out, .. } = self;
        (sessions, Shared { io, peers, admission, out })
    }

    /// The client session of that number.
    #[inline(always)]
    pub(crate) fn client_flow(&mut self, index: u32) -> Option<ClientFlow<'_, C>> {
        let (sessions, shared) = self.split();
        shared.client(index, sessions.client_mut(index)?)
    }

    /// The connected client session of that number, if it belongs to `peer`.
    /// # Errors
    /// The reason for dropping its packet.
    pub(crate) fn connected_flow(
        &mut self,
        peer: u32,
        index: u32,
    ) -> Result<ClientFlow<'_, C>, RxDrop> {
        let (sessions, shared) = self.split();
        match sessions.get_mut(index as usize) {
            Some(Session::Client(s)) if s.peer == peer && s.state == SessionState::Connected => {
                shared.client(index, s).ok_or(RxDrop::UnknownPeer)
            }
            Some(Session::Server(s)) if s.peer == peer => Err(RxDrop::WrongRole),
            _ => Err(RxDrop::UnknownSession),
        }
    }

    /// The server session of that number.
    #[inline(always)]
    pub(crate) fn server_flow(&mut self, index: u32) -> Option<ServerFlow<'_, C>> {
        let (sessions, shared) = self.split();
        shared.server(index, sessions.server_mut(index)?)
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
        let (sessions, shared) = self.split();
        shared.server(index, sessions.server_of(peer, index)?).ok_or(RxDrop::UnknownPeer)
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
        let (sessions, shared) = self.split();
        let s = sessions.awake_server_of(peer, index, req_num)?;
        shared.server(index, s).ok_or(RxDrop::UnknownPeer)
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
