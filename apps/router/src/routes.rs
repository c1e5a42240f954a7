//! The routes of all nodes: which next hops a destination has.
//!
//! Several [origins](Origin) may know a route for the same prefix. The one of the lowest origin is
//! in the [FIB](crate::fib), and the next one takes its place when it is withdrawn. An origin's new
//! route for a prefix replaces its old one in place: there is no moment without a route.

mod change;
#[cfg(feature = "lab")]
mod snapshot;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::{Bound, RangeBounds};

use ipnet::{IpNet, Ipv4Net};
use thiserror::Error;

pub use self::change::{Change, ChangeError, Refusal};
#[cfg(feature = "lab")]
pub use self::snapshot::SnapshotError;
use crate::fib::{Fib, FibError};
use crate::group::{GroupError, GroupId, Groups};
use crate::route::{Exit, NextHop, NodeId};

/// Where a route comes from. Of several routes for one prefix, that of the lowest origin is used.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Origin {
    /// The networks and addresses of ports. No announcement takes them over.
    Connected,
    /// Announced at a node while it runs.
    Node(NodeId),
    /// The files of the configuration.
    File,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Connected => f.write_str("connected"),
            Origin::Node(node) => write!(f, "node {node}"),
            Origin::File => f.write_str("file"),
        }
    }
}

/// Why a route was not announced. The routes are as before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum RouteError {
    /// The address has bits beyond the length of the prefix.
    #[error("{given} has bits beyond its length: its network is {network}")]
    HostBits {
        /// The prefix.
        given: IpNet,
        /// The prefix without them.
        network: IpNet,
    },
    /// An IPv4 gateway of an IPv6 route.
    #[error("{gateway} is no gateway of {prefix}: give an IPv6 one")]
    Family {
        /// The prefix.
        prefix: IpNet,
        /// The gateway.
        gateway: IpAddr,
    },
    /// There are too many routes.
    #[error("there are {limit} routes already: withdraw some, or raise the limit")]
    Routes {
        /// The limit.
        limit: usize,
    },
    /// The list of next hops is no group.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// The FIB has no room for the prefix.
    #[error(transparent)]
    Fib(#[from] FibError),
}

/// What a lookup found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lookup {
    /// No prefix contains the address.
    NoRoute,
    /// The route has no next hop that is alive.
    Unreachable,
    /// The next hop of the flow.
    Via(NextHop),
}

/// A route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route<'a> {
    /// The destinations.
    pub prefix: IpNet,
    /// Where it comes from.
    pub origin: Origin,
    /// Its next hops and their weights, sorted; none in a route that rejects.
    pub members: &'a [(NextHop, u16)],
    /// Whether it is used, and not hidden by a route of a lower origin.
    pub is_used: bool,
}

/// The first prefix in their order.
const LOWEST: IpNet = IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0));

/// The routes of all origins, the FIB and the groups made from them.
///
/// A route takes some 120 bytes beside the memory of [`Fib`] and [`Groups`].
#[derive(Debug)]
pub struct Routes {
    fib: Fib,
    groups: Groups,
    /// By prefix and origin, so that the first of a prefix is the one in the FIB.
    routes: BTreeMap<(IpNet, Origin), GroupId>,
    /// The same by origin, to list and to withdraw those of one without a walk through all.
    by_origin: BTreeSet<(Origin, IpNet)>,
    limit: usize,
}

impl Default for Routes {
    fn default() -> Routes {
        Routes::new()
    }
}

impl Routes {
    /// Routes of all origins at most, unless stated otherwise.
    pub const ROUTES: usize = 1 << 21;

    /// No routes, and the limits [`Routes::ROUTES`], [`Fib::BLOCKS`] and [`Groups::GROUPS`].
    pub fn new() -> Routes {
        Routes::with_limits(Routes::ROUTES, Fib::new(), Groups::new())
    }

    /// No routes, and at most `limit` in this FIB and these groups, both without entries.
    pub fn with_limits(limit: usize, fib: Fib, groups: Groups) -> Routes {
        debug_assert!(fib.is_empty() && groups.is_empty());
        Routes { fib, groups, routes: BTreeMap::new(), by_origin: BTreeSet::new(), limit }
    }

    /// Adds a route of an origin, or replaces the one it has for this prefix. Without members, it
    /// rejects packets.
    pub fn announce(
        &mut self,
        origin: Origin,
        prefix: IpNet,
        members: &[(NextHop, u16)],
    ) -> Result<(), RouteError> {
        check(prefix, members)?;
        let key = (prefix, origin);
        let old = self.routes.get(&key).copied();
        if old.is_none() && self.routes.len() >= self.limit {
            return Err(RouteError::Routes { limit: self.limit });
        }
        let group = self.groups.intern(members)?;
        if self.used(prefix).is_none_or(|used| origin <= used)
            && let Err(error) = self.fib.insert(prefix, group)
        {
            self.groups.release(group);
            return Err(error.into());
        }
        self.routes.insert(key, group);
        self.by_origin.insert((origin, prefix));
        if let Some(old) = old {
            self.groups.release(old);
        }
        Ok(())
    }

    /// Removes a route of an origin. Returns whether there was one.
    pub fn withdraw(&mut self, origin: Origin, prefix: &IpNet) -> bool {
        let Some(group) = self.routes.remove(&(*prefix, origin)) else { return false };
        self.by_origin.remove(&(origin, *prefix));
        match self.first(*prefix) {
            Some((used, _)) if used < origin => {}
            Some((_, next)) => {
                // The prefix is there, so that it needs no block.
                let replaced = self.fib.insert(*prefix, next);
                debug_assert!(replaced.is_ok());
            }
            None => {
                self.fib.remove(prefix);
            }
        }
        self.groups.release(group);
        true
    }

    /// Removes all routes of an origin. Returns how many there were. Half a second for a million.
    pub fn withdraw_all(&mut self, origin: Origin) -> usize {
        let prefixes: Vec<IpNet> = self.prefixes(origin, None).collect();
        prefixes.iter().filter(|prefix| self.withdraw(origin, prefix)).count()
    }

    /// The next hop of a flow to a destination.
    #[inline]
    pub fn lookup(&self, destination: IpAddr, flow: u32) -> Lookup {
        match self.fib.lookup(destination) {
            None => Lookup::NoRoute,
            Some(group) => match self.groups.pick(group, flow) {
                None => Lookup::Unreachable,
                Some(hop) => Lookup::Via(hop),
            },
        }
    }

    /// Prefetches what the lookup of a destination will load first.
    #[inline]
    pub fn prefetch(&self, destination: IpAddr) {
        self.fib.prefetch(destination);
    }

    /// Sets which next hops are alive; see [`Groups::set_alive`].
    pub fn set_alive(&mut self, alive: impl Fn(&NextHop) -> bool) {
        self.groups.set_alive(alive);
    }

    /// All routes by prefix, those of one prefix by origin.
    pub fn routes(&self) -> impl Iterator<Item = Route<'_>> {
        self.range(..)
    }

    /// The routes within a prefix, of all prefixes if it is `None`. To list them in pieces, `after`
    /// is the last one of the piece before.
    pub fn within(
        &self,
        prefix: Option<IpNet>,
        after: Option<(IpNet, Origin)>,
    ) -> impl Iterator<Item = Route<'_>> {
        // Prefixes are sorted by address, then by length.
        let first = prefix.map(|prefix| (prefix.trunc(), Origin::Connected));
        let start = match (first, after) {
            (Some(first), Some(after)) if after < first => Bound::Included(first),
            (_, Some(after)) => Bound::Excluded(after),
            (Some(first), None) => Bound::Included(first),
            (None, None) => Bound::Unbounded,
        };
        let routes = self.range((start, Bound::Unbounded));
        routes.take_while(move |route| prefix.is_none_or(|prefix| prefix.contains(&route.prefix)))
    }

    /// The routes of an origin by prefix. To list them in pieces, `after` is the last prefix of the
    /// piece before.
    pub fn announced(
        &self,
        origin: Origin,
        after: Option<IpNet>,
    ) -> impl Iterator<Item = Route<'_>> {
        self.prefixes(origin, after).filter_map(move |prefix| self.get(origin, prefix))
    }

    /// Prefixes of an origin, after this one.
    fn prefixes(&self, origin: Origin, after: Option<IpNet>) -> impl Iterator<Item = IpNet> + '_ {
        let start = match after {
            Some(after) => Bound::Excluded((origin, after)),
            None => Bound::Included((origin, LOWEST)),
        };
        let all = self.by_origin.range((start, Bound::Unbounded));
        all.take_while(move |(from, _)| *from == origin).map(|(_, prefix)| *prefix)
    }

    fn range(&self, keys: impl RangeBounds<(IpNet, Origin)>) -> impl Iterator<Item = Route<'_>> {
        self.routes.range(keys).map(|((prefix, origin), group)| Route {
            prefix: *prefix,
            origin: *origin,
            members: self.groups.members(*group),
            is_used: self.used(*prefix) == Some(*origin),
        })
    }

    /// The route of an origin for exactly this prefix.
    pub fn get(&self, origin: Origin, prefix: IpNet) -> Option<Route<'_>> {
        let members = self.groups.members(*self.routes.get(&(prefix, origin))?);
        Some(Route { prefix, origin, members, is_used: self.used(prefix) == Some(origin) })
    }

    /// The route that a lookup of this address uses.
    pub fn find(&self, address: IpAddr) -> Option<Route<'_>> {
        let (prefix, group) = self.fib.covering(&address.into())?;
        let (origin, _) = self.first(prefix)?;
        Some(Route { prefix, origin, members: self.groups.members(group), is_used: true })
    }

    /// Routes of all origins.
    pub fn len(&self) -> usize {
        self.routes.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.routes.is_empty()
    }

    /// The FIB, for its counts.
    pub fn fib(&self) -> &Fib {
        &self.fib
    }

    /// The groups, for their counts.
    pub fn groups(&self) -> &Groups {
        &self.groups
    }

    /// The lowest origin of a prefix, and its group.
    fn first(&self, prefix: IpNet) -> Option<(Origin, GroupId)> {
        let all = (prefix, Origin::Connected)..=(prefix, Origin::File);
        self.routes.range(all).next().map(|((_, origin), group)| (*origin, *group))
    }

    fn used(&self, prefix: IpNet) -> Option<Origin> {
        self.first(prefix).map(|(origin, _)| origin)
    }
}

/// Checks a prefix, and that gateways of IPv6 routes are IPv6 ones. IPv4 routes may have either
/// (RFC 8950).
pub(crate) fn check(prefix: IpNet, members: &[(NextHop, u16)]) -> Result<(), RouteError> {
    let network = prefix.trunc();
    if network != prefix {
        return Err(RouteError::HostBits { given: prefix, network });
    }
    for (hop, _) in members {
        if let Exit::Gateway(_, gateway) = hop.exit
            && gateway.is_ipv4()
            && prefix.addr().is_ipv6()
        {
            return Err(RouteError::Family { prefix, gateway });
        }
    }
    Ok(())
}
