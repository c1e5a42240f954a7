//! Generates services of [Courser](https://docs.rs/courser) from `.proto` files, in a build script and
//! without protoc.
//!
//! For `proto/helloworld.proto`, which has a package `helloworld` and a service `Greeter`, the build script
//! is
//!
//! ```no_run
//! fn main() -> Result<(), courser_build::Error> {
//!     courser_build::compile_protos(&["proto/helloworld.proto"], &["proto"])
//! }
//! ```
//!
//! and the program
//!
//! ```text
//! pub mod helloworld {
//!     courser::include_proto!("helloworld");
//! }
//! use courser::grpc::Status;
//! use helloworld::{Greeter, GreeterClient, GreeterServer, HelloReply, HelloRequest};
//!
//! struct Polite;
//!
//! impl Greeter for Polite {
//!     async fn say_hello(&self, request: HelloRequest) -> Result<HelloReply, Status> {
//!         Ok(HelloReply { message: format!("Hello {}!", request.name) })
//!     }
//! }
//!
//! // Server::bind(uri)?.add_service(GreeterServer::new(Polite))?.serve()?.await?;
//! // GreeterClient::connect(uri).await?.say_hello(HelloRequest { name }).await?;
//! ```
//!
//! with these dependencies:
//!
//! ```toml
//! [dependencies]
//! courser = { version = "0.1", features = ["prost", "tokio"] }
//! prost = "0.14"
//!
//! [build-dependencies]
//! courser-build = "0.1"
//! ```
//!
//! # Generated code
//! Messages are those of [prost](https://docs.rs/prost). For each `service` there is a trait with the
//! attribute `#[courser::service(codec = Prost, name = "package.Service")]`, which makes the client, the
//! server and the trait for one thread of it.
//!
//! | in the file | in the trait |
//! | --- | --- |
//! | `rpc Get(A) returns (B)` | `async fn get(&self, request: A) -> Result<B, Status>` |
//! | `returns (stream B)` | `fn get(&self, request: A) -> impl Stream<Item = Result<B, Status>>` |
//! | `rpc Get(stream A)` | `async fn get(&self, requests: Incoming<A>) -> Result<B, Status>` |
//! | a stream each way | `fn get(&self, requests: Incoming<A>) -> impl Stream<Item = Result<B, Status>>` |
//! | `google.protobuf.Empty` | no parameter, or `()` |
//! | comments | documentation |
//! | `option deprecated = true` of a method | `#[deprecated]` |
//! | `option idempotency_level` of a method without streams | `#[idempotent]`: retries may repeat it |
//!
//! A method has its name in snake case, also on the network. Names that are functions of the generated
//! client (`connect`, `new`, `channel`, `unchecked`, `method_stats`, `with_deadline`, `with_metadata`,
//! `with_middleware`, `with_retries`) get a `_` at their end. The service has the name `package.Service` on the network, of at most 100
//! bytes. Other options: see [`Builder`].
//!
//! A file that uses `google.protobuf.Timestamp`, `Any` or `Duration` needs `prost-types` as a dependency. Each
//! package is a file of its own in `OUT_DIR`: files of one package belong into one call, which overwrites the
//! file. Packages that import each other are included in modules that are nested as the packages are:
//! `pub mod a { pub mod b { courser::include_proto!("a.b"); } }`.
//!
//! # Changes of a file
//! Fields and methods may be added. A field whose number has another type at the other end, so that values
//! would be read as others, is refused before a method that uses it is called (`ShapeMismatch`, with both
//! shapes), and so is a method that became a stream. A field may get a wider integer of its encoding, which
//! old programs do not read. Both programs have to be generated for that.
//!
//! # Errors
//! They name the file, the line and the column. A build script that returns them prints them:
//!
//! ```text
//! Error: helloworld.proto:7:30: name 'HelloRequst' is not defined; correct the file
//! ```

#![forbid(unsafe_code)]

mod builder;
mod error;
mod messages;
mod names;
mod places;
mod service;

use std::path::Path;

pub use builder::{Builder, configure};
pub use error::Error;
pub use prost_build;

/// Generates messages and services of these files into `OUT_DIR`, in a build script. They, and the files
/// that they import, are found below the folders `includes`. Cargo runs the script again when one of them
/// changes.
///
/// # Errors
/// A file is not found or not correct, or the code cannot be written.
pub fn compile_protos(
    protos: &[impl AsRef<Path>],
    includes: &[impl AsRef<Path>],
) -> Result<(), Error> {
    configure().compile(protos, includes)
}
