//! Quotas: limits of the sessions and bytes that one client process may hold at an endpoint (ADR 22).
//!
//! A process can create any number of sessions and endpoint numbers. But each control connection
//! costs a TCP connection, honest nexuses have one to each other, and the connections of an address
//! are limited. So quotas are counted per control connection; "client" means its process here.

use std::collections::BTreeMap;

/// The process behind one control connection.
#[derive(Debug)]
pub(super) struct ClientQuota {
    pub(super) control: u64,
    /// Server sessions, including draining ones.
    sessions: u32,
    /// Bytes of unanswered requests, of stored responses, and of preallocated response buffers.
    held: u64,
}

/// All clients of an endpoint.
#[derive(Debug)]
pub(crate) struct Quotas {
    clients: Vec<ClientQuota>,
    of: BTreeMap<u64, u32>,
    vacant: Vec<u32>,
    /// Most bytes that one client may hold.
    limit: u64,
    /// Number of clients at or above the limit.
    full: u32,
    closing: bool,
    /// Requests are copied before they are handled.
    copies: bool,
    /// New requests need a check: the endpoint is shutting down, a client is at its limit, or
    /// requests are copied. One flag, so that the fast path has one test.
    pub(crate) needs_check: bool,
}

impl Quotas {
    pub(crate) fn new(limit: usize, copies: bool) -> Self {
        Quotas {
            clients: Vec::new(),
            of: BTreeMap::new(),
            vacant: Vec::new(),
            limit: limit as u64,
            full: 0,
            closing: false,
            copies,
            needs_check: copies,
        }
    }

    /// Rejects all new requests from now on.
    pub(crate) fn close(&mut self) {
        self.closing = true;
        self.needs_check = true;
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing
    }

    /// Server sessions of the process behind a control connection.
    pub(super) fn sessions_over(&self, control: u64) -> u32 {
        let client = self.of.get(&control).and_then(|&t| self.clients.get(t as usize));
        client.map_or(0, |t| t.sessions)
    }

    /// The control connection of a client.
    pub(super) fn control_of(&self, client: u32) -> Option<u64> {
        self.clients.get(client as usize).map(|t| t.control)
    }

    /// Adds a session of a client; returns the client.
    pub(super) fn enter(&mut self, control: u64) -> u32 {
        let at = *self.of.entry(control).or_insert_with(|| {
            let fresh = ClientQuota { control, sessions: 0, held: 0 };
            match self.vacant.pop() {
                Some(at) => {
                    self.clients[at as usize] = fresh;
                    at
                }
                None => {
                    self.clients.push(fresh);
                    self.clients.len() as u32 - 1
                }
            }
        });
        self.clients[at as usize].sessions += 1;
        at
    }

    /// Removes a session of a client; its bytes were released before.
    pub(super) fn leave(&mut self, at: u32) {
        let Some(t) = self.clients.get_mut(at as usize) else { return };
        t.sessions = t.sessions.saturating_sub(1);
        if t.sessions == 0 {
            debug_assert_eq!(t.held, 0, "bytes held without a session");
            self.of.remove(&t.control);
            self.vacant.push(at);
        }
    }

    /// Bytes that a client may still take.
    pub(crate) fn room_of(&self, client: u32) -> u64 {
        let held = self.clients.get(client as usize).map_or(u64::MAX, |t| t.held);
        self.limit.saturating_sub(held)
    }

    /// Charges bytes to a client.
    pub(crate) fn charge(&mut self, client: u32, bytes: u32) {
        let Some(t) = self.clients.get_mut(client as usize) else { return };
        let was_full = t.held >= self.limit;
        t.held += u64::from(bytes);
        if t.held >= self.limit && !was_full {
            self.full += 1;
            self.needs_check = true;
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
        let was_full = t.held >= self.limit;
        debug_assert!(t.held >= bytes, "more bytes released than charged");
        t.held = t.held.saturating_sub(bytes);
        if was_full && t.held < self.limit {
            self.full -= 1;
            self.needs_check = self.closing || self.full > 0 || self.copies;
        }
    }

    /// Bytes of the table.
    pub(crate) fn table_bytes(&self) -> usize {
        self.clients.capacity() * size_of::<ClientQuota>()
    }

    /// Bytes held by all clients.
    #[cfg(test)]
    fn held(&self) -> u64 {
        self.of.values().map(|&t| self.clients[t as usize].held).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_quota_rejects_until_bytes_are_released() {
        let mut s = Quotas::new(100, false);
        let (a, b) = (s.enter(7), s.enter(8));
        assert_eq!((s.enter(7), s.sessions_over(7), s.sessions_over(9)), (a, 2, 0));
        s.charge(a, 99);
        assert!(!s.needs_check);
        s.charge(a, 50);
        s.charge(b, 10);
        assert_eq!((s.needs_check, s.room_of(a), s.room_of(b), s.held()), (true, 0, 90, 159));
        s.release(a, 50);
        assert_eq!((s.needs_check, s.room_of(a)), (false, 1));
        s.release(a, 99);
        s.leave(a);
        assert_eq!(s.sessions_over(7), 1);
        s.leave(a);
        assert_eq!((s.control_of(b), s.enter(11)), (Some(8), a), "the entry is used again");
        s.close();
        s.release(b, 10);
        assert!(s.needs_check && s.is_closing());
    }
}
