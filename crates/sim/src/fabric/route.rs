//! Routes to the hosts: all shortest paths, computed once, and the choice of a flow among them.

use std::collections::{BTreeMap, VecDeque};

use super::topology::{Node, Topology, TopologyError};
use crate::{HostId, LinkId, Rng};

/// For every node that chooses a link (switches, hosts with several cables) and every host the links
/// on a shortest path.
pub(super) struct Routes {
    hosts: u32,
    /// The row of each host that has several cables; rows of switches have their numbers.
    rows: Vec<Option<u32>>,
    /// By row, then by host: offset in `links`, and number.
    sets: Vec<(u32, u32)>,
    /// Sets of links, each set once.
    links: Vec<u32>,
    /// A number for each row, so that consecutive nodes choose independently.
    salts: Vec<u64>,
}

impl Routes {
    /// Time: hosts times cables.
    pub(super) fn new(topology: &Topology, seed: u64) -> Result<Routes, TopologyError> {
        let (hosts, switches) = (topology.hosts(), topology.switches().len() as u32);
        check_connected(topology)?;
        let edges = Edges::new(topology);
        let mut count = switches;
        let row = |cables: &Vec<(Node, u32)>| {
            let row = count;
            count += u32::from(cables.len() > 1);
            (cables.len() > 1).then_some(row)
        };
        let rows: Vec<_> = edges.of_hosts.iter().map(row).collect();
        let mut interned = BTreeMap::new();
        let mut links = Vec::new();
        let mut sets = vec![(0, 0); count as usize * hosts as usize];
        for host in 0..hosts {
            let (of_switches, of_hosts) = edges.next_links(HostId(host), &rows);
            for (row, set) in of_switches.into_iter().chain(of_hosts).enumerate() {
                let place = *interned.entry(set).or_insert_with_key(|set: &Vec<u32>| {
                    let start = links.len() as u32;
                    links.extend(set);
                    (start, set.len() as u32)
                });
                sets[row * hosts as usize + host as usize] = place;
            }
        }
        let salts = (0..u64::from(count)).map(|s| Rng::stream(seed, super::SALTS | s).next_u64());
        Ok(Routes { hosts, rows, sets, links, salts: salts.collect() })
    }

    /// The link on which a switch sends a flow's packets to a host; `None` if there is no such
    /// host, or no path to it.
    pub(super) fn next(&self, switch: u32, to: HostId, flow: u32) -> Option<u32> {
        if to.0 >= self.hosts {
            return None;
        }
        let (start, count) = self.sets[(switch * self.hosts + to.0) as usize];
        match count {
            0 => return None,
            1 => return Some(self.links[start as usize]),
            _ => {}
        }
        let mixed = Rng::new(self.salts[switch as usize] ^ u64::from(flow)).below(u64::from(count));
        Some(self.links[start as usize + mixed as usize])
    }

    /// The same for a host with several cables.
    pub(super) fn next_of_host(&self, from: HostId, to: HostId, flow: u32) -> Option<u32> {
        let row = self.rows.get(from.0 as usize).copied().flatten()?;
        self.next(row, to, flow)
    }
}

/// The cables by their ends: for each node its neighbours, and the link to each.
struct Edges {
    /// Without hosts, of which a switch may have thousands.
    of_switches: Vec<Vec<(Node, u32)>>,
    of_hosts: Vec<Vec<(Node, u32)>>,
}

impl Edges {
    fn new(topology: &Topology) -> Edges {
        let mut edges = Edges {
            of_switches: vec![Vec::new(); topology.switches().len()],
            of_hosts: vec![Vec::new(); topology.hosts() as usize],
        };
        for (i, cable) in (0..).zip(topology.cables()) {
            for (from, to, link) in [(cable.a, cable.b, 2 * i), (cable.b, cable.a, 2 * i + 1)] {
                match (from, to) {
                    (Node::Host(h), _) => edges.of_hosts[h.0 as usize].push((to, link)),
                    (Node::Switch(s), Node::Switch(_)) => {
                        edges.of_switches[s as usize].push((to, link));
                    }
                    _ => {}
                }
            }
        }
        edges
    }

    fn of(&self, node: Node) -> &[(Node, u32)] {
        match node {
            Node::Switch(s) => &self.of_switches[s as usize],
            Node::Host(h) => &self.of_hosts[h.0 as usize],
        }
    }

    /// For every switch, and every host that has a row, the links on a shortest path to the host;
    /// none where there is no path without a host in between.
    fn next_links(&self, to: HostId, rows: &[Option<u32>]) -> (Vec<Vec<u32>>, Vec<Vec<u32>>) {
        let mut sets = vec![Vec::new(); self.of_switches.len()];
        let mut hops = vec![u32::MAX; self.of_switches.len()];
        let mut front = VecDeque::from([(Node::Host(to), 0)]);
        while let Some((node, next)) = front.pop_front() {
            for &(begin, link) in self.of(node) {
                let Node::Switch(begin) = begin else { continue };
                if hops[begin as usize] == u32::MAX {
                    hops[begin as usize] = next;
                    front.push_back((Node::Switch(begin), next + 1));
                }
                if hops[begin as usize] == next {
                    sets[begin as usize].push(LinkId(link).reverse().0);
                }
            }
        }
        let with_row = self.of_hosts.iter().zip(rows).filter(|(_, row)| row.is_some());
        let of_hosts = with_row.map(|(cables, _)| {
            let length = |&(end, _): &(Node, u32)| match end {
                Node::Host(host) => {
                    if host == to {
                        0
                    } else {
                        u32::MAX
                    }
                }
                Node::Switch(s) => hops[s as usize].saturating_add(1),
            };
            let least = cables.iter().map(length).min().filter(|&least| least < u32::MAX);
            let shortest = cables.iter().filter(|cable| Some(length(cable)) == least);
            shortest.map(|&(_, link)| link).collect()
        });
        let of_hosts = of_hosts.collect();
        (sets, of_hosts)
    }
}

/// Checks that every node reaches the first host, be it over hosts that forward.
fn check_connected(topology: &Topology) -> Result<(), TopologyError> {
    let switches = topology.switches().len() as u32;
    let place = |node| match node {
        Node::Switch(s) => s,
        Node::Host(h) => switches + h.0,
    };
    // Each node names another one of its part of the network, and the last of them itself.
    let mut parts: Vec<u32> = (0..switches + topology.hosts()).collect();
    for cable in topology.cables() {
        let (a, b) = (root(&mut parts, place(cable.a)), root(&mut parts, place(cable.b)));
        parts[a as usize] = b;
    }
    if topology.hosts() == 0 {
        return Ok(());
    }
    let to = HostId(0);
    let reached = root(&mut parts, switches);
    let apart = (0..parts.len() as u32).find(|&node| root(&mut parts, node) != reached);
    let Some(node) = apart else { return Ok(()) };
    let host = |number| Node::Host(HostId(number));
    let from = node.checked_sub(switches).map_or(Node::Switch(node), host);
    Err(TopologyError::Unreachable { from, to })
}

/// The node that all nodes of a part name in the end; halves the way for the next time.
fn root(parts: &mut [u32], mut node: u32) -> u32 {
    while parts[node as usize] != node {
        parts[node as usize] = parts[parts[node as usize] as usize];
        node = parts[node as usize];
    }
    node
}
