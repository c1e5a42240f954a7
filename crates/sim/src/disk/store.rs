//! The state of a disk.

use std::collections::{BTreeMap, VecDeque};
use std::io;

use super::contents::{Contents, SECTOR, Snapshot, sectors};
use super::faults::{DiskCounts, DiskFaults, Unsynced};
use super::names::{Inode, Names};
use super::queue::{Kind, Opened, Operation};
use crate::rng::Rng;

/// Largest file, bytes: a simulated file is in memory, twice.
const LARGEST_FILE: u64 = 1 << 30;

pub(super) struct Store {
    pub(super) names: Names,
    files: BTreeMap<Inode, OneFile>,
    next_inode: Inode,
    /// Lives of the host's processes: handles of earlier ones are of no use.
    pub(super) life: u64,
    pub(super) queue: VecDeque<Operation>,
    next_operation: u64,
    /// End of the last scheduled operation.
    busy_until_ns: u64,
    pub(super) faults: DiskFaults,
    pub(super) capacity: u64,
    /// Further syncs that fail.
    pub(super) failing: u64,
    pub(super) counts: DiskCounts,
    rng: Rng,
}

#[derive(Default)]
struct OneFile {
    contents: Contents,
    /// Open handles.
    handles: usize,
    /// Failed syncs.
    failures: u64,
}

/// Ends the future of an operation, after the disk was unlocked: it may wake a task.
pub(super) type End = Box<dyn FnOnce()>;

fn full() -> io::Error {
    let text = "the simulated disk is full; remove files, or raise its capacity";
    io::Error::new(io::ErrorKind::StorageFull, text)
}

fn too_large() -> io::Error {
    let text = format!("a simulated file has at most {LARGEST_FILE} bytes; use several files");
    io::Error::new(io::ErrorKind::FileTooLarge, text)
}

fn sync_error() -> io::Error {
    io::Error::other("the simulated disk failed to sync; stop, or continue with a new file")
}

fn failed_before() -> io::Error {
    io::Error::other("an earlier sync of this file failed; open it again and read what is there")
}

impl Store {
    pub(super) fn new(rng: Rng) -> Self {
        Store {
            names: Names::default(),
            files: BTreeMap::new(),
            next_inode: 0,
            life: 0,
            queue: VecDeque::new(),
            next_operation: 0,
            busy_until_ns: 0,
            faults: DiskFaults::default(),
            capacity: u64::MAX,
            failing: 0,
            counts: DiskCounts::default(),
            rng,
        }
    }

    // ---- files --------------------------------------------------------------------------------

    /// Opens a file by its name, and empties or creates it.
    pub(super) fn open(&mut self, name: &str, create: bool) -> io::Result<Opened> {
        let inode = match self.names.get(name) {
            Some(inode) => inode,
            None if !create => return Err(io::ErrorKind::NotFound.into()),
            None if self.used() >= self.capacity => {
                self.counts.full += 1;
                return Err(full());
            }
            None => {
                let inode = self.next_inode;
                self.next_inode += 1;
                self.names.create(name, inode);
                inode
            }
        };
        let file = self.files.entry(inode).or_default();
        file.handles += 1;
        if create {
            file.contents.set_len(0);
        }
        Ok(Opened { inode, failures: file.failures })
    }

    pub(super) fn close(&mut self, inode: Inode) {
        if let Some(file) = self.files.get_mut(&inode) {
            file.handles = file.handles.saturating_sub(1);
            if file.handles == 0 {
                self.collect();
            }
        }
    }

    /// Forgets the files that have no name and are not open.
    pub(super) fn collect(&mut self) {
        let reachable = self.names.reachable();
        self.files.retain(|inode, file| file.handles > 0 || reachable.contains(inode));
    }

    pub(super) fn contents(&self, inode: Inode) -> &[u8] {
        self.files.get(&inode).map_or(&[], |file| file.contents.cached())
    }

    pub(super) fn durable(&self, inode: Inode) -> &[u8] {
        self.files.get(&inode).map_or(&[], |file| file.contents.durable())
    }

    /// Space of the files that have a name or are open, bytes.
    pub(super) fn used(&self) -> u64 {
        let named: Vec<Inode> = self.names.list().map(|(_, inode)| inode).collect();
        let counts = |(inode, file): &(&Inode, &OneFile)| file.handles > 0 || named.contains(inode);
        let used = self.files.iter().filter(counts).map(|(_, file)| {
            let len = file.contents.cached().len();
            (sectors(len) * SECTOR) as u64
        });
        used.sum()
    }

    /// Bytes that a file may have now.
    fn room(&self, inode: Inode) -> u64 {
        let own = (sectors(self.contents(inode).len()) * SECTOR) as u64;
        own + self.capacity.saturating_sub(self.used()) / SECTOR as u64 * SECTOR as u64
    }

    pub(super) fn write(&mut self, inode: Inode, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let end = offset.checked_add(bytes.len() as u64).filter(|end| *end <= LARGEST_FILE);
        let Some(end) = end else { return Err(too_large()) };
        let len = self.contents(inode).len() as u64;
        let room = if end > len && self.capacity < u64::MAX { self.room(inode) } else { end };
        let fits = room.saturating_sub(offset).min(bytes.len() as u64) as usize;
        if let Some(file) = self.files.get_mut(&inode) {
            file.contents.write(offset as usize, &bytes[..fits]);
        }
        if fits < bytes.len() {
            self.counts.full += 1;
            return Err(full());
        }
        Ok(())
    }

    pub(super) fn set_len(&mut self, inode: Inode, len: u64) -> io::Result<()> {
        if len > LARGEST_FILE {
            return Err(too_large());
        }
        if len > self.contents(inode).len() as u64 && len > self.room(inode) {
            self.counts.full += 1;
            return Err(full());
        }
        if let Some(file) = self.files.get_mut(&inode) {
            file.contents.set_len(len as usize);
        }
        Ok(())
    }

    pub(super) fn read(&self, inode: Inode, offset: u64, len: usize) -> &[u8] {
        let bytes = self.contents(inode);
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        &bytes[from..from + len.min(bytes.len() - from)]
    }

    pub(super) fn snapshot(&mut self, inode: Inode) -> Snapshot {
        self.files.entry(inode).or_default().contents.snapshot()
    }

    // ---- syncs --------------------------------------------------------------------------------

    fn sync_fails(&mut self) -> bool {
        let fails = self.failing > 0 || self.rng.chance_ppm(self.faults.sync_error_ppm);
        self.failing = self.failing.saturating_sub(1);
        self.counts.failed_syncs += u64::from(fails);
        self.counts.syncs += u64::from(!fails);
        fails
    }

    /// Ends a sync of a file.
    pub(super) fn sync(&mut self, of: Opened, snapshot: Snapshot) -> io::Result<()> {
        let failures = self.files.get(&of.inode).map_or(0, |file| file.failures);
        if failures != of.failures {
            return Err(failed_before());
        }
        let fails = self.sync_fails();
        let Some(file) = self.files.get_mut(&of.inode) else { return Ok(()) };
        if fails {
            file.failures += 1;
            file.contents.sync_failed(snapshot, &mut self.rng);
            return Err(sync_error());
        }
        file.contents.synced(&snapshot);
        Ok(())
    }

    /// Ends a sync of the names.
    pub(super) fn sync_dir(&mut self, changes: u64) -> io::Result<()> {
        if self.sync_fails() {
            return Err(sync_error());
        }
        self.names.synced(changes);
        self.collect();
        Ok(())
    }

    /// Time of a sync of this size.
    pub(super) fn sync_takes_ns(&mut self, bytes: u64) -> u64 {
        let (low, high) = self.faults.sync_ns;
        let mut ns = self.rng.between(low, high) + bytes * self.faults.byte_ps / 1_000;
        if self.rng.chance_ppm(self.faults.slow_sync_ppm) {
            self.counts.slow_syncs += 1;
            ns = ns.saturating_add(self.faults.slow_sync_ns);
        }
        ns
    }

    // ---- queued operations --------------------------------------------------------------------

    /// Queues an operation, and returns its number.
    pub(super) fn begin(&mut self, kind: Kind) -> u64 {
        let takes_ns = match &kind {
            Kind::Sync(_, snapshot, ..) => self.sync_takes_ns(snapshot.bytes()),
            Kind::WriteAndSync(_, _, bytes, _) => self.sync_takes_ns(bytes.len() as u64),
            Kind::SyncDir(..) => self.sync_takes_ns(0),
            Kind::Read(inode, offset, len, _) => {
                let bytes = self.read(*inode, *offset, *len).len() as u64;
                let (low, high) = self.faults.read_ns;
                self.rng.between(low, high) + bytes * self.faults.byte_ps / 1_000
            }
        };
        let number = self.next_operation;
        self.next_operation += 1;
        self.queue.push_back(Operation { number, takes_ns, kind });
        number
    }

    /// The end of an operation that begins at a time; `None` if it was lost meanwhile.
    pub(super) fn schedule(&mut self, number: u64, at_ns: u64) -> Option<u64> {
        let operation = self.queue.iter().find(|operation| operation.number == number)?;
        self.busy_until_ns = self.busy_until_ns.max(at_ns).saturating_add(operation.takes_ns);
        Some(self.busy_until_ns)
    }

    /// Carries out the first operation, if it has this number.
    pub(super) fn carry_out(&mut self, number: u64) -> Option<End> {
        // Operations end in order; one that the end of a process has removed is not here.
        self.queue.front().filter(|operation| operation.number == number)?;
        let operation = self.queue.pop_front()?;
        Some(match operation.kind {
            Kind::Sync(of, snapshot, completion) => {
                let result = self.sync(of, snapshot);
                self.close(of.inode);
                Box::new(move || completion.end(result))
            }
            Kind::WriteAndSync(of, offset, bytes, completion) => {
                let written = self.write(of.inode, offset, &bytes);
                let snapshot = self.snapshot(of.inode);
                let result = written.and_then(|()| self.sync(of, snapshot));
                self.close(of.inode);
                Box::new(move || completion.end(result))
            }
            Kind::SyncDir(changes, completion) => {
                let result = self.sync_dir(changes);
                Box::new(move || completion.end(result))
            }
            Kind::Read(inode, offset, len, completion) => {
                let bytes = self.read(inode, offset, len).to_vec();
                self.close(inode);
                Box::new(move || completion.end(Ok(bytes)))
            }
        })
    }

    /// A queued operation keeps its file open.
    pub(super) fn hold(&mut self, inode: Inode) {
        if let Some(file) = self.files.get_mut(&inode) {
            file.handles += 1;
        }
    }

    // ---- the end of a process, and of the machine -----------------------------------------------

    /// The process ends. Of its queued operations the first ones may have been carried out. Returns
    /// the queue, to be dropped after the disk was unlocked.
    pub(super) fn process_ends(&mut self) -> VecDeque<Operation> {
        self.life += 1;
        self.busy_until_ns = 0;
        let queue = std::mem::take(&mut self.queue);
        for operation in &queue {
            if self.rng.chance_ppm(500_000) {
                break;
            }
            if let Kind::WriteAndSync(of, offset, bytes, _) = &operation.kind {
                // Its error has no reader.
                let _ = self.write(of.inode, *offset, bytes);
            }
        }
        self.files.values_mut().for_each(|file| file.handles = 0);
        self.collect();
        queue
    }

    /// The machine crashes, after its process has ended.
    pub(super) fn crash(&mut self) {
        let drawn = [Unsynced::Lost, Unsynced::Kept, Unsynced::Torn, Unsynced::Torn];
        let fate = match self.faults.unsynced {
            Unsynced::Drawn => drawn[self.rng.below(4) as usize],
            fate => fate,
        };
        self.names.crash(fate, &mut self.rng, &mut self.counts);
        for file in self.files.values_mut() {
            file.contents.crash(fate, &mut self.rng, &mut self.counts);
        }
        self.collect();
        for file in self.files.values_mut() {
            for number in 0..sectors(file.contents.durable().len()) {
                if self.rng.chance_ppm(self.faults.rot_ppm) {
                    let bit = self.rng.below(8 * SECTOR as u64);
                    let flipped = file.contents.flip((number * 8 * SECTOR) as u64 + bit);
                    self.counts.flipped_bits += u64::from(flipped);
                }
            }
        }
    }

    pub(super) fn flip(&mut self, inode: Inode, bit: u64) -> bool {
        let flipped = self.files.get_mut(&inode).is_some_and(|file| file.contents.flip(bit));
        self.counts.flipped_bits += u64::from(flipped);
        flipped
    }
}
