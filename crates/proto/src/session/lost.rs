//! How sessions end: refused, closed by either side, or lost with their peer (E27, E66-E68).

use courser_buf::PathId;

use super::{PeerState, Session, SessionId, SessionState};
use crate::endpoint::Endpoint;
use crate::error::CallError;
use crate::mutant::{self, Mutant};

impl<C> Endpoint<C> {
    /// The connect of a session has failed: its waiting calls end, never executed.
    pub fn refused(&mut self, session: u32) {
        if let Some(s) = self.client_session_at(session)
            && s.state == SessionState::Connecting
        {
            let tentative = s.peer;
            self.fail_session(session, |_| CallError::NotConnected);
            self.free_session(session);
            self.drop_peer(tentative);
            self.connect_ended();
        }
    }

    /// Closes a client session, also one that has failed: its calls end with
    /// [`CallError::Closed`]. Gives the server's number of it, to be disconnected over the control
    /// connection, and the path that is no longer needed. `None`: there is no such session, or the
    /// server has not answered yet; an answer that comes later is [`crate::ConnectError::Closed`].
    pub fn close(&mut self, session: SessionId) -> Option<(u32, Option<PathId>)> {
        let s = self.client_session_at(session.index)?;
        if s.generation != session.generation {
            return None;
        }
        if s.state == SessionState::Connecting {
            self.refused(session.index);
            return None;
        }
        let (remote, peer, control) = (s.remote, s.peer, s.control);
        self.fail_session(session.index, CallError::Closed);
        self.free_session(session.index);
        Some((remote, self.leave_peer(peer, control)))
    }

    /// A path that turned out to be needed no more; to be asked after each answer of a server and
    /// each connect that was given up.
    pub fn poll_unused_path(&mut self) -> Option<PathId> {
        self.unused_paths.pop()
    }

    /// The client has closed its side: frees the server side. What a control connection says of
    /// sessions that are not its own is ignored. Gives the path that is no longer needed.
    pub fn disconnected(&mut self, session: u32, endpoint_id: u64, control: u64) -> Option<PathId> {
        if !self.is_owner(session, endpoint_id, control) {
            return None;
        }
        let Some(Session::Server(s)) = self.sessions.get(session as usize) else { return None };
        let peer = s.peer;
        self.free_session(session);
        self.release_peer(peer)
    }

    /// Whether a server session was made for that endpoint over that control connection. The
    /// number of an endpoint is no secret; connections cannot be borrowed.
    pub(super) fn is_owner(&self, session: u32, endpoint_id: u64, control: u64) -> bool {
        matches!(self.sessions.get(session as usize), Some(Session::Server(_)))
            && self.party_to(session) == Some((Some(endpoint_id), control))
    }

    /// The other endpoint of a session, which is not known before the handshake, and the control
    /// connection that it was made over.
    fn party_to(&self, session: u32) -> Option<(Option<u64>, u64)> {
        let (peer, control) = match self.sessions.get(session as usize)? {
            Session::Client(s) => (s.peer, s.control),
            Session::Server(s) => (s.peer, self.shares.control_of(s.tenant)?),
            Session::Draining(_) | Session::Vacant { .. } => return None,
        };
        let peer = self.peers.get(peer as usize)?.as_ref()?;
        Some(((peer.state == PeerState::Live).then_some(peer.endpoint_id), control))
    }

    /// Says which control connection a session that is still connecting uses.
    pub fn bind_control(&mut self, session: SessionId, control: u64) {
        if self.session_state(session) == SessionState::Connecting
            && let Some(s) = self.client_session_at(session.index)
        {
            s.control = control;
        }
    }

    /// A control connection is gone: every session over it has failed. Paths that are no longer
    /// needed go to `paths`.
    pub fn peer_lost(&mut self, control: u64, paths: &mut Vec<PathId>) {
        self.fail_sessions(|_, over| over == control, paths);
    }

    /// Another endpoint is gone, as its control connection says: every session with it has failed.
    /// Paths that are no longer needed go to `paths`. What a connection says of endpoints that are
    /// not its own is ignored.
    pub fn endpoint_lost(&mut self, endpoint_id: u64, control: u64, paths: &mut Vec<PathId>) {
        if self.knows_endpoint(endpoint_id) {
            self.fail_sessions(|id, over| id == Some(endpoint_id) && over == control, paths);
        }
    }

    /// Ends every session whose other endpoint and control connection are the ones meant.
    fn fail_sessions(&mut self, meant: impl Fn(Option<u64>, u64) -> bool, paths: &mut Vec<PathId>) {
        for index in 0..self.sessions.len() as u32 {
            if !self.party_to(index).is_some_and(|(id, over)| meant(id, over)) {
                continue;
            }
            let peer = match &self.sessions[index as usize] {
                Session::Client(s) if s.state == SessionState::Connecting => {
                    self.refused(index);
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
}
