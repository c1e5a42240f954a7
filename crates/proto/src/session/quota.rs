//! Quotas: limits of the sessions, paths and bytes that one client process may hold at an endpoint,
//! and of the sessions and the memory of one address (ADR 22; `shares`).
//!
//! A process can create any number of sessions and endpoint numbers. But each control connection
//! costs a connection of the system, honest nexuses have one to each other, and the connections of an
//! address are limited. So quotas are counted per control connection; "client" means its process
//! here. Sessions are also counted per address, as an address may open many connections.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use super::SessionId;

/// The process behind one control connection.
#[derive(Debug)]
pub(super) struct ClientQuota {
    pub(super) control: u64,
    /// Its address, in `Quotas::hosts`.
    pub(super) host: u32,
    /// Server sessions, including draining ones.
    sessions: u32,
    /// Bytes of unanswered requests, of stored responses, and of preallocated response buffers.
    pub(super) charged: u64,
    /// Bytes reserved for data of arriving requests that is missing.
    pub(super) promised: u64,
    /// Bytes that were reserved for data of arriving requests before it arrived.
    pub(super) kept: u64,
    /// Bytes of requests whose memory grows with their data.
    pub(super) growing: u64,
}

/// The clients of one address.
#[derive(Debug, Default)]
pub(super) struct HostQuota {
    host: u128,
    /// Server sessions, including draining ones.
    sessions: u32,
    /// Sessions in the order of their connects, without most of those that were used or have ended.
    unused: VecDeque<SessionId>,
    /// As for a client.
    pub(super) charged: u64,
    pub(super) promised: u64,
    pub(super) kept: u64,
}

/// All clients of an endpoint.
#[derive(Debug)]
pub(crate) struct Quotas {
    pub(super) hosts: Vec<HostQuota>,
    pub(super) at_host: BTreeMap<u128, u32>,
    vacant_hosts: Vec<u32>,
    /// The control connection that each path of a peer was opened for.
    paths: BTreeMap<u32, u64>,
    /// Paths that were opened for a control connection.
    paths_of: BTreeMap<u64, u32>,
    pub(super) clients: Vec<ClientQuota>,
    pub(super) of: BTreeMap<u64, u32>,
    vacant: Vec<u32>,
    /// Bytes promised to all clients.
    pub(super) promised: u64,
    /// Most bytes that one client may hold.
    limit: u64,
    /// Most bytes that the clients of one address may hold.
    host_limit: u64,
    /// Number of clients and addresses at or above their limit.
    full: u32,
    closing: bool,
    /// Request types that are not rejected while closing.
    continuing: Box<[Range<u16>]>,
    /// Requests are copied before they are handled.
    copies: bool,
    /// New requests and messages of one packet need a check ([`crate::admission::Handler`]): the
    /// endpoint is shutting down, a client is at its limit, or requests are copied. One flag, so that
    /// the fast path has one test.
    pub(crate) needs_check: bool,
}

impl Quotas {
    pub(crate) fn new(limit: usize, copies: bool) -> Self {
        Quotas {
            hosts: Vec::new(),
            at_host: BTreeMap::new(),
            vacant_hosts: Vec::new(),
            paths: BTreeMap::new(),
            paths_of: BTreeMap::new(),
            clients: Vec::new(),
            of: BTreeMap::new(),
            vacant: Vec::new(),
            promised: 0,
            limit: limit as u64,
            host_limit: u64::MAX,
            full: 0,
            closing: false,
            continuing: Box::default(),
            copies,
            needs_check: copies,
        }
    }

    /// With the size of the memory: the clients of one address may hold three quarters of it.
    pub(crate) fn with_memory(self, bytes: usize) -> Self {
        Quotas { host_limit: (bytes as u64 / 4 * 3).max(1), ..self }
    }

    /// Rejects new requests from now on, except those of some types.
    pub(crate) fn close(&mut self, except: &[Range<u16>]) {
        self.closing = true;
        self.continuing = except.into();
        self.needs_check = true;
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing
    }

    /// Returns whether new requests of a type are rejected.
    pub(crate) fn refuses(&self, req_type: u16) -> bool {
        self.closing && !self.continuing.iter().any(|types| types.contains(&req_type))
    }

    /// Server sessions of the process behind a control connection.
    pub(super) fn sessions_over(&self, control: u64) -> u32 {
        let client = self.of.get(&control).and_then(|&t| self.clients.get(t as usize));
        client.map_or(0, |t| t.sessions)
    }

    /// The control connection of a client.
    pub(crate) fn control_of(&self, client: u32) -> Option<u64> {
        self.clients.get(client as usize).map(|t| t.control)
    }

    /// Clients with a session.
    pub(crate) fn count(&self) -> usize {
        self.of.len()
    }

    /// Returns whether a client of this number and control connection has a session.
    pub(crate) fn has(&self, client: u32, control: u64) -> bool {
        let known = self.clients.get(client as usize);
        known.is_some_and(|t| t.control == control && t.sessions > 0)
    }

    /// The address of a client.
    pub(crate) fn host_of(&self, client: u32) -> Option<u128> {
        let host = self.clients.get(client as usize)?.host;
        self.hosts.get(host as usize).map(|h| h.host)
    }

    /// Server sessions of the clients of an address.
    pub(super) fn sessions_of(&self, host: u128) -> u32 {
        let at = self.at_host.get(&host);
        at.and_then(|&at| self.hosts.get(at as usize)).map_or(0, |h| h.sessions)
    }

    /// Paths that were opened for a control connection.
    pub(super) fn paths_of(&self, control: u64) -> u32 {
        self.paths_of.get(&control).copied().unwrap_or(0)
    }

    /// Counts the path of a new peer.
    pub(super) fn add_path(&mut self, peer: u32, control: u64) {
        self.paths.insert(peer, control);
        *self.paths_of.entry(control).or_default() += 1;
    }

    /// A peer is gone.
    pub(super) fn remove_path(&mut self, peer: u32) {
        let Some(control) = self.paths.remove(&peer) else { return };
        if let Some(paths) = self.paths_of.get_mut(&control) {
            *paths -= 1;
            if *paths == 0 {
                self.paths_of.remove(&control);
            }
        }
    }

    /// Adds a session of a client at an address; returns the client.
    pub(crate) fn enter(&mut self, control: u64, host: u128) -> u32 {
        let at = *self.of.entry(control).or_insert_with(|| {
            let host = *self.at_host.entry(host).or_insert_with(|| {
                let fresh = HostQuota { host, ..HostQuota::default() };
                put(&mut self.hosts, &mut self.vacant_hosts, fresh)
            });
            let fresh = ClientQuota {
                control,
                host,
                sessions: 0,
                charged: 0,
                promised: 0,
                kept: 0,
                growing: 0,
            };
            put(&mut self.clients, &mut self.vacant, fresh)
        });
        let t = &mut self.clients[at as usize];
        t.sessions += 1;
        self.hosts[t.host as usize].sessions += 1;
        at
    }

    /// Removes a session of a client; its bytes were released before.
    pub(super) fn leave(&mut self, at: u32) {
        let Some(t) = self.clients.get_mut(at as usize) else { return };
        t.sessions = t.sessions.saturating_sub(1);
        if t.sessions == 0 {
            debug_assert_eq!(
                [t.charged, t.promised, t.kept, t.growing],
                [0; 4],
                "charged without a session"
            );
            self.of.remove(&t.control);
            self.vacant.push(at);
        }
        let host = t.host;
        let Some(h) = self.hosts.get_mut(host as usize) else { return };
        h.sessions = h.sessions.saturating_sub(1);
        if h.sessions == 0 {
            debug_assert_eq!(
                (h.charged, h.promised, h.kept),
                (0, 0, 0),
                "charged without a session"
            );
            h.unused = VecDeque::new();
            self.at_host.remove(&h.host);
            self.vacant_hosts.push(host);
        }
    }

    pub(super) fn host_mut(&mut self, client: u32) -> Option<&mut HostQuota> {
        let host = self.clients.get(client as usize)?.host;
        self.hosts.get_mut(host as usize)
    }

    /// Appends a new session of a client. `is_unused` tests whether a session still counts; entries
    /// that do not are removed when they are more than half of all.
    pub(super) fn add_unused(
        &mut self,
        client: u32,
        session: SessionId,
        is_unused: impl Fn(SessionId) -> bool,
    ) {
        let Some(h) = self.host_mut(client) else { return };
        if h.unused.len() > 2 * h.sessions as usize + 16 {
            h.unused.retain(|&s| is_unused(s));
        }
        h.unused.push_back(session);
    }

    /// The oldest unused session of an address, or of all. `since_ns` is the time of its connect;
    /// `None`: it was used or has ended.
    pub(super) fn oldest_unused(
        &mut self,
        host: Option<u128>,
        since_ns: impl Fn(SessionId) -> Option<u64>,
    ) -> Option<(u64, SessionId)> {
        let oldest = |h: &mut HostQuota| {
            while let Some(&first) = h.unused.front() {
                if let Some(ns) = since_ns(first) {
                    return Some((ns, first));
                }
                h.unused.pop_front();
            }
            None
        };
        match host {
            Some(host) => {
                let at = *self.at_host.get(&host)?;
                self.hosts.get_mut(at as usize).and_then(oldest)
            }
            None => self.hosts.iter_mut().filter_map(oldest).min_by_key(|(ns, _)| *ns),
        }
    }

    /// The sessions of an address, or of all, that were not used when this was last looked at.
    pub(super) fn unused_of(&self, host: Option<u128>) -> impl Iterator<Item = SessionId> {
        let hosts = match host {
            Some(host) => self.at_host.range(host..=host),
            None => self.at_host.range(..),
        };
        let hosts = hosts.filter_map(|(_, &at)| self.hosts.get(at as usize));
        hosts.flat_map(|h| h.unused.iter().copied())
    }

    /// Bytes that a client may still take.
    pub(crate) fn room_of(&self, client: u32) -> u64 {
        let charged = self.clients.get(client as usize).map_or(u64::MAX, |t| t.charged);
        self.limit.saturating_sub(charged)
    }

    /// Returns whether a client, or its address, holds what it may.
    pub(crate) fn is_full(&self, client: u32) -> bool {
        let Some(t) = self.clients.get(client as usize) else { return true };
        let host = self.hosts.get(t.host as usize);
        t.charged >= self.limit || host.is_none_or(|h| h.charged >= self.host_limit)
    }

    /// Charges bytes to a client.
    pub(crate) fn charge(&mut self, client: u32, bytes: u32) {
        let Some(t) = self.clients.get_mut(client as usize) else { return };
        let Some(h) = self.hosts.get_mut(t.host as usize) else { return };
        for (charged, limit) in [(&mut t.charged, self.limit), (&mut h.charged, self.host_limit)] {
            let was_full = *charged >= limit;
            *charged += u64::from(bytes);
            if *charged >= limit && !was_full {
                self.full += 1;
                self.needs_check = true;
            }
        }
    }

    /// Releases bytes of a client.
    #[inline]
    pub(crate) fn release(&mut self, client: u32, bytes: u32) {
        if bytes != 0 {
            self.release_bytes(client, bytes.into());
        }
    }

    #[cold]
    pub(super) fn release_bytes(&mut self, client: u32, bytes: u64) {
        let Some(t) = self.clients.get_mut(client as usize) else { return };
        let Some(h) = self.hosts.get_mut(t.host as usize) else { return };
        debug_assert!(t.charged >= bytes, "more bytes released than charged");
        for (charged, limit) in [(&mut t.charged, self.limit), (&mut h.charged, self.host_limit)] {
            let was_full = *charged >= limit;
            *charged = charged.saturating_sub(bytes);
            if was_full && *charged < limit {
                self.full -= 1;
                self.needs_check = self.closing || self.full > 0 || self.copies;
            }
        }
    }

    /// Bytes of the tables.
    pub(crate) fn table_bytes(&self) -> usize {
        let queued = self.hosts.iter().map(|h| h.unused.capacity()).sum::<usize>();
        self.clients.capacity() * size_of::<ClientQuota>()
            + self.hosts.capacity() * size_of::<HostQuota>()
            + queued * size_of::<SessionId>()
    }

    /// Bytes charged to all clients.
    #[cfg(test)]
    fn charged(&self) -> u64 {
        self.of.values().map(|&t| self.clients[t as usize].charged).sum()
    }
}

/// Puts an entry into a table; returns its number.
fn put<T>(table: &mut Vec<T>, vacant: &mut Vec<u32>, entry: T) -> u32 {
    match vacant.pop() {
        Some(at) => {
            table[at as usize] = entry;
            at
        }
        None => {
            table.push(entry);
            table.len() as u32 - 1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_quota_rejects_until_bytes_are_released() {
        let mut s = Quotas::new(100, false);
        let (a, b) = (s.enter(7, 1), s.enter(8, 1));
        assert_eq!((s.enter(7, 1), s.sessions_over(7), s.sessions_over(9)), (a, 2, 0));
        s.charge(a, 99);
        assert!(!s.needs_check);
        s.charge(a, 50);
        s.charge(b, 10);
        assert_eq!((s.needs_check, s.room_of(a), s.room_of(b), s.charged()), (true, 0, 90, 159));
        s.release(a, 50);
        assert_eq!((s.needs_check, s.room_of(a)), (false, 1));
        s.release(a, 99);
        s.leave(a);
        assert_eq!(s.sessions_over(7), 1);
        s.leave(a);
        assert_eq!((s.count(), s.has(a, 7), s.has(b, 8)), (1, false, true));
        assert_eq!((s.control_of(b), s.enter(11, 1)), (Some(8), a), "the entry is used again");
        assert_eq!((s.count(), s.has(a, 7), s.has(a, 11)), (2, false, true));
        s.check();
        s.close(&[3..4, 4..5]);
        s.release(b, 10);
        assert!(s.needs_check && s.is_closing());
        assert_eq!([2, 3, 4, 5].map(|req_type| s.refuses(req_type)), [true, false, false, true]);
    }

    #[test]
    fn the_clients_of_an_address_are_rejected_when_they_hold_three_quarters_of_the_memory() {
        let mut s = Quotas::new(100, false).with_memory(200);
        let (a, b, other) = (s.enter(7, 1), s.enter(8, 1), s.enter(9, 2));
        s.charge(a, 99);
        assert!(!s.needs_check);
        s.charge(b, 51);
        assert!(s.needs_check && s.is_full(a) && s.is_full(b) && !s.is_full(other));
        s.release(a, 1);
        assert!(!s.needs_check && !s.is_full(a) && !s.is_full(b));
        s.release(a, 98);
        s.release(b, 51);
        [a, b, other].into_iter().for_each(|client| s.leave(client));
    }

    #[test]
    fn sessions_and_paths_are_counted_until_their_last_one() {
        let mut s = Quotas::new(100, false);
        let (a, b) = (s.enter(7, 1), s.enter(8, 1));
        let c = s.enter(9, 2);
        assert_eq!((s.sessions_of(1), s.sessions_of(2), s.sessions_of(3)), (2, 1, 0));
        s.add_path(0, 7);
        s.add_path(5, 7);
        s.remove_path(0);
        s.remove_path(0);
        assert_eq!((s.paths_of(7), s.paths_of(8)), (1, 0));
        s.remove_path(5);
        [a, b, c].into_iter().for_each(|client| s.leave(client));
        assert!(s.at_host.is_empty() && s.vacant_hosts.len() == s.hosts.len());
        assert!(s.paths.is_empty() && s.paths_of.is_empty());
    }

    #[test]
    fn unused_sessions_are_found_in_order_and_the_others_are_forgotten() {
        let mut s = Quotas::new(100, false);
        let id = |index| SessionId { index, generation: 0 };
        let (a, b) = (s.enter(7, 1), s.enter(8, 2));
        for n in 0..1000 {
            s.add_unused(if n % 2 == 0 { a } else { b }, id(n), |s| s.index >= 990);
        }
        let queued = |s: &Quotas| s.hosts.iter().map(|h| h.unused.len()).max();
        assert!(queued(&s) < Some(32), "{:?}", queued(&s));
        let since_ns = |s: SessionId| (s.index >= 995).then_some(u64::from(s.index));
        assert_eq!(s.oldest_unused(Some(1), since_ns), Some((996, id(996))));
        assert_eq!(s.oldest_unused(None, since_ns), Some((995, id(995))));
        assert_eq!(s.oldest_unused(Some(3), since_ns), None);
    }
}
