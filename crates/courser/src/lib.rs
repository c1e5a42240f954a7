//! Courser: datacenter RPC that is general and fast.
//!
//! ```no_run
//! use std::time::Duration;
//! use courser::Server;
//!
//! /// Greets people.
//! #[courser::service]
//! trait Greeter {
//!     /// A greeting for somebody of that name.
//!     async fn hello(&self, name: String) -> String;
//! }
//!
//! struct Polite;
//!
//! impl Greeter for Polite {
//!     async fn hello(&self, name: String) -> String {
//!         format!("Hello, {name}!")
//!     }
//! }
//!
//! # fn server() -> Result<(), Box<dyn std::error::Error>> {
//! // The server:
//! Server::bind("udp://0.0.0.0:31850")?.add_service(GreeterServer::new(Polite))?.run()?;
//! # Ok(()) }
//!
//! # async fn client() -> Result<(), Box<dyn std::error::Error>> {
//! // The client, on any runtime:
//! let greeter = GreeterClient::connect("udp://db1:31850").await?;
//! println!("{}", greeter.hello("Ada".into()).deadline(Duration::from_millis(5)).await?);
//! # Ok(()) }
//! ```
//!
//! The [book](https://github.com/courser-rpc/courser/blob/main/docs/book/introduction.md) leads from
//! here: from tonic, changing a service, failure and retries, testing in a simulated datacenter.
//!
//! Four interfaces share one event loop and mix on one endpoint:
//!
//! * **Typed services** ([`mod@service`]): client and server from a trait, with typed errors, streams
//!   and a choice of codecs.
//! * **Handles for any thread and runtime**: [`Client`], [`Server`].
//! * **Futures on an endpoint's own thread**, also in virtual time: [`Local`], [`Session`],
//!   [`Rpc::on_async`], [`Rpc::block_on`].
//! * **Callbacks**, for the last nanosecond:
//!
//! ```no_run
//! use courser::Nexus;
//! const ECHO: u16 = 1;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // The server, on its thread:
//! let nexus = Nexus::bind("udp://0.0.0.0:31850")?;
//! let mut rpc = nexus.endpoint()?;
//! rpc.on(ECHO, |cx, req| cx.reply(req));
//! rpc.run()?;
//! # Ok(()) }
//! ```
//!
//! Below all of them:
//!
//! * A [`Nexus`] is a process's address, with the thread that connects sessions.
//! * An [`Rpc`] endpoint belongs to one thread and does all work there: packets, handlers,
//!   continuations (`[eRPC §3.1]`). It is not `Send`; the state that its closures capture needs no
//!   lock.
//! * A session ([`SessionId`]) connects two endpoints. Calls on it run at most once and end
//!   exactly once, with a response or a [`CallError`] that states whether the handler ran.
//! * Messages are [`MsgBuf`]s from the endpoint's arena: a request moves into its call and returns
//!   with the [`Completion`].

// Not `forbid`: the `smallbox!` macro expands to a block that allows unsafe code.
#![deny(unsafe_code)]
// The kinds of applications at an endpoint (`core/app.rs`) are those of this crate.
#![allow(private_bounds)]
// docs.rs names the feature that an item needs; it has a nightly compiler.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(not(target_os = "linux"))]
compile_error!("Courser needs Linux");

mod channel;
mod client;
mod config;
mod control;
mod core;
mod counters;
mod counts;
mod error;
#[cfg(feature = "prost")]
pub mod grpc;
mod machine;
mod panics;
mod platform;
mod rpc;
mod run;
mod server;
pub mod service;
mod shape;
mod standard;
mod submit;
mod sync;
mod task;
#[cfg(feature = "tower")]
#[cfg_attr(docsrs, doc(cfg(feature = "tower")))]
pub mod tower;
#[cfg(test)]
mod tests {
    pub(crate) mod in_memory;
}

pub use standard::{health, introspection, metrics};

pub use self::core::{
    context::Context,
    drain::{DrainToken, Draining},
    handled::HandlerStats,
    message::{Completion, Reply, ReplyHandle, Request, Response},
    shares::ClientStats,
    tasks::TaskStats,
    timer::TimerId,
};
pub use client::{
    Client, ClientAnother, ClientBuilder, ClientCall, ClientConnect, ClientSend, Endpoints,
    PollingStats,
};
pub use config::Config;
#[doc(hidden)]
pub use config::{Allowed, Setting, Tuning};
pub use control::ControlStats;
pub use courser_buf::{AllocError, ArenaStats, ClassStats, MsgBuf, stats};
pub use courser_macros::service;
pub use courser_net::{
    AnyTransport, MemOptions, Offload, OptionSet, ShmOptions, Transport, TransportOptions,
    TransportStats, Trust, UdpOptions, Uri, UriError, ZoneError,
};
pub use courser_proto::{
    Admission, CallError, CallId, ConnectRefuseReason, Control, DROP_NAMES, DcqcnConstants,
    EndpointStats, Executed, Integrity, MemoryUse, Packing, Recovery, RejectReason, ReplyError,
    Role, SessionBytes, SessionEnd, SessionId, SessionState, SessionStats, Status, TimelyConstants,
};
pub use error::{
    BindError, CallFailure, CallRejected, ClientError, DialError, LostReason, RunError,
    ServerError, SessionError, WorkerError,
};
pub use rpc::{
    EndpointHandle, Rpc,
    call::CallBuilder,
    call_wait::{Answered, CallWaitError, CallWaitReason},
    nexus::Nexus,
    send::MessageBuilder,
    shutdown::ShutdownReport,
};
pub use run::worker::{Work, WorkerStats};
pub use server::{HandlerFuture, Server, ServerHandle, ServerStats, Serving, Spawn};
pub use task::{
    Another, Call, Connecting, Elapsed, Entered, JoinHandle, Local, Sent, Session, Sleep,
    TaskEnded, Timeout,
};

/// For authors of transports and of simulators. The protocol is not part of the public API; a
/// program that needs it depends on the crate `courser-proto`, which may change in any version.
pub mod parts {
    pub mod transport {
        //! The types with which a transport of your own, or one around another ([`Middleware`]), is
        //! written. Endpoints use it by [`crate::Nexus::endpoint_on`],
        //! [`crate::Nexus::endpoint_with`], or by its scheme after [`register`]. The crate
        //! `courser-net` has the same types and a conformance suite.
        pub use courser_buf::{
            Addr, Ecn, MemorySource, MsgBuf, PacketAccess, PathId, RX_BURST, Region, RxBurst,
            RxFrame, TX_GATHER, TxBurst, TxFrame, TxSeg,
        };
        pub use courser_net::any::{RegisterError, register};
        pub use courser_net::options::{Expected, NamedOption, OptionValue, TransportOptions, set};
        pub use courser_net::{
            AnyTransport, BindSpec, Caps, CommonOptions, ControlSockets, FaultConfig, FaultPlan,
            FaultTransport, Middleware, OpenError, OptionSet, Path, PathError, PathTable,
            Transport, TransportStats, wait_readable,
        };
    }

    pub mod machine {
        //! The layer below a nexus, for simulators: see [`crate::Nexus::bind_in`].
        #[doc(inline)]
        pub use crate::client::VirtualClients;
        #[doc(inline)]
        pub use crate::machine::*;
        pub use courser_net::{AnyTransport, BindSpec, OpenError};
        pub use courser_proto::RequestId;
    }
}

/// The README's program compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The programs of chapters of the book.
#[cfg(all(doctest, feature = "tokio"))]
mod chapters {
    #[doc = include_str!("../../../docs/book/introduction.md")]
    struct Introduction;
    #[doc = include_str!("../../../docs/book/from-tonic.md")]
    struct FromTonic;
    #[doc = include_str!("../../../docs/book/changing-a-service.md")]
    struct ChangingAService;
    #[doc = include_str!("../../../docs/book/failure-and-retries.md")]
    struct FailureAndRetries;
}
