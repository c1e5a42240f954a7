//! Deadlines and cancellation, over real sockets and real time (ADR 15).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::common::*;
use courser::{
    CallError, Completion, Config, Context, Executed, Nexus, ReplyHandle, Rpc, SessionId,
};

const ECHO: u16 = 1;
const KEEP: u16 = 2;
const SLEEP: u16 = 3;

/// Reply handles of deferred requests without an answer.
type Kept = Rc<RefCell<Vec<ReplyHandle>>>;

/// A connected client and server on this thread, and the server's deferred requests.
fn pair(config: Config) -> (Rpc, Rpc, SessionId, Kept) {
    let nexus = Nexus::bind_with(LOOPBACK, config.clone()).unwrap();
    let mut server = nexus.endpoint().unwrap();
    server.on(ECHO, |cx, req| cx.reply(req));
    let kept = Kept::default();
    let keep = kept.clone();
    server.on(KEEP, move |cx, _| keep.borrow_mut().push(cx.defer().unwrap()));
    let mut client = client(config);
    let session = connect(&mut client, &mut [&mut server], &nexus.local_uri());
    // Both sides measure the round-trip time.
    for seed in 0..3 {
        let request = message(&client, seed, 32);
        call_and_wait(&mut client, &mut [&mut server], session, ECHO, request);
    }
    (client, server, session, kept)
}

fn log_end(log: &Log, id: u64) -> impl FnOnce(&mut Context<'_>, Completion<'_>) + 'static {
    let log = log.clone();
    move |_, done| {
        let result = done.result.map(|r| r.to_vec());
        log.borrow_mut().push((id, Ended { request: done.request, result }));
    }
}

fn wait_quarantined(client: &mut Rpc, server: &mut Rpc, session: SessionId, n: u32) {
    drive_until(&mut [client, server], |all| {
        all[0].session_stats(session).unwrap().quarantined == n
    });
}

#[test]
fn a_call_without_an_answer_ends_at_its_deadline() {
    let (mut client, mut server, session, kept) = pair(Config::default());
    let log = Log::default();
    let start = Instant::now();
    let request = message(&client, 1, 5_000);
    client
        .request(session, KEEP, request)
        .deadline(Duration::from_millis(50))
        .then(log_end(&log, 1))
        .unwrap();
    drive(&mut [&mut client, &mut server], || !log.borrow().is_empty());
    assert!(start.elapsed() >= Duration::from_millis(50));
    let (_, ended) = log.borrow_mut().pop().unwrap();
    assert!(*ended.request == *expected(1, 5_000), "the request is unchanged");
    assert!(matches!(ended.result, Err(CallError::DeadlineExceeded(_))), "{:?}", ended.result);
    // The late answer frees the slot, and the session works as before.
    if let Some(handle) = kept.borrow_mut().pop() {
        server.reply_to(handle, "late").unwrap();
    }
    wait_quarantined(&mut client, &mut server, session, 0);
    let request = message(&client, 2, 32);
    client
        .request(session, ECHO, request)
        .deadline(Duration::from_millis(60_000))
        .then(log_end(&log, 2))
        .unwrap();
    drive(&mut [&mut client, &mut server], || !log.borrow().is_empty());
    assert_eq!(log.borrow()[0].1.result, Ok(expected(2, 32)));
    assert_eq!(client.stats().expired, 1);
}

#[test]
fn a_cancelled_call_ends_and_its_handler_can_check_for_it() {
    let (mut client, mut server, session, kept) = pair(Config::default());
    let log = Log::default();
    let request = message(&client, 1, 32);
    let call = client.call(session, KEEP, request, log_end(&log, 1)).unwrap();
    drive(&mut [&mut client, &mut server], || !kept.borrow().is_empty());
    let handle = kept.borrow_mut().pop().unwrap();
    assert!(!server.context().is_cancelled(&handle));
    assert!(client.cancel(call) && !client.cancel(call));
    assert!(log.borrow().is_empty(), "`cancel` runs no continuation");
    drive(&mut [&mut client, &mut server], || !log.borrow().is_empty());
    let ended = log.borrow_mut().pop().unwrap().1;
    assert_eq!(ended.result, Err(CallError::Cancelled(Executed::Maybe)));
    drive_until(&mut [&mut client, &mut server], |all| all[1].context().is_cancelled(&handle));
    assert_eq!(client.session_stats(session).unwrap().quarantined, 1);
    drop(handle); // any answer frees the slot
    wait_quarantined(&mut client, &mut server, session, 0);
    assert!(log.borrow().is_empty());
    client.check();
    server.check();
}

#[test]
fn a_continuation_can_cancel_the_other_of_two_calls() {
    let (mut client, mut server, session, kept) = pair(Config::default());
    let tags: Rc<RefCell<Vec<(u64, bool)>>> = Rc::default();
    let seen = tags.clone();
    client.on_completion(move |_, tag, done| seen.borrow_mut().push((tag, done.result.is_ok())));
    let request = message(&client, 1, 32);
    let slow = client
        .request(session, KEEP, request)
        .deadline(Duration::from_millis(60_000))
        .tag(7)
        .send()
        .unwrap();
    drive(&mut [&mut client, &mut server], || !kept.borrow().is_empty());
    let request = message(&client, 2, 32);
    let cancelled = Rc::new(Cell::new(false));
    let was = cancelled.clone();
    client.call(session, ECHO, request, move |cx, _| was.set(cx.cancel(slow))).unwrap();
    drive(&mut [&mut client, &mut server], || !tags.borrow().is_empty());
    assert!(cancelled.get());
    assert_eq!(*tags.borrow(), [(7, false)]);
}

#[test]
fn a_deadline_passes_while_a_call_waits_for_a_slot() {
    let (mut client, mut server, session, kept) = pair(Config { slots: 1, ..Config::default() });
    let log = Log::default();
    let request = message(&client, 1, 32);
    client.call(session, KEEP, request, log_end(&log, 1)).unwrap();
    drive(&mut [&mut client, &mut server], || !kept.borrow().is_empty());
    let start = Instant::now();
    for (id, ms) in [(2, 40), (3, 20), (4, 60_000)] {
        let request = message(&client, id, 32);
        client
            .request(session, ECHO, request)
            .deadline(Duration::from_millis(ms))
            .then(log_end(&log, id))
            .unwrap();
    }
    drive(&mut [&mut client, &mut server], || log.borrow().len() == 2);
    assert!(start.elapsed() >= Duration::from_millis(40));
    // In order of their deadlines, unless this thread was paused across both.
    for (id, ended) in log.borrow().iter() {
        assert!([2, 3].contains(id));
        assert_eq!(ended.result, Err(CallError::DeadlineExceeded(Executed::Never)));
    }
    let handle = kept.borrow_mut().pop().unwrap();
    server.reply_to(handle, "now").unwrap();
    drive(&mut [&mut client, &mut server], || log.borrow().len() == 4);
    assert_eq!(log.borrow()[3].1.result, Ok(expected(4, 32)));
}

#[test]
fn a_handler_is_not_started_when_its_deadline_passed_during_another_one() {
    let (mut client, mut server, session, _kept) = pair(Config::default());
    let started = Rc::new(Cell::new(0));
    let count = started.clone();
    server.on(SLEEP, move |cx, req| {
        count.set(count.get() + 1);
        std::thread::sleep(Duration::from_millis(80));
        cx.reply(req);
    });
    // Both are sent in one frame and arrive in one burst.
    let log = Log::default();
    let request = message(&client, 1, 32);
    client.call(session, SLEEP, request, log_end(&log, 1)).unwrap();
    let request = message(&client, 2, 32);
    client
        .request(session, SLEEP, request)
        .deadline(Duration::from_millis(40))
        .then(log_end(&log, 2))
        .unwrap();
    drive(&mut [&mut client, &mut server], || log.borrow().len() == 2);
    assert_eq!(started.get(), 1);
    let log = log.borrow();
    let late = &log.iter().find(|e| e.0 == 2).unwrap().1.result;
    assert!(matches!(late, Err(CallError::DeadlineExceeded(_))), "{late:?}");
}

#[test]
fn a_nested_call_inherits_the_remaining_time() {
    let serve = Nexus::bind(LOOPBACK).unwrap();
    let mut server = serve.endpoint().unwrap();
    let kept = Kept::default();
    let keep = kept.clone();
    server.on(KEEP, move |cx, _| keep.borrow_mut().push(cx.defer().unwrap()));
    let middle = Nexus::bind(LOOPBACK).unwrap();
    let mut back = middle.endpoint().unwrap();
    let to_back = connect(&mut back, &mut [&mut server], &serve.local_uri());
    let left = Rc::new(RefCell::new(Vec::new()));
    let seen = left.clone();
    back.on(ECHO, move |cx, req| {
        let time_left = req.time_left(cx);
        seen.borrow_mut().push(time_left);
        assert_eq!(time_left.is_some(), req.deadline_ns().is_some());
        let handle = cx.defer().unwrap();
        let Some(time_left) = time_left else {
            cx.reply_to(handle, "no hurry").unwrap();
            return;
        };
        let request = cx.alloc(8).unwrap();
        cx.request(to_back, KEEP, request)
            .deadline(time_left)
            .then(move |cx, done| {
                let e = done.result.err().unwrap();
                assert!(matches!(e, CallError::DeadlineExceeded(_)), "{e}");
                let _ = cx.reply_to(handle, "expired"); // usually the call has ended already
            })
            .unwrap();
    });
    let mut front = client(Config::default());
    let session = connect(&mut front, &mut [&mut back, &mut server], &middle.local_uri());
    let log = Log::default();
    let request = message(&front, 1, 32);
    front.call(session, ECHO, request, log_end(&log, 1)).unwrap();
    drive(&mut [&mut front, &mut back, &mut server], || log.borrow().len() == 1);
    let request = message(&front, 2, 32);
    front
        .request(session, ECHO, request)
        .deadline(Duration::from_millis(100))
        .then(log_end(&log, 2))
        .unwrap();
    drive(&mut [&mut front, &mut back, &mut server], || log.borrow().len() == 2);
    // The deadline in the middle may be earlier, by the time of a frame, but never later. So its
    // answer is sometimes in time.
    match &log.borrow()[1].1.result {
        Ok(answer) => assert_eq!(answer, b"expired"),
        result => assert!(matches!(result, Err(CallError::DeadlineExceeded(_))), "{result:?}"),
    }
    assert_eq!(left.borrow()[0], None);
    if let Some(Some(time_left)) = left.borrow().get(1) {
        assert!(*time_left <= Duration::from_millis(100));
    }
    kept.borrow_mut().clear();
}
