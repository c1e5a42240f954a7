//! Frames as bytes.

use crc_fast::{CrcAlgorithm, Digest};
use raft::eraftpb::{Entry, EntryType, HardState};

use crate::command::MAX_COMMAND;
use crate::core::Record;

const MAGIC: [u8; 4] = *b"rkv1";
/// Magic, length of the records, number.
const PLACE: usize = 4 + 4 + 8;
/// Magic, length of the records, number, checksum of these, checksum of the whole frame.
pub(super) const HEADER: usize = PLACE + 8 + 8;
/// Largest length of the records of a frame, bytes. Frames that the node writes are smaller: see
/// [`crate::core::Unsynced`].
pub(super) const MAX_LEN: usize = 1 << 30;

const HARD: u8 = 1;
const ENTRY: u8 = 2;
const RESET: u8 = 3;

#[cfg(test)]
thread_local! {
    /// Bytes of checksums that this thread has computed.
    pub(super) static SUMMED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// A checksum of bytes that come in parts.
pub(super) struct Checksum(Digest);

impl Default for Checksum {
    fn default() -> Self {
        Checksum(Digest::new(CrcAlgorithm::Crc64Nvme))
    }
}

impl Checksum {
    pub(super) fn add(&mut self, part: &[u8]) {
        #[cfg(test)]
        SUMMED.set(SUMMED.get() + part.len());
        self.0.update(part);
    }

    pub(super) fn end(self) -> u64 {
        self.0.finalize()
    }
}

pub(super) fn checksum(parts: &[&[u8]]) -> u64 {
    let mut sum = Checksum::default();
    parts.iter().for_each(|part| sum.add(part));
    sum.end()
}

/// A frame that is too long to be read back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "a frame of the log has {len} bytes, and at most {most} can be read back; start the node again"
)]
pub(super) struct TooLong {
    len: usize,
    most: usize,
}

/// The checksums of a frame. The random number of the directory is in them: users can store bytes that
/// look like a frame, but not like one of this directory.
fn sums(nonce: u64, place: &[u8], records: &[u8]) -> (u64, u64) {
    let nonce = nonce.to_le_bytes();
    (checksum(&[&nonce, place]), checksum(&[&nonce, place, records]))
}

/// Encodes a frame with at most `most` bytes of records.
pub(super) fn encode(
    nonce: u64,
    number: u64,
    records: &[Record],
    most: usize,
) -> Result<Vec<u8>, TooLong> {
    let mut bytes = vec![0; HEADER];
    for record in records {
        write(record, &mut bytes);
    }
    let len = bytes.len() - HEADER;
    if len > most.min(MAX_LEN) {
        return Err(TooLong { len, most });
    }
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..8].copy_from_slice(&(len as u32).to_le_bytes());
    bytes[8..16].copy_from_slice(&number.to_le_bytes());
    let (place, all) = sums(nonce, &bytes[..PLACE], &bytes[HEADER..]);
    bytes[PLACE..PLACE + 8].copy_from_slice(&place.to_le_bytes());
    bytes[PLACE + 8..HEADER].copy_from_slice(&all.to_le_bytes());
    Ok(bytes)
}

fn write(record: &Record, bytes: &mut Vec<u8>) {
    let mut numbers = |kind: u8, numbers: &[u64]| {
        bytes.push(kind);
        numbers.iter().for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
    };
    match record {
        Record::Hard(hard) => numbers(HARD, &[hard.term, hard.vote, hard.commit]),
        Record::Reset(index, term) => numbers(RESET, &[*index, *term]),
        Record::Entry(entry) => {
            numbers(ENTRY, &[entry.index, entry.term]);
            bytes.push(u8::from(entry.get_entry_type() == EntryType::EntryConfChange));
            bytes.extend_from_slice(&(entry.data.len() as u32).to_le_bytes());
            bytes.extend_from_slice(&entry.data);
        }
    }
}

/// The header of a frame of this directory at the begin of the bytes: its number, and the length of the
/// frame. `None`: there is no intact header.
fn header(nonce: u64, bytes: &[u8]) -> Option<(u64, usize)> {
    let header = bytes.first_chunk::<HEADER>()?;
    if header[..4] != MAGIC {
        return None;
    }
    let number = |at: usize| header[at..at + 8].try_into().map(u64::from_le_bytes).ok();
    let len = u32::from_le_bytes(header[4..8].try_into().ok()?) as usize;
    let is_intact = number(PLACE)? == sums(nonce, &header[..PLACE], &[]).0 && len <= MAX_LEN;
    is_intact.then_some((number(8)?, HEADER + len))
}

/// Reads the frame at the begin of the bytes: its number, its records as bytes, its length.
/// `None`: there is no intact frame.
pub(super) fn read(nonce: u64, bytes: &[u8]) -> Option<(u64, &[u8], usize)> {
    let (number, len) = header(nonce, bytes)?;
    let records = bytes.get(HEADER..len)?;
    let sum = sums(nonce, &bytes[..PLACE], records).1.to_le_bytes();
    (bytes[PLACE + 8..HEADER] == sum).then_some((number, records, len))
}

/// Returns whether the frame that begins these bytes, which is not intact, is followed by a later one. Its
/// number is known if there is a frame before it in the file. The header of the later frame suffices. The
/// time is proportional to the bytes, whatever they are.
pub(super) fn has_later(nonce: u64, bytes: &[u8], number: Option<u64>) -> bool {
    let (skipped, number) = match header(nonce, bytes) {
        Some((found, len)) if number.is_none_or(|number| number == found) => {
            (len.min(bytes.len()), found)
        }
        _ => (0, number.unwrap_or(0)),
    };
    let rest = &bytes[skipped..];
    let begins = rest.windows(MAGIC.len()).enumerate().filter(|(_, at)| *at == MAGIC);
    let mut frames = begins.filter_map(|(at, _)| header(nonce, &rest[at..]));
    frames.any(|(found, _)| found >= number)
}

/// Decodes the records of a frame. `None`: they are malformed, although the checksum is right.
pub(super) fn records(mut bytes: &[u8]) -> Option<Vec<Record>> {
    let mut records = Vec::new();
    while let Some((&kind, rest)) = bytes.split_first() {
        bytes = rest;
        let mut number = || {
            let (number, rest) = bytes.split_first_chunk::<8>()?;
            bytes = rest;
            Some(u64::from_le_bytes(*number))
        };
        records.push(match kind {
            HARD => {
                let mut hard = HardState::default();
                (hard.term, hard.vote, hard.commit) = (number()?, number()?, number()?);
                Record::Hard(hard)
            }
            RESET => Record::Reset(number()?, number()?),
            ENTRY => {
                let mut entry = Entry::default();
                (entry.index, entry.term) = (number()?, number()?);
                let (&[kind, ref len @ ..], rest) = bytes.split_first_chunk::<5>()?;
                let len = u32::from_le_bytes(*len) as usize;
                if len > MAX_COMMAND || len > rest.len() || kind > 1 {
                    return None;
                }
                if kind == 1 {
                    entry.set_entry_type(EntryType::EntryConfChange);
                }
                entry.data = rest[..len].to_vec().into();
                bytes = &rest[len..];
                Record::Entry(entry)
            }
            _ => return None,
        });
    }
    Some(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_that_is_too_long_is_refused() {
        let records = [Record::Hard(HardState::default())];
        assert!(encode(7, 1, &records, 25).is_ok());
        let refused = encode(7, 1, &records, 24);
        assert_eq!(refused, Err(TooLong { len: 25, most: 24 }));
    }
}
