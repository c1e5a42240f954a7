//! Typed services: clients and servers that are generated from a trait.
//!
//! ```
//! use courser::service::{Incoming, Stream};
//!
//! # #[derive(serde::Serialize, serde::Deserialize)] pub struct Missing;
//! /// A store of texts.
//! #[courser::service]
//! pub trait Kv {
//!     /// Reads a key.
//!     async fn get(&self, key: String) -> Result<String, Missing>;
//!     /// A method without errors of its own.
//!     async fn len(&self) -> u64;
//!     /// A message without an answer.
//!     #[oneway]
//!     async fn hint(&self, key: String);
//!     /// The server sends a stream.
//!     fn scan(&self, from: String) -> impl Stream<Item = Result<(String, String), Missing>>;
//!     /// The client sends a stream.
//!     async fn load(&self, pairs: Incoming<(String, String)>) -> Result<u64, Missing>;
//!     /// Both send a stream.
//!     fn watch(&self, keys: Incoming<String>) -> impl Stream<Item = Result<String, Missing>>;
//! }
//! ```
//!
//! [`courser::service`](macro@crate::service) generates from a trait `Kv`:
//!
//! - the trait `Kv`, which a server implements with `async fn`s: it and its futures are `Send`;
//! - `LocalKv`, the same for the thread of one endpoint, and for simulations: nothing is `Send`;
//! - `KvClient`, with a method for each of the trait. Calls start when they are awaited, and take a
//!   deadline: `kv.get(key).deadline(ms).await?`. Dropping the future cancels the call, and drops
//!   the handler's future. Without a connection to the server they fail at once, or wait for it:
//!   `kv.get(key).wait_for_ready(true).await?`;
//! - `KvServer`, which registers the handlers: [`Service::register`],
//!   [`LocalService::register_local`].
//!
//! [The book](https://github.com/courser-rpc/courser/blob/main/docs/book/introduction.md) for users: from tonic,
//! changing a service, failure and retries, testing a service in a simulated datacenter.
//!
//! # Services that call others
//! One implementation runs in production and in the simulator (`courser-sim`) if it implements `LocalKv`
//! and calls over [`crate::Session`]s of its endpoint. Then its futures need not be `Send`, and all that
//! differs is who makes the nexus: [`crate::Nexus::bind`] with [`crate::Rpc::run`] on a thread for each
//! endpoint, or a simulated host.
//!
//! ```
//! use std::error::Error;
//!
//! use courser::{Local, Nexus, Rpc};
//!
//! #[courser::service]
//! trait Store {
//!     async fn get(&self, key: String) -> Option<String>;
//! }
//!
//! #[courser::service]
//! trait Front {
//!     async fn has(&self, key: String) -> bool;
//! }
//!
//! struct Pages {
//!     local: Local,
//!     store: String,
//! }
//!
//! impl Pages {
//!     async fn find(&self, key: String) -> Result<Option<String>, Box<dyn Error>> {
//!         // A service would keep the client, which can be cloned.
//!         let store = StoreClient::new(self.local.connect(&self.store).await?).await?;
//!         Ok(store.get(key).await?)
//!     }
//! }
//!
//! impl LocalFront for Pages {
//!     async fn has(&self, key: String) -> bool {
//!         self.find(key).await.is_ok_and(|page| page.is_some())
//!     }
//! }
//!
//! /// For `Nexus::bind` and for a simulated host alike.
//! fn start(nexus: &Nexus, store: &str) -> Result<Rpc, Box<dyn Error>> {
//!     let mut rpc = nexus.endpoint()?;
//!     let pages = Pages { local: rpc.local(), store: store.to_owned() };
//!     rpc.add_service(FrontServer::local(pages))?;
//!     Ok(rpc)
//! }
//! ```
//!
//! # Calls
//! Errors are [`RpcError`]: the application's own, or that of the call, which states whether the
//! handler ran. Requests that cannot be decoded are answered with an error and counted
//! ([`ServiceStats`]).
//!
//! # Contexts
//! A method with a parameter of type [`CallContext`] gets the context of its call: the peer, the time
//! left, cancellation, the shutdown of the server. The parameter is in the server's trait only; clients
//! do not have it. Calls that a handler makes end by the deadline of its own call, and so do those of
//! tasks that it spawns in [`CallContext::scope`].
//!
//! # Metadata
//! A call, a message or a stream is sent with pairs of keys and values beside its arguments
//! ([`Metadata`]) by `kv.get(key).metadata("tenant", "blue")`, all of a client by
//! `kv.with_metadata(metadata)`. A handler reads them ([`CallContext::metadata`]), and adds others to its
//! answer ([`CallContext::respond_with`], [`Unary::with_response_metadata`]). The keys `traceparent`,
//! `tracestate` and `baggage` go on to the calls that a handler makes, and that its tasks make in
//! [`CallContext::scope`]; other keys are for one server. See [`TraceParent`] for the first one. Servers
//! of versions without metadata get calls without it.
//!
//! # Authorization
//! A server decides for each peer and request with an [`Authorize`] ([`crate::Server::authorize`],
//! [`crate::Rpc::authorize`]), also about handlers without a service. Without one all requests are
//! allowed. Tokens in metadata are for middleware.
//!
//! # Middleware
//! A server adds a [`ServerMiddleware`] to all its typed methods ([`crate::Server::middleware`],
//! [`crate::Rpc::middleware`]), which sees each call before its arguments are decoded, may refuse it or
//! add metadata, and sees its end. A client does so by `kv.with_middleware(..)` ([`ClientMiddleware`]).
//! Without any a call costs nothing more. This one limits the rate of each address, with bounded memory:
//!
//! ```
//! use std::collections::BTreeMap;
//! use std::net::IpAddr;
//! use std::sync::Mutex;
//! use std::time::{Duration, Instant};
//!
//! use courser::service::{Denied, IncomingCall, ServerMiddleware};
//!
//! /// Lets 1,000 calls of each address pass in a second. Keeps the calls of one second, of the first
//! /// 10,000 addresses in it; others share one count.
//! #[derive(Default)]
//! struct RateLimit(Mutex<(Option<Instant>, BTreeMap<Option<IpAddr>, u32>)>);
//!
//! impl ServerMiddleware for RateLimit {
//!     fn before(&self, call: &mut IncomingCall<'_>) -> Result<(), Denied> {
//!         let address = call.peer().addr().to_socket().map(|socket| socket.ip());
//!         let (now, mut state) = (call.begun(), self.0.lock().expect("no panic"));
//!         let (second, counts) = &mut *state;
//!         let since = now - *second.get_or_insert(now);
//!         if since >= Duration::from_secs(1) {
//!             *second = Some(now);
//!             counts.clear();
//!         }
//!         let is_known = counts.len() < 10_000 || counts.contains_key(&address);
//!         let count = counts.entry(address.filter(|_| is_known)).or_default();
//!         *count += 1;
//!         match *count {
//!             ..=1_000 => Ok(()),
//!             _ => {
//!                 let left = Duration::from_secs(1).saturating_sub(since);
//!                 Err(Denied::too_many("1,000 calls in a second", left))
//!             }
//!         }
//!     }
//! }
//! ```
//!
//! And this one gives each call a trace if it has none, which handlers read and pass on:
//!
//! ```
//! use courser::service::{CallContext, CallEnd, Denied, IncomingCall, ServerMiddleware, TraceParent};
//!
//! struct Traces;
//!
//! impl ServerMiddleware for Traces {
//!     fn before(&self, call: &mut IncomingCall<'_>) -> Result<(), Denied> {
//!         if call.metadata().get("traceparent").is_none() {
//!             // A program would draw the numbers.
//!             let trace = TraceParent::new([7; 16], [1; 8], true).expect("it is not 0");
//!             call.add_metadata("traceparent", trace)?;
//!         }
//!         Ok(())
//!     }
//!     fn after(&self, end: &CallEnd<'_>) {
//!         let trace = end.metadata.text("traceparent").unwrap_or_default();
//!         println!("{trace} {}.{} {:?} {:?}", end.service, end.method, end.outcome, end.duration);
//!     }
//! }
//!
//! #[courser::service]
//! trait Store {
//!     async fn trace(&self, cx: CallContext) -> String;
//! }
//!
//! struct Texts;
//!
//! impl Store for Texts {
//!     async fn trace(&self, cx: CallContext) -> String {
//!         cx.metadata().text("traceparent").unwrap_or_default().to_owned()
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = courser::Server::bind("udp://127.0.0.1:0")?.add_service(StoreServer::new(Texts))?;
//! let (uri, _serving) = (server.local_uri(), server.middleware(Traces).serve()?);
//! # futures::executor::block_on(async {
//! let store = StoreClient::connect(&uri).await?;
//! assert!(store.trace().await?.starts_with("00-0707"));
//! # Ok(()) })
//! # }
//! ```
//!
//! Layers that need the future of a call are those of `courser::tower` (feature `tower`).
//!
//! # Deadlines and retries
//! A call has the deadline that is nearest to it: its own (`.deadline(..)`), that of its method
//! (`#[deadline("50 ms")]`, with the units `us`, `ms` and `s`), or that of its client
//! (`kv.with_deadline(Duration::from_secs(1))`), which knows the least of how long the method takes.
//! `.deadline(None)` is without that of the method. Calls of a handler also end by that of its own call,
//! whichever is earlier. Messages and streams have deadlines in the same way; that of a stream is for all of it. `kv.with_retries(RetryPolicy::default())` repeats unary calls that were never
//! executed, and those of methods with `#[idempotent]` that may have been: see [`RetryPolicy`]. Neither
//! attribute is a part of the version of the service.
//!
//! # Statistics
//! Servers and clients count each method: calls, calls in progress, outcomes, items of streams, and a
//! histogram of latencies ([`MethodStats`]; [`crate::Config::count_methods`] switches it off). They are read
//! with [`crate::Serving::method_stats`], [`crate::Rpc::method_stats`], [`crate::Client::method_stats`] and
//! `kv.method_stats()`, for scrapers as text ([`crate::Serving::metrics`]), and by `courser stat` from
//! servers with [`crate::Server::add_introspection`]. [`crate::Server::add_health`] adds health and
//! readiness.
//!
//! Typed clients on a [`crate::Session`] count nothing, which would take 4 % of the instructions of a
//! call; its server does. Requests that the protocol refuses before they reach
//! their service, as for lack of memory, are in [`crate::EndpointStats`] only.
//!
//! # Streams
//! `kv.scan(from).await?` is a [`Streaming`], `kv.load().await?` an [`Upload`], `kv.watch().await?` a
//! [`Duplex`], which can be split into halves for two tasks. A stream is open when
//! its `.await` returns: the server has accepted it, its handler has begun and the handler's stream was
//! polled once, so an event after that is seen by a handler that watches for events. Errors of opening
//! are those of the `.await`, as are errors that the handler's stream has at once. Each stream has a
//! session of its own, so one that stalls delays no call. Items travel in batches of up to 64 KiB,
//! or one larger item, and at most two batches are between the ends in each direction. A batch is in a buffer of up
//! to 80 KiB, and of up to a quarter more than its bytes if it is larger. So each end holds at most
//!
//! | stream | client | server |
//! | --- | --- | --- |
//! | of the server | 2 batches | 2 batches, and an item |
//! | of the client | 3 batches, and an item | 2 batches |
//! | each way | 5 batches, and an item | 4 batches, and an item |
//!
//! and some 300 bytes of state at the server. A server holds no batch before the first item is read,
//! and at most one item that it was polled for; and none that its client does not wait for while the
//! client, or all streams, hold their share of the memory. A client may have
//! [`Config::max_streams_per_peer`](crate::Config::max_streams_per_peer) of them. Items keep their
//! order. The end is typed: a server's stream ends with its error or without one, a client's with the
//! outcome of the handler. Dropping either end cancels the other one. When the server shuts down, both
//! end with [`MidStreamError::ShuttingDown`], unless their items flow and end within the grace.
//!
//! In a stream each way the directions end by themselves: after [`DuplexSender::finish`] the handler may
//! go on to send, and a handler that drops its [`Incoming`] refuses further items with
//! [`MidStreamError::Closed`] while it sends. The handler's stream is the whole call: when it has ended,
//! both directions have. Each has its own flow control. A handler whose stream returns an item that the
//! client does not read is not polled, and takes no items meanwhile, unless it reads them in a task of its
//! own. Such a task sees the end of its `Incoming` when the call is cancelled
//! ([`CallContext::is_cancelled`]). A stream each way needs [`Config::slots`](crate::Config::slots) of at
//! least 4 at both ends, the other ones 2.
//!
//! # Codecs
//! `#[service(codec = ..)]`: `Named` (types of serde that may change, the default), `Postcard` (types of
//! serde in fewer bytes and instructions, which do not change), `Prost` (Protocol Buffers, feature
//! `prost`; the crate `courser-build` generates services from `.proto` files), `Rkyv` (read in place,
//! feature `rkyv`), [`Bytes`], or a [`Codec`] of your own.
//! Values are encoded straight into message memory.
//!
//! # Versions
//! A client and its server may have different versions of a service: a rolling upgrade has both. On
//! each connection the client tells the names of its methods and the fingerprints of their shapes, and
//! learns which ones the server has. The [`Shape`] of a type is the form of its values on the network,
//! traced from the type itself, not from its text.
//!
//! - A method that both have in the same shape works, whatever else has changed.
//! - A method that the server does not have is [`RpcError::UnknownMethod`].
//! - A method whose arguments, value, items or error have another shape, in a way that the codec does not
//!   allow ([`Codec::reads`]), is [`RpcError::ShapeMismatch`], with both shapes in its text.
//!
//! Both errors are those of a call that was not made, and other methods are not affected. A service that
//! the server does not have, or has with another codec, is an error of `KvClient::new`
//! ([`HelloError`]); `KvClient::unchecked` asks with the first call instead. A [`crate::Client`] asks
//! again on each new session, so also after its server was replaced.
//!
//! The server assigns request types to the methods of its services when they are registered, from
//! 0x4000 on, and a client asks for them on each connection: methods are found by their names, in any
//! order. Handlers without a service beside them have types below 0x4000, except 0x03F0 to 0x03FF,
//! which are the library's.

mod access;
mod answer;
mod begin;
pub(crate) mod binding;
mod client;
mod codec;
mod context;
mod counted;
mod drain;
mod gate;
pub(crate) mod hello;
mod key;
mod load;
mod middleware;
mod registry;
mod retries;
mod sent;
mod services;
mod split;
mod stream;
mod verdict;
mod welcome;
pub(crate) mod writer;

#[doc(hidden)]
pub use crate::channel::CallClock;
pub use crate::channel::method::{MethodInfo, ServiceInfo};
pub use crate::channel::{BlockingChannel, CallOptions, Channel, Dial};
pub use crate::core::message::to_message;
#[doc(hidden)]
pub use crate::counts::ServiceCells;
pub use crate::counts::{CallOutcome, Latency, MethodStats};
pub use crate::error::hello::{HelloError, Mismatch};
pub use crate::error::method::{MethodMismatch, ShapeMismatch, UnknownMethod};
pub use crate::error::register::RegisterError;
pub use crate::error::service::{
    DecodeError, EncodeError, MidStreamError, NoError, RpcError, StreamError,
};
pub use crate::shape::method::{MethodKind, MethodShape};
pub use crate::shape::{Difference, Shape};
pub use access::{Authorize, Denied, Peer, Target};
pub use client::{
    Answered, AnsweredCall, MarkedCall, MarkedMessage, OneWay, Sending, Unary, UnaryCall,
};
#[cfg(feature = "named")]
pub use codec::Named;
#[cfg(feature = "prost")]
pub use codec::Prost;
#[cfg(feature = "postcard")]
pub use codec::{ByteString, Postcard};
pub use codec::{Bytes, Codec, Decode, Encode, Payload, RoundTripError, round_trip};
#[cfg(feature = "rkyv")]
pub use codec::{Rkyv, View};
pub use context::{
    CallContext, Cancelled, Metadata, MetadataError, MetadataValue, Scoped, TraceParent,
    TraceParentError,
};
pub use futures_core::Stream;
pub use key::SessionKey;
pub(crate) use load::{Charge, LARGE, Turn};
pub use middleware::{CallEnd, ClientMiddleware, IncomingCall, OutgoingCall, ServerMiddleware};
pub(crate) use middleware::{Observation, miss, missing};
pub use registry::{LocalRegistry, LocalService, Received, Registry, Service};
pub use retries::{Retries, RetryPolicy, RetryStats};
pub use services::{ServiceStats, Services};
pub use stream::{
    Duplex, DuplexSender, Incoming, Next, OpenDuplex, OpenStream, OpenUpload, Opening,
    OpeningDuplex, OpeningUpload, Streaming, Upload,
};
pub use writer::{Memory, WriteError, Writer, encode};
#[cfg(feature = "tower")]
pub(crate) use {
    answer::{RefusalReply, tag},
    context::trailer::split_answer,
    services::MethodOf,
    verdict::outcome_of,
};

// For connections.
#[doc(hidden)]
pub use crate::channel::greeting::Greeting;
#[doc(hidden)]
pub use crate::channel::method::MethodId;
pub use crate::client::DefaultChannel;
#[doc(hidden)]
pub use crate::client::dial;
pub(crate) use begin::undecoded;
pub(crate) use context::marked::in_metadata;
pub(crate) use context::{Caller, Source, Watched, current, trailer};
pub(crate) use gate::guarded;

// Used by generated code.
#[doc(hidden)]
pub use self::{
    answer::{Answer, Concluded, Refusal},
    begin::{begin, begin_local},
    client::TypedClient,
    codec::{AnyPart, PartShape, method_shape, method_shape_of_parts},
    context::{Asks, InCall, Told},
    sent::{
        AnySent, Choose, Sends, Sent, SentByBytes, SentByNamed, SentByPostcard, SentByProst,
        SentByRkyv, Unless, sent, sent_by_bytes, sent_by_named, sent_by_postcard, sent_by_prost,
        sent_by_rkyv,
    },
    split::{AnyType, Probe, Split},
    stream::{Mapped, StreamEnd},
};
#[cfg(feature = "prost")]
#[doc(hidden)]
pub use {
    crate::shape::messages::{MessageField, Messages, Wire},
    codec::Fields,
};
