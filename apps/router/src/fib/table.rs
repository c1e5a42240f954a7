//! The arrays of the FIB of one address family, and the blocks that both families share.

use std::ops::Range;

use super::FibError;
use crate::group::GroupId;

/// Bits of an address that a block resolves.
const BITS: u8 = 8;
const CELLS: usize = 1 << BITS;

/// What a part of the address space leads to: nothing, a group, or a block that tells the next
/// eight bits of an address apart.
///
/// The lower 24 bits are the number of the group or block. The upper eight are 0 for nothing, 255
/// for a block, and else the length of the prefix plus one. The length decides whether another
/// prefix replaces the entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry(u32);

impl Entry {
    pub(super) const NONE: Entry = Entry(0);
    const BLOCK: u32 = 0xff << 24;

    pub(super) fn group(group: GroupId, length: u8) -> Entry {
        debug_assert!(length <= 128);
        Entry((u32::from(length) + 1) << 24 | group.get())
    }

    fn block(number: u32) -> Entry {
        Entry(Entry::BLOCK | number)
    }

    #[inline]
    fn as_block(self) -> Option<u32> {
        (self.0 >= Entry::BLOCK).then_some(self.0 & GroupId::MAX.get())
    }

    /// Zero for no entry, else the length of its prefix plus one.
    fn rank(self) -> u8 {
        (self.0 >> 24) as u8
    }

    #[inline]
    pub(super) fn as_group(self) -> Option<GroupId> {
        if self == Entry::NONE { None } else { GroupId::new(self.0 & GroupId::MAX.get()) }
    }
}

/// The blocks of both families.
#[derive(Debug)]
pub(super) struct Blocks {
    cells: Vec<[Entry; CELLS]>,
    /// Of each block, the prefixes that end in it or below it. A block without any is free.
    prefixes: Vec<u32>,
    free: Vec<u32>,
    limit: usize,
}

impl Blocks {
    pub(super) fn new(limit: usize) -> Blocks {
        let limit = limit.min(GroupId::MAX.get() as usize + 1);
        Blocks { cells: Vec::new(), prefixes: Vec::new(), free: Vec::new(), limit }
    }

    pub(super) fn in_use(&self) -> usize {
        self.cells.len() - self.free.len()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.cells.capacity() * size_of::<[Entry; CELLS]>()
            + (self.prefixes.capacity() + self.free.capacity()) * size_of::<u32>()
    }

    /// Makes sure that `count` blocks can be allocated.
    fn reserve(&mut self, count: usize) -> Result<(), FibError> {
        if self.in_use() + count > self.limit {
            return Err(FibError::Blocks { limit: self.limit });
        }
        let new = count.saturating_sub(self.free.len());
        let memory = |_| FibError::Memory;
        self.cells.try_reserve(new).map_err(memory)?;
        self.prefixes.try_reserve(new).map_err(memory)?;
        // Freeing needs no memory then.
        let all = self.cells.len() + new;
        self.free.try_reserve(all - self.free.len()).map_err(memory)
    }

    fn allocate(&mut self, fill: Entry) -> u32 {
        if let Some(number) = self.free.pop() {
            self.cells[number as usize] = [fill; CELLS];
            return number;
        }
        self.cells.push([fill; CELLS]);
        self.prefixes.push(0);
        (self.cells.len() - 1) as u32
    }

    #[inline]
    fn get(&self, number: u32, at: usize) -> Entry {
        self.cells[number as usize][at]
    }

    /// Replaces entries of at most this rank in some cells of a block and in the blocks below them.
    fn fill(&mut self, number: u32, at: Range<usize>, rank: u8, new: Entry) {
        for at in at {
            let old = self.get(number, at);
            match old.as_block() {
                Some(below) => self.fill(below, 0..CELLS, rank, new),
                None if old.rank() <= rank => self.cells[number as usize][at] = new,
                None => {}
            }
        }
    }
}

/// The entries of one family: an array for the first bits of an address, then blocks.
///
/// Addresses are in the upper bits of 128.
#[derive(Debug)]
pub(super) struct Table<const FIRST: usize> {
    /// Entries as numbers, because the standard library asks the system for zeroed memory for
    /// these only. The system maps the pages of it that are written.
    first: Box<[u32; FIRST]>,
    /// The prefix of length 0, which would fill the array else.
    default: Entry,
}

/// A place of an entry.
#[derive(Clone, Copy)]
enum Place {
    First(usize),
    Block(u32, usize),
}

impl<const FIRST: usize> Table<FIRST> {
    /// Bits that the first array resolves.
    const FIRST_BITS: u8 = FIRST.trailing_zeros() as u8;

    pub(super) fn new() -> Table<FIRST> {
        Table { first: zeroed(), default: Entry::NONE }
    }

    pub(super) const fn memory_bytes() -> usize {
        FIRST * size_of::<u32>()
    }

    /// The cell in the first array for these bits of an address.
    #[inline]
    pub(super) fn cell(&self, first: usize) -> &u32 {
        &self.first[first & (FIRST - 1)]
    }

    /// Looks up an address by the bits that the first array resolves and the bytes that follow.
    #[inline]
    pub(super) fn lookup(
        &self,
        blocks: &Blocks,
        first: usize,
        mut next: impl FnMut() -> u8,
    ) -> Option<GroupId> {
        let mut entry = Entry(*self.cell(first));
        while let Some(block) = entry.as_block() {
            entry = blocks.get(block, next().into());
        }
        if entry == Entry::NONE { self.default.as_group() } else { entry.as_group() }
    }

    /// Adds a prefix, or changes the group of one that is there.
    pub(super) fn insert(
        &mut self,
        blocks: &mut Blocks,
        address: u128,
        entry: Entry,
        is_new: bool,
    ) -> Result<(), FibError> {
        let length = entry.rank() - 1;
        if length == 0 {
            self.default = entry;
            return Ok(());
        }
        blocks.reserve(self.blocks_missing(blocks, address, length))?;
        let place = self.descend(blocks, address, length, |blocks, number| {
            blocks.prefixes[number as usize] += u32::from(is_new);
        });
        self.fill(blocks, place, length, entry);
        Ok(())
    }

    /// Removes a prefix that is there. `fallback` is the entry of the next shorter one.
    pub(super) fn remove(
        &mut self,
        blocks: &mut Blocks,
        address: u128,
        length: u8,
        fallback: Entry,
    ) {
        if length == 0 {
            self.default = Entry::NONE;
            return;
        }
        let mut path = [0; 16];
        let mut depth = 0;
        let place = self.descend(blocks, address, length, |blocks, number| {
            blocks.prefixes[number as usize] -= 1;
            path[depth] = number;
            depth += 1;
        });
        self.fill(blocks, place, length, fallback);
        self.free_unused(blocks, address, &path[..depth]);
    }

    /// Frees the blocks on the way to a removed prefix that no other prefix needs. All their cells
    /// are the same then.
    fn free_unused(&mut self, blocks: &mut Blocks, address: u128, path: &[u32]) {
        let Some(highest) = path.iter().position(|n| blocks.prefixes[*n as usize] == 0) else {
            return;
        };
        let same = blocks.get(path[path.len() - 1], 0);
        blocks.free.extend(&path[highest..]);
        let above = match highest.checked_sub(1) {
            None => Place::First(Self::first_index(address)),
            Some(above) => {
                Place::Block(path[above], index(address, Self::FIRST_BITS + BITS * above as u8))
            }
        };
        self.set(blocks, above, same);
    }

    fn first_index(address: u128) -> usize {
        (address >> (128 - u32::from(Self::FIRST_BITS))) as usize
    }

    /// Blocks to add for a prefix.
    fn blocks_missing(&self, blocks: &Blocks, address: u128, length: u8) -> usize {
        let mut bits = Self::FIRST_BITS;
        let mut entry = Entry(self.first[Self::first_index(address)]);
        while length > bits {
            let Some(block) = entry.as_block() else {
                return usize::from((length - bits).div_ceil(BITS));
            };
            entry = blocks.get(block, index(address, bits));
            bits += BITS;
        }
        0
    }

    /// The place of the first cell of a prefix. Adds the blocks that are missing on the way, and
    /// calls `visit` for each block.
    fn descend(
        &mut self,
        blocks: &mut Blocks,
        address: u128,
        length: u8,
        mut visit: impl FnMut(&mut Blocks, u32),
    ) -> Place {
        let mut bits = Self::FIRST_BITS;
        let mut place = Place::First(Self::first_index(address));
        while length > bits {
            let entry = self.get(blocks, place);
            let number = entry.as_block().unwrap_or_else(|| {
                let number = blocks.allocate(entry);
                self.set(blocks, place, Entry::block(number));
                number
            });
            visit(blocks, number);
            place = Place::Block(number, index(address, bits));
            bits += BITS;
        }
        place
    }

    fn get(&self, blocks: &Blocks, place: Place) -> Entry {
        match place {
            Place::First(at) => Entry(self.first[at]),
            Place::Block(number, at) => blocks.get(number, at),
        }
    }

    fn set(&mut self, blocks: &mut Blocks, place: Place, entry: Entry) {
        match place {
            Place::First(at) => self.first[at] = entry.0,
            Place::Block(number, at) => blocks.cells[number as usize][at] = entry,
        }
    }

    /// Replaces the entries of a prefix, of which `place` is the first cell, and of shorter ones.
    fn fill(&mut self, blocks: &mut Blocks, place: Place, length: u8, new: Entry) {
        let rank = length + 1;
        match place {
            Place::First(at) => {
                for at in at..at + (1 << (Self::FIRST_BITS - length)) {
                    let old = Entry(self.first[at]);
                    match old.as_block() {
                        Some(below) => blocks.fill(below, 0..CELLS, rank, new),
                        None if old.rank() <= rank => self.first[at] = new.0,
                        None => {}
                    }
                }
            }
            Place::Block(number, at) => {
                let spare = (length - Self::FIRST_BITS).next_multiple_of(BITS)
                    - (length - Self::FIRST_BITS);
                blocks.fill(number, at..at + (1 << spare), rank, new);
            }
        }
    }
}

/// The eight bits of an address that follow the first `bits`.
fn index(address: u128, bits: u8) -> usize {
    (address << bits >> (128 - BITS)) as usize
}

/// An array of empty entries, not on the stack.
fn zeroed<const N: usize>() -> Box<[u32; N]> {
    let mut entries = vec![0; N];
    advise_huge(&mut entries);
    match entries.into_boxed_slice().try_into() {
        Ok(array) => array,
        Err(_) => unreachable!("a slice of N entries is an array of N entries"),
    }
}

/// Asks for pages of 2 MiB, as far as they are within the array: random look-ups in 64 MiB of small
/// pages miss the TLB, too, which costs more than the entry. The system may refuse.
fn advise_huge(entries: &mut [u32]) {
    const HUGE: usize = 2 << 20;
    let before = entries.as_ptr().align_offset(HUGE).min(entries.len());
    let inner = &mut entries[before..];
    let bytes = size_of_val(inner) / HUGE * HUGE;
    if bytes > 0 {
        // SAFETY: the range is within the array, and the advice changes neither its bytes nor who
        // may access them. All tests of look-ups would find other entries.
        unsafe { libc::madvise(inner.as_mut_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
    }
}
