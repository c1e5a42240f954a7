//! The session table of an endpoint.

use std::ops::{Deref, DerefMut};

use courser_buf::{Runs, prefetch};

use super::{ClientSession, ServerSession, Session, SessionId};
use crate::slot::{ClientSlot, ServerSlot};
use crate::stats::RxDrop;

/// All sessions of an endpoint. Dereferences to the slice of its entries.
#[derive(Debug)]
pub(crate) struct Sessions<C> {
    entries: Vec<Session<C>>,
    vacant: Vec<u32>,
    live: usize,
    /// Client sessions that wait for their server's answer.
    pub(crate) connecting: usize,
    /// Memory of the awake slots.
    pub(crate) client_slots: Runs<ClientSlot<C>>,
    pub(crate) server_slots: Runs<ServerSlot>,
}

impl<C> Sessions<C> {
    pub(crate) fn new() -> Self {
        Sessions {
            entries: Vec::new(),
            vacant: Vec::new(),
            live: 0,
            connecting: 0,
            client_slots: Runs::new(),
            server_slots: Runs::new(),
        }
    }

    /// Number of sessions in any state, both roles.
    pub(crate) fn live(&self) -> usize {
        self.live
    }

    /// Returns whether the session has not ended.
    pub(crate) fn is_live(&self, id: SessionId) -> bool {
        let entry = self.entries.get(id.index as usize);
        entry.and_then(Session::generation) == Some(id.generation)
    }

    /// The client session of that number.
    #[inline(always)]
    pub(crate) fn client(&self, session: u32) -> Option<&ClientSession<C>> {
        match self.entries.get(session as usize)? {
            Session::Client(s) => Some(s),
            _ => None,
        }
    }

    /// The client session of that number.
    #[inline(always)]
    pub(crate) fn client_mut(&mut self, session: u32) -> Option<&mut ClientSession<C>> {
        match self.entries.get_mut(session as usize)? {
            Session::Client(s) => Some(s),
            _ => None,
        }
    }

    /// The server session of that number.
    #[inline(always)]
    pub(crate) fn server_mut(&mut self, session: u32) -> Option<&mut ServerSession> {
        match self.entries.get_mut(session as usize)? {
            Session::Server(s) => Some(s),
            _ => None,
        }
    }

    /// A server session, if it has had no request.
    pub(crate) fn unused(&self, id: SessionId) -> Option<&ServerSession> {
        match self.entries.get(id.index as usize)? {
            Session::Server(s) => (s.generation == id.generation && s.is_unused()).then_some(s),
            _ => None,
        }
    }

    /// Loads an entry into the caches. There need not be such an entry.
    #[inline(always)]
    pub(crate) fn prefetch(&self, session: u32) {
        if let Some(entry) = self.entries.get(session as usize) {
            prefetch(entry);
        }
    }

    /// The server session of that number, if it belongs to `peer`.
    /// # Errors
    /// The reason for dropping its packet.
    #[inline(always)]
    pub(crate) fn server_of(
        &mut self,
        peer: u32,
        session: u32,
    ) -> Result<&mut ServerSession, RxDrop> {
        server_of(&mut self.entries, peer, session)
    }

    /// [`Sessions::server_of`], with its slots. Those of an idle session are allocated for the next
    /// request of a slot.
    /// # Errors
    /// The reason for dropping its packet.
    pub(crate) fn awake_server_of(
        &mut self,
        peer: u32,
        session: u32,
        req_num: u32,
    ) -> Result<&mut ServerSession, RxDrop> {
        let Sessions { entries, server_slots, .. } = self;
        let s = server_of(entries, peer, session)?;
        if s.slots.are_asleep() {
            s.slots.wake_for(req_num, server_slots, ServerSlot::new)?;
        }
        Ok(s)
    }

    /// The client session of that number, with its slots if it `needs` them. Those of an idle session
    /// are allocated then, and `woken` is called.
    pub(crate) fn awake_client(
        &mut self,
        session: u32,
        needs: impl FnOnce(&mut ClientSession<C>) -> bool,
        woken: impl FnOnce(&mut ClientSession<C>),
    ) -> Option<&mut ClientSession<C>> {
        let Sessions { entries, client_slots, .. } = self;
        let Some(Session::Client(s)) = entries.get_mut(session as usize) else { return None };
        if needs(s) && s.slots.are_asleep() {
            s.slots.wake(client_slots, ClientSlot::new);
            woken(s);
        }
        Some(s)
    }

    pub(crate) fn add(&mut self, make: impl FnOnce(u32) -> Session<C>) -> SessionId {
        let index = match self.vacant.pop() {
            Some(index) => index,
            None => {
                self.entries.push(Session::Vacant { generation: 0 });
                self.entries.len() as u32 - 1
            }
        };
        let entry = &mut self.entries[index as usize];
        let generation = match entry {
            Session::Vacant { generation } => *generation,
            _ => 0,
        };
        debug_assert!(matches!(entry, Session::Vacant { .. }));
        *entry = make(generation);
        self.live += 1;
        SessionId { index, generation }
    }

    /// Frees an entry; the next session there gets another generation.
    pub(crate) fn vacate(&mut self, index: u32, generation: u32) {
        self.entries[index as usize] = Session::Vacant { generation: generation.wrapping_add(1) };
        self.vacant.push(index);
        self.live -= 1;
        self.client_slots.trim();
        self.server_slots.trim();
    }

    /// Bytes of the table.
    pub(crate) fn table_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Session<C>>()
    }
}

/// See [`Sessions::server_of`].
#[inline(always)]
fn server_of<C>(
    entries: &mut [Session<C>],
    peer: u32,
    session: u32,
) -> Result<&mut ServerSession, RxDrop> {
    match entries.get_mut(session as usize) {
        Some(Session::Server(s)) if s.peer == peer => Ok(s),
        Some(Session::Client(s)) if s.peer == peer => Err(RxDrop::WrongRole),
        _ => Err(RxDrop::UnknownSession),
    }
}

impl<C> Deref for Sessions<C> {
    type Target = [Session<C>];
    #[inline(always)]
    fn deref(&self) -> &[Session<C>] {
        &self.entries
    }
}

impl<C> DerefMut for Sessions<C> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [Session<C>] {
        &mut self.entries
    }
}
