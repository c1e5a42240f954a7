//! What each process may take of an endpoint as its client (F14, limits of abuse).
//!
//! A process can make up any number of sessions and of endpoint numbers. Control connections cost a
//! TCP connection each, honest nexuses have one to each other, and an address may have a limited
//! number of them. So limits are counted per control connection, whose user is called a tenant here.

use std::collections::BTreeMap;

/// The process behind one control connection.
#[derive(Debug)]
pub(super) struct Tenant {
    pub(super) control: u64,
    /// Server sessions, also those that wait for their handlers only.
    sessions: u32,
    /// Bytes of requests that are not answered, of responses that are stored, and of preallocated
    /// responses.
    held: u64,
}

/// All tenants of an endpoint.
#[derive(Debug)]
pub(crate) struct Shares {
    tenants: Vec<Tenant>,
    of: BTreeMap<u64, u32>,
    vacant: Vec<u32>,
    /// Bytes that one may hold.
    limit: u64,
    /// Tenants that hold that much or more.
    full: u32,
    closing: bool,
    /// Requests are copied before they are handled.
    copies: bool,
    /// New requests are not simply handled: the endpoint is being shut down, some tenant is full, or
    /// requests are copied. One flag, so that the others pay one test.
    pub(crate) choosy: bool,
}

impl Shares {
    pub(crate) fn new(limit: usize, copies: bool) -> Self {
        Shares {
            tenants: Vec::new(),
            of: BTreeMap::new(),
            vacant: Vec::new(),
            limit: limit as u64,
            full: 0,
            closing: false,
            copies,
            choosy: copies,
        }
    }

    /// Nothing new is taken from anybody.
    pub(crate) fn close(&mut self) {
        self.closing = true;
        self.choosy = true;
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing
    }

    /// Sessions that the process behind a control connection has here as a client.
    pub(super) fn sessions_over(&self, control: u64) -> u32 {
        let tenant = self.of.get(&control).and_then(|&t| self.tenants.get(t as usize));
        tenant.map_or(0, |t| t.sessions)
    }

    /// The control connection of a tenant.
    pub(super) fn control_of(&self, tenant: u32) -> Option<u64> {
        self.tenants.get(tenant as usize).map(|t| t.control)
    }

    /// Counts a session of a tenant in.
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

    /// Counts a session of a tenant out; what it held was given back before.
    pub(super) fn leave(&mut self, at: u32) {
        let Some(t) = self.tenants.get_mut(at as usize) else { return };
        t.sessions = t.sessions.saturating_sub(1);
        if t.sessions == 0 {
            debug_assert_eq!(t.held, 0, "nobody is left to give it back");
            self.of.remove(&t.control);
            self.vacant.push(at);
        }
    }

    /// Bytes that a tenant may hold still.
    pub(crate) fn room_of(&self, tenant: u32) -> u64 {
        let held = self.tenants.get(tenant as usize).map_or(u64::MAX, |t| t.held);
        self.limit.saturating_sub(held)
    }

    /// A tenant holds so many bytes more.
    pub(crate) fn hold(&mut self, tenant: u32, bytes: u32) {
        let Some(t) = self.tenants.get_mut(tenant as usize) else { return };
        let was_full = t.held >= self.limit;
        t.held += u64::from(bytes);
        if t.held >= self.limit && !was_full {
            self.full += 1;
            self.choosy = true;
        }
    }

    /// A tenant holds so many bytes less.
    #[inline]
    pub(crate) fn unhold(&mut self, tenant: u32, bytes: u32) {
        if bytes != 0 {
            self.give_back(tenant, bytes.into());
        }
    }

    #[cold]
    pub(super) fn give_back(&mut self, tenant: u32, bytes: u64) {
        let Some(t) = self.tenants.get_mut(tenant as usize) else { return };
        let was_full = t.held >= self.limit;
        debug_assert!(t.held >= bytes, "more is given back than was taken");
        t.held = t.held.saturating_sub(bytes);
        if was_full && t.held < self.limit {
            self.full -= 1;
            self.choosy = self.closing || self.full > 0 || self.copies;
        }
    }

    /// Bytes of the table.
    pub(crate) fn table_bytes(&self) -> usize {
        self.tenants.capacity() * size_of::<Tenant>()
    }

    /// What all tenants hold together, bytes.
    #[cfg(test)]
    fn held(&self) -> u64 {
        self.of.values().map(|&t| self.tenants[t as usize].held).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_full_and_has_room_again() {
        let mut s = Shares::new(100, false);
        let (a, b) = (s.enter(7), s.enter(8));
        assert_eq!((s.enter(7), s.sessions_over(7), s.sessions_over(9)), (a, 2, 0));
        s.hold(a, 99);
        assert!(!s.choosy);
        s.hold(a, 50);
        s.hold(b, 10);
        assert_eq!((s.choosy, s.room_of(a), s.room_of(b), s.held()), (true, 0, 90, 159));
        s.unhold(a, 50);
        assert_eq!((s.choosy, s.room_of(a)), (false, 1));
        s.unhold(a, 99);
        s.leave(a);
        assert_eq!(s.sessions_over(7), 1);
        s.leave(a);
        assert_eq!((s.control_of(b), s.enter(11)), (Some(8), a), "the entry is used again");
        s.close();
        s.unhold(b, 10);
        assert!(s.choosy && s.is_closing());
    }
}
