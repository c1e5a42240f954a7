//! Middleware: code around the calls of typed services, at a server and at a client.
//!
//! Hooks before a call and after it, not futures around it: they work on an endpoint's own thread, on other
//! threads and in virtual time, for all codecs and kinds of methods, and cost no allocation where there is
//! nothing to keep (ADR 60). `courser::tower` (feature `tower`) has layers around calls.

mod client;
mod end;
mod observation;
mod server;

pub(crate) use client::{ClientChain, Observed};
pub use client::{ClientMiddleware, OutgoingCall};
pub use end::CallEnd;
pub(crate) use end::Subject;
pub(crate) use observation::{Observation, ServerChain, miss, missing};
pub use server::{IncomingCall, ServerMiddleware};
