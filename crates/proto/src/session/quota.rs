//! Quotas: limits of the sessions and bytes that one client process may hold at an endpoint (F14).
//!
//! A process can create any number of sessions and endpoint numbers. But each control connection
//! costs a TCP connection, honest nexuses have one to each other, and the connections of an address
//! are limited. So quotas are counted per control connection; its user is called a tenant.

use std::collections::BTreeMap;

/// The process behind one control connection.
#[derive(Debug)]
pub(super) struct Tenant {
    pub(super) control: u64,
    /// Server sessions, including draining ones.
    sessions: u32,
    /// Bytes of unanswered requests, of stored responses, and of preallocated response buffers.
    held: u64,
}

/// All tenants of an endpoint.
#[derive(Debug)]
pub(crate) struct Quotas {
    tenants: Vec<Tenant>,
    of: BTreeMap<u64, u32>,
    vacant: Vec<u32>,
    /// Most bytes that one tenant may hold.
    limit: u64,
    /// Number of tenants at or above the limit.
    full: u32,
    closing: bool,
    /// Requests are copied before they are handled.
    copies: bool,
    /// New requests need a check: the endpoint is shutting down, a tenant is at its limit, or
    /// requests are copied. One flag, so that the fast path has one test.
    pub(crate) needs_check: bool,
}

impl Quotas {
    pub(crate) fn new(limit: usize, copies: bool) -> Self {
        Quotas {
            tenants: Vec::new(),
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
        let tenant = self.of.get(&control).and_then(|&t| self.tenants.get(t as usize));
        tenant.map_or(0, |t| t.sessions)
    }

    /// The control connection of a tenant.
    pub(super) fn control_of(&self, tenant: u32) -> Option<u64> {
        self.tenants.get(tenant as usize).map(|t| t.control)
    }

    /// Adds a session of a tenant; returns the tenant.
    pub(super) fn enter(&mut self, control: u64) -> u32 {
        let at = *self.of.entry(control).or_insert_with(|| {
            let fresh = Tenant { control, sessions: 0, held: 0 };
            match self.vacant.pop() {
                Some(at) => {
                    self.tenants[at as usize] = fresh;
                    at
                }
                None => {
                    self.tenants.push(fresh);
                    self.tenants.len() as u32 - 1
                }
            }
        });
        self.tenants[at as usize].sessions += 1;
        at
    }

    /// Removes a session of a tenant; its bytes were released before.
    pub(super) fn leave(&mut self, at: u32) {
        let Some(t) = self.tenants.get_mut(at as usize) else { return };
        t.sessions = t.sessions.saturating_sub(1);
        if t.sessions == 0 {
            debug_assert_eq!(t.held, 0, "bytes held without a session");
            self.of.remove(&t.control);
            self.vacant.push(at);
        }
    }

    /// Bytes that a tenant may still take.
    pub(crate) fn room_of(&self, tenant: u32) -> u64 {
        let held = self.tenants.get(tenant as usize).map_or(u64::MAX, |t| t.held);
        self.limit.saturating_sub(held)
    }

    /// Charges bytes to a tenant.
    pub(crate) fn charge(&mut self, tenant: u32, bytes: u32) {
        let Some(t) = self.tenants.get_mut(tenant as usize) else { return };
        let was_full = t.held >= self.limit;
        t.held += u64::from(bytes);
        if t.held >= self.limit && !was_full {
            self.full += 1;
            self.needs_check = true;
        }
    }

    /// Releases bytes of a tenant.
    #[inline]
    pub(crate) fn release(&mut self, tenant: u32, bytes: u32) {
        if bytes != 0 {
            self.release_bytes(tenant, bytes.into());
        }
    }

    #[cold]
    pub(super) fn release_bytes(&mut self, tenant: u32, bytes: u64) {
        let Some(t) = self.tenants.get_mut(tenant as usize) else { return };
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
        self.tenants.capacity() * size_of::<Tenant>()
    }

    /// Bytes held by all tenants.
    #[cfg(test)]
    fn held(&self) -> u64 {
        self.of.values().map(|&t| self.tenants[t as usize].held).sum()
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
