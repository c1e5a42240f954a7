//! The users of a connection, derived from its messages.

use std::time::{Duration, Instant};

use courser_proto::{ConnectRefuseReason, ControlMsg, EndpointRef, RemoteSession};

use crate::control::usage::Usage;

const CLIENT: EndpointRef = EndpointRef { index: 1, id: 11 };
const SERVER: EndpointRef = EndpointRef { index: 2, id: 22 };

fn accept(number: u32, first_req_num: u32) -> ControlMsg {
    let mut msg = super::support::accept(CLIENT, SERVER, number);
    if let ControlMsg::Accept { accept, .. } = &mut msg {
        accept.session.first_req_num = first_req_num;
    }
    msg
}

fn disconnect(number: u32, first_req_num: u32) -> ControlMsg {
    let session = RemoteSession { number, first_req_num };
    ControlMsg::Disconnect { from: CLIENT, to: SERVER, session }
}

fn evicted(server_session: u32) -> ControlMsg {
    ControlMsg::Evicted { to: CLIENT, from: SERVER, session: 0, server_session }
}

#[test]
fn an_eviction_that_crosses_a_disconnect_ends_one_session() {
    let now = Instant::now();
    let mut server = Usage::new(now);
    server.on_sent(&accept(7, 100), now);
    server.on_sent(&accept(8, 200), now);
    server.on_sent(&evicted(7), now);
    server.on_received(&disconnect(7, 100), now);
    assert_eq!(server.idle_since(), None, "the other session is live");
    // The number belongs to another session meanwhile.
    server.on_sent(&accept(7, 300), now);
    server.on_received(&disconnect(8, 200), now);
    server.on_received(&disconnect(7, 100), now);
    assert_eq!(server.idle_since(), None);
    server.on_received(&disconnect(7, 300), now);
    assert_eq!(server.idle_since(), Some(now));
}

#[test]
fn messages_about_no_session_are_no_use() {
    let begin = Instant::now();
    let later = begin + Duration::from_secs(9);
    let mut usage = Usage::new(begin);
    let reason = ConnectRefuseReason::ShuttingDown;
    for msg in [
        disconnect(7, 100),
        evicted(7),
        accept(7, 100),
        ControlMsg::Refuse { to: CLIENT, session: 0, client_cookie: 0, reason },
        ControlMsg::EndpointGone { from: CLIENT },
        ControlMsg::Ping,
    ] {
        usage.on_received(&msg, later);
        assert_eq!(usage.idle_since(), Some(begin), "{msg:?}");
    }
    usage.on_sent(&accept(7, 100), begin);
    usage.on_received(&ControlMsg::EndpointGone { from: CLIENT }, later);
    assert_eq!(usage.idle_since(), Some(later), "that one had a session");
}
