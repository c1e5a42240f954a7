//! Tests that run the program in virtual time, in one program of tests.

#[path = "../../../crates/cli/tests/common/mod.rs"]
mod common;
mod control;
mod fixed_points;
mod physics;
mod pictures;
mod sim;
mod sim_loss;
mod sim_run;
mod verify;
