//! Writes that a leader has proposed and not answered.

use std::collections::BTreeMap;

use crate::command::Ticket;

/// A write that waits for its entry.
struct Waiting<W> {
    term: u64,
    /// Session and number. `None`: it is no write of a session.
    key: Option<(u64, u64)>,
    writer: W,
}

/// The writes by the index of their entry.
pub(super) struct Writes<W> {
    all: BTreeMap<u64, Waiting<W>>,
    indexes: BTreeMap<(u64, u64), u64>,
}

impl<W> Default for Writes<W> {
    fn default() -> Self {
        Writes { all: BTreeMap::new(), indexes: BTreeMap::new() }
    }
}

fn key(ticket: Ticket) -> (u64, u64) {
    (ticket.session, ticket.seq)
}

impl<W> Writes<W> {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Adds a write that was proposed.
    pub(super) fn insert(&mut self, at: (u64, u64), ticket: Option<Ticket>, writer: W) {
        let (index, term) = at;
        let key = ticket.map(key);
        self.indexes.extend(key.map(|key| (key, index)));
        self.all.insert(index, Waiting { term, key, writer });
    }

    /// Lets a retry wait for the entry of an earlier attempt, so that it needs none of its own. Returns the
    /// writer of that attempt, or that of the retry if there is none.
    pub(super) fn join(&mut self, ticket: Ticket, writer: W) -> Result<W, W> {
        let index = self.indexes.get(&key(ticket));
        match index.and_then(|index| self.all.get_mut(index)) {
            Some(waiting) => Ok(std::mem::replace(&mut waiting.writer, writer)),
            None => Err(writer),
        }
    }

    /// Removes the write of an entry. Returns the term of its proposal, and its writer.
    pub(super) fn take(&mut self, index: u64) -> Option<(u64, W)> {
        let Waiting { term, key, writer } = self.all.remove(&index)?;
        key.inspect(|key| {
            self.indexes.remove(key);
        });
        Some((term, writer))
    }

    /// Removes all of them. Returns their writers.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = W> + use<W> {
        self.indexes.clear();
        std::mem::take(&mut self.all).into_values().map(|waiting| waiting.writer)
    }
}
