//! `Client`: calls from tokio's tasks and plain threads, back-pressure, reconnecting, dropped futures.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use courser::{
    CallError, CallFailure, Client, ClientError, Config, Endpoints, Executed, MsgBuf, RejectReason,
    Server, Serving, Status,
};

use crate::common::{LOOPBACK, PATIENCE};

const ECHO: u16 = 1;
/// Answers after as many milliseconds as its first byte.
const SLOW: u16 = 2;
/// Never answers.
const STUCK: u16 = 3;
const COUNT: u16 = 4;

/// A server of these requests that runs until it is dropped.
fn server_at(uri: &str) -> (Serving, String) {
    let mut server = Server::bind(uri).unwrap();
    server.on(ECHO, |mut work| async move {
        let request = work.take().unwrap();
        work.reply(request);
    });
    server.on(SLOW, |work| async move {
        let ms = u64::from(work[0]);
        tokio::task::yield_now().await;
        std::thread::sleep(Duration::from_millis(ms));
        work.reply(b"slow");
    });
    server.on(STUCK, |work| async move {
        std::future::pending::<()>().await;
        drop(work);
    });
    let uri = server.local_uri();
    (server.serve().unwrap(), uri)
}

fn server() -> (Serving, String) {
    server_at(LOOPBACK)
}

fn message(client: &Client, bytes: &[u8]) -> MsgBuf {
    let mut m = client.alloc_recycled(bytes.len()).unwrap();
    m.copy_from_slice(bytes);
    m
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn soon(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn plain_threads_share_a_client_and_block_in_wait() {
    let (_serving, uri) = server();
    let client = Client::connect(&uri).wait().unwrap();
    let threads: Vec<_> = (0..4u8)
        .map(|n| {
            let client = client.clone();
            std::thread::spawn(move || {
                for k in 0..200u8 {
                    let response = client.call(ECHO, message(&client, &[n, k])).wait().unwrap();
                    assert_eq!(response[..], [n, k]);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn ten_thousand_simultaneous_calls_of_tokio_tasks_are_all_answered() {
    let (_serving, uri) = server();
    let runtime = runtime();
    runtime.block_on(async {
        let client = Client::connect(&uri).await.unwrap();
        let calls: Vec<_> = (0..10_000u32)
            .map(|n| {
                let client = client.clone();
                tokio::spawn(async move {
                    let request = message(&client, &n.to_le_bytes());
                    assert_eq!(client.call(ECHO, request).await.unwrap()[..], n.to_le_bytes());
                })
            })
            .collect();
        for call in calls {
            call.await.unwrap();
        }
    });
}

#[test]
fn responses_of_every_size_arrive_whole() {
    let (_serving, uri) = server();
    let client = Client::connect(&uri).wait().unwrap();
    for len in [0, 1, 255, 256, 257, 1_400, 1_500, 100_000, 5_000_000] {
        let bytes = crate::common::expected(len as u64, len);
        let response = client.call(ECHO, message(&client, &bytes)).wait().unwrap();
        assert!(response[..] == bytes, "{len}");
    }
}

#[test]
fn messages_arrive_in_order_and_their_senders_wait_for_room() {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let mut server = Server::bind(LOOPBACK).unwrap();
    server.on_message(COUNT, move |work| {
        drop(work);
        counted.fetch_add(1, Ordering::Relaxed);
        async {}
    });
    let uri = server.local_uri();
    let _serving = server.serve().unwrap();
    let client = Client::connect(&uri).wait().unwrap();
    let sends: Vec<_> = (0..5_000)
        .map(|_| client.send(COUNT, message(&client, b"x")))
        .map(|mut send| {
            let polled =
                std::pin::Pin::new(&mut send).poll(&mut Context::from_waker(Waker::noop()));
            (send, polled)
        })
        .collect();
    for (send, polled) in sends {
        match polled {
            std::task::Poll::Ready(result) => result.unwrap(),
            std::task::Poll::Pending => send.wait().unwrap(),
        }
    }
    soon("5,000 messages", || count.load(Ordering::Relaxed) == 5_000);
}

#[test]
fn a_deadline_ends_a_call_wherever_it_waits() {
    let (serving, uri) = server();
    let client = Client::builder().sessions(1).in_flight(1).connect(&uri).wait().unwrap();
    let deadline = Duration::from_millis(30);
    let in_flight = client.call(STUCK, message(&client, b"")).deadline(deadline * 4);
    let thread = std::thread::spawn(move || in_flight.wait().unwrap_err());
    while serving.in_progress() == 0 && !thread.is_finished() {
        std::thread::yield_now();
    }
    // The limit is reached: this one waits at the client.
    let waiting = client.call(ECHO, message(&client, b"")).deadline(deadline).wait().unwrap_err();
    let expired = |e| CallFailure::Failed(CallError::DeadlineExceeded(e));
    assert_eq!(waiting, expired(Executed::Never));
    let in_flight = thread.join().unwrap();
    assert_ne!(in_flight.executed(), Executed::Never, "{in_flight}");
    assert_eq!(client.call(ECHO, message(&client, b"x")).wait().unwrap()[..], *b"x");
}

#[test]
fn a_request_beyond_the_limit_of_the_session_is_rejected() {
    let (_serving, uri) = server();
    let client = Client::connect(&uri).wait().unwrap();
    let large = client.alloc_recycled((8 << 20) + 1).unwrap();
    let error = client.call(ECHO, large).wait().unwrap_err();
    assert!(matches!(error, CallFailure::Rejected(RejectReason::TooLarge { .. })), "{error}");
    let unknown = client.call(99, message(&client, b"")).wait().unwrap_err();
    assert_eq!(unknown, CallFailure::Failed(CallError::Server(Status::UnknownType)));
}

#[test]
fn connecting_fails_with_the_reason() {
    let refused = Client::connect("udp://127.0.0.1:9").wait().unwrap_err();
    assert!(matches!(refused, ClientError::Session(_)), "{refused}");
    let unreadable = Client::connect("nowhere").wait().unwrap_err();
    assert!(matches!(unreadable, ClientError::Bind(_)), "{unreadable}");
    let none = Client::builder().sessions(0).connect("udp://127.0.0.1:9").wait().unwrap_err();
    assert!(matches!(none, ClientError::Setting { .. }), "{none}");
    let config = Config { connect_timeout: Duration::from_millis(50), ..Config::default() };
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let uri = format!("udp://{}", mute.local_addr().unwrap());
    let unanswered = Client::connect_with(&uri, config).wait().unwrap_err();
    assert!(matches!(unanswered, ClientError::Session(_)), "{unanswered}");
}

#[test]
fn clients_share_endpoints_which_end_with_the_last_of_them() {
    let (_serving, uri) = server();
    let endpoints = Endpoints::bind(LOOPBACK, 2, Config::default()).unwrap();
    let clients: Vec<_> =
        (0..4).map(|_| Client::connect_on(&endpoints, &uri).wait().unwrap()).collect();
    drop(endpoints);
    for client in &clients {
        assert_eq!(client.call(ECHO, message(client, b"x")).wait().unwrap()[..], *b"x");
    }
    let call = clients[0].call(STUCK, message(&clients[0], b""));
    drop(clients);
    // The call keeps its client.
    let failed = call.deadline(Duration::from_millis(20)).wait().unwrap_err();
    assert_ne!(failed.executed(), Executed::Never, "{failed}");
    // The drop of the last user waits for the threads.
    drop(Endpoints::bind(LOOPBACK, 3, Config::default()).unwrap());
}

#[test]
fn another_client_has_sessions_of_its_own() {
    let (_serving, uri) = server();
    let client = Client::builder().sessions(1).in_flight(1).connect(&uri).wait().unwrap();
    let stuck = client.call(STUCK, message(&client, b""));
    let other = client.another().wait().unwrap();
    let runtime = runtime();
    runtime.block_on(async {
        let stuck = tokio::spawn(stuck);
        tokio::task::yield_now().await;
        assert_eq!(other.call(ECHO, message(&other, b"x")).await.unwrap()[..], *b"x");
        stuck.abort();
    });
}

#[test]
fn a_client_connects_again_after_its_server_was_restarted() {
    let (serving, uri) = server();
    let client = Client::connect(&uri).wait().unwrap();
    let stuck = client.call(STUCK, message(&client, b""));
    let stuck = std::thread::spawn(move || stuck.wait().unwrap_err());
    soon("the handler's start", || serving.in_progress() == 1);
    serving.handle().stop();
    serving.wait().unwrap();
    let lost = stuck.join().unwrap();
    assert_eq!(lost.executed(), Executed::Maybe, "{lost}");
    // Without a server the calls wait if they are to, at most up to their deadlines.
    let call = client.call(ECHO, message(&client, b"")).deadline(Duration::from_millis(30));
    let expired = call.wait_for_ready(true).wait().unwrap_err();
    assert!(matches!(expired, CallFailure::NotConnected { .. }), "{expired}");
    let waits: Vec<_> = (0..20u8)
        .map(|n| {
            let call = client.call(ECHO, message(&client, &[n])).wait_for_ready(true);
            std::thread::spawn(move || call.wait().unwrap())
        })
        .collect();
    std::thread::sleep(Duration::from_millis(50));
    let (_serving, _) = server_at(&uri);
    for (n, wait) in (0..).zip(waits) {
        assert_eq!(wait.join().unwrap()[..], [n]);
    }
}

#[test]
fn without_its_server_a_call_fails_after_the_time_of_a_connect() {
    let (serving, uri) = server();
    let config = Config { connect_timeout: Duration::from_millis(100), ..Config::default() };
    let client = Client::connect_with(&uri, config).wait().unwrap();
    drop(serving);
    let failed = std::iter::repeat_with(|| client.call(ECHO, message(&client, b"")).wait())
        .find_map(Result::err)
        .unwrap();
    // The first ones may have been in progress when the server ended.
    let failed = match failed {
        CallFailure::NotConnected { .. } => failed,
        _ => client.call(ECHO, message(&client, b"")).wait().unwrap_err(),
    };
    assert!(matches!(failed, CallFailure::NotConnected { .. }), "{failed}");
    assert_eq!(failed.executed(), Executed::Never);
}

#[test]
fn futures_dropped_at_random_moments_leave_nothing() {
    let (serving, uri) = server();
    let client = Client::builder().in_flight(64).connect(&uri).wait().unwrap();
    let runtime = runtime();
    runtime.block_on(async {
        let mut tasks = Vec::new();
        for task in 0..32u64 {
            let client = client.clone();
            tasks.push(tokio::spawn(async move {
                let mut random = task.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
                for _ in 0..300 {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let kind = [ECHO, SLOW, STUCK][(random % 3) as usize];
                    let call = client.call(kind, message(&client, &[0; 32]));
                    let patience = Duration::from_micros(random >> 8 & 0x7ff);
                    // Dropped after its patience, or before its first poll.
                    if random & 0x80 == 0 {
                        let _ = tokio::time::timeout(patience, call).await;
                    }
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
    });
    soon("the end of all handlers", || serving.in_progress() == 0);
    // All places are free again.
    runtime.block_on(async {
        let calls: Vec<_> =
            (0..200u8).map(|n| tokio::spawn(client.call(ECHO, message(&client, &[n])))).collect();
        for (n, call) in (0..).zip(calls) {
            assert_eq!(call.await.unwrap().unwrap()[..], [n]);
        }
    });
}

#[test]
fn futures_that_are_polled_once_and_dropped_take_no_memory() {
    let (_serving, uri) = server();
    let client = Client::builder().sessions(1).in_flight(1).connect(&uri).wait().unwrap();
    let cx = &mut Context::from_waker(Waker::noop());
    let mut stuck = client.call(STUCK, message(&client, b""));
    assert!(std::pin::Pin::new(&mut stuck).poll(cx).is_pending());
    for _ in 0..200_000 {
        // 5 GB of requests, of which at most one exists.
        let mut call = client.call(ECHO, client.alloc_recycled(25_000).unwrap());
        assert!(std::pin::Pin::new(&mut call).poll(cx).is_pending());
    }
    drop(stuck);
    assert_eq!(client.call(ECHO, message(&client, b"x")).wait().unwrap()[..], *b"x");
}

#[test]
fn sends_over_shared_memory_and_grows_to_the_slots_that_are_needed() {
    let mut server = Server::bind("shm://127.0.0.1:0").unwrap();
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let opened = gate.clone();
    server.on(STUCK, move |work| {
        let gate = opened.clone();
        async move {
            let _permit = gate.acquire().await.unwrap();
            work.reply(b"");
        }
    });
    let uri = server.local_uri();
    let serving = server.serve().unwrap();
    let client = Client::connect(&uri).wait().unwrap();
    let runtime = runtime();
    runtime.block_on(async {
        let calls: Vec<_> =
            (0..1_500).map(|_| tokio::spawn(client.call(STUCK, message(&client, b"x")))).collect();
        // 32 sessions with 32 slots each.
        while serving.in_progress() < 1_024 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        gate.add_permits(1);
        for call in calls {
            call.await.unwrap().unwrap();
        }
    });
}
