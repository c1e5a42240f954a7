//! Loss recovery: when a client gives a packet up (`rto`), and what it does then (go-back-N,
//! `[eRPC §5.3]`, in [`crate::slot`]). The server keeps no timer and rolls nothing back (F3).

mod arrived;
mod recovery;
pub(crate) mod rto;
mod scoreboard;
mod watch;
mod window;

pub(crate) use arrived::Arrived;
pub use recovery::{Recovery, UnknownRecovery};
pub(crate) use scoreboard::{Scoreboard, Seen};
pub(crate) use window::ReorderWindow;
