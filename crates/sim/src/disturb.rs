//! Random faults of hosts and network, for tests of applications: the test chooses a kind and a host, and
//! the details are drawn.
//!
//! A test disturbs its world at random times, starts again the hosts that do not run, and at the end
//! calls [`calm`], after which its application has to work again once a paused host goes on.

use std::time::Duration;

use crate::fabric::LinkFaults;
use crate::{HostId, LinkId, Rng, World};

/// A kind of fault.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Disturbance {
    /// The process of the host is killed.
    Kill,
    /// The machine of the host crashes.
    Crash,
    /// The machines of all servers crash.
    CrashAll,
    /// The network is split in two: the host and about half of the clients, and all other hosts.
    Partition,
    /// The network is whole again.
    Heal,
    /// All links lose up to 10 % of the packets, duplicate up to 5 %, delay up to 10 % by up to 2 ms each,
    /// and all by one time of up to 3 ms.
    Links,
    /// The host is paused for 10 to 800 ms.
    Pause,
    /// The clock of the host runs fast or slow by up to 5 %.
    Drift,
}

/// Disturbs a world. Hosts from number `servers` on are clients.
pub fn disturb(world: &mut World, rng: &mut Rng, kind: Disturbance, host: HostId, servers: u32) {
    match kind {
        Disturbance::Kill => world.kill(host),
        Disturbance::Crash => world.crash(host),
        Disturbance::CrashAll => (0..servers).for_each(|server| world.crash(HostId(server))),
        Disturbance::Partition => {
            let (mut left, mut right) = (Vec::new(), Vec::new());
            for other in world.hosts() {
                if other == host || (other.0 >= servers && rng.chance_ppm(500_000)) {
                    left.push(other);
                } else {
                    right.push(other);
                }
            }
            world.partition(&[&left, &right]);
        }
        Disturbance::Heal => world.heal(),
        Disturbance::Links => {
            let faults = LinkFaults {
                loss_ppm: rng.below(100_000) as u32,
                duplicate_ppm: rng.below(50_000) as u32,
                reorder_ppm: rng.below(100_000) as u32,
                reorder_max_ns: 2_000_000,
                extra_delay_ns: rng.below(3_000_000),
                ..LinkFaults::default()
            };
            set_all_links(world, faults);
        }
        Disturbance::Pause => world.pause(host, Duration::from_millis(rng.between(10, 800))),
        Disturbance::Drift => world.set_drift(host, rng.below(100_001) as i32 - 50_000),
    }
}

/// Ends partitions, faults of links and drifts. Hosts that do not run stay so, and a host that is paused
/// goes on by itself, at most 800 ms later.
pub fn calm(world: &mut World) {
    world.heal();
    set_all_links(world, LinkFaults::default());
    world.hosts().for_each(|host| world.set_drift(host, 0));
}

fn set_all_links(world: &mut World, faults: LinkFaults) {
    for link in 0..world.fabric().links() {
        world.set_link_faults(LinkId(link), faults);
    }
}
