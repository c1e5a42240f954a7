//! The forwarding information base (FIB): the longest prefix that matches an address, for IPv4 and
//! IPv6.
//!
//! A variant of DIR-24-8 (Gupta, Lin and McKeown, "Routing lookups in hardware at memory access
//! speeds", 1998). An array has an entry for each value of the first 24 bits of an IPv4 address,
//! the first 16 of an IPv6 address. Where longer prefixes exist, the entry leads to a block of 256
//! entries for the next eight bits, and so on. An IPv4 lookup takes one or two loads, an IPv6 lookup
//! one and one more for each eight bits beyond 16.
//!
//! Each entry holds the length of its prefix. An insertion replaces the entries of shorter prefixes,
//! a removal those of its own length, by the next shorter prefix. That one comes from a sorted list of
//! all prefixes.
//!
//! # Memory
//!
//! The arrays take 64 MiB and 256 KiB of address space, of which pages without a prefix, 2 MiB each
//! where the system has such, are not mapped; a block takes 1 KiB. [`Fib::memory_bytes`] counts them.
//! Blocks are reused, and not returned to the system. For the 512,621 prefixes of the IPv4 Internet of
//! 2014, blocks take 2 MiB and the list some 14 MiB.

mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use thiserror::Error;

use self::table::{Blocks, Entry, Table};
use crate::group::GroupId;

/// Why a prefix was not inserted. The FIB is as before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum FibError {
    /// The prefix needs more blocks than the FIB may have.
    #[error(
        "the FIB has its limit of {limit} blocks: remove prefixes longer than /24, or raise the limit"
    )]
    Blocks {
        /// The limit.
        limit: usize,
    },
    /// The system has no memory.
    #[error("no memory for more blocks of the FIB")]
    Memory,
}

/// Prefixes of both families, each with a group of next hops.
#[derive(Debug)]
pub struct Fib {
    v4: Table<{ 1 << 24 }>,
    v6: Table<{ 1 << 16 }>,
    blocks: Blocks,
    /// All prefixes, without host bits.
    prefixes4: BTreeMap<Ipv4Net, GroupId>,
    prefixes6: BTreeMap<Ipv6Net, GroupId>,
}

impl Default for Fib {
    fn default() -> Fib {
        Fib::new()
    }
}

impl Fib {
    /// Blocks of a FIB at most, unless stated otherwise: 256 MiB.
    pub const BLOCKS: usize = 1 << 18;

    /// An empty FIB of at most [`Fib::BLOCKS`] blocks.
    pub fn new() -> Fib {
        Fib::with_blocks(Fib::BLOCKS)
    }

    /// An empty FIB of at most `limit` blocks, and of at most 2^24.
    pub fn with_blocks(limit: usize) -> Fib {
        Fib {
            v4: Table::new(),
            v6: Table::new(),
            blocks: Blocks::new(limit),
            prefixes4: BTreeMap::new(),
            prefixes6: BTreeMap::new(),
        }
    }

    /// The group of the longest prefix that contains an address.
    #[inline]
    pub fn lookup(&self, address: IpAddr) -> Option<GroupId> {
        match address {
            IpAddr::V4(address) => self.lookup4(address.into()),
            IpAddr::V6(address) => self.lookup6(address.into()),
        }
    }

    /// As [`Fib::lookup`], for an IPv4 address as a number.
    #[inline]
    pub fn lookup4(&self, address: u32) -> Option<GroupId> {
        self.v4.lookup(&self.blocks, (address >> 8) as usize, || address as u8)
    }

    /// As [`Fib::lookup`], for an IPv6 address as a number.
    #[inline]
    pub fn lookup6(&self, address: u128) -> Option<GroupId> {
        let mut shift = 128 - 16;
        self.v6.lookup(&self.blocks, (address >> shift) as usize, || {
            // No block is below the last bits; the mask saves a check that the compiler adds else.
            shift = (shift - 8) & 127;
            (address >> shift) as u8
        })
    }

    /// Prefetches the first entry that a lookup of this address will load.
    #[inline]
    pub fn prefetch(&self, address: IpAddr) {
        match address {
            IpAddr::V4(v4) => courser_buf::prefetch(self.v4.cell((u32::from(v4) >> 8) as usize)),
            IpAddr::V6(v6) => {
                courser_buf::prefetch(self.v6.cell((u128::from(v6) >> (128 - 16)) as usize));
            }
        }
    }

    /// Inserts a prefix, of which host bits are ignored, or changes its group. Returns the group
    /// that it had.
    pub fn insert(&mut self, prefix: IpNet, group: GroupId) -> Result<Option<GroupId>, FibError> {
        let entry = Entry::group(group, prefix.prefix_len());
        let old = self.get(&prefix);
        let address = upper_bits(&prefix);
        match prefix.trunc() {
            IpNet::V4(prefix) => {
                self.v4.insert(&mut self.blocks, address, entry, old.is_none())?;
                self.prefixes4.insert(prefix, group);
            }
            IpNet::V6(prefix) => {
                self.v6.insert(&mut self.blocks, address, entry, old.is_none())?;
                self.prefixes6.insert(prefix, group);
            }
        }
        Ok(old)
    }

    /// Removes a prefix. Addresses of it get the next shorter prefix that contains them. Returns its
    /// group; `None` if it was not there.
    pub fn remove(&mut self, prefix: &IpNet) -> Option<GroupId> {
        let group = match prefix.trunc() {
            IpNet::V4(prefix) => self.prefixes4.remove(&prefix),
            IpNet::V6(prefix) => self.prefixes6.remove(&prefix),
        }?;
        let (address, length) = (upper_bits(prefix), prefix.prefix_len());
        let shorter = fallback(self.covering(prefix));
        match prefix {
            IpNet::V4(_) => self.v4.remove(&mut self.blocks, address, length, shorter),
            IpNet::V6(_) => self.v6.remove(&mut self.blocks, address, length, shorter),
        }
        Some(group)
    }

    /// The entries that a change of this prefix visits, apart from those of longer prefixes in
    /// blocks: a measure of the time it takes.
    pub fn work(prefix: &IpNet) -> usize {
        let (first, length) = match prefix {
            IpNet::V4(prefix) => (24, prefix.prefix_len()),
            IpNet::V6(prefix) => (16, prefix.prefix_len()),
        };
        match length {
            0 => 1,
            length if length <= first => 1 << (first - length),
            length => 1 << ((first + 128 - length) % 8),
        }
    }

    /// The group of exactly this prefix.
    pub fn get(&self, prefix: &IpNet) -> Option<GroupId> {
        match prefix.trunc() {
            IpNet::V4(prefix) => self.prefixes4.get(&prefix),
            IpNet::V6(prefix) => self.prefixes6.get(&prefix),
        }
        .copied()
    }

    /// The longest prefix that contains all addresses of this one, and its group.
    pub fn covering(&self, prefix: &IpNet) -> Option<(IpNet, GroupId)> {
        match prefix.trunc() {
            IpNet::V4(prefix) => covering(&self.prefixes4, prefix, common4),
            IpNet::V6(prefix) => covering(&self.prefixes6, prefix, common6),
        }
    }

    /// Prefixes.
    pub fn len(&self) -> usize {
        self.prefixes4.len() + self.prefixes6.len()
    }

    /// Whether it has no prefix.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Blocks in use.
    pub fn blocks(&self) -> usize {
        self.blocks.in_use()
    }

    /// Bytes of arrays, whether mapped or not, of blocks, and about those of the list of prefixes.
    pub fn memory_bytes(&self) -> usize {
        Table::<{ 1 << 24 }>::memory_bytes()
            + Table::<{ 1 << 16 }>::memory_bytes()
            + self.blocks.memory_bytes()
            + map_bytes(&self.prefixes4)
            + map_bytes(&self.prefixes6)
    }
}

/// The network address in the upper bits.
fn upper_bits(prefix: &IpNet) -> u128 {
    match prefix.network() {
        IpAddr::V4(address) => u128::from(u32::from(address)) << 96,
        IpAddr::V6(address) => address.into(),
    }
}

/// The entry of the next shorter prefix. That of length 0 is not in the arrays.
fn fallback(shorter: Option<(IpNet, GroupId)>) -> Entry {
    match shorter {
        Some((prefix, group)) if prefix.prefix_len() > 0 => {
            Entry::group(group, prefix.prefix_len())
        }
        _ => Entry::NONE,
    }
}

/// The longest prefix of a map that contains another one. `common` returns the longest prefix that
/// contains two.
///
/// A prefix precedes all that it contains, and the longest that contains `within` either is the entry
/// before it or contains that entry, too. In the second case it contains what is common to both, which
/// is shorter than `within`, so that the search ends.
fn covering<P: Copy + Ord + Into<IpNet>>(
    map: &BTreeMap<P, GroupId>,
    mut within: P,
    common: impl Fn(P, P) -> P,
) -> Option<(IpNet, GroupId)> {
    loop {
        let (&before, &group) = map.range(..=within).next_back()?;
        let both = common(before, within);
        if both == before {
            return Some((before.into(), group));
        }
        within = both;
    }
}

fn common4(a: Ipv4Net, b: Ipv4Net) -> Ipv4Net {
    let equal = (a.addr().to_bits() ^ b.addr().to_bits()).leading_zeros() as u8;
    Ipv4Net::new_assert(a.addr(), equal.min(a.prefix_len()).min(b.prefix_len())).trunc()
}

fn common6(a: Ipv6Net, b: Ipv6Net) -> Ipv6Net {
    let equal = (a.addr().to_bits() ^ b.addr().to_bits()).leading_zeros() as u8;
    Ipv6Net::new_assert(a.addr(), equal.min(a.prefix_len()).min(b.prefix_len())).trunc()
}

/// Bytes of a map, estimated: after insertions in order, half of the room in its nodes is used.
fn map_bytes<P>(map: &BTreeMap<P, GroupId>) -> usize {
    map.len() * (size_of::<P>() + size_of::<GroupId>()) * 5 / 2
}
