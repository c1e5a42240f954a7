//! A message that is read in place as another type.

use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;

use crate::MsgBuf;

/// A message, and a `T` that is a part of its data. Dereferences to the `T`.
///
/// For codecs whose values are read in place: the bytes are checked once, and never change after
/// that, because the message cannot be reached while it is viewed.
pub struct MsgView<T: 'static> {
    target: NonNull<T>,
    message: MsgBuf,
}

// SAFETY: it owns a message, which is `Send`, and lends `&T` like a reference. Test:
// `a_view_reads_the_message_wherever_it_moves` under miri.
unsafe impl<T: Sync> Send for MsgView<T> {}
// SAFETY: as above; `&MsgView` only reads. Test: as above.
unsafe impl<T: Sync> Sync for MsgView<T> {}

impl<T> MsgView<T> {
    /// Views a message as what `read` returns.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn new<E>(
        message: MsgBuf,
        read: impl for<'a> FnOnce(&'a [u8]) -> Result<&'a T, E>,
    ) -> Result<Self, E> {
        let target = NonNull::from(read(&message)?);
        Ok(MsgView { target, message })
    }

    /// The data of the message.
    pub fn message(&self) -> &[u8] {
        &self.message
    }

    /// The message.
    pub fn into_message(self) -> MsgBuf {
        self.message
    }
}

impl<T> Deref for MsgView<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: `read` returned it for any lifetime, so it is a part of the data or lives
        // forever. The data has a fixed place, is freed with `self.message`, and is not written:
        // nothing lends the message while `self` exists. Test:
        // `a_view_reads_the_message_wherever_it_moves` under miri.
        unsafe { self.target.as_ref() }
    }
}

impl<T: fmt::Debug> fmt::Debug for MsgView<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Arena;

    fn middle(bytes: &[u8]) -> Result<&[u8; 4], usize> {
        bytes.get(2..6).and_then(|part| part.try_into().ok()).ok_or(bytes.len())
    }

    #[test]
    fn a_view_reads_the_message_wherever_it_moves() {
        let arena = Arena::heap();
        let mut message = arena.alloc(8).unwrap();
        message.copy_from_slice(b"..abcd..");
        let view = MsgView::new(message, middle).unwrap();
        assert_eq!(*view, *b"abcd");
        let view = std::thread::spawn(move || {
            let boxed = Box::new(view);
            assert_eq!(**boxed, *b"abcd");
            *boxed
        });
        let view = view.join().unwrap();
        assert_eq!(&view.into_message()[..], b"..abcd..");
        assert_eq!(arena.stats().in_use_buffers, 0);
    }

    #[test]
    fn a_message_that_cannot_be_viewed_is_freed() {
        let arena = Arena::heap();
        assert_eq!(MsgView::new(arena.alloc(3).unwrap(), middle).unwrap_err(), 3);
        assert_eq!(arena.stats().in_use_buffers, 0);
    }
}
