//! Faults and times of a disk, and its counters.

/// Faults and times of a disk; see [`crate::SimDisk::set_faults`]. Times are in nanoseconds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskFaults {
    /// Shortest and longest time of a sync, uniform between them. Default 50 to 500 us.
    pub sync_ns: (u64, u64),
    /// Syncs that take `slow_sync_ns` in addition, per million. Default 0.
    pub slow_sync_ppm: u32,
    /// Additional time of a slow sync. Default 200 ms.
    pub slow_sync_ns: u64,
    /// Shortest and longest time of a queued read. Default 20 to 100 us.
    pub read_ns: (u64, u64),
    /// Time of each byte that is read or made durable, picoseconds. Default 500 (2 GB/s).
    pub byte_ps: u64,
    /// Syncs that fail, per million. A part of the unsynced data is durable afterwards, and the rest
    /// is lost at the next crash, whatever is synced later. Default 0.
    pub sync_error_ppm: u32,
    /// Fate of unsynced data at a crash of the machine. Default [`Unsynced::Drawn`].
    pub unsynced: Unsynced,
    /// Sectors of durable data in which one bit is flipped during each crash of the machine, per
    /// million. Default 0.
    pub rot_ppm: u32,
}

impl Default for DiskFaults {
    fn default() -> Self {
        DiskFaults {
            sync_ns: (50_000, 500_000),
            slow_sync_ppm: 0,
            slow_sync_ns: 200_000_000,
            read_ns: (20_000, 100_000),
            byte_ps: 500,
            sync_error_ppm: 0,
            unsynced: Unsynced::Drawn,
            rot_ppm: 0,
        }
    }
}

/// Fate of unsynced data at a crash of the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Unsynced {
    /// One of the others, drawn at each crash: `Torn` in half of them.
    #[default]
    Drawn,
    /// All of it is lost.
    Lost,
    /// All of it survives.
    Kept,
    /// Each sector of 512 bytes, each name and the length of each file survive or not, independently.
    Torn,
}

/// Counters of a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct DiskCounts {
    /// Successful syncs of files and of the directory.
    pub syncs: u64,
    /// Failed syncs.
    pub failed_syncs: u64,
    /// Slow syncs.
    pub slow_syncs: u64,
    /// Writes that found the disk full.
    pub full: u64,
    /// Bits that were flipped.
    pub flipped_bits: u64,
    /// Unsynced sectors that crashes left as they were.
    pub sectors_lost: u64,
    /// Unsynced sectors that survived crashes.
    pub sectors_kept: u64,
    /// Files whose unsynced length was lost, in whole or in part.
    pub lengths_lost: u64,
    /// Unsynced creations, renames and removals that were lost.
    pub names_lost: u64,
}
