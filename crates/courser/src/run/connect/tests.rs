//! Connects that overlap with the ends of other sessions.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use courser_net::{MemConfig, MemNetwork, MemTransport};
use courser_proto::{SessionId, SessionState};

use crate::{Config, Nexus, Rpc};

type Memory = Rpc<MemTransport>;

fn endpoints<const N: usize>(nexus: &Nexus) -> [Memory; N] {
    let network = MemNetwork::new();
    let host = u128::from(Ipv4Addr::LOCALHOST.to_ipv6_mapped());
    let transport = || network.endpoint(MemConfig { host, ..MemConfig::default() }).unwrap();
    std::array::from_fn(|_| nexus.endpoint_on(transport()).unwrap())
}

fn drive_until(client: &mut Memory, server: &mut Memory, done: impl Fn(&Memory, &Memory) -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !done(client, server) {
        assert!(Instant::now() < end, "it does not come");
        let _ = (client.poll(), server.poll());
    }
}

fn finish_connect(client: &mut Memory, server: &mut Memory, session: SessionId) {
    drive_until(client, server, |client, _| {
        client.session_state(session) != SessionState::Connecting
    });
    assert_eq!(client.session_error(session).map(|e| e.to_string()), None);
}

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
    let first = client.connect(&nexus.local_uri()).unwrap();
    finish_connect(&mut client, &mut server, first);
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
        let session = client.connect(&format!("{}/{index}", nexus.local_uri())).unwrap();
        finish_connect(&mut client, to[index], session);
        session
    });
    drop(ending);
    wait_for_mail(&client);
    // As a handler closes it: the pass that takes the mail sends the disconnect.
    client.core.close(first);
    drive_until(&mut client, &mut server, |_, server| server.core.proto.live_sessions() == 0);
    assert_eq!(client.session_state(second), SessionState::Gone);
}
