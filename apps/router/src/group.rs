//! Next-hop groups: the next hops that share the flows of a route.
//!
//! A group of several members has 256 buckets, each of which belongs to a member. The hash of a flow
//! selects a bucket, so that the packets of a flow take one way ([RFC 2992], section 1). Hashing is
//! resilient: when a member dies, only its buckets change their owner; when it returns, it takes as
//! few buckets as its weight demands from the others. Flows of other members stay.
//!
//! Because of that, the owners depend on the order of past changes, and two nodes with the same
//! members may select different ones. That is harmless: the node where a packet arrives selects for
//! all nodes.
//!
//! [RFC 2992]: https://www.rfc-editor.org/rfc/rfc2992

mod buckets;
mod liveness;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use thiserror::Error;

use self::buckets::Buckets;
use self::liveness::Liveness;
use crate::route::{MAX_NODES, MAX_PORTS, NextHop};

/// The number of a group, below 2^24, which is what an entry of the [FIB](crate::fib) has room for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct GroupId(u32);

impl GroupId {
    /// The largest number.
    pub const MAX: GroupId = GroupId((1 << 24) - 1);

    /// The group of this number; `None` above [`GroupId::MAX`].
    pub const fn new(number: u32) -> Option<GroupId> {
        if number <= GroupId::MAX.0 { Some(GroupId(number)) } else { None }
    }

    /// The number.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// Why a list of members is no group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum GroupError {
    /// There are too many groups.
    #[error("there are {limit} groups of next hops already: use fewer different lists")]
    Groups {
        /// The limit.
        limit: usize,
    },
    /// The list is too long.
    #[error("{members} next hops: a route has at most {}", Groups::MEMBERS)]
    Members {
        /// Members of the list.
        members: usize,
    },
    /// A weight of 0.
    #[error("{hop} has the weight 0: leave it out, or give it a weight of 1 to 65535")]
    Weight {
        /// The member.
        hop: NextHop,
    },
    /// A next hop occurs twice.
    #[error("{hop} occurs twice: add up its weights")]
    Twice {
        /// The member.
        hop: NextHop,
    },
    /// A node or port that no cluster has.
    #[error("{hop}: nodes are below {MAX_NODES}, ports below {MAX_PORTS}")]
    Unknown {
        /// The member.
        hop: NextHop,
    },
}

/// Next hops and their weights.
type Members = Box<[(NextHop, u16)]>;

/// A list of members, its users and its buckets.
#[derive(Debug)]
struct Group {
    /// The only living member, whose flows need no bucket.
    only: Option<NextHop>,
    /// In groups of several members.
    buckets: Option<Buckets>,
    /// The members that are alive, by their positions.
    alive: u64,
    members: Members,
    users: u32,
}

impl Group {
    fn new(members: Members, liveness: &Liveness) -> Group {
        let weights = members.iter().map(|(_, weight)| *weight);
        let buckets = (members.len() > 1).then(|| Buckets::new(weights.collect()));
        // Members of new buckets are all alive.
        let alive = if buckets.is_some() { set_of(&members, |_| true) } else { 0 };
        let mut group = Group { only: None, buckets, alive, members, users: 0 };
        group.set_alive(liveness);
        group
    }

    /// Returns whether a member has died or returned.
    fn set_alive(&mut self, liveness: &Liveness) -> bool {
        let alive = set_of(&self.members, |hop| liveness.is_alive(hop));
        if alive == self.alive {
            return false;
        }
        let first = alive.trailing_zeros() as usize;
        self.only = (alive.count_ones() == 1).then(|| self.members[first].0);
        if let Some(buckets) = &mut self.buckets {
            buckets.set_alive(self.alive, alive);
        }
        self.alive = alive;
        true
    }

    #[inline]
    fn pick(&self, flow: u32) -> Option<NextHop> {
        if self.only.is_some() {
            return self.only;
        }
        let owner = self.buckets.as_ref()?.pick(flow)?;
        self.members.get(owner).map(|(hop, _)| *hop)
    }
}

/// The positions of some members, as a set.
fn set_of(members: &Members, is_in: impl Fn(&NextHop) -> bool) -> u64 {
    let bits = members.iter().enumerate().map(|(at, (hop, _))| u64::from(is_in(hop)) << at);
    bits.fold(0, |set, bit| set | bit)
}

/// The nodes of the members, as a set.
fn nodes_of(members: &Members) -> u64 {
    members.iter().fold(0, |set, (hop, _)| set | 1 << hop.node)
}

/// All groups. Equal lists of members are one group.
///
/// A group takes less than half a kilobyte, and 50 bytes for each member.
#[derive(Debug)]
pub struct Groups {
    groups: Vec<Option<Group>>,
    /// The nodes of each group's members. In a place of their own, so that a change of a node is
    /// compared with all groups in little time.
    nodes: Vec<u64>,
    free: Vec<GroupId>,
    by_members: BTreeMap<Members, GroupId>,
    liveness: Liveness,
    limit: usize,
}

impl Default for Groups {
    fn default() -> Groups {
        Groups::new()
    }
}

impl Groups {
    /// Members of a group at most.
    pub const MEMBERS: usize = 64;
    /// Groups at most, unless stated otherwise.
    pub const GROUPS: usize = 1 << 16;

    /// No groups, and at most [`Groups::GROUPS`].
    pub fn new() -> Groups {
        Groups::with_limit(Groups::GROUPS)
    }

    /// No groups, and at most `limit`, but never more than there are numbers.
    pub fn with_limit(limit: usize) -> Groups {
        Groups {
            groups: Vec::new(),
            nodes: Vec::new(),
            free: Vec::new(),
            by_members: BTreeMap::new(),
            liveness: Liveness::new(),
            limit: limit.min(GroupId::MAX.get() as usize + 1),
        }
    }

    /// The group of these members, in any order. Each call is one use, which [`Groups::release`]
    /// ends. A group without members selects none.
    pub fn intern(&mut self, members: &[(NextHop, u16)]) -> Result<GroupId, GroupError> {
        let members = checked(members)?;
        let id = match self.by_members.get(&members) {
            Some(id) => *id,
            None => self.add(members)?,
        };
        if let Some(Some(group)) = self.groups.get_mut(id.0 as usize) {
            group.users += 1;
        }
        Ok(id)
    }

    fn add(&mut self, members: Members) -> Result<GroupId, GroupError> {
        if self.by_members.len() >= self.limit {
            return Err(GroupError::Groups { limit: self.limit });
        }
        let group = Group::new(members.clone(), &self.liveness);
        let id = self.free.pop().unwrap_or_else(|| {
            self.groups.push(None);
            self.nodes.push(0);
            GroupId((self.groups.len() - 1) as u32)
        });
        self.groups[id.0 as usize] = Some(group);
        self.nodes[id.0 as usize] = nodes_of(&members);
        self.by_members.insert(members, id);
        Ok(id)
    }

    /// Ends a use. A group without uses is removed, and its number is used again. Returns whether
    /// the group existed.
    pub fn release(&mut self, id: GroupId) -> bool {
        let Some(place) = self.groups.get_mut(id.0 as usize) else { return false };
        let Some(group) = place else { return false };
        group.users -= 1;
        if group.users == 0 {
            self.by_members.remove(&group.members);
            *place = None;
            self.nodes[id.0 as usize] = 0;
            self.free.push(id);
        }
        true
    }

    /// Sets which next hops are alive, and gives the buckets of the dead ones to others. Returns the
    /// number of groups with a member at a node that has changed, and how many of them have a member
    /// that has died or returned: only those are rebuilt.
    ///
    /// `alive` is called for each node and port; a gateway is alive if its port is. Groups added later
    /// use the same state.
    ///
    /// Takes 0.2 ms for [`Groups::GROUPS`] groups, and 2 to 3 us more for each that is rebuilt: 0.17 s
    /// if all are, with [`Groups::MEMBERS`] members each. Allocates nothing.
    pub fn set_alive(&mut self, alive: impl Fn(&NextHop) -> bool) -> (usize, usize) {
        let before = std::mem::replace(&mut self.liveness, Liveness::of(alive));
        let changed = self.liveness.differs(&before);
        let (mut compared, mut rebuilt) = (0, 0);
        for (nodes, group) in self.nodes.iter().zip(&mut self.groups) {
            if nodes & changed != 0
                && let Some(group) = group
            {
                compared += 1;
                rebuilt += usize::from(group.set_alive(&self.liveness));
            }
        }
        (compared, rebuilt)
    }

    /// The next hop of a flow; `None` if no member is alive.
    #[inline]
    pub fn pick(&self, id: GroupId, flow: u32) -> Option<NextHop> {
        self.groups.get(id.0 as usize)?.as_ref()?.pick(flow)
    }

    /// The members of a group, sorted; none if it does not exist.
    pub fn members(&self, id: GroupId) -> &[(NextHop, u16)] {
        match self.groups.get(id.0 as usize) {
            Some(Some(group)) => &group.members,
            _ => &[],
        }
    }

    /// Groups.
    pub fn len(&self) -> usize {
        self.by_members.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Sorts and checks a list of members.
pub(crate) fn checked(members: &[(NextHop, u16)]) -> Result<Box<[(NextHop, u16)]>, GroupError> {
    if members.len() > Groups::MEMBERS {
        return Err(GroupError::Members { members: members.len() });
    }
    let mut sorted: Members = members.into();
    sorted.sort_unstable();
    for (hop, weight) in &sorted {
        let port = hop.port().map_or(0, usize::from);
        if usize::from(hop.node) >= MAX_NODES || port >= MAX_PORTS {
            return Err(GroupError::Unknown { hop: *hop });
        }
        if *weight == 0 {
            return Err(GroupError::Weight { hop: *hop });
        }
    }
    match sorted.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        Some(pair) => Err(GroupError::Twice { hop: pair[0].0 }),
        None => Ok(sorted),
    }
}
