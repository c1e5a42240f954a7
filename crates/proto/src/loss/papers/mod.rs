//! Recovery as published, for comparison with the default and for receivers with little memory.
//!
//! - `melo`: the data structures of the MELO paper;
//! - `pooled`: combines them with their pool;
//! - `melo_board`: the retransmission scoreboard of a client slot's message.

#[allow(dead_code)] // swapping (M17), for receivers with less memory than connections
pub(crate) mod melo;
mod melo_board;
mod pooled;

pub use melo::Hole;
pub(super) use melo_board::MeloBoard;
pub(crate) use pooled::{Pools, Receiver, is_kept};
