//! Requests for more memory than a server has (ADR 36).

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use courser::{Context, MsgBuf, Nexus, Rpc, SessionId, SessionState};
use courser_sim::fabric::Topology;
use courser_sim::{HostId, World, WorldConfig};

const STORE: u16 = 1;
const SERVER: HostId = HostId(0);
const SIZE: usize = 1 << 20;

/// A client that keeps a number of calls open. None of them may end with an error.
struct Client {
    sessions: Vec<SessionId>,
    next: usize,
    /// Calls that are to be made.
    left: u32,
    done: u32,
}

type Shared = Rc<RefCell<Client>>;

fn make(client: &Shared, cx: &mut Context<'_>, request: MsgBuf) {
    let session = {
        let mut c = client.borrow_mut();
        c.next += 1;
        c.sessions[c.next % c.sessions.len()]
    };
    let shared = client.clone();
    cx.call(session, STORE, request, move |cx, done| match done.result {
        Ok(_) => {
            let more = {
                let mut c = shared.borrow_mut();
                c.done += 1;
                let more = c.left > 0;
                c.left -= u32::from(more);
                more
            };
            if more {
                make(&shared, cx, done.request);
            }
        }
        Err(e) => panic!("{e}"),
    })
    .unwrap();
}

/// Makes calls from clients that keep `open` of them open each, to a server with this memory.
/// Returns the time that they take, ns, and how often a call was refused and made again.
fn run(clients: u32, open: u32, calls: u32, memory: usize) -> (u64, u64) {
    let mut config = WorldConfig::new(1, Topology::one_switch(clients + 1));
    config.nexus.memory_limit = memory;
    config.nexus.max_held_per_peer = memory;
    let mut world = World::new(config).unwrap();
    world
        .start(SERVER, |nexus: &Nexus| -> Result<Rpc, courser::BindError> {
            let mut rpc = nexus.endpoint()?;
            rpc.on(STORE, |cx, req| {
                assert!(req.len() == SIZE && req[0] == 7 && req[SIZE - 1] == 7);
                cx.reply([1]);
            });
            Ok(rpc)
        })
        .unwrap();
    let uri = world.uri(SERVER);
    let mut all: Vec<Shared> = Vec::new();
    for host in (1..=clients).map(HostId) {
        world.start(host, |nexus: &Nexus| nexus.endpoint()).unwrap();
        let sessions: Vec<_> =
            (0..open.div_ceil(16)).map(|_| world.rpc(host).connect(&uri).unwrap()).collect();
        let ready = world.run_until(Duration::from_millis(10), |w| {
            sessions.iter().all(|&s| w.rpc(host).session_state(s) == SessionState::Connected)
        });
        assert!(ready, "not connected");
        let left = calls - open;
        let client = Client { sessions, next: 0, left, done: 0 };
        all.push(Rc::new(RefCell::new(client)));
    }
    let begin_ns = world.now_ns();
    for (host, client) in (1..).map(HostId).zip(&all) {
        for _ in 0..open {
            let rpc = world.rpc(host);
            let mut request = rpc.alloc(SIZE).unwrap();
            request.fill(7);
            make(client, &mut rpc.context(), request);
        }
    }
    let ended = world.run_until(Duration::from_secs(5), |_| {
        all.iter().all(|client| client.borrow().done == calls)
    });
    assert!(ended, "calls do not end");
    let took_ns = world.now_ns() - begin_ns;
    let held_back = (1..=clients).map(|host| world.rpc(HostId(host)).stats().held_back).sum();
    (took_ns, held_back)
}

#[test]
fn requests_for_twice_the_memory_reach_the_goodput_of_enough_memory() {
    // Memory for all requests that are open, and for half of them.
    for (clients, open) in [(4, 16), (16, 4)] {
        let (enough_ns, _) = run(clients, open, 2 * open, 160 << 20);
        let (half_ns, held_back) = run(clients, open, 2 * open, 32 << 20);
        let share = enough_ns as f64 / half_ns as f64;
        println!("{clients} x {open}: {enough_ns} ns, {half_ns} ns, {share:.2}, {held_back} again");
        assert!(share >= 0.85, "{clients} clients: {share:.2}, {held_back} made again");
        // In vain is a packet for each of these, of 720 of a call.
        assert!(held_back <= 4 * u64::from(clients * open), "{held_back} made again");
    }
}

/// Bytes that the server has mapped 10 ms after a request of 1 MiB.
fn mapped_bytes(trim_after: Duration) -> usize {
    let mut config = WorldConfig::new(1, Topology::two_hosts());
    config.nexus.tuning.trim_after = trim_after;
    let mut world = World::new(config).unwrap();
    world
        .start(SERVER, |nexus: &Nexus| -> Result<Rpc, courser::BindError> {
            let mut rpc = nexus.endpoint()?;
            rpc.on(STORE, |cx, _| cx.reply([1]));
            Ok(rpc)
        })
        .unwrap();
    let uri = world.uri(SERVER);
    let client = HostId(1);
    world.start(client, |nexus: &Nexus| nexus.endpoint()).unwrap();
    let session = world.rpc(client).connect(&uri).unwrap();
    let ended = Rc::new(RefCell::new(false));
    let done = ended.clone();
    let rpc = world.rpc(client);
    let request = rpc.alloc(SIZE).unwrap();
    rpc.call(session, STORE, request, move |_, call| *done.borrow_mut() = call.result.is_ok())
        .unwrap();
    assert!(world.run_until(Duration::from_millis(50), |_| *ended.borrow()), "no answer");
    world.run_for(Duration::from_millis(10));
    world.rpc(SERVER).memory().mapped_bytes
}

#[test]
fn memory_of_large_messages_returns_after_the_set_time() {
    let (kept, returned) =
        (mapped_bytes(Duration::from_secs(5)), mapped_bytes(Duration::from_millis(1)));
    assert!(kept >= returned + SIZE, "{kept} and {returned} bytes");
}
