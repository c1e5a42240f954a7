//! A disk as programs and tests hold it.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use courser_disk::{Completion, File, Pending, Storage, check_name};

use super::faults::{DiskCounts, DiskFaults};
use super::queue::{Begin, Begun, Kind, Opened, Operation};
use super::store::{End, Store};
use crate::packet::HostId;
use crate::rng::Rng;

/// The disk of a simulated host, made by [`crate::World::disk`]; clones are the same disk. It is a
/// [`Storage`] for the program on the host, and its faults are set through it.
///
/// # Faults
/// | fault | how |
/// | --- | --- |
/// | torn writes; lost data, lengths and names that were not synced | [`crate::World::crash`], with [`DiskFaults::unsynced`] |
/// | a full disk | [`SimDisk::set_capacity`] |
/// | flipped bits | [`SimDisk::flip_bit`], [`DiskFaults::rot_ppm`] |
/// | slow syncs | [`DiskFaults::sync_ns`], [`DiskFaults::slow_sync_ppm`] |
/// | failed syncs | [`SimDisk::fail_syncs`], [`DiskFaults::sync_error_ppm`] |
///
/// [`crate::World::kill`] ends the process only: its writes are in the cache of the kernel and stay.
/// Some of its queued writes may have been carried out. Files of a process that has ended give errors.
///
/// # Costs
/// A file is in memory twice. A sync costs a copy of the unsynced sectors.
#[derive(Clone)]
pub struct SimDisk {
    host: HostId,
    store: Arc<Mutex<Store>>,
    begun: Begun,
    caller: Caller,
}

/// The simulated thread that calls the disk.
#[derive(Clone, Copy)]
pub(crate) struct Caller {
    /// Its time; `None` outside of a simulated thread.
    pub(crate) now_ns: fn() -> Option<u64>,
    /// Keeps it busy.
    pub(crate) spend: fn(Duration),
}

impl SimDisk {
    pub(crate) fn new(host: HostId, rng: Rng, begun: Begun, caller: Caller) -> Self {
        SimDisk { host, store: Arc::new(Mutex::new(Store::new(rng))), begun, caller }
    }

    /// Keeps the calling thread busy for a blocking sync.
    fn spend_ns(&self, ns: u64) {
        (self.caller.spend)(Duration::from_nanos(ns));
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the faults and times, for operations that begin from now on.
    pub fn set_faults(&self, faults: DiskFaults) {
        self.store().faults = faults;
    }

    /// The present faults and times.
    pub fn faults(&self) -> DiskFaults {
        self.store().faults.clone()
    }

    /// Sets the size of the disk, bytes. A disk that has more data already is full. Default: no limit.
    pub fn set_capacity(&self, bytes: u64) {
        self.store().capacity = bytes;
    }

    /// Space in use, bytes, in sectors of 512.
    pub fn used(&self) -> u64 {
        self.store().used()
    }

    /// Flips a bit of a file's durable data. Returns false if there is no such bit.
    pub fn flip_bit(&self, name: &str, bit: u64) -> bool {
        let mut store = self.store();
        let Some(inode) = store.names.get(name) else { return false };
        store.flip(inode, bit)
    }

    /// Lets the next syncs fail, as many as given.
    pub fn fail_syncs(&self, count: u64) {
        self.store().failing = count;
    }

    /// The bytes of a file that are found after a crash at which all unsynced data is lost. `None`:
    /// the file is not found then.
    pub fn durable(&self, name: &str) -> Option<Vec<u8>> {
        let store = self.store();
        Some(store.durable(store.names.durable(name)?).to_vec())
    }

    /// The counters so far.
    pub fn counts(&self) -> DiskCounts {
        self.store().counts
    }

    /// Schedules an operation, and returns its end.
    pub(crate) fn schedule(&self, number: u64, at_ns: u64) -> Option<u64> {
        self.store().schedule(number, at_ns)
    }

    /// Carries out an operation whose time has come.
    pub(crate) fn carry_out(&self, number: u64) {
        let end: Option<End> = self.store().carry_out(number);
        if let Some(end) = end {
            end();
        }
    }

    /// The process of the host ends.
    pub(crate) fn process_ends(&self) {
        let lost: VecDeque<Operation> = self.store().process_ends();
        // Without the lock: their futures wake tasks.
        drop(lost);
    }

    /// The machine crashes, after its process has ended.
    pub(crate) fn crash(&self) {
        self.store().crash();
    }

    fn begin<T>(&self, kind: impl FnOnce(&mut Store, Completion<T>) -> Kind) -> Pending<T> {
        let (completion, pending) = Pending::new();
        let mut store = self.store();
        let kind = kind(&mut store, completion);
        let number = store.begin(kind);
        drop(store);
        let at_ns = (self.caller.now_ns)();
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        begun.push(Begin { host: self.host, number, at_ns });
        pending
    }

    fn file(&self, name: &str, create: bool) -> io::Result<Box<dyn File>> {
        check_name(name)?;
        let mut store = self.store();
        let opened = store.open(name, create)?;
        let life = store.life;
        drop(store);
        Ok(Box::new(SimFile { disk: self.clone(), opened, life }))
    }
}

impl Storage for SimDisk {
    fn open(&self, name: &str) -> io::Result<Box<dyn File>> {
        self.file(name, false)
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn File>> {
        self.file(name, true)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.store().names.list().map(|(name, _)| name.to_owned()).collect())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        check_name(from)?;
        check_name(to)?;
        let mut store = self.store();
        if !store.names.rename(from, to) {
            return Err(io::ErrorKind::NotFound.into());
        }
        store.collect();
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        check_name(name)?;
        let mut store = self.store();
        if !store.names.remove(name) {
            return Err(io::ErrorKind::NotFound.into());
        }
        store.collect();
        Ok(())
    }

    fn sync_dir(&self) -> Pending<()> {
        self.begin(|store, completion| Kind::SyncDir(store.names.begin_sync(), completion))
    }

    fn sync_dir_blocking(&self) -> io::Result<()> {
        let mut store = self.store();
        self.spend_ns(store.sync_takes_ns(0));
        let changes = store.names.begin_sync();
        store.sync_dir(changes)
    }
}

/// An open file.
struct SimFile {
    disk: SimDisk,
    opened: Opened,
    life: u64,
}

impl SimFile {
    /// The store, for a handle of the process that runs.
    fn store(&self) -> io::Result<MutexGuard<'_, Store>> {
        let store = self.disk.store();
        if store.life != self.life {
            return Err(io::Error::other(
                "the process that opened this file has ended; open it in the set-up of the next one",
            ));
        }
        Ok(store)
    }

    fn begin<T>(&self, kind: impl FnOnce(&mut Store, Completion<T>) -> Kind) -> Pending<T> {
        if let Err(e) = self.store() {
            return Pending::ended(Err(e));
        }
        self.disk.begin(|store, completion| {
            store.hold(self.opened.inode);
            kind(store, completion)
        })
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        if let Ok(mut store) = self.store() {
            store.close(self.opened.inode);
        }
    }
}

impl File for SimFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.store()?.contents(self.opened.inode).len() as u64)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let store = self.store()?;
        let bytes = store.read(self.opened.inode, offset, into.len());
        into[..bytes.len()].copy_from_slice(bytes);
        Ok(bytes.len())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.store()?.write(self.opened.inode, offset, bytes)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.store()?.set_len(self.opened.inode, len)
    }

    fn sync_blocking(&self) -> io::Result<()> {
        let mut store = self.store()?;
        let snapshot = store.snapshot(self.opened.inode);
        self.disk.spend_ns(store.sync_takes_ns(snapshot.bytes()));
        store.sync(self.opened, snapshot)
    }

    fn sync(&self) -> Pending<()> {
        let of = self.opened;
        self.begin(|store, end| Kind::Sync(of, store.snapshot(of.inode), end))
    }

    fn write_and_sync(&self, offset: u64, bytes: Vec<u8>) -> Pending<()> {
        let of = self.opened;
        self.begin(|_, end| Kind::WriteAndSync(of, offset, bytes, end))
    }

    fn read(&self, offset: u64, len: usize) -> Pending<Vec<u8>> {
        let inode = self.opened.inode;
        self.begin(|_, end| Kind::Read(inode, offset, len, end))
    }
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimDisk").field("host", &self.host).finish_non_exhaustive()
    }
}

impl fmt::Debug for SimFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimFile").field("host", &self.disk.host).finish_non_exhaustive()
    }
}
