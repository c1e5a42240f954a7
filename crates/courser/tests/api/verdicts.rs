//! Each way in which a request can end states truthfully whether its handler ran: handlers count their
//! starts and their ends.

use std::cell::Cell;
use std::future::{Future, IntoFuture, pending};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use courser::{
    CallError, CallFailure, Client, Config, Executed, HandlerFuture, MsgBuf, Nexus, ReplyHandle,
    Server, Serving, Status, Work,
};

use crate::common::{LOOPBACK, PATIENCE, call_and_wait, connect, drive, message};

const RUNS: u16 = 1;
const LARGE: usize = 70_000;

/// Handlers that were started, and those that ran to their end.
#[derive(Clone, Default)]
struct Counts {
    started: Arc<AtomicU64>,
    ended: Arc<AtomicU64>,
}

impl Counts {
    fn start(&self) {
        self.started.fetch_add(1, SeqCst);
    }

    fn end(&self) {
        self.ended.fetch_add(1, SeqCst);
    }

    /// Compares the counts of one call with its verdict. No handler may start later.
    fn check(&self, what: &str, executed: Executed, expected: Executed) {
        assert_eq!(executed, expected, "{what}");
        let counts = (self.started.load(SeqCst), self.ended.load(SeqCst));
        match executed {
            Executed::Never => assert_eq!(counts, (0, 0), "{what}"),
            Executed::Yes => assert_eq!(counts, (1, 1), "{what}"),
            Executed::Maybe => assert_eq!(counts, (1, 0), "{what}: not known, or a part of it"),
        }
    }
}

/// Action of a row's handler after it has counted its start.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Does {
    Nothing,
    Rejects,
    AnswersTooMuch,
    Panics,
    PanicsAndKeepsItsRequest,
    NeverEnds,
}

/// A future that keeps its request when it panics, until it is dropped.
struct Keeps(#[allow(dead_code)] Work);

impl Future for Keeps {
    type Output = ();
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        panic!("on purpose")
    }
}

fn server(counts: &Counts, does: Does) -> Server {
    let config = Config { max_msg_size: LARGE as u32, ..Config::default() };
    let mut server = Server::bind_with(LOOPBACK, config).unwrap();
    let counts = counts.clone();
    server.on(RUNS, move |work| {
        let counts = counts.clone();
        // As a part of the handler, which must not run either before its start.
        counts.start();
        async move {
            match does {
                Does::Nothing => drop(work),
                Does::Rejects => work.reject(),
                Does::AnswersTooMuch => work.reply(vec![0; LARGE + 1]),
                Does::Panics => panic!("on purpose"),
                Does::PanicsAndKeepsItsRequest => Keeps(work).await,
                Does::NeverEnds => {
                    pending::<()>().await;
                    drop(work);
                }
            }
            counts.end();
        }
    });
    server
}

fn request(client: &Client) -> MsgBuf {
    client.alloc_recycled(0).unwrap()
}

fn soon(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + PATIENCE;
    while !is_so() {
        assert!(std::time::Instant::now() < end, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn status(failure: &CallFailure) -> Option<Status> {
    match failure {
        CallFailure::Failed(CallError::Server(status)) => Some(*status),
        _ => None,
    }
}

/// Serves one call to a handler.
fn one_call(server: Server, options: impl FnOnce(Serving, Client) -> CallFailure) -> CallFailure {
    let uri = server.local_uri();
    let serving = server.serve().unwrap();
    let client = Client::connect(&uri).wait().unwrap();
    options(serving, client)
}

fn plain(serving: Serving, client: Client) -> CallFailure {
    let failure = client.call(RUNS, request(&client)).wait().unwrap_err();
    if status(&failure) == Some(Status::Panicked) {
        soon("the count of the panic", || serving.handle().stats().handlers.panics == 1);
    }
    drop(serving);
    failure
}

#[test]
fn the_status_of_a_handler_that_was_started_states_how_far_it_ran() {
    let rows = [
        (Does::Nothing, Status::NoReply, Executed::Yes),
        (Does::Rejects, Status::Rejected, Executed::Yes),
        (Does::AnswersTooMuch, Status::ResponseFailed, Executed::Yes),
        (Does::Panics, Status::Panicked, Executed::Maybe),
        (Does::PanicsAndKeepsItsRequest, Status::Panicked, Executed::Maybe),
    ];
    for (does, expected, executed) in rows {
        for in_place in [false, true] {
            let counts = Counts::default();
            let failure = one_call(server(&counts, does).in_place(in_place), plain);
            assert_eq!(status(&failure), Some(expected), "{does:?}");
            if executed == Executed::Yes {
                // The answer may overtake the end of the handler.
                soon("the handler's end", || counts.ended.load(SeqCst) == 1);
            }
            counts.check(&format!("{does:?}, in place: {in_place}"), failure.executed(), executed);
        }
    }
}

#[test]
fn a_handler_that_its_spawner_drops_has_run_only_if_it_was_polled() {
    let polls_once = |mut handler: HandlerFuture| {
        let _ = handler.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    };
    let panics = |_: HandlerFuture| panic!("on purpose");
    let counts = Counts::default();
    let failure = one_call(server(&counts, Does::NeverEnds).spawn_with(drop), plain);
    assert_eq!(status(&failure), Some(Status::NotStarted));
    counts.check("dropped", failure.executed(), Executed::Never);

    let failure = one_call(server(&counts, Does::NeverEnds).spawn_with(panics), plain);
    counts.check("the spawner panics", failure.executed(), Executed::Never);

    let failure = one_call(server(&counts, Does::NeverEnds).spawn_with(polls_once), plain);
    assert_eq!(status(&failure), Some(Status::Dropped));
    counts.check("polled", failure.executed(), Executed::Maybe);

    let counts = Counts::default();
    let in_place = server(&counts, Does::NeverEnds).spawn_with(drop).in_place(true);
    let failure = one_call(in_place, plain);
    counts.check("polled in place", failure.executed(), Executed::Maybe);
}

#[test]
fn requests_that_are_refused_never_run() {
    let counts = Counts::default();
    let failure = one_call(server(&counts, Does::NeverEnds), |_serving, client| {
        client.call(RUNS + 1, request(&client)).wait().unwrap_err()
    });
    assert_eq!(status(&failure), Some(Status::UnknownType));
    counts.check("no handler", failure.executed(), Executed::Never);

    let failure = one_call(server(&counts, Does::NeverEnds), |_serving, client| {
        let large = client.alloc_recycled(LARGE + 1).unwrap();
        client.call(RUNS, large).wait().unwrap_err()
    });
    counts.check("too large", failure.executed(), Executed::Never);

    let quota = server(&Counts::default(), Does::NeverEnds).max_in_progress(1);
    let failure = one_call(quota, |serving, client| {
        let first = client.call(RUNS, request(&client));
        let first = std::thread::spawn(move || first.wait());
        soon("the first handler", || serving.in_progress() == 1);
        let failure = client.call(RUNS, request(&client)).wait().unwrap_err();
        drop(serving);
        first.join().unwrap().unwrap_err();
        failure
    });
    assert_eq!(status(&failure), Some(Status::WorkersBusy));
    counts.check("too many", failure.executed(), Executed::Never);
}

#[test]
fn a_handler_whose_deadline_passed_before_its_first_poll_is_not_started() {
    let counts = Counts::default();
    let (queue, queued) = std::sync::mpsc::channel::<HandlerFuture>();
    let queue = std::sync::Mutex::new(queue);
    let spawn = move |handler| queue.lock().unwrap().send(handler).unwrap();
    let failure =
        one_call(server(&counts, Does::NeverEnds).spawn_with(spawn), |serving, client| {
            let call = client.call(RUNS, request(&client)).deadline(Duration::from_millis(20));
            let failure = call.wait().unwrap_err();
            let mut handler = queued.recv_timeout(PATIENCE).unwrap();
            // The server's estimate of the first call is late by the time on the way.
            std::thread::sleep(Duration::from_millis(300));
            let polled = handler.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(polled.is_ready());
            drop(serving);
            failure
        });
    assert_ne!(failure.executed(), Executed::Yes, "{failure}");
    assert_eq!(counts.started.load(SeqCst), 0);
}

#[test]
fn a_handler_in_progress_at_the_end_of_the_call_may_have_run() {
    type Ends = fn(&Serving);
    let rows: [(&str, Option<Duration>, Ends); 2] = [
        ("deadline", Some(Duration::from_millis(50)), |_| {}),
        ("stop", None, |serving| serving.handle().stop()),
    ];
    for (what, deadline, end) in rows {
        let counts = Counts::default();
        let failure = one_call(server(&counts, Does::NeverEnds), |serving, client| {
            let call = client.call(RUNS, request(&client)).deadline(deadline);
            let call = std::thread::spawn(move || call.wait().unwrap_err());
            soon("the handler's start", || counts.started.load(SeqCst) == 1);
            end(&serving);
            call.join().unwrap()
        });
        counts.check(what, failure.executed(), Executed::Maybe);
    }
}

/// Shuts a server down whose handler never ends.
fn ends_with_the_grace(change: impl FnOnce(Server) -> Server) {
    let counts = Counts::default();
    let server = change(server(&counts, Does::NeverEnds));
    let failure = one_call(server, |serving, client| {
        let call = client.call(RUNS, request(&client));
        let call = std::thread::spawn(move || call.wait().unwrap_err());
        soon("the handler's start", || counts.started.load(SeqCst) == 1);
        serving.handle().shutdown(Duration::from_millis(200));
        let failure = call.join().unwrap();
        let report = serving.wait().unwrap();
        assert_eq!((report.executing, report.calls), (1, 0), "{report:?}");
        failure
    });
    assert_eq!(status(&failure), Some(Status::GraceEnded), "{failure}");
    let text = failure.to_string();
    assert!(text.contains("shutting down") && text.contains("grace"), "{text}");
    counts.check("end of the grace", failure.executed(), Executed::Maybe);
}

#[test]
fn a_handler_in_progress_at_the_end_of_the_grace_ends_its_call_with_the_shutdown() {
    ends_with_the_grace(Server::on_workers);
    ends_with_the_grace(|server| server.in_place(true).endpoints(2));
    #[cfg(feature = "tokio")]
    {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build();
        let runtime = runtime.unwrap();
        ends_with_the_grace(|server| server.on_tokio(runtime.handle().clone()));
    }
}

#[test]
fn at_the_end_of_the_grace_requests_that_wait_for_a_worker_never_run() {
    let config = Config { workers: 1, ..Config::default() };
    let (nexus, counts) = (Nexus::bind_with(LOOPBACK, config).unwrap(), Counts::default());
    let (mut server, uri) = (nexus.endpoint().unwrap(), nexus.local_uri());
    let (opens, gate) = std::sync::mpsc::channel::<()>();
    let (own, gate) = (counts.clone(), std::sync::Mutex::new(gate));
    let run = move |work: Work| {
        own.start();
        let _ = gate.lock().unwrap().recv(); // until the calls have ended
        drop(work);
    };
    server.on_worker(RUNS, run).unwrap();
    let calls = std::thread::spawn(move || {
        let client = Client::connect(&uri).wait().unwrap();
        let calls = (0..4).map(|_| client.call(RUNS, request(&client)).into_future());
        let ends = futures::executor::block_on(futures::future::join_all(calls));
        ends.into_iter().map(Result::unwrap_err).collect::<Vec<_>>()
    });
    drive(&mut [&mut server], || {
        let stats = nexus.worker_stats();
        (stats.running, stats.queued) == (1, 3)
    });
    let report = server.shutdown(Duration::from_millis(200)).unwrap();
    assert_eq!(report.executing, 4, "{report:?}");
    let ends = calls.join().unwrap();
    drop(opens);
    let with = |expected| ends.iter().filter(|e| status(e) == Some(expected)).count();
    assert_eq!((with(Status::GraceEnded), with(Status::ShuttingDown)), (1, 3), "{ends:?}");
    let never = ends.iter().filter(|e| e.executed() == Executed::Never).count();
    assert_eq!((never, counts.started.load(SeqCst)), (3, 1));
}

#[test]
fn a_server_that_shuts_down_never_runs_later_calls() {
    let (counts, first) = (Counts::default(), Counts::default());
    let mut server = server(&counts, Does::NeverEnds);
    let started = first.clone();
    server.on(RUNS + 1, move |work| {
        started.start();
        async move {
            pending::<()>().await;
            drop(work);
        }
    });
    let failure = one_call(server, |serving, client| {
        let keeps_it = client.call(RUNS + 1, request(&client));
        let keeps_it = std::thread::spawn(move || keeps_it.wait());
        soon("the first handler", || first.started.load(SeqCst) == 1);
        serving.handle().shutdown(PATIENCE);
        // Until it has begun to shut down, calls are served, and end at their deadline.
        let failure = loop {
            let call = client.call(RUNS + 2, request(&client)).wait().unwrap_err();
            if status(&call) != Some(Status::UnknownType) {
                break client.call(RUNS, request(&client)).wait().unwrap_err();
            }
        };
        drop(serving);
        keeps_it.join().unwrap().unwrap_err();
        failure
    });
    assert_eq!(status(&failure), Some(Status::ShuttingDown));
    counts.check("shutting down", failure.executed(), Executed::Never);
}

#[cfg(feature = "tokio")]
mod runtimes {
    use courser::ServerError;
    use tokio::runtime::Builder;

    use super::*;

    #[test]
    fn handlers_that_wait_in_a_runtime_that_ends_never_run() {
        for polled in [false, true] {
            let counts = Counts::default();
            // Its tasks are polled in `block_on` only.
            let runtime = Builder::new_current_thread().build().unwrap();
            let server = server(&counts, Does::NeverEnds).on_tokio(runtime.handle().clone());
            let failure = one_call(server, |serving, client| {
                let call = client.call(RUNS, request(&client));
                let call = std::thread::spawn(move || call.wait().unwrap_err());
                soon("the request", || serving.in_progress() == 1);
                if polled {
                    runtime.block_on(tokio::task::yield_now());
                }
                drop(runtime);
                let failure = call.join().unwrap();
                let ended = serving.wait();
                assert!(matches!(ended, Err(ServerError::RuntimeEnded)), "{ended:?}");
                failure
            });
            let (expected, executed) = match polled {
                false => (Status::NotStarted, Executed::Never),
                true => (Status::Dropped, Executed::Maybe),
            };
            assert_eq!(status(&failure), Some(expected));
            counts.check("a runtime that ends", failure.executed(), executed);
        }
    }

    #[test]
    fn a_server_ends_with_its_runtime_and_later_calls_never_run() {
        for in_place in [false, true] {
            let counts = Counts::default();
            let runtime = Builder::new_multi_thread().worker_threads(2).build().unwrap();
            let server = server(&counts, Does::Nothing).on_tokio(runtime.handle().clone());
            one_call(server.in_place(in_place).endpoints(2), |serving, client| {
                runtime.shutdown_background();
                let call =
                    || client.call(RUNS, request(&client)).deadline(Duration::from_millis(300));
                // Its handler may run, or not, while the runtime ends.
                let first = call().wait().unwrap_err();
                let ran = counts.started.swap(0, SeqCst) > 0;
                assert!(ran || first.executed() != Executed::Yes, "{first}");
                assert!(!ran || first.executed() != Executed::Never, "{first}");
                let ended = serving.wait();
                assert!(matches!(ended, Err(ServerError::RuntimeEnded)), "{ended:?}");
                counts.ended.store(0, SeqCst);
                // Until the client knows that the server has ended, a call leaves on the old session.
                let mut later = call().wait().unwrap_err();
                soon("a call that fails before it leaves", || {
                    if later.executed() == Executed::Maybe {
                        later = call().wait().unwrap_err();
                    }
                    later.executed() != Executed::Maybe
                });
                counts.check("after the runtime", later.executed(), Executed::Never);
                later
            });
        }
        // One that has ended before the server starts.
        let runtime = Builder::new_current_thread().build().unwrap();
        let server = server(&Counts::default(), Does::Nothing).on_tokio(runtime.handle().clone());
        drop(runtime);
        let ended = server.serve().unwrap().wait();
        assert!(matches!(ended, Err(ServerError::RuntimeEnded)), "{ended:?}");
    }

    #[test]
    fn a_server_that_has_ended_leaves_no_task_in_its_runtime() {
        let runtime = Builder::new_multi_thread().worker_threads(1).build().unwrap();
        for _ in 0..3 {
            let server = server(&Counts::default(), Does::Nothing);
            let serving = server.on_tokio(runtime.handle().clone()).serve().unwrap();
            assert_eq!(runtime.metrics().num_alive_tasks(), 1);
            serving.handle().shutdown(PATIENCE);
            assert!(serving.wait().unwrap().is_clean());
            soon("the task's end", || runtime.metrics().num_alive_tasks() == 0);
        }
    }
}

// ---- handlers of an endpoint -----------------------------------------------------------------------

#[test]
fn the_status_of_a_handler_of_an_endpoint_states_how_far_it_ran() {
    const DEFERS: u16 = 2;
    const PANICS: u16 = 3;
    const REJECTS: u16 = 4;
    let (nexus, counts) = (Nexus::bind(LOOPBACK).unwrap(), Counts::default());
    let (mut server, uri) = (nexus.endpoint().unwrap(), nexus.local_uri());
    let own = counts.clone();
    let kept: Rc<Cell<Option<ReplyHandle>>> = Rc::default();
    for req_type in [RUNS, DEFERS, PANICS, REJECTS] {
        let (own, kept) = (own.clone(), kept.clone());
        server.on(req_type, move |cx, _| {
            own.start();
            match req_type {
                DEFERS => kept.set(cx.defer()), // dropped at the end of this handler
                PANICS => panic!("on purpose"),
                REJECTS => cx.reject(),
                _ => {}
            }
            kept.set(None);
            own.end();
        });
    }
    let mut client = Nexus::bind(LOOPBACK).unwrap().endpoint().unwrap();
    let session = connect(&mut client, &mut [&mut server], &uri);
    let rows = [
        (RUNS, Executed::Yes),
        (DEFERS, Executed::Yes),
        (PANICS, Executed::Maybe),
        (REJECTS, Executed::Yes),
        (REJECTS + 1, Executed::Never),
    ];
    for (req_type, expected) in rows {
        counts.started.store(0, SeqCst);
        counts.ended.store(0, SeqCst);
        let m = message(&client, 1, 10);
        let ended = call_and_wait(&mut client, &mut [&mut server], session, req_type, m);
        let executed = ended.result.unwrap_err().executed();
        counts.check(&format!("type {req_type}"), executed, expected);
    }
}

#[test]
fn an_async_handler_that_is_dropped_at_its_deadline_has_not_ended() {
    let (nexus, counts) = (Nexus::bind(LOOPBACK).unwrap(), Counts::default());
    let (mut server, uri) = (nexus.endpoint().unwrap(), nexus.local_uri());
    let own = counts.clone();
    server.on_async(RUNS, move |_| {
        let own = own.clone();
        async move {
            own.start();
            pending::<()>().await;
            own.end();
            Vec::new()
        }
    });
    let mut client = Nexus::bind(LOOPBACK).unwrap().endpoint().unwrap();
    let session = connect(&mut client, &mut [&mut server], &uri);
    let result = Rc::new(Cell::new(None));
    let (m, done) = (message(&client, 1, 10), result.clone());
    let deadline = Duration::from_millis(30);
    client
        .request(session, RUNS, m)
        .deadline(deadline)
        .then(move |_, ended| {
            done.set(ended.result.err());
        })
        .unwrap();
    drive(&mut [&mut client, &mut server], || {
        let ended = result.take();
        result.set(ended);
        ended.is_some()
    });
    let error = result.take().unwrap();
    assert!(matches!(error, CallError::DeadlineExceeded(_)), "{error}");
    counts.check("deadline", error.executed(), Executed::Maybe);
}
