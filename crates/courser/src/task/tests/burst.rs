//! Tasks that are polled within the completions of their calls.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use courser_proto::SessionId;

use crate::channel::{Answer, CallOptions, Channel};
use crate::core::tasks::TaskStats;
use crate::tests::in_memory::{Memory, connect, endpoints};
use crate::{Call, Nexus, Session};

const ECHO: u16 = 1;

/// A client and a server that echoes, each of them polled by the test.
struct Pair {
    client: Memory,
    server: Memory,
    session: SessionId,
    log: Rc<RefCell<Vec<String>>>,
}

impl Pair {
    fn new() -> Pair {
        let nexus = Nexus::bind("mem://127.0.0.1:0").unwrap();
        let [mut server, mut client] = endpoints(&nexus);
        server.on(ECHO, |cx, request| cx.reply(request));
        let session = connect(&mut client, &mut server, &nexus.local_uri());
        Pair { client, server, session, log: Rc::default() }
    }

    /// Spawns a task.
    fn spawn<F: Future<Output = ()> + 'static>(
        &self,
        task: impl FnOnce(Session, Rc<RefCell<Vec<String>>>) -> F,
    ) {
        let session = self.client.local().session(self.session);
        drop(self.client.local().spawn(task(session, self.log.clone())));
    }

    /// The calls so far, in one burst each way. Nothing but frames runs tasks then.
    fn exchange(&mut self) {
        while self.server.poll() {}
        while self.client.poll() {}
    }

    fn until_idle(&mut self) {
        for _ in 0..1_000 {
            while self.client.poll() {}
            self.exchange();
            if self.client.task_stats() == TaskStats::default() {
                return;
            }
        }
        panic!("{:?} after {:?}", self.client.task_stats(), self.log.borrow());
    }
}

fn call<'a>(session: &'a Session, bytes: &[u8]) -> Call<'a> {
    let mut request = session.local().alloc(bytes.len()).unwrap();
    request.copy_from_slice(bytes);
    session.call(ECHO, request)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn a_task_runs_before_the_later_packets_of_the_frame_that_has_its_response() {
    let mut pair = Pair::new();
    for name in ["a", "b"] {
        pair.spawn(move |session, log| async move {
            let response = call(&session, name.as_bytes()).await.unwrap();
            log.borrow_mut().push(format!("task {}", text(&response)));
            // Its call leaves with those of the continuations.
            let second = call(&session, b"second").await.unwrap();
            log.borrow_mut().push(format!("task {name}, {}", text(&second)));
        });
        pair.client.poll();
        let request = pair.client.alloc(1).unwrap();
        let log = pair.log.clone();
        let ended = move |_: &mut crate::Context<'_>, _: crate::Completion<'_>| {
            log.borrow_mut().push(format!("continuation behind {name}"));
        };
        pair.client.call(pair.session, ECHO, request, ended).unwrap();
    }
    pair.until_idle();
    assert_eq!(
        *pair.log.borrow(),
        [
            "task a",
            "continuation behind a",
            "task b",
            "continuation behind b",
            "task a, second",
            "task b, second"
        ]
    );
}

#[test]
fn a_task_that_waits_for_many_calls_is_not_polled_for_each_of_them() {
    const CALLS: usize = 16;
    let mut pair = Pair::new();
    let polls = Rc::new(Cell::new(0));
    let count = polls.clone();
    pair.spawn(move |session, log| async move {
        let mut calls: Vec<_> = (0..CALLS).map(|n| Some(call(&session, &[n as u8]))).collect();
        // All calls have the waker of the task.
        poll_fn(|cx| {
            count.set(count.get() + 1);
            for (n, place) in calls.iter_mut().enumerate() {
                let Some(call) = place else { continue };
                if let Poll::Ready(response) = Pin::new(call).poll(cx) {
                    assert_eq!(response.unwrap()[..], [n as u8]);
                    *place = None;
                }
            }
            if calls.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        log.borrow_mut().push("all".into());
    });
    pair.until_idle();
    assert_eq!(*pair.log.borrow(), ["all"]);
    assert!(polls.get() <= 6, "{} polls for {CALLS} calls", polls.get());
}

#[test]
fn a_response_that_the_poll_of_its_task_does_not_read_is_kept() {
    let mut pair = Pair::new();
    pair.spawn(|session, log| async move {
        let mut first = call(&session, b"late");
        let mut polls = 0;
        let late = poll_fn(|cx| {
            polls += 1;
            match polls {
                // The poll with the response looks elsewhere, and another call is answered first.
                2 => {
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
                _ => Pin::new(&mut first).poll(cx),
            }
        });
        let response = late.await.unwrap();
        log.borrow_mut().push(format!("{} at poll {polls}", text(&response)));
        // Dropped in the poll that has its response.
        let mut dropped = Some(call(&session, b"dropped"));
        poll_fn(|cx| match dropped.take() {
            Some(mut call) if log.borrow().len() == 1 => {
                log.borrow_mut().push("started".into());
                assert!(Pin::new(&mut call).poll(cx).is_pending());
                dropped = Some(call);
                Poll::Pending
            }
            _ => Poll::Ready(()),
        })
        .await;
        let response = call(&session, b"next").await.unwrap();
        log.borrow_mut().push(text(&response));
    });
    pair.until_idle();
    assert_eq!(*pair.log.borrow(), ["late at poll 3", "started", "next"]);
    assert_eq!(pair.client.outstanding_calls(), 0);
}

#[test]
fn the_response_of_a_task_that_panics_is_for_the_next_one_that_awaits_it() {
    let mut pair = Pair::new();
    let session: &'static Session = Box::leak(Box::new(pair.client.local().session(pair.session)));
    let shared: Rc<RefCell<Call<'static>>> = Rc::new(RefCell::new(call(session, b"kept")));
    let first = shared.clone();
    pair.spawn(move |_, _| async move {
        let mut begun = false;
        poll_fn(|cx| {
            assert!(!std::mem::replace(&mut begun, true), "on purpose");
            Pin::new(&mut *first.borrow_mut()).poll(cx).map(drop)
        })
        .await;
    });
    pair.client.poll();
    while pair.server.poll() {}
    let polled = catch_unwind(AssertUnwindSafe(|| while pair.client.poll() {}));
    assert!(polled.is_err());
    pair.spawn(move |session, log| async move {
        // A response that another poll is shown is not taken for it.
        let other = call(&session, b"other").await.unwrap();
        let kept = poll_fn(|cx| Pin::new(&mut *shared.borrow_mut()).poll(cx)).await.unwrap();
        log.borrow_mut().push(format!("{}, {}", text(&other), text(&kept)));
    });
    pair.until_idle();
    assert_eq!(*pair.log.borrow(), ["other, kept"]);
}

#[test]
fn a_typed_call_reads_its_response_where_it_was_received_and_reuses_the_request() {
    let mut pair = Pair::new();
    pair.spawn(|session, log| async move {
        for _ in 0..3 {
            let mut request = Channel::alloc(&session, 256).unwrap();
            request.truncate(4);
            request.copy_from_slice(b"echo");
            let mut call = Channel::call(&session, ECHO, request, CallOptions::default());
            let read = |answer: Answer<'_>| match answer {
                Answer::Shown(bytes, _) => {
                    // Decoding may use the endpoint.
                    format!("shown {} {}", text(bytes), session.local().now_ns() > 0)
                }
                Answer::Owned(message) => format!("owned {}", message.len()),
            };
            let shown = poll_fn(|cx| Session::poll_call(Pin::new(&mut call), cx, read)).await;
            log.borrow_mut().push(shown.unwrap());
        }
        // The next request has the buffer of the last one, unless it is longer.
        assert_eq!(session.lender().take_spare(9).unwrap().len(), 9);
        assert_eq!(Channel::alloc(&session, 5000).unwrap().len(), 5000);
        // A response of several packets is a message of its own.
        let mut call = Channel::call(
            &session,
            ECHO,
            session.local().alloc(9000).unwrap(),
            CallOptions::default(),
        );
        let read = |answer: Answer<'_>| matches!(answer, Answer::Owned(m) if m.len() == 9000);
        let owned = poll_fn(|cx| Session::poll_call(Pin::new(&mut call), cx, read)).await;
        assert!(owned.unwrap());
    });
    pair.until_idle();
    assert_eq!(*pair.log.borrow(), ["shown echo true"; 3]);
}

#[test]
fn calls_are_awaited_with_wakers_of_combinators() {
    /// A waker of its own, which wakes that of the task.
    struct Inner(std::task::Waker);
    impl std::task::Wake for Inner {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.wake_by_ref();
        }
    }
    let mut pair = Pair::new();
    pair.spawn(|session, log| async move {
        for name in ["first", "second"] {
            let mut call = call(&session, name.as_bytes());
            let mut polls = 0;
            let response = poll_fn(|cx| {
                polls += 1;
                let waker = std::task::Waker::from(std::sync::Arc::new(Inner(cx.waker().clone())));
                Pin::new(&mut call).poll(&mut Context::from_waker(&waker))
            });
            let response = response.await.unwrap();
            log.borrow_mut().push(format!("{} after {polls}", text(&response)));
        }
    });
    pair.until_idle();
    assert_eq!(*pair.log.borrow(), ["first after 2", "second after 2"]);
}
