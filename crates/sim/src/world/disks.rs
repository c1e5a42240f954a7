//! The disks of the hosts.

use super::{World, purpose, spend, thread_now_ns};
use crate::disk::{Caller, SimDisk};
use crate::packet::HostId;
use crate::rng::Rng;

impl World {
    /// The disk of a host, empty at first. A set-up function captures it as its storage: its contents
    /// survive the end of the process ([`World::kill`], [`World::stop`]), and what was synced survives
    /// that of the machine ([`World::crash`]).
    ///
    /// # Panics
    /// There is no such host.
    pub fn disk(&mut self, host: HostId) -> SimDisk {
        let (seed, begun) = (self.cfg.seed, &self.begun);
        let h = &mut self.hosts[host.0 as usize];
        let new = || {
            let rng = Rng::stream(seed, purpose::DISK + u64::from(host.0));
            let caller = Caller { now_ns: thread_now_ns, spend };
            SimDisk::new(host, rng, begun.clone(), caller)
        };
        h.disk.get_or_insert_with(new).clone()
    }
}
