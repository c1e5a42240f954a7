//! The protocol of Courser as state machines: no I/O, no clock, no threads, no randomness.
//!
//! Implements the wire protocol, sessions, credits and go-back-N recovery of eRPC
//! (`[eRPC §4.3, §5]`). Packets, time and random bits are arguments; frames and completions are
//! results. The same code runs over sockets, over memory, and in virtual time.
//!
//! A reader follows one packet: out through [`Endpoint::call`], `slot/client`, `tx/request`,
//! `tx/stage`; in through [`Endpoint::on_frame`], [`wire`], `rx/*`, and out again through
//! [`Endpoint::reply_bytes`] and `tx/response`.

#![forbid(unsafe_code)]

mod ahead;
mod calls;
mod config;
mod deadline;
mod deferred;
mod door;
mod ending;
mod endpoint;
mod error;
mod event;
mod look;
mod loss;
mod memory;
#[cfg(not(feature = "mutants"))]
#[allow(unreachable_pub)] // part of the API with the feature
mod mutant;
#[cfg(feature = "mutants")]
pub mod mutant;
mod options;
mod overload;
mod reply;
mod rx;
mod session;
mod shutdown;
mod slot;
mod stats;
mod timers;
mod tx;
pub mod wire;

pub use config::{Admission, Config, ConfigError};
pub use endpoint::Endpoint;
pub use error::{CallError, CallRefused, Executed, ReplyError, Status};
pub use event::{Answered, Body, Completion, Driver, Event, FrameCursor, RequestId};
pub use look::{Role, SessionStats};
pub use loss::{Recovery, UnknownRecovery};
pub use memory::{MemoryUse, SessionBytes};
pub use options::{CallId, CallOptions};
pub use overload::serve_newest;
pub use session::{
    Beat, CONTROL_MAX, CONTROL_PREAMBLE, ConnectAccept, ConnectError, ConnectOffer, ConnectRequest,
    ControlDecoder, ControlError, ControlMsg, Dialed, EndpointRef, Established, Heartbeat,
    IdleSession, RefuseReason, SessionId, SessionState,
};
pub use stats::{DROP_NAMES, DROP_REASONS, Drop, EndpointStats, PACKET_KINDS};
