//! The protocol as a whole, through its public API only: endpoints joined by a link in memory, in
//! virtual time, with seeded faults.

#![allow(unreachable_pub)] // `support` is a module here, and of other programs too

mod abuse;
mod admission;
mod cancel;
mod connect;
mod control;
mod deadlines;
mod deferred;
mod failure;
mod faults;
mod fuzz;
mod grants;
mod host_queue;
mod ingress;
mod integrity;
mod lifecycle;
mod many;
mod memory;
mod messages;
mod moves;
mod notices;
mod paced;
mod packing;
mod parts;
mod position;
mod round_trips;
mod selective;
mod shares;
mod slow;
mod support;
mod switches;
mod tails;
mod traces;
mod untimed;
mod written;
