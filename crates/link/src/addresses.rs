//! The kernel's own addresses: packets to them belong to it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Addresses with their interfaces. The administrator sets them, so that there are few.
#[derive(Debug, Default)]
pub struct Addresses {
    /// With the reading of the kernel's table in which each occurred last.
    all: BTreeMap<(u32, IpAddr), u32>,
    reading: u32,
    has_changed: bool,
}

impl Addresses {
    /// Takes over an address of an interface.
    pub fn add(&mut self, interface: u32, address: IpAddr) {
        self.has_changed |= self.all.insert((interface, address), self.reading).is_none();
    }

    /// An interface has an address no longer.
    pub fn remove(&mut self, interface: u32, address: IpAddr) {
        self.has_changed |= self.all.remove(&(interface, address)).is_some();
    }

    /// A new reading of the kernel's table begins.
    pub fn begin(&mut self) {
        self.reading = self.reading.wrapping_add(1);
    }

    /// The reading is complete: an address that did not occur does not exist.
    pub fn end(&mut self) {
        let before = self.all.len();
        self.all.retain(|_, reading| *reading == self.reading);
        self.has_changed |= self.all.len() != before;
    }

    /// Returns true if an interface has an address.
    pub fn has(&self, interface: u32, address: IpAddr) -> bool {
        self.all.contains_key(&(interface, address))
    }

    /// The addresses of all interfaces, if there was a change since the last call.
    pub fn take_changed(&mut self) -> Option<BTreeSet<IpAddr>> {
        let has_changed = std::mem::take(&mut self.has_changed);
        has_changed.then(|| self.all.keys().map(|(_, address)| *address).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_exists_until_it_is_removed_or_missing_in_a_complete_reading() {
        let (first, second) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let mut table = Addresses::default();
        table.add(1, first);
        table.add(2, first);
        table.add(2, second);
        assert_eq!(table.take_changed(), Some(BTreeSet::from([first, second])));
        table.add(2, second);
        table.remove(3, second);
        assert_eq!(table.take_changed(), None, "the same");
        table.remove(1, first);
        assert_eq!((table.has(1, first), table.has(2, first)), (false, true));
        assert_eq!(table.take_changed(), Some(BTreeSet::from([first, second])));
        table.begin();
        table.add(2, second);
        assert!(table.has(2, first), "until the end");
        table.end();
        assert_eq!(table.take_changed(), Some(BTreeSet::from([second])));
    }
}
