//! The data of a received packet: contiguous, or with an end in memory that its sender can still
//! write ([`courser_buf::RxFrame::tail`]).

use courser_buf::{Tail, prefetch_copy};

/// The data of a packet.
pub(crate) trait Content<'f>: Copy {
    /// The whole data, if it can be read in place.
    fn whole(self) -> Option<&'f [u8]>;
    fn len(self) -> usize;
    /// Copies the data to `out`, which has the same length.
    fn copy_to(self, out: &mut [u8]);
    /// Copies the data to its place in the message, and prefetches the place of the next packet.
    #[inline(always)]
    fn copy_into(self, message: &mut [u8], begin: usize) {
        let end = begin + self.len();
        prefetch_copy(&message[end..message.len().min(end + self.len())]);
        self.copy_to(&mut message[begin..end]);
    }
}

impl<'f> Content<'f> for &'f [u8] {
    #[inline(always)]
    fn whole(self) -> Option<&'f [u8]> {
        Some(self)
    }
    #[inline(always)]
    fn len(self) -> usize {
        <[u8]>::len(self)
    }
    #[inline(always)]
    fn copy_to(self, out: &mut [u8]) {
        out.copy_from_slice(self);
    }
}

/// Data whose end is in a tail.
#[derive(Clone, Copy)]
pub(crate) struct InParts<'f> {
    pub(crate) front: &'f [u8],
    pub(crate) tail: Tail<'f>,
}

impl<'f> Content<'f> for InParts<'f> {
    fn whole(self) -> Option<&'f [u8]> {
        None
    }
    fn len(self) -> usize {
        self.front.len() + self.tail.len()
    }
    fn copy_to(self, out: &mut [u8]) {
        let (front, rest) = out.split_at_mut(self.front.len());
        front.copy_from_slice(self.front);
        self.tail.copy_to(rest);
    }
}
