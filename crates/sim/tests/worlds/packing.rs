//! Batching within a latency budget (S13, S21): what waiting for more packets costs, and whom.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use courser::{BindError, Context, Nexus, Packing, Rpc, SessionId, SessionState};
use courser_sim::fabric::Topology;
use courser_sim::{HostId, World, WorldConfig};

const ECHO: u16 = 1;
const MS: Duration = Duration::from_millis(1);

/// Destinations of host 0.
const PEERS: u32 = 16;

/// An iteration of the event loop with the costs of these worlds, ns.
const ITERATION: u64 = 1_000;

fn echo(nexus: &Nexus) -> Result<Rpc, BindError> {
    let mut rpc = nexus.endpoint()?;
    rpc.on(ECHO, |cx, req| cx.reply(req));
    Ok(rpc)
}

/// Times at which host 0 calls.
const CALLS: u64 = 2_000;

type RoundTrips = Rc<RefCell<Vec<Vec<u64>>>>;

/// Round trips of calls to each destination, ns, and the frames that host 0 has sent for them.
struct Seen {
    round_trips: Vec<Vec<u64>>,
    frames: u64,
}

impl Seen {
    fn p99_ns(&self, peers: std::ops::Range<usize>) -> u64 {
        let mut all: Vec<u64> = self.round_trips[peers].iter().flatten().copied().collect();
        all.sort_unstable();
        all[all.len() * 99 / 100]
    }
}

/// Host 0 calls all others in turn, every `gap_ns`, with `burst` calls at a time to each. The last
/// destination pauses meanwhile, or not.
fn run(budget: Duration, packing: Packing, (gap_ns, burst): (u64, usize), pauses: bool) -> Seen {
    let mut config = WorldConfig::new(3, Topology::one_switch(1 + PEERS));
    (config.nexus.batch_budget, config.nexus.packing) = (budget, Some(packing));
    let mut w = World::new(config).unwrap();
    for host in w.hosts() {
        w.start(host, echo).unwrap();
    }
    let sessions: Vec<_> = (1..=PEERS).map(|peer| connect(&mut w, HostId(peer))).collect();
    let seen: RoundTrips = Rc::new(RefCell::new(vec![Vec::new(); sessions.len()]));
    if pauses {
        w.pause(HostId(PEERS), 5 * MS);
    }
    let frames = w.rpc(HostId(0)).stats().tx_frames;
    for at in 0..CALLS {
        let peer = (at % u64::from(PEERS)) as usize;
        let (session, seen) = (sessions[peer], seen.clone());
        w.rpc(HostId(0)).context().after(Duration::from_nanos(at * gap_ns), move |cx| {
            (0..burst).for_each(|_| call(cx, session, peer, &seen));
        });
    }
    w.run_for(20 * MS);
    assert!(w.violations().is_empty(), "{:?}", w.violations());
    let frames = w.rpc(HostId(0)).stats().tx_frames - frames;
    eprintln!(
        "{packing}, {burst} within {budget:?}, one pauses {pauses}: retransmitted {}",
        w.rpc(HostId(0)).stats().retransmitted
    );
    let round_trips = seen.take();
    let ended: usize = round_trips.iter().map(Vec::len).sum();
    assert_eq!(ended, CALLS as usize * burst);
    Seen { round_trips, frames }
}

fn connect(w: &mut World, server: HostId) -> SessionId {
    let uri = w.uri(server);
    let s = w.rpc(HostId(0)).connect(&uri).unwrap();
    let is_up = |w: &mut World| w.rpc(HostId(0)).session_state(s) == SessionState::Connected;
    assert!(w.run_until(MS * 10, is_up), "no session after 10 ms");
    s
}

fn call(cx: &mut Context<'_>, session: SessionId, peer: usize, seen: &RoundTrips) {
    let (seen, begin_ns) = (seen.clone(), cx.now_ns());
    let request = cx.alloc(128).unwrap();
    cx.call(session, ECHO, request, move |cx, done| {
        done.result.expect("an answer");
        seen.borrow_mut()[peer].push(cx.now_ns() - begin_ns);
    })
    .unwrap();
}

const ALL: std::ops::Range<usize> = 0..PEERS as usize;

/// A call waits at most for the budget of either side, and a pass of each event loop.
#[test]
fn waiting_adds_at_most_the_budget_to_the_99th_percentile() {
    for packing in Packing::ALL {
        for burst in [1, 4] {
            let at_once = run(Duration::ZERO, packing, (1_500, burst), false);
            for budget_us in [1, 5, 20, 100] {
                let budget = Duration::from_micros(budget_us);
                let waits = run(budget, packing, (1_500, burst), false);
                let added_ns = waits.p99_ns(ALL).saturating_sub(at_once.p99_ns(ALL));
                let budgets_ns = 2 * (budget_us * 1_000 + ITERATION);
                assert!(added_ns <= budgets_ns, "{packing}, {burst} by {budget_us} us: {added_ns}");
                if packing == Packing::Off {
                    assert_eq!(waits.p99_ns(ALL), at_once.p99_ns(ALL), "nothing to wait for");
                }
            }
            // A destination has a burst every 24 us.
            let long = run(Duration::from_micros(100), packing, (1_500, burst), false);
            let fewer = if packing == Packing::Off { 1 } else { 2 };
            assert!(long.frames * fewer <= at_once.frames, "{packing}: {}", long.frames);
        }
    }
}

/// A destination that does not answer, so that calls to it have no credits, delays no others.
#[test]
fn a_paused_destination_delays_no_other() {
    for packing in Packing::ALL {
        for budget_us in [0, 20] {
            let budget = Duration::from_micros(budget_us);
            let [beside, alone] = [true, false].map(|pauses| {
                run(budget, packing, (1_500, 4), pauses).p99_ns(0..PEERS as usize - 1)
            });
            assert!(beside * 10 <= alone * 11, "{packing}, {budget_us} us: {beside}, {alone}");
        }
    }
}
