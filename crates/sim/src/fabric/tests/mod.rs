//! Tests of the fabric by itself: a loop, hosts with endless NIC queues, and arithmetic.

mod conservation;
mod faults;
mod flow_control;
mod lab;
mod physics;
mod queueing;
mod speed;
mod switches;
mod topologies;
