//! The hosts outside: each sends plain packets on its line at random, and takes those that leave.

use std::cell::RefCell;
use std::rc::Rc;

use super::super::web_search::gap_ns;
use super::tally::{Head, PLAIN_HEAD, SharedTally};
use super::{Matrix, Settings, Shape};
use crate::{HostId, Rng, STORED_OVERHEAD, World};

/// A host outside.
struct Line {
    settings: Settings,
    number: u32,
    rng: Rng,
    /// When the next packet arrives at its cable, ns.
    next_ns: f64,
    /// End of the packet on the cable, ns.
    free_ns: u64,
    end_ns: u64,
    tally: SharedTally,
}

type SharedLine = Rc<RefCell<Line>>;

/// Bytes of the payload of a plain packet.
fn payload(settings: &Settings) -> usize {
    ((settings.packet_bytes - STORED_OVERHEAD) as usize).max(PLAIN_HEAD)
}

/// Starts all lines, which send until `end_ns`.
pub(super) fn start(world: &mut World, settings: &Settings, tally: &SharedTally, end_ns: u64) {
    for number in 0..settings.nodes {
        let sink = Rc::clone(tally);
        let take = move |now_ns, bytes: &[u8]| {
            if let Some(head) = Head::read(bytes) {
                sink.borrow_mut().leaves(&head, now_ns);
            }
        };
        world.set_sink(outside(settings, number), Box::new(take));
        let line = Line {
            settings: *settings,
            number,
            rng: Rng::stream(settings.hosts.seed, 0x11e5 << 32 | u64::from(number)),
            next_ns: world.now_ns() as f64,
            free_ns: 0,
            end_ns,
            tally: Rc::clone(tally),
        };
        wait(world, Rc::new(RefCell::new(line)));
    }
}

/// The host outside of a line.
pub(super) fn outside(settings: &Settings, line: u32) -> HostId {
    HostId(settings.nodes + line)
}

/// Waits for the next packet, and for the cable.
fn wait(world: &mut World, line: SharedLine) {
    let at_ns = {
        let mut l = line.borrow_mut();
        let mean_ns = l.settings.mean_gap_ns();
        l.next_ns += gap_ns(&mut l.rng, mean_ns);
        (l.next_ns as u64).max(l.free_ns)
    };
    if at_ns < line.borrow().end_ns {
        world.at(at_ns, move |world| send(world, line));
    }
}

fn send(world: &mut World, line: SharedLine) {
    let now_ns = world.now_ns();
    let host = { outside(&line.borrow().settings, line.borrow().number) };
    if !world.fabric().host_port_is_free(host) {
        // The cable keeps fractions of a nanosecond, so that it may be busy until the next one.
        return world.at(now_ns + 1, move |world| send(world, line));
    }
    let mut guard = line.borrow_mut();
    let l = &mut *guard;
    let Settings { nodes, cores, .. } = l.settings;
    let to = match l.settings.matrix {
        // Any other one.
        Matrix::Uniform => (l.number + 1 + l.rng.below(u64::from(nodes - 1)) as u32) % nodes,
        Matrix::Neighbour => (l.number + 1) % nodes,
    };
    // The switch divides packets among nodes, and each NIC among its threads, by a hash of a flow.
    let first = match l.settings.topology {
        Shape::Mixed => l.rng.below(u64::from(nodes)) as u32,
        Shape::Mesh | Shape::Switch => l.number,
    };
    let core = l.rng.below(u64::from(cores)) as u32;
    let mut bytes = vec![0; payload(&l.settings)];
    Head::new(now_ns, to).write(&mut bytes);
    // The cable is free: there is only this one.
    let sent = world.send_plain(host, HostId(first), core, bytes);
    debug_assert!(sent.is_ok());
    l.free_ns = now_ns + l.settings.wire_ns();
    l.tally.borrow_mut().sent(now_ns);
    drop(guard);
    wait(world, line);
}

/// The plain packet of a packet that leaves.
pub(super) fn plain(settings: &Settings, head: &Head, bytes: &mut Vec<u8>) {
    bytes.clear();
    bytes.resize(payload(settings), 0);
    head.write(bytes);
}
