//! Loss recovery: detection and retransmission of lost packets by the client ([`Recovery`]). Step
//! 12 of a packet's path reports arrivals, step 4 retransmits. The server keeps no timer and
//! retransmits only on request (ADR 3).
//!
//! - `board`: the retransmission scoreboard of a client slot's message, either `scoreboard`
//!   (selective) or the one of MELO;
//! - `arrived`: a server's record of request packets that arrived out of order; with MELO it is
//!   the receiver of the paper;
//! - `papers`: MELO as published;
//! - `rto`, `window`, `grant_wait`: round trips, timeouts, the reordering window of a path, and the
//!   time that grants take;
//! - `tail_loss`: the timer of single-packet calls, which no later packet acknowledges.

mod arrived;
mod board;
mod feedback;
mod grant_wait;
pub(crate) mod papers;
mod recovery;
mod resend;
pub(crate) mod rto;
mod scoreboard;
mod tail_loss;
mod window;

pub(crate) use arrived::Arrived;
pub(crate) use board::{Board, Boards};
pub(crate) use feedback::{AckInfo, LossFeedback, Nack};
pub(crate) use grant_wait::GrantWait;
pub use papers::Hole;
pub(crate) use papers::{PoolSize, Pools, Receiver, is_kept};
pub use recovery::{Recovery, UnknownRecovery};
pub(crate) use scoreboard::Scoreboard;
pub(crate) use tail_loss::TailLoss;
pub(crate) use window::ReorderWindow;
