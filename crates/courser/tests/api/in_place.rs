//! Handlers of a server on tokio that end at once are polled on the thread of their endpoint.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use courser::{CallError, CallFailure, Client, Config, MsgBuf, Server, Serving, Status};
use tokio::runtime::{Builder, Runtime};

use crate::common::{LOOPBACK, PATIENCE};

/// Ends at once. Answers with the name of its thread.
const READY: u16 = 1;
/// Uses the runtime in its first poll, and waits for it.
const WAITS: u16 = 2;
/// Panics in its first poll if the first byte of the request is 1.
const PANICS: u16 = 3;
/// Computes for 5 us.
const COMPUTES: u16 = 5;
/// Blocks its thread for as many ms as the first byte of the request states.
const BLOCKS: u16 = 4;

fn server() -> Server {
    let config = Config { failure_timeout: Duration::from_millis(100), ..Config::default() };
    let mut server = Server::bind_with(LOOPBACK, config).unwrap();
    server.on(READY, |work| async move { work.reply(this_thread().into_bytes()) });
    server.on(WAITS, |work| async move {
        let sleep = tokio::time::sleep(Duration::from_micros(100));
        let task = tokio::spawn(async { 7u8 });
        sleep.await;
        work.reply([task.await.unwrap()]);
    });
    server.on(PANICS, |work| async move {
        assert!(work[0] != 1, "a panic on purpose");
        work.reply(this_thread().into_bytes());
    });
    server.on(COMPUTES, |work| async move {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_micros(5) {
            std::hint::spin_loop();
        }
        work.reply(this_thread().into_bytes());
    });
    server.on(BLOCKS, |work| async move {
        std::thread::sleep(Duration::from_millis(work[0].into()));
        work.reply(this_thread().into_bytes());
    });
    server
}

fn this_thread() -> String {
    std::thread::current().name().unwrap_or_default().to_owned()
}

fn runtimes() -> [Runtime; 2] {
    [
        Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap(),
        Builder::new_current_thread().enable_all().build().unwrap(),
    ]
}

/// Serves on a runtime, which has a thread that drives it.
fn on_each_runtime(change: fn(Server) -> Server, test: fn(&Serving, &Client)) {
    for runtime in runtimes() {
        let server = change(server().on_tokio(runtime.handle().clone()));
        let uri = server.local_uri();
        let serving = server.serve().unwrap();
        let client = Client::connect(&uri).wait().unwrap();
        let (end, ends) = tokio::sync::oneshot::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(|| runtime.block_on(ends));
            test(&serving, &client);
            drop(end);
        });
    }
}

fn call(client: &Client, req_type: u16, first: u8) -> Result<MsgBuf, CallFailure> {
    let mut request = client.alloc(1).unwrap();
    request[0] = first;
    client.call(req_type, request).wait()
}

/// Calls until handlers of the type end on the thread of the endpoint.
fn in_place(serving: &Serving, client: &Client, req_type: u16) {
    let before = serving.handle().stats().in_place;
    soon("a handler that ends in place", || {
        call(client, req_type, 0).unwrap();
        serving.handle().stats().in_place > before
    });
}

fn soon(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "{what} did not happen");
    }
}

#[test]
fn a_handler_that_ends_at_once_changes_no_threads() {
    on_each_runtime(
        |server| server,
        |serving, client| {
            in_place(serving, client, READY);
            soon("the endpoint's thread", || {
                call(client, READY, 0).unwrap()[..].starts_with(b"courser-server-")
            });
        },
    );
    let asked_not_to = |server: Server| server.in_place(false);
    on_each_runtime(asked_not_to, |serving, client| {
        for _ in 0..100 {
            let thread = call(client, READY, 0).unwrap();
            assert!(!thread.starts_with(b"courser-server-"), "{thread:?}");
        }
        assert_eq!(serving.handle().stats().in_place, 0);
    });
}

#[test]
fn a_handler_that_waits_has_the_runtime_in_its_first_poll_on_either_thread() {
    let test = |_: &Serving, client: &Client| {
        for _ in 0..40 {
            assert_eq!(call(client, WAITS, 0).unwrap()[..], [7]);
        }
    };
    on_each_runtime(|server| server, test);
    on_each_runtime(|server| server.in_place(true), test);
}

#[test]
fn a_panic_in_place_fails_only_its_own_request() {
    on_each_runtime(
        |server| server,
        |serving, client| {
            in_place(serving, client, PANICS);
            for panics in 1..=3 {
                let failed = call(client, PANICS, 1).unwrap_err();
                let status = CallFailure::Failed(CallError::Server(Status::Panicked));
                assert_eq!(format!("{failed:?}"), format!("{status:?}"));
                soon("the count", || serving.handle().stats().handlers.panics == panics);
                let thread = call(client, PANICS, 0).unwrap();
                assert!(!thread.starts_with(b"courser-server-"), "it moves to the runtime");
            }
            soon("the end of the handlers", || serving.in_progress() == 0);
        },
    );
}

#[test]
fn a_handler_that_always_blocks_never_does_so_on_the_thread_of_its_endpoint() {
    on_each_runtime(
        |server| server,
        |serving, client| {
            for _ in 0..40 {
                let thread = call(client, BLOCKS, 1).unwrap();
                assert!(!thread.starts_with(b"courser-server-"), "{thread:?}");
            }
            assert_eq!(serving.handle().stats().in_place, 0);
        },
    );
}

#[test]
fn a_handler_that_blocks_once_in_place_ends_no_session_and_then_blocks_elsewhere() {
    on_each_runtime(
        |server| server,
        |serving, client| {
            in_place(serving, client, BLOCKS);
            let others = Arc::new(AtomicUsize::new(0));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let deadline = Instant::now() + Duration::from_millis(300);
                    while Instant::now() < deadline {
                        call(client, READY, 0).unwrap();
                        others.fetch_add(1, Ordering::Relaxed);
                    }
                });
                // More than the failure timeout. Calls of others end late, and none fails.
                call(client, BLOCKS, 200).unwrap();
                for _ in 0..20 {
                    let thread = call(client, BLOCKS, 2).unwrap();
                    assert!(!thread.starts_with(b"courser-server-"), "{thread:?}");
                }
            });
            assert!(others.load(Ordering::Relaxed) > 0);
        },
    );
}

/// Calls at once. Returns how many of the handlers ended on the endpoint's thread.
fn at_once(client: &Client, req_type: u16, calls: usize) -> usize {
    let all = (0..calls).map(|_| client.call(req_type, client.alloc(1).unwrap()));
    let threads = futures::executor::block_on(futures::future::join_all(all));
    threads.into_iter().filter(|t| t.as_ref().unwrap().starts_with(b"courser-server-")).count()
}

#[test]
fn handlers_of_microseconds_are_shared_by_the_endpoint_and_the_runtime() {
    on_each_runtime(
        |server| server,
        |serving, client| {
            // Threads that lose their CPUs move the type to the runtime for a while, each time for longer.
            let is_shared = |_| {
                (0..40).for_each(|_| drop(call(client, COMPUTES, 0).unwrap()));
                in_place(serving, client, COMPUTES);
                (1..50).contains(&at_once(client, COMPUTES, 60))
            };
            assert!((0..20).any(is_shared), "20 bursts stay on one thread each");
        },
    );
}
