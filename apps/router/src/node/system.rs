//! Addresses of a node that are not in the cluster's file: those of its interconnect, and those by
//! which it is administered.
//!
//! The kernel takes packets to them itself. They are routes of this node only, so that it does not
//! forward those packets as well.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::{Node, Probe};
use crate::line::Outlet;
use crate::packet;
use crate::route::{Exit, NextHop};
use crate::routes::{Origin, RouteError};

impl<O: Outlet + 'static, P: Probe + 'static> Node<O, P> {
    /// Sets all addresses that the kernel of this node has. Those of ports, which are in the
    /// cluster's file, may be among them.
    ///
    /// # Errors
    /// The routes have no room for one. The others are set.
    pub fn set_system_addresses(&mut self, now: &BTreeSet<IpAddr>) -> Result<(), RouteError> {
        self.sources.set_system(now);
        let gone: Vec<IpAddr> = self.system.difference(now).copied().collect();
        for address in gone {
            self.routes.withdraw(Origin::Connected, &address.into());
            self.system.remove(&address);
        }
        let own = NextHop { node: self.settings.node, exit: Exit::Local };
        let mut result = Ok(());
        for address in now.iter().copied().filter(|address| packet::forwarded(*address)) {
            let prefix = IpNet::from(address);
            if self.routes.get(Origin::Connected, prefix).is_none() {
                match self.routes.announce(Origin::Connected, prefix, &[(own, 1)]) {
                    Ok(()) => {
                        self.system.insert(address);
                    }
                    Err(error) => result = Err(error),
                }
            }
        }
        result
    }
}
