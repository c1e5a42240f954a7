//! Shares of the memory among clients and addresses (ADR 36).
//!
//! Memory that is reserved for a request before its data has arrived is *promised*. A client may have
//! a 32nd of the endpoint's memory promised, and at least [`PROMISED_LEAST`]; the clients of an
//! address together four times that, and besides as much as has arrived of their requests that are not
//! complete. A message of any size may be promised to a client, or an address, without another one.
//!
//! Besides, a client then holds at most a third of what is left, and an address at most half of it:
//! dynamic thresholds, as in switches with shared buffers (Choudhury and Hahne, 1998). An address
//! that holds as much as it may, for any time, leaves two thirds of the memory that it found to
//! others.

use super::quota::{ClientQuota, HostQuota, Quotas};

/// Least bytes that may be promised to a client.
const PROMISED_LEAST: u64 = 16 << 20;
/// The part of the memory that may be promised to a client.
const PROMISED_PART: u64 = 32;
/// The limit of an address, in limits of a client.
const CLIENTS_OF_ADDRESS: u64 = 4;
/// A message above the shares is promised only while at most an eighth of the free memory is promised.
const ALONE_PART: u64 = 8;

/// Requests that wait are tried again when so many bytes of a client have arrived.
const KEPT_PART: u64 = 1 << 20;

/// The memory of an endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub(crate) limit: u64,
    /// Bytes that no buffer uses.
    pub(crate) free: u64,
}

impl Quotas {
    /// Returns whether `bytes` for a request of a client may be reserved before its data has
    /// arrived.
    pub(crate) fn may_promise(&self, client: u32, bytes: u64, memory: Memory) -> bool {
        let Some(c) = self.clients.get(client as usize) else { return false };
        let Some(a) = self.hosts.get(c.host as usize) else { return false };
        let most = PROMISED_LEAST.max(memory.limit / PROMISED_PART);
        let fits = |promised, most| promised == 0 || promised + bytes <= most;
        let is_turn =
            fits(c.promised, most + c.kept) && fits(a.promised, CLIENTS_OF_ADDRESS * most + a.kept);
        is_turn && self.is_in_share(c, a, bytes, memory.free)
    }

    /// Returns whether a client may have a request of `bytes` whose memory grows with its data: it
    /// is refused at its first packet unless all such requests will find memory.
    pub(crate) fn may_grow(&self, client: u32, bytes: u64, memory: Memory) -> bool {
        let Some(c) = self.clients.get(client as usize) else { return false };
        bytes + c.growing <= self.room_of(client)
            && self.may_charge(client, bytes + c.growing, memory)
    }

    /// Counts a request whose memory grows.
    pub(crate) fn grow(&mut self, client: u32, bytes: u32) {
        if let Some(c) = self.clients.get_mut(client as usize) {
            c.growing += u64::from(bytes);
        }
    }

    /// Its memory grows no more.
    pub(crate) fn end_growth(&mut self, client: u32, bytes: u32) {
        if let Some(c) = self.clients.get_mut(client as usize) {
            c.growing -= u64::from(bytes);
        }
    }

    /// Returns whether a client may hold `bytes` more.
    pub(crate) fn may_charge(&self, client: u32, bytes: u64, memory: Memory) -> bool {
        let Some(c) = self.clients.get(client as usize) else { return false };
        let address = self.hosts.get(c.host as usize);
        address.is_some_and(|a| self.is_in_share(c, a, bytes, memory.free))
    }

    /// The shares of what is left. Otherwise a message that is large for the memory would never have
    /// room: it may be the only large one that arrives. Small ones always arrive.
    fn is_in_share(&self, c: &ClientQuota, a: &HostQuota, bytes: u64, free: u64) -> bool {
        let left = free.saturating_sub(bytes);
        let is_only = ALONE_PART * self.promised <= free && a.promised == 0;
        let is_alone = is_only && 4 * a.charged <= free && bytes <= free;
        3 * (c.charged + bytes) <= left && 2 * (a.charged + bytes) <= left || is_alone
    }

    /// Counts bytes that are reserved before their data has arrived.
    pub(crate) fn promise(&mut self, client: u32, bytes: u32) {
        let Some(c) = self.clients.get_mut(client as usize) else { return };
        c.promised += u64::from(bytes);
        self.promised += u64::from(bytes);
        if let Some(a) = self.host_mut(client) {
            a.promised += u64::from(bytes);
        }
    }

    /// Their data has arrived. Returns whether a further part of the client's promises has arrived by
    /// this.
    pub(crate) fn keep_promise(&mut self, client: u32, bytes: u32) -> bool {
        let bytes = u64::from(bytes);
        let Some(c) = self.clients.get_mut(client as usize) else { return false };
        let part = c.kept / KEPT_PART;
        c.promised -= bytes;
        c.kept += bytes;
        let is_part = c.kept / KEPT_PART > part;
        self.promised -= bytes;
        if let Some(a) = self.host_mut(client) {
            a.promised -= bytes;
            a.kept += bytes;
        }
        is_part
    }

    /// Their request is complete, or has ended: `promised` bytes have not arrived, `kept` have.
    pub(crate) fn end_promise(&mut self, client: u32, promised: u32, kept: u32) {
        let (promised, kept) = (u64::from(promised), u64::from(kept));
        let Some(c) = self.clients.get_mut(client as usize) else { return };
        c.promised -= promised;
        c.kept -= kept;
        self.promised -= promised;
        if let Some(a) = self.host_mut(client) {
            a.promised -= promised;
            a.kept -= kept;
        }
    }

    /// Bytes promised to all clients, those that have arrived since, and those of their requests whose
    /// memory grows.
    pub(crate) fn promised(&self) -> [u64; 3] {
        let sum = |of: fn(&ClientQuota) -> u64| {
            self.of.values().map(|&at| of(&self.clients[at as usize])).sum()
        };
        [self.promised, sum(|c| c.kept), sum(|c| c.growing)]
    }

    /// Checks the sums; for tests and simulations.
    pub(crate) fn check(&self) {
        let clients = || self.of.values().map(|&at| &self.clients[at as usize]);
        let sums = |of: &mut dyn Iterator<Item = [u64; 3]>| {
            of.fold([0; 3], |sum: [u64; 3], one| std::array::from_fn(|at| sum[at] + one[at]))
        };
        let all = sums(&mut clients().map(|c| [c.charged, c.promised, c.kept]));
        assert_eq!(all[1], self.promised, "promised to clients");
        let addresses = self.at_host.values().map(|&at| &self.hosts[at as usize]);
        let of_addresses = sums(&mut addresses.map(|a| [a.charged, a.promised, a.kept]));
        assert_eq!(of_addresses, all, "bytes charged to addresses");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Reserves messages of `bytes` for a client until that is not its turn; returns their number.
    fn fill(s: &mut Quotas, client: u32, bytes: u64, memory: &mut Memory, completes: bool) -> u64 {
        let mut number = 0;
        while s.may_promise(client, bytes, *memory) {
            s.charge(client, bytes as u32);
            s.promise(client, bytes as u32);
            memory.free -= bytes;
            number += 1;
            if completes {
                s.end_promise(client, bytes as u32, 0);
            }
            s.check();
        }
        number
    }

    #[test]
    fn promises_are_a_small_part_for_a_client_and_for_an_address() {
        let mut s = Quotas::new(usize::MAX, false);
        let mut memory = Memory { limit: 1_024 * MIB, free: 1_024 * MIB };
        let of_one: Vec<_> = (0..6).map(|control| s.enter(control, 1)).collect();
        let numbers: Vec<_> =
            of_one.iter().map(|&c| fill(&mut s, c, 8 * MIB, &mut memory, false)).collect();
        // One message each beyond the share of the address: none of theirs has to wait for others.
        assert_eq!(numbers, [4, 4, 4, 4, 0, 0]);
        let other = s.enter(100, 2);
        assert_eq!(fill(&mut s, other, 8 * MIB, &mut memory, false), 4);
        // Bytes that have arrived of them raise the limit by as much.
        assert!(s.keep_promise(other, 8 << 20));
        assert_eq!(fill(&mut s, other, 8 * MIB, &mut memory, false), 2);
        s.end_promise(other, 0, 8 << 20);
        assert!(!s.may_promise(other, MIB, memory));
        let large = s.enter(101, 3);
        assert!(s.may_promise(large, 128 * MIB, memory), "one message of any size");
    }

    #[test]
    fn whatever_addresses_hold_there_is_a_share_for_the_next() {
        let mut s = Quotas::new(usize::MAX, false);
        let mut memory = Memory { limit: 1_024 * MIB, free: 1_024 * MIB };
        for address in 0..10_u64 {
            for process in 0..10 {
                let client = s.enter(address * 100 + process, address.into());
                let number = fill(&mut s, client, MIB, &mut memory, true);
                assert!(process > 0 || number >= 4, "{address}: {number} MiB");
            }
        }
        assert!(memory.free >= 16 * MIB, "{} MiB", memory.free / MIB);
        let mut small = Memory { limit: 8 * MIB, free: 8 * MIB };
        let client = s.enter(5_000, 77);
        assert_eq!(fill(&mut s, client, 6 * MIB, &mut small, false), 1, "alone");
    }
}
