//! Routes to the hosts: all shortest paths, computed once, and the choice of a flow among them.

use std::collections::{BTreeMap, VecDeque};

use super::topology::{Node, Topology, TopologyError};
use crate::{HostId, LinkId, Rng};

/// For every switch and host the links on a shortest path.
pub(super) struct Routes {
    hosts: u32,
    /// By switch, then by host: offset in `links`, and number.
    sets: Vec<(u32, u32)>,
    /// Sets of links, each set once.
    links: Vec<u32>,
    /// A number for each switch, so that consecutive switches choose independently.
    salts: Vec<u64>,
}

impl Routes {
    /// Time: hosts times cables.
    pub(super) fn new(
        topology: &Topology,
        uplinks: &[(Node, LinkId)],
        seed: u64,
    ) -> Result<Routes, TopologyError> {
        let (hosts, switches) = (topology.hosts(), topology.switches().len());
        let into = links_into_switches(topology);
        let mut interned = BTreeMap::new();
        let mut links = Vec::new();
        let mut sets = vec![(0, 0); switches * hosts as usize];
        for host in 0..hosts {
            for (switch, set) in next_links(uplinks, &into, HostId(host))?.into_iter().enumerate() {
                let place = *interned.entry(set).or_insert_with_key(|set: &Vec<u32>| {
                    let start = links.len() as u32;
                    links.extend(set);
                    (start, set.len() as u32)
                });
                sets[switch * hosts as usize + host as usize] = place;
            }
        }
        let salts = (0..switches as u64).map(|s| Rng::stream(seed, super::SALTS | s).next_u64());
        Ok(Routes { hosts, sets, links, salts: salts.collect() })
    }

    /// The link on which a switch sends a flow's packets to a host; `None` if there is no such
    /// host.
    /// host.
    pub(super) fn next(&self, switch: u32, to: HostId, flow: u32) -> Option<u32> {
        if to.0 >= self.hosts {
            return None;
        }
        let (start, count) = self.sets[(switch * self.hosts + to.0) as usize];
        if count == 1 {
            return Some(self.links[start as usize]);
        }
        let mixed = Rng::new(self.salts[switch as usize] ^ u64::from(flow)).below(u64::from(count));
        Some(self.links[start as usize + mixed as usize])
    }
}

/// Links that end in each switch and begin in a switch, as (begin, link).
fn links_into_switches(topology: &Topology) -> Vec<Vec<(u32, u32)>> {
    let mut into = vec![Vec::new(); topology.switches().len()];
    for (i, cable) in (0..).zip(topology.cables()) {
        if let (Node::Switch(a), Node::Switch(b)) = (cable.a, cable.b) {
            into[b as usize].push((a, 2 * i));
            into[a as usize].push((b, 2 * i + 1));
        }
    }
    into
}

/// For every switch the links on a shortest path to the host. `uplinks` has for every host the end
/// of its cable and the link to it.
fn next_links(
    uplinks: &[(Node, LinkId)],
    into: &[Vec<(u32, u32)>],
    to: HostId,
) -> Result<Vec<Vec<u32>>, TopologyError> {
    let mut sets = vec![Vec::new(); into.len()];
    let mut hops = vec![u32::MAX; into.len()];
    let (near, up) = uplinks[to.0 as usize];
    let first = match near {
        Node::Switch(first) => first,
        Node::Host(_) if into.is_empty() && uplinks.len() == 2 => return Ok(sets),
        Node::Host(from) => {
            // Two hosts on a cable of their own: no other host reaches them.
            let to = (0..).map(HostId).find(|&h| h != from && h != to).unwrap_or(to);
            return Err(TopologyError::Unreachable { from: near, to });
        }
    };
    sets[first as usize].push(up.reverse().0);
    hops[first as usize] = 0;
    let mut front = VecDeque::from([first]);
    while let Some(switch) = front.pop_front() {
        let next = hops[switch as usize] + 1;
        for &(begin, link) in &into[switch as usize] {
            if hops[begin as usize] == u32::MAX {
                hops[begin as usize] = next;
                front.push_back(begin);
            }
            if hops[begin as usize] == next {
                sets[begin as usize].push(link);
            }
        }
    }
    match (0..).zip(&hops).find(|(_, hops)| **hops == u32::MAX) {
        Some((switch, _)) => Err(TopologyError::Unreachable { from: Node::Switch(switch), to }),
        None => Ok(sets),
    }
}
