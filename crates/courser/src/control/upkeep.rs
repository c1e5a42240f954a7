//! Heartbeats of open connections (E66), and closing of unused ones.
//!
//! Each connection has one timer; on expiry its heartbeat is checked and the timer re-armed.
//! Received messages do not move the timer.

use std::time::{Duration, Instant};

use courser_proto::{Beat, ControlMsg, Heartbeat, Silence};

use super::conn::Phase;
use super::driver::{Driver, Timer, more_time};
use super::mail::Mail;
use super::network::Network;
use crate::error::control::LostReason;

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
