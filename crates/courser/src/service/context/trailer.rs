//! Metadata on the network: behind the bytes of a request, and behind the tag of an answer.
//!
//! A request with metadata has the type [`METADATA`], whatever its method. It ends with the pairs, the
//! request type of the method (2 bytes, little endian), a byte with flags, and the number of bytes of
//! the pairs (2 bytes). An answer with metadata ends with the pairs, their number of bytes (2 bytes), and
//! [`tag::METADATA`]. A server states in its answer to a hello that it reads such requests, and sends such
//! answers to requests with the flag [`ANSWERS`] only.

use courser_buf::{AllocError, MsgBuf};
use courser_proto::Body;

use super::metadata::Metadata;
use crate::channel::method::{METADATA, MISSING, Numbers};
use crate::error::method::MethodMismatch;
use crate::error::service::{DecodeError, EncodeError};
use crate::service::answer::tag;

/// The client reads metadata in the answer.
pub(crate) const ANSWERS: u8 = 1;

/// Bytes behind the pairs of a request.
const TAIL: usize = 5;

const SHORT: DecodeError = DecodeError::Form("a request with metadata that ends early");

/// The trailer of a request, without the type of its method.
pub(crate) fn of_request(metadata: &Metadata, flags: u8) -> Vec<u8> {
    let pairs = metadata.as_bytes();
    let mut trailer = Vec::with_capacity(pairs.len() + TAIL);
    trailer.extend(pairs);
    trailer.extend(MISSING.to_le_bytes());
    trailer.push(flags);
    trailer.extend((pairs.len() as u16).to_le_bytes());
    trailer
}

/// Addresses a request with a trailer to the method at this place, for a server with these numbers, and
/// returns the request type. The trailer is removed for servers that do not read it.
pub(crate) fn address(
    request: &mut MsgBuf,
    numbers: &Numbers,
    index: u16,
) -> Result<u16, MethodMismatch> {
    let method = numbers.number(index)?;
    let len = request.len();
    let Some([_, _, _, low, high]) = request.last_chunk::<TAIL>() else { return Ok(method) };
    let pairs = usize::from(u16::from_le_bytes([*low, *high]));
    if !numbers.reads_metadata() {
        request.truncate(len.saturating_sub(pairs + TAIL));
        return Ok(method);
    }
    request[len - TAIL..len - TAIL + 2].copy_from_slice(&method.to_le_bytes());
    Ok(METADATA)
}

/// Adds a trailer to a message of at most `limit` bytes, in place where there is room.
///
/// # Errors
/// It would be longer, or there is no memory; with the message as it was.
pub(crate) fn append(
    mut message: MsgBuf,
    trailer: &[u8],
    limit: usize,
    alloc: impl FnOnce(usize) -> Result<MsgBuf, AllocError>,
) -> Result<MsgBuf, (MsgBuf, EncodeError)> {
    let len = message.len();
    let total = len.saturating_add(trailer.len());
    if total > limit {
        return Err((message, EncodeError::TooLarge { limit }));
    }
    if total <= message.capacity() && message.set_len_recycled(total).is_ok() {
        message[len..].copy_from_slice(trailer);
        return Ok(message);
    }
    match alloc(total) {
        Ok(mut longer) => {
            longer[..len].copy_from_slice(&message);
            longer[len..].copy_from_slice(trailer);
            Ok(longer)
        }
        Err(e) => Err((message, e.into())),
    }
}

/// The metadata of a request that has arrived.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Arrived {
    pub(crate) metadata: Metadata,
    /// The client reads metadata in the answer.
    pub(crate) answers: bool,
}

impl Arrived {
    /// Drops the metadata that is not passed on, for a handler that does not read it.
    pub(crate) fn keep_passed(&mut self) {
        self.metadata = self.metadata.passed();
    }
}

/// The method of a request of the type [`METADATA`]. Nothing before it is read.
pub(crate) fn method(body: &[u8]) -> Result<u16, DecodeError> {
    let [low, high, ..] = *body.last_chunk::<TAIL>().ok_or(SHORT)?;
    Ok(u16::from_le_bytes([low, high]))
}

/// Splits a request of the type [`METADATA`] into its metadata, and the request without it.
pub(crate) fn split(body: Body<'_>) -> Result<(Arrived, Body<'_>), DecodeError> {
    let (rest, tail) = body.split_last_chunk::<TAIL>().ok_or(SHORT)?;
    let [_, _, flags, low, high] = *tail;
    let len = usize::from(u16::from_le_bytes([low, high]));
    let begin = rest.len().checked_sub(len).ok_or(SHORT)?;
    if flags & !ANSWERS != 0 {
        return Err(DecodeError::Form("a request with metadata and an unknown flag"));
    }
    let metadata = Metadata::parse(&rest[begin..])?;
    let body = match body {
        Body::Borrowed(bytes) => Body::Borrowed(&bytes[..begin]),
        Body::Owned(mut message) => {
            message.truncate(begin);
            Body::Owned(message)
        }
    };
    Ok((Arrived { metadata, answers: flags & ANSWERS != 0 }, body))
}

/// The trailer of an answer.
pub(crate) fn of_answer(metadata: &Metadata) -> Vec<u8> {
    let pairs = metadata.as_bytes();
    [pairs, &(pairs.len() as u16).to_le_bytes(), &[tag::METADATA]].concat()
}

/// The metadata of an answer, and the number of its bytes without it.
pub(crate) fn split_answer(answer: &[u8]) -> Result<(Metadata, usize), DecodeError> {
    let Some((rest, [low, high, tag::METADATA])) = answer.split_last_chunk::<3>() else {
        return Ok((Metadata::new(), answer.len()));
    };
    let len = usize::from(u16::from_le_bytes([*low, *high]));
    let begin = rest.len().checked_sub(len);
    let begin = begin.ok_or(DecodeError::Form("an answer with metadata that ends early"))?;
    Ok((Metadata::parse(&rest[begin..])?, begin))
}

#[cfg(test)]
mod tests {
    use courser_buf::Arena;

    use super::*;
    use crate::channel::method::MARKED;

    fn metadata() -> Metadata {
        let mut metadata = Metadata::new();
        metadata.insert("k", "v").unwrap();
        metadata
    }

    fn message(bytes: &[u8]) -> MsgBuf {
        let mut message = Arena::heap().alloc(bytes.len()).unwrap();
        message.copy_from_slice(bytes);
        message
    }

    fn numbers(reads: bool) -> Numbers {
        Numbers::new([0x4000, 0x4107].into_iter().map(Ok), u8::from(reads))
    }

    #[test]
    fn a_request_is_addressed_and_split() {
        let bytes = [&[9, 8][..], &of_request(&metadata(), ANSWERS)].concat();
        // The bytes of docs/wire-protocol.md.
        assert_eq!(bytes, [9, 8, 1, b'k', 1, 0, b'v', 0xff, 0xff, 1, 5, 0]);
        let mut request = message(&bytes);
        assert_eq!(address(&mut request, &numbers(true), 1 | MARKED), Ok(METADATA));
        for body in [Body::Borrowed(&request), Body::Owned(message(&request))] {
            assert_eq!(method(&body), Ok(0x4107));
            let (mut arrived, body) = split(body).unwrap();
            assert_eq!(&body[..], [9, 8]);
            assert_eq!(arrived, Arrived { metadata: metadata(), answers: true });
            arrived.keep_passed();
            assert_eq!(arrived, Arrived { metadata: Metadata::new(), answers: true });
        }
        // At another server, before it was sent.
        assert_eq!(address(&mut request, &numbers(false), MARKED), Ok(0x4000));
        assert_eq!(&request[..], [9, 8]);
    }

    #[test]
    fn requests_with_malformed_trailers_are_errors() {
        let good = [&[9, 8][..], &of_request(&metadata(), 0)].concat();
        for len in 0..good.len() {
            assert!(
                split(Body::Borrowed(&good[good.len() - len..])).is_err() == (len < 10),
                "{len}"
            );
        }
        let with = |from_end: usize, byte: u8| {
            let mut bytes = good.clone();
            let at = bytes.len() - from_end;
            bytes[at] = byte;
            bytes
        };
        for bytes in [with(1, 1), with(2, 4), with(2, 8), with(3, 2), with(10, 2), with(9, b'K')] {
            assert!(split(Body::Borrowed(&bytes)).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn an_answer_is_split_where_it_has_metadata() {
        let plain = [5, 6, tag::OK];
        let marked = [&plain[..], &of_answer(&metadata())].concat();
        assert_eq!(marked, [5, 6, 0, 1, b'k', 1, 0, b'v', 5, 0, 9]);
        assert_eq!(split_answer(&marked), Ok((metadata(), 3)));
        assert_eq!(split_answer(&plain), Ok((Metadata::new(), 3)));
        assert_eq!(split_answer(&[]), Ok((Metadata::new(), 0)));
        for bytes in [&[1, 0, tag::METADATA][..], &[b'k', 1, 0, tag::METADATA]] {
            assert!(split_answer(bytes).is_err(), "{bytes:?}");
        }
    }
}
