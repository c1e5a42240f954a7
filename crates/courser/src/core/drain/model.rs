//! A token that is set while futures begin to wait for it, in every order of threads.

use std::future::poll_fn;

use loom::thread;

use super::*;
use crate::sync::model::{LOST, block_on, check, must_fail};

/// One thread waits, and another one stops waiting, while the server shuts down. `blindly`: a future
/// looks for the token, and stores its waker afterwards.
fn draining(blindly: bool) -> impl Fn() + Sync + Send {
    move || {
        let token = DrainToken::default();
        let own = token.clone();
        let stops = thread::spawn(move || {
            let mut draining = own.draining();
            let _ = Pin::new(&mut draining).poll(&mut Context::from_waker(Waker::noop()));
        });
        let own = token.clone();
        let server = thread::spawn(move || own.set());
        let mut draining = token.draining();
        block_on(poll_fn(|cx| {
            if blindly && !token.is_draining() {
                draining.key = Some(token.lock().insert(cx.waker().clone()));
                return Poll::Pending;
            }
            Pin::new(&mut draining).poll(cx)
        }));
        stops.join().unwrap();
        server.join().unwrap();
        drop(draining);
        assert!(token.lock().is_empty(), "a waker is kept");
    }
}

#[test]
fn a_token_that_is_set_wakes_all_that_wait() {
    check(draining(false));
}

#[test]
fn a_token_with_a_broken_rule_is_found() {
    must_fail(
        module_path!(),
        "a_token_with_a_broken_rule_is_found",
        LOST,
        &[("a waker that is stored too late", || check(draining(true)))],
    );
}
