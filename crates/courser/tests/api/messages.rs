//! One-way messages: delivery, order, deadlines, back-pressure, and what is counted.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::common::*;
use courser::{Config, Context, Nexus, RejectReason, Rpc, SessionId, ShutdownReport, Work};

const SAMPLE: u16 = 1;
const OTHER: u16 = 2;

type Received = Rc<RefCell<Vec<Vec<u8>>>>;

/// An endpoint that keeps what it receives, and a client connected to it.
fn pair(bind: &str, config: Config) -> (Rpc, Rpc, SessionId, Received) {
    let nexus = Nexus::bind_with(bind, config.clone()).unwrap();
    let mut server = nexus.endpoint().unwrap();
    let received = Received::default();
    let kept = received.clone();
    server.on_message(SAMPLE, move |_, message| kept.borrow_mut().push(message.to_vec()));
    let mut client = Nexus::bind_with(bind, config).unwrap().endpoint().unwrap();
    let session = connect(&mut client, &mut [&mut server], &nexus.local_uri());
    (client, server, session, received)
}

/// Messages from outside of handlers and from a timer, of one packet and of many.
#[test]
fn messages_arrive_in_order_and_both_sides_count_them() {
    for bind in [LOOPBACK, "shm://127.0.0.1:0"] {
        let (mut client, mut server, session, received) = pair(bind, Config::default());
        let sizes = [0, 1, 32, 600, 1_400, 32];
        for (at, len) in (0..).zip(sizes) {
            client.send(session, SAMPLE, message(&client, at, len)).unwrap();
        }
        client.context().after(Duration::ZERO, move |cx: &mut Context<'_>| {
            let mut message = cx.alloc(32).unwrap();
            pattern(6, &mut message);
            cx.send(session, SAMPLE, message).unwrap();
        });
        drive(&mut [&mut client, &mut server], || received.borrow().len() == 7);
        let all = sizes.into_iter().chain([32]);
        let want: Vec<_> = (0..).zip(all).map(|(at, len)| expected(at, len)).collect();
        assert!(*received.borrow() == want, "{bind}");
        let large = [70_000, 1 << 20];
        for (at, len) in (7..).zip(large) {
            client.send(session, SAMPLE, message(&client, at, len)).unwrap();
        }
        drive(&mut [&mut client, &mut server], || received.borrow().len() == 9);
        let mut arrived = received.borrow()[7..].to_vec();
        arrived.sort_by_key(Vec::len);
        assert!(arrived == [expected(7, 70_000), expected(8, 1 << 20)], "{bind}");
        drive_until(&mut [&mut client, &mut server], |all| all[0].outstanding_messages() == 0);
        let (sent, taken) = (client.stats(), server.stats());
        assert_eq!((sent.messages_sent, sent.messages_acknowledged), (9, 9));
        assert_eq!((taken.messages_received, taken.requests, taken.replies), (9, 0, 2), "{bind}");
        client.check();
        server.check();
    }
}

/// A sender that is faster than the receiver: refused messages return, and the callback reports room.
#[test]
fn a_sender_waits_for_room() {
    const COUNT: u64 = 20_000;
    let config = Config { message_queue: 256, ..Config::default() };
    let (mut client, mut server, session, received) = pair(LOOPBACK, config);
    let (next, refusals) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let counted = refusals.clone();
    let fill = move |cx: &mut Context<'_>| {
        while next.get() < COUNT {
            let mut message = cx.alloc(32).unwrap();
            pattern(next.get(), &mut message);
            match cx.send(session, SAMPLE, message) {
                Ok(()) => next.set(next.get() + 1),
                Err(refused) => {
                    assert_eq!(refused.reason, RejectReason::MessagesFull { limit: 256 });
                    assert!(*refused.request == *expected(next.get(), 32));
                    counted.set(counted.get() + 1);
                    return;
                }
            }
        }
    };
    let again = fill.clone();
    client.on_room(move |cx, of| {
        assert_eq!(of, session);
        again(cx);
    });
    fill(&mut client.context());
    drive(&mut [&mut client, &mut server], || received.borrow().len() as u64 == COUNT);
    let in_order = (0..).zip(received.borrow().iter()).all(|(at, got)| *got == expected(at, 32));
    assert!(in_order && refusals.get() > 10);
    assert_eq!(server.stats().messages_received, COUNT, "each once");
}

/// The server does not run for longer than the deadline of some messages.
#[test]
fn stale_messages_are_not_delivered() {
    let (mut client, mut server, session, received) = pair(LOOPBACK, Config::default());
    // Both sides know the round trip.
    for at in 0..4 {
        client.send(session, SAMPLE, message(&client, at, 32)).unwrap();
        drive(&mut [&mut client, &mut server], || received.borrow().len() as u64 > at);
    }
    for at in 4..24 {
        let deadline = (at % 2 == 0).then_some(Duration::from_millis(20));
        let buffer = message(&client, at, 32);
        client.message(session, SAMPLE, buffer).deadline(deadline).send().unwrap();
    }
    client.poll();
    std::thread::sleep(Duration::from_millis(60));
    drive(&mut [&mut client, &mut server], || received.borrow().len() >= 14);
    drive_until(&mut [&mut client, &mut server], |all| all[0].outstanding_messages() == 0);
    let want: Vec<_> = (0..4).chain((5..24).step_by(2)).map(|at| expected(at, 32)).collect();
    assert!(*received.borrow() == want);
    assert_eq!(server.stats().messages_expired + client.stats().messages_unsent, 10);
}

#[test]
fn messages_without_a_handler_and_panics_are_counted() {
    let (mut client, mut server, session, received) = pair(LOOPBACK, Config::default());
    server.on_message(OTHER, |cx, _| {
        cx.reply(b"nobody asked");
        panic!("on purpose");
    });
    for msg_type in [OTHER, 77, SAMPLE] {
        client.send(session, msg_type, message(&client, 0, 32)).unwrap();
    }
    drive(&mut [&mut client, &mut server], || received.borrow().len() == 1);
    let stats = server.handler_stats();
    assert_eq!((stats.panics, stats.messages_unhandled), (1, 1));
    assert_eq!(server.stats().replies, 0);
}

/// Messages leave from a continuation.
#[test]
fn a_continuation_sends_messages() {
    let (mut middle, mut last, onward, received) = pair(LOOPBACK, Config::default());
    let nexus = Nexus::bind(LOOPBACK).unwrap();
    let mut first = nexus.endpoint().unwrap();
    first.on(OTHER, |cx, _| cx.reply(b"begin"));
    let asked = connect(&mut middle, &mut [&mut first], &nexus.local_uri());
    let request = message(&middle, 0, 8);
    middle
        .call(asked, OTHER, request, move |cx, _| {
            for at in 0..10 {
                let mut message = cx.alloc(32).unwrap();
                pattern(at, &mut message);
                cx.send(onward, SAMPLE, message).unwrap();
            }
        })
        .unwrap();
    drive(&mut [&mut middle, &mut first, &mut last], || received.borrow().len() == 10);
    assert!((0..).zip(received.borrow().iter()).all(|(at, got)| *got == expected(at, 32)));
}

/// Messages on a session that has failed are refused, and those in flight are counted as failed.
#[test]
fn messages_end_with_their_session() {
    let (mut client, server, session, _) = pair(LOOPBACK, Config::default());
    for at in 0..10 {
        client.send(session, SAMPLE, message(&client, at, 32)).unwrap();
    }
    client.close(session);
    drop(server);
    assert_eq!((client.stats().messages_failed, client.outstanding_messages()), (10, 0));
    let refused = client.send(session, SAMPLE, message(&client, 0, 8)).unwrap_err();
    assert!(matches!(refused.reason, RejectReason::NoSession(_)), "{refused}");
}

/// A server cannot send messages to its client over the client's session.
#[test]
fn only_the_client_of_a_session_sends_messages() {
    let (mut client, mut server, session, received) = pair(LOOPBACK, Config::default());
    client.send(session, SAMPLE, message(&client, 0, 32)).unwrap();
    drive(&mut [&mut client, &mut server], || received.borrow().len() == 1);
    let at_server = server.sessions_from(0).next().unwrap();
    let refused = server.send(at_server, SAMPLE, message(&server, 0, 8)).unwrap_err();
    assert_eq!(refused.reason, RejectReason::NotClient);
}

/// A shutdown waits until messages are acknowledged.
#[test]
fn a_shutdown_waits_for_messages() {
    let server = Server::start(Config::default(), |rpc| rpc.on_message(SAMPLE, |_, _| {}));
    let mut client = client(Config::default());
    let session = client.connect(&server.uri).unwrap();
    for at in 0..100 {
        client.send(session, SAMPLE, message(&client, at, 32)).unwrap();
    }
    client.shutdown(PATIENCE).unwrap();
}

/// Of one packet and of many; the handlers of requests and messages of one type are apart.
#[test]
fn workers_take_messages() {
    let config = Config { workers: 2, ..Config::default() };
    let (mut client, mut server, session, received) = pair(LOOPBACK, config);
    let (tell, told) = mpsc::channel();
    let handler = move |mut work: Work| {
        let thread = std::thread::current();
        assert!(thread.name().is_some_and(|n| n.starts_with("courser-worker-")));
        tell.send((work.req_type(), work.time_left().is_some(), work.to_vec())).unwrap();
        let message = work.take().unwrap();
        work.reply(message);
    };
    server.on_message_worker(OTHER, handler).unwrap();
    client.message(session, OTHER, message(&client, 1, 32)).deadline(PATIENCE).send().unwrap();
    client.send(session, OTHER, message(&client, 2, 100_000)).unwrap();
    client.send(session, SAMPLE, message(&client, 3, 32)).unwrap();
    let mut taken = Vec::new();
    drive(&mut [&mut client, &mut server], || {
        taken.extend(told.try_iter());
        taken.len() == 2 && received.borrow().len() == 1
    });
    taken.sort_by_key(|(_, _, bytes)| bytes.len());
    assert!(taken == [(OTHER, true, expected(1, 32)), (OTHER, false, expected(2, 100_000))]);
    drive_until(&mut [&mut client, &mut server], |all| all[0].outstanding_messages() == 0);
    assert_eq!((server.stats().messages_received, server.stats().replies), (3, 1));
    server.check();
}

/// A worker handler that waits for the end of the first sender, and a count of those that have begun.
fn hold_messages(server: &mut Rpc) -> (mpsc::Sender<()>, Arc<AtomicUsize>) {
    let (open, wait) = gate();
    let begun = Arc::new(AtomicUsize::new(0));
    let count = begun.clone();
    let handler = move |_: Work| {
        count.fetch_add(1, Ordering::SeqCst);
        pass(&wait);
    };
    server.on_message_worker(OTHER, handler).unwrap();
    (open, begun)
}

#[test]
fn messages_for_busy_workers_are_dropped_and_counted() {
    let config = Config { workers: 1, worker_queue: 4, ..Config::default() };
    let (mut client, mut server, session, _) = pair(LOOPBACK, config);
    let (open, begun) = hold_messages(&mut server);
    client.send(session, OTHER, message(&client, 0, 32)).unwrap();
    drive(&mut [&mut client, &mut server], || begun.load(Ordering::SeqCst) == 1);
    for n in 1..=10 {
        client.send(session, OTHER, message(&client, n, 32)).unwrap();
    }
    drive_until(&mut [&mut client, &mut server], |all| all[0].outstanding_messages() == 0);
    assert_eq!(server.handler_stats().messages_busy, 6);
    drop(open);
    drive(&mut [&mut client, &mut server], || begun.load(Ordering::SeqCst) == 5);
    server.check();
}

/// Of two messages one is with its handler, and the other is queued.
#[test]
fn a_shutdown_waits_for_the_messages_of_workers() {
    for finishes in [true, false] {
        let config = Config { workers: 1, ..Config::default() };
        let (mut client, mut server, session, _) = pair(LOOPBACK, config);
        let (open, begun) = hold_messages(&mut server);
        for n in 0..2 {
            client.send(session, OTHER, message(&client, n, 32)).unwrap();
        }
        drive_until(&mut [&mut client, &mut server], |all| all[0].outstanding_messages() == 0);
        drive(&mut [&mut server], || begun.load(Ordering::SeqCst) == 1);
        assert!(!server.is_drained());
        if finishes {
            drop(open);
            assert!(server.shutdown(PATIENCE).unwrap().is_clean());
            assert_eq!(begun.load(Ordering::SeqCst), 2);
        } else {
            let report = server.shutdown(Duration::from_millis(20)).unwrap();
            assert_eq!(report, ShutdownReport { with_workers: 2, ..ShutdownReport::default() });
        }
    }
}
