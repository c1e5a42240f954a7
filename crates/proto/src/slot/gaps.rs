//! What a server slot keeps only while packets are missing: which have arrived out of order, and
//! which parts of the response are asked for at once (F3).

use std::collections::VecDeque;

use crate::loss::Arrived;
use crate::wire::{HOLES_REACH, Hole};

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Gaps {
    /// Of a request that is arriving with packets missing.
    arrived: Option<Arrived>,
    /// Parts of the response that are asked for, besides the one that is being sent.
    asks: VecDeque<(u32, u32)>,
}

impl Gaps {
    /// A packet of a request of `packets`, of which those before `count` have arrived, is not the
    /// next one. `false`: it has been here before, or is out of reach.
    pub(crate) fn insert(&mut self, index: u32, count: u32, packets: u32) -> bool {
        if index - count >= HOLES_REACH {
            return false;
        }
        let arrived = self.arrived.get_or_insert_with(|| {
            let mut arrived = Arrived::default();
            arrived.begin(count, packets);
            arrived
        });
        arrived.insert(index)
    }

    /// The next packet in order has arrived: how many have now.
    pub(crate) fn advance(&mut self, count: u32) -> u32 {
        let Some(arrived) = &mut self.arrived else { return count + 1 };
        arrived.insert(count);
        arrived.in_order(count)
    }

    /// One past the newest packet that has arrived, if that is beyond `count`.
    pub(crate) fn high(&self, count: u32) -> Option<u32> {
        self.arrived.as_ref().map(Arrived::high).filter(|&high| high > count)
    }

    /// The missing packets, the most recent ones first.
    pub(crate) fn holes(&self, count: u32) -> impl Iterator<Item = Hole> + '_ {
        self.arrived.iter().flat_map(move |arrived| arrived.holes(count))
    }

    /// The request is another one, or is answered.
    pub(crate) fn forget(&mut self) {
        self.arrived = None;
        self.asks.clear();
    }

    /// One more part is asked for, while `due` packets are to be sent. Never owes more than `limit`
    /// packets: an honest client has a credit for each.
    pub(crate) fn ask(&mut self, first: u32, end: u32, due: u32, limit: u32) {
        let owed: u32 = self.asks.iter().map(|(first, end)| end - first).sum();
        if owed + due + (end - first) <= limit {
            self.asks.push_back((first, end));
        }
    }

    /// The part that is to be sent next.
    pub(crate) fn next_ask(&mut self) -> Option<(u32, u32)> {
        self.asks.pop_front()
    }
}
