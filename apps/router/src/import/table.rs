//! A table of the kernel, as its messages have described it.
//!
//! A route is known by its prefix and metric. The kernel may have several of those: the first one
//! counts, and a change that leaves open which one that is asks for a new reading of the table.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::rc::Rc;

use courser_link::routes::message::{KernelHop, KernelRoute, Kind, Target};
use ipnet::IpNet;

/// Changes during a reading that are remembered. With more, the table is read once more.
const TOUCHED: usize = 1 << 16;

/// Prefix and metric.
pub(super) type Key = (IpNet, u32);

/// A route.
#[derive(Debug)]
struct Entry {
    target: Shared,
    object: u32,
    /// The reading in which it occurred last, or during or after which it was reported.
    reading: u32,
    /// The kernel may have further routes of this prefix and metric.
    has_others: bool,
}

/// A target. Routes that follow each other share their next hops.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Shared {
    Hops(Rc<[KernelHop]>),
    Reject,
    Unsupported,
}

/// The effect of a message on the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Effect {
    None,
    /// The route of a prefix is new or another one.
    Changed,
    /// A route is gone.
    Removed,
    /// The table has to be read to know.
    Unclear,
}

/// The table.
#[derive(Debug)]
pub(super) struct Table {
    routes: BTreeMap<Key, Entry>,
    limit: usize,
    /// Routes were left out because of the limit.
    pub(super) is_full: bool,
    /// The number of the present or last reading.
    reading: u32,
    is_reading: bool,
    /// Routes that have changed since the reading began, for which it may be outdated.
    touched: BTreeSet<Key>,
    /// Routes of each next hop object.
    objects: BTreeMap<u32, usize>,
    last: Rc<[KernelHop]>,
}

impl Table {
    pub(super) fn new(limit: usize) -> Self {
        Table {
            routes: BTreeMap::new(),
            limit,
            is_full: false,
            reading: 0,
            is_reading: false,
            touched: BTreeSet::new(),
            objects: BTreeMap::new(),
            last: Rc::new([]),
        }
    }

    /// Routes.
    pub(super) fn len(&self) -> usize {
        self.routes.len()
    }

    /// Returns true if a route uses a next hop object.
    pub(super) fn uses(&self, object: u32) -> bool {
        self.objects.contains_key(&object)
    }

    /// A reading of the table begins.
    pub(super) fn begin(&mut self) {
        self.reading = self.reading.wrapping_add(1);
        (self.is_reading, self.is_full) = (true, false);
        self.touched.clear();
    }

    /// The reading is over.
    pub(super) fn end(&mut self) {
        self.is_reading = false;
        self.touched = BTreeSet::new();
    }

    /// The route that is used for a prefix.
    pub(super) fn used(&self, prefix: IpNet) -> Option<&Shared> {
        let all = (prefix, 0)..=(prefix, u32::MAX);
        self.routes.range(all).next().map(|(_, entry)| &entry.target)
    }

    /// The next route after this one, and whether it occurred in the last reading or was reported since.
    pub(super) fn next(&self, after: Option<Key>) -> Option<(Key, bool)> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let (key, entry) = self.routes.range((start, Bound::Unbounded)).next()?;
        Some((*key, entry.reading == self.reading))
    }

    /// Removes a route.
    pub(super) fn remove(&mut self, key: Key) {
        if let Some(entry) = self.routes.remove(&key) {
            self.count(entry.object, false);
        }
    }

    /// Takes over a message.
    pub(super) fn apply(&mut self, kind: Kind, route: KernelRoute) -> Effect {
        let key = (route.prefix, route.metric);
        if let Kind::Dumped(_) = kind {
            return self.dumped(key, route);
        }
        let mut effect = match kind {
            Kind::Deleted => self.deleted(key, &route),
            _ => self.added(kind, key, route),
        };
        // A report is newer than the last reading, in which the route need not occur.
        if let Some(entry) = self.routes.get_mut(&key) {
            entry.reading = self.reading;
        }
        if self.is_reading && !self.touched.insert(key) {
            return effect;
        }
        if self.touched.len() > TOUCHED {
            self.touched.clear();
            effect = Effect::Unclear;
        }
        effect
    }

    /// A route of a reading. Changes that were reported meanwhile are newer.
    fn dumped(&mut self, key: Key, route: KernelRoute) -> Effect {
        if !self.is_reading || self.touched.contains(&key) {
            return Effect::None;
        }
        let reading = self.reading;
        if let Some(entry) = self.routes.get_mut(&key).filter(|entry| entry.reading == reading) {
            entry.has_others = true;
            return Effect::None;
        }
        self.set(key, route, false)
    }

    fn added(&mut self, kind: Kind, key: Key, route: KernelRoute) -> Effect {
        let is_v6 = key.0.addr().is_ipv6();
        let Some(entry) = self.routes.get(&key) else {
            // In a reading, the kernel may have others that were not read yet.
            return self.set(key, route, self.is_reading || kind == Kind::Appended);
        };
        let has_others = entry.has_others;
        match kind {
            Kind::Replaced => self.set(key, route, has_others),
            _ if same(&entry.target, &route.target) => Effect::None,
            // A message about a route of IPv6 has all of its next hops.
            _ if is_v6 && contains(&route.target, &entry.target) => {
                self.set(key, route, has_others)
            }
            _ => {
                self.set_others(key);
                Effect::Unclear
            }
        }
    }

    fn deleted(&mut self, key: Key, route: &KernelRoute) -> Effect {
        let Some(entry) = self.routes.get_mut(&key) else {
            return if self.is_reading { Effect::Unclear } else { Effect::None };
        };
        let has_others = entry.has_others;
        if same(&entry.target, &route.target) {
            self.remove(key);
            return if has_others { Effect::Unclear } else { Effect::Removed };
        }
        // One next hop of several, for IPv6.
        let (Shared::Hops(hops), Target::Hops(gone)) = (&entry.target, &route.target) else {
            return Effect::Unclear;
        };
        if has_others || key.0.addr().is_ipv4() || !gone.iter().all(|hop| hops.contains(hop)) {
            return Effect::Unclear;
        }
        let left = hops.iter().filter(|hop| !gone.contains(hop)).copied().collect();
        entry.target = Shared::Hops(left);
        Effect::Changed
    }

    fn set(&mut self, key: Key, route: KernelRoute, has_others: bool) -> Effect {
        let target = self.share(route.target);
        let old = self.routes.get_mut(&key);
        if old.is_none() && self.routes.len() >= self.limit {
            self.is_full = true;
            return Effect::None;
        }
        let (object, reading) = (route.object, self.reading);
        let entry = Entry { target, object, reading, has_others };
        self.count(object, true);
        match self.routes.insert(key, entry) {
            None => Effect::Changed,
            Some(old) => {
                self.count(old.object, false);
                let is_same = self.routes.get(&key).is_some_and(|new| new.target == old.target);
                if is_same { Effect::None } else { Effect::Changed }
            }
        }
    }

    fn set_others(&mut self, key: Key) {
        if let Some(entry) = self.routes.get_mut(&key) {
            entry.has_others = true;
        }
    }

    fn share(&mut self, target: Target) -> Shared {
        match target {
            Target::Hops(hops) => {
                if *self.last != *hops {
                    self.last = hops.into();
                }
                Shared::Hops(Rc::clone(&self.last))
            }
            Target::Reject => Shared::Reject,
            Target::Unsupported => Shared::Unsupported,
        }
    }

    fn count(&mut self, object: u32, is_more: bool) {
        if object == 0 {
            return;
        }
        let routes = self.objects.entry(object).or_default();
        *routes = if is_more { *routes + 1 } else { routes.saturating_sub(1) };
        if *routes == 0 {
            self.objects.remove(&object);
        }
    }
}

fn same(shared: &Shared, target: &Target) -> bool {
    match (shared, target) {
        (Shared::Hops(a), Target::Hops(b)) => **a == **b,
        (Shared::Reject, Target::Reject) | (Shared::Unsupported, Target::Unsupported) => true,
        _ => false,
    }
}

/// Returns true if all next hops of the second are in the first.
fn contains(target: &Target, shared: &Shared) -> bool {
    match (target, shared) {
        (Target::Hops(all), Shared::Hops(some)) => some.iter().all(|hop| all.contains(hop)),
        _ => false,
    }
}
