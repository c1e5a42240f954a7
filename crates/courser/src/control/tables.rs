//! Entries of the control thread's tables.

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Instant;

use super::mailbox::Mailbox;
use crate::error::control::DialError;

/// An endpoint of this nexus.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) id: u64,
    pub(super) mailbox: Mailbox,
    pub(super) accepts: bool,
}

/// An endpoint that waits for a dial.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) index: u16,
    pub(super) mailbox: Mailbox,
    pub(super) ticket: u64,
}

/// A dial in progress.
#[derive(Debug)]
pub(super) struct Dialing {
    pub(super) target: (String, u16),
    pub(super) waiters: Vec<Waiter>,
    /// The addresses are known.
    pub(super) resolved: bool,
    /// Addresses not tried yet.
    pub(super) addrs: VecDeque<SocketAddr>,
    /// Connections that are being opened.
    pub(super) attempts: Vec<u64>,
    /// Expiry of [`Timer::Next`](super::driver::Timer::Next), if that is set.
    pub(super) next_at: Option<Instant>,
    pub(super) deadline: Instant,
    /// It has got more time because this thread was late.
    pub(super) excused: bool,
    /// The most specific failure so far.
    pub(super) failure: Option<DialError>,
}

impl Dialing {
    /// Keeps the most specific failure: an invalid answer over a refused connection, that over a
    /// timeout, and that over an address family which this host does not have.
    pub(super) fn note(&mut self, e: DialError) {
        use std::io::ErrorKind::{AddrNotAvailable, NetworkUnreachable, Unsupported};
        let no_family = [AddrNotAvailable, NetworkUnreachable, Unsupported];
        let rank = |e: &DialError| match e {
            DialError::Handshake { .. } => 3,
            DialError::Timeout { .. } | DialError::NoGreeting { .. } => 1,
            DialError::Connect { cause, .. } if no_family.contains(&cause.kind()) => 0,
            _ => 2,
        };
        // The last of equal rank stays, which is that of IPv4 if there is one.
        if self.failure.as_ref().is_none_or(|f| rank(&e) >= rank(f)) {
            self.failure = Some(e);
        }
    }
}

/// Inbound connections of one host.
#[derive(Debug, Default)]
pub(super) struct Inbound {
    pub(super) conns: usize,
    /// Time of the last [`super::mail::Mail::Scarce`] for them.
    pub(super) asked: Option<Instant>,
}

/// Inbound connections that no session uses, by the time of their last use.
#[derive(Debug, Default)]
pub(super) struct Idle {
    by_age: BTreeSet<(Instant, u64)>,
    by_host: BTreeSet<(u128, Instant, u64)>,
}

impl Idle {
    pub(super) fn insert(&mut self, host: u128, since: Instant, n: u64) {
        self.by_age.insert((since, n));
        self.by_host.insert((host, since, n));
    }

    pub(super) fn remove(&mut self, host: u128, since: Instant, n: u64) {
        self.by_age.remove(&(since, n));
        self.by_host.remove(&(host, since, n));
    }

    /// The connection that was unused for longest, of one host or of all.
    pub(super) fn oldest(&self, host: Option<u128>, epoch: Instant) -> Option<(Instant, u64)> {
        let Some(host) = host else { return self.by_age.first().copied() };
        let (of, since, n) = *self.by_host.range((host, epoch, 0)..).next()?;
        (of == host).then_some((since, n))
    }

    /// The number of connections.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        assert_eq!(self.by_age.len(), self.by_host.len());
        self.by_age.len()
    }
}
