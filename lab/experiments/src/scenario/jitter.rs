//! Delays of hosts: a frame that has arrived is received later.

use courser_sim::fabric::{Crossing, Fate};
use courser_sim::{LinkId, Packet, Rng, World};

use super::wire_ns;

/// Delays every frame of a link by up to `most_ns`, in order: one that is drawn a shorter time waits for
/// those before it, as in a receive queue.
pub(crate) fn delay_at_receiver(world: &mut World, link: LinkId, most_ns: u64, mut rng: Rng) {
    let rate_bps = world.fabric().cable(link).rate_bps;
    let mut free_ns = 0;
    let rule = move |packet: &Packet, crossing: &Crossing| {
        let at_ns = free_ns.max(crossing.now_ns + rng.between(0, most_ns));
        free_ns = at_ns + wire_ns(packet.wire_bytes().into(), rate_bps);
        Some(Fate::DelayInHost(at_ns - crossing.now_ns))
    };
    world.set_link_rule(link, Some(Box::new(rule)));
}
