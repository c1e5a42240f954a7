//! Heartbeats of open connections (E66), and closing of unused ones.
//!
//! Each connection has one timer; on expiry its heartbeat is checked and the timer re-armed.
//! Received messages do not move the timer.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use courser_proto::{Beat, ControlMsg, Heartbeat};

use super::LostReason;
use super::conn::Phase;
use super::driver::{Driver, Timer};
use super::network::Network;

/// The users of a connection, derived from its messages: local endpoints with an unanswered connect,
/// and the sessions of local endpoints in both roles. Invalid messages of the other side can only end
/// its own connection.
#[derive(Debug)]
pub(super) struct Usage {
    /// Unanswered connects by local endpoint.
    pending_connects: BTreeMap<u16, u32>,
    /// Sessions by local and remote endpoint.
    sessions: BTreeMap<(u16, u64), u32>,
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
        match msg {
            ControlMsg::Connect { from, .. } => {
                *self.pending_connects.entry(from.index).or_default() += 1
            }
            ControlMsg::Accept { from, to, .. } => {
                *self.sessions.entry((from.index, to.id)).or_default() += 1;
            }
            ControlMsg::Disconnect { from, to, .. } | ControlMsg::Evicted { from, to, .. } => {
                decrement(&mut self.sessions, (from.index, to.id))
            }
            _ => return,
        }
        self.touch(now);
    }

    /// Handles a received message.
    pub(super) fn on_received(&mut self, msg: &ControlMsg, now: Instant) {
        match msg {
            ControlMsg::Accept { to, from, .. }
                if self.pending_connects.contains_key(&to.index) =>
            {
                decrement(&mut self.pending_connects, to.index);
                *self.sessions.entry((to.index, from.id)).or_default() += 1;
            }
            ControlMsg::Connect { .. } => {}
            ControlMsg::Disconnect { from, to, .. } | ControlMsg::Evicted { from, to, .. } => {
                decrement(&mut self.sessions, (to.index, from.id))
            }
            ControlMsg::Refuse { to, .. } => decrement(&mut self.pending_connects, to.index),
            ControlMsg::EndpointGone { from } => self.sessions.retain(|(_, id), _| *id != from.id),
            _ => return,
        }
        self.touch(now);
    }

    /// Removes a local endpoint.
    pub(super) fn forget(&mut self, index: u16, now: Instant) {
        self.pending_connects.remove(&index);
        self.sessions.retain(|(here, _), _| *here != index);
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

/// Decrements a count and removes it at 0.
fn decrement<K: Ord>(counts: &mut BTreeMap<K, u32>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
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

    /// Handles the expiry of a connection's timer, which was removed from the list.
    pub(super) fn on_conn_timer(&mut self, n: u64) {
        let Some(conn) = self.conns.get(&n) else { return };
        if conn.phase != Phase::Open {
            return self.close(n, LostReason::NoGreeting(self.parts.limits.greeting));
        }
        let unused = self.parts.limits.unused;
        if conn.dial.is_some() && conn.usage.is_unused(unused, self.now()) {
            return self.close(n, LostReason::Unused(unused));
        }
        if self.poll_heartbeat(n) == Some(Beat::Dead) {
            // This thread may have been stopped while answers were queued in the socket.
            self.read(n);
            if self.poll_heartbeat(n) == Some(Beat::Dead) {
                let after = self.parts.limits.failure_timeout;
                self.close(n, LostReason::Silent { after });
            }
        }
    }

    /// Polls the heartbeat of an open connection: sends pings and sets the timer unless the peer
    /// has failed.
    fn poll_heartbeat(&mut self, n: u64) -> Option<Beat> {
        let now = self.now_ns();
        loop {
            let conn = self.conns.get_mut(&n)?;
            match conn.heartbeat.as_mut()?.poll(now) {
                Beat::Ping => self.send(n, &ControlMsg::Ping),
                Beat::Wait(at) => {
                    self.set_timer(n, self.epoch + Duration::from_nanos(at));
                    return Some(Beat::Wait(at));
                }
                Beat::Dead => return Some(Beat::Dead),
            }
        }
    }

    /// Moves a connection's timer.
    fn set_timer(&mut self, n: u64, at: Instant) {
        let Some(conn) = self.conns.get_mut(&n) else { return };
        self.timers.remove(&(conn.deadline, Timer::Conn(n)));
        conn.deadline = at;
        self.timers.insert((at, Timer::Conn(n)));
    }

    /// Time of the heartbeats' clock.
    fn now_ns(&self) -> u64 {
        self.now().saturating_duration_since(self.epoch).as_nanos() as u64
    }
}
