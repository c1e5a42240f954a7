//! The tables of sessions, peers and tenants, and what each may take.

use super::{Draining, Peer, Session, SessionId, SessionState};
use crate::endpoint::Endpoint;
use crate::error::Status;
use crate::mutant::{self, Mutant};
use crate::slot::{ServerPhase, ServerSlot};

impl<C> Endpoint<C> {
    /// Why a new request of a tenant is not taken, if it is not.
    #[cold]
    pub(crate) fn objection(&self, tenant: u32, msg_size: u32) -> Option<Status> {
        if self.shares.is_closing() {
            Some(Status::ShuttingDown)
        } else if msg_size > self.cfg.max_msg_size {
            Some(Status::TooLarge)
        } else {
            (self.shares.room_of(tenant) == 0).then_some(Status::NoMemory)
        }
    }

    // ---- peers --------------------------------------------------------------------------------

    pub(super) fn add_peer(&mut self, peer: Peer) -> u32 {
        let at = self.vacant_peers.pop().unwrap_or_else(|| {
            self.peers.push(None);
            self.peers.len() as u32 - 1
        });
        self.peers[at as usize] = Some(peer);
        at
    }

    pub(super) fn drop_peer(&mut self, peer: u32) -> Option<Peer> {
        let dropped = self.peers.get_mut(peer as usize)?.take()?;
        self.credits_granted -= u64::from(dropped.pool.limit) + u64::from(dropped.pool.granted);
        self.vacant_peers.push(peer);
        self.tx.forget_peer(peer);
        // Its number may be another's soon.
        self.lingering.retain(|&(lingering, _)| lingering != peer);
        if let Some(peers) = self.known_peers.get_mut(&dropped.name()) {
            peers.retain(|&at| at != peer);
            if peers.is_empty() {
                self.known_peers.remove(&dropped.name());
            }
        }
        Some(dropped)
    }

    /// One session less; the peer goes with its last one.
    pub(super) fn release_peer(&mut self, peer: u32) -> Option<courser_buf::PathId> {
        let p = self.peers.get_mut(peer as usize)?.as_mut()?;
        p.sessions = p.sessions.saturating_sub(1);
        if p.sessions > 0 {
            return None;
        }
        self.drop_peer(peer).map(|p| p.path)
    }

    /// [`Endpoint::release_peer`] at the client. The server may have accepted another session with
    /// this peer before it hears that this one is closed, and will name the peer in its answer: the
    /// peer stays as long as a connect is under way over the same control connection.
    pub(super) fn leave_peer(&mut self, peer: u32, control: u64) -> Option<courser_buf::PathId> {
        let last = matches!(self.peers.get(peer as usize), Some(Some(p)) if p.sessions == 1);
        if last && self.is_connecting_over(control) {
            if let Some(Some(p)) = self.peers.get_mut(peer as usize) {
                p.sessions = 0;
            }
            if !self.lingering.contains(&(peer, control)) {
                self.lingering.push((peer, control));
            }
            return None;
        }
        self.release_peer(peer)
    }

    /// A connect has ended: drops the peers that lingered for it and that nobody uses again.
    pub(super) fn connect_ended(&mut self) {
        self.connecting = self.connecting.saturating_sub(1);
        let mut at = 0;
        while let Some(&(peer, control)) = self.lingering.get(at) {
            let is_used = matches!(self.peers.get(peer as usize), Some(Some(p)) if p.sessions > 0);
            if !is_used && self.is_connecting_over(control) {
                at += 1;
                continue;
            }
            self.lingering.swap_remove(at);
            if !is_used && let Some(p) = self.drop_peer(peer) {
                self.unused_paths.push(p.path);
            }
        }
    }

    fn is_connecting_over(&self, control: u64) -> bool {
        let over = |s: &Session<C>| {
            matches!(s, Session::Client(s)
                if s.state == SessionState::Connecting && s.control == control)
        };
        self.connecting > 0 && self.sessions.iter().any(over)
    }

    // ---- sessions -----------------------------------------------------------------------------

    pub(super) fn add_session(&mut self, make: impl FnOnce(u32) -> Session<C>) -> SessionId {
        let index = match self.vacant.pop() {
            Some(index) => index,
            None => {
                self.sessions.push(Session::Vacant { generation: 0 });
                self.sessions.len() as u32 - 1
            }
        };
        let entry = &mut self.sessions[index as usize];
        let generation = match entry {
            Session::Vacant { generation } => *generation,
            _ => 0,
        };
        debug_assert!(matches!(entry, Session::Vacant { .. }));
        *entry = make(generation);
        self.live_sessions += 1;
        SessionId { index, generation }
    }

    /// Frees a session's memory and, unless handlers still work for it, its number (E68).
    pub(super) fn free_session(&mut self, index: u32) {
        let Some(entry) = self.sessions.get_mut(index as usize) else { return };
        match entry {
            Session::Client(s) => {
                let (generation, peer, credits) = (s.generation, s.peer, s.credit_limit);
                self.leave_pool(index, peer, credits);
                self.vacate(index, generation);
            }
            Session::Server(s) => {
                let executing = |(i, slot): (usize, &ServerSlot)| {
                    (slot.phase == ServerPhase::Executing).then_some((i as u8, slot.req_num))
                };
                let (generation, tenant) = (s.generation, s.tenant);
                let executing: Vec<_> = s.slots.iter().enumerate().filter_map(executing).collect();
                let held: u64 = s.slots.iter().map(|slot| u64::from(slot.all_held())).sum();
                let (peer, credits) = (s.peer, s.credit_limit);
                let wait = !executing.is_empty() && !mutant::is_on(Mutant::GenerationIgnored);
                self.given_up += executing.len() as u64;
                *entry = Session::Draining(Draining { generation, tenant, executing });
                self.ungrant_pool(peer, credits);
                self.shares.give_back(tenant, held);
                if !wait {
                    self.shares.leave(tenant);
                    self.vacate(index, generation);
                }
            }
            Session::Draining(_) | Session::Vacant { .. } => {}
        }
    }

    fn vacate(&mut self, index: u32, generation: u32) {
        self.sessions[index as usize] = Session::Vacant { generation: generation.wrapping_add(1) };
        self.vacant.push(index);
        self.live_sessions -= 1;
        self.client_slots.trim();
        self.server_slots.trim();
    }

    /// A handler has answered a request whose client is gone. The session goes with the last one.
    #[cold]
    pub(crate) fn drained(&mut self, session: SessionId, slot: u8, req_num: u32) {
        let Some(Session::Draining(d)) = self.sessions.get_mut(session.index as usize) else {
            return;
        };
        if d.generation != session.generation {
            return;
        }
        d.executing.retain(|&e| e != (slot, req_num));
        if d.executing.is_empty() {
            let (generation, tenant) = (d.generation, d.tenant);
            self.shares.leave(tenant);
            self.vacate(session.index, generation);
        }
    }
}
