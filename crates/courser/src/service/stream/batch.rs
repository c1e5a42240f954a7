//! Batches of items: each item after its length (4 bytes, little endian).

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use courser_buf::MsgBuf;

use super::BATCH;
use crate::error::service::{DecodeError, EncodeError};
use crate::service::codec::Encode;
use crate::service::writer::{Memory, ROOM, Writer, Written};

const PREFIX: usize = 4;
/// Room of a batch that is expected to be full: a last item of up to 16 KiB does not move it.
const FULL: usize = BATCH + (16 << 10);

/// A batch that is being filled. Holds up to [`BATCH`] bytes of items, or one larger item.
#[derive(Debug, Default)]
pub(super) struct Filling {
    batch: Option<MsgBuf>,
    /// A batch was complete before, so that the next one is expected to be.
    many: bool,
    /// No item begins the next batch before this one was taken: memory is short.
    pub(super) tight: bool,
    /// Items that were added and not counted yet.
    added: u64,
}

/// The place of an item that was encoded.
pub(super) enum Added {
    /// In the batch.
    Here,
    /// In the next batch; this one is complete.
    Next(MsgBuf),
    /// Nowhere, since the item would be in the next batch; this one is complete.
    Nowhere(MsgBuf),
}

impl Filling {
    pub(super) fn is_empty(&self) -> bool {
        self.batch.is_none()
    }

    /// Bytes of its buffer.
    pub(super) fn capacity(&self) -> usize {
        self.batch.as_ref().map_or(0, MsgBuf::capacity)
    }

    /// Returns whether no other item is added.
    pub(super) fn is_full(&self) -> bool {
        self.batch.as_ref().is_some_and(|batch| batch.len() >= BATCH)
    }

    /// Appends an item. When the batch has no room for it, the batch is returned, and the item begins
    /// the next one if memory is not short.
    ///
    /// # Errors
    /// The item cannot be encoded; the items before it are kept, also when its encoder panics.
    pub(super) fn add<K: Encode<T>, T>(
        &mut self,
        item: &T,
        memory: &dyn Memory,
    ) -> Result<Added, EncodeError> {
        let batch = match self.batch.take() {
            Some(batch) => batch,
            None => {
                let mut batch = memory.alloc(if self.many { FULL } else { 1024 })?;
                batch.truncate(0);
                batch
            }
        };
        let begin = batch.len();
        let mut room = [0; ROOM];
        let mut writer = Writer::onto(batch, &mut room, memory);
        let encoded = match writer.extend(&[0; PREFIX]) {
            // The items before it are kept after a panic, which goes on then.
            Ok(()) => match catch_unwind(AssertUnwindSafe(|| K::encode(item, &mut writer))) {
                Ok(encoded) => encoded,
                Err(panic) => {
                    self.restore(writer.abandon(), begin);
                    resume_unwind(panic);
                }
            },
            Err(_) => Err(writer.reason(EncodeError::TooLarge { limit: memory.limit() })),
        };
        if let Err(e) = encoded {
            self.restore(writer.abandon(), begin);
            return Err(e);
        }
        let mut batch = match writer.finish_large() {
            Ok(batch) => batch,
            Err((e, rest)) => {
                self.restore(rest, begin);
                return Err(e);
            }
        };
        let len = (batch.len() - begin - PREFIX) as u32;
        batch[begin..begin + PREFIX].copy_from_slice(&len.to_le_bytes());
        if begin == 0 || batch.len() <= BATCH {
            self.batch = Some(batch);
            self.added += 1;
            return Ok(Added::Here);
        }
        self.many = true;
        if self.tight {
            batch.truncate(begin);
            return Ok(Added::Nowhere(batch));
        }
        // Too many bytes: the item moves to a batch of its own.
        let mut next = match memory.alloc((batch.len() - begin).max(FULL)) {
            Ok(next) => next,
            Err(e) => {
                self.restore(Some(batch), begin);
                return Err(e.into());
            }
        };
        next.truncate(batch.len() - begin);
        next.copy_from_slice(&batch[begin..]);
        batch.truncate(begin);
        self.batch = Some(next);
        self.added += 1;
        Ok(Added::Next(batch))
    }

    /// Keeps the items before `end` after an error.
    fn restore(&mut self, batch: Option<MsgBuf>, end: usize) {
        self.batch = batch.filter(|_| end > 0).map(|mut batch| {
            batch.truncate(end);
            batch
        });
    }

    /// The items that were added since the last call.
    pub(super) fn take_added(&mut self) -> u64 {
        std::mem::take(&mut self.added)
    }

    /// Takes the items.
    pub(super) fn take(&mut self) -> Option<MsgBuf> {
        self.many |= self.is_full();
        self.batch.take()
    }
}

/// Appends a trailer to a batch, which moves when it has no room.
pub(in crate::service) fn with_trailer(
    batch: Option<MsgBuf>,
    trailer: &[u8],
    memory: &dyn Memory,
) -> Result<MsgBuf, EncodeError> {
    let mut room = [0; ROOM];
    let mut writer = match batch {
        Some(batch) => Writer::onto(batch, &mut room, memory),
        None => Writer::new(&mut room, memory),
    };
    // A failure is kept in the writer.
    let _ = writer.extend(trailer);
    match writer.finish()? {
        Written::Large(message) => Ok(message),
        Written::Small(len) => {
            let mut message = memory.alloc(len)?;
            message.copy_from_slice(&room[..len]);
            Ok(message)
        }
    }
}

/// A received batch that is being read.
#[derive(Debug)]
pub(super) struct Reading {
    batch: MsgBuf,
    at: usize,
}

impl Reading {
    pub(super) fn new(batch: MsgBuf) -> Self {
        Reading { batch, at: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.at >= self.batch.len()
    }

    /// The bytes of the next item; `None`: there is none.
    pub(super) fn next(&mut self) -> Option<Result<&[u8], DecodeError>> {
        let rest = self.batch.get(self.at..)?;
        if rest.is_empty() {
            return None;
        }
        let item = rest
            .split_first_chunk::<PREFIX>()
            .and_then(|(len, rest)| rest.get(..usize::try_from(u32::from_le_bytes(*len)).ok()?));
        match item {
            Some(item) => {
                self.at += PREFIX + item.len();
                Some(Ok(item))
            }
            None => {
                self.at = self.batch.len();
                Some(Err(DecodeError::Form("a batch whose items are longer than it")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use courser_buf::Arena;

    use super::*;
    use crate::service::Bytes;

    fn read(batch: MsgBuf) -> Vec<Vec<u8>> {
        let mut reading = Reading::new(batch);
        let mut items = Vec::new();
        while let Some(item) = reading.next() {
            items.push(item.unwrap().to_vec());
        }
        items
    }

    #[test]
    fn items_come_out_of_batches_as_they_went_in() {
        let arena = Arena::heap();
        let sizes = [0, 1, 300, 70_000, 5, 64_000, 2_000, 65_532, 65_533, 0, 200_000, 9, 9, 9];
        let items: Vec<Vec<u8>> =
            sizes.iter().enumerate().map(|(i, len)| vec![i as u8; *len]).collect();
        let mut filling = Filling::default();
        let mut batches = Vec::new();
        for item in &items {
            if filling.is_full() {
                batches.extend(filling.take());
            }
            if let Added::Next(complete) = filling.add::<Bytes, _>(item, &arena).unwrap() {
                batches.push(complete);
            }
        }
        batches.extend(filling.take());
        for batch in &batches {
            let alone = Reading::new(with_trailer(None, batch, &arena).unwrap())
                .next()
                .is_some_and(|item| item.unwrap().len() + PREFIX == batch.len());
            assert!(batch.len() <= BATCH || alone, "{} bytes", batch.len());
        }
        assert!(batches.len() > 4);
        assert_eq!(batches.into_iter().flat_map(read).collect::<Vec<_>>(), items);
        assert_eq!(arena.stats().in_use_buffers, 0);
    }

    #[test]
    fn a_batch_with_a_length_behind_its_end_is_an_error_and_then_empty() {
        let arena = Arena::heap();
        for bytes in [&[1, 0, 0][..], &[2, 0, 0, 0, 7], &[255; 4], &[255; 9]] {
            let mut reading = Reading::new(with_trailer(None, bytes, &arena).unwrap());
            assert!(reading.next().unwrap().is_err());
            assert!(reading.next().is_none() && reading.is_empty());
        }
    }
}
