//! Nodes in the simulated datacenter: the same code as over sockets.

mod basics;
mod copies;
mod disks;
mod histories;
mod latency;
mod patience;
mod world;
