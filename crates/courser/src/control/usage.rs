//! The use of a connection, which keeps it open.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use courser_proto::{ControlMsg, EndpointRef, RemoteSession};

/// A session over the connection. The server's number is used again after its end; the value in the
/// table, its first request number, distinguishes the sessions of a number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Session {
    /// The local endpoint.
    here: u16,
    /// The remote endpoint.
    there: u64,
    /// True if the local endpoint is the server.
    serves: bool,
    number: u32,
}

/// The users of a connection, derived from its messages: local endpoints with an unanswered connect,
/// and the sessions of local endpoints in both roles. Invalid messages of the other side can only end
/// its own connection.
#[derive(Debug)]
pub(super) struct Usage {
    /// Unanswered connects by local endpoint.
    pending_connects: BTreeMap<u16, u32>,
    sessions: BTreeMap<Session, u32>,
    /// Time of the last use.
    used_at: Instant,
}

impl Usage {
    pub(super) fn new(now: Instant) -> Self {
        Usage { pending_connects: BTreeMap::new(), sessions: BTreeMap::new(), used_at: now }
    }

    /// Records a use, for instance by an endpoint that is about to send a connect.
    pub(super) fn touch(&mut self, now: Instant) {
        self.used_at = now;
    }

    /// Handles a message sent by a local endpoint.
    pub(super) fn on_sent(&mut self, msg: &ControlMsg, now: Instant) {
        let is_use = match msg {
            ControlMsg::Connect { from, .. } => {
                *self.pending_connects.entry(from.index).or_default() += 1;
                true
            }
            ControlMsg::Accept { from, to, accept } => {
                self.begin(session(from, to, true, accept.session.number), accept.session)
            }
            ControlMsg::Disconnect { from, to, session: ended } => {
                self.end(session(from, to, false, ended.number), Some(ended))
            }
            ControlMsg::Evicted { from, to, server_session, .. } => {
                self.end(session(from, to, true, *server_session), None)
            }
            _ => false,
        };
        if is_use {
            self.touch(now);
        }
    }

    /// Handles a received message. One that is about no session of the connection is no use of it:
    /// otherwise such messages would keep it from being closed.
    pub(super) fn on_received(&mut self, msg: &ControlMsg, now: Instant) {
        let is_use = match msg {
            ControlMsg::Accept { to, from, accept }
                if decrement(&mut self.pending_connects, to.index) =>
            {
                self.begin(session(to, from, false, accept.session.number), accept.session)
            }
            ControlMsg::Disconnect { from, to, session: ended } => {
                self.end(session(to, from, true, ended.number), Some(ended))
            }
            ControlMsg::Evicted { from, to, server_session, .. } => {
                self.end(session(to, from, false, *server_session), None)
            }
            ControlMsg::Refuse { to, .. } => decrement(&mut self.pending_connects, to.index),
            ControlMsg::EndpointGone { from } => {
                let before = self.sessions.len();
                self.sessions.retain(|s, _| s.there != from.id);
                self.sessions.len() < before
            }
            _ => false,
        };
        if is_use {
            self.touch(now);
        }
    }

    fn begin(&mut self, session: Session, accepted: RemoteSession) -> bool {
        self.sessions.insert(session, accepted.first_req_num);
        true
    }

    /// Ends a session, unless `ended` is an earlier one of its number: the server had evicted that one
    /// before its client closed it. Returns whether it was there.
    fn end(&mut self, session: Session, ended: Option<&RemoteSession>) -> bool {
        let begun = self.sessions.get(&session);
        let is_it = begun.is_some_and(|&first| ended.is_none_or(|e| e.first_req_num == first));
        is_it && self.sessions.remove(&session).is_some()
    }

    /// Removes a local endpoint.
    pub(super) fn forget(&mut self, index: u16, now: Instant) {
        self.pending_connects.remove(&index);
        self.sessions.retain(|s, _| s.here != index);
        self.touch(now);
    }

    /// The time of the last use; `None`: it is in use.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let empty = self.pending_connects.is_empty() && self.sessions.is_empty();
        empty.then_some(self.used_at)
    }

    /// Returns whether the connection was unused for `unused`.
    pub(super) fn is_unused(&self, unused: Duration, now: Instant) -> bool {
        self.idle_since().is_some_and(|since| now.saturating_duration_since(since) >= unused)
    }
}

fn session(here: &EndpointRef, there: &EndpointRef, serves: bool, number: u32) -> Session {
    Session { here: here.index, there: there.id, serves, number }
}

/// Decrements a count and removes it at 0; `false`: there is none.
fn decrement(counts: &mut BTreeMap<u16, u32>, key: u16) -> bool {
    let Some(count) = counts.get_mut(&key) else { return false };
    *count -= 1;
    if *count == 0 {
        counts.remove(&key);
    }
    true
}
