//! The bookkeeping of handlers, and the threads that poll them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::task::Waker;
use std::time::Duration;

use super::running::Running;
use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn a_ticket_counts_until_it_is_dropped() {
    let (places, running) = (Shares::new(2), Arc::new(Running::default()));
    let mut first = running.begin(None, u64::MAX, places.place(1).expect("a place"));
    let second = running.begin(None, 7, places.place(1).expect("a place"));
    assert!(places.place(2).is_err() && places.held() == 2);
    drop(second);
    assert!(places.place(2).is_ok());
    // Not asked before the first poll.
    assert!(!first.is_cancelled() && !first.is_cancelled() && !first.wait(Waker::noop()));
    drop(first);
    assert_eq!(places.held(), 0);
}

#[test]
fn the_drain_token_is_set_when_an_endpoint_ends_with_an_error() {
    let nexus = Nexus::bind("udp://127.0.0.1:0").expect("a free port");
    let rpc = nexus.endpoint().expect("an endpoint");
    let services = Services::default();
    let token = services.drain_token().clone();
    let control = Control::new(services);
    (0..2).for_each(|_| control.begin(rpc.mailbox.clone()));
    control.end(Ok(ShutdownReport::default()));
    assert!(!token.is_draining());
    control.end(Err(ServerError::Panicked));
    assert!(token.is_draining());
}

#[test]
fn workers_poll_tasks_until_they_end_and_survive_panics() {
    let workers = Workers::start(2).expect("threads");
    let (done, is_done) = mpsc::channel();
    for n in 0..100 {
        let done = done.clone();
        workers.spawn(Box::pin(async move {
            tokio::task::yield_now().await;
            assert!(n % 10 != 0, "a panic on purpose");
            done.send(n).expect("the test waits");
        }));
    }
    drop(done);
    let mut ended: Vec<i32> = is_done.iter().collect();
    ended.sort_unstable();
    assert_eq!(ended, (0..100).filter(|n| n % 10 != 0).collect::<Vec<_>>());
}

#[test]
fn tasks_of_workers_that_ended_are_dropped() {
    struct Guard(mpsc::Sender<()>);
    impl Drop for Guard {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }
    let (dropped, is_dropped) = mpsc::channel();
    let polls = Arc::new(AtomicUsize::new(0));
    let workers = Workers::start(1).expect("a thread");
    let (wakers, waker) = mpsc::channel::<Waker>();
    let own = (Guard(dropped), polls.clone());
    workers.spawn(Box::pin(async move {
        let own = own;
        std::future::poll_fn(|cx| {
            own.1.fetch_add(1, Ordering::Relaxed);
            let _ = wakers.send(cx.waker().clone());
            Poll::<()>::Pending
        })
        .await;
    }));
    let waker = waker.recv_timeout(PATIENCE).expect("the task runs");
    drop(workers);
    assert!(is_dropped.try_recv().is_err(), "its waker keeps it");
    waker.wake();
    is_dropped.recv_timeout(PATIENCE).expect("the task is dropped");
    assert_eq!(polls.load(Ordering::Relaxed), 1);
}
