//! Worker handlers, tested with whole endpoints (E10-E12, E28).

use std::collections::HashSet;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::*;
use courser::{
    BindError, CallError, Config, Executed, MsgBuf, Nexus, Rpc, SessionId, Status, Work,
    WorkerError,
};

const SLOW: u16 = 1;
const ECHO: u16 = 2;
const WORK: u16 = 3;

fn config() -> Config {
    Config { workers: 2, ..Config::default() }
}

/// A connected client and server on this thread, and the server's nexus.
fn pair(config: Config, set_up: impl FnOnce(&mut Rpc)) -> (Rpc, Rpc, SessionId, Nexus) {
    let nexus = Nexus::bind_with(LOOPBACK, config.clone()).unwrap();
    let mut server = nexus.endpoint().unwrap();
    set_up(&mut server);
    let mut client = client(config);
    let session = connect(&mut client, &mut [&mut server], &nexus.local_uri());
    (client, server, session, nexus)
}

fn echo(mut work: Work) {
    let request = work.take().unwrap();
    work.reply(request);
}

#[test]
fn a_handler_on_its_own_thread_may_pass_its_request_to_any_thread() {
    let (send, receive) = std::sync::mpsc::channel::<courser::Work>();
    let answers = std::thread::spawn(move || {
        for work in receive {
            let reversed: Vec<u8> = work.iter().rev().copied().collect();
            work.reply(reversed);
        }
    });
    let server = Server::start(Config::default(), move |rpc| {
        rpc.on_owned(ECHO, move |work| send.send(work).unwrap());
    });
    let mut rpc = client(Config::default());
    let session = connect(&mut rpc, &mut [], &server.uri);
    let request = message(&rpc, 1, 40);
    let ended = call_and_wait(&mut rpc, &mut [], session, ECHO, request);
    let reversed: Vec<u8> = expected(1, 40).into_iter().rev().collect();
    assert_eq!(ended.result.unwrap(), reversed);
    drop(server);
    answers.join().unwrap();
}

#[test]
fn workers_echo_messages_of_all_sizes_copied_and_moved() {
    let (mut client, mut server, session, nexus) = pair(config(), |rpc| {
        rpc.on_worker(WORK, echo).unwrap();
        rpc.on_worker(ECHO, |work| {
            let thread = std::thread::current();
            assert!(thread.name().is_some_and(|n| n.starts_with("courser-worker-")));
            let bytes = work.to_vec();
            work.reply(bytes);
        })
        .unwrap();
    });
    let dpp = usize::from(client.session_stats(session).unwrap().data_per_packet);
    let sizes = [0, 1, 32, 512, dpp - 1, dpp, dpp + 1, 3 * dpp, 100_000, 8 << 20];
    for (seed, len) in (0..).zip(sizes) {
        for req_type in [WORK, ECHO] {
            let request = message(&client, seed, len);
            let ended = call_and_wait(&mut client, &mut [&mut server], session, req_type, request);
            assert!(ended.result == Ok(expected(seed, len)), "type {req_type}, {len} bytes");
        }
    }
    drive(&mut [&mut client, &mut server], || nexus.worker_stats().running == 0);
    let stats = nexus.worker_stats();
    let calls = 2 * sizes.len() as u64;
    assert_eq!((stats.threads, stats.started, stats.finished), (2, calls, calls));
    assert_eq!((server.stats().requests, server.handler_stats()), (calls, Default::default()));
    server.check();
}

#[test]
fn a_long_handler_delays_neither_dispatch_calls_nor_large_messages() {
    let (open, wait) = gate();
    let started = Arc::new(AtomicUsize::new(0));
    let count = started.clone();
    let config = Config {
        rto: (Duration::from_millis(1), Duration::from_millis(5)),
        datapath_timeout: PATIENCE,
        ..config()
    };
    let (mut client, mut server, session, _nexus) = pair(config, |rpc| {
        rpc.on(ECHO, |cx, req| cx.reply(req));
        rpc.on_worker(SLOW, move |work| {
            count.fetch_add(1, Ordering::SeqCst);
            pass(&wait);
            echo(work);
        })
        .unwrap();
    });
    // A large one, whose credit returns arrive before the handler starts.
    let log = Log::default();
    let request = message(&client, 1, 50_000);
    call(&mut client, session, SLOW, request, &log, 1);
    drive(&mut [&mut client, &mut server], || started.load(Ordering::SeqCst) == 1);
    let mut seed = 0;
    // Until the slow call was retransmitted several times, and for at least 50 calls.
    while server.stats().in_progress_sent < 5 || seed < 50 {
        seed += 1;
        let len = if seed % 2 == 0 { 32 } else { 200_000 };
        let request = message(&client, seed, len);
        let ended = call_and_wait(&mut client, &mut [&mut server], session, ECHO, request);
        assert!(ended.result == Ok(expected(seed, len)));
        assert!(log.borrow().is_empty(), "the slow call is not answered yet");
    }
    open.send(()).unwrap();
    drive(&mut [&mut client, &mut server], || !log.borrow().is_empty());
    assert!(log.borrow()[0].1.result == Ok(expected(1, 50_000)));
    assert_eq!(started.load(Ordering::SeqCst), 1, "the handler ran once");
    client.check();
    server.check();
}

#[test]
fn a_full_worker_queue_refuses_requests_with_a_status() {
    let (open, wait) = gate();
    let config = Config { workers: 1, worker_queue: 2, ..Config::default() };
    let (mut client, mut server, session, nexus) = pair(config, |rpc| {
        rpc.on_worker(SLOW, move |work| {
            pass(&wait);
            echo(work);
        })
        .unwrap();
    });
    let log = Log::default();
    let request = message(&client, 0, 9000);
    call(&mut client, session, SLOW, request, &log, 0);
    drive(&mut [&mut client, &mut server], || nexus.worker_stats().running == 1);
    for id in 1..6 {
        let request = message(&client, id, 9000);
        call(&mut client, session, SLOW, request, &log, id);
    }
    drive(&mut [&mut client, &mut server], || log.borrow().len() == 3);
    for (_, ended) in log.borrow().iter() {
        let error = *ended.result.as_ref().unwrap_err();
        assert_eq!(error, CallError::Server(Status::WorkersBusy));
        assert_eq!(error.executed(), Executed::Never);
    }
    let stats = nexus.worker_stats();
    assert_eq!((stats.queued, stats.refused, stats.started), (2, 3, 1));
    assert_eq!(server.handler_stats().workers_busy, 3);
    drop(open);
    drive(&mut [&mut client, &mut server], || log.borrow().len() == 6);
    assert!(log.borrow()[3..].iter().all(|(id, e)| e.result == Ok(expected(*id, 9000))));
}

#[test]
fn without_memory_for_the_copy_the_call_fails_with_a_status() {
    let hoard = Arc::new(Mutex::new(Vec::<MsgBuf>::new()));
    let keep = hoard.clone();
    let config = Config { memory_limit: 16 << 20, max_msg_size: 1 << 20, ..config() };
    let (mut client, mut server, session, _nexus) = pair(config, |rpc| {
        rpc.on_worker(WORK, echo).unwrap();
        rpc.on_worker(SLOW, move |work| {
            let mut all = keep.lock().unwrap();
            for len in [100_000, 1000] {
                all.extend(std::iter::from_fn(|| work.alloc(len).ok()));
            }
            work.reject();
        })
        .unwrap();
    });
    let request = message(&client, 1, 1000);
    let ended = call_and_wait(&mut client, &mut [&mut server], session, SLOW, request);
    assert_eq!(ended.result, Err(CallError::Server(Status::Rejected)));
    // The memory of the failed call's request can be allocated again.
    let mut request = ended.request;
    let mut refused = 0;
    for _ in 0..3 {
        hoard.lock().unwrap().extend(server.alloc(1000));
        let ended = call_and_wait(&mut client, &mut [&mut server], session, WORK, request);
        refused += u64::from(ended.result == Err(CallError::Server(Status::NoMemory)));
        request = ended.request;
    }
    assert!(refused > 0);
    assert_eq!(server.handler_stats().no_memory, refused);
    hoard.lock().unwrap().clear();
    let ended = call_and_wait(&mut client, &mut [&mut server], session, WORK, request);
    assert!(ended.result == Ok(expected(1, 1000)), "{:?}", ended.result);
}

#[test]
fn work_can_be_stored_and_answered_from_any_thread() {
    let kept: Arc<Mutex<Vec<Work>>> = Arc::default();
    let keep = kept.clone();
    let (mut client, mut server, session, _nexus) = pair(config(), |rpc| {
        rpc.on_worker(WORK, move |work| keep.lock().unwrap().push(work)).unwrap();
    });
    let log = Log::default();
    for id in 0..6 {
        let request = message(&client, id, 5000);
        call(&mut client, session, WORK, request, &log, id);
    }
    drive(&mut [&mut client, &mut server], || kept.lock().unwrap().len() == 6);
    let mut all = std::mem::take(&mut *kept.lock().unwrap());
    let own = std::thread::spawn(move || {
        all.pop().unwrap().reject();
        drop(all.pop());
        all.into_iter().for_each(echo);
    });
    own.join().unwrap();
    drive(&mut [&mut client, &mut server], || log.borrow().len() == 6);
    let mut errors = Vec::new();
    for (id, ended) in log.borrow().iter() {
        match &ended.result {
            Ok(bytes) => assert!(*bytes == expected(*id, 5000)),
            Err(e) => errors.push(*e),
        }
    }
    assert_eq!(errors.len(), 2);
    assert!(errors.contains(&CallError::Server(Status::Rejected)));
    assert!(errors.contains(&CallError::Server(Status::NoReply)));
}

#[test]
fn a_later_registration_replaces_the_handler() {
    let (mut client, mut server, session, _nexus) = pair(config(), |rpc| {
        rpc.on_worker(1, |work| work.reply("worker")).unwrap();
        rpc.on(1, |cx, _| cx.reply("dispatch"));
        rpc.on(2, |cx, _| cx.reply("dispatch"));
        rpc.on_worker(2, |work| work.reply("worker")).unwrap();
    });
    for (req_type, who) in [(1, "dispatch"), (2, "worker")] {
        let request = message(&client, 0, 1);
        let ended = call_and_wait(&mut client, &mut [&mut server], session, req_type, request);
        assert_eq!(ended.result.unwrap(), who.as_bytes());
    }
    // Also after a call.
    server.on(2, |cx, _| cx.reply("again"));
    let request = message(&client, 0, 1);
    let ended = call_and_wait(&mut client, &mut [&mut server], session, 2, request);
    assert_eq!(ended.result.unwrap(), b"again");
}

#[test]
fn an_answer_to_a_session_that_has_ended_is_counted_and_dropped() {
    let (open, wait) = gate();
    let (tell, ids) = mpsc::channel();
    let (mut client, mut server, session, nexus) = pair(config(), |rpc| {
        rpc.on_worker(SLOW, move |work| {
            let _ = tell.send(work.session());
            pass(&wait);
            match work.first() {
                Some(0) => work.reject(),
                _ => echo(work),
            }
        })
        .unwrap();
    });
    for first in 0..2 {
        let mut request = client.alloc(20_000).unwrap();
        request.fill(first);
        client.call(session, SLOW, request, |_, _| {}).unwrap();
    }
    drive(&mut [&mut client, &mut server], || nexus.worker_stats().running == 2);
    let servers_end = ids.recv().unwrap();
    client.close(session);
    drive_until(&mut [&mut client, &mut server], |all| all[1].session_stats(servers_end).is_none());
    assert_eq!(server.sessions(), 1, "it is counted until its handlers have answered (E68)");
    drop(open);
    drive_until(&mut [&mut client, &mut server], |all| all[1].handler_stats().gone == 2);
    assert_eq!(server.sessions(), 0);
    let idle = nexus.endpoint().unwrap().memory().in_use_bytes;
    assert_eq!(server.memory().in_use_bytes, idle, "as much as without sessions");
    // The endpoint keeps working.
    let session = connect(&mut client, &mut [&mut server], &nexus.local_uri());
    let request = message(&client, 3, 100);
    let ended = call_and_wait(&mut client, &mut [&mut server], session, SLOW, request);
    assert!(ended.result == Ok(expected(3, 100)));
}

#[test]
fn queued_requests_that_are_cancelled_are_never_executed() {
    let (open, wait) = gate();
    let one = Config { workers: 1, ..Config::default() };
    let (mut client, mut server, session, nexus) = pair(one, |rpc| {
        rpc.on_worker(SLOW, move |work| {
            pass(&wait);
            echo(work);
        })
        .unwrap();
    });
    let log = Log::default();
    let mut calls = Vec::new();
    for id in 0..4 {
        let request = message(&client, id, 3_000);
        let log = log.clone();
        let call = client.call(session, SLOW, request, move |_, done| {
            let result = done.result.map(|r| r.to_vec());
            log.borrow_mut().push((id, Ended { request: done.request, result }));
        });
        calls.push(call.unwrap());
    }
    let at_work = || (nexus.worker_stats().running, nexus.worker_stats().queued);
    drive(&mut [&mut client, &mut server], || at_work() == (1, 3));
    // One call is cancelled, the others lose their client.
    assert!(client.cancel(calls[2]));
    drive(&mut [&mut client, &mut server], || at_work() == (1, 2));
    assert_eq!(log.borrow()[0].1.result, Err(CallError::Cancelled(Executed::Maybe)));
    client.close(session);
    drive(&mut [&mut client, &mut server], || at_work() == (1, 0));
    assert_eq!(server.sessions(), 1, "the running handler keeps the session");
    drop(open);
    drive_until(&mut [&mut client, &mut server], |all| all[1].sessions() == 0);
    let stats = nexus.worker_stats();
    assert_eq!((stats.started, stats.finished, stats.abandoned), (1, 1, 3));
}

#[test]
fn sleeping_endpoints_are_woken_by_answers() {
    let sleepy = Config {
        spin: Some(Duration::ZERO),
        rto: (Duration::from_secs(5), Duration::from_secs(10)),
        idle_after: PATIENCE,
        datapath_timeout: PATIENCE,
        ..config()
    };
    let server = Server::start(sleepy.clone(), |rpc| rpc.on_worker(WORK, echo).unwrap());
    let mut client = client(sleepy);
    let session = client.connect(&server.uri).unwrap();
    client.wait_connected(session).unwrap();
    // Without the answer's wake-up the server would sleep until the client retransmits.
    for seed in 0..300 {
        let done = Rc::new(std::cell::Cell::new(false));
        let flag = done.clone();
        let request = message(&client, seed, (seed as usize % 3) * 3000);
        client.call(session, WORK, request, move |_, d| flag.set(d.result.is_ok())).unwrap();
        client.run_until(|| done.get()).unwrap();
        assert_eq!(client.stats().rollbacks, 0, "no retransmission was needed for the answer");
    }
}

#[test]
fn drops_in_any_order_are_safe_while_handlers_run() {
    for order in 0..6 {
        let (open, wait) = gate();
        let kept: Arc<Mutex<Vec<Work>>> = Arc::default();
        let keep = kept.clone();
        let (mut client, mut server, session, nexus) = pair(config(), |rpc| {
            rpc.on_worker(SLOW, move |work| {
                pass(&wait);
                keep.lock().unwrap().push(work);
            })
            .unwrap();
        });
        let log = Log::default();
        for id in 0..8 {
            let request = message(&client, id, 4000);
            call(&mut client, session, SLOW, request, &log, id);
        }
        drive(&mut [&mut client, &mut server], || nexus.worker_stats().queued == 6);
        open.send(()).unwrap();
        // One request is stored by its handler, and two handlers run again.
        drive(&mut [&mut client, &mut server], || nexus.worker_stats().started == 3);
        let release = move || {
            drop(open);
            let end = std::time::Instant::now() + PATIENCE;
            // Two handlers were started, and one more after the first had ended. The remaining
            // requests are dropped with the server, or all run if it stays.
            while kept.lock().unwrap().len() < 3 {
                assert!(std::time::Instant::now() < end);
                std::thread::yield_now();
            }
            kept.lock().unwrap().drain(..).for_each(echo);
        };
        match order {
            0 => (drop(server), drop(nexus), release()).2,
            1 => (drop(nexus), drop(server), release()).2,
            2 => (release(), drop(server), drop(nexus)).2,
            3 => (drop(nexus), release(), drop(server)).2,
            4 => (drop(client), drop(server), release()).2,
            _ => (drop(server), release(), drop(nexus)).2,
        }
    }
}

#[test]
fn a_graceful_shutdown_waits_for_workers() {
    let (open, wait) = gate();
    let nexus = Nexus::bind_with(LOOPBACK, Config { workers: 1, ..Config::default() }).unwrap();
    let uri = nexus.local_uri();
    let mut server = nexus.endpoint().unwrap();
    server
        .on_worker(SLOW, move |work| {
            pass(&wait);
            echo(work);
        })
        .unwrap();
    let caller = std::thread::spawn(move || {
        let mut client = client(Config::default());
        let session = client.connect(&uri).unwrap();
        client.wait_connected(session).unwrap();
        let log = Log::default();
        for id in 0..2 {
            let request = message(&client, id, 3000);
            call(&mut client, session, SLOW, request, &log, id);
        }
        drive(&mut [&mut client], || log.borrow().len() == 2);
        let whole = |(id, ended): &(u64, Ended)| ended.result == Ok(expected(*id, 3000));
        assert!(log.borrow().iter().all(whole));
    });
    // One request runs and one is queued when the shutdown begins.
    drive(&mut [&mut server], || {
        let stats = nexus.worker_stats();
        (stats.running, stats.queued) == (1, 1)
    });
    let opener = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        drop(open);
    });
    let report = server.shutdown(PATIENCE).unwrap();
    assert!(report.is_clean(), "{report:?}");
    opener.join().unwrap();
    caller.join().unwrap();
}

#[test]
fn endpoints_on_threads_share_the_pool() {
    let nexus = Nexus::bind_with(LOOPBACK, Config { workers: 3, ..Config::default() }).unwrap();
    let uri = nexus.local_uri();
    let threads = Arc::new(Mutex::new(HashSet::new()));
    std::thread::scope(|scope| {
        let mut handles = Vec::new();
        for _ in 0..2 {
            let (ready, is_ready) = mpsc::channel();
            let (nexus, threads) = (&nexus, threads.clone());
            scope.spawn(move || {
                let mut rpc = nexus.endpoint().unwrap();
                rpc.on_worker(WORK, move |work| {
                    threads.lock().unwrap().insert(std::thread::current().id());
                    echo(work);
                })
                .unwrap();
                ready.send(rpc.handle()).unwrap();
                rpc.run().unwrap();
            });
            handles.push(is_ready.recv().unwrap());
        }
        let mut client = client(Config::default());
        let log = Log::default();
        for index in 0..2 {
            let session = client.connect(&format!("{uri}/{index}")).unwrap();
            client.wait_connected(session).unwrap();
            for id in 0..500 {
                let request = message(&client, id, 1 + id as usize * 10);
                call(&mut client, session, WORK, request, &log, id);
            }
        }
        drive(&mut [&mut client], || log.borrow().len() == 1000);
        for (id, ended) in log.borrow().iter() {
            assert!(ended.result == Ok(expected(*id, 1 + *id as usize * 10)));
        }
        handles.iter().for_each(|w| w.stop());
    });
    assert!(threads.lock().unwrap().len() <= 3);
    assert_eq!(nexus.worker_stats().threads, 3);
}

#[test]
fn workers_do_not_inherit_the_cpu_of_the_endpoint() {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let allowed = sched_getaffinity(None).unwrap();
    let nexus = Nexus::bind_with(LOOPBACK, config()).unwrap();
    let first = (0..CpuSet::MAX_CPU).find(|&cpu| allowed.is_set(cpu)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut pinned = CpuSet::new();
            pinned.set(first);
            sched_setaffinity(None, &pinned).unwrap();
            let mut server = nexus.endpoint().unwrap();
            server
                .on_worker(WORK, |work| {
                    work.reply(sched_getaffinity(None).unwrap().count().to_le_bytes());
                })
                .unwrap();
            let mut client = nexus.endpoint().unwrap();
            let uri = format!("{}/0", nexus.local_uri());
            let session = connect(&mut client, &mut [&mut server], &uri);
            let request = client.alloc(0).unwrap();
            let ended = call_and_wait(&mut client, &mut [&mut server], session, WORK, request);
            assert_eq!(ended.result.unwrap(), allowed.count().to_le_bytes());
        });
    });
}

#[test]
fn settings_are_checked_and_threads_start_with_the_first_worker_handler() {
    for (workers, worker_queue, text) in [
        (1025, 1, "Config::workers is 1025"),
        (1, 0, "Config::worker_queue is 0"),
        (1, (1 << 20) + 1, "Config::worker_queue is 1048577"),
    ] {
        let config = Config { workers, worker_queue, ..Config::default() };
        let error: BindError = Nexus::bind_with(LOOPBACK, config).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    }
    let none = Config { workers: 0, ..Config::default() };
    let nexus = Nexus::bind_with(LOOPBACK, none).unwrap();
    let mut rpc = nexus.endpoint().unwrap();
    let error = rpc.on_worker(WORK, echo).unwrap_err();
    assert!(matches!(error, WorkerError::Disabled), "{error}");

    assert!(Config::default().workers >= 1);
    let nexus = Nexus::bind(LOOPBACK).unwrap();
    let mut rpc = nexus.endpoint().unwrap();
    rpc.on(ECHO, |cx, req| cx.reply(req));
    assert_eq!(nexus.worker_stats().threads, 0);
    rpc.on_worker(WORK, echo).unwrap();
    assert_eq!(nexus.worker_stats().threads, Config::default().workers);
}
