//! The states of all messages that an endpoint receives with MELO, and the limit of those that hold
//! blocks of the pool (M17, `[MELO §3.2.5]`).
//!
//! A NIC has memory for the states of few connections and keeps the others in the memory of its
//! host. A state that is needed there is swapped with the one that was used longest ago: "a to be
//! swapped out on-chip connection should first return all the bits blocks", and the other one is
//! allocated blocks for its bitmap. Here a connection is a message, and only those with missing
//! packets have a bitmap. Without a limit, the default, none is swapped: the memory of the host is
//! where they are. With one it behaves as such a NIC does, and counts the swaps and their bytes
//! (M32).
//!
//! Invariants:
//! - (L1) `resident` has exactly the numbers of the states in the pool with blocks, if there is a
//!   limit, and no more than that. They are those that are marked as resident.
//! - (L2) A state that was swapped out holds no block.

use super::melo::pool::{BitsPool, BlockPtr};
use super::melo::reorder::SwappedOut;
use super::melo::{Arrival, HOLES, Hole, Reorder};

/// Bytes of a state without its bitmap, as the paper has it: 12 of holes, 6 of RCV.NXT and RCV.HIGH,
/// 2 of start_ptr and end_ptr.
pub(crate) const STATE_BYTES: u64 = 20;

/// Use of the pool of arriving messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RxUse {
    /// Most bits in use at once, in whole blocks.
    pub(crate) bits_peak: u32,
    /// Failed allocations (M16).
    pub(crate) refused: u64,
    /// States swapped out, and in again (M17).
    pub(crate) swapped_out: u64,
    pub(crate) swapped_in: u64,
    /// Bytes of their states and bitmaps, both ways (M32).
    pub(crate) swapped_bytes: u64,
}

#[derive(Debug)]
enum Place<P> {
    /// Free for another message.
    Free,
    /// In the pool.
    In(Reorder<P>),
    /// Swapped out.
    Out(SwappedOut),
}

#[derive(Debug)]
struct State<P> {
    place: Place<P>,
    /// It is among the resident ones.
    is_resident: bool,
    /// Number of the access that used it last, if there is a limit.
    used: u64,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Residents<P> {
    pool: BitsPool<P>,
    states: Vec<State<P>>,
    free: Vec<u32>,
    resident: Vec<u32>,
    /// Most states with blocks; 0: no limit.
    limit: u32,
    accesses: u64,
    swapped_out: u64,
    swapped_in: u64,
    swapped_bytes: u64,
}

impl<P: BlockPtr> Residents<P> {
    /// No messages yet.
    pub(crate) fn new(pool: BitsPool<P>, limit: u32) -> Self {
        Residents {
            pool,
            states: Vec::new(),
            free: Vec::new(),
            resident: Vec::new(),
            limit,
            accesses: 0,
            swapped_out: 0,
            swapped_in: 0,
            swapped_bytes: 0,
        }
    }

    /// Adds a message of which all packets before `count` have arrived; returns its number.
    pub(crate) fn add(&mut self, count: u32) -> u32 {
        let state = State { place: Place::In(Reorder::at(count)), is_resident: false, used: 0 };
        let free = self.free.pop();
        match free.and_then(|id| self.states.get_mut(id as usize).map(|place| (id, place))) {
            Some((id, place)) => {
                *place = state;
                id
            }
            None => {
                self.states.push(state);
                (self.states.len() - 1) as u32
            }
        }
    }

    /// Removes a message and returns its blocks.
    pub(crate) fn remove(&mut self, id: u32) {
        let Some(state) = self.states.get_mut(id as usize) else { return };
        match std::mem::replace(&mut state.place, Place::Free) {
            Place::Free => return,
            Place::In(mut reorder) => reorder.release(&mut self.pool),
            Place::Out(_) => {}
        }
        if std::mem::take(&mut state.is_resident) {
            self.resident.retain(|&resident| resident != id);
        }
        self.free.push(id);
    }

    /// Records a packet. Cost beside that of [`Reorder::on_packet`]: with a limit, two comparisons, and a
    /// step for each resident state when one becomes resident or ceases to be.
    #[inline]
    pub(crate) fn on_packet(&mut self, id: u32, index: u32) -> Arrival {
        let Some(state) = self.states.get_mut(id as usize) else { return Arrival::NoBits };
        let Place::In(reorder) = &mut state.place else { return self.on_packet_out(id, index) };
        let arrival = reorder.on_packet(&mut self.pool, index);
        if self.limit > 0 {
            self.accesses += 1;
            state.used = self.accesses;
            if reorder.has_blocks() != state.is_resident {
                self.change_residence(id);
            }
        }
        arrival
    }

    /// A packet of a message whose state was swapped out.
    #[cold]
    fn on_packet_out(&mut self, id: u32, index: u32) -> Arrival {
        if self.bring_in(id) { self.on_packet(id, index) } else { Arrival::NoBits }
    }

    /// Moves a state into the pool, if it was swapped out. `false`: it does not fit.
    fn bring_in(&mut self, id: u32) -> bool {
        self.accesses += 1;
        let accesses = self.accesses;
        let Some(state) = self.states.get_mut(id as usize) else { return false };
        state.used = accesses;
        let out = match std::mem::replace(&mut state.place, Place::Free) {
            Place::Out(out) => out,
            place => {
                let is_in = matches!(place, Place::In(_));
                state.place = place;
                return is_in;
            }
        };
        while self.resident.len() >= self.limit as usize || !self.pool.can_hold(out.bitmap_bytes())
        {
            if !self.evict(id) {
                break;
            }
        }
        let bytes = out.bitmap_bytes();
        let (place, is_in) = match Reorder::swap_in(out, &mut self.pool) {
            Ok(reorder) => (Place::In(reorder), true),
            Err(out) => (Place::Out(out), false),
        };
        if is_in {
            self.swapped_in += 1;
            self.swapped_bytes += STATE_BYTES + u64::from(bytes);
            self.resident.push(id);
        }
        if let Some(state) = self.states.get_mut(id as usize) {
            (state.place, state.is_resident) = (place, is_in);
        }
        is_in
    }

    /// A state in the pool has taken its first block, or has returned its last one. Swaps one out when
    /// there are too many.
    #[cold]
    fn change_residence(&mut self, id: u32) {
        let Some(state) = self.states.get_mut(id as usize) else { return };
        state.is_resident = !state.is_resident;
        if !state.is_resident {
            self.resident.retain(|&resident| resident != id);
            return;
        }
        self.resident.push(id);
        if self.resident.len() > self.limit as usize {
            self.evict(id);
        }
    }

    /// Swaps out the state that was used longest ago, but not `keep`. `false`: there is none.
    fn evict(&mut self, keep: u32) -> bool {
        let used = |&at: &usize| self.states.get(self.resident[at] as usize).map(|s| s.used);
        let others = (0..self.resident.len()).filter(|&at| self.resident[at] != keep);
        let Some(oldest) = others.min_by_key(used) else { return false };
        let id = self.resident.swap_remove(oldest);
        let Some(state) = self.states.get_mut(id as usize) else { return false };
        state.is_resident = false;
        match std::mem::replace(&mut state.place, Place::Free) {
            Place::In(reorder) => {
                let out = reorder.swap_out(&mut self.pool);
                self.swapped_out += 1;
                self.swapped_bytes += STATE_BYTES + u64::from(out.bitmap_bytes());
                state.place = Place::Out(out);
            }
            place => state.place = place,
        }
        true
    }

    /// RCV.NXT of a message.
    pub(crate) fn rcv_nxt(&self, id: u32) -> u32 {
        match self.states.get(id as usize).map(|state| &state.place) {
            Some(Place::In(reorder)) => reorder.rcv_nxt(),
            Some(Place::Out(out)) => out.rcv_nxt(),
            Some(Place::Free) | None => 0,
        }
    }

    /// RCV.HIGH of a message.
    pub(crate) fn rcv_high(&self, id: u32) -> u32 {
        match self.states.get(id as usize).map(|state| &state.place) {
            Some(Place::In(reorder)) => reorder.rcv_high(),
            Some(Place::Out(out)) => out.rcv_high(),
            Some(Place::Free) | None => 0,
        }
    }

    /// The most recent holes of a message, most recent first.
    pub(crate) fn holes(&self, id: u32) -> [Option<Hole>; HOLES] {
        let mut holes = [None; HOLES];
        let fill = |to: &mut [Option<Hole>], from: &mut dyn Iterator<Item = Hole>| {
            to.iter_mut().zip(from).for_each(|(to, hole)| *to = Some(hole));
        };
        match self.states.get(id as usize).map(|state| &state.place) {
            Some(Place::In(reorder)) => fill(&mut holes, &mut reorder.holes()),
            Some(Place::Out(out)) => fill(&mut holes, &mut out.holes()),
            Some(Place::Free) | None => {}
        }
        holes
    }

    /// All packets of a message that are missing before its newest one. Swaps it in.
    pub(crate) fn all_missing(&mut self, id: u32) -> Vec<u32> {
        self.bring_in(id);
        match self.states.get(id as usize).map(|state| &state.place) {
            Some(Place::In(reorder)) => reorder.all_missing(&self.pool).collect(),
            _ => Vec::new(),
        }
    }

    /// Use of the pool, and swaps.
    pub(crate) fn rx_use(&self) -> RxUse {
        let used = self.pool.usage();
        RxUse {
            bits_peak: used.most * self.pool.block_bits(),
            refused: used.refusals,
            swapped_out: self.swapped_out,
            swapped_in: self.swapped_in,
            swapped_bytes: self.swapped_bytes,
        }
    }

    /// Frees the table of states when no message is left in it.
    pub(crate) fn trim(&mut self) {
        if self.free.len() == self.states.len() {
            (self.states, self.free, self.resident) = (Vec::new(), Vec::new(), Vec::new());
        }
    }

    /// Bytes on the heap. Costs a walk over the states.
    pub(crate) fn heap_bytes(&self) -> usize {
        let numbers = self.free.capacity() + self.resident.capacity();
        let states = self.states.capacity() * size_of::<State<P>>();
        let swapped_out = self.states.iter().map(|state| match &state.place {
            Place::Out(out) => out.bitmap_bytes() as usize,
            Place::Free | Place::In(_) => 0,
        });
        let swapped_out: usize = swapped_out.sum();
        self.pool.heap_bytes() + states + swapped_out + numbers * size_of::<u32>()
    }

    /// Blocks in chains now.
    #[cfg(test)]
    pub(crate) fn blocks_in_use(&self) -> u32 {
        self.pool.usage().in_use
    }

    /// Checks L1, L2 and those of the pool and the states.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        let mut owned = Vec::new();
        let mut with_blocks = Vec::new();
        for (id, state) in (0..).zip(&self.states) {
            let Place::In(reorder) = &state.place else { continue };
            reorder.check(&self.pool);
            owned.extend(reorder.blocks(&self.pool));
            with_blocks.extend(reorder.has_blocks().then_some(id));
            let counts = self.limit > 0 && reorder.has_blocks();
            assert_eq!(state.is_resident, counts, "L1: {id}");
        }
        self.pool.check(owned); // L2 too: every other block is free
        if self.limit > 0 {
            let mut resident = self.resident.clone();
            resident.sort_unstable();
            assert_eq!(resident, with_blocks, "L1");
            assert!(resident.len() <= self.limit as usize, "L1: more than the limit");
        }
    }
}

#[cfg(test)]
#[path = "resident/tests.rs"] // also for the example that includes this file
mod tests;
