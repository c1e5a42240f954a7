//! How sessions end: refused, closed by either side, or lost with their peer (E27, E66-E68).

use courser_buf::PathId;

use super::{Draining, RemoteSession, Session, SessionId, SessionState};
use crate::endpoint::Endpoint;
use crate::error::{CallError, Executed, SessionEnd};
use crate::event::{Notice, RequestId};
use crate::flow::ServerFlow;
use crate::mutant::{self, Mutant};
use crate::peer::Peer;
use crate::slot::{ServerPhase, ServerSlot};

impl<C> Endpoint<C> {
    /// The connect of a session has failed with `end`: its waiting calls end with
    /// [`CallError::NotConnected`], never executed.
    pub fn refused(&mut self, session: u32, end: SessionEnd) {
        if let Some(s) = self.sessions.client_mut(session)
            && s.state == SessionState::Connecting
        {
            let tentative = s.peer;
            self.fail_session(session, |_| CallError::NotConnected(end));
            self.free_session(session);
            self.drop_peer(tentative);
            self.connect_ended();
        }
    }

    /// Closes a client session, also a failed one: its calls end with [`CallError::Closed`].
    /// Returns the server's session, for a disconnect over the control connection, and the path if
    /// it is no longer needed. `None`: there is no such session, or the server has not
    /// answered yet; a later answer yields [`crate::ConnectError::Closed`].
    pub fn close(&mut self, session: SessionId) -> Option<(RemoteSession, Option<PathId>)> {
        let s = self.sessions.client_mut(session.index)?;
        if s.generation != session.generation {
            return None;
        }
        if s.state == SessionState::Connecting {
            self.refused(session.index, SessionEnd::Closed);
            return None;
        }
        let first_req_num = s.agreed.first_req_num;
        let remote = RemoteSession { number: s.remote, first_req_num };
        let (peer, control) = (s.peer, s.agreed.control);
        self.fail_session(session.index, CallError::Closed);
        self.free_session(session.index);
        Some((remote, self.leave_peer(peer, control)))
    }

    /// A path that is no longer needed; to be polled after each answer of a server and each
    /// cancelled connect.
    pub fn poll_unused_path(&mut self) -> Option<PathId> {
        self.outbox.unused_paths.pop()
    }

    /// The client has closed its side: frees the server side. Messages about sessions of other
    /// connections, or about an earlier session of that number, are ignored. Returns the path if it
    /// is no longer needed.
    pub fn disconnected(
        &mut self,
        session: RemoteSession,
        endpoint_id: u64,
        control: u64,
    ) -> Option<PathId> {
        let number = session.number;
        let s = self.owned_session(number, endpoint_id, control)?;
        if s.first_req_num != session.first_req_num {
            return None;
        }
        let peer = s.peer;
        self.free_session(number);
        self.release_peer(peer)
    }

    /// Sets the control connection of a session that is still connecting.
    pub fn bind_control(&mut self, session: SessionId, control: u64) {
        if self.session_state(session) == SessionState::Connecting
            && let Some(s) = self.sessions.client_mut(session.index)
        {
            s.agreed.control = control;
        }
    }

    /// A control connection is lost: every session over it has failed. Paths that are no longer
    /// needed go to `paths`.
    pub fn peer_lost(&mut self, control: u64, paths: &mut Vec<PathId>) {
        self.fail_sessions(|_, over| over == control, paths);
    }

    /// The control connection reports that an endpoint has ended: every session with it has failed.
    /// Paths that are no longer needed go to `paths`. Reports about endpoints of other connections
    /// are ignored.
    pub fn endpoint_lost(&mut self, endpoint_id: u64, control: u64, paths: &mut Vec<PathId>) {
        if self.knows_endpoint(endpoint_id) {
            self.fail_sessions(|id, over| id == Some(endpoint_id) && over == control, paths);
        }
    }

    /// Ends every session whose other endpoint and control connection match.
    fn fail_sessions(&mut self, meant: impl Fn(Option<u64>, u64) -> bool, paths: &mut Vec<PathId>) {
        for index in 0..self.sessions.len() as u32 {
            if !self.party_to(index).is_some_and(|(id, over)| meant(id, over)) {
                continue;
            }
            let peer = match &self.sessions[index as usize] {
                Session::Client(s) if s.state == SessionState::Connecting => {
                    self.refused(index, SessionEnd::PeerFailed);
                    continue;
                }
                Session::Client(s) => s.peer,
                Session::Server(_) if mutant::is_on(Mutant::OrphanKept) => continue,
                Session::Server(s) => s.peer,
                Session::Draining(_) | Session::Vacant { .. } => continue,
            };
            self.fail_session(index, CallError::PeerFailed);
            self.free_session(index);
            paths.extend(self.release_peer(peer));
        }
    }

    /// Ends a client session and all its calls, each with an error that states whether it has
    /// executed.
    pub(crate) fn fail_session(&mut self, session: u32, error: impl Fn(Executed) -> CallError) {
        self.deferred.take_no_more(session);
        let take_next = |this: &mut Self| this.take_deferred(|call| call.session.index == session);
        let deferred: Vec<_> = std::iter::from_fn(|| take_next(self)).collect();
        let Some(mut flow) = self.client_flow(session) else { return };
        flow.s.state = SessionState::Gone;
        for call in flow.s.with_queue(std::mem::take) {
            if !mutant::is_on(Mutant::WaitingCallsForgotten) {
                flow.end_waiting(call, error(Executed::Never));
            }
        }
        for (_, call) in deferred {
            flow.end_waiting(call, error(Executed::Never));
        }
        // Slots first: the calls of some carry messages.
        flow.fail_slots(error);
        flow.fail_messages();
        flow.note_room();
        self.apply_effects();
    }

    // ---- peers and entries of the tables ------------------------------------------------------

    pub(crate) fn drop_peer(&mut self, peer: u32) -> Option<Peer> {
        let dropped = self.peers.remove(peer)?;
        self.admission.quotas.remove_path(peer);
        self.io.tx.remove_peer(peer);
        Some(dropped)
    }

    /// A session of the peer has ended; removes the peer with its last session.
    pub(crate) fn release_peer(&mut self, peer: u32) -> Option<courser_buf::PathId> {
        let p = self.peers.get_mut(peer as usize)?.as_mut()?;
        p.sessions = p.sessions.saturating_sub(1);
        if p.sessions > 0 {
            return None;
        }
        self.drop_peer(peer).map(|p| p.path_id)
    }

    /// [`Endpoint::release_peer`] at the client. Before it receives the disconnect, the server may
    /// have accepted another session with this peer, and its answer will name the peer. So the peer
    /// stays as long as a connect is in progress over the same control connection.
    pub(crate) fn leave_peer(&mut self, peer: u32, control: u64) -> Option<courser_buf::PathId> {
        let last = matches!(self.peers.get(peer as usize), Some(Some(p)) if p.sessions == 1);
        if last && self.is_connecting_over(control) {
            if let Some(Some(p)) = self.peers.get_mut(peer as usize) {
                p.sessions = 0;
            }
            if !self.peers.lingering.contains(&(peer, control)) {
                self.peers.lingering.push((peer, control));
            }
            return None;
        }
        self.release_peer(peer)
    }

    /// A connect has ended: removes the unused peers that were kept for it.
    pub(crate) fn connect_ended(&mut self) {
        self.sessions.connecting = self.sessions.connecting.saturating_sub(1);
        let mut at = 0;
        while let Some(&(peer, control)) = self.peers.lingering.get(at) {
            let is_used = matches!(self.peers.get(peer as usize), Some(Some(p)) if p.sessions > 0);
            if !is_used && self.is_connecting_over(control) {
                at += 1;
                continue;
            }
            self.peers.lingering.swap_remove(at);
            if !is_used && let Some(p) = self.drop_peer(peer) {
                self.outbox.unused_paths.push(p.path_id);
            }
        }
    }

    fn is_connecting_over(&self, control: u64) -> bool {
        let over = |s: &Session<C>| {
            matches!(s, Session::Client(s)
                if s.state == SessionState::Connecting && s.agreed.control == control)
        };
        self.sessions.connecting > 0 && self.sessions.iter().any(over)
    }

    /// Frees a session's memory and, unless handlers still work for it, its number (E68).
    pub(crate) fn free_session(&mut self, index: u32) {
        let (sessions, shared) = self.split();
        match sessions.get_mut(index as usize) {
            Some(Session::Client(s)) => {
                let (generation, peer, credits) = (s.generation, s.peer, s.credits.limit());
                let waits = std::mem::take(&mut s.waits_for_room);
                self.leave_pool(peer, credits, waits);
                self.sessions.vacate(index, generation);
            }
            Some(Session::Server(s)) => {
                if let Some(mut flow) = shared.server(index, s) {
                    flow.end_requests();
                    let (peer, credits, draining) = flow.drain();
                    self.free_server(index, peer, credits, draining);
                    self.apply_effects();
                }
            }
            Some(Session::Draining(_) | Session::Vacant { .. }) | None => {}
        }
    }

    /// Puts the handlers that still work for a server session in its place.
    fn free_server(&mut self, index: u32, peer: u32, credits: u32, draining: Draining) {
        let (generation, quota) = (draining.generation, draining.quota);
        let key = SessionId { index, generation };
        let wait = !draining.executing.is_empty() && !mutant::is_on(Mutant::GenerationIgnored);
        let ids = draining.executing.iter();
        let ids = ids.map(|&(slot, number)| RequestId::new(key, slot, number));
        self.outbox.notices.extend(ids.map(Notice::Cancelled));
        self.sessions[index as usize] = Session::Draining(draining);
        self.ungrant_pool(peer, credits);
        if !wait {
            self.admission.quotas.leave(quota);
            self.sessions.vacate(index, generation);
        }
    }

    /// A handler has replied to a request whose client is gone. The session ends with the last one.
    #[cold]
    pub(crate) fn drained(&mut self, session: SessionId, slot: u8, req_num: u32) {
        let Some(Session::Draining(d)) = self.sessions.get_mut(session.index as usize) else {
            return;
        };
        if d.generation != session.generation {
            return;
        }
        d.executing.retain(|&e| e != (slot, req_num));
        if d.executing.is_empty() {
            let (generation, quota) = (d.generation, d.quota);
            self.admission.quotas.leave(quota);
            self.sessions.vacate(session.index, generation);
        }
    }
}

impl<C> ServerFlow<'_, C> {
    /// The session ends: its memory returns to the quota of its client. Returns its peer, its C, and the
    /// handlers that still work for it.
    fn drain(&mut self) -> (u32, u32, Draining) {
        let s = &mut *self.s;
        let executing = |(i, slot): (usize, &ServerSlot)| {
            (slot.phase == ServerPhase::Executing).then_some((i as u8, slot.req_num))
        };
        let executing: Vec<_> = s.slots.iter().enumerate().filter_map(executing).collect();
        let charged: u64 = s.slots.iter().map(|slot| u64::from(slot.all_charged())).sum();
        self.admission.quotas.release_bytes(s.quota, charged);
        self.admission.memory_returns(self.io);
        let draining = Draining { generation: s.generation, quota: s.quota, executing };
        (s.peer, s.credit_limit, draining)
    }
}
