//! `courser-lab soak`: checks the guarantees of calls while processes are killed and stopped.
//!
//! Two server processes ([`server`]) call each other, and client processes ([`client`]) call both, all
//! on this machine; [`message`] has the request types. Each process records executions or outcomes in
//! a file that survives a kill ([`ledger`]). The parent process starts and observes them
//! ([`process`], [`cluster`]), kills and stops them ([`run`](mod@run)), and compares the ledgers
//! ([`check`]).

mod args;
mod check;
pub(crate) mod client;
mod cluster;
mod ledger;
mod message;
mod process;
mod run;
pub(crate) mod server;

pub(crate) use args::SoakArgs;
pub(crate) use run::{Experiment, run};
