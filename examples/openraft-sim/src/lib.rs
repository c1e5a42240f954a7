//! openraft 0.10 over Courser's executor. [`runtime`] is its runtime: tasks, clock, timers and random
//! numbers of an endpoint.

pub mod runtime;
