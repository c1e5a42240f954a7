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

/// All answers name the peer of the first connect, which has ended here.
#[test]
fn connects_succeed_although_the_first_of_them_ends() {
    let nexus = Nexus::bind_with("mem://127.0.0.1:0", Config::default()).unwrap();
    let [mut server, mut client] = endpoints(&nexus);
    server.on(1, |_, _| {});
    let mut sessions = [(); 50].map(|()| client.connect(&nexus.local_uri()).unwrap()).to_vec();
    send_requests(&mut client, &sessions);
    client.close(sessions.remove(0));
    for session in sessions {
        finish_connect(&mut client, &mut server, session);
    }
    drive_until(&mut client, &mut server, |_, server| server.core.proto.live_sessions() == 49);
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
    while ending.mailbox.mail() < 2 || server.mailbox.mail() < 1 {
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

/// An outstanding connect to any endpoint may be at that of the repeated one. A connect that begins in the
/// meantime waits too.
#[test]
fn repeated_and_new_connects_wait_for_the_answers_to_others() {
    let nexus = Nexus::bind_with("mem://127.0.0.1:0", Config::default()).unwrap();
    let [mut server, mut slow, mut client] = endpoints(&nexus);
    server.on(1, |_, _| {});
    slow.on(1, |_, _| {});
    let _ = (server.poll(), slow.poll());
    let (any, to) = (nexus.local_uri(), format!("{}/0", nexus.local_uri()));
    let ended = client.connect(&to).unwrap();
    let mut sessions = [&to, &any, &any].map(|uri| client.connect(uri).unwrap()).to_vec();
    send_requests(&mut client, &[&[ended], &sessions[..]].concat());
    client.close(ended);
    drive_until(&mut client, &mut server, |client, _| {
        client.connections.dialing.iter().any(|d| d.repeats > 0)
    });
    let later = client.connect(&to).unwrap();
    sessions.push(later);
    let is_held = |client: &Memory, session| {
        let dialing = &client.connections.dialing;
        dialing.iter().any(|d| d.session == session && d.held_by().is_some())
    };
    while !is_held(&client, later) {
        client.poll();
        assert_ne!(client.session_state(later), SessionState::Connected);
    }
    assert!(is_held(&client, sessions[0]));
    finish_connect(&mut client, &mut slow, sessions[2]);
    for session in sessions {
        finish_connect(&mut client, &mut server, session);
    }
}

/// A connect to the server that does not answer has no effect on the peers of another endpoint.
#[test]
fn a_repeated_connect_does_not_wait_for_another_endpoint() {
    let nexus = Nexus::bind_with("mem://127.0.0.1:0", Config::default()).unwrap();
    let [mut server, mut stuck, mut client] = endpoints(&nexus);
    server.on(1, |_, _| {});
    stuck.on(1, |_, _| {});
    let _ = (server.poll(), stuck.poll());
    let [to, to_stuck] = [0, 1].map(|index| format!("{}/{index}", nexus.local_uri()));
    let ended = client.connect(&to).unwrap();
    let repeated = client.connect(&to).unwrap();
    let waits = client.connect(&to_stuck).unwrap();
    send_requests(&mut client, &[ended, repeated, waits]);
    client.close(ended);
    finish_connect(&mut client, &mut server, repeated);
    assert_eq!(client.session_state(waits), SessionState::Connecting);
    finish_connect(&mut client, &mut stuck, waits);
}

/// An ended connect, in the mailbox of an ended endpoint, comes to another one after a later connect with
/// the same number of its peer.
#[test]
fn a_connect_succeeds_although_an_ended_one_arrived_late_with_its_peers_number() {
    let nexus = Nexus::bind_with("mem://127.0.0.1:0", Config::default()).unwrap();
    let [mut server, mut ending, mut client] = endpoints(&nexus);
    server.on(1, |_, _| {});
    ending.on(1, |_, _| {});
    let _ = (server.poll(), ending.poll());
    let any = nexus.local_uri();
    let first = client.connect(&any).unwrap();
    finish_connect(&mut client, &mut server, first);
    client.close(first);
    drive_until(&mut client, &mut server, |_, server| server.core.proto.live_sessions() == 0);
    let late = client.connect(&any).unwrap();
    send_requests(&mut client, &[late]);
    while ending.mailbox.mail() == 0 {
        std::thread::yield_now();
    }
    client.close(late);
    let second = client.connect(&any).unwrap();
    finish_connect(&mut client, &mut server, second);
    drop(ending);
    while server.mailbox.mail() == 0 {
        std::thread::yield_now();
    }
    let third = client.connect(&any).unwrap();
    finish_connect(&mut client, &mut server, third);
    drive_until(&mut client, &mut server, |_, server| server.core.proto.live_sessions() == 2);
}
