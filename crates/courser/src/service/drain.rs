//! Requests that a server accepts while it drains: those of open streams, and those of services that report
//! the shutdown.

use std::ops::Range;

use super::services::{Assigned, Services};
use crate::channel::method::{ACCEPT, HELLO, METADATA, PULL};

impl Services {
    /// Requests of this service are accepted while the server drains.
    pub(crate) fn accept_in_drain(&self, service: &str) {
        let mut list = self.lock();
        list.iter_mut().filter(|s| s.info.name == service).for_each(|s| s.in_drain = true);
    }

    /// Request types that are accepted while the server drains. A request with metadata is of a method of
    /// [`Services::is_accepted_in_drain`] too.
    pub(crate) fn accepted_in_drain(&self) -> Vec<Range<u16>> {
        let list = self.lock();
        let mut kept: Vec<_> =
            list.iter().filter(|service| service.in_drain).map(Assigned::numbers).collect();
        match (list.is_empty(), kept.is_empty()) {
            (true, _) => {}
            (_, true) => kept.push(PULL..ACCEPT + 1),
            (_, false) => kept.extend([HELLO..ACCEPT + 1, METADATA..METADATA + 1]),
        }
        kept
    }

    /// Returns whether requests of a method are accepted while the server drains.
    pub(crate) fn is_accepted_in_drain(&self, method: u16) -> bool {
        self.lock().iter().any(|service| service.in_drain && service.numbers().contains(&method))
    }
}
