//! Room for new sessions: limits per client, address and endpoint, and eviction of sessions that
//! were never used, for other sessions or for other control connections.

use std::collections::BTreeMap;

use courser_buf::{Addr, PathId};

use super::connect::EndpointRef;
use super::{Cause, ConnectRefuseReason, ConnectRequest, Evicted, SessionId};
use crate::admission::{Admission, Answer, Need};
use crate::endpoint::Endpoint;
use crate::error::{CallError, Executed};
use crate::io::Io;

/// A session without a request can be evicted after this time, ns.
const UNUSED_FOR_NS: u64 = 1_000_000_000;

/// Clients whose sessions end at once when control connections are scarce: more than one, as the
/// places of their connections are open to all.
const CLIENTS_AT_ONCE: usize = 8;

/// A further session of a client.
#[derive(Clone, Copy, Debug)]
struct NewSession {
    control: u64,
    /// A path to it has to be opened.
    is_new_path: bool,
}

impl Need for NewSession {
    type Gets = ();
    type Refusal = ConnectRefuseReason;

    fn decide(self, admission: &Admission, io: &Io) -> Answer<(), ConnectRefuseReason> {
        let (quotas, cfg) = (&admission.quotas, &io.cfg);
        let most = [cfg.max_sessions_per_peer, cfg.max_paths_per_peer].map(|most| most as u32);
        if quotas.is_closing() {
            Answer::Refuse(ConnectRefuseReason::ShuttingDown)
        } else if quotas.sessions_over(self.control) >= most[0] {
            Answer::Refuse(ConnectRefuseReason::TooManyOfPeer { limit: most[0] })
        } else if self.is_new_path && quotas.paths_of(self.control) >= most[1] {
            Answer::Refuse(ConnectRefuseReason::TooManyPathsOfPeer { limit: most[1] })
        } else {
            Answer::Now(())
        }
    }
}

/// A place for a further session. One that was never used may be evicted for it.
#[derive(Clone, Copy, Debug)]
struct Place {
    among: Among,
    /// Sessions of the address that the session is for.
    of_host: u32,
    /// Sessions of all addresses.
    live: usize,
}

/// The sessions among which a place is needed.
#[derive(Clone, Copy, Debug)]
enum Among {
    Address,
    All,
}

impl Need for Place {
    type Gets = ();
    type Refusal = ConnectRefuseReason;

    fn decide(self, _: &Admission, io: &Io) -> Answer<(), ConnectRefuseReason> {
        let (cfg, all) = (&io.cfg, io.cfg.max_sessions);
        let (has, limit) = match self.among {
            Among::Address => (self.of_host as usize, cfg.max_sessions_per_address),
            Among::All if self.of_host == 0 => (self.live, all),
            // The reserve is a sixteenth at most, so that a small table is not all reserve.
            Among::All => (self.live, all - cfg.reserved_sessions.min(all / 16)),
        };
        if has < limit {
            return Answer::Now(());
        }
        let limit = limit as u32;
        Answer::Refuse(match self.among {
            Among::Address => ConnectRefuseReason::TooManyOfAddress { limit },
            Among::All => ConnectRefuseReason::TooManySessions { limit },
        })
    }
}

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
        let is_new_path = !self.knows_peer(r, addr, control);
        if let Answer::Refuse(reason) =
            self.admission.ask(&self.io, NewSession { control, is_new_path })
        {
            return Err(reason);
        }
        let of_host = self.admission.quotas.sessions_of(addr.host);
        for (among, host) in [(Among::Address, Some(addr.host)), (Among::All, None)] {
            let place = Place { among, of_host, live: self.sessions.live() };
            if let Answer::Refuse(reason) = self.admission.ask(&self.io, place)
                && !self.evict_unused(host, control)
            {
                return Err(reason);
            }
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

#[cfg(test)]
mod tests {
    use courser_buf::Arena;

    use super::*;
    use crate::config::Config;

    #[test]
    fn a_session_is_refused_by_shutdown_or_by_the_sessions_and_paths_of_its_client() {
        let cfg = Config { max_sessions_per_peer: 2, max_paths_per_peer: 1, ..Config::default() };
        let mut ep = Endpoint::<u64>::new(cfg, Arena::heap(), 1, 1_472).unwrap();
        let ask = |ep: &Endpoint<u64>, is_new_path| {
            ep.admission.ask(&ep.io, NewSession { control: 7, is_new_path })
        };
        assert_eq!(ask(&ep, true), Answer::Now(()));
        ep.admission.quotas.add_path(0, 7);
        let refused = Answer::Refuse(ConnectRefuseReason::TooManyPathsOfPeer { limit: 1 });
        assert_eq!([true, false].map(|path| ask(&ep, path)), [refused, Answer::Now(())]);
        (0..2).for_each(|_| _ = ep.admission.quotas.enter(7, 1));
        let refused = Answer::Refuse(ConnectRefuseReason::TooManyOfPeer { limit: 2 });
        assert_eq!(ask(&ep, false), refused);
        ep.shut_down();
        assert_eq!(ask(&ep, false), Answer::Refuse(ConnectRefuseReason::ShuttingDown));
    }

    #[test]
    fn a_place_is_refused_to_an_address_with_many_sessions_and_in_a_full_table() {
        let cfg = Config {
            max_sessions: 32,
            max_sessions_per_address: 4,
            reserved_sessions: 2,
            ..Config::default()
        };
        let ep = Endpoint::<u64>::new(cfg, Arena::heap(), 1, 1_472).unwrap();
        let ask = |among, of_host, live| ep.admission.ask(&ep.io, Place { among, of_host, live });
        let refused = Answer::Refuse(ConnectRefuseReason::TooManyOfAddress { limit: 4 });
        assert_eq!([3, 4].map(|n| ask(Among::Address, n, 9)), [Answer::Now(()), refused]);
        let refused = Answer::Refuse(ConnectRefuseReason::TooManySessions { limit: 30 });
        assert_eq!([29, 30].map(|n| ask(Among::All, 1, n)), [Answer::Now(()), refused]);
        // The reserve is for addresses without a session.
        let refused = Answer::Refuse(ConnectRefuseReason::TooManySessions { limit: 32 });
        assert_eq!([31, 32].map(|n| ask(Among::All, 0, n)), [Answer::Now(()), refused]);
    }
}
