use std::collections::BTreeMap;

use courser_disk::Directory;
use raft::eraftpb::Entry;
use tempfile::TempDir;

use super::*;

mod busy;

fn hard(term: u64, commit: u64) -> Record {
    let mut hard = HardState::default();
    (hard.term, hard.vote, hard.commit) = (term, 1, commit);
    Record::Hard(hard)
}

fn entry(index: u64, term: u64) -> Record {
    let mut entry = Entry::default();
    (entry.index, entry.term) = (index, term);
    entry.data = vec![index as u8; 20].into();
    Record::Entry(entry)
}

fn store() -> Store {
    Store::founded(&BTreeMap::from([(1, "a".to_owned()), (2, "b".to_owned())]))
}

fn owner() -> Owner {
    Owner { id: 1, name: "test".to_owned(), identity: Identity::default(), nonce: 0x1234_5678 }
}

/// A directory, whose earlier user may be about to end.
fn storage(path: &std::path::Path) -> Arc<dyn Storage> {
    loop {
        match Directory::open(path) {
            Ok(directory) => return Arc::new(directory),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

/// A directory with its journal.
struct Disk {
    folder: TempDir,
}

impl Disk {
    fn new() -> Disk {
        let disk = Disk { folder: tempfile::tempdir().unwrap() };
        Journal::found(disk.storage(), &owner(), Some(&store())).unwrap();
        disk
    }

    fn storage(&self) -> Arc<dyn Storage> {
        storage(self.folder.path())
    }

    fn open(&self) -> Result<Recovered, JournalError> {
        Journal::open(self.storage(), &owner(), Planted::default())
            .map(|found| found.expect("a log"))
    }

    /// Opens the journal and writes frames.
    fn write(&self, frames: &[&[Record]]) {
        let mut journal = self.open().unwrap().journal;
        for records in frames {
            journal.write_records(records).wait().unwrap();
        }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }

    fn set(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.path(name), bytes).unwrap();
    }
}

fn entries(recovered: &Recovered) -> Vec<(u64, u64)> {
    recovered.state.2.from(0).map(|entry| (entry.index, entry.term)).collect()
}

/// A disk that is not busy needs no pause.
const NO_PAUSE: fn() -> std::future::Ready<()> = || panic!("the queue is not full");

fn block<F: Future>(future: F) -> F::Output {
    futures::executor::block_on(future)
}

#[test]
fn frames_are_read_back_with_replaced_entries_and_the_last_term() {
    let disk = Disk::new();
    disk.write(&[&[hard(1, 1), entry(2, 1), entry(3, 1), entry(4, 1)], &[hard(2, 2), entry(3, 2)]]);
    disk.write(&[&[entry(4, 2)], &[hard(3, 4)]]);
    let recovered = disk.open().unwrap();
    assert_eq!((entries(&recovered), recovered.cut), (vec![(2, 1), (3, 2), (4, 2)], 0));
    let (state, image, log) = recovered.state;
    assert_eq!((log.hard().term, log.hard().vote, log.hard().commit), (3, 1, 4));
    assert_eq!((state.image(), image.unwrap()), (store().image(), store().image()));
}

#[test]
fn an_empty_directory_has_no_log_and_one_that_joins_has_no_members() {
    let folder = tempfile::tempdir().unwrap();
    let open = || storage(folder.path());
    let read = || Journal::open(open(), &owner(), Planted::default()).unwrap();
    assert!(read().is_none());
    Journal::found(open(), &owner(), None).unwrap();
    let (state, image, log) = read().unwrap().state;
    assert_eq!((state.applied(), image, log.last()), ((0, 0), None, 0));
}

#[test]
fn a_tail_that_is_torn_anywhere_is_cut_off_and_the_log_goes_on() {
    let disk = Disk::new();
    disk.write(&[&[hard(1, 1), entry(2, 1)]]);
    let whole = disk.bytes("log-0000000000000001").len();
    disk.write(&[&[entry(3, 1), entry(4, 1)]]);
    let bytes = disk.bytes("log-0000000000000001");
    for len in whole..bytes.len() {
        for zeros in [0, 100] {
            let mut torn = bytes[..len].to_vec();
            torn.resize(len + zeros, 0);
            disk.set("log-0000000000000001", &torn);
            let recovered = disk.open().unwrap();
            assert_eq!(recovered.cut, (len + zeros - whole) as u64);
            assert_eq!(entries(&recovered), [(2, 1)]);
            drop(recovered);
            disk.write(&[&[entry(3, 2)]]);
            assert_eq!(entries(&disk.open().unwrap()), [(2, 1), (3, 2)]);
        }
    }
}

/// The frame loses its header, and its value is a frame. Users do not know the nonce.
#[test]
fn a_torn_frame_is_cut_off_although_its_value_looks_like_a_frame() {
    let name = "log-0000000000000001";
    for (nonce, is_cut) in [(0, true), (owner().nonce, false)] {
        let disk = Disk::new();
        disk.write(&[&[entry(2, 1)]]);
        let whole = disk.bytes(name).len();
        let mut forged = Entry::default();
        (forged.index, forged.term) = (3, 1);
        forged.data = frame::encode(nonce, 7, &[entry(9, 9)], frame::MAX_LEN).unwrap().into();
        disk.write(&[&[Record::Entry(forged)]]);
        let mut bytes = disk.bytes(name);
        bytes[whole..whole + frame::HEADER].fill(0);
        disk.set(name, &bytes);
        match disk.open() {
            Ok(recovered) => assert!(is_cut && entries(&recovered) == [(2, 1)]),
            Err(JournalError::Corrupt { at, .. }) => {
                assert_eq!((at, is_cut), (whole as u64, false))
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// A search that trusts each of these headers sums 64 KiB for each of them.
#[test]
fn a_tail_that_looks_like_headers_of_long_frames_is_searched_once() {
    let disk = Disk::new();
    disk.write(&[&[entry(2, 1)]]);
    let name = "log-0000000000000001";
    let mut bytes = disk.bytes(name);
    let whole = bytes.len();
    let mut header = bytes[..frame::HEADER].to_vec();
    header[4..8].copy_from_slice(&(1u32 << 16).to_le_bytes());
    bytes.extend(header.repeat((1 << 20) / frame::HEADER));
    disk.set(name, &bytes);
    let before = frame::SUMMED.get();
    let recovered = disk.open().unwrap();
    let summed = frame::SUMMED.get() - before;
    assert!(summed < 3 * bytes.len(), "{summed} bytes are summed for {} in the file", bytes.len());
    assert_eq!((recovered.cut, entries(&recovered)), ((bytes.len() - whole) as u64, vec![(2, 1)]));
}

#[test]
fn a_first_frame_of_a_segment_that_is_torn_anywhere_is_cut_off() {
    let disk = Disk::new();
    let name = "log-0000000000000001";
    disk.write(&[&[hard(1, 1), entry(2, 1), entry(3, 1)]]);
    let bytes = disk.bytes(name);
    for len in 0..bytes.len() {
        disk.set(name, &bytes[..len]);
        let recovered = disk.open().unwrap();
        assert_eq!((recovered.cut, entries(&recovered)), (len as u64, vec![]), "{len}");
    }
}

#[test]
fn a_damaged_frame_before_another_one_is_reported_with_its_place() {
    let disk = Disk::new();
    disk.write(&[&[entry(2, 1)]]);
    let first = disk.bytes("log-0000000000000001").len();
    disk.write(&[&[entry(3, 1)]]);
    let second = disk.bytes("log-0000000000000001").len();
    disk.write(&[&[entry(4, 1)]]);
    let bytes = disk.bytes("log-0000000000000001");
    for at in 0..second {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        disk.set("log-0000000000000001", &damaged);
        let error = disk.open().unwrap_err();
        let JournalError::Corrupt { file, at: found, .. } = &error else { panic!("{error}") };
        let frame = if at < first { 0 } else { first };
        assert_eq!((&file[..], *found), ("log-0000000000000001", frame as u64));
        assert_eq!(error.to_string().lines().count(), 1);
    }
}

#[test]
fn a_damaged_snapshot_is_reported() {
    let disk = Disk::new();
    let name = "snapshot-0000000000000001";
    let bytes = disk.bytes(name);
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        disk.set(name, &damaged);
        assert!(matches!(disk.open(), Err(JournalError::Corrupt { .. })), "{at}");
    }
    disk.set(name, &bytes[..bytes.len() - 1]);
    assert!(matches!(disk.open(), Err(JournalError::Corrupt { .. })));
}

/// A journal with entries up to 9, a snapshot at 6, and another segment with two more entries.
fn with_snapshot(disk: &Disk) -> Store {
    let frames: Vec<Vec<Record>> =
        (2..=9).map(|index| vec![hard(1, index), entry(index, 1)]).collect();
    disk.write(&frames.iter().map(|frame| &frame[..]).collect::<Vec<_>>());
    let mut recovered = disk.open().unwrap();
    let mut store = store();
    for index in 2..=6 {
        store.apply((index, 1), None, Planted::default());
    }
    block(save_snapshot(disk.storage_of(&recovered.journal), store.image(), &NO_PAUSE)).unwrap();
    let mut log = recovered.state.2;
    log.set_snapshot((6, 1), store.membership().clone());
    log.truncate(9);
    block(recovered.journal.rotate(log.hard().clone(), &NO_PAUSE)).unwrap();
    recovered.journal.write_records(&[entry(10, 1)]).wait().unwrap();
    recovered.journal.clean(Durable::of(&log)).unwrap();
    store
}

impl Disk {
    fn storage_of(&self, journal: &Journal) -> Arc<dyn Storage> {
        journal.storage().clone()
    }
}

#[test]
fn segments_are_removed_when_a_snapshot_has_their_entries() {
    let disk = Disk::new();
    let store = with_snapshot(&disk);
    // Entries 7 to 9 are only in the first segment.
    let first = disk.bytes("log-0000000000000001");
    assert!(!disk.path("snapshot-0000000000000001").exists());
    let mut recovered = disk.open().unwrap();
    assert_eq!(entries(&recovered), [(7, 1), (8, 1), (9, 1), (10, 1)]);
    assert_eq!(recovered.state.0.image(), store.image());
    let mut later = store.clone();
    for index in 7..=10 {
        later.apply((index, 1), None, Planted::default());
    }
    block(save_snapshot(disk.storage_of(&recovered.journal), later.image(), &NO_PAUSE)).unwrap();
    let mut log = recovered.state.2;
    log.set_snapshot((10, 1), later.membership().clone());
    log.truncate(10);
    block(recovered.journal.rotate(log.hard().clone(), &NO_PAUSE)).unwrap();
    recovered.journal.clean(Durable::of(&log)).unwrap();
    drop(recovered.journal);
    assert!(!disk.path("log-0000000000000001").exists());
    // The removal of the first segment was lost in a crash, that of the second was not.
    disk.set("log-0000000000000001", &first);
    let recovered = disk.open().unwrap();
    assert_eq!((entries(&recovered), recovered.state.2.last()), (vec![], 10));
    assert_eq!(recovered.state.2.hard().term, 1);
}

#[test]
fn files_are_removed_by_what_was_durable_before_the_new_segment() {
    let disk = Disk::new();
    let store = with_snapshot(&disk);
    let mut recovered = disk.open().unwrap();
    let mut log = recovered.state.2;
    let durable = Durable::of(&log);
    // The Raft library accepts a snapshot while the segment is begun; it is not on disk.
    log.set_snapshot((20, 1), store.membership().clone());
    log.truncate(20);
    block(recovered.journal.rotate(log.hard().clone(), &NO_PAUSE)).unwrap();
    recovered.journal.clean(durable).unwrap();
    drop(recovered.journal);
    let recovered = disk.open().unwrap();
    assert_eq!(recovered.state.0.image(), store.image());
    assert_eq!(entries(&recovered), [(7, 1), (8, 1), (9, 1), (10, 1)]);
}

#[test]
fn a_commit_index_whose_entries_are_not_on_disk_is_not_in_a_new_segment() {
    let disk = Disk::new();
    disk.write(&[&[hard(1, 1), entry(2, 1), entry(3, 1)]]);
    let mut recovered = disk.open().unwrap();
    // A leader of term 2 has replaced entry 3, and committed its own, which waits for the disk.
    let Record::Hard(state) = hard(2, 3) else { unreachable!() };
    block(recovered.journal.rotate(state, &NO_PAUSE)).unwrap();
    drop(recovered);
    let log = disk.open().unwrap().state.2;
    assert_eq!((log.hard().term, log.hard().commit, log.last()), (2, 1, 3));
}

#[test]
fn a_missing_segment_or_snapshot_is_reported() {
    let disk = Disk::new();
    with_snapshot(&disk);
    let first = disk.bytes("log-0000000000000001");
    std::fs::remove_file(disk.path("log-0000000000000001")).unwrap();
    let error = disk.open().unwrap_err().to_string();
    assert!(error.contains("entries between the snapshot and the log are missing"), "{error}");
    disk.set("log-0000000000000001", &first);
    disk.write(&[&[Record::Reset(50, 2), entry(51, 2)]]);
    let error = disk.open().unwrap_err().to_string();
    assert!(error.contains("the snapshot that the log continues is missing"), "{error}");
}

#[test]
fn a_received_snapshot_counts_with_or_without_the_frame_behind_it() {
    for has_frame in [false, true] {
        let disk = Disk::new();
        disk.write(&[&[hard(1, 2), entry(2, 1), entry(3, 1), entry(4, 1), entry(5, 1)]]);
        let mut received = store();
        for index in 2..=4 {
            received.apply((index, 3), None, Planted::default());
        }
        let journal = disk.open().unwrap().journal;
        block(save_snapshot(disk.storage_of(&journal), received.image(), &NO_PAUSE)).unwrap();
        drop(journal);
        if has_frame {
            disk.write(&[&[hard(3, 4), Record::Reset(4, 3), entry(5, 3)]]);
        }
        let recovered = disk.open().unwrap();
        // Entry 5 of term 1 contradicts the snapshot.
        let expected: &[(u64, u64)] = if has_frame { &[(5, 3)] } else { &[] };
        assert_eq!(entries(&recovered), expected);
        assert_eq!(recovered.state.2.base(), (4, 3));
        assert_eq!((recovered.state.2.hard().term, recovered.state.2.hard().commit), (3, 4));
    }
}

#[test]
fn a_directory_of_another_node_or_cluster_is_refused() {
    let disk = Disk::new();
    let open = |owner: Owner| Journal::open(disk.storage(), &owner, Planted::default());
    for other in [Owner { id: 2, ..owner() }, Owner { name: "other".to_owned(), ..owner() }] {
        let error = open(other).unwrap_err();
        assert!(matches!(&error, JournalError::Owner { id: 1, name } if name == "test"), "{error}");
        assert_eq!(error.to_string().lines().count(), 1);
    }
    // The cluster has its number, and then a file of another one is put there.
    let mut journal = open(owner()).unwrap().unwrap().journal;
    assert_eq!(journal.identity(), store().identity());
    let identity = Identity { cluster: 7, ..store().identity() };
    block(journal.identify(identity, &NO_PAUSE)).unwrap();
    drop(journal);
    assert_eq!(open(owner()).unwrap().unwrap().journal.identity(), identity);
    let mut other = store();
    other.apply((2, 1), Some(crate::command::Command::Found { cluster: 8 }), Planted::default());
    block(save_snapshot(disk.storage(), other.image(), &NO_PAUSE)).unwrap();
    assert!(matches!(open(owner()), Err(JournalError::Mixed)));
    let bytes = disk.bytes("owner");
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        disk.set("owner", &damaged);
        assert!(matches!(disk.open(), Err(JournalError::Corrupt { .. })), "{at}");
    }
}

#[test]
fn a_directory_that_lacks_a_part_is_refused_and_one_whose_foundation_was_interrupted_is_empty() {
    for (file, part) in [
        ("owner", "file `owner`"),
        ("log-0000000000000001", "log"),
        ("snapshot-0000000000000001", "snapshot"),
    ] {
        let disk = Disk::new();
        std::fs::remove_file(disk.path(file)).unwrap();
        let error = disk.open().unwrap_err();
        assert!(matches!(error, JournalError::Missing(missing) if missing == part), "{error}");
        assert_eq!(error.to_string().lines().count(), 1);
        disk.set("founding", b"");
        let found = Journal::open(disk.storage(), &owner(), Planted::default());
        assert!(found.unwrap().is_none());
        Journal::found(disk.storage(), &owner(), Some(&store())).unwrap();
        assert!(!disk.path("founding").exists());
        assert!(disk.open().unwrap().state.1.is_some());
    }
}
