//! Dialing: opens connections to remote nexuses by host name and port.
//!
//! ```text
//! Dial -> (name) resolver thread -> addresses -> an open connection to one of them ----------> Dialed
//!         (literal) ----------------^        \-> attempts, 250 ms apart: connect, greeting -^
//! ```
//! The attempts of a dial are those of RFC 8305 ("Happy Eyeballs"): the families in turn, that of the
//! resolver's first address first; the first connection that is greeted wins, and the others are closed.
//! Names are resolved at each dial, so that a name which has moved leads to its new host; dials of one
//! target at the same time share their attempts. An address has one connection, whatever names lead to it.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use courser_net::{Host, ZoneError};

use super::conn::{Conn, Phase, canonical};
use super::driver::{Driver, Timer, more_time};
use super::mail::{Dialed, Mail};
use super::network::Network;
use super::tables::{Dialing, Waiter};
use crate::error::control::{DialError, LostReason};

/// Addresses tried per name.
const ADDRESSES: usize = 16;
/// Attempts of one dial at a time, which are no connections in the sense of the limit. The oldest ends
/// when another one is due.
const AT_A_TIME: usize = 4;
/// Time after which the next address is tried while the one before has not answered
/// [RFC 8305 section 5]. A name that takes longer to resolve, and has an open connection, uses that.
pub(super) const NEXT_AFTER: Duration = Duration::from_millis(250);

impl<N: Network> Driver<N> {
    /// Handles [`Command::Dial`].
    pub(super) fn on_dial(&mut self, index: u16, ticket: u64, host: String, port: u16) {
        let Some(endpoint) = self.endpoints.get(&index) else { return };
        let mailbox = endpoint.mailbox.clone();
        let refuse = |e| {
            mailbox.post(Mail::Dialed { ticket, result: Err(e) });
        };
        if self.stopping {
            return refuse(DialError::Stopped);
        }
        let (target, literal) = match literal(&host, port) {
            // Names are case-insensitive, and zones are not.
            Ok(None) => ((host.to_ascii_lowercase(), port), None),
            Ok(Some(addr)) => ((host, port), Some(attempts_at([addr]))),
            Err(e) => return refuse(DialError::Zone(e)),
        };
        let waiter = |mailbox| Waiter { index, mailbox, ticket };
        if let Some(n) = literal.as_ref().and_then(|addrs| self.open_to(addrs)) {
            return self.answer(n, waiter(mailbox));
        }
        if let Some(d) = self.targets.get(&target).and_then(|dial| self.dials.get_mut(dial)) {
            return d.waiters.push(waiter(mailbox));
        }
        let limit = self.parts.limits.outbound;
        // A name may lead to an open connection.
        let held = if literal.is_some() { self.open.len() } else { 0 };
        if self.dials.len() + held >= limit {
            return refuse(DialError::TooManyConnections { limit });
        }
        self.begin(target, literal, waiter(mailbox));
    }

    fn begin(&mut self, target: (String, u16), literal: Option<Vec<SocketAddr>>, waiter: Waiter) {
        let dial = self.number();
        let now = self.now();
        let deadline = now + self.parts.limits.dial;
        self.timers.insert((deadline, Timer::Dial(dial)));
        self.targets.insert(target.clone(), dial);
        let is_literal = literal.is_some();
        let d = Dialing {
            target,
            waiters: vec![waiter],
            resolved: is_literal,
            addrs: literal.unwrap_or_default().into(),
            attempts: Vec::new(),
            next_at: None,
            deadline,
            excused: false,
            failure: None,
        };
        self.dials.insert(dial, d);
        if is_literal {
            self.next_attempt(dial);
        } else {
            self.set_next(dial);
            self.unresolved.push_back(dial);
            self.start_resolvers();
        }
    }

    /// Starts queued name resolutions, up to the limit.
    fn start_resolvers(&mut self) {
        while self.resolving < self.parts.limits.resolvers {
            let Some(dial) = self.unresolved.pop_front() else { return };
            // The dial may have ended in the queue.
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
        let addrs = match result.and_then(|a| if a.is_empty() { Err(none()) } else { Ok(a) }) {
            Ok(addrs) => attempts_at(addrs),
            Err(e) => {
                d.note(DialError::Resolve { host: d.target.0.clone(), cause: Arc::new(e) });
                return self.use_last(dial, Self::dial_failed);
            }
        };
        if let Some(n) = self.open_to(&addrs) {
            return self.dial_done(dial, n);
        }
        let limit = self.parts.limits.outbound;
        let is_over = self.dials.len() + self.open.len() > limit;
        let Some(d) = self.dials.get_mut(&dial) else { return };
        if is_over {
            d.note(DialError::TooManyConnections { limit });
            return self.dial_failed(dial);
        }
        d.resolved = true;
        d.addrs = addrs.into();
        self.next_attempt(dial);
    }

    /// The open connection to one of these addresses.
    fn open_to(&self, addrs: &[SocketAddr]) -> Option<u64> {
        addrs.iter().find_map(|addr| self.open.get(addr).copied())
    }

    /// Ends a dial, whose name is not resolved, by the connection that the name led to before.
    fn use_last(&mut self, dial: u64, or_else: impl FnOnce(&mut Self, u64)) {
        let last = self.dials.get(&dial).and_then(|d| self.names.get(&d.target).copied());
        match last {
            Some(n) => self.dial_done(dial, n),
            None => or_else(self, dial),
        }
    }

    /// Handles the timer that starts the next attempt, which was removed from the list.
    pub(super) fn next_is_due(&mut self, dial: u64) {
        let Some(d) = self.dials.get_mut(&dial) else { return };
        d.next_at = None;
        if !d.resolved {
            return self.use_last(dial, |_, _| {});
        }
        self.next_attempt(dial);
    }

    /// Sets the timer of the next attempt, which is not set. All addresses get a part of the time that
    /// is left; so does the open connection of a name that is not resolved.
    fn set_next(&mut self, dial: u64) {
        let now = self.now();
        let Some(d) = self.dials.get_mut(&dial) else { return };
        let left = if d.resolved { d.addrs.len() } else { 1 };
        let parts = u32::try_from(left + 1).unwrap_or(u32::MAX);
        let at = now + NEXT_AFTER.min(d.deadline.saturating_duration_since(now) / parts);
        d.next_at = Some(at);
        self.timers.insert((at, Timer::Next(dial)));
    }

    fn clear_next(&mut self, dial: u64) {
        let Some(d) = self.dials.get_mut(&dial) else { return };
        if let Some(at) = d.next_at.take() {
            self.timers.remove(&(at, Timer::Next(dial)));
        }
    }

    /// Tries the next address. The dial fails when none is left and no attempt is under way.
    fn next_attempt(&mut self, dial: u64) {
        let now = self.now();
        self.clear_next(dial);
        loop {
            let Some(d) = self.dials.get_mut(&dial) else { return };
            if now >= d.deadline && !d.addrs.is_empty() {
                // The timer of the dial is due too, and decides.
                return;
            }
            if d.attempts.len() >= AT_A_TIME && !d.addrs.is_empty() {
                // Its end starts the next attempt.
                let oldest = d.attempts[0];
                return self.close(oldest, LostReason::NoGreeting(NEXT_AFTER));
            }
            let Some(addr) = d.addrs.pop_front() else { break };
            let (deadline, is_last) = (d.deadline, d.addrs.is_empty());
            let attempt = self.net.connect(addr).and_then(|stream| {
                let phase = Phase::Connecting;
                self.adopt(Conn::new(stream, phase, addr, Some(dial), now, deadline))
            });
            let Some(d) = self.dials.get_mut(&dial) else { return };
            match attempt {
                Ok(n) => {
                    d.attempts.push(n);
                    if !is_last {
                        self.set_next(dial);
                    }
                    return;
                }
                Err(e) => {
                    let cause = Arc::new(self.net.explain(addr, e));
                    d.note(DialError::Connect { addr, cause });
                }
            }
        }
        if self.dials.get(&dial).is_some_and(|d| d.attempts.is_empty()) {
            self.dial_failed(dial);
        }
    }

    /// Handles the end of an attempt, connection `n`, which was not opened.
    pub(super) fn attempt_failed(
        &mut self,
        (dial, n): (u64, u64),
        addr: SocketAddr,
        phase: Phase,
        reason: LostReason,
    ) {
        let (now, limit) = (self.now(), self.parts.limits.dial);
        let Some(d) = self.dials.get_mut(&dial) else { return };
        // The time since the dial began.
        let after = limit.saturating_sub(d.deadline.saturating_duration_since(now));
        d.attempts.retain(|attempt| *attempt != n);
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
            let has_more = !d.addrs.is_empty();
            self.timers.insert((at, Timer::Dial(dial)));
            for n in d.attempts.clone() {
                self.set_timer(n, at);
            }
            if has_more {
                self.next_attempt(dial);
            }
            return;
        }
        d.addrs.clear();
        match d.attempts.clone() {
            none if none.is_empty() => self.dial_failed(dial),
            attempts => attempts.into_iter().for_each(|n| {
                self.close(n, LostReason::NoGreeting(limit));
            }),
        }
    }

    fn dial_failed(&mut self, dial: u64) {
        let Some(d) = self.end_dial(dial) else { return };
        let after = self.parts.limits.dial;
        let silent =
            || DialError::Timeout { addr: format!("{}:{}", d.target.0, d.target.1), after };
        let e = d.failure.clone().unwrap_or_else(silent);
        for w in d.waiters {
            w.mailbox.post(Mail::Dialed { ticket: w.ticket, result: Err(e.clone()) });
        }
    }

    /// Ends a dial by an open connection: its own, or one to an address of its name. The number of names is
    /// limited as that of connections is.
    pub(super) fn dial_done(&mut self, dial: u64, n: u64) {
        let Some(d) = self.end_dial(dial) else { return };
        for &other in d.attempts.iter().filter(|attempt| **attempt != n) {
            // The dial is gone, so that nothing follows from it.
            self.close(other, LostReason::Unused(Duration::ZERO));
        }
        if let Some(conn) = self.conns.get(&n) {
            self.open.entry(conn.remote).or_insert(n);
            let has_room =
                self.names.len() < self.parts.limits.outbound || self.names.contains_key(&d.target);
            if has_room && literal(&d.target.0, d.target.1) == Ok(None) {
                self.names.insert(d.target, n);
            }
        }
        for w in d.waiters {
            self.answer(n, w);
        }
    }

    fn end_dial(&mut self, dial: u64) -> Option<Dialing> {
        let d = self.dials.remove(&dial)?;
        self.targets.remove(&d.target);
        self.timers.remove(&(d.deadline, Timer::Dial(dial)));
        if let Some(at) = d.next_at {
            self.timers.remove(&(at, Timer::Next(dial)));
        }
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
        self.open.retain(|_, open| *open != n);
        self.names.retain(|_, open| *open != n);
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

/// The addresses to try, in order: the families in turn, that of the first address first, each in the
/// order of the resolver, which is that of RFC 6724 [RFC 8305 section 4]. The unspecified address means
/// this host, as for TCP; the loopback takes its place, since packets of the datapath come from there,
/// and for `[::]` that of IPv4 follows.
fn attempts_at(addrs: impl IntoIterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut all = Vec::new();
    let mut add = |addr: SocketAddr| {
        if !all.contains(&addr) {
            all.push(addr);
        }
    };
    for addr in addrs.into_iter().take(ADDRESSES).map(canonical) {
        let here_v4 = SocketAddr::from((Ipv4Addr::LOCALHOST, addr.port()));
        match addr {
            addr if !addr.ip().is_unspecified() => add(addr),
            SocketAddr::V4(_) => add(here_v4),
            SocketAddr::V6(_) => {
                add((Ipv6Addr::LOCALHOST, addr.port()).into());
                add(here_v4);
            }
        }
    }
    let ipv6_leads = all.first().is_some_and(SocketAddr::is_ipv6);
    let (leading, other): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|addr| addr.is_ipv6() == ipv6_leads);
    let (mut leading, mut other) = (leading.into_iter(), other.into_iter());
    let mut order = Vec::new();
    while leading.len() + other.len() > 0 {
        order.extend(leading.next());
        order.extend(other.next());
    }
    order
}

/// The address of a host that is written as one; `None` for a name. IPv6 may be in brackets, as in a URI.
fn literal(host: &str, port: u16) -> Result<Option<SocketAddr>, ZoneError> {
    let inner = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    Host::read(inner.unwrap_or(host)).map_or(Ok(None), |host| host.socket_addr(port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(addrs: &[&str]) -> Vec<String> {
        let addrs = addrs.iter().map(|addr| addr.parse().unwrap());
        attempts_at(addrs).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn families_take_turns_and_that_of_the_first_address_leads() {
        let addrs = ["10.0.0.1:9", "10.0.0.2:9", "[fd00::1]:9", "10.0.0.1:9", "[fd00::2]:9"];
        assert_eq!(order(&addrs), ["10.0.0.1:9", "[fd00::1]:9", "10.0.0.2:9", "[fd00::2]:9"]);
        let addrs = ["[fd00::1]:9", "[fd00::2]:9", "10.0.0.1:9"];
        assert_eq!(order(&addrs), ["[fd00::1]:9", "10.0.0.1:9", "[fd00::2]:9"]);
        assert_eq!(order(&["[::ffff:10.0.0.1]:9", "[::1]:9"]), ["10.0.0.1:9", "[::1]:9"]);
        assert_eq!(order(&["10.0.0.1:9"]), ["10.0.0.1:9"]);
    }

    #[test]
    fn wildcards_are_the_loopback() {
        assert_eq!(order(&["0.0.0.0:9"]), ["127.0.0.1:9"]);
        assert_eq!(order(&["[::]:9"]), ["[::1]:9", "127.0.0.1:9"]);
        assert_eq!(order(&["[::ffff:0.0.0.0]:9"]), ["127.0.0.1:9"]);
    }

    #[test]
    fn a_name_has_at_most_sixteen_attempts() {
        let addrs = (0..99).map(|n| SocketAddr::from(([10, 0, 0, n], 9)));
        assert_eq!(attempts_at(addrs).len(), ADDRESSES);
    }
}
