//! Ledgers: files with records of executions and outcomes. Data that was passed to `write(2)` stays in
//! the file when the process is killed.
//!
//! A server appends a [`Record`] before it executes a request, a client when a call ends. The parent
//! process reads the ledgers as they grow and compares them ([`super::check`]).

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

/// Bytes of a record.
const LEN: usize = 40;

/// The event that a record states.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Event {
    /// Server: the handler was started.
    Executed = 1,
    /// Server: a request arrived with a wrong byte.
    CorruptRequest = 2,
    /// Client: a correct response.
    Succeeded = 3,
    /// Client: an error with the verdict "never executed".
    Never = 4,
    /// Client: an error with the verdict "may have executed".
    Maybe = 5,
    /// Client: an error with the verdict "executed".
    Ran = 6,
    /// Client: a response with a wrong byte, or of another call or incarnation.
    CorruptResponse = 7,
    /// Client: no end within the limit.
    Hung = 8,
    /// Client: a second completion of a call.
    EndedTwice = 9,
    /// Client: a call ended long after its deadline; the outcome has a record of its own.
    Late = 10,
}

impl Event {
    fn read(byte: u8) -> Option<Self> {
        use Event::*;
        let all = [
            Executed,
            CorruptRequest,
            Succeeded,
            Never,
            Maybe,
            Ran,
            CorruptResponse,
            Hung,
            EndedTwice,
            Late,
        ];
        all.into_iter().find(|&event| event as u8 == byte)
    }
}

/// One entry of a ledger.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Record {
    pub(super) event: Event,
    /// The request type.
    pub(super) req_type: u16,
    /// The error as an index of [`super::client::ERRORS`]; 0 without an error.
    pub(super) error: u8,
    /// Number of the call.
    pub(super) id: u64,
    /// Incarnation of the server.
    pub(super) incarnation: u64,
    /// Time on the machine's monotonic clock.
    pub(super) at_ns: u64,
    /// Duration of the call, microseconds; clients only.
    pub(super) took_us: u32,
    /// Bytes of request and response.
    pub(super) bytes: u32,
}

impl Record {
    fn to_bytes(self) -> [u8; LEN] {
        let mut out = [0; LEN];
        out[0] = self.event as u8;
        out[1] = self.error;
        out[2..4].copy_from_slice(&self.req_type.to_le_bytes());
        out[8..16].copy_from_slice(&self.id.to_le_bytes());
        out[16..24].copy_from_slice(&self.incarnation.to_le_bytes());
        out[24..32].copy_from_slice(&self.at_ns.to_le_bytes());
        out[32..36].copy_from_slice(&self.took_us.to_le_bytes());
        out[36..].copy_from_slice(&self.bytes.to_le_bytes());
        out
    }

    fn read(bytes: &[u8; LEN]) -> Option<Self> {
        let long = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        let int = |at: usize| bytes[at..at + 4].try_into().map(u32::from_le_bytes).ok();
        Some(Self {
            event: Event::read(bytes[0])?,
            error: bytes[1],
            req_type: u16::from_le_bytes([bytes[2], bytes[3]]),
            id: long(8)?,
            incarnation: long(16)?,
            at_ns: long(24)?,
            took_us: int(32)?,
            bytes: int(36)?,
        })
    }
}

/// Appends records. Each record is one `write` in append mode, so records of several threads do not
/// mix.
#[derive(Debug)]
pub(super) struct Ledger(File);

impl Ledger {
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        Ok(Self(File::options().create(true).append(true).open(path)?))
    }

    pub(super) fn append(&self, record: Record) -> io::Result<()> {
        (&self.0).write_all(&record.to_bytes())
    }
}

/// Reads the records that were added since the last read, and frees the disk space of records that
/// were read if the file system supports it.
#[derive(Debug)]
pub(super) struct Tail {
    file: File,
    rest: Vec<u8>,
    read: u64,
}

impl Tail {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        // The writer may not have created the file yet.
        let file = File::options().read(true).append(true).create(true).open(path)?;
        Ok(Self { file, rest: Vec::new(), read: 0 })
    }

    /// Calls `each` with every new record.
    ///
    /// # Errors
    /// The file cannot be read, or contains an invalid record.
    pub(super) fn read(&mut self, mut each: impl FnMut(Record)) -> io::Result<()> {
        let mut buffer = [0; 64 * LEN];
        loop {
            let n = self.file.read(&mut buffer)?;
            if n == 0 {
                self.free();
                return Ok(());
            }
            self.read += n as u64;
            self.rest.extend_from_slice(&buffer[..n]);
            let (records, rest) = self.rest.as_chunks::<LEN>();
            for bytes in records {
                each(Record::read(bytes).ok_or(io::ErrorKind::InvalidData)?);
            }
            self.rest = rest.to_vec();
        }
    }

    fn free(&mut self) {
        use rustix::fs::{FallocateFlags as F, fallocate};
        let whole = self.read & !0xf_ffff;
        if whole > 0 {
            // Without support of the file system, the file keeps its size on disk.
            let _ = fallocate(&self.file, F::PUNCH_HOLE | F::KEEP_SIZE, 0, whole);
        }
    }
}

/// Time of the machine's monotonic clock, which all processes share, ns.
pub(super) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (now.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_are_written() {
        let path = std::env::temp_dir().join(format!("courser-ledger-{}", std::process::id()));
        let mut tail = Tail::open(&path).expect("opens");
        let ledger = Ledger::create(&path).expect("opens");
        let record = |id| Record {
            event: Event::Maybe,
            req_type: 513,
            error: 7,
            id,
            incarnation: u64::MAX - 1,
            at_ns: 1 << 40,
            took_us: 99,
            bytes: 1 << 23,
        };
        let mut seen = Vec::new();
        for round in 0..3 {
            for id in 0..100 {
                ledger.append(record(round * 100 + id)).expect("written");
            }
            tail.read(|record| seen.push(record)).expect("read");
            assert_eq!(seen.len() as u64, (round + 1) * 100);
        }
        std::fs::remove_file(&path).expect("removed");
        assert!((0..).zip(&seen).all(|(id, seen)| *seen == record(id)));
    }
}
