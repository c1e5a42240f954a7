//! The program that `scripts/visited.sh` counts the functions of: it is built as an example of the
//! crate `courser` in a copy of the tree, and run under callgrind.
//!
//! Usage: `visited rpcs COUNT` (small RPCs, one after the other) or `visited idle COUNT` (passes of
//! both event loops that find nothing).

#[path = "../tests/api/virtual_time/machine.rs"]
#[allow(dead_code)]
mod machine;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use courser::{Completion, Config, Context, SessionId, SessionState};
use machine::World;

const ECHO: u16 = 1;
const WARM_UP: u64 = 300;
/// Time from a side's pass to the next pass of the other side, ns. Virtual time passes by it alone, so
/// that a run does not depend on the speed or the load of the machine.
const STEP_NS: u64 = 1_000;

type Failure = Box<dyn std::error::Error>;

/// The continuation, outside of [`one_rpc`]: callgrind must not take it for that.
fn continuation(done: &Rc<Cell<u64>>) -> impl FnOnce(&mut Context<'_>, Completion<'_>) + use<> {
    let done = done.clone();
    move |_, ended| {
        assert_eq!(ended.result.map(|response| response.len()), Ok(32));
        done.set(done.get() + 1);
    }
}

/// A pass of the event loop of an endpoint, after the time of a step.
fn pass(world: &mut World, endpoint: usize) {
    world.advance(STEP_NS);
    world.rpc(endpoint).poll();
}

/// One small RPC: what is called in here is counted.
#[inline(never)]
fn one_rpc(world: &mut World, ends: [usize; 2], session: SessionId, done: &Rc<Cell<u64>>) {
    let [client, server] = ends;
    let before = done.get();
    let rpc = world.rpc(client);
    let request = rpc.alloc(32).expect("memory");
    rpc.call(session, ECHO, request, continuation(done)).expect("the session is connected");
    loop {
        pass(world, client);
        if done.get() > before {
            break;
        }
        pass(world, server);
    }
}

/// One pass of both event loops that finds nothing.
#[inline(never)]
fn idle_passes(world: &mut World, [client, server]: [usize; 2]) {
    pass(world, client);
    pass(world, server);
}

/// Settings under which nothing but the RPCs happens in a run.
fn config() -> Config {
    let never = Duration::from_secs(60);
    Config {
        connect_timeout: never,
        rto: (never, never),
        idle_after: never,
        failure_timeout: never,
        ..Config::default()
    }
}

fn main() -> Result<(), Failure> {
    let usage = "usage: visited (rpcs | idle) COUNT";
    let mut args = std::env::args().skip(1);
    let (mode, count) = (args.next().ok_or(usage)?, args.next().ok_or(usage)?);
    let count: u64 = count.parse()?;

    let mut world = World::new();
    world.traced = false;
    let server_nexus = world.nexus(config());
    let mut server = server_nexus.endpoint()?;
    server.on(ECHO, |cx, request| cx.reply(request));
    let server = world.seat(server);
    let nexus = world.nexus(config());
    let client = world.seat(nexus.endpoint()?);
    let session = world.rpc(client).connect("mem://n0:31850")?;
    world.run_for(1_000_000);
    assert_eq!(world.rpc(client).session_state(session), SessionState::Connected);

    let done = Rc::new(Cell::new(0));
    for _ in 0..WARM_UP + if mode == "rpcs" { count } else { 0 } {
        one_rpc(&mut world, [client, server], session, &done);
    }
    for _ in 0..if mode == "idle" { count } else { 0 } {
        idle_passes(&mut world, [client, server]);
    }
    println!("{} RPCs", done.get());
    Ok(())
}
