//! The heap that a value may use while it is decoded.

use crate::error::service::DecodeError;
use crate::service::load::Charge;

/// Heap of any value, however short its message is.
const LEAST: usize = 4 << 20;
/// Heap for each byte of a message. A byte is a `Vec` or a `String` of 24 bytes, or an enum whose
/// other variants are large.
const PER_BYTE: usize = 64;
/// Heap of a value that is not charged to its server, whose number of requests bounds it.
const FREE: usize = 64 << 10;

/// An account of the heap of one value.
pub(crate) struct Heap<'a> {
    /// Bytes that are granted and not used.
    left: usize,
    granted: usize,
    most: usize,
    charge: Option<&'a Charge<'a>>,
}

impl<'a> Heap<'a> {
    /// The account of the value of a message of `len` bytes.
    #[inline]
    pub(crate) fn new(len: usize, charge: Option<&'a Charge<'a>>) -> Self {
        let most = len.saturating_mul(PER_BYTE).saturating_add(LEAST);
        Heap { left: FREE, granted: FREE, most, charge }
    }

    /// Counts bytes before they are allocated.
    #[inline]
    pub(crate) fn charge(&mut self, bytes: usize) -> Result<(), DecodeError> {
        match self.left.checked_sub(bytes) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => self.extend(bytes),
        }
    }

    /// Grants twice as much as before, or what is needed.
    fn extend(&mut self, bytes: usize) -> Result<(), DecodeError> {
        let (needed, room) = (bytes - self.left, self.most - self.granted);
        if needed > room {
            return Err(DecodeError::HeapLimit { limit: self.most });
        }
        let mut step = needed.max(self.granted).min(room);
        if let Some(charge) = self.charge
            && charge.add(step).is_err()
        {
            step = needed;
            charge.add(step)?;
        }
        self.granted += step;
        self.left = self.left + step - bytes;
        Ok(())
    }
}
