//! Queued operations of a directory, and the thread that carries them out.
//!
//! Operations run in the order of the calls. Syncs of one file that are queued one after the other
//! share one sync of the device (group commit).

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::pending::{Completion, Pending};

/// Most queued operations of a storage; further ones end with [`io::ErrorKind::ResourceBusy`].
pub const QUEUE_OPERATIONS: usize = 4_096;

/// Most bytes of queued writes of a storage; further ones end with [`io::ErrorKind::ResourceBusy`]. A
/// single write may be larger.
pub const QUEUE_BYTES: usize = 64 << 20;

/// A file of the system, with the mark of a failed sync.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) file: fs::File,
    failed: AtomicBool,
}

impl Opened {
    pub(crate) fn new(file: fs::File) -> Arc<Self> {
        Arc::new(Opened { file, failed: AtomicBool::new(false) })
    }

    pub(crate) fn sync(&self) -> io::Result<()> {
        if self.failed.load(Ordering::Acquire) {
            return Err(io::Error::other(
                "an earlier sync of this file failed, and its data may be lost; open it again and read \
                 what is there",
            ));
        }
        // Length and contents; not the times.
        self.file.sync_data().inspect_err(|_| self.failed.store(true, Ordering::Release))
    }

    /// Reads until the end of `into` or of the file.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < into.len() {
            match self.file.read_at(&mut into[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }
}

pub(crate) enum Operation {
    /// Writes, if there is something to write, and syncs.
    Sync(Arc<Opened>, Option<(u64, Vec<u8>)>, Completion<()>),
    /// Syncs the directory.
    SyncDir(Completion<()>),
    Read(Arc<Opened>, u64, usize, Completion<Vec<u8>>),
}

#[derive(Default)]
struct Waiting {
    operations: VecDeque<Operation>,
    /// Bytes to be written.
    bytes: usize,
    is_closed: bool,
}

pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    /// The directory, to be synced.
    pub(crate) folder: fs::File,
    /// Locked as long as the storage or its thread is there.
    _lock: fs::File,
}

impl Queue {
    /// Starts the thread. It ends when [`Queue::close`] was called and the queue is empty.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(crate) fn start(folder: fs::File, lock: fs::File) -> io::Result<Arc<Queue>> {
        let queue = Queue::new(folder, lock);
        let runs = queue.clone();
        std::thread::Builder::new().name("courser-disk".to_owned()).spawn(move || runs.run())?;
        Ok(queue)
    }

    /// A queue without a thread.
    fn new(folder: fs::File, lock: fs::File) -> Arc<Queue> {
        let (waiting, changed) = (Mutex::default(), Condvar::new());
        Arc::new(Queue { waiting, changed, folder, _lock: lock })
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // No code panics while it is locked.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues the operation of a completion.
    pub(crate) fn push<T>(
        &self,
        bytes: usize,
        operation: impl FnOnce(Completion<T>) -> Operation,
    ) -> Pending<T> {
        let (completion, pending) = Pending::new();
        let mut waiting = self.lock();
        let full = waiting.operations.len() >= QUEUE_OPERATIONS
            || waiting.bytes > 0 && waiting.bytes.saturating_add(bytes) > QUEUE_BYTES;
        if full {
            drop(waiting);
            let text =
                "the queue of the disk is full; wait for earlier operations before the next one";
            completion.end(Err(io::Error::new(io::ErrorKind::ResourceBusy, text)));
            return pending;
        }
        waiting.bytes += bytes;
        waiting.operations.push_back(operation(completion));
        drop(waiting);
        self.changed.notify_one();
        pending
    }

    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_one();
    }

    fn run(&self) {
        while let Some(group) = self.next() {
            carry_out(group, &self.folder);
        }
    }

    /// The next operation, with the syncs of the same file that follow it.
    fn next(&self) -> Option<Vec<Operation>> {
        let mut waiting = self.lock();
        let first = loop {
            match waiting.operations.pop_front() {
                Some(first) => break first,
                None if waiting.is_closed => return None,
                None => {
                    waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
                }
            }
        };
        let mut group = vec![first];
        while waiting.operations.front().is_some_and(|next| shares_sync(&group[0], next)) {
            group.extend(waiting.operations.pop_front());
        }
        let bytes: usize = group.iter().map(Operation::bytes).sum();
        waiting.bytes -= bytes;
        Some(group)
    }
}

impl Operation {
    fn bytes(&self) -> usize {
        match self {
            Operation::Sync(_, Some((_, bytes)), _) => bytes.len(),
            _ => 0,
        }
    }
}

/// Returns whether one sync of the device serves both.
fn shares_sync(first: &Operation, next: &Operation) -> bool {
    match (first, next) {
        (Operation::Sync(a, ..), Operation::Sync(b, ..)) => Arc::ptr_eq(a, b),
        (Operation::SyncDir(_), Operation::SyncDir(_)) => true,
        _ => false,
    }
}

/// Carries out operations that share a sync, or a single one.
fn carry_out(group: Vec<Operation>, folder: &fs::File) {
    let mut syncs = Vec::new();
    let mut opened = None;
    for operation in group {
        match operation {
            Operation::Read(file, offset, len, completion) => {
                return completion.end(read(&file, offset, len));
            }
            Operation::SyncDir(completion) => syncs.push((Ok(()), completion)),
            Operation::Sync(file, write, completion) => {
                let written =
                    write.map_or(Ok(()), |(at, bytes)| file.file.write_all_at(&bytes, at));
                syncs.push((written, completion));
                opened = Some(file);
            }
        }
    }
    let synced = match &opened {
        Some(file) => file.sync(),
        None => folder.sync_all(),
    };
    for (written, completion) in syncs {
        completion.end(written.and_then(|()| again(&synced)));
    }
}

fn read(file: &Opened, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    let left = file.file.metadata()?.len().saturating_sub(offset);
    let mut bytes = vec![0; len.min(usize::try_from(left).unwrap_or(usize::MAX))];
    let count = file.read(offset, &mut bytes)?;
    bytes.truncate(count);
    Ok(bytes)
}

/// A copy of a result.
fn again(result: &io::Result<()>) -> io::Result<()> {
    match result {
        Ok(()) => Ok(()),
        Err(e) => Err(match e.raw_os_error() {
            Some(code) => io::Error::from_raw_os_error(code),
            None => io::Error::new(e.kind(), e.to_string()),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(folder: &tempfile::TempDir) -> (Arc<Queue>, Arc<Opened>) {
        let file = || tempfile::tempfile_in(folder).unwrap();
        (Queue::new(fs::File::open(folder).unwrap(), file()), Opened::new(file()))
    }

    fn write(queue: &Queue, file: &Arc<Opened>, bytes: Vec<u8>) -> Pending<()> {
        let file = file.clone();
        queue.push(bytes.len(), |completion| Operation::Sync(file, Some((0, bytes)), completion))
    }

    fn is_refused(pending: Pending<()>) -> bool {
        pending.is_ended() && pending.wait().unwrap_err().kind() == io::ErrorKind::ResourceBusy
    }

    #[test]
    fn a_full_queue_refuses_and_recovers() {
        let folder = tempfile::tempdir().unwrap();
        let (queue, file) = queue(&folder);
        let halves = [0, 1].map(|n| write(&queue, &file, vec![n; QUEUE_BYTES / 2]));
        assert!(is_refused(write(&queue, &file, vec![2])), "bytes");
        let small = QUEUE_OPERATIONS - halves.len();
        let small: Vec<_> = (0..small).map(|_| queue.push(0, Operation::SyncDir)).collect();
        assert!(is_refused(queue.push(0, Operation::SyncDir)), "operations");
        queue.close();
        queue.run();
        assert!(halves.into_iter().chain(small).all(|pending| pending.wait().is_ok()));
        let large = write(&queue, &file, vec![3; QUEUE_BYTES + 1]);
        queue.run();
        large.wait().expect("a write that is larger than the queue is accepted alone");
    }

    #[test]
    fn neighbouring_syncs_of_a_file_share_one() {
        let folder = tempfile::tempdir().unwrap();
        let (queue, a) = queue(&folder);
        let b = Opened::new(tempfile::tempfile_in(&folder).unwrap());
        for file in [&a, &a, &a, &b, &a] {
            drop(write(&queue, file, vec![1]));
        }
        drop(queue.push(0, Operation::SyncDir));
        queue.close();
        let groups: Vec<_> = std::iter::from_fn(|| queue.next()).map(|group| group.len()).collect();
        assert_eq!(groups, [3, 1, 1, 1]);
        assert_eq!(queue.lock().bytes, 0);
    }

    #[test]
    fn after_a_failed_sync_all_syncs_of_the_file_fail() {
        // A pipe cannot be synced.
        let (_, pipe) = io::pipe().unwrap();
        let file = Opened::new(fs::File::from(std::os::fd::OwnedFd::from(pipe)));
        assert_eq!(file.sync().unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert!(file.sync().unwrap_err().to_string().contains("earlier sync"));
    }
}
