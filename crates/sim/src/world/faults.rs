//! Faults of the network while the world runs: partitions, links that go down, links that lose.

use super::World;
use crate::fabric::{FaultRule, LinkFaults};
use crate::observe::LinkId;
use crate::packet::HostId;

impl World {
    /// Partitions the hosts: those of one group reach only each other; those in no group form a
    /// group together. Packets between groups are lost; control connections delay their bytes, as
    /// TCP does.
    pub fn partition(&mut self, groups: &[&[HostId]]) {
        let mut of = vec![0_u32; self.hosts.len()];
        for (number, group) in groups.iter().enumerate() {
            for host in *group {
                if let Some(of) = of.get_mut(host.0 as usize) {
                    *of = number as u32 + 1;
                }
            }
        }
        self.fabric.partition(groups);
        self.groups = Some(of);
        self.release_held();
    }

    /// Ends a partition.
    pub fn heal(&mut self) {
        self.fabric.heal();
        self.groups = None;
        self.release_held();
    }

    /// Replaces the faults of one direction of a cable.
    pub fn set_link_faults(&mut self, link: LinkId, faults: LinkFaults) {
        self.fabric.set_faults(self.now_ns, link, faults);
    }

    /// Sets a rule that decides about every packet of one direction of a cable before its rates do;
    /// `None` removes it.
    pub fn set_link_rule(&mut self, link: LinkId, rule: Option<FaultRule>) {
        self.fabric.set_fault_rule(link, rule);
    }

    /// Takes one direction of a cable down, or up again. Control connections are not affected: they
    /// are assumed to find another path.
    pub fn set_link_up(&mut self, link: LinkId, up: bool) {
        self.fabric.set_link_up(link, up);
    }
}
