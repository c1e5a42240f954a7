//! The buckets of a group of several members.

/// Buckets of a group.
pub(super) const BUCKETS: usize = 256;

/// The owners of the buckets, as positions in the list of members.
#[derive(Debug)]
pub(super) struct Buckets {
    owners: Box<[u8; BUCKETS]>,
    /// Whether no member is alive. Else all owners are.
    is_dead: bool,
    alive: Vec<bool>,
    weights: Vec<u16>,
}

/// The buckets that a weight is worth, of a fraction of which a member gets one or none.
struct Share {
    whole: usize,
    fraction: u64,
}

impl Share {
    fn at_most(&self) -> usize {
        self.whole + usize::from(self.fraction > 0)
    }
}

/// Which buckets may change their owner.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Take {
    /// Those of dead members.
    OfDead,
    /// As many as the shares demand.
    Any,
}

impl Buckets {
    /// Buckets of members that are all alive. At least one member, at most 255.
    pub(super) fn new(weights: &[u16]) -> Buckets {
        debug_assert!((1..=255).contains(&weights.len()));
        let alive = vec![true; weights.len()];
        let owners = Box::new([u8::MAX; BUCKETS]);
        let mut buckets = Buckets { owners, is_dead: false, alive, weights: weights.to_vec() };
        buckets.rebalance(Take::Any);
        buckets
    }

    /// The owner of the bucket of a flow; `None` if no member is alive.
    #[inline]
    pub(super) fn pick(&self, flow: u32) -> Option<usize> {
        if self.is_dead { None } else { Some(self.owners[bucket(flow)].into()) }
    }

    /// Sets which members are alive. Without a member that returns, only the buckets of those that
    /// died change their owner.
    pub(super) fn set_alive(&mut self, alive: &[bool]) {
        if self.alive == alive {
            return;
        }
        let returned = alive.iter().zip(&self.alive).any(|(new, old)| *new && !old);
        self.alive = alive.to_vec();
        self.is_dead = !alive.contains(&true);
        if self.is_dead {
            return; // The owners stay for those that return.
        }
        self.rebalance(if returned { Take::Any } else { Take::OfDead });
    }

    fn is_alive(&self, owner: u8) -> bool {
        self.alive.get(usize::from(owner)) == Some(&true)
    }

    /// Gives each living member its share, rounded up or down, with the fewest changes.
    ///
    /// With [`Take::OfDead`], a member whose share grows may stay below it by more than the
    /// rounding, if weights differ much: those with small shares may have got more than one bucket
    /// per share, and keep them.
    fn rebalance(&mut self, take: Take) {
        let shares = self.shares();
        let mut counts = vec![0; shares.len()];
        let mut spare: Vec<usize> = Vec::new();
        for (at, owner) in self.owners.iter().enumerate() {
            let kept = self.is_alive(*owner).then(|| usize::from(*owner));
            match kept {
                Some(owner) if take == Take::OfDead || counts[owner] < shares[owner].at_most() => {
                    counts[owner] += 1;
                }
                _ => spare.push(at),
            }
        }
        if take == Take::Any {
            self.take_rounding(&shares, &mut counts, &mut spare);
        }
        for at in spare {
            let Some(owner) = neediest(&shares, &counts) else { return };
            self.owners[at] = owner as u8;
            counts[owner] += 1;
        }
    }

    /// Takes buckets of members that have their share rounded up, as far as others need them to have
    /// theirs rounded down.
    fn take_rounding(&self, shares: &[Share], counts: &mut [usize], spare: &mut Vec<usize>) {
        let needed: usize =
            shares.iter().zip(&*counts).map(|(s, c)| s.whole.saturating_sub(*c)).sum();
        let rich: Vec<usize> =
            (0..shares.len()).filter(|at| counts[*at] > shares[*at].whole).collect();
        for owner in rich.into_iter().take(needed.saturating_sub(spare.len())) {
            let mut owned = (0..BUCKETS).rev().filter(|b| usize::from(self.owners[*b]) == owner);
            if let Some(bucket) = owned.find(|b| !spare.contains(b)) {
                counts[owner] -= 1;
                spare.push(bucket);
            }
        }
    }

    /// The shares of the members; of dead ones, nothing.
    fn shares(&self) -> Vec<Share> {
        let weight = |at: usize| if self.alive[at] { u64::from(self.weights[at]) } else { 0 };
        let all: u64 = (0..self.weights.len()).map(weight).sum::<u64>().max(1);
        let share = |at| {
            let scaled = weight(at) * BUCKETS as u64;
            Share { whole: (scaled / all) as usize, fraction: scaled % all }
        };
        (0..self.weights.len()).map(share).collect()
    }
}

/// The member to get the next bucket: the one that lacks most whole buckets of its share, or, if
/// none does, the one with the largest fraction that is not rounded up yet.
fn neediest(shares: &[Share], counts: &[usize]) -> Option<usize> {
    let lacks = |at: &usize| shares[*at].whole.saturating_sub(counts[*at]);
    let first_best = |at: &usize| (lacks(at), shares[*at].fraction, usize::MAX - at);
    (0..shares.len()).filter(|at| counts[*at] < shares[*at].at_most()).max_by_key(first_best)
}

/// The bucket of a flow. The multiplication makes it depend on all bits of the hash, of which other
/// choices may use some.
#[inline]
fn bucket(flow: u32) -> usize {
    (flow.wrapping_mul(0x9e37_79b1) >> 24) as usize
}
