//! A folder of the file system.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FlockOperation, flock};

use crate::name::{LOCK, check_name};
use crate::pending::Pending;
use crate::queue::{Opened, Operation, Queue};
use crate::{File, Storage};

/// A folder of the file system, with one thread for queued operations.
///
/// Its file `LOCK` is locked: a second process, or a second `Directory`, cannot open the folder at the
/// same time. The thread ends, and the lock is released, when the directory and its files are dropped
/// and the queued operations have been carried out.
///
/// Costs: a thread, which sleeps while nothing is queued; at most [`crate::QUEUE_OPERATIONS`] operations
/// and [`crate::QUEUE_BYTES`] of data are queued.
pub struct Directory {
    path: PathBuf,
    sender: Arc<Sender>,
}

/// Closes the queue when the last user is gone.
struct Sender(Arc<Queue>);

impl Drop for Sender {
    fn drop(&mut self) {
        self.0.close();
    }
}

struct OpenFile {
    opened: Arc<Opened>,
    sender: Arc<Sender>,
}

impl Directory {
    /// Opens a folder. It is created when it is missing; the folder above it must exist.
    ///
    /// # Errors
    /// [`io::ErrorKind::ResourceBusy`] if it is open already, or the error of the system.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Directory> {
        let path = path.as_ref();
        create_folder(path, &mut sync_folder)?;
        let folder = fs::File::open(path)?;
        let lock =
            fs::File::options().create(true).truncate(false).write(true).open(path.join(LOCK))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let text = format!(
                    "{} is used by another process; end that, or name another folder",
                    path.display()
                );
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
            }
            Err(e) => return Err(e.into()),
        }
        let queue = Queue::start(folder, lock)?;
        Ok(Directory { path: path.to_owned(), sender: Arc::new(Sender(queue)) })
    }

    /// [`Directory::open`], which creates missing folders above, too, and makes their names durable.
    ///
    /// # Errors
    /// See [`Directory::open`].
    pub fn create(path: impl AsRef<Path>) -> io::Result<Directory> {
        create_above(path.as_ref(), &mut sync_folder)?;
        Directory::open(path)
    }

    fn file(&self, name: &str, options: &fs::OpenOptions) -> io::Result<Box<dyn File>> {
        check_name(name)?;
        let opened = Opened::new(options.open(self.path.join(name))?);
        Ok(Box::new(OpenFile { opened, sender: self.sender.clone() }))
    }
}

type Sync<'a> = &'a mut dyn FnMut(&Path) -> io::Result<()>;

fn sync_folder(path: &Path) -> io::Result<()> {
    fs::File::open(path)?.sync_all()
}

/// Creates a folder unless it exists, and makes its name durable. An earlier run may have ended between
/// both, so the name of one that exists is synced too, if the folder above can be read.
fn create_folder(path: &Path, sync: Sync<'_>) -> io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    match fs::create_dir(path) {
        Ok(()) => sync(parent),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => match sync(parent) {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            result => result,
        },
        Err(e) => Err(e),
    }
}

/// Creates the missing folders above a path, from the outermost on.
fn create_above(path: &Path, sync: Sync<'_>) -> io::Result<()> {
    let above = path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty());
    let missing: Vec<&Path> = above.take_while(|above| !above.exists()).collect();
    missing.into_iter().rev().try_for_each(|folder| create_folder(folder, sync))
}

impl Storage for Directory {
    fn open(&self, name: &str) -> io::Result<Box<dyn File>> {
        self.file(name, fs::File::options().read(true).write(true))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn File>> {
        self.file(name, fs::File::options().read(true).write(true).create(true).truncate(true))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            // Other entries are not from here, and cannot be opened here.
            if let Ok(name) = entry.file_name().into_string()
                && check_name(&name).is_ok()
                && entry.file_type()?.is_file()
            {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        check_name(from)?;
        check_name(to)?;
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        check_name(name)?;
        fs::remove_file(self.path.join(name))
    }

    fn sync_dir(&self) -> Pending<()> {
        self.sender.0.push(0, Operation::SyncDir)
    }

    fn sync_dir_blocking(&self) -> io::Result<()> {
        self.sender.0.folder.sync_all()
    }
}

impl File for OpenFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.opened.file.metadata()?.len())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.opened.read(offset, into)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.opened.file.write_all_at(bytes, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.opened.file.set_len(len)
    }

    fn sync_blocking(&self) -> io::Result<()> {
        self.opened.sync()
    }

    fn sync(&self) -> Pending<()> {
        let file = self.opened.clone();
        self.sender.0.push(0, |completion| Operation::Sync(file, None, completion))
    }

    fn write_and_sync(&self, offset: u64, bytes: Vec<u8>) -> Pending<()> {
        let (file, count) = (self.opened.clone(), bytes.len());
        let write = |completion| Operation::Sync(file, Some((offset, bytes)), completion);
        self.sender.0.push(count, write)
    }

    fn read(&self, offset: u64, len: usize) -> Pending<Vec<u8>> {
        let file = self.opened.clone();
        self.sender.0.push(0, |completion| Operation::Read(file, offset, len, completion))
    }
}

impl fmt::Debug for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Directory").field("path", &self.path).finish_non_exhaustive()
    }
}

impl fmt::Debug for OpenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenFile").field("file", &self.opened.file).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_all_new_folders_and_of_an_earlier_run_are_synced() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a/b/data");
        let mut synced = Vec::new();
        let mut sync = |folder: &Path| {
            synced.push(folder.strip_prefix(root.path()).unwrap().to_owned());
            Ok(())
        };
        create_above(&path, &mut sync).unwrap();
        create_folder(&path, &mut sync).unwrap();
        // It exists, but may not have been synced.
        create_folder(&path, &mut sync).unwrap();
        let expected = ["", "a", "a/b", "a/b"].map(PathBuf::from);
        assert_eq!(synced, expected);
        let again = Directory::create(&path).unwrap();
        assert_eq!(again.list().unwrap(), Vec::<String>::new());
    }

    #[test]
    fn a_sync_of_the_folder_above_that_fails_is_an_error_unless_it_cannot_be_read() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("data");
        let failing = |kind: io::ErrorKind| move |_: &Path| Err(io::Error::from(kind));
        assert!(create_folder(&path, &mut failing(io::ErrorKind::Other)).is_err());
        assert!(create_folder(&path, &mut failing(io::ErrorKind::Other)).is_err());
        assert!(create_folder(&path, &mut failing(io::ErrorKind::PermissionDenied)).is_ok());
    }
}
