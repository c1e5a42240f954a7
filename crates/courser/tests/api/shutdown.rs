//! Graceful shutdown: requests that have begun are finished, later ones are refused, and none is
//! lost.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use crate::common::*;
use courser::{
    CallError, Config, Executed, Nexus, Rpc, RunError, SessionError, ShutdownReport, Status,
};

const SLOW: u16 = 1;
const GRACE: Duration = Duration::from_secs(30);

/// A server thread that answers after a delay, and shuts down when its handle stops it.
fn slow_server(
    grace: Duration,
) -> (String, courser::EndpointHandle, std::thread::JoinHandle<Outcome>) {
    let nexus = Nexus::bind(LOOPBACK).unwrap();
    let uri = nexus.local_uri();
    let (ready, is_ready) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let mut rpc = nexus.endpoint().unwrap();
        let executed = Rc::new(Cell::new(0));
        let count = executed.clone();
        rpc.on(SLOW, move |cx, req| {
            count.set(count.get() + 1);
            let mut answer = Some((cx.defer().unwrap(), req.take(cx).unwrap()));
            cx.after(Duration::from_millis(200), move |cx| {
                let (handle, m) = answer.take().unwrap();
                cx.reply_to(handle, m).unwrap();
            });
        });
        ready.send(rpc.handle()).unwrap();
        rpc.run().unwrap();
        (rpc.shutdown(grace), executed.get())
    });
    (uri, is_ready.recv().unwrap(), thread)
}

type Outcome = (Result<ShutdownReport, RunError>, u32);

fn connected(uri: &str) -> (Rpc, courser::SessionId) {
    let mut client = client(Config { slots: 4, ..Config::default() });
    let session = client.connect(uri).unwrap();
    client.wait_connected(session).unwrap();
    (client, session)
}

#[test]
fn requests_in_progress_are_answered_and_later_ones_are_refused() {
    let (uri, handle, server) = slow_server(GRACE);
    let (mut client, session) = connected(&uri);
    let log = Log::default();
    for id in 0..2 {
        let request = message(&client, id, 20_000);
        call(&mut client, session, SLOW, request, &log, id);
    }
    // Give both requests time to reach the handler: a third, short one would be answered first.
    client.run_for(Duration::from_millis(50)).unwrap();
    handle.stop();
    client.run_for(Duration::from_millis(50)).unwrap();
    let request = message(&client, 9, 10);
    call(&mut client, session, SLOW, request, &log, 9);
    let ended = log.clone();
    client.run_until(move || ended.borrow().len() == 3).unwrap();
    let late = client.connect(&uri).unwrap();
    assert!(matches!(
        client.wait_connected(late),
        Err(SessionError::Refused(_) | SessionError::Dial(_))
    ));

    for (id, ended) in log.borrow().iter() {
        match (*id, &ended.result) {
            (9, Err(e)) => {
                assert_eq!(e.executed(), Executed::Never);
                assert!(e.to_string().contains("shutting down"), "{e}");
            }
            (id, Ok(r)) => assert!(*r == expected(id, 20_000), "call {id}"),
            other => panic!("{other:?}"),
        }
    }
    while !server.is_finished() {
        client.poll();
    }
    let (report, executed) = server.join().unwrap();
    assert!(report.unwrap().is_clean());
    assert_eq!(executed, 2);
}

#[test]
fn at_the_end_of_the_grace_unfinished_requests_are_reported() {
    let (uri, handle, server) = slow_server(Duration::from_millis(20));
    let (mut client, session) = connected(&uri);
    let log = Log::default();
    let request = message(&client, 1, 10);
    call(&mut client, session, SLOW, request, &log, 1);
    client.run_for(Duration::from_millis(50)).unwrap();
    handle.stop();
    let ended = log.clone();
    client.run_until(move || ended.borrow().len() == 1).unwrap();
    let result = log.borrow()[0].1.result.clone();
    let (report, executed) = server.join().unwrap();
    let report = report.unwrap();
    // On a slow machine the request may have arrived after the stop.
    match executed {
        1 => {
            assert_eq!(result, Err(CallError::Server(Status::GraceEnded)));
            assert_eq!(report, ShutdownReport { executing: 1, ..ShutdownReport::default() });
        }
        _ => assert!(result.is_err() && report.executing == 0, "{result:?} {report:?}"),
    }
}

#[test]
fn an_idle_endpoint_shuts_down_at_once_and_a_client_after_its_calls() {
    let nexus = Nexus::bind(LOOPBACK).unwrap();
    let idle = nexus.endpoint().unwrap();
    assert!(idle.shutdown(GRACE).unwrap().is_clean());

    let (uri, handle, server) = slow_server(GRACE);
    let (mut client, session) = connected(&uri);
    let answers = Rc::new(RefCell::new(Vec::new()));
    let log = answers.clone();
    let request = message(&client, 1, 10);
    client
        .call(session, SLOW, request, move |_, done| log.borrow_mut().push(done.result.is_ok()))
        .unwrap();
    assert!(client.shutdown(GRACE).unwrap().is_clean());
    assert_eq!(*answers.borrow(), [true]);
    // The client is gone, so no answer is awaited.
    handle.stop();
    assert!(server.join().unwrap().0.unwrap().is_clean());
}

#[test]
fn shutdown_waits_only_briefly_for_a_client_that_does_not_run() {
    let (uri, handle, server) = slow_server(Duration::from_secs(3600));
    let (mut client, session) = connected(&uri);
    let log = Log::default();
    let request = message(&client, 1, 10);
    call(&mut client, session, SLOW, request, &log, 1);
    client.run_for(Duration::from_millis(50)).unwrap();
    handle.stop();
    // The client does not run any more, so the response is never acknowledged.
    let (report, executed) = server.join().unwrap();
    let report = report.unwrap();
    assert_eq!((report.executing, report.unacknowledged), (0, executed as usize));
    assert!(log.borrow().is_empty());
}
