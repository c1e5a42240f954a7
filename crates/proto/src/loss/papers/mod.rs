//! Recovery as published, for comparison with the default and for receivers with little memory.
//!
//! - `melo`: the data structures of the MELO paper;
//! - `pooled`: combines them with their pool;
//! - `resident`: the states of arriving messages, and which of them hold blocks of the pool;
//! - `melo_board`: the retransmission scoreboard of a client slot's message.

#[allow(dead_code)] // checks of invariants, for tests and simulations
pub(crate) mod melo;
mod melo_board;
mod pooled;
mod resident;

pub use melo::Hole;
pub(super) use melo_board::MeloBoard;
pub(crate) use pooled::{PoolSize, Pools, Receiver, is_kept};
