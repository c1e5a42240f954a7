//! The heap that the decoded requests of clients hold.
//!
//! It is free again only when handlers end. So, as with places, a part is kept for others: a client alone
//! holds half of the limit, each further one of its address a quarter of what the one before it holds,
//! and all clients of an address two thirds of what other addresses leave.

use std::sync::atomic::Ordering;

use super::Client;

impl Client {
    /// Charges heap to the client, with which all clients together leave `left` bytes; false: it would
    /// be more than its share.
    pub(crate) fn hold_heap(&self, bytes: usize, left: usize) -> bool {
        let counts = [&self.heap, &self.address.heap];
        let [of_client, of_address] = counts.map(|count| count.load(Ordering::Relaxed) + bytes);
        let fits = of_client + of_address <= left.saturating_mul(2);
        if fits {
            for count in counts {
                count.fetch_add(bytes, Ordering::Relaxed);
            }
        }
        fits
    }

    pub(crate) fn free_heap(&self, bytes: usize) {
        for count in [&self.heap, &self.address.heap] {
            count.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::Shares;
    use super::*;

    #[test]
    fn requests_of_a_client_hold_half_of_the_heap_and_leave_some_to_each_other_one() {
        let shares = Shares::new(64);
        let mut left = 9_600;
        let mut held = Vec::new();
        for (control, host, most) in
            [(1, 1, 4_800), (2, 1, 1_200), (3, 1, 300), (4, 1, 75), (5, 2, 1_612)]
        {
            let client: Arc<Client> = shares.client(control, host);
            let mut bytes = 0;
            while client.hold_heap(1, left - 1) {
                (bytes, left) = (bytes + 1, left - 1);
            }
            assert_eq!(bytes, most, "client {control} of address {host}");
            held.push((client, bytes));
        }
        held.iter().for_each(|(client, bytes)| client.free_heap(*bytes));
        let (lone, _) = &held[0];
        assert!(lone.hold_heap(4_800, 4_800) && !lone.hold_heap(1, 4_799), "after the others");
    }
}
