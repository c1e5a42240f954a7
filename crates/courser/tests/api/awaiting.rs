//! Futures on an endpoint's own thread (ADR 40).

use std::cell::{Cell, RefCell};
use std::future::{Future, pending, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::common::*;
use courser::{
    CallError, CallFailure, Config, Executed, Local, Nexus, RejectReason, Request, Rpc, Session,
    SessionError, Status, TaskStats,
};
use futures::future::{join_all, select};

const ECHO: u16 = 1;
const NEVER: u16 = 2;
const LATER: u16 = 3;
const PANIC: u16 = 4;
const NESTED: u16 = 5;
const BOOM_LATER: u16 = 6;
const MS: Duration = Duration::from_millis(1);

/// A server on a thread of its own, with async handlers.
fn server() -> Server {
    Server::start(Config::default(), |rpc| {
        let local = rpc.local();
        rpc.on_async(ECHO, |request| std::future::ready(request.to_vec()));
        rpc.on_async(NEVER, |_: Request<'_>| pending::<Vec<u8>>());
        let later = local.clone();
        rpc.on_async(LATER, move |request| {
            let (local, answer) = (later.clone(), request.to_vec());
            async move {
                local.sleep(MS).await;
                answer
            }
        });
        rpc.on_async(PANIC, |_: Request<'_>| async {
            panic!("at once");
            #[allow(unreachable_code)]
            Vec::<u8>::new()
        });
        rpc.on_async(BOOM_LATER, move |_| {
            let local = local.clone();
            async move {
                local.sleep(MS).await;
                panic!("later");
                #[allow(unreachable_code)]
                Vec::<u8>::new()
            }
        });
    })
}

fn client_of(server: &Server) -> (Rpc, String) {
    (client(Config::default()), server.uri.clone())
}

async fn echo(session: &Session, req_type: u16, seed: u64, len: usize) {
    let mut request = session.local().alloc(len).unwrap();
    pattern(seed, &mut request);
    let response = session.call(req_type, request).await.unwrap();
    assert_eq!(response[..], expected(seed, len)[..]);
}

/// Waits until no task and no call is left.
fn drain(rpc: &mut Rpc) {
    drive_until(&mut [rpc], |all| all[0].task_stats() == TaskStats::default());
    assert_eq!(rpc.outstanding_calls(), 0);
}

#[test]
fn a_task_connects_calls_and_awaits_responses_of_any_size() {
    let server = server();
    let (mut rpc, uri) = client_of(&server);
    let local = rpc.local();
    rpc.block_on(async {
        let session = local.connect(&uri).await.unwrap();
        for (seed, len) in [0, 1, 32, 1_000, 1_500, 5_000, 100_000].into_iter().enumerate() {
            echo(&session, ECHO, seed as u64, len).await;
            echo(&session, LATER, seed as u64, len).await;
        }
    })
    .unwrap();
    drain(&mut rpc);
}

#[test]
fn ten_thousand_concurrent_calls_wait_for_room_and_are_all_answered() {
    let server = server();
    let (mut rpc, uri) = client_of(&server);
    let local = rpc.local();
    let queued = Rc::new(Cell::new(false));
    rpc.block_on(async {
        let session = &local.connect(&uri).await.unwrap();
        join_all((0..10_000).map(|seed| echo(session, ECHO, seed, 32))).await;
        queued.set(true);
    })
    .unwrap();
    assert!(queued.get());
    drain(&mut rpc);
}

#[test]
fn calls_beyond_the_queue_of_a_session_wait_in_order() {
    let server = server();
    let config = Config { call_queue: 2, slots: 1, ..Config::default() };
    let mut rpc = client(config);
    let (local, uri) = (rpc.local(), server.uri.clone());
    let order = Rc::new(RefCell::new(Vec::new()));
    let log = order.clone();
    rpc.block_on(async move {
        let session = local.connect(&uri).await.unwrap();
        let calls = (0..50).map(|n| {
            let (session, log) = (session.clone(), log.clone());
            let handle = local.spawn(async move {
                echo(&session, ECHO, n, 32).await;
                log.borrow_mut().push(n);
            });
            async { handle.await.unwrap() }
        });
        join_all(calls).await;
    })
    .unwrap();
    assert_eq!(*order.borrow(), (0..50).collect::<Vec<_>>());
    drain(&mut rpc);
}

#[test]
fn a_call_that_waits_for_room_ends_at_its_deadline_and_did_not_run() {
    let server = server();
    let mut rpc = client(Config { call_queue: 1, slots: 1, ..Config::default() });
    let (local, uri) = (rpc.local(), server.uri.clone());
    rpc.block_on(async {
        let session = local.connect(&uri).await.unwrap();
        let never = || session.call(NEVER, local.alloc(8).unwrap()).deadline(MS * 20);
        let ends = join_all((0..5).map(|_| never())).await;
        let failed = |end: &Result<_, _>, executed| {
            matches!(end, Err(CallFailure::Failed(CallError::DeadlineExceeded(e))) if *e == executed)
        };
        assert!(failed(&ends[4], Executed::Never), "{ends:?}");
    })
    .unwrap();
    drain(&mut rpc);
}

#[test]
fn dropping_a_future_cancels_its_call_and_the_handler_of_the_server() {
    let nexus = Nexus::bind(LOOPBACK).unwrap();
    let mut server = nexus.endpoint().unwrap();
    let held = Rc::new(());
    let of_handler = held.clone();
    server.on_async(NEVER, move |_: Request<'_>| {
        let held = of_handler.clone();
        async move {
            pending::<()>().await;
            drop(held);
            Vec::<u8>::new()
        }
    });
    let mut rpc = client(Config::default());
    let local = rpc.local();
    let uri = nexus.local_uri();
    let task = local.clone().spawn(async move {
        let session = Local::connect(&local, &uri).await.unwrap();
        let call = session.call(NEVER, local.alloc(8).unwrap());
        drop(select(call, pin!(local.sleep(MS * 20))).await);
        // The session lives on: the call itself is cancelled.
        pending::<()>().await;
    });
    drive(&mut [&mut server, &mut rpc], || Rc::strong_count(&held) == 3);
    assert_eq!(server.task_stats().tasks, 1);
    drive(&mut [&mut server, &mut rpc], || Rc::strong_count(&held) == 2);
    drive_until(&mut [&mut server, &mut rpc], |all| all[1].task_stats().calls == 0);
    assert_eq!(server.task_stats(), TaskStats::default());
    task.abort();
    drive_until(&mut [&mut server, &mut rpc], |all| all[1].task_stats().tasks == 0);
}

#[test]
fn a_nested_call_has_no_more_time_than_the_request_that_causes_it() {
    let behind_nexus = Nexus::bind(LOOPBACK).unwrap();
    let mut behind = behind_nexus.endpoint().unwrap();
    behind.on_async(NEVER, |_: Request<'_>| pending::<Vec<u8>>());
    let nexus = Nexus::bind(LOOPBACK).unwrap();
    let mut front = nexus.endpoint().unwrap();
    let (local, uri) = (front.local(), behind_nexus.local_uri());
    let ends: Rc<RefCell<Vec<CallFailure>>> = Rc::default();
    let log = ends.clone();
    front.on_async(NESTED, move |_: Request<'_>| {
        let (local, uri, log) = (local.clone(), uri.clone(), log.clone());
        async move {
            let session = local.connect(&uri).await.unwrap();
            // Longer than the request's.
            let call = session.call(NEVER, local.alloc(8).unwrap()).deadline(PATIENCE * 2);
            let end = call.await.unwrap_err();
            log.borrow_mut().push(end);
            Vec::<u8>::new()
        }
    });
    let mut rpc = client(Config::default());
    let (local, uri) = (rpc.local(), nexus.local_uri());
    let done = Rc::new(Cell::new(false));
    let is_done = done.clone();
    let task = local.clone().spawn(async move {
        let session = local.connect(&uri).await.unwrap();
        let request = local.alloc(1).unwrap();
        // Its end, or the answer after the end of the nested one, whichever is earlier.
        let _ = session.call(NESTED, request).deadline(MS * 100).await;
        is_done.set(true);
    });
    drive(&mut [&mut behind, &mut front, &mut rpc], || done.get());
    drive_until(&mut [&mut behind, &mut front, &mut rpc], |all| {
        all.iter().all(|rpc| rpc.task_stats() == TaskStats::default())
    });
    drop(task);
    // Dropped with its handler, or ended by the deadline that it inherited.
    let timed_out =
        |e: &CallFailure| matches!(e, CallFailure::Failed(CallError::DeadlineExceeded(_)));
    assert!(ends.borrow().iter().all(timed_out), "{ends:?}");
}

#[test]
fn a_nested_call_ends_when_the_deadline_of_its_request_is_over() {
    // The client does not cancel: it stops running its event loop.
    let behind_nexus = Nexus::bind(LOOPBACK).unwrap();
    let mut behind = behind_nexus.endpoint().unwrap();
    behind.on_async(NEVER, |_: Request<'_>| pending::<Vec<u8>>());
    let nexus = Nexus::bind(LOOPBACK).unwrap();
    let mut front = nexus.endpoint().unwrap();
    let session = front.connect(&behind_nexus.local_uri()).unwrap();
    let (local, ended) = (front.local(), Rc::new(Cell::new(None)));
    let end = ended.clone();
    front.on_async(NESTED, move |_: Request<'_>| {
        let (session, end) = (local.session(session), end.clone());
        async move {
            let request = session.local().alloc(8).unwrap();
            end.set(session.call(NEVER, request).await.err());
            Vec::<u8>::new()
        }
    });
    let mut rpc = client(Config::default());
    let to_front = connect(&mut rpc, &mut [&mut front, &mut behind], &nexus.local_uri());
    let request = message(&rpc, 1, 8);
    rpc.request(to_front, NESTED, request).deadline(MS * 100).then(|_, _| {}).unwrap();
    drive_until(&mut [&mut rpc, &mut front], |all| all[1].task_stats().calls == 1);
    drive_until(&mut [&mut front, &mut behind], |all| all[0].task_stats().calls == 0);
    let timed_out = CallFailure::Failed(CallError::DeadlineExceeded(Executed::Maybe));
    assert_eq!(ended.take(), Some(timed_out));
}

#[test]
fn panics_of_handlers_are_answered_and_counted() {
    let server = server();
    let (mut rpc, uri) = client_of(&server);
    let local = rpc.local();
    rpc.block_on(async {
        let session = local.connect(&uri).await.unwrap();
        for req_type in [PANIC, BOOM_LATER] {
            let ended = session.call(req_type, local.alloc(8).unwrap()).await;
            let panicked = CallFailure::Failed(CallError::Server(Status::Panicked));
            assert_eq!(ended.unwrap_err(), panicked);
        }
        echo(&session, ECHO, 1, 32).await;
    })
    .unwrap();
}

#[test]
fn tasks_join_abort_time_out_and_end_with_their_endpoint() {
    let mut rpc = client(Config::default());
    let local = rpc.local();
    let alive = Rc::new(());
    let (of_aborted, of_left) = (alive.clone(), alive.clone());
    rpc.block_on(async {
        assert_eq!(local.spawn(async { 7 }).await, Ok(7));
        let aborted = local.spawn(async move {
            pending::<()>().await;
            drop(of_aborted);
        });
        local.sleep(MS).await;
        assert!(!aborted.is_finished());
        aborted.abort();
        assert!(aborted.await.is_err());
        assert_eq!(local.timeout(MS, async { 1 }).await, Ok(1));
        assert!(local.timeout(MS, pending::<()>()).await.is_err());
    })
    .unwrap();
    let inner = local.clone();
    let left = local.spawn(async move {
        inner.sleep(PATIENCE).await;
        drop(of_left);
    });
    rpc.block_on(local.sleep(MS)).unwrap();
    assert_eq!(Rc::strong_count(&alive), 2);
    drop(rpc);
    assert_eq!(Rc::strong_count(&alive), 1, "the futures go with the endpoint");
    assert!(left.is_finished());
    // Nothing takes it any more.
    let (kept, late) = (alive.clone(), local.clone());
    drop(local.spawn(async move {
        late.sleep(MS).await;
        drop(kept);
    }));
    assert_eq!(Rc::strong_count(&alive), 1);
}

#[test]
fn wakers_of_other_threads_wake_a_sleeping_endpoint() {
    let mut rpc = client(Config { spin: Some(Duration::ZERO), ..Config::default() });
    let (sender, receiver) = futures::channel::oneshot::channel();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(MS * 30);
        sender.send(5).unwrap();
    });
    assert_eq!(rpc.block_on(receiver).unwrap(), Ok(5));
    thread.join().unwrap();
}

#[test]
fn a_session_closes_with_its_last_handle_and_refused_connects_say_why() {
    let server = server();
    let (mut rpc, uri) = client_of(&server);
    let local = rpc.local();
    rpc.block_on(async {
        let session = local.connect(&uri).await.unwrap();
        let clone = session.clone();
        drop(session);
        echo(&clone, ECHO, 1, 8).await;
        let id = clone.id();
        drop(clone);
        local.sleep(MS).await;
        let gone = local.session(id);
        let ended = gone.call(ECHO, local.alloc(1).unwrap()).await.unwrap_err();
        assert!(matches!(ended, CallFailure::Rejected(RejectReason::NoSession(_))), "{ended:?}");
        let refused = local.connect("udp://127.0.0.1:9").await.unwrap_err();
        assert!(matches!(refused, SessionError::Dial(_)), "{refused}");
        assert!(matches!(local.connect("?").await.unwrap_err(), SessionError::Uri(_)));
    })
    .unwrap();
    assert_eq!(rpc.sessions(), 0);
}

#[test]
fn a_connect_that_is_given_up_leaves_no_session() {
    let server = server();
    let (mut rpc, uri) = client_of(&server);
    let local = rpc.local();
    rpc.block_on(async {
        for _ in 0..20 {
            assert!(local.timeout(Duration::ZERO, local.connect(&uri)).await.is_err());
        }
        local.sleep(MS * 50).await;
    })
    .unwrap();
    assert_eq!(rpc.sessions(), 0);
}

/// Tasks of two endpoints of a thread, one of which runs the other within a poll.
#[test]
fn a_future_finds_the_endpoint_that_it_has_entered() {
    assert!(Local::current().is_none());
    let [mut outer, mut inner] = [(); 2].map(|()| client(Config::default()));
    let (local, other) = (outer.local(), inner.local());
    let count = || drop(Local::current().unwrap().spawn(pending::<()>()));
    let entered = local.enter(async {
        count();
        inner.block_on(other.enter(async { count() })).unwrap();
        inner.poll();
        assert_eq!(inner.task_stats().tasks, 1);
        count();
        local.sleep(MS).await;
        count();
        let spawned = local.spawn(async { Local::current().is_none() });
        assert!(spawned.await.unwrap(), "a task enters by itself");
    });
    outer.block_on(entered).unwrap();
    outer.poll();
    assert_eq!(outer.task_stats().tasks, 3);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        outer.block_on(local.enter(async { panic!("on purpose") }))
    }));
    assert!(caught.is_err() && Local::current().is_none());
}

#[test]
fn sleeps_and_timeouts_end_at_a_time_of_the_clock() {
    let mut rpc = client(Config::default());
    let local = rpc.local();
    rpc.block_on(async {
        let begin_ns = local.now_ns();
        let end_ns = begin_ns + 2_000_000;
        let sleep = local.sleep_until(end_ns);
        local.sleep(MS).await;
        sleep.await;
        assert!(local.now_ns() >= end_ns);
        // A time in the past.
        local.sleep_until(begin_ns).await;
        assert_eq!(local.timeout_at(begin_ns, async { 1 }).await, Ok(1));
        assert_eq!(local.timeout_at(begin_ns, pending::<()>()).await, Err(courser::Elapsed));
        let never: courser::Timeout<_> = local.timeout_at(u64::MAX, local.sleep(MS));
        assert_eq!(never.await, Ok(()));
    })
    .unwrap();
}

/// The destructor may use the endpoint, also when the timeout is all that the task does.
#[test]
fn a_timeout_drops_its_future_in_the_poll_that_ends_it() {
    struct ReadsTheClock(Local, Rc<Cell<u32>>);
    impl Drop for ReadsTheClock {
        fn drop(&mut self) {
            self.0.now_ns();
            self.1.set(self.1.get() + 1);
        }
    }
    let mut rpc = client(Config::default());
    let (local, dropped) = (rpc.local(), Rc::new(Cell::new(0)));
    let guard = || ReadsTheClock(local.clone(), dropped.clone());
    let waits = |guard| async move {
        let _guard = guard;
        pending::<()>().await;
    };
    assert_eq!(rpc.block_on(local.timeout(MS, waits(guard()))).unwrap(), Err(courser::Elapsed));
    let ends = |guard| {
        poll_fn(move |_| {
            let _ = &guard;
            Poll::Ready(())
        })
    };
    assert_eq!(rpc.block_on(local.timeout(MS, ends(guard()))).unwrap(), Ok(()));
    assert_eq!(dropped.get(), 2);
}

#[test]
fn messages_wait_for_room_and_all_arrive() {
    let nexus = Nexus::bind(LOOPBACK).unwrap();
    let mut server = nexus.endpoint().unwrap();
    let count = Rc::new(Cell::new(0));
    let counted = count.clone();
    server.on_message(ECHO, move |_, _| counted.set(counted.get() + 1));
    let mut rpc = client(Config { message_queue: 8, ..Config::default() });
    let local = rpc.local();
    let uri = nexus.local_uri();
    let done = local.clone().spawn(async move {
        let session = local.connect(&uri).await.unwrap();
        for _ in 0..1_000 {
            session.send(ECHO, local.alloc(32).unwrap()).await.unwrap();
        }
        pending::<()>().await;
    });
    drive(&mut [&mut server, &mut rpc], || count.get() == 1_000);
    drop(done);
}

#[test]
#[should_panic(expected = "polled outside of that endpoint")]
fn a_poll_outside_of_the_endpoint_panics_and_says_where_to_poll() {
    let rpc = client(Config::default());
    let mut sleep = pin!(rpc.local().sleep(MS));
    let _: Poll<()> = sleep.as_mut().poll(&mut Context::from_waker(Waker::noop()));
}

#[test]
#[should_panic(expected = "polled outside of that endpoint")]
fn a_future_of_another_endpoint_panics_too() {
    let other = client(Config::default()).local();
    let mut rpc = client(Config::default());
    let _ = rpc.block_on(other.sleep(MS));
}

#[test]
fn a_task_that_panics_ends_the_event_loop_and_is_gone() {
    let mut rpc = client(Config::default());
    let local = rpc.local();
    drop(local.spawn(async { panic!("of a task") }));
    let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        rpc.block_on(local.sleep(MS * 100))
    }));
    assert!(polled.is_err());
    rpc.block_on(local.sleep(MS)).unwrap();
    assert_eq!(rpc.task_stats(), TaskStats::default());
}

/// A task that panics, and a handler that begins before anything else is polled.
#[test]
fn a_handler_that_begins_after_a_panic_of_a_task_is_woken() {
    let nexus = Nexus::bind(LOOPBACK).unwrap();
    let mut server = nexus.endpoint().unwrap();
    let local = server.local();
    let later = local.clone();
    server.on_async(LATER, move |_| {
        let local = later.clone();
        async move {
            local.sleep(MS).await;
            vec![1]
        }
    });
    let mut rpc = client(Config::default());
    let session = rpc.connect(&nexus.local_uri()).unwrap();
    drive_until(&mut [&mut server, &mut rpc], |all| {
        all[1].session_state(session) != courser::SessionState::Connecting
    });
    drop(local.spawn(async { panic!("of a task") }));
    let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| server.poll()));
    assert!(polled.is_err());
    let done = Rc::new(Cell::new(false));
    let flag = done.clone();
    let request = rpc.alloc(8).unwrap();
    rpc.call(session, LATER, request, move |_, done| {
        assert_eq!(done.result.unwrap()[..], [1]);
        flag.set(true);
    })
    .unwrap();
    drive(&mut [&mut server, &mut rpc], || done.get());
    assert_eq!(server.task_stats(), TaskStats::default());
}

#[test]
fn a_hundred_thousand_calls_that_wait_for_room_are_dropped_in_little_time() {
    const CALLS: usize = 100_000;
    let server = server();
    let (mut rpc, uri) = client_of(&server);
    let local = rpc.local();
    let begin = std::time::Instant::now();
    rpc.block_on(async {
        let session = &local.connect(&uri).await.unwrap();
        let call = || session.call(NEVER, local.alloc(8).unwrap()).deadline(MS * 500);
        let calls = join_all((0..CALLS).map(|_| call()));
        assert!(local.timeout(MS, calls).await.is_err());
        local.sleep(MS).await;
        let calls = join_all((0..CALLS).map(|_| call())).await;
        assert!(calls.iter().all(Result::is_err));
    })
    .unwrap();
    drain(&mut rpc);
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
}

struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        panic!("a destructor");
    }
}

#[test]
fn a_panic_of_a_destructor_after_a_wait_leaves_the_endpoint_running() {
    let server = Server::start(Config::default(), |rpc| {
        let local = rpc.local();
        rpc.on_async(ECHO, |request| std::future::ready(request.to_vec()));
        rpc.on_async(BOOM_LATER, move |request| {
            let (local, answer) = (local.clone(), request.to_vec());
            let state = PanicsWhenDropped;
            std::future::poll_fn({
                let mut sleep = Box::pin(local.sleep(MS));
                move |cx| {
                    let _ = &state;
                    sleep.as_mut().poll(cx).map(|()| answer.clone())
                }
            })
        });
    });
    let (mut rpc, uri) = client_of(&server);
    let local = rpc.local();
    rpc.block_on(async {
        let session = local.connect(&uri).await.unwrap();
        echo(&session, BOOM_LATER, 1, 8).await;
        echo(&session, ECHO, 2, 8).await;
    })
    .unwrap();
}

#[test]
fn deadlines_of_no_time_and_of_all_time_are_kept() {
    let server = server();
    let (mut rpc, uri) = client_of(&server);
    let local = rpc.local();
    rpc.block_on(async {
        let session = local.connect(&uri).await.unwrap();
        let request = || local.alloc(8).unwrap();
        let late = session.call(NEVER, request()).deadline(Duration::ZERO).await;
        assert!(matches!(late, Err(CallFailure::Failed(CallError::DeadlineExceeded(_)))));
        session.call(LATER, request()).deadline(Duration::MAX).await.unwrap();
        local.timeout(Duration::MAX, local.sleep(MS)).await.unwrap();
        local.sleep(Duration::ZERO).await;
    })
    .unwrap();
    let client = courser::Client::connect(&uri).wait().unwrap();
    let request = || client.alloc(8).unwrap();
    let late = client.call(NEVER, request()).deadline(Duration::ZERO).wait();
    assert!(matches!(late, Err(CallFailure::Failed(CallError::DeadlineExceeded(_)))));
    client.call(LATER, request()).deadline(Duration::MAX).wait().unwrap();
    client.send(ECHO, request()).deadline(Duration::ZERO).wait().unwrap();
    client.send(ECHO, request()).deadline(Duration::MAX).wait().unwrap();
    drain(&mut rpc);
}
