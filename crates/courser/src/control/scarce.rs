//! Inbound connections without a session: closed for others when connections are scarce. If there is
//! none, the endpoints are asked to end sessions that were never used.

use std::time::Instant;

use super::driver::Driver;
use super::mail::Mail;
use super::network::Network;
use crate::counters::count;
use crate::error::control::LostReason;

impl<N: Network> Driver<N> {
    /// Updates the list of idle connections after the use of a connection has changed.
    pub(super) fn note_use(&mut self, n: u64) {
        let Some(conn) = self.conns.get_mut(&n) else { return };
        let since = conn.usage.idle_since();
        if conn.dial.is_some() || conn.idle_since == since {
            return;
        }
        if let Some(before) = std::mem::replace(&mut conn.idle_since, since) {
            self.idle.remove(conn.host(), before, n);
        }
        if let Some(since) = since {
            self.idle.insert(conn.host(), since, n);
        }
    }

    /// Removes a connection that is about to be closed from the list.
    pub(super) fn forget_idle(&mut self, host: u128, since: Option<Instant>, n: u64) {
        if let Some(since) = since {
            self.idle.remove(host, since, n);
        }
    }

    /// Whether one more connection of a host is within the limits. If not, an idle one is closed for
    /// it if possible; otherwise a later one may find room.
    pub(super) fn make_room(&mut self, host: u128) -> bool {
        let Some(scarce) = self.scarce(host) else { return true };
        let is_closed = self.close_idle(scarce);
        if !is_closed {
            self.ask_for_room(scarce);
        }
        is_closed
    }

    /// The host whose limit prevents one more connection of `host`, or `Some(None)`: the limit of
    /// all. `None`: there is room.
    fn scarce(&self, host: u128) -> Option<Option<u128>> {
        let limits = &self.parts.limits;
        if self.hosts.get(&host).is_some_and(|h| h.conns >= limits.inbound_per_host) {
            return Some(Some(host));
        }
        (self.inbound >= limits.inbound).then_some(None)
    }

    /// Asks the endpoints to end sessions that were never used, of a host or of all. Not again for
    /// [`super::Limits::idle`], as each connection that is refused comes here.
    fn ask_for_room(&mut self, host: Option<u128>) {
        let now = self.now();
        let asked = match host {
            Some(host) => self.hosts.get_mut(&host).map(|h| &mut h.asked),
            None => Some(&mut self.asked_all),
        };
        let Some(asked) = asked else { return };
        if asked.is_some_and(|at| now.saturating_duration_since(at) < self.parts.limits.idle) {
            return;
        }
        *asked = Some(now);
        for e in self.endpoints.values() {
            e.mailbox.post(Mail::Scarce { host });
        }
    }

    /// Closes a connection whose last session was evicted, when connections are scarce. At once, as
    /// its peer could connect another session before someone needs the place.
    pub(super) fn close_evicted(&mut self, n: u64) {
        let Some(conn) = self.conns.get(&n) else { return };
        if conn.idle_since.is_some() && self.scarce(conn.host()).is_some() {
            count(&self.parts.counters.evicted_connections);
            self.close(n, LostReason::Scarce);
        }
    }

    /// Closes the connection that was unused for longest, of one host or of all; false when there is
    /// none.
    pub(super) fn close_idle(&mut self, host: Option<u128>) -> bool {
        let Some((since, n)) = self.idle.oldest(host, self.epoch) else { return false };
        if self.now().saturating_duration_since(since) < self.parts.limits.idle {
            return false;
        }
        count(&self.parts.counters.evicted_connections);
        self.close(n, LostReason::Scarce);
        true
    }
}
