//! Wake-ups between tasks of one thread.

use std::cell::{Cell, RefCell};
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
    waiting: RefCell<Vec<Waker>>,
}

impl Progress {
    /// Advances the number.
    pub fn advance(&self, to: u64) {
        if to > self.at.get() {
            self.at.set(to);
            let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
            waiting.into_iter().for_each(Waker::wake);
        }
    }

    /// Waits until the number is above this one.
    pub async fn above(&self, number: u64) {
        poll_fn(|cx| {
            if self.at.get() > number {
                return Poll::Ready(());
            }
            let mut waiting = self.waiting.borrow_mut();
            // A task that is polled again for another reason has one entry.
            if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
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
        assert_eq!(progress.waiting.borrow().len(), 1);
        progress.advance(3);
        assert!(waits.as_mut().poll(&mut cx).is_pending());
        progress.advance(4);
        assert!(waits.as_mut().poll(&mut cx).is_ready());
    }
}
