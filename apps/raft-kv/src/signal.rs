//! Wake-ups between tasks of one thread.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// A flag that one task waits for.
#[derive(Debug, Default)]
pub struct Signal {
    is_set: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Signal {
    /// Sets the flag.
    pub fn set(&self) {
        if !self.is_set.replace(true)
            && let Some(waker) = self.waker.borrow_mut().take()
        {
            waker.wake();
        }
    }

    /// Waits until the flag is set, and clears it.
    pub async fn wait(&self) {
        poll_fn(|cx| {
            if self.is_set.replace(false) {
                return Poll::Ready(());
            }
            *self.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// A number that grows, and that any number of tasks wait for.
#[derive(Debug, Default)]
pub struct Progress {
    at: Cell<u64>,
    waiting: RefCell<BTreeMap<u64, Waker>>,
    last: Cell<u64>,
}

impl Progress {
    /// Advances the number.
    pub fn advance(&self, to: u64) {
        if to > self.at.get() {
            self.at.set(to);
            let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
            waiting.into_values().for_each(Waker::wake);
        }
    }

    /// Waits until the number is above this one. A wait has one entry, whatever the number of its polls,
    /// and none when it has ended or was dropped.
    pub async fn above(&self, number: u64) {
        let entry = Entry { of: self, key: self.last.get() + 1 };
        self.last.set(entry.key);
        poll_fn(|cx| {
            if self.at.get() > number {
                return Poll::Ready(());
            }
            self.waiting.borrow_mut().insert(entry.key, cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Number of the waits.
    pub fn waiting(&self) -> usize {
        self.waiting.borrow().len()
    }
}

/// The entry of a wait.
struct Entry<'a> {
    of: &'a Progress,
    key: u64,
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.of.waiting.borrow_mut().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Context;

    use super::*;

    #[test]
    fn a_signal_that_was_set_before_is_not_lost_and_counts_once() {
        let signal = Signal::default();
        let mut cx = Context::from_waker(Waker::noop());
        assert!(pin!(signal.wait()).poll(&mut cx).is_pending());
        signal.set();
        signal.set();
        assert!(pin!(signal.wait()).poll(&mut cx).is_ready());
        assert!(pin!(signal.wait()).poll(&mut cx).is_pending());
    }

    #[test]
    fn progress_wakes_those_that_wait_for_less() {
        let progress = Progress::default();
        let mut cx = Context::from_waker(Waker::noop());
        let mut waits = pin!(progress.above(3));
        assert!(
            waits.as_mut().poll(&mut cx).is_pending() && waits.as_mut().poll(&mut cx).is_pending()
        );
        assert_eq!(progress.waiting(), 1);
        progress.advance(3);
        assert!(waits.as_mut().poll(&mut cx).is_pending());
        progress.advance(4);
        assert!(waits.as_mut().poll(&mut cx).is_ready());
    }

    #[test]
    fn a_wait_that_is_dropped_leaves_no_entry() {
        let progress = Progress::default();
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..10 {
            let mut waits: Vec<_> = (0..100).map(|_| Box::pin(progress.above(0))).collect();
            assert!(waits.iter_mut().all(|wait| wait.as_mut().poll(&mut cx).is_pending()));
            assert_eq!(progress.waiting(), 100);
            waits.truncate(1);
            assert_eq!(progress.waiting(), 1);
        }
        assert_eq!(progress.waiting(), 0);
    }
}
