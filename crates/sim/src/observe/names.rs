//! Names of hosts, switches and links in traces, captures and reports.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use super::{LinkId, Place};
use crate::HostId;
use crate::fabric::{Node, Topology};

/// Names and addresses by number; without a name, the number is used (`n4`, `s0`, `link 7`).
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// Names of hosts.
    pub hosts: Vec<String>,
    /// Addresses of hosts in captures; a host without one is 10.x.y.z by its number, from 10.0.0.1
    /// on.
    pub addrs: Vec<Ipv4Addr>,
    /// Names of switches.
    pub switches: Vec<String>,
    /// Names of links, such as `n0>s0`.
    pub links: Vec<String>,
}

impl Names {
    /// Names for the links of a topology by their ends: `n0>s0`, and for parallel cables `s0>s1`,
    /// `s0>s1#2` and so on. Hosts and switches are named by their numbers.
    pub fn of(topology: &Topology) -> Self {
        let mut names = Names::default();
        let mut parallel = BTreeMap::<(Node, Node), u32>::new();
        for cable in topology.cables() {
            for (from, to) in [(cable.a, cable.b), (cable.b, cable.a)] {
                let cables = parallel.entry((from, to)).or_default();
                *cables += 1;
                let end = |node| match node {
                    Node::Host(h) => names.host(h),
                    Node::Switch(s) => names.place(&Place::Switch(s)),
                };
                let mut name = format!("{}>{}", end(from), end(to));
                if *cables > 1 {
                    name += &format!("#{cables}");
                }
                names.links.push(name);
            }
        }
        names
    }

    /// A host's name.
    pub fn host(&self, host: HostId) -> String {
        self.hosts.get(host.0 as usize).cloned().unwrap_or_else(|| format!("n{}", host.0))
    }

    /// A host's address.
    pub fn addr(&self, host: HostId) -> Ipv4Addr {
        let by_number = || Ipv4Addr::from(0x0a00_0000 | host.0.wrapping_add(1) & 0x00ff_ffff);
        self.addrs.get(host.0 as usize).copied().unwrap_or_else(by_number)
    }

    /// A link's name.
    pub fn link(&self, link: LinkId) -> String {
        self.links.get(link.0 as usize).cloned().unwrap_or_else(|| format!("link {}", link.0))
    }

    /// The name of a place.
    pub fn place(&self, place: &Place) -> String {
        match *place {
            Place::Host(h) => self.host(h),
            Place::Link(l) => self.link(l),
            Place::Switch(s) => {
                self.switches.get(s as usize).cloned().unwrap_or_else(|| format!("s{s}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_named_by_their_ends_and_unique() {
        let two = Topology::one_switch(2);
        assert_eq!(Names::of(&two).links, ["n0>s0", "s0>n0", "n1>s0", "s0>n1"]);
        let mut parallel = two.clone();
        let cable = two.cables()[1];
        let again = parallel.add_cable(cable.a, cable.b, cable.spec);
        let names = Names::of(&parallel);
        assert_eq!(
            (names.link(again), names.link(again.reverse())),
            ("n1>s0#2".into(), "s0>n1#2".into())
        );
        let fabric = Names::of(&Topology::cx4(100));
        assert_eq!(
            fabric.links.iter().collect::<std::collections::BTreeSet<_>>().len(),
            fabric.links.len()
        );
    }

    #[test]
    fn places_without_a_name_are_named_by_number() {
        let names = Names {
            hosts: vec!["client".into()],
            addrs: vec![Ipv4Addr::new(10, 1, 2, 3)],
            ..Names::default()
        };
        assert_eq!((names.host(HostId(0)), names.host(HostId(4))), ("client".into(), "n4".into()));
        assert_eq!(names.addr(HostId(0)), Ipv4Addr::new(10, 1, 2, 3));
        assert_eq!(names.addr(HostId(255)), Ipv4Addr::new(10, 0, 1, 0));
        assert_eq!(names.place(&Place::Switch(2)), "s2");
        assert_eq!(names.place(&Place::Link(LinkId(7))), "link 7");
    }
}
