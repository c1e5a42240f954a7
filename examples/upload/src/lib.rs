//! The service: what the client, the server and the tests share.

use std::io::{self, Write};
use std::path::PathBuf;

use courser::service::Incoming;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;
use xxhash_rust::xxh3::Xxh3;

/// Bytes of a chunk that a client sends.
pub const CHUNK: usize = 64 << 10;

/// What was stored.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Summary {
    /// Bytes of the file.
    pub bytes: u64,
    /// XXH3 of its contents.
    pub hash: u64,
}

/// Why a file was not stored. Nothing of it is left.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum UploadError {
    /// The name is empty, begins with a dot, or has a slash.
    #[error("files cannot be named `{0}`; use letters, digits, dots and dashes")]
    Name(String),
    /// The file is larger than the server stores.
    #[error("the file has more than {limit} bytes, which is the most that is stored")]
    TooLarge {
        /// Most bytes of a file.
        limit: u64,
    },
    /// The stream was broken.
    #[error("the chunks did not arrive: {0}; send the file again")]
    Stream(String),
    /// The server cannot write.
    #[error("the server cannot store the file: {0}")]
    Storage(String),
}

/// Receives files.
#[courser::service]
pub trait Files {
    /// Stores a file that arrives in chunks of any size. It appears when it is complete. The client
    /// is slowed down to what the server writes: at most two batches of chunks are on the way.
    async fn upload(&self, name: String, chunks: Incoming<Vec<u8>>)
    -> Result<Summary, UploadError>;
}

/// Where files are stored.
pub trait Storage: Send + Sync + 'static {
    /// A file that is written. Dropping it removes it.
    type File: Write + Send;
    /// Begins a file.
    ///
    /// # Errors
    /// That of the system.
    fn create(&self) -> io::Result<Self::File>;
    /// Keeps a file that is complete, in place of an earlier one of that name.
    ///
    /// # Errors
    /// That of the system.
    fn keep(&self, name: &str, file: Self::File) -> io::Result<()>;
}

/// Stores files in a directory.
#[derive(Clone, Debug)]
pub struct Directory(pub PathBuf);

impl Storage for Directory {
    type File = NamedTempFile;

    fn create(&self) -> io::Result<NamedTempFile> {
        NamedTempFile::new_in(&self.0)
    }

    fn keep(&self, name: &str, file: NamedTempFile) -> io::Result<()> {
        file.persist(self.0.join(name)).map(drop).map_err(|error| error.error)
    }
}

/// The server's implementation.
#[derive(Debug)]
pub struct Uploads<S> {
    storage: S,
    limit: u64,
}

impl<S: Storage> Uploads<S> {
    /// Stores files of at most `limit` bytes.
    pub fn new(storage: S, limit: u64) -> Self {
        Self { storage, limit }
    }
}

impl From<io::Error> for UploadError {
    fn from(error: io::Error) -> Self {
        Self::Storage(error.to_string())
    }
}

impl<S: Storage> Files for Uploads<S> {
    async fn upload(
        &self,
        name: String,
        mut chunks: Incoming<Vec<u8>>,
    ) -> Result<Summary, UploadError> {
        if name.is_empty() || name.starts_with('.') || name.contains(['/', '\\', '\0']) {
            return Err(UploadError::Name(name));
        }
        // When the client cancels or is gone, this future is dropped, and the file with it.
        let mut file = self.storage.create()?;
        let (mut bytes, mut hash) = (0, Xxh3::new());
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|error| UploadError::Stream(error.to_string()))?;
            bytes += chunk.len() as u64;
            if bytes > self.limit {
                return Err(UploadError::TooLarge { limit: self.limit });
            }
            hash.update(&chunk);
            // Blocks one of the server's worker threads.
            file.write_all(&chunk)?;
        }
        self.storage.keep(&name, file)?;
        Ok(Summary { bytes, hash: hash.digest() })
    }
}
