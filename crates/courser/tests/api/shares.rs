//! Shares of a server's paths, sessions and connections, over real transports.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::common::*;
use courser::{
    BindError, Config, ConnectRefuseReason, Nexus, OptionSet, Rpc, SessionError, SessionId,
    ShmOptions,
};
use courser_net::shm::ControlListener;
use courser_proto::{CONTROL_GREETING, ControlDecoder, ControlMsg};

const ECHO: u16 = 1;

fn echo_server(bind: &str, config: Config) -> Server {
    Server::start_at(bind, config, |rpc| rpc.on(ECHO, |cx, request| cx.reply(request)))
}

fn client_at(bind: &str, config: Config) -> Rpc {
    Nexus::bind_with(bind, config).unwrap().endpoint().unwrap()
}

fn calls(rpc: &mut Rpc, session: SessionId) {
    let request = rpc.alloc(32).unwrap();
    rpc.call_wait(session, ECHO, request, Some(PATIENCE)).unwrap();
}

/// Connects until the server refuses; returns the sessions and the reason.
fn connect_until_refused(rpc: &mut Rpc, server: &str) -> (Vec<SessionId>, ConnectRefuseReason) {
    let mut all = Vec::new();
    loop {
        let session = rpc.connect(server).unwrap();
        match rpc.wait_connected(session) {
            Ok(()) => all.push(session),
            Err(SessionError::Refused(reason)) => return (all, reason),
            Err(other) => panic!("{other}"),
        }
    }
}

/// A directory that is removed at the end.
struct Dir(PathBuf);

impl Dir {
    fn config(&self) -> Config {
        let options = ShmOptions { dir: Some(self.0.clone()), ..ShmOptions::default() };
        Config { transport: OptionSet::new().with(options), ..Config::default() }
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn connects_of_one_connection_leave_paths_for_others() {
    let dir = Dir(std::env::temp_dir().join(format!("courser-paths-{}", std::process::id())));
    // The kernel assigns this port to no TCP socket of other tests.
    let server = echo_server(
        &format!("shm://127.0.0.1:{}", 20_000 + std::process::id() % 10_000),
        dir.config(),
    );
    let at: SocketAddr = server.uri.strip_prefix("shm://").unwrap().parse().unwrap();
    assert!(std::net::TcpStream::connect(at).is_err(), "no TCP port");

    let mut hostile = ControlListener::connect(&dir.0, at).unwrap();
    hostile.set_nonblocking(false).unwrap();
    hostile.set_read_timeout(Some(PATIENCE)).unwrap();
    hostile.write_all(&CONTROL_GREETING).unwrap();
    (0..256).for_each(|n| hostile.write_all(&connect_request(n).encode()).unwrap());
    let (mut decoder, mut accepted, mut refused) = (ControlDecoder::default(), 0, 0);
    while accepted + refused < 256 {
        let mut buf = vec![0; decoder.room()];
        let n = hostile.read(&mut buf).unwrap();
        assert!(n > 0, "closed after {accepted} and {refused}");
        decoder.push(&buf[..n]);
        while let Some(msg) = decoder.next_msg().unwrap() {
            match msg {
                ControlMsg::Accept { .. } => accepted += 1,
                ControlMsg::Refuse { reason, .. } => {
                    assert_eq!(reason, ConnectRefuseReason::TooManyPathsOfPeer { limit: 128 });
                    refused += 1;
                }
                ControlMsg::Ping => hostile.write_all(&ControlMsg::Pong.encode()).unwrap(),
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!((accepted, refused), (128, 128));
    let mut honest = client_at("shm://127.0.0.1:0", dir.config());
    let session = honest.connect(&server.uri).unwrap();
    honest.wait_connected(session).unwrap();
    calls(&mut honest, session);
}

#[test]
fn two_processes_of_an_address_leave_sessions_for_another_address() {
    let config = Config {
        max_sessions: 32,
        max_sessions_per_peer: 12,
        max_sessions_per_address: 20,
        ..Config::default()
    };
    let server = echo_server("udp://0.0.0.0:0", config);
    let [mut a, mut b] = [(); 2].map(|()| client(Config::default()));
    let (first, reason) = connect_until_refused(&mut a, &server.uri);
    assert_eq!((first.len(), reason), (12, ConnectRefuseReason::TooManyOfPeer { limit: 12 }));
    let (second, reason) = connect_until_refused(&mut b, &server.uri);
    assert_eq!((second.len(), reason), (8, ConnectRefuseReason::TooManyOfAddress { limit: 20 }));
    let mut other = client_at("udp://127.0.0.2:0", Config::default());
    let session = other.connect(&server.uri).unwrap();
    other.wait_connected(session).unwrap();
    calls(&mut other, session);
}

#[test]
fn a_session_that_was_never_used_ends_for_another_process() {
    let server = echo_server(LOOPBACK, Config { max_sessions: 2, ..Config::default() });
    let mut first = client(Config::default());
    let used = first.connect(&server.uri).unwrap();
    first.wait_connected(used).unwrap();
    calls(&mut first, used);
    let unused = first.connect(&server.uri).unwrap();
    first.wait_connected(unused).unwrap();

    let mut second = client(Config::default());
    let (none, reason) = connect_until_refused(&mut second, &server.uri);
    assert_eq!((none.len(), reason), (0, ConnectRefuseReason::TooManySessions { limit: 2 }));
    std::thread::sleep(Duration::from_millis(1100));
    let session = second.connect(&server.uri).unwrap();
    second.wait_connected(session).unwrap();
    calls(&mut second, session);
    let end = Instant::now() + PATIENCE;
    while first.session_error(unused).is_none() {
        first.run_for(Duration::from_millis(5)).unwrap();
        assert!(Instant::now() < end, "the client is not notified");
    }
    let error = first.session_error(unused).unwrap();
    assert!(matches!(error, SessionError::Evicted), "{error:?}");
    calls(&mut first, used);
    first.check();
    // Its place is free again after a close by the second.
    second.close(session);
    second.run_for(Duration::from_millis(5)).unwrap();
    // The close and the connect reach the server over different connections.
    let again = loop {
        let again = first.connect(&server.uri).unwrap();
        match first.wait_connected(again) {
            Ok(()) => break again,
            Err(e) => assert!(Instant::now() < end, "{e}"),
        }
    };
    calls(&mut first, again);
}

#[test]
fn connections_whose_sessions_were_never_used_end_for_another_of_their_address() {
    let config = Config { max_connections_per_address: 4, ..Config::default() };
    let server = echo_server(LOOPBACK, config);
    let mut all: Vec<(Rpc, SessionId)> = (0..4)
        .map(|_| {
            let mut rpc = client(Config::default());
            let session = rpc.connect(&server.uri).unwrap();
            rpc.wait_connected(session).unwrap();
            (rpc, session)
        })
        .collect();
    let (used, session) = &mut all[0];
    calls(used, *session);

    let mut fresh = client(Config::default());
    let end = Instant::now() + PATIENCE;
    let found = loop {
        let session = fresh.connect(&server.uri).unwrap();
        match fresh.wait_connected(session) {
            Ok(()) => break session,
            Err(e) => assert!(Instant::now() < end, "{e}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    calls(&mut fresh, found);
    let (used, session) = &mut all[0];
    calls(used, *session);
    let (unused, session) = &mut all[1];
    while unused.session_error(*session).is_none() {
        unused.run_for(Duration::from_millis(5)).unwrap();
        assert!(Instant::now() < end, "the client is not notified");
    }
    let error = unused.session_error(*session).unwrap();
    assert!(matches!(error, SessionError::Evicted), "{error:?}");
}

#[test]
fn limits_of_connections_are_settings() {
    for (name, config) in [
        ("max_connections", Config { max_connections: 0, ..Config::default() }),
        (
            "max_connections_per_address",
            Config { max_connections_per_address: 2 << 20, ..Config::default() },
        ),
    ] {
        let error = Nexus::bind_with(LOOPBACK, config).unwrap_err();
        assert!(matches!(error, BindError::Setting { name: n, .. } if n == name), "{error:?}");
    }
    let config = Config { max_connections_per_address: 1, ..Config::default() };
    let server = echo_server(LOOPBACK, config);
    let [mut a, mut b] = [(); 2].map(|()| client(Config::default()));
    let session = a.connect(&server.uri).unwrap();
    a.wait_connected(session).unwrap();
    let refused = b.connect(&server.uri).unwrap();
    let error = b.wait_connected(refused).unwrap_err();
    assert!(error.to_string().contains("max_connections_per_address"), "{error}");

    let many = Config { max_connections: 1 << 20, ..Config::default() };
    let nexus = Nexus::bind_with(LOOPBACK, many).unwrap();
    let warnings = nexus.endpoint().unwrap().warnings();
    assert!(warnings.iter().any(|w| w.contains("ulimit -n")), "{warnings:?}");
    let plain = client(Config::default()).warnings();
    assert!(!plain.iter().any(|w| w.contains("ulimit -n")), "{plain:?}");
}
