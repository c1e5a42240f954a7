//! Typed services.

mod channel;

pub use channel::Channel;
