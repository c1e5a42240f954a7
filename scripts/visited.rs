//! The program that `scripts/visited.sh` counts the functions of: it is built as an example of the
//! crate `courser` in a copy of the tree, and run under callgrind.
//!
//! Usage: `visited rpcs COUNT` (small RPCs, one after the other) or `visited idle COUNT` (passes of
//! both event loops that find nothing).

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use courser_net::{MemConfig, MemNetwork, MemTransport};
use courser::{Completion, Config, Context, Nexus, Rpc, SessionId, SessionState, Tuning};

const ECHO: u16 = 1;
const WARM_UP: u64 = 300;
/// A request is under way for so long that nothing else takes time: what an endpoint does when it has
/// waited for twice a round trip is not done by each RPC, on a machine of any speed.
const ON_THE_WAY: Duration = Duration::from_millis(1);

type Failure = Box<dyn std::error::Error>;
type Endpoint = Rpc<MemTransport>;

/// The continuation, outside of [`one_rpc`]: callgrind must not take it for that.
fn continuation(done: &Rc<Cell<u64>>) -> impl FnOnce(&mut Context<'_>, Completion<'_>) + use<> {
    let done = done.clone();
    move |_, ended| {
        assert_eq!(ended.result.map(|response| response.len()), Ok(32));
        done.set(done.get() + 1);
    }
}

/// One small RPC: what is called in here is counted.
#[inline(never)]
fn one_rpc(client: &mut Endpoint, server: &mut Endpoint, session: SessionId, done: &Rc<Cell<u64>>) {
    let before = done.get();
    let request = client.alloc(32).expect("memory");
    client.call(session, ECHO, request, continuation(done)).expect("the session is connected");
    loop {
        client.poll();
        if done.get() > before {
            break;
        }
        std::thread::sleep(ON_THE_WAY);
        server.poll();
    }
}

/// One pass of both event loops that finds nothing.
#[inline(never)]
fn idle_passes(client: &mut Endpoint, server: &mut Endpoint) {
    std::thread::sleep(ON_THE_WAY);
    client.poll();
    server.poll();
}

/// Settings under which nothing happens because of the time that callgrind takes.
fn config() -> Config {
    let never = Duration::from_secs(60);
    Config {
        connect_timeout: never,
        rto: (never, never),
        idle_after: never,
        failure_timeout: never,
        // Without optimisation round trips vary as much as queues would make them; the time of eight
        // packets on such a link is longer.
        tuning: Tuning { line_rate_bps: 10_000_000, ..Tuning::default() },
        ..Config::default()
    }
}

fn main() -> Result<(), Failure> {
    let usage = "usage: visited (rpcs | idle) COUNT";
    let mut args = std::env::args().skip(1);
    let (mode, count) = (args.next().ok_or(usage)?, args.next().ok_or(usage)?);
    let count: u64 = count.parse()?;

    let network = MemNetwork::new();
    let host = u128::from(std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped());
    let transport = || network.endpoint(MemConfig { host, ..MemConfig::default() });
    let server_nexus = Nexus::bind_with("mem://127.0.0.1:0", config())?;
    let mut server = server_nexus.endpoint_on(transport()?)?;
    server.on(ECHO, |cx, request| cx.reply(request));
    let nexus = Nexus::bind_with("mem://127.0.0.1:0", config())?;
    let mut client = nexus.endpoint_on(transport()?)?;
    let session = client.connect(&server_nexus.local_uri())?;
    while client.session_state(session) == SessionState::Connecting {
        client.poll();
        server.poll();
    }

    let done = Rc::new(Cell::new(0));
    for _ in 0..WARM_UP + if mode == "rpcs" { count } else { 0 } {
        one_rpc(&mut client, &mut server, session, &done);
    }
    for _ in 0..if mode == "idle" { count } else { 0 } {
        idle_passes(&mut client, &mut server);
    }
    println!("{} RPCs", done.get());
    Ok(())
}
