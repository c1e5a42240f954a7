//! Codes of statuses.

use std::fmt;

macro_rules! codes {
    ($($(#[$note:meta])* $code:ident = $number:literal $text:literal,)*) => {
        /// The code of a [`super::Status`], with gRPC's numbers and meanings.
        ///
        /// Example: [`Status`](crate::grpc::Status).
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(i32)]
        #[non_exhaustive]
        pub enum Code {
            $($(#[$note])* $code = $number,)*
        }

        impl Code {
            /// The code with this number; [`Code::Unknown`] if there is none.
            pub const fn from_i32(number: i32) -> Self {
                match number {
                    $($number => Code::$code,)*
                    _ => Code::Unknown,
                }
            }

            /// A short text, as tonic has it.
            pub const fn description(self) -> &'static str {
                match self {
                    $(Code::$code => $text,)*
                }
            }
        }
    };
}

codes! {
    /// No error.
    Ok = 0 "The operation completed successfully",
    /// The caller has cancelled the operation.
    Cancelled = 1 "The operation was cancelled",
    /// An error without a code, or with a code that this version does not have.
    Unknown = 2 "Unknown error",
    /// An argument is wrong, whatever the state of the system.
    InvalidArgument = 3 "Client specified an invalid argument",
    /// The deadline has passed. The operation may have run.
    DeadlineExceeded = 4 "Deadline expired before operation could complete",
    /// An entity was not found.
    NotFound = 5 "Some requested entity was not found",
    /// The entity to create exists.
    AlreadyExists = 6 "Some entity that we attempted to create already exists",
    /// The caller is known, and may not do this.
    PermissionDenied = 7
        "The caller does not have permission to execute the specified operation",
    /// A quota or a resource is used up.
    ResourceExhausted = 8 "Some resource has been exhausted",
    /// The state of the system does not allow the operation. It helps to change the state first.
    FailedPrecondition = 9
        "The system is not in a state required for the operation's execution",
    /// The operation was aborted, as by a conflict. It helps to run the whole transaction again.
    Aborted = 10 "The operation was aborted",
    /// The operation goes beyond the valid range, such as behind the end of a file.
    OutOfRange = 11 "Operation was attempted past the valid range",
    /// The server does not have the operation.
    Unimplemented = 12 "Operation is not implemented or not supported",
    /// An invariant does not hold.
    Internal = 13 "Internal error",
    /// The service is not available now. It helps to call again later.
    Unavailable = 14 "The service is currently unavailable",
    /// Data is lost or corrupt.
    DataLoss = 15 "Unrecoverable data loss or corruption",
    /// The caller is not known.
    Unauthenticated = 16
        "The request does not have valid authentication credentials",
}

impl From<i32> for Code {
    fn from(number: i32) -> Self {
        Code::from_i32(number)
    }
}

impl From<Code> for i32 {
    fn from(code: Code) -> Self {
        code as i32
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.description())
    }
}
