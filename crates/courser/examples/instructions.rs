//! Small RPCs over the in-memory transport, client and server on one thread, for counting
//! instructions: `scripts/instructions.sh` runs this under callgrind, which gives the same number
//! on a noisy machine.
//!
//! Usage: `instructions RPCS` (with 60 in flight on 8 sessions, 32 bytes each way).

use std::cell::Cell;
use std::rc::Rc;

use courser::parts::net::{MemConfig, MemNetwork};
use courser::{Nexus, Rpc, Transport};

const ECHO: u16 = 1;
const SESSIONS: usize = 8;
const IN_FLIGHT: u64 = 60;

/// Everything the client does in one pass of its event loop, continuations included.
#[inline(never)]
fn client_pass<T: Transport>(rpc: &mut Rpc<T>) {
    // The two functions must differ, or the compiler makes one of them.
    std::hint::black_box("client");
    rpc.poll();
}

/// Everything the server does in one pass, the handler included.
#[inline(never)]
fn server_pass<T: Transport>(rpc: &mut Rpc<T>) {
    std::hint::black_box("server side");
    rpc.poll();
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rpcs: u64 = std::env::args().nth(1).ok_or("usage: instructions RPCS")?.parse()?;
    let network = MemNetwork::new();
    let server_nexus = Nexus::bind("mem://127.0.0.1:0")?;
    let loopback = u128::from(std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped());
    let config = MemConfig { host: loopback, ..MemConfig::default() };
    let mut server = server_nexus.endpoint_on(network.endpoint(config)?)?;
    server.on(ECHO, |cx, req| cx.reply(req));
    let nexus = Nexus::bind("mem://127.0.0.1:0")?;
    let mut client = nexus.endpoint_on(network.endpoint(config)?)?;

    let mut sessions = Vec::new();
    for _ in 0..SESSIONS {
        let session = client.connect(&server_nexus.local_uri())?;
        while client.session_state(session) == courser::SessionState::Connecting {
            client.poll();
            server.poll();
        }
        if let Some(e) = client.session_error(session) {
            return Err(e.into());
        }
        sessions.push(session);
    }

    let done = Rc::new(Cell::new(0_u64));
    let count = done.clone();
    client.on_completion(move |cx, tag, ended| {
        assert_eq!(ended.result.map(|r| r.len()), Ok(32));
        count.set(count.get() + 1);
        if count.get() + IN_FLIGHT <= rpcs
            && let Err(e) = cx.call_tagged(ended.session, ECHO, ended.request, tag)
        {
            panic!("{e}");
        }
    });
    for i in 0..IN_FLIGHT.min(rpcs) {
        let request = client.alloc(32)?;
        client.call_tagged(sessions[i as usize % SESSIONS], ECHO, request, i)?;
    }
    while done.get() < rpcs {
        client_pass(&mut client);
        server_pass(&mut server);
    }
    println!("{} RPCs", done.get());
    Ok(())
}
