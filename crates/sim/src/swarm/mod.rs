//! The swarm: many small worlds, each drawn from a seed, with an application that uses all of the
//! public API, under all kinds of faults, and a ledger with the expected results.
//!
//! A seed's world is drawn ([`Scenario`]), its application runs while faults come and go, then all
//! faults end. From then on, within a bound of virtual time that follows from the settings, every
//! call ends and every session can be connected and works; at rest all credits have returned and no
//! message is stored; at the end sessions and buffers are freed. The checks of the world and of the
//! ledger are listed at [`crate::Invariant`].
//!
//! [`run_seed`] runs one, [`run_swarm`] many side by side. The command `courser-lab sim swarm` does the
//! latter, `courser-lab sim replay` shows the packets of one.

mod bytes;
mod client;
mod coverage;
mod crowd;
mod dice;
mod draw;
mod draw_faults;
mod edges;
mod ending;
mod faults;
mod kinds;
mod message_ledger;
mod messages;
mod oracle;
mod run;
mod workload;

pub use coverage::{Coverage, Covered, PACKETS};
pub use draw::Scenario;
pub use faults::FaultKind;
pub use kinds::ENDS;
pub use message_ledger::MESSAGE_ENDS;
pub use run::{
    MOST_FAILED, Options, SeedReport, SwarmReport, THREAD, run_observed, run_seed, run_swarm,
};
