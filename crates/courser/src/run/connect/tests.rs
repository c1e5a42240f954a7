//! Connects that overlap with the ends of other sessions.

use courser_proto::{ConnectRefuseReason, SessionId, SessionState};

use crate::error::SessionError;
use crate::tests::in_memory::{Memory, connect, drive_until, endpoints, finish_connect};
use crate::{Config, Nexus};

fn wait_for_mail(client: &Memory) {
    while !client.mailbox.has_mail() {
        std::thread::yield_now();
    }
}

/// The server would name the peer of the closed session in its answer.
#[test]
fn a_server_receives_a_disconnect_before_a_request_that_is_sent_after_the_close() {
    let nexus = Nexus::bind_with("mem://127.0.0.1:0", Config::default()).unwrap();
    let [mut server, mut client] = endpoints(&nexus);
    server.on(1, |_, _| {});
    let first = connect(&mut client, &mut server, &nexus.local_uri());
    let second = client.connect(&nexus.local_uri()).unwrap();
    wait_for_mail(&client);
    // As a handler closes it: the next pass sends the disconnect, and the request of the second connect.
    client.core.close(first);
    finish_connect(&mut client, &mut server, second);
}

#[test]
fn a_server_is_told_of_a_close_at_the_time_of_another_servers_end() {
    let nexus = Nexus::bind_with("mem://127.0.0.1:0", Config::default()).unwrap();
    let [mut server, mut ending, mut client] = endpoints(&nexus);
    server.on(1, |_, _| {});
    ending.on(1, |_, _| {});
    let [first, second] = [0, 1].map(|index| {
        let to = [&mut server, &mut ending];
        connect(&mut client, to[index], &format!("{}/{index}", nexus.local_uri()))
    });
    drop(ending);
    wait_for_mail(&client);
    // As a handler closes it: the pass that takes the mail sends the disconnect.
    client.core.close(first);
    drive_until(&mut client, &mut server, |_, server| server.core.proto.live_sessions() == 0);
    assert_eq!(client.session_state(second), SessionState::Gone);
}

/// Passes until the request of every connect is under way.
fn send_requests(client: &mut Memory, sessions: &[SessionId]) {
    let is_asked = |client: &Memory| {
        let dialing = &client.connections.dialing;
        sessions.iter().all(|&s| dialing.iter().any(|d| d.session == s && d.asked))
    };
    while !is_asked(client) {
        client.poll();
    }
}

/// All answers name the peer of the first connect, which has ended here. A connect that begins in the
/// meantime waits for these answers too.
#[test]
fn connects_succeed_although_the_first_of_them_ends() {
    let nexus = Nexus::bind_with("mem://127.0.0.1:0", Config::default()).unwrap();
    let [mut server, mut client] = endpoints(&nexus);
    server.on(1, |_, _| {});
    let mut sessions = [(); 50].map(|()| client.connect(&nexus.local_uri()).unwrap()).to_vec();
    send_requests(&mut client, &sessions);
    client.close(sessions.remove(0));
    let is_held = |client: &Memory| client.connections.dialing.iter().any(|d| d.repeats > 0);
    drive_until(&mut client, &mut server, |client, _| is_held(client));
    sessions.push(client.connect(&nexus.local_uri()).unwrap());
    for session in sessions {
        finish_connect(&mut client, &mut server, session);
    }
    drive_until(&mut client, &mut server, |_, server| server.core.proto.live_sessions() == 50);
}

#[test]
fn connects_left_by_an_endpoint_get_an_answer() {
    let nexus = Nexus::bind_with("mem://127.0.0.1:0", Config::default()).unwrap();
    let [mut server, mut ending, mut client] = endpoints(&nexus);
    server.on(1, |_, _| {});
    ending.on(1, |_, _| {});
    // Both accept before the client's requests are routed.
    for index in [0, 1] {
        let to = [&mut server, &mut ending];
        connect(&mut client, to[index], &format!("{}/{index}", nexus.local_uri()));
    }
    let named = client.connect(&format!("{}/1", nexus.local_uri())).unwrap();
    let others = [(); 2].map(|()| client.connect(&nexus.local_uri()).unwrap());
    send_requests(&mut client, &[named, others[0], others[1]]);
    while !ending.mailbox.has_mail() || !server.mailbox.has_mail() {
        std::thread::yield_now();
    }
    drop(ending);
    for other in others {
        finish_connect(&mut client, &mut server, other);
    }
    drive_until(&mut client, &mut server, |client, _| {
        client.session_state(named) != SessionState::Connecting
    });
    let why = client.session_error(named);
    let refused = matches!(why, Some(SessionError::Refused(ConnectRefuseReason::NoEndpoint)));
    assert!(refused, "{why:?}");
}
