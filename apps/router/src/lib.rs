//! A router made of several servers. Each has ports to networks outside; a packet that arrives at a
//! port of one is forwarded over Courser to the server whose port leads to its destination.
//!
//! * [`packet`]: IP packets: checks, flows, time to live, fragments, ICMP.
//! * [`fib`], [`group`], [`routes`]: longest-prefix match, next-hop groups, the routes of all nodes.
//! * [`node`]: one server of the cluster, from the port where a packet arrives to the one by which
//!   it leaves. It does no I/O of its own, so that the same code runs over sockets and in the
//!   simulator.
//! * [`import`]: routes that a routing daemon puts into a table of the node's kernel.
//! * [mod@line]: ports of the operating system: packet sockets, neighbours; captures.
//! * [`config`]: the cluster's file; [`control`]: changes of routes and counters of a running node.
//! * [`run`]: a node as a process.
//! * [`netns`]: a cluster and its hosts in network namespaces of one machine.
//!
//! With the feature `lab`, which servers do not need:
//!
//! * `local`: all nodes of a cluster in one process. `sim`: the router in the simulated datacenter.
//! * `bench`: packets per second of a node. `line::Capture*`: captures. Tables of the Internet.

#[cfg(feature = "lab")]
pub mod bench;
pub mod config;
pub mod control;
pub mod counters;
pub mod fib;
pub mod group;
pub mod import;
pub mod line;
#[cfg(feature = "lab")]
pub mod local;
pub mod netns;
pub mod node;
pub mod packet;
pub mod route;
pub mod routes;
pub mod run;
#[cfg(feature = "lab")]
pub mod sim;
