//! Layers of [tower](https://docs.rs/tower) around calls, at a client and at a server (feature `tower`): time limits, limits of concurrency, load shedding, and others that need the future of the call.
//! Middleware that needs no future ([`ServerMiddleware`](crate::service::ServerMiddleware),
//! [`ClientMiddleware`](crate::service::ClientMiddleware)) costs less, and sees the ends of
//! streams.
//!
//! ```
//! use std::time::Duration;
//!
//! use courser::tower::{LayeredClient, layered};
//! use courser::{Client, Server};
//! use tower::limit::ConcurrencyLimitLayer;
//! use tower::timeout::TimeoutLayer;
//!
//! #[courser::service]
//! trait Store {
//!     async fn get(&self, key: String) -> String;
//! }
//! # struct Texts;
//! # impl Store for Texts { async fn get(&self, key: String) -> String { key } }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // At most 100 handlers of the service run at a time; others wait.
//! let store = layered(StoreServer::new(Texts), ConcurrencyLimitLayer::new(100));
//! let server = Server::bind("udp://127.0.0.1:0")?.add_service(store)?;
//! let (uri, _serving) = (server.local_uri(), server.serve()?);
//!
//! let client = Client::connect(&uri).await?;
//! let limited = LayeredClient::new(client, TimeoutLayer::new(Duration::from_secs(1)));
//! let store = StoreClient::new(limited).await?;
//! assert_eq!(store.get("a".to_owned()).await?, "a");
//! # Ok(()) }
//! ```
//!
//! A layer wraps [`Next`], and gets a [`Request`] for each call: the names of its method, its metadata and its
//! encoded arguments. It is made once for a client or a service, and its service is cloned for each call.
//! So it has to be `Clone`, which a rate limit is in a `tower::buffer::Buffer`.
//!
//! # Streams and messages
//! At a server nothing passes without the layers, so that one which checks tokens sees all. The opening of a
//! stream is a request whose answer is that the stream is open: a layer may refuse it before its arguments
//! are decoded, limit how many are opened at a time and how long that takes, and is done with it then. So no
//! layer ends an open stream, or limits their number
//! ([`Config::max_streams_per_peer`](crate::Config::max_streams_per_peer) does). A one-way message that a
//! layer refuses is dropped.
//!
//! At a client layers see unary calls; streams and messages pass without them. Metadata that the server asks
//! for belongs into middleware of the client, or `client.with_metadata(..)`.
//!
//! # Errors
//! The error of a layer is [`CallFailure::Middleware`](crate::CallFailure::Middleware) at the client, with its text: never executed if the
//! layer has not passed the call on, else it may have been. A layer of a server may also return a
//! [`Denied`](crate::service::Denied), which the client gets as it does those of other middleware if the layer
//! has not passed the call on.
//!
//! # Cost
//! Some allocations for each call, also for its copy where a request or an answer of one packet would have
//! been read in place.

mod arrived;
mod call;
mod client;
mod server;

pub use call::{AnswerFuture, BoxError, CallService, Next, Request, Response};
pub use client::{LayeredCall, LayeredClient};
pub use server::{Layered, layered};
