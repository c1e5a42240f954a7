//! Handlers that panic: the request gets an error, and no other request is affected.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;

use crate::common::*;
use courser::{CallError, Config, Executed, Nexus, ReplyHandle, Rpc, SessionId, Status};

fn pair(set_up: impl FnOnce(&mut Rpc)) -> (Rpc, Rpc, SessionId, Nexus) {
    let config = Config { workers: 1, ..Config::default() };
    let nexus = Nexus::bind_with(LOOPBACK, config).unwrap();
    let mut server = nexus.endpoint().unwrap();
    set_up(&mut server);
    let mut client = client(Config::default());
    let session = connect(&mut client, &mut [&mut server], &nexus.local_uri());
    (client, server, session, nexus)
}

#[test]
fn a_panic_in_a_dispatch_handler_affects_only_its_request() {
    let kept: Rc<RefCell<Vec<ReplyHandle>>> = Rc::default();
    let keep = kept.clone();
    let (mut client, mut server, session, _nexus) = pair(move |rpc| {
        let calls = Cell::new(0);
        rpc.on(1, move |cx, req| {
            calls.set(calls.get() + 1);
            match req.first() {
                Some(0) => panic!("at once"),
                Some(1) => {
                    cx.reply("answered");
                    panic!("after the answer");
                }
                Some(2) => {
                    let _handle = cx.defer().unwrap();
                    panic!("before the answer");
                }
                Some(3) => {
                    let _ = cx.reply_with(req.len(), |_| panic!("within the answer"));
                }
                Some(4) => {
                    keep.borrow_mut().push(cx.defer().unwrap());
                    panic!("after deferring the answer");
                }
                Some(5) => {
                    let _taken = req.take(cx).unwrap();
                    std::panic::panic_any(5);
                }
                _ => cx.reply(format!("{}", calls.get())),
            }
        });
        rpc.on(2, |cx, req| cx.reply(req));
    });
    let panicked = Err(CallError::Server(Status::Panicked));
    let mut panics = 0;
    for len in [1, 5000] {
        for (kind, result) in [
            (0, panicked.clone()),
            (1, Ok(b"answered".to_vec())),
            (2, panicked.clone()),
            (3, panicked.clone()),
            (5, panicked.clone()),
        ] {
            let mut request = client.alloc(len).unwrap();
            request.fill(kind);
            let ended = call_and_wait(&mut client, &mut [&mut server], session, 1, request);
            assert_eq!(ended.result, result, "kind {kind}, {len} bytes");
            panics += 1;
            assert_eq!(server.handler_stats().panics, panics);
            // Other handlers and other calls of the session work.
            let request = message(&client, 8, 3000);
            let ended = call_and_wait(&mut client, &mut [&mut server], session, 2, request);
            assert!(ended.result == Ok(expected(8, 3000)));
        }
    }
    assert_eq!(CallError::Server(Status::Panicked).executed(), Executed::Maybe);

    // A reply handle that was stored before the panic still answers.
    let log = Log::default();
    let mut request = client.alloc(1).unwrap();
    request.fill(4);
    call(&mut client, session, 1, request, &log, 0);
    drive(&mut [&mut client, &mut server], || !kept.borrow().is_empty());
    let handle = kept.borrow_mut().pop().unwrap();
    server.reply_to(handle, "late").unwrap();
    drive(&mut [&mut client, &mut server], || !log.borrow().is_empty());
    assert_eq!(log.borrow()[0].1.result, Ok(b"late".to_vec()));

    // The handler itself keeps working, with its state.
    let mut request = client.alloc(1).unwrap();
    request.fill(9);
    let ended = call_and_wait(&mut client, &mut [&mut server], session, 1, request);
    assert_eq!(ended.result, Ok(b"12".to_vec()));
    server.check();
    client.check();
}

#[test]
fn a_panic_in_a_worker_handler_affects_only_its_request() {
    let (mut client, mut server, session, nexus) = pair(|rpc| {
        rpc.on_worker(1, |work| match work.first() {
            Some(0) => panic!("at once"),
            Some(1) => {
                work.reply("answered");
                panic!("after the answer");
            }
            Some(2) => std::thread::scope(|scope| {
                // On a spawned thread; joining it propagates the panic.
                scope.spawn(|| {
                    let _work = work;
                    panic!("elsewhere");
                });
            }),
            _ => work.reply("fine"),
        })
        .unwrap();
        rpc.on(2, |_, _| panic!("dispatch"));
    });
    let panicked = Err(CallError::Server(Status::Panicked));
    for round in 1..=3 {
        for (kind, result) in [
            (0, panicked.clone()),
            (1, Ok(b"answered".to_vec())),
            (2, panicked.clone()),
            (3, Ok(b"fine".to_vec())),
        ] {
            let mut request = client.alloc(kind as usize * 2000 + 1).unwrap();
            request.fill(kind);
            let ended = call_and_wait(&mut client, &mut [&mut server], session, 1, request);
            assert_eq!(ended.result, result, "kind {kind}");
        }
        let request = message(&client, 0, 1);
        let ended = call_and_wait(&mut client, &mut [&mut server], session, 2, request);
        assert_eq!(ended.result, panicked);
        drive(&mut [&mut client, &mut server], || nexus.worker_stats().finished == 4 * round);
        assert_eq!(nexus.worker_stats().panicked, 3 * round);
        assert_eq!(server.handler_stats().panics, 4 * round, "of both kinds");
    }
}

#[test]
fn after_a_panic_of_the_application_the_endpoint_works_or_can_be_dropped() {
    for drop_it in [true, false] {
        let (mut client, mut server, session, _nexus) = pair(|rpc| {
            rpc.on(1, |cx, req| cx.reply(req));
        });
        let both = |client: &mut Rpc, server: &mut Rpc| {
            let both = AssertUnwindSafe(|| drive(&mut [client, server], || false));
            assert!(catch_unwind(both).is_err(), "the application's panic is not caught");
        };
        let request = message(&client, 1, 5000);
        client.call(session, 1, request, |_, _| panic!("a continuation")).unwrap();
        let log = Log::default();
        let request = message(&client, 2, 70_000);
        call(&mut client, session, 1, request, &log, 2);
        both(&mut client, &mut server);
        client.context().after(Duration::ZERO, |_| panic!("a timer"));
        both(&mut client, &mut server);
        if drop_it {
            drop(client);
            drive_until(&mut [&mut server], |all| all[0].sessions() == 0);
        } else {
            drive(&mut [&mut client, &mut server], || log.borrow().len() == 1);
            assert!(log.borrow()[0].1.result == Ok(expected(2, 70_000)));
        }
    }
}
