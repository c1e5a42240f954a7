//! What can be seen of a simulation while it runs.

mod tap;

pub use tap::{DropReason, LinkId, Place, Tap};
