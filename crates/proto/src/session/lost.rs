//! How sessions end: refused, closed by either side, or lost with their peer (E27, E66-E68).

use courser_buf::PathId;

use super::{Draining, RemoteSession, Session, SessionId, SessionState};
use crate::admission::Admission;
use crate::deferred::Deferred;
use crate::endpoint::Endpoint;
use crate::error::{CallError, Executed, SessionEnd};
use crate::event::{Notice, RequestId};
use crate::flow::{ClientFlow, ServerFlow, Shared};
use crate::mutant::{self, Mutant};
use crate::peer::Peer;
use crate::slot::{ServerPhase, ServerSlot};

/// Why a client session ends, as its calls are told.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cause {
    /// The connect has failed.
    NotConnected(SessionEnd),
    /// Another one; the error states whether the call has executed.
    Error(fn(Executed) -> CallError),
}

impl Cause {
    fn error(self, executed: Executed) -> CallError {
        match self {
            Cause::NotConnected(end) => CallError::NotConnected(end),
            Cause::Error(error) => error(executed),
        }
    }
}

/// A session that has ended. Its peer may be needed no longer.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) session: SessionId,
    /// The other side's session.
    remote: RemoteSession,
    peer: u32,
    control: u64,
    /// Its peer has no other session.
    is_last: bool,
    /// The server had not answered its connect.
    is_connecting: bool,
}

impl<C> Endpoint<C> {
    /// The connect of a session has failed with `end`: its waiting calls end with
    /// [`CallError::NotConnected`], never executed.
    pub fn refused(&mut self, session: u32, end: SessionEnd) {
        self.end_client(session, |flow| {
            let is_connecting = flow.s.state == SessionState::Connecting;
            is_connecting.then_some(Cause::NotConnected(end))
        });
    }

    /// Closes a client session, also a failed one: its calls end with [`CallError::Closed`].
    /// Returns the server's session, for a disconnect over the control connection, and the path if
    /// it is no longer needed. `None`: there is no such session, or the server has not
    /// answered yet; a later answer yields [`crate::ConnectError::Closed`].
    pub fn close(&mut self, session: SessionId) -> Option<(RemoteSession, Option<PathId>)> {
        let ended = self.end_client(session.index, |flow| {
            let cause = match flow.s.state {
                SessionState::Connecting => Cause::NotConnected(SessionEnd::Closed),
                _ => Cause::Error(CallError::Closed),
            };
            (flow.id() == session).then_some(cause)
        })?;
        let connected = !ended.is_connecting;
        connected.then(|| (ended.remote, self.leave_peer(&ended)))
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
        let ended = self.end_server(session.number, |flow| {
            flow.belongs_to(endpoint_id, control) && flow.s.first_req_num == session.first_req_num
        })?;
        self.release_peer(&ended)
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
            let meant = |(id, over): (Option<u64>, u64)| meant(id, over);
            let client = self.end_client(index, |flow| {
                let cause = match flow.s.state {
                    SessionState::Connecting => Cause::NotConnected(SessionEnd::PeerFailed),
                    _ => Cause::Error(CallError::PeerFailed),
                };
                meant(flow.party()).then_some(cause)
            });
            let ended = client.or_else(|| {
                let is_meant = |flow: &ServerFlow<'_, C>| flow.party().is_some_and(meant);
                self.end_server(index, |flow| is_meant(flow) && !mutant::is_on(Mutant::OrphanKept))
            });
            if let Some(ended) = ended.filter(|ended| !ended.is_connecting) {
                paths.extend(self.release_peer(&ended));
            }
        }
    }

    /// Ends all calls of a client session, each with an error that states whether it has executed. Its
    /// number stays in use.
    pub(crate) fn fail_session(&mut self, session: u32, cause: Cause) {
        let Endpoint { io, peers, sessions, admission, outbox: out, deferred, .. } = self;
        let Some(s) = sessions.client_mut(session) else { return };
        let flow = Shared { io, peers, admission, out }.client(session, s);
        if let Some(mut flow) = flow {
            flow.fail_calls(deferred, cause);
        }
        self.apply_effects();
    }

    /// Ends a client session, if `cause` returns why, and frees its memory and its number. All its calls
    /// end with an error that states whether they have executed.
    pub(super) fn end_client(
        &mut self,
        index: u32,
        cause: impl FnOnce(&ClientFlow<'_, C>) -> Option<Cause>,
    ) -> Option<Ended> {
        let Endpoint { io, peers, sessions, admission, outbox: out, deferred, .. } = self;
        let s = sessions.client_mut(index)?;
        let mut flow = Shared { io, peers, admission, out }.client(index, s)?;
        let cause = cause(&flow)?;
        let is_connecting = flow.s.state == SessionState::Connecting;
        flow.fail_calls(deferred, cause);
        flow.leave_pool();
        let (s, first_req_num) = (&*flow.s, flow.s.agreed.first_req_num);
        let ended = Ended {
            session: flow.id(),
            remote: RemoteSession { number: s.remote, first_req_num },
            peer: s.peer,
            control: s.agreed.control,
            is_last: flow.peer.leave(),
            is_connecting,
        };
        self.sessions.vacate(index, ended.session.generation);
        self.apply_effects();
        if is_connecting {
            self.drop_peer(ended.peer);
            self.connect_ended();
        }
        Some(ended)
    }

    /// Ends a server session, if `is_it`. Frees its memory and, unless handlers still work for it, its
    /// number (E68).
    pub(super) fn end_server(
        &mut self,
        index: u32,
        is_it: impl FnOnce(&ServerFlow<'_, C>) -> bool,
    ) -> Option<Ended> {
        let mut flow = self.server_flow(index)?;
        if !is_it(&flow) {
            return None;
        }
        flow.end_requests();
        let draining = flow.drain();
        let s = &*flow.s;
        let ended = Ended {
            session: flow.id(),
            remote: RemoteSession { number: s.remote, first_req_num: s.first_req_num },
            peer: s.peer,
            control: flow.party().map_or(0, |(_, control)| control),
            is_last: flow.peer.leave(),
            is_connecting: false,
        };
        let (generation, quota) = (draining.generation, draining.quota);
        let wait = !draining.executing.is_empty() && !mutant::is_on(Mutant::GenerationIgnored);
        let ids = draining.executing.iter();
        let ids = ids.map(|&(slot, number)| RequestId::new(ended.session, slot, number));
        self.outbox.notices.extend(ids.map(Notice::Cancelled));
        self.sessions[index as usize] = Session::Draining(draining);
        if !wait {
            self.admission.quotas.leave(quota);
            self.sessions.vacate(index, generation);
        }
        self.apply_effects();
        Some(ended)
    }

    // ---- peers and entries of the tables ------------------------------------------------------

    pub(crate) fn drop_peer(&mut self, peer: u32) -> Option<Peer> {
        let dropped = self.peers.remove(peer)?;
        self.admission.pools.remove(&dropped);
        self.admission.quotas.remove_path(peer);
        self.io.tx.remove_peer(peer);
        self.outbox.moves.forget(peer);
        Some(dropped)
    }

    /// A session has ended; removes its peer with the last session. Returns the path that is no longer
    /// needed.
    pub(super) fn release_peer(&mut self, ended: &Ended) -> Option<PathId> {
        if !ended.is_last {
            return None;
        }
        self.drop_peer(ended.peer).map(|p| p.path_id)
    }

    /// [`Endpoint::release_peer`] at the client. Before it receives the disconnect, the server may
    /// have accepted another session with this peer, and its answer will name the peer. So the peer
    /// stays as long as a connect is in progress over the same control connection.
    pub(super) fn leave_peer(&mut self, ended: &Ended) -> Option<PathId> {
        let key = (ended.peer, ended.control);
        if !ended.is_last || !self.is_connecting_over(ended.control) {
            return self.release_peer(ended);
        }
        if !self.peers.lingering.contains(&key) {
            self.peers.lingering.push(key);
        }
        None
    }

    /// A connect has ended: removes the unused peers that were kept for it.
    pub(crate) fn connect_ended(&mut self) {
        self.sessions.connecting = self.sessions.connecting.saturating_sub(1);
        let mut at = 0;
        while let Some(&(peer, control)) = self.peers.lingering.get(at) {
            let is_used = self.peers.at(peer).is_some_and(|p| p.sessions > 0);
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

impl<C> ClientFlow<'_, C> {
    /// The session has failed: ends all its calls, those that were deferred too.
    fn fail_calls(&mut self, deferred: &mut Deferred<C>, cause: Cause) {
        let never = cause.error(Executed::Never);
        self.s.state = SessionState::Gone;
        for call in self.s.with_queue(std::mem::take) {
            if !mutant::is_on(Mutant::WaitingCallsForgotten) {
                self.end_waiting(call, never);
            }
        }
        deferred.take_no_more(self.index);
        while let Some(call) = deferred.take(|call| call.session.index == self.index) {
            let (_, call) = call.made(self.io.now_ns);
            self.end_waiting(call, never);
        }
        // Slots first: the calls of some carry messages.
        self.fail_slots(|executed| cause.error(executed));
        self.fail_messages();
        self.note_room();
    }
}

impl<C> ServerFlow<'_, C> {
    /// The session ends: its memory returns to the quota of its client, and its credits to the receive
    /// queue. Returns the handlers that still work for it.
    fn drain(&mut self) -> Draining {
        let s = &mut *self.s;
        let executing = |(i, slot): (usize, &ServerSlot)| {
            (slot.phase == ServerPhase::Executing).then_some((i as u8, slot.req_num))
        };
        let executing: Vec<_> = s.slots.iter().enumerate().filter_map(executing).collect();
        let charged: u64 = s.slots.iter().map(|slot| u64::from(slot.all_charged())).sum();
        let Admission { quotas, pools, .. } = &mut *self.admission;
        quotas.release_bytes(s.quota, charged);
        pools.change(self.peer, |p| p.credits.ungrant(s.credit_limit));
        self.admission.memory_returns(self.io);
        Draining { generation: s.generation, quota: s.quota, executing }
    }
}

impl Peer {
    /// A session with it has ended. Returns whether it was the last one.
    fn leave(&mut self) -> bool {
        self.sessions = self.sessions.saturating_sub(1);
        self.sessions == 0
    }
}
