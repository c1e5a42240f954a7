//! The reference model: one flag per packet, and linear searches.

use super::super::{Arrival, HOLES, Hole};

/// A receiver with one flag per packet that decides as [`super::super::Reorder`] does.
#[derive(Clone)]
pub(super) struct Model {
    pub(super) received: Vec<bool>,
    /// Holes that start below are not tracked.
    floor: u32,
    /// Packets of a block.
    block_bits: u32,
}

impl Model {
    pub(super) fn new(packets: u32, block_bits: u32) -> Model {
        Model { received: vec![false; packets as usize], floor: 0, block_bits }
    }

    pub(super) fn rcv_nxt(&self) -> u32 {
        self.received.iter().take_while(|&&received| received).count() as u32
    }

    pub(super) fn rcv_high(&self) -> u32 {
        self.received.iter().rposition(|&received| received).map_or(0, |at| at as u32 + 1)
    }

    /// All holes, the highest first.
    pub(super) fn all_holes(&self) -> Vec<Hole> {
        let mut holes: Vec<Hole> = Vec::new();
        for psn in (self.rcv_nxt()..self.rcv_high()).filter(|&psn| !self.received[psn as usize]) {
            match holes.last_mut() {
                Some(hole) if hole.first + hole.len == psn => hole.len += 1,
                _ => holes.push(Hole { first: psn, len: 1 }),
            }
        }
        holes.reverse();
        holes
    }

    /// The three highest holes, minus those that were displaced by newer ones.
    pub(super) fn holes(&self) -> Vec<Hole> {
        let tracked = |hole: &Hole| hole.first >= self.floor;
        self.all_holes().into_iter().filter(tracked).take(HOLES).collect()
    }

    /// Number of blocks that its bitmap needs.
    pub(super) fn blocks(&self) -> u32 {
        self.blocks_of(self.rcv_nxt(), self.rcv_high())
    }

    /// The expected result for `psn` when `free` blocks of the pool are free.
    pub(super) fn on_packet(&mut self, psn: u32, free: u32) -> Arrival {
        let (nxt, high) = (self.rcv_nxt(), self.rcv_high());
        let [front, end, block] = [nxt, high.max(1) - 1, psn].map(|psn| psn / self.block_bits);
        let arrival = if psn < nxt {
            Arrival::Duplicate
        } else if psn == nxt {
            Arrival::InOrder
        } else if psn >= high {
            if self.blocks_of(nxt, psn + 1) - self.blocks() > free {
                return Arrival::NoBits;
            }
            Arrival::OutOfOrder { new_hole: psn > high }
        } else if block != front && block != end {
            return Arrival::Middle;
        } else if self.received[psn as usize] {
            Arrival::Duplicate
        } else {
            Arrival::OutOfOrder { new_hole: false }
        };
        self.received[psn as usize] = true;
        let tracked = self.all_holes().into_iter().filter(|hole| hole.first >= self.floor);
        if let Some(oldest) = tracked.skip(HOLES - 1).collect::<Vec<_>>().as_slice().split_first() {
            // Only when a fourth has displaced it.
            if !oldest.1.is_empty() {
                self.floor = oldest.0.first;
            }
        }
        arrival
    }

    /// Discards everything beyond RCV.NXT.
    pub(super) fn release(&mut self) {
        let nxt = self.rcv_nxt();
        self.received[nxt as usize..].fill(false);
        self.floor = 0;
    }

    fn blocks_of(&self, nxt: u32, high: u32) -> u32 {
        let bits = self.block_bits;
        if nxt >= high { 0 } else { (high - 1) / bits + 1 - nxt / bits }
    }
}
