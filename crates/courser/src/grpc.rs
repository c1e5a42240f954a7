//! Statuses of gRPC, as errors of typed services that are written by `.proto` files.
//!
//! A service of gRPC has one error type for all methods: a code and a text. Services that the crate
//! `courser-build` generates have [`Status`], so that the handlers of a program that is moved from tonic
//! need other imports only. It is an error like any other: a service that is written as a trait may have
//! it, or an error type for each method that says more.
//!
//! ```
//! use courser::grpc::{Code, Status};
//! use courser::service::RpcError;
//!
//! #[courser::service(codec = Prost)]
//! trait Store {
//!     async fn get(&self, key: String) -> Result<String, Status>;
//! }
//!
//! struct Empty;
//!
//! impl Store for Empty {
//!     async fn get(&self, key: String) -> Result<String, Status> {
//!         Err(Status::not_found(format!("no key {key}")))
//!     }
//! }
//!
//! /// The client distinguishes errors of the handler from those of the call, or takes all as a status.
//! async fn find(store: &StoreClient, key: &str) -> Result<Option<String>, Status> {
//!     match store.get(key.to_owned()).await {
//!         Ok(value) => Ok(Some(value)),
//!         Err(RpcError::Service(status)) if status.code() == Code::NotFound => Ok(None),
//!         Err(error) => Err(error.into()),
//!     }
//! }
//! ```
//!
//! It is not [`crate::Status`], the verdict of the protocol about a response.
//!
//! # Codes of errors of calls
//! Errors of calls ([`RpcError`](crate::service::RpcError)), of connecting
//! ([`HelloError`](crate::service::HelloError)) and of items that are not decoded convert into statuses, with
//! their texts:
//!
//! | code | error of the call |
//! | --- | --- |
//! | that of the status | the handler has returned a [`Status`] |
//! | [`Code::Cancelled`] | the call was cancelled |
//! | [`Code::DeadlineExceeded`] | the deadline has passed, at the client or at the server |
//! | [`Code::Unavailable`] | no connection, a lost or closed session, a server that shuts down or refuses the request, an endpoint that has ended |
//! | [`Code::Unimplemented`] | the server does not have the service or the method, or has it with another codec or in another shape |
//! | [`Code::PermissionDenied`] | the server's `Authorize` or middleware does not allow it |
//! | [`Code::Unauthenticated`] | it requires proof of the client ([`Denied::unauthenticated`](crate::service::Denied::unauthenticated)) |
//! | [`Code::ResourceExhausted`] | too many requests, streams, or calls that wait; a request, a value or an answer that is too large; no memory, for messages or for decoded arguments, at either end |
//! | [`Code::FailedPrecondition`] | a session with too few slots for a stream, an item for a handler that takes no more, a forked process |
//! | [`Code::Unknown`] | middleware of the client or a layer of `courser::tower` has ended it, with a text only; a verdict of a later version |
//! | [`Code::Internal`] | bytes or values that are not decoded or encoded, a handler that panics or does not answer, a peer that breaks the rules of streams |

mod any;
mod code;
mod convert;
mod status;

pub use self::any::Any;
pub use self::code::Code;
pub use self::status::Status;

/// Includes the code that `courser-build` has generated for a package of Protocol Buffers.
///
/// ```text
/// pub mod helloworld {
///     courser::include_proto!("helloworld");
/// }
/// ```
#[macro_export]
macro_rules! include_proto {
    ($package:literal) => {
        include!(concat!(env!("OUT_DIR"), "/", $package, ".rs"));
    };
}
