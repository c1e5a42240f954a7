//! Futures on an endpoint's own thread (ADR 40): calls to await, tasks, async handlers, time.
//!
//! ```text
//! task is polled ----> Call::poll -> start_call --> Endpoint::call_with    (the endpoint is lent to
//! executor::run_task                                AwaitedCalls: an entry  the futures: `lent`)
//!      ^                                                    |
//!      | the response is shown to the poll                  v
//! a frame is received: Dispatch::on_completion --> answer_awaited
//! ```
//!
//! A response polls the task that waits for it at once, as a continuation runs, and the future reads
//! it where it was received. One that the poll does not read is kept in its entry. So is the response
//! of a call after which its task has started another one: a task that waits for many calls is ready
//! then, and polled once for all of them.
//!
//! Tasks that are ready for any other reason run in a step of the event loop: once after the frames of
//! a pass, before its packets are sent, and once after timers and mail. They are polled once each, so a
//! task that wakes itself delays no packet. In virtual time it is the same.
//!
//! A future has access to its endpoint only while it is polled by it. What a future does outside of
//! that, such as being dropped, is queued in [`LocalQueue`] for the event loop.

mod block_on;
mod call;
mod channel;
pub(crate) mod connect;
mod counted;
mod enter;
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
pub use enter::Entered;
pub use join::{JoinHandle, TaskEnded};
pub use local::{Local, Session};
pub use time::{Elapsed, Sleep, Timeout};
