//! The protocol of Courser as state machines: no I/O, no clock, no threads, no randomness.
//!
//! Implements the wire protocol, sessions, credits and loss recovery of eRPC and MELO (`[eRPC §4.3,
//! §5]`, `[MELO §3]`). Packets, time and random bits are arguments; frames and completions are
//! results. The same code runs over sockets, over shared memory, and in virtual time.
//!
//! The path of a packet: out through [`Endpoint::call`], `calls`, `tx/client`, `tx/batch`; in
//! through [`Endpoint::receive`], `ingress`, [`wire`], `rx/*`; and out again through
//! [`Endpoint::reply_bytes`], `reply`, `tx/server`.
//! A session with what its packets, calls and timers need is a flow: `flow`, `io`, `admission`.
//! One-way messages are in `oneway`. Congestion control is in `cc`, the receiver's budget in `budget`,
//! pacing in `pace`, the order in which messages share a link in `shortest_first`.
//! Other parts: timers in `timers` and `expiry`, prefetching in `prefetch` by the sessions in use in
//! `working_set`, credit pools in `credits`, quotas in `session/quota`, retransmission scoreboards in `loss`, counters in `stats`.
//! Apart from them: schemes as published in `cc/papers` and `loss/papers`, and in `factors` the switches
//! of optimisations with the slower paths.

#![forbid(unsafe_code)]

mod admission;
mod awaited;
mod budget;
mod calls;
mod cancel;
mod cc;
mod check;
mod config;
mod credits;
mod defer;
mod deferred;
mod driver;
mod effects;
mod endpoint;
mod error;
mod event;
mod expiry;
mod factors;
mod flow;
mod held;
mod hold;
mod ingress;
mod integrity;
mod introspect;
mod io;
mod loss;
mod memory;
mod moves;
#[cfg_attr(not(feature = "mutants"), doc(hidden))]
pub mod mutant;
mod oneway;
mod options;
mod overload;
mod pace;
mod path;
mod pause;
mod peer;
mod prefetch;
mod reply;
mod rx;
mod session;
mod shortest_first;
mod shutdown;
mod slot;
mod stats;
mod stray;
mod tail_probe;
mod timers;
mod transit;
mod tx;
pub mod wire;
mod working_set;

pub use budget::{Grant, OverduePackets, ReceiveLink};
pub use cc::{Control, DcqcnConstants, TimelyConstants, UnknownControl};
pub use config::{Admission, Config, ConfigError, Packing};
pub use credits::Room;
pub use driver::Driver;
pub use endpoint::Endpoint;
pub use error::{CallError, Executed, RejectReason, ReplyError, SessionEnd, Status};
pub use event::{Body, Completion, Notice, RequestId};
pub use factors::Factors;
pub use integrity::Integrity;
pub use introspect::{Role, SessionStats};
pub use loss::{Recovery, UnknownRecovery};
pub use memory::{MemoryUse, SessionBytes};
pub use moves::{Challenge, StrayFrame};
pub use options::{CallId, CallOptions};
pub use overload::serve_newest;
pub use session::{
    Beat, CONTROL_GREETING, CONTROL_MAX, CONTROL_PREAMBLE, ConnectAccept, ConnectError,
    ConnectOffer, ConnectOver, ConnectRefuseReason, ConnectRequest, ControlDecoder, ControlError,
    ControlMsg, ControlRefusal, Dialed, EndpointRef, Established, Evicted, Heartbeat, HostIdentity,
    IdleSession, InvalidField, RemoteSession, Schemes, SessionId, SessionState, Silence,
};
pub use stats::{CountedKind, DROP_NAMES, DROP_REASONS, EndpointStats, PACKET_KINDS, RxDrop};
pub use tx::Framing;
