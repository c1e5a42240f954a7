//! Loss recovery: how a client finds out which packets were lost, and what it does then
//! ([`Recovery`]). Step 12 of a packet's path tells it what has arrived, step 4 sends again. The
//! server keeps no timer and rolls nothing back (F3).
//!
//! - `board`: what a client slot knows of its message's packets, with `scoreboard` (selective) or
//!   `melo_board`;
//! - `arrived`: which packets of a request a server has, out of order; with MELO `melo`'s receiver;
//! - `melo`: the paper's data structures, and `pooled`, what keeps them together with their pool;
//! - `rto`, `window`: round trips, timeouts, and how late packets may be; a peer's;
//! - `tail_loss`: the timer of calls of one packet, which no later packet acknowledges.

mod arrived;
mod board;
mod heard;
#[allow(dead_code)] // swapping (M17), for receivers with less memory than connections
pub(crate) mod melo;
mod melo_board;
mod pooled;
mod recovery;
mod resend;
pub(crate) mod rto;
mod scoreboard;
mod tail_loss;
mod window;

pub(crate) use arrived::Arrived;
pub(crate) use board::{Board, Boards};
pub(crate) use heard::{Heard, Nack, Seen};
pub use melo::Hole;
pub(crate) use pooled::{Pools, Receiver, is_kept};
pub use recovery::{Recovery, UnknownRecovery};
pub(crate) use scoreboard::Scoreboard;
pub(crate) use tail_loss::TailLoss;
pub(crate) use window::ReorderWindow;
