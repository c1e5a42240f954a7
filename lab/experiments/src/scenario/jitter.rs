//! Delays of hosts: a frame that has arrived is received later.

use courser_sim::fabric::delay_in_order;
use courser_sim::{LinkId, Packet, Rng, World};

use super::wire_ns;

/// Delays every frame of a link by up to `most_ns` behind the NIC, in order.
pub(crate) fn delay_at_receiver(world: &mut World, link: LinkId, most_ns: u64, mut rng: Rng) {
    let rate_bps = world.fabric().cable(link).rate_bps;
    let apart_ns = move |packet: &Packet| wire_ns(packet.wire_bytes().into(), rate_bps);
    world.set_link_rule(link, Some(delay_in_order(move || rng.between(0, most_ns), apart_ns)));
}
