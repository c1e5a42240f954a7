//! Connects that overlap with the ends of other sessions.

use courser_proto::SessionState;

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
