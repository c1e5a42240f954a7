//! Answers with metadata.

use courser_buf::{AllocError, MsgBuf};

use super::CallContext;
use super::trailer;
use crate::core::message::{Reply, ReplySink};
use crate::counts::CallOutcome;

/// The answer of a handler that has a context, with the metadata that it has added.
#[doc(hidden)]
#[derive(Debug)]
pub struct Told<R> {
    pub(super) reply: R,
    pub(super) context: CallContext,
}

impl<R: Reply> Reply for Told<R> {
    #[inline]
    fn outcome(&self) -> CallOutcome {
        self.reply.outcome()
    }

    fn send_to<A: ReplySink>(self, to: A) -> A::Output {
        match self.context.take_response() {
            None => self.reply.send_to(to),
            Some(metadata) => {
                let (trailer, limit) = (trailer::of_answer(&metadata), self.context.0.caller.limit);
                self.reply.send_to(Trailing { to, trailer, limit })
            }
        }
    }
}

/// Adds a trailer to a reply, unless there is no room or no memory for it.
struct Trailing<A> {
    to: A,
    trailer: Vec<u8>,
    /// The largest answer, bytes.
    limit: usize,
}

impl<A: ReplySink> ReplySink for Trailing<A> {
    type Output = A::Output;

    fn bytes(self, bytes: &[u8]) -> A::Output {
        match bytes.len() + self.trailer.len() <= self.limit {
            true => self.to.bytes(&[bytes, &self.trailer].concat()),
            false => self.to.bytes(bytes),
        }
    }

    fn msg(self, msg: MsgBuf) -> A::Output {
        let appended = trailer::append(msg, &self.trailer, self.limit, |len| self.to.alloc(len));
        match appended {
            Ok(longer) => self.to.msg(longer),
            Err((msg, _)) => self.to.msg(msg),
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
        fn outcome(&self) -> CallOutcome {
            self.0.outcome()
        }

        fn send_to<A: ReplySink>(self, to: A) -> A::Output {
            self.0.send_to(Trailing { to, trailer: vec![1; 100], limit: 5_100 })
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

    #[test]
    fn an_answer_without_room_for_the_trailer_goes_without_it() {
        let arena = Arena::heap();
        for len in [5_001, 5_100] {
            let message = arena.alloc(len).unwrap();
            assert_eq!(to_message(Marked(message), &arena).unwrap().len(), len);
            assert_eq!(to_message(Marked(vec![7; len]), &arena).unwrap().len(), len);
        }
    }
}
