//! Dialing: opens one connection per remote nexus from a host name and a port.
//!
//! ```text
//! Dial -> (name) resolver thread -> addresses, in turn: connect, greeting -> Dialed
//!         (literal) ----------------^
//! ```
//! All dials of one target share one connection, also while it is being opened.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use courser_net::{Host, ZoneError};

use super::conn::{Conn, Phase, canonical};
use super::driver::{Driver, Timer, more_time};
use super::mail::{Dialed, Mail};
use super::network::Network;
use super::tables::{Dialing, Target, Waiter};
use crate::error::control::{DialError, LostReason};

/// Addresses tried per name.
const ADDRESSES: usize = 16;

impl<N: Network> Driver<N> {
    /// Handles [`Command::Dial`].
    pub(super) fn on_dial(&mut self, index: u16, ticket: u64, host: String, port: u16) {
        let Some(endpoint) = self.endpoints.get(&index) else { return };
        let mailbox = endpoint.mailbox.clone();
        let refuse = |e| mailbox.post(Mail::Dialed { ticket, result: Err(e) });
        if self.stopping {
            refuse(DialError::Stopped);
            return;
        }
        let target = match literal(&host, port) {
            // Names are case-insensitive, and zones are not.
            Ok(None) => (host.to_ascii_lowercase(), port),
            Ok(Some(_)) => (host, port),
            Err(e) => {
                refuse(DialError::Zone(e));
                return;
            }
        };
        match self.targets.get(&target).copied() {
            Some(Target::Open(n)) => {
                return self.answer(n, Waiter { index, mailbox, ticket });
            }
            Some(Target::Dialing(dial)) => {
                if let Some(d) = self.dials.get_mut(&dial) {
                    d.waiters.push(Waiter { index, mailbox, ticket });
                }
                return;
            }
            None => {}
        }
        let limit = self.parts.limits.outbound;
        if self.targets.len() >= limit {
            refuse(DialError::TooManyConnections { limit });
            return;
        }
        self.begin(target, Waiter { index, mailbox, ticket });
    }

    fn begin(&mut self, target: (String, u16), waiter: Waiter) {
        let dial = self.number();
        let deadline = self.now() + self.parts.limits.dial;
        let literal = literal(&target.0, target.1).ok().flatten();
        self.timers.insert((deadline, Timer::Dial(dial)));
        self.targets.insert(target.clone(), Target::Dialing(dial));
        let d = Dialing {
            target,
            waiters: vec![waiter],
            addrs: literal.into_iter().collect(),
            attempt: None,
            deadline,
            excused: false,
            failure: None,
        };
        self.dials.insert(dial, d);
        if literal.is_some() {
            self.next_attempt(dial);
        } else {
            self.unresolved.push_back(dial);
            self.start_resolvers();
        }
    }

    /// Starts queued name resolutions, up to the limit.
    fn start_resolvers(&mut self) {
        while self.resolving < self.parts.limits.resolvers {
            let Some(dial) = self.unresolved.pop_front() else { return };
            // The dial may have timed out in the queue.
            let Some(d) = self.dials.get(&dial) else { continue };
            let (host, port) = &d.target;
            match self.net.resolve(dial, host, *port) {
                Ok(None) => self.resolving += 1,
                Ok(Some(addrs)) => self.resolved(dial, Ok(addrs)),
                Err(e) => self.resolved(dial, Err(e)),
            }
        }
    }

    /// A resolver thread has ended.
    pub(super) fn on_resolved(&mut self, dial: u64, result: io::Result<Vec<SocketAddr>>) {
        self.resolving -= 1;
        self.start_resolvers();
        self.resolved(dial, result);
    }

    fn resolved(&mut self, dial: u64, result: io::Result<Vec<SocketAddr>>) {
        let Some(d) = self.dials.get_mut(&dial) else { return };
        let none = || io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        match result.and_then(|a| if a.is_empty() { Err(none()) } else { Ok(a) }) {
            Ok(addrs) => d.addrs.extend(addrs.into_iter().take(ADDRESSES)),
            Err(e) => d.note(DialError::Resolve { host: d.target.0.clone(), cause: Arc::new(e) }),
        }
        self.next_attempt(dial);
    }

    /// Tries the next address. The dial fails when none is left.
    fn next_attempt(&mut self, dial: u64) {
        let now = self.now();
        loop {
            let Some(d) = self.dials.get_mut(&dial) else { return };
            d.attempt = None;
            let Some(addr) = d.addrs.pop_front() else { break };
            // Divide the remaining time, so that an unresponsive address leaves time for the later
            // ones.
            let left = d.addrs.len() as u32 + 1;
            let deadline = now + d.deadline.saturating_duration_since(now) / left;
            let addr = this_host(canonical(addr));
            let attempt = self.net.connect(addr).and_then(|stream| {
                let phase = Phase::Connecting;
                self.adopt(Conn::new(stream, phase, addr, Some(dial), now, deadline))
            });
            let Some(d) = self.dials.get_mut(&dial) else { return };
            match attempt {
                Ok(n) => {
                    d.attempt = Some(n);
                    return;
                }
                Err(e) => {
                    let cause = Arc::new(self.net.explain(addr, e));
                    d.note(DialError::Connect { addr, cause });
                }
            }
        }
        self.dial_failed(dial);
    }

    /// Handles the end of an attempt whose connection was not opened.
    pub(super) fn attempt_failed(
        &mut self,
        dial: u64,
        addr: SocketAddr,
        phase: Phase,
        reason: LostReason,
    ) {
        let after = self.parts.limits.dial;
        let Some(d) = self.dials.get_mut(&dial) else { return };
        let connect = |cause| DialError::Connect { addr, cause };
        d.note(match reason {
            LostReason::Protocol(cause) => DialError::Handshake { addr, cause },
            LostReason::NoGreeting(_) if phase == Phase::Connecting => {
                DialError::Timeout { addr: addr.to_string(), after }
            }
            LostReason::NoGreeting(_) => DialError::NoGreeting { addr, after },
            LostReason::Io(e) => connect(match Arc::try_unwrap(e) {
                Ok(e) => Arc::new(self.net.explain(addr, e)),
                Err(shared) => shared,
            }),
            LostReason::Closed => connect(Arc::new(io::ErrorKind::UnexpectedEof.into())),
            LostReason::Stopped => DialError::Stopped,
            other => connect(Arc::new(io::Error::other(other))),
        });
        self.next_attempt(dial);
    }

    /// Handles the timeout of a dial, whose timer was removed from the list.
    pub(super) fn dial_timed_out(&mut self, dial: u64) {
        let (now, limit) = (self.now(), self.parts.limits.dial);
        let Some(d) = self.dials.get_mut(&dial) else { return };
        if let Some(at) = more_time(d.deadline, now, limit, &mut d.excused) {
            d.deadline = at;
            self.timers.insert((at, Timer::Dial(dial)));
            if let Some(n) = d.attempt {
                self.set_timer(n, at);
            }
            return;
        }
        d.addrs.clear();
        match d.attempt {
            Some(n) => self.close(n, LostReason::NoGreeting(limit)),
            None => self.dial_failed(dial),
        }
    }

    fn dial_failed(&mut self, dial: u64) {
        let Some(d) = self.end_dial(dial) else { return };
        let after = self.parts.limits.dial;
        let silent =
            || DialError::Timeout { addr: format!("{}:{}", d.target.0, d.target.1), after };
        let e = d.failure.clone().unwrap_or_else(silent);
        self.targets.remove(&d.target);
        for w in d.waiters {
            w.mailbox.post(Mail::Dialed { ticket: w.ticket, result: Err(e.clone()) });
        }
    }

    /// Handles the opening of a dial's connection.
    pub(super) fn dial_done(&mut self, dial: u64, n: u64) {
        let Some(d) = self.end_dial(dial) else { return };
        self.targets.insert(d.target, Target::Open(n));
        for w in d.waiters {
            self.answer(n, w);
        }
    }

    fn end_dial(&mut self, dial: u64) -> Option<Dialing> {
        let d = self.dials.remove(&dial)?;
        self.timers.remove(&(d.deadline, Timer::Dial(dial)));
        Some(d)
    }

    /// Returns an open connection to an endpoint.
    fn answer(&mut self, n: u64, w: Waiter) {
        let now = self.now();
        let Some(conn) = self.conns.get_mut(&n) else { return };
        conn.used.insert(w.index);
        conn.usage.touch(now);
        let Conn { remote, local, same_host, .. } = *conn;
        let result = Ok(Dialed { control: n, remote, local, same_host });
        w.mailbox.post(Mail::Dialed { ticket: w.ticket, result });
    }

    /// Removes an outbound connection, so that the next dial opens a new one.
    pub(super) fn forget_target(&mut self, n: u64) {
        self.targets.retain(|_, t| *t != Target::Open(n));
    }

    /// Fails all dials.
    pub(super) fn stop_dials(&mut self) {
        let dials: Vec<u64> = self.dials.keys().copied().collect();
        for dial in dials {
            if let Some(d) = self.dials.get_mut(&dial) {
                d.failure = Some(DialError::Stopped);
            }
            self.dial_failed(dial);
        }
    }
}

/// The unspecified address means this host, as for TCP. The loopback takes its place, since packets of
/// the datapath come from there.
fn this_host(mut addr: SocketAddr) -> SocketAddr {
    if addr.ip().is_unspecified() {
        addr.set_ip(match addr {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    addr
}

/// The address of a host that is written as one; `None` for a name. IPv6 may be in brackets, as in a URI.
fn literal(host: &str, port: u16) -> Result<Option<SocketAddr>, ZoneError> {
    let inner = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    Host::read(inner.unwrap_or(host)).map_or(Ok(None), |host| host.socket_addr(port))
}
