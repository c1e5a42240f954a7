//! The data of a packet: in one piece, or ending in memory that its sender can still write
//! ([`courser_buf::RxFrame::tail`]).

use courser_buf::{Tail, prefetch_copy};

/// The data of a packet.
pub(crate) trait Content<'f>: Copy {
    /// All of it, to be read in place.
    fn whole(self) -> Option<&'f [u8]>;
    fn len(self) -> usize;
    /// Copies it to where it belongs, which is as long.
    fn copy_to(self, out: &mut [u8]);
    /// Copies it to where it begins in its message, and asks for the place of the packet after it.
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

/// Data that ends in a tail.
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
