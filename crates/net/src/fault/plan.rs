//! Draws the faults of frames from a seed.

use courser_buf::stats;

/// The fault of one frame of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// It is lost.
    Drop,
    /// It arrives twice.
    Duplicate,
    /// This many later frames overtake it (at least 1).
    Delay(u32),
    /// One bit flips: this number, modulo the number of bits.
    Corrupt(u64),
}

/// Faults of one direction. The default is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// Frames lost, per million.
    pub loss_ppm: u32,
    /// Frames that arrive twice, per million.
    pub duplicate_ppm: u32,
    /// Frames that later ones overtake, per million.
    pub reorder_ppm: u32,
    /// Most later frames that overtake such a frame; drawn from 1 to this. 0 counts as 1.
    pub reorder_span: u32,
    /// Frames of which one bit flips, per million.
    pub corrupt_ppm: u32,
    /// Faults of single frames by their number in this direction, from 0, ascending. They replace
    /// the random fault of their frame and do not change those of others.
    pub script: Vec<(u64, Fault)>,
}

impl FaultPlan {
    /// Loses `ppm` frames per million, without other faults.
    pub fn loss(ppm: u32) -> Self {
        FaultPlan { loss_ppm: ppm, ..FaultPlan::default() }
    }

    /// Returns whether there are no faults.
    pub fn is_none(&self) -> bool {
        let shares = [self.loss_ppm, self.duplicate_ppm, self.reorder_ppm, self.corrupt_ppm];
        shares == [0; 4] && self.script.is_empty()
    }

    pub(super) fn corrupts(&self) -> bool {
        self.corrupt_ppm > 0 || self.script.iter().any(|(_, f)| matches!(f, Fault::Corrupt(_)))
    }
}

/// Settings of a [`super::FaultTransport`]. Default: no faults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultConfig {
    /// Seed of all random faults.
    pub seed: u64,
    /// Faults of sent frames.
    pub tx: FaultPlan,
    /// Faults of received frames.
    pub rx: FaultPlan,
}

stats! {
    /// Counters of faults in one direction.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct FaultCounts: "injected faults" {
        /// Frames seen.
        pub frames: u64 = counter(frames),
        /// Frames lost.
        pub lost: u64 = counter(frames),
        /// Frames that arrived twice.
        pub duplicated: u64 = counter(frames),
        /// Frames that were delayed.
        pub delayed: u64 = counter(frames),
        /// Frames with a flipped bit (lost when there was no memory for the copy).
        pub corrupted: u64 = counter(frames),
        /// Frames lost because too many were held. Not an injected fault.
        pub overflow: u64 = counter(frames),
    }
}

/// The fault of the next frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Pass,
    Drop,
    Duplicate,
    Delay(u32),
    Corrupt(u64),
}

/// Draws verdicts.
pub(super) struct Dice {
    state: u64,
    plan: FaultPlan,
    /// Entries of the script that are done.
    scripted: usize,
    pub(super) counts: FaultCounts,
}

/// Denominator of probabilities.
pub(super) const MILLION: u32 = 1_000_000;

impl Dice {
    pub(super) fn new(seed: u64, mut plan: FaultPlan) -> Self {
        plan.script.sort_by_key(|&(n, _)| n);
        Dice { state: seed, plan, scripted: 0, counts: FaultCounts::default() }
    }

    /// SplitMix64 (Steele, Lea, Flood 2014), which has no weak seeds.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One verdict. Always draws two numbers, so that a frame's fault does not change the next
    /// one's.
    pub(super) fn roll(&mut self) -> Verdict {
        let number = self.counts.frames;
        self.counts.frames += 1;
        let (chance, detail) = (self.next(), self.next());
        let verdict = self.scripted(number).unwrap_or_else(|| self.by_chance(chance, detail));
        match verdict {
            Verdict::Pass => {}
            Verdict::Drop => self.counts.lost += 1,
            Verdict::Duplicate => self.counts.duplicated += 1,
            Verdict::Delay(_) => self.counts.delayed += 1,
            Verdict::Corrupt(_) => self.counts.corrupted += 1,
        }
        verdict
    }

    fn scripted(&mut self, number: u64) -> Option<Verdict> {
        let &(at, fault) = self.plan.script.get(self.scripted)?;
        if at > number {
            return None;
        }
        while self.plan.script.get(self.scripted).is_some_and(|&(n, _)| n <= number) {
            self.scripted += 1;
        }
        Some(match fault {
            Fault::Drop => Verdict::Drop,
            Fault::Duplicate => Verdict::Duplicate,
            Fault::Delay(k) => Verdict::Delay(k.max(1)),
            Fault::Corrupt(bits) => Verdict::Corrupt(bits),
        })
    }

    /// At most one fault per frame: the probabilities are adjacent intervals.
    fn by_chance(&self, chance: u64, detail: u64) -> Verdict {
        let mut at = (chance % u64::from(MILLION)) as u32;
        let mut falls = |ppm: u32| match at.checked_sub(ppm) {
            Some(rest) => {
                at = rest;
                false
            }
            None => {
                at = u32::MAX;
                true
            }
        };
        if falls(self.plan.loss_ppm) {
            Verdict::Drop
        } else if falls(self.plan.duplicate_ppm) {
            Verdict::Duplicate
        } else if falls(self.plan.reorder_ppm) {
            Verdict::Delay(1 + (detail % u64::from(self.plan.reorder_span.max(1))) as u32)
        } else if falls(self.plan.corrupt_ppm) {
            Verdict::Corrupt(detail)
        } else {
            Verdict::Pass
        }
    }
}
