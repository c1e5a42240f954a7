//! Retransmission queue of the MELO scoreboard: runs of lost packets, in ascending order.

use std::collections::VecDeque;

use super::papers::Hole;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Resend {
    /// None is empty; each begins after the end of the one before.
    runs: VecDeque<Hole>,
    /// Packets of all runs.
    count: u32,
}

impl Resend {
    /// Number of packets.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// The first run.
    pub(crate) fn next(&self) -> Option<Hole> {
        self.runs.front().copied()
    }

    /// Adds packets after all others.
    pub(crate) fn push(&mut self, hole: Hole) {
        self.count += hole.len;
        match self.runs.back_mut() {
            Some(run) if run.first + run.len == hole.first => run.len += hole.len,
            _ => self.runs.push_back(hole),
        }
    }

    /// A packet is sent: removes it if it is the first.
    pub(crate) fn sent(&mut self, index: u32) {
        if self.runs.front().is_some_and(|run| run.first == index) {
            self.trim(index + 1);
        }
    }

    /// Removes the packets below `count`.
    pub(crate) fn trim(&mut self, count: u32) {
        while let Some(run) = self.runs.front_mut().filter(|run| run.first < count) {
            let below = run.len.min(count - run.first);
            (run.first, run.len) = (run.first + below, run.len - below);
            self.count -= below;
            if run.len > 0 {
                break;
            }
            self.runs.pop_front();
        }
    }

    /// Keeps only the packets for which `keep` returns true.
    pub(crate) fn retain(&mut self, keep: impl Fn(u32) -> bool) {
        self.count = 0;
        for run in std::mem::take(&mut self.runs) {
            for index in (run.first..run.first + run.len).filter(|&index| keep(index)) {
                self.push(Hole { first: index, len: 1 });
            }
        }
    }

    /// Removes a packet. Costs one step per run, and if it is present one step per packet.
    pub(crate) fn remove(&mut self, index: u32) {
        if self.runs.iter().any(|run| (run.first..run.first + run.len).contains(&index)) {
            self.retain(|other| other != index);
        }
    }

    /// Removes all packets.
    pub(crate) fn clear(&mut self) {
        self.runs.clear();
        self.count = 0;
    }

    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.runs.capacity() * size_of::<Hole>()
    }

    /// Checks its invariants.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        assert_eq!(self.count, self.runs.iter().map(|run| run.len).sum::<u32>());
        assert!(self.runs.iter().all(|run| run.len > 0), "{self:?}");
        let apart = |(a, b): (&Hole, &Hole)| a.first + a.len < b.first;
        assert!(self.runs.iter().zip(self.runs.iter().skip(1)).all(apart), "{self:?}");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Op {
        Push(u32, u32),
        Sent,
        Trim(u32),
        Remove(u32),
        RetainOdd,
        Clear,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            6 => (0..3_u32, 1..6_u32).prop_map(|(gap, len)| Op::Push(gap, len)),
            3 => Just(Op::Sent),
            2 => (0..60_u32).prop_map(Op::Trim),
            3 => (0..60_u32).prop_map(Op::Remove),
            1 => Just(Op::RetainOdd),
            1 => Just(Op::Clear),
        ]
    }

    proptest! {
        #[test]
        fn it_is_a_sorted_list(ops in prop::collection::vec(op(), 1..60)) {
            let (mut resend, mut model) = (Resend::default(), Vec::<u32>::new());
            for op in ops {
                match op {
                    Op::Push(gap, len) => {
                        let first = model.last().map_or(0, |last| last + 1) + gap;
                        resend.push(Hole { first, len });
                        model.extend(first..first + len);
                    }
                    Op::Sent => {
                        if let Some(&first) = model.first() {
                            // Packets other than the first are not removed.
                            resend.sent(first + 1);
                            resend.sent(first);
                            model.remove(0);
                        }
                    }
                    Op::Trim(count) => {
                        resend.trim(count);
                        model.retain(|&i| i >= count);
                    }
                    Op::Remove(index) => {
                        resend.remove(index);
                        model.retain(|&i| i != index);
                    }
                    Op::RetainOdd => {
                        resend.retain(|i| i % 2 == 1);
                        model.retain(|i| i % 2 == 1);
                    }
                    Op::Clear => {
                        resend.clear();
                        model.clear();
                    }
                }
                resend.check();
                let runs = resend.runs.iter().flat_map(|run| run.first..run.first + run.len);
                prop_assert_eq!(runs.collect::<Vec<_>>(), model.clone());
                prop_assert_eq!(resend.next().map(|run| run.first), model.first().copied());
                prop_assert_eq!(resend.count() as usize, model.len());
            }
        }
    }
}
