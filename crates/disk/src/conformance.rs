//! The behaviour that every [`Storage`] has, as a test of one.

use std::io;

use crate::{File, Pending, Storage};

/// Checks an empty storage, and leaves it empty. `finish` lets queued operations end; a storage whose
/// operations end by themselves has nothing to do there.
///
/// # Panics
/// The storage does something else.
pub fn check(storage: &dyn Storage, mut finish: impl FnMut()) {
    assert_eq!(storage.list().unwrap(), [""; 0], "it is not empty");
    files(storage);
    names(storage);
    queued(storage, &mut finish);
    assert_eq!(storage.list().unwrap(), [""; 0]);
}

fn contents(file: &dyn File) -> Vec<u8> {
    let mut bytes = vec![0xEE; file.len().unwrap() as usize + 3];
    let count = file.read_at(0, &mut bytes).unwrap();
    bytes.truncate(count);
    bytes
}

fn files(storage: &dyn Storage) {
    let file = storage.create("f").unwrap();
    assert!(file.is_empty().unwrap());
    file.write_at(0, b"abcdef").unwrap();
    file.write_at(2, b"XY").unwrap();
    assert_eq!(contents(&*file), b"abXYef");
    file.write_at(8, b"z").unwrap();
    assert_eq!(contents(&*file), b"abXYef\0\0z", "a gap reads as zeros");
    file.set_len(3).unwrap();
    file.set_len(5).unwrap();
    assert_eq!(contents(&*file), b"abX\0\0", "bytes behind a cut are gone");
    file.sync_blocking().unwrap();
    let mut two = [9; 2];
    assert_eq!((file.read_at(1, &mut two).unwrap(), two), (2, *b"bX"));
    assert_eq!((file.read_at(5, &mut two).unwrap(), file.read_at(99, &mut two).unwrap()), (0, 0));
    let again = storage.open("f").unwrap();
    assert_eq!(contents(&*again), b"abX\0\0");
    again.write_at(0, b"!").unwrap();
    assert_eq!(contents(&*file), b"!bX\0\0", "two handles are one file");
    assert!(storage.create("f").unwrap().is_empty().unwrap(), "creating empties");
    assert!(file.is_empty().unwrap(), "also for those who have it open");
    storage.remove("f").unwrap();
    file.write_at(0, b"still").unwrap();
    assert_eq!(contents(&*file), b"still");
    file.sync_blocking().unwrap();
}

fn names(storage: &dyn Storage) {
    for name in ["b", "a", "c"] {
        storage.create(name).unwrap().write_at(0, name.as_bytes()).unwrap();
    }
    assert_eq!(storage.list().unwrap(), ["a", "b", "c"]);
    storage.rename("a", "b").unwrap();
    storage.rename("c", "d").unwrap();
    storage.rename("d", "d").unwrap();
    assert_eq!(storage.list().unwrap(), ["b", "d"]);
    assert_eq!(contents(&*storage.open("b").unwrap()), b"a");
    let missing = [
        storage.open("a").map(drop),
        storage.rename("a", "b"),
        storage.remove("a"),
        storage.rename("a", "a"),
    ];
    for result in missing {
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
    let refused = [
        storage.open("").map(drop),
        storage.create("a/b").map(drop),
        storage.rename("b", "..").map(drop),
        storage.remove("."),
    ];
    for result in refused {
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
    storage.remove("b").unwrap();
    storage.remove("d").unwrap();
    storage.sync_dir_blocking().unwrap();
}

fn queued(storage: &dyn Storage, finish: &mut dyn FnMut()) {
    fn ended<T>(pending: Pending<T>, finish: &mut dyn FnMut()) -> T {
        finish();
        pending.wait().unwrap()
    }
    let file = storage.create("q").unwrap();
    let named = storage.sync_dir();
    let first = file.write_and_sync(0, b"first".to_vec());
    let second = file.write_and_sync(3, b"second".to_vec());
    let read = file.read(2, 100);
    let part = file.read(0, 4);
    let past = file.read(100, usize::MAX);
    let synced = file.sync();
    ended(named, finish);
    ended(first, finish);
    ended(second, finish);
    assert_eq!(ended(read, finish), b"rsecond", "in the order of the calls");
    assert_eq!(ended(part, finish), b"firs");
    assert_eq!(ended(past, finish), b"");
    ended(synced, finish);
    assert_eq!(contents(&*file), b"firsecond");
    // The operation happens although its result is not wanted.
    drop(file.write_and_sync(0, b"F".to_vec()));
    ended(file.sync(), finish);
    assert_eq!(contents(&*file), b"Firsecond");
    storage.remove("q").unwrap();
}
