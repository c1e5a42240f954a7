//! A server that has no descriptor left: it refuses new clients at once, serves those that it has, and
//! takes new ones again when descriptors are free.
//!
//! The server is a process that runs this test program with the ignored test below, as the limit of
//! descriptors is that of a process.

use std::fs::File;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use courser::{Config, DialError, Nexus, Rpc, SessionError, SessionId};
use courser_proto::{ConnectRefuseReason, ControlError, ControlRefusal};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::common::*;

const ECHO: u16 = 1;
/// The environment variable with the address that the server binds.
const ADDRESS: &str = "COURSER_TEST_EXHAUSTED";
/// Descriptors of the server.
const DESCRIPTORS: u64 = 200;
/// Far above the time of a test: what ends earlier has not waited for it.
const LONG: Duration = Duration::from_secs(120);

fn config() -> Config {
    Config {
        spin: Some(Duration::ZERO),
        connect_timeout: LONG,
        datapath_timeout: LONG,
        failure_timeout: PATIENCE,
        ..Config::default()
    }
}

#[test]
#[ignore = "the server process of the tests below"]
fn server_process() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let nexus = Nexus::bind_with(&address, config()).unwrap();
    let mut rpc = nexus.endpoint().unwrap();
    rpc.on(ECHO, |cx, req| cx.reply(req));
    let handle = rpc.handle();
    std::thread::spawn(move || {
        let limit = Rlimit { current: Some(DESCRIPTORS), ..getrlimit(Resource::Nofile) };
        setrlimit(Resource::Nofile, limit).unwrap();
        let mut taken = Vec::new();
        for line in std::io::stdin().lines() {
            match line.unwrap().as_str() {
                "take" => take_all(&mut taken),
                _ => taken.clear(),
            }
            println!("descriptors taken: {}", taken.len());
        }
        handle.stop();
    });
    println!("{}", nexus.local_uri());
    rpc.run().unwrap();
}

/// Takes all descriptors, and those that the endpoint's thread still holds for a moment (it reads files of
/// `/proc` before it sleeps): a client that finds one of these free is not refused.
fn take_all(taken: &mut Vec<File>) {
    let mut quiet = 0;
    while quiet < 10 {
        let before = taken.len();
        taken.extend(std::iter::from_fn(|| File::open("/dev/null").ok()));
        quiet = if taken.len() == before { quiet + 1 } else { 0 };
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The server process, which ends when its standard input is closed.
struct Process {
    child: Child,
    commands: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
    uri: String,
}

impl Process {
    fn start(address: &str) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture", "exhausted::server_process"])
            .env(ADDRESS, address)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut all = lines.by_ref().map(Result::unwrap);
        let uri = all.find_map(|l| Some(l[l.find("://")? - 3..].to_owned())).unwrap();
        Process { commands: child.stdin.take(), child, lines, uri }
    }

    /// Takes all descriptors of the server, or frees them.
    fn tell(&mut self, command: &str) {
        writeln!(self.commands.as_mut().unwrap(), "{command}").unwrap();
        let mut done = self.lines.by_ref().map(Result::unwrap);
        done.find(|line| line.contains("descriptors taken")).unwrap();
    }

    /// CPU time of the server so far, in ticks of 10 ms.
    fn ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let (_, fields) = stat.rsplit_once(')').unwrap();
        fields.split_whitespace().skip(11).take(2).map(|n| n.parse::<u64>().unwrap()).sum()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.commands.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn echoes(client: &mut Rpc, session: SessionId) {
    let request = message(client, 3, 100);
    let ended = call_and_wait(client, &mut [], session, ECHO, request);
    assert_eq!(ended.result, Ok(expected(3, 100)));
}

fn connected(client: &mut Rpc, uri: &str) -> SessionId {
    let session = client.connect(uri).unwrap();
    client.wait_connected(session).unwrap();
    session
}

/// A client of its own, as another process has one.
fn another(address: &str) -> Rpc {
    Nexus::bind_with(address, config()).unwrap().endpoint().unwrap()
}

fn refuses_and_recovers(address: &str) {
    let mut server = Process::start(address);
    let uri = server.uri.clone();
    let nexus = Nexus::bind_with(address, config()).unwrap();
    let mut first = nexus.endpoint().unwrap();
    let session = connected(&mut first, &uri);
    // With the first response the server makes a ring, which is complete when it has received two
    // descriptors from the client: before it reads the third request at the latest.
    for _ in 0..3 {
        echoes(&mut first, session);
    }

    server.tell("take");
    let begin = Instant::now();
    for _ in 0..4 {
        let mut client = another(address);
        let refused = client.connect(&uri).unwrap();
        let error = client.wait_connected(refused).unwrap_err();
        let SessionError::Dial(DialError::Handshake { cause, .. }) = &error else {
            panic!("{error:?}");
        };
        assert_eq!(*cause, ControlError::Refused(ControlRefusal::Exhausted));
        assert!(error.to_string().contains("limit of open files (`ulimit -n`)"), "{error}");
        echoes(&mut first, session);
    }
    assert!(begin.elapsed() < LONG / 2, "refused at once");

    // An endpoint that shares the control connection needs descriptors for its path, or its rings.
    let mut second = nexus.endpoint().unwrap();
    let waits = second.connect(&uri).unwrap();
    let log = Log::default();
    let is_refused = match second.wait_connected(waits) {
        Err(SessionError::Refused(ConnectRefuseReason::Exhausted)) => true,
        Err(other) => panic!("{other}"),
        Ok(()) => {
            let request = message(&second, 5, 100);
            call(&mut second, waits, ECHO, request, &log, 5);
            false
        }
    };
    assert_eq!(is_refused, address == LOOPBACK);
    let before = server.ticks();
    second.run_for(Duration::from_secs(1)).unwrap();
    let used = server.ticks() - before;
    assert!(used < 20, "{used} ticks of a second: the server does not sleep");
    echoes(&mut first, session);

    server.tell("free");
    if is_refused {
        let session = connected(&mut second, &uri);
        echoes(&mut second, session);
    } else {
        second.run_until(|| !log.borrow().is_empty()).unwrap();
        assert_eq!(log.borrow()[0].1.result, Ok(expected(5, 100)));
    }
    let mut client = another(address);
    let session = connected(&mut client, &uri);
    echoes(&mut client, session);
}

#[test]
fn a_server_without_descriptors_refuses_clients_at_once_and_serves_the_others() {
    refuses_and_recovers(LOOPBACK);
}

#[test]
fn a_server_of_shared_memory_without_descriptors_refuses_clients_and_sleeps() {
    refuses_and_recovers("shm://127.0.0.1:0");
}
