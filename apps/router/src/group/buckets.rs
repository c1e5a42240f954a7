//! The buckets of a group of several members.

use super::Groups;

/// Buckets of a group.
pub(super) const BUCKETS: usize = 256;
/// Members of a group. Sets of them are 64 bits.
const MEMBERS: usize = Groups::MEMBERS;
/// The owner of a bucket that has none yet.
const NONE: u8 = MEMBERS as u8;

const _: () = assert!(MEMBERS <= 64 && (MEMBERS as u64) << 16 < u32::MAX as u64 / BUCKETS as u64);

/// The owners of the buckets, as positions in the list of members.
#[derive(Debug)]
pub(super) struct Buckets {
    owners: Box<[u8; BUCKETS]>,
    /// Whether no member is alive. Else all owners are.
    is_dead: bool,
    weights: Box<[u16]>,
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
    /// Buckets of members that are all alive. At least one member, at most [`Groups::MEMBERS`].
    pub(super) fn new(weights: Box<[u16]>) -> Buckets {
        debug_assert!((1..=MEMBERS).contains(&weights.len()));
        let owners = Box::new([NONE; BUCKETS]);
        let mut buckets = Buckets { owners, is_dead: false, weights };
        buckets.rebalance(u64::MAX, Take::Any);
        buckets
    }

    /// The owner of the bucket of a flow; `None` if no member is alive.
    #[inline]
    pub(super) fn pick(&self, flow: u32) -> Option<usize> {
        if self.is_dead { None } else { Some(self.owners[bucket(flow)].into()) }
    }

    /// Sets which members are alive, and which were before. Without a member that returns, only the
    /// buckets of those that died change their owner.
    pub(super) fn set_alive(&mut self, before: u64, alive: u64) {
        self.is_dead = alive == 0;
        if self.is_dead {
            return; // The owners stay for those that return.
        }
        self.rebalance(alive, if alive & !before == 0 { Take::OfDead } else { Take::Any });
    }

    /// Gives each living member its share, rounded up or down, with the fewest changes.
    ///
    /// With [`Take::OfDead`], a member whose share grows may stay below it by more than the
    /// rounding, if weights differ much: those with small shares may have got more than one bucket
    /// per share, and keep them.
    fn rebalance(&mut self, alive: u64, take: Take) {
        let mut owned = Owned::new(&self.weights, alive);
        let mut limits = [0; MEMBERS + 1];
        for (at, limit) in limits[..self.weights.len()].iter_mut().enumerate() {
            *limit = match take {
                _ if alive >> at & 1 == 0 => 0,
                Take::OfDead => BUCKETS as u16,
                Take::Any => owned.at_most(at),
            };
        }
        for (at, owner) in self.owners.iter_mut().enumerate() {
            let own = usize::from(*owner);
            if owned.counts[own] < limits[own] {
                owned.counts[own] += 1;
            } else {
                *owner = NONE;
                owned.spare[owned.spares] = at as u8;
                owned.spares += 1;
            }
        }
        if take == Take::Any {
            owned.take_rounding(&mut self.owners);
        }
        owned.give(&mut self.owners);
    }
}

/// The shares of members, and the buckets that they have.
struct Owned {
    members: usize,
    /// The buckets that the weight of a member is worth, rounded down.
    whole: [u16; MEMBERS],
    /// The rest, of which a member gets one bucket or none.
    fraction: [u32; MEMBERS],
    /// Of each member, and of [`NONE`].
    counts: [u16; MEMBERS + 1],
    /// Buckets without an owner, and their number.
    spare: [u8; BUCKETS],
    spares: usize,
}

impl Owned {
    /// No buckets yet. The share of a dead member is nothing.
    fn new(weights: &[u16], alive: u64) -> Owned {
        let weight = |at: usize| u32::from(weights[at]) * (alive >> at & 1) as u32;
        let all: u32 = (0..weights.len()).map(weight).sum::<u32>().max(1);
        let mut owned = Owned {
            members: weights.len(),
            whole: [0; MEMBERS],
            fraction: [0; MEMBERS],
            counts: [0; MEMBERS + 1],
            spare: [0; BUCKETS],
            spares: 0,
        };
        for at in 0..weights.len() {
            let scaled = weight(at) * BUCKETS as u32;
            owned.whole[at] = (scaled / all) as u16;
            owned.fraction[at] = scaled % all;
        }
        owned
    }

    fn at_most(&self, member: usize) -> u16 {
        self.whole[member] + u16::from(self.fraction[member] > 0)
    }

    /// Whole buckets of its share that a member does not have.
    fn lacks(&self, member: usize) -> u16 {
        self.whole[member].saturating_sub(self.counts[member])
    }

    fn all_lack(&self) -> usize {
        (0..self.members).map(|member| usize::from(self.lacks(member))).sum()
    }

    /// Takes buckets of members that have their share rounded up, as far as others need them to have
    /// theirs rounded down.
    fn take_rounding(&mut self, owners: &mut [u8; BUCKETS]) {
        let needed = self.all_lack().saturating_sub(self.spares);
        let is_rich = |member: &usize| self.counts[*member] > self.whole[*member];
        let rich = (0..self.members).filter(is_rich).take(needed);
        let mut rich = rich.fold(0_u64, |set, member| set | 1 << member);
        for at in (0..BUCKETS).rev() {
            if rich == 0 {
                return;
            }
            let owner = usize::from(owners[at]);
            if owner < MEMBERS && rich >> owner & 1 == 1 {
                rich &= !(1 << owner);
                self.counts[owner] -= 1;
                owners[at] = NONE;
                self.spare[self.spares] = at as u8;
                self.spares += 1;
            }
        }
    }

    /// Gives the spare buckets to members: whole ones of their shares first, then one each to those
    /// with the largest fractions.
    fn give(&mut self, owners: &mut [u8; BUCKETS]) {
        if self.all_lack() > self.spares {
            return self.give_to_neediest(owners);
        }
        for member in 0..self.members {
            for _ in 0..self.lacks(member) {
                self.give_one(owners, member);
            }
        }
        if self.spares == 0 {
            return;
        }
        // Of equal fractions, the first.
        let mut largest = [0_u64; MEMBERS];
        let mut count = 0;
        for member in 0..self.members {
            if self.counts[member] < self.at_most(member) {
                largest[count] = u64::from(self.fraction[member]) << 8 | (MEMBERS - member) as u64;
                count += 1;
            }
        }
        let largest = &mut largest[..count];
        if self.spares < count {
            largest.select_nth_unstable_by(self.spares, |a, b| b.cmp(a));
        }
        for key in largest.iter().take(self.spares.min(count)) {
            self.give_one(owners, MEMBERS - (*key & 0xff) as usize);
        }
    }

    /// Gives each spare bucket to the member that lacks most: too few are spare for all of them.
    fn give_to_neediest(&mut self, owners: &mut [u8; BUCKETS]) {
        while self.spares > 0 {
            let lacks = |member: &usize| (self.lacks(*member), MEMBERS - member);
            let Some(member) = (0..self.members).max_by_key(lacks) else { return };
            self.give_one(owners, member);
        }
    }

    fn give_one(&mut self, owners: &mut [u8; BUCKETS], member: usize) {
        self.spares -= 1;
        owners[usize::from(self.spare[self.spares])] = member as u8;
        self.counts[member] += 1;
    }
}

/// The bucket of a flow. The multiplication makes it depend on all bits of the hash, of which other
/// choices may use some.
#[inline]
fn bucket(flow: u32) -> usize {
    (flow.wrapping_mul(0x9e37_79b1) >> 24) as usize
}
