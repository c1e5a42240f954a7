//! The links that the endpoints of a nexus receive over.

use std::sync::{Arc, Mutex, PoisonError};

use courser_buf::Addr;
use courser_proto::ReceiveLink;

/// One link for each local address: endpoints with the same one share a receiver's budget (ADR 56).
/// Other processes of the host have budgets of their own.
#[derive(Debug, Default)]
pub(crate) struct Links {
    by_host: Mutex<Vec<(u128, Arc<ReceiveLink>)>>,
}

impl Links {
    /// The link of endpoints with this address, which has this rate.
    pub(crate) fn of(&self, local: Addr, rate_bps: u64) -> Arc<ReceiveLink> {
        let mut links = self.by_host.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, link)) = links.iter().find(|(host, _)| *host == local.host) {
            return link.clone();
        }
        let link = ReceiveLink::new(rate_bps);
        links.push((local.host, link.clone()));
        link
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_of_an_address_share_a_link_and_others_do_not() {
        let links = Links::default();
        let of = |host, port| links.of(Addr { host, port }, 25_000_000_000);
        assert!(Arc::ptr_eq(&of(1, 1), &of(1, 2)));
        assert!(!Arc::ptr_eq(&of(1, 1), &of(2, 1)));
    }
}
