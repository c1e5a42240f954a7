//! Handlers that are cancelled while their tasks begin to wait, in every order of threads.

use std::future::poll_fn;
use std::task::Poll;

use loom::thread;

use super::*;
use crate::core::shares::Shares;
use crate::sync::model::{LOST, block_on, check, must_fail};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// A task stores its waker and does not look again.
    WaitsBlindly,
    /// The tasks are taken before the handlers are marked.
    TakesFirst,
}

impl Running {
    /// [`Running::cancel`], with a broken rule.
    fn cancel_broken(&self, broken: Broken) {
        if broken != Broken::TakesFirst {
            return self.cancel(|_| true);
        }
        let wakers: Vec<_> =
            self.lock().iter_mut().filter_map(|(_, entry)| entry.waker.take()).collect();
        self.lock().iter_mut().for_each(|(_, entry)| entry.cancelled = true);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// The endpoint cancels a handler that never ends, as in `server/handler.rs`.
fn cancelling(broken: Broken) -> impl Fn() + Sync + Send {
    move || {
        let running = Arc::new(Running::default());
        let place = Shares::new(1).place(1).expect("a place");
        let mut ticket = running.begin(None, u64::MAX, place);
        let own = running.clone();
        let endpoint = thread::spawn(move || own.cancel_broken(broken));
        block_on(poll_fn(|cx| {
            if ticket.is_cancelled() {
                return Poll::Ready(());
            }
            let cancelled = ticket.wait(cx.waker()) && broken != Broken::WaitsBlindly;
            if cancelled { Poll::Ready(()) } else { Poll::Pending }
        }));
        endpoint.join().unwrap();
        drop(ticket);
        assert!(running.lock().is_empty());
    }
}

#[test]
fn a_cancelled_handler_is_dropped() {
    check(cancelling(Broken::Nothing));
}

#[test]
fn a_cancellation_with_a_broken_rule_is_found() {
    must_fail(
        module_path!(),
        "a_cancellation_with_a_broken_rule_is_found",
        LOST,
        &[
            ("a task that waits blindly", || check(cancelling(Broken::WaitsBlindly))),
            ("tasks that are taken too early", || check(cancelling(Broken::TakesFirst))),
        ],
    );
}
