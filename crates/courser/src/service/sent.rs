//! Reports a type that the codec of a service cannot send, once, where the type is in its method.
//!
//! Generated code needs the codec of a type in several places, and the compiler would report each of
//! them. So it uses the codec that [`Choose`] returns, which takes all types if the service has one
//! that its codec does not send, and asserts for each type that it is sent.

use std::borrow::Cow;
use std::marker::PhantomData;

use super::codec::{Codec, Decode, Encode, Payload};
use super::writer::Writer;
use crate::error::service::{DecodeError, EncodeError};

/// The codec `K` may encode an `S` at one end, and decode an `R` at the other.
#[derive(Debug)]
pub struct Sends<K, S, R>(PhantomData<(K, S, R)>);

impl<K: Encode<S> + Decode<R>, S, R> Sends<K, S, R> {
    /// The constant of types that are sent.
    pub const IS_SENT: bool = true;
}

/// The constant of all types, which [`Sends`] hides for those that are sent.
pub trait AnySent {
    /// The constant of other types.
    const IS_SENT: bool = false;
}

impl<K, S, R> AnySent for Sends<K, S, R> {}

/// The codec for the generated code of a service.
pub trait Choose<const ARE_SENT: bool> {
    /// The codec itself if all types are sent.
    type Codec: Codec;
}

impl<K: Codec> Choose<true> for K {
    type Codec = K;
}

impl<K: Codec> Choose<false> for K {
    type Codec = Unsent;
}

/// A type, or `()` if its check does not apply.
pub trait Unless<const IS_CHECKED: bool> {
    /// The type to check.
    type Type;
}

impl<T> Unless<false> for T {
    type Type = T;
}

impl<T> Unless<true> for T {
    type Type = ();
}

/// The codec of services with an error, for any type.
#[derive(Debug)]
pub struct Unsent;

impl Codec for Unsent {
    const NAME: &'static str = "none";
}

impl<T: ?Sized> Encode<T> for Unsent {
    fn encode(_: &T, _: &mut Writer<'_>) -> Result<(), EncodeError> {
        let detail = Cow::Borrowed("the type is not sent");
        Err(EncodeError::Codec { codec: Self::NAME, detail })
    }
}

impl<T> Decode<T> for Unsent {
    fn decode(_: Payload<'_>) -> Result<T, DecodeError> {
        let detail = Cow::Borrowed("the type is not sent");
        Err(DecodeError::Codec { codec: Self::NAME, detail })
    }
}

// One trait for each codec: they differ in the text of the error.

/// Types that Postcard sends.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be sent by the codec Postcard: derive `serde::Serialize` and \
               `serde::Deserialize` for it",
    label = "not sent",
    note = "the types in it need both, too"
)]
pub trait SentByPostcard<K, R> {}

#[diagnostic::do_not_recommend]
impl<K: Encode<S> + Decode<R>, S, R> SentByPostcard<K, R> for S {}

/// Compiles if Postcard sends the type.
pub const fn sent_by_postcard<S: SentByPostcard<K, R>, K, R>() {}

/// Types that Named sends.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be sent by the codec Named: derive `serde::Serialize` and \
               `serde::Deserialize` for it",
    label = "not sent",
    note = "the types in it need both, too"
)]
pub trait SentByNamed<K, R> {}

#[diagnostic::do_not_recommend]
impl<K: Encode<S> + Decode<R>, S, R> SentByNamed<K, R> for S {}

/// Compiles if Named sends the type.
pub const fn sent_by_named<S: SentByNamed<K, R>, K, R>() {}

/// Types that Prost sends.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be sent by the codec Prost: derive `prost::Message` for it",
    label = "not sent",
    note = "parameters, result, error and items are messages; a method has at most 12 parameters"
)]
pub trait SentByProst<K, R> {}

#[diagnostic::do_not_recommend]
impl<K: Encode<S> + Decode<R>, S, R> SentByProst<K, R> for S {}

/// Compiles if Prost sends the type.
pub const fn sent_by_prost<S: SentByProst<K, R>, K, R>() {}

/// Types that Rkyv sends.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be sent by the codec Rkyv: derive `rkyv::Archive`, `rkyv::Serialize` and \
               `rkyv::Deserialize` for it",
    label = "not sent",
    note = "the types in it need all three, too; a method has one parameter, or several that are no `View`"
)]
pub trait SentByRkyv<K, R> {}

#[diagnostic::do_not_recommend]
impl<K: Encode<S> + Decode<R>, S, R> SentByRkyv<K, R> for S {}

/// Compiles if Rkyv sends the type.
pub const fn sent_by_rkyv<S: SentByRkyv<K, R>, K, R>() {}

/// Types that Bytes sends.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be sent by the codec Bytes: use `Vec<u8>`, `String`, `MsgBuf`, `[u8; N]` or \
               `()`",
    label = "not sent",
    note = "a method has at most one parameter"
)]
pub trait SentByBytes<K, R> {}

#[diagnostic::do_not_recommend]
impl<K: Encode<S> + Decode<R>, S, R> SentByBytes<K, R> for S {}

/// Compiles if Bytes sends the type.
pub const fn sent_by_bytes<S: SentByBytes<K, R>, K, R>() {}

/// Types that another codec sends.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be sent by the codec `{K}`: implement `Encode` and `Decode` for it",
    label = "not sent",
    note = "methods with several parameters encode a tuple of them"
)]
pub trait Sent<K, R> {}

#[diagnostic::do_not_recommend]
impl<K: Encode<S> + Decode<R>, S, R> Sent<K, R> for S {}

/// Compiles if another codec sends the type.
pub const fn sent<S: Sent<K, R>, K, R>() {}
