//! Heartbeats of open connections (E66), and closing of unused ones.
//!
//! Each connection has one timer; on expiry its heartbeat is checked and the timer re-armed.
//! Received messages do not move the timer.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use courser_proto::{Beat, ControlMsg, EndpointRef, Heartbeat, RemoteSession, Silence};

use super::conn::Phase;
use super::driver::{Driver, Timer, more_time};
use super::network::Network;
use super::{LostReason, Mail};

/// A session over the connection. The server's number is used again after its end; the value in the
/// table, its first request number, distinguishes the sessions of a number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Session {
    /// The local endpoint.
    here: u16,
    /// The remote endpoint.
    there: u64,
    /// Whether the local endpoint is the server.
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

    /// Whether the connection was unused for `unused`.
    fn is_unused(&self, unused: Duration, now: Instant) -> bool {
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

impl<N: Network> Driver<N> {
    /// Starts the heartbeat after the greeting.
    pub(super) fn start_heartbeat(&mut self, n: u64) {
        let (now, timeout) = (self.now_ns(), self.parts.limits.failure_timeout.as_nanos() as u64);
        let Some(conn) = self.conns.get_mut(&n) else { return };
        // The side that dialed leads; the other one pings later, so that pings do not cross.
        let begin = if conn.dial.is_some() { Heartbeat::new } else { Heartbeat::following };
        conn.heartbeat = Some(begin(timeout, now));
        self.poll_heartbeat(n);
    }

    /// Records that bytes were received.
    pub(super) fn on_bytes_received(&mut self, n: u64) {
        let now = self.now_ns();
        if let Some(conn) = self.conns.get_mut(&n)
            && let Some(heartbeat) = &mut conn.heartbeat
        {
            heartbeat.on_received(now);
        }
    }

    /// Records when the last frame of the other side arrived on the datapath.
    pub(super) fn on_sign_of_life(&mut self, n: u64, at: Instant) {
        let at_ns = self.ns_at(at);
        if let Some(conn) = self.conns.get_mut(&n)
            && let Some(heartbeat) = &mut conn.heartbeat
        {
            heartbeat.on_sign_of_life(at_ns);
        }
    }

    /// Handles the expiry of a connection's timer, which was removed from the list.
    pub(super) fn on_conn_timer(&mut self, n: u64) {
        let (now, greeting) = (self.now(), self.parts.limits.greeting);
        let Some(conn) = self.conns.get_mut(&n) else { return };
        if conn.phase != Phase::Open {
            if let Some(at) = more_time(conn.deadline, now, greeting, &mut conn.excused) {
                return self.set_timer(n, at);
            }
            return self.close(n, LostReason::NoGreeting(greeting));
        }
        let unused = self.parts.limits.unused;
        if conn.dial.is_some() && conn.usage.is_unused(unused, now) {
            return self.close(n, LostReason::Unused(unused));
        }
        if self.poll_heartbeat(n) == Some(Beat::Dead) {
            // This thread may have been stopped while answers were queued in the socket.
            self.read(n);
            if self.poll_heartbeat(n) == Some(Beat::Dead) {
                self.close_silent(n);
            }
        }
    }

    fn close_silent(&mut self, n: u64) {
        let now = self.now_ns();
        let Some(heartbeat) = self.conns.get(&n).and_then(|conn| conn.heartbeat.as_ref()) else {
            return;
        };
        let Silence { total_ns, paused_ns } = heartbeat.silence(now);
        let (after, paused) = (Duration::from_nanos(total_ns), Duration::from_nanos(paused_ns));
        self.close(n, LostReason::Silent { after, paused });
    }

    /// Asks the endpoints that use a connection for signs of life on the datapath: the other side's
    /// control thread may be starved of CPU time while its endpoints are served.
    fn ask_endpoints(&self, n: u64) {
        let Some(conn) = self.conns.get(&n) else { return };
        for e in conn.used.iter().filter_map(|index| self.endpoints.get(index)) {
            e.mailbox.post(Mail::Unanswered { control: n });
        }
    }

    /// Polls the heartbeat of an open connection: sends pings and sets the timer unless the peer
    /// has failed.
    fn poll_heartbeat(&mut self, n: u64) -> Option<Beat> {
        let now = self.now_ns();
        loop {
            let conn = self.conns.get_mut(&n)?;
            match conn.heartbeat.as_mut()?.poll(now) {
                Beat::Ping => {
                    let is_unanswered =
                        conn.heartbeat.as_ref().is_some_and(Heartbeat::is_unanswered);
                    self.send(n, &ControlMsg::Ping);
                    if is_unanswered {
                        self.ask_endpoints(n);
                    }
                }
                Beat::Wait(at) => {
                    self.set_timer(n, self.epoch + Duration::from_nanos(at));
                    return Some(Beat::Wait(at));
                }
                Beat::Dead => return Some(Beat::Dead),
            }
        }
    }

    /// Moves a connection's timer.
    pub(super) fn set_timer(&mut self, n: u64, at: Instant) {
        let Some(conn) = self.conns.get_mut(&n) else { return };
        self.timers.remove(&(conn.deadline, Timer::Conn(n)));
        conn.deadline = at;
        self.timers.insert((at, Timer::Conn(n)));
    }

    /// Time of the heartbeats' clock.
    fn now_ns(&self) -> u64 {
        self.ns_at(self.now())
    }

    fn ns_at(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.epoch).as_nanos() as u64
    }
}
