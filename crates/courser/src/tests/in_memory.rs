//! Endpoints over memory, for unit tests.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use courser_net::{MemConfig, MemNetwork, MemTransport};
use courser_proto::{SessionId, SessionState};

use crate::{Nexus, Rpc};

pub(crate) type Memory = Rpc<MemTransport>;

/// Endpoints of one nexus, which reach each other in memory.
pub(crate) fn endpoints<const N: usize>(nexus: &Nexus) -> [Memory; N] {
    let network = MemNetwork::new();
    let host = u128::from(Ipv4Addr::LOCALHOST.to_ipv6_mapped());
    let transport = || network.endpoint(MemConfig { host, ..MemConfig::default() }).unwrap();
    std::array::from_fn(|_| nexus.endpoint_on(transport()).unwrap())
}

/// Drives both endpoints until `done`.
pub(crate) fn drive_until(
    client: &mut Memory,
    server: &mut Memory,
    done: impl Fn(&Memory, &Memory) -> bool,
) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done(client, server) {
        assert!(Instant::now() < end, "the endpoints do not get there");
        let _ = (client.poll(), server.poll());
    }
}

/// Connects to the server, and waits until it has answered.
pub(crate) fn connect(client: &mut Memory, server: &mut Memory, uri: &str) -> SessionId {
    let session = client.connect(uri).unwrap();
    finish_connect(client, server, session);
    session
}

/// Waits for the answer to a connect.
pub(crate) fn finish_connect(client: &mut Memory, server: &mut Memory, session: SessionId) {
    drive_until(client, server, |client, _| {
        client.session_state(session) != SessionState::Connecting
    });
    assert_eq!(client.session_error(session).map(|e| e.to_string()), None);
}
