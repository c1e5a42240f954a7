//! The swarm: many small worlds, each drawn from a seed, with an application that does all that the
//! public API can do, under every fault there is, and a ledger that knows what must come of it.
//!
//! A seed's world is drawn ([`Scenario`]), its application works while faults come and go, then all
//! faults end. From then on, within a bound of virtual time that follows from the settings, every
//! call ends, every session can be connected again and works; at rest all credits are back and
//! nothing is stored; at the end sessions and buffers are gone. What is checked meanwhile, by the
//! world and by the ledger, is listed at [`crate::Invariant`].
//!
//! [`run_seed`] runs one, [`run_swarm`] many side by side. The command `courser sim swarm` does the
//! latter, `courser sim replay` shows the packets of one.

mod bytes;
mod client;
mod coverage;
mod draw;
mod draw_faults;
mod edges;
mod ending;
mod faults;
mod kinds;
mod oracle;
mod run;
mod workload;

pub use coverage::{Coverage, Covered, PACKETS};
pub use draw::Scenario;
pub use faults::FaultKind;
pub use kinds::ENDS;
pub use run::{
    MOST_FAILED, Options, SeedReport, SwarmReport, THREAD, run_observed, run_seed, run_swarm,
};
