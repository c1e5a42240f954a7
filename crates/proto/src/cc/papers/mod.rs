//! Controllers as published, for comparison with the default ([`super::Control`]).

mod dcqcn;
mod timely;

pub(super) use dcqcn::Dcqcn;
pub(super) use timely::Timely;
