//! Congested worlds of the swarm: 16 to 100 hosts that send large messages as fast as they may, to
//! one host with one to eight endpoints, from one host to many, or all to all. There are no faults.
//!
//! The default control and the default loss recovery then promise three things, which are checked
//! ([`judge`]): senders with the same work have similar shares (I13), queues stay short (I14), and no
//! packet is sent again that was not lost (I12). The bounds follow from the world; they leave room for
//! what is known to be short of the targets.

mod client;
mod draw;
mod judge;
mod recorder;
mod totals;

use std::cell::RefCell;
use std::rc::Rc;

use courser::{Nexus, Rpc};

use self::client::SharedTally;
pub(super) use self::draw::Crowd;
use self::recorder::{Recorder, Seen, SharedSeen};
use self::totals::Totals;
use crate::fabric::delay_in_order;
use crate::{HostId, Packet, Rng, SetupError, Tap, Violation, World, WorldError};

/// One seed in this number is a congested world.
const SHARE: u64 = 16;

/// The seeds of congested worlds leave this remainder. No seed that has ever failed does.
const REMAINDER: u64 = 11;

/// Returns whether a seed is a congested world.
pub(super) fn is_crowd(seed: u64) -> bool {
    seed % SHARE == REMAINDER
}

/// A congested world that has run.
#[derive(Debug)]
pub(super) struct Played {
    pub(super) calls: u64,
    pub(super) packets: u64,
    pub(super) digest: u64,
    pub(super) virtual_ns: u64,
    pub(super) violation: Option<Violation>,
}

/// Runs a congested world.
///
/// # Errors
/// The world is invalid, or an application could not be started.
pub(super) fn play(
    crowd: &Crowd,
    tap: impl FnOnce(&mut World) -> Option<Box<dyn Tap>>,
) -> Result<Played, WorldError> {
    let idle = Run::new(&crowd.idle(), |_| None)?;
    let base_rtt_ns = idle.seen.borrow().rtts.quantile_ns(0.5).unwrap_or(0);
    let mut run = Run::new(crowd, tap)?;
    let totals = Totals::of(&run.world, crowd, &run.tally.borrow());
    for (invariant, detail) in judge::judge(crowd, base_rtt_ns, &run.seen.borrow(), &totals) {
        run.world.violate(invariant, detail);
    }
    Ok(Played {
        calls: totals.calls,
        packets: run.world.counts().sent,
        digest: run.world.digest(),
        virtual_ns: run.world.now_ns(),
        violation: run.world.violations().first().cloned(),
    })
}

/// A world that has run.
struct Run {
    world: World,
    seen: SharedSeen,
    tally: SharedTally,
}

impl Run {
    fn new(
        crowd: &Crowd,
        tap: impl FnOnce(&mut World) -> Option<Box<dyn Tap>>,
    ) -> Result<Run, WorldError> {
        let mut world = World::new(crowd.world.clone())?;
        let seen = Rc::new(RefCell::new(Seen::new(crowd)));
        let inner = tap(&mut world);
        world.set_tap(Box::new(Recorder { seen: Rc::clone(&seen), inner }));
        let tally = SharedTally::default();
        start(&mut world, crowd, &tally)?;
        delay(&mut world, crowd);
        world.run_to(crowd.warm_up_ns);
        seen.borrow_mut().restart();
        world.run_to(crowd.end_ns);
        Ok(Run { world, seen, tally })
    }
}

/// Starts all processes. Each is a server with all of its endpoints; the first is a client too.
fn start(world: &mut World, crowd: &Crowd, tally: &SharedTally) -> Result<(), WorldError> {
    for host in world.hosts() {
        let (crowd, tally) = (crowd.clone(), Rc::clone(tally));
        let setup = move |nexus: &Nexus| -> Result<Vec<Rpc>, SetupError> {
            let endpoints = crowd.endpoints_of(host.0);
            let mut rpcs =
                (0..endpoints).map(|_| client::server(nexus)).collect::<Result<Vec<_>, _>>()?;
            client::start(&mut rpcs[0], &crowd, host.0, &tally)?;
            Ok(rpcs)
        };
        world.start(host, setup)?;
    }
    Ok(())
}

/// Delays the frames that arrive at a host, each by a random time, in order.
fn delay(world: &mut World, crowd: &Crowd) {
    let most_ns = crowd.jitter_ns;
    if most_ns == 0 {
        return;
    }
    let hosts: Vec<HostId> = world.hosts().collect();
    for host in hosts {
        let link = world.fabric().uplink(host).reverse();
        let mut rng = Rng::stream(crowd.seed, draw::purpose::JITTER + u64::from(host.0));
        let rate_bps = crowd.rate_bps;
        let wire_ns =
            move |packet: &Packet| u64::from(packet.wire_bytes()) * 8_000_000_000 / rate_bps;
        world.set_link_rule(link, Some(delay_in_order(move || rng.below(most_ns), wire_ns)));
    }
}
