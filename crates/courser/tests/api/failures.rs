//! Peers that fail or close with calls in flight.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use crate::common::*;
use courser::{
    CallError, Config, Executed, Nexus, RejectReason, Rpc, SessionEnd, SessionError, SessionState,
};

const ECHO: u16 = 1;
const NEVER: u16 = 2;

fn serve(rpc: &mut Rpc) {
    rpc.on(ECHO, |cx, req| cx.reply(req));
    rpc.on(NEVER, |cx, _| std::mem::forget(cx.defer()));
}

/// Starts calls without answers: two on slots, three in the queue.
fn stuck(client: &mut Rpc, server: &mut Rpc, uri: &str) -> (courser::SessionId, Log) {
    let session = connect(client, &mut [&mut *server], uri);
    let log = Log::default();
    let before = server.stats().requests;
    for id in 0..5 {
        let request = message(client, id, 3000);
        call(client, session, NEVER, request, &log, id);
    }
    drive_until(&mut [client, server], |all| all[1].stats().requests == before + 2);
    (session, log)
}

fn assert_peer_failed(log: &Log) {
    let mut ids = Vec::new();
    for (id, ended) in log.borrow().iter() {
        let executed = if *id < 2 { Executed::Maybe } else { Executed::Never };
        assert_eq!(ended.result, Err(CallError::PeerFailed(executed)), "call {id}");
        assert!(*ended.request == *expected(*id, 3000), "the request is unchanged");
        ids.push(*id);
    }
    ids.sort_unstable();
    assert_eq!(ids, [0, 1, 2, 3, 4], "each call ends once");
}

fn two_slots() -> Config {
    Config { slots: 2, ..Config::default() }
}

#[test]
fn a_dropped_endpoint_fails_its_sessions_only() {
    let nexus = Nexus::bind(LOOPBACK).unwrap();
    let (mut first, mut second) = (nexus.endpoint().unwrap(), nexus.endpoint().unwrap());
    serve(&mut first);
    serve(&mut second);
    let mut client = client(two_slots());
    let uri = nexus.local_uri();
    let (session, log) = stuck(&mut client, &mut first, &format!("{uri}/0"));
    let other = connect(&mut client, &mut [&mut second], &format!("{uri}/1"));
    drop(first);
    drive(&mut [&mut client, &mut second], || log.borrow().len() == 5);
    assert_peer_failed(&log);
    assert_eq!(client.session_state(session), SessionState::Gone);
    assert!(matches!(client.session_error(session), Some(SessionError::EndpointGone)));
    let rejected = client.call(session, ECHO, message(&client, 1, 1), |_, _| {}).unwrap_err();
    assert_eq!(rejected.reason, RejectReason::NoSession(SessionEnd::EndpointGone));
    let request = message(&client, 8, 9000);
    let ended = call_and_wait(&mut client, &mut [&mut second], other, ECHO, request);
    assert!(ended.result == Ok(expected(8, 9000)), "the other session works");
    client.check();
}

#[test]
fn a_dropped_nexus_fails_its_sessions_and_a_new_one_can_take_its_port() {
    let nexus = Nexus::bind(LOOPBACK).unwrap();
    let uri = nexus.local_uri();
    let mut server = nexus.endpoint().unwrap();
    serve(&mut server);
    let mut client = client(two_slots());
    let (old, log) = stuck(&mut client, &mut server, &uri);
    drop((server, nexus));
    drive(&mut [&mut client], || log.borrow().len() == 5);
    assert_peer_failed(&log);
    assert_eq!(client.sessions(), 0);
    assert!(client.session_error(old).is_some());

    let nexus = Nexus::bind(&uri).unwrap();
    let mut server = nexus.endpoint().unwrap();
    serve(&mut server);
    let session = connect(&mut client, &mut [&mut server], &uri);
    let request = message(&client, 2, 100_000);
    let ended = call_and_wait(&mut client, &mut [&mut server], session, ECHO, request);
    assert!(ended.result == Ok(expected(2, 100_000)));
    assert_eq!(client.session_state(old), SessionState::Gone);
}

#[test]
fn a_sleeping_client_is_woken_when_its_server_ends() {
    let mut server = Server::start(Config::default(), serve);
    let mut client = client(Config { spin: Some(Duration::ZERO), ..two_slots() });
    let session = client.connect(&server.uri).unwrap();
    client.wait_connected(session).unwrap();
    let log = Log::default();
    for id in 0..5 {
        let request = message(&client, id, 3000);
        call(&mut client, session, NEVER, request, &log, id);
    }
    client.run_for(Duration::from_millis(50)).unwrap();
    assert!(log.borrow().is_empty());
    server.stop();
    client.run_until(|| log.borrow().len() == 5).unwrap();
    assert_peer_failed(&log);
}

#[test]
fn a_server_frees_the_session_of_a_dropped_client() {
    let nexus = Nexus::bind(LOOPBACK).unwrap();
    let mut server = nexus.endpoint().unwrap();
    let held: Rc<RefCell<Vec<courser::ReplyHandle>>> = Rc::default();
    let keep = held.clone();
    server.on(ECHO, move |cx, _| keep.borrow_mut().push(cx.defer().unwrap()));
    let before = server.memory().in_use_buffers;
    for round in 0..20 {
        let mut gone = client(Config::default());
        let session = connect(&mut gone, &mut [&mut server], &nexus.local_uri());
        let log = Log::default();
        for id in 0..8 {
            let request = message(&gone, id, 20_000);
            call(&mut gone, session, ECHO, request, &log, id);
        }
        drive_until(&mut [&mut gone, &mut server], |all| {
            all[1].stats().requests == 8 * (round + 1)
        });
        drop(gone);
        let session = held.borrow()[0].session();
        drive_until(&mut [&mut server], |all| all[0].session_stats(session).is_none());
        assert_eq!(server.sessions(), 1, "it is counted until its handlers have answered (E68)");
        // A reply without a client returns an error and has no other effect.
        for handle in held.take() {
            assert!(server.reply_to(handle, [1; 5000]).is_err());
        }
        assert_eq!(server.sessions(), 0);
    }
    assert_eq!(server.memory().in_use_buffers, before, "requests of lost clients are freed");
    server.check();
}

#[test]
fn a_server_whose_back_end_fails_still_answers() {
    let back_nexus = Nexus::bind(LOOPBACK).unwrap();
    let mut back = back_nexus.endpoint().unwrap();
    serve(&mut back);
    let front_nexus = Nexus::bind(LOOPBACK).unwrap();
    let mut front = front_nexus.endpoint().unwrap();
    let to_back = connect(&mut front, &mut [&mut back], &back_nexus.local_uri());
    front.on(ECHO, move |cx, req| {
        let handle = cx.defer().unwrap();
        let nested = req.take(cx).unwrap();
        // Dropping the handle with the failed continuation or the rejected call sends an answer.
        let _ = cx.call(to_back, NEVER, nested, move |cx, done| {
            if done.result.is_ok() {
                let _ = cx.reply_to(handle, "done");
            }
        });
    });
    let mut client = client(Config::default());
    let session = connect(&mut client, &mut [&mut front, &mut back], &front_nexus.local_uri());
    let log = Log::default();
    for id in 0..3 {
        let request = message(&client, id, 10);
        call(&mut client, session, ECHO, request, &log, id);
    }
    drive_until(&mut [&mut client, &mut front, &mut back], |all| all[2].stats().requests == 3);
    drop(back);
    drive(&mut [&mut client, &mut front], || log.borrow().len() == 3);
    let no_reply = CallError::Server(courser::Status::NoReply);
    assert!(log.borrow().iter().all(|(_, e)| e.result == Err(no_reply)));
    let request = message(&client, 4, 10);
    let ended = call_and_wait(&mut client, &mut [&mut front], session, ECHO, request);
    assert_eq!(ended.result, Err(no_reply));
}

#[test]
fn a_silent_datapath_and_a_failed_peer_have_different_errors() {
    let nexus = Nexus::bind(LOOPBACK).unwrap();
    let mut server = nexus.endpoint().unwrap();
    serve(&mut server);
    let config = Config {
        datapath_timeout: Duration::from_millis(200),
        rto: (Duration::from_millis(1), Duration::from_millis(50)),
        ..two_slots()
    };
    let mut client = client(config);
    let session = connect(&mut client, &mut [&mut server], &nexus.local_uri());
    let log = Log::default();
    for id in 0..5 {
        let request = message(&client, id, 3000);
        call(&mut client, session, ECHO, request, &log, id);
    }
    // The server's control thread runs, but its endpoint is not polled.
    client.run_until(|| log.borrow().len() == 5).unwrap();
    for (id, ended) in log.borrow().iter() {
        let executed = if *id < 2 { Executed::Maybe } else { Executed::Never };
        assert_eq!(ended.result, Err(CallError::DatapathSilent(executed)), "call {id}");
    }
    let error = client.session_error(session).unwrap();
    assert!(matches!(error, SessionError::DatapathSilent { .. }), "{error:?}");
    assert!(error.to_string().contains(&server.port().to_string()), "{error}");
    assert_eq!(client.sessions(), 0);
    // When the server runs again, it receives the disconnect and frees the session.
    drive_until(&mut [&mut server, &mut client], |all| all[0].sessions() == 0);
}

#[test]
fn a_reply_handle_answers_at_its_own_endpoint_only() {
    let nexus = Nexus::bind(LOOPBACK).unwrap();
    let (mut first, mut second) = (nexus.endpoint().unwrap(), nexus.endpoint().unwrap());
    let held: Rc<RefCell<Vec<courser::ReplyHandle>>> = Rc::default();
    for rpc in [&mut first, &mut second] {
        let keep = held.clone();
        rpc.on(ECHO, move |cx, _| keep.borrow_mut().extend(cx.defer()));
    }
    let mut client = client(Config::default());
    let log = Log::default();
    for (id, rpc) in [(0, &mut first), (1, &mut second)] {
        let uri = format!("{}/{id}", nexus.local_uri());
        let session = connect(&mut client, &mut [&mut *rpc], &uri);
        let request = message(&client, id, 40);
        call(&mut client, session, ECHO, request, &log, id);
        drive(&mut [&mut client, rpc], || held.borrow().len() == id as usize + 1);
    }
    // Both requests have the same session and slot numbers, each at its endpoint.
    let handle = held.borrow_mut().remove(0);
    let mut third = nexus.endpoint().unwrap();
    assert!(!third.context().is_cancelled(&handle), "it has no such request");
    assert_eq!(second.reply_to(handle, "wrong"), Err(courser::ReplyError::OtherEndpoint));
    let handle = held.borrow_mut().remove(0);
    second.reply_to(handle, "right").unwrap();
    drive(&mut [&mut client, &mut first, &mut second], || log.borrow().len() == 2);
    let mut log = log.borrow_mut();
    log.sort_by_key(|(id, _)| *id);
    assert_eq!(log[0].1.result, Err(CallError::Server(courser::Status::NoReply)));
    assert_eq!(log[1].1.result.as_deref(), Ok(&b"right"[..]));
}
