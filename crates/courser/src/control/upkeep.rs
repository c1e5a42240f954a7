//! Open connections as time passes: heartbeats (E66), and the end of unused ones.
//!
//! Each has one timer, on whose expiry its heartbeat is checked. Received messages do not move the
//! timer: it expires too early then, and is re-armed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use courser_proto::{Beat, ControlMsg, Heartbeat};

use super::LostReason;
use super::conn::Phase;
use super::driver::{Driver, Timer};
use super::network::Network;

/// The users of a dialed connection, from the messages over it: endpoints here with an unanswered
/// connect, and their sessions. Wrong messages of a server can only end its own connection.
#[derive(Debug)]
pub(super) struct Usage {
    /// Connects that are not answered, by the endpoint here.
    asked: BTreeMap<u16, u32>,
    /// Sessions, by the endpoints here and there.
    sessions: BTreeMap<(u16, u64), u32>,
    /// An endpoint here is a server over it: it stays.
    serves: bool,
    /// When it was used last.
    at: Instant,
}

impl Usage {
    pub(super) fn new(now: Instant) -> Self {
        Usage { asked: BTreeMap::new(), sessions: BTreeMap::new(), serves: false, at: now }
    }

    /// It was given to an endpoint, which will ask for a session.
    pub(super) fn touch(&mut self, now: Instant) {
        self.at = now;
    }

    /// An endpoint here sends a message.
    pub(super) fn on_sent(&mut self, msg: &ControlMsg, now: Instant) {
        match msg {
            ControlMsg::Connect { from, .. } => *self.asked.entry(from.index).or_default() += 1,
            ControlMsg::Accept { .. } => self.serves = true,
            ControlMsg::Disconnect { from, to, .. } => {
                less(&mut self.sessions, (from.index, to.id))
            }
            _ => return,
        }
        self.touch(now);
    }

    /// A message has come.
    pub(super) fn on_received(&mut self, msg: &ControlMsg, now: Instant) {
        match msg {
            ControlMsg::Accept { to, from, .. } if self.asked.contains_key(&to.index) => {
                less(&mut self.asked, to.index);
                *self.sessions.entry((to.index, from.id)).or_default() += 1;
            }
            ControlMsg::Refuse { to, .. } => less(&mut self.asked, to.index),
            ControlMsg::EndpointGone { from } => self.sessions.retain(|(_, id), _| *id != from.id),
            _ => return,
        }
        self.touch(now);
    }

    /// An endpoint here is gone.
    pub(super) fn forget(&mut self, index: u16, now: Instant) {
        self.asked.remove(&index);
        self.sessions.retain(|(here, _), _| *here != index);
        self.touch(now);
    }

    /// Whether it was unused for this time.
    fn is_over(&self, unused: Duration, now: Instant) -> bool {
        let empty = self.asked.is_empty() && self.sessions.is_empty() && !self.serves;
        empty && now.saturating_duration_since(self.at) >= unused
    }
}

/// Takes one away; entries are never 0.
fn less<K: Ord>(counts: &mut BTreeMap<K, u32>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

impl<N: Network> Driver<N> {
    /// The greeting has arrived: from here on the connection is expected to be heard.
    pub(super) fn start_heartbeat(&mut self, n: u64) {
        let (now, timeout) = (self.now_ns(), self.parts.limits.failure_timeout.as_nanos() as u64);
        let Some(conn) = self.conns.get_mut(&n) else { return };
        // One side leads: the one that dialed.
        let begin = if conn.dial.is_some() { Heartbeat::new } else { Heartbeat::following };
        conn.heartbeat = Some(begin(timeout, now));
        self.beat(n);
    }

    /// Bytes have arrived.
    pub(super) fn on_heard(&mut self, n: u64) {
        let now = self.now_ns();
        if let Some(conn) = self.conns.get_mut(&n)
            && let Some(heartbeat) = &mut conn.heartbeat
        {
            heartbeat.on_received(now);
        }
    }

    /// A connection's timer went off, and is not in the list any more.
    pub(super) fn conn_is_due(&mut self, n: u64) {
        let Some(conn) = self.conns.get(&n) else { return };
        if conn.phase != Phase::Open {
            return self.close(n, LostReason::NoGreeting(self.parts.limits.greeting));
        }
        let unused = self.parts.limits.unused;
        if conn.dial.is_some() && conn.usage.is_over(unused, self.now()) {
            return self.close(n, LostReason::Unused(unused));
        }
        if self.beat(n) == Some(Beat::Dead) {
            // It may be this thread that stood still, while answers wait to be read.
            self.read(n);
            if self.beat(n) == Some(Beat::Dead) {
                let after = self.parts.limits.failure_timeout;
                self.close(n, LostReason::Silent { after });
            }
        }
    }

    /// Does what the heartbeat of an open connection wants, and sets its timer unless it is dead.
    fn beat(&mut self, n: u64) -> Option<Beat> {
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

    /// The clock of heartbeats.
    fn now_ns(&self) -> u64 {
        self.now().saturating_duration_since(self.epoch).as_nanos() as u64
    }
}
