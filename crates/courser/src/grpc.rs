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
