//! The endpoint of clients is driven by the threads of its callers, in turns.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use courser::{CallFailure, Client, ClientCall, Config, MsgBuf, Server, Serving, Work};

use crate::common::{LOOPBACK, PATIENCE};

const ECHO: u16 = 1;
/// Answered when as many requests have come as the first byte states.
const TOGETHER: u16 = 2;

/// A server, and a client with an endpoint that no other test has.
fn pair(uri: &str, connect_timeout: u64) -> (Serving, Client) {
    let mut server = Server::bind(uri).unwrap().in_place(true);
    server.on(ECHO, |mut work| async move {
        let request = work.take().unwrap();
        work.reply(request);
    });
    let waiting: Arc<Mutex<Vec<Work>>> = Arc::default();
    server.on(TOGETHER, move |work| {
        let waiting = waiting.clone();
        async move {
            let count = usize::from(work[0]);
            let mut all = waiting.lock().unwrap();
            all.push(work);
            if all.len() == count {
                all.drain(..).for_each(|work| work.reply(b"all"));
            }
        }
    });
    let uri = server.local_uri();
    let serving = server.serve().unwrap();
    let connect_timeout = Duration::from_secs(connect_timeout);
    let config = Config { connect_timeout, ..Config::default() };
    let client = Client::connect_with(&uri, config).wait().unwrap();
    (serving, client)
}

fn call(client: &Client, req_type: u16, first: u8) -> ClientCall {
    let mut request = client.alloc(32).unwrap();
    request[0] = first;
    client.call(req_type, request)
}

/// Wakes a thread, and counts.
struct Count(AtomicUsize, Thread);

impl Count {
    fn new() -> Arc<Count> {
        Arc::new(Count(AtomicUsize::new(0), std::thread::current()))
    }

    fn wait(&self) {
        let end = Instant::now() + PATIENCE;
        while self.0.load(Ordering::Acquire) == 0 {
            assert!(Instant::now() < end, "the task was not woken");
            std::thread::park_timeout(Duration::from_millis(100));
        }
    }
}

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::AcqRel);
        self.1.unpark();
    }
}

fn poll(call: &mut ClientCall, waker: &Waker) -> Poll<usize> {
    let polled = Pin::new(call).poll(&mut Context::from_waker(waker));
    polled.map(|answer| answer.unwrap().len())
}

/// The first poll of a call, which is not answered by it.
fn begin(client: &Client, waker: &Waker) -> ClientCall {
    loop {
        let mut call = call(client, ECHO, 0);
        if poll(&mut call, waker).is_pending() {
            return call;
        }
    }
}

#[test]
fn callers_fetch_their_answers_themselves() {
    if std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() == 1) {
        return; // there is nothing to spin on
    }
    for uri in [LOOPBACK, "shm://127.0.0.1:0"] {
        let (_serving, client) = pair(uri, 11);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let end = Instant::now() + PATIENCE;
        while client.polling().answered < 100 {
            assert!(Instant::now() < end, "{:?}", client.polling());
            runtime.block_on(call(&client, ECHO, 0)).unwrap();
            call(&client, ECHO, 0).wait().unwrap();
        }
        assert!(format!("{client:?}").contains("answered"), "{client:?}");
    }
}

#[test]
fn calls_that_a_task_begins_at_once_are_in_flight_together() {
    let (_serving, client) = pair(LOOPBACK, 12);
    let all = || futures::future::join_all((0..40).map(|_| call(&client, TOGETHER, 40)));
    let together = |answers: Vec<Result<MsgBuf, CallFailure>>| {
        answers.into_iter().for_each(|answer| assert_eq!(*answer.unwrap(), *b"all"));
    };
    for _ in 0..10 {
        together(futures::executor::block_on(all()));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        together(runtime.block_on(all()));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
        together(runtime.block_on(all()));
    }
}

/// A task that begins a call, and would drive the endpoint when it is polled again.
#[test]
fn a_task_that_is_not_polled_again_or_is_dropped_delays_no_other_call() {
    let (_serving, client) = pair("shm://127.0.0.1:0", 13);
    for n in 0..20 {
        let first = begin(&client, Waker::noop());
        let count = Count::new();
        let waker = Waker::from(count.clone());
        let mut second = begin(&client, &waker);
        let first = (n % 2 == 0).then_some(first);
        // Whatever drives now, this task is woken: by a poll of its own, or with its answer.
        loop {
            count.wait();
            count.0.store(0, Ordering::Release);
            if poll(&mut second, &waker).is_ready() {
                break;
            }
        }
        drop(first);
    }
}

/// Calls from within its wake-up, and panics.
struct Spiteful(Client, Mutex<Vec<ClientCall>>, AtomicUsize);

impl Wake for Spiteful {
    fn wake(self: Arc<Self>) {
        if self.2.fetch_add(1, Ordering::AcqRel) < 3 {
            let mut within = call(&self.0, ECHO, 0);
            let _ = poll(&mut within, Waker::noop());
            self.1.lock().unwrap_or_else(PoisonError::into_inner).push(within);
        }
        panic!("a waker that panics");
    }
}

#[test]
fn a_waker_may_call_and_may_panic() {
    let (_serving, client) = pair("shm://127.0.0.1:0", 14);
    let spiteful = Arc::new(Spiteful(client.clone(), Mutex::default(), AtomicUsize::new(0)));
    let waker = Waker::from(spiteful.clone());
    for _ in 0..5 {
        let mut calls: Vec<_> = (0..8).map(|_| call(&client, ECHO, 0)).collect();
        let begin = std::panic::AssertUnwindSafe(|| {
            let _ = calls.iter_mut().map(|call| poll(call, &waker)).count();
        });
        // A task that yields wakes itself, which panics in its own poll.
        let _ = std::panic::catch_unwind(begin);
        call(&client, ECHO, 0).wait().unwrap();
    }
    let within = std::mem::take(&mut *spiteful.1.lock().unwrap_or_else(PoisonError::into_inner));
    for call in within {
        futures::executor::block_on(pin!(call)).unwrap();
    }
}

#[test]
fn tasks_of_one_thread_take_turns_with_other_tasks() {
    let (_serving, client) = pair("shm://127.0.0.1:0", 15);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let others = Arc::new(AtomicUsize::new(0));
        let turns = others.clone();
        let other = tokio::spawn(async move {
            loop {
                turns.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        });
        for _ in 0..1_000 {
            call(&client, ECHO, 0).await.unwrap();
        }
        assert!(others.load(Ordering::Relaxed) >= 1_000, "a call is at least one turn of others");
        other.abort();
    });
}

#[test]
fn the_thread_of_an_idle_endpoint_does_not_run() {
    let (_serving, client) = pair(LOOPBACK, 16);
    call(&client, ECHO, 0).wait().unwrap();
    let end = Instant::now() + PATIENCE;
    loop {
        let before = client.polling();
        std::thread::sleep(Duration::from_millis(100));
        if client.polling() == before {
            return;
        }
        assert!(Instant::now() < end, "{before:?}, later {:?}", client.polling());
    }
}

#[test]
fn a_call_each_millisecond_polls_for_a_small_part_of_the_time() {
    let (_serving, client) = pair(LOOPBACK, 17);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let (begun, before) = (Instant::now(), client.polling());
    runtime.block_on(async {
        for _ in 0..200 {
            call(&client, ECHO, 0).await.unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    let (took, polls) = (begun.elapsed().as_nanos() as u64, client.polling());
    assert!(polls.time_ns - before.time_ns < took / 2, "{polls:?} in {took} ns");
    let looks = polls.looks - before.looks;
    assert!(looks < took / 100_000, "{looks} looks in {took} ns");
}

#[test]
fn a_runtime_that_ends_with_calls_in_flight_leaves_other_callers_alone() {
    let (_serving, client) = pair("shm://127.0.0.1:0", 18);
    for threads in [1, 2] {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(threads).build().unwrap();
        let answers = Arc::new(AtomicUsize::new(0));
        for _ in 0..64 {
            let (client, answers) = (client.clone(), answers.clone());
            drop(runtime.spawn(async move {
                loop {
                    call(&client, ECHO, 0).await.unwrap();
                    answers.fetch_add(1, Ordering::Relaxed);
                }
            }));
        }
        let end = Instant::now() + PATIENCE;
        while answers.load(Ordering::Relaxed) < 1_000 {
            assert!(Instant::now() < end, "{:?}", client.polling());
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(runtime);
        for _ in 0..100 {
            call(&client, ECHO, 0).wait().unwrap();
        }
    }
}

#[test]
fn hundreds_of_tasks_with_clients_of_their_own_share_an_endpoint() {
    for (uri, own) in [(LOOPBACK, 19), ("shm://127.0.0.1:0", 20)] {
        let (_serving, first) = pair(uri, own);
        let all: Vec<_> = (0..100).map(|_| first.another().wait().unwrap()).collect();
        let runtimes = [
            tokio::runtime::Builder::new_current_thread().build().unwrap(),
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap(),
        ];
        for runtime in runtimes {
            let tasks = (0..300).map(|n| {
                let client = all[n % all.len()].clone();
                runtime.spawn(async move {
                    for _ in 0..10 {
                        call(&client, ECHO, 0).await.unwrap();
                    }
                })
            });
            let tasks: Vec<_> = tasks.collect();
            runtime.block_on(async {
                for task in tasks {
                    task.await.unwrap();
                }
            });
        }
    }
}
