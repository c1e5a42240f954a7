//! A cluster of three nodes in memory: what becomes of packets, also of wrong ones, of messages that
//! no node sends, of changes of routes, and of deaths.

#[allow(dead_code, reason = "tests/packets.rs uses the rest")]
#[path = "packets/build.rs"]
mod build;
#[path = "local/cluster.rs"]
mod cluster;
#[path = "packets/generate.rs"]
mod generate;
#[path = "local/hostile.rs"]
mod hostile;
#[path = "local/outside.rs"]
mod outside;
#[path = "local/overload.rs"]
mod overload;
#[path = "local/packets.rs"]
mod packets;
#[path = "local/routes.rs"]
mod routes;
#[path = "local/updates.rs"]
mod updates;
