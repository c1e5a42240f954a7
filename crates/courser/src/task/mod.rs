//! Futures on an endpoint's own thread (ADR 40): calls to await, tasks, async handlers, time.
//!
//! ```text
//! task is polled ----> Call::poll -> start ------> Endpoint::call_with    (the endpoint is lent to
//! executor::run_ready                               AwaitedCalls: an entry  the futures: `lent`)
//!      ^                                                    |
//!      | Tasks::wake                                        v
//! frames are received: dispatch::complete ----> finish_awaited: the response, in the entry
//! ```
//!
//! The executor is a step of the event loop: it runs once after the frames of a pass, before the
//! packets of that pass are sent, and once after timers and mail. Tasks that are ready then are
//! polled once each, so a task that wakes itself delays no packet. In virtual time it is the same.
//!
//! A future has access to its endpoint only while it is polled by it. What a future does outside of
//! that, such as being dropped, is queued in [`LocalQueue`] for the event loop.

mod block_on;
mod call;
mod channel;
pub(crate) mod connect;
mod handler;
mod join;
mod local;
mod registry;
#[cfg(test)]
mod tests;
mod time;

pub use call::{Call, Sent};
pub use channel::Another;
pub use connect::Connecting;
pub use join::{JoinHandle, TaskEnded};
pub use local::{Local, Session};
pub use time::{Elapsed, Sleep};
