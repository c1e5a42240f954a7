//! Sessions of clients: the results of their last writes, so that a retry is not applied again
//! [Raft dissertation, section 6.3].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::command::{Ticket, Unwritten, Written};

/// Most sessions. Each takes some 200 bytes and [`SESSION_WINDOW`] results of 24 bytes at most.
pub const MAX_SESSIONS: usize = 65_536;
/// Most results that are kept for a session, and so the most writes that a client has in progress.
pub const SESSION_WINDOW: u64 = 1_024;
/// Shortest and longest time of an idle session, ms. An entry of the log may have any number.
const TTL_MS: (u64, u64) = (1_000, 86_400_000);

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Session {
    ttl_ms: u64,
    ends_ms: u64,
    /// The client has all results below this number.
    first: u64,
    results: BTreeMap<u64, Written>,
}

/// All sessions, by number.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct Sessions {
    all: BTreeMap<u64, Arc<Session>>,
    /// Their ends.
    ends: BTreeSet<(u64, u64)>,
}

impl Sessions {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn open(&mut self, number: u64, now_ms: u64, ttl_ms: u64) -> Result<(), Unwritten> {
        if self.all.len() >= MAX_SESSIONS {
            return Err(Unwritten::Sessions);
        }
        let ttl_ms = ttl_ms.clamp(TTL_MS.0, TTL_MS.1);
        let ends_ms = now_ms.saturating_add(ttl_ms);
        self.ends.insert((ends_ms, number));
        let results = BTreeMap::new();
        let session = Session { ttl_ms, ends_ms, first: 1, results };
        self.all.insert(number, Arc::new(session));
        Ok(())
    }

    pub(super) fn close(&mut self, number: u64) {
        if let Some(session) = self.all.remove(&number) {
            self.ends.remove(&(session.ends_ms, number));
        }
    }

    /// Ends the sessions whose time is over.
    pub(super) fn expire(&mut self, now_ms: u64) {
        while let Some(&(ends_ms, number)) = self.ends.first()
            && ends_ms <= now_ms
        {
            self.ends.pop_first();
            self.all.remove(&number);
        }
    }

    /// The result of a write that was applied before; `None`: it is to be applied.
    pub(super) fn find(
        &mut self,
        ticket: Ticket,
        now_ms: u64,
    ) -> Result<Option<Written>, Unwritten> {
        let session = self.all.get_mut(&ticket.session).ok_or(Unwritten::Expired)?;
        let session = Arc::make_mut(session);
        self.ends.remove(&(session.ends_ms, ticket.session));
        session.ends_ms = now_ms.saturating_add(session.ttl_ms);
        self.ends.insert((session.ends_ms, ticket.session));
        if ticket.first > session.first {
            session.first = ticket.first.min(ticket.seq);
            session.results = session.results.split_off(&session.first);
        }
        if ticket.seq < session.first {
            return Err(Unwritten::Stale);
        }
        if let Some(written) = session.results.get(&ticket.seq) {
            return Ok(Some(*written));
        }
        if ticket.seq - session.first >= SESSION_WINDOW {
            return Err(Unwritten::Window);
        }
        Ok(None)
    }

    /// Keeps a result.
    pub(super) fn keep(&mut self, ticket: Ticket, written: Written) {
        if let Some(session) = self.all.get_mut(&ticket.session) {
            Arc::make_mut(session).results.insert(ticket.seq, written);
        }
    }

    /// The sessions as they are, for an image. Costs a pointer for each of them.
    pub(super) fn freeze(&self) -> Frozen {
        Frozen(self.all.clone())
    }

    /// Adds a session of an image. False: it is out of order or exceeds a limit.
    pub(super) fn restore(&mut self, number: u64, session: Session) -> bool {
        let is_next = self.all.last_key_value().is_none_or(|(&last, _)| last < number);
        if !is_next || self.all.len() == MAX_SESSIONS || !session.is_consistent() {
            return false;
        }
        self.ends.insert((session.ends_ms, number));
        self.all.insert(number, Arc::new(session));
        true
    }
}

impl Session {
    /// Returns whether the results are within the window.
    fn is_consistent(&self) -> bool {
        let (begin, last) = (self.results.first_key_value(), self.results.last_key_value());
        self.results.len() as u64 <= SESSION_WINDOW
            && begin.is_none_or(|(&seq, _)| seq >= self.first)
            && last.is_none_or(|(&seq, _)| seq - self.first < SESSION_WINDOW)
    }
}

/// Sessions that an image has still to be given, as they were at its begin. A write to a session
/// copies it if it is one of them.
#[derive(Clone, Debug)]
pub(super) struct Frozen(BTreeMap<u64, Arc<Session>>);

impl Frozen {
    /// Removes the next session. Returns its encoding.
    pub(super) fn encode_next(&mut self) -> Option<Vec<u8>> {
        let (number, session) = self.0.pop_first()?;
        Some(postcard::to_stdvec(&(number, &*session)).expect("an image is data"))
    }
}
