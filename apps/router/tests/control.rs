//! The control socket of a node, with clients of all kinds.

#[path = "control/bind.rs"]
mod bind;
#[path = "control/command.rs"]
mod command;

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use courser_router::config::Config;
use courser_router::control::{
    self, CLIENTS, Client, ClientError, LINE, Request, Response, Server,
};
use courser_router::routes::{Origin, Routes};

const CONFIG: &str = "
[cluster]
name = 'demo'
topology = 'switch'
[[node]]
name = 'a'
address = 'udp://10.9.0.1:31850'
[[node.port]]
interface = 'lan0'
addresses = ['10.0.1.1/24']
[[node]]
name = 'b'
address = 'udp://10.9.0.2:31850'
[[node.port]]
interface = 'lan0'
addresses = ['10.0.2.1/24']
";

/// Keeps processes from being started. Until its program runs, a new process has copies of all
/// descriptors, and a socket or a lock that a test closes meanwhile stays open.
fn no_new_process() -> MutexGuard<'static, ()> {
    static STARTS: Mutex<()> = Mutex::new(());
    STARTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a process.
fn start(command: &mut Command) -> Child {
    let _others = no_new_process();
    command.spawn().expect("the program starts")
}

/// A directory that is removed at the end.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let name = format!("courser-router-control-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("a.sock")
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A node that has nothing but routes and a control socket.
struct Node {
    config: Config,
    routes: Routes,
    server: Server,
    requests: usize,
    /// Its counters.
    stats: &'static str,
    directory: Directory,
}

impl Node {
    fn new(name: &str) -> Node {
        let directory = Directory::new(name);
        let config = Config::parse(CONFIG, ".").unwrap();
        let routes = config.routes().unwrap();
        let server = Server::bind(directory.socket()).unwrap();
        Node { config, routes, server, requests: 0, stats: "{}", directory }
    }

    /// One turn of its loop. Returns whether more can be done.
    fn poll(&mut self) -> bool {
        let Node { config, routes, server, requests, stats, .. } = self;
        let mut apply = |request: Request| {
            *requests += 1;
            match request {
                Request::Change(changes) => {
                    let outcome = routes.apply(Origin::Node(0), &changes);
                    control::changed(outcome, changes.len())
                }
                Request::Find(address, flow) => control::find(config, routes, address, flow),
                Request::Routes { within, after } => control::list(config, routes, within, after),
                Request::Nodes => Response::Done("ok\nerror: no\na up".to_owned()),
                Request::Stats => Response::Done((*stats).to_owned()),
            }
        };
        server.poll(config, &mut apply).unwrap()
    }

    fn run(&mut self) {
        while self.poll() {}
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.directory.socket()).unwrap();
        stream.set_nonblocking(true).unwrap();
        stream
    }

    /// Sends bytes and returns all that is answered.
    fn ask(&mut self, stream: &mut UnixStream, bytes: impl AsRef<[u8]>) -> String {
        stream.write_all(bytes.as_ref()).unwrap();
        self.run();
        String::from_utf8(available(stream)).unwrap()
    }

    /// Runs a client beside the node.
    fn with_client<T: Send>(&mut self, client: impl FnOnce(Client) -> T + Send) -> T {
        let path = self.directory.socket();
        self.beside(|| client(Client::connect(path).unwrap()))
    }

    /// Runs the node until `work`, in a thread of its own, is done.
    fn beside<T: Send>(&mut self, work: impl FnOnce() -> T + Send) -> T {
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let result = work();
                is_done.store(true, Ordering::Release);
                result
            });
            while !is_done.load(Ordering::Acquire) && !thread.is_finished() {
                if !self.poll() {
                    std::thread::sleep(Duration::from_micros(100));
                }
            }
            thread.join().unwrap()
        })
    }
}

/// What can be read without waiting.
fn available(stream: &mut UnixStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    read(stream, &mut bytes);
    bytes
}

/// Reads what is there, and returns whether the connection has ended.
fn read(stream: &mut UnixStream, bytes: &mut Vec<u8>) -> bool {
    match stream.read_to_end(bytes) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => false,
        // The node has closed it without reading all.
        Err(error) if error.kind() == ErrorKind::ConnectionReset => true,
        result => result.is_ok(),
    }
}

/// Whether the node has closed the connection.
fn is_closed(stream: &mut UnixStream) -> bool {
    match stream.read(&mut [0]) {
        Ok(length) => length == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

#[test]
fn routes_are_changed_and_listed() {
    let mut node = Node::new("change");
    let mut stream = node.connect();
    for (request, answer) in [
        ("route add 192.0.2.0/24 via b:lan0@10.0.2.9*2 a:lan0\n", "ok\n"),
        (
            "route add 192.0.2.0/24 unreachable\n",
            "error: 192.0.2.0/24 is announced here already: replace it\n",
        ),
        ("routes 192.0.2.0/24\n", "192.0.2.0/24 via a:lan0 b:lan0@10.0.2.9*2 # node a\nok\n"),
        ("route replace 192.0.2.0/24 via b:lan0\n", "ok\n"),
        ("route get 192.0.2.1\n", "192.0.2.0/24 via b:lan0 # node a\nnow b:lan0\nok\n"),
        ("route replace 192.0.2.0/25 unreachable\n", "ok\n"),
        ("route get 192.0.2.1 7\n", "192.0.2.0/25 unreachable # node a\nnow unreachable\nok\n"),
        ("route del 192.0.2.0/25\nroute del 192.0.2.0/24\n", "ok\nok\n"),
        (
            "route del 192.0.2.0/24\n",
            "error: 192.0.2.0/24 is not announced here: `routes 192.0.2.0/24` lists where it \
             comes from\n",
        ),
        ("route get 192.0.2.1\n", "error: no route to 192.0.2.1\n"),
        ("route add 10.0.1.0/24 via b:lan0\n", "ok\n"),
        (
            "routes 10.0.1.0/24\n",
            "10.0.1.0/24 via a:lan0 # connected\n10.0.1.0/24 via b:lan0 # node a, hidden\n\
             10.0.1.1/32 local a # connected\nok\n",
        ),
        ("stats\n", "{}\nok\n"),
        ("nodes\n", " ok\n error: no\na up\nok\n"),
        ("\n# nothing\n", ""),
    ] {
        assert_eq!(node.ask(&mut stream, request), answer, "{request}");
    }
    let help = node.ask(&mut stream, "help\n");
    assert!(help.starts_with("route add ") && help.ends_with("help\nok\n"), "{help}");
}

#[test]
fn a_batch_is_applied_together_or_not_at_all() {
    let mut node = Node::new("batch");
    let (mut stream, mut other) = (node.connect(), node.connect());
    let adds =
        "batch begin\nroute add 192.0.2.0/25 via a:lan0\nroute add 192.0.2.128/25 via b:lan0\n";
    assert_eq!(node.ask(&mut stream, adds), "ok\nok\nok\n");
    assert_eq!(node.ask(&mut other, "routes 192.0.2.0/24\n"), "ok\n", "nothing is applied yet");
    assert_eq!(node.ask(&mut stream, "batch commit\n"), "ok\n");
    assert_eq!(node.ask(&mut other, "routes 192.0.2.0/24\n").lines().count(), 3);

    let wrong = "batch begin\nroute del 192.0.2.0/25\nroute del 192.0.2.0/24\nbatch commit\n";
    let answer = node.ask(&mut stream, wrong);
    assert!(
        answer.contains("error: nothing is changed: line 2 of the batch: 192.0.2.0/24 is not"),
        "{answer}"
    );
    let syntax = "batch begin\nroute del 192.0.2.0/25\nstats\nroute x\nbatch commit\n";
    let answer = node.ask(&mut stream, syntax);
    assert!(
        answer.contains("error: nothing is changed: line 2 of the batch: a batch has routes"),
        "{answer}"
    );
    let abort = "batch begin\nroute del 192.0.2.0/25\nbatch abort\nbatch commit\n";
    let answer = node.ask(&mut stream, abort);
    assert_eq!(answer, "ok\nok\nok\nerror: there is no batch: begin one\n");
    // The batch of a client that disconnects is forgotten.
    node.ask(&mut stream, "batch begin\nroute del 192.0.2.0/25\n");
    drop(stream);
    node.run();
    assert_eq!(node.ask(&mut other, "routes 192.0.2.0/24\n").lines().count(), 3);
}

#[test]
fn a_thousand_updates_and_long_lists_pass() {
    let mut node = Node::new("many");
    let lines: Vec<String> = (0..1_000)
        .map(|n| format!("route add 11.0.{}.{}/32 via b:lan0", n / 256, n % 256))
        .collect();
    node.with_client(|mut client| {
        let all = lines.iter().map(String::as_str);
        client.send_all(all, |at, reason| panic!("{at}: {reason}")).unwrap();
        let again = ["route add 11.0.0.0/32 unreachable", "help", "route del 1.0.0.0/8"];
        let mut failed = Vec::new();
        client.send_all(again, |at, _| failed.push(at)).unwrap();
        assert_eq!(failed, [0, 2]);
        assert_eq!(client.ask("routes 11.0.0.0/8").unwrap().lines().count(), 1_000);
    });
    assert_eq!(node.routes.announced(Origin::Node(0), None).count(), 1_000);

    for n in 0..20_000u32 {
        let prefix = format!("12.{}.{}.0/24", n / 256, n % 256).parse().unwrap();
        node.routes.announce(Origin::File, prefix, &[]).unwrap();
    }
    let mut listed = Vec::new();
    node.with_client(|mut client| {
        client.request("routes", |line| listed.push(line.to_owned())).unwrap();
        assert_eq!(client.ask("route get 12.0.0.1").unwrap().lines().count(), 2);
    });
    let count = listed.len();
    listed.sort();
    listed.dedup();
    assert_eq!((count, listed.len()), (21_004, 21_004));
}

#[test]
fn the_client_reports_refusals_and_its_own_mistakes() {
    let mut node = Node::new("client");
    node.with_client(|mut client| {
        let refused = client.ask("route get x").unwrap_err();
        assert_eq!(refused.to_string(), "\"x\" is no IP address");
        assert!(matches!(client.ask(" # x"), Err(ClientError::Empty)));
        assert!(matches!(client.ask("\n"), Err(ClientError::Empty)));
        assert!(matches!(client.ask("a\nb"), Err(ClientError::Line)));
        assert!(matches!(client.ask(&"x".repeat(LINE)), Err(ClientError::Line)));
        assert!(client.ask("stats").is_ok(), "the connection is in order");
    });
    let path = node.directory.0.join("absent");
    let error = Client::connect(path).unwrap_err().to_string();
    assert!(error.ends_with("is the node running?"), "{error}");
}

#[test]
fn an_unfinished_line_delays_no_other_client() {
    let mut node = Node::new("unfinished");
    let mut slow = node.connect();
    assert_eq!(node.ask(&mut slow, "route add 192.0.2.0/24 via a:"), "");
    let mut other = node.connect();
    assert_eq!(node.ask(&mut other, "stats\n"), "{}\nok\n");
    for byte in "lan0\n".bytes() {
        node.run();
        slow.write_all(&[byte]).unwrap();
    }
    node.run();
    assert_eq!(available(&mut slow), b"ok\n");

    slow.write_all(b"route del 192.0.2.0/24").unwrap();
    drop(slow);
    node.run();
    assert_eq!(node.server.clients(), 1);
    assert_eq!(
        node.routes.announced(Origin::Node(0), None).count(),
        1,
        "half a line is no request"
    );
}

#[test]
fn a_line_that_is_too_long_ends_the_connection() {
    let mut node = Node::new("long");
    let longest = format!("{:width$}stats\n", "", width = LINE - 6);
    let mut stream = node.connect();
    assert_eq!(node.ask(&mut stream, longest), "{}\nok\n");
    let too_long = format!("{:width$}stats\n", "", width = LINE - 5);
    let answer = node.ask(&mut stream, too_long);
    assert_eq!(answer, format!("error: a line has at most {LINE} bytes\n"));

    let mut stream = node.connect();
    let mut sent = 0;
    let error = loop {
        match stream.write(&[b'x'; 4_096]) {
            Ok(length) => sent += length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => break error,
        }
        assert!(sent < 1 << 20, "a mebibyte without a line feed is accepted");
        node.run();
    };
    assert!([ErrorKind::BrokenPipe, ErrorKind::ConnectionReset].contains(&error.kind()), "{error}");
    node.run();
    assert_eq!(node.server.clients(), 0);
}

#[test]
fn a_client_that_does_not_read_stops_itself_only() {
    let mut node = Node::new("unread");
    for n in 0..1_500u32 {
        let prefix = format!("12.{}.{}.0/24", n / 256, n % 256).parse().unwrap();
        node.routes.announce(Origin::File, prefix, &[]).unwrap();
    }
    let mut deaf = node.connect();
    let mut sent = 0;
    let mut refused = 0;
    while refused < 100 {
        // One list is 50 kB: some fill the buffers of the socket, then requests wait in those of
        // the other direction.
        assert!(node.requests < 100 && sent < 8 << 20, "{} requests, {sent} bytes", node.requests);
        match deaf.write(b"routes\n") {
            Ok(length) => sent += length,
            Err(_) => refused += 1,
        }
        node.run();
    }
    let mut other = node.connect();
    assert_eq!(node.ask(&mut other, "stats\n"), "{}\nok\n");

    // When it reads, it gets all answers.
    deaf.shutdown(Shutdown::Write).unwrap();
    let mut lists = 0;
    let mut text = Vec::new();
    let mut is_over = false;
    while !is_over {
        node.run();
        is_over = read(&mut deaf, &mut text);
        lists += text.windows(4).filter(|w| w == b"\nok\n").count();
        // What may be the beginning of the next match.
        text.drain(..text.len().saturating_sub(3));
    }
    assert_eq!(lists, sent / "routes\n".len());
    assert_eq!(node.server.clients(), 1);
}

#[test]
fn each_call_of_poll_handles_few_requests() {
    let mut node = Node::new("few");
    let mut streams: Vec<UnixStream> = (0..3).map(|_| node.connect()).collect();
    for stream in &mut streams {
        stream.write_all("stats\n".repeat(2_000).as_bytes()).unwrap();
    }
    let mut calls = 0;
    loop {
        let before = node.requests;
        let is_more = node.poll();
        assert!(node.requests - before <= 64);
        calls += 1;
        if !is_more {
            break;
        }
    }
    assert!(node.requests == 6_000 && calls > 6_000 / 64, "{} in {calls}", node.requests);

    // A change that takes long is the last one of its call.
    let (half, other) = ("0.0.0.0/1", "128.0.0.0/1");
    let lines = format!("route add {half} unreachable\nroute add {other} unreachable\n");
    streams[0].write_all(lines.as_bytes()).unwrap();
    let before = node.requests;
    while node.requests == before {
        assert!(node.poll());
    }
    assert_eq!(node.requests, before + 1);
}

#[test]
fn answers_follow_an_end_of_input() {
    let mut node = Node::new("end");
    let mut stream = node.connect();
    stream.write_all(b"stats\nroutes\nstats\nsta").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    node.run();
    let text = String::from_utf8(available(&mut stream)).unwrap();
    let unfinished = "error: the last line has no line feed at its end: nothing is done for it\n";
    let end = format!("ok\n{{}}\nok\n{unfinished}");
    assert!(text.starts_with("{}\nok\n10.0.1.0/24") && text.ends_with(&end), "{text}");
    assert!(is_closed(&mut stream));
    for (bytes, answer) in [("stats", unfinished), (" # no request", ""), ("stats\n ", "{}\nok\n")]
    {
        let mut stream = node.connect();
        stream.write_all(bytes.as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        node.run();
        assert_eq!(available(&mut stream), answer.as_bytes(), "{bytes}");
    }
}

#[test]
fn bytes_that_are_no_text_are_refused() {
    let mut node = Node::new("bytes");
    let mut stream = node.connect();
    assert_eq!(node.ask(&mut stream, b"\xff\xfe\n"), "error: a line is UTF-8 text\n");
    let answer = node.ask(&mut stream, "\u{1b}[2J\0\n");
    assert_eq!(answer, "error: \"\\u{1b}[2J\\0\" is no request: `help` lists them\n");
    let mut numbers = 1u64;
    for _ in 0..200 {
        let bytes: Vec<u8> = (0..300)
            .map(|_| {
                numbers = numbers.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (numbers >> 56) as u8
            })
            .collect();
        stream.write_all(&bytes).unwrap();
        node.run();
        available(&mut stream);
    }
    assert_eq!(node.routes.len(), 4);
}

#[test]
fn too_many_clients_are_refused() {
    let mut node = Node::new("clients");
    let mut streams: Vec<UnixStream> = Vec::new();
    for _ in 0..CLIENTS {
        streams.push(node.connect());
        node.run();
    }
    let mut more = node.connect();
    node.run();
    assert_eq!(available(&mut more), b"error: there are 16 clients already\n");
    assert!(is_closed(&mut more));
    assert_eq!(node.ask(&mut streams[CLIENTS - 1], "stats\n"), "{}\nok\n");
    streams.clear();
    node.run();
    assert_eq!(node.server.clients(), 0);
    let mut stream = node.connect();
    assert_eq!(node.ask(&mut stream, "stats\n"), "{}\nok\n");
}

#[test]
fn a_descriptor_shows_that_there_is_work() -> io::Result<()> {
    use std::os::fd::{AsRawFd, BorrowedFd};
    let mut node = Node::new("descriptor");
    node.run();
    // SAFETY: the server, which owns the descriptor, lives until the end of the test.
    let descriptor = unsafe { BorrowedFd::borrow_raw(node.server.as_raw_fd()) };
    let is_ready = || {
        let mut polled = [rustix::event::PollFd::new(&descriptor, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut polled, Some(&rustix::event::Timespec::default())).unwrap() == 1
    };
    assert!(!is_ready());
    let _stream = node.connect();
    assert!(is_ready());
    Ok(())
}
