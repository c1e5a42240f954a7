//! Courser: datacenter RPC that is general and fast.
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
//! * A [`Nexus`] is a process's presence: its address, and the thread that connects sessions.
//! * An [`Rpc`] endpoint belongs to one thread and does all work there: packets, handlers,
//!   continuations (`[eRPC §3.1]`). It is not `Send`; what its closures capture needs no lock.
//! * A session ([`SessionId`]) connects two endpoints. Calls on it run at most once and end
//!   exactly once, with a response or a [`CallError`] that says whether the handler ran.
//! * Messages are [`MsgBuf`]s from the endpoint's arena: they move into a call and come back.

// Not `forbid`: the `smallbox!` macro expands to a block that allows it for itself.
#![deny(unsafe_code)]

#[cfg(not(target_os = "linux"))]
compile_error!("Courser needs Linux");

mod call;
mod clock;
mod config;
mod context;
mod control;
mod conts;
mod core;
mod dispatch;
mod error;
mod event_loop;
mod machine;
mod mail;
mod message;
mod nexus;
mod panics;
mod platform;
mod rpc;
mod shutdown;
mod spin;
mod worker;

pub use call::CallBuilder;
pub use config::Config;
#[doc(hidden)]
pub use config::Tuning;
pub use context::Context;
pub use control::{ControlStats, DialError, LostReason};
pub use courser_buf::{Addr, AllocError, Arena, ArenaStats, MsgBuf};
pub use courser_net::{
    AnyTransport, MemOptions, Offload, OptionSet, ShmOptions, Transport, TransportOptions,
    TransportStats, UdpOptions, Uri, UriError,
};
pub use courser_proto::{
    Admission, CallError, CallId, ConnectRefuseReason, DROP_NAMES, EndpointStats, Executed,
    MemoryUse, Recovery, RejectReason, ReplyError, Role, SessionBytes, SessionEnd, SessionId,
    SessionState, SessionStats, Status,
};
pub use error::{BindError, CallRejected, RunError, SessionError, WorkerError};
pub use message::{Completion, Reply, ReplyHandle, Request, Response};
pub use nexus::Nexus;
pub use rpc::{EndpointHandle, Rpc};
pub use shutdown::ShutdownReport;
pub use worker::{HandlerStats, Work, WorkerStats};

/// The parts that Courser is made of, for programs that need more than the public API: own
/// transports, own event loops, tests, simulations.
pub mod parts {
    pub use {courser_buf as buf, courser_net as net, courser_proto as proto};

    pub mod machine {
        //! What a nexus runs on, for simulations: see [`crate::Nexus::bind_in`].
        #[doc(inline)]
        pub use crate::machine::*;
    }
}

/// The README's program compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
