//! Turns of large requests in every order of threads.

use std::sync::Arc;

use loom::thread;

use super::*;
use crate::sync::model::{LOST, block_on, check, must_fail};

/// Two threads decode a request each, and a third one drops a request that waits or has begun.
/// `leaves`: a request that is dropped after it was woken does not wake the next one.
fn turns(leaves: bool) -> impl Fn() + Sync + Send {
    move || {
        let load = Arc::new(Load::default());
        let first = load.clone();
        let decodes = thread::spawn(move || drop(block_on(first.turn(1))));
        let own = load.clone();
        let dropped = thread::spawn(move || {
            let mut place = Place { load: &own, at: None };
            let polled = place.poll(2, &Context::from_waker(Waker::noop()));
            drop(polled);
            if let Some(at) = place.at.take_if(|_| leaves) {
                own.lock().waiting.remove(&at);
            }
        });
        drop(block_on(load.turn(3)));
        decodes.join().unwrap();
        dropped.join().unwrap();
        assert!(load.lock().waiting.is_empty() && load.lock().running == 0);
    }
}

#[test]
fn each_large_request_gets_its_turn() {
    check(turns(false));
}

#[test]
fn turns_with_a_broken_rule_are_found() {
    must_fail(
        module_path!(),
        "turns_with_a_broken_rule_are_found",
        LOST,
        &[("a place that is left in silence", || check(turns(true)))],
    );
}
