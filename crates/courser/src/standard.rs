//! Services that any server can have by one line: health, and statistics with a list of its services.

pub mod health;
pub mod introspection;
mod json;
pub mod metrics;
