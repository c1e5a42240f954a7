//! Calls of tasks that wait for room.

mod burst;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::tests::in_memory::{Memory, connect, endpoints};
use crate::{Config, Nexus, ReplyHandle};

const SESSIONS: usize = 40;
const CALLS: usize = 12;
/// One on its slot, and one in the queue.
const STARTED: usize = 2;

/// A client and a server that defers its answers.
struct Pair {
    client: Memory,
    server: Memory,
    deferred: Rc<RefCell<Vec<ReplyHandle>>>,
    ended: Rc<Cell<usize>>,
    failed: Rc<Cell<usize>>,
}

impl Pair {
    /// Spawns [`CALLS`] tasks with a call each on [`SESSIONS`] sessions.
    fn of_waiting_calls() -> Pair {
        let config = Config { slots: 1, call_queue: 1, ..Config::default() };
        let nexus = Nexus::bind_with("mem://127.0.0.1:0", config).unwrap();
        let [mut server, mut client] = endpoints(&nexus);
        let deferred: Rc<RefCell<Vec<_>>> = Rc::default();
        let (ended, failed): (Rc<Cell<usize>>, Rc<Cell<usize>>) = Default::default();
        let handles = deferred.clone();
        server.on(1, move |cx, _| handles.borrow_mut().extend(cx.defer()));
        let local = client.local();
        for _ in 0..SESSIONS {
            let id = connect(&mut client, &mut server, &nexus.local_uri());
            for _ in 0..CALLS {
                let (session, ended, failed) = (local.session(id), ended.clone(), failed.clone());
                drop(local.spawn(async move {
                    let request = session.local().alloc(8).unwrap();
                    let end = session.call(1, request).await;
                    let count = if end.is_ok() { &ended } else { &failed };
                    count.set(count.get() + 1);
                }));
            }
        }
        Pair { client, server, deferred, ended, failed }
    }

    fn poll(&mut self, times: usize) {
        for _ in 0..times {
            let _ = (self.client.poll(), self.server.poll());
        }
    }

    /// Times that waiting calls were tried.
    fn tries(&self) -> usize {
        self.client.core.tasks.calls.tries
    }

    /// Answers a deferred request.
    fn answer(&mut self) -> bool {
        let Some(handle) = self.deferred.borrow_mut().pop() else { return false };
        self.server.reply_to(handle, b"done").unwrap();
        true
    }
}

#[test]
fn hundreds_of_waiting_calls_are_tried_when_their_own_session_has_room() {
    let mut pair = Pair::of_waiting_calls();
    while pair.deferred.borrow().len() < SESSIONS {
        pair.poll(1);
    }
    let queued = SESSIONS * (CALLS - STARTED);
    assert_eq!(pair.client.task_stats().queued, queued);
    assert_eq!(pair.tries(), 0);
    pair.poll(1_000);
    assert_eq!(pair.tries(), 0, "no session has room");
    // One answer makes room in one session: one call starts, and the next one finds no room.
    assert!(pair.answer());
    while pair.ended.get() == 0 {
        pair.poll(1);
    }
    pair.poll(100);
    assert_eq!(pair.client.task_stats().queued, queued - 1);
    assert!(pair.tries() <= 2, "{} tries", pair.tries());
    while pair.ended.get() < SESSIONS * CALLS {
        while pair.answer() {}
        pair.poll(1);
    }
    assert_eq!(pair.client.task_stats().queued, 0);
    assert!(pair.tries() <= 2 * queued, "{} tries of {queued} calls", pair.tries());
}

#[test]
fn waiting_calls_end_when_their_session_is_closed() {
    let mut pair = Pair::of_waiting_calls();
    while pair.deferred.borrow().len() < SESSIONS {
        pair.poll(1);
    }
    let closed = pair.client.sessions_from(0).next().unwrap();
    pair.client.close(closed);
    while pair.failed.get() < CALLS {
        pair.poll(1);
    }
    assert_eq!(pair.client.task_stats().queued, (SESSIONS - 1) * (CALLS - STARTED));
    assert!(pair.tries() <= CALLS, "{} tries", pair.tries());
    assert_eq!(pair.ended.get(), 0);
}

#[test]
fn a_cancelled_request_ends_its_own_handler_among_hundreds() {
    struct Handled(Rc<RefCell<Vec<u8>>>, u8);
    impl Drop for Handled {
        fn drop(&mut self) {
            self.0.borrow_mut().push(self.1);
        }
    }
    let nexus = Nexus::bind("mem://127.0.0.1:0").unwrap();
    let [mut server, mut client] = endpoints(&nexus);
    let ended: Rc<RefCell<Vec<u8>>> = Rc::default();
    let log = ended.clone();
    server.on_async(1, move |request| {
        let handled = Handled(log.clone(), request[0]);
        async move {
            std::future::pending::<()>().await;
            drop(handled);
            "never"
        }
    });
    let mut calls = Vec::new();
    while calls.len() < 200 {
        let session = connect(&mut client, &mut server, &nexus.local_uri());
        for _ in 0..8 {
            let mut request = client.alloc(1).unwrap();
            request[0] = calls.len() as u8;
            calls.push(client.call(session, 1, request, |_, _| {}).unwrap());
        }
    }
    while server.task_stats().tasks < calls.len() {
        let _ = (client.poll(), server.poll());
    }
    for number in [7_u8, 150, 0, 199] {
        assert!(client.cancel(calls[usize::from(number)]));
        while ended.borrow().is_empty() {
            let _ = (client.poll(), server.poll());
        }
        assert_eq!(ended.take(), [number]);
    }
    assert_eq!(server.task_stats().tasks, calls.len() - 4);
}
