//! Room for new sessions: limits per client, address and endpoint, and eviction of sessions that
//! were never used, for other sessions or for other control connections.

use std::collections::BTreeMap;

use courser_buf::{Addr, PathId};

use super::connect::EndpointRef;
use super::{Cause, ConnectRefuseReason, ConnectRequest, Evicted, SessionId};
use crate::endpoint::Endpoint;
use crate::error::{CallError, Executed};

/// A session without a request can be evicted after this time, ns.
const UNUSED_FOR_NS: u64 = 1_000_000_000;

/// Clients whose sessions end at once when control connections are scarce: more than one, as the
/// places of their connections are open to all.
const CLIENTS_AT_ONCE: usize = 8;

impl<C> Endpoint<C> {
    /// Returns whether there is room for a session of a client, whose control connection is
    /// `control`. To be called before a path to the client is opened. Where sessions are scarce,
    /// the oldest one that was never used is evicted for it: [`Endpoint::poll_evicted`].
    ///
    /// # Errors
    /// The limit that is reached.
    pub fn make_room(
        &mut self,
        r: &ConnectRequest,
        addr: Addr,
        control: u64,
    ) -> Result<(), ConnectRefuseReason> {
        if self.admission.quotas.is_closing() {
            return Err(ConnectRefuseReason::ShuttingDown);
        }
        let limit = self.io.cfg.max_sessions_per_peer as u32;
        if self.admission.quotas.sessions_over(control) >= limit {
            return Err(ConnectRefuseReason::TooManyOfPeer { limit });
        }
        let limit = self.io.cfg.max_paths_per_peer as u32;
        if !self.knows_peer(r, addr, control) && self.admission.quotas.paths_of(control) >= limit {
            return Err(ConnectRefuseReason::TooManyPathsOfPeer { limit });
        }
        let of_host = self.admission.quotas.sessions_of(addr.host);
        let limit = self.io.cfg.max_sessions_per_address as u32;
        if of_host >= limit && !self.evict_unused(Some(addr.host), control) {
            return Err(ConnectRefuseReason::TooManyOfAddress { limit });
        }
        // The reserve is a sixteenth at most, so that a small table is not all reserve.
        let all = self.io.cfg.max_sessions;
        let reserve = self.io.cfg.reserved_sessions.min(all / 16);
        let limit = if of_host == 0 { all } else { all - reserve };
        if self.sessions.live() >= limit && !self.evict_unused(None, control) {
            return Err(ConnectRefuseReason::TooManySessions { limit: limit as u32 });
        }
        Ok(())
    }

    /// Evicts the oldest session of an address, or of all, that was never used. Sessions of the
    /// client that asks are spared: its own disconnects may be under way. Returns whether there was
    /// one.
    fn evict_unused(&mut self, host: Option<u128>, asking: u64) -> bool {
        let sessions = &self.sessions;
        let since_ns = |id: SessionId| sessions.unused(id).map(|s| s.accepted_ns);
        let Some((since_ns, id)) = self.admission.quotas.oldest_unused(host, since_ns) else {
            return false;
        };
        let is_old = self.io.now_ns.saturating_sub(since_ns) >= UNUSED_FOR_NS;
        is_old && self.evict(id.index, |control| control != asking)
    }

    /// Evicts the sessions of clients of an address, or of all, that have not used any of theirs, and
    /// have had one for a second: control connections are scarce, and those without sessions can be
    /// closed. At most eight clients, those with the oldest session first.
    pub fn evict_clients(&mut self, host: Option<u128>) {
        let mut clients: BTreeMap<u32, (u64, Vec<u32>)> = BTreeMap::new();
        for id in self.admission.quotas.unused_of(host) {
            let Some(s) = self.sessions.unused(id) else { continue };
            let (since_ns, sessions) =
                clients.entry(s.quota).or_insert((s.accepted_ns, Vec::new()));
            *since_ns = s.accepted_ns.min(*since_ns);
            sessions.push(id.index);
        }
        let mut idle: Vec<(u64, u64, Vec<u32>)> = Vec::new();
        for (client, (since_ns, sessions)) in clients {
            let Some(control) = self.admission.quotas.control_of(client) else { continue };
            if self.admission.quotas.sessions_over(control) as usize == sessions.len()
                && self.io.now_ns.saturating_sub(since_ns) >= UNUSED_FOR_NS
            {
                idle.push((since_ns, control, sessions));
            }
        }
        idle.sort_unstable();
        for (_, _, sessions) in idle.into_iter().take(CLIENTS_AT_ONCE) {
            for session in sessions {
                self.evict(session, |_| true);
            }
        }
    }

    /// Ends a server session over a control connection that `is_it`. Its client is to be notified.
    fn evict(&mut self, own: u32, is_it: impl FnOnce(u64) -> bool) -> bool {
        let mut evicted = None;
        let ended = self.end_server(own, |flow| {
            let Some((Some(id), control)) = flow.party() else { return false };
            let client = EndpointRef { index: flow.s.client_index, id };
            evicted = Some(Evicted { control, client, session: flow.s.remote, own });
            is_it(control)
        });
        let Some(ended) = ended else { return false };
        self.outbox.evicted.extend(evicted);
        let path = self.release_peer(&ended);
        self.outbox.unused_paths.extend(path);
        true
    }

    /// The next session that was evicted. Its client is to be notified.
    pub fn poll_evicted(&mut self) -> Option<Evicted> {
        self.outbox.evicted.pop_front()
    }

    /// The server has evicted a session, its number `remote`: calls on it end. Messages about
    /// sessions of other connections are ignored. Returns the session, and the path if it is no
    /// longer needed.
    pub fn evicted(
        &mut self,
        session: u32,
        remote: u32,
        endpoint_id: u64,
        control: u64,
    ) -> Option<(SessionId, Option<PathId>)> {
        let ended = self.end_client(session, |flow| {
            let is_it = flow.s.remote == remote && !flow.s.has_failed();
            // No packet of a request had arrived, and later ones are dropped.
            let cause = Cause::Error(|_| CallError::PeerFailed(Executed::Never));
            (is_it && flow.party() == (Some(endpoint_id), control)).then_some(cause)
        })?;
        Some((ended.session, self.leave_peer(&ended)))
    }
}
