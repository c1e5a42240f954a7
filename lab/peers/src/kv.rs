//! The same key-value service with several libraries, as their users write it, and a benchmark of
//! their asynchronous clients.
//!
//! The program with a library is `kv/NAME.rs`, and `kv/production/NAME.rs` with tokens, traces and retries. `kv/clients/NAME.rs` makes a contestant of it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::contestants::{self, Contestant};
use crate::rounds::{Case, Suite};
use crate::work::Kind;

mod check;
mod clients {
    pub(super) mod courser;
    pub(super) mod tarpc;
    pub(super) mod tonic;
}
mod courser;
mod drive;
#[cfg(test)]
mod lines;
mod production;
mod tarpc;
mod tonic;

use clients::{courser::Courser, tarpc::Tarpc, tonic::Tonic};
use drive::{contestant, demonstrate};

/// Bytes of a key.
pub const KEY: usize = 16;

/// The contestants of `peers kv`, in the order of the tables and of the rounds.
pub const ALL: &[Contestant] = &[
    contestant::<Courser<true>>(),
    contestant::<Courser<false>>(),
    contestant::<Tonic>(),
    contestant::<Tarpc>(),
];

/// Their programs.
const PROGRAMS: &[(&str, Program)] = &[
    ("courser-shm", demonstrate::<Courser<true>>),
    ("courser-udp", demonstrate::<Courser<false>>),
    ("tonic", demonstrate::<Tonic>),
    ("tarpc", demonstrate::<Tarpc>),
];

/// Runs a server and the client of a program.
type Program = fn() -> Result<()>;

/// Loads of `get`, each of that many tasks.
pub fn suite(tasks: &[u16]) -> &'static Suite {
    let case = |&tasks: &u16| Case {
        key: format!("get_32b_{tasks}").leak(),
        title: format!("get, {tasks} task{}", if tasks == 1 { "" } else { "s" }).leak(),
        kind: Kind::Get,
        size: KEY,
        in_flight: tasks.into(),
    };
    let cases: Vec<_> = tasks.iter().map(case).collect();
    // Once per run of the program.
    Box::leak(Box::new(Suite { name: "kv", contestants: ALL, cases: cases.leak() }))
}

/// The contestant of that name.
///
/// # Errors
/// There is none; says which there are.
pub fn named(name: &str) -> Result<&'static Contestant> {
    contestants::find(ALL, name)
}

/// Runs a library's program, server and client, in this process; the client prints what it does.
///
/// `deadline`: of its calls, if they have one.
///
/// # Errors
/// One of them failed, or there is no such program.
pub fn program(name: &str, deadline: Option<Duration>) -> Result<()> {
    let all = || PROGRAMS.iter().chain(production::PROGRAMS);
    let names = || all().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let found = all().find(|(program, _)| *program == name);
    let found =
        found.with_context(|| format!("no program is called `{name}`; there are {}", names()))?;
    if let Some(deadline) = deadline {
        let has_one = production::PROGRAMS.iter().any(|(program, _)| *program == name);
        ensure!(has_one, "calls of `{name}` have no deadline; leave out --deadline-ms");
        production::set_deadline(deadline)?;
    }
    found.1()
}
