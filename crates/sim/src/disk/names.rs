//! The names of the files: as programs see them, and on the medium.

use std::collections::{BTreeMap, BTreeSet};

use super::faults::{DiskCounts, Unsynced};
use crate::rng::Rng;

/// The number of a file, never used again.
pub(super) type Inode = u64;

/// A change of the names.
#[derive(Clone, Debug)]
enum Change {
    Create(String, Inode),
    Rename(String, String),
    Remove(String),
}

type Map = BTreeMap<String, Inode>;

fn apply(map: &mut Map, change: &Change) {
    match change {
        Change::Create(name, inode) => {
            map.insert(name.clone(), *inode);
        }
        Change::Rename(from, to) => {
            // The creation of the file may have been lost.
            if let Some(inode) = map.remove(from) {
                map.insert(to.clone(), inode);
            }
        }
        Change::Remove(name) => {
            map.remove(name);
        }
    }
}

/// A directory.
#[derive(Debug, Default)]
pub(super) struct Names {
    cached: Map,
    durable: Map,
    /// Changes that are not durable, in order.
    unsynced: Vec<(u64, Change)>,
    /// Changes so far.
    changes: u64,
}

impl Names {
    pub(super) fn get(&self, name: &str) -> Option<Inode> {
        self.cached.get(name).copied()
    }

    pub(super) fn durable(&self, name: &str) -> Option<Inode> {
        self.durable.get(name).copied()
    }

    pub(super) fn list(&self) -> impl Iterator<Item = (&str, Inode)> {
        self.cached.iter().map(|(name, inode)| (name.as_str(), *inode))
    }

    fn change(&mut self, change: Change) {
        apply(&mut self.cached, &change);
        self.unsynced.push((self.changes, change));
        self.changes += 1;
    }

    pub(super) fn create(&mut self, name: &str, inode: Inode) {
        self.change(Change::Create(name.to_owned(), inode));
    }

    /// Returns false if there is no such name.
    pub(super) fn rename(&mut self, from: &str, to: &str) -> bool {
        let known = self.cached.contains_key(from);
        if known && from != to {
            self.change(Change::Rename(from.to_owned(), to.to_owned()));
        }
        known
    }

    /// Returns false if there is no such name.
    pub(super) fn remove(&mut self, name: &str) -> bool {
        let known = self.cached.contains_key(name);
        if known {
            self.change(Change::Remove(name.to_owned()));
        }
        known
    }

    /// Begins a sync: the number of changes that it makes durable.
    pub(super) fn begin_sync(&self) -> u64 {
        self.changes
    }

    /// Ends a sync.
    pub(super) fn synced(&mut self, changes: u64) {
        let durable = &mut self.durable;
        for (_, change) in self.unsynced.extract_if(.., |(number, _)| *number < changes) {
            apply(durable, &change);
        }
    }

    /// The machine crashes.
    pub(super) fn crash(&mut self, fate: Unsynced, rng: &mut Rng, counts: &mut DiskCounts) {
        for (_, change) in std::mem::take(&mut self.unsynced) {
            let survives = match fate {
                Unsynced::Lost => false,
                Unsynced::Kept => true,
                Unsynced::Torn | Unsynced::Drawn => rng.chance_ppm(500_000),
            };
            if survives {
                apply(&mut self.durable, &change);
            } else {
                counts.names_lost += 1;
            }
        }
        self.cached.clone_from(&self.durable);
    }

    /// The files that have a name, or may have one after a crash.
    pub(super) fn reachable(&self) -> BTreeSet<Inode> {
        let created = self.unsynced.iter().filter_map(|(_, change)| match change {
            Change::Create(_, inode) => Some(*inode),
            _ => None,
        });
        self.cached.values().chain(self.durable.values()).copied().chain(created).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(names: &Names) -> Vec<(&str, Inode)> {
        names.list().collect()
    }

    #[test]
    fn a_sync_covers_the_changes_before_it() {
        let mut names = Names::default();
        names.create("a", 1);
        let sync = names.begin_sync();
        names.create("b", 2);
        names.synced(sync);
        names.crash(Unsynced::Lost, &mut Rng::new(0), &mut DiskCounts::default());
        assert_eq!(all(&names), [("a", 1)]);
    }

    #[test]
    fn a_renamed_file_has_one_of_its_names_and_the_other_file_is_not_lost_before() {
        let mut seen = BTreeSet::new();
        for seed in 0..50 {
            let mut names = Names::default();
            names.create("snapshot", 1);
            names.create("new", 2);
            names.synced(names.begin_sync());
            assert!(names.rename("new", "snapshot") && !names.rename("new", "x"));
            names.crash(Unsynced::Torn, &mut Rng::new(seed), &mut DiskCounts::default());
            seen.insert(
                all(&names).into_iter().map(|(n, i)| (n.to_owned(), i)).collect::<Vec<_>>(),
            );
        }
        let both = vec![("new".to_owned(), 2), ("snapshot".to_owned(), 1)];
        assert_eq!(seen, [both, vec![("snapshot".to_owned(), 2)]].into());
    }

    #[test]
    fn removed_files_may_come_back_until_the_next_sync() {
        let mut names = Names::default();
        names.create("a", 1);
        names.synced(names.begin_sync());
        assert!(names.remove("a") && !names.remove("a"));
        assert_eq!((all(&names), names.reachable()), (vec![], [1].into()));
        let mut counts = DiskCounts::default();
        names.crash(Unsynced::Lost, &mut Rng::new(0), &mut counts);
        assert_eq!((all(&names), counts.names_lost), (vec![("a", 1)], 1));
        names.remove("a");
        names.synced(names.begin_sync());
        assert!(names.reachable().is_empty());
    }
}
