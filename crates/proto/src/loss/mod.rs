//! Loss recovery: when a client gives a packet up (`rto`), and what it does then (go-back-N,
//! `[eRPC §5.3]`, in [`crate::slot`]). The server keeps no timer and rolls nothing back (F3).

mod arrived;
mod board;
#[allow(dead_code)] // swapping (M17), for receivers with less memory than connections
pub(crate) mod melo;
mod melo_board;
mod pooled;
mod recovery;
pub(crate) mod rto;
mod scoreboard;
mod watch;
mod window;

pub(crate) use arrived::Arrived;
pub(crate) use board::{Board, Heard, Nack, Seen};
pub use melo::Hole;
pub(crate) use pooled::{Pools, Receiver};
pub use recovery::{Recovery, UnknownRecovery};
pub(crate) use scoreboard::Scoreboard;
pub(crate) use window::ReorderWindow;
