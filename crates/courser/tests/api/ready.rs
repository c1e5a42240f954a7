//! Calls of a `Client` whose server is gone: they fail at once with the cause, or wait for it.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use courser::{CallFailure, Client, ClientError, Config, Executed, MsgBuf, Server, Serving};

use crate::common::{LOOPBACK, PATIENCE};

const ECHO: u16 = 1;
/// Never answers.
const STUCK: u16 = 3;
const COUNT: u16 = 4;

fn server_at(uri: &str) -> (Serving, String, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let mut server = Server::bind(uri).unwrap();
    server.on(ECHO, |mut work| async move {
        let request = work.take().unwrap();
        work.reply(request);
    });
    server.on(STUCK, |work| async move {
        std::future::pending::<()>().await;
        drop(work);
    });
    server.on_message(COUNT, move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        async {}
    });
    let uri = server.local_uri();
    (server.serve().unwrap(), uri, count)
}

fn client_of(uri: &str, connect_timeout: Duration) -> Client {
    let config = Config { connect_timeout, ..Config::default() };
    Client::connect_with(uri, config).wait().unwrap()
}

fn message(client: &Client, bytes: &[u8]) -> MsgBuf {
    let mut m = client.alloc_recycled(bytes.len()).unwrap();
    m.copy_from_slice(bytes);
    m
}

fn stop(serving: Serving) {
    serving.handle().stop();
    serving.wait().unwrap();
}

fn socket_of(uri: &str) -> SocketAddr {
    uri.strip_prefix("udp://").unwrap().parse().unwrap()
}

/// Calls until one fails because there is no session: the first ones may be those that notice the
/// loss.
fn first_not_connected(client: &Client) -> CallFailure {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        match client.call(ECHO, message(client, b"")).wait_for_ready(false).wait() {
            Err(e @ CallFailure::NotConnected { .. }) => return e,
            Err(CallFailure::Lost { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    panic!("no call failed");
}

fn soon(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn calls_to_a_server_that_has_ended_fail_at_once_with_the_refusal() {
    for uri in [LOOPBACK, "shm://127.0.0.1:0"] {
        let (serving, uri, _) = server_at(uri);
        let client = client_of(&uri, PATIENCE);
        stop(serving);
        let first = first_not_connected(&client);
        let mut fastest = PATIENCE;
        for n in 0..200 {
            let begin = Instant::now();
            let deadline = (n % 2 == 0).then_some(PATIENCE / 2);
            let failed = match n % 3 {
                0 => client.send(COUNT, message(&client, b"")).deadline(deadline).wait(),
                _ => client.call(ECHO, message(&client, b"")).deadline(deadline).wait().map(drop),
            };
            let failed = failed.unwrap_err();
            let took = begin.elapsed();
            assert!(took < PATIENCE / 2, "{took:?}");
            fastest = fastest.min(took);
            assert!(matches!(failed, CallFailure::NotConnected { .. }), "{failed:?}");
            assert_eq!(failed.executed(), Executed::Never);
            let text = failed.to_string();
            assert!(text.contains(&uri) && text.contains("nothing listens on"), "{text}");
            assert_eq!(text, first.to_string());
        }
        assert!(fastest < Duration::from_millis(10), "{fastest:?}");
    }
}

#[test]
fn a_call_in_progress_when_its_server_ends_names_the_server_and_the_cause() {
    let (serving, uri, _) = server_at(LOOPBACK);
    let client = client_of(&uri, PATIENCE);
    let call = client.call(STUCK, message(&client, b""));
    let call = std::thread::spawn(move || call.wait().unwrap_err());
    soon("the handler's start", || serving.in_progress() == 1);
    drop(serving);
    let lost = call.join().unwrap();
    assert!(matches!(lost, CallFailure::Lost { executed: Executed::Maybe, .. }), "{lost:?}");
    let text = lost.to_string();
    assert!(text.contains(&uri) && text.contains("(may have executed)"), "{text}");
    assert!(!text.contains("session_error"), "{text}");
}

#[test]
fn calls_and_messages_that_wait_for_ready_start_when_the_server_is_back() {
    let (serving, uri, _) = server_at(LOOPBACK);
    // Calls with a deadline wait for it, however short the time of a connect is.
    let client = client_of(&uri, Duration::from_millis(50));
    let waiting = Client::builder().wait_for_ready(true).connect(&uri).wait().unwrap();
    stop(serving);
    // A call of the same client may decide otherwise.
    for client in [&client, &waiting] {
        assert_eq!(first_not_connected(client).executed(), Executed::Never);
    }
    let call = client.call(ECHO, message(&client, b"a")).wait_for_ready(true).deadline(PATIENCE);
    let send = client.send(COUNT, message(&client, b"b")).wait_for_ready(true).deadline(PATIENCE);
    let by_client = waiting.call(ECHO, message(&waiting, b"c"));
    let call = std::thread::spawn(move || call.wait());
    let send = std::thread::spawn(move || send.wait());
    let by_client = std::thread::spawn(move || by_client.wait());
    std::thread::sleep(Duration::from_millis(200));
    let (_serving, _, count) = server_at(&uri);
    assert_eq!(call.join().unwrap().unwrap()[..], *b"a");
    send.join().unwrap().unwrap();
    assert_eq!(by_client.join().unwrap().unwrap()[..], *b"c");
    soon("the message", || count.load(Ordering::Relaxed) == 1);
}

#[test]
fn a_call_that_waited_in_vain_fails_with_the_cause_and_not_with_the_load_of_the_server() {
    let (serving, uri, _) = server_at(LOOPBACK);
    let timeout = Duration::from_millis(150);
    let client = client_of(&uri, timeout);
    stop(serving);
    first_not_connected(&client);
    let call = || client.call(ECHO, message(&client, b"")).wait_for_ready(true);
    for (limit, call) in [(timeout, call()), (timeout / 3, call().deadline(timeout / 3))] {
        let begin = Instant::now();
        let failed = call.wait().unwrap_err();
        assert!(begin.elapsed() >= limit, "{:?}", begin.elapsed());
        assert!(matches!(failed, CallFailure::NotConnected { .. }), "{failed:?}");
        assert!(failed.to_string().contains("nothing listens on"), "{failed}");
    }
}

/// Silence is no certain cause: the host may answer late.
#[test]
fn calls_to_a_server_that_became_silent_wait_for_the_connect() {
    let (serving, uri, _) = server_at(LOOPBACK);
    let timeout = Duration::from_millis(200);
    let client = client_of(&uri, timeout);
    stop(serving);
    let _mute = TcpListener::bind(socket_of(&uri)).unwrap();
    let begin = Instant::now();
    let failed = first_not_connected(&client);
    assert!(begin.elapsed() >= timeout / 2, "{:?}", begin.elapsed());
    assert!(failed.to_string().contains("did not greet within"), "{failed}");
}

#[test]
fn calls_that_fail_at_once_do_not_connect_each_time() {
    let (serving, uri, _) = server_at(LOOPBACK);
    let client = client_of(&uri, PATIENCE);
    stop(serving);
    let listener = TcpListener::bind(socket_of(&uri)).unwrap();
    let connects = Arc::new(AtomicUsize::new(0));
    let counted = connects.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            drop(stream);
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    let begin = Instant::now();
    for _ in 0..2_000 {
        assert!(client.call(ECHO, message(&client, b"")).wait().is_err());
    }
    // Pauses of 5, 10, 20 ... 500 ms.
    let most = 10 + 2 * begin.elapsed().as_secs() as usize;
    let connects = connects.load(Ordering::Relaxed);
    assert!(connects <= most, "{connects} in {:?}", begin.elapsed());
}

#[test]
fn a_client_connects_again_in_the_background() {
    let (serving, uri, _) = server_at(LOOPBACK);
    let client = client_of(&uri, PATIENCE);
    stop(serving);
    first_not_connected(&client);
    // Without a further call.
    let listener = TcpListener::bind(socket_of(&uri)).unwrap();
    drop(listener.accept().unwrap());
    drop(listener);
    let (_serving, ..) = server_at(&uri);
    let call = client.call(ECHO, message(&client, b"x")).wait_for_ready(true);
    assert_eq!(call.wait().unwrap()[..], *b"x");
}

#[test]
fn a_client_that_waits_for_ready_is_connected_when_its_server_starts() {
    let (serving, uri, _) = server_at(LOOPBACK);
    stop(serving);
    let connect = Client::builder().wait_for_ready(true).connect(&uri);
    let connect = std::thread::spawn(move || connect.wait());
    let refused = Client::connect(&uri).wait().unwrap_err();
    assert!(refused.to_string().contains("nothing listens on"), "{refused}");
    std::thread::sleep(Duration::from_millis(100));
    let (_serving, ..) = server_at(&uri);
    let client = connect.join().unwrap().unwrap();
    assert_eq!(client.call(ECHO, message(&client, b"x")).wait().unwrap()[..], *b"x");
}

#[test]
fn a_client_that_waits_in_vain_for_its_server_fails_with_the_cause() {
    let (serving, uri, _) = server_at(LOOPBACK);
    stop(serving);
    let timeout = Duration::from_millis(150);
    let config = Config { connect_timeout: timeout, ..Config::default() };
    let begin = Instant::now();
    let connect = Client::builder().config(config).wait_for_ready(true).connect(&uri);
    let failed = connect.wait().unwrap_err();
    assert!(begin.elapsed() >= timeout, "{:?}", begin.elapsed());
    assert!(failed.to_string().contains("nothing listens on"), "{failed}");
    // An error that no wait mends is returned at once.
    let wrong = Client::builder().wait_for_ready(true).connect("nowhere").wait().unwrap_err();
    assert!(matches!(wrong, ClientError::Bind(_)), "{wrong}");
}
