//! Details of statuses.

use std::borrow::Cow;

use prost::bytes::{Buf, BufMut};
use prost::encoding::wire_type::WireType;
use prost::encoding::{DecodeContext, bytes, skip_field, string};
use prost::{DecodeError, Message, Name};

use crate::service::{Codec, Prost};

/// A message of any type, with the address of its type: `google.protobuf.Any`.
///
/// ```
/// use courser::grpc::{Any, Code, Status};
///
/// // Details of an error, as programs of other languages send them.
/// let detail = Any::new("type.googleapis.com/google.rpc.DebugInfo", vec![]);
/// let status = Status::with_details(Code::Internal, "a bug", [detail]);
/// assert_eq!(status.details()[0].type_url, "type.googleapis.com/google.rpc.DebugInfo");
/// ```
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Any {
    /// The type, as `type.googleapis.com/google.rpc.RetryInfo`.
    pub type_url: String,
    /// The encoded message.
    pub value: Vec<u8>,
}

impl Any {
    /// A message of the type with this address.
    pub fn new(type_url: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        Any { type_url: type_url.into(), value: value.into() }
    }

    /// Encodes a message. prost-build generates [`Name`] with `enable_type_names`.
    pub fn from_msg<M: Message + Name>(message: &M) -> Self {
        Any::new(M::type_url(), message.encode_to_vec())
    }

    /// Decodes the message.
    ///
    /// # Errors
    /// It has another type, or its bytes are no such message.
    pub fn to_msg<M: Message + Name + Default>(&self) -> Result<M, crate::service::DecodeError> {
        let name = self.type_url.rsplit('/').next().unwrap_or_default();
        let wrong = |detail| crate::service::DecodeError::Codec { codec: Prost::NAME, detail };
        match name == M::full_name() {
            true => M::decode(&self.value[..]).map_err(|e| wrong(Cow::Owned(e.to_string()))),
            false => Err(wrong(Cow::Borrowed("its address is that of another type"))),
        }
    }
}

impl Message for Any {
    fn encode_raw(&self, out: &mut impl BufMut) {
        if !self.type_url.is_empty() {
            string::encode(1, &self.type_url, out);
        }
        if !self.value.is_empty() {
            bytes::encode(2, &self.value, out);
        }
    }

    fn merge_field(
        &mut self,
        number: u32,
        kind: WireType,
        from: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        match number {
            1 => string::merge(kind, &mut self.type_url, from, context),
            2 => bytes::merge(kind, &mut self.value, from, context),
            _ => skip_field(kind, number, from, context),
        }
    }

    fn encoded_len(&self) -> usize {
        let text =
            if self.type_url.is_empty() { 0 } else { string::encoded_len(1, &self.type_url) };
        let value = if self.value.is_empty() { 0 } else { bytes::encoded_len(2, &self.value) };
        text + value
    }

    fn clear(&mut self) {
        *self = Any::default();
    }
}
