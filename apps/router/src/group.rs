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
    members: Members,
    users: u32,
}

impl Group {
    fn new(members: Members, liveness: &Liveness) -> Group {
        let weights: Vec<u16> = members.iter().map(|(_, weight)| *weight).collect();
        let buckets = (members.len() > 1).then(|| Buckets::new(&weights));
        let mut group = Group { only: None, buckets, members, users: 0 };
        group.set_alive(&|hop| liveness.is_alive(hop));
        group
    }

    fn set_alive(&mut self, is_alive: &impl Fn(&NextHop) -> bool) {
        let alive: Vec<bool> = self.members.iter().map(|(hop, _)| is_alive(hop)).collect();
        let mut living = (0..alive.len()).filter(|at| alive[*at]);
        self.only = match (living.next(), living.next()) {
            (Some(one), None) => Some(self.members[one].0),
            _ => None,
        };
        if let Some(buckets) = &mut self.buckets {
            buckets.set_alive(&alive);
        }
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

/// All groups. Equal lists of members are one group.
///
/// A group takes less than half a kilobyte, and 50 bytes for each member.
#[derive(Debug)]
pub struct Groups {
    groups: Vec<Option<Group>>,
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
            GroupId((self.groups.len() - 1) as u32)
        });
        self.groups[id.0 as usize] = Some(group);
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
            self.free.push(id);
        }
        true
    }

    /// Sets which next hops are alive, and gives the buckets of the dead ones to others.
    ///
    /// Groups added later use the same state. Of next hops that no group has now, `alive` is called
    /// for each node and port, and a gateway is alive if its port is.
    pub fn set_alive(&mut self, alive: impl Fn(&NextHop) -> bool) {
        let members = self.by_members.keys().flat_map(|members| members.iter().map(|(hop, _)| hop));
        self.liveness = Liveness::of(&alive, members);
        for group in self.groups.iter_mut().flatten() {
            group.set_alive(&alive);
        }
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
