//! The contents of a file: in the cache of the kernel, and on the medium.

use std::collections::BTreeSet;

use super::faults::{DiskCounts, Unsynced};
use crate::rng::Rng;

/// The unit that a disk writes in whole or not at all, bytes.
pub(super) const SECTOR: usize = 512;

/// The bytes of a file. Sectors that differ on the medium are in `unsynced`, unless a failed sync has
/// lost them.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// As programs read it.
    cached: Vec<u8>,
    /// As it is found after a crash, without the unsynced sectors.
    durable: Vec<u8>,
    unsynced: BTreeSet<usize>,
    /// Snapshots so far, and the newest one that is durable.
    snapshots: u64,
    newest: u64,
}

/// The state of a file when its sync began.
#[derive(Debug)]
pub(super) struct Snapshot {
    number: u64,
    len: usize,
    sectors: Vec<(usize, [u8; SECTOR])>,
}

impl Snapshot {
    pub(super) fn bytes(&self) -> u64 {
        (self.sectors.len() * SECTOR) as u64
    }
}

/// A sector, with zeros behind the end.
fn sector(of: &[u8], number: usize) -> [u8; SECTOR] {
    let mut sector = [0; SECTOR];
    if let Some(bytes) = of.get(number * SECTOR..) {
        let len = bytes.len().min(SECTOR);
        sector[..len].copy_from_slice(&bytes[..len]);
    }
    sector
}

/// Overwrites the part of a sector that is within the length.
fn put(to: &mut [u8], number: usize, sector: &[u8; SECTOR]) {
    if let Some(bytes) = to.get_mut(number * SECTOR..) {
        let len = bytes.len().min(SECTOR);
        bytes[..len].copy_from_slice(&sector[..len]);
    }
}

/// Sectors that a file of this length has.
pub(super) fn sectors(len: usize) -> usize {
    len.div_ceil(SECTOR)
}

impl Contents {
    pub(super) fn cached(&self) -> &[u8] {
        &self.cached
    }

    pub(super) fn durable(&self) -> &[u8] {
        &self.durable
    }

    fn touch(&mut self, from: usize, to: usize) {
        self.unsynced.extend(from / SECTOR..sectors(to));
    }

    /// Writes bytes. A gap behind the end is filled with zeros.
    pub(super) fn write(&mut self, offset: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let (old, end) = (self.cached.len(), offset + bytes.len());
        if end > old {
            self.cached.resize(end, 0);
        }
        self.cached[offset..end].copy_from_slice(bytes);
        self.touch(offset.min(old), end);
    }

    pub(super) fn set_len(&mut self, len: usize) {
        let old = self.cached.len();
        self.cached.resize(len, 0);
        self.touch(old.min(len), old.max(len));
    }

    /// Begins a sync.
    pub(super) fn snapshot(&mut self) -> Snapshot {
        self.snapshots += 1;
        let (number, len) = (self.snapshots, self.cached.len());
        let within = self.unsynced.range(..sectors(len));
        let sectors = within.map(|&at| (at, sector(&self.cached, at))).collect();
        Snapshot { number, len, sectors }
    }

    /// Ends a sync: the snapshot is durable, or a newer one was so before.
    pub(super) fn synced(&mut self, snapshot: &Snapshot) {
        if snapshot.number < self.newest {
            return;
        }
        self.newest = snapshot.number;
        self.durable.resize(snapshot.len, 0);
        for (number, bytes) in &snapshot.sectors {
            put(&mut self.durable, *number, bytes);
        }
        let (cached, durable) = (&self.cached, &self.durable);
        self.unsynced.retain(|&number| sector(cached, number) != sector(durable, number));
    }

    /// Ends a sync that failed: a part of the snapshot is durable, and the rest is not written any more.
    pub(super) fn sync_failed(&mut self, mut snapshot: Snapshot, rng: &mut Rng) {
        let lost: Vec<_> = snapshot.sectors.extract_if(.., |_| rng.chance_ppm(500_000)).collect();
        self.synced(&snapshot);
        for (number, bytes) in lost {
            // One that was written again meanwhile is still to be written.
            if sector(&self.cached, number) == bytes {
                self.unsynced.remove(&number);
            }
        }
    }

    /// The machine crashes: the durable bytes, and a part of the unsynced ones, are all that is left.
    pub(super) fn crash(&mut self, fate: Unsynced, rng: &mut Rng, counts: &mut DiskCounts) {
        let (old, new) = (self.durable.len(), self.cached.len());
        let len = match fate {
            Unsynced::Lost => old,
            Unsynced::Kept => new,
            Unsynced::Torn | Unsynced::Drawn => match rng.below(3) {
                0 => old,
                1 => new,
                // Blocks are allocated one after the other.
                _ => {
                    let ends = rng.between(old.min(new) as u64, old.max(new) as u64) as usize;
                    (ends / SECTOR * SECTOR).clamp(old.min(new), old.max(new))
                }
            },
        };
        counts.lengths_lost += u64::from(len != new);
        self.durable.resize(old.max(new), 0);
        for number in std::mem::take(&mut self.unsynced) {
            let survives = match fate {
                Unsynced::Lost => false,
                Unsynced::Kept => true,
                Unsynced::Torn | Unsynced::Drawn => rng.chance_ppm(500_000),
            };
            if survives {
                put(&mut self.durable, number, &sector(&self.cached, number));
                counts.sectors_kept += 1;
            } else {
                counts.sectors_lost += 1;
            }
        }
        self.durable.truncate(len);
        self.cached.clone_from(&self.durable);
    }

    /// Flips a bit at rest. Returns false behind the end of the durable bytes.
    pub(super) fn flip(&mut self, bit: u64) -> bool {
        let Ok(at) = usize::try_from(bit / 8) else { return false };
        let Some(byte) = self.durable.get_mut(at) else { return false };
        *byte ^= 1 << (bit % 8);
        if !self.unsynced.contains(&(at / SECTOR))
            && let Some(byte) = self.cached.get_mut(at)
        {
            *byte ^= 1 << (bit % 8);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts() -> DiskCounts {
        DiskCounts::default()
    }

    /// A file of four sectors that is durable, and 0xAA in two of them unsynced.
    fn file() -> Contents {
        let mut file = Contents::default();
        file.write(0, &[1; 4 * SECTOR]);
        let snapshot = file.snapshot();
        file.synced(&snapshot);
        assert!(file.unsynced.is_empty());
        file.write(SECTOR, &[0xAA; 2 * SECTOR]);
        file
    }

    #[test]
    fn writes_after_the_begin_of_a_sync_are_not_durable() {
        let mut file = file();
        let snapshot = file.snapshot();
        file.write(SECTOR, &[0xBB; SECTOR]);
        file.write(4 * SECTOR, &[0xCC; 1]);
        file.synced(&snapshot);
        file.crash(Unsynced::Lost, &mut Rng::new(1), &mut counts());
        let expected = [[1; SECTOR], [0xAA; SECTOR], [0xAA; SECTOR], [1; SECTOR]].concat();
        assert_eq!(file.cached(), expected);
    }

    #[test]
    fn an_older_snapshot_does_not_replace_a_newer_one() {
        let mut file = file();
        let older = file.snapshot();
        file.write(SECTOR, &[0xBB; 6 * SECTOR]);
        let newer = file.snapshot();
        file.synced(&newer);
        file.synced(&older);
        file.crash(Unsynced::Lost, &mut Rng::new(1), &mut counts());
        assert_eq!(file.cached()[SECTOR..], [0xBB; 6 * SECTOR]);
    }

    #[test]
    fn each_unsynced_sector_is_old_or_new_and_all_combinations_occur() {
        let mut seen = BTreeSet::new();
        for seed in 0..100 {
            let (mut file, mut counts) = (file(), counts());
            file.crash(Unsynced::Torn, &mut Rng::new(seed), &mut counts);
            let halves = file.cached().chunks(SECTOR).map(|sector| {
                assert!(sector.iter().all(|byte| *byte == sector[0]), "a torn sector");
                sector[0]
            });
            seen.insert(halves.collect::<Vec<_>>());
            assert_eq!(counts.sectors_kept + counts.sectors_lost, 2);
        }
        let expected = [[1, 1], [1, 0xAA], [0xAA, 1], [0xAA, 0xAA]];
        assert_eq!(seen, expected.map(|[a, b]| vec![1, a, b, 1]).into());
    }

    #[test]
    fn an_extended_file_has_its_old_length_a_new_one_or_zeros() {
        let (mut short, mut zeros, mut whole, mut part) = (0, 0, 0, 0);
        for seed in 0..200 {
            let mut file = file();
            file.write(4 * SECTOR, &[7; 2 * SECTOR]);
            file.crash(Unsynced::Torn, &mut Rng::new(seed), &mut counts());
            let tail = &file.cached()[4 * SECTOR..];
            assert!(tail.iter().all(|byte| [0, 7].contains(byte)));
            match tail {
                [] => short += 1,
                _ if tail == [7; 2 * SECTOR] => whole += 1,
                _ if tail.contains(&0) => zeros += 1,
                _ => part += 1,
            }
        }
        assert!(
            [short, zeros, whole, part].into_iter().all(|n| n > 5),
            "{short} {zeros} {whole} {part}"
        );
    }

    #[test]
    fn a_cut_that_is_not_synced_may_be_undone() {
        let mut file = file();
        file.set_len(10);
        file.set_len(SECTOR + 10);
        assert_eq!(file.cached()[10..], [0; SECTOR]);
        file.crash(Unsynced::Lost, &mut Rng::new(1), &mut counts());
        assert_eq!(file.cached(), [1; 4 * SECTOR]);

        let mut file = self::file();
        file.set_len(10);
        file.set_len(SECTOR + 10);
        let snapshot = file.snapshot();
        file.synced(&snapshot);
        file.crash(Unsynced::Lost, &mut Rng::new(1), &mut counts());
        assert_eq!(file.cached(), [&[1; 10][..], &[0; SECTOR]].concat());
    }

    #[test]
    fn a_failed_sync_loses_data_that_a_later_one_does_not_repair() {
        let mut lost = 0;
        for seed in 0..50 {
            let (mut file, rng) = (file(), &mut Rng::new(seed));
            let snapshot = file.snapshot();
            file.sync_failed(snapshot, rng);
            assert_eq!(file.cached()[SECTOR], 0xAA, "reads return what was written");
            let snapshot = file.snapshot();
            file.synced(&snapshot);
            file.crash(Unsynced::Kept, rng, &mut counts());
            lost += file.cached().chunks(SECTOR).filter(|sector| sector[0] == 1).count() - 2;
        }
        assert!((25..75).contains(&lost), "{lost} of 100 sectors");
    }

    #[test]
    fn a_flipped_bit_is_read() {
        let mut file = file();
        assert!(file.flip(8 * 3 + 1) && !file.flip(8 * 4 * SECTOR as u64) && !file.flip(u64::MAX));
        assert_eq!(file.cached()[3], 1 ^ 2);
        assert!(file.flip(8 * SECTOR as u64));
        assert_eq!(file.cached()[SECTOR], 0xAA, "the sector is in the cache");
    }
}
