//! Responses of typed calls: the codec's bytes, and one byte behind them that says what they are.
//!
//! The byte is at the end, so that the value begins where the message does, which is aligned.

use std::fmt::Display;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use courser_buf::{AllocError, MsgBuf};
use courser_proto::Executed;

use super::access::{Cause, Denied};
use super::codec::{Decode, Encode, Payload};
use super::writer::{Memory, ROOM, Writer, Written};
use crate::channel;
use crate::core::message::{Reply, ReplySink};
use crate::counts::CallOutcome;
use crate::error::failure::CallFailure;
use crate::error::service::{DecodeError, EncodeError, MidStreamError, RpcError, StreamError};

/// The last byte of a response. Part of the wire format.
pub(crate) mod tag {
    /// The value of the handler, or a batch.
    pub(crate) const OK: u8 = 0;
    /// The application error of the handler.
    pub(crate) const FAILED: u8 = 1;
    /// Text: the request could not be decoded, and the handler did not run.
    pub(crate) const UNDECODED: u8 = 2;
    /// Text: the handler's outcome could not be encoded.
    pub(crate) const UNENCODED: u8 = 3;
    /// Of a pull or a push: the stream has ended.
    pub(crate) const ENDED: u8 = 4;
    /// A byte of [`StreamError`](super::StreamError).
    pub(crate) const REFUSED: u8 = 5;
    /// Of an open call: text, and the number of batches before the item that could not be encoded.
    pub(crate) const ITEM_UNENCODED: u8 = 6;
    /// Answer to an open call: the server shuts down. The number of batches before, of a stream of
    /// the client the number of items that its handler took (8 bytes).
    pub(crate) const SHUTTING_DOWN: u8 = 7;
    /// Text: the server does not allow the call, and the handler did not run.
    pub(crate) const DENIED: u8 = 8;
    /// Metadata, behind another tag: see `context/trailer.rs`.
    pub(crate) const METADATA: u8 = 9;
    /// Text: the client is not authenticated, and the handler did not run.
    pub(crate) const UNAUTHENTICATED: u8 = 16;
    /// Text, and microseconds (4 bytes, little endian): there are too many requests, the handler did not
    /// run, and the client may make this one again after this time.
    pub(crate) const TOO_MANY: u8 = 17;
    /// Text, and a byte: a layer around the handler has ended the call, and (1) the handler may have run,
    /// or (0) it did not.
    pub(crate) const ENDED_BY_LAYER: u8 = 18;
    /// Text: there is no memory for the decoded request now, and the handler did not run.
    pub(crate) const NO_HEAP: u8 = 19;
    /// Text: the decoded request takes more memory than one may, and the handler did not run.
    pub(crate) const OVER_LIMIT: u8 = 20;
}

/// Bytes of error texts in responses.
const MAX_TEXT: usize = 200;

/// Why a request did not reach its handler.
#[derive(Clone, PartialEq, Eq, Debug)]
#[doc(hidden)]
pub enum Refusal {
    Undecoded(DecodeError),
    Stream(StreamError),
    /// The server shuts down; items that the handler took.
    ShuttingDown(u64),
    Denied(Denied),
    /// A layer has ended the call. True: the handler may have run.
    Layer(Box<str>, bool),
}

impl Refusal {
    /// The outcome of a request that did not reach its handler.
    #[cold]
    pub(crate) fn outcome(&self) -> CallOutcome {
        match self {
            Refusal::Undecoded(e) => CallOutcome::of_decoding(e),
            Refusal::Stream(e) => CallOutcome::of_stream(*e),
            Refusal::ShuttingDown(_) => CallOutcome::ShuttingDown,
            Refusal::Denied(denied) => denied.outcome(),
            Refusal::Layer(..) => CallOutcome::Denied,
        }
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Refusal::Undecoded(e) => text(e, tag_of(e), out),
            Refusal::Denied(e) => match e.cause {
                Cause::NotAllowed => text(e, tag::DENIED, out),
                Cause::Unauthenticated => text(e, tag::UNAUTHENTICATED, out),
                Cause::TooMany { retry_after } => {
                    let after_us = u32::try_from(retry_after.as_micros()).unwrap_or(u32::MAX);
                    out.extend(short_text(e).as_bytes());
                    out.extend(after_us.to_le_bytes());
                    out.push(tag::TOO_MANY);
                }
            },
            Refusal::Layer(e, has_begun) => {
                out.extend(short_text(e).as_bytes());
                out.extend([u8::from(*has_begun), tag::ENDED_BY_LAYER]);
            }
            Refusal::Stream(e) => out.extend([*e as u8, tag::REFUSED]),
            Refusal::ShuttingDown(items) => {
                out.extend(items.to_le_bytes());
                out.push(tag::SHUTTING_DOWN);
            }
        }
    }
}

/// The tag of a request that was not decoded.
fn tag_of(error: &DecodeError) -> u8 {
    match error {
        DecodeError::HeapFull { .. } | DecodeError::NoMemory(_) => tag::NO_HEAP,
        DecodeError::HeapLimit { .. } => tag::OVER_LIMIT,
        _ => tag::UNDECODED,
    }
}

/// A response with an error's text, cut at a character.
fn text(error: &dyn Display, tag: u8, out: &mut Vec<u8>) {
    out.extend(short_text(error).as_bytes());
    out.push(tag);
}

pub(crate) fn short_text(error: &dyn Display) -> String {
    let mut text = error.to_string();
    while text.len() > MAX_TEXT {
        text.pop();
    }
    text
}

/// Memory that a reply's destination allocates.
struct SinkMemory<'a, A>(&'a A);

impl<A: ReplySink> Memory for SinkMemory<'_, A> {
    fn alloc(&self, len: usize) -> Result<MsgBuf, AllocError> {
        self.0.alloc(len)
    }
}

/// Encodes a reply into `to`: small ones on the stack, from where they are copied into the buffer
/// of the response.
#[inline(always)]
pub(crate) fn reply<A: ReplySink>(
    to: A,
    write: impl FnOnce(&mut Writer<'_>) -> Result<u8, EncodeError>,
) -> A::Output {
    let mut room = [0; ROOM];
    let memory = SinkMemory(&to);
    let mut writer = Writer::new(&mut room, &memory);
    let written = match write(&mut writer) {
        Ok(tag) => {
            // A failure is kept in the writer.
            let _ = writer.push(tag);
            match writer.small() {
                Ok(len) => return to.bytes(&room[..len]),
                Err(writer) => writer.finish(),
            }
        }
        Err(e) => Err(e),
    };
    match written {
        Ok(Written::Small(len)) => to.bytes(&room[..len]),
        Ok(Written::Large(message)) => to.msg(message),
        Err(e) => unencoded(to, &e),
    }
}

fn unencoded<A: ReplySink>(to: A, error: &EncodeError) -> A::Output {
    let mut bytes = Vec::new();
    text(error, tag::UNENCODED, &mut bytes);
    to.bytes(&bytes)
}

/// The answer of a handler: its value or its error, encoded when it is sent.
#[doc(hidden)]
#[derive(Debug)]
pub struct Answer<K, T, E> {
    outcome: Result<Result<T, E>, Refusal>,
    codec: PhantomData<fn() -> K>,
}

impl<K, T, E> Answer<K, T, E> {
    #[inline]
    pub fn new(outcome: Result<T, E>) -> Self {
        Answer { outcome: Ok(outcome), codec: PhantomData }
    }

    #[cold]
    pub fn refused(refusal: Refusal) -> Self {
        Answer { outcome: Err(refusal), codec: PhantomData }
    }
}

/// An answer that states whether its handler has returned.
#[doc(hidden)]
pub trait Concluded {
    /// False: the handler was dropped, or has not begun.
    fn is_concluded(&self) -> bool;
}

impl<K, T, E> Concluded for Answer<K, T, E> {
    fn is_concluded(&self) -> bool {
        self.outcome.is_ok()
    }
}

impl<K: Encode<T> + Encode<E>, T, E> Reply for Answer<K, T, E> {
    #[inline]
    fn outcome(&self) -> CallOutcome {
        match &self.outcome {
            Ok(Ok(_)) => CallOutcome::Ok,
            Ok(Err(_)) => CallOutcome::Failed,
            Err(refusal) => refusal.outcome(),
        }
    }

    #[inline]
    fn send_to<A: ReplySink>(self, to: A) -> A::Output {
        match self.outcome {
            Ok(outcome) => reply(to, |out| encode_outcome::<K, T, E>(&outcome, out)),
            Err(refusal) => RefusalReply(refusal).send_to(to),
        }
    }
}

/// Encodes an outcome, and returns its tag.
#[inline(always)]
pub(crate) fn encode_outcome<K: Encode<T> + Encode<E>, T, E>(
    outcome: &Result<T, E>,
    out: &mut Writer<'_>,
) -> Result<u8, EncodeError> {
    match outcome {
        Ok(value) => K::encode(value, out).map(|()| tag::OK),
        Err(error) => K::encode(error, out).map(|()| tag::FAILED),
    }
}

/// A refusal as a reply.
pub(crate) struct RefusalReply(pub(crate) Refusal);

impl Reply for RefusalReply {
    fn outcome(&self) -> CallOutcome {
        self.0.outcome()
    }

    fn send_to<A: ReplySink>(self, to: A) -> A::Output {
        let mut bytes = Vec::new();
        self.0.write(&mut bytes);
        to.bytes(&bytes)
    }
}

const EMPTY: DecodeError = DecodeError::Form("an empty response");

/// Splits a response into its tag and what is before it.
#[inline]
pub(crate) fn split(mut response: MsgBuf) -> Result<(u8, MsgBuf), DecodeError> {
    let tag = *response.last().ok_or(EMPTY)?;
    response.truncate(response.len() - 1);
    Ok((tag, response))
}

/// Decodes the response of a call.
#[inline]
pub(crate) fn decode<K: Decode<T> + Decode<E>, T, E>(response: MsgBuf) -> Result<T, RpcError<E>> {
    let (tag, payload) = split(response)?;
    decode_payload::<K, T, E>(tag, Payload::owned(payload))
}

/// Decodes the response of a call where it is.
#[inline]
pub(crate) fn read<K: Decode<T> + Decode<E>, T, E>(
    answer: channel::Answer<'_>,
) -> Result<T, RpcError<E>> {
    match answer {
        channel::Answer::Owned(response) => decode::<K, T, E>(response),
        channel::Answer::Shown(bytes, memory) => {
            let (tag, payload) = bytes.split_last().ok_or(EMPTY)?;
            decode_payload::<K, T, E>(*tag, Payload::borrowed(payload, memory))
        }
    }
}

#[inline(always)] // with the codec, into the poll of the call
fn decode_payload<K: Decode<T> + Decode<E>, T, E>(
    tag: u8,
    payload: Payload<'_>,
) -> Result<T, RpcError<E>> {
    match tag {
        tag::OK => Ok(K::decode(payload)?),
        tag::FAILED => Err(RpcError::Service(K::decode(payload)?)),
        tag => Err(refused(tag, payload.bytes())),
    }
}

/// A text of the peer, which may send any bytes: it is shortened, without control characters.
pub(crate) fn peer_text(bytes: &[u8]) -> Box<str> {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_TEXT)]);
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>().into()
}

/// The error of a response with neither a value nor an application error.
#[cold]
pub(crate) fn refused<E>(tag: u8, payload: &[u8]) -> RpcError<E> {
    let text = || peer_text(payload);
    match (tag, payload) {
        (tag::UNDECODED, _) => DecodeError::Remote(text()).into(),
        (tag::NO_HEAP, _) => DecodeError::RemoteFull(text()).into(),
        (tag::OVER_LIMIT, _) => DecodeError::RemoteLimit(text()).into(),
        (tag::UNENCODED, _) => EncodeError::Remote(text()).into(),
        (tag::DENIED, _) => RpcError::Denied(text()),
        (tag::UNAUTHENTICATED, _) => RpcError::Unauthenticated(text()),
        (tag::TOO_MANY, _) => match payload.split_last_chunk::<4>() {
            Some((text, after_us)) => RpcError::TooMany {
                reason: peer_text(text),
                retry_after: Duration::from_micros(u32::from_le_bytes(*after_us).into()),
            },
            None => DecodeError::Form("a refusal without its time").into(),
        },
        (tag::ENDED_BY_LAYER, [text @ .., has_begun @ (0 | 1)]) => {
            let executed = if *has_begun == 1 { Executed::Maybe } else { Executed::Never };
            let reason = Arc::from(peer_text(text));
            RpcError::Call(CallFailure::Middleware { reason, executed })
        }
        (tag::REFUSED, [code]) => StreamError::from_code(*code).into(),
        (tag::SHUTTING_DOWN, items) => match items.try_into() {
            Ok(items) => MidStreamError::ShuttingDown { items: u64::from_le_bytes(items) }.into(),
            Err(_) => DecodeError::Form("an end of a stream without its length").into(),
        },
        (tag::ENDED, []) => DecodeError::Form("the end of a stream in place of a value").into(),
        _ => DecodeError::Form("a response with an unknown mark").into(),
    }
}
