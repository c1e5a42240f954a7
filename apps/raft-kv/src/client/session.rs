//! Numbers of writes in a session.

use std::cell::RefCell;
use std::collections::BTreeSet;

use crate::command::Ticket;
use crate::store::SESSION_WINDOW;

/// The session, with the writes that are in progress.
#[derive(Debug)]
pub(super) struct Numbers {
    session: u64,
    next: u64,
    open: BTreeSet<u64>,
}

impl Numbers {
    pub(super) fn new(session: u64) -> Numbers {
        Numbers { session, next: 1, open: BTreeSet::new() }
    }

    pub(super) fn session(&self) -> u64 {
        self.session
    }

    /// The session and the next number; `None`: too many writes are in progress.
    pub(super) fn take(&mut self) -> Option<(u64, u64)> {
        let first = self.open.first().copied().unwrap_or(self.next);
        if self.next - first >= SESSION_WINDOW {
            return None;
        }
        let seq = self.next;
        self.next += 1;
        self.open.insert(seq);
        Some((self.session, seq))
    }
}

/// A write in progress. Dropped, it is none any more.
pub(super) struct Open<'a> {
    numbers: &'a RefCell<Option<Numbers>>,
    session: u64,
    seq: u64,
}

impl<'a> Open<'a> {
    pub(super) fn new(numbers: &'a RefCell<Option<Numbers>>, session: u64, seq: u64) -> Self {
        Open { numbers, session, seq }
    }

    /// Its number, with the first one whose result the client does not have.
    pub(super) fn ticket(&self) -> Ticket {
        let numbers = self.numbers.borrow();
        let first = numbers.as_ref().filter(|numbers| numbers.session == self.session);
        let first = first.and_then(|numbers| numbers.open.first().copied());
        Ticket { session: self.session, seq: self.seq, first: first.unwrap_or(self.seq) }
    }

    /// The session has expired.
    pub(super) fn expired(&self) {
        self.numbers.borrow_mut().take_if(|numbers| numbers.session == self.session);
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if let Some(numbers) = self.numbers.borrow_mut().as_mut()
            && numbers.session == self.session
        {
            numbers.open.remove(&self.seq);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_state_the_first_write_without_a_result() {
        let numbers = RefCell::new(Some(Numbers::new(7)));
        let open = || {
            let (session, seq) = numbers.borrow_mut().as_mut().unwrap().take().unwrap();
            Open::new(&numbers, session, seq)
        };
        let (first, second, third) = (open(), open(), open());
        assert_eq!(third.ticket(), Ticket { session: 7, seq: 3, first: 1 });
        drop(second);
        assert_eq!(third.ticket().first, 1);
        drop(first);
        assert_eq!(third.ticket().first, 3);
        third.expired();
        assert!(numbers.borrow().is_none());
    }

    #[test]
    fn a_session_has_a_limited_number_of_writes_in_progress() {
        let mut numbers = Numbers::new(1);
        assert!((0..SESSION_WINDOW).all(|_| numbers.take().is_some()));
        assert!(numbers.take().is_none());
        numbers.open.remove(&1);
        assert_eq!(numbers.take(), Some((1, SESSION_WINDOW + 1)));
    }
}
