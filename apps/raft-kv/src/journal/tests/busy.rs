//! A disk whose queue is full.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// A storage that has no room for some operations.
#[derive(Debug)]
struct Busy {
    inner: Arc<dyn Storage>,
    refusals: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct BusyFile {
    inner: Box<dyn File>,
    refusals: Arc<AtomicUsize>,
}

fn refused<T>(refusals: &AtomicUsize) -> Option<Pending<T>> {
    let less = |left: usize| left.checked_sub(1);
    refusals.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).ok()?;
    Some(Pending::ended(Err(io::ErrorKind::ResourceBusy.into())))
}

impl Busy {
    fn file(&self, inner: Box<dyn File>) -> Box<dyn File> {
        Box::new(BusyFile { inner, refusals: self.refusals.clone() })
    }
}

impl Storage for Busy {
    fn open(&self, name: &str) -> io::Result<Box<dyn File>> {
        self.inner.open(name).map(|file| self.file(file))
    }
    fn create(&self, name: &str) -> io::Result<Box<dyn File>> {
        self.inner.create(name).map(|file| self.file(file))
    }
    fn list(&self) -> io::Result<Vec<String>> {
        self.inner.list()
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.inner.rename(from, to)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.inner.remove(name)
    }
    fn sync_dir_blocking(&self) -> io::Result<()> {
        self.inner.sync_dir_blocking()
    }
    fn sync_dir(&self) -> Pending<()> {
        refused(&self.refusals).unwrap_or_else(|| self.inner.sync_dir())
    }
}

impl File for BusyFile {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.inner.read_at(offset, into)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.inner.write_at(offset, bytes)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }
    fn sync_blocking(&self) -> io::Result<()> {
        self.inner.sync_blocking()
    }
    fn sync(&self) -> Pending<()> {
        self.inner.sync()
    }
    fn write_and_sync(&self, offset: u64, bytes: Vec<u8>) -> Pending<()> {
        refused(&self.refusals).unwrap_or_else(|| self.inner.write_and_sync(offset, bytes))
    }
    fn read(&self, offset: u64, len: usize) -> Pending<Vec<u8>> {
        self.inner.read(offset, len)
    }
}

#[test]
fn a_full_queue_of_the_disk_delays_writes_and_stops_nothing() {
    let disk = Disk::new();
    let refusals = Arc::new(AtomicUsize::new(0));
    let busy = Arc::new(Busy { inner: disk.storage(), refusals: refusals.clone() });
    let mut recovered = Journal::open(busy.clone(), &owner(), Planted::default()).unwrap().unwrap();
    let pauses = Cell::new(0);
    let pause = async || pauses.set(pauses.get() + 1);
    let refuse = || refusals.store(3, Ordering::Relaxed);
    refuse();
    let frame = |records: &[Record]| Frame::of(records.to_vec());
    block(recovered.journal.write(&frame(&[hard(1, 1), entry(2, 1)]), &pause)).unwrap();
    assert_eq!(pauses.take(), 3);
    refuse();
    let hard_state = recovered.state.2.hard().clone();
    block(recovered.journal.rotate(hard_state, &pause)).unwrap();
    block(recovered.journal.write(&frame(&[hard(1, 2), entry(3, 1)]), &pause)).unwrap();
    assert_eq!(pauses.take(), 3);
    refuse();
    let identity = Identity { cluster: 7, ..store().identity() };
    block(recovered.journal.identify(identity, &pause)).unwrap();
    assert_eq!(pauses.take(), 3);
    refuse();
    let mut later = store();
    later.apply((2, 1), None, Planted::default());
    block(save_snapshot(busy, later.image(), &pause)).unwrap();
    assert_eq!(pauses.take(), 3);
    drop(recovered);
    let found = disk.open().unwrap();
    assert_eq!((entries(&found), found.state.0.image()), (vec![(3, 1)], later.image()));
}
