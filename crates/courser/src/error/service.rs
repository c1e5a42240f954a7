//! Errors of typed calls.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use courser_buf::AllocError;
use courser_proto::Executed;

use crate::error::failure::CallFailure;
use crate::error::method::{MethodMismatch, ShapeMismatch, UnknownMethod};

/// The application error of methods that have none: it has no values.
///
/// Not [`std::convert::Infallible`], for which codecs cannot be implemented here.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run(async |uri| {
/// use courser::service::{NoError, RpcError};
///
/// let store = StoreClient::connect(&uri).await?;
/// // The method has no error of its own.
/// let len: Result<u64, RpcError<NoError>> = store.len("apple".to_owned()).await;
/// // In a function with an error type, `?` needs it widened.
/// let len: Result<u64, RpcError<String>> = len.map_err(RpcError::widen);
/// assert_eq!(len, Ok(5));
/// # Ok(()) }) }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoError {}

impl fmt::Display for NoError {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {}
    }
}

impl std::error::Error for NoError {}

/// Why a typed call has no value. `E` is the application's own error.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run(async |uri| {
/// use courser::Executed;
/// use courser::service::RpcError;
///
/// let store = StoreClient::connect(&uri).await?;
/// match store.get("plum".to_owned()).await {
///     Ok(text) => println!("{text}"),
///     Err(RpcError::Service(reason)) => assert_eq!(reason, "no plum"),
///     Err(error) if error.executed() == Executed::Never => println!("not done: {error}"),
///     Err(error) => println!("perhaps done: {error}"),
/// }
/// # Ok(()) }) }
/// ```
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RpcError<E> {
    /// The handler returned its error.
    #[error("{0}")]
    Service(E),
    /// There is no response.
    #[error(transparent)]
    Call(CallFailure),
    /// The server does not have the method, as it is older or newer than the client. The call was not
    /// made, and other methods are not affected.
    #[error(transparent)]
    UnknownMethod(Arc<UnknownMethod>),
    /// The server has the method with types of another shape. The call was not made, and other methods are
    /// not affected.
    #[error(transparent)]
    ShapeMismatch(Arc<ShapeMismatch>),
    /// A value could not be encoded.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// A message could not be decoded.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The server's [`crate::service::Authorize`] or middleware does not allow the call. The handler did not run.
    #[error("the server does not allow this call ({0}); use a client that it allows")]
    Denied(Box<str>),
    /// The server does not accept the call without proof of who makes it, such as a token in its metadata.
    /// The handler did not run.
    #[error("the server does not know this client ({0}); use a client with a valid token")]
    Unauthenticated(Box<str>),
    /// The server has refused the call as there are too many. The handler did not run.
    #[error("the server has too many calls ({reason}); try again after {retry_after:?}")]
    TooMany {
        /// The server's text.
        reason: Box<str>,
        /// The server asks to wait for this time before the next call.
        retry_after: Duration,
    },
    /// The stream needs more calls at a time than a session with the server has slots: 4 for a stream each
    /// way, 2 for others. It was not opened.
    #[error(
        "a session with the server has {slots} slots, and this stream needs {needed}; raise Config::slots \
         of both ends"
    )]
    FewSlots {
        /// The smaller one of [`Config::slots`](crate::Config::slots) of both ends.
        slots: u32,
        /// The slots that the stream needs.
        needed: u32,
    },
    /// The other end of a stream refused a batch.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// A stream that was open has failed, or one of its items.
    #[error(transparent)]
    MidStream(#[from] MidStreamError),
}

impl<E> From<CallFailure> for RpcError<E> {
    fn from(failure: CallFailure) -> Self {
        match failure {
            CallFailure::Method(mismatch) => mismatch.into(),
            failure => RpcError::Call(failure),
        }
    }
}

impl<E> From<MethodMismatch> for RpcError<E> {
    fn from(mismatch: MethodMismatch) -> Self {
        match mismatch {
            MethodMismatch::Unknown(e) => RpcError::UnknownMethod(e),
            MethodMismatch::Shape(e) => RpcError::ShapeMismatch(e),
        }
    }
}

impl RpcError<NoError> {
    /// The error of a method without application errors as that of a method with them.
    pub fn widen<E>(self) -> RpcError<E> {
        match self.split() {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }
}

impl<E> RpcError<E> {
    /// Returns whether the handler ran.
    pub fn executed(&self) -> Executed {
        match self {
            RpcError::Service(_) => Executed::Yes,
            RpcError::Call(failure) => failure.executed(),
            RpcError::UnknownMethod(_)
            | RpcError::ShapeMismatch(_)
            | RpcError::Denied(_)
            | RpcError::Unauthenticated(_)
            | RpcError::TooMany { .. }
            | RpcError::FewSlots { .. } => Executed::Never,
            RpcError::Encode(EncodeError::Remote(_)) => Executed::Yes,
            RpcError::Encode(_) => Executed::Never,
            RpcError::Decode(e) if e.is_remote() => Executed::Never,
            // It is not known which kind of handler has answered.
            RpcError::Decode(DecodeError::Form(_)) => Executed::Maybe,
            RpcError::Decode(_) => Executed::Yes,
            RpcError::Stream(StreamError::Limit) => Executed::Never,
            RpcError::Stream(_) | RpcError::MidStream(_) => Executed::Maybe,
        }
    }

    /// The application's error, or the error of the call.
    pub fn into_service(self) -> Result<E, RpcError<NoError>> {
        self.split()
    }

    fn split<F>(self) -> Result<E, RpcError<F>> {
        Err(match self {
            RpcError::Service(e) => return Ok(e),
            RpcError::Call(e) => RpcError::Call(e),
            RpcError::UnknownMethod(e) => RpcError::UnknownMethod(e),
            RpcError::ShapeMismatch(e) => RpcError::ShapeMismatch(e),
            RpcError::Encode(e) => RpcError::Encode(e),
            RpcError::Decode(e) => RpcError::Decode(e),
            RpcError::Denied(e) => RpcError::Denied(e),
            RpcError::Unauthenticated(e) => RpcError::Unauthenticated(e),
            RpcError::TooMany { reason, retry_after } => RpcError::TooMany { reason, retry_after },
            RpcError::FewSlots { slots, needed } => RpcError::FewSlots { slots, needed },
            RpcError::Stream(e) => RpcError::Stream(e),
            RpcError::MidStream(e) => RpcError::MidStream(e),
        })
    }

    /// An error of a call, or of an item, of a stream whose own call goes on: its handler may have
    /// started, whatever the error states about the call.
    pub(crate) fn mid_stream(self) -> Self {
        RpcError::MidStream(match self {
            RpcError::Call(e) => MidStreamError::Call(e),
            RpcError::Encode(e) => MidStreamError::Encode(e),
            RpcError::Decode(e) => MidStreamError::Decode(e),
            other => return other,
        })
    }
}

/// Why a stream that was open has failed, or one of its items. Its handler may have started, and may
/// have run in part.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run(async |uri| {
/// use courser::service::{MidStreamError, RpcError};
///
/// let store = StoreClient::connect(&uri).await?;
/// let mut keys = store.list("a".to_owned()).await?;
/// while let Some(key) = keys.next().await {
///     match key {
///         Ok(key) => println!("{key}"),
///         Err(RpcError::MidStream(MidStreamError::ShuttingDown { .. })) => println!("try another server"),
///         Err(error) => return Err(error.into()),
///     }
/// }
/// # Ok(()) }) }
/// ```
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MidStreamError {
    /// The server shuts down.
    #[error(
        "the server is shutting down, and ended the stream after {items} items; connect to another \
         server and open it again"
    )]
    ShuttingDown {
        /// Items that were delivered: to the reader of a server's stream, to the handler of a
        /// client's.
        items: u64,
    },
    /// A call that carries items has failed.
    #[error("a call that carries items of a stream failed: {0}")]
    Call(#[source] CallFailure),
    /// An item could not be encoded.
    #[error("an item of a stream: {0}")]
    Encode(#[source] EncodeError),
    /// An item could not be decoded.
    #[error("an item of a stream: {0}")]
    Decode(#[source] DecodeError),
    /// Items cannot be sent: the handler of a stream each way takes no more of them, or the stream has
    /// ended.
    #[error(
        "the handler takes no more items of this stream; read the receiving half to its end, which has \
         the outcome"
    )]
    Closed,
}

/// A value could not be encoded.
///
/// Example: [`RpcError`](crate::service::RpcError).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The message would be larger than messages may be.
    #[error("the encoded value exceeds {limit} bytes; split it or raise Config::max_msg_size")]
    TooLarge {
        /// The largest message.
        limit: usize,
    },
    /// No memory for the message.
    #[error(transparent)]
    NoMemory(#[from] AllocError),
    /// The codec refused the value.
    #[error("{codec} cannot encode the value: {detail}; use types that the codec supports")]
    Codec {
        /// [`crate::service::Codec::NAME`].
        codec: &'static str,
        /// The codec's own words.
        detail: Cow<'static, str>,
    },
    /// The value is nested too deep to be decoded.
    #[error(
        "a value has more than {levels} levels of nesting; use a flatter type, such as a list of nodes"
    )]
    TooDeep {
        /// The most levels.
        levels: u32,
    },
    /// The server could not encode its answer.
    #[error("the server cannot encode its answer ({0}); check the handler of the server")]
    Remote(Box<str>),
}

/// A message could not be decoded.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run(async |uri| {
/// use courser::service::{Decode, DecodeError, Payload, Postcard};
///
/// let client = courser::Client::connect(&uri).await?;
/// let payload = Payload::owned(client.alloc(2)?);
/// // A number takes the first byte.
/// let error = <Postcard as Decode<u8>>::decode(payload).unwrap_err();
/// assert!(matches!(error, DecodeError::Trailing { .. }));
/// # Ok(()) }) }
/// ```
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The bytes are no value of the type.
    #[error(
        "a message is no {codec} of its type: {detail}; use the same version of the service at \
         both ends"
    )]
    Codec {
        /// [`crate::service::Codec::NAME`].
        codec: &'static str,
        /// The codec's own words.
        detail: Cow<'static, str>,
    },
    /// The bytes go on behind the value.
    #[error(
        "{left} bytes follow the value of a message; use the same version of the service at both \
         ends"
    )]
    Trailing {
        /// Bytes behind the value.
        left: usize,
    },
    /// The message does not have the form of this protocol.
    #[error("a message of a service is malformed: {0}; use Courser's typed services at both ends")]
    Form(&'static str),
    /// The value is nested too deep, or uses too much stack.
    #[error(
        "a value has more than {levels} levels of nesting; use a flatter type, such as a list of nodes"
    )]
    TooDeep {
        /// The most levels.
        levels: u32,
    },
    /// A list or map has more elements than bytes.
    #[error(
        "a list has elements without bytes, or more elements than its message has bytes; use the \
         same version of the service at both ends, and send a number in place of a list of units"
    )]
    Elements,
    /// The value needs much more memory than its message has bytes.
    #[error(
        "a value needs more than {limit} bytes of heap, the limit for a message of its length; use a \
         Box for large variants of enums"
    )]
    HeapLimit {
        /// The limit for the length of the message.
        limit: usize,
    },
    /// The values of the requests that a server handles, in all or of this client, use too much memory.
    #[error(
        "the requests that the server handles, in all or of this client, hold their share of {limit} \
         bytes of heap; call again later, or raise Config::memory_limit of the server"
    )]
    HeapFull {
        /// The limit of all requests.
        limit: usize,
    },
    /// No memory for a copy of the message.
    #[error(transparent)]
    NoMemory(#[from] AllocError),
    /// The server could not decode the request: its cause, with what to do.
    #[error("the server cannot decode the request: {0}")]
    Remote(Box<str>),
    /// The server has no memory for the arguments now: [`DecodeError::HeapFull`] or
    /// [`DecodeError::NoMemory`] there, with what to do. Clients with retries call again.
    #[error("the server has no memory for the request now: {0}")]
    RemoteFull(Box<str>),
    /// The arguments take more memory than the server allows for a message of their length:
    /// [`DecodeError::HeapLimit`] there, with what to do.
    #[error("the request takes too much memory at the server: {0}")]
    RemoteLimit(Box<str>),
}

impl DecodeError {
    /// Returns whether the other end could not decode what this one has sent.
    pub(crate) fn is_remote(&self) -> bool {
        use DecodeError::{Remote, RemoteFull, RemoteLimit};
        matches!(self, Remote(_) | RemoteFull(_) | RemoteLimit(_))
    }
}

/// A stream was used against its rules.
///
/// Example: [`RpcError`](crate::service::RpcError).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[repr(u8)]
#[non_exhaustive]
pub enum StreamError {
    /// The server has no such stream.
    #[error("the server has no such stream, or it has ended; start it again")]
    Unknown = 1,
    /// A batch was asked for, or sent, out of order or twice.
    #[error("a batch of a stream has a wrong number; use the same version of Courser at both ends")]
    Sequence = 2,
    /// A stream with this number is open on the session.
    #[error("a stream of this number is open; use the same version of Courser at both ends")]
    Open = 3,
    /// A batch was asked for from a stream of the client, or sent to one of the server.
    #[error("a stream has the other direction; use the same version of the service at both ends")]
    Direction = 4,
    /// Too many streams wait to be opened, on the session or at the server.
    #[error("too many streams wait to be opened; start fewer of them at a time")]
    TooMany = 5,
    /// The client has as many open streams as it may have.
    #[error(
        "this client has as many open streams as the server allows; drop some of them, or raise \
         Config::max_streams_per_peer of the server"
    )]
    Limit = 6,
    /// The server's message has a code that this version does not have.
    #[error("the server refused a batch of a stream; use the same version of Courser at both ends")]
    Other = 255,
}

impl StreamError {
    pub(crate) fn from_code(code: u8) -> Self {
        match code {
            1 => StreamError::Unknown,
            2 => StreamError::Sequence,
            3 => StreamError::Open,
            4 => StreamError::Direction,
            5 => StreamError::TooMany,
            6 => StreamError::Limit,
            _ => StreamError::Other,
        }
    }
}
