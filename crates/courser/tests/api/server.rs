//! `Server`: handlers that are futures, their cancellation, deadlines, panics and limits, and the end
//! of the server.

use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use courser::{
    CallError, CallFailure, Client, Config, Executed, MsgBuf, Server, ServerError, Status, Work,
};

use crate::common::{LOOPBACK, PATIENCE};

const ECHO: u16 = 1;
const STUCK: u16 = 2;
const PANIC: u16 = 3;
const NESTED: u16 = 4;
const SLOW: u16 = 5;
const LEFT: u16 = 6;

fn message(client: &Client, bytes: &[u8]) -> MsgBuf {
    let mut m = client.alloc_recycled(bytes.len()).unwrap();
    m.copy_from_slice(bytes);
    m
}

async fn echo(mut work: Work) {
    let request = work.take().unwrap();
    work.reply(request);
}

async fn stuck(work: Work) {
    pending::<()>().await;
    drop(work);
}

fn soon(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn server() -> Server {
    let mut server = Server::bind(LOOPBACK).unwrap();
    server.on(ECHO, echo);
    server.on(STUCK, stuck);
    server
}

fn status(result: Result<MsgBuf, CallFailure>) -> Status {
    match result {
        Err(CallFailure::Failed(CallError::Server(status))) => status,
        other => panic!("{other:?}"),
    }
}

#[test]
fn handlers_run_on_workers_in_place_and_where_a_closure_spawns_them() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let spawn = runtime.handle().clone();
    #[cfg(feature = "tokio")]
    let on_tokio = server().on_tokio(spawn.clone());
    #[cfg(not(feature = "tokio"))]
    let on_tokio = server();
    let servers = [
        on_tokio,
        server().on_workers(),
        server().in_place(true),
        server().endpoints(2),
        server().spawn_with(move |handler| drop(spawn.spawn(handler))),
    ];
    for mut server in servers {
        server.on(SLOW, |work| async move {
            tokio::task::yield_now().await;
            work.reply(b"slow");
        });
        let uri = server.local_uri();
        let _serving = server.serve().unwrap();
        let client = Client::connect(&uri).wait().unwrap();
        for n in 0..100u8 {
            assert_eq!(client.call(ECHO, message(&client, &[n])).wait().unwrap()[..], [n]);
            assert_eq!(client.call(SLOW, message(&client, &[n])).wait().unwrap()[..], *b"slow");
        }
    }
}

#[test]
fn a_call_that_is_dropped_drops_its_handler() {
    let server = server();
    let uri = server.local_uri();
    let serving = server.serve().unwrap();
    let client = Client::connect(&uri).wait().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let calls: Vec<_> =
            (0..50).map(|_| tokio::spawn(client.call(STUCK, message(&client, b"")))).collect();
        while serving.in_progress() < 50 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        calls.iter().for_each(tokio::task::JoinHandle::abort);
        while serving.in_progress() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    // A client that is gone has cancelled its calls.
    let call = client.call(STUCK, message(&client, b"")).deadline(Duration::from_millis(50));
    let waits = std::thread::spawn(move || call.wait());
    soon("the handler's start", || serving.in_progress() == 1);
    drop(client);
    soon("the handler's end", || serving.in_progress() == 0);
    waits.join().unwrap().unwrap_err();
}

#[test]
fn a_call_that_is_dropped_while_it_waits_for_a_thread_of_the_server_never_runs() {
    let config = Config { workers: 1, ..Config::default() };
    let mut server = Server::bind_with(LOOPBACK, config).unwrap();
    let (occupied, is_occupied) = mpsc::channel();
    let (open, gate) = mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    server.on(SLOW, move |work| {
        occupied.send(()).unwrap();
        let _ = gate.lock().unwrap().recv();
        async move { work.reply(*b"late") }
    });
    let runs = Arc::new(AtomicUsize::new(0));
    let own = runs.clone();
    server.on(LEFT, move |work| {
        own.fetch_add(1, Ordering::Relaxed);
        async move { drop(work) }
    });
    server.on(ECHO, echo);
    let uri = server.local_uri();
    let _serving = server.serve().unwrap();
    let client = Client::connect(&uri).wait().unwrap();
    // The cancellation needs some time to arrive, longer on a busy machine.
    let never_runs = |wait: Duration| {
        let before = runs.load(Ordering::Relaxed);
        let slow = client.call(SLOW, message(&client, b""));
        std::thread::scope(|scope| {
            let slow = scope.spawn(|| slow.wait());
            is_occupied.recv_timeout(PATIENCE).unwrap();
            let mut left = client.call(LEFT, message(&client, b""));
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(std::pin::Pin::new(&mut left).poll(&mut cx).is_pending());
            std::thread::sleep(wait);
            drop(left);
            std::thread::sleep(wait);
            open.send(()).unwrap();
            assert_eq!(slow.join().unwrap().unwrap()[..], *b"late");
        });
        assert_eq!(client.call(ECHO, message(&client, b"x")).wait().unwrap()[..], *b"x");
        runs.load(Ordering::Relaxed) == before
    };
    assert!((1..=8).any(|n| never_runs(Duration::from_millis(20 << n.min(6)))), "it ran");
}

#[test]
fn a_handler_is_dropped_at_the_deadline_of_its_call() {
    let server = server();
    let uri = server.local_uri();
    let serving = server.serve().unwrap();
    let client = Client::connect(&uri).wait().unwrap();
    let call = client.call(STUCK, message(&client, b"")).deadline(Duration::from_millis(30));
    let failed = call.wait().unwrap_err();
    assert_ne!(failed.executed(), Executed::Never, "{failed}");
    soon("the handler's end", || serving.in_progress() == 0);
}

#[test]
fn a_handler_goes_on_after_its_answer() {
    let ended = Arc::new(AtomicBool::new(false));
    let own = ended.clone();
    let mut server = server();
    server.on(SLOW, move |work| {
        let ended = own.clone();
        async move {
            work.reply(b"early");
            for _ in 0..50 {
                std::thread::sleep(Duration::from_millis(1));
                tokio::task::yield_now().await;
            }
            ended.store(true, Ordering::Relaxed);
        }
    });
    let uri = server.local_uri();
    let _serving = server.serve().unwrap();
    let client = Client::connect(&uri).wait().unwrap();
    let deadline = Duration::from_millis(20);
    let call = client.call(SLOW, message(&client, b"")).deadline(deadline);
    assert_eq!(call.wait().unwrap()[..], *b"early");
    // Another call is given up meanwhile, so that the endpoint searches for handlers to drop.
    client.call(STUCK, message(&client, b"")).deadline(deadline).wait().unwrap_err();
    soon("the end of the handler", || ended.load(Ordering::Relaxed));
}

#[test]
fn nested_calls_inherit_the_deadline_of_their_handler() {
    let mut backend = server();
    backend.on(LEFT, |work| async move {
        let left = work.time_left().map_or(u64::MAX, |left| left.as_millis() as u64);
        work.reply(left.to_le_bytes());
    });
    let backend_uri = backend.local_uri();
    let backend = backend.serve().unwrap();
    let inner = Client::connect(&backend_uri).wait().unwrap();
    let mut front = server();
    front.on(NESTED, move |work| {
        let inner = inner.clone();
        async move {
            let nested_type = u16::from(work[0]);
            let call = inner.call(nested_type, message(&inner, b""));
            // No deadline of its own, or another one.
            let own = u64::from(work[1]) * 1_000_000;
            let call = if own == 0 { call } else { call.deadline(Duration::from_millis(own)) };
            let answer = call.await;
            work.reply(answer.unwrap());
        }
    });
    let uri = front.local_uri();
    let serving = front.serve().unwrap();
    let client = Client::connect(&uri).wait().unwrap();
    let nested = |nested_type: u16, own: u8, deadline: Option<Duration>| {
        let request = message(&client, &[nested_type as u8, own]);
        client.call(NESTED, request).deadline(deadline).wait()
    };
    let left = |own: u8, deadline: Option<Duration>| {
        let answer = nested(LEFT, own, deadline).unwrap();
        u64::from_le_bytes(answer[..].try_into().unwrap())
    };
    assert_eq!(left(0, None), u64::MAX);
    // Deadlines further ahead than 134 s hold at the client only.
    let inherited = left(0, Some(Duration::from_secs(100)));
    assert!((40_000..=100_000).contains(&inherited), "{inherited}");
    let earlier = left(1, Some(Duration::from_secs(100)));
    assert!((40_000..=100_000).contains(&earlier), "{earlier}");
    // The end of a handler is that of its nested calls.
    for _ in 0..20 {
        nested(STUCK, 0, Some(Duration::from_millis(10))).unwrap_err();
    }
    soon("the end of the handlers", || serving.in_progress() == 0);
    soon("the end of the nested handlers", || backend.in_progress() == 0);
}

#[test]
fn a_panic_fails_only_its_own_request() {
    for in_place in [false, true] {
        let mut server = server().in_place(in_place);
        server.on(PANIC, |work| async move {
            if work[0] == 1 {
                tokio::task::yield_now().await;
            }
            assert!(work[0] > 2, "a panic on purpose");
        });
        server.on(SLOW, |work: Work| {
            assert!(work[0] > 2, "a panic on purpose, before the future");
            async {}
        });
        let uri = server.local_uri();
        let serving = server.serve().unwrap();
        let client = Client::connect(&uri).wait().unwrap();
        for n in [0, 1] {
            let call = client.call(PANIC, message(&client, &[n]));
            assert_eq!(status(call.wait()), Status::Panicked);
            assert_eq!(status(client.call(SLOW, message(&client, &[n])).wait()), Status::Panicked);
        }
        assert_eq!(status(client.call(PANIC, message(&client, &[3])).wait()), Status::NoReply);
        assert_eq!(client.call(ECHO, message(&client, b"x")).wait().unwrap()[..], *b"x");
        soon("the end of the handlers", || serving.in_progress() == 0);
    }
}

#[test]
fn requests_beyond_the_limit_are_refused() {
    let server = server().max_in_progress(3);
    let uri = server.local_uri();
    let serving = server.serve().unwrap();
    let client = Client::connect(&uri).wait().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        for _ in 0..3 {
            drop(tokio::spawn(client.call(STUCK, message(&client, b""))));
        }
        while serving.in_progress() < 3 {
            tokio::task::yield_now().await;
        }
        let refused = client.call(ECHO, message(&client, b"")).await;
        assert_eq!(status(refused), Status::WorkersBusy);
    });
    drop(runtime); // and with it the calls
    soon("room", || serving.in_progress() == 0);
    assert_eq!(client.call(ECHO, message(&client, b"x")).wait().unwrap()[..], *b"x");
}

#[test]
fn a_graceful_shutdown_waits_for_handlers_and_refuses_requests() {
    let mut server = server();
    server.on(SLOW, |work| async move {
        std::thread::sleep(Duration::from_millis(50));
        work.reply(b"done");
    });
    let uri = server.local_uri();
    let serving = server.serve().unwrap();
    let client = Client::connect(&uri).wait().unwrap();
    let slow = client.call(SLOW, message(&client, b""));
    let slow = std::thread::spawn(move || slow.wait());
    soon("the handler's start", || serving.in_progress() == 1);
    serving.handle().shutdown(PATIENCE);
    let refused = client.call(ECHO, message(&client, b"")).wait();
    assert_eq!(status(refused), Status::ShuttingDown);
    assert_eq!(slow.join().unwrap().unwrap()[..], *b"done");
    assert!(serving.wait().unwrap().is_clean());
}

#[test]
fn a_shutdown_ends_after_its_grace_and_reports_what_was_left() {
    let server = server();
    let uri = server.local_uri();
    let serving = server.serve().unwrap();
    let client = Client::connect(&uri).wait().unwrap();
    let call = client.call(STUCK, message(&client, b""));
    let call = std::thread::spawn(move || call.wait());
    soon("the handler's start", || serving.in_progress() == 1);
    let handle = serving.handle();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let report = runtime.block_on(async {
        handle.shutdown(Duration::from_millis(30));
        serving.await.unwrap()
    });
    assert_eq!(report.executing, 1);
    let lost = call.join().unwrap().unwrap_err();
    assert_eq!(lost.executed(), Executed::Maybe);
}

#[test]
fn a_server_that_is_dropped_drops_its_handlers() {
    struct Guard(Arc<AtomicUsize>);
    impl Drop for Guard {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let [started, dropped] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let own = (started.clone(), dropped.clone());
    let mut server = server();
    server.on(SLOW, move |work| {
        let guard = Guard(own.1.clone());
        own.0.fetch_add(1, Ordering::Relaxed);
        async move {
            pending::<()>().await;
            drop((work, guard));
        }
    });
    let uri = server.local_uri();
    let serving = server.serve().unwrap();
    let client = Client::connect(&uri).wait().unwrap();
    let call = client.call(SLOW, message(&client, b""));
    let call = std::thread::spawn(move || call.wait());
    soon("the handler's start", || started.load(Ordering::Relaxed) == 1);
    assert_eq!(serving.in_progress(), 1);
    drop(serving);
    soon("the drop of the handler", || dropped.load(Ordering::Relaxed) == 1);
    call.join().unwrap().unwrap_err();
}

#[test]
fn settings_out_of_range_are_errors() {
    let refused = |server: Server, name: &str, value: usize, most: usize| {
        let error = server.serve().unwrap_err();
        assert!(matches!(error, ServerError::Setting { .. }), "{error}");
        let text = format!("Server::{name} is {value}; set it from 1 to {most}");
        assert_eq!(error.to_string(), text);
    };
    for n in [0, 1_025, usize::MAX] {
        refused(server().endpoints(n), "endpoints", n, 1_024);
    }
    for n in [0, (1 << 24) + 1, usize::MAX] {
        refused(server().max_in_progress(n), "max_in_progress", n, 1 << 24);
    }
    let error = Server::bind("nowhere").unwrap_err();
    assert!(matches!(error, ServerError::Bind(_)), "{error}");
    let config = Config { worker_queue: 0, ..Config::default() };
    assert!(Server::bind_with(LOOPBACK, config).is_err());
}
