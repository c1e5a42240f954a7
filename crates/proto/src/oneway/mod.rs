//! One-way messages: sent at most once, without a response ([ADR 38]).
//!
//! A message that fits a packet has a number in its session. The sender keeps it until the receiver
//! has acknowledged its number, and sends it again when it is lost; one acknowledgement serves all
//! messages of a burst. Messages leave in the order in which they were sent, and are delivered as
//! they arrive. A larger message is a request with an empty response, which the receiver gives by
//! itself: it has the flow control, loss recovery and limits of requests.
//!
//! - `outgoing`: the messages of a client session that were not acknowledged;
//! - `incoming`: the numbers that a server session has received;
//! - `send`, `timeout`: the sender's part of an endpoint; `receive`: the receiver's, and
//!   acknowledgements.
//!
//! [ADR 38]: https://github.com/courser-rpc/courser/blob/main/docs/adr/0038-one-way-messages.md

mod incoming;
mod outgoing;
mod receive;
mod send;
mod timeout;
mod waiting;

pub(crate) use incoming::Incoming;
pub(crate) use outgoing::{Outgoing, Unacknowledged};
pub(crate) use receive::MessageHeader;

/// Messages of a session that may be in flight: the receiver distinguishes no more.
pub(crate) const WINDOW: u32 = 1024;
