//! Connecting: addresses, refusals, limits, many sessions, closing.

use std::cell::RefCell;
use std::net::{TcpListener, UdpSocket};
use std::rc::Rc;
use std::time::Duration;

use crate::common::*;
use courser::{
    Admission, BindError, CallError, Config, ConnectRefuseReason, DialError, Executed, Nexus,
    RejectReason, Rpc, SessionEnd, SessionError, SessionState,
};
use courser_net::MemNetwork;

const ECHO: u16 = 1;

fn echo(rpc: &mut Rpc) {
    rpc.on(ECHO, |cx, req| cx.reply(req));
}

/// Connects to `uri` and returns the error. A call queued on the session fails too.
fn failure(client: &mut Rpc, uri: &str) -> SessionError {
    let session = client.connect(uri).unwrap();
    let log = Log::default();
    let request = message(client, 1, 10);
    call(client, session, ECHO, request, &log, 0);
    let error = client.wait_connected(session).unwrap_err();
    drive_until(&mut [client], |_| !log.borrow().is_empty());
    let (_, ended) = log.borrow_mut().pop().unwrap();
    let why = CallError::NotConnected(error.end());
    assert_eq!(ended.result, Err(why));
    assert_eq!(why.executed(), Executed::Never);
    assert!(why.to_string().contains(&error.end().to_string()), "{why}");
    let rejected = client.call(session, ECHO, message(client, 1, 10), |_, _| {}).unwrap_err();
    assert_eq!(rejected.reason, RejectReason::NoSession(error.end()));
    assert!(rejected.to_string().contains(&error.end().to_string()), "{rejected}");
    assert!(*ended.request == *expected(1, 10), "the request is unchanged");
    assert_eq!(client.session_state(session), SessionState::Gone);
    assert_eq!(client.session_error(session).unwrap().to_string(), error.to_string());
    error
}

#[test]
fn the_error_names_a_port_without_a_listener() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut client = client(Config::default());
    let error = failure(&mut client, &format!("udp://127.0.0.1:{port}"));
    assert!(matches!(error, SessionError::Dial(DialError::Connect { .. })), "{error:?}");
    let text = format!("nothing listens on 127.0.0.1:{port}");
    assert!(error.to_string().contains(&text), "{error}");
    assert_eq!(client.sessions(), 0);
}

#[test]
fn unusable_addresses_are_rejected() {
    let mut client = client(Config::default());
    let error = client.connect("udp://127.0.0.1").unwrap_err();
    assert!(matches!(error, SessionError::Uri(_)), "{error:?}");
    let error = client.connect("mem://127.0.0.1:1").unwrap_err();
    assert!(matches!(&error, SessionError::Scheme { ours: "udp", theirs } if theirs == "mem"));
    assert!(error.to_string().contains("udp") && error.to_string().contains("mem"), "{error}");
    let error = failure(&mut client, "udp://no..such..host:1");
    assert!(matches!(error, SessionError::Dial(DialError::Resolve { .. })), "{error:?}");

    let error = Nexus::bind("udp://example.invalid:0").unwrap_err();
    assert!(matches!(error, BindError::Host(_)), "{error:?}");
    let taken = Nexus::bind(LOOPBACK).unwrap();
    let error = Nexus::bind(&taken.local_uri()).unwrap_err();
    assert!(error.to_string().contains("another process has the port"), "{error}");
    let error = Nexus::bind("smoke://127.0.0.1:0").unwrap().endpoint().unwrap_err();
    assert!(error.to_string().contains("smoke"), "{error}");
    let bad = Config { slots: 3, ..Config::default() };
    let error = Nexus::bind_with(LOOPBACK, bad).unwrap_err();
    assert!(error.to_string().contains("Config::slots is 3; set it to a power of two"), "{error}");
}

#[test]
fn a_server_that_is_not_polled_times_out() {
    let nexus = Nexus::bind(LOOPBACK).unwrap();
    let mut server = nexus.endpoint().unwrap();
    echo(&mut server);
    let config = Config { connect_timeout: Duration::from_millis(100), ..Config::default() };
    let mut client = client(config);
    let error = failure(&mut client, &nexus.local_uri());
    assert!(matches!(error, SessionError::Timeout { after_ms: 100, .. }), "{error:?}");
    assert!(error.to_string().contains("event loop"), "{error}");
    // It runs again: the sessions that it accepts are closed, on both sides.
    drive_until(&mut [&mut server, &mut client], |all| all[0].sessions() == 1);
    drive_until(&mut [&mut server, &mut client], |all| all[0].sessions() == 0);
    let session = connect(&mut client, &mut [&mut server], &nexus.local_uri());
    assert_eq!(client.session_state(session), SessionState::Connected);
}

#[test]
fn endpoints_that_accept_no_sessions_refuse_connects() {
    let nexus = Nexus::bind(LOOPBACK).unwrap();
    let mut client = client(Config::default());
    let refused =
        |e: &SessionError| matches!(e, SessionError::Refused(ConnectRefuseReason::NoEndpoint));
    let error = failure(&mut client, &nexus.local_uri());
    assert!(refused(&error), "no endpoint: {error:?}");
    let _mute = nexus.endpoint().unwrap();
    let error = failure(&mut client, &nexus.local_uri());
    assert!(refused(&error), "an endpoint without handlers: {error:?}");
    let mut server = nexus.endpoint().unwrap();
    echo(&mut server);
    let error = failure(&mut client, &format!("{}/0", nexus.local_uri()));
    assert!(refused(&error), "another endpoint: {error:?}");
    connect(&mut client, &mut [&mut server], &format!("{}/1", nexus.local_uri()));
    assert_eq!(nexus.control_stats().refused, 3);
}

#[test]
fn strict_admission_refuses_sessions_beyond_the_receive_queue() {
    let strict = Config { admission: Admission::Strict, credits: Some(400), ..Config::default() };
    let network = MemNetwork::new();
    // A receive queue of 1024 frames.
    let (nexus, mut server) = mem_endpoint(&network, strict, |t| t);
    server.on(ECHO, |cx, req| cx.reply(req));
    let greedy = Config { credits: Some(400), ..Config::default() };
    let (_other, mut client) = mem_endpoint(&network, greedy, |t| t);
    connect(&mut client, &mut [&mut server], &nexus.local_uri());
    let second = connect(&mut client, &mut [&mut server], &nexus.local_uri());
    let third = client.connect(&nexus.local_uri()).unwrap();
    drive_until(&mut [&mut client, &mut server], |all| {
        all[0].session_state(third) == SessionState::Gone
    });
    let error = client.session_error(third).unwrap();
    let full =
        |r: &ConnectRefuseReason| matches!(r, ConnectRefuseReason::NoCredits { queue: 1024, .. });
    assert!(matches!(&error, SessionError::Refused(r) if full(r)), "{error:?}");
    // Credits that a closed session returns can be granted again.
    client.close(second);
    drive_until(&mut [&mut client, &mut server], |all| all[1].sessions() == 1);
    connect(&mut client, &mut [&mut server], &nexus.local_uri());
}

#[test]
fn both_sides_limit_their_sessions() {
    let few = Config { max_sessions: 2, ..Config::default() };
    let nexus = Nexus::bind_with(LOOPBACK, few.clone()).unwrap();
    let mut server = nexus.endpoint().unwrap();
    echo(&mut server);
    let mut first = client(few);
    for _ in 0..2 {
        connect(&mut first, &mut [&mut server], &nexus.local_uri());
    }
    let error = first.connect(&nexus.local_uri()).unwrap_err();
    assert!(error.to_string().contains("2 sessions"), "{error}");
    let mut second = client(Config::default());
    let session = second.connect(&nexus.local_uri()).unwrap();
    drive_until(&mut [&mut second, &mut server], |all| {
        all[0].session_state(session) == SessionState::Gone
    });
    let error = second.session_error(session).unwrap();
    let reason = ConnectRefuseReason::TooManySessions { limit: 2 };
    assert!(matches!(error, SessionError::Refused(r) if r == reason), "{error:?}");
}

#[test]
fn two_hundred_sessions_carry_calls() {
    let nexus = Nexus::bind(LOOPBACK).unwrap();
    let mut server = nexus.endpoint().unwrap();
    echo(&mut server);
    let mut client = client(Config::default());
    let sessions: Vec<_> = (0..200).map(|_| client.connect(&nexus.local_uri()).unwrap()).collect();
    drive_until(&mut [&mut client, &mut server], |all| {
        sessions.iter().all(|&s| all[0].session_state(s) == SessionState::Connected)
    });
    assert_eq!((client.sessions(), server.sessions()), (200, 200));
    let log = Log::default();
    for round in 0..3 {
        for (i, &session) in sessions.iter().enumerate() {
            let id = (round * 200 + i) as u64;
            let request = message(&client, id, 32 + round * 4000);
            call(&mut client, session, ECHO, request, &log, id);
        }
    }
    drive(&mut [&mut client, &mut server], || log.borrow().len() == 600);
    for (id, ended) in log.borrow().iter() {
        assert!(ended.result == Ok(expected(*id, 32 + (*id as usize / 200) * 4000)));
    }
    sessions.into_iter().for_each(|s| client.close(s));
    drive_until(&mut [&mut client, &mut server], |all| all[1].sessions() == 0);
    assert_eq!(client.sessions(), 0);
}

#[test]
fn closing_fails_calls_frees_the_server_and_invalidates_the_number() {
    let nexus = Nexus::bind(LOOPBACK).unwrap();
    let mut server = nexus.endpoint().unwrap();
    let deferred = Rc::new(RefCell::new(Vec::new()));
    let handles = deferred.clone();
    server.on(ECHO, move |cx, _| handles.borrow_mut().extend(cx.defer()));
    let mut client = client(Config { slots: 2, ..Config::default() });
    let session = connect(&mut client, &mut [&mut server], &nexus.local_uri());
    let log = Log::default();
    for id in 0..4 {
        let request = message(&client, id, 40);
        call(&mut client, session, ECHO, request, &log, id);
    }
    drive_until(&mut [&mut client, &mut server], |all| all[1].stats().requests == 2);
    client.close(session);
    client.close(session);
    // The server counts the session until its handlers have answered, although the client is gone
    // (E68).
    drive_until(&mut [&mut client, &mut server], |all| {
        all[1].session_stats(deferred.borrow()[0].session()).is_none()
    });
    assert_eq!(server.sessions(), 1);
    deferred.borrow_mut().clear();
    drive_until(&mut [&mut client, &mut server], |all| all[1].sessions() == 0);
    assert_eq!(log.borrow().len(), 4);
    for (id, ended) in log.borrow().iter() {
        let executed = if *id < 2 { Executed::Maybe } else { Executed::Never };
        assert_eq!(ended.result, Err(CallError::Closed(executed)), "call {id}");
        assert!(*ended.request == *expected(*id, 40));
    }
    assert!(matches!(client.session_error(session), Some(SessionError::Gone)));
    // The number is reused; its former session stays invalid.
    let next = connect(&mut client, &mut [&mut server], &nexus.local_uri());
    assert_eq!(next.index(), session.index());
    assert_eq!(client.session_state(session), SessionState::Gone);
    assert!(client.session_stats(session).is_none());
    let rejected = client.call(session, ECHO, message(&client, 0, 1), |_, _| {}).unwrap_err();
    assert_eq!(rejected.reason, RejectReason::NoSession(SessionEnd::Unknown));
    client.close(session);
    assert_eq!(client.session_state(next), SessionState::Connected);
}

#[test]
fn closing_before_the_answer_leaves_no_state() {
    let nexus = Nexus::bind(LOOPBACK).unwrap();
    let mut server = nexus.endpoint().unwrap();
    echo(&mut server);
    let mut client = client(Config::default());
    for _ in 0..50 {
        let early = client.connect(&nexus.local_uri()).unwrap();
        client.poll();
        client.close(early);
        // Reuses the number of the closed session, whose answer may still arrive.
        let kept = client.connect(&nexus.local_uri()).unwrap();
        drive_until(&mut [&mut client, &mut server], |all| {
            all[0].session_state(kept) != SessionState::Connecting
        });
        assert!(client.session_error(kept).is_none(), "{:?}", client.session_error(kept));
        client.close(kept);
        drive_until(&mut [&mut client, &mut server], |all| all[1].sessions() == 0);
    }
    client.check();
    server.check();
}

#[test]
fn a_wildcard_bind_is_reachable_at_every_address() {
    for bind in ["udp://0.0.0.0:0", "udp://[::]:0"] {
        let server = Server::start_at(bind, Config::default(), echo);
        let port = server.uri.rsplit(':').next().unwrap().to_owned();
        for host in ["127.0.0.1", "127.0.0.2", "localhost"] {
            let nexus = Nexus::bind("udp://0.0.0.0:0").unwrap();
            let mut client = nexus.endpoint().unwrap();
            let session = client.connect(&format!("udp://{host}:{port}")).unwrap();
            if let Err(e) = client.wait_connected(session) {
                panic!("{bind} by {host}: {e}");
            }
            let request = message(&client, 5, 20_000);
            let ended = call_and_wait(&mut client, &mut [], session, ECHO, request);
            assert!(ended.result == Ok(expected(5, 20_000)), "{bind} by {host}");
        }
    }
}

/// As for TCP: `courser serve` prints such an address.
#[test]
fn calls_to_the_unspecified_address_reach_this_host() {
    let server = Server::start_at("udp://[::]:0", Config::default(), echo);
    let port = server.uri.rsplit(':').next().unwrap().to_owned();
    let mut hosts = vec![("0.0.0.0", "udp://0.0.0.0:0"), ("0.0.0.0", "udp://[::]:0")];
    hosts.push(("[::ffff:0.0.0.0]", "udp://[::]:0"));
    match UdpSocket::bind("[::1]:0") {
        Ok(_) => hosts.push(("[::]", "udp://[::]:0")),
        Err(e) => println!("skipped: [::], as this system has no IPv6 loopback: {e}"),
    }
    for (host, bind) in hosts {
        let nexus = Nexus::bind(bind).unwrap();
        let mut client = nexus.endpoint().unwrap();
        let session = client.connect(&format!("udp://{host}:{port}")).unwrap();
        if let Err(e) = client.wait_connected(session) {
            panic!("{host} from {bind}: {e}");
        }
        let request = message(&client, 5, 20_000);
        let ended = call_and_wait(&mut client, &mut [], session, ECHO, request);
        assert!(ended.result == Ok(expected(5, 20_000)), "{host} from {bind}");
    }
}

#[test]
fn the_error_of_a_server_of_the_other_scheme_names_that_scheme() {
    let udp = Server::start(Config::default(), echo);
    let port = udp.uri.rsplit(':').next().unwrap().to_owned();
    let mut client = Nexus::bind("shm://127.0.0.1:0").unwrap().endpoint().unwrap();
    let error = failure(&mut client, &format!("shm://127.0.0.1:{port}")).to_string();
    assert!(error.contains("nothing listens on shm://127.0.0.1:"), "{error}");
    assert!(error.contains("use udp://") && error.contains("COURSER_SHM_DIR"), "{error}");

    let shm = Server::start_at("shm://127.0.0.1:0", Config::default(), echo);
    let there = shm.uri.strip_prefix("shm://").unwrap();
    let mut client = self::client(Config::default());
    let error = failure(&mut client, &format!("udp://{there}")).to_string();
    assert!(error.contains(&format!("nothing listens on udp://{there}")), "{error}");
    assert!(error.contains(&format!("use shm://{there}")), "{error}");
}

/// The server accepts frames from the address of the control connection only.
#[test]
fn a_client_bound_to_another_address_of_its_host_connects_from_there() {
    let server = Server::start_at("udp://0.0.0.0:0", Config::default(), echo);
    let port = server.uri.rsplit(':').next().unwrap().to_owned();
    for bind in ["udp://127.0.0.2:0", "udp://[::ffff:127.0.0.3]:0"] {
        let nexus = Nexus::bind(bind).unwrap();
        let mut client = nexus.endpoint().unwrap();
        let session = client.connect(&format!("udp://127.0.0.1:{port}")).unwrap();
        if let Err(e) = client.wait_connected(session) {
            panic!("{bind}: {e}");
        }
        let request = message(&client, 5, 20_000);
        let ended = call_and_wait(&mut client, &mut [], session, ECHO, request);
        assert!(ended.result == Ok(expected(5, 20_000)), "{bind}: {:?}", ended.result);
    }
}

#[test]
fn an_address_of_the_other_family_is_an_error_that_names_both() {
    let nexus = Nexus::bind("udp://127.0.0.1:0").unwrap();
    let error = failure(&mut nexus.endpoint().unwrap(), "udp://[::1]:9").to_string();
    assert!(error.contains("[::1]:9") && error.contains("bound to 127.0.0.1"), "{error}");

    // A wildcard takes its family only. A name may have another address, which is tried then.
    let server = match Nexus::bind("udp://[::1]:0") {
        Ok(server) => server,
        Err(e) => return println!("skipped: this system has no IPv6 loopback: {e}"),
    };
    let nexus = Nexus::bind("udp://0.0.0.0:0").unwrap();
    let error = failure(&mut nexus.endpoint().unwrap(), &server.local_uri());
    assert!(matches!(error, SessionError::Dial(_)), "{error:?}");
    assert!(error.to_string().contains("bound to 0.0.0.0, of the other"), "{error}");
}

#[test]
fn ipv6_carries_calls() {
    if let Err(e) = UdpSocket::bind("[::1]:0") {
        println!("skipped: this system has no IPv6 loopback: {e}");
        return;
    }
    let server = Server::start_at("udp://[::1]:0", Config::default(), echo);
    let nexus = Nexus::bind("udp://[::1]:0").unwrap();
    let mut client = nexus.endpoint().unwrap();
    let session = client.connect(&server.uri).unwrap();
    client.wait_connected(session).unwrap();
    for len in [0, 32, 1_000_000] {
        let request = message(&client, 6, len);
        let ended = call_and_wait(&mut client, &mut [], session, ECHO, request);
        assert!(ended.result == Ok(expected(6, len)));
    }
}

/// A port named by the user is never replaced, as firewall rules depend on it.
#[test]
fn binding_a_fixed_datapath_port_that_is_in_use_fails() {
    for _ in 0..50 {
        let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        // Another process may use the TCP port of the same number: then try another one.
        let Ok(nexus) = Nexus::bind(&format!("udp://127.0.0.1:{port}")) else { continue };
        let e = nexus.endpoint().unwrap_err().to_string();
        assert!(e.contains("in use") && e.contains(&port.to_string()), "{e}");
        return;
    }
    panic!("no TCP port was free 50 times");
}

/// Requests of a handler or a timer are executed in the same pass.
#[test]
fn handlers_and_timers_can_connect_and_close_sessions() {
    let nexus = Nexus::bind("udp://127.0.0.1:0").unwrap();
    let mut server = nexus.endpoint().unwrap();
    echo(&mut server);
    let uri = nexus.local_uri();
    let mut client = Nexus::bind("udp://127.0.0.1:0").unwrap().endpoint().unwrap();
    let answers = Rc::new(RefCell::new(Vec::new()));
    let to = answers.clone();
    client.context().after(Duration::from_millis(1), move |cx| {
        assert!(matches!(cx.connect("mem://x:1"), Err(SessionError::Scheme { .. })));
        let session = cx.connect(&uri).unwrap();
        assert_eq!(cx.session_state(session), SessionState::Connecting);
        let request = cx.alloc(3).unwrap();
        cx.call(session, ECHO, request, move |cx, done| {
            to.borrow_mut().push(done.result.map(|r| r.len()));
            cx.close(session);
            assert_eq!(cx.session_state(session), SessionState::Gone);
            assert!(matches!(cx.session_error(session), Some(SessionError::Gone)));
        })
        .unwrap();
    });
    drive_until(&mut [&mut client, &mut server], |all| {
        !answers.borrow().is_empty() && all[1].sessions() == 0
    });
    assert_eq!(*answers.borrow(), [Ok(3)]);
    assert_eq!(client.sessions(), 0);
}

/// Two addresses of this host stand for two hosts: traffic between them counts as crossing a
/// network.
#[test]
fn sessions_within_a_host_have_more_credits_than_across_a_network() {
    let limits = |config: Config, servers: Config| {
        let mut client = client(config);
        ["udp://127.0.0.1:0", "udp://127.0.0.2:0"].map(|uri| {
            let nexus = Nexus::bind_with(uri, servers.clone()).unwrap();
            let mut server = nexus.endpoint().unwrap();
            echo(&mut server);
            let session = connect(&mut client, &mut [&mut server], &nexus.local_uri());
            client.session_stats(session).unwrap().credit_limit
        })
    };
    let client = client(Config::default());
    let caps = client.transport().caps();
    let train = caps.train_frames.min(caps.train_bytes / caps.max_frame) as u32;
    let within = |packets: u32| packets.max(32).min(caps.rx_queue_frames as u32);
    let network = within(3 * train);
    let host = within((6 * train).max((256 << 10) / caps.max_frame as u32));
    if host == network {
        return eprintln!("skipped: the receive queue holds no more than three trains");
    }
    let both = |config: Config| limits(config.clone(), config);
    assert_eq!(both(Config::default()), [host, network]);
    let strict = Config { admission: Admission::Strict, ..Config::default() };
    assert_eq!(both(strict), [network, network], "limited for the network");
    let chosen = Config { credits: Some(7), ..Config::default() };
    assert_eq!(both(chosen), [7, 7]);
    // The server applies the limit too, whatever a client requests.
    let greedy = Config { credits: Some(host), ..Config::default() };
    assert_eq!(limits(greedy, Config::default()), [host, network]);
}

#[test]
fn credits_for_which_the_queues_have_no_room_are_a_warning() {
    let warnings = |credits| {
        let config = Config { credits: Some(credits), ..Config::default() };
        let server = Server::start(config.clone(), echo);
        let mut client = client(config);
        let session = client.connect(&server.uri).unwrap();
        client.wait_connected(session).unwrap();
        client.warnings().into_iter().filter(|w| w.contains("credits")).collect::<Vec<_>>()
    };
    assert_eq!(warnings(8), [""; 0]);
    let warned = warnings(65_535).pop().unwrap();
    assert!(warned.contains("65535") && warned.contains("Config::socket_buffer"), "{warned}");
}
