//! Names of the files, errors, and operations that find no room in the disk's queue.

use std::io;

use courser_disk::Pending;

/// Why a directory cannot be used, or the disk failed.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The system's error.
    #[error("{file}: {error}; see that the disk has space and works, and start the node again")]
    Disk {
        /// The file.
        file: String,
        /// The system's error.
        error: io::Error,
    },
    /// A file was damaged after it was written.
    #[error(
        "{file} is damaged at byte {at} ({detail}); remove this node from the cluster, and add it again \
         under another number with an empty directory"
    )]
    Corrupt {
        /// The file.
        file: String,
        /// The place.
        at: u64,
        /// The part that is wrong.
        detail: std::borrow::Cow<'static, str>,
    },
    /// There is nothing to start from.
    #[error(
        "the directory is empty; if this node had data, it is lost: remove the node, and add it again under \
         another number; else start the first members of a cluster with --new, further ones with --join"
    )]
    Empty,
    /// A part is missing.
    #[error(
        "the directory has no {0}, but other files of a node; bring all of its files back, or remove this \
         node from the cluster, and add it again under another number with an empty directory"
    )]
    Missing(&'static str),
    /// It is that of another node or cluster.
    #[error(
        "the directory is that of node {id} in the cluster {name:?}; correct --data, --id or --cluster"
    )]
    Owner {
        /// The node's number.
        id: u64,
        /// Name of the cluster.
        name: String,
    },
    /// A frame is too long.
    #[error("{0}")]
    Frame(String),
    /// Its files are of different clusters.
    #[error(
        "the directory has a snapshot of another cluster; remove this node from the cluster, and add it \
         again under another number with an empty directory"
    )]
    Mixed,
}

pub(super) fn disk(file: &str) -> impl FnOnce(io::Error) -> JournalError + '_ {
    move |error| JournalError::Disk { file: file.to_owned(), error }
}

/// Repeats an operation after pauses, while the queue of the disk is full: it has other operations, which
/// end. So the queue limits the rate of writes and stops no node.
pub(super) async fn patiently<T>(
    pause: &impl AsyncFn(),
    mut operation: impl FnMut() -> Pending<T>,
) -> io::Result<T> {
    loop {
        match operation().await {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => pause().await,
            result => return result,
        }
    }
}

pub(super) fn segment_name(number: u64) -> String {
    format!("log-{number:016x}")
}

pub(super) fn snapshot_name(index: u64) -> String {
    format!("snapshot-{index:016x}")
}

/// The number in the name of a file.
pub(super) fn number(name: &str, prefix: &str) -> Option<u64> {
    let digits = name.strip_prefix(prefix)?;
    (digits.len() == 16).then(|| u64::from_str_radix(digits, 16).ok())?
}
