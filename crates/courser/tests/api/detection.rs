//! Detection of stopped and killed processes.
//!
//! The other processes run this test program with one of the ignored tests below. They exit when
//! their standard input is closed, so that none outlives a test.

use std::cell::{Cell, RefCell};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::common::*;
use courser::{
    BindError, CallError, Config, Executed, LostReason, Nexus, ReplyHandle, Rpc, SessionError,
    SessionId, SessionState,
};
use rustix::process::{Pid, Signal, kill_process};

const ECHO: u16 = 1;
const NEVER: u16 = 2;
const SESSIONS: u16 = 3;
const HOUR: Duration = Duration::from_secs(3600);
/// The environment variable with the arguments of the other processes.
const ROLE: &str = "COURSER_TEST_PEER";

/// Another process, killed on drop.
struct Process {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Process {
    fn start(test: &str, role: &str) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture", test])
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Process { child, out }
    }

    fn server() -> (Process, String) {
        let mut p = Process::start("detection::server_process", "server");
        let uri = p.wait_for_line("udp://");
        (p, uri)
    }

    /// Reads its output up to a line that begins with `what`.
    fn wait_for_line(&mut self, what: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(
                self.out.read_line(&mut line).unwrap() > 0,
                "it exited before it printed {what}"
            );
            if let Some(at) = line.find(what) {
                return line[at..].trim().to_owned();
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Stops it. None of its threads runs after the return.
    fn stop(&self) {
        self.signal(Signal::STOP);
        let is_stopped = |stat: String| stat.rsplit(") ").next().unwrap().starts_with('T');
        let end = Instant::now() + PATIENCE;
        let tasks = format!("/proc/{}/task", self.child.id());
        while !std::fs::read_dir(&tasks).unwrap().all(|task| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat"));
            stat.is_ok_and(is_stopped)
        }) {
            assert!(Instant::now() < end, "it does not stop");
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Exits when the parent process does.
fn end_with_parent() {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
}

#[test]
#[ignore = "another process of the tests below"]
fn server_process() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    end_with_parent();
    let nexus = Nexus::bind(LOOPBACK).unwrap();
    let mut rpc = nexus.endpoint().unwrap();
    let sessions = Rc::new(Cell::new(0));
    let seen = sessions.clone();
    rpc.on(ECHO, |cx, req| cx.reply(req));
    rpc.on(NEVER, |cx, _| std::mem::forget(cx.defer()));
    rpc.on(SESSIONS, move |cx, _| cx.reply([seen.get() as u8]));
    println!("{}", nexus.local_uri());
    loop {
        rpc.run_for(Duration::from_millis(1)).unwrap();
        sessions.set(rpc.sessions());
    }
}

#[test]
#[ignore = "another process of the tests below"]
fn client_process() {
    let Ok(uri) = std::env::var(ROLE) else { return };
    end_with_parent();
    let mut rpc = client(slow_datapath(Duration::from_secs(1)));
    let session = rpc.connect(&uri).unwrap();
    rpc.wait_connected(session).unwrap();
    let log = Log::default();
    for id in 0..2 {
        let request = message(&rpc, id, 20_000);
        call(&mut rpc, session, NEVER, request, &log, id);
    }
    println!("called");
    rpc.run_until(|| log.borrow().len() == 2).unwrap();
    for (_, ended) in log.borrow().iter() {
        assert_eq!(ended.result, Err(CallError::PeerFailed(Executed::Maybe)));
    }
    println!("failed: {}", rpc.session_error(session).unwrap());
}

/// A configuration in which only the control connection can detect a failed peer.
fn slow_datapath(failure_timeout: Duration) -> Config {
    Config { slots: 2, failure_timeout, datapath_timeout: HOUR, ..Config::default() }
}

/// The server reports, within a limit, that it has one session. It counts once per millisecond, so
/// the first answer may be older than the session.
fn has_one_session(client: &mut Rpc, session: SessionId) {
    let end = Instant::now() + PATIENCE;
    loop {
        let request = message(client, 0, 1);
        let counted = call_and_wait(client, &mut [], session, SESSIONS, request).result.unwrap();
        if counted == [1] {
            return;
        }
        assert!(Instant::now() < end, "the server has {counted:?} sessions");
    }
}

#[test]
fn a_stopped_server_fails_its_sessions_and_reconnects_as_a_new_peer() {
    let timeout = Duration::from_secs(1);
    let (server, uri) = Process::server();
    let mut client = client(slow_datapath(timeout));
    let old = connect(&mut client, &mut [], &uri);
    has_one_session(&mut client, old);

    server.stop();
    let stopped = Instant::now();
    let log = Log::default();
    for id in 0..5 {
        let request = message(&client, id, 3000);
        call(&mut client, old, ECHO, request, &log, id);
    }
    drive(&mut [&mut client], || log.borrow().len() == 5);
    // Generous for a slow machine; the other detection mechanisms would take an hour.
    assert!(stopped.elapsed() < PATIENCE / 2);
    for (id, ended) in log.borrow().iter() {
        let executed = if *id < 2 { Executed::Maybe } else { Executed::Never };
        assert_eq!(ended.result, Err(CallError::PeerFailed(executed)), "call {id}");
        assert!(*ended.request == *expected(*id, 3000), "the request is unchanged");
    }
    let error = client.session_error(old).unwrap();
    let silent =
        |r: &LostReason| matches!(r, LostReason::Silent { after, .. } if *after >= timeout);
    assert!(matches!(&error, SessionError::PeerFailed(r) if silent(r)), "{error:?}");
    assert_eq!(client.sessions(), 0);

    // It continues: its queue has the earlier requests, and it sends their answers to the same
    // port.
    server.signal(Signal::CONT);
    let new = connect(&mut client, &mut [], &uri);
    for id in 10..60 {
        let request = message(&client, id, 2000);
        let ended = call_and_wait(&mut client, &mut [], new, ECHO, request);
        assert!(ended.result == Ok(expected(id, 2000)), "call {id}: {:?}", ended.result);
    }
    assert_eq!(client.session_state(old), SessionState::Gone);
    has_one_session(&mut client, new); // without the old session
    assert_eq!(log.borrow().len(), 5, "each call has ended once");
    client.check();
}

#[test]
fn a_killed_server_is_detected_at_once() {
    let (server, uri) = Process::server();
    let mut client = client(slow_datapath(HOUR));
    let session = connect(&mut client, &mut [], &uri);
    let log = Log::default();
    for id in 0..5 {
        let request = message(&client, id, 3000);
        call(&mut client, session, NEVER, request, &log, id);
    }
    client.run_for(Duration::from_millis(20)).unwrap();
    assert!(log.borrow().is_empty());
    server.signal(Signal::KILL);
    drive(&mut [&mut client], || log.borrow().len() == 5);
    for (id, ended) in log.borrow().iter() {
        let executed = if *id < 2 { Executed::Maybe } else { Executed::Never };
        assert_eq!(ended.result, Err(CallError::PeerFailed(executed)), "call {id}");
    }
    let error = client.session_error(session).unwrap();
    let ended = |r: &LostReason| matches!(r, LostReason::Closed | LostReason::Io(_));
    assert!(matches!(&error, SessionError::PeerFailed(r) if ended(r)), "{error:?}");

    let (_successor, uri) = Process::server();
    let session = connect(&mut client, &mut [], &uri);
    let request = message(&client, 7, 100_000);
    let ended = call_and_wait(&mut client, &mut [], session, ECHO, request);
    assert!(ended.result == Ok(expected(7, 100_000)));
}

#[test]
fn a_server_frees_the_sessions_of_stopped_and_killed_clients() {
    let nexus = Nexus::bind_with(LOOPBACK, slow_datapath(Duration::from_secs(1))).unwrap();
    let mut server = nexus.endpoint().unwrap();
    let held: Rc<RefCell<Vec<ReplyHandle>>> = Rc::default();
    let keep = held.clone();
    server.on(NEVER, move |cx, _| keep.borrow_mut().push(cx.defer().unwrap()));
    let before = server.memory().in_use_buffers;
    for (round, stop) in [true, false].into_iter().enumerate() {
        let mut gone = Process::start("detection::client_process", &nexus.local_uri());
        let requests = 2 * (round as u64 + 1);
        drive_until(&mut [&mut server], |all| all[0].stats().requests == requests);
        gone.wait_for_line("called");
        if stop {
            gone.stop();
        } else {
            gone.signal(Signal::KILL);
        }
        let session = held.borrow()[0].session();
        drive_until(&mut [&mut server], |all| all[0].session_stats(session).is_none());
        // Its number is freed when the handlers have answered, although the client is gone.
        for handle in held.take() {
            assert!(server.reply_to(handle, [1; 5000]).is_err());
        }
        assert_eq!(server.sessions(), 0);
        assert_eq!(server.memory().in_use_buffers, before, "requests of lost clients are freed");
        if stop {
            // It detects the loss when it continues, by the reset or by its own heartbeat.
            gone.signal(Signal::CONT);
            gone.wait_for_line("failed: the peer failed");
        }
    }
    server.check();
}

#[test]
fn the_failure_timeout_has_a_range() {
    for wrong in [Duration::ZERO, Duration::from_millis(9), HOUR + Duration::from_nanos(1)] {
        let error = Nexus::bind_with(LOOPBACK, slow_datapath(wrong)).unwrap_err();
        assert!(matches!(error, BindError::Duration { value, .. } if value == wrong), "{error:?}");
        assert!(error.to_string().contains("10 ms to 1 h"), "{error}");
    }
    for right in [Duration::from_millis(10), HOUR] {
        assert!(Nexus::bind_with(LOOPBACK, slow_datapath(right)).is_ok());
    }
    assert!(Config::default().failure_timeout < Duration::from_secs(1));
}
