//! `courser soak`: whether every promise holds while processes are killed and stopped.
//!
//! Two server processes that call each other and some client processes, on this machine; see
//! [`message`] for what they say. What each of them did is in files that outlive a kill
//! ([`ledger`]), which this process reads as they grow ([`check`] has the rules). [`server`] and
//! [`client`] are the other processes, [`process`] what they are to this one, [`cluster`] all of
//! them together, [`run`](mod@run) what is done to them.

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
