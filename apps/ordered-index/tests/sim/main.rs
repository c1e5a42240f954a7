//! The index in the simulated datacenter, under faults: the same handlers and client as over sockets.

mod histories;
mod world;
