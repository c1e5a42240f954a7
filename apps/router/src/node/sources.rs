//! Addresses that no packet from outside may have as its source: those of the nodes themselves, and
//! the broadcast addresses of networks at ports (RFC 1812 sections 5.3.7 and 4.2.2.11).
//!
//! Such a packet is forged, or came back by a loop outside. Answers to it would go to a node, or to
//! all hosts of a network.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::settings::{Port, networks};

/// Bits of the filter. With some hundred addresses most packets miss it.
const BITS: usize = 4_096;

/// A set of addresses, with a filter in front that most packets do not pass.
#[derive(Debug)]
pub(super) struct Sources {
    /// Addresses of ports, and broadcast addresses.
    ports: BTreeSet<IpAddr>,
    /// Addresses in `ports`, and the other ones of this node's kernel.
    all: BTreeSet<IpAddr>,
    filter: [u64; BITS / 64],
}

impl Sources {
    /// The addresses of these ports, and of their networks.
    pub(super) fn new<'a>(ports: impl Iterator<Item = &'a Port> + Clone) -> Sources {
        let own = ports.clone().flat_map(|port| &port.addresses).map(IpNet::addr);
        let networks = networks(ports);
        let broadcasts = networks.flat_map(|net| [net.network().into(), net.broadcast().into()]);
        let ports = own.chain(broadcasts).collect();
        let mut sources = Sources { ports, all: BTreeSet::new(), filter: [0; BITS / 64] };
        sources.set_system(&BTreeSet::new());
        sources
    }

    /// Sets the addresses of this node's kernel.
    pub(super) fn set_system(&mut self, system: &BTreeSet<IpAddr>) {
        self.all = &self.ports | system;
        self.filter = [0; BITS / 64];
        for address in &self.all {
            let bit = bit(*address);
            self.filter[bit / 64] |= 1 << (bit % 64);
        }
    }

    /// Returns true for one of these addresses.
    #[inline]
    pub(super) fn has(&self, address: IpAddr) -> bool {
        let bit = bit(address);
        self.filter[bit / 64] >> (bit % 64) & 1 == 1 && self.find(address)
    }

    fn find(&self, address: IpAddr) -> bool {
        self.all.contains(&address)
    }
}

/// The bit of an address in the filter.
#[inline]
fn bit(address: IpAddr) -> usize {
    let bits = match address {
        IpAddr::V4(address) => address.to_bits(),
        IpAddr::V6(address) => {
            let bits = address.to_bits();
            (bits >> 64) as u32 ^ (bits >> 32) as u32 ^ bits as u32
        }
    };
    // The highest bits of a product depend on all bits of the address.
    (bits.wrapping_mul(0x9e37_79b1) >> 20) as usize % BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_addresses_and_broadcasts_of_ports_and_those_of_the_kernel() {
        let nets = ["10.1.0.1/24", "10.2.0.0/31", "2001:db8::1/64"];
        let addresses = nets.map(|text| text.parse().expect("a network")).to_vec();
        let ports = [Port { addresses, mtu: 1_500 }];
        let mut sources = Sources::new(ports.iter());
        let has = |sources: &Sources, text: &str| sources.has(text.parse().expect("an address"));
        for own in ["10.1.0.1", "10.1.0.0", "10.1.0.255", "10.2.0.0", "2001:db8::1"] {
            assert!(has(&sources, own), "{own}");
        }
        for other in ["10.1.0.2", "10.2.0.1", "10.1.1.255", "2001:db8::2", "2001:db8::"] {
            assert!(!has(&sources, other), "{other}");
        }
        let kernel = "172.20.0.1".parse().expect("an address");
        sources.set_system(&BTreeSet::from([kernel]));
        assert!(sources.has(kernel) && has(&sources, "10.1.0.1"));
        sources.set_system(&BTreeSet::new());
        assert!(!sources.has(kernel) && has(&sources, "10.1.0.1"));
        let passes = |n: &u32| {
            let bit = bit(IpAddr::from((0x0a01_0000 + n).to_be_bytes()));
            sources.filter[bit / 64] >> (bit % 64) & 1 == 1
        };
        assert!((0..1 << 16).filter(passes).count() < 1_000, "the filter keeps most addresses off");
    }
}
