//! The implementation of production, on the file system of the test.

use std::io;
use std::sync::Arc;

use courser_disk::{Directory, File, Storage, conformance};

fn storage() -> (tempfile::TempDir, Directory) {
    let folder = tempfile::tempdir().unwrap();
    let directory = Directory::open(folder.path().join("data")).unwrap();
    (folder, directory)
}

#[test]
fn it_conforms() {
    let (_folder, directory) = storage();
    conformance::check(&directory, || {});
}

#[test]
fn a_folder_is_opened_by_one_at_a_time_and_after_the_last_handle() {
    let (folder, directory) = storage();
    let path = folder.path().join("data");
    let file = directory.create("f").unwrap();
    let refused = Directory::open(&path).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ResourceBusy);
    assert!(refused.to_string().contains("another"), "{refused}");
    drop(directory);
    assert!(Directory::open(&path).is_err(), "the file still has its thread");
    let written = file.write_and_sync(0, vec![7; 100_000]);
    drop(file);
    written.wait().unwrap();
    // The thread ends soon after its last operation.
    let again = loop {
        match Directory::open(&path) {
            Ok(again) => break again,
            Err(e) => assert_eq!(e.kind(), io::ErrorKind::ResourceBusy),
        }
        std::thread::yield_now();
    };
    assert_eq!(again.open("f").unwrap().len().unwrap(), 100_000);
    assert_eq!(again.list().unwrap(), ["f"], "the lock is no file of the user");
}

#[test]
fn entries_of_others_are_not_listed() {
    let (folder, directory) = storage();
    std::fs::create_dir(folder.path().join("data/folder")).unwrap();
    directory.create("file").unwrap();
    assert_eq!(directory.list().unwrap(), ["file"]);
}

#[test]
fn a_missing_parent_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let missing = Directory::open(folder.path().join("a/b")).unwrap_err();
    assert_eq!(missing.kind(), io::ErrorKind::NotFound);
}

#[test]
fn operations_from_many_threads_all_end() {
    let (_folder, directory) = storage();
    let file: Arc<dyn File> = directory.create("f").unwrap().into();
    std::thread::scope(|scope| {
        for n in 0..8_u64 {
            let file = file.clone();
            scope.spawn(move || {
                for turn in 0..50 {
                    file.write_and_sync(8 * (8 * turn + n), n.to_le_bytes().to_vec())
                        .wait()
                        .unwrap();
                }
            });
        }
    });
    let bytes = file.read(0, 1 << 20).wait().unwrap();
    assert_eq!(bytes.len(), 8 * 8 * 50);
    let numbers = bytes.chunks(8).map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap()));
    assert!(numbers.eq((0..50).flat_map(|_| 0..8)));
}
