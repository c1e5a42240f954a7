//! Answers with metadata.

use courser_buf::{AllocError, MsgBuf};

use super::CallContext;
use super::trailer;
use crate::core::message::{Reply, ReplySink};

/// An answer that states whether its handler has returned.
#[doc(hidden)]
pub trait Concluded {
    /// False: the handler was dropped, or has not begun.
    fn is_concluded(&self) -> bool;
}

/// The answer of a handler that has a context, with the metadata that it has added.
#[doc(hidden)]
#[derive(Debug)]
pub struct Told<R> {
    pub(super) reply: R,
    pub(super) context: CallContext,
}

impl<R: Reply> Reply for Told<R> {
    fn send_to<A: ReplySink>(self, to: A) -> A::Output {
        match self.context.take_response() {
            None => self.reply.send_to(to),
            Some(metadata) => {
                self.reply.send_to(Trailing { to, trailer: trailer::of_answer(&metadata) })
            }
        }
    }
}

/// Adds a trailer to a reply.
struct Trailing<A> {
    to: A,
    trailer: Vec<u8>,
}

impl<A: ReplySink> Trailing<A> {
    /// A message with the trailer. `None`: there is no memory for it.
    fn extended(&self, bytes: &[u8]) -> Option<MsgBuf> {
        let len = bytes.len().checked_add(self.trailer.len())?;
        let mut longer = self.to.alloc(len).ok()?;
        longer[..bytes.len()].copy_from_slice(bytes);
        longer[bytes.len()..].copy_from_slice(&self.trailer);
        Some(longer)
    }
}

impl<A: ReplySink> ReplySink for Trailing<A> {
    type Output = A::Output;

    fn bytes(self, bytes: &[u8]) -> A::Output {
        self.to.bytes(&[bytes, &self.trailer].concat())
    }

    /// Without memory for the copy, the answer goes without its metadata.
    fn msg(self, mut msg: MsgBuf) -> A::Output {
        let len = msg.len();
        if len + self.trailer.len() <= msg.capacity()
            && msg.set_len_recycled(len + self.trailer.len()).is_ok()
        {
            msg[len..].copy_from_slice(&self.trailer);
            return self.to.msg(msg);
        }
        match self.extended(&msg) {
            Some(longer) => self.to.msg(longer),
            None => self.to.msg(msg),
        }
    }

    fn alloc(&self, len: usize) -> Result<MsgBuf, AllocError> {
        self.to.alloc(len)
    }
}

#[cfg(test)]
mod tests {
    use courser_buf::Arena;

    use super::*;
    use crate::core::message::to_message;

    /// A reply with a trailer.
    struct Marked<R>(R);

    impl<R: Reply> Reply for Marked<R> {
        fn send_to<A: ReplySink>(self, to: A) -> A::Output {
            self.0.send_to(Trailing { to, trailer: vec![1; 100] })
        }
    }

    #[test]
    fn a_trailer_is_added_to_answers_of_any_size() {
        let arena = Arena::heap();
        for len in [0, 1, 100, 155, 156, 157, 256, 5_000] {
            let bytes = vec![7; len];
            let expected = [&bytes[..], &[1; 100]].concat();
            let mut message = arena.alloc(len).unwrap();
            message.copy_from_slice(&bytes);
            assert_eq!(&to_message(Marked(message), &arena).unwrap()[..], expected, "{len}");
            assert_eq!(&to_message(Marked(bytes), &arena).unwrap()[..], expected, "{len}");
        }
    }
}
