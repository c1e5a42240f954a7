//! The event loop of an endpoint: packets, dispatch, workers, and the connections of its sessions.

pub(crate) mod connect;
pub(crate) mod connections;
pub(crate) mod dispatch;
pub(crate) mod endpoint;
pub(crate) mod event_loop;
mod factors;
pub(crate) mod flood;
pub(crate) mod links;
mod moves;
mod on_thread;
pub(crate) mod shield;
pub(crate) mod spin;
mod tasks;
pub(crate) mod worker;
