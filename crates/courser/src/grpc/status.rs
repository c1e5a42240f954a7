//! Statuses, and their form on the network.

use std::fmt;

use prost::bytes::{Buf, BufMut};
use prost::encoding::wire_type::WireType;
use prost::encoding::{DecodeContext, int32, message, skip_field, string};
use prost::{DecodeError, Message};

use super::{Any, Code};

/// An error of a service: a code, a text, and details. On the network it is a `google.rpc.Status`.
///
/// A code of a later version is kept as it is, and read as [`Code::Unknown`].
///
/// ```
/// use courser::grpc::{Code, Status};
///
/// let status = Status::not_found("no such feature");
/// assert_eq!(status.code(), Code::NotFound);
/// assert_eq!(status.message(), "no such feature");
/// assert_eq!(
///     status.to_string(),
///     "Some requested entity was not found: no such feature"
/// );
/// ```
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Status {
    code: i32,
    message: String,
    details: Vec<Any>,
}

macro_rules! constructors {
    ($($name:ident $code:ident,)*) => {
        /// A constructor for each code but [`Code::Ok`].
        impl Status {
            $(
                #[doc = concat!("[`Code::", stringify!($code), "`] with this text.")]
                pub fn $name(message: impl Into<String>) -> Self {
                    Status::new(Code::$code, message)
                }
            )*
        }
    };
}

constructors! {
    cancelled Cancelled,
    unknown Unknown,
    invalid_argument InvalidArgument,
    deadline_exceeded DeadlineExceeded,
    not_found NotFound,
    already_exists AlreadyExists,
    permission_denied PermissionDenied,
    resource_exhausted ResourceExhausted,
    failed_precondition FailedPrecondition,
    aborted Aborted,
    out_of_range OutOfRange,
    unimplemented Unimplemented,
    internal Internal,
    unavailable Unavailable,
    data_loss DataLoss,
    unauthenticated Unauthenticated,
}

impl Status {
    /// A status with this code and text.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Status { code: code.into(), message: message.into(), details: Vec::new() }
    }

    /// A status with details for programs. tonic has their encoded list in their place.
    pub fn with_details(
        code: Code,
        message: impl Into<String>,
        details: impl IntoIterator<Item = Any>,
    ) -> Self {
        Status { details: details.into_iter().collect(), ..Status::new(code, message) }
    }

    /// The code.
    pub fn code(&self) -> Code {
        Code::from_i32(self.code)
    }

    /// The text, for programmers.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Details for programs.
    pub fn details(&self) -> &[Any] {
        &self.details
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.code())?;
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        Ok(())
    }
}

impl std::error::Error for Status {}

impl Message for Status {
    fn encode_raw(&self, out: &mut impl BufMut) {
        if self.code != 0 {
            int32::encode(1, &self.code, out);
        }
        if !self.message.is_empty() {
            string::encode(2, &self.message, out);
        }
        message::encode_repeated(3, &self.details, out);
    }

    fn merge_field(
        &mut self,
        number: u32,
        kind: WireType,
        from: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        match number {
            1 => int32::merge(kind, &mut self.code, from, context),
            2 => string::merge(kind, &mut self.message, from, context),
            3 => message::merge_repeated(kind, &mut self.details, from, context),
            _ => skip_field(kind, number, from, context),
        }
    }

    fn encoded_len(&self) -> usize {
        let code = if self.code == 0 { 0 } else { int32::encoded_len(1, &self.code) };
        let text = if self.message.is_empty() { 0 } else { string::encoded_len(2, &self.message) };
        code + text + message::encoded_len_repeated(3, &self.details)
    }

    fn clear(&mut self) {
        *self = Status::default();
    }
}
