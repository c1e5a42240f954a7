//! A replicated counter on five nodes, tested under partitions: `cargo run --example counter`.
use courser::{BindError, Context, Nexus, Rpc, SessionId, SessionState};
use courser_sim::{World, WorldConfig, fabric::Topology};
use std::{cell::RefCell, rc::Rc, time::Duration};

const N: usize = 5;
const MERGE: u16 = 1;
const MS: Duration = Duration::from_millis(1);

/// How often each node has counted; the counter is the sum. Merging takes the larger count of each
/// node.
type Counts = Rc<RefCell<[u64; N]>>;

fn node(nexus: &Nexus, me: usize, counts: Counts) -> Result<Rpc, BindError> {
    let mut rpc = nexus.endpoint()?;
    tick(&mut rpc.context(), me, counts.clone(), [None; N]);
    rpc.on(MERGE, move |cx, req| {
        for (n, theirs) in counts.borrow_mut().iter_mut().zip(req.as_chunks::<8>().0) {
            *n = u64::from_le_bytes(*theirs).max(*n);
        }
        cx.reply(&b"merged"[..]);
    });
    Ok(rpc)
}

/// Every millisecond: count, and send the counts to all. Failed sessions are connected again.
fn tick(cx: &mut Context<'_>, me: usize, counts: Counts, mut sessions: [Option<SessionId>; N]) {
    counts.borrow_mut()[me] += me as u64 * u64::from(cx.now_ns() < 500_000_000);
    for peer in (0..N).filter(|&peer| peer != me) {
        let session = sessions[peer].filter(|&s| cx.session_state(s) != SessionState::Gone);
        sessions[peer] = session.or_else(|| cx.connect(&format!("sim://n{peer}:31850")).ok());
        let (Some(session), Ok(mut m)) = (sessions[peer], cx.alloc(8 * N)) else { continue };
        m.copy_from_slice(counts.borrow().map(u64::to_le_bytes).as_flattened());
        let _ = cx.call(session, MERGE, m, |_, _| {}); // the next millisecond repeats it
    }
    cx.after(MS, move |cx| tick(cx, me, counts, sessions));
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for seed in 0..20 {
        let mut world = World::new(WorldConfig::new(seed, Topology::one_switch(N as u32)))?;
        let all: [Counts; N] = Default::default();
        for (me, host) in world.hosts().enumerate() {
            let counts = all[me].clone();
            world.start(host, move |nexus| node(nexus, me, counts.clone()))?;
        }
        for _ in 0..10 {
            let side: Vec<_> = world.hosts().filter(|_| world.rng().chance_ppm(500_000)).collect();
            world.partition(&[&side]);
            world.run_for(MS * 40);
            world.heal();
            world.run_for(MS * 10);
        }
        world.run_for(MS * 1000);
        let own: Vec<u64> = (0..N).map(|me| all[me].borrow()[me]).collect();
        assert!(all.iter().all(|counts| *counts.borrow() == own[..]), "seed {seed}: {all:?}");
    }
    println!("20 worlds: in each, all nodes have counted the same");
    Ok(())
}
